"""The cluster's namespaces, for reviews: from the cache, else by a live read."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from hami_webhook.cluster.api import Cluster, ClusterError, Kind
from hami_webhook.kube.objects import MalformedObject, Namespace
from hami_webhook.state.caches import Caches

logger = logging.getLogger(__name__)


class LiveNamespaces:
    """AdmissionHandler's port to namespaces. `ignored` are those with annotations that mean nothing there."""

    def __init__(self, cluster: Cluster, caches: Caches) -> None:
        self._cluster = cluster
        self._caches = caches
        self.ignored: set[tuple[str, tuple[str, ...]]] = set()

    async def namespace(self, name: str) -> Namespace | None:
        """The namespace; None if it isn't there or can't be read now."""
        known = self._caches.namespaces.get(name)
        if known is not None:
            return known
        try:
            found = Namespace.from_object(await self._cluster.get(Kind.NAMESPACES, name))
        except (ClusterError, MalformedObject):
            return None
        self._caches.set_namespace(found)
        return found

    async def report_ignored(self, namespace: str, keys: tuple[str, ...]) -> None:
        """Log scheduler-owned annotations of a Namespace, once; the controller records an event."""
        if (namespace, keys) not in self.ignored:
            self.ignored.add((namespace, keys))
            logger.warning("annotations ignored", extra={"namespace": namespace, "reason": ignored_annotations(keys)})


def ignored_annotations(keys: Iterable[str]) -> str:
    """What is wrong with scheduler-owned annotations on a Namespace."""
    return f"scheduler-owned annotations mean nothing on a Namespace: {', '.join(keys)}"
