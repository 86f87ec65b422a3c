"""A draft's patch does just what was done to the draft, on documents in which anything may be missing."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import orjson
import pytest
from builders import JSON
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.kube.draft import PodDraft, pod_in
from hami_webhook.kube.objects import ContainerKind, MalformedObject, Pod

GPU = "nvidia.com/gpu"


def one(**container: object) -> JSON:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", **container}]}}


def applied(raw: JSON, draft: PodDraft) -> JSON:
    operations = orjson.loads(orjson.dumps(draft.operations()))
    patched: JSON = jsonpatch.apply_patch(copy.deepcopy(raw), operations)
    return patched


def paths(draft: PodDraft) -> list[tuple[str, str]]:
    return [(operation["op"], operation["path"]) for operation in draft.operations()]


def test_an_untouched_draft_has_no_operations() -> None:
    raw = one(resources={"limits": {GPU: 1}}, env=[])
    draft = PodDraft(raw, "ns")
    assert draft.operations() == []
    assert draft.result() == Pod.from_object(raw, "ns")


@pytest.mark.parametrize(("asked", "found"), [("a", "a"), ("", "b")])
def test_the_namespace_asked_for_wins_over_the_pods_own(asked: str, found: str) -> None:
    raw = {"metadata": {"namespace": "b"}}
    assert pod_in(raw, asked).namespace == found
    assert PodDraft(raw, asked).result().namespace == found


@in_one_test(
    ("container", "operations", "resources"),
    [
        ({}, [("add", "/spec/containers/0/resources")], {"limits": {GPU: "2"}}),
        ({"resources": None}, [("add", "/spec/containers/0/resources")], {"limits": {GPU: "2"}}),
        ({"resources": {}}, [("add", "/spec/containers/0/resources/limits")], {"limits": {GPU: "2"}}),
        ({"resources": {"limits": None}}, [("add", "/spec/containers/0/resources/limits")], {"limits": {GPU: "2"}}),
        (
            {"resources": {"limits": {"cpu": 1}, "claims": []}},
            [("add", "/spec/containers/0/resources/limits/nvidia.com~1gpu")],
            {"limits": {"cpu": 1, GPU: "2"}, "claims": []},
        ),
        (
            {"resources": {"limits": {GPU: 1}}},
            [("replace", "/spec/containers/0/resources/limits/nvidia.com~1gpu")],
            {"limits": {GPU: "2"}},
        ),
        (
            {"resources": {"limits": {GPU: 1}, "requests": {GPU: 1}}},
            [
                ("replace", "/spec/containers/0/resources/limits/nvidia.com~1gpu"),
                ("replace", "/spec/containers/0/resources/requests/nvidia.com~1gpu"),
            ],
            {"limits": {GPU: "2"}, "requests": {GPU: "2"}},
        ),
        ({"resources": {"limits": {GPU: 2}}}, [], {"limits": {GPU: 2}}),
        ({"resources": {"limits": {GPU: "2000m"}}}, [], {"limits": {GPU: "2000m"}}),
        (
            {"resources": {"limits": {GPU: "2"}, "requests": {GPU: "1"}}},
            [("replace", "/spec/containers/0/resources/requests/nvidia.com~1gpu")],
            {"limits": {GPU: "2"}, "requests": {GPU: "2"}},
        ),
    ],
)
def test_a_limit_is_written_with_the_request_that_must_agree(
    container: JSON, operations: list[tuple[str, str]], resources: JSON
) -> None:
    raw = one(**container)
    draft = PodDraft(raw)
    draft.containers[0].set_limit(GPU, 2)
    assert paths(draft) == operations
    assert applied(raw, draft)["spec"]["containers"][0]["resources"] == resources
    assert draft.containers[0].amount(GPU) in (2, "2", "2000m")


BOTH = {"limits": {GPU: "2"}, "requests": {GPU: "2"}}


@in_one_test(
    ("resources", "after", "operations"),
    [
        (None, BOTH, 1),
        ({}, BOTH, 2),
        ({"limits": {GPU: "3"}}, BOTH, 2),
        ({"requests": {GPU: "1"}}, BOTH, 2),
        ({"requests": {GPU: "2"}}, BOTH, 1),
        (BOTH, BOTH, 0),
        ({"limits": {GPU: 2}, "requests": {GPU: 2}}, {"limits": {GPU: 2}, "requests": {GPU: 2}}, 0),
        ({"limits": {GPU: 2}, "requests": {GPU: "3"}}, {"limits": {GPU: 2}, "requests": {GPU: "2"}}, 1),
        ({"limits": {GPU: "2000m"}, "requests": {GPU: 2}}, {"limits": {GPU: "2"}, "requests": {GPU: 2}}, 1),
        ({"limits": {"cpu": 1}}, {"limits": {"cpu": 1, GPU: "2"}, "requests": {GPU: "2"}}, 2),
    ],
)
def test_an_amount_is_written_into_both_as_a_plain_integer(
    resources: JSON | None, after: JSON, operations: int
) -> None:
    raw = one(resources=resources)
    draft = PodDraft(raw)
    draft.containers[0].set_both(GPU, 2)
    assert applied(raw, draft)["spec"]["containers"][0]["resources"] == after
    assert len(draft.operations()) == operations


@in_one_test(
    ("resources", "after"),
    [
        ({"limits": {GPU: "2Ki"}}, {"limits": {GPU: "2Ki"}, "requests": {GPU: "2Ki"}}),
        ({"requests": {GPU: 2}}, {"limits": {GPU: 2}, "requests": {GPU: 2}}),
        ({"limits": {GPU: 2}, "requests": {GPU: 3}}, {"limits": {GPU: 2}, "requests": {GPU: 3}}),
        ({"limits": {"cpu": 2}}, {"limits": {"cpu": 2}}),
    ],
)
def test_an_amount_is_copied_to_where_it_lacks(resources: JSON, after: JSON) -> None:
    raw = one(resources=resources)
    draft = PodDraft(raw)
    draft.containers[0].copy_across(GPU)
    assert applied(raw, draft)["spec"]["containers"][0]["resources"] == after


def a(value: str) -> JSON:
    return {"name": "A", "value": value}


@in_one_test(
    ("written", "env", "after"),
    [
        ({"set_env": "1"}, None, [a("1")]),
        ({"set_env": "1"}, [], [a("1")]),
        ({"set_env": "1"}, [{"name": "B"}], [{"name": "B"}, a("1")]),
        ({"set_env": "1"}, [a("0"), {"name": "B"}], [a("1"), {"name": "B"}]),
        ({"set_env": "1"}, [{"name": "A", "valueFrom": {}}], [a("1")]),
        ({"set_env": "1"}, [a("1")], [a("1")]),
        ({"set_env": "1"}, [{"name": "A"}, a("1")], [a("1"), a("1")]),
        ({"set_env": "12"}, [], [a("2")]),  # twice: its last value, once
        ({"set_env": "12"}, [a("0")], [a("2")]),
        ({"set_env": "10"}, [a("0")], [a("0")]),  # back to what it was
        ({"default_env": "12"}, None, [a("1")]),
        ({"default_env": "12"}, [a("0")], [a("0")]),
        ({"default_env": "12"}, [{"name": "A", "valueFrom": {}}], [{"name": "A", "valueFrom": {}}]),
    ],
)
def test_a_variable_is_set_in_place_or_at_the_end(written: JSON, env: list[JSON] | None, after: list[JSON]) -> None:
    raw = one(env=env)
    draft = PodDraft(raw)
    for method, values in written.items():
        for value in values:
            getattr(draft.containers[0], method)("A", value)
    assert applied(raw, draft)["spec"]["containers"][0]["env"] == after
    assert len(draft.operations()) == (env != after)


@pytest.mark.parametrize(
    ("env", "after"),
    [
        (None, [{"name": "A", "value": ""}]),
        ([{"name": "B"}], [{"name": "B"}, {"name": "A", "value": ""}]),
        ([{"name": "A", "valueFrom": {"fieldRef": {}}}, {"name": "B"}], [{"name": "A", "value": ""}, {"name": "B"}]),
        (
            [{"name": "A", "value": "1"}, {"name": "B"}, {"name": "A"}, {"name": "C"}, {"name": "A", "value": "2"}],
            [{"name": "A", "value": ""}, {"name": "B"}, {"name": "C"}],
        ),
        ([{"name": "A", "value": ""}, {"name": "A", "value": ""}], [{"name": "A", "value": ""}]),
        ([{"name": "A"}], [{"name": "A"}]),  # how the API server writes an empty value
    ],
)
def test_a_variable_set_once_stays_where_it_was_first(env: list[JSON] | None, after: list[dict[str, str]]) -> None:
    raw = one(env=env)
    draft = PodDraft(raw)
    for _ in range(2):
        draft.containers[0].set_env("A", "", once=True)
    changed = applied(raw, draft)
    assert changed["spec"]["containers"][0]["env"] == after
    again = PodDraft(changed)
    again.containers[0].set_env("A", "", once=True)
    assert again.operations() == []


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "spec.containers[0].env must be a list, not an object"),
        (["odd"], "spec.containers[0].env[0] must be an object, not a string"),
        ([{"name": "B"}, None], "spec.containers[0].env[1] must be an object, not null"),
    ],
)
def test_an_environment_that_is_none_is_refused(env: object, message: str) -> None:
    with pytest.raises(MalformedObject) as caught:
        PodDraft(one(env=env))
    assert str(caught.value) == message


def test_a_resource_without_a_name_is_written_nowhere() -> None:
    draft = PodDraft(one(resources={"limits": {"": "1"}}))
    draft.containers[0].set_limit("", 2)
    assert draft.operations() == []


@pytest.mark.parametrize(
    ("raw", "operations"),
    [
        ({}, [("add", "/metadata"), ("add", "/metadata/annotations")]),
        ({"metadata": None}, [("add", "/metadata"), ("add", "/metadata/annotations")]),
        ({"metadata": {}}, [("add", "/metadata/annotations")]),
        ({"metadata": {"annotations": None}}, [("add", "/metadata/annotations")]),
        ({"metadata": {"annotations": {}}}, [("add", "/metadata/annotations/a~1b~0c")]),
        ({"metadata": {"annotations": {"a/b~c": "0"}}}, [("replace", "/metadata/annotations/a~1b~0c")]),
    ],
)
def test_an_annotation_is_added_wherever_its_map_begins(raw: JSON, operations: list[tuple[str, str]]) -> None:
    draft = PodDraft(raw)
    draft.annotations["a/b~c"] = "1"
    assert paths(draft) == operations
    assert applied(raw, draft)["metadata"]["annotations"] == {"a/b~c": "1"}
    assert draft.result().annotations == {"a/b~c": "1"}


def test_names_of_the_spec_are_added_or_replaced() -> None:
    raw = {"spec": {"schedulerName": "a", "runtimeClassName": None}}
    draft = PodDraft(raw)
    assert (draft.scheduler_name, draft.runtime_class_name) == ("a", "")
    draft.scheduler_name, draft.runtime_class_name = "b", "nvidia"
    assert applied(raw, draft)["spec"] == {"schedulerName": "b", "runtimeClassName": "nvidia"}
    assert draft.result().scheduler_name == "b"


def test_containers_keep_their_kind_and_place() -> None:
    privileged = {"securityContext": {"privileged": True}}
    raw = {
        "spec": {
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always", **privileged}],
            "containers": [{"name": "c", "securityContext": {"privileged": "yes"}}],
        }
    }
    draft = PodDraft(raw)
    assert [(c.name, c.kind) for c in draft.containers] == [
        ("i", ContainerKind.INIT),
        ("s", ContainerKind.SIDECAR),
        ("c", ContainerKind.APP),
    ]
    assert [c.container.privileged for c in draft.containers] == [c.privileged for c in draft.original.containers]
    draft.containers[1].set_limit(GPU, 1)
    assert paths(draft) == [("add", "/spec/initContainers/1/resources")]


def test_each_warning_is_told_once() -> None:
    draft = PodDraft({})
    for text in ("a", "b", "a"):
        draft.warn(text)
    draft.note("n")
    assert (draft.warnings, draft.messages) == (["a", "b"], ["n"])


KEYS = st.sampled_from([GPU, "a/b", "~", ""])
STEPS = st.lists(
    st.tuples(st.just("limit"), st.integers(0, 2), KEYS, st.integers(0, 3))
    | st.tuples(
        st.sampled_from(["env", "default env"]), st.integers(0, 2), st.sampled_from("AB"), st.sampled_from("01")
    )
    | st.tuples(st.just("note"), KEYS, st.sampled_from("01"))
    | st.tuples(st.just("unnote"), KEYS),
    max_size=8,
)
AMOUNTS = st.dictionaries(KEYS, st.sampled_from([0, 1, "1", "2"]), max_size=2)
PARTS = st.none() | st.fixed_dictionaries(
    {}, optional={"limits": st.none() | AMOUNTS, "requests": AMOUNTS, "x": st.just(1)}
)
ENVS = st.none() | st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("ABC")}, optional={"value": st.sampled_from("01")}), max_size=2
)
CONTAINERS = st.fixed_dictionaries(
    {"name": st.just("c")}, optional={"resources": PARTS, "env": ENVS, "x": st.just([1])}
)
PODS = st.fixed_dictionaries(
    {"spec": st.fixed_dictionaries({"containers": st.lists(CONTAINERS, min_size=3, max_size=3)})},
    optional={
        "metadata": st.none()
        | st.fixed_dictionaries(
            {}, optional={"annotations": st.none() | st.dictionaries(KEYS, st.sampled_from("01")), "x": st.just(1)}
        )
    },
)


@given(raw=PODS, steps=STEPS)
def test_the_patch_applied_is_exactly_the_draft(raw: JSON, steps: list[tuple[Any, ...]]) -> None:
    before = copy.deepcopy(raw)
    draft = PodDraft(raw)
    for kind, *rest in steps:
        match kind:
            case "limit":
                draft.containers[rest[0]].set_limit(rest[1], rest[2])
            case "env":
                draft.containers[rest[0]].set_env(rest[1], rest[2])
            case "default env":
                draft.containers[rest[0]].default_env(rest[1], rest[2])
            case "note":
                draft.annotations[rest[0]] = rest[1]
            case "unnote" if rest[0] in draft.annotations:
                del draft.annotations[rest[0]]
    assert raw == before
    assert draft.reset().operations() == []
    assert draft.reset().result() == Pod.from_object(raw)
    after = applied(raw, draft)
    assert Pod.from_object(after) == draft.result()
    assert PodDraft(after).operations() == []
    again = PodDraft(after)
    for position, container in enumerate(draft.containers):
        assert dict(again.containers[position].limits) == dict(container.limits)
        assert dict(again.containers[position].requests) == dict(container.requests)


@pytest.mark.parametrize(
    ("metadata", "operations"),
    [
        (None, [("add", "/metadata"), ("add", "/metadata/labels")]),
        ({}, [("add", "/metadata/labels")]),
        ({"labels": {}}, [("add", "/metadata/labels/tier")]),
        ({"labels": {"tier": "a"}}, [("replace", "/metadata/labels/tier")]),
        ({"labels": {"tier": "b"}}, []),
    ],
)
def test_a_label_is_set_whatever_there_is(metadata: JSON | None, operations: list[tuple[str, str]]) -> None:
    raw: JSON = {"spec": {"containers": []}} | ({} if metadata is None else {"metadata": metadata})
    draft = PodDraft(raw)
    draft.labels["tier"] = "b"
    assert paths(draft) == operations
    assert applied(raw, draft)["metadata"]["labels"]["tier"] == draft.result().labels["tier"] == "b"
    assert draft.reset().operations() == []
