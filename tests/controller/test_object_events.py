"""Events on objects that mean something else than was meant: Namespaces, DeviceClasses, pod groups and runtimes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from builders import JSON, pod, quota
from replicas import events_of

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.device_classes import DeviceClassEvents
from hami_webhook.controller.informers import watched_kinds
from hami_webhook.controller.namespaces import NamespaceAnnotations
from hami_webhook.controller.pod_group_events import PodGroupEvents
from hami_webhook.controller.runtime_events import RuntimeEvents
from hami_webhook.core_options import Options
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.kube.objects import format_time
from hami_webhook.quota.runtime import MAX_RUNTIME

NOW = 1_767_225_600.0
VENDORS = enabled_vendors(builtin_device_config().config)


async def test_scheduler_owned_annotations_are_one_event_until_they_change() -> None:
    cluster = MemoryCluster(lambda: NOW)
    core = Core(cluster, VENDORS, Options(), clock=lambda: NOW)
    checks = NamespaceAnnotations(core.view, events_of(core))

    async def messages() -> list[tuple[str, str, int]]:
        await checks.audit()
        return [(event.note.name, event.note.message, event.count) for event in cluster.events]

    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "fine", "annotations": {"team": "a"}}})
    assert await messages() == []
    owned = {"hami.io/vgpu-node": "x", "hami.io/bind-phase": "y", "team": "a"}
    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "team-a", "annotations": owned}})
    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "team-b", "annotations": {"predicate-time": "1"}}})
    text = "scheduler-owned annotations mean nothing on a Namespace: "
    expected = [
        ("team-a", text + "hami.io/bind-phase, hami.io/vgpu-node", 1),
        ("team-b", text + "predicate-time", 1),
    ]
    assert await messages() == expected
    assert await messages() == expected
    assert {(event.note.kind, event.note.type, event.note.reason) for event in cluster.events} == {
        ("Namespace", "Warning", "PolicyIgnored")
    }
    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "team-b"}})
    assert await messages() == expected
    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "team-b", "annotations": {"predicate-time": "1"}}})
    assert await messages() == [expected[0], (*expected[1][:2], 2)]
    assert core.problems == {"PolicyIgnored": 3}


# Events on DeviceClasses that take a resource which pods ask for by limits (docs/spec/dra.md#10)


def device_class(name: str, resource: str | None) -> JSON:
    return {"metadata": {"name": name}, "spec": {"extendedResourceName": resource} if resource else {}}


class ClassesEnv:
    """DeviceClasses and the controller that looks at them; claims aren't charged."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(lambda: NOW)
        self.core = Core(self.cluster, VENDORS, Options(), clock=lambda: NOW)
        self._audit = DeviceClassEvents(self.core.view, events_of(self.core))

    def put(self, name: str, resource: str | None) -> None:
        self.core.caches.put(Kind.DEVICE_CLASSES, device_class(name, resource))

    def new_events(self) -> list[tuple[str, str]]:
        """Object and message of the events of one more look."""
        before = len(self.cluster.events)
        asyncio.run(self._audit.audit())
        return [(f"{each.note.kind} {each.note.name}", each.note.message) for each in self.cluster.events[before:]]


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpumem", "metax-tech.com/sgpu"])
def test_a_class_that_takes_a_managed_resource_is_named_once(resource: str) -> None:
    env = ClassesEnv()
    env.put("gpu.nvidia.com", resource)
    ((about, message),) = env.new_events()
    assert about == "DeviceClass gpu.nvidia.com"
    assert message.startswith(f"takes {resource}, which pods request by limits. ")
    assert env.new_events() == []
    env.put("gpu.nvidia.com", None)
    assert env.new_events() == []


def test_other_classes_are_nobodys_trouble() -> None:
    env = ClassesEnv()
    for name, resource in {
        "gpu.nvidia.com": None,
        "nic.example.com": "example.com/nic",
        "mig": "nvidia.com/mig-1g",
    }.items():
        env.put(name, resource)
    assert env.new_events() == []


def test_classes_are_watched_whether_claims_are_charged_or_not() -> None:
    assert not VENDORS.drivers
    assert Kind.DEVICE_CLASSES in watched_kinds(VENDORS)
    assert Kind.DEVICE_CLASSES not in watched_kinds(VENDORS, charges=False)


# A pod group that lost a member while others run (docs/spec/queues.md#5.4)


class GroupEnv:
    """A group of three that runs, and who notes what becomes of it."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(lambda: NOW)
        self.core = Core(self.cluster, VENDORS, Options(), clock=lambda: NOW)
        self.events = PodGroupEvents(self.core.view, events_of(self.core))
        for name in "abc":
            self.put(member(name))

    def put(self, obj: JSON) -> None:
        self.notify(self.core.caches.put(Kind.PODS, obj))

    def drop(self, name: str) -> None:
        self.notify(self.core.caches.drop(Kind.PODS, member(name)))

    def notify(self, change: Any) -> None:
        self.events.subscriptions()[Kind.PODS](change)

    async def messages(self) -> list[tuple[str, str]]:
        await self.events.step()
        return [(event.note.name, event.note.message) for event in self.cluster.events]


def member(name: str, phase: str = "Running", **meta: Any) -> JSON:
    labels = {"hami.io/pod-group": "train", "hami.io/pod-group-size": "3"}
    made = pod(name, uid=f"uid-{name}", labels=labels, gpu=1, nodeName="n1", status={"phase": phase})
    return {**made, "metadata": {**made["metadata"], **meta}}


@pytest.mark.parametrize("gone", [True, False])
async def test_the_oldest_that_runs_says_who_is_missing(gone: bool) -> None:
    env = GroupEnv()
    if gone:
        env.drop("a")
    else:
        env.put(member("a", "Failed"))
    assert await env.messages() == [("b", "pod a of pod group train has failed or disappeared; 2 of 3 pods run")]
    assert len(await env.messages()) == 1


async def test_an_ordinary_end_is_silent() -> None:
    env = GroupEnv()
    env.put(member("a", "Succeeded"))
    env.drop("a")
    assert await env.messages() == []
    # all are deleted
    for name in "bc":
        env.put(member(name, deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=30))
    env.drop("b")
    assert await env.messages() == []
    # one is replaced at once
    env = GroupEnv()
    env.drop("a")
    env.put({**member("d"), "metadata": {**member("d")["metadata"], "uid": "uid-d"}})
    assert await env.messages() == []


# Events on pods that Kubernetes ends soon by a limit of their quota (docs/spec/time.md#1.3)


class RuntimeEnv:
    def __init__(self, longest: str = "1h") -> None:
        self.now = NOW
        self.cluster = MemoryCluster(lambda: self.now)
        self.core = Core(self.cluster, VENDORS, Options(), clock=lambda: self.now)
        self.events = RuntimeEvents(self.core.caches, events_of(self.core), lambda: self.now)
        limited = quota("train", gpu=8)
        limited["metadata"]["annotations"] = {MAX_RUNTIME: longest}
        self.core.caches.put(Kind.RESOURCE_QUOTAS, limited)

    def put(self, obj: JSON) -> None:
        self.events.subscriptions()[Kind.PODS](self.core.caches.put(Kind.PODS, obj))

    async def messages(self, after: float = 0.0) -> list[tuple[str, str]]:
        self.now += after
        before = len(self.cluster.events)
        await self.events.step()
        return [(event.note.name, event.note.message) for event in self.cluster.events[before:]]


def runs(name: str, deadline: int | None = 3600, phase: str = "Running", **fields: Any) -> JSON:
    status = {"phase": phase, "startTime": format_time(NOW)}
    return pod(name, uid=f"uid-{name}", gpu=1, nodeName="n1", activeDeadlineSeconds=deadline, status=status, **fields)


async def test_ten_minutes_before_its_end_a_pod_says_by_which_quota() -> None:
    env = RuntimeEnv()
    env.put(runs("p"))
    assert await env.messages() == []
    assert await env.messages(after=2999) == []
    text = "ends in 9m59s: quota train limits its pods to 60m"
    assert await env.messages(after=2) == [("p", text)]
    env.put(runs("p", labels={"changed": "1"}))
    assert await env.messages(after=100) == []


async def test_a_pod_whose_time_is_shorter_for_its_grace_period_says_so_too() -> None:
    env = RuntimeEnv()
    env.put(runs("p", 1800, terminationGracePeriodSeconds=2400))
    assert await env.messages(after=1201) == [("p", "ends in 9m59s: quota train limits its pods to 30m")]


async def test_ordinary_day_pods_with_deadlines_of_their_own_or_none_and_ended_ones_are_silent() -> None:
    env = RuntimeEnv()
    for each in (runs("own", 1800), runs("none", None), runs("ended"), runs("elsewhere", namespace="other")):
        env.put(each)
    env.put(runs("ended", phase="Succeeded"))
    assert await env.messages(after=3590) == []


async def test_attack_thousands_of_short_pods_get_ten_events_a_second() -> None:
    env = RuntimeEnv("5m")
    for number in range(2000):
        env.put(runs(f"p{number}", 300))
    assert len(await env.messages()) == 10
    assert len(await env.messages(after=1)) == 10
    assert await env.messages(after=300) == []
