"""What a claim costs while nothing is allocated: the least that it can get (docs/spec/dra.md#3).

A refusal by this is right whatever is allocated later, as for pods with limits (Q11); what is allocated is charged then
(`allocation.py`). It reads no clock but the one that bounds selectors, and no cluster.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import reduce

import msgspec
from msgspec import Struct

from hami_webhook.config.drivers import DriverDevices
from hami_webhook.devices.debit import Debit
from hami_webhook.devices.keys import MEBIBYTE, Dimension
from hami_webhook.dra.capacity import amount_of
from hami_webhook.dra.devices import DeviceModel, PublishedDevice, PublishedDevices, QualifiedName
from hami_webhook.dra.selectors import selected
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.objects import MalformedObject, Pod
from hami_webhook.kube.requests import effective

SECONDS = 0.25
"""For all selectors of a claim, or of the claims that will be made for a pod: a review waits no longer for them."""
_MOST_KNOWN = 4096
"""Costs that are remembered."""
IMPLICIT_RESOURCE = "deviceclass.resource.kubernetes.io/"
"""With the name of a class: the extended resource that every class has."""

Debits = Mapping[str, Debit]
"""By vendor's key."""
_NOTHING = wire.CapacityRequirements()


class DeviceInventory(Struct, frozen=True):
    """What is known of the cluster's devices: by class its selectors, and the devices that are published.

    `extended` are the classes that take an extended resource, by its name. `known` are the costs that were found with
    it, by what was requested.
    """

    classes: Mapping[str, Sequence[str]]
    devices: PublishedDevices
    extended: Mapping[str, str] = {}
    known: dict[bytes, ClaimCost] = {}


class ClaimCost(Struct, frozen=True):
    """Debits by vendor; `floors` are the dimensions for which the smallest device was assumed.

    `problems` are sentences for who made the claim.
    """

    debits: Debits = {}
    floors: frozenset[Dimension] = frozenset()
    problems: tuple[str, ...] = ()

    def __add__(self, other: ClaimCost) -> ClaimCost:
        keys = {*self.debits, *other.debits}
        return ClaimCost(
            {key: self.debits.get(key, Debit()) + other.debits.get(key, Debit()) for key in keys},
            self.floors | other.floors,
            (*self.problems, *other.problems),
        )


def cost_of(
    requests: Iterable[wire.DeviceRequest],
    inventory: DeviceInventory,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> ClaimCost:
    """What a claim with these requests costs at least; nothing for classes that the configuration doesn't name.

    It is found once for each inventory: tenants write selectors that are slow. Raises `MalformedObject`.
    """
    requests = tuple(requests)
    content = msgspec.json.encode(requests)
    if content not in inventory.known:
        if len(inventory.known) >= _MOST_KNOWN:
            inventory.known.clear()
        inventory.known[content] = _cost_of(requests, inventory, seconds, clock)
    return inventory.known[content]


def _cost_of(
    requests: Iterable[wire.DeviceRequest], inventory: DeviceInventory, seconds: float, clock: Callable[[], float]
) -> ClaimCost:
    until = clock() + seconds
    total = ClaimCost()
    for request in requests:
        exact = request.exactly
        if exact is not None and exact.admin_access:
            continue
        alternatives = request.first_available or ((exact,) if exact is not None else ())
        costs = [
            ClassRequest(request.name or "", each, inventory).cost(max(0.0, until - clock()), clock)
            for each in alternatives
        ]
        if costs:
            total += reduce(_cheaper, [cost for cost in costs if not cost.problems] or costs)
    return total


def extended_requests(pod: Pod, classes: Mapping[str, str]) -> list[wire.DeviceRequest]:
    """The requests that kube-scheduler makes for extended resources; `classes` are those that take one, by resource.

    Where a node has the resource from a device plugin, it makes none: that is for the caller to know.
    """
    found = []
    for resource in sorted(pod.named):
        implicit = resource.removeprefix(IMPLICIT_RESOURCE) if resource.startswith(IMPLICIT_RESOURCE) else None
        name = classes.get(resource, implicit)
        if name is not None:
            rows = [(each.kind, _count(each.amount(resource))) for each in pod.containers]
            exact = wire.ExactRequest(device_class_name=name, count=effective(rows))
            found += [wire.DeviceRequest(resource, exact)] if exact.count else []
    return found


def expressions_of(selectors: Sequence[wire.DeviceSelector] | None) -> tuple[str, ...]:
    """The CEL expressions of selectors; of another kind of selector there is none."""
    return tuple(each.cel.expression for each in selectors or () if each.cel is not None and each.cel.expression)


def _count(written: object) -> int:
    try:
        return max(0, math.ceil(amount_of(written))) if written is not None else 0
    except MalformedObject:
        return 0  # the API server refuses it


def _cheaper(one: ClaimCost, other: ClaimCost) -> ClaimCost:
    """The least of both in each dimension: nothing, where they are of different vendors."""
    debits = {key: _least((one.debits[key], other.debits[key])) for key in one.debits.keys() & other.debits.keys()}
    return ClaimCost(debits, frozenset(Dimension), (*one.problems, *other.problems))


def _least(debits: Sequence[Debit], times: int = 1) -> Debit:
    """The least of them in each dimension, so many times."""
    return Debit(*(times * min(getattr(each, name) for each in debits) for name in ("slots", "memory", "cores")))


class ClassRequest:
    """A request of one class, with the amounts that it names. Raises `MalformedObject` for an amount that is none."""

    def __init__(self, name: str, request: wire.ExactRequest, inventory: DeviceInventory) -> None:
        self._name = name
        self._request = request
        self._inventory = inventory
        self._class = request.device_class_name or ""
        self.rows = [row for row in inventory.devices.rows if self._class in row.device_classes]
        written = (request.capacity or _NOTHING).requests or {}
        self._amounts = {key: amount_of(amount) for key, amount in written.items()}

    def cost(self, seconds: float, clock: Callable[[], float]) -> ClaimCost:
        """What it costs at least."""
        if not self.rows:
            return ClaimCost()
        devices = selected(self.devices, self.expressions, seconds=seconds, clock=clock)
        taken = {model: self.taken(model) for model in {device.model for device in devices}}
        takes = [(device, debit) for device in devices if (debit := taken[device.model]) is not None]
        whole_node = self._request.allocation_mode == "All"
        count = 1 if whole_node else max(1, self._request.count or 1)
        if not takes:
            return self._unsatisfied(count)
        sums: Iterable[tuple[str, Debit]] = ((device.model.row.vendor, debit) for device, debit in takes)
        if whole_node:
            sums = _by_node(takes)
        by_vendor: dict[str, list[Debit]] = defaultdict(list)
        for vendor, debit in sums:
            by_vendor[vendor].append(debit)
        if len(by_vendor) > 1:
            return ClaimCost()  # it may get any of them
        ((vendor, debits),) = by_vendor.items()
        return ClaimCost({vendor: _least(debits, count)}, self._floors({device.model for device, _ in takes}))

    @property
    def devices(self) -> Sequence[PublishedDevice]:
        """Those of which its class selects some; all that its class may mean while that isn't known."""
        devices = self._inventory.devices.all
        if self._class in self._inventory.classes:
            return devices
        return [each for each in devices if each.model.row in self.rows]

    @property
    def expressions(self) -> Sequence[str]:
        """The selectors of its class, then its own."""
        return (*self._inventory.classes.get(self._class, ()), *expressions_of(self._request.selectors))

    def taken(self, model: DeviceModel) -> Debit | None:
        """What it takes of one device; None if the device can't give that."""
        amounts = {model.qualified(key): amount for key, amount in self._amounts.items()}
        if any(model.consumed(name, amount) is None for name, amount in amounts.items()):
            return None
        memory, cores = model.qualified(model.row.memory), model.qualified(model.row.cores)
        return debit_of(
            model.row,
            model.consumed(memory, amounts.get(memory)),
            model.consumed(cores, amounts.get(cores)) if cores in model.capacity else None,
        )

    def _unsatisfied(self, count: int) -> ClaimCost:
        """Where no device is known that fits: what is declared, and 1 MiB where nothing is."""
        row = self.rows[0]
        declared = {QualifiedName.of(key, row.driver): amount for key, amount in self._amounts.items()}
        memory, cores = (declared.get(QualifiedName.of(name, row.driver)) for name in (row.memory, row.cores))
        least = debit_of(row, Fraction(1) if memory is None else memory, cores or Fraction(0))
        problem = f"request {self._name}: no device of class {self._class} that is published now can satisfy it"
        floors = frozenset(Dimension) if memory is None else frozenset()
        return ClaimCost({row.vendor: _least([least], count)}, floors, (problem,))

    def _floors(self, models: Iterable[DeviceModel]) -> frozenset[Dimension]:
        """The dimensions in which devices decide."""
        found = set()
        for model in models:
            names = {model.qualified(key) for key in self._amounts}
            for dimension, written in ((Dimension.MEMORY, model.row.memory), (Dimension.CORES, model.row.cores)):
                if not (model.shared and model.qualified(written) in names):
                    found.add(dimension)
        return frozenset(found)


def debit_of(row: DriverDevices, memory: Fraction | None, cores: Fraction | None) -> Debit:
    """One device, or share of one: `memory` in bytes, `cores` in percent of a card; None where it has none."""
    percent = row.whole_cores if cores is None else math.ceil(max(cores, Fraction(0)))
    return Debit(1, math.ceil(max(memory or Fraction(0), Fraction(0)) / MEBIBYTE), percent)


def _by_node(takes: Iterable[tuple[PublishedDevice, Debit]]) -> Iterable[tuple[str, Debit]]:
    """What all devices of a node come to, by vendor: `All` takes those of one node, or of a pool that is of none."""
    sums: dict[tuple[str, str, str], Debit] = {}
    for device, debit in takes:
        place = (device.node, "" if device.node else device.id.pool, device.model.row.vendor)
        sums[place] = sums.get(place, Debit()) + debit
    return [(vendor, debit) for (_, _, vendor), debit in sums.items()]
