"""`python -m hack.bench.charge`: bursts of pods charged on a real API server; baseline: creations without our webhook.

Everything shares the machine: API server, etcd, the replicas, and the client, which is as lean as one can be (raw JSON
over kept connections). What being asked costs, whatever is answered, shows a webhook that only says yes.

Each rate is the median of several rounds; a first burst, for which interpreters are cold and connections made, isn't
counted. Writes are all that the replicas sent because of a burst, until the ledgers are empty again, leases aside.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

from hack.bench.apiserver import SHARD, Replicas, YesSayers, api_server, create_all, make_namespace, writes
from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.scenery import JSON, asking, gpu, quota
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
HARD = {"limits.nvidia.com/gpu": 10**6, "limits.nvidia.com/gpumem": 10**9}
SETTLE_SECONDS = 60.0

_spaces = itertools.count()


def measure(size: str) -> Sequence[Figure]:
    figures: list[Figure] = []
    answering: dict[tuple[int, int], float] = {}
    pods = PODS[size]
    with api_server("charge") as plane:
        for replicas, cases in itertools.groupby(CASES[size], key=lambda case: case[1]):
            spaces_of = [case[0] for case in cases]

            def bare(spaces: int, replicas: int = replicas) -> list[float]:
                return [_burst(plane, spaces, pods, replicas, settle=False) for _ in range(ROUNDS[size])]

            _burst(plane, 1, pods, replicas, settle=False)
            alone = {spaces: bare(spaces) for spaces in spaces_of}
            rates: dict[int, tuple[list[float], list[float], float]] = {}
            with YesSayers(plane, replicas):
                bare(1)
                yes = {spaces: bare(spaces) for spaces in spaces_of}
            with Replicas(plane, replicas):
                _burst(plane, 1, pods, replicas, settle=True)
                for spaces in spaces_of:
                    show_progress(f"charge: {pods} pods in {spaces} namespaces, {replicas} replicas")
                    before = writes(plane)
                    charged = [_burst(plane, spaces, pods, replicas, settle=True) for _ in range(ROUNDS[size])]
                    each = (writes(plane) - before) / pods / len(charged)
                    free = [
                        _burst(plane, spaces, pods, replicas, settle=False, limited=False) for _ in range(ROUNDS[size])
                    ]
                    rates[spaces] = charged, free, each
            for spaces, (charged, free, each) in rates.items():
                alone[spaces] += bare(spaces)
                figures += _figures(spaces, replicas, pods, alone[spaces], yes[spaces], charged, free, each)
                answering[spaces, replicas] = statistics.median(charged) / statistics.median(yes[spaces])
    for (spaces, replicas), ratio in answering.items():
        if replicas > 1:
            where = f"{_of(spaces, 'namespace')}, {_of(replicas, 'replica')} beside 1"
            goal = Goal(at_least=0.85) if spaces == 1 and pods >= 500 else None
            figures.append(Figure("charge", where, ratio, "of only ever yes", "1 replica", answering[spaces, 1], goal))
    return figures


def _figures(
    spaces: int,
    replicas: int,
    pods: int,
    alone: Sequence[float],
    yes: Sequence[float],
    charged: Sequence[float],
    free: Sequence[float],
    each: float,
) -> list[Figure]:
    rate, bare, most_possible, asked = map(statistics.median, (charged, alone, yes, free))
    where = f"{_of(spaces, 'namespace')}, {_of(replicas, 'replica')}"
    one, enough = spaces == 1, pods >= 500
    least, most = (Goal(at_least=0.5), Goal(at_most=0.2, of="value")) if one and enough else (None, None)
    of_yes = Goal(at_least=0.6 if one else 0.5) if replicas == 1 and enough else None
    return [
        Figure("charge", where, rate, "pods per second", "without webhook", bare, least),
        Figure("charge", f"{where}, answering", rate, "pods per second", "only ever yes", most_possible, of_yes),
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
    pod = asking(f"pod-{number}", gpu(), namespace)
    pod["metadata"]["labels"][SHARD] = str(number % replicas)
    return pod


def _of(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


if __name__ == "__main__":
    run({"charge": measure}, __doc__)
