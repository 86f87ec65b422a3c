"""`python -m hack.bench.calls`: how many calls of our own functions a review takes, for a few kinds of pods.

The same on every machine, however busy it is. What is counted goes through the application of the listener, its caches
filled, for a pod of a workload that was reviewed before. With a quota the pod is charged: the API server's side of the
write is not counted. A coroutine that goes on after it waited counts again.

`--by function` lists the functions; `--json hack/bench/calls.json` records what the test holds the counts to.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from hack.bench.counting import counted_calls
from hack.bench.figures import Figure, Goal, show
from hack.bench.objects import JSON, NAMESPACE, SCHEDULER, gpu, pod_with, quota, review
from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.assembly import Core, Options
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.watches import NoWatches
from hami_webhook.config.drivers import DraSection
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.server.app import application, review_routes
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.request_metrics import new_registry

RECORD = Path(__file__).with_suffix(".json")
MOST_MORE = 0.05
"""The part by which a review may take more calls than are recorded."""

_CONFIG = builtin_device_config().config
_VENDORS = enabled_vendors(_CONFIG)
_CLAIMING = enabled_vendors(_CONFIG.model_copy(update={"dra": DraSection(enabled=True)}))
_NOW = 1_767_225_600.0
_LEDGER = "hami.io/quota-ledger"


@dataclass(frozen=True, slots=True)
class Case:
    """A review: its path, the pod's limits, and the hard limits of its namespace's quota; none without.

    `claims`: ResourceClaims are charged; the pod has none.
    """

    path: str
    limits: JSON
    hard: JSON | None = None
    claims: bool = False


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
        Options(rules=AdmissionRules(scheduler_name=SCHEDULER)),
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
        scope: dict[str, Any] = {
            "type": "http",
            "client": ("127.0.0.1", 1),
            "method": "POST",
            "path": case.path,
            "query_string": b"timeout=10s",
            "headers": [(b"content-type", b"application/json")],
        }
        message = {"type": "http.request", "body": review(pod)}
        sent: list[Any] = []

        async def receive(message: JSON = message) -> JSON:
            return message

        async def send(part: Any, sent: list[Any] = sent) -> None:
            sent.append(part)

        with counted_calls() as counts:
            await serve(scope, receive, send)
        response = json.loads(sent[-1]["body"])["response"]
        if not response["allowed"]:
            raise SystemExit(f"calls: the pod was refused: {response['status']['message']}")
        if case.hard and _LEDGER not in server.quota["metadata"].get("annotations", {}):
            raise SystemExit("calls: the pod wasn't charged")
        found.append(Reviewed(response, counts))
    return found


def recorded() -> dict[str, Counter[str]]:
    """The calls that are recorded, by case and function."""
    return {name: Counter(calls) for name, calls in json.loads(RECORD.read_text()).items()}


def risen(name: str, now: Mapping[str, int], before: Mapping[str, int]) -> str:
    """The functions that are called more often than is recorded, if all together are called too often; else empty."""
    most = sum(before.values()) * (1 + MOST_MORE)
    if sum(now.values()) <= most:
        return ""
    more = ", ".join(
        f"{function} {before.get(function, 0)} → {count}"
        for function, count in sorted(now.items())
        if count > before.get(function, 0)
    )
    return (
        f"a review ({name}) takes {sum(now.values())} calls, {sum(before.values())} are recorded: {more}. "
        "If it has to: python -m hack.bench.calls --json hack/bench/calls.json"
    )


def measure(size: str) -> Sequence[Figure]:
    """Each case beside what is recorded; the sizes make no difference."""
    before = recorded()
    goal = Goal(at_most=1 + MOST_MORE)
    return [
        Figure("calls", name, warm_calls(case).total(), "calls", "recorded", before[name].total(), goal)
        for name, case in CASES.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by", choices=("case", "function"), default="case", help="what is listed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the calls there too, by case and function")
    arguments = parser.parse_args()
    found = {name: warm_calls(case) for name, case in CASES.items()}
    table = Table("review", *(["function"] if arguments.by == "function" else []))
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
