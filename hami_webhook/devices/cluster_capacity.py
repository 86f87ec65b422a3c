"""Compute how many equal pods would fit if all cards of the cluster were empty (docs/spec/queues.md#5.1).

The result is an upper bound: it regards slots, memory and cores of each card, and ignores lists, links, NUMA nodes and
the pod's other containers. So a group that is refused for it never fits, not even on an empty cluster.
"""

from __future__ import annotations

from collections.abc import Mapping

from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.fit_request import FREE_CORES, FREE_MEMORY, FREE_SLOT
from hami_webhook.devices.model import IDLE, Device, Request, Requests
from hami_webhook.devices.vendor import Vendor

_WHOLE = 100
"""Cores that a card may be reckoned with whatever it registers."""


def room_for(
    number: int, requests: Mapping[str, Requests], vendors: Mapping[str, Vendor], device_lister: DeviceLister
) -> int:
    """Return how many of `number` pods with this request may fit at once.

    A vendor of which no card is registered limits nothing: its nodes may be about to come.
    """
    return min(
        (
            _room(number, request, vendors[key], device_lister)
            for key, of_containers in requests.items()
            for request in set(filter(None, of_containers))
        ),
        default=number,
    )


def _room(number: int, request: Request, vendor: Vendor, device_lister: DeviceLister) -> int:
    if type(vendor).resolve is not Vendor.resolve:  # each node has a size of its own
        return number
    shares, needed, known = 0, number * request.count, False
    for inventory in device_lister.inventories(vendor.key):
        for device in inventory.devices:
            known = True
            found = _shares(request, vendor, device)
            if found is None:
                return number
            shares += found
            if shares >= needed:
                return number
    return shares // request.count if known else number


def _shares(request: Request, vendor: Vendor, device: Device) -> int | None:
    """How many containers may have a share of the empty card; None if nothing that is known here limits them."""
    share = vendor.resolve_share(request, device, IDLE)
    if share is None:
        return 0
    if vendor.occupancy.multi_share(request, device):
        return None
    limits = []
    if FREE_SLOT in vendor.checks and share.slots:
        limits.append(-(-device.slots // share.slots))  # as long as one slot is free
    if FREE_MEMORY in vendor.checks and share.memory:
        limits.append(device.memory // share.memory)
    if FREE_CORES in vendor.checks and share.cores:
        limits.append(max(device.cores, _WHOLE) // share.cores)
    return min(limits, default=None)
