"""README.md of the Helm chart, and its table of the values: of values.yaml with its comments, and of the schema.

`hack/render_chart.py` writes it, and `hack/render_reference.py` the table into `docs/chart-values.md`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from hack.chart_values import Affinity, Resources, Values
from hack.daemon_values import DaemonValues
from hami_webhook.policy.selectors import WrittenSelector

OF_KUBERNETES = (Affinity, Resources, WrittenSelector)
"""What Kubernetes defines: one value, whatever is in it."""

HEAD = """\
<!-- Rendered by hack/render_chart.py. -->
# hami-webhook

Admission webhook, quota controller and scheduler extender for accelerators that pods share, with HAMi's wire formats.

```sh
helm install hami-webhook . -n hami-system --create-namespace --set image.registry=REGISTRY,image.tag=TAG
helm test hami-webhook -n hami-system
```

Nodes need a device plugin that registers their cards as HAMi's do. Values that mean the same as in HAMi's chart have
its names. What isn't here, or isn't possible, is refused with its path.

## Values

"""
DAEMON_HEAD = """\
<!-- Rendered by hack/render_chart.py. -->
# hami-daemon

GPU sharing with Koordinator: copies HAMi-core (`libvgpu.so`) to the nodes with GPUs, and shows what is used of them.
Values that Koordinator's chart of this name has mean the same.

```sh
helm install hami-daemon . -n koordinator-system --set daemon.vgpuMonitor.image.repository=REGISTRY/hami-webhook
```

## Values

"""
COLUMNS = "| value | is | default | meaning |\n|---|---|---|---|\n"

COMMENT = re.compile(r"^ *# ?(.*)$")
KEY = re.compile(r"^( *)(\w+):")


class Row(NamedTuple):
    """A value, or a group of them, which has no kind and no default."""

    path: str
    kind: str
    default: str
    meaning: str


def render(values: str) -> str:
    """The page for the text of values.yaml."""
    return HEAD + table(values)


def render_daemon(values: str) -> str:
    """The page of the chart hami-daemon."""
    return DAEMON_HEAD + table(values, DaemonValues)


def table(values: str, model: type[BaseModel] = Values) -> str:
    """The values with their types, defaults and comments."""
    rows = rows_of(model, yaml.safe_load(values), comments(values))
    lines = (f"| `{row.path}` | {row.kind} | {row.default} | {row.meaning} |\n" for row in rows)
    return COLUMNS + "".join(lines)


def comments(text: str) -> dict[str, str]:
    """The comment above each key of a YAML file of mappings, by its path with dots."""
    found: dict[str, str] = {}
    parents: list[tuple[int, str]] = []
    above: list[str] = []
    for line in text.splitlines():
        comment, key = COMMENT.match(line), KEY.match(line)
        if comment:
            above.append(comment[1])
            continue
        if key:
            depth = len(key[1])
            parents = [*(each for each in parents if each[0] < depth), (depth, key[2])]
            if above:
                found[".".join(name for _, name in parents)] = " ".join(above)
        above = []
    return found


def rows_of(
    model: type[BaseModel], values: Mapping[str, Any], meanings: Mapping[str, str], path: str = ""
) -> Iterator[Row]:
    """The values of a model in the order of values.yaml."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    schema = model.model_json_schema(by_alias=True)
    for key, value in values.items():
        annotation = fields[key].annotation
        meaning = cell(meanings.get(path + key, ""))
        if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in OF_KUBERNETES:
            if meaning:
                yield Row(path + key, "", "", meaning)
            yield from rows_of(annotation, value, meanings, f"{path}{key}.")
        else:
            shown = value if isinstance(value, str) else json.dumps(value)
            default = f"`{cell(shown)}`" if shown else ""
            yield Row(path + key, cell(kind(schema["properties"][key], schema.get("$defs", {}))), default, meaning)


def kind(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """What a value is, in a word or two."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return (
            name.removeprefix("Written")
            if name in {each.__name__ for each in OF_KUBERNETES}
            else kind(definitions[name], {})
        )
    if "enum" in schema:
        return ", ".join(each or "empty" for each in schema["enum"])
    if "anyOf" in schema:
        kinds = [kind(each, definitions) for each in schema["anyOf"]]
        return " or ".join(dict.fromkeys(kinds))
    if schema.get("type") == "array":
        return f"list of {kind(schema['items'], definitions)}"
    if "minimum" in schema and "maximum" in schema:
        return f"{schema['minimum']} to {schema['maximum']}"
    plain: str = schema["type"]
    return {"boolean": "true or false", "string": "text", "object": "mapping"}.get(plain, plain)


def cell(text: str) -> str:
    """Text in a table of Markdown."""
    return text.replace("|", "&#124;")
