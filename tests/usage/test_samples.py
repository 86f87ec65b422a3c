"""Figures from what nodes' monitors say, which may be anything."""

from __future__ import annotations

import pytest

from hami_webhook.usage.figures import MeasuredCard, MeasuredContainer, MeasuredDevice
from hami_webhook.usage.samples import measured, read_text

NOW = 1_000_000.0
MIB = 1 << 20
OF = 'zone="vGPU",namespace="team-a",pod="p",container="c"'
CARD = 'zone="vGPU",node="n1",device_index="0",device_uuid="GPU-0",device_type="NVIDIA-A"'
TEXT = f"""# HELP hami_vgpu_memory_used_bytes Memory of a card that a container uses.
# TYPE hami_vgpu_memory_used_bytes gauge
hami_vgpu_memory_used_bytes{{{OF},vdevice_index="0",device_uuid="GPU-0"}} {3 * MIB}
hami_vgpu_memory_used_bytes{{{OF},vdevice_index="1",device_uuid="GPU-1"}} {5 * MIB}
hami_vgpu_memory_limit_bytes{{{OF},vdevice_index="0",device_uuid="GPU-0"}} {8 * MIB}
hami_container_device_utilization_ratio{{{OF},vdevice_index="0",device_uuid="GPU-0"}} 40
hami_webhook_container_idle_seconds{{{OF}}} 90
hami_host_gpu_memory_used_bytes{{{CARD}}} {MIB * 7}
hami_host_gpu_power_usage_watts{{{CARD}}} 61.5
process_resident_memory_bytes 1
"""


def test_pods_and_cards_have_the_figures_that_a_node_says() -> None:
    found = measured(read_text(TEXT), NOW)
    (pod,) = found.pods.values()
    devices = [MeasuredDevice("GPU-0", 3, 8, 40), MeasuredDevice("GPU-1", 5)]
    assert pod.containers == [MeasuredContainer("c", devices, NOW - 90)]
    assert (pod.memory, pod.cores, pod.idle_since(1.0)) == (8, 40, NOW - 90)
    assert found.cards == {("n1", "GPU-0"): MeasuredCard("GPU-0", "NVIDIA-A", memory=7, power=61.5)}


@pytest.mark.parametrize(
    ("memory", "cores", "unused"),
    [(8, 0, True), (1024 + 3, 0, True), (1024 + 4, 0, False), (8, 1, False), (8, None, False)],
    ids=["nothing", "what the driver takes", "somebody without HAMi-core", "it computes", "MIG"],
)
def test_a_pod_that_nothing_is_said_of_used_nothing_if_its_cards_are_unused(
    memory: int, cores: int | None, unused: bool
) -> None:
    text = TEXT.replace(f"{MIB * 7}", f"{MIB * memory}")
    text += "" if cores is None else f"hami_host_gpu_utilization_ratio{{{CARD}}} {cores}\n"
    found = measured(read_text(text), NOW)
    silent = found.pod("team-a", "other", "n1", ["GPU-0"])
    assert (silent is not None and silent.idle_since(5.0) == 5.0) == unused
    for node, uuids in (("n2", ["GPU-0"]), ("n1", ["GPU-0", "GPU-1"]), ("n1", [])):
        assert found.pod("team-a", "other", node, uuids) is None


def test_hamis_own_monitor_says_when_a_container_last_computed() -> None:
    text = TEXT.replace("hami_webhook_container_idle_seconds", "hami_container_last_kernel_elapsed_seconds")
    (pod,) = measured(read_text(text), NOW).pods.values()
    assert pod.idle_since(None) == NOW - 90


def test_a_container_that_nothing_is_said_of_leaves_its_pod_unknown() -> None:
    (pod,) = measured(read_text(TEXT.replace("hami_webhook_container_idle", "x")), NOW).pods.values()
    assert pod.idle_since(5.0) is None


@pytest.mark.parametrize(
    "line",
    [
        f"hami_vgpu_memory_used_bytes{{{OF}}} NaN",
        f"hami_vgpu_memory_used_bytes{{{OF}}} +Inf",
        f"hami_vgpu_memory_used_bytes{{{OF}}} -5",
        f"hami_vgpu_memory_used_bytes{{{OF}}} 1e300",
        f"hami_vgpu_memory_used_bytes{{{OF}}} five",
        f"hami_vgpu_memory_used_bytes{{{OF}",
        "hami_vgpu_memory_used_bytes",
        f"hami_other{{{OF}}} 1",
        "<html>",
    ],
)
def test_what_makes_no_sense_is_left_out(line: str) -> None:
    assert measured(read_text(line), NOW).pods == {}


@pytest.mark.parametrize(
    "labels", ["a" * 100_000, 'a="\\' * 100_000, 'a="' + "\\a" * 100_000, "} " * 100_000, "a" * 4000]
)
def test_a_line_that_is_hard_to_read_takes_a_bounded_number_of_steps(labels: str) -> None:
    """A node that wrote 8 MiB of such lines would otherwise keep the reader busy for hours."""
    lines = [f"hami_vgpu_memory_used_bytes{{{labels}}} 1"] * 200
    assert measured(read_text("\n".join(lines)), NOW).pods == {}


def test_labels_are_read_as_they_are_escaped() -> None:
    text = TEXT.replace('pod="p"', r'pod="a\"b\\n\nc"')
    assert [name for _, name in measured(read_text(text), NOW).pods] == ['a"b\\n\nc']


def test_labels_that_prometheus_renamed_are_the_metrics_own() -> None:
    text = TEXT.replace('pod="p"', 'pod="hami-webhook-node-x",exported_pod="p"')
    assert ("team-a", "p") in measured(read_text(text), NOW).pods
