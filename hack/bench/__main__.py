"""`python -m hack.bench [NAME…]`: a table of ratios, or JSON with `--json` for comparing two commits."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import orjson
from rich.console import Console
from rich.table import Table

from hami_webhook.admission.pods import AdmissionRules
from hami_webhook.admission.review import allowed, parse_review
from hami_webhook.assembly import Core, Options
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.config import builtin_device_config
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.topology import best_combination, pair_sum
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.placement.fit import fit_pod, read_ask
from hami_webhook.placement.state import ClusterState


@dataclass(frozen=True)
class Figure:
    """One measurement: seconds for one run of the thing and of its baseline, and what one is of the other."""

    name: str
    baseline: str
    seconds: float
    baseline_seconds: float
    ratio: float


def measured(name: str, baseline: str, run: Callable[[], object], base: Callable[[], object], rounds: int) -> Figure:
    """The best of `rounds` runs of each, taken in turn so that a noisy moment hurts both."""
    best, best_base = float("inf"), float("inf")
    for _ in range(rounds):
        best_base = min(best_base, timed(base))
        best = min(best, timed(run))
    return Figure(name, baseline, best, best_base, best / best_base)


def timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def search(smallest: bool) -> list[Figure]:
    """Topology choice against trying every set."""
    cards, count = (8, 4) if smallest else (16, 8)
    draw = random.Random(7)
    scores = [[draw.choice((10, 20, 100, 200, 300)) for _ in range(cards)] for _ in range(cards)]

    def brute_force() -> list[int]:
        return list(max(itertools.combinations(range(cards), count), key=lambda chosen: pair_sum(scores, chosen)))

    assert best_combination(scores, count) == brute_force()
    name = f"search: {cards} choose {count}"
    return [measured(name, "brute force", lambda: best_combination(scores, count), brute_force, 3)]


def review(smallest: bool) -> list[Figure]:
    """A review through the gate against the same bytes parsed and answered with a constant."""
    number = 50 if smallest else 1000
    cluster = MemoryCluster(time.time)
    core = Core(
        cluster,
        Vendors.from_config(builtin_device_config().config),
        Options(rules=AdmissionRules(scheduler_name="hami-scheduler")),
        clock=time.time,
    )
    asyncio.run(cluster.ensure_namespace("team-a"))
    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "team-a"}})

    def bodies(limits: dict[str, object]) -> bytes:
        pod = {
            "metadata": {"name": "p", "namespace": "team-a"},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
        request = {"uid": "u", "kind": {"kind": "Pod"}, "operation": "CREATE", "namespace": "team-a", "object": pod}
        return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})

    def constant(body: bytes) -> Callable[[], object]:
        answer = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true}}'
        return lambda: [(orjson.loads(body), answer) for _ in range(number)]

    def gate(body: bytes) -> Callable[[], object]:
        async def answer() -> None:
            for _ in range(number):
                parsed = parse_review(body, "application/json")
                allowed(parsed.api_version, parsed.uid, await core.gate.mutate(parsed))

        return lambda: asyncio.run(answer())

    kinds = {
        "nothing managed": {"cpu": "1"},
        "plain GPU": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2000},
        "percentage": {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50},
    }
    return [
        measured(f"mutate × {number}: {kind}", "constant answer", gate(bodies(limits)), constant(bodies(limits)), 3)
        for kind, limits in kinds.items()
    ]


def filter_nodes(smallest: bool) -> list[Figure]:
    """A pod fitted on every node against parsing the nodes' registrations."""
    nodes = 20 if smallest else 1000
    cards = [
        {
            "id": f"GPU-{i}",
            "index": i,
            "count": 10,
            "devmem": 40960,
            "devcore": 100,
            "type": "NVIDIA A100",
            "health": True,
        }
        for i in range(8)
    ]
    text = json.dumps(cards)
    vendors = Vendors.from_config(builtin_device_config().config)
    state = ClusterState(vendors)
    for number in range(nodes):
        state.set_node(Node(f"n{number}", {}, {"hami.io/node-nvidia-register": text}, {}, {}), 0.0)
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2000}
    pod = Pod.from_object({"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}})
    ask = read_ask(pod, vendors, "spread")
    assert ask is not None
    views = list(state.views())
    name = f"filter: {nodes} nodes × 8 cards"
    return [
        measured(
            name,
            "parsing the registrations",
            lambda: [fit_pod(view, ask, vendors, None) for view in views],
            lambda: [orjson.loads(text) for _ in range(nodes)],
            3,
        )
    ]


BENCHMARKS: dict[str, Callable[[bool], list[Figure]]] = {"search": search, "review": review, "filter": filter_nodes}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hack.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--smallest", action="store_true", help="smallest sizes, to see that nothing is broken")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - BENCHMARKS.keys()
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    figures = [f for name in arguments.names or BENCHMARKS for f in BENCHMARKS[name](arguments.smallest)]
    if arguments.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=2))
        return
    table = Table("benchmark", "ms", "baseline", "ms", "ratio")
    for figure in figures:
        cells = (f"{1000 * figure.seconds:.2f}", figure.baseline, f"{1000 * figure.baseline_seconds:.2f}")
        table.add_row(figure.name, *cells, f"{figure.ratio:.3f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
