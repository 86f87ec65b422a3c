"""What happens after a filter that found no node, as kube-scheduler's plugins PostFilter: others may be evicted.

Who goes, `evictions` decides, which stands on placement; here is what the extender and pod groups ask of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.kube.pod_group import GroupKey
from hami_webhook.scheduling.placer import CycleState
from hami_webhook.scheduling.protocol import Proposal


class GroupPostFilter(Protocol):
    """For pod groups of which not all members fit."""

    async def consider(
        self,
        key: GroupKey,
        due: Sequence[Pod],
        near: Collection[str],
        names: Collection[str],
        quotas: Sequence[ResourceQuota],
    ) -> str:
        """Decide who is evicted for the members `due` of a group, which don't all fit on the nodes offered; in words,
        empty for nobody. `near` are the nodes of those that are bound. Raises `ClusterError`.
        """
        ...

    def nominated_node(self, uid: str) -> str:
        """The node that is kept for a member; empty for none."""
        ...


class PostFilter(Protocol):
    """For pods that fit on no node; `groups` is for those that start together."""

    @property
    def groups(self) -> GroupPostFilter: ...

    async def consider(self, pod: Pod, found: CycleState) -> None:
        """Decide who is evicted for a pod that fits on none of the nodes that kube-scheduler offered."""
        ...

    def awaited(self, pod: Pod) -> str:
        """The node that the pod is nominated to, while kube-scheduler sees its victims ending there; else empty.

        kube-scheduler evicts nobody for the pod then, and leaves it nominated.
        """
        ...

    async def complete(
        self, pod: Pod, proposed: Mapping[str, Proposal], quotas: Sequence[ResourceQuota]
    ) -> dict[str, Proposal]:
        """kube-scheduler's candidates with all victims that the pod needs there, its devices counted too."""
        ...
