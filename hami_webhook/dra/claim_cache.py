"""The claims, templates, slices and classes that watches have shown, and what a pod's claims cost by them. What claims
hold of devices: docs/spec/dra.md#5.

Source: docs/spec/dra.md#6. Of slices only those of the configured drivers are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Protocol
from weakref import WeakValueDictionary

from hami_webhook.config.drivers import DriverDevices
from hami_webhook.devices.debit import Debit
from hami_webhook.devices.model import PodUsage
from hami_webhook.dra.allocation import ClaimedDevice
from hami_webhook.dra.claim_templates import declared_templates
from hami_webhook.dra.cost import (
    IMPLICIT_RESOURCE,
    SECONDS,
    DeviceInventory,
    cost_steps,
    expressions_of,
    has_selectors,
    is_known,
)
from hami_webhook.dra.devices import DeviceID, PublishedDevice, PublishedDevices
from hami_webhook.dra.holders import (
    BareClaim,
    Holder,
    Key,
    Templates,
    controller_of,
    held_by,
    holder_of,
    key_of,
    own_claims,
    priced_requests,
    requests_of,
    results_of,
)
from hami_webhook.dra.selectors import Budget
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.objects import MalformedObject, Pod
from hami_webhook.time_slices import SLICE, TimeSlices

_REST = 2 * SLICE
"""Seconds after each slice of evaluating selectors of tenants: others' reviews have two thirds of the time."""


class PodClaims(Protocol):
    """What is known of claims."""

    def of(self, pod: Pod) -> Holder | None:
        """Return the devices that a pod's claims hold, and the cost of its waiting claims; None if it neither has nor
        needs claims.
        """
        ...


class ClaimCache:
    """Caches claims and templates by namespace and name, slices and classes by name.

    Pods request the `managed` resources by limits, so they need no claim.
    """

    def __init__(self, rows: Sequence[DriverDevices], managed: Container[str] = ()) -> None:
        self._rows = rows
        self._managed = managed
        self.claims: dict[Key, wire.ResourceClaim] = {}
        self._owned: dict[str, set[Key]] = {}
        """The claims that pods control, by the pods' UIDs."""
        self.templates: dict[Key, wire.ResourceClaimTemplate] = {}
        self.slices: dict[str, wire.ResourceSlice] = {}
        self.classes: dict[str, wire.DeviceClass] = {}
        self._devices = PublishedDevices((), rows)
        self._inventory: DeviceInventory | None = None
        self._turn = asyncio.Lock()
        """Of who evaluates selectors: one at a time, so that others wait for no more than a slice of it."""
        self._turns = WeakValueDictionary[str, asyncio.Lock]()
        self._resources: frozenset[str] = frozenset()
        """The extended resources for which a pod may get a claim, with this inventory."""
        self.held = HeldDevices(lambda: self.inventory.devices)
        """What claims hold of each device."""
        self._watchers: list[Callable[[str], None]] = []

    @property
    def inventory(self) -> DeviceInventory:
        """Return the devices and classes.

        Devices change in place; when a class changes, a new inventory replaces it.
        """
        if self._inventory is None:
            specs = {name: each.spec or wire.ClassSpec() for name, each in sorted(self.classes.items())}
            taken = {spec.extended_resource_name or "": name for name, spec in specs.items()}
            self._inventory = DeviceInventory(
                {name: expressions_of(spec.selectors) for name, spec in specs.items()},
                self._devices,
                {resource: name for resource, name in taken.items() if resource and resource not in self._managed},
            )
            classes = {*self.classes, *(name for row in self._rows for name in row.device_classes)}
            implicit = {f"{IMPLICIT_RESOURCE}{name}" for name in classes}
            self._resources = frozenset(implicit | self._inventory.extended.keys())
        return self._inventory

    def allocates(self, pod: Pod, named: frozenset[str]) -> bool:
        """Whether kube-scheduler has to allocate claims for a pod: its own, or one for resources that a class takes.

        `named` are the resources that it names. Managed resources are ignored: a pod requests them by limits, even if a
        class takes them.
        """
        if self._inventory is None:
            _ = self.inventory  # the resources are the newest one's
        return bool(pod.resource_claims) or not self._resources.isdisjoint(named)

    def watch(self, changed: Callable[[str], None]) -> None:
        """Have `changed` called with the name of a node whose devices, or what claims hold of them, have changed."""
        self._watchers.append(changed)

    def on(self, node: str) -> dict[tuple[str, str], tuple[PodUsage, ...]]:
        """Return the usage of a node's devices by claims, by vendor and UUID; each claim is represented like a pod."""
        found: dict[tuple[str, str], tuple[PodUsage, ...]] = {}
        for device in self.inventory.devices.on(node) if self.claims else ():
            card = (device.model.row.vendor, device.uuid)
            found[card] = found.get(card, ()) + tuple(
                PodUsage(BareClaim.of(self.claims[key]), debit.slots, debit.memory, debit.cores)
                for key, debit in self.held.holders(device).items()
            )
        return {card: holders for card, holders in found.items() if holders}

    def _notify(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            for changed in self._watchers:
                changed(node)

    def keys_owned_by(self, uid: str) -> Collection[Key]:
        """The claims that the pod with this UID controls."""
        return self._owned.get(uid, ())

    def owned_by(self, pod: Pod) -> dict[Key, wire.ResourceClaim]:
        """The claims that a pod controls."""
        return {key: self.claims[key] for key in sorted(self.keys_owned_by(pod.uid))}

    def without_template(self, pod: Pod) -> set[str]:
        """Return the templates of a new pod's claims that neither a watch nor the pod's own annotation shows."""
        names = {each.template for each in pod.resource_claims if each.template}
        names -= declared_templates(pod, self._rows).keys()
        return {name for name in names if (pod.namespace, name) not in self.templates}

    def with_templates(self, templates: Templates) -> PodClaims:
        """Return a view of this cache that also knows `templates`."""
        return _WithTemplates(self, templates)

    def of(self, pod: Pod) -> Holder | None:
        claims = pod.resource_claims or pod.extended_claim or isinstance(pod, BareClaim) or self._inventory is None
        if not claims and self._resources.isdisjoint(pod.named):  # as of most pods, in each of their reviews
            return None
        return self.holder_of(pod, self.templates)

    def holder_of(self, pod: Pod, templates: Templates) -> Holder | None:
        """What a pod's claims hold, and cost by these templates."""
        return holder_of(pod, self.owned_by(pod), templates, self.inventory)

    async def prepare(self, pod: Pod, templates: Templates = {}) -> None:  # noqa: B006  # never changed
        """Compute the cost of a pod's claims, yielding to other tasks meanwhile.

        Afterwards, `of` returns it without computing. Tenants write selectors. The cache evaluates the selectors of one
        claim at a time, and each namespace has at most one claim in the line.
        """
        await self.prepare_all([pod], templates=templates)

    async def prepare_all(
        self,
        pods: Iterable[Pod],
        claims: Iterable[wire.ResourceClaim] = (),
        templates: Templates = {},  # noqa: B006
    ) -> None:
        """Compute the cost of the claims of several pods and claims, within one common time budget."""
        known = {**self.templates, **templates} if templates else self.templates
        budget = Budget(SECONDS, time.monotonic)
        for pod in pods:
            requests = priced_requests(pod, self.owned_by(pod), known, self.inventory)
            if requests:
                await self._price(pod.namespace, requests, budget)
        for claim in claims:
            await self._price(key_of(claim)[0], [requests_of(claim.spec)], budget)

    async def prepare_classes(self) -> None:
        """The same for the classes that limits become claims of."""
        names = {row.device_classes[0] for row in self._rows if row.convert and row.device_classes}
        requests = [(wire.DeviceRequest(exactly=wire.ExactRequest(device_class_name=name)),) for name in sorted(names)]
        await self._price("", requests, Budget(SECONDS, time.monotonic))

    async def _price(self, namespace: str, claims: Iterable[Sequence[wire.DeviceRequest]], budget: Budget) -> None:
        for requests in claims:
            if is_known(requests, self.inventory):
                continue
            with contextlib.suppress(MalformedObject):  # said where it is priced
                if not has_selectors(requests):
                    await TimeSlices().run(cost_steps(requests, self.inventory, budget))
                    continue
                async with self._turns.setdefault(namespace, asyncio.Lock()), self._turn:
                    await TimeSlices(rest=_REST).run(cost_steps(requests, self.inventory, budget))

    def bare(self, pod_of: Callable[[str], Pod | None], namespace: str = "") -> Iterator[BareClaim]:
        """Yield the charged claims without an owning pod, of a namespace or of all.

        `pod_of` returns a live pod by UID.
        """
        for key in self.claims:
            found = self.bare_claim(key, pod_of) if namespace in ("", key[0]) else None
            if found is not None:
                yield found

    def bare_claim(self, key: Key, pod_of: Callable[[str], Pod | None]) -> BareClaim | None:
        """A claim if it costs something and is no pod's."""
        claim = self.claims.get(key)
        owner = controller_of(claim) if claim is not None else ""
        pod = pod_of(owner) if owner else None
        if claim is None or (owner and results_of(claim) is None):
            return None
        if pod is not None and key in own_claims(pod, self.owned_by(pod)):
            return None
        found = BareClaim.of(claim)
        holder = self.of(found)
        return found if holder is not None and (holder.allocated or holder.waits) else None

    def put_claim(self, claim: wire.ResourceClaim) -> None:
        """A claim was added or changed."""
        key = key_of(claim)
        self.drop_claim(key)
        self.claims[key] = claim
        self.held.put(key, claim)
        self._notify(self.held.nodes(key) if self._watchers else ())
        self._owned.setdefault(controller_of(claim), set()).add(key)

    def drop_claim(self, key: Key) -> None:
        before = self.claims.pop(key, None)
        if before is not None:
            nodes = self.held.nodes(key) if self._watchers else ()
            self.held.drop(key)
            self._notify(nodes)
            owner = controller_of(before)
            self._owned[owner].discard(key)
            if not self._owned[owner]:
                del self._owned[owner]

    def put_template(self, key: Key, template: wire.ResourceClaimTemplate) -> None:
        self.templates[key] = template

    def drop_template(self, key: Key) -> None:
        self.templates.pop(key, None)

    def put_slice(self, name: str, written: wire.ResourceSlice) -> None:
        """A slice was added or changed."""
        before = self.slices.pop(name, None)
        if before is not None:
            self._notify(_nodes_of(before))
        if written.spec is not None and any(row.driver == written.spec.driver for row in self._rows):
            self.slices[name] = written
            self._devices.put(written)
            self._notify(_nodes_of(written))
        else:
            self._devices.drop(name)

    def drop_slice(self, name: str) -> None:
        before = self.slices.pop(name, None)
        if before is not None:
            self._devices.drop(name)
            self._notify(_nodes_of(before))

    def put_class(self, name: str, written: wire.DeviceClass) -> None:
        self.classes[name] = written
        self._inventory = None

    def drop_class(self, name: str) -> None:
        self.classes.pop(name, None)
        self._inventory = None


def _nodes_of(written: wire.ResourceSlice) -> set[str]:
    """The nodes of a slice's devices."""
    spec = written.spec or wire.SliceSpec()
    return {device.node_name or spec.node_name or "" for device in spec.devices or ()} | {spec.node_name or ""}


class _WithTemplates:
    """A cache with templates that were read since."""

    def __init__(self, cache: ClaimCache, templates: Templates) -> None:
        self._cache = cache
        self._templates = {**cache.templates, **templates}

    def of(self, pod: Pod) -> Holder | None:
        return self._cache.holder_of(pod, self._templates)


class HeldDevices:
    """The shares that claims have of devices; `published` gives those that are published now. The index key is the
    device name in allocations, so changed slices cost nothing. Amounts are read on demand, because the slice has those
    that an allocation lacks.
    """

    def __init__(self, published: Callable[[], PublishedDevices]) -> None:
        self._published = published
        self._claims: dict[Key, wire.ResourceClaim] = {}
        self._keys: dict[DeviceID, set[Key]] = {}

    def put(self, key: Key, claim: wire.ResourceClaim) -> None:
        """A claim was added or changed."""
        self.drop(key)
        named = _named(claim)
        if named:
            self._claims[key] = claim
        for identity in named:
            self._keys.setdefault(identity, set()).add(key)

    def drop(self, key: Key) -> None:
        claim = self._claims.pop(key, None)
        for identity in _named(claim) if claim is not None else ():
            keys = self._keys[identity]
            keys.discard(key)
            if not keys:
                del self._keys[identity]

    def of(self, key: Key) -> Sequence[ClaimedDevice]:
        """What a claim holds."""
        claim = self._claims.get(key)
        try:
            return held_by(claim, self._published()).devices if claim is not None else ()
        except MalformedObject:  # its cost isn't known either
            return ()

    def holders(self, device: PublishedDevice) -> Mapping[Key, Debit]:
        """Return the claims that hold this device, with their amounts; a device of the same name on another node
        doesn't count.
        """
        found: dict[Key, Debit] = {}
        for key in sorted(self._keys.get(device.id, ())):
            for each in self.of(key):
                if each.id == device.id and each.node in ("", device.node):
                    found[key] = found.get(key, Debit()) + each.debit
        return found

    def used(self, device: PublishedDevice) -> Debit:
        """What all claims hold of a device."""
        return sum(self.holders(device).values(), Debit())

    def nodes(self, key: Key) -> Iterable[str]:
        """The nodes of the devices that a claim holds."""
        return {each.node for each in self.of(key)}


def _named(claim: wire.ResourceClaim) -> set[DeviceID]:
    """The devices that an allocation names."""
    results = results_of(claim) or ()
    return {
        DeviceID(each.driver or "", each.pool or "", each.device or "") for each in results if not each.admin_access
    }
