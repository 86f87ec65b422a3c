"""The devices that ResourceSlices publish, of the drivers that the configuration knows (docs/spec/dra.md#2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from msgspec import Struct

from hami_webhook.config.drivers import DriverDevices
from hami_webhook.dra.capacity import ConsumableCapacity
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.objects import MalformedObject

TYPE = "type"
"""The attribute that tells the devices of a driver apart."""


class QualifiedName(NamedTuple):
    """The name of an attribute or a capacity, with its domain."""

    domain: str
    name: str

    @classmethod
    def of(cls, written: str, driver: str) -> QualifiedName:
        """A name as it is written for a device of a driver, whose domain it has if none is written."""
        domain, slash, name = written.rpartition("/")
        return cls(domain if slash else driver, name)


class DeviceID(NamedTuple):
    """What an allocation names a device by."""

    driver: str
    pool: str
    name: str


class DeviceModel(Struct, frozen=True, eq=False):
    """What devices of a driver have in common that give the same: a node's and the next one's are of one model."""

    row: DriverDevices
    shared: bool
    capacity: Mapping[QualifiedName, ConsumableCapacity]

    def qualified(self, written: str) -> QualifiedName:
        """The name of an attribute or a capacity of such devices."""
        return QualifiedName.of(written, self.row.driver)

    def consumed(self, name: QualifiedName, requested: Fraction | None) -> Fraction | None:
        """What of a capacity a request takes of a device; None if it can't give that.

        A device that isn't shared is given whole, to requests for as much as it has at most.
        """
        capacity = self.capacity.get(name)
        if capacity is None:
            return None if requested else Fraction(0)
        if self.shared:
            return capacity.consumed(requested)
        return None if requested is not None and requested > capacity.value else capacity.value


class PublishedDevice(Struct, frozen=True):
    """A device, and its `model`. `node` is empty for one that isn't of one node."""

    id: DeviceID
    model: DeviceModel
    node: str
    attributes: Mapping[QualifiedName, Any]

    @property
    def uuid(self) -> str:
        """The UUID of its card, or its own; empty if it says none."""
        return self.attribute(self.model.row.uuid)

    def attribute(self, written: str) -> str:
        """The text of an attribute; empty if the device lacks it."""
        return str(self.attributes.get(self.model.qualified(written), "")) if written else ""


class PublishedDevices:
    """The devices of the drivers in `rows`, by their ids and by node; of a pool those of its newest generation.

    `problems` are sentences about slices: by name what is wrong with one.
    """

    def __init__(self, slices: Iterable[wire.ResourceSlice], rows: Sequence[DriverDevices]) -> None:
        self.rows = rows
        self._models: dict[object, DeviceModel] = {}
        self.by_id: dict[DeviceID, PublishedDevice] = {}
        self.problems: dict[str, str] = {}
        drivers = {row.driver for row in rows}
        found = sorted(filter(lambda each: each.spec and each.spec.driver in drivers, slices), key=_name_of)
        newest: dict[tuple[str, str], int] = {}
        for each in found:
            driver, pool, generation = _pool_of(each)
            newest[driver, pool] = max(newest.get((driver, pool), 0), generation)
        for each in found:
            driver, pool, generation = _pool_of(each)
            if generation == newest[driver, pool]:
                self._add(each)
        self.all = tuple(self.by_id.values())
        self.by_node: dict[str, list[PublishedDevice]] = {}
        for device in self.all:
            self.by_node.setdefault(device.node, []).append(device)

    def _add(self, each: wire.ResourceSlice) -> None:
        try:
            for device in self._devices_of(each):
                if device.id in self.by_id:
                    pool, name = device.id.pool, device.id.name
                    self.problems[_name_of(each)] = f"device {name} of pool {pool} is in another slice too"
                else:
                    self.by_id[device.id] = device
        except MalformedObject as error:
            self.problems[_name_of(each)] = str(error)

    def _devices_of(self, each: wire.ResourceSlice) -> Iterator[PublishedDevice]:
        """The devices of a slice that are of a row. Raises `MalformedObject`."""
        driver, pool, _ = _pool_of(each)
        spec = each.spec or wire.SliceSpec()
        for device in spec.devices or ():
            attributes = {
                QualifiedName.of(name, driver): next(iter(value.values()), None)
                for name, value in (device.attributes or {}).items()
            }
            kind = attributes.get(QualifiedName(driver, TYPE))
            row = next((row for row in self.rows if row.driver == driver and row.type in ("", kind)), None)
            if row is not None:
                node = device.node_name or spec.node_name or ""
                yield PublishedDevice(
                    DeviceID(driver, pool, device.name or ""), self._model(row, device), node, attributes
                )

    def _model(self, row: DriverDevices, device: wire.SliceDevice) -> DeviceModel:
        """The model of a device, one for all that are equal. Raises `MalformedObject`."""
        written = (device.capacity or {}).items()
        capacity = {QualifiedName.of(name, row.driver): ConsumableCapacity.of(each) for name, each in written}
        shared = bool(device.allow_multiple_allocations)
        content = (self.rows.index(row), shared, frozenset(capacity.items()))
        return self._models.setdefault(content, DeviceModel(row, shared, capacity))


def _name_of(each: wire.ResourceSlice) -> str:
    return (each.metadata and each.metadata.name) or ""


def _pool_of(each: wire.ResourceSlice) -> tuple[str, str, int]:
    spec = each.spec or wire.SliceSpec()
    pool = spec.pool or wire.Pool()
    return spec.driver or "", pool.name or "", pool.generation or 0
