"""JSON Pointer, drafts of maps, and merge patches."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.kube.patch import MapDraft, merge_patch, pointer


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ((), ""),
        (("spec", "containers", 0), "/spec/containers/0"),
        (("metadata", "annotations", "hami.io/vgpu-node"), "/metadata/annotations/hami.io~1vgpu-node"),
        (("a~b",), "/a~0b"),
        (("~1",), "/~01"),
        (("",), "/"),
    ],
)
def test_pointers_are_escaped(parts: tuple[str | int, ...], path: str) -> None:
    assert pointer(*parts) == path


def test_a_draft_reads_its_changes() -> None:
    original = {"a": "1", "b": "2"}
    draft = MapDraft("/m", original)
    assert dict(draft) == original
    draft["c"] = "3"
    draft["a"] = "x"
    del draft["b"]
    assert dict(draft) == {"a": "x", "c": "3"}
    assert (len(draft), "b" in draft, draft.get("b"), draft["a"]) == (2, False, None, "x")
    with pytest.raises(KeyError):
        draft["b"]
    assert original == {"a": "1", "b": "2"}
    assert draft.operations() == [
        {"op": "add", "path": "/m/c", "value": "3"},
        {"op": "replace", "path": "/m/a", "value": "x"},
        {"op": "remove", "path": "/m/b"},
    ]


def test_a_missing_map_is_added_whole() -> None:
    draft = MapDraft("/m", None)
    assert draft.missing
    assert not draft.changes
    assert draft.operations() == []
    with pytest.raises(KeyError):
        draft["a"]
    del draft["a"]
    draft["a"] = "1"
    draft["b"] = "2"
    del draft["b"]
    assert draft.operations() == [{"op": "add", "path": "/m", "value": {"a": "1"}}]
    del draft["a"]
    assert draft.operations() == []


_keys = st.sampled_from(("a", "b", "hami.io/x", "t~e", "~1", ""))
_maps = st.none() | st.dictionaries(_keys, st.text(max_size=3))
_changes = st.lists(st.tuples(_keys, st.none() | st.text(max_size=3)), max_size=12)


@given(_maps, _changes)
def test_the_operations_make_the_draft(original: dict[str, str] | None, changes: list[tuple[str, str | None]]) -> None:
    document = {} if original is None else {"m": original}
    before = copy.deepcopy(document)
    draft = MapDraft("/m", original)
    expected = dict(original or {})
    for key, value in changes:
        if value is None:
            del draft[key]
            expected.pop(key, None)
        else:
            draft[key] = value
            expected[key] = value
    patched = jsonpatch.apply_patch(document, draft.operations())
    assert patched.get("m", {}) == expected == dict(draft)
    assert len(draft) == len(expected)
    assert document == before
    assert (draft.operations() == []) == (not draft.changes)
    if original is not None:
        assert bool(draft.changes) == (expected != original)
    again = MapDraft("/m", patched.get("m"))
    for key, value in expected.items():
        again[key] = value
    assert again.operations() == []


@in_one_test(
    ("document", "patch", "result"),
    [  # RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(document: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy((document, patch))
    assert merge_patch(document, patch) == result
    assert (document, patch) == before


_json = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(_json, _json)
def test_merging_twice_is_merging_once(document: Any, patch: Any) -> None:
    before = copy.deepcopy((document, patch))
    once = merge_patch(document, patch)
    assert merge_patch(once, patch) == once
    assert (document, patch) == before


@given(_json)
def test_an_empty_patch_keeps_an_object(document: Any) -> None:
    assert merge_patch(document, {}) == (document if isinstance(document, dict) else {})
