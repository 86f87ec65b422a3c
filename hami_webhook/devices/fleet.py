"""What is registered in the whole cluster, as admission may ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from hami_webhook.devices.foreign.base import Census, NoCensus
from hami_webhook.devices.model import Inventory
from hami_webhook.kube.objects import Node, Pod


class Fleet(Census, Protocol):
    """The cards registered in the cluster, for admission rules that depend on them."""

    def inventories(self, vendor: str) -> Iterable[Inventory]:
        """What each node has registered of a vendor, by backend key, in the order of the nodes' names."""
        ...


class NoFleet(NoCensus):
    """No node is known."""

    def inventories(self, vendor: str) -> Iterable[Inventory]:
        return ()


NO_FLEET = NoFleet()


class Overheard:
    """A fleet that notes whether it was asked anything: then an answer may be another one tomorrow."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.asked = False

    def _listen(self) -> Fleet:
        self.asked = True
        return self._fleet

    @property
    def origin(self) -> Census:
        return self._fleet.origin

    @property
    def now(self) -> float:
        return self._listen().now

    @property
    def version(self) -> int:
        return self._listen().version

    def nodes(self) -> Iterable[Node]:
        return self._listen().nodes()

    def node(self, name: str) -> Node | None:
        return self._listen().node(name)

    def guests(self, node: str) -> Iterable[Pod]:
        return self._listen().guests(node)

    def device(self, node: str) -> Mapping[str, Any] | None:
        return self._listen().device(node)

    def inventories(self, vendor: str) -> Iterable[Inventory]:
        return self._listen().inventories(vendor)
