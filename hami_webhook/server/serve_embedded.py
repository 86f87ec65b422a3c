"""Serving an embedded cluster: the same server and loops, for trying out without Kubernetes."""

from __future__ import annotations

import time

from hami_webhook.cluster.embedded import fill
from hami_webhook.cluster.loading import Bundle
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.config import Settings
from hami_webhook.devices.registry import Vendors
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.server.run import serve


async def serve_embedded(bundle: Bundle, vendors: Vendors, settings: Settings, policies: PolicyRules) -> None:
    """Fill a cluster with the bundle and serve it until stopped. Raises `LoadError`, `TlsError`, `ConfigError`."""
    cluster = MemoryCluster(time.time)
    await fill(cluster, bundle)
    await serve(cluster, vendors, settings, policies=policies)
