"""KAI: pods of `kai-scheduler` that ask by annotation for a share of a card, or for whole cards (docs/spec/kai.md).

KAI places them on NVIDIA's cards, so they are charged to the keys of those. What they cost follows from what they ask
for and from the label of their node, never from what is written when they are placed: tenants may write that too.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from fractions import Fraction
from math import ceil

from msgspec import Struct

from hami_webhook.devices.debit import Debit
from hami_webhook.devices.foreign_pods import refuse_node_name
from hami_webhook.devices.foreign_scheduler import ForeignCharge, ForeignScheduler, NodeLister, NoNode, Prediction
from hami_webhook.devices.keys import MEBIBYTE, Dimension
from hami_webhook.devices.model import BadRequest
from hami_webhook.integrations.sections import KaiSection
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.message_text import quoted
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.kube.quantity import Quantity, QuantityError, parse_whole
from hami_webhook.kube.requests import effective

COUNT = "nvidia.com/gpu"
FRACTION, MEMORY, DEVICES = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"
CARD_MEMORY, CARD_MODEL = "nvidia.com/gpu.memory", "nvidia.com/gpu.product"
"""Labels that GPU feature discovery writes on nodes: the MiB of a card, and its model."""

_OF_CONTAINER = r"nvidia\.com/container\..+\.gpu-memory\.(?:request|limit)"
_ASKS = re.compile(f"{FRACTION}|{MEMORY}|{DEVICES}|{_OF_CONTAINER}")
_NUMBER = re.compile(r"\+?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_LONGEST_NUMBER = 40
_MOST_MEMORY = 2**24
_MOST_DEVICES = 1024


class CardShare(Struct, frozen=True):
    """What a pod asks for of each of some cards: a part of the card, or so many MiB; whichever is larger counts."""

    cards: int
    portion: Fraction = Fraction(0)
    memory: int = 0

    def on(self, smallest: int, largest: int) -> Debit:
        """What it comes to on cards of this many MiB at least and at most; of unknown ones (0) what is certain."""
        memory = max(self.memory, ceil(self.portion * smallest), 1)
        portion = max(self.portion, min(Fraction(1), Fraction(self.memory, largest))) if largest else self.portion
        return Debit(self.cards, self.cards * memory, self.cards * ceil(100 * portion))

    @property
    def depends(self) -> frozenset[Dimension]:
        """What of it depends on the card."""
        found = {Dimension.MEMORY} if self.portion else set()
        return frozenset(found | {Dimension.CORES} if self.memory else found)


class Kai(ForeignScheduler):
    key = "kai"
    title = "KAI"
    section_type = KaiSection
    injects_scheduler = False
    resource_names = frozenset[str]()
    quota_keys = ()
    asks_by = _ASKS
    vendor = "NVIDIA"
    predicts = False

    def __init__(self, section: KaiSection) -> None:
        self.scheduler_names = section.scheduler_names
        self.reserves_in = section.reservation_namespace
        self._sized: tuple[weakref.ref[NodeLister], int, tuple[int, int]] | None = None

    def named_by(self, pod: Pod | PodDraft) -> bool:
        return pod.scheduler_name in self.scheduler_names and (
            COUNT in pod.named or any(map(_ASKS.fullmatch, pod.annotations))
        )

    def concerns(self, pod: Pod) -> bool:
        return self.named_by(pod)

    # admission (docs/spec/kai.md#4)

    def admit(self, pod: PodDraft, node_lister: NodeLister) -> None:
        for container in pod.original.containers:
            if container.privileged:
                pod.warn(
                    f"[kai/privileged] container {container.name} is privileged, so it sees every card of the node"
                )

    def check(self, pod: Pod, node_lister: NodeLister) -> None:
        refuse_node_name(pod)
        _asked(pod)

    # quota (docs/spec/kai.md#5)

    def waiting(self, pod: Pod, node_lister: NodeLister) -> ForeignCharge:
        share = _asked(pod)
        if share is None:
            return ForeignCharge({})
        problems: tuple[str, ...] = ()
        if pod.node_name:
            problems = (f"node {pod.node_name} has no label {CARD_MEMORY}, so the least that a card could cost counts",)
        return ForeignCharge({}, problems=problems, debit=share.on(*self._sizes(node_lister)), least=share.depends)

    def placed(self, pod: Pod, node_lister: NodeLister, now: float) -> ForeignCharge | None:
        """What a bound pod holds of its node's cards; None where their size isn't known."""
        node = node_lister.node(pod.node_name) if pod.node_name else None
        size = card_memory(node) if node is not None else 0
        if node is None or not size:
            return None
        try:
            share = _asked(pod)
        except BadRequest:
            return None
        if share is None:
            return None
        return ForeignCharge({}, debit=share.on(size, size), model=node.labels.get(CARD_MODEL, ""))

    def predict(self, pod: Pod, node_lister: NodeLister, now: float) -> Prediction | NoNode:
        return NoNode({node.name: "placements by KAI aren't predicted" for node in node_lister.nodes()})

    def _sizes(self, node_lister: NodeLister) -> tuple[int, int]:
        """The MiB of the smallest and of the largest card of all nodes, recomputed once a node has changed."""
        known = self._sized
        if known is None or (known[0](), known[1]) != (node_lister, node_lister.version):
            sizes = [size for node in node_lister.nodes() if (size := card_memory(node))]
            found = (min(sizes), max(sizes)) if sizes else (0, 0)
            known = self._sized = weakref.ref(node_lister), node_lister.version, found
        return known[2]


def card_memory(node: Node) -> int:
    """The MiB of each of a node's cards by its label; 0 where that says nothing."""
    amount = parse_whole(node.labels.get(CARD_MEMORY))
    return amount if amount is not None and 0 < amount <= _MOST_MEMORY else 0


def _asked(pod: Pod) -> CardShare | None:
    """What a pod asks KAI for; None for no card. Raises `BadRequest` for what KAI wouldn't give, or can't be meant."""
    counts = zip(pod.kinds, [parse_whole(each.amount(COUNT)) or 0 for each in pod.containers], strict=True)
    whole = effective(counts, init_finished=pod.init_finished)
    share = read_share(pod.annotations)
    if share is not None and whole:
        raise BadRequest(
            f"a share of a card by annotation and {COUNT} in one pod: KAI gives either; remove one of them"
        )
    if share is None and whole:
        return CardShare(whole, Fraction(1))
    return share


def read_share(annotations: Mapping[str, str]) -> CardShare | None:
    """The share of a card that annotations ask for, None for none; an empty one asks for nothing, as KAI reads it.

    Raises `BadRequest`.
    """
    fraction, memory = annotations.get(FRACTION, ""), annotations.get(MEMORY, "")
    if fraction and memory:
        raise BadRequest(f"annotations {FRACTION} and {MEMORY} in one pod: KAI takes one of them; remove the other")
    portion = _portion(fraction) if fraction else Fraction(0)
    amount = max(_whole(MEMORY, memory, _MOST_MEMORY, "MiB") if memory else 0, _of_containers(annotations))
    if not portion and not amount:
        return None
    devices = annotations.get(DEVICES)
    return CardShare(1 if devices is None else _whole(DEVICES, devices, _MOST_DEVICES, "cards"), portion, amount)


def _portion(text: str) -> Fraction:
    portion = Fraction(text) if len(text) <= _LONGEST_NUMBER and _NUMBER.fullmatch(text) else Fraction(0)
    if not 0 < portion < 1:
        raise BadRequest(
            f"annotation {FRACTION} {quoted(text)} must be a number above 0 and below 1; for whole cards set "
            f"{COUNT} in a container's limits"
        )
    return portion


def _whole(key: str, text: str, most: int, unit: str) -> int:
    amount = int(text) if len(text) < _LONGEST_NUMBER and text.isascii() and text.isdigit() else 0
    if not 0 < amount <= most:
        raise BadRequest(f"annotation {key} {quoted(text)} must be a whole number of {unit} between 1 and {most}")
    return amount


def _of_containers(annotations: Mapping[str, str]) -> int:
    """The MiB that the annotations of containers ask for: the request, or else the limit; of several their sum."""
    asked: dict[str, dict[str, int]] = {}
    for key, text in annotations.items():
        if re.fullmatch(_OF_CONTAINER, key):
            container, _, field = key.rpartition(".")
            asked.setdefault(container, {})[field] = _mebibytes(key, text)
    return sum(fields.get("request", fields.get("limit", 0)) for fields in asked.values())


def _mebibytes(key: str, text: str) -> int:
    try:
        amount = Quantity.parse(text).value
    except QuantityError:
        amount = Fraction(0)
    if not 0 < amount <= _MOST_MEMORY * MEBIBYTE:
        raise BadRequest(f"annotation {key} {quoted(text)} must be an amount of memory above 0, such as 4Gi")
    return ceil(amount / MEBIBYTE)
