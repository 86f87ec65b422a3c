"""What is remembered of nodes' answers is what they would answer anew, whatever happened in between."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest
from builders import card, container, node, pod
from every_node import evaluate
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from state.test_cluster_cache import read_node
from state.test_cluster_cache_any_order import CacheEnv, apply, changes

from hami_webhook.devices.pod_fit import PodRequest, shape_of
from hami_webhook.devices.reasons import NODE_UNREGISTERED
from hami_webhook.quota.budget import PodBudget
from hami_webhook.scheduling.filter_cache import FilterCache
from hami_webhook.scheduling.scoring import best_first, node_rank
from hami_webhook.state.cluster_cache import ClusterCache

from .placer_env import CORES, GPU, MEM, NOW, VENDORS, request_of

TOPOLOGY = {"hami.io/gpu-scheduler-policy": "topology-aware"}
ASKING = (
    pod("plain", gpu=1, mem=1000),
    pod(
        "sibling",
        gpu=1,
        mem=1000,
        annotations={"hami.io/vgpu-node": "b", "batch.kubernetes.io/job-completion-index": "3"},
    ),
    pod("elsewhere", gpu=1, mem=1000, namespace="other"),
    pod("share", gpu=1, percent=50),
    pod("linked", gpu=2, mem=500, annotations=TOPOLOGY),
    pod("linked-one", gpu=1, percent=30, annotations={**TOPOLOGY, "hami.io/node-scheduler-policy": "spread"}),
    pod("peaks", container(gpu=1, mem=3000), container(gpu=1, mem=500), init=[container(gpu=2, mem=2500)]),
    pod("picky", gpu=1, cores=20, annotations={"nvidia.com/use-gpuuuid": "G1"}),
    pod("binpack", gpu=1, mem=1000, annotations={"hami.io/gpu-scheduler-policy": "binpack"}),
)
NAMES = ("a", "b", "c")

budgets = st.one_of(
    st.none(),
    st.dictionaries(st.sampled_from((GPU, MEM, CORES)), st.integers(0, 4), min_size=1, max_size=2),
)
questions = st.tuples(
    st.just("ask"),
    st.integers(0, len(ASKING) - 1),
    budgets,
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=4),
)
UNIT = {GPU: 1, MEM: 1500, CORES: 15}


def check(
    memory: FilterCache, state: ClusterCache, ask: PodRequest, limits: dict[str, int] | None, names: list[str]
) -> None:
    """The memory answers as all nodes of these names do when they are asked now."""
    budget = None
    if limits is not None:
        budget = PodBudget({key: UNIT[key] * limit for key, limit in limits.items()}, ask.pod.kinds, VENDORS)
    views = {name: state.view(name) for name in names}
    fresh = evaluate([view for view in views.values() if view is not None], ask, VENDORS, budget, "binpack")
    filtered = memory.filtered(ask, budget, names)
    assert best_first(filtered.fits, ask, "binpack") == [node_rank(scored, ask, VENDORS) for scored in fresh.fits]
    assert [each.node for each in filtered.fits] == [n for n in views if n in {scored.node for scored in fresh.fits}]
    unknown = {name: NODE_UNREGISTERED for name, view in views.items() if view is None}
    assert {name: str(why) for name, why in filtered.failed.items()} == {
        **{name: str(why) for name, why in fresh.failed.items()},
        **unknown,
    }
    for scored in fresh.fits:
        assert memory.fit(ask, budget, scored.node) == scored


@given(st.lists(st.one_of(changes.map(tuple), questions, questions), max_size=25), st.sampled_from((1, 6, 1000)))
def test_the_memory_answers_as_the_nodes_would_now(steps: list[Any], most: int) -> None:
    env = CacheEnv(NOW, ClusterCache(VENDORS, zone=UTC), {}, {})
    memory = FilterCache(env.state, VENDORS, "binpack", most)
    version = 0
    for step in steps:
        if step and step[0] == "ask":
            _, which, limits, names = step
            check(memory, env.state, request_of(ASKING[which]), limits, names)
            continue
        for change in step:
            version += 1
            apply(env, change, version)
    for raw in ASKING:
        ask = request_of(raw)
        for limits in (None, *({MEM: limit} for limit in (3, 1, 2, 0, 4)), *({GPU: limit} for limit in (1, 0, 2))):
            check(memory, env.state, ask, limits, [*NAMES])


# what is asked anew, and what isn't


def known(*names: str) -> tuple[ClusterCache, FilterCache]:
    state = ClusterCache(VENDORS)
    for number, name in enumerate(names):  # no two are equal
        memory = 8000 + number
        state.set_node(read_node(node(name, card(f"{name}0", memory), card(f"{name}1", memory)), 0), NOW)
    return state, FilterCache(state, VENDORS, "binpack")


PLAIN, SIBLING, ELSEWHERE = map(request_of, ASKING[:3])


def test_a_pod_of_the_same_shape_asks_only_nodes_that_changed_since() -> None:
    state, memory = known(*"abc")
    memory.filtered(PLAIN, None, "abc")
    assert memory.tested == 3
    memory.filtered(SIBLING, None, "cab")
    memory.filtered(ELSEWHERE, None, "ac")
    assert memory.tested == 3
    state.set_node(read_node(node("b", card("b0", 100)), 1), NOW)
    assert {each.node for each in memory.filtered(PLAIN, None, "abc").fits} == {"a", "c"}
    assert memory.tested == 4
    state.remove_node("a")
    assert memory.filtered(PLAIN, None, "abc").failed["a"].bare == NODE_UNREGISTERED
    assert memory.tested == 4


def test_a_budget_that_moved_asks_anew_only_where_it_would_say_otherwise() -> None:
    _, memory = known(*"abc")

    def ask(limit: int, of: PodRequest = PLAIN) -> int:
        before = memory.tested
        memory.filtered(of, PodBudget({MEM: limit}, of.pod.kinds, VENDORS), "abc")
        return memory.tested - before

    assert [ask(5000), ask(4000), ask(1000), ask(10**9)] == [3, 0, 0, 0]
    assert [ask(999), ask(500), ask(0)] == [3, 0, 0]
    assert [ask(1000), ask(2000)] == [3, 0]
    assert [ask(2000, ELSEWHERE), ask(2000)] == [3, 0], "each namespace has its own budget"


def test_too_much_to_remember_gives_up_what_was_asked_longest_ago() -> None:
    state, _ = known(*"abc")
    memory = FilterCache(state, VENDORS, "binpack", 6)
    others = [request_of(pod("p", gpu=1, mem=memory_)) for memory_ in (1, 2, 3)]
    for ask in (*others[:2], others[0], others[2], others[0]):
        memory.filtered(ask, None, "abc")
    assert memory.tested == 9
    memory.filtered(others[1], None, "abc")
    assert memory.tested == 12


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other", "uid": "x", "namespace": "n", "labels": {"a": "b"}, "priority_class": "high"},
        {"annotations": {"hami.io/quota-reservation": "1", "hami.io/vgpu-devices-allocated": ";"}},
        {"annotations": {"kubernetes.io/config.seen": "now", "kubectl.kubernetes.io/restartedAt": "now"}},
        {"node_selector": {"a": "b"}, "phase": "Pending", "created": 1.0, "resource_version": "7"},
    ],
)
def test_what_tells_siblings_apart_is_not_of_the_shape(change: dict[str, Any]) -> None:
    first = PLAIN.pod
    assert shape_of(replace(first, **change)) == shape_of(first)


@pytest.mark.parametrize("key", ["hami.io/gpu-scheduler-policy", "nvidia.com/use-gpuuuid", "example.com/anything"])
def test_whatever_else_a_pod_says_is_of_its_shape(key: str) -> None:
    assert shape_of(replace(PLAIN.pod, annotations={key: "x"})) != shape_of(PLAIN.pod)
