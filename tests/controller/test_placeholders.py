"""Pods that wait for cards make an autoscaler add nodes, by placeholders (docs/spec/placeholders.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import builders
import pytest
from builders import JSON, accelerator_quota, card, node
from hypothesis import given, settings
from hypothesis import strategies as st
from quota.objects import LARGE, NOON, SMALL, TEAM, pod, quota, vendors
from quota.quota_env import SCHEDULER, QuotaEnv

from hami_webhook.cluster.api import Kind, Unavailable
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.controller.new_nodes import Packing, Place, WaitingPod, shapes_of
from hami_webhook.controller.placeholders import PlaceholderLimits, Placeholders
from hami_webhook.devices.pod_fit import read_pod_request
from hami_webhook.kube.objects import Node, Pod, format_time
from hami_webhook.kube.placeholder_label import PLACEHOLDERS
from hami_webhook.node_filters.pod_info import PodInfo
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.nominations import Nominations
from hami_webhook.time_slices import run_at_once

SYSTEM, GROUP = "hami-system", "a100"
TIMEOUT = 900.0
TYPE = "node.kubernetes.io/instance-type"
TAINT = {"key": "nvidia.com/gpu", "value": "yes", "effect": "NoSchedule"}
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists"}


def grown(name: str = "n1", memory: int = LARGE, cards: int = 2, *, taints: Sequence[JSON] = (), **labels: str) -> JSON:
    """A node of the group, with the cards that it registers; none yet without any."""
    made = node(
        name,
        *[card(f"{name}-{number}", memory) for number in range(cards)],
        labels={PLACEHOLDERS: GROUP, TYPE: "large", "kubernetes.io/hostname": name, **labels},
    )
    return {**made, "spec": {"taints": list(taints)}} if taints else made


class PlaceholderEnv(QuotaEnv):
    """Nodes and quotas, and a leader that creates placeholders."""

    def __init__(self, *objects: JSON, most: int = 10, of_group: int = 10, preempts: bool = False) -> None:
        super().__init__(*objects, own_namespace=SYSTEM)
        self.limits = PlaceholderLimits(
            most, of_group, TIMEOUT, "pause:1", SYSTEM, scheduler_name=SCHEDULER, preempts=preempts
        )
        self.calls: Counter[str] = Counter()
        self.lead()

    async def __aenter__(self) -> PlaceholderEnv:
        await self.cluster.ensure_namespace(SYSTEM)
        await super().__aenter__()
        self.cluster.pause = self._count
        return self

    async def _count(self, step: str) -> None:
        self.calls[step.partition(":")[0]] += step.endswith(":before")

    def lead(self) -> None:
        """Another process leads."""
        self.placeholders = Placeholders(self.core, self.limits, ObjectEvents(self.cluster, Counter()))

    async def waits(self, *names: str, reason: str = "Unschedulable", charge: bool = True, **fields: Any) -> None:
        """Pods that kube-scheduler finds no node for."""
        fields = {"gpu": 1, "mem": LARGE, **fields}
        for name in names:
            made = pod(name, **fields)
            if charge:
                await self.create(made)
            else:
                made["spec"].setdefault("schedulerName", SCHEDULER)
                await self.cluster.create(Kind.PODS, {**made, "metadata": {**made["metadata"], "uid": f"uid-{name}"}})
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": reason,
                "lastTransitionTime": format_time(self.now),
            }
            await self.cluster.patch_status(Kind.PODS, name, {"status": {"conditions": [condition]}}, TEAM)
        await self.drain()

    async def fill(self, *names: str, **fields: Any) -> None:
        """Pods that take whole cards of today's nodes."""
        for name in names:
            await self.create(pod(name, gpu=1, mem=LARGE, **fields))
            await self.node_of(name)

    async def look(self, seconds: float = 10.0) -> list[str]:
        """The placeholders after a while."""
        self.now += seconds
        await self.cluster.ensure_namespace(f"at-{self.now:.0f}")
        self.cluster.bookmark()  # the watches are alive
        await self.drain()
        await self.placeholders.step()
        await self.drain()
        return self.there()

    def there(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.cluster.peek_all(Kind.PODS, SYSTEM)]

    def placeholder(self) -> JSON:
        (found,) = self.cluster.peek_all(Kind.PODS, SYSTEM)
        return found


async def test_a_share_that_waits_gets_a_node() -> None:
    async with PlaceholderEnv(grown()) as env:
        await env.fill("a", "b")
        await env.waits("w", mem=1000)
        (name,) = await env.look()
        spec = env.placeholder()["spec"]
        assert spec["nodeSelector"] == {PLACEHOLDERS: GROUP, TYPE: "large"}
        assert spec["containers"][0]["resources"]["limits"] == {builders.GPU: "2"}
        assert spec["priorityClassName"] == "hami-webhook-placeholder"
        assert spec["schedulerName"] == "default-scheduler"
        text = f"an autoscaler is asked for a node of the group a100, by the pod hami-system/{name}"
        assert env.events("NodeRequested") == [text]
        assert await env.look() == [name]

        joined = grown("n2", cards=0)
        await env.add(joined)
        await env.drain()
        assert await env.look() == [name]

        await env.cluster.replace(Kind.NODES, grown("n2"))
        await env.drain()
        assert await env.look() == []
        assert await env.node_of("w") == "n2"
        assert await env.look(TIMEOUT) == []
        assert env.events("NodeNotAdded") == []


FULL = ("a", "b")
SILENT: dict[str, tuple[list[JSON], JSON]] = {
    "what a node of today takes": ([grown("n2")], {}),
    "what no known shape takes": ([], {"mem": LARGE + 1}),
    "more cards than a node has": ([], {"gpu": 3}),
    "nothing managed": ([], {"gpu": None, "mem": None}),
    "another scheduler": ([], {"schedulerName": "other", "charge": False}),
    "gates": ([], {"schedulingGates": [{"name": "example.com/gate"}]}),
    "what kube-scheduler hasn't tried": ([], {"reason": "SchedulingGated"}),
    "labels that no such node has": ([], {"nodeSelector": {"zone": "x"}}),
    "another node by name": ([], {"nodeSelector": {"kubernetes.io/hostname": "n7"}}),
}


@pytest.mark.parametrize("case", SILENT)
async def test_a_pod_that_a_new_node_would_not_help_brings_none(case: str) -> None:
    objects, fields = SILENT[case]
    async with PlaceholderEnv(grown(), *objects) as env:
        await env.fill(*FULL)
        await env.waits("w", **fields)
        assert await env.look() == []


async def test_a_node_of_today_counts_without_what_may_be_evicted() -> None:
    for preempts, policy, wanted in ((True, "", 0), (False, "", 1), (True, "Never", 1)):
        async with PlaceholderEnv(grown(), preempts=preempts) as env:
            await env.fill(*FULL)
            await env.waits("w", priority=5, preemptionPolicy=policy)
            assert len(await env.look()) == wanted, (preempts, policy)


async def test_nothing_is_asked_for_where_no_node_has_the_label() -> None:
    async with PlaceholderEnv(node("n1", card("GPU-1", LARGE))) as env:
        await env.fill("a")
        await env.waits("w")
        assert await env.look() == []
        assert "get" not in env.calls


@pytest.mark.parametrize(
    ("labels", "fields", "selector"),
    [
        ({}, {}, {}),
        ({"zone": "z"}, {}, {}),
        ({"zone": "z"}, {"nodeSelector": {"zone": "z"}}, {"zone": "z"}),
        (
            {"zone": "z", "disk": "ssd"},
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["y", "z"]}]}
                            ]
                        }
                    }
                }
            },
            {"zone": "z"},
        ),
    ],
)
async def test_a_placeholder_waits_where_the_pods_may_go(labels: JSON, fields: JSON, selector: JSON) -> None:
    async with PlaceholderEnv(grown(taints=[TAINT], **labels)) as env:
        await env.fill(*FULL, tolerations=[TOLERATION])
        await env.waits("refused", **fields)
        assert await env.look() == []
        await env.waits("w", tolerations=[TOLERATION], **fields)
        assert len(await env.look()) == 1
        spec = env.placeholder()["spec"]
        assert spec["nodeSelector"] == {PLACEHOLDERS: GROUP, TYPE: "large", **selector}
        assert spec["tolerations"] == [{"operator": "Equal", **TAINT}]


async def test_a_hundred_shares_bring_as_few_nodes_as_hold_them() -> None:
    async with PlaceholderEnv(grown()) as env:
        await env.fill(*FULL)
        await env.waits(*[f"w{number}" for number in range(100)], mem=LARGE // 10)
        await env.look()
        assert len(await env.look()) == 5  # of 2 cards, each of 10 slots


async def test_cpu_counts_on_the_new_node_too() -> None:
    wide = grown()
    for amounts in ("capacity", "allocatable"):
        wide["status"][amounts] = {**wide["status"][amounts], "cpu": "4", "pods": "110"}
    async with PlaceholderEnv(wide) as env:
        await env.fill(*FULL)
        containers = [builders.container(gpu=1, mem=100, requests={"cpu": "3"})]
        for name in ("w1", "w2"):
            await env.create(pod(name, *containers))
        await env.waits("huge", mem=LARGE + 1)
        for name in ("w1", "w2"):
            found = env.cluster.peek(Kind.PODS, "huge", TEAM)
            assert found is not None
            status = {"status": {"conditions": found["status"]["conditions"]}}
            await env.cluster.patch_status(Kind.PODS, name, status, TEAM)
        await env.drain()
        assert len(await env.look()) == 2


async def test_bounds_of_a_group_and_of_all() -> None:
    for most, of_group, wanted in ((2, 10, 2), (10, 3, 3)):
        async with PlaceholderEnv(grown(), most=most, of_group=of_group) as env:
            await env.fill(*FULL)
            await env.waits(*[f"w{number}" for number in range(12)])
            await env.look()
            assert len(await env.look()) == wanted


async def test_a_group_gets_no_more_nodes_within_the_time_even_if_they_do_not_help() -> None:
    async with PlaceholderEnv(grown(), of_group=2) as env:
        await env.fill(*FULL)
        await env.waits("w")
        for number in range(5):
            for name in await env.look():
                await env.add(grown(f"bad-{number}", SMALL))  # smaller than its likes
                await env.cluster.bind(SYSTEM, name, env.placeholder()["metadata"]["uid"], f"bad-{number}")
                await env.drain()
        assert len([each for each in env.core.state.nodes() if each.name.startswith("bad")]) == 2
        assert len(await env.look(TIMEOUT)) == 1


async def test_a_node_that_does_not_come_is_said_and_asked_for_later() -> None:
    async with PlaceholderEnv(grown()) as env:
        await env.fill(*FULL)
        await env.waits("w")
        (name,) = await env.look()
        assert await env.look(TIMEOUT - 1) == [name]
        assert await env.look(2) == []
        (text,) = env.events("NodeNotAdded")
        assert text.startswith(f"no node joined the group a100 within 15m of pod hami-system/{name}.")
        assert await env.look(TIMEOUT - 2) == []
        assert await env.look(3) == [name]


async def test_a_placeholder_that_gets_a_node_of_today_is_no_new_node() -> None:
    async with PlaceholderEnv(grown()) as env:
        await env.fill(*FULL)
        await env.waits("w")
        (name,) = await env.look()
        await env.cluster.bind(SYSTEM, name, env.placeholder()["metadata"]["uid"], "n1")
        await env.drain()
        view = env.core.state.view("n1")
        assert view is not None
        assert not view.unplaced
        assert await env.look() == []
        assert "whose cards can't be used" in env.events("NodeNotAdded")[0]
        assert await env.look(TIMEOUT / 2) == []


async def test_no_quota_counts_placeholders() -> None:
    async with PlaceholderEnv(grown(), accelerator_quota(gpu=100)) as env:
        await env.fill(*FULL)
        await env.waits("w")
        assert len(await env.look()) == 1
        await env.run(600)
        found = env.cluster.peek(Kind.ACCELERATOR_QUOTAS, "all")
        assert found is not None
        assert found["status"]["used"]["limits.nvidia.com/gpu"] == "3"


async def test_nothing_stays_behind() -> None:
    async with PlaceholderEnv(grown()) as env:
        await env.fill(*FULL)
        await env.waits("w")
        (name,) = await env.look()
        env.lead()  # the former leader crashed
        assert await env.look() == [name]
        await env.delete("w")
        await env.drain()
        env.lead()
        assert await env.look() == []
        await env.look()
        calls = env.calls.copy()
        assert await env.look() == []
        assert env.calls == calls


async def test_while_the_cluster_fails_placeholders_stay() -> None:
    async with PlaceholderEnv(grown()) as env:
        await env.fill(*FULL)
        await env.waits("w")
        (name,) = await env.look()

        async def fail(step: str) -> None:
            raise Unavailable("down")

        env.cluster.pause = fail
        assert await env.look() == [name]
        await env.silence(1000)
        env.cluster.pause = None
        assert await env.look() == [name]


async def test_an_ordinary_day_makes_no_call() -> None:
    async with PlaceholderEnv(grown(), grown("n2")) as env:
        await env.fill(*FULL)
        await env.look()
        env.calls.clear()
        await env.waits("w")
        env.calls.clear()
        await env.look(1.0)  # kube-scheduler is about to place it
        assert not env.calls
        await env.node_of("w")
        env.calls.clear()
        for _ in range(3):
            await env.look()
        assert not env.calls


# attacks


async def test_pods_that_quotas_would_not_let_run_bring_no_nodes() -> None:
    async with PlaceholderEnv(grown(), quota(gpu=3)) as env:
        await env.fill(*FULL)
        await env.waits("w0")
        await env.waits(*[f"w{number}" for number in range(1, 20)], charge=False)  # while no webhook answered
        await env.run(600)
        assert len(await env.look()) == 1
        await env.edit_hard(gpu=2)
        await env.run(600)
        assert await env.look() == []


async def test_pods_of_tenants_with_our_label_are_pods_as_any_other() -> None:
    async with PlaceholderEnv(grown(), quota(gpu=3)) as env:
        await env.fill("a", "b", labels={PLACEHOLDERS: GROUP})
        await env.waits("w", labels={PLACEHOLDERS: GROUP})
        await env.run(600)
        assert env.used()["gpu"] == 3
        assert len(await env.look()) == 1
        env.lead()
        await env.look()
        assert [env.pod(name).labels[PLACEHOLDERS] for name in ("a", "b", "w")] == [GROUP] * 3


async def test_a_node_that_says_more_of_itself_than_its_likes_does_not_speak_for_them() -> None:
    async with PlaceholderEnv(grown("n1"), grown("n2")) as env:
        await env.fill("a", "b", "c", "d")
        await env.add(grown("a-liar", 10 * LARGE, 16, taints=[TAINT]))
        await env.drain()
        await env.waits("w1", "w2", "w3", "w4")
        assert len(await env.look()) == 2
        for each in env.cluster.peek_all(Kind.PODS, SYSTEM):
            assert each["spec"]["containers"][0]["resources"]["limits"] == {builders.GPU: "2"}


async def test_a_thousand_waiting_pods_are_read_little_by_little() -> None:
    async with PlaceholderEnv(grown()) as env:
        await env.fill(*FULL)
        for number in range(1000):
            made = pod(f"w{number}", gpu=1, mem=LARGE)
            made["spec"].setdefault("schedulerName", SCHEDULER)
            await env.cluster.create(Kind.PODS, made)
        await env.drain()
        env.calls.clear()
        assert await env.look() == []
        assert env.calls["get"] == 50


async def test_a_namespace_with_a_thousand_pods_keeps_nobody_out() -> None:
    async with PlaceholderEnv(grown()) as env:
        await env.fill(*FULL)
        for number in range(1200):
            made = pod(f"w{number}", gpu=16, mem=LARGE, namespace="other")
            made["spec"]["schedulerName"] = SCHEDULER
            await env.add(made)
        await env.waits("w")
        assert len(await env.look()) == 1


# packing


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, LARGE), st.integers(0, 3)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_packing_puts_each_pod_on_one_node_that_holds_all_of_its_pods(
    sizes: list[tuple[int, int, int]], random: Any
) -> None:
    def packed(order: list[int]) -> Packing:
        state = ClusterCache(vendors())
        for each in (grown("n1"), grown("n2", SMALL, 3)):
            state.set_node(Node.from_object(each), NOON)
        nominations = Nominations(state, vendors(), clock=lambda: NOON, card_policy="spread")
        # today's nodes are gone, their shapes are known
        shapes = shapes_of(state, vendors(), NOON)
        state.remove_node("n1")
        state.remove_node("n2")
        packing = Packing(state, nominations, vendors(), shapes, {}, now=NOON, preempts=False)
        waiting = []
        for number in order:
            cards, memory, priority = sizes[number]
            raw = pod(f"p{number}", gpu=cards, mem=memory, uid=f"u{number}", priority=priority)
            read = Pod.from_object(raw)
            request = read_pod_request(read, vendors(), "spread")
            assert request is not None
            waiting.append(WaitingPod(read, PodInfo.read(raw), raw, request, ()))
        for one in packing.order(waiting):
            assert run_at_once(packing.put(one)) is Place.NEW
        return packing

    numbers = list(range(len(sizes)))
    packing = packed(numbers)
    names = [[each.pod.name for each in new.pods] for new in packing.used]
    random.shuffle(numbers)
    assert names == [[each.pod.name for each in new.pods] for new in packed(numbers).used]
    assert all(names)
    assert len(names) <= len(sizes)
    placed = sorted(name for some in names for name in some)
    assert len(set(placed)) == len(placed)
    for new in packing.used:
        assert not any(new.room.view.overcommitted())
