"""What follows a filter that found no node, as kube-scheduler's plugins PostFilter: others may be evicted.

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
        """What is done for the members `due`, in words."""
        ...

    def nominated_node(self, uid: str) -> str:
        """The node that is kept for a member."""
        ...


class PostFilter(Protocol):
    """For pods that fit on no node; `groups` is for those that start together."""

    groups: GroupPostFilter

    async def consider(self, pod: Pod, found: CycleState) -> None: ...

    def awaited(self, pod: Pod) -> str:
        """The node where kube-scheduler sees that victims of the pod are ending."""
        ...

    async def complete(
        self, pod: Pod, proposed: Mapping[str, Proposal], quotas: Sequence[ResourceQuota]
    ) -> dict[str, Proposal]: ...
