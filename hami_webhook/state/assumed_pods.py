"""Placements that this process decided; the pods' events may arrive late (docs/spec/core.md#10.4).

Events older than a placement must not free its devices. So the pod counts with its assumed placement until an event
shows the placement. An older event or answer must not restore an abandoned placement, and a late answer must not
restore a deleted pod. What is remembered for this is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from msgspec import Struct, structs
from msgspec.structs import replace

from hami_webhook.devices.placement_annotations import BIND_PHASE, NOMINATED_NODE, NOMINATED_UNTIL
from hami_webhook.devices.reserved_annotations import is_scheduler_owned
from hami_webhook.kube.objects import Pod

_OF_NO_PLACEMENT = frozenset((BIND_PHASE, "hami.io/bind-time", NOMINATED_NODE, NOMINATED_UNTIL))

_GIVEN_UP = 8
"""As many placements that a pod gave up are known again: events of them may still be on their way."""

_GONE = 8192
"""As many ids of pods that are gone are remembered: no late answer brings them back, and no ledger keeps them."""


class AssumedPod(Struct, frozen=True):
    """The annotations that are being written on a pod, and the pod as last observed (None if never)."""

    annotations: Mapping[str, str]
    observed: Pod | None


class AssumedPods:
    """The assumed placements by pod UID, the abandoned placements, and the deleted pods."""

    def __init__(self) -> None:
        self._assumed: dict[str, AssumedPod] = {}
        self._given_up: dict[str, list[Mapping[str, str]]] = {}
        self.gone: OrderedDict[str, None] = OrderedDict()
        """The ledger ids of pods that are gone, the latest last."""

    def assume(self, pod: Pod, known: Pod | None) -> None:
        """Count the placement that the pod carries from now on, even if it was given up before.

        `known` is the cached pod.
        """
        annotations, given_up = _written(pod), self._given_up.get(pod.uid)
        if given_up and annotations in given_up:
            given_up.remove(annotations)
        self._assumed[pod.uid] = AssumedPod(annotations, self.observed(pod.uid, known))

    def observed(self, uid: str, known: Pod | None) -> Pod | None:
        """Return the pod as last observed, without the assumed placement. `known` is the cached pod, with it."""
        assumed = self._assumed.get(uid)
        return known if assumed is None else assumed.observed

    def observe(self, pod: Pod) -> Pod:
        """The pod of an event, with the placement it is assumed to get if the event may be older than that."""
        self.gone.pop(pod.uid, None)
        if pod.node_name:
            self._given_up.pop(pod.uid, None)
        assumed = self._assumed.get(pod.uid)
        if assumed is None:
            return pod
        if pod.node_name or _placement_of(pod).items() >= assumed.annotations.items():
            del self._assumed[pod.uid]
            return pod
        self._assumed[pod.uid] = replace(assumed, observed=pod)
        others = {key: text for key, text in pod.annotations.items() if not is_scheduler_owned(key)}
        return structs.replace(pod, annotations={**others, **assumed.annotations})

    def forget(self, uid: str) -> Pod | None:
        """Drop what is assumed of a pod. Return the pod as last observed, or None if nothing was assumed."""
        assumed = self._assumed.pop(uid, None)
        return None if assumed is None else assumed.observed

    def give_up(self, pod: Pod) -> None:
        """Mark the pod's placement as abandoned: it won't be bound."""
        annotations, given_up = _written(pod), self._given_up.setdefault(pod.uid, [])
        if annotations not in given_up:
            given_up.append(annotations)
            del given_up[:-_GIVEN_UP]

    def is_given_up(self, pod: Pod) -> bool:
        """Whether the placement that the pod carries was given up, so that others may have its cards."""
        given_up = self._given_up.get(pod.uid)
        return given_up is not None and not pod.node_name and _written(pod) in given_up

    def remove(self, uid: str, charge_ids: Iterable[str]) -> None:
        """A pod is gone."""
        self._given_up.pop(uid, None)
        self._assumed.pop(uid, None)
        for identity in charge_ids:
            self.gone[identity] = None
            if len(self.gone) > _GONE:
                self.gone.popitem(last=False)


def _placement_of(pod: Pod) -> dict[str, str]:
    """The scheduler-owned annotations of a pod: what a placement wrote."""
    return {key: text for key, text in pod.annotations.items() if is_scheduler_owned(key)}


def _written(pod: Pod) -> dict[str, str]:
    """What a placement wrote when it was decided: what a bind or a nomination adds is no other placement."""
    return {key: text for key, text in _placement_of(pod).items() if key not in _OF_NO_PLACEMENT}
