"""The pods of one node, as far as its monitor asks for them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

import msgspec

from hami_webhook.cluster.api import JSON, Kind, WatchType
from hami_webhook.cluster.informer import Change, Replaced
from hami_webhook.cluster.kept_fields import decode_with
from hami_webhook.devices.codecs import BadAnnotation, decode_pod_devices
from hami_webhook.kube import wire
from hami_webhook.node.region_files import ContainerKey
from hami_webhook.usage.bound_pods import DEVICES

logger = logging.getLogger(__name__)

MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
"""What the vendor `nvidia` writes and HAMi's device plugin completes. It isn't asked: see `link_scores.SCORES`."""
PRIORITY = "nvidia.com/priority"
"""HAMi's name for it, under which our manifests have it too."""
_HAMIS_MONITOR = "vgpu-monitor"
"""The name of the container in the pod of HAMi's device plugin."""


@dataclass(frozen=True, slots=True)
class MigInstanceUse:
    """A MIG instance that a container has: its parent's place in the allocation and UUID, and what it is."""

    container: str
    device_index: int
    device_uuid: str
    uuid: str
    profile: str
    gpu_instance: str
    compute_instance: str


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod of the node. `running`: its containers but those that ended, init containers first.

    `priorities` are those that containers declare, 0 is the highest. `claims` are the containers among them that have
    devices by ResourceClaims, with the names of these. `cards` are the UUIDs of the GPUs that it was allocated.
    """

    namespace: str
    name: str
    uid: str
    running: tuple[str, ...]
    priorities: Mapping[str, int]
    instances: tuple[MigInstanceUse, ...]
    has_hamis_monitor: bool
    claims: tuple[tuple[str, str], ...] = ()
    cards: frozenset[str] = frozenset()


class _ClaimUse(wire.Wire, frozen=True):
    name: str | None = None


class _Resources(wire.Resources, frozen=True):
    claims: tuple[_ClaimUse, ...] | None = None


class _Container(wire.ContainerObject, frozen=True):
    resources: _Resources | None = None


class _PodSpec(wire.PodSpec, frozen=True):
    containers: tuple[_Container, ...] | None = None
    init_containers: tuple[_Container, ...] | None = None


class _Pod(wire.PodObject, frozen=True):
    """A pod as the monitor reads it."""

    spec: _PodSpec | None = None


_DECODERS = {Kind.PODS: msgspec.json.Decoder(_Pod)}


def decode_monitored(kind: Kind, content: msgspec.Raw | bytes) -> JSON:
    """An object from its JSON text: of pods the fields that are read here."""
    return decode_with(kind, content, _DECODERS)


class NodePods:
    """The pods of this node, from an informer. `trusted_namespaces` are those that HAMi's own monitor may be in."""

    def __init__(self, trusted_namespaces: Collection[str]) -> None:
        self._trusted_namespaces = trusted_namespaces
        self._pods: dict[tuple[str, str], NodePod] = {}

    def handle(self, change: Change) -> None:
        """Follow a change."""
        if isinstance(change, Replaced):
            self._pods.clear()
            for obj in change.items:
                self._put(obj)
        elif change.type is WatchType.DELETED:
            self._pods.pop(_key(change.object), None)
        else:
            self._put(change.object)

    @property
    def pods(self) -> Collection[NodePod]:
        return self._pods.values()

    @property
    def hamis_monitor(self) -> str:
        """The pod that HAMi's own monitor runs in on this node, as NAMESPACE/NAME; empty if there is none."""
        return next((f"{pod.namespace}/{pod.name}" for pod in self.pods if pod.has_hamis_monitor), "")

    def containers(self) -> Iterator[tuple[ContainerKey, NodePod]]:
        """The running containers, the first of each pod first: a pod of many keeps no other pod's out."""
        for turn in zip_longest(*(pod.running for pod in self.pods)):
            for pod, container in zip(self.pods, turn, strict=True):
                if container is not None:
                    yield ContainerKey(pod.uid, container), pod

    def _put(self, obj: JSON) -> None:
        try:
            self._pods[_key(obj)] = self._pod(wire.convert(obj, _Pod, "pod"))
        except wire.MalformedObject as error:
            self._pods.pop(_key(obj), None)
            logger.warning("a pod of this node isn't monitored: %s", error)

    def _pod(self, pod: _Pod) -> NodePod:
        meta, spec, status = pod.metadata or wire.ObjectMeta(), pod.spec or _PodSpec(), pod.status or wire.PodStatus()
        containers = (*(spec.init_containers or ()), *(spec.containers or ()))
        names = [each.name or "" for each in containers]
        statuses = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        ended = {each.name for each in statuses if each.state is not None and each.state.terminated is not None}
        over = status.phase in ("Succeeded", "Failed")
        text = (meta.annotations or {}).get(MIG_ALLOCATIONS, "")
        running = () if over else tuple(name for name in names if name not in ended)
        return NodePod(
            meta.namespace or "",
            meta.name or "",
            meta.uid or "",
            running,
            {each.name or "": found for each in containers if (found := _priority(each)) is not None},
            () if over or not text else tuple(_instances(text, names)),
            meta.namespace in self._trusted_namespaces and _HAMIS_MONITOR in names and not over,
            tuple(each for each in _claims(spec, status) if each[0] in running),
            _cards((meta.annotations or {}).get(DEVICES, "")) if running else frozenset(),
        )


def _claims(spec: _PodSpec, status: wire.PodStatus) -> Iterator[tuple[str, str]]:
    """The containers that have devices by a claim, and the claim's name; init containers first."""
    generated = {each.name: each.resource_claim_name for each in status.resource_claim_statuses or ()}
    names = {each.name: each.resource_claim_name or generated.get(each.name) for each in spec.resource_claims or ()}
    for container in (*(spec.init_containers or ()), *(spec.containers or ())):
        for use in (container.resources.claims if container.resources is not None else None) or ():
            if claim := names.get(use.name):
                yield container.name or "", claim


def _cards(text: str) -> frozenset[str]:
    """The UUIDs in a pod's allocation; none if it can't be read."""
    try:
        return frozenset(entry.uuid for row in decode_pod_devices(text) for entry in row)
    except BadAnnotation:
        return frozenset()


def _priority(container: wire.ContainerObject) -> int | None:
    """What a container declares, None if it is no small number."""
    limits = container.resources.limits if container.resources is not None else None
    text = str((limits or {}).get(PRIORITY, ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


class _MigRecord(msgspec.Struct, frozen=True, gc=False):
    """An entry of the annotation; one that the device plugin didn't complete yet has no instance."""

    containerIndex: int = 0
    deviceIndex: int = 0
    gpuUUID: str = ""
    migUUID: str = ""
    profile: str = ""
    gpuInstanceID: int | str | None = None
    computeInstanceID: int | str | None = None


_RECORDS = msgspec.json.Decoder(list[_MigRecord])


def _instances(text: str, containers: list[str]) -> Iterator[MigInstanceUse]:
    """The MIG instances in a pod's annotation; none if it can't be read. Init containers count first."""
    try:
        records = _RECORDS.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return
    for record in records:
        made, index = (record.gpuInstanceID, record.computeInstanceID), record.containerIndex
        if record.migUUID and None not in made and 0 <= index < len(containers):
            yield MigInstanceUse(
                containers[index],
                record.deviceIndex,
                record.gpuUUID,
                record.migUUID,
                record.profile,
                str(made[0]),
                str(made[1]),
            )


def _key(obj: JSON) -> tuple[str, str]:
    return str(obj["metadata"].get("namespace", "")), str(obj["metadata"].get("name", ""))
