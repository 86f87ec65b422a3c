"""What each subject of the quotas uses, as `kubectl hami quota --by user` shows it (docs/spec/who.md#3).

It goes by what the quotas' status says: who may read that, sees all names in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.subjects import groups_shown

USER, LABEL = "user", "label"


class SubjectUse(Struct, frozen=True):
    """What one subject uses of one key of a quota, in the quota's units. `by` is the label, or `user`."""

    quota: str
    by: str
    subject: str
    key: str
    used: int
    hard: int


def subject_uses(accounts: Iterable[QuotaAccount], by: str) -> Iterator[SubjectUse]:
    """The use of subjects that use something or have a limit of their own, those that use most first; of users, or of
    values of labels.
    """
    for account in accounts:
        subjects = account.subjects
        if subjects is None or (USER if not subjects.per.label else LABEL) != by:
            continue
        named, groups = subjects.by_use(account.hard), groups_shown(account.quota)
        for subject in (*named, *sorted(subjects.overrides.keys() - set(named))):
            own = account.of_subject(subject, groups.get(subject, ()))
            for key, hard in sorted(own.hard.items()):
                yield SubjectUse(account.name, subjects.per.label or USER, subject, key, own.used.get(key, 0), hard)
