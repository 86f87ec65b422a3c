"""Which sGPU cards to take, and how good a node's are: MetaXLink zones, online pods (docs/spec/metax.md#7 and #8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hami_webhook.devices.fit_request import Candidate, Choice, FitRequest, Selection
from hami_webhook.devices.model import Device, Usage
from hami_webhook.devices.vendors.metax.qos import OFFLINE, ONLINE, card_of, class_of, classes_on

PAIR = 10


def first_within_quota(fit_request: FitRequest, rankings: Iterable[Sequence[Candidate]]) -> Choice | None:
    """The first cards of the first ranking that has enough of them together within the quota."""
    for ranking in rankings:
        chosen: list[Candidate] = []
        for card in ranking:
            if len(chosen) < fit_request.request.count and fit_request.admits([*chosen, card]):
                chosen.append(card)
        if len(chosen) == fit_request.request.count:
            return Choice(chosen)
    return None


class SmallestZone(Selection):
    """Cards of the smallest link zone that has enough; else zone by zone, smallest first, then unlinked cards."""

    def choose(self, fit_request: FitRequest, passed: Sequence[Candidate]) -> Choice | None:
        count = fit_request.request.count
        if len(passed) == count:
            return first_within_quota(fit_request, [passed])
        zones: dict[int, list[Candidate]] = {}
        for card in passed:
            zones.setdefault(card_of(card.device).zone, []).append(card)
        unlinked = zones.pop(0, [])
        ascending = sorted(zones.values(), key=len)
        across = [card for zone in ascending for card in zone]
        enough = [zone for zone in ascending if len(zone) >= count]
        return first_within_quota(fit_request, [*enough, [*across, *unlinked], passed])


class FewestOnline(Selection):
    """For an online pod: cards with the fewest online pods, but those where offline pods alone would wait last."""

    def choose(self, fit_request: FitRequest, passed: Sequence[Candidate]) -> Choice | None:
        if len(passed) == fit_request.request.count:
            return first_within_quota(fit_request, [passed])
        return first_within_quota(fit_request, [sorted(passed, key=_disturbance)])


SMALLEST_ZONE = SmallestZone()
FEWEST_ONLINE = FewestOnline()


def _disturbance(candidate: Candidate) -> tuple[bool, int, int]:
    classes = Counter(classes_on(candidate.usage, candidate.fit_request.pod))
    online, offline = classes[ONLINE], classes[OFFLINE]
    return (online == 0 and offline > 0, online, offline)


def online_score(cards: Iterable[Usage]) -> int:
    """How little an online pod disturbs on these cards, as they were before it; 0 is best."""
    total = 0
    for usage in cards:
        classes = Counter(class_of(holder.pod) for holder in usage.holders)
        online, offline = classes[ONLINE], classes[OFFLINE]
        total -= 20 * online + 2 * offline if online else 100 * offline
    return total


def topology_score(idle: Sequence[Device], chosen: Sequence[Device]) -> int:
    """The links among the chosen cards, ten times over, less the links between them and the idle cards left behind.

    `idle` are the cards without a task before, as a rule the chosen ones among them.
    """
    taken = {device.uuid for device in chosen}
    allocated = _links(chosen)
    lost = _links(idle) - allocated - _links([device for device in idle if device.uuid not in taken])
    return 10 * allocated - lost


def _links(devices: Iterable[Device]) -> int:
    """10 for each pair of cards in one link zone."""
    zones = Counter(zone for device in devices if (zone := card_of(device).zone) > 0)
    return sum(PAIR * (n * (n - 1) // 2) for n in zones.values())
