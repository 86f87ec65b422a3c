"""Writes what of the reference follows from the program and its manifests: `python -m hack.render_reference`.

The settings in docs/reference.md, the fields of AcceleratorQuotas, the values of the chart. A test compares the pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from hack import chart_readme
from hami_webhook.config import SETTINGS, Setting

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DEFINITION = ROOT / "manifests" / "base" / "acceleratorquotas.yaml"
VALUES = ROOT / "manifests" / "chart" / "values.yaml"
SETTINGS_HEADING = "| flag | environment variable | default | meaning |\n|---|---|---|---|\n"
FIELDS = """\
# Fields of an AcceleratorQuota

[Quotas](quotas.md#many-namespaces) explains the use of an AcceleratorQuota. The API server refuses fields and values
that don't have these types. `kubectl explain aq.spec` shows the same.

| field | type | meaning |
|---|---|---|
"""
CHART_VALUES = """\
# Values of the chart

[Install](install.md#helm) explains how to use the chart. Helm rejects unknown and impossible values with their paths
(`manifests/chart/values.schema.json`). A text without a default shown is empty by default. Rows without a type are
groups.

"""


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |\n" for row in rows)


def _setting(setting: Setting) -> tuple[str, ...]:
    flags = ", ".join(f"`{flag}`" for flag in setting.flags) or "–"
    return flags, f"`{setting.env}`", f"`{setting.default}`" if setting.default else "none", setting.help


def reference(page: str) -> str:
    """docs/reference.md with its table as the settings are."""
    before, _, rest = page.partition(SETTINGS_HEADING)
    after = rest.partition("\n\n")[2]
    return f"{before}{SETTINGS_HEADING}{_table(map(_setting, SETTINGS))}\n{after}"


def _type(schema: dict[str, Any]) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map to {_type(schema['additionalProperties'])}"
    return str(schema["type"])


def _fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, ...]]:
    for name, field in schema.get("properties", {}).items():
        meaning = field.get("description", "")
        if name in schema.get("required", ()):
            meaning += " Required."
        if "default" in field:
            meaning += f" Default: `{field['default']}`."
        yield f"`{path}{name}`", _type(field), meaning.strip()
        listed = field.get("type") == "array"
        yield from _fields(field["items"] if listed else field, f"{path}{name}{'[]' * listed}.")


def acceleratorquota_fields() -> str:
    """docs/acceleratorquota-fields.md"""
    (version,) = yaml.safe_load(DEFINITION.read_text())["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    return FIELDS + _table(
        row
        for part in ("spec", "status")
        for row in (
            (f"`{part}`", "object", properties[part]["description"]),
            *_fields(properties[part], f"{part}."),
        )
    )


def chart_values() -> str:
    """docs/chart-values.md"""
    return CHART_VALUES + chart_readme.table(VALUES.read_text())


def pages() -> dict[Path, str]:
    """What each page should be."""
    settings = DOCS / "reference.md"
    return {
        settings: reference(settings.read_text()),
        DOCS / "acceleratorquota-fields.md": acceleratorquota_fields(),
        DOCS / "chart-values.md": chart_values(),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
