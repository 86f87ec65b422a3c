"""What claims hold of each device, as their allocations say (docs/spec/dra.md#5).

The index key is the device name in allocations, so changed slices cost nothing. Amounts are read on demand, because the
slice has those that an allocation lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from hami_webhook.devices.debit import Debit
from hami_webhook.dra.allocation import ClaimedDevice
from hami_webhook.dra.devices import DeviceID, PublishedDevice, PublishedDevices
from hami_webhook.dra.holders import Key, held_by, results_of
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.objects import MalformedObject


class HeldDevices:
    """The shares that claims have of devices; `published` gives those that are published now."""

    def __init__(self, published: Callable[[], PublishedDevices]) -> None:
        self._published = published
        self._claims: dict[Key, wire.ResourceClaim] = {}
        self._keys: dict[DeviceID, set[Key]] = {}

    def put(self, key: Key, claim: wire.ResourceClaim) -> None:
        """A claim was added or changed."""
        self.drop(key)
        named = _named(claim)
        if named:
            self._claims[key] = claim
        for identity in named:
            self._keys.setdefault(identity, set()).add(key)

    def drop(self, key: Key) -> None:
        claim = self._claims.pop(key, None)
        for identity in _named(claim) if claim is not None else ():
            keys = self._keys[identity]
            keys.discard(key)
            if not keys:
                del self._keys[identity]

    def of(self, key: Key) -> Sequence[ClaimedDevice]:
        """What a claim holds."""
        claim = self._claims.get(key)
        try:
            return held_by(claim, self._published()).devices if claim is not None else ()
        except MalformedObject:  # its cost isn't known either
            return ()

    def holders(self, device: PublishedDevice) -> Mapping[Key, Debit]:
        """Return the claims that hold this device, with their amounts; a device of the same name on another node
        doesn't count.
        """
        found: dict[Key, Debit] = {}
        for key in sorted(self._keys.get(device.id, ())):
            for each in self.of(key):
                if each.id == device.id and each.node in ("", device.node):
                    found[key] = found.get(key, Debit()) + each.debit
        return found

    def used(self, device: PublishedDevice) -> Debit:
        """What all claims hold of a device."""
        return sum(self.holders(device).values(), Debit())

    def nodes(self, key: Key) -> Iterable[str]:
        """The nodes of the devices that a claim holds."""
        return {each.node for each in self.of(key)}


def _named(claim: wire.ResourceClaim) -> set[DeviceID]:
    """The devices that an allocation names."""
    results = results_of(claim) or ()
    return {
        DeviceID(each.driver or "", each.pool or "", each.device or "") for each in results if not each.admin_access
    }
