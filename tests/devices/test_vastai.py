"""Vastaitech VA cards: part C of docs/spec/amd-biren-vastai.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from builders import container, read_node
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.devices.codecs import decode_pod_devices
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.scheduling.placer import SchedulingPolicies

from .fit_env import CHART, JSON, FitEnv, Placed, pod

COUNT = "vastaitech.com/va"
REGISTER = "hami.io/node-va-register"
ALLOCATED = "hami.io/Vastai-devices-allocated"
POLICY, NODE_POLICY = "hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy"
MUTEX = {POLICY: "mutex"}
VASTAI = CHART["Vastai"]


def card(uuid: str, **fields: Any) -> JSON:
    return {"id": uuid, "count": 1, "devmem": 32768, "type": "Vastai", "health": True, **fields}


def die(uuid: str, aic: Any = None, **fields: Any) -> JSON:
    reported = {"DeviceStrategy": "die", **({} if aic is None else {"AIC": aic})}
    return card(uuid, **{"devmem": 16384, "custominfo": reported, **fields})


def vastai(*cards: JSON, name: str = "n1") -> Node:
    return read_node(name, capacity={COUNT: 16}, **{REGISTER: json.dumps(cards)})


def dies(aics: Mapping[str, Any], name: str = "n1", **fields: Any) -> Node:
    """A node of dies, each with its AIC."""
    return vastai(*(die(uuid, aic, **fields) for uuid, aic in aics.items()), name=name)


def with_limits(count: int, name: str = "p", **annotations: str) -> JSON:
    return pod(name, annotations=annotations, **{COUNT: count})


def chosen(env: FitEnv, manifest: JSON) -> str:
    """The devices a pod got, container by container, or why it got none."""
    text = env.outcome(manifest, "Vastai")
    rows = decode_pod_devices(text) if ";" in text else ()
    return " | ".join(" ".join(entry.uuid for entry in row) for row in rows) or text


def with_used(on: Node, *uuids: str) -> FitEnv:
    """The node with one pod on each of the devices."""
    env = FitEnv([on])
    for uuid in uuids:
        manifest = with_limits(1, f"on-{uuid}", **{"vastaitech.com/use-gpuuuid": uuid})
        assert chosen(env, manifest) == uuid
    return env


TWO_CARDS = vastai(card("6-0"), card("7-0"))
THREE_DIES = dies({"d0": "1", "d1": "1", "d2": "2"})
SIX_DIES = dies({"d0": "1", "d1": "1", "d2": "1", "d3": "2", "d4": "2", "d5": "3"})


# C7


@pytest.mark.parametrize(("policy", "score"), [("binpack", 1.0), ("spread", -1.0)])
@pytest.mark.parametrize("on_the_pod", [True, False])
def test_example_5_the_node_that_keeps_the_dies_together(policy: str, score: float, on_the_pod: bool) -> None:
    nodes = [dies({"d0": "1", "d1": "2"}, name="va-1"), dies({"d2": "1", "d3": "1"}, name="va-2")]
    if on_the_pod:
        placed = FitEnv(nodes).placed(with_limits(2, **{NODE_POLICY: policy}))
    else:
        placed = FitEnv(nodes, policies=SchedulingPolicies(node=policy)).placed(with_limits(2))
    assert (placed.node, placed.score) == ("va-2", score)
    alone = FitEnv(nodes[:1]).placed(with_limits(2, **{NODE_POLICY: policy}))
    assert alone.score == score / 2


# C2


@pytest.mark.parametrize("aic", [1, None, "", True, ["1"]])
def test_a_die_without_an_aic_text_is_a_group_of_its_own(aic: Any) -> None:
    on = vastai(die("d0", "1"), die("d1", "1"), die("d2", aic), die("d3", aic), die("d4", aic))
    assert chosen(FitEnv([on]), with_limits(2)) == "d1 d0"
    assert chosen(with_used(on, "d0"), with_limits(2)) == "d4 d3"


@pytest.mark.parametrize("custom", [None, "die", 7, [], {"DeviceStrategy": "card", "AIC": "1"}, {"AIC": "1"}])
def test_without_a_die_the_first_that_pass_are_taken(custom: Any) -> None:
    on = vastai(*(card(f"c{i}", custominfo=custom) for i in range(2)), card("c2"))
    assert chosen(FitEnv([on]), with_limits(2)) == "c2 c1"
    assert chosen(with_used(on, "c0"), with_limits(2, **MUTEX)) == "c2 c1"


def test_one_die_makes_die_mode_wherever_it_stands() -> None:
    plain = {"AIC": "1"}
    on = vastai(card("c0", custominfo=plain), die("d1", "2"), card("c2", custominfo=plain), card("c3"))
    assert chosen(FitEnv([on]), with_limits(2)) == "c2 c0"
    assert chosen(with_used(on, "c0"), with_limits(3, **MUTEX)) == (
        "1/4 CardTimeSlicingExhausted, 1/4 ExclusiveDeviceAllocateConflict, 2/4 AllocatedCardsInsufficientRequest"
    )


# C3


def test_a_request_is_the_count_alone() -> None:
    manifest = with_limits(2, **{"vastaitech.com/use-va": "x", "vastaitech.com/nouse-va": "Vastai"})
    assert FitEnv([]).admit(manifest).pod == manifest
    found = VASTAI.request(Pod.from_object(manifest).containers[0])
    assert found is not None
    assert (found.count, found.memory.on(32768), found.cores) == (2, 0, 0)
    assert chosen(FitEnv([TWO_CARDS]), manifest) == "7-0 6-0"


# C4


def test_mutex_counts_what_the_pods_other_container_took() -> None:
    two = pod("p", container("a", **{COUNT: 1}), container("b", **{COUNT: 1}), annotations=MUTEX)
    assert chosen(FitEnv([THREE_DIES]), two) == "d2 | d1"
    assert chosen(FitEnv([dies({"d0": "1", "d1": "1"})]), two) == (
        "1/2 CardTimeSlicingExhausted, 1/2 ExclusiveDeviceAllocateConflict"
    )


def test_an_unhealthy_die_in_use_closes_its_card_to_mutex() -> None:
    env = with_used(dies({"d0": "1", "d1": "1", "d2": "2"}, count=2), "d0")
    ill = vastai(die("d0", "1", health=False, count=2), die("d1", "1", count=2), die("d2", "2", health=False))
    env.state.set_node(ill, 0.0)
    assert chosen(env, with_limits(1, **MUTEX)) == "1/3 ExclusiveDeviceAllocateConflict, 2/3 CardNotHealth"


# C5


@pytest.mark.parametrize(
    ("on", "containers", "score"),
    [
        (SIX_DIES, [4], 0.75),
        (SIX_DIES, [3, 2], 2.0),
        (SIX_DIES, [6], 0.5),
        (TWO_CARDS, [2], 0.0),
        (vastai(die("d0", "1"), die("d1")), [2], 0.0),
        (vastai(die("d0", "1"), card("d1", custominfo={"AIC": "1", "DeviceStrategy": "card"})), [2], 0.0),
        # a difference: a device with an AIC and no strategy is scored as a die
        (vastai(die("d0", "1"), card("d1", custominfo={"AIC": "1"})), [2], 1.0),
        (vastai(die("d0", "1"), card("d1", custominfo={"AIC": "2"})), [2], 0.5),
    ],
)
def test_a_nodes_score(on: Node, containers: Sequence[int], score: float) -> None:
    apps = [container(f"c{at}", **{COUNT: count}) for at, count in enumerate(containers)]
    for policy, sign in (("binpack", 1), ("spread", -1)):
        placed = FitEnv([on]).placed(pod("p", *apps, container("cpu"), annotations={NODE_POLICY: policy}))
        assert placed.score == pytest.approx(sign * score)


def test_the_base_score_is_slots_only_and_0_without_memory() -> None:
    for memory, score in ((16384, 10 / 3), (0, 0.0)):
        env = with_used(vastai(*(card(f"c{i}", devmem=memory) for i in range(3))), "c0")
        assert env.placed(with_limits(1)).score == pytest.approx(score)


# C6


def test_where_quota_is_short_an_init_container_gets_the_apps_dies() -> None:
    on = dies({"d0": "1", "d1": "1", "d2": "2", "d3": "2", "d4": "2"}, count=2)
    incoming = pod("p", container("app", **{COUNT: 2}), init=[container("init", **{COUNT: 3})])
    assert chosen(FitEnv([on]), incoming) == "d4 d3 d2 | d4 d3"
    assert chosen(FitEnv([on], hard={f"limits.{COUNT}": 3}), incoming) == "d4 d3 d2 | d4 d3"
    used = pod("p", container("app", **{COUNT: 2}), init=[container("init", **{COUNT: 2})])
    env = FitEnv([on], hard={f"limits.{COUNT}": 2})
    assert chosen(env, used) == "d4 d3 | d4 d3"


def test_a_die_the_quota_forbids_is_passed_over() -> None:
    """Five dies would be held together if every container kept to one card."""
    on = dies({"d0": "1", "d1": "1", "d2": "2", "d3": "2", "d4": "2"})
    apps = [container("a", **{COUNT: 2}), container("b", **{COUNT: 2})]
    incoming = pod("p", *apps, init=[container("init", **{COUNT: 3})])
    assert chosen(FitEnv([on]), incoming) == "d4 d3 d2 | d4 d3 | d1 d0"
    assert chosen(FitEnv([on], hard={f"limits.{COUNT}": 4}), incoming) == "d4 d3 d2 | d4 d3 | d1 d2"


ways = st.lists(
    st.tuples(
        st.sampled_from(["1", "2", "3", None]), st.integers(0, 2), st.sampled_from([True] * 5 + [False]), st.booleans()
    ),
    min_size=1,
    max_size=8,
)


@given(ways, st.integers(1, 5), st.sampled_from(["spread", "binpack", "mutex"]), st.none() | st.integers(0, 6))
def test_dies_are_chosen_as_the_rule_reads(cards: Any, count: int, policy: str, hard: int | None) -> None:
    """Every device: its AIC, its slots, whether it is healthy, whether it is in use already."""
    records = [die(f"d{at}", aic, count=slots, health=healthy) for at, (aic, slots, healthy, _) in enumerate(cards)]
    fresh = [{**record, "count": 2, "health": True} for record in records]
    env = with_used(vastai(*fresh), *(f"d{at}" for at, item in enumerate(cards) if item[3]))
    env.state.set_node(vastai(*records), 0.0)
    env.hard = {} if hard is None else {f"limits.{COUNT}": hard}
    used = [int(item[3]) for item in cards]
    groups = [item[0] or f"own {at}" for at, item in enumerate(cards)]

    def full(at: int) -> float:
        """How full a device is that takes one more; memory and cores are never booked."""
        return (used[at] + 1) / cards[at][1] + 1 if cards[at][1] else 0

    passing = []
    for at in range(len(cards)):
        beside = [other for other in range(len(cards)) if groups[other] == groups[at]]
        closed = policy == "mutex" and any(used[other] for other in beside)
        if cards[at][2] and used[at] < cards[at][1] and not closed:
            passing.append(at)
    keys = {
        "spread": lambda at: (full(at), -at),
        "binpack": lambda at: (-full(at), -at),
        "mutex": lambda at: (used[at], -at),
    }
    scanned = sorted(passing, key=keys[policy])
    room = hard is None or sum(used) + count <= hard
    placed = env.place(with_limits(count, **{POLICY: policy}))
    assert isinstance(placed, Placed) == (len(scanned) >= count and room and count <= len(cards))
    if not isinstance(placed, Placed):
        return
    if len(scanned) > count > 1:
        sizes = {group: sum(groups[at] == group for at in scanned) for group in groups}
        first = {group: next((i for i, at in enumerate(scanned) if groups[at] == group), 0) for group in groups}
        scanned.sort(key=lambda at: (-sizes[groups[at]], first[groups[at]]))
    got = [entry.uuid for row in decode_pod_devices(placed.annotations[ALLOCATED]) for entry in row]
    assert got == [f"d{at}" for at in scanned[:count]]
    for at, item in enumerate(cards):
        assert env.used("Vastai", f"d{at}")[0] <= max(item[1], used[at])
