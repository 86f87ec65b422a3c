"""Limits as ResourceClaims: what a pod's containers request of vendors, as templates of claims (docs/spec/dra.md#8).

The claims cost what the limits would on equal cards. The module reads no cluster, and no clock except to limit the time
of selectors.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

from msgspec import Struct

from hami_webhook.config.drivers import WHOLE_CARD, DriverDevices
from hami_webhook.devices.codecs import parse_bool
from hami_webhook.devices.keys import MEBIBYTE
from hami_webhook.devices.model import BadRequest, MemoryRequest, Request, Requests, ShareOfCard
from hami_webhook.devices.pod_preferences import GPU_POLICY, NODE_POLICY, NUMA_BIND, WEIGHTS
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.dra import claim_templates as form
from hami_webhook.dra.cel_text import capacity_is, types_admitted, uuids_admitted
from hami_webhook.dra.cost import SECONDS, ClassRequest, DeviceInventory
from hami_webhook.dra.devices import DeviceModel, QualifiedName
from hami_webhook.dra.selectors import LONGEST_EXPRESSION, Budget
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import ContainerKind, Pod
from hami_webhook.kube.pod_group import SIZE, PodGroup
from hami_webhook.time_slices import run_at_once

_MOST_DEVICES = 32
"""Devices of a claim, as the API server has it."""
_MOST_CONTAINERS = 32
"""That ask for cards: which of them share a claim is compared each with each."""
_MOST_ALTERNATIVES = 8
"""Of a request, as the API server has it."""


class ContainerClaim(Struct, frozen=True):
    """An item of a container's `resources.claims`: the claim's name in the pod, and one of its requests, or none for
    all.
    """

    name: str
    request: str | None = None


class Conversion(Struct, frozen=True):
    """A pod's claims in place of its limits; `specs` are those of their templates.

    `claims`: template names by claim name in the pod. `containers`: the claims of each container by its index, init
    containers first. `resources`: the resource names to remove from the containers.
    """

    specs: tuple[form.TemplateSpec, ...]
    claims: Mapping[str, str]
    containers: Mapping[int, Sequence[ContainerClaim]]
    resources: frozenset[str]
    annotation: str

    def apply(self, draft: PodDraft) -> None:
        """Write the claims on the pod, and take the limits from it."""
        draft.annotations[form.TEMPLATE_SPECS] = self.annotation
        for name, template in self.claims.items():
            draft.add_claim(name, template)
        for row, container in enumerate(draft.containers):
            for resource in self.resources & container.named:
                for amounts in (container.limits, container.requests):
                    if resource in amounts:
                        del amounts[resource]
            for claim in self.containers.get(row, ()):
                container.claims.append({"name": claim.name, **({"request": claim.request} if claim.request else {})})


def convert(
    pod: Pod,
    requests: Mapping[str, Requests],
    vendors: Vendors,
    inventory: DeviceInventory,
    clock: Callable[[], float] = time.monotonic,
) -> Conversion | None:
    """Return the claims that replace a pod's limits; None if it requests no vendor whose limits become claims.

    Raises `BadRequest` for a request that no claim can express.
    """
    covered = {row.vendor for row in vendors.converting} & requests.keys()
    if not covered:
        return None
    group = PodGroup.of(pod)
    if group is not None and SIZE in pod.labels:
        raise BadRequest(
            f"pod group {group.name}: its pods are charged and placed together by limits only; remove the label {SIZE}"
        )
    asking = sum(any(rows) for rows in zip(*requests.values(), strict=True))
    if asking > _MOST_CONTAINERS:
        raise BadRequest(f"{asking} containers request cards; limits of {_MOST_CONTAINERS} at most become claims")
    others = sorted(requests.keys() - covered)
    if others:
        raise BadRequest(
            f"{', '.join(sorted(covered))} is requested by ResourceClaims here, which no extender places, and by the "
            f"section dra no limits of {', '.join(others)} become claims; ask for one of both"
        )
    specs: list[form.TemplateSpec] = []
    claims: dict[str, str] = {}
    containers: dict[int, list[ContainerClaim]] = {}
    taken = {each.name for each in pod.resource_claims}
    names = (name for number in range(_MOST_DEVICES**2) if (name := f"hami-{number}") not in taken)
    for key in sorted(covered):
        converter = _Converter(pod, vendors[key], vendors.converting, inventory, clock)
        for shared in _shared_claims(pod, requests[key]):
            spec = converter.spec(shared)
            name = next(names)
            specs.append(spec)
            claims[name] = spec.name
            for user in shared.users:
                containers.setdefault(user.row, []).append(ContainerClaim(name, shared.request_of(user)))
    # a pod that was converted before another webhook added a container keeps its templates
    declared = form.declared_templates(pod, vendors.converting)
    annotation = form.annotation_of([*declared.values(), *specs])
    if len(annotation) > form.LONGEST_SPECS:
        raise BadRequest(f"the pod's claims make more than {form.LONGEST_SPECS} characters; shorten its lists of cards")
    if len({*declared, *claims.values()}) > form.MOST_SPECS:
        raise BadRequest(f"the pod's claims are of more than {form.MOST_SPECS} templates; ask for equal amounts")
    resources = frozenset(name for key in covered for name in vendors[key].resource_names)
    return Conversion(tuple(specs), claims, containers, resources, annotation)


class _User(Struct, frozen=True):
    """A container with its request; `row` is its place."""

    row: int
    request: Request


class _SharedClaim(Struct, frozen=True):
    """A claim of containers that never run at the same time, the first of which it was made for."""

    users: tuple[_User, ...]

    @property
    def counts(self) -> list[int]:
        """The devices of its requests, each of which is for containers that want at least as many as up to there."""
        wanted = sorted({user.request.count for user in self.users})
        return [count - before for before, count in zip([0, *wanted], wanted, strict=False)]

    @property
    def expressible(self) -> bool:
        """A container names one of a claim's requests, or all of them."""
        return len(self.counts) <= 2  # one that all share, and the rest

    @property
    def memories(self) -> list[tuple[MemoryRequest, ...]]:
        """What each request has to hold, by those that use it."""
        return [tuple(dict.fromkeys(user.request.memory for user in users)) for users in self._users()]

    @property
    def cores(self) -> list[int]:
        return [max(user.request.cores for user in users) for users in self._users()]

    def request_of(self, user: _User) -> str | None:
        """The request that a container names; None for all."""
        return None if user.request.count == sum(self.counts) else _name_of(0)

    def size(self) -> tuple[int, int, int]:
        """How much it is, for comparison: percentages as if of a card of 100 MiB."""
        memory = sum(
            count * max(each.on(_ANY_CARD) for each in memories)
            for count, memories in zip(self.counts, self.memories, strict=True)
        )
        cores = sum(count * cores for count, cores in zip(self.counts, self.cores, strict=True))
        return memory, cores, sum(self.counts)

    def _users(self) -> Iterator[list[_User]]:
        total = 0
        for count in self.counts:
            total += count
            yield [user for user in self.users if user.request.count >= total]


_ANY_CARD = 100


def _name_of(index: int) -> str:
    return f"cards-{index}"


def _shared_claims(pod: Pod, requests: Requests) -> list[_SharedClaim]:
    """The claims that a pod needs, in the order of its containers.

    An ordinary init container is over before those run that start after it, so it has the cards of one of them, where
    a claim can say so; the claim is then as large as the larger of both, as the pod's peak is.
    """
    kinds = pod.kinds
    claims: dict[int, _SharedClaim] = {}
    for row, request in enumerate(requests):
        if request is not None and kinds[row] is not ContainerKind.INIT:
            claims[row] = _SharedClaim((_User(row, request),))
    for row, request in enumerate(requests):
        if request is None or kinds[row] is not ContainerKind.INIT:
            continue
        user = _User(row, request)
        later = [first for first, claim in claims.items() if first > row or kinds[first] is ContainerKind.INIT]
        found = [(first, _SharedClaim((*claims[first].users, user))) for first in later]
        joined = [(_growth(claims[first], claim), first, claim) for first, claim in found if claim.expressible]
        if joined:
            _, first, claim = min(joined, key=lambda each: each[:2])
            claims[first] = claim
        else:
            claims[row] = _SharedClaim((user,))
    return [claims[row] for row in sorted(claims)]


def _growth(before: _SharedClaim, after: _SharedClaim) -> tuple[int, ...]:
    return tuple(now - then for now, then in zip(after.size(), before.size(), strict=True))


class _Converter:
    """The templates of one vendor's claims."""

    def __init__(
        self,
        pod: Pod,
        vendor: Vendor,
        rows: Iterable[DriverDevices],
        inventory: DeviceInventory,
        clock: Callable[[], float],
    ) -> None:
        self._pod = pod
        self._vendor = vendor
        rows = [row for row in rows if row.vendor == vendor.key]
        known = [row for row in rows if not inventory.classes.keys().isdisjoint(row.device_classes)]
        self._rows = known or rows
        self._inventory = inventory
        self._clock = clock
        self._cards: dict[tuple[str, str], _Cards] = {}
        """By driver and type of their row."""
        self._uuids, self._types = vendor.lists(pod.annotations)
        self._refuse_choices()

    def spec(self, claim: _SharedClaim) -> form.TemplateSpec:
        """The template of a claim. Raises `BadRequest`."""
        for user in claim.users:
            if user.request.slots != 1 or user.request.profile is not None:
                raise BadRequest(f"container {self._named(user)}: a claim can't request a part of a card's hardware")
        total = sum(claim.counts)
        if total > _MOST_DEVICES:
            raise BadRequest(
                f"container {self._named(claim.users[0])}: {total} devices are more than the {_MOST_DEVICES} of a "
                "ResourceClaim"
            )
        row = next((row for row in self._rows if _can_say(row, claim)), None)
        if row is None:
            drivers = ", ".join(dict.fromkeys(row.driver for row in self._rows))
            where = f"container {self._named(claim.users[0])}"
            raise BadRequest(f"{where}: {drivers} gives whole cards only, and a part of one is asked for")
        cards = self._cards.get((row.driver, row.type))
        if cards is None:
            cards = _Cards(row, self._inventory, self._selectors(row), self._clock)
            self._cards[row.driver, row.type] = cards
        requests = tuple(
            self._request(_name_of(index), count, memories, cores, cards)
            for index, (count, memories, cores) in enumerate(
                zip(claim.counts, claim.memories, claim.cores, strict=True)
            )
        )
        return form.TemplateSpec(form.DevicesClaim(requests, tuple(self._constraints(row, claim))))

    def _named(self, user: _User) -> str:
        return self._pod.containers[user.row].name

    def _refuse_choices(self) -> None:
        """Raise `BadRequest` for an annotation that chooses among cards as no claim can."""
        annotations, vendor = self._pod.annotations, self._vendor
        said = {NUMA_BIND, *vendor.linked_annotations}
        for key in (GPU_POLICY, NODE_POLICY, WEIGHTS, *vendor.keys.choices):
            if key in annotations and key not in said and not self._is_usual(key):
                raise BadRequest(
                    f"annotation {key}: which devices a ResourceClaim gets is kube-scheduler's choice here; remove the "
                    "annotation"
                )
        if self._uuids.allows_nothing or self._types.allows_nothing:
            raise BadRequest("a list of cards that names none allows no card; remove the annotation, or name cards")

    def _is_usual(self, key: str) -> bool:
        usual = self._vendor.shared_mode.get(key)
        return usual is not None and usual in self._pod.annotations[key]

    def _selectors(self, row: DriverDevices) -> tuple[form.Selector, ...]:
        """Those of the pod's lists."""
        expressions: list[str] = []
        for rule, written, what, admitted in (
            (self._uuids, row.uuid, "UUID", uuids_admitted),
            (self._types, row.model, "model", types_admitted),
        ):
            if rule.length and not written:
                raise BadRequest(f"devices of {row.driver} have no attribute with their {what}, which a list names")
            expressions += admitted(QualifiedName.of(written, row.driver), rule) if rule.length else []
        if any(len(each) > LONGEST_EXPRESSION for each in expressions):
            raise BadRequest(
                f"a list of cards makes an expression of more than {LONGEST_EXPRESSION} characters; shorten it"
            )
        return tuple(form.Selector(form.Cel(each)) for each in expressions)

    def _constraints(self, row: DriverDevices, claim: _SharedClaim) -> Iterator[form.Constraint]:
        if sum(claim.counts) == 1:
            return
        if row.cores:  # its devices are shared, and one could be given twice
            yield form.Constraint(distinct_attribute=self._qualified(row, row.uuid, "UUID, by which cards differ"))
        wants = self._pod.annotations
        if parse_bool(wants.get(NUMA_BIND, "")) is True:
            yield form.Constraint(match_attribute=self._qualified(row, row.numa, f"NUMA node ({NUMA_BIND})"))
        for key in self._vendor.linked_annotations:
            if parse_bool(wants.get(key, "")) is True:
                yield form.Constraint(match_attribute=self._qualified(row, row.link_group, f"link group ({key})"))

    def _qualified(self, row: DriverDevices, written: str, what: str) -> str:
        if not written:
            raise BadRequest(f"devices of {row.driver} have no attribute with their {what}")
        return "/".join(QualifiedName.of(written, row.driver))

    def _request(
        self, name: str, count: int, memories: tuple[MemoryRequest, ...], cores: int, cards: _Cards
    ) -> form.DevicesRequest:
        """So many cards, each with the largest of these amounts of memory."""
        row = cards.row

        def devices(amounts: Mapping[str, str], size: Fraction | None, alternative: str | None) -> form.Devices:
            selectors = cards.selectors
            if size is not None:
                expression = capacity_is(QualifiedName.of(row.memory, row.driver), _written(size))
                selectors = (*selectors, form.Selector(form.Cel(expression)))
            capacity = form.Capacity(dict(amounts)) if amounts else None
            return form.Devices(row.device_classes[0], count, alternative, selectors, capacity)

        given = {row.cores: str(cores)} if row.cores else {}
        fixed = [each.declared for each in memories]
        if None not in fixed:
            most = max(1, *(each for each in fixed if each is not None))
            return form.DevicesRequest(name, devices({**given, row.memory: f"{most}Mi"}, None, None))
        if len(memories) == 1 and _is_whole(memories) and cards.whole_by_default:
            return form.DevicesRequest(name, devices(given, None, None))
        sizes = [(size, mebibytes) for size in cards.sizes if (mebibytes := _memory_on(size, memories)) is not None]
        if not sizes:
            raise BadRequest(
                f"no device of class {row.device_classes[0]} that its lists admit is published, so a percentage of it "
                "isn't known; request an amount"
            )
        alternatives = [
            devices({**given, row.memory: f"{mebibytes}Mi"}, size, f"size-{index}" if len(sizes) > 1 else None)
            for index, (size, mebibytes) in enumerate(sizes)
        ]
        if len(alternatives) == 1:
            return form.DevicesRequest(name, alternatives[0])
        return form.DevicesRequest(name, first_available=tuple(alternatives))


def _can_say(row: DriverDevices, claim: _SharedClaim) -> bool:
    """Whether devices of a row can be given as requested: shared, or whole to who asks for the whole."""
    if row.cores:
        return True
    return all(map(_is_whole, claim.memories)) and set(claim.cores) <= {row.whole_cores}


def _is_whole(memories: Iterable[MemoryRequest]) -> bool:
    return ShareOfCard(WHOLE_CARD) in memories


def _memory_on(size: Fraction, memories: Iterable[MemoryRequest]) -> int | None:
    """MiB of a card with so many bytes; None where the card has less."""
    mebibytes = int(size / MEBIBYTE)
    needed = max(1, *(each.on(mebibytes) for each in memories))
    return needed if needed <= mebibytes else None


def _written(amount: Fraction) -> str:
    """Bytes as a quantity, in MiB where they are whole ones."""
    mebibytes = amount / MEBIBYTE
    return f"{mebibytes.numerator}Mi" if mebibytes.denominator == 1 else str(int(amount))


class _Cards:
    """The published devices of a row that a claim may get."""

    def __init__(
        self,
        row: DriverDevices,
        inventory: DeviceInventory,
        selectors: tuple[form.Selector, ...],
        clock: Callable[[], float],
    ) -> None:
        self.row = row
        self.selectors = selectors
        self._inventory = inventory
        self._clock = clock

    @cached_property
    def _numbers(self) -> Mapping[DeviceModel, int]:
        """How many cards there are of each model."""
        own = tuple(wire.DeviceSelector(wire.CELSelector(each.cel.expression)) for each in self.selectors)
        request = wire.ExactRequest(device_class_name=self.row.device_classes[0], selectors=own)
        steps = ClassRequest("", request, self._inventory).places(Budget(SECONDS, self._clock))
        found: dict[DeviceModel, int] = {}
        for place, number in run_at_once(steps).items():
            if place.model.row is self.row:
                found[place.model] = found.get(place.model, 0) + number
        return found

    @cached_property
    def whole_by_default(self) -> bool:
        """Whether a claim that says no memory gets all of a card's, on every card."""
        memory = QualifiedName.of(self.row.memory, self.row.driver)
        known = [model for model in self._numbers if memory in model.capacity]
        return all(model.consumed(memory, None) == model.capacity[memory].value for model in known)

    @cached_property
    def sizes(self) -> Sequence[Fraction]:
        """The bytes that cards have, of as many sizes as a claim can name: those of which there are most."""
        memory = QualifiedName.of(self.row.memory, self.row.driver)
        found = Counter[Fraction]()
        for model, number in self._numbers.items():
            if memory in model.capacity:
                found[model.capacity[memory].value] += number
        return sorted(size for size, _ in found.most_common(_MOST_ALTERNATIVES))
