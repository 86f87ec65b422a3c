"""The devices that ResourceSlices publish, of the drivers that the configuration knows (docs/spec/dra.md#2).

Nodes write slices, as many and as often as they like. So a change costs only the processing of its own slice, and can't
affect other nodes' devices: a pool belongs to the node that its slices name (docs/spec/dra.md#9).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from msgspec import Struct

from hami_webhook.config.drivers import DriverDevices
from hami_webhook.dra.capacity import ConsumableCapacity
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.objects import MalformedObject

TYPE = "type"
"""The attribute that distinguishes the devices of a driver."""
_MOST_NAMED = 4
"""Nodes that a sentence names."""
_MOST_MASKS = 64
"""Expressions of tenants whose answers a slice keeps."""


class QualifiedName(NamedTuple):
    """The name of an attribute or a capacity, with its domain."""

    domain: str
    name: str

    @classmethod
    def of(cls, written: str, driver: str) -> QualifiedName:
        """Parse an attribute's or capacity's name. Without a domain, it gets the driver's."""
        domain, slash, name = written.rpartition("/")
        return cls(domain if slash else driver, name)


class DeviceID(NamedTuple):
    """The identity of a device in an allocation: driver, pool and device name."""

    driver: str
    pool: str
    name: str


class DeviceModel(Struct, frozen=True, eq=False, weakref=True):
    """The common properties of a driver's equal devices, also on different nodes."""

    row: DriverDevices
    shared: bool
    capacity: Mapping[QualifiedName, ConsumableCapacity]

    def qualified(self, written: str) -> QualifiedName:
        """The name of an attribute or a capacity of such devices."""
        return QualifiedName.of(written, self.row.driver)

    def consumed(self, name: QualifiedName, requested: Fraction | None) -> Fraction | None:
        """What of a capacity a request takes of a device; None if it can't give that.

        An unshared device is allocated as a whole, to requests that don't exceed its capacity.
        """
        capacity = self.capacity.get(name)
        if capacity is None:
            return None if requested else Fraction(0)
        if self.shared:
            return capacity.consumed(requested)
        return None if requested is not None and requested > capacity.value else capacity.value

    def share(self, shares: Fraction | None = None) -> Fraction:
        """Return the minimal part of a device for which a share is charged; 0 if the request's own amounts decide.

        If requests take no memory by default, nothing limits it, and a share may use all. `shares`: the shares taken,
        if the driver limits their number; None for the default of a request without a number.
        """
        memory = self.capacity.get(self.qualified(self.row.memory))
        if not (self.shared and self.row.shares) or memory is None or memory.default != 0:
            return Fraction(0)
        all_shares = self.capacity.get(self.qualified(self.row.shares))
        if all_shares is None or all_shares.value <= 0:
            return Fraction(1)
        taken = all_shares.consumed(None) if shares is None else shares
        return min(max(taken or Fraction(0), Fraction(0)) / all_shares.value, Fraction(1))


class PublishedDevice(Struct, frozen=True):
    """A device, and its `model`. `node` is empty for one that isn't of one node."""

    id: DeviceID
    model: DeviceModel
    node: str
    attributes: Mapping[QualifiedName, Any]

    @property
    def uuid(self) -> str:
        """Return the UUID of the device's card, otherwise the device's own; empty if it publishes neither."""
        return self.attribute(self.model.row.uuid)

    def attribute(self, written: str) -> str:
        """The text of an attribute; empty if the device lacks it."""
        return str(self.attributes.get(self.model.qualified(written), "")) if written else ""


class Answers(NamedTuple):
    """Two bit sets of a slice's devices: those on which an expression was evaluated, and those that it rejects."""

    evaluated: int = 0
    rejected: int = 0


class DeviceGroup(NamedTuple):
    """Devices of a slice that cost the same: of one model, on one node. `bits` say which."""

    model: DeviceModel
    node: str
    bits: int


class PublishedSlice(Struct, frozen=True, eq=False):
    """The content of one ResourceSlice. `node`: the node that it names. `problem`: a sentence about unreadable parts.

    Devices are numbered from 0; a set of them is the sum of their bits.
    """

    name: str
    driver: str
    pool: str
    node: str
    generation: int
    devices: tuple[PublishedDevice, ...]
    by_name: Mapping[str, PublishedDevice]
    groups: tuple[DeviceGroup, ...]
    unpriced: Mapping[str, str]
    """The types of devices that no row is for, by name."""
    problem: str = ""
    of_classes: dict[str, Answers] = {}
    """What the expressions of classes select: administrators write these, so they all stay."""
    of_requests: dict[str, Answers] = {}

    @property
    def bits(self) -> int:
        """All of its devices."""
        return (1 << len(self.devices)) - 1

    def answers(self, expression: str, *, of_class: bool) -> Answers:
        """What is known of an expression."""
        known = self.of_classes if of_class else self.of_requests
        return known.get(expression, _NO_ANSWERS)

    def keep(self, expression: str, answers: Answers, *, of_class: bool) -> None:
        """Remember what an expression selects."""
        if not of_class and len(self.of_requests) >= _MOST_MASKS and expression not in self.of_requests:
            self.of_requests.clear()
        (self.of_classes if of_class else self.of_requests)[expression] = answers


_NO_ANSWERS = Answers()


class _Pool:
    """The slices that claim a pool, by the node that they name and by their own names."""

    def __init__(self) -> None:
        self.by_node: dict[str, dict[str, PublishedSlice]] = {}

    def owners(self, name: str) -> set[str]:
        """The nodes whose slices count; empty text is the driver, whose slices name none (docs/spec/dra.md#9)."""
        return next(({owner} for owner in ("", name) if owner in self.by_node), set(self.by_node))

    def counting(self, name: str) -> dict[str, PublishedSlice]:
        """The slices that count: of each owner those of its newest generation."""
        found: dict[str, PublishedSlice] = {}
        for owner in self.owners(name):
            newest = max(each.generation for each in self.by_node[owner].values())
            found |= {key: each for key, each in self.by_node[owner].items() if each.generation == newest}
        return found


class _Overview(NamedTuple):
    """All devices, and what is wrong with slices: a walk over the whole cluster, so no review asks for it."""

    devices: tuple[PublishedDevice, ...]
    problems: Mapping[str, str]
    of_others: Mapping[str, str]
    """The problems of slices that name a pool of another owner, by slice name."""


class PublishedDevices:
    """The devices of the drivers in `rows`.

    Of each pool, only the newest generation of each owner (a node or the driver) counts. `version` changes whenever
    devices change.
    """

    def __init__(self, slices: Iterable[wire.ResourceSlice], rows: Sequence[DriverDevices]) -> None:
        self.rows = rows
        self.version = 0
        self._drivers = {row.driver for row in rows}
        self._models = WeakValueDictionary[object, DeviceModel]()
        self._as_written = WeakValueDictionary[object, DeviceModel]()
        self._written: dict[str, PublishedSlice] = {}
        self._pools: dict[tuple[str, str], _Pool] = {}
        self._counting: dict[tuple[str, str], dict[str, PublishedSlice]] = {}
        self._on_node: dict[str, dict[str, PublishedSlice]] = {}
        """The slices that count and have devices of a node, by the node and by name."""
        self._changes = 0
        self._overview: tuple[int, _Overview] | None = None
        for each in slices:
            self.put(each)

    def put(self, written: wire.ResourceSlice) -> None:
        """A slice was added or changed."""
        name = _name_of(written)
        before = self._written.get(name)
        after = self._read(name, written) if written.spec and written.spec.driver in self._drivers else None
        if before is not None and after is not None and _content(before) == _content(after):
            return
        self._change(name, before, after)

    def drop(self, name: str) -> None:
        """A slice is gone."""
        self._change(name, self._written.get(name), None)

    def slices(self) -> Iterator[PublishedSlice]:
        """Yield the slices that count: those of each owner's newest generation."""
        for of_pool in self._counting.values():
            yield from of_pool.values()

    def named(self, identity: DeviceID, node: str = "") -> list[PublishedDevice]:
        """Return the devices to which an allocation may refer, one per owner of the pool; with `node`, none of other
        nodes.
        """
        found: dict[str, PublishedDevice] = {}
        of_pool = self._counting.get((identity.driver, identity.pool), {})
        for each in sorted(of_pool.values(), key=lambda each: each.name):
            device = each.by_name.get(identity.name)
            if device is not None and (not node or device.node in ("", node)):
                found.setdefault(each.node, device)
        return list(found.values())

    def unpriced(self, identity: DeviceID, node: str = "") -> str | None:
        """Return the type of a device without an entry in `rows`; None if the device has one, or isn't published.

        `node` as for `named`.
        """
        of_pool = self._counting.get((identity.driver, identity.pool), {})
        found = (each.unpriced.get(identity.name) for each in of_pool.values() if not node or each.node in ("", node))
        return next((kind for kind in found if kind is not None), None)

    def on(self, node: str) -> list[PublishedDevice]:
        """The devices of a node."""
        found: dict[DeviceID, PublishedDevice] = {}
        for _, each in sorted(self._on_node.get(node, {}).items()):
            for device in each.devices:
                if device.node == node:
                    found.setdefault(device.id, device)
        return list(found.values())

    @property
    def all(self) -> tuple[PublishedDevice, ...]:
        """All devices."""
        return self._found.devices

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong with slices: sentences by their names."""
        return self._found.problems

    @property
    def of_others(self) -> Mapping[str, str]:
        """The problems of slices that name a pool of another owner, by slice name."""
        return self._found.of_others

    def problems_by_node(self) -> Mapping[str, Mapping[str, str]]:
        """The problems of the slices that name a node, by the node."""
        found: dict[str, dict[str, str]] = {}
        for name, text in sorted(self.problems.items()):
            found.setdefault(self._written[name].node, {})[name] = text
        return found

    @property
    def _found(self) -> _Overview:
        if self._overview is None or self._overview[0] != self._changes:
            self._overview = (self._changes, self._look())
        return self._overview[1]

    def _look(self) -> _Overview:
        problems = {each.name: each.problem for each in self._written.values() if each.problem}
        devices: dict[tuple[str, DeviceID], PublishedDevice] = {}
        for each in sorted(self.slices(), key=lambda each: each.name):
            for device in each.devices:
                if devices.setdefault((each.node, device.id), device) is not device:
                    problems[each.name] = f"device {device.id.name} of pool {each.pool} is in another slice too"
        of_others: dict[str, str] = {}
        for (driver, name), pool in self._pools.items():
            of_others |= _claimed_twice(driver, name, pool)
        return _Overview(tuple(devices.values()), problems | of_others, of_others)

    def _change(self, name: str, before: PublishedSlice | None, after: PublishedSlice | None) -> None:
        self._changes += 1
        if before is not None:
            del self._written[name]
            key = (before.driver, before.pool)
            of_node = self._pools[key].by_node[before.node]
            del of_node[name]
            if not of_node:
                del self._pools[key].by_node[before.node]
            if after is None or (after.driver, after.pool) != key:
                self._count(key)
        if after is not None:
            self._written[name] = after
            key = (after.driver, after.pool)
            pool = self._pools.setdefault(key, _Pool())
            pool.by_node.setdefault(after.node, {})[name] = after
            self._count(key)

    def _count(self, key: tuple[str, str]) -> None:
        """Find out which slices of a pool count now."""
        before, after = self._counting.get(key, {}), self._pools[key].counting(key[1])
        for name, each in before.items():
            if after.get(name) is not each:
                for node in {group.node for group in each.groups}:
                    del self._on_node[node][name]
                    if not self._on_node[node]:
                        del self._on_node[node]
        for name, each in after.items():
            if before.get(name) is not each:
                for node in {group.node for group in each.groups}:
                    self._on_node.setdefault(node, {})[name] = each
        self._counting[key] = after
        self.version += before != after
        if not self._pools[key].by_node:
            del self._pools[key], self._counting[key]

    def _read(self, name: str, each: wire.ResourceSlice) -> PublishedSlice:
        driver, pool, generation = _pool_of(each)
        found: list[PublishedDevice] = []
        unpriced: dict[str, str] = {}
        problem = ""
        try:
            for device in self._devices_of(each, unpriced):
                found.append(device)  # those before one that can't be read count
        except MalformedObject as error:
            problem = str(error)
        groups: dict[tuple[DeviceModel, str], int] = {}
        for number, device in enumerate(found):
            place = (device.model, device.node)
            groups[place] = groups.get(place, 0) | 1 << number
        return PublishedSlice(
            *(name, driver, pool, (each.spec and each.spec.node_name) or "", generation, tuple(found)),
            {device.id.name: device for device in reversed(found)},
            tuple(DeviceGroup(*place, bits) for place, bits in groups.items()),
            unpriced,
            problem,
        )

    def _devices_of(self, each: wire.ResourceSlice, unpriced: dict[str, str]) -> Iterator[PublishedDevice]:
        """The devices of a slice that are of a row; the types of the others go into `unpriced`, by name.

        Raises `MalformedObject`.
        """
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
            else:
                unpriced[device.name or ""] = str(kind or "")

    def _model(self, row: DriverDevices, device: wire.SliceDevice) -> DeviceModel:
        """The model of a device, one for all that are equal. Raises `MalformedObject`."""
        as_written = (row, device.allow_multiple_allocations, tuple((device.capacity or {}).items()))
        try:
            known = self._as_written.get(as_written)
        except TypeError:  # an amount that is no text and no number
            return self._model_of(row, device)
        if known is None:  # to read amounts takes longer than all else of a slice, and most of its devices are equal
            known = self._as_written[as_written] = self._model_of(row, device)
        return known

    def _model_of(self, row: DriverDevices, device: wire.SliceDevice) -> DeviceModel:
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


def _content(each: PublishedSlice) -> object:
    """What counts of a slice: models are one for all that are equal."""
    return each.driver, each.pool, each.node, each.generation, each.devices, each.problem


def _claimed_twice(driver: str, name: str, pool: _Pool) -> Iterator[tuple[str, str]]:
    """Sentences for slices whose pool others claim, by the slices' names; none for those of its one owner."""
    owners = pool.owners(name)
    for node, slices in pool.by_node.items():
        others = sorted(owners - {node})
        if not others:
            continue
        more = f" and {len(others) - _MOST_NAMED} more" if others[_MOST_NAMED:] else ""
        whose = f"node {', '.join(others[:_MOST_NAMED])}{more}" if others[0] else "the driver, in slices of no node"
        text = f"names pool {name} of driver {driver}, which {whose} publishes too"
        if node not in owners:
            text = (
                f"node {node} names pool {name} of driver {driver}, which belongs to {whose}: its devices don't count"
            )
        yield from dict.fromkeys(slices, text).items()
