"""What a node registers, which NPUs pass and are taken, and what is written and told.

Source: docs/spec/ascend.md#3, #7 to #10, #13 and #14.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from builders import container
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.devices.model import Kinds, RegistrationError
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.pricing import price_pending
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.placer import Placer, SchedulingPolicies, Unschedulable
from hami_webhook.state.cluster_cache import ClusterCache

from .cards import Room
from .fit_env import CHART, JSON, NOW, FitEnv, Placed, pod
from .npus import B3, B4, B41, POLICY, SOFT, UNBOUND, C, P, chips, chosen, node, npus, registered, sick, with_limits

REGISTER = f"hami.io/node-register-{B3}"
FEW = "AllocatedCardsInsufficientRequest"

# 3: the node side


def test_the_registration_of_the_page_is_read() -> None:
    text = (
        '[{"id":"9A40A05C","count":4,"devmem":65536,"devcore":20,"type":"Ascend910B3","health":true,'
        '"custominfo":{"NetworkID":0}},{"Index":1,"ID":"4E1BD05C","COUNT":4,"Devmem":65536,"devcore":20,'
        '"type":"Ascend910B3","HEALTH":true,"CustomInfo":{"networkid":1}},'
        '{"id":"third","index":2,"count":4,"devmem":65536,"devcore":20,"type":"Ascend910B3"}]'
    )
    inventory = registered(node(0, notes={REGISTER: text}))
    read = [(d.uuid, d.index, d.slots, d.memory, d.cores, d.healthy, d.extra) for d in inventory.devices]
    assert read == [
        ("9A40A05C", 0, 4, 65536, 20, True, 0),
        ("4E1BD05C", 1, 4, 65536, 20, True, 1),
        ("third", 2, 4, 65536, 20, False, None),
    ]
    assert not inventory.facts.grouped


def test_only_the_chips_own_npus_count_and_custominfo_is_an_object() -> None:
    assert CHART[B4].inventory(node(2)) is None
    with pytest.raises(RegistrationError, match=REGISTER):
        registered(node(0, notes={REGISTER: '[{"id":"a","custominfo":[]}]'}))


@pytest.mark.parametrize(
    ("groups", "grouped"), [([0, 1], True), ([0, None], False), ([0, "1"], False), ([0, True], False), ([0, 1.0], True)]
)
def test_groups_count_where_every_npu_names_a_number(groups: list[object], grouped: bool) -> None:
    assert registered(node(npus(2, groups=groups))).facts.grouped == grouped
    assert not registered(node(npus(2, P, groups=groups), P), P).facts.grouped, "only 910 chips have groups"


@pytest.mark.parametrize(
    ("said", "default", "soft"),
    [("true", False, True), ("false", True, False), (None, True, True), (None, False, False), ("True", True, False)],
)
def test_a_node_says_itself_whether_it_does_soft_mode(said: str | None, default: bool, soft: bool) -> None:
    notes = {} if said is None else {"hami-vnpu-core": said}
    assert registered(node(1, notes=notes), vendors=chips(soft=default)).facts.soft == soft


# 7.1 and 7.2


def test_a_soft_pod_needs_a_soft_node_and_any_other_takes_both() -> None:
    for cards, on_soft in ((3, True), (3, False)):
        env = FitEnv([node(cards, soft=on_soft)])
        result = env.place(pod(annotations=SOFT, **with_limits(1, 10)))
        assert isinstance(result, Placed) if on_soft else result == {"n1": "1/3 ModeNotFit"}
        assert isinstance(env.place(pod("plain", **with_limits(1, 16384))), Placed)


def test_difference_soft_mode_with_too_few_npus_is_node_insufficient_device() -> None:
    assert FitEnv([node(1)]).place(pod(annotations=SOFT, **with_limits(2, 10))) == {"n1": "NodeInsufficientDevice"}


def test_a_chip_gets_no_npus_of_another_whose_name_contains_its_own() -> None:
    both = node(npus(1, B41), B41)
    assert FitEnv([both]).place(pod(**with_limits(1, word=B4))) == {"n1": "NodeInsufficientDevice"}


# 7.3: what is special in the checks


@pytest.mark.parametrize(
    ("fields", "before", "amounts", "notes", "label"),
    [
        # what admission would have refused, or warned of
        ({}, None, {"memory": 70000}, {}, "CardInsufficientMemory"),
        ({}, None, {"memory": 70000}, SOFT, "CardInsufficientMemory"),
        # compute is in percent whatever number of cores is registered
        ({}, {"memory": 1, "core": 70}, {"memory": 1, "core": 30}, SOFT, ""),
        ({}, {"memory": 1, "core": 71}, {"memory": 1, "core": 30}, SOFT, "CardInsufficientCore"),
        ({}, {"memory": 1, "core": 1}, {"memory": 1, "core": 300}, SOFT, "CardInsufficientCore"),
        ({}, {"memory": 1}, {"memory": 1, "core": 100}, SOFT, "ExclusiveDeviceAllocateConflict"),
        ({"devcore": 100}, {"memory": 1, "core": 100}, {"memory": 1}, {}, "CardComputeUnitsExhausted"),
        ({"devcore": 0}, {"memory": 1}, {"memory": 1}, {}, ""),
    ],
)
def test_what_a_card_with_a_soft_pod_refuses(
    fields: JSON, before: JSON | None, amounts: JSON, notes: JSON, label: str
) -> None:
    env = FitEnv([node(npus(1, **fields), soft=True)])
    if before is not None:
        env.placed(pod("before", annotations=SOFT, **with_limits(1, **before)))
    found = env.place(pod(annotations=notes, **with_limits(1, **amounts)), admit=False)
    assert found == {"n1": f"1/1 {label}"} if label else isinstance(found, Placed)


# 7.4: HCCS groups


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[tuple[bool, int]], int]:
    """The NPUs of a node as (healthy, group), and a count that the healthy ones just about have."""
    cards = draw(st.lists(st.tuples(st.sampled_from([True, True, False]), st.integers(0, 2)), min_size=4, max_size=8))
    healthy = sum(card[0] for card in cards)
    return cards, draw(st.integers(max(1, healthy - 3), healthy + 1))


@given(nodes(), st.sampled_from([B3, B3, P]))
def test_the_choice_by_group_is_the_rule_read_word_by_word(of: tuple[list[tuple[bool, int]], int], word: str) -> None:
    cards, count = of
    bad = [position for position, (healthy, _) in enumerate(cards) if not healthy]
    listed = sick(npus(len(cards), word, groups=[group for _, group in cards]), *bad)
    collected = [position for position in reversed(range(len(cards))) if position not in bad]
    result = chosen(listed, word=word, count=count)
    if len(collected) < count:
        assert isinstance(result, str)
        return
    if word == P or count == 1 or len(collected) == count:
        assert result == collected[:count]
        return
    wanted, left = [], list(collected)
    while left:
        sizes = {group: sum(cards[c][1] == group for c in left) for group in (0, 1, 2)}
        largest = next(cards[c][1] for c in left if sizes[cards[c][1]] == max(sizes.values()))
        wanted += [c for c in left if cards[c][1] == largest]
        left = [c for c in left if cards[c][1] != largest]
    assert result == wanted[:count]


# 7.4: modules


@pytest.mark.parametrize(
    ("bad", "count", "bound", "unbound"),
    [
        ([], 3, f"2/3 {FEW}", [7, 6, 5]),
        ([7], 3, f"1/3 CardNotHealth, 2/3 {FEW}", [5, 4, 6]),
        ([0], 3, f"1/3 CardNotHealth, 2/3 {FEW}", [7, 6, 1]),  # rather than break a module
        ([2, 5], 5, f"2/5 CardNotHealth, 4/5 {FEW}", [7, 6, 1, 0, 4]),
        ([1, 3, 5], 4, *[f"2/4 {FEW}, 3/4 CardNotHealth"] * 2),
        ([1, 3, 5, 7], 2, *[f"0/2 {FEW}, 4/2 CardNotHealth"] * 2),  # a difference: no module is whole
        (range(8), 2, *[f"0/2 {FEW}, 8/2 CardNotHealth"] * 2),
    ],
)
def test_modules_are_taken_whole(bad: list[int], count: int, bound: object, unbound: object) -> None:
    for vendors, expected in ((CHART, bound), (UNBOUND, unbound)):
        for groups in (None, [0] * 8):
            assert chosen(sick(npus(8, C, groups=groups), *bad), word=C, vendors=vendors, count=count) == expected


@given(nodes(), st.booleans(), st.permutations(range(8)))
def test_the_choice_of_modules_is_the_rule_read_word_by_word(
    of: tuple[list[tuple[bool, int]], int], bound: bool, shuffle: list[int]
) -> None:
    healthy, count = [card[0] for card in of[0]], max(2, of[1])
    cards = npus(len(healthy), C)
    cards = [cards[i] for i in shuffle if i < len(cards)]
    cards = [card | {"health": True} if healthy[card.get("index", 0)] else {**card, "health": False} for card in cards]
    met = [card.get("index", 0) for card in reversed(cards) if card["health"]]
    vendors = CHART if bound else UNBOUND
    result = chosen(cards, word=C, vendors=vendors, count=count)

    def rank(chosen_set: tuple[int, ...]) -> tuple[list[int], list[object]] | None:
        """What is preferred, in the order of preference; None for a set that breaks a rule."""
        whole = [c for c in chosen_set if c ^ 1 in chosen_set]
        single = [c for c in chosen_set if c ^ 1 not in chosen_set]
        if len(single) != count % 2 or (bound and single):
            return None
        firsts = sorted(min(met.index(c), met.index(c ^ 1)) for c in whole)
        return firsts, [single[0] ^ 1 in met, met.index(single[0])] if single else []

    ranks = [(rank(s), s) for s in combinations(met, count) if rank(s) is not None]
    if not ranks:
        assert isinstance(result, str)
        return
    assert isinstance(result, list)
    assert sorted(result) == sorted(min(ranks)[1])
    whole = [c for c in result if c ^ 1 in result]
    assert result[: len(whole)] == whole, "the single one comes last"
    assert all(whole[i] ^ 1 == whole[i + 1] for i in range(0, len(whole), 2))


# the quota in the choice


def within(**limits: int) -> Callable[[Kinds], Room]:
    return lambda kinds: Room(kinds, **limits)


def test_the_quota_bears_on_the_whole_choice() -> None:
    six = npus(6, groups=[0, 0, 1, 1, 1, 1])
    assert chosen(six, count=2, budget=within(memory=131072)) == [5, 4]
    assert chosen(six, count=2, budget=within(memory=131071)) == "6/6 ResourceQuotaNotFit"
    assert chosen(npus(4, C), word=C, count=2, budget=within(memory=131071)) == (f"0/2 {FEW}, 4/2 ResourceQuotaNotFit")
    assert chosen(npus(6, P), word=P, count=2, budget=within(memory=21527)) == (
        "1/6 AllocatedCardsInsufficientRequest, 5/6 ResourceQuotaNotFit"
    )


def test_cheaper_npus_are_taken_where_the_quota_asks_for_it() -> None:
    mixed = npus(4, groups=[0, 1, 1, 1])
    mixed[3]["devmem"] = 40000
    mixed[0]["devmem"] = 30000
    assert chosen(mixed, count=2, budget=within(memory=110000)) == [3, 2], "the rest of the largest group is dearer"
    assert chosen(mixed, count=2, budget=within(memory=100000)) == [3, 0]


# 8: the node


def scored(groups: list[int | None], count: int, policy: str, word: str = B3) -> float:
    env = FitEnv([node(npus(len(groups), word, groups=groups), word)])
    notes = {"hami.io/node-scheduler-policy": policy}
    return env.placed(pod(annotations=notes, **with_limits(count, word=word)), keep=False).score


@pytest.mark.parametrize(
    ("groups", "count", "word", "score"),
    [
        ([0, 0, 1, 1], 1, B3, 10),
        ([0, 0, 1, 1], 2, B3, 10),
        ([0, 0, 1, 1], 3, B3, 10 * 2 / 3),
        ([0, 0, 1, 1], 4, B3, 5),
        ([0, 0, None, 1], 2, B3, 0),
        ([0, 0], 2, P, 0),
        ([0, 0], 2, C, 10),
    ],
)
def test_npus_of_one_group_raise_the_score_and_lower_it_under_spread(
    groups: list[int | None], count: int, word: str, score: float
) -> None:
    assert scored(groups, count, "binpack", word) == pytest.approx(score)
    assert scored(groups, count, "spread", word) == pytest.approx(-score)


def test_an_npu_without_group_that_was_not_chosen_does_not_matter_and_containers_add_up() -> None:
    env = FitEnv([node(npus(3, groups=[None, 0, 0]))])
    two = pod(
        "p", container("a", **with_limits(1)), container("b", **with_limits(1)), init=[container("i", **with_limits(2))]
    )
    result = env.placed(two, keep=False)
    assert result.score == pytest.approx(30)
    one_each = pod("p", container("a", **with_limits(2)), container("b", **with_limits(1)))
    assert env.placed(one_each, keep=False).score == 0


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_the_better_connected_node_wins_whatever_the_policy(policy: str) -> None:
    torn, joined = npus(2, groups=[0, 1]), npus(2, groups=[0, 0])
    env = FitEnv([node(torn, name="a"), node(joined, name="b")], policies=SchedulingPolicies(node=policy))
    assert env.placed(pod(**with_limits(2))).node == "b"


def test_a_topology_aware_pod_takes_the_smallest_node_that_has_enough() -> None:
    env = FitEnv([node(4, P, name="a"), node(sick(npus(4, P), 0), P, name="b")])
    for count in (1, 2):
        incoming = pod(annotations={POLICY: "topology-aware"}, **with_limits(count, word=P))
        assert env.placed(incoming, keep=False).node == "b", "three fit there, and four on the other"


# 9: what is written


def test_two_chips_of_one_pod_have_annotations_of_their_own() -> None:
    env = FitEnv([node(1, notes={f"hami.io/node-register-{P}": json.dumps(npus(1, P))})])
    result = env.placed(pod("p", container("a", **with_limits(1, 1)), container("b", **with_limits(1, 1, word=P))))
    assert result.annotations["hami.io/Ascend910B3-devices-allocated"] == "NPU-0,Ascend910B3,16384,0:;;"
    assert result.annotations["hami.io/Ascend310P-devices-allocated"] == ";NPU-0,Ascend310P,3072,0:;"
    assert result.annotations["huawei.com/Ascend310P"] == '[{"UUID":"NPU-0","temp":"vir01","memory":3072}]'


# 13: what a refused pod is told


def test_a_pod_that_no_node_takes_is_told_what_decides() -> None:
    async def reported(state: ClusterCache, manifest: JSON) -> list[str]:
        cluster = MemoryCluster(lambda: NOW)
        await cluster.ensure_namespace("default")
        stored = await cluster.create(Kind.PODS, manifest)
        placer = Placer(Handle(cluster, state, CHART, lambda: NOW))
        assert isinstance(await placer.place(Pod.from_object(stored)), Unschedulable)
        assert placer.events is not None
        await placer.events.flush()
        return [event.note.message for event in cluster.events]

    def events(env: FitEnv, manifest: JSON) -> list[str]:
        return asyncio.run(reported(env.state, manifest))

    mode = events(FitEnv([node(1)]), pod(annotations=SOFT, **with_limits(1, 5)))
    assert "1 nodes ModeNotFit(n1)" in mode
    (hint,) = [text for text in mode if "hami-vnpu-core" in text]
    assert "vnpus.hamiVnpuMode" in hint
    full = FitEnv([node(npus(1, count=1))])
    full.place(pod("first", **with_limits(1, 1)))
    assert "an Ascend910B3 takes at most 1 containers" in " ".join(events(full, pod(**with_limits(1, 1))))
    elsewhere = events(FitEnv([node(1, P)]), pod(**with_limits(1, 1)))
    assert elsewhere == ["1 nodes NodeInsufficientDevice(n1)", "no available node, 1 nodes do not meet"]


# 10 and 14: what it costs, and the examples of what is written

COUNT, MEMORY, CORE = (f"limits.huawei.com/{B3}{end}" for end in ("", "-memory", "-core"))


def test_1_a_slice() -> None:
    env = FitEnv([node(1)])
    admitted = env.admit(pod(**with_limits(1, 10000)))
    assert admitted.limits() == with_limits("1", "16384")
    assert admitted.requests() == {f"huawei.com/{B3}-memory": "16384"}
    result = env.placed(pod(**with_limits(1, 10000)))
    written = "NPU-0,Ascend910B3,16384,0:;"
    assert result.annotations == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": "1767225600",
        "predicate-time": "1767225600",
        "hami.io/Ascend910B3-devices-to-allocate": written,
        "hami.io/Ascend910B3-devices-allocated": written,
        "huawei.com/Ascend910B3": '[{"UUID":"NPU-0","temp":"vir05_1c_16g","memory":16384}]',
    }
    assert result.debits == {COUNT: 1, MEMORY: 16384}


def test_5_soft_mode() -> None:
    env = FitEnv([node(npus(1, devcore=100), soft=True)])
    env.placed(pod("first", annotations=SOFT, **with_limits(1, 20000, 70)))
    result = env.placed(pod("less", annotations=SOFT, **with_limits(1, 28672, 30)))
    assert result.annotations["huawei.com/Ascend910B3"] == '[{"UUID":"NPU-0","memory":28672,"core":30}]'
    assert result.debits == {COUNT: 1, MEMORY: 28672, CORE: 30}


# quota (10)


def test_the_quota_example_charges_what_admission_wrote() -> None:
    env = FitEnv([node(2, soft=True)])
    assert env.waiting(pod(**with_limits(1, 10000))) == {COUNT: 1, MEMORY: 16384}
    assert env.waiting(pod(**with_limits(1))) == {COUNT: 1, MEMORY: 65536}
    assert env.waiting(pod(**with_limits(2))) == {COUNT: 2, MEMORY: 131072}
    soft = pod(annotations=SOFT, **with_limits(2, 8000, 20))
    assert env.waiting(soft) == env.placed(soft).debits == {COUNT: 2, MEMORY: 16000, CORE: 40}
    assert FitEnv([]).waiting(pod(**with_limits(1, word=P))) == {
        "limits.huawei.com/Ascend310P": 1,
        "limits.huawei.com/Ascend310P-memory": 21527,
    }


def test_a_pod_that_admission_did_not_see_is_charged_what_the_driver_carves() -> None:
    env = FitEnv([node(1, P)])

    def unseen(**limits: Any) -> dict[str, int]:
        return dict(price_pending(Pod.from_object(pod(**limits)), CHART, env.state.capacity).amounts)

    key = "limits.huawei.com/Ascend310P-memory"
    assert unseen(**with_limits(1, 5000, word=P))[key] == 6144
    assert unseen(**with_limits(1, 13000, word=P))[key] == 21527
    assert unseen(**with_limits(1, 30000, word=P))[key] == 30000
    assert unseen(**with_limits(1, word=P))[key] == 21527, "the floor: the smallest card"
    whole = env.placed(pod(**with_limits(1, word=P)), admit=False)
    assert whole.debits[key] == 21527
    assert whole.annotations["huawei.com/Ascend310P"] == '[{"UUID":"NPU-0","memory":21527}]'
