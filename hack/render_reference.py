"""Writes what of the reference follows from the program and its manifests: `python -m hack.render_reference`.

The settings in docs/reference.md, the fields of AcceleratorQuotas, the values of the chart. A test compares the pages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from hami_webhook.config import SETTINGS, Setting

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DEFINITION = ROOT / "manifests" / "base" / "acceleratorquotas.yaml"
VALUES = ROOT / "manifests" / "chart" / "values.yaml"
SETTINGS_HEADING = "| flag | environment variable | default | meaning |\n|---|---|---|---|\n"
FIELDS = """\
# Fields of an AcceleratorQuota

What an AcceleratorQuota is for is in [quotas](quotas.md#many-namespaces). The API server refuses fields and values that
aren't of these types. `kubectl explain aq.spec` says the same.

| field | type | meaning |
|---|---|---|
"""
CHART_VALUES = """\
# Values of the chart

[Install](install.md#helm) says how the chart is used. What isn't here, or isn't possible, is refused with its path
(`manifests/chart/values.schema.json`). An empty default is an empty text.

| value | default | meaning |
|---|---|---|
"""
AS_A_WHOLE = {"limits", "labels", "matchLabels", "nodeSelector", "requests"}
"""Values that are written as a whole: their keys are the user's."""


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


def _comment(lines: list[str], line: int, column: int) -> str:
    """The comment that stands above a line, at its column."""
    above: list[str] = []
    while line and lines[line - 1].startswith(" " * column + "# "):
        line -= 1
        above.insert(0, lines[line].strip()[2:])
    return " ".join(above)


def _values(node: yaml.MappingNode, lines: list[str], path: str) -> Iterator[tuple[str, ...]]:
    for key, value in node.value:
        meaning = _comment(lines, key.start_mark.line, key.start_mark.column)
        if isinstance(value, yaml.MappingNode) and value.value and key.value not in AS_A_WHOLE:
            if meaning:
                yield f"`{path}{key.value}`", "", meaning
            yield from _values(value, lines, f"{path}{key.value}.")
        else:
            default = yaml.SafeLoader("").construct_document(value)
            shown = default if isinstance(default, str) else json.dumps(default)
            yield f"`{path}{key.value}`", f"`{shown}`" if shown else "", meaning


def chart_values() -> str:
    """docs/chart-values.md"""
    text = VALUES.read_text()
    tree = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(tree, yaml.MappingNode)
    return CHART_VALUES + _table(_values(tree, text.splitlines(), ""))


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
