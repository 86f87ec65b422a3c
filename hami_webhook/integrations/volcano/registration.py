"""`volcano.sh/node-vgpu-register`: the cards of a node, and whether it takes part (docs/spec/volcano.md#3)."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from hami_webhook.devices.codecs import parse_bool
from hami_webhook.devices.foreign_scheduler import NodeLister
from hami_webhook.devices.handshake import ANSWER_WITHIN, handshake_time
from hami_webhook.devices.model import Device
from hami_webhook.devices.pod_preferences import MOST_LETTERS, ListRule
from hami_webhook.integrations.sections import VolcanoSection
from hami_webhook.integrations.volcano.annotation_keys import (
    HAMI_CORE,
    HANDSHAKE,
    MIG,
    REGISTER,
    mode_of,
    types_of,
    uuids_of,
)
from hami_webhook.integrations.volcano.geometry import Geometries, Geometry
from hami_webhook.kube.derived import DerivedValues
from hami_webhook.kube.objects import Node
from hami_webhook.kube.quantity import parse_whole


class VolcanoCard(Struct, frozen=True):
    """A registered card: memory in blocks; a number that can't be read, or is negative, is 0."""

    uuid: str
    slots: int
    memory: int
    type: str
    healthy: bool
    mode: str


_FIELDS = 6
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


def decode_cards(text: str) -> list[VolcanoCard]:
    """The cards of a registration; none where a card lacks fields, which makes the whole of it invalid."""
    pieces = [piece.split(",") for piece in text.split(":")] if ":" in text else []
    written = [fields for fields in pieces if len(fields) > 1]
    if any(len(fields) < _FIELDS for fields in written):
        return []
    return [
        VolcanoCard(uuid, _number(slots), _number(memory), model, parse_bool(health) is True, mode)
        for uuid, slots, memory, model, health, mode in (fields[:_FIELDS] for fields in written)
    ]


def _number(text: str) -> int:
    return max(0, int(text)) if _NUMBER.fullmatch(text) else 0


class Model(Struct, frozen=True):
    """Cards that differ in nothing but their UUIDs, as far as candidates matter: memory in blocks."""

    type: str
    memory: int
    geometry: Geometry | None


@dataclass(frozen=True, slots=True)
class Registration:
    """What a node's plugin registered, as Volcano reads it.

    `mode` is the node's; `offered`: the kubelet offers the three resources, without which the node takes no part;
    `models` are those of the healthy cards, of which there are `healthy`.
    """

    devices: tuple[Device, ...]
    mode: str
    offered: bool
    healthy: int
    models: frozenset[Model]
    by_uuid: Mapping[str, Device] = field(repr=False)


class ClusterCards(Struct, frozen=True):
    """The candidates of a pod in the whole cluster: the models of the healthy cards that its annotations admit.

    `most` is the largest number of healthy cards on a node of the right mode; None if there is no such node.
    """

    models: frozenset[Model]
    most: int | None

    def memories(self) -> Iterator[int]:
        """Blocks of each model."""
        return (model.memory for model in self.models)

    def geometries(self) -> Iterator[Geometry]:
        return (model.geometry for model in self.models if model.geometry is not None)


_SURVEYS = 256
"""As many looks at the cluster are remembered, each for other annotations."""


class Registry:
    """Reads nodes, each once; what was found of a cluster holds as long as no node changes."""

    def __init__(self, section: VolcanoSection) -> None:
        self.geometries = Geometries(section.mig_geometries)
        self._registrations: DerivedValues[Node, tuple[Registration | None]] = DerivedValues()
        self._models: dict[frozenset[Model], frozenset[Model]] = {}
        self._surveyed: tuple[weakref.ref[NodeLister], int] | None = None
        self._surveys: dict[tuple[str, ListRule, ListRule], ClusterCards] = {}
        self._offered = (section.resource_count_name, section.resource_core_name, section.resource_memory_name)

    def registration(self, node: Node) -> Registration | None:
        """What the node registered; None if that is nothing, or invalid."""
        return (self._registrations.get(node) or self._registrations.keep(node, (self._read(node),)))[0]

    def taking_part(self, node: Node, now: float) -> Registration | None:
        """What the node registered, if Volcano places pods on it at `now` (Unix seconds)."""
        found = self.registration(node)
        return found if found is not None and found.offered and not _gone(node, now) else None

    def filtered(self, node_lister: NodeLister, annotations: Mapping[str, str]) -> ClusterCards:
        """Look at every node for what a pod with these annotations might get."""
        requested = (mode_of(annotations), uuids_of(annotations), types_of(annotations))
        known = self._surveyed
        if (
            known is None
            or known[0]() is not node_lister
            or known[1] != node_lister.version
            or len(self._surveys) >= _SURVEYS
        ):
            self._surveyed, self._surveys = (weakref.ref(node_lister), node_lister.version), {}
        found = self._surveys.get(requested)
        if found is None:
            found, lasts = self._look(node_lister, *requested)
            mode, uuids, types = requested
            if lasts and len(mode) + uuids.length + types.length <= MOST_LETTERS:
                self._surveys[requested] = found
        return found

    def _look(self, node_lister: NodeLister, mode: str, uuids: ListRule, types: ListRule) -> tuple[ClusterCards, bool]:
        """What the nodes have, and whether that holds until one changes: a handshake may run out before."""
        groups: dict[int, frozenset[Model]] = {}
        models: set[Model] = set()
        most: int | None = None
        lasts = True
        for node in node_lister.nodes():
            lasts = lasts and HANDSHAKE not in node.annotations
            found = self.taking_part(node, node_lister.now)
            if found is None or (mode and found.mode != mode):
                continue
            if most is None or found.healthy > most:
                most = found.healthy
            if uuids.allow or uuids.deny:
                admitted = (d for d in found.devices if d.healthy and uuids.admits(d.uuid))
                models.update(Model(d.type, d.memory, d.extra) for d in admitted)
            else:
                groups[id(found.models)] = found.models
        models.update(model for group in groups.values() for model in group)
        return ClusterCards(frozenset(model for model in models if types.admits_type(model.type)), most), lasts

    def _read(self, node: Node) -> Registration | None:
        cards = decode_cards(node.annotations.get(REGISTER, ""))
        if not cards:
            return None
        last = cards[-1]
        mode = MIG if last.mode == MIG and self.geometries.of(last.type) is not None else HAMI_CORE
        devices = tuple(
            Device(
                vendor="volcano",
                uuid=card.uuid,
                index=index,
                slots=card.slots,
                memory=card.memory,
                cores=100,
                type=card.type,
                mode=mode,
                healthy=card.healthy,
                extra=self.geometries.of(card.type),
            )
            for index, card in enumerate(cards)
        )
        healthy = [device for device in devices if device.healthy]
        models = frozenset(Model(device.type, device.memory, device.extra) for device in healthy)
        return Registration(
            devices,
            mode,
            all(parse_whole(node.allocatable.get(name)) for name in self._offered),
            len(healthy),
            self._models.setdefault(models, models),
            {device.uuid: device for device in devices},
        )


def _gone(node: Node, now: float) -> bool:
    """Whether the old handshake, which newer plugins don't have, says that the plugin is gone."""
    handshake = node.annotations.get(HANDSHAKE, "")
    if not handshake.startswith("Requesting"):
        return handshake.startswith("Deleted")
    requested = handshake_time(handshake.replace(".", "-"), None)
    return requested is not None and now - requested > ANSWER_WITHIN
