"""The cluster's namespaces, for reviews and charges: from the cache, else by a live read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from hami_webhook.cluster.api import Cluster, ClusterError, Kind
from hami_webhook.cluster.shared_reads import SharedReads
from hami_webhook.kube.objects import MalformedObject, Namespace
from hami_webhook.quota.known_quotas import CURRENT_SECONDS

logger = logging.getLogger(__name__)


class NamespaceCache(Protocol):
    """The namespaces that a watch has shown."""

    @property
    def namespaces(self) -> Mapping[str, Namespace]: ...

    @property
    def namespaces_silence(self) -> float:
        """Seconds since their watch gave a sign of life; infinite while some may be missing."""
        ...

    def set_namespace(self, namespace: Namespace) -> None: ...


class LiveNamespaces:
    """Reads a namespace live, and puts it into the cache, where the watch is silent or hasn't shown it.

    `ignored` are the namespaces with annotations that mean nothing there.
    """

    def __init__(self, cluster: Cluster, cache: NamespaceCache, *, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._cache = cache
        self._clock = clock
        self._reads = SharedReads(self._read)
        self._read_at: dict[str, float] = {}
        self.ignored: set[tuple[str, tuple[str, ...]]] = set()

    async def namespace(self, name: str) -> Namespace | None:
        """The namespace; None if it isn't there or can't be read now."""
        if name not in self._cache.namespaces:
            with suppress(ClusterError):
                await self._read(name)
        return self._cache.namespaces.get(name)

    async def refresh(self, name: str) -> bool:
        """Make sure that the cache has a namespace's labels.

        Return whether they have changed. Raises `ClusterError`.
        """
        if name in self._cache.namespaces and (
            self._cache.namespaces_silence <= CURRENT_SECONDS
            or self._clock() - self._read_at.get(name, float("-inf")) < CURRENT_SECONDS
        ):
            return False
        changed, _ = await self._reads.get(name)
        return changed

    async def _read(self, name: str) -> bool:
        now = self._clock()
        try:
            found = Namespace.from_object(await self._cluster.get(Kind.NAMESPACES, name))
        except MalformedObject as error:
            raise ClusterError(str(error)) from error
        before = self._cache.namespaces.get(name)
        self._cache.set_namespace(found)
        self._read_at = {other: at for other, at in self._read_at.items() if now - at < CURRENT_SECONDS} | {name: now}
        return before is None or before.labels != found.labels

    async def report_ignored(self, namespace: str, keys: tuple[str, ...]) -> None:
        """Log scheduler-owned annotations of a Namespace, once; the controller records an event."""
        if (namespace, keys) not in self.ignored:
            self.ignored.add((namespace, keys))
            logger.warning("annotations ignored", extra={"namespace": namespace, "reason": ignored_annotations(keys)})


def ignored_annotations(keys: Iterable[str]) -> str:
    """What is wrong with scheduler-owned annotations on a Namespace."""
    return f"scheduler-owned annotations mean nothing on a Namespace: {', '.join(keys)}"
