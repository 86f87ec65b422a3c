"""Models, pods, cards and quotas as a visitor asked for them in the address: searched, filtered, sorted; as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import StringIO

from hami_webhook.kubectl.capacity import COUNTS, Capacity
from hami_webhook.kubectl.report import CardUse, KeyUse, PodUse, QuotaUse
from hami_webhook.kubectl.ui.fleet import QuotaKey
from hami_webhook.terminal import ShownTable, natural

STATES = {"waits": "waits for cards", "placed": "has cards"}
"""What pods may be filtered by."""
ORDERS: Mapping[str, Callable[[PodUse], object]] = {
    "name": lambda pod: (pod.namespace, natural(pod.name)),
    "age": lambda pod: (pod.created is None, pod.created or 0),
    "state": lambda pod: pod.state,
    "node": lambda pod: (not pod.node, natural(pod.node)),
    "cards": lambda pod: -len(pod.cards),
}
"""By what pods may be sorted; `age` begins with the oldest, `cards` with the most."""
FIRST_ORDER = "quota"
KEY_ORDERS: Mapping[str, Callable[[QuotaKey], object]] = {
    "quota": lambda row: 0,
    "key": lambda row: natural(row.key.key),
    "used": lambda row: -row.percent,
    "unplaced": lambda row: -row.of_hard(row.key.waiting),
    "queued": lambda row: -row.of_hard(row.key.queued),
}
"""By what quotas' keys may be sorted; keys have different units, so amounts are compared as parts of `hard`."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


def pods(found: Iterable[PodUse], asked: Mapping[str, str]) -> list[PodUse]:
    """The pods of a namespace and a state whose name, node or model has the text `q`, sorted."""
    text, state = asked["q"].casefold(), asked["state"]
    chosen = [
        pod
        for pod in found
        if asked["namespace"] in ("", pod.namespace)
        and state in ("", "waits" if pod.waits else "placed")
        and any(text in each.casefold() for each in (f"{pod.namespace}/{pod.name}", pod.node, *pod.models))
    ]
    key = ORDERS.get(asked["sort"], ORDERS["name"])
    return sorted(chosen, key=key)  # type: ignore[arg-type]  # the values of one of ORDERS compare with each other


def pods_csv(found: Iterable[PodUse], now: float) -> str:
    keys = sorted({key for pod in found for key in pod.amounts})
    rows = [
        (
            *(pod.namespace, pod.name, pod.state, pod.node, pod.scheduler),
            "" if pod.created is None else round(now - pod.created),
            *(" ".join(pod.cards), "; ".join(pod.models)),
            *(pod.amounts.get(key, 0) for key in keys),
        )
        for pod in found
    ]
    return _csv(["namespace", "pod", "state", "node", "scheduler", "age in seconds", "cards", "models", *keys], rows)


def capacities_csv(found: Iterable[Capacity], used: Mapping[tuple[str, str, str], int]) -> str:
    """Models as the Overview has them; `used` are the MiB that are really used, by vendor, model and pool."""
    rows = [
        (
            *(each.vendor, each.model, each.pool, each.nodes, each.cards, each.healthy, each.empty),
            *(each.used_slots, each.slots, each.used_memory, each.memory),
            used.get((each.vendor, each.model, each.pool), ""),
            *(each.used_cores, each.cores, each.free, each.fragmentation),
            *(
                "" if most is None else most.memory
                for most in (*each.largest, *(each.linked or [None] * (len(COUNTS) - 1)))
            ),
        )
        for each in found
    ]
    headings = ["vendor", "model", "pool", "nodes", "cards", "healthy", "empty", "slots used", "slots", "MiB promised"]
    headings += ["MiB", "MiB really used", "cores promised", "cores", "MiB free", "% fragmented"]
    headings += [f"MiB of each of {count}" for count in COUNTS]
    return _csv([*headings, *(f"MiB of each of {count} linked" for count in COUNTS if count > 1)], rows)


def cards_csv(found: Iterable[CardUse]) -> str:
    headings = ["node", "vendor", "card", "model", "healthy", "slots used", "slots", "MiB promised", "MiB"]
    rows = [
        (
            *(card.node, card.vendor, card.uuid, card.model, str(card.healthy).lower(), card.used_slots, card.slots),
            *(card.used_memory, card.memory, card.used_cores, card.cores, " ".join(card.pods)),
        )
        for card in found
    ]
    return _csv([*headings, "cores promised", "cores", "pods"], rows)


def keys(quotas: Iterable[QuotaUse], sort: str = FIRST_ORDER) -> list[QuotaKey]:
    """The keys of quotas in one of `KEY_ORDERS`; equals stay in the order of the quotas' names."""
    order = KEY_ORDERS.get(sort, KEY_ORDERS[FIRST_ORDER])
    found = [QuotaKey(quota, key) for quota in quotas for key in quota.keys]
    return sorted(found, key=order)  # type: ignore[arg-type]  # the values of one of KEY_ORDERS compare with each other


def quotas_csv(rows: Iterable[QuotaKey]) -> str:
    found = [
        (
            *(row.quota.namespace, row.quota.name, row.key.key),
            *("" if row.key.used is None else row.key.used, *_amounts(row.key)),
        )
        for row in rows
    ]
    return _csv(["namespace", "quota", "key", "used", "hard", "waiting", "placed", "queued"], found)


def _amounts(key: KeyUse) -> tuple[int, int, int, int]:
    return key.hard, key.waiting, key.placed, key.queued


def tables_csv(tables: Iterable[ShownTable]) -> str:
    """Tables one after another, each below its title, with an empty line between them."""
    return "\n".join(f"{_csv([table.title], [])}{_csv(table.headings, table.rows)}" for table in tables)


def _csv(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV that is data to a spreadsheet, whatever names nodes and cards have."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows([_harmless(cell) for cell in row] for row in rows)
    return text.getvalue()


def _harmless(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
