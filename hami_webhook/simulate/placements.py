"""Placements in the form of the result: our own, and those that a run predicts for other schedulers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from hami_webhook.devices.foreign_scheduler import ForeignScheduler, NodeLister, Prediction
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import ContainerKind, Node, Pod
from hami_webhook.scheduling.placer import Placement


def places_for(scheduler: ForeignScheduler, pod: Pod) -> bool:
    """Whether the other scheduler places the pod, so that a run predicts its decision."""
    return scheduler.predicts and scheduler.named_by(pod) and scheduler.scheduler_of(pod) in scheduler.scheduler_names


class SelectedNodes:
    """A NodeLister of some nodes of a cluster."""

    def __init__(self, node_lister: NodeLister, nodes: Collection[str]) -> None:
        self._node_lister = node_lister
        self._names = frozenset(nodes)

    @property
    def now(self) -> float:
        return self._node_lister.now

    @property
    def version(self) -> int:
        return self._node_lister.version

    def nodes(self) -> Iterator[Node]:
        return (node for node in self._node_lister.nodes() if node.name in self._names)

    def node(self, name: str) -> Node | None:
        return self._node_lister.node(name)

    def foreign_pods_on(self, node: str) -> Sequence[Pod]:
        return tuple(self._node_lister.foreign_pods_on(node))

    def device(self, node: str) -> Mapping[str, Any] | None:
        return self._node_lister.device(node)


def shown_placement(pod: Pod, placement: Placement, vendors: Vendors) -> dict[str, Any]:
    """Our own placement."""
    devices = [
        [
            _device(
                vendors[allocation.vendor].known_as,
                device.uuid,
                device.share.memory,
                device.share.cores,
                device.share.profile,
            )
            for allocation in row.values()
            for device in allocation.devices
        ]
        for row in placement.rows
    ]
    return _shown(pod, placement.node, placement.score, devices, placement.annotations)


def shown_prediction(pod: Pod, predicted: Prediction, scheduler: ForeignScheduler) -> dict[str, Any]:
    """The predicted placement of another scheduler."""
    devices = [
        [
            _device(scheduler.key, part.uuid, part.memory, part.cores, part.profile or None)
            for part in predicted.parts.get(index, ())
        ]
        for index in range(len(pod.containers))
    ]
    return _shown(pod, predicted.node, predicted.score, devices, predicted.annotations)


def _device(vendor: str, uuid: str, memory: int, cores: int, profile: str | None) -> dict[str, Any]:
    return {"vendor": vendor, "uuid": uuid, "memory": memory, "cores": cores, "profile": profile}


def _shown(
    pod: Pod, node: str, score: float, devices: Sequence[Sequence[Mapping[str, Any]]], annotations: Mapping[str, str]
) -> dict[str, Any]:
    """A placement; `devices` are those of each container, init containers first."""
    containers = [
        {"name": container.name, "init": container.kind is not ContainerKind.APP, "devices": list(found)}
        for container, found in zip(pod.containers, devices, strict=True)
    ]
    return {
        "node": node,
        "score": round(score, 6),
        "containers": containers,
        "annotations": dict(sorted(annotations.items())),
    }
