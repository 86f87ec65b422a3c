"""The evaluation of charge requests against quotas, in their order; pure (docs/spec/quota.md#7).

A request is charged to all quotas that concern it, or to none (Q10). Refused requests and dry runs change no account
(Q6). The order of arrival is the serial order of Q12. No evaluation lowers an entry. Otherwise, anybody who can post a
review could remove the charge of a pod in flight (Q14).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct, structs
from msgspec.structs import replace

from hami_webhook.kube.pod_group import PodGroup
from hami_webhook.quota.account import ChargeRequest, Gate, NeedsRecompute, QuotaAccount, Swap
from hami_webhook.quota.ledger import IN_ADMISSION, SEVERAL, Entry, State, find_entry, is_full
from hami_webhook.quota.limits import all_limited_at, ever_limited, limited_until_end
from hami_webhook.quota.placing import PlacementRequest
from hami_webhook.quota.refusals import (
    Refusal,
    refuse_group,
    refuse_now,
    refuse_overrun,
    refuse_ungated,
    refuse_unknown,
)

_RENEWED = 10
"""Seconds after which the time of a floor entry is renewed for a pod that costs nothing while it waits."""


Request = ChargeRequest | PlacementRequest
"""What is charged with others in a batch."""


class BatchResult(Struct, frozen=True):
    """The result of a batch: the new accounts, and the refusals by the index of their requests.

    For admitted requests: `charged` has the amounts by quota label, as the quota counts them; `observed` the refusals
    that observing quotas suppressed; `swaps` the changes of accounts.
    """

    accounts: Mapping[str, QuotaAccount]
    refusals: Mapping[int, Refusal]
    charged: Mapping[int, Mapping[str, Mapping[str, int]]]
    observed: Mapping[int, Sequence[Refusal]]
    swaps: Mapping[int, Mapping[str, Swap]]


def evaluate_batch(
    accounts: Mapping[str, QuotaAccount],
    requests: Sequence[Request],
    now: float,
    max_ledger: int,
    *,
    recomputed: frozenset[str],
    are_latest: bool = True,
) -> BatchResult:
    """Evaluate requests in order against a running copy: each is charged to every quota that concerns it, or to none.

    `are_latest`: the accounts are known to be the latest versions. Raises `NeedsRecompute` for a quota that isn't in
    `recomputed` yet.
    """
    running = accounts
    for account in accounts.values():
        if account.schedule is not None:
            running = accounts = all_limited_at(accounts, now)
            break
    refusals: dict[int, Refusal] = {}
    charged: dict[int, Mapping[str, Mapping[str, int]]] = {}
    observed: dict[int, Sequence[Refusal]] = {}
    swaps: dict[int, Mapping[str, Swap]] = {}
    passed_over: set[str] = set()
    for index, request in enumerate(requests):
        if isinstance(request, PlacementRequest):
            found = _charge_placement(running, request, now, are_latest=are_latest)
        else:
            found = _charge_pods(running, request, int(now), max_ledger, recomputed, passed_over)
        if isinstance(found, Refusal):
            refusals[index] = found
            continue
        charged[index], observed[index] = found.amounts, found.observed
        if not request.dry_run:
            after = found.accounts
            swaps[index] = {
                name: Swap(running[name], after[name]) for name in after if after[name] is not running[name]
            }
            running = after
    return BatchResult(running, refusals, charged, observed, swaps)


class _ChargedOne(Struct, frozen=True):
    """The accounts once one request is charged; the others as in `BatchResult`."""

    accounts: Mapping[str, QuotaAccount]
    amounts: Mapping[str, Mapping[str, int]]
    observed: Sequence[Refusal]


def _charge_placement(
    accounts: Mapping[str, QuotaAccount], request: PlacementRequest, now: float, *, are_latest: bool
) -> _ChargedOne | Refusal:
    after = dict(accounts)
    for name in sorted(accounts):
        found = request.charged(accounts[name], now, is_latest=are_latest)
        if isinstance(found, Refusal):
            return found
        after[name] = found
    return _ChargedOne(after, {}, ())


def _charge_pods(
    accounts: Mapping[str, QuotaAccount],
    request: ChargeRequest,
    now: int,
    max_ledger: int,
    recomputed: frozenset[str],
    passed_over: set[str],
) -> _ChargedOne | Refusal:
    """Charge a pod and those that are charged with it: all of them or none."""
    after = accounts
    amounts: dict[str, Counter[str]] = {}
    notes: list[Refusal] = []
    for each in request.pods:
        found = _charge_one(after, each, now, max_ledger, recomputed, passed_over)
        if isinstance(found, Refusal):
            return found
        after = found.accounts
        for label, counted in found.amounts.items():
            amounts.setdefault(label, Counter()).update(counted)
        notes += found.observed
    return _ChargedOne(after, {label: dict(each) for label, each in amounts.items()}, notes)


def _charge_one(
    accounts: Mapping[str, QuotaAccount],
    request: ChargeRequest,
    now: int,
    max_ledger: int,
    recomputed: frozenset[str],
    passed_over: set[str],
) -> _ChargedOne | Refusal:
    """Charge one pod. `passed_over` are the quotas that had no room for one whose turn is earlier; it gets another."""
    after = dict(accounts)
    amounts: dict[str, Mapping[str, int]] = {}
    notes: list[Refusal] = []
    for name in sorted(accounts):  # of several quotas without room the first by name refuses
        account = accounts[name]
        if not account.concerns(request.pod, request.charge):
            continue
        full = [each for each in account.limiting(request.pod) if each.room_name in passed_over] if passed_over else ()
        if request.gate is Gate.OPENING and full:
            text = f"quota {full[0].label} has no room for a pod whose turn is earlier"
            return Refusal(503, text, no_room_in=full[0].room_name)
        charging = _Charging(account, request, now, max_ledger, recomputed=name in recomputed)
        found = charging.evaluate()
        if isinstance(found, Refusal):
            if request.gate is Gate.OPENING and found.overrun:  # refused for another reason it keeps nobody waiting
                passed_over.add(charging.without_room.room_name)
                return replace(found, no_room_in=charging.without_room.room_name)
            return found
        after[name] = found
        if request.gate is not Gate.CLOSED:
            amounts[account.label] = account.counted(charging.amounts)
        notes += charging.observed
    return _ChargedOne(after, amounts, notes)


class _Charging:
    """One request against one quota that may concern it, and against the limit of its subject there.

    `amounts` are what it costs there, exact; `observed` is as in `BatchResult`.
    """

    def __init__(
        self, account: QuotaAccount, request: ChargeRequest, now: int, max_ledger: int, *, recomputed: bool
    ) -> None:
        self._account = account
        self._request = request
        self._charge = request.cost(account)
        self.amounts = self._charge.only(account.hard)
        self._now = now
        self._max_ledger = max_ledger
        self._recomputed = recomputed
        self._namespace = "" if account.quota.namespaces is None else request.pod.namespace
        self._subject = "" if account.subjects is None else account.subject_of(request.pod)
        self.without_room = account
        """After a refusal for lack of room: what lacks it, the account or that of the pod's subject."""
        self.observed: list[Refusal] = []

    def evaluate(self) -> QuotaAccount | Refusal:
        """The account after the request."""
        request = self._request
        if request.gate is Gate.CLOSED:
            return self._while_queued()
        if request.gate is Gate.MISSING and self._account.queues and self.amounts:
            return refuse_ungated(self._account)
        return self._update() if request.former is not None else self._creation()

    def _while_queued(self) -> QuotaAccount | Refusal:
        """The account as it is: a pod behind the gate is refused what it can't get, and costs nothing."""
        account, charge = self._account, self._charge
        too_large = self._refuse_group() if account.enforced else None
        if too_large is not None:
            return too_large
        # who waits already goes on waiting, whatever is changed: only what is created has no version
        if account.enforced and not self._request.pod.resource_version:
            spent = self._refuse_spent(waits=True)
            if spent is not None:
                return spent
        # what it costs once the gates of others are gone is waited for under any enforcement
        if account.queues or (account.enforced and self._request.pod.gated_by_others):
            most = ever_limited(account, self._request.pod, self._now)
            never = most.above_hard(charge)
            if never:
                return refuse_overrun(most, charge, never)
            own = None if account.subjects is None else account.of_submitter(self._request.pod)
            never = () if own is None else own.above_hard(charge)
            return account if own is None or not never else refuse_overrun(own, charge, never)
        unknown = self._refuse_unknown()
        if unknown is not None:
            return unknown
        entry = account.ledger.get(self._request.identity)  # of a pod that is updated while its gate is being removed
        earlier = None if entry is None else entry.amounts
        full, over = self._overrun(account, earlier)
        return self._refuse_full(full, over) if over and account.enforced else account

    def _overrun(
        self, account: QuotaAccount, earlier: Mapping[str, int] | None
    ) -> tuple[QuotaAccount, tuple[str, ...]]:
        """What has no room for the charge, and of which keys: the account until the pod's end, or its subject's."""
        over = account.overrun(self._charge, earlier)
        if not over and account.schedule is not None:
            account = limited_until_end(account, self._request.pod, self._now)
            over = account.overrun(self._charge, earlier)
        if over or account.subjects is None:
            return account, over
        own = account.of_submitter(self._request.pod)
        return own, own.overrun(self._charge, earlier)

    def _refuse_group(self) -> Refusal | None:
        """The refusal of a pod by which its group costs more than the quota's limit, so that it would never start."""
        group = PodGroup.of(self._request.pod)
        if group is None:
            return None
        most = ever_limited(self._account, self._request.pod, self._now)
        for account in most.limiting(self._request.pod):
            if not account.above_hard(self._charge, group.size):
                continue
            count = 1 + self._request.equal_members()
            over = account.above_hard(self._charge, count)
            if over and count > 1:
                return refuse_group(account, self._charge, over, group, count)
        return None

    def _creation(self) -> QuotaAccount | Refusal:
        """The account with a new pod charged."""
        account, request, amounts = self._account, self._request, self.amounts
        if not amounts:
            return self._with_floor(account)
        unknown = self._refuse_unknown()
        if unknown is not None:
            return unknown
        found = find_entry(account.ledger, request.identity, request.reservation, lambda: amounts)
        known = found[1] if found else None
        if found and found[0] != request.identity:
            account = account.renamed(found[0], request.identity)
        if known is not None and request.claim not in ("", known.claim):  # one of the two comes to be at most
            known = replace(known, claim=SEVERAL)
            account = replace(account, ledger={**account.ledger, request.identity: known})
        if known is not None and (known.state is not State.ADMITTED or known.covers(amounts)):
            # charged already; in any other state the pod exists, and admission doesn't change its charge
            if known.observed:
                full, over = self._overrun(account.with_entry(request.identity, None), None)
                spent = None if over else self._refuse_spent()
                self.observed.append(spent or refuse_overrun(full, self._charge, over))
            return self._adopted(account, known)
        # an admission only ever raises: its word alone is no proof that a charge may be lowered
        larger = amounts if known is None else known.raised_to(amounts)
        entry = Entry(
            *(State.ADMITTED, self._now, larger),
            namespace=self._namespace,
            claim=request.claim if known is None else known.claim,
            attempt=request.attempt,
            subject=self._subject,
        )
        return self._with_entry(account, known, entry)

    def _update(self) -> QuotaAccount | Refusal:
        """The account with what an update adds to the charge of a pod that waits; the same if it adds nothing."""
        account, request, former = self._account, self._request, self._request.former
        assert former is not None
        own = find_entry(account.ledger, former.identity, "", dict)
        before = own[1].amounts if own else former.cost(account).exact if account.covers(former.pod) else {}
        more = {key: amount - before.get(key, 0) for key, amount in self.amounts.items() if amount > before.get(key, 0)}
        if not more:
            return self._with_floor(account)
        unknown = self._refuse_unknown()
        if unknown is not None:
            return unknown
        known, target = account.ledger.get(request.identity), request.floor_id()
        if known is not None and known.floor_id == target and known.covers(more):
            return self._adopted(account, known)
        self._charge = structs.replace(self._charge, amounts=more, in_bytes={})
        if known is not None:  # whichever update comes, the pod costs no more than both add
            more = {key: more.get(key, 0) + known.amounts.get(key, 0) for key in {*more, *known.amounts}}
        entry = Entry(
            *(State.UPDATING, self._now, more),
            namespace=self._namespace,
            floor_id=target,
            attempt=request.attempt,
            subject=self._subject,
        )
        return self._with_entry(account, known, entry, raised=False)

    def _adopted(self, account: QuotaAccount, known: Entry) -> QuotaAccount:
        """The account with an entry that covers the charge, and that another attempt may be about to take back.

        It is this one's from now on, so that the other leaves it there; it counts from now on, too.
        """
        request = self._request
        if known.state not in IN_ADMISSION or known.attempt == request.attempt:
            return account
        own = replace(known, time=self._now, attempt=request.attempt)
        return replace(account, ledger={**account.ledger, request.identity: own})

    def _refuse_unknown(self) -> Refusal | None:
        unknown = self._account.unknown(self._charge)
        if unknown and not self._recomputed:
            raise NeedsRecompute(self._account.name)
        return refuse_unknown(self._account.name, unknown) if unknown and self._account.enforced else None

    def _refuse_spent(self, *, waits: bool = False) -> Refusal | None:
        """The refusal of a pod for which the budget has no hours left; one that `waits` may for the next period.

        A pod whose turn has come steps aside with it, as others may fit that end sooner.
        """
        budget = self._account.time_budget
        if budget is None or not self.amounts:
            return None
        costs, deadline = self._account.in_units(self.amounts), self._request.pod.active_deadline
        if waits and budget.queues and self._account.queues and not budget.never(costs, deadline):
            return None
        text = budget.obstacle(costs, deadline, self._now)
        return Refusal(403, text, overrun=self._request.gate is not Gate.OPENING) if text else None

    def _refuse_full(self, full: QuotaAccount, over: Sequence[str]) -> Refusal:
        """The refusal for lack of room of these keys, in the account or in that of the pod's subject."""
        if full.quota.namespaces is not None and not self._recomputed:
            raise NeedsRecompute(full.name, full=True)
        self.without_room = full
        return refuse_overrun(full, self._charge, over)

    def _with_entry(
        self, account: QuotaAccount, known: Entry | None, entry: Entry, *, raised: bool = True
    ) -> QuotaAccount | Refusal:
        """The account with the request's entry in the place of another; `raised`: that covers a part of the charge."""
        earlier = known.amounts if known and raised else None
        full, over = self._overrun(account, earlier)
        spent = self._refuse_spent()
        if spent is not None and account.enforced:
            return spent
        # before the ledger's room: a pod over the quota is refused for that, and not asked to come again
        if over and account.enforced:
            return self._refuse_full(full, over)
        if over or spent is not None:
            self.observed.append(spent or refuse_overrun(full, self._charge, over))
        if account.subjects is not None and account.subjects.is_full_for(self._subject):
            if not self._recomputed:
                raise NeedsRecompute(account.name)
            text = f"so many subjects use {account.label} that it can't remember another one; wait until some use none"
            return refuse_now(self._request.pod.namespace, text)
        if known is None and self._is_full(account, entry.state):
            if self._namespace:
                text = f"pods in flight take its part of the ledger of {account.quota.kind} {account.name}"
                return refuse_now(self._request.pod.namespace, text)
            text = f"the ledger of quota {account.name} is full ({self._max_ledger} entries)"
            return refuse_now(self._request.pod.namespace, text)
        passed = bool(over or spent) or (known is not None and known.observed)
        account = account.with_entry(self._request.identity, replace(entry, observed=True) if passed else entry)
        return self._with_floor(account, charged=True)

    def _with_floor(self, account: QuotaAccount, *, charged: bool = False) -> QuotaAccount | Refusal:
        """The account with the floor entry of a pod whose charge depends on the cards, as of now."""
        request, charge = self._request, self._charge
        identity = "" if account.is_fixed(charge) else request.floor_id()
        if not identity:
            return account
        known = account.floor(identity)
        if known is None and self._is_full(account, State.FLOOR):
            cause = (
                f"so many pods with different requests wait there that {account.quota.kind} {account.name} can't "
                "remember another one, and this pod's charge depends on the cards. Wait until pods there start or end, "
                "or request the same as another pod there"
            )
            return refuse_now(request.pod.namespace, cause)
        part = account.part(request.charge, request.on_cards).exact
        today = {key: part.get(key, 0) for key in request.charge.only(account.hard)}
        amounts = today if known is None else {**today, **known.amounts}
        time = self._now
        if known is not None and (known.time >= time or (not charged and time - known.time < _RENEWED)):
            time = known.time
        entry = Entry(State.FLOOR, time, amounts, namespace=self._namespace)
        return account if entry == known else replace(account, ledger={**account.ledger, identity: entry})

    def _is_full(self, account: QuotaAccount, state: State) -> bool:
        """Whether the ledger takes no further entry of this state. Raises `NeedsRecompute` where one may make room."""
        full = is_full(account.ledger, self._max_ledger, state, self._namespace, account.spaces)
        if full and not self._namespace and not self._recomputed:
            raise NeedsRecompute(account.name)
        return full
