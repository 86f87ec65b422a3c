"""Events about other schedulers: mixed nodes, MIG instances given twice, overruns.

Source: docs/spec/volcano.md#5.7, #10, #13.
"""

from __future__ import annotations

import asyncio
from typing import Any

import builders
import pytest
from builders import card, node
from dra.objects import resource_slice, share
from integrations.volcanoes import A40GB, CORES, IDS, MEMORY, NUMBER, REGISTER, T4, pod_with_limits, registered, t4
from quota.objects import TEAM, claiming_vendors, quota
from quota.quota_env import QuotaEnv
from replicas import events_of

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind, Unavailable
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.node_audit import NodeAudit
from hami_webhook.core_options import Options
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.doctor.node_faults import unreadable_registrations

JSON = dict[str, Any]
NOW = 1_767_225_600.0
CHART = enabled_vendors(builtin_device_config().config)
BLOCKS = f"limits.{MEMORY}"
HAMI = "GPU-a,10,16384,100,NVIDIA-T4,0,true,0,hami-core:"


def volcano_node(name: str, *cards: str, **notes: str) -> JSON:
    amounts = {NUMBER: "10", MEMORY: "40960", CORES: "100"}
    annotations = {REGISTER: registered(*cards), **notes}
    return {"metadata": {"name": name, "annotations": annotations}, "status": {"allocatable": amounts}}


def pod(name: str, ids: str, on: str, **how: Any) -> JSON:
    made = pod_with_limits(1, 8000, name=name, notes={IDS: ids}, nodeName=on, **how)
    return {**made, "status": {"phase": "Running"}}


class AuditEnv:
    """Nodes, pods on them, and the controller that looks at them."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(lambda: NOW)
        self.core = Core(self.cluster, CHART, Options(), clock=lambda: NOW)
        self.nodes = NodeAudit(self.core.view, events_of(self.core), self.core.failures)

    def put(self, obj: JSON, kind: Kind = Kind.NODES) -> None:
        self.core.caches.put(kind, obj)

    def drop(self, obj: JSON, kind: Kind = Kind.NODES) -> None:
        self.core.caches.drop(kind, obj)

    def audited(self) -> list[tuple[str, str, str]]:
        """Object, reason and message of the events after one more look."""
        asyncio.run(self.nodes.audit())
        return [
            (f"{event.note.kind} {event.note.name}", event.note.reason, event.note.message)
            for event in self.cluster.events
            for _ in range(event.count)
        ]


def test_what_can_not_be_read_of_a_node_s_unhealthy_cards_is_told_once() -> None:
    env = AuditEnv()
    env.put(volcano_node("n", t4("GPU-a"), **{"hami.io/unhealthy-cards": "{"}))
    told = [("Node n", "UnhealthyCardsUnreadable", "hami.io/unhealthy-cards is ignored: it is no JSON")]
    assert [env.audited(), env.audited()] == [told, told]


UNUSABLE = [
    (card("G", 0), "1 of 2 NVIDIA cards are registered without memory, so they can't be used: G"),
    (card("G", count=0), "1 of 2 NVIDIA cards are registered without count, so they can't be used: G"),
    (card("G", mode="mig"), "cards in MIG mode without profiles can't be used: G"),
]


@pytest.mark.parametrize(("unusable", "said"), UNUSABLE)
def test_cards_that_nobody_can_use_are_named_until_they_are_mended(unusable: JSON, said: str) -> None:
    env = AuditEnv()
    offered = {"nvidia.com/gpu": 10 + unusable["count"]}
    raw = node("n", card("H"), unusable, capacity=offered)
    raw["metadata"]["annotations"]["hami.io/unhealthy-cards"] = "{"
    env.put(raw)
    reported = env.audited()
    assert ("Node n", "RegistrationUnusable", said) in reported
    assert {reason for _, reason, _ in reported} == {"RegistrationUnusable", "UnhealthyCardsUnreadable"}
    assert env.audited() == reported
    (read,) = env.core.view.state.nodes()
    assert said in "".join(unreadable_registrations(env.core.view, read))
    env.put(node("n", card("H"), card("G")))
    assert env.audited() == reported


def test_a_node_that_registers_many_such_cards_with_long_names_costs_one_short_event() -> None:
    env = AuditEnv()
    env.put(node("n", *[card(f"{number}" * 2000, 0) for number in range(100)], capacity={"nvidia.com/gpu": 1000}))
    ((_, reason, message),) = env.audited()
    assert reason == "RegistrationUnusable"
    assert len(message) < 400


def test_pods_that_hold_cards_without_saying_which_are_named() -> None:
    env = AuditEnv()
    env.put(node("n", card("H"), card("G")))
    for number in range(5):
        held = builders.pod(f"f{number}", gpu=1, uid=f"u{number}", nodeName="n", status={"phase": "Running"})
        env.put(held, Kind.PODS)
    ((about, reason, message),) = env.audited()
    assert (about, reason) == ("Node n", "MixedGPUManagers")
    assert message == (
        "2 of 2 NVIDIA cards count as held by pods whose cards aren't known: they were bound without a placement of "
        "ours, or theirs can't be read: default/f0, default/f1"
    )
    assert len(env.audited()) == 1


def test_a_mixed_node_is_told_of_once_and_again_when_that_changes() -> None:
    env = AuditEnv()
    env.put(volcano_node("plain", t4("GPU-z")))
    assert env.audited() == []
    env.put(volcano_node("n", t4("GPU-a"), **{"hami.io/node-nvidia-register": HAMI}))
    reported = env.audited()
    assert [(about, reason) for about, reason, _ in reported] == [("Node n", "MixedGPUManagers")]
    assert reported[0][2].endswith("can coexist in theory, use one; registered twice: GPU-a")
    assert env.audited() == reported
    env.put(volcano_node("n", t4("GPU-b"), **{"hami.io/node-nvidia-register": HAMI}))
    assert [message.endswith("use one") for _, _, message in env.audited()] == [False, True]
    env.put(volcano_node("n", t4("GPU-b")))
    assert len(env.audited()) == 2
    env.put(volcano_node("n", t4("GPU-b"), **{"hami.io/node-nvidia-register": HAMI}))
    assert len(env.audited()) == 3


def test_a_slice_that_names_the_pool_of_another_node_is_told_of_on_its_node_once() -> None:
    """The attack: by a node that rewrites it all the time, and has very many; n1, whose pool it is, has no event."""
    cluster = MemoryCluster(lambda: NOW)
    env = AuditEnv()
    env.cluster, env.core = cluster, Core(cluster, claiming_vendors(), Options(), clock=lambda: NOW)
    env.nodes = NodeAudit(env.core.view, events_of(env.core), env.core.failures)
    for each in ("n1", "evil"):
        env.put({"metadata": {"name": each}})
    env.put(resource_slice("n1", share("a0")), Kind.RESOURCE_SLICES)
    assert env.audited() == []
    for generation in (1, 2, 3):
        for number in range(5):
            written = resource_slice("n1", share("a0"), generation=generation, name=f"evil-{number}")
            written["spec"]["nodeName"] = "evil"
            env.put(written, Kind.RESOURCE_SLICES)
        ((about, reason, message),) = env.audited()
        assert (about, reason) == ("Node evil", "ResourceSliceIgnored")
    assert message.startswith("ResourceSlice evil-0: node evil names pool n1 of driver ")
    assert message.endswith("which belongs to node n1: its devices don't count; and 2 more")


def test_a_node_that_went_and_came_is_told_of_anew() -> None:
    env = AuditEnv()
    mixed = volcano_node("n", t4("GPU-a"), **{"hami.io/node-nvidia-register": HAMI})
    env.put(mixed)
    env.audited()
    env.drop(mixed)
    assert len(env.audited()) == 1
    env.put(mixed)
    assert len(env.audited()) == 2


def test_an_event_that_could_not_be_recorded_is_recorded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    env = AuditEnv()
    env.put(volcano_node("n", t4("GPU-a"), **{"hami.io/node-nvidia-register": HAMI}))

    async def fail(note: object) -> None:
        raise Unavailable("connection refused")

    with monkeypatch.context() as context:
        context.setattr(env.cluster, "record_event", fail)
        assert env.audited() == []
    assert len(env.audited()) == 1


def test_an_instance_given_twice_is_told_of() -> None:
    env = AuditEnv()
    env.put(volcano_node("n", f"GPU-m,10,40960,{A40GB},true,mig"))
    for name in ("a", "b"):
        env.put(pod(name, "GPU-m[group2-0],NVIDIA,8000,0:", "n"), Kind.PODS)
    (reported,) = env.audited()
    assert reported == ("Node n", "DuplicateMigInstance", "GPU-m[group2-0] is held by default/a, default/b")
    env.drop(pod("b", "", "n"), Kind.PODS)
    assert len(env.audited()) == 1


async def test_what_volcano_writes_is_charged_and_an_overrun_names_pod_and_key() -> None:
    """A percentage is charged for the smallest card, and placed on a larger one."""
    cards = volcano_node("n", f"GPU-s,10,16384,{T4},true,hami-core", f"GPU-l,10,40960,{A40GB},true,hami-core")
    async with QuotaEnv(cards, quota(spec={"hard": {BLOCKS: "10000"}}), of=CHART) as env:

        def used() -> str:
            amount: str = env.quota()["status"]["used"][BLOCKS]
            return amount

        with_limits = pod_with_limits(1, percent=50, name="p")
        with_limits["metadata"]["namespace"] = TEAM
        del with_limits["metadata"]["uid"]
        await env.create(with_limits)
        await env.run(2)
        assert used() == "8192"
        patch = {"metadata": {"annotations": {IDS: "GPU-l,NVIDIA,20480,0:"}}}
        await env.cluster.patch(Kind.PODS, "p", patch, TEAM)
        await env.cluster.bind(TEAM, "p", env.pod("p").uid, "n")
        await env.run(2)
        assert used() == "20480"
        (event,) = [event.note for event in env.cluster.events if event.note.reason == "QuotaOverrun"]
        assert (event.kind, event.namespace, event.name, event.type) == ("Pod", TEAM, "p", "Warning")
        assert f"pod {TEAM}/p" in event.message
        assert BLOCKS in event.message
        more = pod_with_limits(1, 1, name="q")
        more["metadata"]["namespace"] = TEAM
        assert (await env.refused(more)).code == 403
        await env.run(400)
        assert [e.count for e in env.cluster.events if e.note.reason == "QuotaOverrun"] == [1]
