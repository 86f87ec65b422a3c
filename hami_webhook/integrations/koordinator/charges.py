"""What a pod of Koordinator's costs a quota (docs/spec/koordinator.md#10): totals in bytes, percent and cards."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hami_webhook.devices.foreign_scheduler import ForeignCharge
from hami_webhook.integrations.koordinator.allocation_annotation import KoordinatorShare
from hami_webhook.integrations.koordinator.device_object import KoordinatorDevice, Sizes
from hami_webhook.integrations.koordinator.keys import ALLOCATED, CORE, GPU, MEMORY, RATIO, SHARED
from hami_webhook.integrations.koordinator.request import Amounts, Want, percent_of, share_of


def key(resource: str) -> str:
    """The quota key of a resource."""
    return f"limits.{resource}"


QUOTA_KEYS = tuple(map(key, (SHARED, CORE, MEMORY, RATIO, GPU)))
BYTE_KEYS = frozenset((key(MEMORY),))


def waiting_amounts(amounts: Amounts, want: Want, sizes: Callable[[], Sizes]) -> ForeignCharge:
    """What a pod is charged until it is placed: what it says, and the least that the rest of it can come to.

    `sizes` is only called where something depends on the card.
    """
    floors: tuple[str, ...] = ()
    memory, ratio = want.memory or 0, want.ratio or 0
    if want.ratio is not None:
        memory, floors = share_of(sizes().smallest or 0, want.ratio), (MEMORY,)
    elif want.memory is not None:
        ratio, floors = percent_of(want.memory, sizes().largest or 0), (RATIO, GPU)
    found = {
        SHARED: want.count,
        CORE: amounts.get(CORE, 0),
        MEMORY: want.count * memory,
        RATIO: amounts[RATIO] if want.ratio is not None else want.count * ratio,
        GPU: want.count * max(want.core or 0, ratio),
    }
    return _tally(found, frozenset(map(key, floors)))


def placed_amounts(shares: Iterable[KoordinatorShare], cards: KoordinatorDevice | None) -> ForeignCharge:
    """What a pod costs by what it was given; numbers that weren't written are completed from its node's cards."""
    found = dict.fromkeys((SHARED, CORE, MEMORY, RATIO, GPU), 0)
    problems = []
    for written in shares:
        share = written.completed(cards.card(written.minor) if cards is not None else None)
        if share.memory is None or share.ratio is None:
            lacking = " and ".join(
                name for name, amount in ((MEMORY, share.memory), (RATIO, share.ratio)) if amount is None
            )
            problems.append(
                f"{ALLOCATED} has no {lacking} for minor {share.minor}, and the card isn't known, so it counts as 0"
            )
        core, ratio = share.core or 0, share.ratio or 0
        for resource, amount in ((SHARED, 1), (CORE, core), (MEMORY, share.memory or 0), (RATIO, ratio)):
            found[resource] += amount
        found[GPU] += max(core, ratio)
    return _tally(found, problems=tuple(problems))


def _tally(amounts: Amounts, floors: frozenset[str] = frozenset(), problems: tuple[str, ...] = ()) -> ForeignCharge:
    return ForeignCharge({key(name): amount for name, amount in amounts.items() if amount}, floors, problems)
