"""Pods that the API server is certain to refuse after us: they aren't charged (docs/spec/quota.md#7.2).

Found in the caches, without a request; refused after a live read of the one object that stands in the way.
"""

from __future__ import annotations

from collections.abc import Sequence

from hami_webhook.cluster.api import Cluster, ClusterError, Kind
from hami_webhook.kube.objects import MalformedObject, Pod, ResourceQuota
from hami_webhook.quota.native_quotas import native_refusal
from hami_webhook.quota.refusals import Refusal
from hami_webhook.state.caches import Caches


class NativeQuotaPrecheck:
    """Looks for what the API server refuses a pod for once every webhook has allowed it.

    `quotas` are the known ResourceQuotas of the pod's namespace. What can't be read refuses nothing: the pod is then
    charged, and its charge expires.
    """

    def __init__(self, cluster: Cluster, known: Caches) -> None:
        self._cluster = cluster
        self._known = known

    def suspects(self, pod: Pod, name: str, quotas: Sequence[ResourceQuota], *, sized: bool) -> bool:
        """Whether the caches show something that the API server would refuse the pod for; arguments as in `refusal`."""
        if name and self._known.has_pod(pod.namespace, name):
            return True
        return any(native_refusal(quota, pod, sized=sized) is not None for quota in quotas)

    async def refusal(self, pod: Pod, name: str, quotas: Sequence[ResourceQuota], *, sized: bool) -> Refusal | None:
        """The API server's own refusal, or None.

        `name` is empty while it isn't generated. `sized` is as in `native_refusal`.
        """
        taken = await self._taken(pod, name) if name and self._known.has_pod(pod.namespace, name) else None
        if taken is not None:
            return taken
        for quota in quotas:
            if native_refusal(quota, pod, sized=sized) is not None:
                text = await self._exceeded(quota, pod, sized=sized)
                if text is not None:
                    return Refusal(403, text, overrun=True)
        return None

    async def _taken(self, pod: Pod, name: str) -> Refusal | None:
        try:
            meta = (await self._cluster.get(Kind.PODS, name, pod.namespace))["metadata"]
        except ClusterError:  # as a rule it was deleted just now
            return None
        if meta.get("uid") == pod.uid:
            return None
        ending = "object is being deleted: " if meta.get("deletionTimestamp") else ""
        return Refusal(409, f'{ending}pods "{name}" already exists')

    async def _exceeded(self, quota: ResourceQuota, pod: Pod, *, sized: bool) -> str | None:
        try:
            found = await self._cluster.get(Kind.RESOURCE_QUOTAS, quota.name, pod.namespace)
            return native_refusal(ResourceQuota.from_object(found), pod, sized=sized)
        except (ClusterError, MalformedObject):
            return None
