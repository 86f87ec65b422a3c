"""What is registered in the whole cluster, as admission may ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from hami_webhook.devices.foreign_scheduler import NodeLister, NoNodes
from hami_webhook.devices.model import Inventory
from hami_webhook.kube.objects import Node, Pod


class DeviceLister(NodeLister, Protocol):
    """The cards registered in the cluster, for admission rules that depend on them."""

    def inventories(self, vendor: str) -> Iterable[Inventory]:
        """What each node has registered of a vendor, by backend key, in the order of the nodes' names."""
        ...


class NoDevices(NoNodes):
    """No node is known."""

    def inventories(self, vendor: str) -> Iterable[Inventory]:
        return ()


NO_FLEET = NoDevices()


F = TypeVar("F", bound=DeviceLister)


class RecordingDeviceLister(Generic[F]):
    """A fleet that notes whether it was asked anything: then an answer may be another one tomorrow."""

    def __init__(self, fleet: F) -> None:
        self._fleet = fleet
        self.asked = False

    def listen(self) -> F:
        """The fleet, which is asked now."""
        self.asked = True
        return self._fleet

    @property
    def origin(self) -> NodeLister:
        return self._fleet.origin

    @property
    def now(self) -> float:
        return self.listen().now

    @property
    def version(self) -> int:
        return self.listen().version

    def nodes(self) -> Iterable[Node]:
        return self.listen().nodes()

    def node(self, name: str) -> Node | None:
        return self.listen().node(name)

    def foreign_pods_on(self, node: str) -> Iterable[Pod]:
        return self.listen().foreign_pods_on(node)

    def device(self, node: str) -> Mapping[str, Any] | None:
        return self.listen().device(node)

    def inventories(self, vendor: str) -> Iterable[Inventory]:
        return self.listen().inventories(vendor)
