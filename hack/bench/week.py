"""`python -m hack.bench.week`: a week of jobs of five teams on 20 nodes with 8 cards; baseline: quotas that refuse.

Jobs arrive at random (Poisson), have 1 to 40 pods of one card each, and run for two hours on average. One team asks for
three times as much as each of the others. Each may hold 64 cards, all together the 160 that there are. Where quotas
refuse, pods are created as Kubernetes' Job controller does it: after a refusal it waits for 1 s, then twice as long
each time, up to a minute. Where they queue, the order is the program's own, as are what a pod costs and whether it
fits.

Utilisation is of all cards over the week. Jain's index is of the teams' mean waits for a pod, each as a speed, 1
through (an hour + wait): 1 where all wait equally long.
"""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import JSON, gpu, pod_with
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.pricing import Charge, NoCapacity, waiting_charge
from hami_webhook.quota.queue import demand_of, room_name, room_of
from hami_webhook.quota.queue_order import Demand, QueuedPod, decide

CARDS, TEAMS, OWN = 160, 5, 64
HOURS = {"smallest": 6, "usual": 168, "large": 168}
LOAD, MEAN_HOURS, MOST_PODS, HEAVY = 0.95, 2.0, 40, 3
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
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
    """Seconds that pods waited, by team, and card-seconds that were used in the week."""

    waits: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    used: float = 0.0

    def started(self, job: Job, at: float, runs: float, end: float) -> None:
        self.waits[job.team].append(at - job.at)
        self.used += max(0.0, min(at + runs, end) - at)

    @property
    def all_waits(self) -> list[float]:
        return sorted(wait for waits in self.waits.values() for wait in waits)

    @property
    def fairness(self) -> float:
        speeds = [1 / (HOUR + statistics.fmean(waits)) for waits in self.waits.values()]
        return sum(speeds) ** 2 / (len(speeds) * sum(each**2 for each in speeds))


class Quotas:
    """A quota for each team, and the one above; `used` is kept as charges and ends change it."""

    def __init__(self) -> None:
        self.accounts = [_account(f"team-{team}", OWN) for team in range(TEAMS)]
        self.above = _account("", CARDS)
        pods = [Pod.from_object(_pod(f"team-{team}")) for team in range(TEAMS)]
        self.charges: list[Charge] = [waiting_charge(pod, VENDORS, NoCapacity()) for pod in pods]
        self.demands: list[Demand] = [
            demand_of(pod, (account, self.above), VENDORS, NoCapacity())
            for pod, account in zip(pods, self.accounts, strict=True)
        ]

    def fits(self, team: int) -> bool:
        charge = self.charges[team]
        return not (self.accounts[team].overrun(charge) or self.above.overrun(charge))

    def change(self, team: int, sign: int) -> None:
        more = {key: sign * amount for key, amount in self.charges[team].amounts.items() if key == KEY}
        self.accounts[team] = self.accounts[team].with_increase("", None, more)
        self.above = self.above.with_increase("", None, more)

    def released(self, waiting: Sequence[QueuedPod], now: float) -> Sequence[QueuedPod]:
        rooms = {room_name(each): room_of(each) for each in (*self.accounts, self.above)}
        return decide(waiting, rooms, now).released


def measure(size: str) -> Sequence[Figure]:
    end = HOURS[size] * HOUR
    jobs = list(_jobs(random.Random(1), end))
    found = {}
    for name, simulate in (("refuse", _refusing), ("queue", _queueing)):
        show_progress(f"week: {len(jobs)} jobs, {name}")
        found[name] = simulate(jobs, end)
    return [
        each
        for name in ("refuse", "queue")
        for each in _figures(name, found[name], found["refuse"], end, goals=size != "smallest")
    ]


def _figures(name: str, outcome: Outcome, baseline: Outcome, end: float, *, goals: bool) -> Iterator[Figure]:
    rows = [
        ("utilisation", "%", [100 * each.used / (CARDS * end) for each in (outcome, baseline)]),
        ("wait p50", "min", [_quantile(each, 0.5) / 60 for each in (outcome, baseline)]),
        ("wait p99", "min", [_quantile(each, 0.99) / 60 for each in (outcome, baseline)]),
        ("Jain's index", "", [each.fairness for each in (outcome, baseline)]),
    ]
    for row, unit, (value, of_baseline) in rows:
        goal = Goal(at_most=1.0) if goals and row == "wait p99" and name == "queue" else None
        yield Figure("week", f"{name}, {row}", value, unit, "refuse", of_baseline, goal)


def _quantile(outcome: Outcome, share: float) -> float:
    waits = outcome.all_waits
    return waits[min(len(waits) - 1, int(share * len(waits)))]


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
    quotas, outcome, order = Quotas(), Outcome(), itertools.count()
    events: list[tuple[float, int, int, list[float], Job | None, float]] = [
        (job.at, next(order), job.team, list(job.runs), job, FIRST_PAUSE) for job in jobs
    ]
    heapq.heapify(events)
    while events:
        now, _, team, runs, job, pause = heapq.heappop(events)
        if job is None:
            quotas.change(team, -1)
            continue
        before = len(runs)
        while runs and quotas.fits(team):
            seconds = runs.pop()
            quotas.change(team, 1)
            outcome.started(job, now, seconds, end)
            heapq.heappush(events, (now + seconds, next(order), team, [], None, 0.0))
        if runs:
            pause = FIRST_PAUSE if len(runs) < before else min(LONGEST_PAUSE, 2 * pause)
            heapq.heappush(events, (now + pause, next(order), team, runs, job, pause))
    return outcome


def _queueing(jobs: Sequence[Job], end: float) -> Outcome:
    """All pods are there at once, and are released in their turn when something changes."""
    quotas, outcome, order = Quotas(), Outcome(), itertools.count()
    waiting: dict[str, QueuedPod] = {}
    of_pod: dict[str, tuple[Job, float]] = {}
    events: list[tuple[float, int, int, Job | None]] = [(job.at, next(order), job.team, job) for job in jobs]
    heapq.heapify(events)
    while events:
        now, _, team, job = heapq.heappop(events)
        if job is None:
            quotas.change(team, -1)
        else:
            for seconds in job.runs:
                uid = f"{next(order):09}"
                waiting[uid] = QueuedPod(uid, f"team-{team}/{uid}", 0, now, quotas.demands[team])
                of_pod[uid] = job, seconds
        for pod in quotas.released(list(waiting.values()), now) if waiting else ():
            of_job, seconds = of_pod.pop(pod.uid)
            del waiting[pod.uid]
            quotas.change(of_job.team, 1)
            outcome.started(of_job, now, seconds, end)
            heapq.heappush(events, (now + seconds, next(order), of_job.team, None))
    return outcome


def _account(namespace: str, cards: int) -> QuotaAccount:
    meta = {
        "name": "gpu",
        "namespace": namespace,
        "uid": namespace,
        "annotations": {"hami.io/quota-enforcement": "queue"},
    }
    made = ResourceQuota.from_object(
        {"metadata": meta, "spec": {"hard": {KEY: str(cards)}}, "status": {"used": {KEY: "0"}}}
    )
    account = QuotaAccount.read(made, VENDORS)
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
