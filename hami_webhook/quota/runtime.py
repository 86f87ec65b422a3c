"""The limit of the runtime of a quota's pods, so that each charge has a known end (docs/spec/time.md#1).

Kubernetes ends them: a limit is written as `spec.activeDeadlineSeconds`, which the API server lets nobody raise. Pure:
quotas and pods come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from msgspec import Struct

from hami_webhook.kube.human_duration import human_duration
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.enforcement import MAX_RUNTIME as MAX_RUNTIME
from hami_webhook.quota.enforcement import label_of, seconds_of
from hami_webhook.quota.pricing import Charge

DEFAULT_RUNTIME, LONGER_RUNTIME = "hami.io/quota-default-runtime", "hami.io/quota-longer-runtime"
"""The annotations; an AcceleratorQuota has fields of these names."""

_REFUSE, _CUT = "refuse", "cut"
_WITHOUT_DEADLINE = "NotTerminating"
"""The scope that pods leave with a deadline."""

STARTED_WITHIN, SETTLED_WITHIN = 10.0, 10.0
"""Seconds from a release to the pod's start, and from a pod's end until its room is free for others."""
_GRACE = 30.0
"""Seconds to end, where a pod doesn't say."""
_MOST_GRACE = 600
"""Seconds of grace that don't count as runtime: a container may compute until its grace period ends."""


class Runtime(Struct, frozen=True):
    """What a quota says of its pods' runtime, in whole seconds; None for nothing.

    `default`: the deadline for pods without one. `cuts`: lower a deadline above the limit in place of a refusal.
    """

    quota: str
    longest: int | None
    default: int | None
    cuts: bool = False

    def longest_of(self, pod: Pod) -> int | None:
        """Return the longest deadline of a pod; below 1 if its grace period leaves none."""
        return None if self.longest is None else self.longest - _grace_beyond(pod)

    def default_of(self, pod: Pod) -> int:
        """Return the deadline of a pod that has none."""
        longest = self.longest_of(pod)
        return max(1, (self.default or 0) if longest is None else min(self.default or longest, longest))

    def sets(self, pod: Pod) -> bool:
        """Return whether the deadline of a pod is one that the quota writes on it."""
        return pod.active_deadline in (self.longest_of(pod), self.default_of(pod))


class Deadline(Struct, frozen=True):
    """`activeDeadlineSeconds` that a pod gets, and what its creator is warned of."""

    seconds: int
    warning: str


def grace_of(pod: Pod) -> float:
    """Return the seconds that a pod may take to end."""
    return _GRACE if pod.grace_period is None else float(pod.grace_period)


def latest_end(pod: Pod) -> float:
    """Return when the deadline and the grace period of a pod are over, in Unix seconds; infinite if it has none, or
    isn't started.
    """
    if pod.started is None or pod.active_deadline is None:
        return inf
    return pod.started + pod.active_deadline + grace_of(pod)


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


def runtimes_of(accounts: Iterable[QuotaAccount], pod: Pod, charge: Charge) -> list[Runtime]:
    """Return what those of the quotas that a pod costs something say of its runtime."""
    found = []
    for each in accounts:
        if limits_runtime(each.quota) and each.enforced and each.concerns(pod, charge):
            found += [runtime] if (runtime := runtime_of(each.quota)) is not None else []
    return found


def deadline_of(pod: Pod, runtimes: Iterable[Runtime]) -> Deadline | None:
    """Return the deadline that a pod's quotas set on it; None if its own deadline stays, or no quota limits the
    runtime.

    A deadline that exceeds a refusing quota's limit also stays; `runtime_fault` then returns the refusal.
    """
    own, found = pod.active_deadline, [*runtimes]
    if own is None:
        least = min(((each.default_of(pod), each.quota) for each in found), default=None)
        if least is None:
            return None
        seconds, quota = least
        text = f"the pod ends {human_duration(seconds)} after its start"
        return Deadline(seconds, f"spec.activeDeadlineSeconds set to {seconds} by quota {quota}: {text}")
    limits = [(longest, each) for each in found if (longest := each.longest_of(pod)) is not None and own > longest]
    if not limits or not all(each.cuts for _, each in limits):
        return None
    longest, least_of = min(limits, key=lambda limit: (limit[0], limit[1].quota))
    text = f"cut from {own} to {max(1, longest)} by maxRuntime of quota {least_of.quota}"
    return Deadline(max(1, longest), f"spec.activeDeadlineSeconds {text}")


def runtime_fault(pod: Pod, runtimes: Iterable[Runtime]) -> str:
    """Why a pod as it is stored may not run for so long; empty if it may."""
    own = pod.active_deadline
    for each in runtimes:
        longest = each.longest_of(pod)
        if each.longest is None or longest is None or (own is not None and own <= longest):
            continue
        limit = f"maxRuntime of quota {each.quota} is {human_duration(each.longest)}"
        if own is None:
            remedy = f"set at most {max(1, longest)}, or try again if the quota was changed just now"
            return f"{limit}, but the pod has no spec.activeDeadlineSeconds; {remedy}"
        asked = f"spec.activeDeadlineSeconds {own} ({human_duration(own)})"
        if own <= each.longest:
            grace = f"spec.terminationGracePeriodSeconds {pod.grace_period} ({human_duration(grace_of(pod))})"
            most = human_duration(_MOST_GRACE)
            remedy = f"what exceeds {most} of grace counts as runtime; set at most {_MOST_GRACE}"
            return f"{grace} is too long beside {asked}: {limit}, and {remedy}"
        return f"{asked} is too long: {limit}; set at most {max(1, longest)}, or leave it out"
    return ""


def _grace_beyond(pod: Pod) -> int:
    """Return the seconds of a pod's grace period that count as runtime."""
    return max(0, (pod.grace_period or 0) - _MOST_GRACE)


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
