"""Which pods are victims, and on which node: worked examples of docs/preemption.md#victims."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from builders import bound_pod, card, node
from scheduling.placer_env import NOW, VENDORS, request_of

from hami_webhook.cluster.api import JSON
from hami_webhook.devices.model import DeviceShare
from hami_webhook.evictions.victims import Preemptor, choose_node
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.objects import MalformedObject, Node, Pod
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.node_snapshot import NodeSnapshot

from .extended import budget, high, low


def victims(
    incoming: JSON,
    *objects: JSON,
    budgets: Sequence[JSON] = (),
    ending: Collection[str] = (),
    reserved: dict[str, tuple[str, int]] | None = None,
) -> tuple[str, ...] | None:
    """The node and the victims' names; None if evicting would help on no node. `reserved`: card and MiB by node."""
    state = ClusterCache(VENDORS)
    for obj in objects:
        if "spec" in obj:
            state.set_pod(Pod.from_object(obj), NOW)
        else:
            state.set_node(Node.from_object(obj), NOW)
    request = request_of(incoming)
    kept = {name: {("NVIDIA", uuid): [DeviceShare(mem, 0)]} for name, (uuid, mem) in (reserved or {}).items()}
    nodes = [
        NodeSnapshot(view, there, kept.get(view.name, {}), {each.pod.uid for each in there} & set(ending))
        for view in state.views()
        for there in [state.allocations(view.name)]
    ]
    disruption = [PodDisruptionBudget.from_object(budget) for budget in budgets]
    found = choose_node(Preemptor(request, None, VENDORS, disruption, NOW), nodes)
    return None if found is None else (found.node, *(each.name for each in found.pods))


ONE, TWO = node("n1", card("a", 8000)), node("n2", card("b", 8000))
A: JSON = {"labels": {"app": "a"}}


def test_nobody_is_evicted_for_a_card_that_is_unhealthy() -> None:
    sick = node("n1", card("a", 8000), unhealthy={"a": ["lost"]})
    assert victims(high(gpu=1, mem=4000), sick, low("x", "n1", "a,NVIDIA,5000,0:;")) is None


def test_budgets_hold_where_there_is_another_choice() -> None:
    there = [low("x", "n1", "a,NVIDIA,8000,0:;", **A), low("y", "n2", "b,NVIDIA,8000,0:;", 5)]
    incoming = high(gpu=1, mem=8000)
    assert victims(incoming, ONE, TWO, *there) == ("n1", "x")
    assert victims(incoming, ONE, TWO, *there, budgets=[budget(0)]) == ("n2", "y"), "though its priority is higher"
    assert victims(incoming, ONE, TWO, *there, budgets=[budget(1)]) == ("n1", "x")
    assert victims(incoming, ONE, TWO, *there, budgets=[budget(0, disruptedPods={"x": "t"})]) == ("n1", "x")
    assert victims(incoming, ONE, *there, budgets=[budget(0)]) == ("n1", "x"), "there is no other choice"


NO_APP = {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}


@pytest.mark.parametrize(
    ("selector", "labels", "covers"),
    [
        (None, A, False),
        ({}, A, True),
        ({}, {}, True),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]}, A, True),
        (NO_APP, A, False),
        (NO_APP, {"labels": {"of": "b"}}, True),
        (NO_APP, {}, True),
    ],
)
def test_a_budgets_selector(selector: JSON | None, labels: JSON, covers: bool) -> None:
    """As the eviction API has it, and kube-scheduler since 1.38: an empty selector covers all pods, none nobody."""
    found = PodDisruptionBudget.from_object({"metadata": {"namespace": "default"}, "spec": {"selector": selector}})
    assert found.covers(Pod.from_object(low("x", "n1", "", **labels))) is covers


@pytest.mark.parametrize("spec", [{"selector": 3}, {"selector": {"matchExpressions": [{"operator": "Maybe"}]}}, []])
def test_a_budget_that_cannot_be_read(spec: object) -> None:
    with pytest.raises(MalformedObject):
        PodDisruptionBudget.from_object({"metadata": {}, "spec": spec})


def test_who_is_ending_costs_nothing_and_is_no_victim() -> None:
    there = [low("x", "n1", "a,NVIDIA,8000,0:;"), low("y", "n2", "b,NVIDIA,8000,0:;", 10)]
    assert victims(high(gpu=1, mem=4000), ONE, TWO, *there, ending=["y"]) == ("n2",)


def test_what_is_kept_for_nominated_pods_is_taken() -> None:
    there = [low("x", "n1", "a,NVIDIA,4000,0:;"), low("y", "n1", "a,NVIDIA,4000,0:;", 5)]
    incoming = high(gpu=1, mem=4000)
    assert victims(incoming, ONE, *there, reserved={"n1": ("a", 4000)}) == ("n1", "y", "x")
    assert victims(incoming, ONE, *there, reserved={"n1": ("a", 4001)}) is None


def test_a_card_that_its_pods_closed_is_open_without_them() -> None:
    """A pod of HAMi 2.9 has MIG instances, and doesn't say where they are (docs/spec/nvidia.md#3.4)."""
    state = ClusterCache(VENDORS)
    state.set_node(Node.from_object(node("n1", card("M", mode="mig", migProfiles=[]))), NOW)
    state.set_pod(Pod.from_object(bound_pod("old", "n1", "M[1-0],NVIDIA,5120,0:;", uid="old")), NOW)
    view = state.view("n1")
    assert view is not None
    assert view.closed == {("NVIDIA", "M")}
    assert NodeSnapshot(view, state.allocations("n1"), {}).without({"old"}, VENDORS).closed == frozenset()
