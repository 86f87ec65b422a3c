"""Serving a real cluster: connected by kubeconfig or service account."""

from __future__ import annotations

import socket

from hami_webhook.admission.policy import Policies
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.cluster.rate import TokenBucket
from hami_webhook.cluster.trim import trim
from hami_webhook.config import Settings
from hami_webhook.devices.registry import Vendors
from hami_webhook.server.run import serve


async def serve_kubernetes(vendors: Vendors, settings: Settings, policies: Policies) -> None:
    """Serve the API server that the settings name until stopped. Raises `ClusterError`, `TlsError`, `ConfigError`."""
    cluster = KubernetesCluster(
        await connect(settings.kubeconfig),
        keep=trim,
        component=settings.scheduler_name or "hami-webhook",
        instance=settings.pod_name or socket.gethostname(),
        limit=TokenBucket(settings.kube_qps, settings.kube_burst),
        timeout=settings.kube_timeout,
    )
    async with cluster:
        await serve(cluster, vendors, settings, policies=policies, drain=settings.shutdown_grace)
