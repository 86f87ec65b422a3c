"""DRS GCUs: hard partitions of a card from the node's table of profiles, requested by slices or by need.

Source: docs/spec/enflame.md. A slot of a card is one of its slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import orjson
from msgspec.structs import replace

from hami_webhook.devices import reasons
from hami_webhook.devices.amounts import MAX_INT32
from hami_webhook.devices.codecs import DeviceEntry
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.fit_request import Check, FitRequest
from hami_webhook.devices.keys import Dimension
from hami_webhook.devices.model import (
    Allocation,
    BadRequest,
    Device,
    DeviceShare,
    Inventory,
    RegistrationError,
    Request,
    Rows,
    Usage,
)
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registration import NodeRegistration
from hami_webhook.devices.vendors.enflame.profiles import (
    MOST_SLICES,
    DrsCard,
    DrsProfile,
    ProfileTable,
    Wanted,
    read_capacity,
)
from hami_webhook.devices.vendors.enflame.section import EnflameSection
from hami_webhook.devices.vendors.enflame.sliced import (
    ASSIGNED_INDEX,
    ASSIGNED_MINOR,
    CONTAINERS,
    DRS,
    DRS_CAPACITY,
    DRS_WORD,
    REQUEST_SIZE,
    SlicedGcu,
    requests_drs,
)
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.objects import Container, Node, Pod
from hami_webhook.kube.quantity import Quantity, parse_whole

FREE_SLICES = Check(
    reasons.CARD_INSUFFICIENT_CORE, lambda c: c.device.slots - c.usage.slots >= c.fit_request.request.slots
)
"""In slices, as the profiles' rounded percents may add up to more than a card."""


def _table(device: Device) -> ProfileTable:
    return cast("DrsCard", device.extra).table


class DrsGcu(SlicedGcu):
    """Cards `<node>-enflame-drs-<index>`."""

    key = DRS
    section_name = "enflame"
    section_type = EnflameSection
    section_fields = ("resource_name_drs_gcu", "resource_name_gcu_memory", "resource_name_gcu_core")
    registration = NodeRegistration(others=(DRS_CAPACITY,))
    memory_may_be_bytes = True
    checks = (*SlicedGcu.checks, FREE_SLICES)

    # node side (docs/spec/enflame.md#3)

    def inventory(self, node: Node) -> Inventory | None:
        text = node.annotations.get(DRS_CAPACITY)
        if text is None:
            return None
        try:
            table, registered = read_capacity(text)
        except RegistrationError as error:
            return Inventory((), warnings=(f"{DRS_CAPACITY}: {error}",))
        cards = [
            Device(
                vendor=self.key,
                uuid=f"{node.name}-{DRS_WORD}-{index}",
                index=index,
                slots=slices,
                memory=table.gigabytes * 1024,
                cores=100,
                type=self.known_as,
                extra=DrsCard(minor, table),
            )
            for index, minor, slices in registered
        ]
        return Inventory(tuple(cards), table)

    # admission (5)

    def bounds(self) -> Iterator[tuple[str, int, int, str]]:
        yield self.count_name, 1, MAX_INT32, "an integer number of slices"
        yield self.memory_name, 0, MAX_INT32 * 1024**2, "an integer number of MiB, or of bytes with a binary suffix"
        yield self.core_name, 0, MAX_INT32, "an integer"

    def check_amounts(self, container: Container) -> None:
        sliced = container.names_resource(self.count_name)
        for written in (container.limits, container.requests):
            slices, memory, cores = (
                parse_whole(written.get(name)) for name in (self.count_name, self.memory_name, self.core_name)
            )
            if slices is not None and slices <= 0:
                raise BadRequest(f"{self.count_name} must be greater than 0")
            if not sliced and memory is not None and memory <= 0:
                raise BadRequest(f"{self.memory_name} must be greater than 0")
            if not sliced and cores is not None and not 1 <= cores <= 100:
                raise BadRequest(f"{self.core_name} must be in range (0,100]")
        super().check_amounts(container)

    def normalise(self, container: ContainerDraft, device_lister: DeviceLister) -> Iterator[str]:
        sliced = container.names_resource(self.count_name)
        for name in (self.count_name,) if sliced else (self.memory_name, self.core_name):
            container.copy_across(name)
        tables = [inventory.facts for inventory in device_lister.inventories(self.key) if inventory.devices]
        if len({table.shape for table in tables}) != 1:
            why = "nodes have different tables" if tables else "no node has DRS cards"
            so = "until the pod is placed, quota counts the least that a known table gives for it"
            if not sliced:
                so = f"the device plugin serves only containers with {self.count_name}, so better ask by that"
            yield f"the profile isn't known yet, as {why}; {so}"
            return
        profile = self._wanted(container.container).profile(tables[0])
        if profile is None:
            yield f"no profile of the nodes serves this; there are {tables[0]}"
        elif not sliced:
            container.set_both(self.count_name, profile.size)
            yield (
                f"{self.count_name} set to {profile.size}: profile {profile.name} with {profile.mebibytes} MiB and "
                f"{profile.cores} percent of the cores is the smallest that serves this"
            )

    def admit_pod(self, pod: PodDraft, device_lister: DeviceLister) -> None:
        shared = self.section.resource_name_vgcu
        also = next((container for container in pod.containers if self.amount(container, shared)), None)
        if also is not None:
            mine = next(container for container in pod.containers if requests_drs(self.section, container))
            raise BadRequest(
                f"{shared} {self.amount(also, shared)} in container {also.name} can't be in one pod with "
                f"{self.count_name} in container {mine.name}: a pod's slices are all shared or all DRS; use two pods"
            )

    # request extraction (6)

    def _wanted(self, container: Container) -> Wanted:
        if container.names_resource(self.count_name):
            return Wanted(self.amount(container, self.count_name))
        memory = container.amount(self.memory_name)
        cores = self.amount(container, self.core_name) or 0
        return Wanted(None, None if memory is None else Quantity.parse(memory), cores)

    def request(self, container: Container) -> Request | None:
        if not requests_drs(self.section, container):
            return None
        self.check_amounts(container)
        wanted = self._wanted(container)
        return Request(1, wanted, wanted.cores, wanted.size or 1)

    # Fit (7)

    def resolve(self, request: Request, fit_request: FitRequest) -> Request:
        table = fit_request.inventory.facts
        profile = cast("Wanted", request.memory).profile(table) if table else None
        return Request(1, profile, profile.cores, profile.size) if profile else request

    def refuses_node(self, fit_request: FitRequest) -> Rejection | None:
        unresolved = isinstance(fit_request.request.memory, Wanted)
        nowhere = Rejection({reasons.MODE_NOT_FIT: 1}, len(fit_request.inventory.devices)) if unresolved else None
        return super().refuses_node(fit_request) or nowhere

    def resolve_share(self, request: Request, device: Device, usage: Usage) -> DeviceShare | None:
        profile = request.memory
        assert isinstance(profile, DrsProfile)
        return DeviceShare(profile.mebibytes, profile.cores, profile.name, slots=profile.size)

    # quota (10)

    def floor(self, request: Request, device: Device) -> int | None:
        profile = cast("Wanted", request.memory).profile(_table(device))
        return profile.mebibytes if profile else None

    def decided_later(self, request: Request) -> frozenset[Dimension]:
        """Which slices serve a need, and what cores slices come with, is in the node's table."""
        by_need = cast("Wanted", request.memory).size is None
        return super().decided_later(request) | {Dimension.COUNT if by_need else Dimension.CORES}

    def least(self, request: Request, device_lister: DeviceLister, eligible: Sequence[Device]) -> Request:
        """The percent written, or else the least that any table has for the slices."""
        wanted = cast("Wanted", request.memory)
        if wanted.size is None:
            return request
        known = (profile for card in eligible if (profile := wanted.profile(_table(card))))
        return replace(request, cores=min((profile.cores for profile in known), default=0))

    def slots_held(self, entry: DeviceEntry, container: Container | None, card: Device | None) -> int:
        """Slices from the percent of the cores; while the card's table isn't known, from what was requested first."""
        requested = self.amount(container, self.count_name) if container and not card else None
        slices = _table(card).slices if card else MOST_SLICES
        return requested or max(1, entry.cores * slices // 100)

    # outputs (9)

    def stamps(self, allocations: Sequence[Allocation], node: Node) -> dict[str, str]:
        inventory = self.inventory(node)
        assert inventory is not None
        cards = {device.uuid: device for device in inventory.devices}
        card = cards[allocations[0].devices[0].uuid]
        return {
            ASSIGNED_INDEX: str(card.index),
            ASSIGNED_MINOR: cast("DrsCard", card.extra).minor,
            REQUEST_SIZE: str(sum(allocation.devices[0].share.slots for allocation in allocations)),
        }

    def encode(self, pod: Pod, rows: Rows, node: Node, now: float) -> dict[str, str]:
        """With the profile each container got."""
        inventory = self.inventory(node)
        assert inventory is not None
        partitions = {}
        for container, row in zip(pod.containers, rows, strict=True):
            if self.key in row:
                profile = inventory.facts.named(row[self.key].devices[0].share.profile)
                partitions[container.name] = {
                    "allocated": False,
                    "request": profile.size,
                    "profileID": profile.id,
                    "profileName": profile.name,
                }
        listed = orjson.dumps(dict(sorted(partitions.items()))).decode()
        return super().encode(pod, rows, node, now) | {CONTAINERS: listed}
