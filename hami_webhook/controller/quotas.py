"""The reconcile loop: recompute a namespace's quotas when something of it changed, and all of them now and then.

It decides when, and the recompute what. No correctness rests on it (Q9): a change that it misses is put right by the
next resync, and until then used is too high rather than too low (Q2). It has to come soon (Q3), as a charge of a pod
that is gone refuses others, and not too often, as each recompute lists pods and makes charges conflict.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass

from hami_webhook.charging.recomputer import Recomputer
from hami_webhook.cluster.api import ClusterError, EventNote, Kind, NotFound
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.cluster.rate import in_background
from hami_webhook.controller.ledger_history import LedgerHistory
from hami_webhook.devices.model import NodeView
from hami_webhook.devices.placement_annotations import NODE, TIME
from hami_webhook.kube.claims_wire import ResourceClaim
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.enforcement import ENFORCEMENT
from hami_webhook.quota.entry_life import grows_old
from hami_webhook.quota.excess import excess_sentence
from hami_webhook.quota.floors import cost_of, floor_id
from hami_webhook.quota.ledger import Entry, State, charge_ids
from hami_webhook.quota.quota_lint import Reason
from hami_webhook.quota.recompute import Recomputed
from hami_webhook.state.caches import Change, Subscriptions
from hami_webhook.state.cluster_view import ClusterView

logger = logging.getLogger(__name__)

_LONGEST_CLEANUP = 10.0
"""Seconds after the first new pod by which a namespace is recomputed where that only drops entries from ledgers.

In a burst the charges themselves drop them, and a recompute that writes meanwhile makes them conflict.
"""

_AFTER = 0.1
"""Seconds after a deadline at which it has surely passed."""

_AT_ONCE = 4
"""Scopes that are recomputed at the same time, so that one of many pods doesn't delay all others."""

_LONGEST_BACKOFF = 60.0
LOOP = "quotas"


@dataclass(frozen=True, slots=True)
class ReconcileIntervals:
    """Seconds: how long changes are gathered, between full resyncs, and an entry's life without a pod.

    `longest` is how long after the first change quotas are recomputed, however many follow.
    """

    debounce: float = 0.5
    resync: float = 300.0
    ttl: float = 45.0
    longest: float = 2.0


class QuotaReconciler:
    """Keeps ResourceQuotas true; those of a scope, which is a namespace, are recomputed together.

    `pod_changed`, `quota_changed` and the like are called with events; `run` does what is due. `expired` counts ledger
    entries for which no pod came, `drifted` recomputes that changed used for no known reason.
    """

    kind = Kind.RESOURCE_QUOTAS

    def __init__(
        self,
        recomputer: Recomputer,
        view: ClusterView,
        object_events: ObjectEvents,
        failures: Counter[str],
        pace: ReconcileIntervals,
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._recomputer = recomputer
        self._view = view
        self._object_events = object_events
        self._failed_loops = failures
        self._pace = pace
        self._jitter = jitter
        self._changed: dict[str, tuple[float, float]] = {}
        """Namespaces where used may have changed: since when, and when they are due."""
        self._charged: dict[str, tuple[float, float]] = {}
        """Namespaces where entries may have done their work, likewise."""
        self._timed: dict[str, float] = {}
        """Namespaces where time will change something: when they are due."""
        self._failures: dict[str, int] = {}
        self._history = LedgerHistory(pace.ttl)
        self._accounts: dict[str, dict[str, QuotaAccount]] = {}
        """The latest accounts, by namespace and name of their quotas."""
        watched = (key for scheduler in view.vendors.foreign for key in scheduler.watched)
        allocated = (vendor.keys.allocated for vendor in view.vendors.values())
        self._annotations = frozenset((NODE, TIME, *allocated, *watched))
        """Those of pods that quotas depend on."""
        self._seen: dict[str, Pod] = {}
        """The pods as events showed them last, by UID."""
        self._observed: Counter[str] = Counter()
        """Charges without room that quotas let pass and that have no event yet, by UID."""
        self._next_resync = 0.0
        self._wake = asyncio.Event()
        self._busy: set[str] = set()
        """Scopes whose quotas are being recomputed."""
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.expired = 0
        self.drifted = 0

    def subscriptions(self) -> Subscriptions:
        """The changes that quotas depend on."""
        return {
            Kind.RESOURCE_CLAIMS: self._claim_changed,
            Kind.PODS: lambda change: self.pod_changed(change.before, change.after),
            self.kind: lambda change: self.quota_changed(change.before, change.after),
            Kind.NAMESPACES: lambda change: self.namespaces_changed(),
            Kind.NODES: self._node_changed,
            Kind.DEVICES: self._device_changed,
        }

    def _claim_changed(self, change: Change[ResourceClaim]) -> None:
        if change.after is None:
            self._history.gone[change.key.uid] = self._view.clock()
        self.touch(change.key.namespace)

    def _node_changed(self, change: Change[NodeView]) -> None:
        if _cards_of(change.before) != _cards_of(change.after):
            self.cards_changed()

    def _device_changed(self, change: Change[object]) -> None:
        """Charges of other schedulers' pods may be completed from the cards that are registered now."""
        if (change.before is None) != (change.after is None):
            for pod in self._view.state.foreign_pods_on(change.key.name):
                self.touch(pod.namespace)

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """A pod was added, changed or is gone; only what quota depends on makes work."""
        pod = after or before
        if pod is None or not self._matters(pod):
            return
        scopes = self._scopes(pod.namespace)
        if not scopes and after is not None:
            return  # the first quota that covers it has it recomputed
        # compared with what was seen here: the state may know of a placement before its event comes
        known = self._seen.get(pod.uid)
        if known is None or after is None:
            self._history.pod(pod, self._view.clock())
        if after is None:
            self._seen.pop(pod.uid, None)
            self._object_events.forget(pod.uid)
            for identity in charge_ids(pod.uid, pod.annotations):
                self._history.gone[identity] = self._view.clock()
        else:
            self._seen[pod.uid] = pod
            if known is None and pod.queued:
                return  # it costs nothing yet
        for scope in scopes:
            # one that waits for quota costs nothing before it is released, which is when it is as a new one
            new = known is None or (known.queued and not pod.queued)
            if after is not None and new and self._is_charged(after, scope):
                self._gather(self._charged, scope, self._pace.longest, _LONGEST_CLEANUP)
            elif after is None or known is None or self._differ(known, pod):
                self._touch(scope)

    def _scopes(self, namespace: str) -> Sequence[str]:
        """The scopes with quotas that cover a namespace's pods."""
        return (namespace,)

    def _scope(self, quota: ResourceQuota) -> str:
        """The scope of a quota."""
        return quota.namespace

    async def _recompute(self, scope: str, name: str) -> Recomputed:
        """Recompute a quota. Raises `ClusterError`."""
        return await self._recomputer.run(scope, name, self._lost, self._history.gone)

    def _is_charged(self, pod: Pod, scope: str) -> bool:
        """Whether ledgers had what a new pod costs, so that it is in used, and a recompute only drops its entries."""
        view, now = self._view, self._view.clock()
        if pod.node_name or NODE in pod.annotations or pod.terminal or pod.deletion_time is not None:
            return False
        ids = charge_ids(pod.uid, pod.annotations)
        for account in self._accounts.get(scope, {}).values():
            if account.covers(pod):
                cost = cost_of(account, pod, view.vendors, view.capacity, now, view.placement_ttl)
                if not account.is_fixed(cost) and account.floor(floor_id(pod, view.vendors)) is None:
                    return False
                amounts = cost.only(account.hard)
                if amounts and not self._history.charged(account, ids, amounts):
                    return False
        return True

    def _matters(self, pod: Pod) -> bool:
        """Whether a quota may depend on the pod."""
        vendors = self._view.vendors
        named = pod.named
        claims = vendors.drivers and (pod.resource_claims or pod.extended_claim)
        return bool(vendors.named_among(named) or claims or vendors.foreign_to(pod, named))

    def quota_changed(self, before: ResourceQuota | None, after: ResourceQuota | None) -> None:
        """A quota was added, its spec changed, its ledger was wiped, or has entries that will expire."""
        if before is not None and (after is None or before.uid != after.uid):
            self._forget(before)
            before = None
        if after is None:
            return
        account = QuotaAccount.read(after, self._view.vendors)
        scope = self._scope(after)
        accounts = self._accounts.setdefault(scope, {})
        last = accounts.get(after.name, account)
        accounts[after.name] = account
        if account.observed > last.observed:
            self._observed[after.uid] += account.observed - last.observed
            self._gather(self._charged, scope, self._pace.longest, _LONGEST_CLEANUP)
        changed = before is None or before.hard != after.hard
        enforcement = before and before.annotations.get(ENFORCEMENT)
        if (changed or enforcement != after.annotations.get(ENFORCEMENT)) and (
            self._view.misreadings(after) or self._object_events.reasons(after.uid)
        ):
            self._touch(scope)
        if not account.managed:
            return
        lost = self._history.quota(account, self._view.clock())
        raised = account.ledger.keys() - last.ledger.keys()  # by a charge, which may drop entries of pods not seen here
        unknown = account.used.keys() != account.hard.keys()
        if changed or account.gone or unknown or (lost and not raised):
            self._touch(scope)
        elif lost:
            self._gather(self._charged, scope, self._pace.longest, _LONGEST_CLEANUP)
        now = self._view.clock()
        for entry in account.ledger.values():
            expired = entry.expired(now, self._pace.ttl)
            if grows_old(entry.state) and not (expired and entry.state is State.FLOOR):
                self._at(scope, now if expired else entry.time + self._pace.ttl + _AFTER)

    def _forget(self, quota: ResourceQuota) -> None:
        """A quota is gone, or another has its name."""
        self._history.forget(quota.uid)
        self._object_events.forget(quota.uid)
        self._observed.pop(quota.uid, None)
        scope = self._scope(quota)
        accounts = self._accounts.get(scope, {})
        accounts.pop(quota.name, None)
        if not accounts:
            self._accounts.pop(scope, None)

    def cards_changed(self) -> None:
        """Cards, or labels of their nodes, changed: quotas that select cards may count others."""
        for scope, accounts in self._accounts.items():
            if any(account.cards is not None for account in accounts.values()):
                self._touch(scope)

    def namespaces_changed(self) -> None:
        """A namespace came, went or changed: quotas that select namespaces may cover others."""

    def touch(self, namespace: str) -> None:
        """Recompute the quotas that cover a namespace's pods soon."""
        for scope in self._scopes(namespace):
            self._touch(scope)

    def _touch(self, scope: str) -> None:
        """Recompute the scope's quotas soon: debounced, but no later than `_longest` after the first change."""
        self._gather(self._changed, scope, self._pace.debounce, self._longest(scope))

    def _longest(self, scope: str) -> float:
        """Seconds after the first change by which the scope's quotas are recomputed, however many follow."""
        return self._pace.longest

    def _gather(self, work: dict[str, tuple[float, float]], scope: str, delay: float, longest: float) -> None:
        """Recompute the scope `delay` s after the last such call, but no later than `longest` s after the first."""
        now = self._view.clock()
        first, _ = work.get(scope, (now, now))
        work[scope] = first, min(now + delay, first + longest)
        self._wake.set()

    def _at(self, scope: str, when: float) -> None:
        if scope not in self._changed and when < self._timed.get(scope, float("inf")):
            self._timed[scope] = when
            self._wake.set()

    def resync(self) -> None:
        """Look at every quota with the next step, as a new leader does; another handled what came before."""
        self._observed.clear()
        self._next_resync = 0.0
        self._wake.set()

    def next_due(self) -> float:
        """When there is next something to do."""
        return min((self._next_resync, *(when for scope, when in self._all_due() if scope not in self._busy)))

    def _all_due(self) -> Iterator[tuple[str, float]]:
        yield from self._timed.items()
        for work in (self._changed, self._charged):
            yield from ((scope, when) for scope, (_, when) in work.items())

    def _begin_due(self) -> Iterator[Coroutine[None, None, int]]:
        """The recomputes that are due now, for each scope that isn't being recomputed."""
        now = self._view.clock()
        due = {scope for scope, when in self._all_due() if when <= now}
        quiet: set[str] = set()
        if now >= self._next_resync:
            self._next_resync = now + self._pace.resync * (0.9 + 0.2 * self._jitter())
            self._history.prune(now)
            quiet = self._accounts.keys() - due - self._changed.keys()
            due |= self._accounts.keys()
        for scope in sorted(due - self._busy):
            # before it is recomputed: what happens meanwhile makes it due again
            for work in (self._changed, self._charged, self._timed):
                work.pop(scope, None)
            self._busy.add(scope)
            yield self._reconcile_in_turn(scope, quiet=scope in quiet)

    async def step(self) -> int:
        """Recompute what is due now; how many quotas were looked at."""
        return sum(await asyncio.gather(*self._begin_due()))

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Work until cancelled. A quota that takes long, as its pods are many, delays few others."""
        in_background.set(True)
        self._busy.clear()  # recomputes that were cancelled before they began are still among them
        async with asyncio.TaskGroup() as tasks:
            while True:
                for reconciling in self._begin_due():
                    tasks.create_task(reconciling)
                self._wake.clear()
                pause = max(0.01, self.next_due() - self._view.clock())
                waits = [asyncio.ensure_future(self._wake.wait()), asyncio.ensure_future(sleep(pause))]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()

    async def _reconcile_in_turn(self, scope: str, *, quiet: bool) -> int:
        try:
            async with self._slots:
                return await self._reconcile(scope, quiet=quiet)
        finally:
            self._busy.discard(scope)
            self._wake.set()

    async def _reconcile(self, scope: str, *, quiet: bool) -> int:
        """Recompute a namespace's quotas; `quiet` if nothing happened there that would change them."""
        accounts = list(self._accounts.get(scope, {}).values())
        for account in accounts:
            await self._report_misreadings(account.quota)
            await self._report_observed(account)
        managed = [account for account in accounts if account.managed]
        failed = False
        for quota in managed:
            try:
                result = await self._recompute(scope, quota.name)
            except NotFound:
                continue
            except ClusterError as error:
                about = {"namespace": scope, "quota": quota.name, "reason": str(error)}
                logger.warning("recomputing failed; trying again", extra=about)
                failed = True
                continue
            except Exception:
                self._failed_loops[LOOP] += 1
                about = {"namespace": scope, "quota": quota.name}
                logger.exception("recomputing failed; trying again", extra=about)
                failed = True
                continue
            self._history.confirm(result.confirmed, self._view.clock())
            self.expired += result.expired
            if quiet and result.before.used.keys() == result.after.used.keys() != set():
                self.drifted += result.before.used != result.after.used
            if result.wake is not None:
                self._at(scope, result.wake + _AFTER)
            await self._report(result)
        failures = self._failures.pop(scope, 0)
        if failed:
            self._failures[scope] = failures + 1
            pause = min(_LONGEST_BACKOFF, 2.0 ** min(failures, 16))
            self._at(scope, self._view.clock() + pause * (0.5 + self._jitter() / 2))
        return len(managed)

    def _lost(self, account: QuotaAccount) -> dict[str, Entry]:
        return self._history.quota(account, self._view.clock())

    async def _report(self, result: Recomputed) -> None:
        """Events for what a person should know: used above hard, bad pods."""
        quota, hard = result.after.quota, result.after.hard
        over = [
            f"{key}: used {result.after.used[key]}, limited {limit}"
            for key, limit in sorted(hard.items())
            if result.after.used.get(key, 0) > limit
        ]
        await self._record(quota.kind, quota, "QuotaExceeded", "; ".join(over), detail=excess_sentence(result.excess))
        for pod, texts in result.problems:
            await self._record("Pod", pod, "BadAllocation", "; ".join(texts))
        for pod, keys in result.overruns:
            text = f"pod {pod.key} got more than was charged when it was admitted, so quota {quota.name} is above hard"
            await self._record("Pod", pod, "QuotaOverrun", f"{text}: {', '.join(keys)}", quota.name)

    async def _report_misreadings(self, quota: ResourceQuota) -> None:
        """An event for each kind of what the quota says and its author can hardly have meant."""
        found = self._view.misreadings(quota)
        for reason in Reason:
            text = "; ".join(each.text for each in found if each.reason is reason)
            await self._record(quota.kind, quota, reason.value, text)

    async def _report_observed(self, account: QuotaAccount) -> None:
        """Count in an event what a quota let pass and would have refused."""
        quota, times = account.quota, self._observed.pop(account.quota.uid, 0)
        text = f"without {ENFORCEMENT}: observe a pod would have been refused"
        note = EventNote(quota.kind, quota.namespace, quota.name, quota.uid, "Warning", "QuotaObserved", text, times)
        if times and not await self._object_events.record(note):
            self._observed[quota.uid] += times

    async def _record(
        self,
        kind: str,
        about: Pod | ResourceQuota,
        reason: EventReason,
        message: str,
        topic: str = "",
        detail: str = "",
    ) -> None:
        await self._object_events.warn(kind, about.namespace, about.name, about.uid, reason, message, topic, detail)

    def _differ(self, before: Pod, after: Pod) -> bool:
        """Whether two versions of a pod differ in what a quota depends on."""
        if self._facts(before) != self._facts(after):
            return True
        vendors = self._view.vendors
        return not after.node_name and floor_id(before, vendors) != floor_id(after, vendors)

    def _facts(self, pod: Pod) -> tuple[object, ...]:
        """What of a pod a quota depends on, but for what it requests."""
        return (
            pod.terminal,
            pod.node_name,
            pod.deletion_time,
            pod.deletion_grace,
            pod.init_finished,
            pod.active_deadline,
            pod.extended_claim,
            pod.generated_claims,
            {key: text for key, text in pod.annotations.items() if key in self._annotations},
            pod.queued,
        )


def _cards_of(view: NodeView | None) -> object:
    """What of a node decides which of its cards a quota selects."""
    return None if view is None else (view.node.labels, view.inventories)
