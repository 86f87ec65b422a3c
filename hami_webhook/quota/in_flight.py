"""What of a ledger no pod shows and still counts: charges of pods on their way, and allocations that are being stored.

Source: docs/spec/quota.md#9, docs/spec/dra.md#7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping

from hami_webhook.dra.holders import BareClaim, controller_of
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.ledger import Entry, State
from hami_webhook.quota.pricing import Charge


class AllocationsInFlight:
    """The entries of allocations that no pod or claim shows: each may still be stored.

    Each counts until its claim shows the allocation, and then that does (docs/spec/dra.md#7).
    """

    def __init__(self, orphans: Mapping[str, Entry]) -> None:
        self._entries: dict[str, Entry] = {}
        self._shown: dict[str, Counter[str]] = {}
        """What other claims of the holders show, by the holders' UIDs, and claims of the names by the ids of these."""
        for identity, entry in orphans.items():
            self.add(identity, entry)

    def add(self, identity: str, entry: Entry | None) -> None:
        if entry is not None and entry.is_allocation:
            self._entries[identity] = entry

    def show(self, pod: Pod, amounts: Mapping[str, int]) -> None:
        """It is counted: if it is a claim, another one of its name may come only once it is gone."""
        if isinstance(pod, BareClaim):
            self._shown[pod.charge_id] = Counter(amounts)

    def unshown(self, counted: Iterable[tuple[Pod, Charge]], now: float, ttl: float) -> dict[str, Entry]:
        """Those that count beside the pods and claims that are counted."""
        allocated = [(pod, charge) for pod, charge in counted if isinstance(pod, BareClaim) and charge.placed]
        for claim, charge in allocated:
            self._shown.setdefault(controller_of(claim.claim), Counter()).update(charge.amounts)
        claims = {claim.uid for claim, _ in allocated}
        return {
            identity: entry
            for identity, entry in self._entries.items()
            if entry.floor not in claims and not entry.expired(now, ttl)
        }

    def rest(self, identity: str, amounts: Mapping[str, int]) -> Mapping[str, int]:
        """Of the amounts of an entry what other claims of its holder, or of its name, don't show."""
        shown = self._shown.get(identity)
        return amounts if shown is None else {key: max(0, amount - shown[key]) for key, amount in amounts.items()}


def expected_entries(
    orphans: Mapping[str, Entry], gone: Container[str], now: float, ttl: float
) -> tuple[dict[str, Entry], int]:
    """The entries whose pods may still come, and how many went as theirs didn't."""
    in_flight = {
        key: entry
        for key, entry in orphans.items()
        if entry.state is State.ADMITTED and key not in gone and entry.floor not in gone  # that is a claim's UID
    }
    expected = {key: entry for key, entry in in_flight.items() if not entry.expired(now, ttl)}
    return expected, len(in_flight) - len(expected)
