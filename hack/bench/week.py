"""`python -m hack.bench.week`: a week of jobs of five teams on 20 nodes with 8 cards; baseline: quotas that refuse.

Jobs arrive at random (Poisson), have 1 to 40 pods of one card each, and run for two hours on average. One team asks for
three times as much as each of the others. Each may hold 64 cards, all together the 160 that there are. Where quotas
refuse, pods are created as Kubernetes' Job controller does it: after a refusal it waits for 1 s, then twice as long
each time, up to a minute. Where they queue, the order is the program's own, as are what a pod costs and whether it
fits. With lending a fifth of the cards is each team's own, and what others hold of it is reclaimed from pods that have
run for ten minutes, by the program's own choice: such a pod waits again, as its job makes it anew, and begins anew.

Utilisation is of all cards over the week, without what was done in vain. Jain's index is of the teams' mean waits for a
pod, each as a speed, 1 through (an hour + wait): 1 where all wait equally long.

The same jobs again, for `docs/time.md`: all teams have one quota of 160 cards with `order: strict`, and each job starts
as a whole. Where they name times, a job names one to three times of what its longest pod takes; the program promises
starts, and lets jobs pass that end in time. Baseline: the same order without times.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from msgspec import structs
from msgspec.structs import replace

from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import JSON, gpu, pod_with
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.evictions.lent import Blocked, Evictable, Reclaiming, Shortage, Team
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.queueing.pod_queue import demand_of, room_of
from hami_webhook.queueing.promises import Promises, StartErrors
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.lending import MIN_RUNTIME
from hami_webhook.quota.pricing import Charge, ClusterCapacity, price_pending
from hami_webhook.quota.queue_order import (
    Demand,
    QueueDecision,
    QueuedPod,
    QueueOrder,
    QueuePosition,
    QueueRoom,
    decide,
)
from hami_webhook.simulate.timeline import Timeline, overlap, quantile
from hami_webhook.time_slices import Steps, run_at_once

CARDS, TEAMS, OWN = 160, 5, 64
NOMINAL = CARDS // TEAMS
SMALLER = range(1, TEAMS)
HOURS = {"smallest": 6, "usual": 168, "large": 168}
LOAD, MEAN_HOURS, MOST_PODS, HEAVY = 0.95, 2.0, 40, 3
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
NAMED = 1.0, 3.0
"""Of how long a job takes, the least and the most that it names."""
HOUR = 3600.0
KEY = "limits.nvidia.com/gpu"
VENDORS = enabled_vendors(builtin_device_config().config)


@dataclass(frozen=True, slots=True)
class Job:
    team: int
    at: float
    runs: tuple[float, ...]
    """For how many seconds each of its pods runs."""


@dataclass
class Outcome:
    """Seconds that pods waited, by team, card-seconds that were used in the week, and evictions."""

    waits: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    used: float = 0.0
    evictions: int = 0
    starts: StartErrors = field(default_factory=StartErrors)

    def started(self, job: Job, at: float, runs: float, end: float) -> None:
        self.waits[job.team].append(at - job.at)
        self.used += overlap(at, at + runs, 0.0, end)

    def ended(self, pod: Running, end: float) -> None:
        self.waits[pod.job.team].append(pod.waited)
        self.used += overlap(pod.since, pod.since + pod.seconds, 0.0, end)

    @property
    def fairness(self) -> float:
        speeds = [1 / (HOUR + statistics.fmean(waits)) for waits in self.waits.values()]
        return sum(speeds) ** 2 / (len(speeds) * sum(each**2 for each in speeds))


class Running(NamedTuple):
    """A pod that runs, for how many seconds in all, and since when; and for how long it waited."""

    job: Job
    seconds: float
    since: float
    waited: float


class Quotas:
    """A quota for each team, and the one above; `used` is kept as charges and ends change it."""

    def __init__(self, *, nominal: int = 0) -> None:
        self.accounts = [_account(f"team-{team}", OWN, nominal) for team in range(TEAMS)]
        self.above = _account("", CARDS)
        pods = [Pod.from_object(_pod(f"team-{team}")) for team in range(TEAMS)]
        self.charges: list[Charge] = [price_pending(pod, VENDORS, ClusterCapacity()) for pod in pods]
        self.demands: list[Demand] = [
            demand_of(pod, (account, self.above), VENDORS, ClusterCapacity())
            for pod, account in zip(pods, self.accounts, strict=True)
        ]

    def fits(self, team: int) -> bool:
        charge = self.charges[team]
        return not (self.accounts[team].overrun(charge) or self.above.overrun(charge))

    def change(self, team: int, sign: int) -> None:
        more = {key: sign * amount for key, amount in self.charges[team].amounts.items() if key == KEY}
        self.accounts[team] = self.accounts[team].with_increase("", None, more)
        self.above = self.above.with_increase("", None, more)

    def decide(self, waiting: Sequence[QueuedPod], now: float) -> QueueDecision:
        rooms = {each.room_name: room_of(each) for each in (*self.accounts, self.above)}
        return decide(waiting, rooms, now)

    def reclaiming(self, running: Mapping[str, Running], now: float) -> Reclaiming:
        """Who may be evicted of those that run."""
        teams = {each.room_name: Team(each.nominal, each.used) for each in self.accounts}
        costs = [{name: dict(amounts) for name, amounts in demand} for demand in self.demands]
        names = [each.room_name for each in self.accounts]
        candidates = [
            Evictable((uid,), (names[each.job.team],), 0, each.since, MIN_RUNTIME, costs[each.job.team])
            for uid, each in running.items()
        ]
        return Reclaiming(teams, candidates, {}, now)


def measure(size: str) -> Sequence[Figure]:
    end = HOURS[size] * HOUR
    jobs = list(_jobs(random.Random(1), end))
    found = {}
    lending = partial(_queueing, nominal=NOMINAL)
    for name, simulate in (("refuse", _refusing), ("queue", _queueing), ("queue with lending", lending)):
        show_progress(f"week: {len(jobs)} jobs, {name}")
        found[name] = simulate(jobs, end)
    show_progress(f"week: {len(jobs)} jobs, strict")
    without, named = _together(jobs, end, named=False), _together(jobs, end, named=True)
    return [
        *(
            each
            for name in found
            for each in _figures(name, found[name], found["refuse"], end, goals=size != "smallest")
        ),
        *_figures_of_times(named, without, end),
    ]


def _figures(name: str, outcome: Outcome, baseline: Outcome, end: float, *, goals: bool) -> Iterator[Figure]:
    rows: list[tuple[str, str, list[float]]] = [
        ("utilisation", "%", [100 * each.used / (CARDS * end) for each in (outcome, baseline)]),
        ("wait p50", "min", [_quantile(each, 0.5) / 60 for each in (outcome, baseline)]),
        ("wait p99", "min", [_quantile(each, 0.99) / 60 for each in (outcome, baseline)]),
        ("wait p50 of the smaller teams", "min", [_quantile(each, 0.5, SMALLER) / 60 for each in (outcome, baseline)]),
        ("wait p99 of the smaller teams", "min", [_quantile(each, 0.99, SMALLER) / 60 for each in (outcome, baseline)]),
        ("Jain's index", "", [each.fairness for each in (outcome, baseline)]),
        ("evictions", "", [each.evictions for each in (outcome, baseline)]),
    ]
    for row, unit, (value, of_baseline) in rows:
        goal = Goal(at_most=1.0) if goals and row == "wait p99" and name == "queue" else None
        yield Figure("week", f"{name}, {row}", value, unit, "refuse", of_baseline, goal)


def _figures_of_times(named: Outcome, without: Outcome, end: float) -> Iterator[Figure]:
    both = named, without
    waits = [[wait for of_team in each.waits.values() for wait in of_team] for each in both]
    rows: list[tuple[str, str, list[float]]] = [
        ("utilisation", "%", [100 * each.used / (CARDS * end) for each in both]),
        ("wait of a job, mean", "min", [statistics.fmean(each) / 60 for each in waits]),
        ("wait of a job, median", "min", [statistics.median(each) / 60 for each in waits]),
        ("wait of a job, p99", "min", [_quantile(each, 0.99) / 60 for each in both]),
        ("promised starts", "", [each.starts.count for each in both]),
        ("late starts", "", [each.starts.late for each in both]),
    ]
    for row, unit, (value, of_baseline) in rows:
        goal = Goal(at_most=0, of="value") if row == "late starts" else None
        yield Figure("week", f"strict with times, {row}", value, unit, "strict", of_baseline, goal)


def _quantile(outcome: Outcome, share: float, teams: Iterable[int] = range(TEAMS)) -> float:
    return quantile([wait for team in teams for wait in outcome.waits[team]], share)


def _jobs(dice: random.Random, end: float) -> Iterator[Job]:
    """What arrives: so many card-hours that `LOAD` of the cards would be busy."""
    weights = [HEAVY, *[1] * (TEAMS - 1)]
    pods = (1 + MOST_PODS) / 2
    each_second = LOAD * CARDS / (pods * MEAN_HOURS * HOUR)
    at = 0.0
    while (at := at + dice.expovariate(each_second)) < end:
        (team,) = dice.choices(range(TEAMS), weights)
        size = dice.randint(1, MOST_PODS)
        yield Job(team, at, tuple(dice.expovariate(1 / (MEAN_HOURS * HOUR)) for _ in range(size)))


def _refusing(jobs: Sequence[Job], end: float) -> Outcome:
    """Each job's controller creates its pods until one is refused, and tries again after a pause."""
    quotas, outcome = Quotas(), Outcome()
    events: Timeline[tuple[int, list[float], Job | None, float]] = Timeline(
        (job.at, (job.team, list(job.runs), job, FIRST_PAUSE)) for job in jobs
    )
    while events:
        now, (team, runs, job, pause) = events.next()
        if job is None:
            quotas.change(team, -1)
            continue
        before = len(runs)
        while runs and quotas.fits(team):
            seconds = runs.pop()
            quotas.change(team, 1)
            outcome.started(job, now, seconds, end)
            events.add(now + seconds, (team, [], None, 0.0))
        if runs:
            pause = FIRST_PAUSE if len(runs) < before else min(LONGEST_PAUSE, 2 * pause)
            events.add(now + pause, (team, runs, job, pause))
    return outcome


def _queueing(jobs: Sequence[Job], end: float, *, nominal: int = 0) -> Outcome:
    """All pods are there at once, and are released in their turn when something changes."""
    quotas, outcome, order = Quotas(nominal=nominal), Outcome(), itertools.count()
    waiting: dict[str, QueuedPod] = {}
    of_pod: dict[str, tuple[Job, float, float]] = {}
    running: dict[str, Running] = {}
    events: Timeline[tuple[Job | None, str]] = Timeline((job.at, (job, "")) for job in jobs)

    def wait(job: Job, seconds: float, waited: float, now: float) -> None:
        uid = f"{next(order):09}"
        waiting[uid] = QueuedPod(uid, f"team-{job.team}/{uid}", 0, now, quotas.demands[job.team])
        of_pod[uid] = job, seconds, waited

    def release(now: float) -> Sequence[QueuePosition]:
        decision = quotas.decide(list(waiting.values()), now)
        for pod in decision.released:
            job, seconds, waited = of_pod.pop(pod.uid)
            del waiting[pod.uid]
            quotas.change(job.team, 1)
            running[pod.uid] = Running(job, seconds, now, waited + now - pod.created)
            events.add(now + seconds, (None, pod.uid))
        return [each for each in decision.waiting if each.own]

    while events:
        now, (new, uid) = events.next()
        if new is not None:
            for seconds in new.runs:
                wait(new, seconds, 0.0, now)
        elif uid in running:
            ended = running.pop(uid)
            quotas.change(ended.job.team, -1)
            outcome.ended(ended, end)
        owed = release(now) if waiting else ()
        if owed and (victims := _reclaimed(quotas, owed, running, now)):
            outcome.evictions += len(victims)
            evicted = [running.pop(uid) for uid in victims]
            for each in evicted:
                quotas.change(each.job.team, -1)
            release(now)  # to the team that reclaimed, before the evicted pods wait again
            for each in evicted:
                wait(each.job, each.seconds, each.waited, now)
    return outcome


def _together(jobs: Sequence[Job], end: float, *, named: bool) -> Outcome:
    """Each job starts as a whole, in `strict` order, and passes others only if it named a time."""
    outcome, promises, order, dice = Outcome(), Promises(), itertools.count(len(jobs)), random.Random(2)
    waiting: dict[str, tuple[Job, QueuedPod]] = {}
    held: dict[int, float] = {}
    """When each pod that runs ends at the latest."""
    events: Timeline[tuple[int, Job | None]] = Timeline((job.at, (number, job)) for number, job in enumerate(jobs))
    while events:
        now, (number, new) = events.next()
        if new is None:
            del held[number]
        else:
            uid, size, runtime = f"{number:09}", len(new.runs), max(new.runs) * dice.uniform(*NAMED)
            pod = QueuedPod(uid, f"team-{new.team}/{uid}", 0, now, (("all", ((KEY, size),)),), size)
            waiting[uid] = new, structs.replace(pod, runtime=runtime) if named else pod
        ends = [(latest, KEY, 1) for latest in held.values() if named]
        room = QueueRoom({KEY: CARDS}, {KEY: CARDS - len(held)}, QueueOrder(strict=True), held=ends, timed=named)
        decision = decide([each for _, each in waiting.values()], {"all": room}, now, promised=promises.promised)
        for each in promises.given(decision, {"all": room}, now, frozenset()).released:
            job, _ = waiting.pop(each.uid)
            outcome.waits[job.team].append(now - job.at)
            for seconds in job.runs:
                outcome.used += overlap(now, now + seconds, 0.0, end)
                held[pod_number := next(order)] = now + (each.runtime or seconds)
                events.add(now + seconds, (pod_number, None))
    outcome.starts = promises.errors
    return outcome


def _reclaimed(quotas: Quotas, owed: Sequence[QueuePosition], running: Mapping[str, Running], now: float) -> list[str]:
    """The pods that are evicted for those that wait within their team's nominal."""
    above, free = quotas.above.room_name, CARDS - quotas.above.used[KEY]
    if not any(account.used[KEY] > account.nominal[KEY] for account in quotas.accounts):
        return []
    reclaiming = quotas.reclaiming(running, now)
    found: list[str] = []
    for number, each in enumerate(owed):
        if number < free:
            continue
        own = [name for name, _ in each.pod.demand if name != above]
        shortage = Shortage(own, each.pod.demand, {(above, KEY): 1})
        victims = run_at_once(reclaiming.selecting(shortage, _anywhere))
        if isinstance(victims, Blocked):
            break
        reclaiming.take(shortage, victims)
        found += [uid for victim in victims for uid in victim.uids]
    return found


def _anywhere(gone: frozenset[str]) -> Steps[bool]:
    yield
    return True


def _account(namespace: str, cards: int, nominal: int = 0) -> QuotaAccount:
    meta = {
        "name": namespace or "all",
        "namespace": namespace,
        "uid": namespace,
        "annotations": {"hami.io/quota-enforcement": "queue"},
    }
    made = ResourceQuota.from_object(
        {"metadata": meta, "spec": {"hard": {KEY: str(cards)}}, "status": {"used": {KEY: "0"}}}
    )
    account = QuotaAccount.read(made, VENDORS)
    if namespace and nominal:
        quota = structs.replace(made, namespaces=frozenset((namespace,)))
        return replace(account, quota=quota, nominal={KEY: nominal})
    if namespace:
        return account
    above = frozenset(f"team-{team}" for team in range(TEAMS))
    return replace(account, quota=structs.replace(made, namespaces=above))


def _pod(namespace: str) -> JSON:
    made = pod_with("p", gpu(1000))
    made["metadata"]["namespace"] = namespace
    return made


if __name__ == "__main__":
    run({"week": measure}, __doc__)
