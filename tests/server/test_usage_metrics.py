"""The metrics of a node's monitor: every name, label and value, of what programs write that stand in for HAMi-core."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest
from node.monitored import NOW, MonitoredNode, pod
from node.regions import Container, compile_program, region
from prometheus_client.parser import text_string_to_metric_families

from hami_webhook.devices.unhealthy_cards import UnhealthyCard
from hami_webhook.node.cards import CardMetrics
from hami_webhook.node.node_pods import MIG_ALLOCATIONS
from hami_webhook.node.region import V0, V1_1, V1_2
from hami_webhook.server.usage_metrics import unhealthy_text, usage_text

GIB = 1 << 30
Series = Mapping[tuple[tuple[str, str], ...], float]
LATE = 1_699_999_958
"""When the last kernel ran, 42 seconds ago."""


async def scraped(node: MonitoredNode, *, legacy: bool = False) -> dict[str, Series]:
    """The series by metric, each by its labels."""
    text = b"".join(usage_text(await node.monitor.look(), "gpu-1", legacy=legacy)).decode()
    return {
        family.name: {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(text)
    }


def series(labels: Mapping[str, str], value: float) -> Series:
    return {tuple(sorted({"zone": "vGPU", **labels}.items())): value}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("fakevgpu"))


async def test_what_containers_use_under_both_sets_of_names(program: Path, tmp_path: Path) -> None:
    node = MonitoredNode(tmp_path)
    node.put(pod("p0", "main"), pod("p1", "main", "second", init=["init", "proxy"], namespace="team-b"))
    places = {("p0", "main"): V0, ("p1", "second"): V1_1, ("p1", "proxy"): V1_2}
    expected: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}

    def expect(name: str, labels: Mapping[str, str], value: float) -> None:
        expected.setdefault(name, {}).update(series(labels, value))

    for number, ((name, container), layout) in enumerate(places.items()):
        file = tmp_path / f"uid-{name}_{container}" / "ab12.cache"
        with Container(program, file, layout, devices=16, processes=3) as running:
            if layout is not V0:
                running.tell(f"kernel {LATE}")
            for device in range(16):
                uuid, sm = f"GPU-{number}-{device}", device + number
                running.tell(f"uuid {device} {uuid}", f"limit {device} {(device + 1) * GIB}")
                for process in range(3):
                    running.use(
                        process, device, context=GIB + device, module=5, data=100 + process, total=2 * GIB, sm=sm
                    )
                context, module, data, total = 3 * (GIB + device), 15, 303, 6 * GIB
                team = "team-b" if name == "p1" else "team-a"
                now = {
                    "namespace": team,
                    "pod": name,
                    "container": container,
                    "vdevice_index": str(device),
                    "device_uuid": uuid,
                }
                old = {
                    "podnamespace": team,
                    "podname": name,
                    "ctrname": container,
                    "vdeviceid": str(device),
                    "deviceuuid": uuid,
                }
                offset = total - context - module - data
                parts = {"context": str(context), "module": str(module), "data": str(data), "offset": str(offset)}
                expect("hami_vgpu_memory_used_bytes", now, total)
                expect("vGPU_device_memory_usage_in_bytes", old, total)
                expect("hami_vgpu_memory_limit_bytes", now, (device + 1) * GIB)
                expect("vGPU_device_memory_limit_in_bytes", old, (device + 1) * GIB)
                expect("hami_container_device_memory_bytes", now, total)
                expect("Device_memory_desc_of_container", {**old, **parts}, total)
                expect("hami_container_device_utilization_ratio", now, 3 * sm)
                expect("Device_utilization_desc_of_container", old, 3 * sm)
                expect("hami_vgpu_memory_context_bytes", now, context)
                expect("hami_vgpu_memory_module_bytes", now, module)
                expect("hami_vgpu_memory_buffer_bytes", now, data)
                if layout is not V0:
                    expect("hami_container_last_kernel_elapsed_seconds", now, 42)
                    expect("Device_last_kernel_of_container", old, 42)
    found = await scraped(node, legacy=True)
    assert {name: found[name] for name in expected} == expected
    assert found["hami_webhook_monitored_containers"] == {(("state", "read"),): 3, (("state", "refused"),): 0}
    node.now += 2
    assert set(await scraped(node)) == {name for name in found if name.startswith("hami_")}


def test_each_cause_for_which_a_card_is_unhealthy_is_a_series() -> None:
    cards = {"G": UnhealthyCard(("ecc-double-bit", "xid-79"))}
    (family,) = text_string_to_metric_families(unhealthy_text(cards, "gpu-1").decode())
    assert (family.name, [(sample.labels, sample.value) for sample in family.samples]) == (
        "hami_webhook_card_unhealthy",
        [({"node": "gpu-1", "device_uuid": "G", "cause": cause}, 1) for cause in cards["G"].causes],
    )


async def test_what_is_used_of_cards_under_both_sets_of_names(tmp_path: Path) -> None:
    node = MonitoredNode(tmp_path)
    node.cards = [
        CardMetrics(0, "GPU-a", "A100-SXM4-40GB", 7 * GIB, 93, 41, 66, 254.5),
        CardMetrics(1, "GPU-b", "A100-SXM4-40GB", None, None, None, None, None),
        CardMetrics(3, "GPU-c", 'odd "name"\\', None, 5, 2, None, None),
    ]
    found = await scraped(node, legacy=True)
    card = {"node": "gpu-1", "device_index": "0", "device_uuid": "GPU-a", "device_type": "NVIDIA-A100-SXM4-40GB"}
    other = {"node": "gpu-1", "device_index": "3", "device_uuid": "GPU-c", "device_type": 'NVIDIA-odd "name"\\'}
    old = {"nodeid": "gpu-1", "deviceidx": "0", "deviceuuid": "GPU-a", "devicetype": "NVIDIA-A100-SXM4-40GB"}
    old_other = {"nodeid": "gpu-1", "deviceidx": "3", "deviceuuid": "GPU-c", "devicetype": 'NVIDIA-odd "name"\\'}
    without_node = [{name: value for name, value in labels.items() if name != "node"} for labels in (card, other)]
    controller = {**series(without_node[0], 41), **series(without_node[1], 2)}
    assert found["hami_host_gpu_memory_used_bytes"] == series(card, 7 * GIB)
    assert found["HostGPUMemoryUsage"] == series(old, 7 * GIB)
    assert found["hami_host_gpu_utilization_ratio"] == {**series(card, 93), **series(other, 5)}
    assert found["HostCoreUtilization"] == {**series(old, 93), **series(old_other, 5)}
    assert found["hami_host_gpu_memory_controller_utilization_ratio"] == controller
    assert found["hami_host_gpu_temperature_celsius"] == series(card, 66)
    assert found["hami_host_gpu_power_usage_watts"] == series(card, 254.5)


async def test_mig_instances_under_both_sets_of_names(tmp_path: Path) -> None:
    node = MonitoredNode(tmp_path)
    made = {
        "containerIndex": 1,
        "deviceIndex": 0,
        "gpuUUID": "GPU-a",
        "migUUID": "MIG-1",
        "profile": "1g.10gb",
        "gpuInstanceID": 7,
        "computeInstanceID": 0,
    }
    waiting = {"containerIndex": 0, "gpuUUID": "GPU-a", "profile": "1g.10gb"}
    notes = {MIG_ALLOCATIONS: orjson.dumps([made, waiting, {**made, "containerIndex": 9}]).decode()}
    spoilt = {MIG_ALLOCATIONS: '[{"containerIndex": "none"}]'}
    node.put(pod("p", "main", init=["init"], annotations=notes), pod("q", "main", annotations=spoilt))
    found = await scraped(node, legacy=True)
    now = {"namespace": "team-a", "pod": "p", "container": "main", "vdevice_index": "0", "device_uuid": "GPU-a"}
    old = {"podnamespace": "team-a", "podname": "p", "ctrname": "main", "vdeviceid": "0", "deviceuuid": "GPU-a"}
    instance = {"mig_uuid": "MIG-1", "profile": "1g.10gb", "gpu_instance_id": "7", "compute_instance_id": "0"}
    assert found["hami_mig_device_info"] == series({**now, **instance}, 1)
    assert found["MigInfo"] == series({**old, "instanceid": "7"}, 1)


async def test_a_kernel_in_the_future_ran_just_now(program: Path, tmp_path: Path) -> None:
    node = MonitoredNode(tmp_path)
    node.put(pod("p", "main"))
    with Container(program, tmp_path / "uid-p_main" / "a.cache", V1_1) as running:
        running.tell("uuid 0 GPU-0", f"kernel {int(NOW) + 1000}")
        found = await scraped(node)
    assert list(found["hami_container_last_kernel_elapsed_seconds"].values()) == [0]


async def test_no_text_of_a_container_makes_another_series(tmp_path: Path) -> None:
    node = MonitoredNode(tmp_path)
    node.put(pod("p", "main"))
    node.region("p", "main", region(uuids=[b'"} 1 x{a="', b"\\", b'"\\"', b"GPU\nx"]))
    found = await scraped(node)
    uuids = [dict(labels)["device_uuid"] for labels in found["hami_vgpu_memory_used_bytes"]]
    assert uuids == ['"} 1 x{a="', "\\", '"\\"']
