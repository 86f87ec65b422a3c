"""The AcceleratorQuotas that a watch has shown, with the namespaces that each selects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hami_webhook.cluster.api import JSON
from hami_webhook.kube.objects import Namespace, ResourceQuota
from hami_webhook.quota.accelerator_quota import Labels, read_accelerator_quota
from hami_webhook.quota.subjects import groups_named, labels_counted


class AcceleratorQuotaCache:
    """AcceleratorQuotas by name. The caller maintains `namespaces`, and calls `relabelled` after each change of them.

    `silence`: seconds since the watch last received something; infinite while AcceleratorQuotas may be missing.
    """

    def __init__(self, namespaces: Mapping[str, Namespace], silence: Callable[[], float]) -> None:
        self._namespaces = namespaces
        self._objects: dict[str, JSON] = {}
        self._quotas: dict[str, ResourceQuota] = {}
        self.counted_labels: frozenset[str] = frozenset()
        """The labels of pods that quotas count by."""
        self.named_groups: frozenset[str] = frozenset()
        """The groups of users to which quotas give limits."""
        self.silence = silence

    def put(self, obj: JSON) -> None:
        """Store an added or changed quota. Raises `MalformedObject`."""
        quota = read_accelerator_quota(obj, self.labels())
        self._objects[quota.name], self._quotas[quota.name] = obj, quota
        self._look()

    def drop(self, name: str) -> None:
        self._objects.pop(name, None)
        self._quotas.pop(name, None)
        self._look()

    def _look(self) -> None:
        self.counted_labels = labels_counted(self._quotas.values())
        self.named_groups = groups_named(self._quotas.values())

    def relabelled(self) -> None:
        """Find the selected namespaces again, after a namespace was added, removed or relabelled."""
        labels = self.labels() if self._objects else {}
        self._quotas = {name: read_accelerator_quota(obj, labels) for name, obj in self._objects.items()}

    def labels(self) -> Labels:
        return {name: namespace.labels for name, namespace in self._namespaces.items()}

    def quota(self, name: str) -> ResourceQuota | None:
        return self._quotas.get(name)

    def selected(self, name: str) -> frozenset[str]:
        """The namespaces that a quota selects."""
        quota = self._quotas.get(name)
        return (quota.namespaces or frozenset()) if quota is not None else frozenset()

    @property
    def size(self) -> int:
        return len(self._objects)

    def all(self) -> list[ResourceQuota]:
        return list(self._quotas.values())

    def covering(self, namespace: str) -> list[ResourceQuota]:
        """The quotas that select a namespace."""
        return [quota for quota in self._quotas.values() if namespace in (quota.namespaces or ())]

    def quotas(self, scope: str) -> Sequence[ResourceQuota]:
        return list(self._quotas.values())
