"""Pods evicted for room in a quota that says so, and for no other (docs/preemption.md#quota)."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from builders import card, node, pod, quota
from hypothesis import given
from hypothesis import strategies as st
from scheduling.placer_env import GPU, MEM, NOW, VENDORS

from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.devices.pod_fit import NodeFit, fit_pod, read_pod_request
from hami_webhook.evictions.quota_room import GroupBudgets, quota_room
from hami_webhook.evictions.victims import Preemptor, choose_node
from hami_webhook.kube.objects import Node, Pod, ResourceQuota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.node_snapshot import NodeSnapshot
from hami_webhook.state.nominations import Nominations

from .extended import Extended, extended, high, low
from .test_every_vendor import key
from .test_preemption import both

FREE, TAKEN = node("n1", card("a", 16000)), node("n2", card("b", 8000))
X = low("x", "n2", "b,NVIDIA,8000,0:;")


def giving_room(hard: int, used: int, says: str = "true", of: str = MEM) -> JSON:
    """A quota with the annotation."""
    amounts: JSON = {of: hard}
    found = quota("q", used={of: used}, **amounts)
    found["metadata"]["annotations"] = {"hami.io/quota-preemption": says}
    return found


async def used(each: Extended) -> str:
    """Used of the quota after the controller's recompute."""
    await each.core.recomputer.run("default", "q")
    found = each.cluster.peek(Kind.RESOURCE_QUOTAS, "q", "default")
    assert found is not None
    amount: str = found["status"]["used"][MEM]
    return amount


@both
async def test_a_larger_card_than_the_charge_was_for(mode: str) -> None:
    """The pod waits with the smallest card's 8000 MiB; the free card costs 16000, and x holds 8000 of 20000."""
    nodes, offered = [FREE, TAKEN, node("n3", card("c", 8000))], ["n1", "n3"]
    pods = [X, low("other", "n3", "c,NVIDIA,8000,0:;", 10, namespace="b"), high(gpu=1, percent=100)]
    async with extended(*nodes, giving_room(20000, 16000), *pods, mode=mode) as each:
        assert (await each.filter("high", offered))["FailedNodes"]["n1"] == "1/1 ResourceQuotaNotFit"
        assert (each.ending(), each.nominated("high")) == (["x"], "n1")
        message = "evicted 1 pod from other nodes, for its quota: default/x"
        assert each.events("high") == [("Preempting", message)]
        assert await used(each) == "16k", "the victim counts until it has ended"
        await each.filter("high", offered)
        await each.end("x")
        assert (await each.filter("high", offered))["NodeNames"] is None, "used isn't computed anew yet"
        assert each.preemption.counts == {"evicting": 1, "waiting": 2}
        assert await used(each) == "8k"
        assert (await each.filter("high", offered))["NodeNames"] == ["n1"]


@pytest.mark.parametrize(
    ("why", "objects", "expected"),
    [
        ("it says so", [giving_room(15000, 18000), X], ["x"]),
        ("it doesn't say so", [quota("q", mem=15000, used={MEM: 18000}), X], []),
        ("it says something else", [giving_room(15000, 18000, "yes"), X], []),
        ("equal priority", [giving_room(15000, 18000), low("x", "n2", "b,NVIDIA,8000,0:;", 10)], []),
        ("another namespace's", [giving_room(9000, 10000), low("x", "n2", "b,NVIDIA,8000,0:;", namespace="b")], []),
        ("it wouldn't help", [giving_room(9000, 18000), X], []),
        ("there is room", [giving_room(18000, 18000), X], []),
        (
            "the lower priority",
            [giving_room(14000, 18000), *(low(f"x{i}", "n2", "b,NVIDIA,4000,0:;", i) for i in (0, 1))],
            ["x0"],
        ),
        (
            "another quota is exceeded too, and says nothing",
            [giving_room(15000, 18000), {**quota("r", gpu=1, used={GPU: 2})}, X],
            [],
        ),
    ],
)
async def test_who_is_evicted_for_room(why: str, objects: list[JSON], expected: list[str]) -> None:
    async with extended(FREE, TAKEN, *objects, high(gpu=1, mem=10000)) as each:
        await each.filter("high", ["n1"])
        assert each.ending() == expected, why


async def test_room_and_devices_at_once() -> None:
    """y holds the card, x and y the quota: y alone is enough for both."""
    there = [X, low("y", "n1", "a,NVIDIA,10000,0:;", 5)]
    async with extended(FREE, TAKEN, giving_room(20000, 28000), *there, high(gpu=1, mem=10000)) as each:
        await each.filter("high")
        assert each.ending() == ["y"]


async def test_room_in_a_quota_of_some_cards() -> None:
    """x holds the one card that the quota allows of this type, y a card that the quota doesn't count."""
    large = node("n1", card("a", 8000, type="NVIDIA H100"), card("c", 8000, type="NVIDIA H100"))
    there = [low("x", "n1", "c,NVIDIA,8000,0:;", 5), low("y", "n2", "b,NVIDIA,8000,0:;")]
    limit = giving_room(1, 1, of=GPU)
    selects = {"hami.io/quota-device-types": "H100", "hami.io/quota-counted-cards": "types h100"}
    limit["metadata"]["annotations"] |= selects
    async with extended(large, TAKEN, limit, *there, high(gpu=1, mem=8000)) as each:
        await each.filter("high", ["n1"])
        assert (each.ending(), each.nominated("high")) == (["x"], "n1")
        await each.end("x")
        await each.core.recomputer.run("default", "q")
        assert (await each.filter("high", ["n1"]))["NodeNames"] == ["n1"]


async def test_kube_scheduler_evicts_nobody_while_room_is_made() -> None:
    """The small card of n2 would do, where kube-scheduler has found a victim for CPU."""
    nodes = [FREE, node("n2", card("b", 8000)), node("n3", card("c", 8000))]
    there = [low("x", "n3", "c,NVIDIA,8000,0:;"), pod("cpu", nodeName="n2", priority=0)]
    async with extended(*nodes, giving_room(20000, 16000), *there, high(gpu=1, percent=100)) as each:
        await each.filter("high", ["n1"])
        assert (each.ending(), each.nominated("high")) == (["x"], "n1")
        assert await each.preempt("high", n2=[each.raw("cpu")["metadata"]["uid"]]) == {}
        await each.end("x")
        assert await each.preempt("high", n2=[each.raw("cpu")["metadata"]["uid"]]) != {}, "nobody is ending"


@given(st.data())
def test_no_smaller_set_gives_the_room(data: st.DataObject) -> None:
    """Against every set of pods, with sums of our own."""
    state = ClusterCache(VENDORS)
    for name, uuid in (("n1", "a"), ("n2", "b")):
        state.set_node(Node.from_object(node(name, card(uuid, 1_000_000))), NOW)
    claims = data.draw(st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0, 0, 5, 10])), max_size=6))
    pods = [
        Pod.from_object(low(f"p{i}", "n2", f"b,NVIDIA,{1000 * mem},0:;", priority, i))
        for i, (mem, priority) in enumerate(claims)
    ]
    incoming = Pod.from_object(high(gpu=1, mem=4000))
    for each in (*pods, incoming):
        state.set_pod(each, NOW)
    held = dict(zip((each.uid for each in pods), (1000 * mem for mem, _ in claims), strict=True))
    total = 4000 + sum(held.values())
    hard = data.draw(st.integers(3, total // 1000 - 1)) * 1000
    account = QuotaAccount.read(ResourceQuota.from_object(giving_room(hard, total)), VENDORS)
    room = quota_room(incoming, [account], Nominations(state, VENDORS, clock=lambda: NOW))
    request = read_pod_request(incoming, VENDORS, "spread")
    assert room is not None
    assert request is not None
    snapshots = [NodeSnapshot(view, state.allocations(view.name), {}) for view in state.views()]
    found = choose_node(Preemptor(request, None, VENDORS, (), NOW, room), snapshots)
    lower = [each for each in pods if each.priority < incoming.priority]
    sets = chain.from_iterable(combinations(lower, size) for size in range(len(lower) + 1))
    enough = [key(list(gone), []) for gone in sets if total - sum(held[each.uid] for each in gone) <= hard]
    assert (None if found is None else found.key) == min(enough, default=None)


@pytest.mark.parametrize(
    ("hard", "taken", "admitted"), [(8000, 0, True), (7999, 0, False), (9000, 1000, True), (9000, 1001, False)]
)
def test_a_member_has_what_those_before_it_leave_of_a_quota(hard: int, taken: int, admitted: bool) -> None:
    state = ClusterCache(VENDORS)
    state.set_node(Node.from_object(node("n1", card("a", 8000))), NOW)
    member = Pod.from_object(high(gpu=1, mem=8000))
    account = QuotaAccount.read(ResourceQuota.from_object(quota("q", mem=hard, used={MEM: 8000})), VENDORS)
    budgets = GroupBudgets([account], state, state.capacity, VENDORS, NOW)
    before = {account.label: {MEM: taken}} if taken else {}
    view, request = state.view("n1"), read_pod_request(member, VENDORS, "spread")
    assert view is not None
    assert request is not None
    fit = fit_pod(view, request, VENDORS, None)
    assert isinstance(fit, NodeFit)
    assert budgets.admits(member, fit, view, before) is admitted
    assert isinstance(fit_pod(view, request, VENDORS, budgets.of(member, before)), NodeFit) is admitted
