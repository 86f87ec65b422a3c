"""The cards that a quota counts, where it names device types or nodes (docs/spec/quota.md#5.1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping

from msgspec import Struct

from hami_webhook.devices.model import NodeView
from hami_webhook.devices.pod_preferences import split_list
from hami_webhook.kube.objects import ResourceQuota

DEVICE_TYPES = "hami.io/quota-device-types"
NODE_SELECTOR = "hami.io/quota-node-selector"
COUNTED = "hami.io/quota-counted-cards"
"""The annotation with the selection that used was computed for; none if that was all cards."""

_MOST_NAMED = 10
"""Types of cards that a sentence names."""


class CardSelection(Struct, frozen=True):
    """Cards whose type has one of `types` (lower case) as a whole word, on nodes with these labels.

    Empty is no constraint. `a10` is neither A100 nor A10G.
    """

    types: tuple[str, ...] = ()
    node_labels: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, quota: ResourceQuota) -> CardSelection | None:
        """Read a quota's selection of cards; None if it counts all cards.

        Labels that can't be read are ignored.
        """
        if quota.annotations.keys().isdisjoint((DEVICE_TYPES, NODE_SELECTOR)):
            return None
        types = split_list(quota.annotations.get(DEVICE_TYPES, "").lower())
        selection = cls(types, _labels(quota.annotations.get(NODE_SELECTOR, "")) or ())
        return selection if selection != cls() else None

    def admits(self, device_type: str, node_labels: Mapping[str, str]) -> bool:
        """Whether a card of this type on a node with these labels is selected."""
        return self.names(device_type) and self.on_node(node_labels)

    def names(self, device_type: str) -> bool:
        """Whether one of `types` is a word of a card's type."""
        return not self.types or _words(self.types).search(device_type.lower()) is not None

    def on_node(self, labels: Mapping[str, str]) -> bool:
        """Whether cards of a node with these labels may be selected."""
        return all(labels.get(key) == value for key, value in self.node_labels)

    def on(self, view: NodeView) -> frozenset[tuple[str, str]]:
        """The selected cards of a node, as backend key and UUID."""
        return frozenset(
            (vendor, device.uuid)
            for vendor, inventory in view.inventories.items()
            for device in inventory.devices
            if self.admits(device.type, view.node.labels)
        )

    def __str__(self) -> str:
        labels = ",".join(f"{key}={value}" for key, value in self.node_labels)
        parts = {"types": ",".join(self.types), "nodes": labels}
        return "; ".join(f"{name} {text}" for name, text in parts.items() if text)


def selection_faults(quota: ResourceQuota, types_known: Callable[[], Collection[str]]) -> Iterator[tuple[str, str]]:
    """Yield the selecting annotations that are probably wrong, each with a sentence that explains why."""
    cards = CardSelection.of(quota)
    if cards is not None and (known := types_known()) and not any(map(cards.names, known)):
        named = ", ".join(sorted(known)[:_MOST_NAMED])
        yield DEVICE_TYPES, f"{DEVICE_TYPES}: no card has such a type; write words of those that there are: {named}"
    types = quota.annotations.get(DEVICE_TYPES)
    if types is not None and not split_list(types):
        yield DEVICE_TYPES, f"{DEVICE_TYPES} names no type, so all are counted; write types such as A100,H100"
    labels = quota.annotations.get(NODE_SELECTOR)
    if labels is not None and not _labels(labels):
        text = (
            f"{NODE_SELECTOR}: {labels} is no list of labels, so all nodes are counted; write labels such as pool=train"
        )
        yield NODE_SELECTOR, text


def _words(types: tuple[str, ...]) -> re.Pattern[str]:
    """One of the texts, with no letter or digit next to it."""
    return re.compile(f"(?<![a-z0-9])(?:{'|'.join(map(re.escape, types))})(?![a-z0-9])")


def _labels(text: str) -> tuple[tuple[str, str], ...] | None:
    """`key=value` in a comma list; None for what isn't."""
    pairs = [item.partition("=") for item in split_list(text)]
    if not all(key.strip() and equals and "=" not in value for key, equals, value in pairs):
        return None
    return tuple(sorted((key.strip(), value.strip()) for key, _, value in pairs))
