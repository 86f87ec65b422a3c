"""Compute `status.namespaces`, the subjects, and the condition of an AcceleratorQuota (docs/spec/quota.md#5.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from hami_webhook.kube.objects import Pod, ResourceQuota, format_time
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.subjects import MOST_SHOWN, Subjects, groups_of, subject_of, sums_of_others

EXCEEDED = "Exceeded"
"""The type of the condition, with its reasons."""
ABOVE_HARD, WITHIN_HARD = "AboveHard", "WithinHard"


class NamespaceUse(Struct):
    """The charges of a namespace's pods, and the part of pods without a placement, in the quota's units."""

    used: dict[str, int] = {}
    waiting: dict[str, int] = {}

    def add(self, costs: Mapping[str, int], *, waiting: bool) -> None:
        for sums in (self.used, self.waiting) if waiting else (self.used,):
            for key, amount in costs.items():
                sums[key] = sums.get(key, 0) + amount


def with_report(
    account: QuotaAccount,
    used: Mapping[str, int],
    uses: Mapping[str, NamespaceUse],
    now: float,
    subjects: Subjects | None = None,
    pods: Iterable[Pod] = (),
) -> ResourceQuota:
    """Return the account's object with the namespaces and the condition that a recompute at `now` found.

    A ResourceQuota is returned unchanged. `pods` are those that count.
    """
    quota = account.quota
    if quota.namespaces is None:
        return quota
    namespaces = [
        {
            "name": name,
            "used": {key: account.written(key, amount) for key, amount in sorted(use.used.items()) if amount},
            "waiting": {key: account.written(key, amount) for key, amount in sorted(use.waiting.items()) if amount},
        }
        for name, use in sorted(uses.items())
        if any(use.used.values())
    ]
    hard = sorted(item for item in account.hard.items() if item[0] not in account.unshared)
    over = [f"{key}: used {used[key]}, limited {limit}" for key, limit in hard if used[key] > limit]
    status = "True" if over else "False"
    reason, message = (ABOVE_HARD, "; ".join(over)) if over else (WITHIN_HARD, "used is within hard")
    since = format_time(now)
    others: list[Mapping[str, Any]] = []
    for each in quota.report.get("conditions", ()):
        if each.get("type") != EXCEEDED:
            others.append(each)
        elif each.get("status") == status:
            since = each.get("lastTransitionTime", since)
    condition = {"type": EXCEEDED, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}
    report: dict[str, Any] = {"namespaces": namespaces, "conditions": [*others, condition]}
    if subjects is not None:
        report |= _subject_report(account, subjects, pods)
    elif "subjects" in quota.report:
        report |= {"subjects": None, "otherSubjects": None}
    return msgspec.structs.replace(quota, report=report)


def _subject_report(account: QuotaAccount, subjects: Subjects, pods: Iterable[Pod]) -> dict[str, Any]:
    """What the subjects use that use most, with the groups by which they have their limits, and all others together."""
    shown = subjects.by_use(account.hard)[:MOST_SHOWN]
    others = len(subjects.used) - len(shown)
    sums = sums_of_others(subjects.used, set(shown)) if others else {}

    def written(amounts: Mapping[str, int]) -> dict[str, str]:
        return {key: account.written(key, amount) for key, amount in sorted(amounts.items()) if key in account.hard}

    groups = _deciding_groups(subjects, pods) if subjects.groups else {}
    return {
        "subjects": [{"name": name, "used": written(subjects.used[name])} | groups.get(name, {}) for name in shown],
        "otherSubjects": {"count": others, "used": written(sums)} if others else None,
    }


def _deciding_groups(subjects: Subjects, pods: Iterable[Pod]) -> dict[str, dict[str, list[str]]]:
    """The groups on a subject's pods that give it the most, as the row of the subject has them."""
    found: dict[str, set[str]] = defaultdict(set)
    for pod in pods:
        groups = groups_of(subjects.per, pod)
        if groups:
            found[subject_of(subjects.per, pod)].update(groups)
    deciding = {name: list(subjects.limit(name, sorted(groups))[1]) for name, groups in found.items()}
    return {name: {"groups": groups} for name, groups in deciding.items() if groups}
