"""The stores of the quotas that may cover a pod: those of its namespace, and AcceleratorQuotas."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.pricing import Charge
from hami_webhook.quota.sources import ALL_NAMESPACES
from hami_webhook.quota.store import QuotaStore


class QuotaStores(Struct, frozen=True):
    """Where quotas are charged; `accelerator_quotas` is None where there are none of that kind."""

    resource_quotas: QuotaStore
    accelerator_quotas: QuotaStore | None = None

    def limiting(self, pod: Pod, charge: Charge) -> Iterator[tuple[QuotaStore, str]]:
        """The stores with quotas that may limit what a pod costs, and the scopes there."""
        yield self.resource_quotas, self.resource_quotas.scope_of(pod)
        if self.accelerator_quotas is not None:
            scope = self.accelerator_quotas.scope_of(pod)
            known = self.accelerator_quotas.known(scope)
            if known is None or known.limit(pod, charge):
                yield self.accelerator_quotas, scope

    async def covering(self, namespace: str) -> list[ResourceQuota]:
        """The quotas that cover a namespace's pods, by a live list. Raises `ClusterError`."""
        quotas = [*await self.resource_quotas.listed(namespace)]
        if self.accelerator_quotas is not None:
            listed = await self.accelerator_quotas.listed(ALL_NAMESPACES)
            quotas += [quota for quota in listed if namespace in (quota.namespaces or ())]
        return quotas
