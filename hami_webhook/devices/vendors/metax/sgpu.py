"""Metax-SGPU: cards shared by memory, compute and QoS; which card, is chosen here (docs/spec/metax.md#3 to #10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from hami_webhook.devices.amounts import MAX_INT32, bad_amount
from hami_webhook.devices.codecs import CardRecord, integer_in, parse_bool, string_in
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.fit_request import (
    AMOUNT_CHECKS,
    FIRST_FIT,
    FREE_MEMORY,
    FREE_SLOT,
    HEALTHY,
    MUTEX,
    UUID_LISTS,
    WITHIN_QUOTA,
    Candidate,
    Check,
    Choice,
    FitRequest,
    Selection,
)
from hami_webhook.devices.keys import MEBIBYTE, DeviceKeys
from hami_webhook.devices.model import (
    AllocatedDevice,
    BadRequest,
    Device,
    DeviceShare,
    Inventory,
    MemoryRequest,
    NodeView,
    Request,
    Rows,
    Usage,
)
from hami_webhook.devices.occupancy import Occupancy
from hami_webhook.devices.placement_annotations import nanoseconds
from hami_webhook.devices.registration import NodeRegistration
from hami_webhook.devices.vendor import Vendor
from hami_webhook.devices.vendors.metax import qos
from hami_webhook.devices.vendors.metax.qos import (
    ALL_CORES,
    OFFLINE,
    ONLINE,
    OwnTask,
    SgpuCard,
    card_of,
    class_of,
    classes_on,
    is_online,
)
from hami_webhook.devices.vendors.metax.section import MetaxSection
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.objects import Container, Node, Pod
from hami_webhook.kube.quantity import Format, Quantity, QuantityError

TOPOLOGY_AWARE = "metax-tech.com/sgpu-topology-aware"
PLUGIN_ALLOCATED = "metax-tech.com/gpu-devices-allocated"
PLUGIN_TIME = "metax-tech.com/predicate-time"
GIBIBYTE = 1024
"""MiB."""

_CARD_FIELDS = {
    "id": "uuid",
    "count": "totaldevcount",
    "devmem": "totalvram",
    "devcore": "totalcompute",
    "numa": "numa",
    "health": "healthy",
}

_WEIGHT = 10000
"""By which a node's own score outweighs any difference in usage."""


def read_memory(written: object) -> int | None:
    """The MiB of a vmemory amount: a number is GiB, one with a unit is bytes, rounded down; None if it can't be meant.

    A decimal unit below 1 MiB is the number again: the API server itself turns 1000 into `1k`.
    """
    try:
        quantity = Quantity.parse(written)
    except QuantityError:
        return None
    value = quantity.whole()
    if value is None or value < 0:
        return None
    in_bytes = quantity.format is Format.BINARY_SI or (value >= MEBIBYTE and any(map(str.isalpha, str(written))))
    mebibytes = value // MEBIBYTE if in_bytes else value * GIBIBYTE
    vanished = value > 0 and mebibytes == 0
    return None if vanished or mebibytes > MAX_INT32 else mebibytes


def _unless_online(check: Check) -> Check:
    """The check, which online pods pass: they have their card's compute whenever they want it."""
    return Check(check.label, lambda candidate: is_online(candidate.fit_request.pod) or check.passes(candidate))


class SgpuOccupancy(Occupancy):
    """Who holds a card matters too."""

    def traits(self, usage: Usage) -> Hashable:
        """With the classes of the pods that hold it, and their QoS."""
        holders = tuple((class_of(holder.pod), qos.qos_of(holder.pod), holder.cores) for holder in usage.holders)
        return super().traits(usage), holders


class MetaxSgpu(Vendor):
    key = "Metax-SGPU"
    section_name = "metax"
    section_type = MetaxSection
    section_fields = ("resource_vcount_name", "resource_vmemory_name", "resource_vcore_name")
    registration = NodeRegistration("metax-tech.com/node-gpu-devices", fields=_CARD_FIELDS, drop_on_error=True)
    keys = DeviceKeys.usual(
        "metax-sgpu",
        uuid="metax-tech.com/[no]use-gpuuuid",
        extra=(PLUGIN_ALLOCATED, PLUGIN_TIME),
        choices=(qos.QOS, qos.APP_CLASS, TOPOLOGY_AWARE),
    )
    checks = (
        Check("CardUnhealthy", HEALTHY.passes),
        Check("CardAppClassMismatch", qos.class_fits),
        Check("CardQosPolicyMismatch", qos.qos_fits),
        UUID_LISTS,
        FREE_SLOT,
        MUTEX,
        WITHIN_QUOTA,
        *(check if check is FREE_MEMORY else _unless_online(check) for check in AMOUNT_CHECKS),
    )
    occupancy = SgpuOccupancy()
    memory_factor = GIBIBYTE
    limits_only = True
    memory_may_be_bytes = True
    default_cores = ALL_CORES
    max_cores = MAX_INT32
    # the topology score ranks nodes, not the policy of that name
    topology_ranks_nodes = False

    def __init__(self, section: MetaxSection, *, is_2_11: bool = False) -> None:
        super().__init__(section, is_2_11=is_2_11)
        self.topology_aware = section.sgpu_topology_aware

    # admission (docs/spec/metax.md#5)

    def admit(self, container: ContainerDraft, pod: PodDraft, device_lister: DeviceLister) -> bool:
        count = self.amount(container, self.count_name) or 0
        if count > 0:
            qos.check_annotations(pod.annotations, count)
            if pod.annotations.get(qos.APP_CLASS) != qos.ONLINE and qos.QOS not in pod.annotations:
                pod.annotations[qos.QOS] = qos.BEST_EFFORT
        return super().admit(container, pod, device_lister)

    def check_pod(self, pod: Pod) -> None:
        for container in pod.containers:
            count = self.amount(container, self.count_name) or 0
            if count > 0:
                qos.check_annotations(pod.annotations, count)
                self._refuse_more_than_a_card(container, pod)

    def _refuse_more_than_a_card(self, container: Container, pod: Pod) -> None:
        cores = self.amount(container, self.core_name)
        if cores is not None and cores > ALL_CORES and not is_online(pod):
            raise BadRequest(
                f"{self.core_name} {cores} in container {container.name} is more than the {ALL_CORES} percent that a "
                f"card has, so the pod would never start; it is percent of each card: ask for at most {ALL_CORES}"
            )

    def link_groups(self, inventory: Inventory) -> Sequence[Sequence[str]]:
        """Those of a MetaXLink zone."""
        zones: dict[int, list[str]] = {}
        for device in inventory.devices:
            zones.setdefault(qos.card_of(device).zone, []).append(device.uuid)
        return [group for zone, group in sorted(zones.items()) if zone and len(group) > 1]

    def check_amounts(self, container: Container) -> None:
        super().check_amounts(container)
        for written in (container.limits, container.requests):
            value = written.get(self.memory_name) if self.memory_name else None
            if value is not None and read_memory(value) is None:
                most = f"at most {MAX_INT32 // GIBIBYTE} GiB as a whole number, or 1Mi to {MAX_INT32}Mi in bytes"
                raise bad_amount(container.name, self.memory_name, value, most)

    # request extraction (6)

    def request(self, container: Container) -> Request | None:
        self.check_amounts(container)
        return super().request(container)

    def memory(self, container: Container, mebibytes: int) -> MemoryRequest:
        return super().memory(container, read_memory(container.limits.get(self.memory_name, 0)) or 0)

    def request_in_pod(self, container: Container, pod: Pod) -> Request | None:
        """An online pod's compute is never counted."""
        request = super().request_in_pod(container, pod)
        return replace(request, cores=0) if request is not None and is_online(pod) else request

    # node side (3)

    def device(self, record: CardRecord, position: int) -> Device:
        where = f"card {position}"
        facts = SgpuCard(
            qos=string_in(record.extra, "qospolicy", where),
            zone=max(0, integer_in(record.extra, "linkzone", where)),
        )
        return replace(super().device(record, position), index=position, type=self.key, extra=facts)

    # Fit (7)

    def resolve_share(self, request: Request, device: Device, usage: Usage) -> DeviceShare | None:
        return DeviceShare(*self.needed(request, device), mark=OwnTask())

    def selection(self, fit_request: FitRequest) -> Selection:
        if is_online(fit_request.pod):
            return FEWEST_ONLINE
        return (
            SMALLEST_ZONE if class_of(fit_request.pod) is None and fit_request.request.cores == ALL_CORES else FIRST_FIT
        )

    # node score (8)

    def score(self, pod: Pod, view: NodeView, rows: Rows, policy: str) -> float:
        merit = self._merit(pod, view, rows)
        return float(-_WEIGHT * merit if policy == "spread" else _WEIGHT * merit)

    def _merit(self, pod: Pod, view: NodeView, rows: Rows) -> int:
        """How good the cards are whatever the policy; more is better."""
        given = [device for row in rows if self.key in row for device in row[self.key].devices]
        if is_online(pod):
            return online_score(view.used(self.key, uuid) for uuid in {device.uuid for device in given})
        wanted = parse_bool(pod.annotations.get(TOPOLOGY_AWARE, ""))
        whole = {device.uuid for device in given if device.share.cores == ALL_CORES}
        if not (self.topology_aware if wanted is None else wanted) or not whole:
            return 0
        cards = view.inventories[self.key].devices
        idle = [card for card in cards if view.used(self.key, card.uuid).slots == 0]
        return topology_score(idle, [card for card in cards if card.uuid in whole])

    # outputs (9)

    def encode(self, pod: Pod, rows: Rows, node: Node, now: float) -> dict[str, str]:
        given = [[_for_plugin(device) for device in row[self.key].devices] if self.key in row else [] for row in rows]
        own = {PLUGIN_ALLOCATED: orjson.dumps(given).decode(), PLUGIN_TIME: nanoseconds(now)}
        return super().encode(pod, rows, node, now) | own


def _for_plugin(device: AllocatedDevice) -> dict[str, Any]:
    """A card as MetaX's plugin reads it: zeros are left out."""
    amounts = {"compute": device.share.cores, "vRam": device.share.memory}
    return {"uuid": device.uuid, **{name: amount for name, amount in amounts.items() if amount}}


PAIR = 10


def first_within_quota(fit_request: FitRequest, rankings: Iterable[Sequence[Candidate]]) -> Choice | None:
    """The first cards of the first ranking that has enough of them together within the quota."""
    for ranking in rankings:
        chosen: list[Candidate] = []
        for card in ranking:
            if len(chosen) < fit_request.request.count and fit_request.admits([*chosen, card]):
                chosen.append(card)
        if len(chosen) == fit_request.request.count:
            return Choice(chosen)
    return None


class SmallestZone(Selection):
    """Cards of the smallest link zone that has enough; else zone by zone, smallest first, then unlinked cards."""

    def choose(self, fit_request: FitRequest, passed: Sequence[Candidate]) -> Choice | None:
        count = fit_request.request.count
        if len(passed) == count:
            return first_within_quota(fit_request, [passed])
        zones: dict[int, list[Candidate]] = {}
        for card in passed:
            zones.setdefault(card_of(card.device).zone, []).append(card)
        unlinked = zones.pop(0, [])
        ascending = sorted(zones.values(), key=len)
        across = [card for zone in ascending for card in zone]
        enough = [zone for zone in ascending if len(zone) >= count]
        return first_within_quota(fit_request, [*enough, [*across, *unlinked], passed])


class FewestOnline(Selection):
    """For an online pod: cards with the fewest online pods, but those where offline pods alone would wait last."""

    def choose(self, fit_request: FitRequest, passed: Sequence[Candidate]) -> Choice | None:
        if len(passed) == fit_request.request.count:
            return first_within_quota(fit_request, [passed])
        return first_within_quota(fit_request, [sorted(passed, key=_disturbance)])


SMALLEST_ZONE = SmallestZone()
FEWEST_ONLINE = FewestOnline()


def _disturbance(candidate: Candidate) -> tuple[bool, int, int]:
    classes = Counter(classes_on(candidate.usage, candidate.fit_request.pod))
    online, offline = classes[ONLINE], classes[OFFLINE]
    return (online == 0 and offline > 0, online, offline)


def online_score(cards: Iterable[Usage]) -> int:
    """How little an online pod disturbs on these cards, as they were before it; 0 is best."""
    total = 0
    for usage in cards:
        classes = Counter(class_of(holder.pod) for holder in usage.holders)
        online, offline = classes[ONLINE], classes[OFFLINE]
        total -= 20 * online + 2 * offline if online else 100 * offline
    return total


def topology_score(idle: Sequence[Device], chosen: Sequence[Device]) -> int:
    """The links among the chosen cards, ten times over, less the links between them and the idle cards left behind.

    `idle` are the cards without a task before, as a rule the chosen ones among them.
    """
    taken = {device.uuid for device in chosen}
    allocated = _links(chosen)
    lost = _links(idle) - allocated - _links([device for device in idle if device.uuid not in taken])
    return 10 * allocated - lost


def _links(devices: Iterable[Device]) -> int:
    """10 for each pair of cards in one link zone."""
    zones = Counter(zone for device in devices if (zone := card_of(device).zone) > 0)
    return sum(PAIR * (n * (n - 1) // 2) for n in zones.values())
