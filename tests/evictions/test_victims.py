"""Which pods are victims, and on which node: worked examples of docs/preemption.md#victims."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from builders import bound_pod, card, node
from scheduling.placer_env import NOW, VENDORS, request_of

from hami_webhook.cluster.api import JSON
from hami_webhook.devices.model import DeviceShare
from hami_webhook.evictions import victims as search
from hami_webhook.evictions.search import SearchBudget, try_fit
from hami_webhook.evictions.victims import Preemptor, choose_node, selecting_victims
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
    state = cache_of(objects)
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


def cache_of(objects: Sequence[JSON]) -> ClusterCache:
    state = ClusterCache(VENDORS)
    for obj in objects:
        if "spec" in obj:
            state.set_pod(Pod.from_object(obj), NOW)
        else:
            state.set_node(Node.from_object(obj), NOW)
    return state


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


def test_of_several_smaller_sets_the_best_goes() -> None:
    """To give back by importance leaves the two that share a card; of the pods with a card each one is younger."""
    there = [low("y", "n1", "b,NVIDIA,8000,0:;", 0, 0), low("z", "n1", "c,NVIDIA,8000,0:;", 0, 1)]
    halves = [low(f"x{number}", "n1", "a,NVIDIA,4000,0:;", 0, 2 + number) for number in (0, 1)]
    three = node("n1", *(card(uuid, 8000) for uuid in "abc"))
    assert victims(high(gpu=1, mem=8000), three, *there, *halves) == ("n1", "z")


class Search:
    """The search on one node: who goes, what of its budget is left, and how often it pauses."""

    def __init__(self, objects: Sequence[JSON], budget: SearchBudget) -> None:
        state = cache_of(objects)
        (view,) = state.views()
        snapshot = NodeSnapshot(view, state.allocations(view.name), {})
        preemptor = Preemptor(request_of(high(gpu=1, mem=8000)), None, VENDORS, (), NOW)
        self.budget, self.pauses = budget, 0
        steps = selecting_victims(preemptor, snapshot, budget)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                self.found = None if end.value is None else [each.name for each in end.value.pods]
                return
            self.pauses += 1


HALVES = [
    node("n1", card("a", 8000), card("b", 8000)),
    low("z", "n1", "b,NVIDIA,8000,0:;", 0, 0),
    *(low(f"x{number}", "n1", "a,NVIDIA,4000,0:;", 0, 1 + number) for number in (0, 1)),
]
"""kube-scheduler would evict both of x; z alone is enough, and the first set that is compared with them."""


def test_a_smaller_set_is_found_with_just_the_effort_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    took: list[int] = []

    def counting(*arguments: object) -> object:
        found, steps = try_fit(*arguments)  # type: ignore[arg-type]  # whatever the search passes
        took.append(steps)
        return found, steps

    monkeypatch.setattr(search, "try_fit", counting)
    whole = Search(HALVES, SearchBudget(100, 100, 10**9))
    assert whole.found == ["z"]
    assert 10**9 - whole.budget.steps == sum(took), "each Fit counts once"
    all_fits, before = len(took), sum(took[:-1])
    for fits, sets, steps, expected in (
        (all_fits, 1, 10**9, ["z"]),
        (all_fits - 1, 1, 10**9, ["x0", "x1"]),
        (all_fits, 0, 10**9, ["x0", "x1"]),
        (all_fits, 1, before + 1, ["z"]),
        (all_fits, 1, before, ["x0", "x1"]),
    ):
        assert Search(HALVES, SearchBudget(fits, sets, steps)).found == expected, (fits, sets, steps)


def test_while_sets_are_compared_others_have_their_turn() -> None:
    """Of 11 pods on a card all have to go: so each set of fewer is compared."""
    there = [low(f"x{number:02}", "n1", "a,NVIDIA,700,0:;", 0, number) for number in range(11)]
    objects = [node("n1", card("a", 8000, count=20)), *there]
    without, all_sets = Search(objects, SearchBudget(0, 0, 10**9)), Search(objects, SearchBudget(0, 4096, 10**9))
    compared = 4096 - all_sets.budget.sets
    assert compared > 100
    assert all_sets.pauses - without.pauses == compared // 64
