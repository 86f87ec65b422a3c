"""Reclaiming what is lent: pods of teams beyond their nominal are evicted for those that wait within their own.

Source: docs/spec/queues.md#7. Who goes, `evictions/lent.py` decides. What is evicted for a pod is as much as its quotas
lack when all that is ending has ended; so a round, or a leader, that comes while it ends evicts nobody again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from hami_webhook.charging.pods import PodCharger
from hami_webhook.cluster.api import Cluster, ClusterError, EvictionRefused, Kind
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.evictions.candidates import Holdings, finding_lent
from hami_webhook.evictions.executor import Eviction, Executor
from hami_webhook.evictions.lent import Blocked, Evictable, Reclaiming, Shortage
from hami_webhook.evictions.limits import EvictionLimits
from hami_webhook.evictions.nominated_capacity import NominatedCapacity
from hami_webhook.evictions.policies import RECLAIM
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.kube.objects import MalformedObject, Pod
from hami_webhook.logs import of_pod
from hami_webhook.loops import contained
from hami_webhook.queueing.pod_queue import known_accounts
from hami_webhook.queueing.releaser import QueueReleaser
from hami_webhook.queueing.words import earliest
from hami_webhook.quota.account import QuotaAccount, limiting
from hami_webhook.quota.enforcement import queue_order
from hami_webhook.quota.floors import floor_id
from hami_webhook.quota.lending import Reclaim
from hami_webhook.quota.limits import limited_at
from hami_webhook.quota.queue_order import Demand, QueuedPod
from hami_webhook.state.cluster_view import ClusterView
from hami_webhook.state.nominations import Nominations
from hami_webhook.time_slices import Steps, TimeSlices

logger = logging.getLogger(__name__)

LOOP = "reclaim"

_EVERY, _PAUSE_PER_SECOND = 1.0, 10
"""Seconds between two rounds, and for each second that one takes."""
_TRIED_AGAIN, _SPARED_FOR = 5.0, 60.0
"""Seconds after which a search is made again that found nobody, and a pod is tried again that a budget protected."""
_SHOWN_WITHIN = 30.0
"""Seconds within which the watch shows that an evicted pod is being deleted."""
_MOST_SEARCHES, _MOST_FAILED = 100, 4
"""Searches in a round, and those that find nobody, of each team: who waits for long keeps no other team waiting."""

_Shape = tuple[Demand, str, int]
"""What pods cost, what they request, and how many they are: who is equal in these finds the same."""


class _Failure(NamedTuple):
    """Why nobody was found, until when that isn't looked for again, and when it changes by itself, if it does."""

    blocked: Blocked
    until: float
    earliest: str = ""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Who waits within its teams' nominal: a pod, or those of a group that take their turn as one."""

    turn: QueuedPod
    pods: Sequence[Pod]
    teams: Sequence[str]
    dry_run: bool

    @property
    def first(self) -> Pod:
        return self.pods[0]


@dataclass(slots=True)
class _Round:
    """What is known in one round. `free` is what quotas leave once all that is ending has ended, less what those took
    that had their turn; in the quotas `closed` nobody passes one who waits.
    """

    accounts: Mapping[str, QuotaAccount]
    holdings: Holdings
    reclaiming: Reclaiming
    cards: NominatedCapacity
    free: dict[str, dict[str, int]]
    slices: TimeSlices
    closed: set[str] = field(default_factory=set)
    searches: int = 0
    failed: Counter[str] = field(default_factory=Counter)


class Reclaimer:
    """Evicts pods while `run` runs; only the leader calls `run`.

    `reclaimed` counts pods by the quota that gave them; `notes` say by the UID of a pod that waits what is reclaimed
    for it, or why nothing is.
    """

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        releaser: QueueReleaser,
        charger: PodCharger,
        nominations: Nominations,
        limits: EvictionLimits,
        object_events: ObjectEvents,
        failures: Counter[str],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._releaser = releaser
        self._charger = charger
        self._nominations = nominations
        self._limits = limits
        self._executor = Executor(cluster, object_events.record, clock=view.clock)
        self._failures = failures
        self._sleep = sleep
        self._evicted: dict[str, float] = {}
        """When pods were evicted that no watch shows as being deleted yet, by UID."""
        self._spared: dict[str, float] = {}
        """Until when pods aren't tried again that couldn't be evicted, by UID."""
        self._found_nobody: dict[_Shape, _Failure] = {}
        self._settled: dict[str, float] = {}
        """Until when what is done for those that wait isn't looked at again, by the UID of their turn."""
        self.reclaimed: Counter[str] = Counter()
        self.notes: dict[str, str] = {}

    async def run(self) -> None:
        """Reclaim until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            with contained(self._failures, LOOP, ""):
                await self.step()
            await self._sleep(max(_EVERY, _PAUSE_PER_SECOND * (loop.time() - began)))

    async def step(self) -> None:
        """Run one round: quotas above the limit of a window first, then the waiting pods in turn.

        Those with `reclaim: on` come before those with `dry-run`.
        """
        await self._return_to_limits()
        within = self._releaser.within
        uids = {turn.pod.uid for turn, _ in within}
        self._releaser.reclaimed_for &= uids
        there = {pod.uid for _, pods in within for pod in pods}
        self.notes = {uid: text for uid, text in self.notes.items() if uid in there}
        if not within:
            return
        accounts = self._accounts(within[0][1][0])
        waiting = sorted(self._waiting(accounts), key=lambda each: each.dry_run)
        self._forget_old()
        if all(each.turn.uid in self._settled or self._shape(each) in self._found_nobody for each in waiting):
            return
        try:
            budgets = await self._budgets()
        except ClusterError as error:
            logger.warning("nothing is reclaimed: PodDisruptionBudgets can't be listed", extra={"reason": str(error)})
            for each in waiting:
                self._settle(each)
            return
        now = await self._round(accounts, budgets)
        for each in waiting:
            await self._have_turn(each, now)

    def _accounts(self, pod: Pod) -> dict[str, QuotaAccount]:
        """The AcceleratorQuotas that aren't only observed, by name; none while they aren't known."""
        known = self._charger.known(pod).accelerator_quotas
        found = known.accounts.values() if known.age < _SHOWN_WITHIN else ()
        now = self._view.clock()
        return {each.room_name: limited_at(each, now) for each in found if each.hard and each.enforced}

    def _waiting(self, accounts: Mapping[str, QuotaAccount]) -> Iterator[_Waiting]:
        """Those whose teams reclaim."""
        for standing, pods in self._releaser.within:
            teams = [name for name, _ in standing.pod.demand if name in accounts and accounts[name].nominal]
            modes = {Reclaim.of(accounts[name].quota) for name in teams}
            if modes and Reclaim.OFF not in modes:
                yield _Waiting(standing.pod, pods, teams, Reclaim.DRY_RUN in modes)

    def _forget_old(self) -> None:
        now, state = self._view.clock(), self._view.state
        self._evicted = {
            uid: at
            for uid, at in self._evicted.items()
            if now < at + _SHOWN_WITHIN and (pod := state.pod(uid)) is not None and pod.deletion_time is None
        }
        self._spared = {uid: until for uid, until in self._spared.items() if now < until}
        self._settled = {uid: until for uid, until in self._settled.items() if now < until}
        self._found_nobody = {shape: each for shape, each in self._found_nobody.items() if now < each.until}

    async def _return_to_limits(self) -> None:
        """Evict pods of quotas with `reclaim: on` that hold more than the limit of a window that began."""
        cache, now = self._view.caches.accelerator_quotas, self._view.clock()
        quotas = [each for each in cache.all() if each.windows and Reclaim.of(each) is Reclaim.ON]
        if not quotas or cache.silence() >= _SHOWN_WITHIN:
            return
        accounts = [limited_at(QuotaAccount.read(each, self._view.vendors), now) for each in quotas]
        over = {
            each.room_name: replace(each, nominal=dict.fromkeys(each.hard, 0))
            for each in accounts
            if each.enforced and any(each.used.get(key, 0) > limit for key, limit in each.hard.items())
        }
        if not over:
            return
        self._forget_old()
        try:
            found = await self._round(over, await self._budgets())
        except ClusterError as error:
            logger.warning("nobody is evicted above a limit: no budgets", extra={"reason": str(error)})
            return
        for name, account in over.items():
            lacks = {(name, key): -free for key, free in found.free[name].items() if free < 0}
            shortage = Shortage((), (), lacks)
            victims = await found.slices.run(found.reclaiming.selecting(shortage, _anywhere)) if lacks else ()
            if isinstance(victims, Blocked):  # what may go, goes; the others as soon as they may
                victims = await found.slices.run(found.reclaiming.as_many_as_may(shortage))
            if victims:
                found.reclaiming.take(shortage, victims)
                keys = ", ".join(f"{key}={account.hard[key]}" for _, key in sorted(lacks))
                why = f"evicted because {name} holds more than its limit {keys}{account.limited_by}"
                pods = [found.holdings.pods[uid] for victim in victims for uid in victim.uids]
                await self._evict(Eviction(RECLAIM, (), pods, why=partial(_said, why)), partial(_names, name))

    async def _budgets(self) -> list[PodDisruptionBudget]:
        """All PodDisruptionBudgets as they are. Raises `ClusterError`."""
        found = []
        for item in (await self._cluster.list(Kind.POD_DISRUPTION_BUDGETS)).items:
            try:
                found.append(PodDisruptionBudget.from_object(item))
            except MalformedObject as error:  # the eviction API has the last word on it
                logger.debug("a PodDisruptionBudget can't be read", extra={"reason": str(error)})
        return found

    async def _round(self, accounts: Mapping[str, QuotaAccount], budgets: Sequence[PodDisruptionBudget]) -> _Round:
        slices = TimeSlices()
        finding = finding_lent(self._view, accounts, budgets, self._evicted, self._spared.keys())
        holdings = await slices.run(finding)
        allowed = {f"{each.namespace}/{each.name}": each.allowed for each in budgets}
        reclaiming = Reclaiming(holdings.teams, holdings.candidates, allowed, self._view.clock())
        state, vendors = self._view.state, self._view.vendors
        cards = NominatedCapacity(state, self._nominations, vendors, self._evicted.keys())
        free = {
            name: {key: limit - holdings.held[name][key] for key, limit in account.hard.items()}
            for name, account in accounts.items()
        }
        return _Round(accounts, holdings, reclaiming, cards, free, slices)

    async def _have_turn(self, each: _Waiting, now: _Round) -> None:
        """Reclaim what one lacks, or take what there is for it."""
        covering = known_accounts(self._charger.known(each.first), each.first.namespace) or ()
        for account in limiting(covering, each.first):
            name = account.room_name  # those of its namespace and its subject: what is charged there, isn't lent
            if name not in now.free:
                now.free[name] = {key: limit - account.used.get(key, 0) for key, limit in account.hard.items()}
        shortage = Shortage(
            each.teams,
            each.turn.demand,
            {
                (name, key): lack
                for name, amounts in each.turn.demand
                for key, amount in amounts
                if (lack := amount - now.free.get(name, {}).get(key, amount)) > 0
            },
        )
        if not shortage.lacks and each.turn.uid in self._releaser.reclaimed_for:
            await now.slices.run(now.cards.place(each.pods, frozenset()))
        if not shortage.lacks:
            self._settle(each)
            _take(now, each)
            return
        known = self._shape(each) in self._found_nobody
        victims = await self._search(each, shortage, now)
        if isinstance(victims, Blocked):
            when = self._found_nobody[self._shape(each)].earliest
            await self._note_blocked(each, victims, when, event=not known and victims is not Blocked.NOBODY)
        if victims is None or isinstance(victims, Blocked):
            now.closed |= {name for name, _ in each.turn.demand if _is_strict(now.accounts.get(name))}
            return
        now.reclaiming.take(shortage, victims)
        gone = frozenset(uid for victim in victims for uid in victim.uids)
        await now.slices.run(now.cards.place(each.pods, gone))
        for victim in victims:
            for name, costs in victim.costs.items():
                for key, amount in costs.items():
                    now.free[name][key] += amount
        _take(now, each)
        self._settle(each)
        await self._reclaim(each, shortage, victims, now)

    def _settle(self, each: _Waiting) -> None:
        self._settled[each.turn.uid] = self._view.clock() + _TRIED_AGAIN

    async def _search(self, each: _Waiting, shortage: Shortage, now: _Round) -> Sequence[Evictable] | Blocked | None:
        """The victims for one; why there are none, or None where it isn't looked for them now."""
        if not all(self._may_be_reclaimed(place, each.teams, now) for place in shortage.lacks):
            return None
        if not each.dry_run and (reached := self._limits.reached(RECLAIM, each.pods, 1)):
            # no event: it says another time each round
            await self._note(each, "Warning", RECLAIM.blocked, f"nobody is evicted: {reached.reason}", event=False)
            return None
        shape = self._shape(each)
        if shape in self._found_nobody:
            return self._found_nobody[shape].blocked
        slow = any(now.failed[team] >= _MOST_FAILED for team in each.teams)
        if slow or now.searches >= _MOST_SEARCHES or now.cards.exhausted:
            return None
        now.searches += 1
        fits = partial(now.cards.fitting, each.pods)
        found = await now.slices.run(now.reclaiming.selecting(shortage, fits))
        if isinstance(found, Blocked):
            now.failed.update(each.teams)
            when = ""
            if found is Blocked.YOUNG:
                when = earliest(await now.slices.run(now.reclaiming.ripe_at(shortage)))
            self._found_nobody[shape] = _Failure(found, self._view.clock() + _TRIED_AGAIN, when)
        return found

    def _may_be_reclaimed(self, place: tuple[str, str], teams: Sequence[str], now: _Round) -> bool:
        """Whether room is lacking in a common quota that queues, of what all teams of a pod have a nominal for.

        Where a quota doesn't queue, who comes first takes what is freed.
        """
        name, key = place
        account = now.accounts.get(name)
        common = account is not None and account.queues and not account.nominal and name not in now.closed
        return common and all(key in now.accounts[team].nominal for team in teams)

    def _shape(self, each: _Waiting) -> _Shape:
        return each.turn.demand, floor_id(each.first, self._view.vendors), len(each.pods)

    async def _reclaim(self, each: _Waiting, shortage: Shortage, victims: Sequence[Evictable], now: _Round) -> None:
        """Evict the victims, or say who they would be."""
        keys = ", ".join(sorted({f"{key} of {name}" for name, key in shortage.lacks}))
        if each.dry_run:
            text = f"{_pods(victims, each.teams)} would be evicted for {keys} (reclaim: dry-run)"
            await self._note(each, "Normal", RECLAIM.dry_run, text)
            return
        # before anybody goes: what is freed is kept from others
        self._releaser.reclaimed_for |= {each.turn.uid}
        self._limits.evicted(each.pods, {uid for victim in victims for uid in victim.uids})
        groups = {uid: victim for victim in victims for uid in victim.uids}

        def giving(pod: Pod) -> list[str]:
            return [name for name in groups[pod.uid].teams if name not in each.teams]

        def why(pod: Pod) -> str:
            return (
                f"evicted because {' and '.join(giving(pod))} holds more than its nominal, and a pod of "
                f"{' and '.join(each.teams)} waits for its own part"
            )

        places = [(pod, "") for pod in each.pods]
        eviction = Eviction(RECLAIM, places, [now.holdings.pods[uid] for uid in groups], why=why)
        refused = await self._evict(eviction, giving)
        if refused is not None:
            if isinstance(refused, EvictionRefused):
                await self._note_blocked(each, Blocked.PROTECTED)
            return
        await self._note(each, "Normal", RECLAIM.evicting, f"{_pods(victims, each.teams)} evicted for {keys}")

    async def _evict(self, eviction: Eviction, giving: Callable[[Pod], list[str]]) -> ClusterError | None:
        """Evict the victims, up to the first that can't be: nobody is tried in its place before the next round."""
        for pod in eviction.victims:
            try:
                if not await self._executor.end(pod, eviction):
                    continue
            except ClusterError as error:
                self._spared[pod.uid] = self._view.clock() + _SPARED_FOR
                if not isinstance(error, EvictionRefused):
                    about = {**of_pod(pod), "reason": str(error)}
                    logger.warning("a pod can't be evicted to reclaim lent amounts", extra=about)
                return error
            self._evicted[pod.uid] = self._view.clock()
            self.reclaimed.update(name.partition("/")[2] for name in giving(pod))
        return None

    async def _note_blocked(self, each: _Waiting, blocked: Blocked, when: str = "", *, event: bool = True) -> None:
        text = f"nobody is evicted for it: {', '.join(filter(None, (blocked.value, when)))}"
        await self._note(each, "Warning", RECLAIM.blocked, text, event=event)

    async def _note(self, each: _Waiting, type_: str, reason: EventReason, text: str, *, event: bool = True) -> None:
        """Have the condition of a pod say it, and an event unless that was said last."""
        if event and self.notes.get(each.first.uid) != text:
            await self._executor.say(each.first, type_, reason, text)
        self.notes |= {pod.uid: text for pod in each.pods}


def _take(now: _Round, each: _Waiting) -> None:
    """What one costs is no longer free for those after it."""
    for name, amounts in each.turn.demand:
        for key, amount in amounts:
            if key in now.free.get(name, {}):
                now.free[name][key] -= amount


def _said(why: str, pod: Pod) -> str:
    return why


def _names(name: str, pod: Pod) -> list[str]:
    return [name]


def _anywhere(gone: frozenset[str]) -> Steps[bool]:
    """Nobody needs the cards of those who go above a limit."""
    yield
    return True


def _is_strict(account: QuotaAccount | None) -> bool:
    return account is not None and account.queues and queue_order(account.quota).strict


def _pods(victims: Sequence[Evictable], own: Sequence[str]) -> str:
    """How many pods of which quotas; pods of other namespaces aren't named."""
    count = sum(len(each.uids) for each in victims)
    quotas = sorted({name for each in victims for name in each.teams if name not in own})
    return f"{count} pod{'s' if count > 1 else ''} of {', '.join(quotas)}"
