"""A pod group that lost a member while others run (docs/spec/queues.md#5.4)."""

from __future__ import annotations

from typing import Any

import pytest
from builders import JSON, pod
from replicas import events_of

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.pod_group_events import PodGroupEvents
from hami_webhook.core_options import Options
from hami_webhook.device_config import builtin_device_config, enabled_vendors

NOW = 1_767_225_600.0
VENDORS = enabled_vendors(builtin_device_config().config)


class Env:
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
    env = Env()
    if gone:
        env.drop("a")
    else:
        env.put(member("a", "Failed"))
    assert await env.messages() == [("b", "pod a of pod group train has failed or disappeared; 2 of 3 pods run")]
    assert len(await env.messages()) == 1


async def test_an_ordinary_end_is_silent() -> None:
    env = Env()
    env.put(member("a", "Succeeded"))
    env.drop("a")
    assert await env.messages() == []
    # all are deleted
    for name in "bc":
        env.put(member(name, deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=30))
    env.drop("b")
    assert await env.messages() == []
    # one is replaced at once
    env = Env()
    env.drop("a")
    env.put({**member("d"), "metadata": {**member("d")["metadata"], "uid": "uid-d"}})
    assert await env.messages() == []
