"""What holds for any cluster and any pod, and what a tenant can't do with them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from random import Random
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.node_filters import framework
from hami_webhook.node_filters.snapshot import SchedulerSnapshot

from .generated import Generator

JSON = dict[str, Any]
SEEDS = st.integers(0, 2**32)


def cluster_of(seed: int, shuffled: Random | None = None) -> tuple[SchedulerSnapshot, JSON]:
    """A random cluster and a pod that waits; the objects come in another order if `shuffled`."""
    generator = Generator(seed, ("a", "b"))
    nodes, pods = generator.nodes(), [generator.placed(f"placed-{number}") for number in range(20)]
    snapshot = SchedulerSnapshot()
    objects = [*((snapshot.put_node, node) for node in nodes), *((snapshot.put_pod, pod) for pod in pods)]
    if shuffled:
        shuffled.shuffle(objects)
    for put, obj in objects:
        put(obj)
    return snapshot, generator.waiting("waiting")


def refused(snapshot: SchedulerSnapshot, pod: JSON) -> set[str]:
    return {*snapshot.filter_nodes(pod).refusals}


@given(SEEDS, st.randoms(use_true_random=True))
def test_the_order_of_nodes_and_pods_does_not_matter(seed: int, order: Random) -> None:
    (one, pod), (other, _) = cluster_of(seed), cluster_of(seed, order)
    words = [
        {name: (refusal.filter, refusal.reasons) for name, refusal in each.filter_nodes(pod).refusals.items()}
        for each in (one, other)
    ]
    assert words[0] == words[1]


def with_a_toleration(pod: JSON) -> None:
    # what is spread by nodes without taints counts more nodes then
    pod["spec"].pop("topologySpreadConstraints", None)
    pod["spec"]["tolerations"] = [*pod["spec"].get("tolerations", ()), {"operator": "Exists"}]


def without_requests(pod: JSON) -> None:
    pod["spec"].pop("resources", None)
    for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
        container.pop("resources")


def without_ports(pod: JSON) -> None:
    for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
        container.pop("ports", None)


def without_affinity(pod: JSON) -> None:
    pod["spec"].pop("topologySpreadConstraints", None)
    pod["spec"].pop("affinity", None)


@pytest.mark.parametrize("change", [with_a_toleration, without_requests, without_ports, without_affinity])
@given(seed=SEEDS)
def test_who_asks_for_less_is_refused_by_no_more_nodes(change: Callable[[JSON], None], seed: int) -> None:
    snapshot, pod = cluster_of(seed)
    changed = deepcopy(pod)
    change(changed)
    if change is with_a_toleration:
        pod["spec"].pop("topologySpreadConstraints", None)
    assert refused(snapshot, changed) <= refused(snapshot, pod)


@given(seed=SEEDS)
def test_a_pod_that_comes_and_goes_leaves_nothing(seed: int) -> None:
    snapshot, pod = cluster_of(seed)
    before = snapshot.filter_nodes(pod)
    for name in snapshot.nodes:
        snapshot.put_pod(
            {**pod, "metadata": {**pod["metadata"], "name": "guest"}, "spec": {**pod["spec"], "nodeName": name}}
        )
    snapshot.drop_pod((pod["metadata"]["namespace"], "guest"))
    assert snapshot.filter_nodes(pod) == before


MANY = 1_000
WORK = framework.MOST_WORK // 100


def _node_affinity() -> JSON:
    terms = [{"matchExpressions": [{"key": f"k{number}", "operator": "Exists"}]} for number in range(MANY)]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _pod_affinity(kind: str) -> JSON:
    terms = [
        {"topologyKey": f"k{number}", "labelSelector": {"matchLabels": {"app": f"{number}"}}} for number in range(MANY)
    ]
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _values() -> JSON:
    values = [f"v{number}" for number in range(MANY)]
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": values}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _constraints() -> list[JSON]:
    selector = {"matchLabels": {"app": "db"}}
    return [
        {"maxSkew": 1, "topologyKey": f"k{number}", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
        for number in range(MANY)
    ]


def _resources() -> list[JSON]:
    return [{"name": "main", "resources": {"requests": {f"example.com/r{number}": "1" for number in range(MANY)}}}]


HOSTILE = {
    "terms of node affinity": {"affinity": _node_affinity()},
    "values of an expression": {"affinity": _values()},
    "terms of pod affinity": {"affinity": _pod_affinity("podAffinity")},
    "terms of pod anti-affinity": {"affinity": _pod_affinity("podAntiAffinity")},
    "topology keys": {"topologySpreadConstraints": _constraints()},
    "resources": {"containers": _resources()},
    "tolerations": {"tolerations": [{"key": f"k{number}", "operator": "Exists"} for number in range(MANY)]},
    "ports": {"containers": [{"name": "main", "ports": [{"hostPort": number + 1} for number in range(MANY)]}]},
}


@pytest.mark.parametrize("spec", HOSTILE.values(), ids=HOSTILE)
def test_what_a_tenant_writes_costs_a_bounded_number_of_steps(spec: JSON, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 100 nodes, with ten such pods there; in calls of functions, whose number no busy machine changes."""
    monkeypatch.setattr(framework, "MOST_WORK", WORK)
    snapshot = SchedulerSnapshot()
    for number in range(100):
        snapshot.put_node({"metadata": {"name": f"n{number}", "labels": {"zone": "a"}}, "spec": {}})
    pod: JSON = {"metadata": {"name": "p", "namespace": "a"}, "spec": {"containers": [{"name": "main"}], **spec}}
    for number in range(10):
        placed = {
            **pod,
            "metadata": {"name": f"p{number}", "namespace": "a"},
            "spec": {**pod["spec"], "nodeName": f"n{number}"},
        }
        snapshot.put_pod(placed)
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        snapshot.filter_nodes(pod)
    finally:
        sys.setprofile(None)
    assert calls < 5 * WORK
