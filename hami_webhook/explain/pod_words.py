"""What a pod's own status and events say of why it waits: the only witnesses where the nodes can't be seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hami_webhook.kube.conditions import is_unscheduled
from hami_webhook.kube.human_duration import human_duration
from hami_webhook.kube.objects import QUOTA_RESERVED, format_time, parse_time

_MOST_EVENTS = 3
"""Reasons of which the newest event is shown."""
_LONGEST = 600
"""Characters of a message: kube-scheduler's have a part for each reason of a node."""
_LONGEST_REASON = 240
_PREEMPTION = " preemption: "
"""Before what kube-scheduler says of evicting others, which repeats most of what is before it."""


def pod_words(pod: Mapping[str, Any], events: Sequence[Mapping[str, Any]], now: float) -> list[str]:
    """Sentences with the newest event of each reason, the newest first, then the conditions that don't repeat them.

    Texts are somebody's: they are put on one line and cut. `now` is in Unix seconds.
    """
    newest = list(_newest(events))
    sentences = [_sentence(event, now) for event in newest[:_MOST_EVENTS]]
    messages = {_line(event.get("message")) for event in newest}
    sentences += [text for text, message in _conditions(pod) if message not in messages]
    return sentences


def waiting_reason(pod: Mapping[str, Any]) -> str:
    """Why a pod isn't scheduled, as its status says, on a line and cut; empty where it doesn't say."""
    if queued := quota_reason(pod):
        return queued
    for condition in _mappings(_mapping(pod.get("status")).get("conditions")):
        if is_unscheduled(condition):
            message, _, _ = _line(condition.get("message")).partition(_PREEMPTION)
            return _line(message or condition.get("reason"), _LONGEST_REASON)
    return ""


def quota_reason(pod: Mapping[str, Any]) -> str:
    """What a pod waits for that waits for quota, as its condition says, on a line and cut; empty for others."""
    for condition in _mappings(_mapping(pod.get("status")).get("conditions")):
        if condition.get("type") == QUOTA_RESERVED and condition.get("status") == "False":
            return _line(condition.get("message"), _LONGEST_REASON)
    return ""


def scheduler_says(pod: Mapping[str, Any], text: str) -> bool:
    """Whether kube-scheduler's newest words about a pod that isn't scheduled have a text in them."""
    conditions = _mappings(_mapping(pod.get("status")).get("conditions"))
    return any(is_unscheduled(each) and text in str(each.get("message")) for each in conditions)


def _newest(events: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The newest event of each reason, the newest first."""
    seen = set()
    for event in sorted(events, key=_time, reverse=True):
        reason = event.get("reason")
        if reason not in seen:
            seen.add(reason)
            yield event


def _time(event: Mapping[str, Any]) -> float:
    """When an event happened last, in Unix seconds."""
    series = _mapping(event.get("series"))
    texts = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((at for text in texts if (at := _seconds(text)) is not None), 0.0)


def _seconds(text: object) -> float | None:
    """Unix seconds of a time; None where that can't be read."""
    with suppress(ValueError):
        return parse_time(text) if isinstance(text, str) else None
    return None


def _sentence(event: Mapping[str, Any], now: float) -> str:
    source = event.get("reportingComponent") or _mapping(event.get("source")).get("component") or "somebody"
    count = _mapping(event.get("series")).get("count") or event.get("count")
    times = f", {count} times" if isinstance(count, int) and count > 1 else ""
    at = _time(event)
    ago = f", {human_duration(now - at)} ago" if at else ""
    return f"event {_line(event.get('reason'))} of {_line(source)}{times}{ago}: {_line(event.get('message'))}"


def _conditions(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Why the pod isn't scheduled, and what its containers wait for, each with the message alone."""
    status = _mapping(pod.get("status"))
    for condition in _mappings(status.get("conditions")):
        if is_unscheduled(condition):
            message = _line(condition.get("message"))
            since = _seconds(condition.get("lastTransitionTime"))
            when = f" since {format_time(since)}" if since is not None else ""
            yield f"not scheduled{when}: {_joined(_line(condition.get('reason')), message)}", message
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in _mappings(status.get(key)):
            waiting = _mapping(_mapping(container.get("state")).get("waiting"))
            if waiting:
                message = _line(waiting.get("message"))
                reason = _joined(_line(waiting.get("reason")), message)
                yield f"container {_line(container.get('name'))} waits: {reason}", message or reason


def _joined(reason: str, message: str) -> str:
    return f"{reason}: {message}" if reason and message else reason or message


def _line(text: object, longest: int = _LONGEST) -> str:
    """A text as part of one line."""
    words = " ".join(text.split()) if isinstance(text, str) else ""
    return words if len(words) <= longest else f"{words[: longest - 1]}…"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
