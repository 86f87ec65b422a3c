"""However a test is written, an update makes it expect what came out, and leaves everything around that as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.config import ConfigError
from hami_webhook.simulate.expectations import Absent
from hami_webhook.simulate.folder_test import FolderTest
from hami_webhook.terminal import formatted

PATH = Path(__file__).parents[2] / "manifests" / "examples" / "tests" / "nvidia" / "hami-test.yaml"
RESULT = yaml.safe_load(PATH.read_text())["expected"]
WRONG: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 7, "", "- {x", "a: b\n# no comment\n", [], {"contains": "é 😀"}, {"x": [1]}]
)
COMMENT = re.compile(r"^ *# (?:first|before|after|last).*", re.MULTILINE)


def parts(value: Any) -> st.SearchStrategy[Any]:
    """What somebody may write of a value, right or wrong."""
    if isinstance(value, dict):
        optional = {key: parts(each) for key, each in value.items() if key != "name"}
        return st.fixed_dictionaries({"name": st.just(value["name"])} if "name" in value else {}, optional=optional)
    if isinstance(value, list):
        return st.tuples(*map(parts, value)).map(list) | WRONG
    return st.just(value) | WRONG


def written(entries: list[Any], *, flow: bool) -> str:
    """Entries of a block list, with a comment before and after each."""
    texts = [json.dumps(each, ensure_ascii=False) if flow else formatted(each, "yaml") for each in entries]
    items = [text.replace("\n", "\n    ") for text in texts]
    return "".join(f"  # before {index}\n  - {item}\n\n  # after\n" for index, item in enumerate(items))


@given(st.lists(st.sampled_from(RESULT["pods"]).flatmap(parts), min_size=1), parts(RESULT["quotas"][0]), st.booleans())
def test_what_is_written_is_as_it_came_out(pods: list[Any], quota: Any, flow: bool) -> None:
    sections = f"  pods:\n{written(pods, flow=flow)}  quotas:\n{written([quota], flow=not flow)}"
    text = f"# first\nexpected:\n{sections}# last\n"
    test = FolderTest.parse(PATH, "nvidia", text)
    assert test.expected == {"pods": pods, "quotas": [quota]}
    updated = test.updated(RESULT)
    assert all(isinstance(each.actual, Absent) for each in updated.differences(RESULT))
    assert updated.updated(RESULT).text == updated.text
    assert COMMENT.findall(updated.text) == COMMENT.findall(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{description: one line}", f"{PATH}:2: is not valid YAML: did not find expected <document start>"),
        (
            "expected: {pods: [{name: two-cards, allowed: &a false}, {name: whole-card, allowed: *a}]}",
            f"{PATH}:1: is not valid YAML: found undefined alias",
        ),
        (
            "expected: {pods: [{name: two-cards, code: &a 7, allowed: &a false}]}",
            "found duplicate anchor 'a'; first occurrence",
        ),
        (f"description: {'x' * (2**20 - 20)}", f"{PATH}: is larger than 1048576 bytes, which no ConfigMap can hold"),
    ],
    ids=["all in one", "an alias", "an anchor twice", "too large"],
)
def test_what_cant_be_updated_is_left_to_its_author(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        FolderTest.parse(PATH, "nvidia", text).updated(RESULT)
    assert str(refused.value) == f"{PATH}: --update can't change it, so change it by hand: {why}"
