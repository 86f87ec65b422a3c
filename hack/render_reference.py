"""Writes the table of settings in docs/reference.md: `python -m hack.render_reference`. A test compares the two."""

from __future__ import annotations

from pathlib import Path

from hami_webhook.config import SETTINGS, Setting

REFERENCE = Path(__file__).parents[1] / "docs" / "reference.md"
HEADING = "| flag | environment variable | default | meaning |\n|---|---|---|---|\n"


def _row(setting: Setting) -> str:
    flags = ", ".join(f"`{flag}`" for flag in setting.flags) or "–"
    default = f"`{setting.default}`" if setting.default else "none"
    return f"| {flags} | `{setting.env}` | {default} | {setting.help.replace('|', '&#124;')} |\n"


def render(page: str) -> str:
    """The page with its table as the settings are."""
    before, _, rest = page.partition(HEADING)
    after = rest.partition("\n\n")[2]
    return f"{before}{HEADING}{''.join(map(_row, SETTINGS))}\n{after}"


if __name__ == "__main__":
    REFERENCE.write_text(render(REFERENCE.read_text()))
