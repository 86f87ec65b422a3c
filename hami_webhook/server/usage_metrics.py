"""The metrics of what is used on a node, under the names of HAMi's vGPUmonitor (docs/spec/hami-core.md#4).

A node has thousands of samples with the same few labels, so the text is written here: through prometheus_client it
would take ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from hami_webhook.devices.unhealthy_cards import UnhealthyCard
from hami_webhook.node.cards import CardMetrics
from hami_webhook.node.monitor import ContainerMetrics, NodeMetrics
from hami_webhook.node.region import DeviceUse
from hami_webhook.server.exposition import ZONE, Family, labels_text

_Sample = tuple[str, float | None]
"""The labels as text, and the value, None where there is none."""
_CARD = ("zone", "node", "device_index", "device_uuid", "device_type")
_DEVICE = ("zone", "namespace", "pod", "container", "vdevice_index", "device_uuid")
_INSTANCE = (*_DEVICE, "mig_uuid", "profile", "gpu_instance_id", "compute_instance_id")
OLD_LABELS = {
    "node": "nodeid",
    "device_index": "deviceidx",
    "device_uuid": "deviceuuid",
    "device_type": "devicetype",
    "namespace": "podnamespace",
    "pod": "podname",
    "container": "ctrname",
    "vdevice_index": "vdeviceid",
    "gpu_instance_id": "instanceid",
}
"""Labels of the metrics of HAMi up to 2.9."""


class _Device(NamedTuple):
    """A device of a container: its labels as text, what is used of it, seconds since the container last computed."""

    labels: str
    use: DeviceUse
    elapsed: float | None


_CARDS: Sequence[tuple[Family, Callable[[CardMetrics], float | None]]] = (
    (
        Family("hami_host_gpu_memory_used_bytes", "Memory of a card that is used.", _CARD),
        lambda card: card.memory,
    ),
    (
        Family("hami_host_gpu_utilization_ratio", "Percent of the time in which a card computed.", _CARD),
        lambda card: card.utilisation,
    ),
    (
        Family(
            "hami_host_gpu_memory_controller_utilization_ratio",
            "Percent of the time in which a card's memory was read or written.",
            ("zone", "device_index", "device_uuid", "device_type"),
        ),
        lambda card: card.memory_controller,
    ),
    (
        Family("hami_host_gpu_temperature_celsius", "Temperature of a card.", _CARD),
        lambda card: card.temperature,
    ),
    (
        Family("hami_host_gpu_power_usage_watts", "Power that a card takes.", _CARD),
        lambda card: card.power,
    ),
)
_DEVICES: Sequence[tuple[Family, Callable[[_Device], float | None]]] = (
    (
        Family("hami_vgpu_memory_used_bytes", "Memory of a card that a container uses.", _DEVICE),
        lambda device: device.use.total,
    ),
    (
        Family("hami_vgpu_memory_limit_bytes", "Memory of a card that a container may use; 0: no limit.", _DEVICE),
        lambda device: device.use.limit,
    ),
    (
        Family("hami_container_device_memory_bytes", "Memory of a card that a container uses.", _DEVICE),
        lambda device: device.use.total,
    ),
    (
        Family("hami_container_device_utilization_ratio", "Percent of a card's SMs that a container uses.", _DEVICE),
        lambda device: device.use.utilisation,
    ),
    (
        Family(
            "hami_container_last_kernel_elapsed_seconds", "Time since a container last computed on a card.", _DEVICE
        ),
        lambda device: device.elapsed,
    ),
    (
        Family("hami_vgpu_memory_context_bytes", "Memory that a container uses for CUDA's contexts.", _DEVICE),
        lambda device: device.use.context,
    ),
    (
        Family("hami_vgpu_memory_module_bytes", "Memory that a container uses for modules.", _DEVICE),
        lambda device: device.use.module,
    ),
    (
        Family("hami_vgpu_memory_buffer_bytes", "Memory that a container uses for data.", _DEVICE),
        lambda device: device.use.data,
    ),
)
_INSTANCES = Family("hami_mig_device_info", "1 for a MIG instance that a container has.", _INSTANCE)
_IDLE = Family(
    "hami_webhook_container_idle_seconds",
    "For how long a container hasn't computed on any card.",
    ("zone", "namespace", "pod", "container"),
)
_USED = ("namespace", "vendor", "model", "state")
_USED_CARDS = Family(
    "hami_webhook_showback_used_card_seconds",
    "Seconds in which containers computed on a card, beside those in which they held it.",
    _USED,
    is_counter=True,
)
_USED_MEMORY = Family(
    "hami_webhook_showback_used_memory_mib_seconds",
    "MiB of cards that containers used, times seconds.",
    _USED,
    is_counter=True,
)
_UNHEALTHY = Family(
    "hami_webhook_card_unhealthy", "1 for a cause for which a card gets no new pods.", ("node", "device_uuid", "cause")
)
_CONTAINERS = Family("hami_webhook_monitored_containers", "Containers by whether their region can be read.", ("state",))

OLD_NAMES: Mapping[str, str] = {
    "hami_host_gpu_memory_used_bytes": "HostGPUMemoryUsage",
    "hami_host_gpu_utilization_ratio": "HostCoreUtilization",
    "hami_vgpu_memory_used_bytes": "vGPU_device_memory_usage_in_bytes",
    "hami_vgpu_memory_limit_bytes": "vGPU_device_memory_limit_in_bytes",
    "hami_container_device_utilization_ratio": "Device_utilization_desc_of_container",
    "hami_container_last_kernel_elapsed_seconds": "Device_last_kernel_of_container",
}
"""Today's name to the old one, of those that differ by their labels' names alone."""
_OLD_DEVICE = tuple(OLD_LABELS.get(label, label) for label in _DEVICE)
_OLD_MEMORY = Family(
    "Device_memory_desc_of_container",
    "Memory of a card that a container uses, by purpose.",
    (*_OLD_DEVICE, "context", "module", "data", "offset"),
)
_OLD_INSTANCES = Family("MigInfo", "1 for a MIG instance that a container has.", (*_OLD_DEVICE, "instanceid"))


def usage_text(use: NodeMetrics, node: str, *, legacy: bool) -> Iterator[bytes]:
    """What is used on the node of this name, in Prometheus' text format; `legacy`: under the old names too."""
    devices = list(_devices(use, _DEVICE))
    for card_family, of_card in _CARDS:
        yield _written(card_family, _cards(use, node, card_family, of_card))
    for family, of_device in _DEVICES:
        yield _written(family, ((device.labels, of_device(device)) for device in devices))
    yield _written(_IDLE, _idle(use))
    owners = [
        (labels_text(_USED, (each.namespace, "NVIDIA", each.model, "placed")), used)
        for each, used in use.used_seconds.items()
    ]
    yield _written(_USED_CARDS, ((labels, used.cards) for labels, used in owners))
    yield _written(_USED_MEMORY, ((labels, used.memory) for labels, used in owners))
    yield _written(_INSTANCES, _instances(use, _INSTANCES))
    states = (("read", len(use.containers)), ("refused", use.refused))
    yield _written(_CONTAINERS, ((labels_text(_CONTAINERS.labels, (state,)), number) for state, number in states))
    if legacy:
        yield from _old_text(use, node)


def unhealthy_text(cards: Mapping[str, UnhealthyCard], node: str) -> bytes:
    """The unhealthy cards of the node of this name, in Prometheus' text format."""
    labels = ((node, uuid, cause) for uuid, card in sorted(cards.items()) for cause in card.causes)
    return _written(_UNHEALTHY, ((labels_text(_UNHEALTHY.labels, each), 1) for each in labels))


def _old_text(use: NodeMetrics, node: str) -> Iterator[bytes]:
    devices = list(_devices(use, _OLD_DEVICE))
    for card_family, of_card in _CARDS:
        if card_family.name in OLD_NAMES:
            yield _written(_old(card_family), _cards(use, node, card_family, of_card, OLD_LABELS))
    for family, of_device in _DEVICES:
        if family.name in OLD_NAMES:
            yield _written(_old(family), ((device.labels, of_device(device)) for device in devices))
    yield _written(_OLD_MEMORY, _old_memory(use))
    yield _written(_OLD_INSTANCES, _instances(use, _OLD_INSTANCES))


def _old(family: Family) -> Family:
    """A metric under its old name."""
    labels = [OLD_LABELS.get(label, label) for label in family.labels]
    return Family(OLD_NAMES[family.name], family.documentation, labels)


def _cards(
    use: NodeMetrics,
    node: str,
    family: Family,
    value: Callable[[CardMetrics], float | None],
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[_Sample]:
    names = [renamed.get(label, label) for label in family.labels]
    for card in use.cards:
        known = dict(zip(_CARD, (ZONE, node, str(card.index), card.uuid, f"NVIDIA-{card.name}"), strict=True))
        yield labels_text(names, [known[label] for label in family.labels]), value(card)


def _devices(use: NodeMetrics, names: Sequence[str]) -> Iterator[_Device]:
    for container in use.containers:
        last = container.region.last_kernel
        elapsed = max(0, int(use.now) - last) if last else None
        for device in container.region.devices:
            yield _Device(labels_text(names, _of_device(container, device)), device, elapsed)


def _idle(use: NodeMetrics) -> Iterator[_Sample]:
    for each in use.containers:
        labels = labels_text(_IDLE.labels, (ZONE, each.pod.namespace, each.pod.name, each.container))
        yield labels, round(use.now - each.last_used, 1)


def _of_device(container: ContainerMetrics, device: DeviceUse) -> tuple[str, ...]:
    pod = container.pod
    return ZONE, pod.namespace, pod.name, container.container, str(device.index), device.uuid


def _old_memory(use: NodeMetrics) -> Iterator[_Sample]:
    for container in use.containers:
        for device in container.region.devices:
            parts = map(str, (device.context, device.module, device.data, device.offset))
            yield labels_text(_OLD_MEMORY.labels, (*_of_device(container, device), *parts)), device.total


def _instances(use: NodeMetrics, family: Family) -> Iterator[_Sample]:
    for pod in use.pods:
        for each in pod.instances:
            device = (ZONE, pod.namespace, pod.name, each.container, str(each.device_index), each.device_uuid)
            instance = (each.uuid, each.profile, each.gpu_instance, each.compute_instance)
            more = instance if family is _INSTANCES else (each.gpu_instance,)
            yield labels_text(family.labels, (*device, *more)), 1


def _written(family: Family, samples: Iterable[_Sample]) -> bytes:
    """A metric with those of its samples that have a value."""
    lines = (f"{family.sample_name}{labels} {value}\n" for labels, value in samples if value is not None)
    return "".join((family.head, *lines)).encode()
