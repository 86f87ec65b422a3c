"""Objects from files: what kubectl prints is read, what is wrong is said in one sentence with file and line."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.cluster.api import JSON
from hami_webhook.cluster.loading import (
    LoadedObject,
    LoadError,
    load_objects,
    read_objects,
    sort_objects,
)
from hami_webhook.kube import yaml_reader

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
JSON_POD = '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"}}'


def load_one(text: str) -> JSON:
    (loaded,) = load_objects(text, "f.yaml")
    return loaded.object


def scalar(text: str) -> Any:
    return load_one(f"{POD}value: {text}\n")["value"]


# Streams


@in_one_test(
    ("text", "places"),
    [
        ("", []),
        ("\n# nothing\n---\n---\n# here\n...\n", []),
        ("null", []),
        (POD, ["f:1"]),
        (f"\n---\n# a comment\n{POD}---\n{POD}", ["f:4", "f:8"]),
        (f"\ufeff{POD}", ["f:1"]),
        (f"---\n{POD}...\n---\n", ["f:2"]),
        (JSON_POD, ["f:1"]),
        (f"\n\n  {JSON_POD}\n", ["f:3"]),
        (f"{JSON_POD}\n{JSON_POD}\n\n{JSON_POD}", ["f:1", "f:2", "f:4"]),
        (JSON_POD + JSON_POD, ["f:1", "f:1"]),
        (f"{JSON_POD}\n---\n{JSON_POD}", ["f:1", "f:3"]),
        ("{apiVersion: v1, kind: Pod, metadata: {name: p}}", ["f:1"]),
        ('{"apiVersion":"v1","kind":"Pod",\n "metadata":{"name":"p"}}\n' + JSON_POD, ["f:1", "f:3"]),
        (f'{{"apiVersion":"v1","kind":"List","items":[{JSON_POD},{JSON_POD}]}}', ["f:1 (items[0])", "f:1 (items[1])"]),
        ('{"apiVersion":"v1","kind":"List","items":null}', []),
        ("kind: List\napiVersion: v1\nitems: []\n", []),
        (
            "kind: List\napiVersion: v1\nitems:\n"
            "- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n"
            "-\n  apiVersion: v1\n  kind: Pod\n  metadata:\n    name: b\n",
            ["f:4", "f:6"],
        ),
        (
            f"kind: List\napiVersion: v1\nitems:\n- kind: List\n  apiVersion: v1\n  items: [{JSON_POD}, {JSON_POD}]\n",
            ["f:4", "f:4"],
        ),
    ],
)
def test_streams(text: str, places: list[str]) -> None:
    loaded = load_objects(text, "f")
    assert [found.where for found in loaded] == places
    assert {found.kind for found in loaded} <= {"Pod"}


def test_items_of_a_typed_list_are_told_what_they_are() -> None:
    text = '{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"a"}}]}'
    assert load_one(text) == {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}}


def test_a_kind_that_ends_in_list_may_be_an_object() -> None:
    assert (
        load_one('{"kind":"AccessList","apiVersion":"x/v1","metadata":{"name":"a"},"spec":{}}')["kind"] == "AccessList"
    )


def test_a_generated_name_is_a_name() -> None:
    (loaded,) = load_objects("{apiVersion: v1, kind: Pod, metadata: {generateName: train-}}", "f")
    assert loaded.name == "train-"


# YAML


@in_one_test(
    ("text", "value"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01", "2026-01-01"),
        ("!!timestamp 2026-01-01", "2026-01-01"),
        ("22:22", "22:22"),
        ("yes", True),
        ("Off", False),
        ("y", "y"),
        ("~", None),
        ("NULL", None),
        ("", None),
        ("''", ""),
        ("'1'", "1"),
        ('"true"', "true"),
        ("! 1", "1"),
        ("!!str 1", "1"),
        ("!!int '1'", 1),
        ("1", 1),
        ("-7", -7),
        ("+7", 7),
        ("0", 0),
        ("-0", 0),
        ("010", 8),
        ("0o10", 8),
        ("0x1F", 31),
        ("-0b11", -3),
        ("1_000", 1000),
        ("0x_", "0x_"),
        ("08", 8.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", float(2**63)),
        ("9" * 400, "9" * 400),
        ("9" * 5000, "9" * 5000),
        (".nan", ".nan"),
        ("-.", "-."),
        (".", "."),
        ("=", "="),
        ("1Gi", "1Gi"),
        ("|\n  a\n  b\n", "a\nb\n"),
        ("!!map {a: 1}", {"a": 1}),
        ("!!seq [a]", ["a"]),
        ("{1: a, yes: b, 'c': d, <<: {1: z, e: f}}", {"1": "a", "yes": "b", "c": "d", "e": "f"}),
        ("{<<: [{a: 1}, {a: 2, b: 3}], b: 4}", {"a": 1, "b": 4}),
        ("{'<<': 1}", {"<<": 1}),
        ("[&x {a: 1}, *x, &y k, {*y : 2}]", [{"a": 1}, {"a": 1}, "k", {"k": 2}]),
        ("{&k a: b, c: *k}", {"a": "b", "c": "a"}),
        ("{a: 1, a: 2}", {"a": 2}),
    ],
)
def test_yaml_values(text: str, value: Any) -> None:
    found = scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_anchors_end_with_their_document() -> None:
    with pytest.raises(LoadError, match=r"f:6: not usable YAML: the alias \*x points to nothing"):
        load_objects(f"{POD}a: &x 1\n---\na: *x\n", "f")


_texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Co", "Cn", "Zl", "Zp")), max_size=8)
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=12,
)


@given(_values)
def test_json_is_read_alike_as_json_and_as_yaml(value: Any) -> None:
    obj = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "value": value}
    (from_json,) = load_objects(orjson.dumps(obj).decode(), "f")
    (from_yaml,) = load_objects("---\n" + orjson.dumps(obj, option=orjson.OPT_INDENT_2).decode(), "f")
    assert from_json.object == obj
    assert from_yaml.object == obj


def _numbers_to_go(value: Any) -> bool:
    """Whether a text in it is a number to Kubernetes' parser and none to PyYAML, which leaves it unquoted (`0E0`)."""
    if isinstance(value, dict):
        return any(map(_numbers_to_go, (*value, *value.values())))
    if isinstance(value, list):
        return any(map(_numbers_to_go, value))
    return isinstance(value, str) and re.fullmatch(r"[-+]?\.?[0-9][-+.0-9_a-zA-Z]*", value) is not None


@given(_values)
def test_what_pyyaml_writes_is_read_back(value: Any) -> None:
    assume(not _numbers_to_go(value))
    obj = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "value": value}
    (loaded,) = load_objects(yaml.safe_dump(obj, allow_unicode=True), "f")
    assert loaded.object == obj


def test_the_python_parser_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{POD}a: &x [1, 2026-01-01, {{b: yes}}]\nc: *x\n"
    expected = load_one(text)
    monkeypatch.setattr(yaml_reader, "Loader", yaml.SafeLoader)
    assert load_one(text) == expected
    with pytest.raises(LoadError, match="f:2: not YAML: special characters are not allowed"):
        load_objects("a: 1\nb: \x01\n", "f")


# Errors


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)
CHAIN = "c:\n- &c0 [x]\n" + "".join(f"- &c{n} [*c{n - 1}]\n" for n in range(1, 300))


@in_one_test(
    ("text", "sentence"),
    [
        ("a: b: c", "f:1: not YAML: mapping values are not allowed in this context"),
        ("a: 1\nb: \x01", "f:2: not YAML: control characters are not allowed"),
        ("a: 1\nb: \ud800", "f:2: not YAML: surrogates not allowed"),
        ("{{ .Values.x }}", "f:1: not JSON: Expecting property name enclosed in double quotes"),
        ('\n{"a": 1,\n "b" 2}', "f:3: not JSON: Expecting ':' delimiter"),
        (JSON_POD + '\n{"a":\n"\\ud800"}', "f:3: not JSON: "),
        ("hello", "f:1: expected a Kubernetes object, found the string 'hello'"),
        ("x" * 50, f"f:1: expected a Kubernetes object, found the string '{'x' * 37}...'"),
        ("---\n- a\n", "f:2: expected a Kubernetes object, found a list"),
        ("42", "f:1: expected a Kubernetes object, found the number 42"),
        ("{}", "f:1: kind is missing"),
        ("kind: ''", "f:1: kind must be a string, not the string ''"),
        ("kind: Pod", "f:1: apiVersion is missing"),
        ("kind: Pod\napiVersion: 1", "f:1: apiVersion must be a string, not the number 1"),
        ("kind: Pod\napiVersion: v1", "f:1: Pod: metadata is missing"),
        ("kind: Pod\napiVersion: v1\nmetadata: []", "f:1: Pod: metadata must be an object, not a list"),
        ("kind: Pod\napiVersion: v1\nmetadata: {}", "f:1: Pod: metadata.name is missing"),
        (
            "kind: Pod\napiVersion: v1\nmetadata: {name: 1}",
            "f:1: Pod: metadata.name must be a string, not the number 1",
        ),
        (
            "kind: Pod\napiVersion: v1\nmetadata: {name: a, namespace: 1}",
            "f:1: Pod 'a': metadata.namespace must be a string, not the number 1",
        ),
        ("kind: List\napiVersion: v1", "f:1: a List must have items, but has none"),
        ("kind: List\nitems: {}", "f:1: the items of a List must be a list, not an object"),
        ("kind: List\nitems:\n- 1\n- 2", "f:3: expected a Kubernetes object, found the number 1"),
        ("kind: PodList\nitems: [1]", "f:2: expected a Kubernetes object, found the number 1"),
        ('{"kind":"List","items":[{}]}', "f:1 (items[0]): kind is missing"),
        ('{"kind":"List","items":[null]}', "f:1 (items[0]): expected a Kubernetes object, found nothing"),
        ('{"kind":"List","items":[{"kind":"List"}]}', "f:1 (items[0]): a List must have items, but has none"),
        ("!!python/object:os.system {}", "f:1: not usable YAML: the tag tag:yaml.org,2002:python/object:os.system "),
        ("a: !Ref b", "f:1: not usable YAML: the tag !Ref isn't one of Kubernetes' YAML"),
        ("a: !!binary aGk=", "f:1: not usable YAML: the tag tag:yaml.org,2002:binary isn't"),
        ("a: &a [*a]", "f:1: not usable YAML: the alias *a points to nothing, or to what it is part of"),
        ("? [a]\n: b", "f:1: not usable YAML: a key must be a string"),
        ("- &a [x]\n- *a : b", "f:2: not usable YAML: a key must be a string"),
        ("a:\n  <<: 1", "f:2: not usable YAML: << can merge only mappings"),
        ("a:\n  <<: [{}, 1]", "f:2: not usable YAML: << can merge only mappings"),
        (BOMB, "f:6: not usable YAML: aliases stand for more than 1000000 values"),
        (CHAIN, "f:200: nested more than 200 levels deep"),
        ("- " * 100_000, "f:1: nested more than 200 levels deep"),
        ("[" * 100_000, "f:1: nested more than 200 levels deep"),
        ('{"a":' * 100_000, "f:1: nested more than 200 levels deep"),
        ('{"a":' * 300 + "1" + "}" * 300, "f:1: nested more than 200 levels deep"),
    ],
)
def test_errors(text: str, sentence: str) -> None:
    with pytest.raises(LoadError) as caught:
        load_objects(text, "f")
    assert str(caught.value).startswith(sentence)


def test_two_hundred_levels_are_fine() -> None:
    nested = '{"a":' * 199 + "1" + "}" * 199
    for text in (JSON_POD[:-1] + f',"x":{nested}}}', f"{POD}x: {nested}"):
        assert load_objects(text, "f")


# Files


def test_files_and_standard_input(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(POD)
    nothing = io.BytesIO()
    assert [found.where for found in read_objects(str(path), nothing)] == [f"{path}:1"]
    assert [found.where for found in read_objects("-", io.BytesIO(JSON_POD.encode()))] == ["standard input:1"]
    assert read_objects("-", nothing) == []


def test_unreadable_files(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: b\nc: \xe9\n")
    cases = {
        str(tmp_path / "none.yaml"): "no such file",
        str(tmp_path): "is a directory, not a file",
        str(latin) + "/x": "can't be read: Not a directory",
        "a\0b": "can't be read: embedded null byte",
    }
    for path, problem in cases.items():
        with pytest.raises(LoadError) as caught:
            read_objects(path, io.BytesIO())
        assert str(caught.value) == f"{path}: {problem}"
    with pytest.raises(LoadError, match=r"latin.yaml:2: not UTF-8 text \(byte 0xe9\)"):
        read_objects(str(latin), io.BytesIO())


class Endless(io.RawIOBase):
    """Standard input from `yes`."""

    taken = 0

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "all of it is asked for"
        self.taken += size
        return b"a" * size


def test_files_and_standard_input_are_read_up_to_their_most() -> None:
    stdin = Endless()
    for path in ("-", "/dev/zero"):
        with pytest.raises(LoadError, match="has more than 1000 bytes"):
            read_objects(path, stdin, most=1000)  # type: ignore[arg-type]  # reads as a file does
    assert stdin.taken <= 1001


# Kinds and workloads


def loaded(api_version: str, kind: str, spec: Any = None, **meta: Any) -> LoadedObject:
    obj = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "w", **meta}, "spec": spec}
    (found,) = load_objects(json.dumps(obj), "f")
    return found


@in_one_test(
    ("api_version", "kind", "group"),
    [
        ("v1", "Node", "nodes"),
        ("v1", "Pod", "pods"),
        ("v1", "ResourceQuota", "quotas"),
        ("v1", "Namespace", "namespaces"),
        ("scheduling.k8s.io/v1", "PriorityClass", "priority_classes"),
        ("policy/v1", "PodDisruptionBudget", "disruption_budgets"),
        ("scheduling.koordinator.sh/v1alpha1", "Device", "devices"),
    ],
)
def test_kinds_are_sorted(api_version: str, kind: str, group: str) -> None:
    found = loaded(api_version, kind)
    bundle = sort_objects([found])
    assert getattr(bundle, group) == [found]
    assert bundle.skipped == {}


def test_other_kinds_are_counted() -> None:
    others = [("v1", "Service"), ("v1", "Service"), ("x.io/v1", "Pod"), ("metrics.k8s.io/v1", "Node")]
    bundle = sort_objects([loaded(*other) for other in others])
    assert bundle.skipped == {"Service": 2, "Pod": 1, "Node": 1}
    assert bundle.pods == []
