"""The standard reason labels (docs/spec/core.md#7.5) and the text of a node's refusal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

CARD_TYPE_MISMATCH = "CardTypeMismatch"
CARD_UUID_MISMATCH = "CardUuidMismatch"
CARD_NOT_HEALTH = "CardNotHealth"
CARD_CORDONED = "CardCordoned"
CARD_TIME_SLICING_EXHAUSTED = "CardTimeSlicingExhausted"
CARD_INSUFFICIENT_MEMORY = "CardInsufficientMemory"
CARD_INSUFFICIENT_CORE = "CardInsufficientCore"
CARD_COMPUTE_UNITS_EXHAUSTED = "CardComputeUnitsExhausted"
CARD_NOT_FOUND_CUSTOM_FILTER_RULE = "CardNotFoundCustomFilterRule"
CARD_MIG_TOPOLOGY_INFEASIBLE = "CardMigTopologyInfeasible"
EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT = "ExclusiveDeviceAllocateConflict"
NUMA_NOT_FIT = "NumaNotFit"
NVLINK_NOT_FIT = "NVLinkNotFit"
RESOURCE_QUOTA_NOT_FIT = "ResourceQuotaNotFit"
ALLOCATED_CARDS_INSUFFICIENT_REQUEST = "AllocatedCardsInsufficientRequest"
MODE_NOT_FIT = "ModeNotFit"
NODE_INSUFFICIENT_DEVICE = "NodeInsufficientDevice"
NODE_INSUFFICIENT_HANDLE = "NodeInsufficientHandle"
NODE_INTERNAL_ERROR = "NodeInternalError"
NODE_UNREGISTERED = "node unregistered"
SEARCH_LIMIT_EXCEEDED = "SearchLimitExceeded"

LABELS = frozenset(text for name, text in globals().items() if name.isupper() and isinstance(text, str))
"""All of the above."""

UNRESOLVABLE = frozenset(
    (NODE_UNREGISTERED, NODE_INSUFFICIENT_DEVICE, NODE_INTERNAL_ERROR, CARD_TYPE_MISMATCH, CARD_UUID_MISMATCH)
)
"""Labels of what doesn't change with the pods on a node, or isn't known to: nobody is evicted for a fault of ours."""


class Rejection(Struct, frozen=True):
    """Why a node can't serve a pod: labels with the number of rejected cards each, of `cards` cards; or a single text
    without numbers.
    """

    counts: Mapping[str, int] = {}
    cards: int = 0
    bare: str = ""

    def labels(self) -> frozenset[str]:
        """The standard labels in it, the bare one included."""
        return frozenset(self.counts) if not self.bare else frozenset((self.bare,))

    def __str__(self) -> str:
        """`1/4 AllocatedCardsInsufficientRequest, 3/4 CardCordoned`: items sorted as text."""
        if self.bare:
            return self.bare
        return ", ".join(sorted(f"{count}/{self.cards} {label}" for label, count in self.counts.items()))


def counted(counts: Counter[str], cards: int) -> Rejection:
    """A rejection of the labels that were counted, out of `cards`."""
    return Rejection(dict(counts), cards)
