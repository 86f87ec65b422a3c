"""The messages for charges without room, in Kubernetes' words with amounts (docs/spec/quota.md#11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from hami_webhook.kube.human_memory import human_memory
from hami_webhook.kube.objects import QUOTA_GATE
from hami_webhook.kube.pod_group import PodGroup
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.pricing import Charge


class Refusal(Struct, frozen=True):
    """The refusal of a charge that doesn't fit, or can't be evaluated: `code` 403, or 503 if a retry may help.

    `no_room_in` is the quota (`QuotaAccount.room_name`) that has no room for a pod whose gate is to be removed; empty
    for any other reason.
    """

    code: int
    message: str
    overrun: bool = False
    no_room_in: str = ""


def refuse_unknown(name: str, keys: Sequence[str]) -> Refusal:
    return Refusal(403, f"status unknown for quota: {name}, resources: {','.join(keys)}")


def refuse_now(namespace: str, cause: str) -> Refusal:
    return Refusal(503, f"quota: can't charge namespace {namespace} now: {cause}; try again")


def refuse_ungated(account: QuotaAccount) -> Refusal:
    """Return the refusal of a pod without our gate, which would overtake waiting pods."""
    return Refusal(
        403,
        f"quota {account.label} queues pods, but this pod has no scheduling gate {QUOTA_GATE}, because mutation was "
        "skipped. Remove the pod's label hami.io/webhook if it has one, or try again if the quota was changed just now",
    )


def refuse_overrun(account: QuotaAccount, charge: Charge, over: Sequence[str]) -> Refusal:
    """HAMi's first words and Kubernetes' `exceeded quota` with only the overflowing keys, in plain integers.

    It ends with the memory amounts in Gi, because controllers parse only the beginning of Kubernetes' message.
    """

    def listed(amounts: Mapping[str, int]) -> str:
        return ",".join(f"{key}={amounts.get(key, 0)}" for key in over)

    requested = account.counted(charge.exact)
    kind = "" if account.quota.namespaces is None else f"{account.quota.kind} "
    floor = " (smallest eligible card)" if any(key in charge.floors for key in over) else ""
    return Refusal(
        403,
        f"exceeding resource quota: exceeded quota: {kind}{account.title}, requested: {listed(requested)}{floor}, "
        f"used: {listed(account.used)}, limited: {listed(account.hard)}{_in_gi(account, requested, over)}"
        f"{account.limited_by}",
        overrun=True,
    )


def _in_gi(account: QuotaAccount, requested: Mapping[str, int], over: Sequence[str]) -> str:
    """` (memory: 23.4Gi requested, 0 used, 19.5Gi limited)` of the first key of `over` that counts memory."""
    for key in over:
        if unit := account.memory_units.get(key):
            unit = 1 if key in account.in_bytes else unit
            sides = (requested.get(key, 0), account.used.get(key, 0), account.hard[key])
            amounts = (human_memory(each * unit) for each in sides)
            return " (memory: {} requested, {} used, {} limited)".format(*amounts)
    return ""


def refuse_group(account: QuotaAccount, charge: Charge, over: Sequence[str], group: PodGroup, count: int) -> Refusal:
    """Return the refusal of a pod group, of which `count` pods have this charge each."""
    amounts = account.counted({key: count * amount for key, amount in charge.exact.items()})
    costs = ", ".join(f"{key}={amounts[key]}, limited: {account.hard[key]}" for key in over)
    return Refusal(
        403,
        f"pod group {group.name} of {group.size} pods costs more than the limit of quota {account.label}, so it would "
        f"never start: {count} of them cost {costs}. Make the group smaller, or raise the limit",
        overrun=True,
    )
