"""What the API server has shown of the cluster's objects (docs/architecture.md, the table of caches).

Informers, or a caller with objects of its own, fill the caches. Each kind has a row; each change returns the old and
new object. An unreadable object is removed and the reason noted, because readers would otherwise trust its former
version. Callers decide, by `silence`, how old a cached object may be; the caches never read live.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from hami_webhook.cluster.api import JSON, LONGEST_SILENCE, Kind
from hami_webhook.cluster.watches import NoWatches, Watches
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.kube import claims_wire
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.objects import MalformedObject, Namespace, Node, Pod, ResourceQuota, checked_device
from hami_webhook.kube.placeholder_label import is_placeholder
from hami_webhook.kube.wire import convert
from hami_webhook.quota.accelerator_quota import Labels, read_accelerator_quota
from hami_webhook.quota.deleted_ledgers import DeletedLedgers
from hami_webhook.quota.subjects import groups_named, labels_counted
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.nominations import Nominations

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Key(NamedTuple):
    """The identity of an object among its kind; fields that an object doesn't have are empty."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> Key:
        """The key of an object."""
        meta = obj.get("metadata") or {}
        return cls(meta.get("namespace") or "", meta.get("name") or "", meta.get("uid") or "")


class Change(NamedTuple, Generic[T]):
    """An object before and after a change; None if the cache had, or has, no readable object.

    Of a node it is the NodeView, of Koordinator's Devices the object itself, of other kinds what `kube` reads them as.
    """

    key: Key
    before: T | None
    after: T | None


Subscriptions = Mapping[Kind, Callable[[Change[Any]], None]]


class Subscriber(Protocol):
    """A receiver of changes."""

    def subscriptions(self) -> Subscriptions:
        """What is called after each change in the cache, by kind."""
        ...


class _Row(NamedTuple):
    """Where the objects of a kind are kept. `put` raises `MalformedObject`; `drop` gets the object's last state."""

    get: Callable[[Key], Any]
    put: Callable[[JSON], None]
    drop: Callable[[Key, JSON], None]


class Caches:
    """The caches of the cluster's objects; the attribute `state` has nodes and pods for Fit.

    `watches` report how current the caches are. Placeholders, in `own_namespace`, aren't kept: they hold no cards.
    """

    def __init__(
        self,
        state: ClusterCache,
        clock: Callable[[], float],
        node_labels: tuple[tuple[str, str], ...] = (),
        nominations: Nominations | None = None,
        deleted: DeletedLedgers | None = None,
        watches: Watches | None = None,
        claims: ClaimCache | None = None,
        own_namespace: str = "",
    ) -> None:
        self.state = state
        self._own_namespace = own_namespace
        self.claims = claims = claims or ClaimCache(())
        self._deleted = deleted
        self._nominations = nominations
        self.disruption_budgets: dict[tuple[str, str], PodDisruptionBudget] = {}
        self._node_labels = node_labels
        self.namespaces: dict[str, Namespace] = {}
        self._watches = watches = watches or NoWatches()
        self.accelerator_quotas = AcceleratorQuotaCache(
            self.namespaces, partial(watches.silence, Kind.ACCELERATOR_QUOTAS)
        )
        self.silence = partial(watches.silence, Kind.RESOURCE_QUOTAS)
        """Seconds since the quotas' watch gave a sign of life, when they were complete; infinite if they never were."""
        self._quotas: dict[str, dict[str, ResourceQuota]] = {}
        self._pods: dict[str, dict[str, str]] = {}
        """The UIDs of pods, by namespace and name."""
        self._queued: dict[str, Pod] = {}
        self._clock = clock
        self.unreadable: dict[tuple[str, str, str], str] = {}
        accelerator_quotas = self.accelerator_quotas
        self._rows = {
            Kind.NODES: _Row(lambda key: state.view(key.name), self._put_node, self._drop_node),
            Kind.PODS: _Row(lambda key: state.pod(key.uid), self._put_pod, self._drop_pod),
            Kind.NAMESPACES: _Row(lambda key: self.namespaces.get(key.name), self._put_namespace, self._drop_namespace),
            Kind.RESOURCE_QUOTAS: _Row(
                lambda key: self.quota(key.namespace, key.name), self._put_quota, self._drop_quota
            ),
            Kind.ACCELERATOR_QUOTAS: _Row(
                lambda key: accelerator_quotas.quota(key.name), accelerator_quotas.put, self._drop_accelerator_quota
            ),
            Kind.DEVICES: _Row(
                lambda key: state.device(key.name),
                lambda obj: state.set_device(*checked_device(obj)),
                lambda key, last: state.remove_device(key.name),
            ),
            Kind.POD_DISRUPTION_BUDGETS: _Row(
                lambda key: self.disruption_budgets.get(key[:2]), self._put_budget, self._drop_budget
            ),
            **_claim_rows(claims),
        }

    @property
    def namespaces_silence(self) -> float:
        """Return the seconds since the last sign of life of the namespaces' watch."""
        return self._watches.silence(Kind.NAMESPACES)

    def quotas(self, namespace: str) -> Sequence[ResourceQuota]:
        """The namespace's quotas."""
        return list(self._quotas.get(namespace, {}).values())

    def covering(self, namespace: str) -> Sequence[ResourceQuota] | None:
        """The quotas of both kinds that cover a namespace's pods; None unless the caches are synced and alive."""
        if max(self.silence(), self.accelerator_quotas.silence()) > LONGEST_SILENCE:
            return None
        return self.shown(namespace)

    def shown(self, namespace: str) -> Sequence[ResourceQuota]:
        """The quotas of both kinds that cover a namespace's pods, however old the caches are."""
        return [*self._quotas.get(namespace, {}).values(), *self.accelerator_quotas.covering(namespace)]

    def quota(self, namespace: str, name: str) -> ResourceQuota | None:
        return self._quotas.get(namespace, {}).get(name)

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

    def queued(self) -> Sequence[Pod]:
        """The pods with the scheduling gate of quota that may still be released."""
        return list(self._queued.values())

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

    def put(self, kind: Kind, obj: JSON) -> Change[Any]:
        """An object was added or changed. One that can't be read is left out and noted."""
        key, row = Key.of(obj), self._rows[kind]
        before = row.get(key)
        self.keep(kind, obj)
        return Change(key, before, row.get(key))

    def keep(self, kind: Kind, obj: JSON) -> None:
        """Store an object as `put` does, without computing the change.

        Nodes aren't looked at before their pods are there.
        """
        key = Key.of(obj)
        self.unreadable.pop((kind.value, key.namespace, key.name), None)
        try:
            self._rows[kind].put(obj)
        except MalformedObject as error:
            self._leave_out(kind, key, obj, str(error))
        except Exception as error:
            logger.exception("%s %s %s can't be read", kind.value, key.namespace, key.name)
            self._leave_out(kind, key, obj, f"{type(error).__name__}: {error}")

    def drop(self, kind: Kind, obj: JSON) -> Change[Any]:
        """An object is gone; `obj` is its last state, or only its metadata."""
        key, row = Key.of(obj), self._rows[kind]
        before = row.get(key)
        self.unreadable.pop((kind.value, key.namespace, key.name), None)
        row.drop(key, obj)
        return Change(key, before, row.get(key))

    def _leave_out(self, kind: Kind, key: Key, obj: JSON, why: str) -> None:
        self._rows[kind].drop(key, obj)
        self.unreadable[kind.value, key.namespace, key.name] = why

    # the rows

    def _put_node(self, obj: JSON) -> None:
        node = Node.from_object(obj)
        if all(node.labels.get(key) == value for key, value in self._node_labels):
            self.state.set_node(node, self._clock())
        else:
            self.state.remove_node(node.name)

    def _drop_node(self, key: Key, last: JSON) -> None:
        self.state.remove_node(key.name)

    def _put_pod(self, obj: JSON) -> None:
        if is_placeholder(obj, self._own_namespace):
            return
        pod = Pod.from_object(obj).compact()
        self._pods.setdefault(pod.namespace, {})[pod.name] = pod.uid
        if pod.queued and not pod.terminal and pod.deletion_time is None:
            self._queued[pod.uid] = pod
        else:
            self._queued.pop(pod.uid, None)
        self.state.set_pod(pod, self._clock())
        if self._nominations is not None:
            self._nominations.set_pod(pod)

    def _drop_pod(self, key: Key, last: JSON) -> None:
        self._forget_pod(*key)
        self._queued.pop(key.uid, None)
        self.state.remove_pod(key.uid)
        if self._nominations is not None:
            self._nominations.remove_pod(key.uid)

    def _put_namespace(self, obj: JSON) -> None:
        self.set_namespace(Namespace.from_object(obj))

    def _drop_namespace(self, key: Key, last: JSON) -> None:
        self.namespaces.pop(key.name, None)
        self.accelerator_quotas.relabelled()

    def _put_quota(self, obj: JSON) -> None:
        quota = ResourceQuota.from_object(obj)
        self._quotas.setdefault(quota.namespace, {})[quota.name] = quota

    def _drop_quota(self, key: Key, last: JSON) -> None:
        before = self._quotas.get(key.namespace, {}).pop(key.name, None)
        self._note_deleted(before, last, ResourceQuota.from_object)

    def _drop_accelerator_quota(self, key: Key, last: JSON) -> None:
        before = self.accelerator_quotas.quota(key.name)
        self.accelerator_quotas.drop(key.name)
        self._note_deleted(before, last, lambda obj: read_accelerator_quota(obj, {}))

    def _put_budget(self, obj: JSON) -> None:
        budget = PodDisruptionBudget.from_object(obj)
        self.disruption_budgets[budget.namespace, budget.name] = budget

    def _drop_budget(self, key: Key, last: JSON) -> None:
        self.disruption_budgets.pop(key[:2], None)


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


def _claim_rows(claims: ClaimCache) -> dict[Kind, _Row]:
    """The kinds that claims are charged by."""
    return {
        Kind.RESOURCE_CLAIMS: _Row(
            lambda key: claims.claims.get(key[:2]),
            lambda obj: claims.put_claim(convert(obj, claims_wire.ResourceClaim, "resourceclaim")),
            lambda key, last: claims.drop_claim(key[:2]),
        ),
        Kind.RESOURCE_CLAIM_TEMPLATES: _Row(
            lambda key: claims.templates.get(key[:2]),
            lambda obj: claims.put_template(
                Key.of(obj)[:2], convert(obj, claims_wire.ResourceClaimTemplate, "resourceclaimtemplate")
            ),
            lambda key, last: claims.drop_template(key[:2]),
        ),
        Kind.RESOURCE_SLICES: _Row(
            lambda key: claims.slices.get(key.name),
            lambda obj: claims.put_slice(Key.of(obj).name, convert(obj, claims_wire.ResourceSlice, "resourceslice")),
            lambda key, last: claims.drop_slice(key.name),
        ),
        Kind.DEVICE_CLASSES: _Row(
            lambda key: claims.classes.get(key.name),
            lambda obj: claims.put_class(Key.of(obj).name, convert(obj, claims_wire.DeviceClass, "deviceclass")),
            lambda key, last: claims.drop_class(key.name),
        ),
    }
