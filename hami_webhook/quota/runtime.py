"""The limit of the runtime of a quota's pods, so that each charge has a known end (docs/spec/time.md#1).

Kubernetes ends them: a limit is written as `spec.activeDeadlineSeconds`, which the API server lets nobody raise. Pure:
quotas and pods come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from hami_webhook.kube.human_duration import human_duration
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.enforcement import MAX_RUNTIME as MAX_RUNTIME
from hami_webhook.quota.enforcement import label_of, seconds_of

DEFAULT_RUNTIME, LONGER_RUNTIME = "hami.io/quota-default-runtime", "hami.io/quota-longer-runtime"
"""The annotations; an AcceleratorQuota has fields of these names."""

_REFUSE, _CUT = "refuse", "cut"
_WITHOUT_DEADLINE = "NotTerminating"
"""The scope that pods leave with a deadline."""

STARTED_WITHIN, SETTLED_WITHIN = 10.0, 10.0
"""Seconds from a release to the pod's start, and from a pod's end until its room is free for others."""
_GRACE = 30.0
"""Seconds to end, where a pod doesn't say."""


class Runtime(Struct, frozen=True):
    """What a quota says of its pods' runtime, in whole seconds; None for nothing.

    `default`: the deadline for pods without one. `cuts`: lower a deadline above the limit in place of a refusal.
    """

    quota: str
    longest: int | None
    default: int | None
    cuts: bool = False

    @property
    def seconds(self) -> frozenset[int]:
        """The deadlines that it writes on pods."""
        return frozenset(each for each in (self.longest, self.default) if each is not None)


class Deadline(Struct, frozen=True):
    """`activeDeadlineSeconds` that a pod gets, and what its creator is warned of."""

    seconds: int
    warning: str


def grace_of(pod: Pod) -> float:
    """Return the seconds that a pod may take to end."""
    return _GRACE if pod.grace_period is None else float(pod.grace_period)


def longest_hold(pod: Pod) -> float | None:
    """Return the most seconds for which a pod that isn't started holds its charge from now on; None if unlimited."""
    if pod.active_deadline is None:
        return None
    return STARTED_WITHIN + pod.active_deadline + grace_of(pod) + SETTLED_WITHIN


def limits_runtime(quota: ResourceQuota) -> bool:
    """Whether anything is written about runtime on a quota."""
    written = quota.annotations
    return MAX_RUNTIME in written or DEFAULT_RUNTIME in written


def runtime_of(quota: ResourceQuota) -> Runtime | None:
    """What a quota says of runtime; None for nothing, and for what can't be read, which `runtime_faults` names.

    Pods with a deadline leave the scope NotTerminating, so such a quota limits no runtime.
    """
    if not limits_runtime(quota) or any(scope.scope == _WITHOUT_DEADLINE for scope in quota.scopes):
        return None
    longest, default = _seconds(quota, MAX_RUNTIME), _seconds(quota, DEFAULT_RUNTIME)
    if longest is not None:
        default = longest if default is None else min(default, longest)
    if default is None:
        return None
    return Runtime(label_of(quota), longest, default, quota.annotations.get(LONGER_RUNTIME) == _CUT)


def deadline_of(pod: Pod, runtimes: Iterable[Runtime]) -> Deadline | None:
    """Return the deadline that a pod's quotas set on it; None if its own deadline stays, or no quota limits the
    runtime.

    A deadline that exceeds a refusing quota's limit also stays; `runtime_fault` then returns the refusal.
    """
    own, found = pod.active_deadline, [*runtimes]
    if own is None:
        least = min(found, key=lambda each: (each.default or 0, each.quota), default=None)
        if least is None or least.default is None:
            return None
        text = f"the pod ends {human_duration(least.default)} after its start"
        return Deadline(
            least.default, f"spec.activeDeadlineSeconds set to {least.default} by quota {least.quota}: {text}"
        )
    longer = [each for each in found if each.longest is not None and own > each.longest]
    if not longer or not all(each.cuts for each in longer):
        return None
    least = min(longer, key=lambda each: (each.longest or 0, each.quota))
    text = f"cut from {own} to {least.longest} by maxRuntime of quota {least.quota}"
    return Deadline(least.longest or 0, f"spec.activeDeadlineSeconds {text}")


def runtime_fault(pod: Pod, runtimes: Iterable[Runtime]) -> str:
    """Why a pod as it is stored may not run for so long; empty if it may."""
    own = pod.active_deadline
    for each in runtimes:
        if each.longest is None or (own is not None and own <= each.longest):
            continue
        limit = f"maxRuntime of quota {each.quota} is {human_duration(each.longest)}"
        if own is None:
            remedy = f"set at most {each.longest}, or try again if the quota was changed just now"
            return f"{limit}, but the pod has no spec.activeDeadlineSeconds; {remedy}"
        asked = f"spec.activeDeadlineSeconds {own} ({human_duration(own)})"
        return f"{asked} is too long: {limit}; set at most {each.longest}, or leave it out"
    return ""


def runtime_faults(quota: ResourceQuota) -> Iterator[tuple[str, str]]:
    """The annotations about runtime whose values aren't right, with what is wrong and would be right."""
    written = quota.annotations
    for key in (MAX_RUNTIME, DEFAULT_RUNTIME):
        try:
            _read(written.get(key))
        except ValueError as error:
            yield key, f"{key}: {written[key]} can't be read, so it has no effect; it {error}"
    longest, default = _seconds(quota, MAX_RUNTIME), _seconds(quota, DEFAULT_RUNTIME)
    if longest is not None and default is not None and default > longest:
        text = f"{written[DEFAULT_RUNTIME]} is longer than the longest runtime, {written[MAX_RUNTIME]}, which holds"
        yield DEFAULT_RUNTIME, f"{DEFAULT_RUNTIME}: {text}; write at most that"
    longer = written.get(LONGER_RUNTIME)
    if longer not in (None, _REFUSE, _CUT):
        text = f"{longer} isn't known, so pods with a longer deadline are refused; write {_REFUSE} or {_CUT}"
        yield LONGER_RUNTIME, f"{LONGER_RUNTIME}: {text}"
    elif longer is not None and MAX_RUNTIME not in written:
        yield LONGER_RUNTIME, f"{LONGER_RUNTIME} has no effect without {MAX_RUNTIME}; set that, too"
    if limits_runtime(quota) and any(scope.scope == _WITHOUT_DEADLINE for scope in quota.scopes):
        key = MAX_RUNTIME if MAX_RUNTIME in written else DEFAULT_RUNTIME
        text = f"has no effect with the scope {_WITHOUT_DEADLINE}, which pods leave with a deadline; remove the scope"
        yield key, f"{key} {text}"


def _seconds(quota: ResourceQuota, key: str) -> int | None:
    """What is written, in whole seconds; None for nothing, and for what can't be read."""
    try:
        return _read(quota.annotations.get(key))
    except ValueError:
        return None


def _read(text: str | None) -> int | None:
    """Raises ValueError with what would be right."""
    if text is None:
        return None
    seconds = int(seconds_of(text, 0.0))
    if seconds < 1:
        raise ValueError("must be at least 1s")
    return seconds
