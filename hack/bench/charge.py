"""`python -m hack.bench.charge`: bursts of pods charged on a real API server; baseline: creations without our webhook.

Everything shares the machine: API server, etcd, the replicas, and the client, which is as lean as one can be (raw JSON
over kept connections). What being asked costs, whatever is answered, shows a webhook that only says yes; what
it costs to write charges down before the answer, one that only says yes and writes as often as the replicas did.

Each figure is the median of several rounds, and each ratio that of the ratios within a round, as the machine's pace
changes between them. A first burst, for which interpreters are cold and connections made, isn't counted. Writes are all
that the replicas sent because of a burst, until the ledgers are empty again, leases aside; processor time is that of as
long, for one pod.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hack.bench.apiserver import SHARD, Replicas, YesSayers, api_server, create_all, make_namespace, writes
from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import HARD, JSON, gpu, pod_with, quota
from hack.bench.processes import cpu_seconds
from hack.devcluster.plane import ControlPlane
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.quota.ledger import LEDGER

PODS = {"smallest": 20, "usual": 500, "large": 2000}
CASES = {
    "smallest": ((1, 1),),
    "usual": ((1, 1), (50, 1), (1, 3), (50, 3)),
    "large": ((1, 1), (50, 1), (1, 3), (50, 3)),
}
"""Namespaces and replicas."""
ROUNDS = {"smallest": 1, "usual": 3, "large": 5}
CLIENTS = 25
SETTLE_SECONDS = 60.0
BURST = "bench/burst"
"""The label of a burst's quotas."""

_spaces = itertools.count()


@dataclass(frozen=True)
class _Burst:
    """Pods per second, and milliseconds of processor time for each by process, in so many seconds."""

    rate: float
    cpu: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def all_cpu(self) -> float:
        return sum(self.cpu.values())


@dataclass
class _Rounds:
    """The bursts of a case, one in each round, and the writes per pod that our replicas sent.

    `bare`: without a webhook; `yes`: with one that only says yes; `writing`: and writes as often.
    """

    bare: list[_Burst] = field(default_factory=list)
    yes: list[_Burst] = field(default_factory=list)
    writing: list[_Burst] = field(default_factory=list)
    charged: list[_Burst] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)

    @property
    def answering(self) -> float:
        """The rate beside that of a webhook that only says yes, in the same round."""
        return self.share_of(self.yes)

    def share_of(self, others: Sequence[_Burst]) -> float:
        """The median of the rounds' ratios of rates."""
        return statistics.median(ours.rate / other.rate for ours, other in zip(self.charged, others, strict=True))


def measure(size: str) -> Sequence[Figure]:
    rounds = {case: _Rounds() for case in CASES[size]}
    with api_server("charge") as plane:
        for number in range(ROUNDS[size]):
            for replicas, cases in itertools.groupby(CASES[size], key=lambda case: case[1]):
                show_progress(f"charge: round {number + 1} of {ROUNDS[size]}, {_of(replicas, 'replica')}")
                _measure(plane, replicas, {spaces: rounds[spaces, replicas] for spaces, _ in cases}, PODS[size])
    figures = [each for case, found in rounds.items() for each in _figures(*case, PODS[size], found)]
    for (spaces, replicas), found in rounds.items():
        if replicas > 1:
            where = f"{_of(spaces, 'namespace')}, {_of(replicas, 'replica')} beside 1"
            goal = Goal(at_least=0.85) if spaces == 1 and PODS[size] >= 500 else None
            one = rounds[spaces, 1].answering
            figures.append(Figure("charge", where, found.answering, "of only ever yes", "1 replica", one, goal))
    return figures


def _measure(plane: ControlPlane, replicas: int, rounds: Mapping[int, _Rounds], pods: int) -> None:
    """One round with so many replicas: each case without a webhook, with ours, and with those that only say yes."""

    def burst(spaces: int, asked: Replicas | None = None, *, settle: bool = False, seconds: float = 0) -> _Burst:
        processes = {name: [plane.running[name].pid] for name in ("kube-apiserver", "etcd")}
        processes["webhook"] = [each.pid for each in asked.running] if asked is not None else []
        return _burst(plane, spaces, pods, replicas, processes, settle=settle, seconds=seconds)

    most = max(rounds)
    burst(most)
    for spaces, found in rounds.items():
        found.bare.append(burst(spaces))
    with Replicas(plane, replicas) as ours:
        burst(most, settle=True)
        for spaces, found in rounds.items():
            before = writes(plane)
            found.charged.append(burst(spaces, ours, settle=True))
            found.writes.append((writes(plane) - before) / pods)
    with YesSayers(plane, replicas) as answering:
        burst(most)
        for spaces, found in rounds.items():
            found.yes.append(burst(spaces, answering, seconds=found.charged[-1].seconds))
    for spaces, found in rounds.items():
        with YesSayers(plane, replicas, writes=found.writes[-1]) as writing:
            burst(most)
            found.writing.append(burst(spaces, writing, seconds=found.charged[-1].seconds))


def _figures(spaces: int, replicas: int, pods: int, found: _Rounds) -> Iterator[Figure]:
    rate, bare = (statistics.median(burst.rate for burst in each) for each in (found.charged, found.bare))
    each, writing = statistics.median(found.writes), found.share_of(found.writing)
    where = f"{_of(spaces, 'namespace')}, {_of(replicas, 'replica')}"
    one, enough = spaces == 1, pods >= 500
    least, most = (Goal(at_least=0.5), Goal(at_most=0.2, of="value")) if one and enough else (None, None)
    of_yes = Goal(at_least=0.63 if one else 0.5) if replicas == 1 and enough else None

    def rates(what: str, baseline: str, base: float, goal: Goal | None = None) -> Figure:
        return Figure("charge", f"{where}{what}", rate, "pods per second", baseline, base, goal)

    yield rates("", "without webhook", bare, least)
    yield rates(", answering", "only ever yes", rate / found.answering, of_yes)
    yield rates(", writing", "ever yes, and as many writes", rate / writing)
    yield Figure("charge", f"{where}, writes", each, "per pod", "one each", 1, most)
    # of the round whose ratio is the middle one
    middle = sorted(range(len(found.charged)), key=lambda at: found.charged[at].all_cpu / found.writing[at].all_cpu)
    ours, floor = (bursts[middle[len(middle) // 2]] for bursts in (found.charged, found.writing))
    for process, milliseconds in ours.cpu.items():
        name = f"{where}, CPU of {process}"
        yield Figure("charge", name, milliseconds, "ms per pod", "ever yes, and as many writes", floor.cpu[process])
    goal = Goal(at_most=1.3) if enough else None
    name = f"{where}, CPU of all"
    yield Figure("charge", name, ours.all_cpu, "ms per pod", "ever yes, and as many writes", floor.all_cpu, goal)


def _burst(
    plane: ControlPlane,
    spaces: int,
    pods: int,
    replicas: int,
    processes: Mapping[str, Sequence[int]],
    *,
    settle: bool,
    seconds: float,
) -> _Burst:
    """Pods in namespaces of their own, each with a quota; it is over after so many seconds at the earliest."""

    def spent() -> dict[str, float]:
        return {name: sum(map(cpu_seconds, each)) for name, each in processes.items()}

    names = [f"burst-{next(_spaces)}" for _ in range(spaces)]
    asyncio.run(_prepare(plane.kubeconfig, names, settle=settle))
    began, before = time.monotonic(), spent()
    objects = [(Kind.PODS, _pod(number, names[number % spaces], replicas)) for number in range(pods)]
    rate = pods / asyncio.run(create_all(plane.kubeconfig, objects, CLIENTS))
    if settle:
        asyncio.run(_settled(plane.kubeconfig, names))
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    cpu = {name: 1000 * (after - before[name]) / pods for name, after in spent().items()}
    return _Burst(rate, cpu, time.monotonic() - began)


async def _prepare(login: Path, names: Sequence[str], *, settle: bool) -> None:
    async with KubernetesCluster(await connect(str(login))) as cluster:
        for name in names:
            await make_namespace(cluster, name)
            made = quota("gpu", HARD, name)
            made["metadata"]["labels"] = {BURST: names[0]}
            await cluster.create(Kind.RESOURCE_QUOTAS, made)
    if settle:
        await _settled(login, names)


async def _settled(login: Path, names: Sequence[str]) -> None:
    """Wait until used is known everywhere, and no charge is remembered.

    Only this burst's quotas are listed. A list of a thousand earlier ones costs the API server ten times as much,
    and the baselines don't wait.
    """
    path = f"{Kind.RESOURCE_QUOTAS.prefix}/{Kind.RESOURCE_QUOTAS.value}"
    async with KubernetesCluster(await connect(str(login))) as cluster, asyncio.timeout(SETTLE_SECONDS):
        while True:
            found = await cluster.call("GET", path, query={"labelSelector": f"{BURST}={names[0]}"})
            if all(map(_quiet, found["items"])):
                return
            await asyncio.sleep(0.5)


def _quiet(found: JSON) -> bool:
    used = found.get("status", {}).get("used", {})
    return used.keys() >= HARD.keys() and LEDGER not in found["metadata"].get("annotations", {})


def _pod(number: int, namespace: str, replicas: int) -> JSON:
    pod = pod_with(f"pod-{number}", gpu(), namespace)
    pod["metadata"]["labels"][SHARD] = str(number % replicas)
    return pod


def _of(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


if __name__ == "__main__":
    run({"charge": measure}, __doc__)
