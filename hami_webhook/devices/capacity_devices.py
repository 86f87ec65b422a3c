"""Cards that a node doesn't list one by one but whose plugin reports as capacity (docs/spec/node-registration.md#2)."""

from __future__ import annotations

from collections.abc import Iterator

from hami_webhook.devices.model import Device, Inventory, RegistrationError
from hami_webhook.devices.registration import MOST_CARDS
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Node
from hami_webhook.kube.quantity import parse_whole

SHARED_SLOTS = 100
_MOST_MEBIBYTES = 2**31 - 1


def capacity(node: Node, resource: str) -> int:
    """Return a resource's count in `status.capacity`; 0 if it isn't a whole number, or `resource` is empty."""
    return max(0, parse_whole(node.capacity.get(resource)) or 0) if resource else 0


def counted(
    vendor: str, node: Node, word: str, count: int, *, slots: int, memory: int, cores: int, model: str = ""
) -> Iterator[Device]:
    """`count` equal cards `<node>-<word>-<i>` of `memory` MiB each; type lists match `model`, else `vendor`.

    Raises `RegistrationError` for numbers no node can have.
    """
    if count > MOST_CARDS or memory > _MOST_MEBIBYTES:
        raise RegistrationError(f"status.capacity makes {count} {vendor} devices of {memory} MiB, which can't be")
    for index in range(count):
        yield Device(
            vendor=vendor,
            uuid=f"{node.name}-{word}-{index}",
            index=index,
            slots=slots,
            memory=memory,
            cores=cores,
            type=model or vendor,
        )


def split(
    vendor: str, node: Node, word: str, *, cores: str, memory: str, unit: int, card_cores: int, model: str = ""
) -> tuple[Device, ...]:
    """The cards of a node that reports only sums: `card_cores` of the resource `cores` make a card.

    Each has its share of the resource `memory`, of which one unit is `unit` MiB, rounded down. Raises
    `RegistrationError` for numbers no node can have.
    """
    total = capacity(node, cores)
    if total == 0:
        return ()
    share = capacity(node, memory) * unit * card_cores // total
    count = -(-total // card_cores)
    return tuple(counted(vendor, node, word, count, slots=SHARED_SLOTS, memory=share, cores=card_cores, model=model))


def summed(vendor: Vendor, node: Node, word: str, card_cores: int, model: str = "") -> Inventory | None:
    """Return the cards that `split` derives from the vendor's own memory and core resources; None if there are none."""
    cores, memory, unit = vendor.core_name, vendor.memory_name, vendor.memory_factor
    devices = split(vendor.key, node, word, cores=cores, memory=memory, unit=unit, card_cores=card_cores, model=model)
    return Inventory(devices) if devices else None


def index_of(uuid: str) -> int:
    """The index in the id of a card made here: the number behind the last hyphen."""
    return int(uuid.rpartition("-")[2])
