"""What a pod waits for in a queue, as a sentence for everybody who may see the pod (docs/spec/queues.md#4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import ceil

from hami_webhook.kube.human_duration import human_duration
from hami_webhook.kube.message_text import counted
from hami_webhook.kube.objects import Pod, format_time, parse_time
from hami_webhook.quota.queue_order import OtherLimit, PendingReason, QueuePosition, Shortfall

WAITING, ABOVE_HARD, BUDGET_SPENT, OTHER_LIMIT, INCOMPLETE, REFUSED, RESERVED = (
    "Waiting",
    "AboveHard",
    "BudgetSpent",
    "OtherLimit",
    "PodGroupIncomplete",
    "ChargeRefused",
    "Reserved",
)
QUEUE_REASONS = WAITING, ABOVE_HARD, BUDGET_SPENT, OTHER_LIMIT, INCOMPLETE, REFUSED, RESERVED


def reason_of(obstacle: PendingReason) -> str:
    """The reason of the condition of a pod that waits."""
    if obstacle.incomplete or obstacle.refused:
        return INCOMPLETE if obstacle.incomplete else REFUSED
    if obstacle.spent:
        return BUDGET_SPENT
    if obstacle.window is not None:
        return OTHER_LIMIT
    return ABOVE_HARD if obstacle.never else WAITING


def sentence(standing: QueuePosition, pod_of: Callable[[str], Pod | None], note: str = "") -> str:
    """What stands in the pod's way, and how many are before it; `note` is what is reclaimed for it, or why nothing is.

    Pods are named in their own namespace only: of a quota of several, tenants don't learn each other's.
    """
    obstacle, namespace = standing.obstacle, standing.pod.key.partition("/")[0]
    if obstacle.incomplete:
        return obstacle.incomplete
    if obstacle.refused:
        return f"{_REFUSED}: {obstacle.refused}"
    if obstacle.spent:
        return f"{_SPENT}{obstacle.spent}"
    if obstacle.window is not None:
        return f"{_OTHER_LIMIT}{_other_limit(obstacle.window)}"
    parts = []
    if obstacle.closed:
        parts.append(f"{quota_named(obstacle.closed)} lets no pod pass those that wait before it")
    if obstacle.kept_for:
        mine = [pod.name for uid in obstacle.kept_for if (pod := pod_of(uid)) and pod.namespace == namespace]
        parts.append(f"{_KEPT}{', '.join(mine) or 'pods of other namespaces'}")
    if note:
        parts.append(note)
    if standing.start is not None:
        at, why = standing.start.at, standing.start.why
        parts.append(f"{_STARTS}{why}" if at is None else f"starts by {format_time(ceil(at))} at the latest")
    return waiting_sentence(obstacle.lacks, parts, standing.ahead, never=obstacle.never)


def _other_limit(other: OtherLimit) -> str:
    """What a pod needs, when a limit is too low for it, and what to do."""
    needs = (
        f"needs {other.requested} {resource_of(other.key)}, and {quota_named(other.quota)} has a limit of {other.hard}"
    )
    when = other.stretch
    if other.comes:
        begins = "later" if when is None else f"from {format_time(when.begin)} on{when.source}"
        return f"{needs} {begins}, before the pod surely ends; set a shorter activeDeadlineSeconds, or wait"
    return f"{needs} now" if when is None else f"{needs} until {format_time(when.begin)}"


def waiting_sentence(lacks: Sequence[Shortfall], others: Sequence[str], ahead: int | None, *, never: bool) -> str:
    """Return the sentence that a pod waits for what its quotas lack, and its place.

    `ahead` is None if the number before it isn't known.

    `others` are said between the two. `never`: it costs more than a limit, which has to be raised.
    """
    by_quota: dict[str, list[Shortfall]] = {}
    for lack in lacks:
        by_quota.setdefault(lack.quota, []).append(lack)
    amount = _above if never else _short
    texts = [f"{quota_named(quota)}: needs {' and '.join(map(amount, each))}" for quota, each in by_quota.items()]
    first = f"Waits for {', and for '.join(texts)}" if texts else "Waits for its turn"
    if never:
        return f"{first}; it waits until the limit is raised"
    waits = "waits" if ahead == 1 else "wait"
    place = [] if ahead is None else [_FIRST if ahead == 0 else f"{counted(ahead, 'pod')} {waits} before it"]
    return "; ".join((first, *others, *place))


def _short(lack: Shortfall) -> str:
    return f"{lack.requested} {resource_of(lack.key)}, {max(0, lack.free)} free of {lack.hard}"


def _above(lack: Shortfall) -> str:
    return f"{lack.requested} {resource_of(lack.key)}, limited to {lack.hard}"


_FIRST = "first in line"
_KEPT = "room is kept for "
_SPENT = "Waits for the next period: "
_OTHER_LIMIT = "Waits for another time: "
_REFUSED = "others are charged before it until its charge succeeds"
_STARTS = "its start isn't known: "
_AHEAD = re.compile(rf"(?:(?P<number>no|[0-9]{{1,9}}) pods? waits? before it|{_FIRST})$")


def ahead_in(text: str) -> int | None:
    """How many pods wait before one by such a sentence, also of the version before; None where it doesn't say."""
    found = _AHEAD.search(text)
    return None if found is None else 0 if found["number"] in (None, "no") else int(found["number"])


def note_in(text: str) -> str:
    """What such a sentence says of what is reclaimed; empty where it says nothing."""
    return next((part for part in text.split("; ") if _NOTE.search(part)), "")


def start_in(text: str) -> str:
    """When the pod starts by such a sentence, or why that isn't known; empty where it says nothing."""
    return next((part for part in text.split("; ") if part.startswith((_STARTS, "starts by "))), "")


def kept_in(text: str) -> str:
    """For which pods such a sentence says that room is kept; empty where it says nothing."""
    return next((part for part in text.split("; ") if part.startswith(_KEPT)), "")


def amounts_in(text: str) -> str:
    """What such a sentence says of what is needed, free and limited."""
    return text.partition("; ")[0]


def earliest(at: float) -> str:
    """When something is possible, in a sentence that is stored: at a time (Unix seconds)."""
    return f"earliest at {format_time(at)}"


def with_durations(text: str, now: float) -> str:
    """The sentence with how long that is from `now` (Unix seconds), where it says when: `earliest in 9m35s`."""

    def duration(found: re.Match[str]) -> str:
        try:
            return f"{_IN[found[1]]} {human_duration(parse_time(found[2]) - now)}"
        except ValueError:  # a condition is its pod's: anybody may have written it
            return found[0]

    return _EARLIEST.sub(duration, text)


_IN = {"earliest at": "earliest in", "starts by": "starts within"}
_EARLIEST = re.compile(r"(earliest at|starts by) ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z)", re.ASCII)


def refused_in(text: str) -> bool:
    """Whether such a sentence says that the pod waits for another reason than room, that only the leader knows."""
    return text.startswith((_REFUSED, _SPENT, _OTHER_LIMIT))


_NOTE = re.compile(r"^nobody is evicted for it: | evicted for ")


def resource_of(key: str) -> str:
    """The resource that a quota's key counts: `nvidia.com/gpu` of `limits.nvidia.com/gpu`."""
    return key.removeprefix("limits.").removeprefix("requests.")


def quota_named(name: str) -> str:
    """Name a quota for a message.

    `team/gpu-quota` and `gpu-quota` give `quota gpu-quota`, `AcceleratorQuota/all` gives `AcceleratorQuota all`.
    """
    namespace, slash, own = name.partition("/")
    return f"{namespace} {own}" if slash and namespace[:1].isupper() else f"quota {own or namespace}"
