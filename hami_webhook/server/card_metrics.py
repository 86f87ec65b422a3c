"""The metrics of cards and of pods on them under HAMi's names (docs/spec/core.md#12), and their sums by model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from prometheus_client.core import Metric

from hami_webhook.devices.codecs import BadAnnotation
from hami_webhook.devices.model import Device, NodeView
from hami_webhook.devices.placement_annotations import NODE, placement_counts, read_placed
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Pod
from hami_webhook.server.exposition import ZONE, Family, Sample
from hami_webhook.state.cluster_view import ClusterView

_MIB = 1 << 20
_CARD = ("zone", "node", "device_uuid", "device_index", "device_type")
_CARD_CORES = ("zone", "node", "device_uuid", "device_index", "device_cores", "device_type")
_OVERVIEW = ("zone", "node", "device_uuid", "device_index", "device_cores", "device_memory_limit", "device_type")
_MIG = (
    *("zone", "node", "device_uuid", "device_index", "mig_uuid", "profile"),
    *("gpu_instance_id", "compute_instance_id", "placement_start", "placement_size"),
)
_POD = ("zone", "namespace", "node", "pod", "container_index", "device_uuid")
_MODEL = ("vendor", "model")


class _Card:
    """A card on a node, and what was taken of it when this was made; amounts of compute in percent, 100 a card."""

    __slots__ = ("cores", "cores_allocated", "device", "is_free", "model", "node", "takes_more", "usage")

    def __init__(self, view: NodeView, vendor: Vendor, device: Device) -> None:
        self.node = view.name
        self.device = device
        self.model: _Model = (vendor.key, device.type)
        self.usage = usage = view.used(vendor.key, device.uuid)
        self.cores = _percent(device.cores, device, vendor)
        self.cores_allocated = _percent(usage.cores, device, vendor)
        # whether a pod more could get a part of it, or all of it
        self.takes_more = view.has_free_slot(device) and (not device.cores or usage.cores < device.cores)
        self.is_free = self.takes_more and not usage.slots

    def labels(self, *more: str) -> tuple[str, ...]:
        device = self.device
        return (ZONE, self.node, device.uuid, str(device.index), *more, device.type)


_Model = tuple[str, str]
"""A vendor's key, and a card's model."""

_HAMIS: Sequence[tuple[Family, Callable[[_Card], Sample | None]]] = (
    (
        Family("hami_gpu_memory_limit_bytes", "Memory of a card.", _CARD),
        lambda card: (card.labels(), card.device.memory * _MIB),
    ),
    (
        Family("hami_gpu_core_limit_ratio", "Compute of a card, 100 a card.", _CARD),
        lambda card: (card.labels(), card.cores),
    ),
    (
        Family("hami_gpu_memory_allocated_bytes", "Memory of a card that is allocated.", _CARD_CORES),
        lambda card: (card.labels(str(card.device.cores)), card.usage.memory * _MIB),
    ),
    (
        Family("hami_gpu_shared_count", "Containers on a card.", _CARD),
        lambda card: (card.labels(), card.usage.slots),
    ),
    (
        Family("hami_gpu_core_allocated_ratio", "Compute of a card that is allocated.", _CARD),
        lambda card: (card.labels(), card.cores_allocated),
    ),
    (
        Family("hami_node_gpu_overview", "Allocated memory of a card, with the card's properties.", _OVERVIEW),
        lambda card: (card.labels(str(card.device.cores), str(card.device.memory)), card.usage.memory * _MIB),
    ),
    (
        Family("hami_node_gpu_memory_allocated_ratio", "Share of a card's memory that is allocated.", _CARD),
        lambda card: (card.labels(), card.usage.memory / card.device.memory) if card.device.memory else None,
    ),
)
"""HAMi's metrics of a card; None where a card has no such sample."""

_BY_MODEL: Sequence[tuple[Family, Callable[[_Card], float]]] = (
    (Family("hami_webhook_cards", "Registered cards.", _MODEL), lambda card: 1),
    (Family("hami_webhook_cards_free", "Healthy cards that no pod has a part of.", _MODEL), lambda card: card.is_free),
    (Family("hami_webhook_card_slots", "Containers that cards can take.", _MODEL), lambda card: card.device.slots),
    (Family("hami_webhook_card_slots_allocated", "Containers on cards.", _MODEL), lambda card: card.usage.slots),
    (Family("hami_webhook_card_memory_bytes", "Memory of cards.", _MODEL), lambda card: card.device.memory * _MIB),
    (
        Family("hami_webhook_card_memory_allocated_bytes", "Memory of cards that is allocated.", _MODEL),
        lambda card: card.usage.memory * _MIB,
    ),
    (Family("hami_webhook_card_cores", "Compute of cards, 100 a card.", _MODEL), lambda card: card.cores),
    (
        Family("hami_webhook_card_cores_allocated", "Compute of cards that is allocated, 100 a card.", _MODEL),
        lambda card: card.cores_allocated,
    ),
)
_LARGEST: Sequence[tuple[Family, Callable[[_Card], float]]] = (
    (
        Family("hami_webhook_largest_free_memory_bytes", "The most memory that one card has left.", _MODEL),
        lambda card: (card.device.memory - card.usage.memory) * _MIB,
    ),
    (
        Family("hami_webhook_largest_free_cores", "The most compute that one card has left, 100 a card.", _MODEL),
        lambda card: card.cores - card.cores_allocated,
    ),
)
_LARGEST_CARDS = Family("hami_webhook_largest_free_cards", "The most free cards on one node.", _MODEL)

_POD_MEMORY = Family("hami_vgpu_memory_allocated_bytes", "Memory a container was given on a card.", _POD)
_POD_CORES = Family("hami_vgpu_core_allocated_ratio", "Compute a container was given on a card.", _POD)
_INSTANCES = Family("hami_node_gpu_mig_instance_info", "1 for an instance cut from a card.", _MIG)


def read_cards(cluster: ClusterView, views: Sequence[NodeView]) -> Generator[Metric, None, list[_Card]]:
    """The cards of these nodes, node by node; a renderer may pause after each node."""
    cards: list[_Card] = []
    for view in views:
        for key, inventory in view.inventories.items():
            vendor = cluster.vendors[key]
            cards += [_Card(view, vendor, device) for device in inventory.devices]
        yield _HAMIS[0][0].of(())
    return cards


def card_metrics(cards: Sequence[_Card]) -> Iterator[Metric]:
    """Each card under HAMi's names."""
    for family, sample in _HAMIS:
        yield from family.in_pieces(map(sample, cards))


def model_metrics(cards: Iterable[_Card]) -> Iterator[Metric]:
    """The cards of each vendor and model together, and the largest request of each kind that would still fit."""
    sums: dict[_Model, list[float]] = {}
    largest: dict[_Model, list[float]] = {}
    most_free: dict[_Model, float] = {}
    for _, on_node in groupby(cards, attrgetter("node")):
        free: Counter[_Model] = Counter()
        for card in on_node:
            model = card.model
            free[model] += card.is_free
            of_model = sums.setdefault(model, [0] * len(_BY_MODEL))
            for index, (_, amount) in enumerate(_BY_MODEL):
                of_model[index] += amount(card)
            most = largest.setdefault(model, [0] * len(_LARGEST))
            for index, (_, amount) in enumerate(_LARGEST if card.takes_more else ()):
                most[index] = max(most[index], amount(card))
        for model, number in free.items():
            most_free[model] = max(most_free.get(model, 0), number)
        yield _BY_MODEL[0][0].of(())  # a renderer may pause here
    for families, found in ((_BY_MODEL, sums), (_LARGEST, largest)):
        for index, (family, _) in enumerate(families):
            yield family.of((model, amounts[index]) for model, amounts in found.items())
    yield _LARGEST_CARDS.of(most_free.items())


def pod_metrics(cluster: ClusterView, views: Sequence[NodeView], pods: Sequence[Pod]) -> Iterator[Metric]:
    """What each container was given of each card, and the instances that were cut for pods."""
    cards = _CardsByNode(views)
    now = cluster.clock()
    cores: list[Sample] = []  # of tuples of texts, which no garbage collection goes through again
    instances: list[Sample] = []

    def read() -> Iterator[Sample | None]:
        for pod in pods:
            if not pod.terminal and placement_counts(pod, now, cluster.placement_ttl):
                for (row, uuid), (memory, percent) in _held(cluster, pod, cards).items():
                    labels = ZONE, pod.namespace, _node_of(pod), pod.name, str(row), uuid
                    cores.append((labels, percent))
                    yield labels, memory
                instances.extend(_instances(cluster, pod, cards))
            yield None

    yield from _POD_MEMORY.in_pieces(read())
    yield from _POD_CORES.in_pieces(cores)
    yield from _INSTANCES.in_pieces(instances)


class _CardsByNode:
    """The cards of nodes by UUID, looked up once for all pods of a node."""

    def __init__(self, views: Sequence[NodeView]) -> None:
        self._views = {view.name: view for view in views}
        self._known: dict[tuple[str, str], Mapping[str, Device]] = {}

    def of(self, node: str, vendor: Vendor) -> Mapping[str, Device]:
        known = self._known.get((node, vendor.key))
        if known is None:
            view = self._views.get(node)
            inventory = view.inventories.get(vendor.key) if view is not None else None
            known = {device.uuid: device for device in inventory.devices} if inventory is not None else {}
            self._known[node, vendor.key] = known
        return known


def _node_of(pod: Pod) -> str:
    return pod.node_name or pod.annotations[NODE]


def _percent(cores: int, device: Device, vendor: Vendor) -> int:
    """Cores of a card in percent of it, as people see them."""
    if not vendor.cores_in_units:
        return cores
    return -(-cores * 100 // device.cores) if device.cores else 0


def _held(cluster: ClusterView, pod: Pod, cards: _CardsByNode) -> dict[tuple[int, str], list[int]]:
    """Bytes and percent by the container's row and the card's UUID."""
    sums: dict[tuple[int, str], list[int]] = {}
    for vendor in cluster.vendors.allocated_in(pod.annotations):
        try:
            placed = read_placed(vendor, pod)
        except BadAnnotation:
            continue
        for claim in placed.claims if placed else ():
            amounts = sums.setdefault((claim.row, claim.uuid), [0, 0])
            amounts[0] += claim.memory * _MIB
            card = cards.of(_node_of(pod), vendor).get(claim.uuid)
            amounts[1] += _percent(claim.cores, card, vendor) if card else claim.cores
    return sums


def _instances(cluster: ClusterView, pod: Pod, cards: _CardsByNode) -> Iterator[Sample]:
    node = _node_of(pod)
    for vendor in cluster.vendors.allocated_in(pod.annotations):
        for made in vendor.occupancy.realised(pod):
            card = cards.of(node, vendor).get(made.card)
            index = str(card.index) if card is not None else ""
            identity = (made.uuid, made.profile, made.gpu_instance, made.compute_instance)
            yield (ZONE, node, made.card, index, *identity, str(made.start), str(made.size)), 1
