"""What the API server has shown of the cluster's objects (docs/architecture.md, the table of caches).

Kept by informers, or by the caller that makes the objects. An object that can't be read is left out, with the reason.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hami_webhook.cluster.api import LONGEST_SILENCE, Kind
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.objects import MalformedObject, Namespace, Node, Pod, ResourceQuota, checked_device
from hami_webhook.quota.accelerator_cache import AcceleratorQuotaCache
from hami_webhook.quota.accelerator_quota import read_accelerator_quota
from hami_webhook.quota.deleted_ledgers import DeletedLedgers
from hami_webhook.scheduling.cluster_cache import ClusterCache
from hami_webhook.scheduling.preemption.nominations import Nominations

logger = logging.getLogger(__name__)


class Caches:
    """The cluster's objects; those of Fit are in `state`."""

    def __init__(
        self,
        state: ClusterCache,
        clock: Callable[[], float],
        node_labels: tuple[tuple[str, str], ...] = (),
        nominations: Nominations | None = None,
        deleted: DeletedLedgers | None = None,
    ) -> None:
        self.state = state
        self._deleted = deleted
        self._nominations = nominations
        self.disruption_budgets: dict[tuple[str, str], PodDisruptionBudget] = {}
        self._node_labels = node_labels
        self.namespaces: dict[str, Namespace] = {}
        self.accelerator_quotas = AcceleratorQuotaCache(self.namespaces)
        self._quotas: dict[str, dict[str, ResourceQuota]] = {}
        self._pods: dict[str, dict[str, str]] = {}
        """The UIDs of pods, by namespace and name."""
        self._clock = clock
        self.current_within: Callable[[float], bool] = lambda seconds: False
        """Whether the quotas' watch gave a sign of life in the last seconds, so that the quotas were complete then."""
        self.namespaces_current_within: Callable[[float], bool] = lambda seconds: False
        """The same of the namespaces' watch."""
        self.unreadable: dict[tuple[str, str, str], str] = {}

    def quotas(self, namespace: str) -> Sequence[ResourceQuota] | None:
        """The namespace's quotas, None unless the cache is synced and its watch alive."""
        return list(self._quotas.get(namespace, {}).values()) if self.current_within(LONGEST_SILENCE) else None

    def covering(self, namespace: str) -> Sequence[ResourceQuota] | None:
        """The quotas of both kinds that cover a namespace's pods; None unless the caches are synced and alive."""
        own, above = self.quotas(namespace), self.accelerator_quotas.quotas()
        if own is None or above is None:
            return None
        return [*own, *self.accelerator_quotas.covering(namespace)]

    def quota(self, namespace: str, name: str) -> ResourceQuota | None:
        return self._quotas.get(namespace, {}).get(name)

    def quota_of(self, kind: Kind, namespace: str, name: str) -> ResourceQuota | None:
        """The quota of a kind; None for other kinds."""
        match kind:
            case Kind.RESOURCE_QUOTAS:
                return self.quota(namespace, name)
            case Kind.ACCELERATOR_QUOTAS:
                return self.accelerator_quotas.quota(name)
        return None

    def _note_deleted(
        self, before: ResourceQuota | None, obj: dict[str, Any], read: Callable[[dict[str, Any]], ResourceQuota]
    ) -> None:
        """A quota is gone, whose last state is `obj`, or the one before where a list showed that it is missing."""
        if self._deleted is None or before is None:
            return
        with contextlib.suppress(MalformedObject):
            self._deleted.note(read(obj) if "spec" in obj else before)

    def has_pod(self, namespace: str, name: str) -> bool:
        """Whether there is a pod of this name."""
        return name in self._pods.get(namespace, ())

    def _forget_pod(self, namespace: str, name: str, uid: str) -> None:
        """A pod is gone; another may have its name already."""
        pods = self._pods.get(namespace, {})
        if pods.get(name) == uid:
            del pods[name]
            if not pods:
                del self._pods[namespace]

    def all_quotas(self) -> list[ResourceQuota]:
        return [quota for quotas in self._quotas.values() for quota in quotas.values()]

    def set_namespace(self, namespace: Namespace) -> None:
        """A namespace is there, or has other labels or annotations."""
        before = self.namespaces.get(namespace.name)
        self.namespaces[namespace.name] = namespace
        if before is None or before.labels != namespace.labels:
            self.accelerator_quotas.relabelled()

    def put(self, kind: Kind, obj: dict[str, Any]) -> None:
        """An object was added or changed. One that can't be read is left out and noted."""
        key = _key(kind, obj)
        self.unreadable.pop(key, None)
        try:
            self._put(kind, obj)
        except MalformedObject as error:
            self.drop(kind, obj)
            self.unreadable[key] = str(error)
        except Exception as error:
            logger.exception("%s can't be read", " ".join(key))
            self.drop(kind, obj)
            self.unreadable[key] = f"{type(error).__name__}: {error}"

    def _put(self, kind: Kind, obj: dict[str, Any]) -> None:
        match kind:
            case Kind.NODES:
                node = Node.from_object(obj)
                if all(node.labels.get(key) == value for key, value in self._node_labels):
                    self.state.set_node(node, self._clock())
                else:
                    self.state.remove_node(node.name)
            case Kind.PODS:
                pod = Pod.from_object(obj).compact()
                self._pods.setdefault(pod.namespace, {})[pod.name] = pod.uid
                self.state.set_pod(pod, self._clock())
                if self._nominations is not None:
                    self._nominations.set_pod(pod)
            case Kind.NAMESPACES:
                self.set_namespace(Namespace.from_object(obj))
            case Kind.RESOURCE_QUOTAS:
                quota = ResourceQuota.from_object(obj)
                self._quotas.setdefault(quota.namespace, {})[quota.name] = quota
            case Kind.ACCELERATOR_QUOTAS:
                self.accelerator_quotas.put(obj)
            case Kind.DEVICES:
                self.state.set_device(*checked_device(obj))
            case Kind.POD_DISRUPTION_BUDGETS:
                budget = PodDisruptionBudget.from_object(obj)
                self.disruption_budgets[budget.namespace, budget.name] = budget

    def drop(self, kind: Kind, obj: dict[str, Any]) -> None:
        """An object is gone."""
        self.unreadable.pop(_key(kind, obj), None)
        meta = obj.get("metadata") or {}
        name, namespace = meta.get("name") or "", meta.get("namespace") or ""
        match kind:
            case Kind.NODES:
                self.state.remove_node(name)
            case Kind.PODS:
                self._forget_pod(namespace, name, meta.get("uid") or "")
                self.state.remove_pod(meta.get("uid") or "")
                if self._nominations is not None:
                    self._nominations.remove_pod(meta.get("uid") or "")
            case Kind.NAMESPACES:
                self.namespaces.pop(name, None)
                self.accelerator_quotas.relabelled()
            case Kind.RESOURCE_QUOTAS:
                self._note_deleted(self._quotas.get(namespace, {}).pop(name, None), obj, ResourceQuota.from_object)
            case Kind.ACCELERATOR_QUOTAS:
                before = self.accelerator_quotas.quota(name)
                self.accelerator_quotas.drop(name)
                self._note_deleted(before, obj, lambda last: read_accelerator_quota(last, {}))
            case Kind.DEVICES:
                self.state.remove_device(name)
            case Kind.POD_DISRUPTION_BUDGETS:
                self.disruption_budgets.pop((namespace, name), None)


def _key(kind: Kind, obj: Mapping[str, Any]) -> tuple[str, str, str]:
    meta = obj.get("metadata") or {}
    return kind.value, meta.get("namespace") or "", meta.get("name") or ""
