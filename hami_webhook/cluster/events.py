"""Recording Kubernetes events without flooding the API server: repeats are counted, not repeated.

The rules of client-go's recorder: the same message about the same object raises a count; many messages of one reason
about one object become one; and there is a budget of events for each object. Ours is for each reason, too: a pod that
kube-scheduler tries many times in a second must not lose the one event that says who was evicted for it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

from msgspec import Struct

from hami_webhook.cluster.api import JSON, EventNote
from hami_webhook.kube.objects import format_time

_REMEMBERED = 4096
_SIMILAR_WITHIN = 600.0
_SIMILAR_AT_MOST = 10
_BURST = 25.0
_REFILL_SECONDS = 300.0
_NAMESPACE_OF_CLUSTER_OBJECTS = "default"
_API_VERSIONS = {"AcceleratorQuota": "hami.io/v1alpha1", "DeviceClass": "resource.k8s.io/v1"}
"""Versions of the kinds that events are about; `v1` for those not listed."""


class Recording(Struct, frozen=True):
    """What to do for a note: create `body`, or patch the event called `name` with it; `key` is what to remember."""

    namespace: str
    name: str
    body: JSON
    create: bool
    key: EventNote


class _KnownEvent(Struct):
    name: str
    count: int
    first: float


class _Series(Struct):
    messages: OrderedDict[str, float]


class _EventAllowance(Struct):
    left: float
    at: float


class EventCorrelator:
    """Decides what an event note becomes. Times are Unix seconds."""

    def __init__(self, component: str, instance: str) -> None:
        self._component = component
        self._instance = instance
        self._known: OrderedDict[EventNote, _KnownEvent] = OrderedDict()
        self._series: OrderedDict[EventNote, _Series] = OrderedDict()
        self._uncounted: OrderedDict[EventNote, int] = OrderedDict()
        self._budgets: OrderedDict[tuple[str, str, str, str], _EventAllowance] = OrderedDict()

    def correlate(self, note: EventNote, now: float) -> Recording | None:
        """What to write for the note; None if its object has had too many events of this reason.

        The next such note counts those times too.
        """
        if not self._afford(note, now):
            self._uncounted[note] = self._uncounted.pop(note, 0) + note.times
            _trim(self._uncounted)
            return None
        note = replace(self._aggregated(note, now), times=note.times + self._uncounted.pop(note, 0))
        namespace = note.namespace or _NAMESPACE_OF_CLUSTER_OBJECTS
        known = self._known.get(note)
        if known is not None:
            body: JSON = {"count": known.count + note.times, "lastTimestamp": format_time(now)}
            return Recording(namespace, known.name, body, create=False, key=note)
        name = f"{note.name}.{int(now * 1e6):x}"
        return Recording(namespace, name, self._body(note, namespace, name, now), create=True, key=note)

    def recorded(self, recording: Recording, now: float) -> None:
        """The cluster took it."""
        known = self._known.pop(recording.key, None)
        if recording.create or known is None:
            known = _KnownEvent(recording.name, 0, now)
        known.count += recording.key.times
        self._known[recording.key] = known
        _trim(self._known)

    def lost(self, recording: Recording) -> None:
        """The event that was to be counted up isn't there any longer."""
        self._known.pop(recording.key, None)

    def _afford(self, note: EventNote, now: float) -> bool:
        key = (note.namespace, note.name, note.kind, note.reason)
        budget = self._budgets.pop(key, None) or _EventAllowance(_BURST, now)
        budget.left = min(_BURST, budget.left + max(0.0, now - budget.at) / _REFILL_SECONDS)
        budget.at = now
        self._budgets[key] = budget
        _trim(self._budgets)
        if budget.left < 1:
            return False
        budget.left -= 1
        return True

    def _aggregated(self, note: EventNote, now: float) -> EventNote:
        """The note, or one for the whole series where its reason came with too many messages lately."""
        whole = replace(note, message="")
        series = self._series.pop(whole, None) or _Series(OrderedDict())
        series.messages.pop(note.message, None)
        series.messages[note.message] = now
        for message, at in list(series.messages.items()):
            if now - at > _SIMILAR_WITHIN:
                del series.messages[message]
        self._series[whole] = series
        _trim(self._series)
        if len(series.messages) <= _SIMILAR_AT_MOST:
            return note
        return replace(note, message=f"(combined from similar events): {next(iter(series.messages))}")

    def _body(self, note: EventNote, namespace: str, name: str, now: float) -> JSON:
        about = {"kind": note.kind, "name": note.name, "apiVersion": _API_VERSIONS.get(note.kind, "v1")}
        about |= {"namespace": note.namespace} if note.namespace else {}
        about |= {"uid": note.uid} if note.uid else {}
        stamp = format_time(now)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": about,
            "type": note.type,
            "reason": note.reason,
            "message": note.message[:1024],
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
            "count": note.times,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
        }


def _trim(remembered: OrderedDict[Any, Any]) -> None:
    while len(remembered) > _REMEMBERED:
        remembered.popitem(last=False)
