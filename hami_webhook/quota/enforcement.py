"""Whether a quota refuses what is over it, lets it wait, or only counts it (docs/spec/quota.md#7.1, queues.md#1)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from hami_webhook.config.go_syntax import parse_go_duration
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.queue_order import OVERTAKING, QueueOrder

ENFORCEMENT = "hami.io/quota-enforcement"
QUEUE_ORDER, QUEUE_OVERTAKING = "hami.io/quota-queue-order", "hami.io/quota-queue-overtaking"
MAX_RUNTIME = "hami.io/quota-max-runtime"
OBSERVED = "hami.io/quota-observed"
"""The annotation with the number of charges that passed although the quota had no room for them."""

_BEST_EFFORT, _STRICT = "best-effort", "strict"
_LONGEST = 30 * 24 * 3600.0


class Enforcement(Enum):
    """The values of the annotation `ENFORCEMENT`."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    QUEUE = "queue"

    @classmethod
    def of(cls, quota: ResourceQuota) -> Enforcement:
        """What is written on a quota; any value that isn't known enforces."""
        return _ENFORCEMENTS.get(quota.annotations.get(ENFORCEMENT, ""), cls.ENFORCE)


_ENFORCEMENTS = {each.value: each for each in Enforcement}


def queue_order(quota: ResourceQuota) -> QueueOrder:
    """Return the queue's order of a quota; unreadable values are ignored."""
    strict = quota.annotations.get(QUEUE_ORDER) == _STRICT
    default = 0.0 if MAX_RUNTIME in quota.annotations else OVERTAKING
    try:
        overtaking = seconds_of(quota.annotations.get(QUEUE_OVERTAKING), default)
    except ValueError:
        overtaking = default
    return QueueOrder(strict, overtaking)


def enforcement_faults(quota: ResourceQuota) -> Iterator[tuple[str, str]]:
    """Yield the enforcement annotations with invalid values, each with the fault and valid values."""
    written = quota.annotations
    value = written.get(ENFORCEMENT)
    if value is not None and value not in _ENFORCEMENTS:
        text = f"{value} isn't known, so the quota is enforced; write observe, queue or enforce"
        yield ENFORCEMENT, f"{ENFORCEMENT}: {text}"
    order = written.get(QUEUE_ORDER)
    if order not in (None, _BEST_EFFORT, _STRICT):
        text = f"{order} isn't known, so small pods may pass large ones; write {_BEST_EFFORT} or {_STRICT}"
        yield QUEUE_ORDER, f"{QUEUE_ORDER}: {text}"
    try:
        seconds_of(written.get(QUEUE_OVERTAKING), OVERTAKING)
    except ValueError as error:
        text = f"{written[QUEUE_OVERTAKING]} can't be read, so it is 10m; it {error}"
        yield QUEUE_OVERTAKING, f"{QUEUE_OVERTAKING}: {text}"
    queues = Enforcement.of(quota) is Enforcement.QUEUE
    for key in (QUEUE_ORDER, QUEUE_OVERTAKING):
        if key in written and not queues:
            yield key, f"{key} has no effect, as the quota doesn't queue; write {ENFORCEMENT}: queue"


def label_of(quota: ResourceQuota) -> str:
    """Return the name of a quota in sentences that may name quotas of both kinds."""
    return quota.name if quota.namespaces is None else f"{quota.kind}/{quota.name}"


def seconds_of(text: str | None, default: float) -> float:
    """The seconds of a duration that is written on a quota. Raises ValueError with what would be right."""
    if text is None:
        return default
    seconds = parse_go_duration(text)
    if seconds > _LONGEST:
        raise ValueError("must be at most 720h")
    return seconds


def observed_charges(quota: ResourceQuota) -> int:
    """The number in the annotation `OBSERVED`; 0 for what is none."""
    text = quota.annotations.get(OBSERVED, "")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 16 else 0


QUOTA_PREEMPTION = "hami.io/quota-preemption"
"""Whether pods of lower priority may be evicted for room in a quota (docs/preemption.md#quota)."""


def gives_room(quota: ResourceQuota) -> bool:
    """Return whether the quota's annotation allows evictions for room; only the value `true` does."""
    return quota.annotations.get(QUOTA_PREEMPTION) == "true"
