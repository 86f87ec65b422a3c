"""`python -m hack.bench.calls`: how many calls of our own functions a review, a filter and a recompute take.

The same on every machine, however busy it is. A review goes through the application of the listener, its caches
filled, for a pod of a workload that was reviewed before. With a quota the pod is charged: the API server's side of the
write is not counted. A filter is one of 20 nodes of as many classes: for a shape of pod that is new to them, and for a
known one after a pod on one of them changed. A recompute is that of a quota whose namespace has 20 placed pods. A lock
is an event that shows one on a node with 8 cards: each bind makes two such events.

`--by function` lists the functions; `--json hack/bench/calls.json` records what the test holds the counts to. `--rooms`
lists how often work goes from one package to another (`hack.bench.rooms`).
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from hack.bench import rooms
from hack.bench.counting import counted_calls
from hack.bench.figures import Figure, Goal, show
from hack.bench.filter import Filtering
from hack.bench.objects import CARDS, JSON, NAMESPACE, SCHEDULER, ask, gpu, node, pod_with, quota, review, running
from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.admission.submitters import Submitters
from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.cluster.watches import NoWatches
from hami_webhook.config.drivers import DraSection
from hami_webhook.core_options import Options
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.lock_annotations import COMMON_LOCK
from hami_webhook.server.app import application, review_routes
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.request_metrics import new_registry
from hami_webhook.time_slices import TimeSlices

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_suffix(".json")
MOST_MORE = 0.05
"""The part by which a piece of work may take more calls than are recorded."""
NODES = PODS = 20

_CONFIG = builtin_device_config().config
_VENDORS = enabled_vendors(_CONFIG)
_CLAIMING = enabled_vendors(_CONFIG.model_copy(update={"dra": DraSection(enabled=True)}))
_NOW = 1_767_225_600.0
_LEDGER = "hami.io/quota-ledger"


@dataclass(frozen=True, slots=True)
class Case:
    """A review: its path, the pod's limits, and the hard limits of its namespace's quota; none without.

    `claims`: ResourceClaims are charged; the pod has none. `stamping`: pods are stamped with who submitted them.
    """

    path: str
    limits: JSON
    hard: JSON | None = None
    claims: bool = False
    stamping: bool = False


_HARD = {"limits.nvidia.com/gpu": 1000, "limits.nvidia.com/gpumem": 10**7}
CASES = {
    "nothing managed": Case("/mutate", {"cpu": "1", "memory": "1Gi"}),
    "plain GPU, mutated": Case("/mutate", gpu()),
    "percentage, mutated": Case("/mutate", {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}),
    "plain GPU, validated and charged": Case("/validate", gpu(), _HARD),
    "plain GPU, charged, beside claims": Case("/validate", gpu(), _HARD, claims=True),
    "plain GPU, all at once": Case("/webhook", gpu()),
    "plain GPU, all at once, and charged": Case("/webhook", gpu(), _HARD),
}


@dataclass(frozen=True, slots=True)
class Reviewed:
    """The response to a review, and the calls that it took, by `module:qualified name`."""

    response: JSON
    calls: Counter[str]


class _ApiServer:
    """The API server as far as a review needs it: it takes writes of one quota's status."""

    def __init__(self, hard: JSON) -> None:
        self.quota = quota("gpu", hard) | {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
        self.quota["metadata"] |= {"uid": "1", "resourceVersion": "1"}
        self._emptied = self.quota

    async def patch_status(self, kind: Kind, name: str, patch: JSON, namespace: str) -> JSON:
        await asyncio.sleep(0)
        self.quota = written = copy.deepcopy(self.quota)
        annotations = written["metadata"].get("annotations", {}) | patch["metadata"].get("annotations", {})
        written["metadata"] |= {"annotations": annotations, "resourceVersion": self._next()}
        written["status"]["used"] |= patch["status"].get("used", {})
        return written

    def recompute(self) -> JSON:
        """The quota as the controller leaves it when the pod is gone: nothing used, and no ledger."""
        version = self._next()
        self.quota = copy.deepcopy(self._emptied)
        self.quota["metadata"]["resourceVersion"] = version
        return self.quota

    def _next(self) -> str:
        return str(int(self.quota["metadata"]["resourceVersion"]) + 1)


def reviewed(case: Case, pods: Sequence[str] = ("a", "b")) -> list[Reviewed]:
    """Pods of a workload, by name, reviewed one after the other by a new process."""
    return asyncio.run(_reviewed(case, pods))


def warm_calls(case: Case) -> Counter[str]:
    """The calls of a review when everything that is worked out once is known."""
    reviewed(case)
    return reviewed(case)[-1].calls


async def _reviewed(case: Case, pods: Sequence[str]) -> list[Reviewed]:
    server = _ApiServer(case.hard or {})
    cluster: Any = server
    core = Core(
        cluster,
        _CLAIMING if case.claims else _VENDORS,
        Options(rules=AdmissionRules(scheduler_name=SCHEDULER, submitters=Submitters() if case.stamping else None)),
        clock=lambda: _NOW,
        watches=NoWatches(tuple(Kind)),
    )
    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": NAMESPACE}})
    serve = application(review_routes(core.admission, ListenerLimits(), registry=new_registry()))
    found = []
    for name in pods:
        if case.hard:
            core.caches.put(Kind.RESOURCE_QUOTAS, server.recompute())
        pod = pod_with(name, case.limits)
        if case.path == "/validate":
            pod["metadata"]["uid"] = name
            pod["spec"]["schedulerName"] = SCHEDULER
        body = review(pod)
        with counted_calls() as counts:
            response = await ask(serve, case.path, body)
        if not response["allowed"]:
            raise SystemExit(f"calls: the pod was refused: {response['status']['message']}")
        if case.hard and _LEDGER not in server.quota["metadata"].get("annotations", {}):
            raise SystemExit("calls: the pod wasn't charged")
        found.append(Reviewed(response, counts))
    return found


def _filter_calls(*, cold: bool) -> Counter[str]:
    # of a slice that never ends: on a busy machine one is over, and the nodes are looked at once more
    filtering = Filtering(NODES, NODES, partial(TimeSlices, lambda: 0.0))
    filtering.use("cooperative")

    async def measured() -> Counter[str]:
        await filtering.cluster.ensure_namespace("default")
        for shape in (0, 1):  # what is worked out once in a process; then the classes of nodes
            await filtering.answered(await filtering.body(gpu(1000 + shape)))
        filtering.load(0, 15_000)
        body = await filtering.body(gpu(2000 if cold else 1001))
        with counted_calls() as counts:
            await filtering.answered(body)
        return counts

    return asyncio.run(measured())


def _recompute_calls() -> Counter[str]:
    async def measured() -> Counter[str]:
        cluster = MemoryCluster(lambda: _NOW)
        core = Core(cluster, _VENDORS, Options(), clock=lambda: _NOW, watches=NoWatches(tuple(Kind)))
        await cluster.ensure_namespace(NAMESPACE)
        for number in range(PODS // CARDS + 1):
            core.caches.put(Kind.NODES, await cluster.create(Kind.NODES, node(number)))
        for number in range(PODS):
            placed = running(number, number // CARDS, number % CARDS)
            core.caches.put(Kind.PODS, await cluster.create(Kind.PODS, placed))
        for name in ("first", "second"):
            core.caches.put(Kind.RESOURCE_QUOTAS, await cluster.create(Kind.RESOURCE_QUOTAS, quota(name, _HARD)))
        await core.recomputer.run(NAMESPACE, "first")
        with counted_calls() as counts:
            await core.recomputer.run(NAMESPACE, "second")
        return counts

    return asyncio.run(measured())


def _lock_calls() -> Counter[str]:
    core = Core(MemoryCluster(lambda: _NOW), _VENDORS, Options(), clock=lambda: _NOW, watches=NoWatches(tuple(Kind)))
    shown, locked = node(0), node(0)
    core.caches.put(Kind.NODES, shown)
    locked["metadata"]["annotations"][COMMON_LOCK.annotation] = "2026-01-01T00:00:00Z,bench,p"
    with counted_calls() as counts:
        core.caches.put(Kind.NODES, locked)
    return counts


WORK: Mapping[str, Callable[[], Counter[str]]] = {
    **{f"review, {name}": partial(warm_calls, case) for name, case in CASES.items()},
    "filter, a new shape": partial(_filter_calls, cold=True),
    "filter, one node changed": partial(_filter_calls, cold=False),
    "recompute": _recompute_calls,
    "lock of a node": _lock_calls,
}


def recorded() -> dict[str, Counter[str]]:
    """The calls that are recorded, by case and function."""
    return {name: Counter(calls) for name, calls in json.loads(RECORD.read_text()).items()}


def risen(name: str, now: Mapping[str, int], before: Mapping[str, int]) -> str:
    """The functions that are called more often than is recorded, if all together are called too often; else empty."""
    most = sum(before.values()) * (1 + MOST_MORE)
    if sum(now.values()) <= most:
        return ""
    functions = [function for function, count in sorted(now.items()) if count > before.get(function, 0)]
    more = ", ".join(f"{function} {before.get(function, 0)} → {now[function]}" for function in functions)
    return (
        f"{name}: {sum(now.values())} calls, {sum(before.values())} are recorded: {more}. {_commits(functions)}"
        "If it has to: python -m hack.bench.calls --json hack/bench/calls.json"
    )


def _commits(functions: Iterable[str]) -> str:
    """The commits since the record that changed the modules of functions; empty where nothing says."""
    modules = {function.partition(":")[0].replace(".", "/") for function in functions}
    files = [f"hami_webhook/{module}{suffix}" for module in sorted(modules) for suffix in (".py", "/__init__.py")]

    def log(*arguments: str | Path) -> str:
        git = ("git", "-C", ROOT, "log", *arguments)
        return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()

    since = log("-1", "--format=%H", "--", RECORD)
    found = log("--format=%h %s", f"{since}..", "--", *files) if since else ""
    return f"Changed since by: {'; '.join(found.splitlines())}. " if found else ""


def measure(size: str) -> Sequence[Figure]:
    """Each piece of work beside what is recorded; the sizes make no difference."""
    before = recorded()
    goal = Goal(at_most=1 + MOST_MORE)
    return [
        Figure("calls", name, counted().total(), "calls", "recorded", before[name].total(), goal)
        for name, counted in WORK.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--by", choices=("case", "function"), default="case", help="what is listed")
    parser.add_argument("--rooms", action="store_true", help="list stays in packages and climbs between them instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the calls there too, by case and function")
    arguments = parser.parse_args()
    if arguments.rooms:
        show(rooms.as_table())
        return
    found = {name: counted() for name, counted in WORK.items()}
    table = Table("work", *(["function"] if arguments.by == "function" else []))
    table.add_column("calls", justify="right")
    for name, calls in found.items():
        if arguments.by == "function":
            table.add_section()
            for function, count in sorted(calls.items(), key=lambda item: (-item[1], item[0])):
                table.add_row(name, function, str(count))
        else:
            table.add_row(name, str(calls.total()))
    show(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
