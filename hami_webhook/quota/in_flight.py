"""The ledger's entries that count although no pod shows them: charges of pods that aren't stored yet, and allocations
being stored.

Source: docs/spec/quota.md#9, docs/spec/dra.md#7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping

from hami_webhook.dra.holders import BareClaim, controller_of
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.entry_life import Event
from hami_webhook.quota.ledger import Entry, State
from hami_webhook.quota.pricing import Charge


class EntriesInFlight:
    """Ledger entries without a counted pod. `orphans`: entries whose pod doesn't exist, by ledger id.

    The entry of an allocation counts until the claim's status has the allocation; from then on, the claim counts
    (docs/spec/dra.md#7). `gone` are the ledger ids of pods, and the UIDs of claims, that were there and aren't any
    longer.
    """

    def __init__(self, orphans: Mapping[str, Entry], gone: Container[str]) -> None:
        self._orphans = orphans
        self._gone = gone
        self._ended: dict[str, Entry] = {}
        self._claims: set[str] = set()
        """The UIDs of claims that show an allocation."""
        self._shown: dict[str, Counter[str]] = {}
        """What other claims of the holders show, by the holders' UIDs, and claims of the names by the ids of these."""

    def ended(self, pod: Pod, entry: Entry | None) -> None:
        """A pod doesn't count any longer, or not in this quota."""
        if entry is not None:
            self._ended[pod.uid] = entry

    def show(self, pod: Pod, charge: Charge, amounts: Mapping[str, int]) -> None:
        """Note that a pod or claim is counted.

        Another claim of the same name can exist only after this one is deleted.
        """
        if not isinstance(pod, BareClaim):
            return
        self._shown[pod.charge_id] = Counter(amounts)
        if charge.placed:
            self._claims.add(pod.uid)
            self._shown.setdefault(controller_of(pod.claim), Counter()).update(charge.amounts)

    def events(self) -> Iterator[tuple[str, Entry, Event]]:
        """After `show` was called for all counted pods and claims, yield each remaining entry with its event."""
        for identity, entry in self._orphans.items():
            if entry.is_allocation:
                yield identity, entry, self._of_allocation(entry)
            # the others' pods were there before their entries
            elif entry.state is not State.ADMITTED or identity in self._gone or entry.claim in self._gone:
                yield identity, entry, Event.GONE
            else:
                yield identity, entry, Event.UNSEEN
        for identity, entry in self._ended.items():
            yield identity, entry, self._of_allocation(entry) if entry.is_allocation else Event.GONE

    def _of_allocation(self, entry: Entry) -> Event:
        return Event.SHOWN if entry.claim in self._claims else Event.UNSEEN

    def rest(self, identity: str, amounts: Mapping[str, int]) -> Mapping[str, int]:
        """Return the entry's amounts minus those that other claims of its holder or name already show."""
        shown = self._shown.get(identity)
        return amounts if shown is None else {key: max(0, amount - shown[key]) for key, amount in amounts.items()}
