"""What changes free devices or quota, so that kube-scheduler has to try again what was refused."""

from __future__ import annotations

from hami_webhook.cluster.api import Kind
from hami_webhook.devices.model import NodeView
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Namespace, Pod, ResourceQuota
from hami_webhook.kube.pod_group import PodGroup
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.enforcement import gives_room
from hami_webhook.scheduling.requeue_trigger import RequeueTrigger
from hami_webhook.state.caches import Change, Subscriptions


class CapacityNotifier:
    """Reports to the trigger which pods are settled, and when a retry may succeed."""

    def __init__(self, trigger: RequeueTrigger, vendors: Vendors) -> None:
        self._trigger = trigger
        self._vendors = vendors

    def subscriptions(self) -> Subscriptions:
        return {
            Kind.PODS: self._pod_changed,
            Kind.NODES: self._node_changed,
            Kind.NAMESPACES: self._namespace_changed,
            Kind.RESOURCE_QUOTAS: self._quota_changed,
            Kind.ACCELERATOR_QUOTAS: self._quota_changed,
        }

    def _pod_changed(self, change: Change[Pod]) -> None:
        """A pod releases devices when it is deleted, when it ends, and when its init containers have finished.

        One of a group lets others be placed when it may be placed itself.
        """
        before, after = change.before, change.after
        if _may_be_placed(after) and not _may_be_placed(before) and after and PodGroup.of(after):
            self._trigger.freed()
        if after is None or after.node_name:
            self._trigger.settled(change.key.uid)
        if before is None or before.terminal:
            return
        if after is None or after.terminal or (after.init_finished and not before.init_finished):
            self._trigger.freed()

    def _node_changed(self, change: Change[NodeView]) -> None:
        before, after = change.before, change.after
        cards, unhealthy = ({}, {}) if before is None else (before.inventories, before.unhealthy)
        if after is not None and (after.inventories != cards or unhealthy.keys() - after.unhealthy.keys()):
            self._trigger.freed()

    def _namespace_changed(self, change: Change[Namespace]) -> None:
        """Its annotations may allow its pods more, its labels fewer quotas."""
        if change.before is not None and change.after != change.before:
            self._trigger.freed()

    def _quota_changed(self, change: Change[ResourceQuota]) -> None:
        if change.before is not None and self._allows_more(change.before, change.after):
            self._trigger.freed()

    def _allows_more(self, before: ResourceQuota, after: ResourceQuota | None) -> bool:
        """Whether a quota may allow more than before: raised, gone, less used, no longer enforced, of other cards, or
        pods may be evicted for room in it.
        """
        if after is None or (gives_room(after) and not gives_room(before)):
            return True
        old, new = QuotaAccount.read(before, self._vendors), QuotaAccount.read(after, self._vendors)
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


def _may_be_placed(pod: Pod | None) -> bool:
    return pod is not None and not pod.gated and not pod.node_name
