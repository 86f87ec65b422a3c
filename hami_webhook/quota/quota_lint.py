"""Find the parts of a ResourceQuota that its author probably didn't intend, and explain each in a sentence
(docs/quotas.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from enum import Enum
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.keys import MEBIBYTE, Dimension, QuotaKey
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube import scopes
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.kube.quantity import Quantity, is_binary, parse_whole
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.card_selection import selection_faults
from hami_webhook.quota.enforcement import QUOTA_PREEMPTION, enforcement_faults
from hami_webhook.quota.idle import idle_faults
from hami_webhook.quota.lending import lending_faults
from hami_webhook.quota.percents import percent_faults
from hami_webhook.quota.pricing import CardLister
from hami_webhook.quota.runtime import runtime_faults
from hami_webhook.quota.time_budget import budget_faults
from hami_webhook.quota.windows import window_faults

_LIMITS, _REQUESTS = "limits.", "requests."
_CLOSE = 0.9
"""How similar (of 1) a key must be to one of ours to be taken for a misspelt one, whatever its domain is."""
_BYTES_AT_LEAST = 2**30
"""MiB from which a limit looks like bytes: 1 GiB of them, while nobody has 1 PiB on cards."""
_SHARE_AT_LEAST = 512
"""MiB for each slot by which a limit below a whole card is meant to be shared; less looks like GiB."""
_OF_CLASS = "{}.deviceclass.resource.k8s.io/devices"
_ANY_POD = Pod(namespace="", name="", uid="", labels={}, annotations={}, containers=())


class Reason(Enum):
    """The reason of the event about a misreading."""

    _value_: EventReason
    KEY = "QuotaMisread"
    UNIT = "QuotaUnitSuspicious"
    MIXED = "QuotaMixed"


class Misreading(Struct, frozen=True):
    """A key of `hard`, or another part of a quota, with a sentence that explains the mistake and its correction."""

    reason: Reason
    key: str
    text: str


def misreadings(quota: ResourceQuota, vendors: Vendors, known: Vendors, cards: CardLister) -> list[Misreading]:
    """All misreadings of a quota, by key. `known` are the vendors that could be enabled; `cards` lists the cards."""
    account = QuotaAccount.read(quota, vendors)
    if account.schedule is not None:
        account = replace(account, hard=account.schedule.base)
    names = _Names(vendors, known)
    found: list[Misreading] = []
    for key in sorted(quota.hard):
        if key in account.hard:
            texts = _misread_amounts(account, key, vendors, cards)
            found += [Misreading(Reason.UNIT, key, text) for text in texts]
        elif "/" in key:
            found += [Misreading(Reason.KEY, key, text) for text in names.misread(key)]
    found += [Misreading(Reason.KEY, key, text) for key, text in _without_twin(account, vendors, cards)]
    classes = {_OF_CLASS.format(name): row for row in vendors.drivers for name in row.device_classes}
    found += [
        Misreading(Reason.MIXED, key, _of_class(key, vendors.keys_of[classes[key].vendor]))
        for key in sorted(quota.hard)
        if account.hard and key in classes
    ]
    native = sorted(key for key in quota.hard if key not in {*account.hard, *classes} and _is_native(key))
    if account.hard and native:
        text = (
            f"also limits {', '.join(native)}, which Kubernetes counts: writes to one object conflict; give "
            "accelerators their own quota"
        )
        found.append(Misreading(Reason.MIXED, "", text))
    if account.hard and not scopes.can_match(quota.scopes):
        listed = ", ".join(" ".join(filter(None, (s.scope, s.operator, *s.values))) for s in quota.scopes)
        text = f"no pod is in all its scopes ({listed}), so nothing is counted; make a quota for each"
        found.append(Misreading(Reason.KEY, "scopes", text))
    written = (enforcement_faults(quota), lending_faults(account), runtime_faults(quota), budget_faults(quota))
    faults = (*chain(*written), *idle_faults(quota), *window_faults(quota), *percent_faults(quota))
    found += [Misreading(Reason.KEY, key, text) for key, text in faults]
    preemption = quota.annotations.get(QUOTA_PREEMPTION)
    if preemption not in (None, "true", "false"):
        text = f"{QUOTA_PREEMPTION}: {preemption} isn't known, so nobody is evicted for the quota; write true or false"
        found.append(Misreading(Reason.KEY, QUOTA_PREEMPTION, text))

    def types() -> set[str]:
        return {card.type for vendor in vendors.values() for card in cards.eligible(vendor, _ANY_POD)}

    found += [Misreading(Reason.KEY, key, text) for key, text in selection_faults(quota, types)]
    return found


def _without_twin(account: QuotaAccount, vendors: Vendors, cards: CardLister) -> Iterator[tuple[str, str]]:
    """Keys of cards that nodes have under other names too, whose own key the quota doesn't limit."""
    for vendor in vendors.values():
        twin = vendors.get(vendor.keys.twin)
        if twin is None or not any(key.name in account.hard for key in vendors.keys_of[vendor.key]):
            continue
        if next(iter(cards.eligible(twin, _ANY_POD)), None) is None:
            continue
        names = {key.dimension: key.name for key in vendors.keys_of[twin.key]}
        for key in vendors.keys_of[vendor.key]:
            other = names.get(key.dimension)
            if key.name in account.hard and other is not None and other not in account.hard:
                yield key.name, f"{key.name} doesn't count {twin.key}s, which nodes have as well; limit {other} too"


def _of_class(key: str, ours: Sequence[QuotaKey]) -> str:
    """What Kubernetes' own key for a DeviceClass means beside ours."""
    names = ", ".join(each.name for each in ours)
    return (
        f"{key} is Kubernetes' own: it counts devices of claims when these are created, without their size, and isn't "
        f"corrected when they are allocated. {names} count claims and pods with limits together: use only those"
    )


class _Names:
    """The keys that are counted, with which others are compared."""

    def __init__(self, vendors: Vendors, known: Vendors) -> None:
        self._vendors = vendors
        self._known = known
        self._counts = {
            key.name.removeprefix(_LIMITS)
            for keys in vendors.keys_of.values()
            for key in keys
            if key.dimension is Dimension.COUNT
        }
        self._domains = {name.partition("/")[0] for name in vendors.resource_names | known.resource_names}

    def misread(self, key: str) -> Iterator[str]:
        """What is wrong with a key that isn't managed: a sentence, or nothing."""
        if key.startswith(_REQUESTS):
            yield from self._misread_request(key, key.removeprefix(_REQUESTS))
            return
        resource = key.removeprefix(_LIMITS)
        meant = _LIMITS + resource
        if meant in self._vendors.quota_keys:
            yield f"{key} has no effect, as nothing counts it; write {meant}"
        elif resource in self._vendors.resource_names:
            yield f"{key} has no effect, as quota doesn't count {resource}; {self._use_instead(resource)}"
        elif meant in self._known.quota_keys or resource in self._known.resource_names:
            yield f"{key} has no effect, as the device configuration enables no vendor with {resource}; enable it there"
        elif (nearest := self._nearest(key)) or resource.partition("/")[0] in self._domains:
            instead = f"did you mean {nearest}?" if nearest else self._use_instead(resource)
            yield f"{key} has no effect, as nothing counts it; {instead}"

    def _misread_request(self, key: str, resource: str) -> Iterator[str]:
        meant = _LIMITS + resource
        if resource in self._counts:
            return
        if self._vendors.quota_keys.get(meant):  # not another scheduler's, whose amounts may be totals
            yield (
                f"{key} is counted by Kubernetes, which adds up the containers' numbers: it doesn't multiply by cards, "
                f"and ignores percentages and whole cards; write {meant}"
            )
        elif resource in self._vendors.own_names:
            yield f"{key} is counted by Kubernetes as a plain number; {self._use_instead(resource)}"
        elif resource not in self._known.resource_names and (nearest := self._nearest(key)):
            yield f"{key} has no effect, as no pod requests {resource}; did you mean {nearest}?"

    def _nearest(self, key: str) -> str:
        """The managed key that `key` is most like, if it is like one."""
        right = {name: name for name in self._vendors.quota_keys}
        right |= {_REQUESTS + name.removeprefix(_LIMITS): name for name in self._vendors.quota_keys}
        right |= {_REQUESTS + name: _REQUESTS + name for name in self._counts}
        by_folded = {name.lower(): meant for name, meant in right.items()}
        close = get_close_matches(key.lower(), by_folded, n=1, cutoff=_CLOSE)
        return by_folded[close[0]] if close else ""

    def _use_instead(self, resource: str) -> str:
        """The managed keys of a resource's vendor, else of its domain."""
        found = [
            key.name
            for backend, keys in self._vendors.keys_of.items()
            if resource in self._vendors[backend].resource_names
            for key in keys
        ]
        domain = f"{_LIMITS}{resource.partition('/')[0]}/"
        found = found or [name for name in self._vendors.quota_keys if name.startswith(domain)]
        return f"instead, quotas count {', '.join(sorted(found)[:6])}" if found else "remove it"


def _misread_amounts(account: QuotaAccount, key: str, vendors: Vendors, cards: CardLister) -> Iterator[str]:
    written, limit = account.quota.hard[key], account.hard[key]
    whole = parse_whole(written)
    if whole is None or whole < 0:
        yield f"{key}: {written} is no whole number of units, so the API server refuses it; write one, such as 8"
        return
    memory = [
        (vendors[backend], each) for backend, each in vendors.quota_keys[key] if each.dimension is Dimension.MEMORY
    ]
    if is_binary(written) and key not in account.in_bytes | vendors.byte_keys:
        means = f"{key}: {written} means {limit} units"
        factors = {each.factor for _, each in memory}
        mebibytes = Quantity.parse(written).value / MEBIBYTE
        if len(factors) == 1 and mebibytes >= 1:
            factor = factors.pop()
            yield f"{means} of {factor} MiB; for as many bytes write {-(-mebibytes // factor)}"
        else:
            yield f"{means}; write a number without a suffix"
        return
    if key in account.in_bytes or not memory:
        return
    factor = max(each.factor for _, each in memory)
    if limit * factor >= _BYTES_AT_LEAST:
        yield (
            f"{key}: {written} means {limit} units of {factor} MiB, and looks like bytes; for as many bytes write "
            f"{-(-limit // (factor * MEBIBYTE))}"
        )
        return
    smallest = min(
        (card.memory for vendor, _ in memory for card in cards.eligible(vendor, _ANY_POD) if card.memory), default=0
    )
    counts = [count for vendor, _ in memory for count in _limits_of_slots(account, vendor)]
    shared = any(limit * factor >= slots * _SHARE_AT_LEAST for slots in counts)
    if 0 < limit * factor < smallest and not shared:
        yield (
            f"{key}: {written} means {limit * factor} MiB in all, less than the smallest card has ({smallest} MiB), so "
            f"no pod gets a whole card; write {-(-smallest // factor)} for that"
        )


def _limits_of_slots(account: QuotaAccount, vendor: Vendor) -> list[int]:
    """The quota's limits on a vendor's device slots."""
    keys = (key.name for key in vendor.quota_keys() if key.dimension is Dimension.COUNT)
    return [account.hard[name] for name in keys if account.hard.get(name)]


def _is_native(key: str) -> bool:
    """Return whether Kubernetes counts the key itself, and so writes to the same object.

    It counts all keys but `limits.<extended resource>`.
    """
    return not (key.startswith(_LIMITS) and "/" in key)
