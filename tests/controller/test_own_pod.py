"""What the process says about itself on its own pod."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hami_webhook.assembly import Core, Options
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.own_pod import OwnPod
from hami_webhook.device_config import builtin_device_config, enabled_vendors

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


async def a_home() -> Home:
    home = Home()
    await home.cluster.ensure_namespace("kube-system")
    await home.put("own")
    await home.put("other", **{"hami.io/scheduler-role": "leader"})
    return home


def test_the_label_is_set_and_kept_on_the_own_pod_only() -> None:
    async def run() -> None:
        home = await a_home()
        own = OwnPod(home.core, "kube-system", "own")
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

    asyncio.run(run())


def test_a_label_that_is_right_is_not_written_again() -> None:
    async def run() -> None:
        home = await a_home()
        await OwnPod(home.core, "kube-system", "other").label("leader")
        before = home.cluster.peek(Kind.PODS, "other", "kube-system")
        await OwnPod(home.core, "kube-system", "other").label("leader")
        assert home.cluster.peek(Kind.PODS, "other", "kube-system") == before

    asyncio.run(run())


def test_a_pod_of_other_manifests_and_one_that_is_not_known_are_left_alone() -> None:
    async def run() -> None:
        home = await a_home()
        await home.put("ours", **{"app.kubernetes.io/component": "webhook"})
        for name in ("ours", "unknown"):
            await OwnPod(home.core, "kube-system", name).label("leader")
        assert home.role("ours") is None

    asyncio.run(run())


def test_a_label_that_can_not_be_written_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        home = await a_home()
        await home.cluster.delete(Kind.PODS, "own", "kube-system", grace=0)
        await OwnPod(home.core, "kube-system", "own").label("leader")

    asyncio.run(run())
    assert "the label hami.io/scheduler-role of this pod can't be set to leader: " in caplog.text


def test_a_warning_waits_until_the_pod_is_known_and_names_its_uid() -> None:
    async def run() -> None:
        home = Home()
        await home.cluster.ensure_namespace("kube-system")
        waits = 0

        async def sleep(seconds: float) -> None:
            nonlocal waits
            waits += 1
            if waits == 3:
                await home.put("own")

        await OwnPod(home.core, "kube-system", "own", sleep=sleep).warn("QuotaStatusForbidden", "no right")
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

    asyncio.run(run())
