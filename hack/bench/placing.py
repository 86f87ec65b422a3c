"""`python -m hack.bench.placing`: bursts bound by a stock kube-scheduler with our extender, on a real API server.

The baseline of rates and waits is a burst of plain pods through the same kube-scheduler, which then binds them itself;
that of calls and processor time an extender that answers at once and writes what device plugins have to find
(`hack.bench.at_once`). Everything shares the machine: API server, etcd, kube-scheduler, the extender, the device
plugins, and the client that creates the pods.

A pod's time runs from its creation to its binding, both by the API server's audit log. Calls are the extender's, of any
verb but watches, by the same log. Processor time is that of a process for one pod of the burst. What a pod waits for in
the extender, and for the locks of its node, is by the extender's metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from hack.bench.apiserver import USER, api_server, binding_times, create_all, make_namespace, scraped, wait_ready
from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import JSON, SCHEDULER, gpu, node, node_name, pod_with, quota
from hack.bench.processes import cpu_seconds
from hack.devcluster import kube_scheduler
from hack.devcluster.plane import ControlPlane, free_ports
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster

CLIENTS = 8
HARD = {"limits.nvidia.com/gpu": 10**6, "limits.nvidia.com/gpumem": 10**9}
BURST_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Case:
    """A burst of pods, under a quota if `limited`."""

    mode: str
    nodes: int
    pods: int
    limited: bool = False

    def __str__(self) -> str:
        return ", ".join((self.mode, f"{self.nodes} nodes", f"{self.pods} pods", *(["quota"] if self.limited else [])))


def _cases(size: str) -> list[Case]:
    """In an order in which little has to be started anew."""
    both = ("cooperative", "single")
    if size == "smallest":
        return [Case(mode, 20, 40) for mode in both]
    small = [Case(mode, 200, 400, limited=limited) for mode in both for limited in (False, True)]
    if size == "usual":
        return small
    large = itertools.product((1000, 5000), both, (400, 2000), (False, True))
    return small + [Case(mode, nodes, pods, limited=limited) for nodes, mode, pods, limited in large]


ROUNDS = {"smallest": 1, "usual": 3, "large": 3}


@dataclass(slots=True)
class Burst:
    """What a burst took: pods a second, each pod's seconds to its binding; for one pod calls, seconds of each process,
    and seconds in the extender by path.
    """

    rate: float
    waits: list[float]
    calls: Counter[str]
    processor: dict[str, float] = field(default_factory=dict)
    extender: dict[str, float] = field(default_factory=dict)

    def percentile(self, share: float) -> float:
        return sorted(self.waits)[min(len(self.waits) - 1, int(share * len(self.waits)))]


@dataclass(frozen=True, slots=True)
class _Scheduling:
    """The identifiers of the processes that count, and the port of the extender's metrics; 0 if it has none."""

    processes: dict[str, int]
    metrics: int


def measure(size: str) -> Sequence[Figure]:
    figures: list[Figure] = []
    for nodes, cases in itertools.groupby(_cases(size), key=lambda case: case.nodes):
        with api_server("placing") as plane:
            asyncio.run(_make_nodes(plane, nodes))
            for case in cases:
                figures += _measured(plane, case, ROUNDS[size])
    return figures


def _measured(plane: ControlPlane, case: Case, rounds: int) -> Iterator[Figure]:
    alone: list[Burst] = []
    ours: list[Burst] = []
    more = rounds > 1  # the first burst of each finds everything cold
    with _scheduling(plane, case) as running:
        for number in range(rounds + more):
            alone.append(_burst(plane, replace(case, limited=False), running, plain=True))
            ours.append(_burst(plane, case, running, plain=False))
            show_progress(f"placing: {case}: {ours[-1].rate:.1f} of {alone[-1].rate:.1f} pods a second, round {number}")
    with _scheduling(plane, case, at_once=True) as running:
        floor = [_burst(plane, replace(case, limited=False), running, plain=False) for _ in range(rounds + more)]
    alone, ours, floor = alone[-rounds:], ours[-rounds:], floor[-rounds:]
    middle = ours[sorted(range(rounds), key=lambda at: ours[at].rate)[rounds // 2]]
    quick = Goal(at_least=0.9) if case.pods >= 400 else None
    rate = statistics.median(burst.rate for burst in ours)
    yield Figure(
        "placing", f"{case}", rate, "pods per second", "plain", statistics.median(b.rate for b in alone), quick
    )
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        mine, theirs = (statistics.median(b.percentile(share) for b in bursts) for bursts in (ours, alone))
        slow = Goal(at_most=1.2) if quick and share > 0.9 else None
        yield Figure("placing", f"{case}, {name}", mine, "s to binding", "plain", theirs, slow)
    calls = sum(middle.calls.values()) / case.pods
    most = Goal(at_most=3.3 if case.limited else 3.0, of="value")
    by_verb = " ".join(f"{what} {count / case.pods:.2f}" for what, count in sorted(middle.calls.items()))
    print(f"placing: {case}: calls a pod: {by_verb}", file=sys.stderr)
    least = statistics.median(sum(burst.calls.values()) for burst in floor) / case.pods
    yield Figure("placing", f"{case}, calls", calls, "per pod", "at once", least, most)
    for process in middle.processor:
        mine, theirs = (1000 * statistics.median(b.processor[process] for b in bursts) for bursts in (ours, floor))
        yield Figure("placing", f"{case}, CPU of {process}", mine, "ms per pod", "at once", theirs)
    mine, theirs = (1000 * statistics.median(sum(b.processor.values()) for b in bursts) for bursts in (ours, floor))
    little = Goal(at_most=1.25) if quick else None
    yield Figure("placing", f"{case}, CPU of all", mine, "ms per pod", "at once", theirs, little)
    waits = " ".join(f"{path} {1000 * seconds:.2f}" for path, seconds in middle.extender.items())
    print(f"placing: {case}: ms a pod in the extender: {waits}", file=sys.stderr)


async def _make_nodes(plane: ControlPlane, count: int) -> None:
    room = {"pods": "1000", "cpu": "1000", "memory": "1Ti"}
    objects = []
    for number in range(count):
        made = node(number)
        made["status"]["allocatable"] |= room
        made["status"]["capacity"] = made["status"]["allocatable"]
        objects.append((Kind.NODES, made))
    await create_all(plane.kubeconfig, objects, CLIENTS)
    async with KubernetesCluster(await connect(str(plane.kubeconfig))) as cluster:
        for number in range(count):  # nobody says here that they are ready
            await cluster.patch(Kind.NODES, node_name(number), {"spec": {"taints": None}})
        await make_namespace(cluster, "hami-system")


@contextlib.contextmanager
def _scheduling(plane: ControlPlane, case: Case, *, at_once: bool = False) -> Iterator[_Scheduling]:
    """The extender, kube-scheduler with it, and the device plugins; `at_once`: an extender that decides nothing."""
    folder = plane.folder / "placing"
    folder.mkdir(exist_ok=True)
    login = plane.authority.kubeconfig(USER, plane.server, USER, "system:masters")
    extender_port, main, metrics, secure = free_ports(4)
    with contextlib.ExitStack() as running, (folder / "log").open("ab") as log:

        def start(*command: str | Path) -> subprocess.Popen[bytes]:
            environment = {**os.environ, "POD_NAME": "hami-scheduler-0", "POD_NAMESPACE": "hami-system"}
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            running.callback(process.wait)
            running.callback(process.kill)
            return process

        if at_once:
            extender = start(sys.executable, "-m", "hack.bench.at_once", str(extender_port), str(login))
        else:
            extender = start(
                *(sys.executable, "-m", "hami_webhook", "serve", "--roles", "extender", "--kubeconfig", str(login)),
                *("--extender-mode", case.mode, "--extender-bind-address", f"127.0.0.1:{extender_port}"),
                *("--node-scheduler-policy", "spread", "--scheduler-name", SCHEDULER),
                *("--http_bind", f"127.0.0.1:{main}", "--metrics-bind-address", f"127.0.0.1:{metrics}"),
                *("--kube-qps", "200", "--kube-burst", "400"),  # as in the manifests
            )
            wait_ready(extender, metrics)
        without = [*["prioritizeVerb"] * (at_once or case.mode == "single"), *["preemptVerb"] * at_once]
        configuration = kube_scheduler.configure(plane, folder / "kube-scheduler.yaml", extender_port, *without)
        scheduler = start(*plane.scheduler_command(folder / "certificates", secure, f"--config={configuration}"))
        start(sys.executable, "-m", "hack.bench.plugins", str(plane.kubeconfig))
        time.sleep(3)  # both watch by then
        servers = {name: plane.running[name].pid for name in ("kube-apiserver", "etcd")}
        yield _Scheduling(
            {"extender": extender.pid, "kube-scheduler": scheduler.pid, **servers}, 0 if at_once else metrics
        )


_spaces = itertools.count()


def _burst(plane: ControlPlane, case: Case, running: _Scheduling, *, plain: bool) -> Burst:
    space, pods, processes = f"burst-{next(_spaces)}", case.pods, running.processes
    asyncio.run(_prepare(plane, space, limited=case.limited))
    start = plane.audit_log.stat().st_size
    before = {name: cpu_seconds(pid) for name, pid in processes.items()}
    waited = _extender_seconds(running.metrics)
    objects = [(Kind.PODS, _pod(number, space, plain=plain)) for number in range(pods)]
    asyncio.run(create_all(plane.kubeconfig, objects, CLIENTS))
    deadline = time.monotonic() + BURST_SECONDS
    while len((times := binding_times(plane.audit_log, start, space))[1]) < pods:
        if time.monotonic() > deadline:
            raise SystemExit(f"placing: {case}: {len(times[1])} of {pods} pods bound in {BURST_SECONDS:g} s")
        time.sleep(0.25)
    processor = {name: (cpu_seconds(pid) - before[name]) / pods for name, pid in processes.items()}
    time.sleep(1)  # for events
    created, bound, calls = binding_times(plane.audit_log, start, space)
    extender = {
        path: (spent - waited.get(path, 0)) / pods for path, spent in _extender_seconds(running.metrics).items()
    }
    asyncio.run(_clear(plane, space))
    return Burst(
        pods / (max(bound.values()) - min(created.values())),
        [bound[name] - created[name] for name in bound],
        calls,
        processor,
        extender,
    )


def _extender_seconds(port: int) -> dict[str, float]:
    """What all calls of each path took so far, and waiting for locks of nodes, which is a part of /bind."""
    if not port:
        return {}
    return {
        sample.labels.get("path", "locks"): sample.value
        for family in text_string_to_metric_families(scraped(port))
        for sample in family.samples
        if sample.name in ("hami_webhook_extender_seconds_sum", "hami_webhook_node_lock_wait_seconds_sum")
    }


def _pod(number: int, space: str, *, plain: bool) -> JSON:
    pod = pod_with(f"pod-{number}", {"cpu": "1m"} if plain else gpu(), space)
    pod["spec"]["schedulerName"] = SCHEDULER
    return pod


async def _prepare(plane: ControlPlane, space: str, *, limited: bool) -> None:
    async with KubernetesCluster(await connect(str(plane.kubeconfig))) as cluster:
        await make_namespace(cluster, space)
        if limited:
            await cluster.create(Kind.RESOURCE_QUOTAS, quota("gpu", HARD, space))
            used = {"status": {"hard": {k: str(v) for k, v in HARD.items()}, "used": dict.fromkeys(HARD, "0")}}
            await cluster.patch_status(Kind.RESOURCE_QUOTAS, "gpu", used, space)
    await asyncio.sleep(1)


async def _clear(plane: ControlPlane, space: str) -> None:
    async with KubernetesCluster(await connect(str(plane.kubeconfig))) as cluster:
        await cluster.call("DELETE", f"/api/v1/namespaces/{space}/pods", {"gracePeriodSeconds": 0})
    await asyncio.sleep(2)


if __name__ == "__main__":
    run({"placing": measure}, __doc__)
