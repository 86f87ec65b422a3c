"""What a claim costs while nothing is allocated: the least that it can get (docs/spec/dra.md#3).

So a refusal is correct whatever is allocated later, as for pods with limits (Q11). `allocation.py` computes the charge
of the allocation. The module reads no cluster, and no clock except to limit the time of selectors.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from typing import NamedTuple

import msgspec
from msgspec import Struct

from hami_webhook.config.drivers import DriverDevices
from hami_webhook.devices.debit import Debit
from hami_webhook.devices.keys import MEBIBYTE, Dimension
from hami_webhook.dra.capacity import amount_of
from hami_webhook.dra.devices import DeviceModel, PublishedDevice, PublishedDevices, PublishedSlice, QualifiedName
from hami_webhook.dra.selectors import Budget, rejected
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.objects import MalformedObject, Pod
from hami_webhook.kube.requests import effective
from hami_webhook.time_slices import Steps, run_at_once

SECONDS = 0.25
"""For all selectors of a claim, or of the claims that will be made for a pod: a review waits no longer for them."""
_SECONDS_TO_UPDATE = 0.02
"""For the same where only some slices have changed since."""
_MOST_KNOWN = 4096
"""Costs that are remembered."""
IMPLICIT_RESOURCE = "deviceclass.resource.kubernetes.io/"
"""With the name of a class: the extended resource that every class has."""

Debits = Mapping[str, Debit]
"""By vendor's key."""
_NOTHING = wire.CapacityRequirements()


class Place(NamedTuple):
    """Devices of one model, on a node or in a pool that belongs to no node."""

    model: DeviceModel
    node: str
    pool: str


class DeviceInventory(Struct, frozen=True):
    """What is known of the cluster's devices: by class its selectors, and the devices that are published.

    `extended` are the classes that take an extended resource, by its name. `known`: computed costs by request.
    `places`: the number of devices that a class selects, by node and model, for each class. Each is valid for one
    version of the devices.
    """

    classes: Mapping[str, Sequence[str]]
    devices: PublishedDevices
    extended: Mapping[str, str] = {}
    known: dict[bytes, KnownCost] = {}
    places: dict[str, tuple[int, Mapping[Place, int]]] = {}


class ClaimCost(Struct, frozen=True):
    """Debits by vendor; `floors` are the dimensions for which the smallest device was assumed.

    `problems`: sentences for the claim's author.
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


class KnownCost(NamedTuple):
    """A cost for one version of the devices. `complete`: False if the time didn't suffice for all selectors."""

    cost: ClaimCost
    version: int
    complete: bool


def cost_of(
    requests: Iterable[wire.DeviceRequest],
    inventory: DeviceInventory,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> ClaimCost:
    """What a claim with these requests costs at least; nothing for classes that the configuration doesn't name.

    The cost is computed once per version of the devices, because tenants may write slow selectors. An update of a known
    cost gets a smaller time budget than the first computation. Raises `MalformedObject`.
    """
    requests = tuple(requests)
    found = inventory.known.get(msgspec.json.encode(requests))
    if found is not None and found.version == inventory.devices.version:
        return found.cost
    if found is not None:
        seconds = min(seconds, _SECONDS_TO_UPDATE)
    return run_at_once(cost_steps(requests, inventory, Budget(seconds, clock)))


def is_known(requests: Sequence[wire.DeviceRequest], inventory: DeviceInventory) -> bool:
    """Return whether the cost of these requests is known for the present devices, with all selectors evaluated."""
    found = inventory.known.get(msgspec.json.encode(tuple(requests)))
    return found is not None and found.version == inventory.devices.version and found.complete


def has_selectors(requests: Iterable[wire.DeviceRequest]) -> bool:
    """Return whether a request, or one of its alternatives, has its own selectors."""
    return any(each.selectors for each in _alternatives(requests))


def classes_of(requests: Iterable[wire.DeviceRequest]) -> set[str]:
    """Return the DeviceClasses from which the requests, or their alternatives, request devices."""
    return {each.device_class_name or "" for each in _alternatives(requests) if not each.admin_access}


def _alternatives(requests: Iterable[wire.DeviceRequest]) -> Iterator[wire.ExactRequest]:
    for each in requests:
        yield from (each.exactly,) if each.exactly else each.first_available or ()


def cost_steps(requests: Sequence[wire.DeviceRequest], inventory: DeviceInventory, budget: Budget) -> Steps[ClaimCost]:
    """Compute `cost_of` in steps.

    A later call continues with the selectors for which the time didn't suffice. Raises `MalformedObject`.
    """
    content, version = msgspec.json.encode(tuple(requests)), inventory.devices.version
    found = inventory.known.get(content)
    if found is not None and found.version == version and found.complete:
        return found.cost
    cost = yield from _cost_of(requests, inventory, budget)
    if len(inventory.known) >= _MOST_KNOWN:
        inventory.known.clear()
    inventory.known[content] = KnownCost(cost, version, not budget.spent)
    return cost


def _cost_of(requests: Iterable[wire.DeviceRequest], inventory: DeviceInventory, budget: Budget) -> Steps[ClaimCost]:
    total = ClaimCost()
    for request in requests:
        exact = request.exactly
        if exact is not None and exact.admin_access:
            continue
        alternatives = request.first_available or ((exact,) if exact is not None else ())
        costs = []
        for each in alternatives:
            costs.append((yield from ClassRequest(request.name or "", each, inventory).cost(budget)))
        if costs:
            total += reduce(_cheaper, [cost for cost in costs if not cost.problems] or costs)
    return total


def extended_requests(pod: Pod, classes: Mapping[str, str]) -> list[wire.DeviceRequest]:
    """The requests that kube-scheduler makes for extended resources; `classes` are those that take one, by resource.

    kube-scheduler creates no request if the node gets the resource from a device plugin; the caller must check this.
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
    """Return the CEL expressions of the selectors. Selectors of other kinds have none."""
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

    def cost(self, budget: Budget) -> Steps[ClaimCost]:
        """What it costs at least."""
        if not self.rows:
            return ClaimCost()
        places = yield from self.places(budget)
        taken = {model: self.taken(model) for model in {place.model for place in places}}
        debits = {model: debit for model, debit in taken.items() if debit is not None}
        return self._cheapest(debits, {place: number for place, number in places.items() if place.model in debits})

    def places(self, budget: Budget) -> Steps[Mapping[Place, int]]:
        """Return the number of devices that are, or may be, selected, by model and node."""
        own = [each for each in expressions_of(self._request.selectors) if budget.admits(each)]
        devices = self._inventory.devices
        version, found = devices.version, dict[Place, int]()
        known = self._inventory.places.get(self._class)
        if not own and known is not None and known[0] == version:
            return known[1]
        for each in list(devices.slices()):
            selects = yield from self._selected(each, own, budget)
            for model, node, bits in each.groups:
                if bits & selects:
                    place = Place(model, node, "" if node else each.pool)
                    found[place] = found.get(place, 0) + (bits & selects).bit_count()
            yield
        if not (own or budget.spent):
            self._inventory.places[self._class] = (version, found)
        return found

    def _selected(self, each: PublishedSlice, own: Sequence[str], budget: Budget) -> Steps[int]:
        """The bits of a slice's devices that are selected."""
        of_class = self._inventory.classes.get(self._class)
        selects = each.bits
        if of_class is None:
            selects = sum(group.bits for group in each.groups if group.model.row in self.rows)
        for expressions, is_class in ((of_class or (), True), (own, False)):
            for expression in expressions:
                if selects:
                    selects &= ~(yield from rejected(each, expression, selects, budget, of_class=is_class))
        return selects

    def _cheapest(self, debits_of: Mapping[DeviceModel, Debit], takes: Mapping[Place, int]) -> ClaimCost:
        whole_node = self._request.allocation_mode == "All"
        count = 1 if whole_node else max(1, self._request.count or 1)
        if not takes:
            return self._unsatisfied(count)
        sums: Iterable[tuple[str, Debit]] = ((model.row.vendor, debit) for model, debit in debits_of.items())
        if whole_node:
            sums = _by_node(takes, debits_of)
        by_vendor: dict[str, list[Debit]] = defaultdict(list)
        for vendor, debit in sums:
            by_vendor[vendor].append(debit)
        if len(by_vendor) > 1:
            return ClaimCost()  # it may get any of them
        ((vendor, debits),) = by_vendor.items()
        return ClaimCost({vendor: _least(debits, count)}, self._floors(debits_of))

    @property
    def devices(self) -> Sequence[PublishedDevice]:
        """Return the devices to which the class's selectors apply; all that it may select while it isn't known."""
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
        amounts = self._qualified(model.row)
        if any(model.consumed(name, amount) is None for name, amount in amounts.items()):
            return None
        memory, cores = model.qualified(model.row.memory), model.qualified(model.row.cores)
        return debit_on(
            model,
            model.consumed(memory, amounts.get(memory)),
            model.consumed(cores, amounts.get(cores)) if cores in model.capacity else None,
            amounts.get(model.qualified(model.row.shares)),
        )

    def _qualified(self, row: DriverDevices) -> dict[QualifiedName, Fraction]:
        """The amounts by the names that they have with their domain; of two for one capacity the larger."""
        found: dict[QualifiedName, Fraction] = {}
        for key, amount in self._amounts.items():
            name = QualifiedName.of(key, row.driver)
            found[name] = max(amount, found.get(name, amount))
        return found

    def _unsatisfied(self, count: int) -> ClaimCost:
        """Where no device is known that fits: what is declared, and 1 MiB where nothing is."""
        row = self.rows[0]
        declared = self._qualified(row)
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
                if not (model.shared and model.qualified(written) in names) or model.share():
                    found.add(dimension)
        return frozenset(found)


def debit_of(row: DriverDevices, memory: Fraction | None, cores: Fraction | None) -> Debit:
    """One device, or share of one: `memory` in bytes, `cores` in percent of a card; None where it has none."""
    percent = row.whole_cores if cores is None else math.ceil(max(cores, Fraction(0)))
    return Debit(1, math.ceil(max(memory or Fraction(0), Fraction(0)) / MEBIBYTE), percent)


def debit_on(
    model: DeviceModel, memory: Fraction | None, cores: Fraction | None, shares: Fraction | None = None
) -> Debit:
    """Return the debit of a device of a known model, of which a claim takes `shares` (None: the default number)."""
    part = model.share(shares)
    if part:
        whole = model.capacity[model.qualified(model.row.memory)].value
        memory = max(memory or Fraction(0), part * whole)
        cores = part * model.row.whole_cores if cores is None else cores
    return debit_of(model.row, memory, cores)


def _by_node(takes: Mapping[Place, int], debits: Mapping[DeviceModel, Debit]) -> Iterable[tuple[str, Debit]]:
    """What all devices of a node come to, by vendor: `All` takes those of one node, or of a pool that is of none."""
    sums: dict[tuple[str, str, str], Debit] = {}
    for (model, node, pool), number in takes.items():
        place = (node, pool, model.row.vendor)
        sums[place] = sums.get(place, Debit()) + _least([debits[model]], number)
    return [(vendor, debit) for (_, _, vendor), debit in sums.items()]
