"""Serving a cluster: a real one, connected by kubeconfig or service account, or an embedded one for trying out."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from hami_webhook.cluster.api import Cluster, ClusterError, Unavailable
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.embedded import fill
from hami_webhook.cluster.kept_fields import decode_kept
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.cluster.loading import Bundle
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.cluster.quotas_in_memory import WITHOUT_STATUS, QuotasInMemory
from hami_webhook.cluster.rate import TokenBucket
from hami_webhook.cluster.version import too_old
from hami_webhook.config import Settings
from hami_webhook.devices.registry import Vendors
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.server.run import serve
from hami_webhook.usage.api import read_pod_usages

logger = logging.getLogger(__name__)

Found = TypeVar("Found")


async def serve_kubernetes(vendors: Vendors, settings: Settings, policies: PolicyRules) -> None:
    """Serve the API server that the settings name until stopped. Raises `ClusterError`, `TlsError`, `ConfigError`."""
    cluster = KubernetesCluster(
        await connect(settings.kubeconfig),
        decode=decode_kept,
        component=settings.scheduler_name or "hami-webhook",
        instance=settings.pod_name or socket.gethostname(),
        limit=TokenBucket(settings.kube_qps, settings.kube_burst),
        timeout=settings.kube_timeout,
    )
    async with cluster:
        await _check_version(cluster)
        served = await _with_quotas(cluster)
        usages = partial(read_pod_usages, cluster)
        await serve(served, vendors, settings, policies=policies, clock=cluster.clock, usages=usages)


async def _check_version(cluster: KubernetesCluster) -> None:
    """Say so if the API server is older than what is needed; it is no reason not to start."""
    try:
        problem = too_old(await _answer(cluster.version))
    except ClusterError as error:
        problem = f"the API server doesn't report its version: {error}"
    if problem:
        logger.warning("%s", problem)


async def _with_quotas(cluster: KubernetesCluster) -> Cluster:
    """The cluster, with quotas kept in memory if these credentials may not write their status."""
    if await _answer(lambda: cluster.may("patch", "", "resourcequotas", "status")):
        return cluster
    logger.warning("%s", WITHOUT_STATUS)
    return QuotasInMemory(cluster)


async def _answer(call: Callable[[], Awaitable[Found]]) -> Found:
    """What the API server answers, as soon as it does."""
    while True:
        try:
            return await call()
        except Unavailable as error:
            logger.warning("at the start: %s; trying again", error)
            await asyncio.sleep(1)


async def serve_embedded(bundle: Bundle, vendors: Vendors, settings: Settings, policies: PolicyRules) -> None:
    """Fill a cluster with the bundle and serve it until stopped. Raises `LoadError`, `TlsError`, `ConfigError`."""
    cluster = MemoryCluster(time.time)
    await fill(cluster, bundle)
    await serve(cluster, vendors, settings, policies=policies)
