"""Kubernetes objects from YAML and JSON streams, as `kubectl` prints and reads them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from msgspec import Struct

from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.command_error import CommandError
from hami_webhook.kube.message_text import shown
from hami_webhook.kube.yaml_reader import Document, Limits, YamlError, YamlProblem, read_documents

STDIN = "-"
LARGEST_INPUT = 1 << 30
"""Bytes of a file, or of standard input: the objects of a cluster of 100,000 pods."""
LIMITS = Limits(depth=200, aliased=1_000_000, line_depth=2)  # the items of a List

_ALIAS = "not usable YAML: the alias *{} points to nothing, or to what it is part of"
_SENTENCES = {
    YamlProblem.SYNTAX: "not YAML: {}",
    YamlProblem.CHARACTER: "not YAML: {}",
    YamlProblem.TAG: "not usable YAML: the tag {} isn't one of Kubernetes' YAML",
    YamlProblem.KEY: "not usable YAML: a key must be a string",
    YamlProblem.UNDEFINED_ALIAS: _ALIAS,
    YamlProblem.RECURSIVE_ALIAS: _ALIAS,
    YamlProblem.MERGE: "not usable YAML: << can merge only mappings",
    YamlProblem.VALUES: "not usable YAML: aliases stand for more than {} values",
    YamlProblem.DEPTH: "nested more than {} levels deep",
}


class LoadError(CommandError, ValueError):
    """Input that can't be used; the text is one sentence that starts with the source and line."""


class LoadedObject(Struct, frozen=True):
    """One Kubernetes object and where its document starts; `item` is its place in a JSON List, else None."""

    object: JSON
    source: str
    line: int
    item: int | None = None

    @property
    def where(self) -> str:
        """`file.yaml:12`, or `nodes.json:1 (items[3])`."""
        return _where(self.source, self.line, self.item)

    @property
    def kind(self) -> str:
        return str(self.object["kind"])

    @property
    def name(self) -> str:
        """`metadata.name`, else `metadata.generateName`."""
        meta = self.object["metadata"]
        return str(meta.get("name") or meta["generateName"])


class Bundle(Struct):
    """Loaded objects by what they are for, each group in the order of the input."""

    nodes: list[LoadedObject] = []
    pods: list[LoadedObject] = []
    quotas: list[LoadedObject] = []
    accelerator_quotas: list[LoadedObject] = []
    namespaces: list[LoadedObject] = []
    priority_classes: list[LoadedObject] = []
    disruption_budgets: list[LoadedObject] = []
    devices: list[LoadedObject] = []
    claims: list[LoadedObject] = []
    claim_templates: list[LoadedObject] = []
    resource_slices: list[LoadedObject] = []
    device_classes: list[LoadedObject] = []
    skipped: dict[str, int] = {}
    """How many objects of each other kind there were, as `{"Service": 3}`."""


GROUPS: Mapping[Kind, str] = {
    Kind.NAMESPACES: "namespaces",
    Kind.NODES: "nodes",
    Kind.DEVICES: "devices",
    Kind.DEVICE_CLASSES: "device_classes",
    Kind.RESOURCE_SLICES: "resource_slices",
    Kind.RESOURCE_CLAIM_TEMPLATES: "claim_templates",
    Kind.RESOURCE_CLAIMS: "claims",
    Kind.RESOURCE_QUOTAS: "quotas",
    Kind.ACCELERATOR_QUOTAS: "accelerator_quotas",
    Kind.POD_DISRUPTION_BUDGETS: "disruption_budgets",
    Kind.PRIORITY_CLASSES: "priority_classes",
    Kind.PODS: "pods",
}
"""The groups of a `Bundle`, in the order in which a cluster is filled: a pod comes after what counts it;
PriorityClasses aren't put into it.
"""
_BY_NAME = {(kind.api_version.rpartition("/")[0], kind.singular): group for kind, group in GROUPS.items()}


def read_objects(path: str, stdin: BinaryIO, most: int = LARGEST_INPUT) -> list[LoadedObject]:
    """The objects in a file of `most` bytes, or in `stdin` if `path` is `-`; raises `LoadError`."""
    source = "standard input" if path == STDIN else path
    try:
        with contextlib.nullcontext(stdin) if path == STDIN else Path(path).open("rb") as file:
            content = file.read(most + 1)
    except FileNotFoundError as error:
        raise LoadError(f"{source}: no such file") from error
    except IsADirectoryError as error:
        raise LoadError(f"{source}: is a directory, not a file") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise LoadError(f"{source}: can't be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > most:
        raise LoadError(f"{source}: has more than {most} bytes, which is more than the objects of any cluster have")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise LoadError(f"{source}:{line}: not UTF-8 text (byte 0x{content[error.start]:02x})") from error
    return load_objects(text, source)


def load_objects(text: str, source: str) -> list[LoadedObject]:
    """The objects in a stream of YAML or JSON documents, Lists taken apart; raises `LoadError`.

    A text whose first character is `{` or `[` is JSON (one document, several, or one per line), as kubectl has it,
    unless only YAML can read it.
    """
    text = text.removeprefix("\ufeff")
    if text.lstrip()[:1] in ("{", "["):
        try:
            documents = list(_json_documents(text, source))
        except LoadError as error:
            try:
                documents = list(_yaml_documents(text, source))
            except LoadError:
                raise error from None
    else:
        documents = list(_yaml_documents(text, source))
    return [found for document in documents for found in _objects(document, source)]


def sort_objects(objects: list[LoadedObject]) -> Bundle:
    """The objects sorted by API group and kind; any version of a group will do."""
    bundle = Bundle()
    for loaded in objects:
        place = group_of(loaded)
        if place is None:
            bundle.skipped[loaded.kind] = bundle.skipped.get(loaded.kind, 0) + 1
        else:
            getattr(bundle, place).append(loaded)
    return bundle


def group_of(loaded: LoadedObject) -> str | None:
    """The group of a `Bundle` that an object belongs to; None for an object of another kind."""
    group, slash, _ = loaded.object["apiVersion"].partition("/")
    return _BY_NAME.get((group if slash else "", loaded.kind))


def wrong(path: str, wanted: str, value: Any) -> str:
    """That the value at a path isn't what is wanted, or isn't there."""
    return f"{path} is missing" if value is None else f"{path} must be {wanted}, not {_described(value)}"


def _objects(document: Document, source: str) -> Iterator[LoadedObject]:
    """The object a document is, or those its List holds; an empty document holds none."""
    value = document.value
    if value is None:
        return
    if not _is_list(value):
        yield _checked(value, source, document.line, None)
        return
    for index, item in enumerate(_items(value, _where(source, document.line))):
        line, place = document.line_at(("items", index)), None if document.lines else index
        if _is_list(item):
            nested = _items(item, _where(source, line, place))
            yield from (_checked(each, source, line, place) for each in nested)
        else:
            yield _checked(item, source, line, place)


def _is_list(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(kind := value.get("kind"), str):
        return False
    return kind == "List" or (kind.endswith("List") and "spec" not in value)


def _items(value: JSON, where: str) -> list[Any]:
    """The items of a List; those of a PodList may leave out apiVersion and kind, which follow from the list's."""
    if "items" not in value:
        raise LoadError(f"{where}: a {_kind(value)} must have items, but has none")
    items = [] if value["items"] is None else value["items"]
    if not isinstance(items, list):
        raise LoadError(f"{where}: the items of a {_kind(value)} must be a list, not {_described(items)}")
    if value["kind"] == "List":
        return items
    known = {"apiVersion": value.get("apiVersion"), "kind": value["kind"].removesuffix("List")}
    return [{**known, **item} if isinstance(item, dict) else item for item in items]


def _checked(value: Any, source: str, line: int, item: int | None) -> LoadedObject:
    where = _where(source, line, item)
    if not isinstance(value, dict):
        raise LoadError(f"{where}: expected a Kubernetes object, found {_described(value)}")
    for key in ("kind", "apiVersion"):
        if not isinstance(value.get(key), str) or not value[key]:
            raise LoadError(f"{where}: {wrong(key, 'a string', value.get(key))}")
    meta = value.get("metadata")
    if not isinstance(meta, dict):
        raise LoadError(f"{where}: {_kind(value)}: {wrong('metadata', 'an object', meta)}")
    name = meta.get("name") or meta.get("generateName")
    if not isinstance(name, str) or not name:
        raise LoadError(f"{where}: {_kind(value)}: {wrong('metadata.name', 'a string', name)}")
    if not isinstance(meta.get("namespace") or "", str):
        problem = wrong("metadata.namespace", "a string", meta["namespace"])
        raise LoadError(f"{where}: {_kind(value)} {shown(name)}: {problem}")
    return LoadedObject(value, source, line, item)


def _where(source: str, line: int, item: int | None = None) -> str:
    return f"{source}:{line}" if item is None else f"{source}:{line} (items[{item}])"


def _kind(value: JSON) -> str:
    kind: str = value["kind"]
    return kind if len(kind) <= 100 else f"{kind[:97]}..."


def _described(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool() | int() | float():
            return f"the {'boolean' if isinstance(value, bool) else 'number'} {json.dumps(value)}"
        case str():
            return f"the string {value if len(value) <= 40 else value[:37] + '...'!r}"
    return "a list" if isinstance(value, list) else "an object"


def _yaml_documents(text: str, source: str) -> Iterator[Document]:
    try:
        yield from read_documents(text, LIMITS)
    except YamlError as error:
        sentence = _SENTENCES[error.problem].format(error.detail)
        raise LoadError(f"{source}:{error.line}: {sentence}") from error


def _too_deep(source: str, line: int) -> LoadError:
    return LoadError(f"{source}:{line}: {_SENTENCES[YamlProblem.DEPTH].format(LIMITS.depth)}")


def _json_documents(text: str, source: str) -> Iterator[Document]:
    first = text.count("\n", 0, len(text) - len(text.lstrip())) + 1
    try:
        documents = [Document(orjson.loads(text), first)]
    except orjson.JSONDecodeError:
        documents = list(_concatenated(text, source))
    for document in documents:
        level = [document.value]
        for _ in range(LIMITS.depth + 1):
            level = [child for parent in level for child in _children(parent)]
        if level:
            raise _too_deep(source, document.line)
        yield document


def _children(value: Any) -> Iterator[Any]:
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (member for member in members if isinstance(member, dict | list))


def _concatenated(text: str, source: str) -> Iterator[Document]:
    """JSON documents one after another; each is read strictly once its end is found."""
    decoder = json.JSONDecoder()
    position, line = 0, 1
    while rest := text[position : position + 1]:
        if rest.isspace():
            line += rest == "\n"
            position += 1
            continue
        try:
            _, end = decoder.raw_decode(text, position)
        except RecursionError as error:
            raise _too_deep(source, line) from error
        except json.JSONDecodeError as error:
            raise LoadError(f"{source}:{error.lineno}: not JSON: {error.msg}") from error
        try:
            value = orjson.loads(text[position:end])
        except orjson.JSONDecodeError as error:
            raise LoadError(f"{source}:{line + error.lineno - 1}: not JSON: {error.msg}") from error
        yield Document(value, line)
        line += text.count("\n", position, end)
        position = end
