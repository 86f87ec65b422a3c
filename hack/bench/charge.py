"""`python -m hack.bench.charge`: bursts of pods charged on a real API server; baseline: creations without our webhook.

Everything shares the machine: API server, etcd, the replicas, and the client, which is as lean as one can be (raw JSON
over kept connections). What being asked costs, whatever is answered, shows a webhook that only says yes; what
it costs to write a charge down before the answer, one that only says yes and writes once for each pod.

Each rate is the median of several rounds, and each ratio that of the ratios within a round, as the machine's pace
changes between them. A first burst, for which interpreters are cold and connections made, isn't counted. Writes are all
that the replicas sent because of a burst, until the ledgers are empty again, leases aside.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hack.bench.apiserver import SHARD, Replicas, YesSayers, api_server, create_all, make_namespace, writes
from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import HARD, JSON, gpu, pod_with, quota
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

_spaces = itertools.count()


@dataclass
class _Rates:
    """Pods per second in each round, and the writes per pod that our replicas sent."""

    bare: list[float] = field(default_factory=list)
    yes: list[float] = field(default_factory=list)
    writing: list[float] = field(default_factory=list)
    charged: list[float] = field(default_factory=list)
    free: list[float] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)

    @property
    def answering(self) -> float:
        """Of a webhook that only says yes, in the same round."""
        return self.share_of(self.yes)

    def share_of(self, others: Sequence[float]) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(rate / other for rate, other in zip(self.charged, others, strict=True))


def measure(size: str) -> Sequence[Figure]:
    rates = {case: _Rates() for case in CASES[size]}
    with api_server("charge") as plane:
        for number in range(ROUNDS[size]):
            for replicas, cases in itertools.groupby(CASES[size], key=lambda case: case[1]):
                show_progress(f"charge: round {number + 1} of {ROUNDS[size]}, {_of(replicas, 'replica')}")
                _measure(plane, replicas, {spaces: rates[spaces, replicas] for spaces, _ in cases}, PODS[size])
    figures = [each for case, found in rates.items() for each in _figures(*case, PODS[size], found)]
    for (spaces, replicas), found in rates.items():
        if replicas > 1:
            where = f"{_of(spaces, 'namespace')}, {_of(replicas, 'replica')} beside 1"
            goal = Goal(at_least=0.85) if spaces == 1 and PODS[size] >= 500 else None
            one = rates[spaces, 1].answering
            figures.append(Figure("charge", where, found.answering, "of only ever yes", "1 replica", one, goal))
    return figures


def _measure(plane: ControlPlane, replicas: int, rates: Mapping[int, _Rates], pods: int) -> None:
    """One round with so many replicas: each case without a webhook, with one that only says yes, and with ours."""

    def burst(spaces: int, *, settle: bool = False, limited: bool = True) -> float:
        return _burst(plane, spaces, pods, replicas, settle=settle, limited=limited)

    most = max(rates)
    burst(most)
    for spaces, found in rates.items():
        found.bare.append(burst(spaces))
    with YesSayers(plane, replicas):
        burst(most)
        for spaces, found in rates.items():
            found.yes.append(burst(spaces))
    with YesSayers(plane, replicas, writing=True):
        burst(most)
        for spaces, found in rates.items():
            found.writing.append(burst(spaces))
    with Replicas(plane, replicas):
        burst(most, settle=True)
        for spaces, found in rates.items():
            before = writes(plane)
            found.charged.append(burst(spaces, settle=True))
            found.writes.append((writes(plane) - before) / pods)
            found.free.append(burst(spaces, limited=False))


def _figures(spaces: int, replicas: int, pods: int, rates: _Rates) -> list[Figure]:
    rate, bare, asked, each = map(statistics.median, (rates.charged, rates.bare, rates.free, rates.writes))
    writing = rates.share_of(rates.writing)
    where = f"{_of(spaces, 'namespace')}, {_of(replicas, 'replica')}"
    one, enough = spaces == 1, pods >= 500
    least, most = (Goal(at_least=0.5), Goal(at_most=0.2, of="value")) if one and enough else (None, None)
    of_yes = Goal(at_least=0.63 if one else 0.5) if replicas == 1 and enough else None
    return [
        Figure("charge", where, rate, "pods per second", "without webhook", bare, least),
        Figure(
            "charge", f"{where}, answering", rate, "pods per second", "only ever yes", rate / rates.answering, of_yes
        ),
        Figure("charge", f"{where}, writing", rate, "pods per second", "ever yes, and a write", rate / writing),
        Figure("charge", f"{where}, charging", rate, "pods per second", "asked, no quota", asked),
        Figure("charge", f"{where}, writes", each, "per pod", "one each", 1, most),
    ]


def _burst(plane: ControlPlane, spaces: int, pods: int, replicas: int, *, settle: bool, limited: bool = True) -> float:
    """Pods created per second in namespaces of their own, with a quota if `limited`."""
    return asyncio.run(_created(plane.kubeconfig, spaces, pods, replicas, settle=settle, limited=limited))


async def _created(login: Path, spaces: int, pods: int, replicas: int, *, settle: bool, limited: bool) -> float:
    names = [f"burst-{next(_spaces)}" for _ in range(spaces)]
    async with KubernetesCluster(await connect(str(login))) as cluster:
        for name in names:
            await make_namespace(cluster, name)
            if limited:
                await cluster.create(Kind.RESOURCE_QUOTAS, quota("gpu", HARD, name))
        if settle:
            await _settled(cluster, names)
        objects = [(Kind.PODS, _pod(number, names[number % spaces], replicas)) for number in range(pods)]
        seconds = await create_all(login, objects, CLIENTS)
        if settle:
            await _settled(cluster, names)
    return pods / seconds


async def _settled(cluster: KubernetesCluster, names: Sequence[str]) -> None:
    """Wait until used is known everywhere, and no charge is remembered."""
    async with asyncio.timeout(SETTLE_SECONDS):
        while True:
            quotas = [await cluster.get(Kind.RESOURCE_QUOTAS, "gpu", name) for name in names]
            if all(_quiet(each) for each in quotas):
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
