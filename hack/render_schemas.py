"""Writes the JSON schemas of the files that users write, and what is served as OpenAPI, into `docs/schemas`.

`python -m hack.render_schemas`. The schemas come from the models that read these files. What only the program can check
(names that must differ, vendors that must be enabled) no schema says. A test compares the files with what this renders.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hack import openapi
from hami_webhook.config.devices import DeviceSection
from hami_webhook.device_config import device_config_model
from hami_webhook.policy.file import PolicyFile
from hami_webhook.simulate.folder_test import WrittenTest

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def render(title: str, schema: Schema) -> str:
    """A file; the models' docstrings are for those who read the code."""
    return json.dumps({"$schema": DIALECT, "title": title, **without_descriptions(schema)}, indent=2) + "\n"


def without_descriptions(schema: Schema) -> Schema:
    definitions = schema.get("$defs", {}).values()
    for each in (schema, *definitions):
        each.pop("description", None)
        for value in each.get("properties", {}).values():
            if "patternProperties" in value:  # of keys that have a form no other may be there
                value["additionalProperties"] = False
    return typing.cast("Schema", without_titles(schema))


def policy() -> str:
    return render("Policy file of hami-webhook", PolicyFile.model_json_schema())


def folder_test() -> str:
    return render("hami-test.yaml, a test folder of hami-webhook", WrittenTest.model_json_schema())


def device_config() -> str:
    return render("device-config.yaml of HAMi", device_config_schema())


def device_config_schema() -> Schema:
    """The sections of all vendors; as in the program, unknown keys are no fault, and a key without a value is none."""
    model = device_config_model()
    schema = model.model_json_schema()
    sections = {each.__name__: each for each in models(model)}
    for name, definition in (("", schema), *schema["$defs"].items()):
        definition.pop("additionalProperties", None)
        required = definition.get("required", [])
        section = sections.get(name)
        if section is not None and issubclass(section, DeviceSection):
            for old, new in section.OLD_SPELLINGS.items():
                definition["properties"][old] = {**definition["properties"][new], "deprecated": True}
        for key, value in definition.get("properties", {}).items():
            if key not in required:
                definition["properties"][key] = or_null(or_older_layout(value, schema["$defs"], sections))
    return without_descriptions(schema)


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A model, and those of its fields, at any depth."""
    yield model
    for field in model.model_fields.values():
        for part in parts(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from models(part)


def parts(annotation: object) -> Iterator[object]:
    yield annotation
    for each in typing.get_args(annotation):
        yield from parts(each)


def without_titles(schema: Any) -> Any:
    """A JSON schema less the titles, which repeat the names."""
    if isinstance(schema, dict):
        return {key: without_titles(value) for key, value in schema.items() if key != "title"}
    return [without_titles(each) for each in schema] if isinstance(schema, list) else schema


def or_null(schema: Schema) -> Schema:
    """The schema, and null."""
    if any(each.get("type") == "null" for each in schema.get("anyOf", [])):
        return schema
    if isinstance(schema.get("type"), str) and not {"enum", "const"} & schema.keys():
        return {**schema, "type": [schema["type"], "null"]}
    default = {"default": schema.pop("default")} if "default" in schema else {}
    return {"anyOf": [*schema.pop("anyOf", [schema]), {"type": "null"}], **default}


def or_older_layout(schema: Schema, definitions: Schema, sections: dict[str, type[BaseModel]]) -> Schema:
    """The schema of a section, and of the list that older files have in its place."""
    for each in schema.get("anyOf", [schema]):
        name = str(each.get("$ref", "")).removeprefix("#/$defs/")
        section = sections.get(name)
        if section is not None and issubclass(section, DeviceSection) and section.LIST_KEY:
            items = definitions[section.__name__]["properties"][section.LIST_KEY]
            listed = next(kind for kind in items.get("anyOf", [items]) if kind.get("type") == "array")
            return {"anyOf": [each, {"type": "array", "items": listed["items"]}, {"type": "null"}], "default": None}
    return schema


FILES: dict[str, Callable[[], str]] = {
    "policy.schema.json": policy,
    "device-config.schema.json": device_config,
    "hami-test.schema.json": folder_test,
    "openapi.json": openapi.render,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, rendered in FILES.items():
        (FOLDER / name).write_text(rendered())
