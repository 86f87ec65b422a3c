"""Which limits of a quota with windows hold at a time, and for a pod until its end (docs/spec/time.md#6.2).

Pure. A higher limit holds once the leader has written it into the status, a lower one at once: the smaller of the
status and of the windows at the time that is asked for. So a leader that is late, and clocks that differ, admit
nothing beyond a limit. Quotas without windows are returned as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from msgspec.structs import replace

from hami_webhook.kube.objects import Pod, format_time
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.runtime import longest_hold
from hami_webhook.quota.windows import FOREVER, HeldLimits, LimitStretch

_MOST_APART = 60.0
"""Seconds by which the clocks of two leaders may differ; a later time in a status is nobody's."""


def limited_at(account: QuotaAccount, now: float) -> QuotaAccount:
    """Return the account with the limits that hold at `now` (Unix seconds)."""
    schedule = account.schedule
    if schedule is None:
        return account
    stretch, held = schedule.at(now), account.held
    hard = {key: min(limit, stretch.hard[key]) for key, limit in account.hard.items()}
    source: LimitStretch | HeldLimits = stretch
    if held is not None and any(limit < stretch.hard[key] for key, limit in hard.items()):
        source = held
    text = f"; this limit holds until {format_time(source.until)}{source.source}" if source.until < FOREVER else ""
    if source.until <= now:
        text = "; a higher limit holds as soon as the leader of the controller has written it; try again"
    return replace(account, hard=hard, limited_by=text)


def all_limited_at(accounts: Mapping[str, QuotaAccount], now: float) -> Mapping[str, QuotaAccount]:
    """Return the accounts with the limits that hold at `now`; the same if none has windows."""
    for account in accounts.values():
        if account.schedule is not None:
            return {name: limited_at(each, now) for name, each in accounts.items()}
    return accounts


def limited_until_end(account: QuotaAccount, pod: Pod, now: float) -> QuotaAccount:
    """Return the account with the lowest limits from `now` until the end of a pod that isn't started.

    That is the account of `limited_at`, if no lower limit comes before that.
    """
    schedule = account.schedule
    if schedule is None:
        return account
    held = limited_at(account, now)
    seconds = longest_hold(pod)
    lowest = schedule.lowest(now, inf if seconds is None else now + seconds)
    hard = {key: min(limit, lowest[key].amount) for key, limit in held.hard.items()}
    if hard == held.hard:
        return held
    return replace(held, hard=hard, limited_by=f"; {until_end(held, hard, now)}")


def until_end(account: QuotaAccount, lower: Mapping[str, int], now: float) -> str:
    """Return the sentence that limits fall to these before a pod's end, and what to do."""
    schedule = account.schedule
    stretches: Iterable[LimitStretch | None] = ()
    if schedule is not None:
        stretches = [schedule.first_below(now, key, lower[key] + 1) for key in lower if lower[key] < account.hard[key]]
    first = min((each for each in stretches if each is not None), key=lambda each: each.begin, default=None)
    when = "later" if first is None else f"from {format_time(first.begin)} on{first.source}"
    return f"it is lower {when}, and the pod may run beyond that; set a shorter activeDeadlineSeconds, or wait"


def ever_limited(account: QuotaAccount, pod: Pod, now: float) -> QuotaAccount:
    """Return the account with the highest limits that a pod may ever have: with no deadline the lowest of all."""
    if account.schedule is None:
        return account
    if pod.active_deadline is None:
        return limited_until_end(account, pod, now)
    return replace(account, hard=account.schedule.ever(now), limited_by="")


def written_at(account: QuotaAccount, now: float) -> QuotaAccount:
    """Return the account as the leader writes it at `now`: with the limits that hold, and until when.

    A leader whose clock is behind that of the last writer changes nothing, nor does anybody while an amount is unknown.
    """
    schedule, held = account.schedule, account.held
    if schedule is None or account.unshared or (held is not None and 0 < held.since - now < _MOST_APART):
        return account
    target = HeldLimits.of(schedule.at(now), now)
    if target.equals(held):
        return account
    return replace(account, hard={**account.hard, **target.hard}, held=target)


def described(account: QuotaAccount, now: float) -> str:
    """Return what holds until when, and what then, of the keys that change then; empty if none ever does.

    `limits.nvidia.com/gpu: 4 until 2026-11-30T06:00:00Z (window 0 20 * * 1-5), then 20`.
    """
    if account.schedule is None:
        return ""
    first, *others = account.schedule.changes(now, 2)
    if not others:
        return ""
    second, until = others[0], f"until {format_time(first.end)}{first.source}"
    keys = [key for key, amount in sorted(first.hard.items()) if second.hard[key] != amount]
    amounts = [(key, account.written(key, first.hard[key]), account.written(key, second.hard[key])) for key in keys]
    return "; ".join(f"{key}: {now_text} {until}, then {then}{second.source}" for key, now_text, then in amounts)


def next_change(account: QuotaAccount, now: float) -> float | None:
    """Return when other limits hold next, in Unix seconds; None if they never change."""
    if account.schedule is None:
        return None
    end = account.schedule.at(now).until
    return end if end < FOREVER else None
