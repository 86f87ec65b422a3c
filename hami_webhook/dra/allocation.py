"""What an allocation holds, by what the scheduler wrote into the claim's status (docs/spec/dra.md#5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.config.drivers import DriverDevices
from hami_webhook.devices.debit import Debit
from hami_webhook.dra.capacity import amount_of
from hami_webhook.dra.cost import debit_of, debit_on
from hami_webhook.dra.devices import DeviceID, PublishedDevice, PublishedDevices, QualifiedName
from hami_webhook.kube import claims_wire as wire


class ClaimedDevice(Struct, frozen=True):
    """A device, or share of one, that a claim holds, with the properties by which quotas select cards."""

    id: DeviceID
    vendor: str
    debit: Debit
    node: str = ""
    model: str = ""
    uuid: str = ""


class Allocated(Struct, frozen=True):
    """The devices that a claim holds.

    `unseen`: sentences about devices whose memory and cores no ResourceSlice publishes. `unpriced`: about devices
    without an entry in the configuration's `DriverDevices`.
    """

    devices: tuple[ClaimedDevice, ...] = ()
    unseen: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()

    @property
    def unknown(self) -> tuple[str, ...]:
        """Sentences about all devices whose cost isn't known."""
        return (*self.unseen, *self.unpriced)


def allocated(results: Iterable[wire.AllocationResult], published: PublishedDevices, node: str = "") -> Allocated:
    """Return the devices that the allocation results hold.

    Results with `adminAccess`, or of unconfigured drivers, hold none. `node` is the one that the allocation names, if
    it does: two nodes may have pools of the same name. Raises `MalformedObject` for an invalid quantity.
    """
    devices: list[ClaimedDevice] = []
    unseen: list[str] = []
    unpriced: list[str] = []
    for result in results:
        driver = result.driver or ""
        rows = [row for row in published.rows if row.driver == driver]
        if not rows or result.admin_access:
            continue
        identity = DeviceID(driver, result.pool or "", result.device or "")
        meant = published.named(identity, node)
        subject = f"device {identity.name} of pool {identity.pool} of driver {driver}"
        kind = None if meant else published.unpriced(identity, node)
        if kind is not None:
            fault = f"is of type {kind}" if kind else "has no type"
            unpriced.append(
                f"{subject} {fault}, and no row of dra.devices prices it; add one to the device configuration"
            )
            continue
        found = [_of_result(result, rows, identity, device) for device in meant or (None,)]
        known = [each for each in found if each is not None]
        if known:
            devices.append(_dearest(known))
        elif not meant:
            unseen.append(f"{subject} is in no ResourceSlice" + (f" of node {node}" if node else ""))
    return Allocated(tuple(devices), tuple(unseen), tuple(unpriced))


def _dearest(devices: Sequence[ClaimedDevice]) -> ClaimedDevice:
    """Of those that an allocation may mean: no slice of another node can make it cost less."""
    first, *others = devices
    if not others:
        return first
    debit = Debit(*(max(getattr(each.debit, name) for each in devices) for name in ("slots", "memory", "cores")))
    return replace(max(devices, key=lambda each: (each.debit.memory, each.debit.cores)), debit=debit)


def _of_result(
    result: wire.AllocationResult, rows: list[DriverDevices], identity: DeviceID, device: PublishedDevice | None
) -> ClaimedDevice | None:
    """What is held of one device; None where neither the result nor a slice says how much."""
    driver = identity.driver
    written = result.consumed_capacity or {}
    consumed: dict[QualifiedName, Fraction] = {}
    for key, amount in written.items():
        name = QualifiedName.of(key, driver)
        consumed[name] = max(amount_of(amount), consumed.get(name, Fraction(0)))
    if device is None:
        # a share that takes no memory is worth what its card says
        row = next((row for row in rows if consumed.get(QualifiedName.of(row.memory, driver))), None)
        if row is None:
            return None
    else:
        row = device.model.row
    amounts = []
    for name in (QualifiedName.of(row.memory, driver), QualifiedName.of(row.cores, driver)):
        capacity = device.model.capacity.get(name) if device is not None else None
        amounts.append(consumed.get(name, None if capacity is None else capacity.value))
    memory, cores = amounts
    if device is None:
        return ClaimedDevice(identity, row.vendor, debit_of(row, memory, cores))
    debit = debit_on(device.model, memory, cores, consumed.get(QualifiedName.of(row.shares, driver)))
    return ClaimedDevice(identity, row.vendor, debit, device.node, device.attribute(row.model), device.uuid)
