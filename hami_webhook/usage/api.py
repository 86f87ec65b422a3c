"""The API `usage.hami.io`: its objects, and reading them with the rights of who asks (docs/used.md#the-api).

The API server decides by RBAC who reads the pods of a namespace, and the nodes, as with `metrics.k8s.io`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from hami_webhook.cluster.api import JSON, ClusterError, Forbidden, NotFound
from hami_webhook.usage.figures import Measured, MeasuredCard, MeasuredContainer, MeasuredDevice, MeasuredPod

GROUP, VERSION = "usage.hami.io", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
PREFIX = f"/apis/{API_VERSION}"
_MEBIBYTE = 1 << 20


class Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object of the API."""


class DeviceUsage(Struct, frozen=True):
    uuid: str
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    cores_percent: int = 0


class ContainerUsage(Struct, frozen=True):
    name: str
    devices: tuple[DeviceUsage, ...] = ()
    last_used: datetime | None = None


class Meta(Struct, frozen=True):
    name: str
    namespace: str = ""


class PodUsage(Struct, frozen=True, tag_field="kind", tag="PodUsage"):
    """What a pod uses at `timestamp`; one that has used no card has no containers."""

    metadata: Meta
    timestamp: datetime
    containers: tuple[ContainerUsage, ...] = ()
    api_version: str = ""


class CardUsage(Struct, frozen=True):
    uuid: str
    model: str = ""
    memory_bytes: int | None = None
    cores_percent: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None


class NodeUsage(Struct, frozen=True, tag_field="kind", tag="NodeUsage"):
    """What is used of a node's cards at `timestamp`."""

    metadata: Meta
    timestamp: datetime
    cards: tuple[CardUsage, ...] = ()
    api_version: str = ""


class _Pods(Struct, frozen=True):
    items: tuple[PodUsage, ...] = ()


class _Nodes(Struct, frozen=True):
    items: tuple[NodeUsage, ...] = ()


def pod_usage(pod: MeasuredPod, at: float) -> PodUsage:
    """The object of a pod that was measured then (Unix seconds)."""
    containers = tuple(
        ContainerUsage(each.name, tuple(_device(device) for device in each.devices), _time(each.last_used))
        for each in pod.containers
    )
    return PodUsage(Meta(pod.name, pod.namespace), datetime.fromtimestamp(at, UTC), containers, API_VERSION)


def node_usage(node: str, cards: Sequence[MeasuredCard], at: float) -> NodeUsage:
    """The object of a node that was measured then (Unix seconds)."""
    return NodeUsage(Meta(node), datetime.fromtimestamp(at, UTC), tuple(map(_card, cards)), API_VERSION)


def _device(device: MeasuredDevice) -> DeviceUsage:
    return DeviceUsage(device.uuid, device.memory * _MEBIBYTE, device.limit * _MEBIBYTE, device.cores)


def _card(card: MeasuredCard) -> CardUsage:
    memory = None if card.memory is None else card.memory * _MEBIBYTE
    return CardUsage(card.uuid, card.model, memory, card.cores, card.temperature, card.power)


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(int(seconds), UTC)


class Caller(Protocol):
    """Who can ask an API server."""

    async def call(
        self, method: str, path: str, body: JSON | None = None, query: Mapping[str, str] | None = None
    ) -> JSON:
        """One request and its JSON answer. Raises `ClusterError`."""
        ...


PodUsages = Callable[[str], Awaitable[Sequence[PodUsage]]]
"""What the API says of the pods of a namespace, of all if it is empty; raises `ClusterError`."""


async def read_pod_usages(cluster: Caller, namespace: str) -> Sequence[PodUsage]:
    """What the API says of the pods of a namespace, of all if it is empty. Raises `ClusterError`."""
    found = await _read(cluster, _pods_path(namespace), _Pods)
    if isinstance(found, _Pods):
        return found.items
    assert isinstance(found, ClusterError)
    raise found


async def read_measured(cluster: Caller, namespace: str) -> Measured:
    """What the API says of all nodes and of the pods of a namespace, of all if it is empty; as far as it may be read.

    Where it can't be read, `why` is a sentence; no error is raised.
    """
    found = await asyncio.gather(
        _read(cluster, _pods_path(namespace), _Pods), _read(cluster, f"{PREFIX}/nodes", _Nodes)
    )
    pods, nodes = found
    cards: dict[tuple[str, str], MeasuredCard] = {}
    if isinstance(nodes, _Nodes):
        for node in nodes.items:
            for card in node.cards:
                cards[node.metadata.name, card.uuid] = _measured_card(card)
    if isinstance(pods, _Pods):
        return Measured({(pod.metadata.namespace, pod.metadata.name): _measured_pod(pod) for pod in pods.items}, cards)
    return Measured({}, cards, why=_sentence(pods), absent=isinstance(pods, NotFound | Forbidden))


def _pods_path(namespace: str) -> str:
    return f"{PREFIX}/namespaces/{namespace}/pods" if namespace else f"{PREFIX}/pods"


async def _read(cluster: Caller, path: str, kind: type[_Pods] | type[_Nodes]) -> _Pods | _Nodes | ClusterError:
    try:
        return msgspec.convert(await cluster.call("GET", path), kind)
    except msgspec.ValidationError as error:
        return ClusterError(f"{path}: {error}")
    except ClusterError as error:
        return error


def _sentence(error: object) -> str:
    if isinstance(error, NotFound):
        return (
            f"the measured use of pods isn't known: the cluster doesn't serve {GROUP} (the chart's "
            "usage.enabled), and --prometheus URL isn't given"
        )
    if isinstance(error, Forbidden):
        return (
            f"your rights don't show the measured use of pods. You need list of pods.{GROUP}, which the role view "
            "has where the cluster serves that, or a Prometheus server (--prometheus URL)"
        )
    return f"the measured use of pods isn't known: {GROUP}: {error}"


def _measured_pod(pod: PodUsage) -> MeasuredPod:
    containers = [
        MeasuredContainer(
            each.name,
            [
                MeasuredDevice(
                    device.uuid,
                    device.memory_bytes // _MEBIBYTE,
                    device.memory_limit_bytes // _MEBIBYTE,
                    device.cores_percent,
                )
                for device in each.devices
            ],
            each.last_used.timestamp() if each.last_used is not None else None,
        )
        for each in pod.containers
    ]
    return MeasuredPod(pod.metadata.namespace, pod.metadata.name, containers)


def _measured_card(card: CardUsage) -> MeasuredCard:
    memory = None if card.memory_bytes is None else card.memory_bytes // _MEBIBYTE
    return MeasuredCard(card.uuid, card.model, memory, card.cores_percent, card.temperature_celsius, card.power_watts)
