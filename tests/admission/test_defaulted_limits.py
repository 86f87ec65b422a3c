"""What our first pass adds is decided again once a later webhook has changed the pod (docs/spec/core.md#5)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import CORES, GPU, JSON, MEM, container, pod
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.admission.defaulted_limits import DEFAULTED
from hami_webhook.admission.denial import Denied

from .reviews import mutate, patched

PERCENT = "nvidia.com/gpumem-percentage"


def admitted(obj: JSON) -> JSON:
    """The pod after our pass, as the API server hands it on: it copies limits into requests."""
    after = patched(obj, mutate(obj))
    for each in after["spec"]["containers"]:
        resources = each.get("resources", {})
        if "limits" in resources:
            resources["requests"] = resources["limits"] | resources.get("requests", {})
    return after


def with_limits(obj: JSON, limits: JSON) -> JSON:
    """What a later webhook makes of it."""
    changed: JSON = json.loads(json.dumps(obj))
    resources = changed["spec"]["containers"][0].setdefault("resources", {})
    for name in ("limits", "requests"):
        resources[name] = resources.get(name, {}) | limits
    return changed


def resources_of(obj: JSON) -> JSON:
    resources: JSON = obj["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    return {name: int(amount) for name, amount in resources["limits"].items()}


def listed(obj: JSON) -> Any:
    text = obj["metadata"].get("annotations", {}).get(DEFAULTED)
    return None if text is None else json.loads(text)


def test_all_cores_become_a_share_once_memory_is_added() -> None:
    first = admitted(pod(gpu=1))
    assert (resources_of(first), listed(first)) == ({GPU: 1, CORES: 100}, {"main": {CORES: "100"}})
    second = admitted(with_limits(first, {MEM: "4000"}))
    assert (resources_of(second), listed(second)) == ({GPU: 1, MEM: 4000}, None)


def test_a_pass_over_what_nobody_changed_changes_nothing() -> None:
    first = admitted(pod(gpu=1))
    assert list(mutate(first).patch) == []


def test_what_a_user_or_another_webhook_wrote_stays() -> None:
    first = admitted(pod(gpu=1, cores=100))
    assert listed(first) is None
    assert resources_of(admitted(with_limits(first, {MEM: "4000"}))) == {GPU: 1, CORES: 100, MEM: 4000}
    changed = admitted(with_limits(admitted(pod(gpu=1)), {MEM: "4000", CORES: "60"}))
    assert resources_of(changed) == {GPU: 1, CORES: 60, MEM: 4000}


def test_each_container_has_its_own() -> None:
    obj = pod("p", container("a", gpu=1), container("b", gpu=1, mem=1000))
    first = admitted(obj)
    assert listed(first) == {"a": {CORES: "100"}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '{"main": 7}',
        '{"main": {"nvidia.com/gpucores": 100}}',
        '{"main": {"nvidia.com/gpucores": "30"}}',
        '{"main": {"cpu": "1"}}',
        '{"other": {"nvidia.com/gpucores": "100"}}',
        "{" * 5000,
        json.dumps({"main": {CORES: "100", "x": "y" * 20_000}}),
    ],
)
def test_an_annotation_that_lists_nothing_of_the_pod_means_nothing(text: str) -> None:
    obj = pod(gpu=1, mem=4000, cores=100, annotations={DEFAULTED: text})
    obj["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1"
    after = patched(obj, mutate(obj))
    limits = after["spec"]["containers"][0]["resources"]["limits"]
    assert {name: str(amount) for name, amount in limits.items()} == {GPU: "1", MEM: "4000", CORES: "100", "cpu": "1"}
    assert listed(after) is None


AMOUNTS = st.dictionaries(
    st.sampled_from([GPU, MEM, CORES, PERCENT]), st.integers(1, 100).map(str), min_size=1, max_size=4
)


@given(AMOUNTS, st.dictionaries(st.sampled_from([GPU, MEM, CORES, PERCENT]), st.just(""), max_size=4))
def test_a_tenant_who_lists_limits_gets_what_leaving_them_out_gives(limits: JSON, names: JSON) -> None:
    listing = {name: limits[name] for name in names if name in limits}
    lied = pod("p", container(limits=limits), annotations={DEFAULTED: json.dumps({"main": listing})})
    honest = pod("p", container(limits={name: limits[name] for name in limits.keys() - listing.keys()}))
    assert outcome(lied) == outcome(honest)


@given(AMOUNTS, AMOUNTS)
def test_a_webhook_that_comes_after_ours_gets_what_one_before_ours_does(limits: JSON, more: JSON) -> None:
    """Unless it writes just what we added: that is taken for ours."""
    obj = pod("p", container(limits=limits))
    first = patched(obj, mutate(obj)) if isinstance(outcome(obj), dict) else obj
    added = (listed(first) or {}).get("main", {})
    more = {name: amount for name, amount in more.items() if added.get(name) != amount}
    before = pod("p", container(limits=limits | more))
    after = json.loads(json.dumps(first))
    after["spec"]["containers"][0]["resources"]["limits"] |= more
    assert outcome(after) == outcome(before)


def outcome(obj: JSON) -> JSON | str:
    """The limits that a pod gets, or its refusal."""
    try:
        limits = patched(obj, mutate(obj))["spec"]["containers"][0]["resources"].get("limits", {})
    except Denied as denied:
        return denied.message
    return {name: int(amount) for name, amount in limits.items()}
