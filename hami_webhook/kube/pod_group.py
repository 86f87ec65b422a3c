"""Pod groups: which pods start together, and how many they are (docs/spec/queues.md#5.1)."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from hami_webhook.kube.message_text import cut
from hami_webhook.kube.objects import Pod

NAME, SIZE = "hami.io/pod-group", "hami.io/pod-group-size"
"""Labels: the group that a pod is of, and how many pods that has."""

MOST_PODS = 256
"""Pods of one group: their charges are one write, into a ledger with room for other pods too."""

_KUEUE_NAME, _KUEUE_SIZE = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
_KUEUE_FAST = "kueue.x-k8s.io/pod-group-fast-admission"
_LONGEST_NAME = 253
"""Characters of an annotation of Kueue's that names a group, as one of its Workloads."""
_COSCHEDULING_NAME = "scheduling.x-k8s.io/pod-group"

_NAMES = frozenset((NAME, _KUEUE_NAME, _COSCHEDULING_NAME))

JOB = "batch.kubernetes.io/controller-uid"
"""The label by which kube-controller-manager says of which Job a pod is."""

GroupKey = tuple[str, str]
"""A group's namespace and name."""


class PodGroup(Struct, frozen=True):
    """A group of `size` pods, two at least, of one namespace."""

    namespace: str
    name: str
    size: int

    @property
    def key(self) -> GroupKey:
        return self.namespace, self.name

    @property
    def surplus(self) -> str:
        """Why a pod beyond its size waits."""
        return f"pod group {self.name} has its {self.size} pods already"

    def differing_sizes(self, pods: Iterable[Pod]) -> str:
        """Why its pods can't start if they say different sizes; empty if they don't."""
        sizes = {each.size for pod in pods if (each := PodGroup.of(pod)) is not None}
        listed = ", ".join(map(str, sorted(sizes)))
        return f"pods of pod group {self.name} have different sizes: {listed}" if len(sizes) > 1 else ""

    @classmethod
    def of(cls, pod: Pod) -> PodGroup | None:
        """The group of a pod; None for one that starts alone, or whose labels can't be read."""
        if not pod.scheduling_group and _NAMES.isdisjoint(pod.labels) and _KUEUE_NAME not in pod.annotations:
            return None
        name = _name(pod)
        if not name:
            return None
        written = pod.labels.get(SIZE)
        if written is None and _kueue_name(pod) and not _is_fast(pod):
            written = pod.annotations.get(_KUEUE_SIZE)
        size = _size(written)
        return cls(pod.namespace, name, size) if size is not None and size > 1 else None


def completed_beside(members: Iterable[Pod], pods: Iterable[Pod]) -> list[Pod]:
    """Those of a group's pods that succeeded in the run of its live members: in the same Job, where pods are of one.

    A Job doesn't replace them, so they count as present (docs/spec/queues.md#5.1).
    """
    runs = {each.labels.get(JOB) for each in members}
    return [each for each in pods if each.phase == "Succeeded" and each.labels.get(JOB) in runs]


def pod_group_fault(pod: Pod) -> str:
    """What is wrong with our labels of a pod, and would be right; empty for nothing."""
    named, size = pod.labels.get(NAME), pod.labels.get(SIZE)
    if size is None:
        return "" if named is None else f"label {NAME} {cut(named)}: its size is missing; add a label {SIZE}"
    if _size(size) is None:
        return f"label {SIZE} {cut(size)} must be a number of pods, 1 to {MOST_PODS}"
    return "" if _name(pod) else f"label {SIZE} {size}: the group's name is missing; add a label {NAME}"


def _name(pod: Pod) -> str:
    labels = pod.labels
    return labels.get(NAME) or _kueue_name(pod) or labels.get(_COSCHEDULING_NAME) or pod.scheduling_group


class FastGroup(Struct, frozen=True):
    """A group of Kueue's with fast admission, such as that of a StatefulSet; `size` is 0 where it can't be read.

    Kueue lets each of its pods start, whether or not the others are there, and their number may change.
    """

    key: GroupKey
    size: int

    @classmethod
    def of(cls, pod: Pod) -> FastGroup | None:
        """The group of a pod; None where it is of none, or of a `PodGroup`."""
        name = _kueue_name(pod) if _is_fast(pod) else ""
        if not name or PodGroup.of(pod) is not None:
            return None
        # no label has a slash
        return cls((pod.namespace, f"{_KUEUE_NAME}/{name}"), _size(pod.annotations.get(_KUEUE_SIZE)) or 0)


def _is_fast(pod: Pod) -> bool:
    return pod.annotations.get(_KUEUE_FAST) == "true"


def _kueue_name(pod: Pod) -> str:
    """The annotation, which Kueue looks at first since 0.18, or the label."""
    name = pod.annotations.get(_KUEUE_NAME, "")
    return name if 0 < len(name) <= _LONGEST_NAME else pod.labels.get(_KUEUE_NAME, "")


def _size(text: str | None) -> int | None:
    """A size; None for what is none."""
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_PODS))):
        return None
    size = int(text)
    return size if 1 <= size <= MOST_PODS else None
