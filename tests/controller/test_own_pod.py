"""What the process says about itself on its own pod."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from replicas import events_of

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind, Unavailable
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.informers import SharedInformers, watched_kinds
from hami_webhook.controller.own_pod import OwnPod
from hami_webhook.core_options import Options
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.loops import Sleep

JSON = dict[str, Any]
NOW = 1_767_225_600.0
VENDORS = enabled_vendors(builtin_device_config().config)
COMPONENT = {"app.kubernetes.io/component": "hami-scheduler"}


class Home:
    """The namespace of the process's pod, and of another one like it."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(lambda: NOW)
        self.core = Core(self.cluster, VENDORS, Options(), clock=lambda: NOW)

    async def put(self, name: str, **labels: str) -> None:
        meta = {"name": name, "namespace": "kube-system", "labels": {**COMPONENT, **labels}}
        pod = {"metadata": meta, "spec": {"containers": [{"name": "vgpu-scheduler-extender"}]}}
        self.core.caches.put(Kind.PODS, await self.cluster.create(Kind.PODS, pod))

    def role(self, name: str) -> str | None:
        found = self.cluster.peek(Kind.PODS, name, "kube-system")
        assert found is not None
        self.core.caches.put(Kind.PODS, found)
        labels: dict[str, str] = found["metadata"]["labels"]
        return labels.get("hami.io/scheduler-role")


def own_pod(home: Home, name: str, sleep: Sleep = asyncio.sleep) -> OwnPod:
    return OwnPod(home.cluster, home.core.state, events_of(home.core), "kube-system", name, sleep=sleep)


async def never(seconds: float) -> None:
    await asyncio.Event().wait()


async def until(happened: Callable[[], bool]) -> None:
    """Let other tasks run until something has happened."""
    for _ in range(10_000):
        if happened():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never happened")


async def a_home() -> Home:
    home = Home()
    await home.cluster.ensure_namespace("kube-system")
    await home.put("own")
    await home.put("other", **{"hami.io/scheduler-role": "leader"})
    return home


async def test_the_label_is_set_and_kept_on_the_own_pod_only() -> None:
    home = await a_home()
    own = own_pod(home, "own")
    await own.label("leader")
    assert (home.role("own"), home.role("other")) == ("leader", "leader")
    # HAMi's leader labels all others anew
    await home.cluster.patch(
        Kind.PODS, "own", {"metadata": {"labels": {"hami.io/scheduler-role": "follower"}}}, "kube-system"
    )
    assert home.role("own") == "follower"
    await own.label("leader")
    assert home.role("own") == "leader"
    await own.label("follower")
    assert (home.role("own"), home.role("other")) == ("follower", "leader")


async def test_a_label_that_is_right_is_not_written_again() -> None:
    home = await a_home()
    await own_pod(home, "other").label("leader")
    before = home.cluster.peek(Kind.PODS, "other", "kube-system")
    await own_pod(home, "other").label("leader")
    assert home.cluster.peek(Kind.PODS, "other", "kube-system") == before


async def test_a_pod_of_other_manifests_and_one_that_is_not_known_are_left_alone() -> None:
    home = await a_home()
    await home.put("ours", **{"app.kubernetes.io/component": "webhook"})
    for name in ("ours", "unknown"):
        await own_pod(home, name).label("leader")
    assert home.role("ours") is None


async def test_a_label_that_can_not_be_written_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    home = await a_home()
    await home.cluster.delete(Kind.PODS, "own", "kube-system", grace=0)
    await own_pod(home, "own").label("leader")
    assert "the label hami.io/scheduler-role of this pod can't be set to leader: " in caplog.text


async def test_the_label_follows_the_pod_and_the_leadership_without_polling() -> None:
    home = await a_home()
    own = own_pod(home, "own", sleep=never)
    feed = SharedInformers(home.cluster, watched_kinds(VENDORS), clock=lambda: NOW)
    leading = True
    async with asyncio.TaskGroup() as tasks:
        jobs = [
            tasks.create_task(feed.run(home.core.caches, home.core.failures, [own])),
            tasks.create_task(own.keep_role(lambda: leading)),
        ]
        await until(lambda: home.role("own") == "leader")
        follower = {"metadata": {"labels": {"hami.io/scheduler-role": "follower"}}}
        await home.cluster.patch(Kind.PODS, "own", follower, "kube-system")
        await until(lambda: home.role("own") == "leader")
        leading = False
        own.changed()
        await until(lambda: home.role("own") == "follower")
        for job in jobs:
            job.cancel()


async def test_a_label_that_could_not_be_written_is_tried_again() -> None:
    home = await a_home()
    pauses = []

    async def refuse(step: str) -> None:
        if step == "patch:before":
            raise Unavailable("down")

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        home.cluster.pause = None

    home.cluster.pause = refuse
    keeping = asyncio.create_task(own_pod(home, "own", sleep=sleep).keep_role(lambda: True))
    await until(lambda: home.role("own") == "leader")
    keeping.cancel()
    assert pauses == [2.0]


async def test_an_event_has_the_uid_as_soon_as_the_pod_is_known() -> None:
    home = await a_home()
    await own_pod(home, "own").record("PolicyFileRefused", "why")
    await own_pod(home, "unknown").record("PolicyFileRefused", "why")
    pod = home.cluster.peek(Kind.PODS, "own", "kube-system")
    assert pod is not None
    assert [event.note.uid for event in home.cluster.events] == [pod["metadata"]["uid"], ""]


async def test_a_warning_waits_until_the_pod_is_known_and_names_its_uid() -> None:
    home = Home()
    await home.cluster.ensure_namespace("kube-system")
    waits = 0

    async def sleep(seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 3:
            await home.put("own")

    await own_pod(home, "own", sleep=sleep).warn("QuotaStatusForbidden", "no right")
    (event,) = home.cluster.events
    pod = home.cluster.peek(Kind.PODS, "own", "kube-system")
    assert pod is not None
    assert (waits, event.note.uid) == (3, pod["metadata"]["uid"])
    assert (event.note.type, event.note.reason, event.note.message) == (
        "Warning",
        "QuotaStatusForbidden",
        "no right",
    )
    assert home.core.problems == {"QuotaStatusForbidden": 1}
