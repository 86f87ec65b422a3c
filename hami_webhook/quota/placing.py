"""Compute by how much a placement, or a claim's allocation, raises the charge of its pod or claim.

Source: docs/spec/quota.md#8 and docs/spec/dra.md#7. A placement is charged before it is written, and only raises
charges. So used always covers what pods hold (Q2), and a placement that no longer fits is refused (Q1, Q16). Only the
recompute lowers charges (Q14).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount, Swap
from hami_webhook.quota.ledger import Entry, State
from hami_webhook.quota.limits import limited_until_end
from hami_webhook.quota.pricing import Charge
from hami_webhook.quota.refusals import Refusal, refuse_now, refuse_overrun, refuse_unknown


class Placing(Struct, frozen=True):
    """What a pod or a claim is about to hold of one quota's keys; all amounts are exact.

    `entry` is its ledger entry with its id, and `before` what it is charged. It will show `shown` and cost `cost`.
    `limited`: the keys whose room is checked; if None, the keys whose charge rises. `claim` is the UID of the claim
    that is allocated. `recorded`: write a ledger entry even if the charge doesn't rise.
    """

    entry: tuple[str, Entry] | None
    before: Mapping[str, int]
    shown: Mapping[str, int]
    cost: Mapping[str, int]
    limited: Set[str] | None = None
    claim: str = ""
    recorded: bool = False


class PlacementRequest(Struct, frozen=True, eq=False):
    """A placement, or a claim's allocation, to be charged to the quotas of a scope.

    `placing`: returns the `Placing` for a quota, or None if the placement concerns none of the quota's keys. `covers`:
    returns whether the charge covers the placement, for an account that may be outdated. `attempt` marks its entry.
    """

    pod: Pod
    placing: Callable[[QuotaAccount], Placing | None]
    covers: Callable[[QuotaAccount, Placing], bool] = lambda account, placing: False
    dry_run: bool = False
    attempt: str = ""

    def marked(self, attempt: str) -> PlacementRequest:
        """The request with the mark of an attempt."""
        return replace(self, attempt=attempt)

    @property
    def identities(self) -> frozenset[str]:
        """The ledger ids that it is charged under."""
        return frozenset((self.pod.uid,))

    def charged(self, account: QuotaAccount, now: float, *, is_latest: bool) -> QuotaAccount | Refusal:
        """The account with the placement charged, by a `placing` entry.

        `is_latest`: the account is known to be the latest version.
        """
        placing = self.placing(account)
        if placing is None:
            return account
        pod, before, found = self.pod, placing.before, placing.entry
        increase = raised(account, before, placing.cost)
        limited = sorted(increase.keys() if placing.limited is None else placing.limited)
        unknown = [key for key in limited if key not in account.used]
        if unknown and account.enforced:
            return refuse_unknown(account.name, unknown)
        full, over = account, list[str]()
        until_end = account if account.schedule is None else limited_until_end(account, pod, now)
        for each in (until_end,) if account.subjects is None else until_end.limiting(pod):
            of_each = [key for key in limited if key in each.hard]
            over = [k for k in of_each if k not in each.used or each.used[k] + increase.get(k, 0) > each.hard[k]]
            if over:
                full = each
                break
        if over and account.enforced:
            more = {key: max(0, amount - before.get(key, 0)) for key, amount in placing.cost.items()}
            return refuse_overrun(full, Charge(more), over)
        # a former placement's entry may expire before this placement is seen, so it is renewed in any case
        is_placing = found is not None and found[1].state is State.PLACING
        if not (increase or is_placing or placing.recorded):  # no write will show whether the ledger still says so
            known = is_latest or self.covers(account, placing)
            return account if known else refuse_now(pod.namespace, "the quota isn't known")
        larger = {key: max(before.get(key, 0), placing.cost.get(key, 0)) for key in {*before, *placing.cost}}
        namespace = "" if account.quota.namespaces is None else pod.namespace
        subject = "" if account.subjects is None else account.subject_of(pod)
        whose = (namespace, placing.claim, self.attempt, subject)
        entry = Entry(State.PLACING, int(now), larger, placing.shown, bool(over), *whose)
        if found is not None:
            account = account.without(found[0])
        return account.with_increase(pod.uid, entry, increase, bool(over))

    def taken_back(self, account: QuotaAccount, swap: Swap) -> QuotaAccount:
        """Return the account with the charge undone, if its entry is still the one that the charge wrote."""
        uid, before, after = self.pod.uid, swap.before, swap.after
        if account.ledger.get(uid) != after.ledger[uid]:
            return account
        increase = {key: before.used[key] - amount for key, amount in after.used.items()}
        account = account.with_increase(uid, None, increase, -after.ledger[uid].observed)
        for identity in before.ledger.keys() - (after.ledger.keys() - {uid}):
            account = account.with_increase(identity, before.ledger[identity], {})
        return account


def raised(account: QuotaAccount, before: Mapping[str, int], cost: Mapping[str, int]) -> dict[str, int]:
    """Return by how much `cost` exceeds `before`, in the quota's units, for the keys that rise."""
    present = account.counted(before)
    counted = account.counted(cost)
    return {key: amount - present.get(key, 0) for key, amount in counted.items() if amount > present.get(key, 0)}
