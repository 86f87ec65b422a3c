"""What a pod's annotations say about the choice of cards: device policy, weights, allow and deny lists.

Sources: docs/spec/core.md#4 and #7.4, docs/spec/nvidia.md#4 and #7.2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from hami_webhook.devices.model import Device, Usage

GPU_POLICY = "hami.io/gpu-scheduler-policy"
NODE_POLICY = "hami.io/node-scheduler-policy"
WEIGHTS = "hami.io/device-scoring-weights"
NUMA_BIND = "nvidia.com/numa-bind"
"""Read for the cards of every vendor, as HAMi does."""

_WEIGHT = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
KNOWN_CARD_POLICIES = ("binpack", "spread", "mutex", "numa", "numa-first", "topology-aware")


def split_list(text: str) -> tuple[str, ...]:
    """The items of a comma list, trimmed, without empties and repeats, in the order given."""
    return tuple(dict.fromkeys(item for item in (part.strip() for part in text.split(",")) if item))


class CardPolicy(Struct, frozen=True):
    """`hami.io/gpu-scheduler-policy`: one policy or a comma list."""

    items: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> CardPolicy:
        return cls(tuple(item.strip() for item in text.split(",")))

    @classmethod
    def of(cls, annotations: Mapping[str, str], usual: str, *, is_2_11: bool) -> CardPolicy:
        """Return the policy in the pod's annotation, otherwise `usual`.

        With `is_2_11`, an unknown policy also means `usual`.
        """
        written = annotations.get(GPU_POLICY)
        policy = cls.parse(usual if written is None else written)
        return cls.parse(usual) if is_2_11 and written is not None and not policy.known else policy

    @property
    def known(self) -> bool:
        return all(item in KNOWN_CARD_POLICIES for item in self.items)

    @property
    def mutex(self) -> bool:
        return "mutex" in self.items

    @property
    def topology_aware(self) -> bool:
        return "topology-aware" in self.items

    @property
    def numa_first(self) -> bool:
        return "numa-first" in self.items

    def sort_keys(self, *, numa_bound: bool) -> tuple[str, ...]:
        """The sort keys, most important first: each is a key of `_KEYS`."""
        listed = len(self.items) > 1 or self.items[0] in ("numa", "numa-first")
        if listed:
            words = {"binpack": "fullest", "spread": "emptiest", "numa": "high-numa", "numa-first": "high-numa"}
            keys = list(dict.fromkeys(words[item] for item in self.items if item in words)) or ["emptiest"]
            if numa_bound:
                keys = ["high-numa", *keys]
            return (*keys, "high-index")
        if numa_bound:
            return ("low-numa", "fullest") if self.items[0] == "binpack" else ("high-numa", "emptiest")
        first = {"binpack": "fullest", "mutex": "fewest-slots"}.get(self.items[0], "emptiest")
        return (first, "high-numa")

    def warnings_of(self, *, is_2_11: bool = False) -> list[str]:
        """A sentence for each item that is no policy."""
        unknown = [item for item in self.items if item and item not in KNOWN_CARD_POLICIES]
        instead = ", so the configured one applies" if is_2_11 else " and acts as spread"
        return [f'{GPU_POLICY}: "{item}" is no card policy{instead}' for item in unknown]


class Weights(Struct, frozen=True):
    """`hami.io/device-scoring-weights`: how much slots, cores and memory count in a card's score."""

    slot: int = 1
    core: int = 1
    memory: int = 1

    @classmethod
    def parse(cls, text: str) -> Weights:
        """The weights `slot=…,core=…,memory=…` in any order; raises ValueError with HAMi's words for what is wrong."""
        items = text.split(",")
        if len(items) != 3:
            raise ValueError("expected slot, core, and memory weights")
        found: dict[str, int] = {}
        for item in items:
            key, equals, value = (part.strip() for part in item.partition("="))
            if not equals:
                raise ValueError("expected key=value entries")
            if key not in ("slot", "core", "memory"):
                raise ValueError(f'unknown weight "{key}"')
            if key in found:
                raise ValueError(f'duplicate "{key}" weight')
            if not _WEIGHT.fullmatch(value):
                raise ValueError(f'"{key}" weight must be an integer')
            found[key] = int(value)
            if found[key] < 0:
                raise ValueError(f'"{key}" weight must not be negative')
        if not any(found.values()):
            raise ValueError("at least one weight must be positive")
        return cls(**found)


_EQUAL_WEIGHTS = Weights()


def parse_weights(annotations: Mapping[str, str], pod: str) -> Weights:
    """The pod's weights, 1 each by default; raises ValueError with the whole sentence of docs/spec/core.md#7.1."""
    text = annotations.get(WEIGHTS)
    if text is None:
        return _EQUAL_WEIGHTS
    try:
        return Weights.parse(text)
    except ValueError as why:
        raise ValueError(f'invalid {WEIGHTS} annotation "{text}": {why} for pod {pod}') from why


MOST_LETTERS = 2000
"""Of lists above which nothing that was found for them is remembered: users write them."""


class ListRule(Struct, frozen=True):
    """Allow lists and a deny list that hold together; an empty allow list is no constraint.

    `also` are the allow lists under a vendor's further (alias) keys: a card must be in every list that isn't empty.
    `allows_nothing`: the allow list has only empty items (`,`), so it admits no card.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    also: tuple[tuple[str, ...], ...] = ()
    allows_nothing: bool = False

    @classmethod
    def read(
        cls,
        annotations: Mapping[str, str],
        allow_keys: Sequence[str],
        deny_keys: Sequence[str],
        *,
        fold: bool = False,
    ) -> ListRule:
        """The lists under a vendor's annotation keys, aliases included; `fold` lower-cases the items.

        A blank value is no constraint. A deny list with only empty items (`,`) denies no card; an allow list with only
        empty items allows none.
        """
        written = annotations.keys()
        if written.isdisjoint(allow_keys) and written.isdisjoint(deny_keys):
            return _NO_RULE
        allows = [items for key in allow_keys if (items := _list_under(annotations, key, fold=fold))]
        denies = [item for key in deny_keys for item in _list_under(annotations, key, fold=fold)]
        texts = [annotations.get(key, "") for key in allow_keys]
        allows_nothing = any(text.strip() and not split_list(text) for text in texts)
        return cls(allows[0] if allows else (), tuple(dict.fromkeys(denies)), tuple(allows[1:]), allows_nothing)

    @property
    def length(self) -> int:
        """The letters of all its items."""
        return sum(len(item) for items in (self.allow, self.deny, *self.also) for item in items)

    def admits(self, text: str) -> bool:
        """Exact match, for UUIDs."""
        return not self.allows_nothing and all(text in items for items in self._allows()) and text not in self.deny

    def admits_type(self, model: str) -> bool:
        """Case-insensitive substring match, for card models (the items are lower case)."""
        folded = model.lower()
        if self.allows_nothing or not all(any(item in folded for item in items) for items in self._allows()):
            return False
        return not any(item in folded for item in self.deny)

    def _allows(self) -> tuple[tuple[str, ...], ...]:
        return (self.allow, *self.also) if self.allow else self.also


_NO_RULE = ListRule()


def _list_under(annotations: Mapping[str, str], key: str, *, fold: bool) -> tuple[str, ...]:
    text = annotations.get(key, "")
    return split_list(text.lower() if fold else text)


class Rank(Protocol):
    """A card to be put in order: with its usage, its registered position and what the request takes of it."""

    @property
    def device(self) -> Device: ...

    @property
    def usage(self) -> Usage: ...

    @property
    def position(self) -> int: ...

    @property
    def memory(self) -> int: ...

    @property
    def cores(self) -> int: ...


def order(ranks: Sequence[Rank], policy: CardPolicy, weights: Weights, *, numa_bound: bool) -> list[int]:
    """The indices of `ranks` in the order they are to be tried, by exact rational scores.

    score = 10 × (slot × (used+1)/slots + core × (used+cores)/cores + memory × (used+memory)/memory), 0 where a card has
    no slots, cores or memory; the constant factor is left out.
    """
    scores = _scores(ranks, weights)
    keys = [_KEYS[name] for name in policy.sort_keys(numa_bound=numa_bound)]

    def sort_key(index: int) -> tuple[int, ...]:
        rank = ranks[index]
        return (*(key(rank, scores[index]) for key in keys), -rank.position)

    return sorted(range(len(ranks)), key=sort_key)


_KEYS: dict[str, Callable[[Rank, int], int]] = {
    "fullest": lambda rank, score: -score,
    "emptiest": lambda rank, score: score,
    "fewest-slots": lambda rank, score: rank.usage.slots,
    "high-numa": lambda rank, score: -rank.device.numa,
    "low-numa": lambda rank, score: rank.device.numa,
    "high-index": lambda rank, score: -rank.device.index,
}


def _scores(ranks: Sequence[Rank], weights: Weights) -> list[int]:
    """Every card's score over one common denominator, so that integers compare as the exact fractions would."""
    shapes = {(rank.device.slots, rank.device.cores, rank.device.memory) for rank in ranks}
    common = math.lcm(*(total for shape in shapes if min(shape) > 0 for total in shape))
    scores = []
    for rank in ranks:
        device, usage = rank.device, rank.usage
        if min(device.slots, device.cores, device.memory) <= 0:
            scores.append(0)
            continue
        scores.append(
            weights.slot * (usage.slots + 1) * (common // device.slots)
            + weights.core * (usage.cores + rank.cores) * (common // device.cores)
            + weights.memory * (usage.memory + rank.memory) * (common // device.memory)
        )
    return scores
