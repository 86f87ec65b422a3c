"""Platform: what the cluster's cards are, what of them is taken, what still fits, and how pods fare."""

from __future__ import annotations

from .panels import Dashboard, Panel, quantiles, rate

_CHOSEN = '{vendor=~"$vendor",model=~"$model"}'


def _by_model(metric: str) -> str:
    return f"sum by (vendor, model) (hami_webhook_{metric}{_CHOSEN})"


def _share(taken: str, of: str) -> str:
    return f"sum(hami_webhook_{taken}{_CHOSEN}) / sum(hami_webhook_{of}{_CHOSEN})"


_MODEL = "{{vendor}} {{model}}"

PLATFORM = Dashboard(
    uid="hami-platform",
    title="HAMi / Platform",
    description="The cluster's cards by vendor and model: what is taken, what is free, what would still fit.",
    variables={
        "vendor": "label_values(hami_webhook_cards, vendor)",
        "model": 'label_values(hami_webhook_cards{vendor=~"$vendor"}, model)',
    },
    rows={
        "Cards": [
            Panel(
                "Cards",
                "Cards that nodes have registered.",
                "short",
                {"cards": f"sum(hami_webhook_cards{_CHOSEN})"},
                kind="stat",
                width=4,
            ),
            Panel(
                "Free cards",
                "Healthy cards that no pod holds a part of.",
                "short",
                {"free": f"sum(hami_webhook_cards_free{_CHOSEN})"},
                kind="stat",
                width=4,
            ),
            Panel(
                "Slots taken",
                "Share of the slots that containers hold. A card has as many slots as it may be split into.",
                "percentunit",
                {"slots": _share("card_slots_allocated", "card_slots")},
                kind="stat",
                width=4,
            ),
            Panel(
                "Memory taken",
                "Share of the cards' memory that is allocated to containers, whether they use it or not.",
                "percentunit",
                {"memory": _share("card_memory_allocated_bytes", "card_memory_bytes")},
                kind="stat",
                width=4,
            ),
            Panel(
                "Cores taken",
                "Share of the cards' compute that is allocated to containers.",
                "percentunit",
                {"cores": _share("card_cores_allocated", "card_cores")},
                kind="stat",
                width=4,
            ),
            Panel(
                "Nodes not ready",
                "Nodes whose registration can't be read, or whose device plugin is silent: their cards aren't used.",
                "short",
                {"nodes": 'count(hami_webhook_node_registrations{vendor=~"$vendor",state!="ready"}) or vector(0)'},
                kind="stat",
                width=4,
            ),
            Panel(
                "Cards by model",
                "Cards that nodes have registered, by vendor and model.",
                "short",
                {_MODEL: _by_model("cards")},
                kind="bars",
            ),
            Panel(
                "Free cards by model",
                "Healthy cards that no pod holds a part of, over time.",
                "short",
                {_MODEL: _by_model("cards_free")},
            ),
        ],
        "Taken and free": [
            Panel(
                "Slots",
                "Slots that containers hold, and those that are free.",
                "short",
                {
                    f"{_MODEL} taken": _by_model("card_slots_allocated"),
                    f"{_MODEL} free": f"{_by_model('card_slots')} - {_by_model('card_slots_allocated')}",
                },
                width=8,
            ),
            Panel(
                "Memory",
                "Memory of the cards that is allocated, and what is left.",
                "bytes",
                {
                    f"{_MODEL} taken": _by_model("card_memory_allocated_bytes"),
                    f"{_MODEL} free": f"{_by_model('card_memory_bytes')} - {_by_model('card_memory_allocated_bytes')}",
                },
                width=8,
            ),
            Panel(
                "Cores",
                "Compute of the cards that is allocated, and what is left; a card has 100 %.",
                "percent",
                {
                    f"{_MODEL} taken": _by_model("card_cores_allocated"),
                    f"{_MODEL} free": f"{_by_model('card_cores')} - {_by_model('card_cores_allocated')}",
                },
                width=8,
            ),
        ],
        "Largest request that still fits": [
            Panel(
                "Memory on one card",
                "The most memory that one usable card has left; if the free memory is much more, it is fragmented.",
                "bytes",
                {_MODEL: f"max by (vendor, model) (hami_webhook_largest_free_memory_bytes{_CHOSEN})"},
                width=8,
            ),
            Panel(
                "Cores of one card",
                "The most compute that one usable card has left; a whole card is 100 %.",
                "percent",
                {_MODEL: f"max by (vendor, model) (hami_webhook_largest_free_cores{_CHOSEN})"},
                width=8,
            ),
            Panel(
                "Whole cards on one node",
                "The most cards of one node that nobody holds a part of.",
                "short",
                {_MODEL: f"max by (vendor, model) (hami_webhook_largest_free_cards{_CHOSEN})"},
                width=8,
            ),
        ],
        "Unhealthy cards": [
            Panel(
                "Unhealthy cards",
                "Cards that get no new pods, by cause; as the role of each node says. Nothing where all are well.",
                "short",
                {
                    "{{node}} {{device_uuid}} {{cause}}": "max by (node, device_uuid, cause) "
                    "(hami_webhook_card_unhealthy)"
                },
                width=24,
            ),
        ],
        "Pods": [
            Panel(
                "Refused at admission",
                "Pods refused a minute: above a quota, against a policy, for their request, or without a verdict "
                "(unavailable, failure).",
                "cpm",
                {"{{reason}}": f"60 * {rate('review_refusals_total', 'reason')}"},
            ),
            Panel(
                "Pods that no node takes",
                "Rejections a minute by the reason that nodes gave; a pod counts each time that it is tried.",
                "cpm",
                {"{{reason}}": f"60 * {rate('extender_refusals_total', 'reason')}"},
            ),
            Panel(
                "From creation to binding",
                "How long pods wait until they are bound to a node: half of them, nine in ten, 99 in a hundred.",
                "s",
                quantiles("pod_binding_seconds", percents=(50, 90, 99)),
            ),
            Panel(
                "Pods bound",
                "Pods bound a minute, and binds that failed.",
                "cpm",
                {
                    "bound": f"60 * {rate('extender_bound_total')}",
                    "failed": f"60 * {rate('extender_bind_failures_total')}",
                },
            ),
        ],
    },
)
