"""Vastaitech VA cards. Source: docs/spec/amd-biren-vastai.md#C.

A node's plugin registers either cards or single dies, several of which make a card, its AIC; then a container that asks
for several devices should get dies of one AIC.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.config.devices import DeviceSection, Meaning
from hami_webhook.config.fields import ResourceName
from hami_webhook.devices import reasons
from hami_webhook.devices.codecs import CardRecord
from hami_webhook.devices.fit_request import (
    FIRST_FIT,
    FREE_SLOT,
    HEALTHY,
    UUID_LISTS,
    WITHIN_QUOTA,
    Candidate,
    Check,
    FitRequest,
    Selection,
)
from hami_webhook.devices.groups import LargestGroups, togetherness
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.model import Device, Inventory, NodeView, Rows
from hami_webhook.devices.registration import NodeRegistration
from hami_webhook.devices.slots import SlotVendor
from hami_webhook.kube.objects import Pod


class CustomInfo(Struct, frozen=True):
    """What the plugin registers of a device in addition: its strategy, and of which AIC it is (empty: unknown)."""

    strategy: str
    aic: str

    @property
    def is_die(self) -> bool:
        return self.strategy == "die"


def _custom(device: Device) -> CustomInfo:
    assert isinstance(device.extra, CustomInfo)
    return device.extra


def _aic(device: Device) -> Hashable:
    """The AIC of a die; one without is a group of its own."""
    aic = _custom(device).aic
    return ("AIC", aic) if aic else ("die", device.uuid)


def _die_mode(devices: Sequence[Device]) -> bool:
    return any(_custom(device).is_die for device in devices)


def _not_in_use(candidate: Candidate) -> bool:
    """Under `mutex`, neither the device nor, in die mode, any die of its AIC has anybody on it."""
    fit_request, device = candidate.fit_request, candidate.device
    if not fit_request.terms.policy.mutex:
        return True
    devices = fit_request.inventory.devices
    same_card = [d for d in devices if _aic(d) == _aic(device)] if _die_mode(devices) else [device]
    return not any(fit_request.overlay.used(d.vendor, d.uuid).slots for d in same_card)


BY_AIC = LargestGroups(_aic)


class VastaiSection(DeviceSection):
    """`vastai`: whole cards, or dies registered as devices."""

    resource_count_name: Annotated[ResourceName, Meaning("number of cards or dies", "devices")] = ""


class Vastai(SlotVendor):
    key = "Vastai"
    section_name = "vastai"
    section_type = VastaiSection
    registration = NodeRegistration("hami.io/node-va-register", "hami.io/node-handshake-va")
    keys = DeviceKeys.usual("Vastai", uuid="vastaitech.com/[no]use-gpuuuid")
    checks = (
        HEALTHY,
        UUID_LISTS,
        FREE_SLOT,
        Check(reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT, _not_in_use),
        WITHIN_QUOTA,
    )

    def device(self, record: CardRecord, position: int) -> Device:
        """Strategy and AIC are texts; a number isn't understood."""
        found = record.extra.get("custominfo")
        custom = found if isinstance(found, dict) else {}
        strategy, aic = custom.get("DeviceStrategy"), custom.get("AIC")
        texts = [text if isinstance(text, str) else "" for text in (strategy, aic)]
        return replace(super().device(record, position), extra=CustomInfo(*texts))

    def selection(self, fit_request: FitRequest) -> Selection:
        return BY_AIC if fit_request.request.count > 1 and _die_mode(fit_request.inventory.devices) else FIRST_FIT

    def traits(self, inventory: Inventory, places: Mapping[str, int]) -> Hashable:
        """An AIC by the first of its dies."""
        aics: dict[str, int] = {}
        return tuple(
            (custom.strategy, custom.aic and aics.setdefault(custom.aic, place))
            for place, custom in enumerate(map(_custom, inventory.devices))
        )

    def score(self, pod: Pod, view: NodeView, rows: Rows, policy: str) -> float:
        """The more of a container's dies are on one AIC the better, whichever way the node policy looks at scores."""
        devices = {device.uuid: device for device in view.inventories[self.key].devices}
        chosen = [_custom(devices[d.uuid]) for row in rows if self.key in row for d in row[self.key].devices]
        if not all(custom.strategy in ("", "die") and custom.aic for custom in chosen):
            return 0.0
        together = togetherness(self.key, rows, {uuid: _aic(device) for uuid, device in devices.items()})
        return -together if policy == "spread" else together
