"""Read a placed pod's allocation from its annotations, for usage, debits and charges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.codecs import BadAnnotation
from hami_webhook.devices.debit import Debit, per_device, per_vendor
from hami_webhook.devices.model import Device, DeviceHold, Kinds
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Container, ContainerKind, Pod

NODE = "hami.io/vgpu-node"
TIME = "hami.io/vgpu-time"
BIND_PHASE = "hami.io/bind-phase"
"""`allocating` from the bind on, then `success` or `failed`, as the device plugin sets it."""
_SERVED = frozenset(("success", "failed"))
NOMINATED_NODE = "hami.io/nominated-node"
NOMINATED_UNTIL = "hami.io/nominated-until"
"""Unix seconds until which the devices of a node are kept for the pod (docs/preemption.md#nominated-pods)."""


class Placed(Struct, frozen=True):
    """One vendor's part of a pod's placement: its holds, and the kinds of the rows they are counted by.

    `claims`: the holds in the cards' units; `counted`: the same holds in the quota's units.
    """

    claims: tuple[DeviceHold, ...]
    kinds: Kinds
    counted: tuple[DeviceHold, ...]

    def per_device(self, *, init_finished: bool) -> dict[tuple[str, str], Debit]:
        """What each card is charged with."""
        return per_device(self.claims, self.kinds, init_finished=init_finished)

    def debit(self, *, init_finished: bool) -> Debit:
        """What quota counts: the sum over devices of the effective usage."""
        return sum(per_vendor(self.counted, self.kinds, init_finished=init_finished).values(), Debit())


_NO_CARDS: Mapping[str, Device] = {}


def read_placed(vendor: Vendor, pod: Pod, cards: Mapping[str, Device] = _NO_CARDS) -> Placed | None:
    """The vendor's part of the pod's placement, None if it has none. Raises `BadAnnotation`.

    `cards` are those that the pod's node is known to have, by UUID.

    Each row of the annotation is one container, init containers first. If the number of rows isn't that of containers
    (HAMi 2.7 wrote app containers only), every row counts as an app container.
    """
    rows = vendor.decode(pod)
    if rows is None:
        return None
    kinds: Sequence[ContainerKind] = pod.kinds
    aligned = len(rows) == len(kinds)
    if not aligned:
        kinds = [ContainerKind.APP] * len(rows)
    claims = [
        DeviceHold(
            vendor.key,
            entry.uuid,
            row,
            entry.memory,
            entry.cores.bit_count() if vendor.masks_cores else entry.cores,
            vendor.slots_held(entry, pod.containers[row] if aligned else None, cards.get(entry.uuid)),
            entry.cores if vendor.masks_cores else 0,
        )
        for row, entries in enumerate(rows)
        for entry in entries
    ]
    counted = claims
    if vendor.cores_in_units:
        of_row = [[each] for each in pod.containers] if aligned else [pod.containers] * len(rows)
        counted = [replace(claim, cores=_percent(vendor, of_row[claim.row])) for claim in claims]
    return Placed(tuple(claims), kinds, tuple(counted))


def _percent(vendor: Vendor, containers: Sequence[Container]) -> int:
    """The percentage requested; the most that any container requests, where it isn't known which one it is."""
    percents = [
        percent if (percent := vendor.amount(container, vendor.core_name)) is not None else vendor.default_cores
        for container in containers
        if vendor.amount(container, vendor.count_name)
    ]
    return min(max(percents, default=vendor.default_cores), vendor.max_cores)


def is_served(pod: Pod) -> bool:
    """Return whether the device plugin has finished with a bound pod (allocated or failed).

    The plugin releases the node's lock right after.
    """
    return pod.annotations.get(BIND_PHASE) in _SERVED


def placement_counts(pod: Pod, now: float, placement_ttl: float) -> bool:
    """Whether a placement written on the pod holds at `now`: it is bound, or younger than `placement_ttl` seconds."""
    if pod.node_name:
        return True
    written = pod.annotations.get(TIME, "")
    return bool(pod.annotations.get(NODE)) and written.isdecimal() and now - int(written[:18]) < placement_ttl


def nanoseconds(now: float) -> str:
    """Unix seconds as a decimal number of nanoseconds, exact where `now` is whole."""
    whole = int(now)
    return str(whole * 1_000_000_000 + int((now - whole) * 1_000_000_000))


__all__ = ["NODE", "TIME", "BadAnnotation", "Placed", "nanoseconds", "placement_counts", "read_placed"]
