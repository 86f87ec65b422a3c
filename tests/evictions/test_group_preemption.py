"""Preemption for a pod group: who goes for all of it, or nobody (docs/spec/queues.md#5.5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from builders import card, node, quota
from hypothesis import given
from hypothesis import strategies as st
from scheduling.placer_env import GPU, MEM, NOW

from hami_webhook.cluster.api import JSON, Forbidden, Kind
from hami_webhook.core_options import Options
from hami_webhook.evictions import group_victims
from hami_webhook.scheduling.protocol import ExtenderArgs

from .extended import Extended, add, budget, extended, high, low, turns

both = pytest.mark.parametrize("mode", ["cooperative", "single"])
MEMORY = 8000


def nodes(*cards: int) -> list[JSON]:
    """Nodes n0, n1, … with so many cards each: n0-0, n0-1, …"""
    return [node(f"n{n}", *(card(f"n{n}-{c}", MEMORY) for c in range(count))) for n, count in enumerate(cards)]


def taken(*cards: int, priority: int = 0, memory: int = MEMORY, name: str = "x", **meta: Any) -> list[JSON]:
    """A pod on each card: x0-0 on n0-0, …"""
    return [
        low(f"{name}{n}-{c}", f"n{n}", f"n{n}-{c},NVIDIA,{memory},0:;", priority, **meta)
        for n, count in enumerate(cards)
        for c in range(count)
    ]


def group(size: int, name: str = "g", mem: int = MEMORY, **spec: Any) -> list[JSON]:
    """The members g0, g1, …"""
    pods = [high(name=f"{name}{number}", gpu=1, mem=mem, **spec) for number in range(size)]
    for each in pods:
        each["metadata"]["labels"] = {"hami.io/pod-group": name, "hami.io/pod-group-size": str(size)}
    return pods


def said(answer: JSON) -> str:
    """The one reason of all nodes."""
    (reason,) = set(answer["FailedNodes"].values())
    return str(reason)


async def placed(each: Extended, names: list[str]) -> dict[str, str]:
    """The nodes that members are answered with; those that fit nowhere are left out."""
    answers = {name: (await each.filter(name))["NodeNames"] for name in names}
    return {name: found[0] for name, found in answers.items() if found}


@both
async def test_just_enough_go_and_what_they_leave_is_kept_for_the_whole_group(mode: str) -> None:
    others = [high(name="small", gpu=1, mem=10), high(name="low", gpu=1, mem=10, priority=0)]
    async with extended(*nodes(2, 3), *taken(2, 2), *group(5), *others, mode=mode) as each:
        answer = await each.filter("g2")
        assert said(answer) == "1 of 5 pods of pod group g fit; 4 pods of lower priority are evicted for it"
        assert len(each.ending()) == 4
        assert each.preemption.counts == {"evicting": 1}
        assert each.events("g0") == [
            ("Preempting", f"evicted 4 pods: {', '.join(f'default/{x}' for x in victims(each))}")
        ]
        assert all("hami.io/nominated-node" in each.raw(f"g{n}")["metadata"]["annotations"] for n in range(5))
        assert "nominatedNodeName" not in each.raw("g0").get("status", {}), "kube-scheduler would offer that node alone"
        waiting = "1 of 5 pods of pod group g fit; pods that were evicted for it are ending"
        assert said(await each.filter("g0")) == waiting
        for name in ("small", "low"):  # also on the card that was free before
            assert (await each.filter(name))["NodeNames"] is None, name
        await each.end(*each.ending())
        for name in ("small", "low"):
            assert (await each.filter(name))["NodeNames"] is None, name
        assert (each.preemption.counts["evicting"], each.preemption.counts["waiting"]) == (1, 1)
        found = await placed(each, ["g3", "g0", "g4", "g1", "g2"])
        assert len(found) == 5
        assert each.preemption.victims == 4


def victims(each: Extended) -> list[str]:
    """Those that are ending, the most important first: all have the same priority and start."""
    return sorted(each.ending())


async def test_what_is_kept_is_free_when_the_group_does_not_come() -> None:
    now = [NOW]
    async with extended(*nodes(2), *taken(2), *group(2), high(name="low", gpu=1, mem=10), clock=lambda: now[0]) as each:
        await each.filter("g0")
        await each.end(*each.ending())
        assert (await each.filter("low"))["NodeNames"] is None
        now[0] += 30 + 60 + 1
        assert (await each.filter("low"))["NodeNames"] == ["n0"]


@both
@pytest.mark.parametrize(
    ("why", "objects", "more", "outcome"),
    [
        ("too few cards", [*taken(2, 2), *group(5)], "it wouldn't fit without all pods of lower", "no-candidates"),
        ("equal priority", [*taken(2, 2, priority=10), *group(3)], "", "no-candidates"),
        ("one member may not", [*taken(2, 2), *group(3)], "", "policy-never"),
        ("the lowest priority counts", [*taken(2, 2, priority=5), *group(3)], "", "no-candidates"),
        ("a quota leaves room for two", [*taken(2, 2), quota("q", mem=2 * MEMORY, used={MEM: 0}), *group(3)],
         "it wouldn't fit without all pods of lower", "no-candidates"),
    ],
)  # fmt: skip
async def test_nobody_is_evicted(mode: str, why: str, objects: list[JSON], more: str, outcome: str) -> None:
    if outcome == "policy-never":
        objects[-1]["spec"]["preemptionPolicy"] = "Never"
    if why == "the lowest priority counts":
        objects[-1]["spec"]["priority"] = 5
    async with extended(*nodes(2, 2), *objects, mode=mode) as each:
        answer = said(await each.filter("g0"))
        assert answer.startswith("0 of ")
        assert more in answer
        assert (bool(more), each.ending(), each.preemption.counts) == ("; " in answer, [], {outcome: 1}), why


async def test_members_that_fit_on_other_nodes_than_were_tried_are_placed_there() -> None:
    """The first member is tried on the larger card, where the second one alone fits."""
    cards = [node("n0", card("a", 4000)), node("n1", card("b", 8000))]
    members = [*group(2, mem=4000)[:1], *group(2)[1:]]
    async with extended(*cards, *members) as each:
        assert said(await each.filter("g0")).startswith("1 of 2 pods of pod group g fit")
        assert each.queue.times_freed, "they are tried again at once"
        assert await placed(each, ["g1", "g0"]) == {"g0": "n0", "g1": "n1"}
        assert each.ending() == []


async def test_a_group_waits_for_those_who_end_anyway() -> None:
    async with extended(*nodes(2), *taken(2), *group(2)) as each:
        for name in ("x0-0", "x0-1"):
            await each.cluster.delete(Kind.PODS, name, "default", grace=30)
        assert said(await each.filter("g0")).endswith("; it waits for pods that are ending")
        assert each.queue.times_freed == 0, "it isn't tried again before these have ended"


async def test_a_node_that_is_not_offered_has_a_member_and_no_victims() -> None:
    """g0 runs on n0, and kube-scheduler offers n1 alone to the others."""
    members = group(3)
    async with extended(*nodes(2, 2), *taken(2, 2), *members[1:]) as each:
        await each.end("x0-0")
        bound = low("g0", "n0", f"n0-0,NVIDIA,{MEMORY},0:;", 10, labels=members[0]["metadata"]["labels"])
        await add(each.cluster, bound)
        assert said(await each.filter("g1", ["n1"])).endswith("; 2 pods of lower priority are evicted for it")
        assert victims(each) == ["x1-0", "x1-1"]


async def test_who_could_not_stay_on_its_card_beside_another_member_leaves_the_other_node_to_choose() -> None:
    """With x gone, g0 would be placed on the card that g1 needs, so that the more important y goes for g1."""
    cards = [node("n0", card("small", 4000), card("large", 8000)), node("n1", card("other", 8000))]
    there = [low("x", "n0", "large,NVIDIA,8000,0:;"), low("y", "n1", "other,NVIDIA,8000,0:;", 5)]
    members = [*group(2, mem=4000)[:1], *group(2)[1:]]
    async with extended(*cards, *there, *members) as each:
        await each.filter("g0")
        assert each.ending() == ["y"]


async def test_of_many_nodes_32_are_looked_at_for_a_member() -> None:
    """Of 33 nodes two pods would have to go; the one where one is enough has the pod that runs the longest."""
    many = nodes(*[1] * 34)
    halves = [low(f"x{n:02}{half}", f"n{n}", f"n{n}-0,NVIDIA,4000,0:;", 0, 9) for n in range(33) for half in "ab"]
    async with extended(*many, *halves, low("single", "n33", "n33-0,NVIDIA,8000,0:;"), *group(2)) as each:
        await each.filter("g0")
        assert len(each.ending()) == 4
        assert "single" not in each.ending()


async def test_a_search_that_takes_too_long_evicts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_victims, "_FITS", 1)
    async with extended(*nodes(2, 2), *taken(2, 2), *group(2)) as each:
        text = "; the search for pods of lower priority was given up, as it takes too long"
        assert said(await each.filter("g0")).endswith(text)
        assert (each.ending(), each.preemption.counts) == ([], {"no-candidates": 1})


@pytest.mark.parametrize(("later", "searches"), [(0.75, 1), (1.0, 2)])
async def test_other_groups_of_the_namespace_are_looked_at_a_second_later(later: float, searches: int) -> None:
    now = [NOW]
    async with extended(*nodes(2), *taken(2), *group(3), *group(3, "h"), clock=lambda: now[0]) as each:
        await each.filter("g0")
        now[0] += later
        await each.filter("h0")
        assert each.preemption.counts == {"no-candidates": searches}


@pytest.mark.parametrize(("later", "searches"), [(29.75, 1), (30.0, 2)])
async def test_a_group_that_had_no_victims_is_looked_at_half_a_minute_later(later: float, searches: int) -> None:
    now = [NOW]
    async with extended(*nodes(2), *taken(2), *group(3), clock=lambda: now[0]) as each:
        assert "without all pods of lower priority" in said(await each.filter("g0"))
        now[0] += later
        assert "without all pods of lower priority" in said(await each.filter("g1"))
        assert each.preemption.counts == {"no-candidates": searches}


async def test_nobody_else_goes_for_a_group_that_has_another_member_by_now() -> None:
    """g2 comes while the victims of the first two are ending."""
    members = [*group(2), high(name="g2", gpu=1, mem=MEMORY, labels=group(2)[0]["metadata"]["labels"])]
    async with extended(*nodes(3), *taken(3), *members[:2]) as each:
        await each.filter("g0")
        first = each.ending()
        assert len(first) == 2
        await add(each.cluster, members[2])
        await each.filter("g2")
        assert each.ending() == first


async def test_kube_scheduler_evicts_nobody_for_a_member() -> None:
    async with extended(*nodes(1), *taken(1), low("busy", "n0", ";"), *group(2)) as each:
        assert await each.preempt("g0", n0=["busy"]) == {}


async def test_an_incomplete_group_evicts_nobody() -> None:
    async with extended(*nodes(2), *taken(2), *group(3)[:2]) as each:
        assert said(await each.filter("g0")) == "2 of 3 pods of pod group g are ready to be placed"
        assert (each.ending(), each.preemption.counts) == ([], {})


async def test_budgets_hold_where_another_choice_exists() -> None:
    there = taken(3, labels={"app": "a"})
    del there[1]["metadata"]["labels"], there[2]["metadata"]["labels"]
    async with extended(*nodes(3), *there, budget(0), *group(2)) as each:
        await each.filter("g0")
        assert victims(each) == ["x0-1", "x0-2"]


async def test_members_go_only_where_their_node_selector_lets_them() -> None:
    """Those on n0 are less important, and n1 alone has the label."""
    there = [nodes(2)[0], node("n1", card("n1-0", MEMORY), card("n1-1", MEMORY), labels={"zone": "b"})]
    victims_of_n1 = taken(0, 2, priority=5)
    async with extended(*there, *taken(2), *victims_of_n1, *group(2, nodeSelector={"zone": "b"})) as each:
        await each.filter("g0")
        assert victims(each) == ["x1-0", "x1-1"]


async def test_a_group_that_its_quota_has_just_room_for_has_pods_evicted() -> None:
    room = quota("q", mem=3 * MEMORY, gpu=3, used={MEM: 0, GPU: 0})
    async with extended(*nodes(2, 2), *taken(2, 2, namespace="b"), room, *group(3)) as each:
        await each.filter("g0")
        assert len(each.ending()) == 3


async def test_the_lowest_priority_and_of_these_the_fewest_go() -> None:
    """Two of 4000 MiB on each card of n0, of which one is more important; one of 8000 on each card of n1."""
    halves = [*taken(2, memory=4000), *taken(2, priority=3, memory=4000, name="y")]
    whole = taken(0, 2, name="z")
    async with extended(*nodes(2, 2), *halves, *whole, *group(3)) as each:
        await each.filter("g0")
        assert [name for name in victims(each) if name[0] == "z"] == ["z1-0", "z1-1"]
        assert len(victims(each)) == 4, "and the two of one card"


async def test_a_dry_run_says_who_would_be_evicted() -> None:
    async with extended(*nodes(2), *taken(2), *group(2), preemption="dry-run") as each:
        assert said(await each.filter("g0")).endswith("; 2 pods of lower priority would be evicted for it")
        assert said(await each.filter("g1")).endswith("; 2 pods of lower priority would be evicted for it")
        assert (each.ending(), each.preemption.counts) == ([], {"dry-run": 1})
        assert each.events("g0") == [("PreemptionDryRun", "would evict 2 pods: default/x0-0, default/x0-1")]


async def test_a_flood_of_groups_that_never_fit_is_looked_at_now_and_then_and_holds_up_no_other_namespace() -> None:
    now = [NOW]
    flood = [pod for number in range(20) for pod in group(3, f"flood{number}-")]
    other = group(2, "other")
    for each in other:
        each["metadata"]["namespace"] = "b"
    async with extended(*nodes(2), *taken(2), *flood, *other, clock=lambda: now[0]) as env:

        async def searches() -> int:
            for each in flood:
                await env.filter(each["metadata"]["name"])
            return env.preemption.counts["no-candidates"]

        assert await searches() == 1
        await add(env.cluster, node("n9"))  # which may let them fit
        assert await searches() == 1
        now[0] += 5
        freed = env.queue.times_freed
        assert await searches() == 2, "of another group"
        assert env.queue.times_freed > freed, "those that were passed over are tried again"
        incoming = env.cluster.peek(Kind.PODS, "other0", "b")
        assert incoming is not None
        await env.extender.filter(ExtenderArgs(incoming, ["n0"], None))
        assert env.preemption.counts["evicting"] == 1


async def test_nobody_else_goes_after_a_restart_while_they_are_ending() -> None:
    async with extended(*nodes(2, 2), *taken(2, 2), *group(2)) as each:
        await each.filter("g0")
        ending = each.ending()
        assert len(ending) == 2
    async with extended(cluster=each.cluster) as again:
        assert said(await again.filter("g1")).endswith("; pods that were evicted for it are ending")
        assert again.ending() == ending
        await again.end(*ending)
        assert len(await placed(again, ["g0", "g1"])) == 2


async def test_a_group_that_does_not_use_it_counts_once_and_its_namespace_waits_after_the_second() -> None:
    now = [NOW]
    async with extended(*nodes(6), *taken(6), *group(2), *group(2, "h"), *group(2, "i"), clock=lambda: now[0]) as each:
        for name, count in (("g", 2), ("h", 3)):  # a card is free again then
            await each.filter(f"{name}0")
            await each.end(*each.ending())
            await each.end(f"{name}1")
            assert each.preemption.victims == count
        assert said(await each.filter("i1")) == "1 of 2 pods of pod group i fit; nobody is evicted for it now"
        assert each.preemption.counts["limited"] == 1


async def test_more_than_its_namespace_may_evict_in_a_minute_waits() -> None:
    options = Options(evictions_per_minute=3)
    async with extended(*nodes(6), *taken(6), *group(2), *group(2, "h"), options=options) as each:
        await each.filter("g0")
        assert said(await each.filter("h0")).endswith("; nobody is evicted for it now")
        assert len(each.ending()) == 2
        ((reason, text),) = each.events("h0")
        assert reason == "PreemptionLimited"
        assert "2 more would exceed 3" in text


async def test_an_eviction_that_is_refused_takes_back_all_nominations() -> None:
    async def pause(step: str) -> None:
        if step.startswith("delete"):
            raise Forbidden("no")

    async with extended(*nodes(2), *taken(2), *group(2)) as each:
        each.cluster.pause = pause
        await each.filter("g0")
        each.cluster.pause = None
        assert ("PreemptionFailed", "no") in each.events("g0")
        for name in ("g0", "g1"):
            assert not each.core.nominations.of(each.raw(name)["metadata"]["uid"])
        assert each.queue.times_freed == 1, "others may have what was kept for it"


async def test_nobody_goes_for_a_group_of_which_a_member_is_deleted_while_the_nominations_are_written() -> None:
    async with extended(*nodes(2), *taken(2), *group(2)) as each:
        written = 0

        async def pause(step: str) -> None:
            nonlocal written
            written += step == "patch:after"
            if written == 2:
                each.cluster.pause = None
                await each.cluster.delete(Kind.PODS, "g1", "default")
                await turns()

        each.cluster.pause = pause
        await each.filter("g0")
        for _ in range(20):
            await turns()
        assert written == 2
        assert not each.ending()
        assert not each.nominated("g0")


@given(data=st.data())
def test_whoever_goes_is_needed_and_then_all_fit(data: st.DataObject) -> None:
    """Members that request the same, on cards with whatever there is: who has to go is known by counting."""

    async def run() -> None:
        sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        cards = {f"n{n}-{c}": f"n{n}" for n, count in enumerate(sizes) for c in range(count)}
        there: dict[str, tuple[str, int, int]] = {}
        left = dict.fromkeys(cards, MEMORY)
        for number, (uuid, memory, priority) in enumerate(
            data.draw(
                st.lists(
                    st.tuples(st.sampled_from(sorted(cards)), st.sampled_from([2000, 4000, 8000]), st.integers(0, 3)),
                    max_size=10,
                )
            )
        ):
            if left[uuid] >= memory:
                left[uuid] -= memory
                there[f"x{number}"] = uuid, memory, priority
        size, mem = data.draw(st.integers(2, 5)), data.draw(st.sampled_from([2000, 3000, 4000, 8000]))
        never = data.draw(st.integers(0, 9)) == 0

        def fits(gone: set[str]) -> bool:
            free = dict.fromkeys(cards, MEMORY)
            for name, (uuid, memory, _) in there.items():
                free[uuid] -= 0 if name in gone else memory
            return sum(memory // mem for memory in free.values()) >= size

        pods = [
            low(name, cards[uuid], f"{uuid},NVIDIA,{memory},0:;", priority, started=number)
            for number, (name, (uuid, memory, priority)) in enumerate(there.items())
        ]
        policy = {"preemptionPolicy": "Never"} if never else {}
        async with extended(*nodes(*sizes), *pods, *group(size, mem=mem, priority=2, **policy)) as each:
            names = [f"g{number}" for number in range(size)]
            found, gone = await placed(each, names), set(each.ending())
            lower = {name for name, (_, _, priority) in there.items() if priority < 2}
            assert gone <= lower
            assert bool(found) == fits(set())
            assert not gone or (not found and not never)
            assert bool(gone) == (not found and not never and fits(lower)), "nobody, unless all fit"
            assert not any(fits(gone - {name}) for name in gone), "nobody who could stay"
            if gone:
                await each.end(*gone)
                assert len(await placed(each, names)) == size

    asyncio.run(run())
