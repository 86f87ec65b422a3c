"""What a pod is charged: what it declares while it waits, what it really holds once it is placed.

Source: docs/spec/quota.md#5.

Amounts are integers in the quota's own units. Pure: extender, controller and simulator must compute the same charge
(Q4), so all call these functions, which know no quota and no ledger. A waiting pod costs the least that any
placement of ours could (exceptions: Q11). Floor entries keep this cost constant while cards change (`floors`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.codecs import BadAnnotation
from hami_webhook.devices.debit import Debit, per_vendor
from hami_webhook.devices.device_lister import DeviceLister, NoDevices
from hami_webhook.devices.foreign_scheduler import ForeignCharge, ForeignScheduler, NodeLister
from hami_webhook.devices.keys import MEBIBYTE, Dimension
from hami_webhook.devices.model import BadRequest, Device, DeviceHold, Kinds, Request, Requests
from hami_webhook.devices.placement_annotations import NODE, placement_counts, read_placed
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.dra.allocation import ClaimedDevice
from hami_webhook.dra.claim_cache import PodClaims
from hami_webhook.kube.derived import DerivedValues
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.kube.requests import effective
from hami_webhook.quota.card_selection import CardSelection

NODE_LOCK_TIMEOUT = 300.0

_settled: DerivedValues[Pod, tuple[Vendors, Charge]] = DerivedValues()
"""Charges that stay what they are until the pod changes, with the vendors that they were worked out for."""
_of_nodes: DerivedValues[Pod, tuple[Vendors, weakref.ref[NodeLister], int, Charge]] = DerivedValues()
"""Charges of bound pods that other schedulers placed: they stay what they are until the pod or a node changes."""


class CardLister(DeviceLister, Protocol):
    """The registered cards, for the floor of requests whose size depends on the card or the node."""

    def eligible(self, vendor: Vendor, pod: Pod) -> Iterable[Device]:
        """The vendor's cards that the pod's UUID and type lists allow, on nodes that match its nodeSelector."""
        ...

    def held(self, vendor: Vendor, pod: Pod) -> Debit | None:
        """Return what Fit infers for a bound pod without an allocation; None if that isn't known."""
        ...

    def is_selected(self, cards: CardSelection, node: str, vendor: str, uuid: str) -> bool:
        """Whether a card that a pod holds is selected; True for one that isn't known."""
        ...

    def only_counted_devices(self, cards: CardSelection, vendor: Vendor, pod: Pod) -> bool:
        """Whether every eligible card is selected; False if there is none."""
        ...


class WithoutCards(NoDevices):
    """A lister without cards."""

    def eligible(self, vendor: Vendor, pod: Pod) -> Iterable[Device]:
        return ()

    def held(self, vendor: Vendor, pod: Pod) -> Debit | None:
        return None

    def is_selected(self, cards: CardSelection, node: str, vendor: str, uuid: str) -> bool:
        return True

    def only_counted_devices(self, cards: CardSelection, vendor: Vendor, pod: Pod) -> bool:
        return False


class ClusterCapacity(Struct, frozen=True):
    """What charges depend on beside the pod: the cards, and pods' ResourceClaims, None where these don't count."""

    cards: CardLister = WithoutCards()
    claims: PodClaims | None = None


class Charge(Struct, frozen=True):
    """Amounts by managed key, zeros left out; `floors` are the keys for which the smallest card or node was assumed.

    `remembered`: keys whose amount is that of the first waiting pod with this request, because templates and classes
    may be replaced later. `amounts` has them even if 0. `in_bytes`: amounts of keys that a quota may count in bytes;
    the account decides which of both it uses. `derivable`: the amounts follow from the pod alone, so nothing needs
    to be remembered. `placed`: they are those of a placement. `problems` are sentences for an event. `until`: see
    `ForeignCharge`.
    """

    amounts: Mapping[str, int] = {}
    floors: frozenset[str] = frozenset()
    derivable: bool = True
    placed: bool = False
    problems: tuple[str, ...] = ()
    in_bytes: Mapping[str, int] = {}
    until: float | None = None
    remembered: frozenset[str] = frozenset()

    @property
    def exact(self) -> dict[str, int]:
        """The amounts as the ledger has them: in bytes where a quota may count so, else in units."""
        return {**self.amounts, **self.in_bytes}

    def only(self, keys: Iterable[str]) -> dict[str, int]:
        """The exact amounts of the given keys."""
        exact = self.exact
        return {key: exact[key] for key in keys if key in exact}


_NOTHING = Charge()

Asks = tuple[Mapping[str, Requests], Sequence[ForeignScheduler]]
"""What a pod requests of vendors, by their keys, and the other schedulers that it asks for cards."""

ChargeOn = Callable[[CardSelection], Charge]
"""The part of a pod's charge that a quota counts which selects cards."""

PriceOn = Callable[[CardSelection | None], Charge]
"""What a pod or a claim costs by itself, of selected cards, or of all."""


class _ChargeBuilder(Struct):
    """A charge being added up, vendor by vendor; on selected cards only, if `cards` are given."""

    cards: CardSelection | None = None
    debits: dict[str, Debit] = {}
    others: dict[str, int] = {}
    floors: set[str] = set()
    problems: list[str] = []
    until: float | None = None
    placed: bool = False
    by_fit: bool = False
    remembered: set[str] = set()

    def add(self, vendor: Vendor, debit: Debit, floors: frozenset[Dimension] = frozenset()) -> None:
        known = self.debits.get(vendor.key)
        self.debits[vendor.key] = debit if known is None else known + debit
        if floors:
            self.floors |= {key.name for key in vendor.quota_keys() if key.dimension in floors}

    def add_foreign(self, charge: ForeignCharge, vendor: Vendor | None = None, *, selected: bool = True) -> None:
        """Add what another scheduler's pod costs; of the cards of our `vendor`, if they are `selected`.

        What containers name of that vendor is what the pod asks the other scheduler for: the larger amount counts.
        """
        if vendor is not None and selected:
            self.debits[vendor.key] = charge.debit.at_least(self.debits.get(vendor.key, Debit()))
            self.floors |= {key.name for key in vendor.quota_keys() if key.dimension in charge.least}
        self.others.update(charge.amounts)
        self.floors |= charge.floors
        self.problems += charge.problems
        self.until = min(filter(None, (self.until, charge.until)), default=None)

    def charge(self, vendors: Vendors) -> Charge:
        exact = in_bytes(self.debits, vendors)
        amounts = dict.fromkeys(self.remembered, 0) | in_units(self.debits, vendors, exact) | self.others
        floors = frozenset(key for key in self.floors if key in amounts)
        problems = tuple(dict.fromkeys(self.problems))
        return Charge(
            amounts,
            floors,
            not self.floors and not self.remembered and self.cards is None,
            self.placed,
            problems,
            exact,
            self.until,
            frozenset(self.remembered),
        )


def in_units(debits: Mapping[str, Debit], vendors: Vendors, exact: Mapping[str, int] | None = None) -> dict[str, int]:
    """Debits by backend key as amounts by managed key: memory is divided by the factor and rounded up once per pod.

    `exact`: the result of `in_bytes`, if the caller already has it.
    """
    amounts: dict[str, int] = {}
    for key, debit in debits.items():
        for quota_key in vendors.keys_of[key]:
            if quota_key.name in vendors.bytes_per_unit:
                continue
            if quota_key.dimension is Dimension.COUNT:
                amount = debit.slots
            elif quota_key.dimension is Dimension.MEMORY:
                amount = -(-debit.memory // quota_key.factor)
            else:
                amount = debit.cores
            if amount:
                amounts[quota_key.name] = amounts.get(quota_key.name, 0) + amount
    for name, amount in (in_bytes(debits, vendors) if exact is None else exact).items():
        amounts[name] = -(-amount // vendors.bytes_per_unit[name])
    return amounts


def in_bytes(debits: Mapping[str, Debit], vendors: Vendors) -> dict[str, int]:
    """The bytes of memory in debits, by managed key, for the keys that a quota may count in bytes."""
    amounts: dict[str, int] = {}
    for key, debit in debits.items() if vendors.bytes_per_unit else ():
        for quota_key in vendors.keys_of[key]:
            if debit.memory and quota_key.name in vendors.bytes_per_unit:
                amounts[quota_key.name] = amounts.get(quota_key.name, 0) + debit.memory * MEBIBYTE
    return amounts


def price_pending(
    pod: Pod,
    vendors: Vendors,
    capacity: ClusterCapacity,
    cards: CardSelection | None = None,
    *,
    asks: Asks | None = None,
) -> Charge:
    """Return the charge that the pod declares. With `cards`, return only what it could get on no other cards.

    `asks` are its requests, where the caller knows them. Raises `BadRequest` for an amount that admission refuses.
    """
    builder = _ChargeBuilder(cards)
    requests, foreign = asks or (
        {key: vendors[key].requests_of(pod) for key in sorted(named_in(pod, vendors))},
        vendors.foreign_among(pod, pod.named),
    )
    for key, of_vendor in requests.items():
        _add_waiting(builder, vendors[key], pod, of_vendor, capacity)
    for scheduler in foreign:
        builder.add_foreign(
            scheduler.waiting(pod, capacity.cards), vendors.get(scheduler.vendor), selected=cards is None
        )
    _add_claims(builder, pod, vendors, capacity)
    return builder.charge(vendors)


def admission_charge(
    pod: Pod, vendors: Vendors, capacity: ClusterCapacity, cards: CardSelection | None = None
) -> Charge:
    """What admission charges an existing pod today; nothing for amounts that it refuses."""
    try:
        return price_pending(pod, vendors, capacity, cards)
    except BadRequest:
        return Charge()


def named_in(pod: Pod, vendors: Vendors) -> frozenset[str]:
    """The keys of the vendors of which the pod names a resource."""
    return vendors.named_among(pod.named)


def placed_charge(claims: Sequence[DeviceHold], kinds: Kinds, vendors: Vendors) -> Charge:
    """What a placement costs, before anything of it is on the wire."""
    debits = per_vendor(claims, kinds)
    return Charge(in_units(debits, vendors), placed=True, in_bytes=in_bytes(debits, vendors))


def charge_of(
    pod: Pod,
    vendors: Vendors,
    capacity: ClusterCapacity,
    now: float,
    placement_ttl: float = NODE_LOCK_TIMEOUT,
    cards: CardSelection | None = None,
) -> Charge:
    """What a live pod costs at `now` (Unix seconds): by vendor its placement if that counts, else what it declares.

    A placement that was never bound expires after `placement_ttl` seconds. Charges of bound pods, and of pods
    without a placement, are computed once; those by another scheduler's allocation, once per version of the nodes.
    With `cards` it is what these cost. A pod that waits for quota costs nothing. In namespaces where another
    scheduler creates pods that reserve cards, limits cost nothing; such a pod costs the cards that it holds.
    """
    if pod.queued:
        return _NOTHING
    if cards is None:
        known = _settled.get(pod)
        if known is not None and known[0] is vendors:
            return known[1]
        of_nodes = _charge_of_nodes(pod, vendors, capacity)
        if of_nodes is not None:
            return of_nodes
    builder = _ChargeBuilder(cards)
    counts = placement_counts(pod, now, placement_ttl)
    resources = frozenset[str]() if pod.namespace in vendors.reserving else pod.named
    named = vendors.named_among(resources)
    # what a pod names nothing of, it can only hold by a placement
    placed = {vendor.key for vendor in vendors.allocated_in(pod.annotations)} if counts else set[str]()
    for key in sorted(named | placed):
        vendor = vendors[key]
        debit = _placed_debit(builder, vendor, pod, capacity, named=key in named) if counts else None
        if debit is not None:
            builder.add(vendor, debit)
            builder.placed = True
        elif key in named:
            _add_declared(builder, vendor, pod, capacity)
    foreign = vendors.foreign_to(pod, resources)
    for scheduler in foreign:
        _add_foreign(builder, scheduler, pod, vendors, capacity, now)
    _add_claims(builder, pod, vendors, capacity)
    charge = builder.charge(vendors)
    if cards is None and charge.derivable and not charge.problems:
        _keep(pod, vendors, capacity, charge, foreign=bool(foreign), by_fit=builder.by_fit)
    return charge


def _keep(
    pod: Pod, vendors: Vendors, capacity: ClusterCapacity, charge: Charge, *, foreign: bool, by_fit: bool
) -> None:
    """Keep a charge that stays what it is."""
    # claims and classes come and go without a change of their pod, and Fit's lister has none
    if vendors.drivers and (pod.resource_claims or pod.extended_claim or not pod.node_name):
        return
    # what another scheduler wrote is read with the node's cards, which may be known later; a placement that isn't bound
    # expires
    cacheable = charge.placed and not by_fit if pod.node_name else NODE not in pod.annotations
    if cacheable and not foreign:
        _settled.keep(pod, (vendors, charge))
    elif cacheable and pod.node_name:
        _of_nodes.keep(pod, (vendors, weakref.ref(capacity.cards), capacity.cards.version, charge))


def _charge_of_nodes(pod: Pod, vendors: Vendors, capacity: ClusterCapacity) -> Charge | None:
    """What was found for the pod with the nodes as they still are."""
    found = _of_nodes.get(pod)
    if found is None:
        return None
    of_vendors, origin, version, charge = found
    same = of_vendors is vendors and version == capacity.cards.version and origin() is capacity.cards
    return charge if same else None


def is_settled(pod: Pod, vendors: Vendors, charge: Charge) -> bool:
    """Whether a bound pod's charge stays what it is until the pod changes."""
    known = _settled.get(pod)
    if known is not None and known[0] is vendors:
        return True
    return not (charge.amounts or charge.problems or charge.floors or pod.resource_claims)


def _add_claims(builder: _ChargeBuilder, pod: Pod, vendors: Vendors, capacity: ClusterCapacity) -> None:
    """Add what a pod's own claims hold, and what those that wait will cost; of selected cards what they hold."""
    if capacity.claims is None:
        return
    holder = capacity.claims.of(pod)
    if holder is None:
        return
    builder.placed |= holder.allocated
    for device in holder.devices:
        if builder.cards is None or selects(builder.cards, device, capacity):
            builder.add(vendors[device.vendor], device.debit)
    for key, debit in holder.lacking.items() if builder.cards is None else ():
        builder.add(vendors[key], debit)
    if holder.waits and not holder.allocated and builder.cards is None:
        for key, debit in holder.wait.debits.items():
            builder.add(vendors[key], debit, holder.wait.floors)
        builder.remembered |= {key.name for row in vendors.drivers for key in vendors.keys_of[row.vendor]}


def selects(cards: CardSelection, device: ClaimedDevice, capacity: ClusterCapacity) -> bool:
    """Whether a device that a claim holds is selected; True for one that isn't known."""
    return not device.model or _is_on(cards, device.model, capacity.cards.node(device.node))


def _is_on(cards: CardSelection, model: str, node: Node | None) -> bool:
    """Whether a node's card of this type is selected; one of an unknown type by the node alone."""
    labels = node.labels if node is not None else {}
    return cards.admits(model, labels) if model else cards.on_node(labels)


def _placed_debit(
    builder: _ChargeBuilder, vendor: Vendor, pod: Pod, capacity: ClusterCapacity, *, named: bool
) -> Debit | None:
    """What a placed pod holds of a vendor: by its annotation, else, if it names it and is bound without one, by Fit."""
    try:
        placed = read_placed(vendor, pod)
    except BadAnnotation as error:
        builder.problems.append(
            f"{vendor.keys.allocated} can't be read, so the amounts that the pod declares count: {error}"
        )
        return None
    if placed is not None:
        if builder.cards is not None:
            cards, node = builder.cards, pod.node_name or pod.annotations[NODE]
            counted = [
                claim for claim in placed.counted if capacity.cards.is_selected(cards, node, vendor.key, claim.uuid)
            ]
            placed = replace(placed, counted=tuple(counted))
        return placed.debit(init_finished=pod.init_finished)
    if pod.node_name and named:
        builder.by_fit = True
        if builder.cards is not None and not capacity.cards.is_selected(builder.cards, pod.node_name, vendor.key, ""):
            return Debit()
        return capacity.cards.held(vendor, pod)
    return None


def overrun(pod: Pod, charge: Charge, keys: Collection[str], vendors: Vendors, capacity: ClusterCapacity) -> list[str]:
    """Return those of `keys` of which the placement costs more than the admission's charge.

    Only other schedulers' placements can.
    """
    found: set[str] = set()
    for scheduler in vendors.foreign if charge.placed else ():
        own = (key.name for key in vendors.keys_of.get(scheduler.vendor, ()))
        mine = [key for key in (*scheduler.quota_keys, *own) if key in keys and key in charge.amounts]
        if mine and scheduler.concerns(pod):
            declared = _declared(scheduler, pod, capacity)
            debits = {scheduler.vendor: declared.debit} if scheduler.vendor else {}
            before = {**declared.amounts, **in_units(debits, vendors)}
            found.update(key for key in mine if charge.amounts[key] > before.get(key, 0))
    return sorted(found)


def _add_foreign(
    builder: _ChargeBuilder,
    scheduler: ForeignScheduler,
    pod: Pod,
    vendors: Vendors,
    capacity: ClusterCapacity,
    now: float,
) -> None:
    """Add what another scheduler's pod costs: by its allocation never less than the pod itself declares.

    What depends on the card is as written: the least it could be is an estimate, of cards that are registered now.
    """
    placed, declared = scheduler.placed(pod, capacity.cards, now), _declared(scheduler, pod, capacity)
    vendor, cards = vendors.get(scheduler.vendor), builder.cards
    if placed is None:
        builder.add_foreign(declared, vendor, selected=cards is None)
        return
    exact = {key: amount for key, amount in declared.amounts.items() if key not in declared.floors}
    amounts = {**placed.amounts, **{key: max(amount, placed.amounts.get(key, 0)) for key, amount in exact.items()}}
    builder.placed = True
    selected = cards is None or _is_on(cards, placed.model, capacity.cards.node(scheduler.node_of(pod)))
    builder.add_foreign(replace(placed, amounts=amounts), vendor, selected=selected)


def _declared(scheduler: ForeignScheduler, pod: Pod, capacity: ClusterCapacity) -> ForeignCharge:
    """What an existing pod costs while it waits."""
    try:
        return scheduler.waiting(pod, capacity.cards)
    except BadRequest as error:
        return ForeignCharge({}, problems=(str(error),))


def _add_declared(builder: _ChargeBuilder, vendor: Vendor, pod: Pod, capacity: ClusterCapacity) -> None:
    """Add what a pod declares of a vendor; what can't be meant is a problem."""
    try:
        _add_waiting(builder, vendor, pod, vendor.requests_of(pod), capacity)
    except BadRequest as error:
        builder.problems.append(str(error))


def _add_waiting(
    builder: _ChargeBuilder, vendor: Vendor, pod: Pod, requested: Requests, capacity: ClusterCapacity
) -> None:
    if not any(requested):
        return
    if builder.cards is not None and not capacity.cards.only_counted_devices(builder.cards, vendor, pod):
        return
    floors = frozenset(dimension for request in requested if request for dimension in vendor.decided_later(request))
    cards = list(capacity.cards.eligible(vendor, pod)) if floors else []
    rows = [_least(vendor, request, capacity, cards) if request else (0, 0, 0) for request in requested]
    kinds, columns = pod.kinds, zip(*rows, strict=True)
    peaks = [effective(zip(kinds, column, strict=True), init_finished=pod.init_finished) for column in columns]
    builder.add(vendor, Debit(*peaks), floors)


def _least(
    vendor: Vendor, request: Request, capacity: ClusterCapacity, cards: Sequence[Device]
) -> tuple[int, int, int]:
    """The slots, MiB and cores that a container's request comes to at least.

    A device's memory is what is declared, else the least any eligible card is charged with; 1 unit if none is known.
    """
    least = vendor.least(request, capacity.cards, cards)
    memory = least.memory.declared
    if memory is None:
        floors = [amount for card in cards if (amount := vendor.floor(least, card)) is not None]
        memory = max(1, min(floors)) if floors else vendor.memory_factor
    return least.count * least.slots, least.count * memory, least.count * least.cores
