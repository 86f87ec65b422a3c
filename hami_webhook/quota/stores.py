"""The stores of the quotas that may cover a pod: those of its namespace, and AcceleratorQuotas."""

from __future__ import annotations

from dataclasses import dataclass

from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.sources import ALL_NAMESPACES
from hami_webhook.quota.store import QuotaStore


@dataclass(frozen=True, slots=True)
class QuotaStores:
    """Where quotas are charged; `accelerator_quotas` is None where there are none of that kind."""

    resource_quotas: QuotaStore
    accelerator_quotas: QuotaStore | None = None

    async def covering(self, namespace: str) -> list[ResourceQuota]:
        """The quotas that cover a namespace's pods, by a live list. Raises `ClusterError`."""
        quotas = [*await self.resource_quotas.listed(namespace)]
        if self.accelerator_quotas is not None:
            listed = await self.accelerator_quotas.listed(ALL_NAMESPACES)
            quotas += [quota for quota in listed if namespace in (quota.namespaces or ())]
        return quotas
