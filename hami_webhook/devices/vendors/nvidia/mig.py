"""MIG: profiles and placements on a card, instances on a pod (docs/spec/nvidia.md#3.1, #3.4, #7.7, #9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct

from hami_webhook.devices.codecs import CardRecord, DeviceEntry, lower_keys
from hami_webhook.devices.model import Device, DeviceShare, HardwareInstance, RegistrationError, Rows, Usage
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.shown import shown

ALLOCATIONS = "hami.io/vgpu-mig-allocations"

_MOST_SLICES = 64
_MOST_PLACEMENTS = 128
"""Of all profiles of a card: an A100 has 25. Each is tried for every share of a card."""


class MigPlacement(Struct, frozen=True):
    """The memory slices [start, start + size) of a card."""

    start: int
    size: int

    @property
    def mask(self) -> int:
        """A bit for each slice."""
        return (1 << self.size) - 1 << self.start


class MigProfile(Struct, frozen=True):
    """An instance kind of a card: MiB, percent of the card's compute, slices, where it may be placed, first choice
    first.
    """

    name: str
    memory: int
    cores: int
    slices: int
    placements: tuple[MigPlacement, ...]


def read_profiles(record: CardRecord) -> tuple[MigProfile, ...]:
    """The profiles of a MIG card's registration, smallest first; raises `RegistrationError`."""
    profiles = []
    for item in _list(record.extra.get("migprofiles"), f"card {record.id[:100]}: migProfiles"):
        where = f"card {record.id[:100]}: migProfiles"
        if not isinstance(item, dict):
            raise RegistrationError(f"{where} must hold objects")
        fields = lower_keys(item)
        name = fields.get("name")
        if not isinstance(name, str) or not name:
            raise RegistrationError(f"{where} need a name")
        profiles.append(
            MigProfile(
                name,
                _natural(fields, "memorymb", where),
                _natural(fields, "core", where),
                _natural(fields, "slicecount", where),
                _placements(fields, name, where),
            )
        )
    if len(profiles) + sum(len(profile.placements) for profile in profiles) > _MOST_PLACEMENTS:
        raise RegistrationError(f"card {record.id}: migProfiles hold more than {_MOST_PLACEMENTS} placements")
    return tuple(sorted(profiles, key=lambda profile: (profile.memory, profile.slices)))


def profiles_of(device: Device) -> tuple[MigProfile, ...]:
    return device.extra or ()


def largest_profile(device: Device) -> int:
    """MiB of the card's largest profile, 0 if it has none."""
    return max((profile.memory for profile in profiles_of(device)), default=0)


def resolve_share(device: Device, usage: Usage, needed: int) -> DeviceShare | None:
    """The smallest instance of at least `needed` MiB that can still be placed on the card; None if there is none."""
    occupied = 0
    for mark in usage.marks:
        if isinstance(mark, MigInstance):
            occupied |= mark.placement.mask
    free = device.memory - usage.memory
    for profile in profiles_of(device):
        if not needed <= profile.memory <= free:
            continue
        for placement in profile.placements:
            if not placement.mask & occupied:
                return DeviceShare(profile.memory, profile.cores, profile.name, MigInstance(profile.name, placement))
    return None


class MigInstance(Struct, frozen=True):
    """A mark on a card: an instance of a profile in a place."""

    profile: str
    placement: MigPlacement


class MigAllocation(Struct, frozen=True):
    """One instance in a pod's `hami.io/vgpu-mig-allocations`.

    `identity` is what the plugin made of it: the instance's UUID, its GPU instance and its compute instance.
    """

    row: int
    device: int
    uuid: str
    instance: MigInstance
    identity: tuple[str, str, str] | None = None


def encode_allocations(vendor: str, rows: Rows) -> str:
    """The annotation for a placement, compact JSON; empty if it has no instance."""
    records = [
        {
            "containerIndex": row,
            "deviceIndex": position,
            "gpuUUID": device.uuid,
            "profile": device.share.mark.profile,
            "placement": {
                "start": device.share.mark.placement.start,
                "size": device.share.mark.placement.size,
            },
        }
        for row, allocations in enumerate(rows)
        if vendor in allocations
        for position, device in enumerate(allocations[vendor].devices)
        if isinstance(device.share.mark, MigInstance)
    ]
    return orjson.dumps(records).decode() if records else ""


def decode_allocations(text: str) -> list[MigAllocation] | None:
    """The records of the annotation; None if it is invalid as a whole."""
    try:
        records = [_record(item) for item in _list(orjson.loads(text), ALLOCATIONS)]
    except (orjson.JSONDecodeError, RegistrationError):
        return None
    if len({(record.row, record.device) for record in records}) != len(records):
        return None
    return records


def placements_by_card(pod: Pod) -> Mapping[str, tuple[MigInstance, ...]]:
    """The instances a placed pod holds, by card."""
    text = pod.annotations.get(ALLOCATIONS)
    found: dict[str, tuple[MigInstance, ...]] = {}
    for record in decode_allocations(text) or () if text else ():
        found[record.uuid] = (*found.get(record.uuid, ()), record.instance)
    return found


def realised(pod: Pod) -> Sequence[HardwareInstance]:
    """The instances that the plugin has made for a placed pod."""
    text = pod.annotations.get(ALLOCATIONS)
    return [
        HardwareInstance(
            record.uuid,
            *record.identity,
            record.instance.profile,
            record.instance.placement.start,
            record.instance.placement.size,
        )
        for record in (text and decode_allocations(text)) or ()
        if record.identity is not None
    ]


def unusable_devices(
    devices: Sequence[Device], pods: Iterable[Pod], rows_of: Callable[[Pod], Sequence[Sequence[DeviceEntry]]]
) -> frozenset[str]:
    """Cards whose occupation can't be known, which count as unhealthy.

    A MIG card with a pod that has no record for it; a card that isn't in MIG mode with a pod that has one; and every
    MIG card of the node, if a record names a card the node doesn't have.
    """
    modes = {device.uuid: device.mode for device in devices}
    partitioned = {uuid for uuid, mode in modes.items() if mode == "mig"}
    closed: set[str] = set()
    for pod in pods:
        recorded = set(placements_by_card(pod))
        if partitioned:
            closed |= {entry.uuid for row in rows_of(pod) for entry in row} & partitioned - recorded
        closed |= {uuid for uuid in recorded if modes.get(uuid, "mig") != "mig"}
        if any(uuid not in modes for uuid in recorded):
            closed |= partitioned
    return frozenset(closed)


def _record(item: Any) -> MigAllocation:
    if not isinstance(item, dict):
        raise RegistrationError("a record must be an object")
    placement = _placement(item.get("placement"), "placement")
    uuid, profile = item.get("gpuUUID"), item.get("profile")
    identity = [item.get(key) not in (None, "") for key in ("migUUID", "gpuInstanceID", "computeInstanceID")]
    if not isinstance(uuid, str) or not uuid or not isinstance(profile, str) or not profile or len(set(identity)) > 1:
        raise RegistrationError("a record needs gpuUUID, profile, and all or none of the instance's identity")
    row, device = (_natural(item, key, "record") for key in ("containerIndex", "deviceIndex"))
    made = None
    if all(identity):
        made = str(item["migUUID"]), str(item["gpuInstanceID"]), str(item["computeInstanceID"])
    return MigAllocation(row, device, uuid, MigInstance(profile, placement), made)


def _placements(fields: Mapping[str, Any], profile: str, where: str) -> tuple[MigPlacement, ...]:
    """A profile's placements in the order they are tried."""
    found = [_placement(placement, where) for placement in _list(fields.get("placements"), where)]
    return tuple(sorted(found, key=lambda p: p.start, reverse=profile.startswith(("1g.", "3g."))))


def _placement(value: Any, where: str) -> MigPlacement:
    if not isinstance(value, dict):
        raise RegistrationError(f"{where}: a placement must be an object")
    fields = lower_keys(value)
    placement = MigPlacement(_natural(fields, "start", where), _natural(fields, "size", where))
    if placement.size == 0:
        raise RegistrationError(f"{where}: a placement needs a size")
    if placement.start + placement.size > _MOST_SLICES:
        raise RegistrationError(f"{where}: a placement ends at slice {_MOST_SLICES} at most")
    return placement


def _list(value: Any, where: str) -> list[Any]:
    """A JSON list; null is the empty one."""
    if value is not None and not isinstance(value, list):
        raise RegistrationError(f"{where} must be a list")
    return value or []


def _natural(fields: Mapping[str, Any], key: str, where: str) -> int:
    value = fields.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RegistrationError(f"{where}: {key} must be a whole number, not {shown(value)}")
    return value
