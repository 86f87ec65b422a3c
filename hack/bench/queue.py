"""`python -m hack.bench.queue`: one round over the pods that wait for quota; baseline: what a pod may wait for others.

The pods are of one namespace, equal or all different, and of another quota than those whose wait they might lengthen.
A pod that comes at the wrong moment waits for a round, for the pause after it, and for its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import JSON, gpu, pod_with
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.queueing.pod_queue import DemandCache, read_queue
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.known_quotas import KnownQuotas, PodQuotas
from hami_webhook.quota.pricing import ClusterCapacity
from hami_webhook.quota.queue_order import decide

PODS = {"smallest": 100, "usual": 10_000, "large": 10_000}
ROUNDS = {"smallest": 1, "usual": 5, "large": 20}
NOW = 1_767_225_600.0
LONGEST = 0.5
"""Seconds that a flood of one team may add to the wait of another."""


def measure(size: str) -> Sequence[Figure]:
    figures = []
    for different in (False, True):
        name = f"{PODS[size]} pods that {'all differ' if different else 'are equal'}"
        show_progress(f"queue: {name}")
        seconds = asyncio.run(_round(PODS[size], ROUNDS[size], different=different))
        goal = Goal(at_most=1 / 3) if PODS[size] >= 10_000 else None
        figures.append(Figure("queue", name, 1000 * seconds, "ms", "a flood may add", 1000 * LONGEST, goal))
    return figures


async def _round(pods: int, rounds: int, *, different: bool) -> float:
    """Seconds of CPU that the fastest of some rounds after the first took."""
    vendors = enabled_vendors(builtin_device_config().config)
    quota = ResourceQuota.from_object(_quota(pods))
    account = QuotaAccount.read(quota, vendors)
    known = PodQuotas(KnownQuotas({quota.name: account}, 0.0, True, False), KnownQuotas({}, 0.0, True, True))
    waiting = [
        Pod.from_object(_gated(number, 1000 + number if different else 1000)).compact() for number in range(pods)
    ]
    demands, seconds = DemandCache(lambda: NOW), []
    for _ in range(rounds + 1):
        began = time.process_time()
        queue = await read_queue(waiting, lambda pod: known, vendors, ClusterCapacity(), demands)
        decision = decide(queue.waiting.values(), queue.rooms, NOW)
        seconds.append(time.process_time() - began)
        assert len(decision.waiting) == pods
    return min(seconds[1:])


def _quota(pods: int) -> JSON:
    keys = {"limits.nvidia.com/gpu": "10", "limits.nvidia.com/gpumem": str(10_000 * pods)}
    annotations = {"hami.io/quota-enforcement": "queue"}
    meta = {"name": "gpu", "namespace": "team", "uid": "q", "annotations": annotations}
    return {"metadata": meta, "spec": {"hard": keys}, "status": {"used": {**keys, "limits.nvidia.com/gpumem": "0"}}}


def _gated(number: int, memory: int) -> JSON:
    made = pod_with(f"p{number}", gpu(memory))
    made["metadata"] |= {"namespace": "team", "uid": f"u{number}", "creationTimestamp": "2025-12-31T00:00:00Z"}
    made["spec"]["schedulingGates"] = [{"name": "hami.io/quota"}]
    return made


if __name__ == "__main__":
    run({"queue": measure}, __doc__)
