"""Serving an embedded cluster: the same server and loops, for trying out without Kubernetes."""

from __future__ import annotations

import time

from hami_webhook.admission.policy import Policies
from hami_webhook.cluster.embedded import fill
from hami_webhook.cluster.loading import Bundle
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.config import Settings
from hami_webhook.devices.registry import Vendors
from hami_webhook.server.run import serve


class EmbeddedProcess:
    """`serve --embedded-cluster`."""

    def __init__(self, bundle: Bundle, vendors: Vendors, settings: Settings, policies: Policies) -> None:
        self._bundle = bundle
        self._vendors = vendors
        self._settings = settings
        self._policies = policies

    async def serve(self) -> None:
        """Fill the cluster and serve it until stopped. Raises `LoadError`, `TlsError`, `ConfigError`."""
        cluster = MemoryCluster(time.time)
        await fill(cluster, self._bundle)
        settings = self._settings
        await serve(cluster, self._vendors, settings, policies=self._policies, drain=settings.shutdown_grace)
