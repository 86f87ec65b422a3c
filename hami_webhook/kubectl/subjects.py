"""What each subject of the quotas uses, as `kubectl hami quota --by` and a team's page show it (docs/spec/who.md#3).

The command goes by what the quotas' status says: who may read that, sees all names in it. A team's page names only the
subjects of pods that the reader may list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.subjects import groups_shown, sums_of_others

USER, LABEL = "user", "label"
_MOST_NAMED = 100
"""Subjects of a quota on a team's page."""


class SubjectUse(Struct, frozen=True):
    """What one subject uses of one key of a quota, in the quota's units. `by` is the label, or `user`."""

    quota: str
    by: str
    subject: str
    key: str
    used: int
    hard: int


class TeamSubjects(Struct, frozen=True):
    """What the subjects use of a quota that have pods in a namespace, and how many `others` use `rest`, by key."""

    quota: str
    by: str
    uses: Sequence[SubjectUse]
    others: int
    rest: Mapping[str, int]


def subject_uses(accounts: Iterable[QuotaAccount], by: str) -> Iterator[SubjectUse]:
    """The use of subjects that use something or have a limit of their own, those that use most first; of users, or of
    values of labels.
    """
    for account in accounts:
        subjects = account.subjects
        if subjects is None or (USER if not subjects.per.label else LABEL) != by:
            continue
        named = subjects.by_use(account.hard)
        yield from _uses(account, (*named, *sorted(subjects.overrides.keys() - set(named))))


def team_subjects(accounts: Iterable[QuotaAccount], pods: Sequence[Pod]) -> Iterator[TeamSubjects]:
    """The subjects of these pods in each quota that gives subjects limits, those that use most first."""
    for account in accounts:
        subjects = account.subjects
        if subjects is None:
            continue
        there = {account.subject_of(pod) for pod in pods if account.covers(pod)}
        by_use = [each for each in subjects.by_use(account.hard) if each in there]
        named = [*by_use, *sorted(there.difference(by_use))][:_MOST_NAMED]
        others = len(subjects.used.keys() - set(named))
        rest = sums_of_others(subjects.used, set(named)) if others else {}
        uses = list(_uses(account, named))
        yield TeamSubjects(account.name, subjects.per.label or USER, uses, others, rest)


def _uses(account: QuotaAccount, named: Iterable[str]) -> Iterator[SubjectUse]:
    per, groups = account.quota.per, groups_shown(account.quota)
    for subject in named:
        own = account.of_subject(subject, groups.get(subject, ()))
        for key, hard in sorted(own.hard.items()):
            by = (per and per.label) or USER
            yield SubjectUse(account.name, by, subject, key, own.used.get(key, 0), hard)
