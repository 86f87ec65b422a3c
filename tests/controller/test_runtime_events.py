"""Events on pods that Kubernetes ends soon by a limit of their quota (docs/spec/time.md#1.3)."""

from __future__ import annotations

from typing import Any

from builders import JSON, pod, quota
from replicas import events_of

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.runtime_events import RuntimeEvents
from hami_webhook.core_options import Options
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.kube.objects import format_time
from hami_webhook.quota.runtime import MAX_RUNTIME

NOW = 1_767_225_600.0
VENDORS = enabled_vendors(builtin_device_config().config)


class Env:
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
    env = Env()
    env.put(runs("p"))
    assert await env.messages() == []
    assert await env.messages(after=2999) == []
    text = "ends in 9m59s: quota train limits its pods to 60m"
    assert await env.messages(after=2) == [("p", text)]
    env.put(runs("p", labels={"changed": "1"}))
    assert await env.messages(after=100) == []


async def test_a_pod_whose_time_is_shorter_for_its_grace_period_says_so_too() -> None:
    env = Env()
    env.put(runs("p", 1800, terminationGracePeriodSeconds=2400))
    assert await env.messages(after=1201) == [("p", "ends in 9m59s: quota train limits its pods to 30m")]


async def test_ordinary_day_pods_with_deadlines_of_their_own_or_none_and_ended_ones_are_silent() -> None:
    env = Env()
    for each in (runs("own", 1800), runs("none", None), runs("ended"), runs("elsewhere", namespace="other")):
        env.put(each)
    env.put(runs("ended", phase="Succeeded"))
    assert await env.messages(after=3590) == []


async def test_attack_thousands_of_short_pods_get_ten_events_a_second() -> None:
    env = Env("5m")
    for number in range(2000):
        env.put(runs(f"p{number}", 300))
    assert len(await env.messages()) == 10
    assert len(await env.messages(after=1)) == 10
    assert await env.messages(after=300) == []
