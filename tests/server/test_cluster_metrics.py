"""What the leader alone exposes of the cluster beyond HAMi's metrics, and how it is rendered (docs/metrics.md)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from admission.clusters import FULL, NOW, core_on, quota_cluster
from builders import JSON, accelerator_quota, pod, quota
from charging.claim_env import TEN, got
from dra.objects import resource_slice, share
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from quota.objects import claiming_vendors

from hami_webhook.cluster.api import Kind, NotFound
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.showback import UNTIL, Showback
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.kube.objects import QUOTA_GATE, format_time
from hami_webhook.server.cluster_metrics import ClusterCollector
from hami_webhook.server.exposition import Family, Sample, render

from .serving import Served, served
from .test_metrics import MIB, Samples, exposed, labelled, node, placed, rendered, samples

MODEL = labelled(vendor="NVIDIA", model="A10")


def card(uuid: str, memory: int = 1000, **more: object) -> JSON:
    return {"id": uuid, "count": 2, "devmem": memory, "devcore": 100, "type": "A10", "health": True, **more}


def test_cards_are_added_up_by_model_with_the_largest_requests_that_still_fit() -> None:
    """Of four cards one is full, one is half taken, one is sick, and one is free on another node."""
    core = core_on(None)
    core.caches.put(Kind.NODES, node([card("G0"), card("G1"), card("G2", 9000, health=False)]))
    core.caches.put(Kind.NODES, node([card("G3", 800)], "n2"))
    core.caches.put(Kind.PODS, placed("G0,NVIDIA,1000,100:;", uid="full", name="full"))
    core.caches.put(Kind.PODS, placed("G1,NVIDIA,100,30:;", uid="half", name="half"))
    found = exposed(core)
    assert {name: by[MODEL] for name, by in found.items() if by.keys() == {MODEL}} == {
        "hami_webhook_cards": 4,
        "hami_webhook_cards_free": 1,
        "hami_webhook_card_slots": 8,
        "hami_webhook_card_slots_allocated": 2,
        "hami_webhook_card_memory_bytes": 11800 * MIB,
        "hami_webhook_card_memory_allocated_bytes": 1100 * MIB,
        "hami_webhook_card_cores": 400,
        "hami_webhook_card_cores_allocated": 130,
        "hami_webhook_largest_free_memory_bytes": 900 * MIB,
        "hami_webhook_largest_free_cores": 100,
        "hami_webhook_largest_free_cards": 1,
    }


def test_a_card_without_a_slot_or_without_compute_left_takes_nothing_more() -> None:
    core = core_on(None)
    core.caches.put(Kind.NODES, node([card("G0"), card("G1", count=1)]))
    core.caches.put(Kind.PODS, placed("G0,NVIDIA,1,100:G1,NVIDIA,1,1:;"))
    found = exposed(core)
    assert found["hami_webhook_largest_free_memory_bytes"] == {MODEL: 0}
    assert found["hami_webhook_largest_free_cores"] == {MODEL: 0}
    assert found["hami_webhook_largest_free_cards"] == {MODEL: 0}


def test_a_registration_is_ready_unreadable_or_silent() -> None:
    core = core_on(None)
    core.caches.put(Kind.NODES, node(name="good"))
    core.caches.put(Kind.NODES, node("not json", "bad"))
    quiet = node(name="quiet")
    quiet["metadata"]["annotations"]["hami.io/node-handshake"] = "Requesting_2025-11-21 02:38:20"
    core.caches.put(Kind.NODES, quiet)
    found = exposed(core)
    assert found["hami_webhook_node_registrations"] == {
        labelled(node="good", vendor="NVIDIA", state="ready"): 1,
        labelled(node="bad", vendor="NVIDIA", state="unreadable"): 1,
        labelled(node="quiet", vendor="NVIDIA", state="silent"): 1,
    }
    assert found["hami_webhook_node_handshake_age_seconds"].keys() == {labelled(node="quiet", vendor="NVIDIA")}


@pytest.mark.parametrize(
    ("text", "age"), [("2025-11-21T02:39:00Z,team-a,p", 60), ("2025-11-21T02:39:00Z", 60), ("nonsense", None)]
)
def test_the_age_of_a_nodes_lock_is_shown(text: str, age: int | None) -> None:
    core = core_on(None)
    locked = node()
    locked["metadata"]["annotations"]["hami.io/mutex.lock"] = text
    core.caches.put(Kind.NODES, locked)
    shown = exposed(core).get("hami_webhook_node_lock_age_seconds", {})
    assert shown == ({} if age is None else {labelled(node="n1", lock="hami.io/mutex.lock"): age})


def test_the_pods_that_wait_for_a_quota_are_counted_with_the_oldest() -> None:
    core = core_on(None)
    queues = {"hami.io/quota-enforcement": "queue"}
    for namespace, enforcement in (("team-a", queues), ("team-b", queues), ("team-c", {})):
        made = quota(namespace=namespace, gpu=1)
        made["metadata"]["annotations"] = enforcement
        core.caches.put(Kind.RESOURCE_QUOTAS, made)
    gates: list[JSON] = [{"name": QUOTA_GATE}]
    for name, namespace, age, own in (("p", "team-a", 30, gates), ("q", "team-a", 70, gates), ("r", "team-a", 90, [])):
        waiting = pod(name, namespace=namespace, uid=name, gpu=1, schedulingGates=own)
        waiting["metadata"]["creationTimestamp"] = format_time(NOW - age)
        core.caches.put(Kind.PODS, waiting)
    found = exposed(core)
    a, b = (labelled(namespace=each, quota="gpu-quota") for each in ("team-a", "team-b"))
    assert found["hami_webhook_quota_queued_pods"] == {a: 2, b: 0}
    assert found["hami_webhook_quota_queued_oldest_seconds"] == {a: 70, b: 0}


def test_budgets_are_shown_in_hours_and_other_quotas_have_none() -> None:
    """A card was held when it was summed half an hour ago, and is counted since."""
    core = core_on(None)
    key = "limits.nvidia.com/gpu"
    made = accelerator_quota("research", spec={"budget": {"amounts": {key: "500h"}, "period": "Month"}}, gpu=8)
    made["status"] = {
        "budget": {
            "since": "2025-11-01T00:00:00Z",
            "until": "2025-12-01T00:00:00Z",
            "summedTo": format_time(NOW - 1800),
            "spent": {key: "100h"},
            "unseen": {key: "15m"},
            "rate": {key: 1},
        }
    }
    core.caches.put(Kind.ACCELERATOR_QUOTAS, made)
    core.caches.put(Kind.ACCELERATOR_QUOTAS, accelerator_quota("other", gpu=8))
    found, label = exposed(core), labelled(quota="research", key=key)
    assert found["hami_webhook_accelerator_quota_budget_hours"] == {label: 500}
    assert found["hami_webhook_accelerator_quota_budget_spent_hours"] == {label: pytest.approx(100.5)}
    assert found["hami_webhook_accelerator_quota_budget_unseen_hours"] == {label: 0.25}


def test_claims_count_in_what_pods_hold_and_wait_for() -> None:
    """A claim by hand that has its device, and one that waits."""
    core = core_on(None, vendors=claiming_vendors())
    core.caches.put(Kind.RESOURCE_QUOTAS, quota("q", namespace="team-a", mem=40000))
    core.caches.put(Kind.RESOURCE_SLICES, resource_slice("n1", share("a0")))
    for name, results in (("has", [got("10000Mi")]), ("waits", [])):
        status = {"allocation": {"devices": {"results": results}}} if results else {}
        meta = {"name": name, "namespace": "team-a", "uid": name}
        core.caches.put(Kind.RESOURCE_CLAIMS, {"metadata": meta, "spec": TEN, "status": status})
    found = exposed(core)
    of_memory = labelled(namespace="team-a", quota="q", key="limits.nvidia.com/gpumem")
    assert found["hami_webhook_quota_placed"][of_memory] == 10000
    assert found["hami_webhook_quota_waiting"][of_memory] == 10000


def test_a_node_with_two_gpu_managers_is_shown() -> None:
    core = core_on(None, vendors=enabled_vendors(builtin_device_config().config))
    both = node()
    both["status"] = {"allocatable": {"nvidia.com/gpu": "4", "volcano.sh/vgpu-number": "4"}}
    both["metadata"]["annotations"]["volcano.sh/node-vgpu-register"] = "G0,10,1000,A10,true,hami-core:"
    core.caches.put(Kind.NODES, both)
    core.caches.put(Kind.NODES, node(name="n2"))
    known = core.state.node("n1")
    assert known is not None
    assert core.vendors.mixing.remark(known)
    assert exposed(core)["hami_webhook_mixed_gpu_managers"] == {labelled(node="n1"): 1}


def test_the_cluster_is_shown_by_who_speaks_for_it_alone() -> None:
    core, leading = core_on(None), [False]
    core.caches.put(Kind.NODES, node())
    collector = ClusterCollector(core.view, Showback(core.view), lambda: leading[0], legacy=True)
    assert generate_latest(collector) == b""
    leading[0] = True
    assert "hami_gpu_memory_limit_bytes" in samples(generate_latest(collector))


class _Collector(Collector):
    """A collector of the same metrics each time."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def registry_of(metrics: Iterable[Metric]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(metrics))
    return registry


VALUES = st.floats() | st.integers(-(10**12), 10**12).map(float)


@given(samples=st.lists(st.tuples(st.tuples(st.text(), st.text(), st.text()), VALUES)), is_counter=st.booleans())
def test_a_family_is_rendered_as_prometheus_client_does(
    samples: list[tuple[tuple[str, str, str], float]], is_counter: bool
) -> None:
    family = Family("some", "Some samples.", ("node", "zone", "device"), is_counter=is_counter)
    registry = registry_of([family.of(samples), Family("one", "One sample.").of([((), 1)])])
    assert rendered(registry) == generate_latest(registry)


@pytest.mark.parametrize("of_few", [1, 7])
def test_a_family_in_pieces_is_rendered_as_one(of_few: int) -> None:
    """Also where few objects have a sample."""
    family = Family("many", "Many samples.", ("number",))
    found: list[Sample | None] = [((str(n),), n) if n % of_few == 0 else None for n in range(1000)]
    whole = family.of(each for each in found if each is not None)
    assert rendered(registry_of(family.in_pieces(found))) == generate_latest(registry_of([whole]))


@pytest.mark.parametrize("others_work", [False, True])
def test_a_large_scrape_lets_others_run_meanwhile(others_work: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as it runs itself, as a review takes several turns of the loop; but not if nobody waits."""
    family = Family("many", "Many samples.", ("number",))
    registry = registry_of(family.in_pieces(((str(number),), number) for number in range(20_000)))
    now, pauses = [0.0], list[float]()

    def clock() -> float:
        now[0] += 0.00005
        return now[0]

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds or others_work * 0.0002

    async def scrape() -> list[bytes]:
        return [part async for part in render(registry, sleep)]

    monkeypatch.setattr("hami_webhook.server.exposition.perf_counter", clock)
    turns = len(asyncio.run(scrape())) - 1
    assert turns > 10
    assert pauses == [0, 0.0005] * turns if others_work else [0] * turns


# The leader alone exports what describes the cluster (docs/metrics.md#metrics-that-only-the-leader-exports)


SHOWBACK = "hami_webhook_showback_card_seconds_total"
CLUSTER = {"hami_gpu_shared_count", "hami_vgpu_memory_allocated_bytes", "hami_webhook_quota_hard", SHOWBACK}


async def scraped(webhook: Served) -> Samples:
    return samples((await webhook.client.get("/metrics")).content)


async def lease(cluster: MemoryCluster) -> JSON:
    with contextlib.suppress(NotFound):
        return await cluster.get_lease("team-a", "hami-scheduler-controller")
    return {"spec": {"holderIdentity": ""}}


async def leads(cluster: MemoryCluster, name: str) -> None:
    """Wait until a replica has the lease."""
    while True:
        holder = (await lease(cluster))["spec"]["holderIdentity"]
        if holder.startswith(f"{name}_"):
            return
        await asyncio.sleep(0.01)


@asynccontextmanager
async def replica(folder: Path, cluster: MemoryCluster, name: str) -> AsyncIterator[Served]:
    flags = ("--leader-elect", "--roles", "webhook,controller")
    async with served(folder / name, cluster, *flags, env={"POD_NAMESPACE": "team-a", "POD_NAME": name}) as webhook:
        yield webhook


async def test_the_cluster_is_exported_by_the_leader_alone_and_by_the_next_after_it(tmp_path: Path) -> None:
    cluster = await quota_cluster(FULL)
    await cluster.create(Kind.NODES, node())
    await cluster.create(Kind.PODS, placed("G0,NVIDIA,250,30:;"))
    async with AsyncExitStack() as first:
        leader = await first.enter_async_context(replica(tmp_path, cluster, "a"))
        await leads(cluster, "a")
        async with replica(tmp_path, cluster, "b") as other:
            before, beside = await scraped(leader), await scraped(other)
            assert before.keys() >= CLUSTER
            assert CLUSTER.isdisjoint(beside)
            assert (before["hami_webhook_leader"], beside["hami_webhook_leader"]) == ({(): 1}, {(): 0})
            assert (before["hami_scheduler_is_leader"], beside["hami_scheduler_is_leader"]) == ({(): 1}, {(): 0})
            assert beside["hami_scheduler_cache_synced"] == {(): 1}
            assert {"hami_build_info", "hami_webhook_cache_objects", "process_cpu_seconds_total"} <= beside.keys()
            await scraped(leader)
            await first.aclose()
            read_until = float((await lease(cluster))["metadata"]["annotations"][UNTIL])
            await leads(cluster, "b")
            after = await scraped(other)
            assert {name: after[name] for name in CLUSTER} == {name: before[name] for name in CLUSTER}
            assert list(after[SHOWBACK].values()) == [0]
            (seconds,) = (await scraped(other))[SHOWBACK].values()
            assert 0 < seconds < other.process.core.clock() - read_until
