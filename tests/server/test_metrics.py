"""What is exposed, under which names and labels: docs/spec/core.md#12, docs/spec/quota.md#11."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
import pytest
from admission.clusters import NOW, core_on, quota_cluster
from admission.reviews import cpu, parsed, pod, review, vendors
from builders import CORES, GPU, JSON, MEM, container
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from hami_webhook.admission.denial import Denied
from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.watches import NoWatches
from hami_webhook.controller.informers import watched_kinds
from hami_webhook.controller.showback import Showback
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.registry import Vendors
from hami_webhook.server.cluster_metrics import OLD_NAMES, ClusterCollector, legacy_of
from hami_webhook.server.exposition import render
from hami_webhook.server.probes import BuildCollector
from hami_webhook.server.process_metrics import CoreCollector
from hami_webhook.server.request_metrics import RequestMetrics, new_registry

CARDS = [
    {"id": "G0", "count": 10, "devmem": 1000, "devcore": 100, "type": "NVIDIA A10", "health": True},
    {"id": "G1", "index": 1, "count": 10, "devmem": 0, "devcore": 100, "type": "NVIDIA A10", "health": True},
]
MIB = 1 << 20
Labels = tuple[tuple[str, str], ...]
Samples = dict[str, dict[Labels, float]]


def node(cards: list[JSON] | str = CARDS, name: str = "n1") -> JSON:
    text = cards if isinstance(cards, str) else orjson.dumps(cards).decode()
    return {"metadata": {"name": name, "annotations": {"hami.io/node-nvidia-register": text}}}


def placed(
    text: str,
    *containers: JSON,
    name: str = "p",
    node: str = "n1",
    phase: str = "Running",
    uid: str = "u1",
    when: float | None = None,
    **more: Any,
) -> JSON:
    notes = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": text}
    if when is not None:
        notes["hami.io/vgpu-time"] = str(int(when))
    return {
        **pod(name, *(containers or [container(gpu=1, mem=3000)]), annotations=notes, uid=uid, nodeName=node, **more),
        "status": {"phase": phase},
    }


def scrape(*objects: tuple[Kind, JSON], **more: Vendors) -> Samples:
    async def core() -> Core:
        return core_on(await quota_cluster(), **more)

    made = asyncio.run(core())
    for kind, obj in objects:
        made.caches.put(kind, obj)
    return exposed(made)


def rendered(registry: CollectorRegistry) -> bytes:
    """What is answered to a scrape."""

    async def parts() -> list[bytes]:
        return [part async for part in render(registry)]

    return b"".join(asyncio.run(parts()))


def exposed(core: Core, **more: str) -> Samples:
    """Every sample that the leader serves of a core, and every process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BuildCollector(core.problems, core.failures))
    registry.register(CoreCollector(core, **more))
    registry.register(ClusterCollector(core.view, Showback(core.view)))
    return samples(rendered(registry))


def test_faults_of_the_vendors_rules_are_counted_by_step() -> None:
    core = core_on(None, vendors=enabled_vendors(builtin_device_config().config))
    assert "hami_webhook_vendor_faults_total" not in exposed(core)
    core.vendors.faults.counts["fit"] += 1
    assert exposed(core)["hami_webhook_vendor_faults_total"] == {(("step", "fit"),): 1}


def samples(text: bytes) -> Samples:
    """Every sample: by name, then by its labels, the value. A sample seen twice is an error."""
    found: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.documentation
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            by_labels = found.setdefault(sample.name, {})
            assert labels not in by_labels, sample
            by_labels[labels] = sample.value
    return found


def labelled(**labels: str) -> Labels:
    return tuple(sorted(labels.items()))


CARD_0 = {"zone": "vGPU", "node": "n1", "device_uuid": "G0", "device_index": "0", "device_type": "NVIDIA A10"}
CARD_1 = {**CARD_0, "device_uuid": "G1", "device_index": "1"}


def test_cards_are_shown_with_hamis_names_and_labels() -> None:
    found = scrape((Kind.NODES, node()), (Kind.PODS, placed("G0,NVIDIA,250,30:;")))
    assert found["hami_gpu_memory_limit_bytes"][labelled(**CARD_0)] == 1000 * MIB
    assert found["hami_gpu_core_limit_ratio"][labelled(**CARD_0)] == 100
    assert found["hami_gpu_memory_allocated_bytes"][labelled(**CARD_0, device_cores="100")] == 250 * MIB
    assert found["hami_gpu_shared_count"] == {labelled(**CARD_0): 1, labelled(**CARD_1): 0}
    assert found["hami_gpu_core_allocated_ratio"][labelled(**CARD_0)] == 30
    overview = labelled(**CARD_0, device_cores="100", device_memory_limit="1000")
    assert found["hami_node_gpu_overview"][overview] == 250 * MIB
    assert found["hami_node_gpu_memory_allocated_ratio"] == {labelled(**CARD_0): 0.25}, (
        "absent where there is no memory"
    )


POD = {"zone": "vGPU", "namespace": "team-a", "node": "n1", "pod": "p"}


def test_pods_are_shown_container_by_container_and_repeats_are_summed() -> None:
    text = "G0,NVIDIA,100,10:;G0,NVIDIA,200,20:G0,NVIDIA,1,1:G1,NVIDIA,300,30:;;"
    obj = placed(text, container("a", gpu=1, mem=3000), cpu("b"), init=[container("i", gpu=1, mem=3000)])
    found = scrape((Kind.NODES, node()), (Kind.PODS, obj))
    memory, cores = found["hami_vgpu_memory_allocated_bytes"], found["hami_vgpu_core_allocated_ratio"]
    assert memory == {
        labelled(**POD, container_index="0", device_uuid="G0"): 100 * MIB,
        labelled(**POD, container_index="1", device_uuid="G0"): 201 * MIB,
        labelled(**POD, container_index="1", device_uuid="G1"): 300 * MIB,
    }
    assert sorted(cores.values()) == [10, 21, 30]


MADE = {"containerIndex": 0, "gpuUUID": "G1", "profile": "2g.10gb", "placement": {"start": 2, "size": 2}}
BY_PLUGIN = {"migUUID": "MIG-1", "gpuInstanceID": 0, "computeInstanceID": 3}


@pytest.mark.parametrize("realised", [True, False])
def test_instances_cut_from_a_card_are_shown_once_the_plugin_made_them(realised: bool) -> None:
    records = [MADE | (BY_PLUGIN if realised else {}), MADE | {"deviceIndex": 1, "placement": {"start": 4, "size": 2}}]
    obj = placed("G1,NVIDIA,100,10:G1,NVIDIA,100,10:;")
    obj["metadata"]["annotations"]["hami.io/vgpu-mig-allocations"] = orjson.dumps(records).decode()
    core = core_on(None)
    core.caches.put(Kind.NODES, node())
    core.caches.put(Kind.PODS, obj)
    found = samples(generate_latest(ClusterCollector(core.view, Showback(core.view), legacy=True)))
    card = {"zone": "vGPU", "node": "n1", "device_uuid": "G1", "device_index": "1"}
    instance = labelled(
        **card,
        mig_uuid="MIG-1",
        profile="2g.10gb",
        gpu_instance_id="0",
        compute_instance_id="3",
        placement_start="2",
        placement_size="2",
    )
    old = labelled(zone="vGPU", nodeid="n1", deviceuuid="G1", deviceidx="1", migname="2g.10gb-0")
    assert found.get("hami_node_gpu_mig_instance_info", {}) == ({instance: 1} if realised else {})
    assert found.get("nodeGPUMigInstance", {}) == ({old: 1} if realised else {})


def test_compute_units_are_shown_in_percent_of_their_card() -> None:
    """The AMD page's section A9: rounded up, and the limit is 100; a card that isn't registered has no percent."""
    cards = '[{"id":"M","count":10,"devmem":9,"devcore":64,"type":"AMD Instinct","health":true}]'
    on = {
        "metadata": {"name": "n1", "annotations": {"hami.io/node-amd-register": cards}},
        "status": {"capacity": {"amd.com/gpu": "1"}},
    }
    notes = {"hami.io/vgpu-node": "n1", "hami.io/amd-devices-allocated": "M,AMD Instinct,5,17:;gone,AMD,5,17:;"}
    incoming = [container(name, limits={"amd.com/gpu": 1, "amd.com/gpucores": 27}) for name in "ab"]
    obj = {**pod("p", *incoming, annotations=notes, uid="u1", nodeName="n1"), "status": {"phase": "Running"}}
    found = scrape((Kind.NODES, on), (Kind.PODS, obj), vendors=enabled_vendors(builtin_device_config().config))
    assert list(found["hami_gpu_core_limit_ratio"].values()) == [100]
    assert list(found["hami_gpu_core_allocated_ratio"].values()) == [27]
    assert dict(next(iter(found["hami_gpu_memory_allocated_bytes"])))["device_cores"] == "64"
    assert list(found["hami_vgpu_core_allocated_ratio"].values()) == [27, 17]
    assert (
        found["hami_resource_quota_used"][
            labelled(zone="vGPU", namespace="team-a", quota_name="amd.com/gpucores", limit="0")
        ]
        == 54
    )


def test_cores_on_a_mask_are_counted() -> None:
    """AWS Neuron writes masks; people read numbers."""
    capacity = {"aws.amazon.com/neuron": "1", "aws.amazon.com/neuroncore": "4"}
    record = "n1-AWSNeuron-0,AWSNeuron,0,12:;"
    notes = {"hami.io/vgpu-node": "n1", "hami.io/aws-neuron-devices-allocated": record}
    found = scrape(
        (Kind.NODES, {"metadata": {"name": "n1"}, "status": {"capacity": capacity}}),
        (Kind.PODS, pod(annotations=notes, uid="u1", nodeName="n1")),
        vendors=enabled_vendors(builtin_device_config().config),
    )
    device = {"zone": "vGPU", "node": "n1", "device_uuid": "n1-AWSNeuron-0", "device_index": "0"}
    assert found["hami_gpu_core_limit_ratio"] == {labelled(**device, device_type="AWSNeuron"): 4}
    assert found["hami_gpu_core_allocated_ratio"] == {labelled(**device, device_type="AWSNeuron"): 2}
    (held,) = found["hami_vgpu_core_allocated_ratio"].values()
    assert held == 2


def test_a_reservation_lapses_between_two_scrapes() -> None:
    now = [NOW]
    obj = placed("G0,NVIDIA,1,1:;", node="", phase="Pending", when=NOW)
    core = core_on(None, clock=lambda: now[0])
    core.caches.put(Kind.NODES, node())
    core.caches.put(Kind.PODS, obj)
    collector = ClusterCollector(core.view, Showback(core.view))
    assert samples(generate_latest(collector))["hami_gpu_shared_count"][labelled(**CARD_0)] == 1
    now[0] += 400
    assert samples(generate_latest(collector))["hami_gpu_shared_count"][labelled(**CARD_0)] == 0


def quota(
    hard: dict[str, str], name: str = "q", *, used: dict[str, str] | None = None, scopes: list[str] | None = None
) -> JSON:
    spec: JSON = {"hard": {f"limits.{key}": value for key, value in hard.items()}}
    if scopes:
        spec["scopes"] = scopes
    status = {"used": {f"limits.{key}": value for key, value in (used or {}).items()}}
    return {"metadata": {"name": name, "namespace": "team-a"}, "spec": spec, "status": status}


def test_quotas_are_shown_in_their_units_and_under_hamis_names_in_mib() -> None:
    found = scrape(
        (Kind.RESOURCE_QUOTAS, quota({GPU: "2k", MEM: "12", "nvidia.com/other": "1"}, "a", used={GPU: "1", MEM: "2"})),
        (Kind.RESOURCE_QUOTAS, quota({MEM: "10"}, "b")),
        (Kind.RESOURCE_QUOTAS, quota({MEM: "1"}, "scoped", scopes=["Terminating"])),
        (Kind.PODS, pod(gpu=1, mem=2, uid="u1")),
        vendors=vendors(memoryFactor=1024),
    )
    mine = {"namespace": "team-a"}
    key = {"key": f"limits.{MEM}"}
    assert found["hami_webhook_quota_hard"] == {
        labelled(**mine, quota="a", key=f"limits.{GPU}"): 2000,
        labelled(**mine, quota="a", **key): 12,
        labelled(**mine, quota="b", **key): 10,
        labelled(**mine, quota="scoped", **key): 1,
    }
    assert found["hami_webhook_quota_used"][labelled(**mine, quota="a", **key)] == 2
    hamis = {**mine, "zone": "vGPU"}
    assert found["hami_resource_quota_limit"] == {
        labelled(**hamis, quota_name=GPU): 2000,
        labelled(**hamis, quota_name=MEM): 10,
    }
    assert found["hami_resource_quota_used"] == {
        labelled(**hamis, quota_name=GPU, limit="2000"): 1,
        labelled(**hamis, quota_name=MEM, limit="10"): 2048,
    }


def test_what_waits_and_what_is_placed_are_told_apart() -> None:
    """A waiting pod costs what its ledger entry says; who is out of scope costs a quota nothing."""
    ledger = {"w": {"s": "waiting", "t": int(NOW), "c": {f"limits.{MEM}": 777}}}
    remembered = quota({MEM: "9000"}, "a")
    remembered["metadata"]["annotations"] = {"hami.io/quota-ledger": orjson.dumps(ledger).decode()}
    percentage = container(limits={GPU: 1, "nvidia.com/gpumem-percentage": 50})
    found = scrape(
        (Kind.NODES, node()),
        (Kind.RESOURCE_QUOTAS, remembered),
        (Kind.RESOURCE_QUOTAS, quota({MEM: "1"}, "scoped", scopes=["Terminating"])),
        (Kind.PODS, placed("G0,NVIDIA,100,10:;")),
        (Kind.PODS, pod("w", percentage, uid="w")),
    )
    key = {"namespace": "team-a", "key": f"limits.{MEM}"}
    assert found["hami_webhook_quota_placed"] == {labelled(**key, quota="a"): 100, labelled(**key, quota="scoped"): 0}
    assert found["hami_webhook_quota_waiting"] == {labelled(**key, quota="a"): 777, labelled(**key, quota="scoped"): 0}


@pytest.mark.parametrize("backend", ["status", "memory"])
def test_where_the_books_are_kept_is_told(backend: str) -> None:
    found = exposed(core_on(None), quota_backend=backend)
    assert found["hami_webhook_quota_backend"] == {labelled(backend=backend): 1}


def test_quotas_above_namespaces_have_metrics_of_their_own() -> None:
    core = core_on(None)
    for name in ("team-a", "team-b"):
        core.caches.put(Kind.NAMESPACES, {"metadata": {"name": name, "labels": {"tier": "gold"}}})
    spec = {"namespaceSelector": {"matchLabels": {"tier": "gold"}}, "hard": {f"limits.{MEM}": 9000}}
    status = {"used": {f"limits.{MEM}": "7"}}
    core.caches.put(Kind.ACCELERATOR_QUOTAS, {"metadata": {"name": "gold"}, "spec": spec, "status": status})
    for number, namespace in enumerate(("team-a", "team-b", "team-c")):
        obj = pod(f"p{number}", container(limits={GPU: 1, MEM: 5}), uid=f"u{number}")
        obj["metadata"]["namespace"] = namespace
        core.caches.put(Kind.PODS, obj)
    found = samples(generate_latest(ClusterCollector(core.view, Showback(core.view), legacy=False)))
    sums = {"used": 7, "hard": 9000, "waiting": 10, "placed": 0}
    labels = labelled(quota="gold", key=f"limits.{MEM}")
    assert {name: found[f"hami_webhook_accelerator_quota_{name}"] for name in sums} == {
        name: {labels: value} for name, value in sums.items()
    }
    assert "hami_webhook_quota_used" not in found


def test_subjects_have_metrics_that_are_bounded() -> None:
    core, key = core_on(None), f"limits.{GPU}"
    spec = {"namespaceSelector": {}, "hard": {key: 9000}, "per": {"user": True, "hard": {key: 5}}}
    use = {f"user-{number:03}": [1 + (number == 7)] for number in range(150)}
    text = json.dumps({"keys": [key], "use": use})
    status = {"used": {key: "151"}, "countedSubjects": "user", "subjectUse": text}
    core.caches.put(Kind.ACCELERATOR_QUOTAS, {"metadata": {"name": "shared"}, "spec": spec, "status": status})
    found = samples(generate_latest(ClusterCollector(core.view, Showback(core.view), legacy=False)))
    used = found["hami_webhook_accelerator_quota_subject_used"]
    assert len(used) == 101
    assert used[labelled(quota="shared", subject="user-007", key=key)] == 2
    assert used[labelled(quota="shared", subject="(others)", key=key)] == 50
    hard = found["hami_webhook_accelerator_quota_subject_hard"]
    assert (len(hard), set(hard.values())) == (100, {5})


def test_used_without_a_quota_has_limit_0() -> None:
    found = scrape((Kind.PODS, pod("p", container(limits={GPU: 1, MEM: 5, CORES: 7}), uid="u1")))
    assert found["hami_resource_quota_used"] == {
        labelled(zone="vGPU", namespace="team-a", quota_name=name, limit="0"): value
        for name, value in ((GPU, 1), (MEM, 5), (CORES, 7))
    }
    assert "hami_resource_quota_limit" not in found


def test_charges_and_refusals_are_counted() -> None:
    async def charged() -> tuple[Core, Denied]:
        cluster = await quota_cluster({MEM: 3000})
        core = core_on(cluster, watches=NoWatches((Kind.ACCELERATOR_QUOTAS,)))
        for name in ("a", "b"):
            try:
                await core.admission.validate(parsed(review(pod(name, gpu=1, mem=3000, uid=name))))
            except Denied as denied:
                refused = denied
        core.caches.put(Kind.RESOURCE_QUOTAS, await cluster.get(Kind.RESOURCE_QUOTAS, "gpu-quota", "team-a"))
        await core.recomputer.inline("team-a", "gpu-quota", write=False)
        return core, refused

    core, refused = asyncio.run(charged())
    assert refused.code == 403
    found = exposed(core)
    assert found["hami_webhook_quota_writes_total"] == {(): 1}
    assert found["hami_webhook_quota_denied_total"] == {labelled(reason="exceeded"): 1}
    assert found["hami_webhook_quota_conflicts_total"] == {(): 0}
    assert found["hami_webhook_quota_charge_seconds_count"] == {(): 2}
    assert found["hami_webhook_quota_recompute_seconds_count"] == {(): 1}
    entries = labelled(namespace="team-a", quota="gpu-quota", state="admitted")
    assert found["hami_webhook_quota_ledger_entries"] == {entries: 1}


def test_reviews_are_a_counter_and_a_histogram() -> None:
    registry = new_registry()
    requests = RequestMetrics(registry, "hami_webhook_review", "admission review")
    for code, seconds in ((200, 0.0005), (200, 0.02), (403, 99.0)):
        requests.answered("/mutate", code, seconds)
    found = samples(generate_latest(registry))
    assert found["hami_webhook_reviews_total"][labelled(path="/mutate", code="200")] == 2
    buckets = found["hami_webhook_review_seconds_bucket"]
    assert [buckets[labelled(path="/mutate", le=le)] for le in ("0.001", "0.01", "0.025", "10.0", "+Inf")] == [
        1,
        1,
        2,
        2,
        3,
    ]
    assert found["hami_webhook_review_seconds_count"] == {labelled(path="/mutate"): 3}
    assert found["hami_webhook_review_seconds_sum"][labelled(path="/mutate")] == pytest.approx(99.0205)


def test_the_build_is_shown() -> None:
    ((labels, value),) = scrape()["hami_build_info"].items()
    assert value == 1
    assert {name for name, _ in labels} == {"version", "revision", "build_date", "go_version", "compiler", "platform"}


UNREADABLE = [
    (Kind.NODES, node("not json")),
    (Kind.NODES, node('[{"id":1}]')),
    (Kind.PODS, placed("garbage")),
    (Kind.PODS, placed("G0,NVIDIA,x,1:;")),
    (Kind.PODS, placed("G0,NVIDIA,1,1:;", when=None, labels={"a": 1})),
    (Kind.PODS, pod(gpu="16Gi", mem="x", uid="u1")),
    (Kind.RESOURCE_QUOTAS, quota({GPU: "many", MEM: "1.5"})),
]


@pytest.mark.parametrize(("kind", "obj"), UNREADABLE)
def test_an_object_that_cant_be_read_doesnt_break_the_scrape(kind: Kind, obj: JSON) -> None:
    found = scrape(
        (Kind.NODES, node()), (Kind.PODS, placed("G0,NVIDIA,250,30:;", uid="good", name="good")), (kind, obj)
    )
    assert "hami_build_info" in found
    good = {**POD, "pod": "good", "container_index": "0", "device_uuid": "G0"}
    assert found["hami_vgpu_memory_allocated_bytes"][labelled(**good)] == 250 * MIB


def test_unreadable_objects_are_counted_until_they_are_gone() -> None:
    core = core_on(None)
    bad = {"metadata": {"name": "x", "labels": []}}
    core.caches.put(Kind.NAMESPACES, bad)
    core.caches.put(Kind.NODES, node("not json", "n2"))
    collector = ClusterCollector(core.view, Showback(core.view))
    found = samples(generate_latest(collector))["hami_webhook_unreadable_objects"]
    assert found == {labelled(kind="Namespace"): 1, labelled(kind="Node"): 1}
    core.caches.drop(Kind.NAMESPACES, bad)
    core.caches.put(Kind.NODES, node(CARDS[:1], "n2"))
    assert "hami_webhook_unreadable_objects" not in samples(generate_latest(collector))


def test_an_unreadable_object_of_any_watched_kind_is_counted() -> None:
    core = core_on(None)
    kinds = watched_kinds(core.vendors, disruption_budgets=True)
    for kind in kinds:
        core.caches.put(kind, {"metadata": {"name": "x", "labels": []}, "spec": []})
    found = samples(generate_latest(ClusterCollector(core.view, Showback(core.view))))
    unreadable = found["hami_webhook_unreadable_objects"]
    assert unreadable == {labelled(kind=kind.singular): 1 for kind in kinds}


def test_old_names_stand_beside_the_new_ones_if_they_are_asked_for() -> None:
    """Each old name has the values of its new one, under the old labels (docs/spec/core.md#12)."""
    new = GaugeMetricFamily(
        "hami_gpu_memory_allocated_bytes",
        "x",
        labels=("zone", "node", "device_uuid", "device_index", "device_cores", "device_type"),
    )
    new.add_metric(("vGPU", "n1", "GPU-0", "3", "100", "A100"), 7.0)
    percentage = GaugeMetricFamily(
        "hami_node_gpu_memory_allocated_ratio",
        "x",
        labels=("zone", "node", "device_uuid", "device_index", "device_type"),
    )
    percentage.add_metric(("vGPU", "n1", "GPU-0", "3", "A100"), 0.5)
    other = GaugeMetricFamily("hami_webhook_leader", "x", value=1)
    message = list(legacy_of([new, percentage, other]))
    assert [metric.name for metric in message] == ["GPUDeviceMemoryAllocated", "nodeGPUMemoryPercentage"]
    card = {"zone": "vGPU", "nodeid": "n1", "deviceuuid": "GPU-0", "deviceidx": "3"}
    assert message[0].samples[0].labels == card | {"devicecores": "100", "devicetype": "A100"}
    assert message[0].samples[0].value == 7.0
    assert message[1].samples[0].labels == card


def test_every_old_name_is_of_a_metric_that_is_served() -> None:
    core = core_on(None)
    served = {metric.name for metric in ClusterCollector(core.view, Showback(core.view)).collect()}
    assert OLD_NAMES.keys() <= served


def test_the_keys_of_other_schedulers_are_counted_in_their_own_units() -> None:
    key = "limits.volcano.sh/vgpu-memory"
    limit = {"metadata": {"name": "v", "namespace": "team-a"}, "spec": {"hard": {key: "9"}}, "status": {}}
    with_limits = pod("p", container("a", {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 7}), uid="v1")
    chart = enabled_vendors(builtin_device_config().config)
    found = scrape((Kind.RESOURCE_QUOTAS, limit), (Kind.PODS, with_limits), vendors=chart)
    counted = {dict(labels)["quota_name"]: value for labels, value in found["hami_resource_quota_used"].items()}
    assert counted == {"volcano.sh/vgpu-memory": 7, "volcano.sh/vgpu-number": 1}
