"""MIG: profiles and placements on a card, instances on a pod (docs/spec/nvidia.md#3.1, #3.4, #7.7, #9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct

from hami_webhook.devices.codecs import BadAnnotation, CardRecord, DeviceEntry, lower_keys
from hami_webhook.devices.model import (
    BadRequest,
    Device,
    DeviceShare,
    HardwareInstance,
    Inventory,
    RegistrationError,
    Request,
    Rows,
    ShareOfCard,
    Usage,
)
from hami_webhook.devices.newer_annotations import MIG_PREFERENCE
from hami_webhook.devices.occupancy import Occupancy
from hami_webhook.devices.pod_preferences import split_list
from hami_webhook.devices.vendors.nvidia.section import MigProfileAllowance
from hami_webhook.kube.message_text import first_of, quoted, shown
from hami_webhook.kube.objects import Pod

ALLOCATIONS = "hami.io/vgpu-mig-allocations"

_MOST_PREFERRED = 32
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


def check_preference(text: str, allowed: Iterable[MigProfileAllowance]) -> None:
    """Raises `BadRequest` for a preference that names no profile, or one that the configuration allows on no card."""
    preferred = split_list(text)
    if not preferred:
        raise BadRequest(
            f"invalid {MIG_PREFERENCE} annotation {quoted(text)}: must list MIG profiles, as 4g.20gb or 4g"
        )
    profiles = [profile for each in allowed for profile in each.profiles]
    known = {*profiles, *map(_slices_of, profiles)}
    for each in preferred:
        if each not in known:
            raise BadRequest(
                f"invalid {MIG_PREFERENCE} annotation: {quoted(each)} is no profile that nvidia.migProfileAllowlist of "
                f"the device configuration has; it has {first_of(sorted(set(profiles)))}"
            )


def prefer(text: str) -> str:
    """A preference as a request carries it."""
    return ",".join(split_list(text)[:_MOST_PREFERRED])


def _slices_of(profile: str) -> str:
    return profile.partition(".")[0]


def _in_order(profiles: Sequence[MigProfile], preferred: str) -> Sequence[MigProfile]:
    """The profiles that are preferred first, in that order, by their names or those of their slices."""
    if not preferred:
        return profiles
    entries = preferred.split(",")

    def place(profile: MigProfile) -> int:
        names = (profile.name, _slices_of(profile.name))
        return next((index for index, entry in enumerate(entries) if entry in names), len(entries))

    return sorted(profiles, key=place)


def resolve_share(
    device: Device, usage: Usage, needed: int, preferred: str = "", *, by_region: bool = False
) -> DeviceShare | None:
    """The smallest instance of at least `needed` MiB that can still be placed on the card; None if there is none.

    Profiles that are `preferred` go before smaller ones. `by_region`: where a placement leaves the halves of the card
    as whole as can be, not at the first that is free (docs/spec/nvidia.md#7.7).
    """
    occupied = 0
    for mark in usage.marks:
        if isinstance(mark, MigInstance):
            occupied |= mark.placement.mask
    free = device.memory - usage.memory
    for profile in _in_order(profiles_of(device), preferred):
        if not needed <= profile.memory <= free:
            continue
        places = [placement for placement in profile.placements if not placement.mask & occupied]
        if places:
            place = _best_by_region(places, occupied, profiles_of(device)) if by_region else places[0]
            return DeviceShare(profile.memory, profile.cores, profile.name, MigInstance(profile.name, place))
    return None


def _best_by_region(places: Sequence[MigPlacement], occupied: int, profiles: Sequence[MigProfile]) -> MigPlacement:
    """Of free placements that after which most halves of the card are free; then one that fills the half which fewest
    placements are in, or is small and in the other; then that furthest from the middle.
    """
    if len(places) == 1:
        return places[0]
    all_places = [placement for profile in profiles for placement in profile.placements]
    halves = _halves(all_places)
    inside = [sum(_within(placement, half) for placement in all_places) for half in halves]
    kept = min(range(len(halves)), key=lambda index: (inside[index], -index))

    def rank(placement: MigPlacement) -> tuple[int, int, int, int]:
        free = sum(not half.mask & (occupied | placement.mask) for half in halves)
        if len(halves) == 1 or not (own := [index for index, half in enumerate(halves) if _within(placement, half)]):
            return -free, 0, 0, placement.start
        half = halves[own[0]]
        misplaced = (placement.size == half.size) != (own[0] == kept)
        from_middle = placement.start - half.start if own[0] else half.size - placement.start - placement.size
        return -free, misplaced, -from_middle, placement.start

    return min(places, key=rank)


def _halves(placements: Sequence[MigPlacement]) -> Sequence[MigPlacement]:
    """The halves of a card; the card itself where a placement that isn't all of it is in both."""
    end = max(placement.start + placement.size for placement in placements)
    middle = end // 2
    if not middle or any(each.start < middle < each.start + each.size and each.size < end for each in placements):
        return (MigPlacement(0, end),)
    return MigPlacement(0, middle), MigPlacement(middle, end - middle)


def _within(placement: MigPlacement, half: MigPlacement) -> bool:
    return half.start <= placement.start and placement.start + placement.size <= half.start + half.size


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


class MigOccupancy(Occupancy):
    """The instances that pods hold. `decode` reads a pod's rows of the vendor's cards, as `Vendor.decode` does."""

    def __init__(self, decode: Callable[[Pod], Sequence[Sequence[DeviceEntry]] | None]) -> None:
        self._decode = decode

    def marks(self, pod: Pod) -> Mapping[str, tuple[MigInstance, ...]]:
        """The instances a placed pod holds, by card."""
        text = pod.annotations.get(ALLOCATIONS)
        found: dict[str, tuple[MigInstance, ...]] = {}
        for record in decode_allocations(text) or () if text else ():
            found[record.uuid] = (*found.get(record.uuid, ()), record.instance)
        return found

    def realised(self, pod: Pod) -> Sequence[HardwareInstance]:
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

    def unusable_devices(self, inventory: Inventory, pods: Sequence[Pod]) -> frozenset[str]:
        """Cards whose occupation can't be known, which count as unhealthy.

        A MIG card with a pod that has no record for it; a card that isn't in MIG mode with a pod that has one; and
        every MIG card of the node, if a record names a card the node doesn't have.
        """
        modes = {device.uuid: device.mode for device in inventory.devices}
        partitioned = {uuid for uuid, mode in modes.items() if mode == "mig"}
        closed: set[str] = set()
        for pod in pods:
            recorded = set(self.marks(pod))
            if partitioned:
                closed |= {entry.uuid for row in self._rows_of(pod) for entry in row} & partitioned - recorded
            closed |= {uuid for uuid in recorded if modes.get(uuid, "mig") != "mig"}
            if any(uuid not in modes for uuid in recorded):
                closed |= partitioned
        return frozenset(closed)

    def _rows_of(self, pod: Pod) -> Sequence[Sequence[DeviceEntry]]:
        """The pod's rows; none where its annotation can't be read, which is reported elsewhere."""
        try:
            return self._decode(pod) or ()
        except BadAnnotation:
            return ()

    def multi_share(self, request: Request, device: Device) -> bool:
        return device.mode == "mig" and request.memory != ShareOfCard(100)


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
