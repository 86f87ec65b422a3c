"""Where the quotas of a `QuotaStore` are read from and written to: ResourceQuotas, or AcceleratorQuotas.

A scope is what is read together: a namespace's ResourceQuotas, or all AcceleratorQuotas (`ALL_NAMESPACES`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from hami_webhook.cluster.api import JSON, Cluster, Forbidden, Kind, NotFound
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.accelerator_quota import Labels, read_accelerator_quota, status_patch

ALL_NAMESPACES = ""


class QuotaSource(Protocol):
    """Quotas of one kind on a cluster. Every request may raise `ClusterError`."""

    def scope_of(self, pod: Pod) -> str:
        """The scope of the quotas that a pod is charged to."""
        ...

    async def list(self, scope: str) -> Sequence[ResourceQuota]: ...

    async def get(self, scope: str, name: str) -> ResourceQuota: ...

    async def patch_status(self, scope: str, name: str, patch: JSON) -> ResourceQuota:
        """Write a merge patch to the ResourceQuota's `/status`. Return the quota after the write."""
        ...


class ResourceQuotas:
    """The ResourceQuotas of namespaces."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def scope_of(self, pod: Pod) -> str:
        return pod.namespace

    async def list(self, scope: str) -> Sequence[ResourceQuota]:
        listing = await self._cluster.list(Kind.RESOURCE_QUOTAS, scope)
        return [ResourceQuota.from_object(item) for item in listing.items]

    async def get(self, scope: str, name: str) -> ResourceQuota:
        return ResourceQuota.from_object(await self._cluster.get(Kind.RESOURCE_QUOTAS, name, scope))

    async def patch_status(self, scope: str, name: str, patch: JSON) -> ResourceQuota:
        return ResourceQuota.from_object(await self._cluster.patch_status(Kind.RESOURCE_QUOTAS, name, patch, scope))


class AcceleratorQuotas:
    """All AcceleratorQuotas; none while their definition isn't installed, or the right to list them is lacking.

    `labels` are those of the namespaces.
    """

    def __init__(self, cluster: Cluster, labels: Callable[[], Labels]) -> None:
        self._cluster = cluster
        self._labels = labels

    def scope_of(self, pod: Pod) -> str:
        return ALL_NAMESPACES

    async def list(self, scope: str) -> Sequence[ResourceQuota]:
        try:
            listing = await self._cluster.list(Kind.ACCELERATOR_QUOTAS)
        except (NotFound, Forbidden):
            return []
        return [self._read(item) for item in listing.items]

    async def get(self, scope: str, name: str) -> ResourceQuota:
        return await self._answer(name, self._cluster.get(Kind.ACCELERATOR_QUOTAS, name))

    async def patch_status(self, scope: str, name: str, patch: JSON) -> ResourceQuota:
        return await self._answer(name, self._cluster.patch_status(Kind.ACCELERATOR_QUOTAS, name, status_patch(patch)))

    async def _answer(self, name: str, request: Awaitable[JSON]) -> ResourceQuota:
        """What a request about one quota answers; not found if it is gone, also for those who lack the right."""
        try:
            return self._read(await request)
        except Forbidden:
            # deleted, or all rights to them withdrawn, as a rollback to a version without them does
            if all(quota.name != name for quota in await self.list("")):
                raise NotFound(f'acceleratorquotas "{name}" not found') from None
            raise

    def _read(self, obj: JSON) -> ResourceQuota:
        return read_accelerator_quota(obj, self._labels())
