"""One ResourceQuota as read from the wire, and the pure rules by which it is charged (docs/spec/quota.md#7).

A compare-and-swap replaces one account by another. An account does no I/O, reads no clock and knows no other quota, so
a charge can be computed again after a conflict. It keeps Q8 (a patch has only managed keys and our annotations) and Q13
(used is a sum of whole amounts, never negative).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from fractions import Fraction
from typing import Any

from msgspec import Struct, structs
from msgspec.structs import replace

from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.holders import BareClaim
from hami_webhook.kube import scopes
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.kube.quantity import Format, Quantity, is_binary
from hami_webhook.quota import ledger as ledgers
from hami_webhook.quota.amounts import nominal_of, rounded
from hami_webhook.quota.card_selection import COUNTED, CardSelection
from hami_webhook.quota.enforcement import OBSERVED, Enforcement, observed_charges
from hami_webhook.quota.entry_life import Event, survives
from hami_webhook.quota.ledger import IN_ADMISSION, LEDGER, Entry, State
from hami_webhook.quota.percents import shares_patch, unwritten
from hami_webhook.quota.pricing import Charge, ChargeOn
from hami_webhook.quota.subjects import COUNTED_SUBJECTS, Subjects, changes, counted_text, groups_of, subject_of, titled
from hami_webhook.quota.time_budget import TimeBudget, budget_patch
from hami_webhook.quota.windows import HeldLimits, LimitSchedule, limits_of, window_patch


class QuotaAccount(Struct, frozen=True):
    """A quota's managed part: hard limits, used (a key is missing while nobody computed it), the ledger.

    `gone`: managed keys that the status still has, although `spec.hard` no longer does. `in_bytes`: keys whose hard has
    a binary suffix, so that this quota counts bytes. `bytes_per_unit`: all keys that a quota may count in bytes.
    `observed`: the number of charges without room that the quota admitted, because it only observes. `cards`: the
    counted cards, None for all. `subjects`: those with limits of their own. `subject`: the account's own, empty for
    the whole quota; `groups`: those by which it has its limits.
    """

    quota: ResourceQuota
    hard: Mapping[str, int]
    used: Mapping[str, int]
    ledger: Mapping[str, Entry] = {}
    gone: frozenset[str] = frozenset()
    in_bytes: frozenset[str] = frozenset()
    bytes_per_unit: Mapping[str, int] = {}
    enforcement: Enforcement = Enforcement.ENFORCE
    observed: int = 0
    cards: CardSelection | None = None
    nominal: Mapping[str, int] = {}
    """What of hard is the quota's own, by key, in the terms of hard (docs/spec/queues.md#7)."""
    memory_units: Mapping[str, int] = {}
    """The bytes of one unit of each key that counts memory."""
    time_budget: TimeBudget | None = None
    subjects: Subjects | None = None
    subject: str = ""
    groups: tuple[str, ...] = ()
    schedule: LimitSchedule | None = None
    """The windows; `hard` is then what holds by the status, and `quota.limits` says what holds at a time."""
    held: HeldLimits | None = None
    limited_by: str = ""
    """What sets `hard`, where that isn't what holds by the status: ` until 2026-… (window 0 20 * * 1-5)`."""
    unshared: frozenset[str] = frozenset()
    """Keys limited to a percent whose amount the leader hasn't written yet: `hard` has 0, `used` nothing."""

    @classmethod
    def read(cls, quota: ResourceQuota, vendors: Vendors) -> QuotaAccount:
        """The managed part of `quota`, for the keys of the enabled vendors."""
        hard = rounded(quota.hard, [key for key in quota.hard if key in vendors.quota_keys], up=False)
        in_bytes = frozenset(key for key in vendors.bytes_per_unit if key in hard and is_binary(quota.hard[key]))
        used = rounded(quota.used, [key for key in hard if key in quota.used], up=True)
        # used in the other unit, from before hard was rewritten, says nothing: it is a sum of rounded amounts
        stale = {
            key
            for key in vendors.bytes_per_unit.keys() & used
            if used[key] and is_binary(quota.used[key]) != (key in in_bytes)
        }
        cards = CardSelection.of(quota)
        ledger = ledgers.decode(quota.annotations.get(LEDGER))
        selection = None if cards is None else str(cards)
        if quota.annotations.get(COUNTED) != selection:  # used and floor entries are those of other cards
            stale |= hard.keys()
            ledger = {key: entry for key, entry in ledger.items() if survives(entry, Event.OTHER_CARDS)}
        of_some = quota.per is not None or quota.pod_selector is not None or COUNTED_SUBJECTS in quota.annotations
        if of_some and quota.annotations.get(COUNTED_SUBJECTS) != counted_text(quota):
            stale |= hard.keys()  # used is that of other pods, or of other subjects
        unshared = unwritten(quota.percents) & hard.keys() if quota.percents.written else frozenset()
        stale |= unshared
        schedule, held, hard = limits_of(quota, hard, vendors.bytes_per_unit) if quota.windows else (None, None, hard)
        gone = frozenset(key for key in (*quota.used, *quota.status_hard) if key in vendors.quota_keys) - hard.keys()
        return cls(
            quota,
            hard,
            {key: amount for key, amount in used.items() if key not in stale},
            ledger,
            gone,
            in_bytes,
            vendors.bytes_per_unit,
            Enforcement.of(quota),
            observed_charges(quota),
            cards,
            {} if quota.lending is None else nominal_of(quota.lending, hard),
            vendors.memory_units,
            None if quota.budget is None else TimeBudget.of(quota, hard),
            None if quota.per is None else Subjects.read(quota, quota.per, hard),
            schedule=schedule,
            held=held,
            unshared=unshared,
        )

    @property
    def name(self) -> str:
        return self.quota.name

    @property
    def label(self) -> str:
        """The name in lists of quotas of both kinds."""
        return self.name if self.quota.namespaces is None else f"{self.quota.kind}/{self.title}"

    @property
    def title(self) -> str:
        """The name, with the subject whose account it is: `shared (user alice)`."""
        per = self.quota.per
        return f"{self.name} ({titled(per, self.subject, self.groups)})" if per and self.subject else self.name

    @property
    def room_name(self) -> str:
        """The name among all quotas: `team/gpu-quota`, or `AcceleratorQuota/all`."""
        return self.label if self.quota.namespaces is not None else f"{self.quota.namespace}/{self.name}"

    @property
    def spaces(self) -> int:
        """How many namespaces it covers."""
        return 1 if self.quota.namespaces is None else max(1, len(self.quota.namespaces))

    @property
    def enforced(self) -> bool:
        """Return whether the quota refuses pods above its limits, or lets them wait."""
        return self.enforcement is not Enforcement.OBSERVE

    @property
    def queues(self) -> bool:
        """Whether pods wait for room, behind the gate."""
        return self.enforcement is Enforcement.QUEUE

    @property
    def is_known(self) -> bool:
        """Return whether the status has used for all managed keys."""
        return self.used.keys() >= self.hard.keys()

    @property
    def managed(self) -> bool:
        """Return whether the quota has managed keys, or amounts or a ledger left by former ones."""
        return bool(self.hard or self.gone or LEDGER in self.quota.annotations)

    def counted(self, exact: Mapping[str, int]) -> dict[str, int]:
        """Exact amounts of this quota's keys as it counts them: in units, rounded up, or in bytes."""
        return {
            key: amount if key in self.in_bytes else -(-amount // self.bytes_per_unit.get(key, 1))
            for key, amount in exact.items()
            if key in self.hard
        }

    def in_units(self, exact: Mapping[str, int]) -> dict[str, int]:
        """Exact amounts in the units of their resources, as budgets count, whatever unit hard has."""
        return {key: -(-amount // self.bytes_per_unit.get(key, 1)) for key, amount in exact.items()}

    def exact_hard(self, key: str) -> int:
        """Return a key's limit as an exact amount (memory in bytes), so that limits of quotas can be compared."""
        return self.hard[key] if key in self.in_bytes else self.hard[key] * self.bytes_per_unit.get(key, 1)

    def unit_bytes(self, key: str) -> int:
        """Return the bytes of memory of one unit in which the quota counts a key, 0 for what isn't memory."""
        return 1 if key in self.in_bytes else self.memory_units.get(key, 0)

    def part(self, charge: Charge, on_cards: ChargeOn | None) -> Charge:
        """Return the part of a charge that this quota counts; without `on_cards`, the whole charge."""
        return charge if self.cards is None or on_cards is None else on_cards(self.cards)

    def floor(self, identity: str) -> Entry | None:
        """The floor entry of this id."""
        entry = self.ledger.get(identity)
        return entry if entry is not None and entry.state is State.FLOOR else None

    def is_fixed(self, charge: Charge) -> bool:
        """Return whether a waiting pod's charge depends on the pod only, not on the cluster's cards."""
        if charge.derivable or self.cards is not None:
            return charge.derivable
        return charge.floors.isdisjoint(self.hard) and charge.remembered.isdisjoint(self.hard)

    def while_waiting(self, charge: Charge, on_cards: ChargeOn | None, floor_id: Callable[[], str]) -> Charge:
        """Return what this quota counts of a waiting pod's charge: of its floor entry, if it depends on the cards."""
        part = self.part(charge, on_cards)
        if self.is_fixed(part):
            return part
        entry = self.floor(floor_id())
        if entry is None:
            return part
        exact = {**part.exact, **entry.only(charge.exact)}
        return structs.replace(part, amounts={key: amount for key, amount in exact.items() if amount}, in_bytes={})

    def covers(self, pod: Pod) -> bool:
        """Whether the pod is in the quota's namespaces, and counts there."""
        quota = self.quota
        if quota.namespaces is None:
            return not quota.scopes or self.counts(pod)
        return pod.namespace in quota.namespaces and (
            (quota.pod_selector is None and not self.subject) or self.counts(pod)
        )

    def counts(self, pod: Pod) -> bool:
        """Whether a pod of the quota's namespaces is in its scopes and its selector, and of the account's subject.

        A claim is in no scope, and has no labels.
        """
        quota = self.quota
        if quota.scopes and (isinstance(pod, BareClaim) or not scopes.matches(quota, pod)):
            return False
        if quota.pod_selector is not None and not quota.pod_selector.matches(pod.labels):
            return False
        return not self.subject or self.subject_of(pod) == self.subject

    def subject_of(self, pod: Pod) -> str:
        """The subject that a pod counts for; empty where subjects have no limits."""
        return "" if self.quota.per is None else subject_of(self.quota.per, pod)

    def of_subject(self, subject: str, groups: Iterable[str] = ()) -> QuotaAccount:
        """Return an account with one subject's limits and use, only to compare with: nothing is charged to it."""
        subjects = self.subjects
        if subjects is None:
            return self
        (limit, deciding), use = subjects.limit(subject, groups), subjects.used.get(subject, {})
        used = {key: use.get(key, 0) for key in limit if key in self.used}
        without = replace(self, nominal={}, time_budget=None, subjects=None, schedule=None, limited_by="")
        return replace(without, hard=limit, used=used, subject=subject, groups=deciding)

    def of_submitter(self, pod: Pod) -> QuotaAccount:
        """What the quota leaves the subject of a pod, by the groups that the pod brings."""
        per = self.quota.per
        return self if per is None else self.of_subject(subject_of(per, pod), groups_of(per, pod))

    def limiting(self, pod: Pod) -> tuple[QuotaAccount, ...]:
        """What limits a pod's charge: the account, and that of the pod's subject where subjects have limits."""
        return (self,) if self.subjects is None else (self, self.of_submitter(pod))

    def concerns(self, pod: Pod, charge: Charge) -> bool:
        """Whether the quota covers the pod, and the pod consumes a key of it."""
        return any(key in self.hard for key in charge.amounts) and self.covers(pod)

    def unknown(self, charge: Charge) -> tuple[str, ...]:
        """Return, sorted, the keys of the charge for which nobody has computed used yet."""
        return tuple(sorted(key for key in charge.amounts if key in self.hard and key not in self.used))

    def overrun(self, charge: Charge, earlier: Mapping[str, int] | None = None) -> tuple[str, ...]:
        """Return, sorted, the keys that would exceed hard. `earlier`: exact amounts that are already charged."""
        before = self.counted(earlier) if earlier else {}
        over = []
        for key, amount in self.counted(charge.exact).items():
            more = amount - before.get(key, 0)
            if more > 0 and self.used.get(key, 0) + more > self.hard[key]:
                over.append(key)
        return tuple(sorted(over))

    def above_hard(self, charge: Charge, times: int = 1) -> tuple[str, ...]:
        """Return, sorted, the keys whose hard is less than `times` this charge. Such pods never fit."""
        whole = charge.exact if times == 1 else {key: times * amount for key, amount in charge.exact.items()}
        return tuple(sorted(key for key, amount in self.counted(whole).items() if amount > self.hard[key]))

    def with_entry(self, identity: str, entry: Entry | None) -> QuotaAccount:
        """Return the account with this entry replaced (None removes it), and used changed by the difference."""
        former = self.ledger.get(identity)
        before = {} if former is None else self.counted(former.amounts)
        after = {} if entry is None else self.counted(entry.amounts)
        increase = {key: after.get(key, 0) - before.get(key, 0) for key in {*before, *after}}
        more = (entry is not None and entry.observed) - (former is not None and former.observed)
        return self.with_increase(identity, entry, increase, more)

    def with_increase(
        self, identity: str, entry: Entry | None, increase: Mapping[str, int], observed: int = 0
    ) -> QuotaAccount:
        """Return the account with the entry of this id replaced (None removes it), and used changed by `increase`.

        `observed`: the number of further charges that were admitted without room.
        """
        # a key without used stays without: what nobody has computed isn't known to be 0
        used = {key: max(0, amount + increase.get(key, 0)) for key, amount in self.used.items()}
        entries = dict(self.ledger)
        former = entries.pop(identity, None)
        charged = entry or former
        if entry is not None:
            entries[identity] = entry
        subjects = self.subjects
        if subjects is not None and charged is not None:
            subjects = subjects.increased(charged.subject, increase)
        return replace(self, used=used, ledger=entries, observed=max(0, self.observed + observed), subjects=subjects)

    def without(self, identity: str) -> QuotaAccount:
        """Return the account without an entry; `used` stays the same."""
        return replace(self, ledger={key: entry for key, entry in self.ledger.items() if key != identity})

    def renamed(self, before: str, after: str) -> QuotaAccount:
        """The account with an entry under another id."""
        return replace(self, ledger={**self.without(before).ledger, after: self.ledger[before]})

    def patch(self, target: QuotaAccount) -> dict[str, Any] | None:
        """The compare-and-swap merge patch on `/status` from this account to `target`; None if nothing changes.

        It has managed keys, the ledger, and `status.hard` of managed keys where it differs; null deletes a key.
        """
        status: dict[str, Any] = {}
        used: dict[str, str | None] = {
            key: self.written(key, value) for key, value in target.used.items() if self.used.get(key) != value
        }
        used |= {key: None for key in sorted(self.gone) if key in self.quota.used}
        if used:
            status["used"] = used
        hard: dict[str, str | None] = {}
        if (self.quota.status_hard != target.quota.hard and self.schedule is None) or target.held is not self.held:
            shown = rounded(self.quota.status_hard, self.quota.status_hard, up=False)
            limits = (item for item in target.hard.items() if item[0] not in target.unshared)
            hard = {key: self.written(key, value) for key, value in limits if shown.get(key) != value}
        hard |= {key: None for key in sorted(self.gone) if key in self.quota.status_hard}
        if hard:
            status["hard"] = hard
        annotations: dict[str, str | None] = {}
        text = ledgers.encode(target.ledger)
        if text != self.quota.annotations.get(LEDGER):
            annotations[LEDGER] = text
        # only with used for all keys: the annotation says which cards these amounts are of
        selection = None if self.cards is None else str(self.cards)
        if self.quota.annotations.get(COUNTED) != selection and target.used.keys() >= self.hard.keys():
            annotations[COUNTED] = selection
        known = target.used.keys() >= self.hard.keys()
        is_or_was = self.subjects or self.quota.pod_selector or COUNTED_SUBJECTS in self.quota.annotations
        annotations |= changes(self.quota, target.subjects, known=known) if is_or_was else {}
        if target.observed != self.observed:
            annotations[OBSERVED] = str(target.observed)
        if target.quota.report != self.quota.report:
            status |= target.quota.report
        had_shares, shares = self.quota.percents.shares, target.quota.percents.shares
        status |= shares_patch(had_shares, shares) if had_shares or shares else {}
        status |= budget_patch(self.quota.budget, self.time_budget, target.time_budget)
        had = self.quota.window_status
        status |= window_patch(had, target.schedule, self.held, target.held) if had or self.schedule else {}
        # without a version this would be a merge over whatever somebody else wrote meanwhile
        patch: dict[str, Any] = {"metadata": {"resourceVersion": self.quota.resource_version}}
        if annotations:
            patch["metadata"]["annotations"] = annotations
        if status:
            patch["status"] = status
        return patch if status or annotations else None

    def written(self, key: str, amount: int) -> str:
        """Format an amount for the status. Bytes get a binary suffix, which distinguishes them from units."""
        return str(Quantity(Fraction(amount), Format.BINARY_SI)) if key in self.in_bytes else str(amount)


Accounts = Mapping[str, QuotaAccount]
"""Accounts by the names of their quotas."""


def limiting(accounts: Iterable[QuotaAccount], pod: Pod) -> list[QuotaAccount]:
    """The accounts, each followed by that of the pod's subject where subjects have limits."""
    return [each for account in accounts for each in account.limiting(pod)]


class Swap(Struct, frozen=True):
    """An account before and after a change of it."""

    before: QuotaAccount
    after: QuotaAccount


class Gate(Enum):
    """The state of a pod's scheduling gate when the pod is charged (docs/spec/queues.md#2).

    `NONE`: none is needed, as the quotas enforce. `MISSING`: the pod lacks the gate. `CLOSED`: the pod waits behind it,
    uncharged. `OPENING`: the pod is charged, then the gate removed.
    """

    NONE = "none"
    MISSING = "missing"
    CLOSED = "closed"
    OPENING = "opening"


class ChargeRequest(Struct, frozen=True):
    """A pod to be charged. `identity` is its UID, or the id of its reservation under `/webhook`.

    `reservation`: the secret in the pod's annotation, which no other pod has; a charge may exist under its digest.
    `floor_id` gives the id of its floor entry; empty for none. `former`: the existing pod before an update; `identity`
    is then the update's ledger id. `others` are pods of the same namespace that are charged with it: all of them or
    none. `equal_members` counts the other pods of its group that request the same. `claim`: the UID of a claim that no
    pod owns; `identity` is then the ledger id of the claim's name. `attempt`: its mark in the entries that it writes.
    """

    identity: str
    pod: Pod
    charge: Charge
    dry_run: bool = False
    reservation: str = ""
    on_cards: ChargeOn | None = None
    floor_id: Callable[[], str] = str
    former: ChargeRequest | None = None
    gate: Gate = Gate.NONE
    others: tuple[ChargeRequest, ...] = ()
    equal_members: Callable[[], int] = int
    claim: str = ""
    attempt: str = ""

    def marked(self, attempt: str) -> ChargeRequest:
        """The request with the mark of an attempt."""
        others = tuple(each.marked(attempt) for each in self.others)
        return structs.replace(self, attempt=attempt, others=others)

    def cost(self, account: QuotaAccount) -> Charge:
        """What the pod costs a quota while it waits."""
        return account.while_waiting(self.charge, self.on_cards, self.floor_id)

    @property
    def pods(self) -> tuple[ChargeRequest, ...]:
        """The request and its `others`."""
        return (self, *self.others)

    @property
    def identities(self) -> frozenset[str]:
        """The ledger ids that its pods are charged under."""
        return frozenset([self.identity, *(each.identity for each in self.others)])

    @property
    def has_cost(self) -> bool:
        """Whether any of its pods costs anything."""
        return bool(self.charge.amounts) or any(each.charge.amounts for each in self.others)

    def may_exceed(self, accounts: Iterable[QuotaAccount]) -> bool:
        """Return whether a quota outside `accounts` may limit a key that one of the pods consumes.

        It returns False if every consumed key is in one of `accounts` that covers the pod and counts all cards.
        """
        for each in self.pods:
            matching = (account for account in accounts if account.cards is None and account.covers(each.pod))
            if not frozenset[str]().union(*(account.hard for account in matching)).issuperset(each.charge.amounts):
                return True
        return False

    def taken_back(self, account: QuotaAccount, swap: Swap) -> QuotaAccount:
        """Return the account with this attempt's entries undone, unless a placement or another attempt took them over.

        A restored entry is never larger than the present one, because another charge may have taken the difference.
        """
        for identity in sorted(self.identities):
            former, entry = swap.before.ledger.get(identity), account.ledger.get(identity)
            is_own = entry is not None and entry.state in IN_ADMISSION and entry.attempt == self.attempt
            if entry is not None and is_own and former != swap.after.ledger.get(identity):
                account = account.with_entry(identity, None if former is None else former.no_more_than(entry))
        return account


class Rejected(Exception):
    """Raised by a change that the accounts don't allow. Final only for accounts that were read live."""


class NeedsRecompute(Rejected):
    """A quota must be recomputed before it can be charged: used is unknown, or the ledger is full.

    `full`: the quota has no room, but used may include amounts of deleted pods.
    """

    def __init__(self, quota: str, *, full: bool = False) -> None:
        super().__init__(quota)
        self.quota = quota
        self.full = full
