"""Informers that keep the caches and notify the reconciler of changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import JSON, Kind, WatchType
from hami_webhook.cluster.informer import Change, Informer, Replaced
from hami_webhook.controller.loops import Loops, contained
from hami_webhook.controller.quotas import QuotaReconciler
from hami_webhook.controller.requeue_trigger import RequeueTrigger
from hami_webhook.controller.showback import Showback
from hami_webhook.devices.model import NodeView
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.preemption import gives_room

_OPTIONAL = (Kind.DEVICES, Kind.ACCELERATOR_QUOTAS)
_LOOK_AGAIN = 5.0
"""Seconds after which a kind that isn't installed is asked for again: until then nothing of it is charged."""

_WATCHED = (Kind.NAMESPACES, Kind.NODES, Kind.RESOURCE_QUOTAS, Kind.ACCELERATOR_QUOTAS, Kind.PODS)


class SharedInformers:
    """One informer for each kind that the core reads; of AcceleratorQuotas and Koordinator's Devices where they are
    installed.

    `disruption_budgets`: PodDisruptionBudgets are watched too.
    """

    def __init__(
        self,
        core: Core,
        reconcilers: Sequence[QuotaReconciler] = (),
        requeue_trigger: RequeueTrigger | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        disruption_budgets: bool = False,
        showback: Showback | None = None,
    ) -> None:
        self._core = core
        self._reconcilers = reconcilers
        self._requeue_trigger = requeue_trigger
        self._showback = showback
        self._loops = Loops(core.failures, sleep=sleep)
        self._pod_handlers: dict[tuple[str, str], Callable[[], None]] = {}
        devices = (Kind.DEVICES,) if any(scheduler.reads_devices for scheduler in core.vendors.foreign) else ()
        self._informers = {
            kind: Informer(
                core.cluster,
                kind,
                self._handler(kind),
                clock=core.clock,
                sleep=sleep,
                random=jitter,
                look_again=_LOOK_AGAIN if kind in _OPTIONAL else None,
                expected=kind is not Kind.ACCELERATOR_QUOTAS,
            )
            for kind in (*devices, *_WATCHED, *([Kind.POD_DISRUPTION_BUDGETS] if disruption_budgets else ()))
        }
        core.caches.current_within = self._informers[Kind.RESOURCE_QUOTAS].alive_within
        core.caches.namespaces_current_within = self._informers[Kind.NAMESPACES].alive_within
        core.caches.accelerator_quotas.alive_within = self._informers[Kind.ACCELERATOR_QUOTAS].alive_within

    @property
    def synced(self) -> bool:
        """Whether every cache has had its first list, or its kind can't be listed."""
        return all(informer.synced.is_set() for informer in self._informers.values())

    def ages(self) -> Iterator[tuple[Kind, float]]:
        """For how many seconds the cluster hasn't been heard of by each cache that was ever filled."""
        now = self._core.clock()
        for kind, informer in self._informers.items():
            if informer.last_alive is not None:
                yield kind, max(0.0, now - informer.last_alive)

    def sizes(self) -> Iterator[tuple[Kind, int]]:
        """How many objects each cache has."""
        yield from ((kind, informer.size) for kind, informer in self._informers.items())

    async def wait_synced(self) -> None:
        for informer in self._informers.values():
            await informer.synced.wait()

    def on_pod_change(self, namespace: str, name: str, handler: Callable[[], None]) -> None:
        """Call `handler` after each change of one pod in the cache."""
        self._pod_handlers[namespace, name] = handler

    def pods_complete(self, version: int) -> bool:
        """Whether the cache has all pods that were bound before a node got this resourceVersion.

        Not for a version of before the last list of nodes, which may hide what happened to them until then.
        """
        shown, listed = self._informers[Kind.PODS].version, self._informers[Kind.NODES].listed
        return shown.isdigit() and listed.isdigit() and int(shown) >= max(version, int(listed))

    async def run(self) -> None:
        """Keep the caches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for kind, informer in self._informers.items():
                tasks.create_task(self._loops.keep(f"{kind.value} informer", informer.run))

    def _handler(self, kind: Kind) -> Callable[[Change], None]:
        loop = f"{kind.value} informer"

        def follow(obj: JSON, *, gone: bool) -> None:
            with contained(self._core.failures, loop, _name(obj)):
                self._changed(kind, obj, gone=gone)

        def handle(change: Change) -> None:
            if isinstance(change, Replaced):
                for obj in change.items:
                    follow(obj, gone=False)
            else:
                follow(change.object, gone=change.type is WatchType.DELETED)

        return handle

    def _changed(self, kind: Kind, obj: JSON, *, gone: bool) -> None:
        core, caches = self._core, self._core.caches
        meta = obj["metadata"]
        uid, namespace, name = meta.get("uid", ""), meta.get("namespace", ""), meta["name"]
        pod_before = core.state.pod(uid) if kind is Kind.PODS else None
        view_before = core.state.view(name) if kind is Kind.NODES else None
        quota_before = caches.quota_of(kind, namespace, name)
        device_before = core.state.device(name) if kind is Kind.DEVICES else None
        namespace_before = core.known(name) if kind is Kind.NAMESPACES else None
        (caches.drop if gone else caches.put)(kind, obj)
        if kind is Kind.PODS and (namespace, name) in self._pod_handlers:
            self._pod_handlers[namespace, name]()
        if self._requeue_trigger is not None:
            if kind is Kind.PODS:
                pod = core.state.pod(uid)
                if pod is None or pod.node_name:
                    self._requeue_trigger.settled(uid)
                freed = _pod_freed(pod_before, pod)
            elif kind is Kind.NODES:
                view = core.state.view(name)
                cards_before = view_before.inventories if view_before is not None else {}
                freed = view is not None and view.inventories != cards_before
            elif kind is Kind.POD_DISRUPTION_BUDGETS:
                freed = False
            elif kind is Kind.NAMESPACES:  # its annotations may allow its pods more, its labels fewer quotas
                freed = namespace_before is not None and core.known(name) != namespace_before
            else:
                freed = self._quota_freed(quota_before, caches.quota_of(kind, namespace, name))
            if freed:
                self._requeue_trigger.freed()
        if self._showback is not None and kind is Kind.PODS:
            self._showback.pod_changed(uid)
        elif self._showback is not None and kind is Kind.NODES and view_before is not core.state.view(name):
            self._showback.node_changed(name)
        for reconciler in self._reconcilers:
            if kind is Kind.PODS:
                reconciler.pod_changed(pod_before, core.state.pod(uid))
            elif kind is reconciler.kind:
                reconciler.quota_changed(quota_before, caches.quota_of(kind, namespace, name))
            elif kind is Kind.NAMESPACES:
                reconciler.namespaces_changed()
            elif kind is Kind.NODES and _cards_of(view_before) != _cards_of(core.state.view(name)):
                reconciler.cards_changed()
            elif kind is Kind.DEVICES and (device_before is None) != (core.state.device(name) is None):
                for pod in core.state.foreign_pods_on(name):  # their charges may be completed from the registered cards
                    reconciler.touch(pod.namespace)

    def _quota_freed(self, before: ResourceQuota | None, after: ResourceQuota | None) -> bool:
        """Whether a quota may allow more than before: raised, gone, less used, no longer enforced, of other cards, or
        pods may be evicted for room in it.
        """
        if before is None:
            return False
        if after is None or (gives_room(after) and not gives_room(before)):
            return True
        old, new = QuotaAccount.read(before, self._core.vendors), QuotaAccount.read(after, self._core.vendors)
        before_selected, after_selected = before.namespaces or frozenset(), after.namespaces or frozenset()
        return (
            (old.enforced and not new.enforced)
            or old.cards != new.cards
            or not before_selected <= after_selected
            or any(
                key not in new.hard or new.hard[key] > hard or new.used.get(key, 0) < old.used.get(key, 0)
                for key, hard in old.hard.items()
            )
        )


def _cards_of(view: NodeView | None) -> object:
    """What of a node decides which of its cards a quota selects."""
    return None if view is None else (view.node.labels, view.inventories)


def _name(obj: JSON) -> str:
    """The name of an object in logs."""
    meta = obj.get("metadata")
    found = meta if isinstance(meta, dict) else {}
    return f"{found.get('namespace', '')}/{found.get('name', '')}".removeprefix("/")


def _pod_freed(before: Pod | None, after: Pod | None) -> bool:
    """Whether a pod released devices: it was deleted, it ended, or its init containers finished."""
    if before is None or before.terminal:
        return False
    return after is None or after.terminal or (after.init_finished and not before.init_finished)
