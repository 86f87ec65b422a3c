"""What claims hold of each device, as their allocations say (docs/spec/dra.md#5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hami_webhook.devices.debit import Debit
from hami_webhook.dra.allocation import ClaimedDevice, allocated
from hami_webhook.dra.devices import DeviceID, PublishedDevices
from hami_webhook.dra.holders import Key, results_of
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.objects import MalformedObject


class HeldDevices:
    """The shares that claims have of the published devices; kept up claim by claim."""

    def __init__(self, published: PublishedDevices, claims: Mapping[Key, wire.ResourceClaim]) -> None:
        self._published = published
        self._by_device: dict[DeviceID, dict[Key, list[ClaimedDevice]]] = {}
        self._by_claim: dict[Key, tuple[ClaimedDevice, ...]] = {}
        for key, claim in claims.items():
            self.put(key, claim)

    def put(self, key: Key, claim: wire.ResourceClaim) -> None:
        """A claim was added or changed."""
        self.drop(key)
        shares = tuple(_shares_of(claim, self._published))
        if shares:
            self._by_claim[key] = shares
        for share in shares:
            self._by_device.setdefault(share.id, {}).setdefault(key, []).append(share)

    def drop(self, key: Key) -> None:
        for identity in {share.id for share in self._by_claim.pop(key, ())}:
            holders = self._by_device[identity]
            del holders[key]
            if not holders:
                del self._by_device[identity]

    def of(self, key: Key) -> Sequence[ClaimedDevice]:
        """What a claim holds."""
        return self._by_claim.get(key, ())

    def holders(self, identity: DeviceID) -> Mapping[Key, Debit]:
        """The claims that hold a device, each with what it holds of it."""
        found = self._by_device.get(identity, {})
        return {key: sum((share.debit for share in shares), Debit()) for key, shares in found.items()}

    def used(self, identity: DeviceID) -> Debit:
        """What all claims hold of a device."""
        return sum(self.holders(identity).values(), Debit())


def _shares_of(claim: wire.ResourceClaim, published: PublishedDevices) -> Iterator[ClaimedDevice]:
    results = results_of(claim)
    try:
        yield from allocated(results or (), published).devices
    except MalformedObject:  # its cost isn't known either
        return
