"""The pods of each namespace, and of each pod group in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TypeVar

from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import JOB, MOST_PODS, FastGroup, GroupKey, PodGroup, completed_beside

_K = TypeVar("_K", bound=Hashable)

_NAMESPACES = 256
"""In as many namespaces, the latest, deleted pods of Jobs are remembered that succeeded."""


class PodsByNamespace:
    """An index of pods by UID: all pods of a namespace, including ended ones, and the members of each pod group.

    A drain also deletes succeeded pods, which their Job doesn't replace. They are remembered, so that their pod
    group doesn't wait for them. Of each namespace as many are remembered as a group may have.
    """

    def __init__(self) -> None:
        self._namespaces: dict[str, dict[str, Pod]] = {}
        self._groups: dict[GroupKey, dict[str, Pod]] = {}
        self._group_of: dict[str, GroupKey] = {}
        self._succeeded: OrderedDict[str, OrderedDict[str, tuple[GroupKey, Pod]]] = OrderedDict()
        """Deleted pods of Jobs that succeeded, by namespace and UID, the latest last."""

    def keep(self, pod: Pod) -> None:
        """A pod was added or changed; it stays in its namespace."""
        self._namespaces.setdefault(pod.namespace, {})[pod.uid] = pod
        group = PodGroup.of(pod) or FastGroup.of(pod)
        key = None if group is None else group.key
        if key != self._group_of.get(pod.uid):
            self._leave(pod.uid)
        if key is not None:
            self._group_of[pod.uid] = key
            self._groups.setdefault(key, {})[pod.uid] = pod

    def drop(self, pod: Pod) -> None:
        """A pod is gone."""
        group = self._group_of.get(pod.uid)
        if group is not None and pod.phase == "Succeeded" and JOB in pod.labels:
            self._remember(group, pod)
        _remove(self._namespaces, pod.namespace, pod.uid)
        self._leave(pod.uid)

    def of(self, namespace: str) -> Mapping[str, Pod]:
        """The pods of a namespace."""
        return self._namespaces.get(namespace, {})

    def members(self, group: GroupKey) -> list[Pod]:
        """The pods of a group that haven't ended and aren't being deleted, the oldest first."""
        found = self._groups.get(group, {}).values()
        live = [pod for pod in found if not pod.terminal and pod.deletion_time is None]
        return sorted(live, key=lambda pod: (pod.created or 0.0, pod.uid))

    def there(self, group: GroupKey) -> list[Pod]:
        """Return the live pods of a group, oldest first, then the pods that succeeded in the group's present run."""
        live = self.members(group)
        return live + self.completed(group, live)

    def completed(self, group: GroupKey, members: Iterable[Pod]) -> list[Pod]:
        """Return the pods of a group that succeeded in the same run as `members`."""
        gone = [pod for key, pod in self._succeeded.get(group[0], {}).values() if key == group]
        return completed_beside(members, chain(self._groups.get(group, {}).values(), gone))

    def member(self, group: GroupKey) -> Pod | None:
        """Return a live pod of the first eight of a group, in constant time; None if none of these is live."""
        first = islice(self._groups.get(group, {}).values(), 8)
        return next((pod for pod in first if not pod.terminal and pod.deletion_time is None), None)

    def groups(self) -> Iterator[GroupKey]:
        """All groups that have pods."""
        yield from self._groups

    def _remember(self, group: GroupKey, pod: Pod) -> None:
        found = self._succeeded.setdefault(pod.namespace, OrderedDict())
        self._succeeded.move_to_end(pod.namespace)
        found[pod.uid] = group, pod
        if len(found) > MOST_PODS:
            found.popitem(last=False)
        if len(self._succeeded) > _NAMESPACES:
            self._succeeded.popitem(last=False)

    def _leave(self, uid: str) -> None:
        key = self._group_of.pop(uid, None)
        if key is not None:
            _remove(self._groups, key, uid)


def _remove(pods: dict[_K, dict[str, Pod]], key: _K, uid: str) -> None:
    """Remove a pod, and what is empty without it."""
    del pods[key][uid]
    if not pods[key]:
        del pods[key]
