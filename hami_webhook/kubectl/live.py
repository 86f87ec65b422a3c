"""Reading a live cluster with the rights of the user whose kubeconfig the flags name."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hami_webhook.cluster.api import Cluster
from hami_webhook.cluster.connect import connect, namespace_of
from hami_webhook.cluster.kept_fields import decode_kept
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.device_config import read_device_config
from hami_webhook.doctor.checks import Diagnosis, diagnose
from hami_webhook.doctor.facts import Facts
from hami_webhook.doctor.installation import Effective, read_effective
from hami_webhook.explain.live import read_allowed
from hami_webhook.explain.read import Explainer
from hami_webhook.explain.report import Explanation
from hami_webhook.kubectl.overview import Overview
from hami_webhook.simulate.simulation import Simulation


@dataclass(frozen=True)
class LiveCluster:
    """A cluster as it was read at `now`, and sentences about what couldn't be seen or read of it."""

    simulation: Simulation
    effective: Effective
    namespace: str
    now: float
    unseen: Sequence[str]
    warnings: Sequence[str]

    @property
    def overview(self) -> Overview:
        return Overview(self.simulation.core.view, self.now)

    def explain(self, namespace: str, name: str, most_nodes: int | None = None) -> Explanation:
        """Explain a pod, by at most so many nodes. Raises `UnknownPod`."""
        policies, scheduler = self.effective.options.policies, self.effective.settings.scheduler_name
        return Explainer(self.simulation, policies, scheduler, self.now).of_known(namespace, name, most_nodes)


@asynccontextmanager
async def _connected(arguments: argparse.Namespace) -> AsyncIterator[tuple[KubernetesCluster, str]]:
    """The cluster and the namespace that the flags name."""
    kubeconfig = arguments.kubeconfig or os.environ.get("KUBECONFIG", "")
    namespace = arguments.namespace or namespace_of(kubeconfig, arguments.context)
    async with KubernetesCluster(await connect(kubeconfig, arguments.context), decode=decode_kept) as api:
        yield api, namespace


async def read(arguments: argparse.Namespace) -> LiveCluster:
    config = read_device_config(arguments.config) if arguments.config else None
    async with _connected(arguments) as (api, namespace):
        effective = await read_effective(api, arguments.system_namespace, config)
        return await read_with(api, effective, namespace, time.time())


async def read_with(cluster: Cluster, effective: Effective, namespace: str, now: float) -> LiveCluster:
    """The cluster at `now` (Unix seconds) as far as it may be read, for a program that goes by `effective`."""
    reading = await read_allowed(cluster, namespace)
    simulation = await effective.simulation(reading.bundle, now)
    unseen = [*effective.unseen, *reading.unseen.values()]
    return LiveCluster(simulation, effective, namespace, now, unseen, simulation.warnings())


async def diagnosed(arguments: argparse.Namespace) -> Diagnosis:
    async with _connected(arguments) as (api, namespace):
        return await diagnose(await Facts.read(api, arguments.system_namespace, namespace))
