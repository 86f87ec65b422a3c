"""Sentences with numbers for why a card fails a check."""

from __future__ import annotations

from collections.abc import Mapping

from hami_webhook.devices import reasons
from hami_webhook.devices.fit_request import Candidate
from hami_webhook.devices.pod_preferences import ListRule
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.human_memory import human_mebibytes, needed_and_free
from hami_webhook.quota.pricing import placed_charge


def why(card: Candidate, label: str, vendor: Vendor, vendors: Vendors, limits: Mapping[str, int]) -> str:
    """Why the card fails the check with this label; `limits` are the most the pod may cost by quota key."""
    device, usage, fit_request = card.device, card.usage, card.fit_request
    match label:
        case reasons.CARD_INSUFFICIENT_MEMORY:
            if device.memory <= 0:
                return "can't be used: its device plugin registered it without memory"
            free = device.memory - usage.memory
            rule = "" if free < card.memory else ", but no piece of that size can be had"
            needed, left = needed_and_free(card.memory, free)
            return f"needs {needed}, {left} of {human_mebibytes(device.memory)} free{rule}"
        case reasons.CARD_INSUFFICIENT_CORE:
            return f"needs {card.cores} cores, {device.cores - usage.cores} of {device.cores} free"
        case reasons.CARD_COMPUTE_UNITS_EXHAUSTED:
            return f"needs a core, all {device.cores} are taken"
        case reasons.CARD_TIME_SLICING_EXHAUSTED:
            if device.slots <= 0:
                return "can't be used: its device plugin registered it with the count 0"
            return f"needs a slot, {usage.slots} of {device.slots} are taken"
        case reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT:
            return f"needs the card to itself, {usage.slots} of {device.slots} slots are taken"
        case reasons.CARD_NOT_HEALTH:
            found = fit_request.overlay.view.unhealthy.get(device.uuid)
            if found is not None:
                return f"is unhealthy, as its node's monitor says: {found}"
            return "is closed to new pods" if device.healthy else "is registered as unhealthy"
        case reasons.CARD_CORDONED:
            return "is excluded by the node's operator"
        case reasons.CARD_UUID_MISMATCH:
            rule = _list_rule(fit_request.terms.uuids, device.uuid, vendor.keys.use_uuid, vendor.keys.nouse_uuid)
            return f"{device.uuid} {rule or 'is not what the pod asks for'}"
        case reasons.CARD_TYPE_MISMATCH:
            keys = vendor.keys
            rule = _list_rule(fit_request.terms.types, device.type, keys.use_type, keys.nouse_type, part=True)
            chosen = [
                f"{key}={text}" for key in keys.choices if (text := fit_request.pod.annotations.get(key)) is not None
            ]
            other = f"doesn't go with {', '.join(chosen)}" if chosen else "isn't what the pod asks for"
            mode = f" in mode {device.mode}" if device.mode and not rule else ""
            return f"{device.type}{mode} {rule or other}"
        case reasons.RESOURCE_QUOTA_NOT_FIT:
            return _over(card, vendors, limits)
        case reasons.CARD_MIG_TOPOLOGY_INFEASIBLE:
            if device.mode == "mig" and not device.extra:
                return "can't be used: its device plugin registered it in MIG mode without profiles"
            count = len(usage.marks)
            taken = f"{count} {'instance is' if count == 1 else 'instances are'} on it"
            return f"no instance of at least {human_mebibytes(card.memory)} can be placed, {taken}"
    return (
        f"refused by the vendor's own rule: needs {human_mebibytes(card.memory)} and {card.cores} cores, "
        f"{human_mebibytes(device.memory - usage.memory)} of {human_mebibytes(device.memory)} and "
        f"{device.cores - usage.cores} of {device.cores} cores free"
    )


def _list_rule(rule: ListRule, text: str, use: tuple[str, ...], nouse: tuple[str, ...], *, part: bool = False) -> str:
    """Which list forbids the text, "" for none; `part` as in type lists, where an item is part of the text."""
    folded = text.lower() if part else text
    if rule.allows_nothing:
        return f"isn't in {' or '.join(use)}, which names nothing"
    if any(item in folded if part else item == folded for item in rule.deny):
        return f"is excluded by {' or '.join(nouse)} ({', '.join(rule.deny)})"
    for items in (rule.allow, *rule.also):
        if items and not any(item in folded if part else item == folded for item in items):
            return f"isn't in {' or '.join(use)} ({', '.join(items)})"
    return ""


def _over(card: Candidate, vendors: Vendors, limits: Mapping[str, int]) -> str:
    claims = [
        *card.fit_request.claims,
        *(taken.claim for taken in card.fit_request.taken if taken is not card),
        card.claim,
    ]
    amounts = placed_charge(claims, card.fit_request.pod.kinds, vendors).amounts
    over = [
        f"{key}={amount} where the quota leaves {limits[key]}"
        for key, amount in sorted(amounts.items())
        if key in limits and amount > limits[key]
    ]
    return (
        f"would make the pod cost {', '.join(over)}" if over else "the cards together cost more than the quota leaves"
    )
