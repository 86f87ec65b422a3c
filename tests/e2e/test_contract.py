"""The contract suite of the cluster port, on a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import uuid
from collections.abc import Iterator

import pytest
from cluster.contract import CASES, Case

from hack.devcluster.plane import ControlPlane
from hami_webhook.cluster.api import JSON, AlreadyExists, Cluster, Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster

_NUMBERS = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def alone(plane: ControlPlane) -> Iterator[None]:
    """kube-controller-manager stands still, as it writes to every new quota; a case wants to be the only writer."""
    tell_manager(plane, signal.SIGSTOP)
    yield
    tell_manager(plane, signal.SIGCONT)


def tell_manager(plane: ControlPlane, number: signal.Signals) -> None:
    plane.running["kube-controller-manager"].send_signal(number)


class KubernetesHarness:
    def __init__(self, cluster: KubernetesCluster, plane: ControlPlane) -> None:
        self.real = cluster
        self.plane = plane
        self.cluster: Cluster = cluster

    async def namespace(self) -> str:
        name = f"contract-{next(_NUMBERS)}-{uuid.uuid4().hex[:6]}"
        await self.real.create(Kind.NAMESPACES, {"metadata": {"name": name}})
        # the service account that pods of the namespace run as; the controller manager makes one soon
        with contextlib.suppress(AlreadyExists):
            account = {"metadata": {"name": "default"}}
            await self.real.call("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
        return name

    async def create(self, kind: Kind, obj: JSON) -> JSON:
        if kind is Kind.PODS:  # kube-scheduler must leave them alone
            obj = {**obj, "spec": {"schedulerName": "nobody", **obj["spec"]}}
        return await self.real.create(kind, obj)

    async def delete(self, kind: Kind, name: str, namespace: str = "") -> None:
        middle = f"/namespaces/{namespace}" if namespace else ""
        await self.real.call("DELETE", f"/api/v1{middle}/{kind.value}/{name}", {"gracePeriodSeconds": 0})

    async def recorded(self, namespace: str) -> list[tuple[str, str, int]]:
        found = await self.real.call("GET", f"/api/v1/namespaces/{namespace}/events")
        return [(item["reason"], item["message"], item["count"]) for item in found["items"]]

    async def outdated(self, kind: Kind, namespace: str) -> str | None:
        self.plane.restart_api_server()  # it knows nothing of what was before its start
        tell_manager(self.plane, signal.SIGSTOP)  # a new one
        return "1"

    async def moment(self) -> None:
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_contract(case: Case, plane: ControlPlane) -> None:
    async def run() -> None:
        async with KubernetesCluster(await connect(str(plane.kubeconfig))) as cluster:
            await case(KubernetesHarness(cluster, plane))

    asyncio.run(run())
