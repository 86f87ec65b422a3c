"""docs/schemas: as rendered, and of one mind with the program about what may be in a file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from config.test_refusals import BAD as BAD_DEVICE_CONFIGS
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from policy.test_file import BAD as BAD_POLICIES
from policy.test_file import WHOLE
from pydantic import TypeAdapter, ValidationError
from tables import in_one_test

from hack.render_schemas import FILES, FOLDER
from hami_webhook.config import ConfigError, fields, parse_yaml
from hami_webhook.config.load import builtin_text
from hami_webhook.device_config import load_device_config
from hami_webhook.simulate.folder_test import FolderTest

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "manifests" / "examples" / "tests").glob("*/hami-test.yaml"))
POLICIES = sorted((ROOT / "manifests" / "examples").rglob("policy.yaml"))
CHARTS = sorted((ROOT / "tests" / "config" / "charts").glob("*.yaml"))

# what only the program can say, by words of its sentence
OF_YAML = ("is not valid YAML", "is there twice", "levels deep", "contains itself", "expands to more", "is larger than")
BETWEEN_VALUES = ("is already the", "is already used", "must be unique", "two templates", "is the old spelling of")
OF_VENDORS = (
    "is no choice",
    "is no enabled backend",
    "is a list, not a choice",
    "by the scheduler alone",
    "no such list",
)
BEYOND: Sequence[str] = (
    "is a MIG slice",
    "names no capacity",
    "must be the key of a vendor",
    "has two rows for the devices",
    *("names a metric of ours", "names no metric", "names the metric", "cards has 33 rows"),
    *(*OF_YAML, *BETWEEN_VALUES, *OF_VENDORS),
    *("a key must be text", "all configurations are empty", "is empty", "without limits. in front"),
    *("another vendor's annotations", "must be at least memoryAllocatable", "more than memoryAllocatable"),
    *("must be weights", "at least one weight", "whose sets run upwards", "write its items under"),
    "is no scheduling policy",
    *("must have at least one item in values", "must have no values"),
)


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((FOLDER / name).read_text()))


def faults(name: str, value: Any) -> list[str]:
    return [error.json_path for error in validator(name).iter_errors(value)]


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_as_rendered(name: str) -> None:
    assert (FOLDER / name).read_text() == FILES[name](), "make render writes it"
    if name.endswith(".schema.json"):
        Draft202012Validator.check_schema(json.loads((FOLDER / name).read_text()))


def test_there_are_no_others() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == set(FILES)


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.parent.name)
def test_our_test_folders_are_valid(path: Path) -> None:
    assert FolderTest.read(path, "t").source.value
    assert faults("hami-test.schema.json", parse_yaml(path.read_text(), "f").value) == []


@pytest.mark.parametrize(("page", "schema"), [("policy.md", "policy"), ("testing.md", "hami-test")])
def test_the_documents_examples_are_valid(page: str, schema: str) -> None:
    (block,) = re.findall(r"(?ms)^```yaml\n(.*?)^```", (ROOT / "docs" / page).read_text())
    assert faults(f"{schema}.schema.json", parse_yaml(block, page).value) == []


@pytest.mark.parametrize("text", ["{}", "expected:", "now: 2026-05-01T00:00:00Z", "preemption: false", "pods: []"])
def test_a_test_folder_may_leave_everything_out(text: str) -> None:
    assert faults("hami-test.schema.json", parse_yaml(text, "f").value) == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("expect: {}", "$"),
        ("exact: yes please", "$.exact"),
        ("nodeSchedulerPolicy: pack", "$.nodeSchedulerPolicy"),
        ("schedulerName: A b", "$.schedulerName"),
        ("now: 7", "$.now"),
        ("expected: {pods: [{allowed: true}]}", "$.expected"),
        ("expected: {quotas: [{name: ' '}]}", "$.expected"),
    ],
)
def test_a_bad_test_folder_is_refused_by_both(text: str, path: str) -> None:
    with pytest.raises(ConfigError):
        FolderTest.parse(Path("f"), "t", text)
    found = faults("hami-test.schema.json", parse_yaml(text, "f").value)
    assert found == [path]


@pytest.mark.parametrize("path", CHARTS, ids=lambda path: path.stem)
def test_what_hami_s_charts_render_is_valid(path: Path) -> None:
    found = yaml.safe_load(path.read_text())
    assert faults("device-config.schema.json", found) == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests" / "fuzz" / "corpus" / "device-configs").iterdir()), ids=lambda path: path.name
)
def test_of_odd_device_configurations_what_is_read_is_valid(path: Path) -> None:
    try:
        load_device_config(path.read_text(), "f")
    except ConfigError:
        return
    assert faults("device-config.schema.json", parse_yaml(path.read_text(), "f").value) == []


@pytest.mark.parametrize(
    "text",
    [
        builtin_text(),
        "nvidia: {resourceCountName: a.b/c, colour: red}\nmetax:\n",
        "vnpus: [{commonWord: X, memoryAllocatable: 1}]",
        "vnpus: {configs: [{commonWord: X, memoryAllocatable: 1}]}",
        "enflame: {resourceCountName: a.b/c, resourceNameGCU: null}",
    ],
    ids=range(5),
)
def test_a_device_configuration_that_is_read_is_valid(text: str) -> None:
    assert faults("device-config.schema.json", parse_yaml(text, "f").value) == []


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.parent.name)
def test_our_example_of_policies_is_valid(path: Path) -> None:
    assert faults("policy.schema.json", parse_yaml(path.read_text(), "f").value) == []


@pytest.mark.parametrize("text", [WHOLE, "policies:", "{}", "policies: []"], ids=range(4))
def test_a_policy_file_that_is_read_is_valid(text: str) -> None:
    assert faults("policy.schema.json", parse_yaml(text, "f").value) == []


@in_one_test(
    ("schema", "text", "sentence"),
    [
        *(("device-config.schema.json", *bad) for bad in BAD_DEVICE_CONFIGS),
        *(("policy.schema.json", *bad) for bad in BAD_POLICIES),
    ],
)
def test_what_the_program_refuses_the_schema_refuses_if_it_can(schema: str, text: str, sentence: str) -> None:
    try:
        value = parse_yaml(text, "f").value
    except ConfigError:
        return
    if value is None or (isinstance(value, dict) and "kind" in value):
        return  # nothing, or a ConfigMap with the file in it
    beyond = any(words in sentence for words in BEYOND)
    assert (faults(schema, value) == []) == beyond, sentence


KINDS = {
    name: kind
    for name, kind in vars(fields).items()
    if re.fullmatch(r"[A-Z][A-Za-z]+", name) and getattr(kind, "__metadata__", None)
}
WORDS = st.sampled_from(
    ["", " ", "a", "a.b/c", "A.b/c", "a.b/C", "/a", "a/", "-a", "a-", "true", "false", "warn", "deny", "9", "x" * 64]
)
VALUES = st.one_of(
    WORDS,
    st.text(alphabet="aA9-._/ ,", max_size=6),
    st.booleans(),
    st.none(),
    st.integers(-1, 102),
    st.sampled_from([2**31 - 1, 2**31, 0.5, 1.5, 100.5, -0.5]),
    st.just([]),
    st.just({}),
)


@pytest.mark.parametrize("name", KINDS)
@given(value=VALUES)
def test_a_kind_of_value_is_to_the_schema_what_it_is_to_the_program(name: str, value: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(KINDS[name])
    try:
        adapter.validate_python(value)
        taken = True
    except ValidationError:
        taken = False
    if name == "ResourceName" and isinstance(value, str) and value.startswith(("limits.", "requests.")):
        return
    assert Draft202012Validator(adapter.json_schema()).is_valid(value) == taken
