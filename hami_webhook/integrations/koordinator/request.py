"""A pod's request of Koordinator (docs/spec/koordinator.md#6), whose scheduler reads the pod's sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from hami_webhook.devices.amounts import MAX_INT32, bad_amount
from hami_webhook.integrations.koordinator import keys
from hami_webhook.integrations.koordinator.keys import CORE, GPU, MEMORY, RATIO, SHARED
from hami_webhook.kube.draft import ContainerDraft
from hami_webhook.kube.objects import Container, ContainerKind
from hami_webhook.kube.quantity import MAX_INT64, parse_whole
from hami_webhook.kube.requests import effective

OWN = (SHARED, CORE, MEMORY, RATIO, GPU)
GPU_TYPE = (*OWN, keys.NPU_CORE, keys.NPU_CPU, keys.NPU_DVPP, keys.NVIDIA, keys.AMD, keys.HYGON)
"""The resources that Koordinator takes for GPUs and reads together."""

Amounts = Mapping[str, int]
"""Amounts above zero, by the resource's proper name."""

RequestingContainer = Container | ContainerDraft
"""A container, stored or under change."""


def written(container: RequestingContainer, resource: str) -> Any:
    """What is written for a resource in requests, else in limits, aliases last; None if nothing does."""
    known = (resource, *(alias for alias, proper in keys.ALIASES.items() if proper == resource))
    for amounts in (container.requests, container.limits):
        for name in known:
            if amounts.get(name) is not None:
                return amounts[name]
    return None


def whole(container: RequestingContainer, resource: str, value: Any) -> int:
    """The amount that was written; raises `BadRequest` unless it is an integer from 0 to what the resource can be."""
    amount = parse_whole(value)
    most = MAX_INT32 if resource == SHARED else MAX_INT64
    if amount is None or not 0 <= amount <= most:
        what = "a number of cards" if resource == SHARED else "bytes" if resource == MEMORY else "percent"
        raise bad_amount(container.name, resource, value, f"{what}, an integer between 0 and {most}")
    return amount


def read(container: RequestingContainer) -> Amounts:
    """What a container requests. Raises `BadRequest`."""
    found = {}
    for resource in GPU_TYPE:
        value = written(container, resource)
        if value is not None:
            amount = whole(container, resource, value)
            if amount:
                found[resource] = amount
    return found


def total(rows: Iterable[tuple[ContainerKind, Amounts]]) -> Amounts:
    """The effective requests of a pod, by resource."""
    rows = list(rows)
    named = dict.fromkeys(name for _, amounts in rows for name in amounts)
    return {name: effective((kind, amounts.get(name, 0)) for kind, amounts in rows) for name in named}


def pod_total(containers: Iterable[RequestingContainer]) -> Amounts:
    """The effective requests of a pod's containers, the shorthand spelt out. Raises `BadRequest`."""
    return total((container.kind, _spelt_out(read(container))) for container in containers)


def _spelt_out(amounts: Amounts) -> Amounts:
    if GPU not in amounts:
        return amounts
    rest = {name: amount for name, amount in amounts.items() if name != GPU}
    return {**rest, CORE: amounts[GPU], RATIO: amounts[GPU]}


def cards_of(percent: int | None) -> int | None:
    """The whole cards that a percentage means: more than one, all of each; None if it doesn't."""
    return percent // 100 if percent is not None and percent > 100 and percent % 100 == 0 else None


class Want(Struct, frozen=True):
    """What a pod wants: `count` different GPUs, and of each percent of cores and of memory, or bytes of it.

    None is what it didn't request: no cores are charged then, and one of the two kinds of memory always is.
    """

    count: int
    core: int | None = None
    ratio: int | None = None
    memory: int | None = None

    @classmethod
    def of(cls, amounts: Amounts) -> Want | None:
        """What the pod's effective requests mean; None if they name none of Koordinator's resources."""
        core, ratio, memory = amounts.get(CORE), amounts.get(RATIO), amounts.get(MEMORY)
        if not any(name in amounts for name in OWN):
            return None
        count = amounts.get(SHARED) or cards_of(ratio) or 1
        return cls(
            count,
            None if core is None else core // count,
            None if ratio is None else ratio // count,
            None if memory is None or ratio is not None else memory // count,
        )

    @property
    def fractional(self) -> bool:
        """Less than whole cards, or an amount of memory, though it may be all of a card's."""
        return self.ratio < 100 if self.ratio is not None else self.memory is not None


def share_of(memory: int, ratio: int) -> int:
    """The bytes that a percentage of a card's memory is, rounded down."""
    return memory * ratio // 100


def percent_of(memory: int, whole_memory: int) -> int:
    """The percentage of a card's memory that bytes are, rounded down; 0 of a card without any."""
    return memory * 100 // whole_memory if whole_memory else 0
