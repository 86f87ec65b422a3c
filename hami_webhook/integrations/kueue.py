"""What Kueue's configuration says of our resources: its `resources.transformations` (docs/queues.md#beside-kueue)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hami_webhook.devices.registry import Vendors

Transformation = Mapping[str, Any]


def transformations(vendors: Vendors) -> Iterator[Transformation]:
    """By which Kueue counts memory and cores as our quotas do: those of one card, times the number of cards.

    Kueue multiplies the sums of a pod, and we multiply container by container: both agree for pods with one container
    with cards, and for others Kueue counts more. What has no amount before a pod has its card, such as a percentage,
    counts nothing there.
    """
    for vendor in vendors.values():
        counted = [name for name in (vendor.memory_name, vendor.core_name) if name]
        for name in sorted(vendor.resource_names):
            if name in counted:
                prefix, _, last = name.rpartition("/")
                yield {
                    "input": name,
                    "strategy": "Replace",
                    "multiplyBy": vendor.count_name,
                    "outputs": {f"{prefix}/total-{last}": "1"},
                }
            elif name != vendor.count_name:
                yield {"input": name, "strategy": "Replace"}
