"""Koordinator's annotation of what it allocated (docs/spec/koordinator.md#9), and what is used by it (7.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.codecs import BadAnnotation
from hami_webhook.integrations.koordinator.device_object import KoordinatorCard, KoordinatorDevice, amount
from hami_webhook.integrations.koordinator.keys import ALLOCATED, CORE, MEMORY, RATIO
from hami_webhook.integrations.koordinator.request import percent_of, share_of
from hami_webhook.kube.derived import DerivedValues
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.quantity import Format, Quantity

_decoded: DerivedValues[Pod, tuple[KoordinatorShare, ...] | str] = DerivedValues()
"""What a pod's annotation says, or why it can't be read."""


class KoordinatorShare(Struct, frozen=True):
    """What a pod has of one card: percent of cores, bytes, percent of memory; None is what isn't written."""

    minor: int
    id: str = ""
    core: int | None = None
    memory: int | None = None
    ratio: int | None = None

    def completed(self, card: KoordinatorCard | None) -> KoordinatorShare:
        """With the memory or the ratio that isn't written, if the card is known to have any memory."""
        if card is None or card.memory is None:
            return self
        if self.memory is None and self.ratio is not None:
            return replace(self, memory=share_of(card.memory, self.ratio))
        if self.ratio is None and self.memory is not None:
            return replace(self, ratio=percent_of(self.memory, card.memory))
        return self


class Used(Struct, frozen=True):
    """What is taken of a card: percent of cores, bytes, percent of memory."""

    core: int = 0
    memory: int = 0
    ratio: int = 0

    def plus(self, share: KoordinatorShare) -> Used:
        return Used(self.core + (share.core or 0), self.memory + (share.memory or 0), self.ratio + (share.ratio or 0))


UNUSED = Used()


def encode(shares: Iterable[KoordinatorShare]) -> str:
    """The annotation as Koordinator writes it; memory as a quantity with a binary suffix."""
    return orjson.dumps({"gpu": [_encoded(share) for share in shares]}).decode()


def _encoded(share: KoordinatorShare) -> dict[str, Any]:
    memory = None if share.memory is None else str(Quantity(Fraction(share.memory), Format.BINARY_SI))
    resources = {CORE: share.core, MEMORY: memory, RATIO: share.ratio}
    written = {name: str(value) for name, value in resources.items() if value is not None}
    return {"minor": share.minor, "resources": written} | ({"id": share.id} if share.id else {})


def decode(text: str) -> tuple[KoordinatorShare, ...]:
    """The shares of GPUs in the annotation; other types of devices may be listed too. Raises `BadAnnotation`."""
    try:
        written = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadAnnotation(f"not JSON: {error}") from error
    if not isinstance(written, Mapping):
        raise BadAnnotation("must be an object of lists by device type")
    entries = written.get("gpu")
    if entries is None:
        return ()
    if not isinstance(entries, list):
        raise BadAnnotation("gpu must be a list")
    return tuple(_share(entry, f"gpu[{index}]") for index, entry in enumerate(entries))


def _share(entry: Any, where: str) -> KoordinatorShare:
    if not isinstance(entry, Mapping):
        raise BadAnnotation(f"{where} must be an object")
    minor, name, resources = entry.get("minor"), entry.get("id", ""), entry.get("resources", {})
    if not isinstance(minor, int) or isinstance(minor, bool):
        raise BadAnnotation(f"{where}.minor must be an integer")
    if not isinstance(name, str) or not isinstance(resources, Mapping):
        raise BadAnnotation(f"{where}: id must be a string and resources an object")
    found: dict[str, int | None] = {}
    for resource in (CORE, MEMORY, RATIO):
        value = resources.get(resource)
        found[resource] = None if value is None else amount(value)
        if value is not None and found[resource] is None:
            raise BadAnnotation(f"{where}.resources[{resource}] must be a quantity ≥ 0")
    return KoordinatorShare(minor, name, found[CORE], found[MEMORY], found[RATIO])


def read_shares(pod: Pod) -> tuple[KoordinatorShare, ...]:
    """What the pod's annotation says it has; empty without one. Raises `BadAnnotation`."""
    known = _decoded.get(pod)
    if known is None:
        text = pod.annotations.get(ALLOCATED)
        try:
            known = () if text is None else decode(text)
        except BadAnnotation as error:
            known = str(error)
        _decoded.keep(pod, known)
    if isinstance(known, str):
        raise BadAnnotation(known)
    return known


def usage(foreign_pods_on: Iterable[Pod], cards: KoordinatorDevice) -> dict[int, Used]:
    """What pods of a node have of its cards, by minor; an annotation that can't be read takes nothing."""
    taken: dict[int, Used] = {}
    for pod in foreign_pods_on:
        try:
            shares = read_shares(pod)
        except BadAnnotation:
            continue
        for share in shares:
            full = share.completed(cards.card(share.minor))
            taken[share.minor] = taken.get(share.minor, UNUSED).plus(full)
    return taken
