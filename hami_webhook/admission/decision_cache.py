"""Decisions of admission, cached for pods that differ in name, UID and volumes only: pods come in bursts.

A decision is cached if it follows from the pod, its Namespace and the policies alone; `RecordingDeviceLister` notes
whether it depended on the cluster's devices.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import orjson

from hami_webhook.admission.review import Review
from hami_webhook.kube.objects import Namespace, parse_time
from hami_webhook.policy.rules import PolicyRules

T = TypeVar("T")

_MOST = 256
_LARGEST = 32 * 1024
"""Bytes of a pod's JSON above which it isn't remembered."""
_MOST_CONTAINERS = 500
"""Containers above which its JSON isn't even written."""

_OWN = ("name", "generateName", "uid", "creationTimestamp")
"""What of its metadata each pod has for itself, as texts. Nothing remembered may depend on it, nor on volumes."""

_UNREAD = {*_OWN, "managedFields"}
_TEXT = (str, type(None))


class DecisionCache(Generic[T]):
    """Outcomes by what pods have in common. One holds in the same unchanged Namespace, under the same policies."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Namespace, PolicyRules, T]] = {}

    def lookup(self, shape: bytes | None, namespace: Namespace | None, policies: PolicyRules) -> T | None:
        """What came of such a pod before; None if that isn't known, or may be something else now."""
        found = self._known.get(shape) if shape is not None else None
        return found[2] if found is not None and found[0] is namespace and found[1] is policies else None

    def keep(self, shape: bytes | None, namespace: Namespace | None, policies: PolicyRules, outcome: T) -> None:
        """Remember what came of a pod; the oldest is forgotten for it."""
        if shape is None or namespace is None:
            return
        self._known.pop(shape, None)
        if len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        self._known[shape] = namespace, policies, outcome


def shape_of(review: Review) -> bytes | None:
    """All of a review's pod that an outcome may depend on; None for a pod that is too large or odd."""
    meta, spec = review.object.get("metadata"), review.object.get("spec")
    if type(meta) is not dict or type(spec) is not dict or not all(type(meta.get(key)) in _TEXT for key in _OWN):
        return None
    common = {key: value for key, value in meta.items() if key not in _UNREAD}
    written = [spec.get(place) for place in ("initContainers", "containers")]
    if any(type(containers) is list and len(containers) > _MOST_CONTAINERS for containers in written):
        return None
    containers = [_without_mounts(containers) for containers in written]
    rest = {**spec, "volumes": None, "initContainers": None, "containers": None}
    try:
        if created := meta.get("creationTimestamp"):
            parse_time(created)
        shape = orjson.dumps((review.namespace, common, containers, rest, review.object.get("status")))
    except (ValueError, TypeError):  # no time, or nested deeper than can be written
        return None
    return shape if len(shape) <= _LARGEST else None


def _without_mounts(containers: Any) -> Any:
    """Containers but for their volumes: the API server mounts one with a name of its own in each."""
    if type(containers) is not list:
        return containers
    return [
        {key: value for key, value in each.items() if key != "volumeMounts"} if type(each) is dict else each
        for each in containers
    ]
