"""Floor entries: what each pod of a namespace that requests the same costs a quota while it waits.

Source: docs/spec/quota.md#6.

The cluster's cards at the first such pod's charge decide this cost. It stays while any of them waits: nodes added or
removed don't change used (Q11a). One floor entry stores the cost for all of them, so the ledger doesn't grow with the
number of waiting pods. The reasons are in docs/decisions/0010-floor-entries.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial

from msgspec.structs import replace

from hami_webhook.devices.model import BadRequest
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.holders import BareClaim
from hami_webhook.kube.derived import DerivedValues
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.entry_life import Event
from hami_webhook.quota.ledger import Entry, State, is_full
from hami_webhook.quota.pricing import Charge, ClusterCapacity, PriceOn, admission_charge, charge_of, named_in

_ids: DerivedValues[Pod, tuple[Vendors, str]] = DerivedValues()


def floor_id(pod: Pod, vendors: Vendors) -> str:
    """The ledger id of the pod's floor entry: a digest of its namespace and of all that its waiting charge depends on.

    Pods of a namespace with the same id cost the same while they wait, whatever cards there are.
    """
    known = _ids.get(pod)
    if known is None or known[0] is not vendors:
        digest = hashlib.blake2b(repr(_priced(pod, vendors)).encode(errors="backslashreplace"), digest_size=15)
        known = _ids.keep(pod, (vendors, f"floor:{digest.hexdigest()}"))
    return known[1]


def _priced(pod: Pod, vendors: Vendors) -> list[object]:
    """What the waiting charge of a pod depends on, but for the cards: requests, lists and nodeSelector as read."""
    # what is left out here makes two pods share a charge that differ in cost; what is too much fills ledgers
    kinds = [kind.value for kind in pod.kinds]
    # claims cost the same on whatever nodes, and updates of pods that have nothing else aren't reviewed
    selector = {} if vendors.resource_names.isdisjoint(pod.named) else pod.node_selector or {}
    found: list[object] = [pod.namespace, sorted(selector.items()), kinds, pod.init_finished]
    for key in sorted(named_in(pod, vendors)):
        try:
            requests: object = list(vendors[key].requests_of(pod))
        except BadRequest as error:  # it costs nothing, and is reported
            requests = str(error)
        found.append((key, requests, vendors[key].lists(pod.annotations)))
    for scheduler in vendors.foreign_among(pod, pod.named):
        keys = sorted({*scheduler.keys.choices, *scheduler.keys.lists})
        amounts = [
            sorted((name, str(amount)) for name, amount in written.items() if name in scheduler.resource_names)
            for container in pod.containers
            for written in (container.limits, container.requests)
        ]
        asked = sorted(scheduler.asked_in(pod.annotations).items())
        found.append((scheduler.key, amounts, [pod.annotations.get(key) for key in keys], asked))
    return found + _claimed(pod, vendors) if vendors.drivers else found


def _claimed(pod: Pod, vendors: Vendors) -> list[object]:
    """What the cost of its claims depends on, but for devices, classes and what templates say."""
    if isinstance(pod, BareClaim):
        return [("claim", repr(pod.requests))]
    templates = sorted(each.template for each in pod.resource_claims if each.template)
    others = pod.named - vendors.resource_names
    extended = sorted(name for name in others if "/" in name)
    amounts = [(name, [str(each.amount(name)) for each in pod.containers]) for name in extended]
    return [("claims", templates, amounts)] if templates or amounts else []


def cost_of(
    account: QuotaAccount, pod: Pod, vendors: Vendors, capacity: ClusterCapacity, now: float, placement_ttl: float
) -> Charge:
    """Return the exact amounts of a live pod without its entries: of its placement, otherwise of its floor entry or
    declaration.
    """
    return cost_as_priced(account, pod, vendors, partial(charge_of, pod, vendors, capacity, now, placement_ttl))


def cost_as_priced(account: QuotaAccount, pod: Pod, vendors: Vendors, price: PriceOn) -> Charge:
    """The same with prices that are known."""
    charge = price(account.cards)
    if _is_certain(account, pod, charge):
        return charge
    entry = account.floor(floor_id(pod, vendors))
    return charge if entry is None else _with_floor(account, charge, entry, partial(price, None))


def _is_certain(account: QuotaAccount, pod: Pod, charge: Charge) -> bool:
    """Whether a charge depends on the pod alone, or is what it holds for good.

    A placement that isn't bound may be given up: until then the pod costs no less than it would while it waits.
    """
    return bool(pod.node_name) if charge.placed else account.is_fixed(charge)


def _with_floor(account: QuotaAccount, charge: Charge, entry: Entry, whole: Callable[[], Charge]) -> Charge:
    """A charge as its floor entry says; `whole` gives what the pod would be charged on any cards."""
    exact = charge.exact
    if charge.placed:
        kept = {key: amount for key, amount in entry.amounts.items() if amount > exact.get(key, 0)}
    else:
        kept = entry.only((charge if account.cards is None else whole()).exact)
    return replace(charge, amounts={key: amount for key, amount in {**exact, **kept}.items() if amount}, in_bytes={})


class FloorEntries:
    """The floor entries of a quota's ledger while it is recomputed."""

    def __init__(self, account: QuotaAccount, vendors: Vendors, max_ledger: int) -> None:
        self._account = account
        self._vendors = vendors
        self._max_ledger = max_ledger
        self._entries = {key: entry for key, entry in account.ledger.items() if entry.state is State.FLOOR}
        self._used: set[str] = set()

    def cost(self, pod: Pod, charge: Charge, own: Entry | None, whole: Callable[[], Charge], now: int) -> Charge:
        """What a live pod costs by itself, of which `charge` is what it holds, or what it would be charged today.

        Create a floor entry for waiting pods without one, with the amounts of the pod's `own` entry, otherwise with
        today's.
        """
        account = self._account
        if _is_certain(account, pod, charge):
            return charge
        identity = floor_id(pod, self._vendors)
        self._used.add(identity)
        entry = self._entries.get(identity)
        if not charge.placed and (own is None or own.state is not State.WAITING):
            exact = charge.exact
            named = exact if account.cards is None else whole().exact
            today = {key: exact.get(key, 0) for key in account.hard if key in named}
            if entry is None:
                before = own.only(today) if own is not None and own.state is State.ADMITTED else {}
                namespace = "" if account.quota.namespaces is None else pod.namespace
                entry = Entry(State.FLOOR, now, {**today, **before}, namespace=namespace)
                if not is_full(self._entries, self._max_ledger, entry.state, namespace, account.spaces):
                    self._entries[identity] = entry
            elif not today.keys() <= entry.amounts.keys():  # a key joined hard since
                entry = self._entries[identity] = replace(entry, amounts={**today, **entry.amounts})
        return charge if entry is None else _with_floor(account, charge, entry, whole)

    def events(self) -> Iterator[tuple[str, Entry, Event]]:
        """After `cost` was called for all counted pods, yield each entry with the event: needed by a pod, or not."""
        for key, entry in self._entries.items():
            if not entry.amounts.keys().isdisjoint(self._account.hard):
                yield key, entry, Event.NEEDED if key in self._used else Event.UNSEEN


def cost_at_admission(account: QuotaAccount, pod: Pod, vendors: Vendors, capacity: ClusterCapacity) -> Charge:
    """What an existing pod cost the quota when it was admitted; nothing for amounts that admission refuses."""
    on_cards = partial(admission_charge, pod, vendors, capacity)
    return account.while_waiting(on_cards(), on_cards, partial(floor_id, pod, vendors))


def is_shown(
    account: QuotaAccount, entry: Entry, pod: Pod, vendors: Vendors, capacity: ClusterCapacity, now: float, ttl: float
) -> bool:
    """Return whether the pod's own amounts equal its entry's, or the pod has the update that the entry charged.

    The entry of an admission then has done its work. `ttl`: seconds for which a placement that isn't bound counts.
    """
    if account.quota.namespace not in ("", pod.namespace) or pod.ended(now) or not account.covers(pod):
        return False
    cost = cost_of(account, pod, vendors, capacity, now, ttl)
    identity = floor_id(pod, vendors)
    is_remembered = not cost.placed and account.floor(identity) is not None
    if entry.state is State.UPDATING:
        return is_remembered and entry.floor_id == identity
    return (account.is_fixed(cost) or is_remembered) and cost.only(account.hard) == entry.amounts
