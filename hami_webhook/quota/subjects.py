"""The subjects of a quota with a separate limit for each user, or for each value of a label (docs/spec/who.md#3).

One compare-and-swap charges the quota's total and the subject's limit. `SUBJECT_USE` is exact for each subject, so
writes needn't read pods. `SUBJECT_USE` has at most 512 KiB. If it is full, charges of new subjects are refused for
now, because a use that isn't stored can't be limited.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.kube.message_text import quoted
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.kube.quota_fields import PerSubject
from hami_webhook.kube.stamps import SUBMITTED_BY, SUBMITTED_BY_GROUPS, groups_in
from hami_webhook.quota.amounts import rounded

SUBJECT_USE = "hami.io/quota-subject-use"
"""What every subject uses, exact: `status.subjectUse`."""
COUNTED_SUBJECTS = "hami.io/quota-counted-subjects"
"""Of which subjects and pods that is: `status.countedSubjects`."""
UNKNOWN = "unknown"
"""The subject of pods that nobody is known to have submitted, or that lack the label; of claims of no pod, too."""

MOST_SHOWN = 500
"""Subjects that the status names, those that use most; it sums the others."""
MOST_BYTES = 512 * 1024
"""Of `SUBJECT_USE`: an object of etcd has 1.5 MiB, with the ledger and the namespaces beside it."""

_LONGEST_ITEM = 2048
"""Bytes of one subject there: a name of 253 characters, escaped, and amounts."""
_LABEL = re.compile(r"[-./_A-Za-z0-9]+")
_LONGEST_PLAIN = 60
"""Characters of a name that messages show without quotes."""

Amounts = Mapping[str, int]
Use = Mapping[str, Amounts]
"""What subjects use, by key, as the quota counts it; those that use nothing are left out."""


def subject_of(per: PerSubject, pod: Pod) -> str:
    """Return the subject to which a pod is charged; for a claim without a pod, the unknown subject."""
    found = pod.labels.get(per.label) if per.label else pod.annotations.get(SUBMITTED_BY)
    return found or UNKNOWN


def groups_of(per: PerSubject, pod: Pod) -> tuple[str, ...]:
    """Those groups of the pod's user to which the quota gives limits; without a stamp, its groups mean nothing."""
    if not per.groups or not pod.annotations.get(SUBMITTED_BY):
        return ()
    return tuple(each for each in groups_in(pod.annotations.get(SUBMITTED_BY_GROUPS)) if each in per.groups)


def groups_shown(quota: ResourceQuota) -> dict[str, list[str]]:
    """The groups by which subjects have their limits, as the last recompute found them on pods."""
    rows = (quota.report.get("subjects") or ()) if quota.per is not None and quota.per.groups else ()
    return {row["name"]: row["groups"] for row in rows if row.get("name") and isinstance(row.get("groups"), list)}


def groups_named(quotas: Iterable[ResourceQuota]) -> frozenset[str]:
    """The groups of users to which quotas give limits."""
    return frozenset(group for quota in quotas if quota.per is not None for group in quota.per.groups)


def titled(per: PerSubject, subject: str, groups: Sequence[str] = ()) -> str:
    """A subject with its kind, as messages name it: `user alice`, or `project vision`; with the groups by which it has
    its limits.
    """
    kind = per.label.rpartition("/")[2] if per.label else "user"
    return ", ".join([f"{kind} {_plain(subject)}", *(f"group {_plain(each)}" for each in groups)])


def _plain(name: str) -> str:
    is_plain = name.isprintable() and not set(name) & set('"(), ') and len(name) <= _LONGEST_PLAIN
    return name if is_plain else quoted(name)


def counted_text(quota: ResourceQuota) -> str | None:
    """Return the text of `COUNTED_SUBJECTS` for the quota; None if it counts all pods and has no subjects."""
    per, selector = quota.per, quota.pod_selector
    parts = []
    if per is not None:
        parts.append(f"label {per.label}" if per.label else "user")
    if selector is not None:
        requirements = sorted([each.key, each.operator, *sorted(each.values)] for each in selector.requirements)
        parts.append(f"pods {orjson.dumps(requirements).decode()}")
    return "; ".join(parts) or None


def labels_counted(quotas: Iterable[ResourceQuota]) -> frozenset[str]:
    """The labels of pods that quotas count by or select by: they are set at creation, and don't change."""
    found: set[str] = set()
    for quota in quotas:
        if quota.per is not None and quota.per.label:
            found.add(quota.per.label)
        if quota.pod_selector is not None:
            found.update(each.key for each in quota.pod_selector.requirements)
    return frozenset(filter(_LABEL.fullmatch, found))


class Subjects(Struct, frozen=True):
    """The subjects of an account: what each may use, and what each uses. `hard` is that of most, by key."""

    per: PerSubject
    hard: Amounts
    overrides: Mapping[str, Amounts] = {}
    groups: Mapping[str, Amounts] = {}
    used: Use = {}

    @classmethod
    def read(cls, quota: ResourceQuota, per: PerSubject, hard: Amounts) -> Subjects:
        """The subjects of a quota, by keys of `hard` and in its terms."""

        def amounts(written: Mapping[str, Any]) -> dict[str, int]:
            return rounded(written, [key for key in written if key in hard], up=False)

        overrides = {subject: amounts(written) for subject, written in per.overrides.items()}
        groups = {group: amounts(written) for group, written in per.groups.items()}
        return cls(per, amounts(per.hard), overrides, groups, decode(quota.annotations.get(SUBJECT_USE)))

    def limit(self, subject: str, groups: Iterable[str] = ()) -> tuple[dict[str, int], tuple[str, ...]]:
        """What a subject may use with a pod of these groups, by key, and the groups that decide it.

        The subject's own entry comes first. Of several groups the largest amount holds.
        """
        own, largest = self.overrides.get(subject, {}), dict[str, tuple[int, str]]()
        for group in groups:
            for key, amount in self.groups.get(group, {}).items():
                if key not in own and (key not in largest or amount > largest[key][0]):
                    largest[key] = amount, group
        of_groups = {key: amount for key, (amount, _) in largest.items()}
        return {**self.hard, **of_groups, **own}, tuple(sorted({group for _, group in largest.values()}))

    def increased(self, subject: str, increase: Amounts) -> Subjects:
        """The subjects once one uses so much more."""
        if not subject or not any(increase.values()):
            return self
        former, used = self.used.get(subject, {}), dict(self.used)
        use = {key: former.get(key, 0) + increase.get(key, 0) for key in {*former, *increase}}
        used[subject] = {key: amount for key, amount in sorted(use.items()) if amount > 0}
        if not used[subject]:
            del used[subject]
        return replace(self, used=used)

    def with_used(self, used: Use) -> Subjects:
        """The subjects with another use of theirs."""
        positive = {
            subject: {key: amount for key, amount in sorted(use.items()) if amount > 0} for subject, use in used.items()
        }
        return replace(self, used={subject: use for subject, use in positive.items() if use})

    def is_full_for(self, subject: str) -> bool:
        """Return whether `SUBJECT_USE` has no space for this subject."""
        if subject in self.used or len(self.used) < MOST_BYTES // _LONGEST_ITEM:
            return False
        return len((encode(self.used) or "").encode()) >= MOST_BYTES

    def bounded(self, hard: Amounts) -> Subjects:
        """Return the subjects, at most as many as the status has space for: those that use most."""
        if not self.used or len(encode(self.used) or "") <= MOST_BYTES:
            return self
        kept: dict[str, Amounts] = {}
        keys = {key for amounts in self.used.values() for key in amounts}
        size = 0
        for subject in self.by_use(hard):
            size += len(orjson.dumps({subject: [self.used[subject].get(key, 0) for key in keys]}))
            if size > 2 * MOST_BYTES:
                break
            kept[subject] = self.used[subject]
        return replace(self, used=kept)

    def by_use(self, hard: Amounts) -> list[str]:
        """Those that use something, the largest part of a limit of `hard` first, then by name."""
        return sorted(self.used, key=lambda subject: (-dominant_share(self.used[subject], hard), subject))


def dominant_share(use: Amounts, hard: Amounts) -> float:
    """Return the largest used share of any limit; a used limit of 0 counts as a share of 1."""
    return max((amount / hard[key] if hard[key] else 1.0 for key, amount in use.items() if key in hard), default=0.0)


def sums_of_others(use: Use, named: Collection[str]) -> dict[str, int]:
    """What all but the named subjects use together."""
    sums: dict[str, int] = {}
    for subject, amounts in use.items():
        if subject not in named:
            for key, amount in amounts.items():
                sums[key] = sums.get(key, 0) + amount
    return sums


@lru_cache(maxsize=16)
def decode(text: str | None) -> Use:
    """The use in `SUBJECT_USE`. What can't be read is left out: the recompute goes by the pods."""
    if not text:
        return {}
    try:
        items: Any = orjson.loads(text)
        keys, uses = items["keys"], items["use"]
        return {
            str(subject): {
                str(key): amount
                for key, amount in zip(keys, amounts, strict=True)
                if type(amount) is int and amount > 0
            }
            for subject, amounts in uses.items()
        }
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return {}


def encode(use: Use) -> str | None:
    """The text of `SUBJECT_USE`; None, which deletes it, where nobody uses anything.

    The text lists the keys once; each subject's amounts follow in that order.
    """
    if not use:
        return None
    keys = sorted({key for amounts in use.values() for key in amounts})
    uses = {subject: [use[subject].get(key, 0) for key in keys] for subject in sorted(use)}
    return orjson.dumps({"keys": keys, "use": uses}).decode()


def changes(quota: ResourceQuota, subjects: Subjects | None, *, known: bool) -> dict[str, str | None]:
    """Return the changed texts about subjects, as annotations. `known`: whether the amounts of all keys are known."""
    written = {SUBJECT_USE: None if subjects is None else encode(subjects.used)}
    if known:
        written[COUNTED_SUBJECTS] = counted_text(quota)
    return {key: text for key, text in written.items() if text != quota.annotations.get(key)}
