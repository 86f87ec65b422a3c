"""Quotas whose pods wait, and how to see who does."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from hami_webhook.cluster.api import Conflict, Kind, NotFound
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster

from .deployment import Deployment, Kubectl
from .objects import JSON, add_node, gpu_node, pod, quota
from .scheduling import scheduler_account

GATE = "hami.io/quota"


def add_ten_cards(kubectl: Kubectl) -> None:
    """A node whose cards hold ten pods, and what schedulers may do."""
    scheduler_account(kubectl)
    add_node(kubectl, gpu_node("card-24g", 24576), gpu=10)


def queueing(space: str, order: str = "best-effort", **hard: Any) -> JSON:
    made = quota(space, **hard)
    made["metadata"]["annotations"] = {"hami.io/quota-enforcement": "queue", "hami.io/quota-queue-order": order}
    return made


def gated(kubectl: Kubectl, space: str) -> list[str]:
    """The names of the pods that have the gate."""
    pods = kubectl.get("pods", "-n", space)["items"]
    return [each["metadata"]["name"] for each in pods if {"name": GATE} in each["spec"].get("schedulingGates", [])]


def free(kubectl: Kubectl, space: str) -> list[str]:
    """The names of the pods that have no gate."""
    pods = kubectl.get("pods", "-n", space)["items"]
    return [each["metadata"]["name"] for each in pods if not each["spec"].get("schedulingGates")]


def reserved(kubectl: Kubectl, space: str, name: str) -> str:
    """The status of the pod's condition; empty while it has none."""
    conditions = kubectl.get("pod", name, "-n", space)["status"].get("conditions", [])
    return next((each["status"] for each in conditions if each["type"] == "hami.io/QuotaReserved"), "")


def why(kubectl: Kubectl, space: str, name: str) -> str:
    """What the pod's condition says; empty while it has none."""
    conditions = kubectl.get("pod", name, "-n", space)["status"].get("conditions", [])
    return next((each["message"] for each in conditions if each["type"] == "hami.io/QuotaReserved"), "")


def queued(program: Deployment) -> float:
    """How many pods the leader says that wait, over all quotas."""
    leader = program.leader()
    return -1.0 if leader is None else program.metric(leader, "hami_webhook_quota_queued_pods")


def released(kubectl: Kubectl, space: str, name: str) -> float:
    """The median of seconds from a pod's creation to the end of its gate, of ten that come one after the other."""
    return statistics.median(each_released(kubectl, space, name))


def each_released(kubectl: Kubectl, space: str, name: str) -> list[float]:
    """The seconds of each of these pods."""

    async def each() -> list[float]:
        seconds = []
        async with KubernetesCluster(await connect(str(kubectl.kubeconfig))) as cluster:
            for number in range(10):
                made = await cluster.create(Kind.PODS, pod(space, f"{name}{number}", gpu=1, gpumem=1))
                began = time.monotonic()
                assert made["spec"]["schedulingGates"]
                async with asyncio.timeout(60):
                    while made["spec"].get("schedulingGates"):
                        made = await cluster.get(Kind.PODS, made["metadata"]["name"], space)
                seconds.append(time.monotonic() - began)
        return seconds

    return asyncio.run(each())


class InBackground:
    """Does `work` in a thread with an event loop of its own, during a block; `stop` is set at its end."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self.work()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()

    async def work(self) -> None:
        raise NotImplementedError


class Ending(InBackground):
    """Ends pods that lost their gate, as a kubelet does when they are done, until the block ends.

    `is_due` says of a pod, among all of its namespace, whether it is done.
    """

    def __init__(
        self, login: Path, spaces: list[str], *, is_due: Callable[[list[JSON], JSON], bool] = lambda pods, pod: True
    ) -> None:
        super().__init__()
        self._login = login
        self._spaces = spaces
        self._is_due = is_due
        self.ended = 0

    def has_ended(self, pods: int) -> bool:
        return self.ended >= pods

    async def work(self) -> None:
        async with KubernetesCluster(await connect(str(self._login))) as cluster:
            while not self.stop.is_set():
                listings = await asyncio.gather(*(cluster.list(Kind.PODS, space) for space in self._spaces))
                due = [
                    each["metadata"]
                    for listing in listings
                    for each in listing.items
                    if not each["spec"].get("schedulingGates") and each.get("status", {}).get("phase") != "Succeeded"
                    if self._is_due(list(listing.items), each)
                ]
                for meta in due:
                    with suppress(Conflict, NotFound):
                        await cluster.patch_status(
                            Kind.PODS, meta["name"], {"status": {"phase": "Succeeded"}}, meta["namespace"]
                        )
                        self.ended += 1
                await asyncio.sleep(0.2)
