"""Team: a namespace's quotas, and what its pods hold."""

from __future__ import annotations

from .panels import Dashboard, Panel

_PODS = '{namespace=~"$namespace"}'
_CHOSEN = '{namespace=~"$namespace",quota=~"$quota"}'
_KEY = "{{namespace}} {{quota}} {{key}}"


def _quota(metric: str) -> str:
    return f"sum by (namespace, quota, key) (hami_webhook_quota_{metric}{_CHOSEN})"


def _hours(metric: str, seconds: int) -> str:
    """What was held within the chosen time, in hours; `seconds` are the metric's units of an hour."""
    return (
        "sum by (namespace, model) (increase("
        f'hami_webhook_showback_{metric}_total{{namespace=~"$namespace",state="placed"}}[$__range])) / {seconds}'
    )


TEAM = Dashboard(
    uid="hami-team",
    title="HAMi / Team",
    description="Per namespace and quota: what is used, what is allowed, which pods hold it.",
    variables={
        "namespace": "label_values(hami_webhook_quota_hard, namespace)",
        "quota": 'label_values(hami_webhook_quota_hard{namespace=~"$namespace"}, quota)',
    },
    rows={
        "Quotas": [
            Panel(
                "Used of what is allowed",
                "Share of each key of a quota that is charged. At 100 % further pods are refused.",
                "percentunit",
                {_KEY: f"{_quota('used')} / ({_quota('hard')} > 0)"},
                kind="bars",
            ),
            Panel(
                "Used and allowed",
                "Each key in its own units: slots, MiB, or percent of a card.",
                "short",
                {f"used {_KEY}": _quota("used"), f"hard {_KEY}": _quota("hard")},
            ),
            Panel(
                "Placed",
                "What pods with devices cost, in the units of the key.",
                "short",
                {_KEY: _quota("placed")},
            ),
            Panel(
                "Waiting",
                "What pods are charged that have no devices yet, in the units of the key.",
                "short",
                {_KEY: _quota("waiting")},
            ),
        ],
        "Pods": [
            Panel(
                "Memory by pod",
                "Memory of cards that each pod was given, whether it uses it or not.",
                "bytes",
                {"{{namespace}}/{{pod}}": f"sum by (namespace, pod) (hami_vgpu_memory_allocated_bytes{_PODS})"},
                kind="table",
                width=8,
            ),
            Panel(
                "Cores by pod",
                "Compute of cards that each pod was given; a card has 100 %.",
                "percent",
                {"{{namespace}}/{{pod}}": f"sum by (namespace, pod) (hami_vgpu_core_allocated_ratio{_PODS})"},
                kind="table",
                width=8,
            ),
            Panel(
                "Memory by model",
                "Memory that the namespace's pods were given, by the model of the card.",
                "bytes",
                {
                    "{{namespace}} {{device_type}}": "sum by (namespace, device_type) ("
                    f"hami_vgpu_memory_allocated_bytes{_PODS} * on (node, device_uuid) group_left (device_type) "
                    "(max by (node, device_uuid, device_type) (hami_gpu_memory_limit_bytes) > bool 0))"
                },
                kind="table",
                width=8,
            ),
        ],
        "Use": [
            Panel(
                "Memory used of what was given",
                "What containers use of the memory of their cards, as a share of their limit; from the monitor of each "
                "node. Above 100 % others on the card may find none left.",
                "percentunit",
                {
                    "{{namespace}}/{{pod}} {{container}}": f"max by (namespace, pod, container) "
                    f"(hami_vgpu_memory_used_bytes{_PODS} / (hami_vgpu_memory_limit_bytes{_PODS} > 0))"
                },
            ),
            Panel(
                "Idle for",
                "For how long no container of a pod has computed on its cards; from the monitor of each node.",
                "s",
                {
                    "{{namespace}}/{{pod}}": "min by (namespace, pod) "
                    f"(hami_webhook_container_idle_seconds{_PODS} or hami_container_last_kernel_elapsed_seconds{_PODS})"
                },
                kind="table",
            ),
        ],
        "Consumption": [
            Panel(
                "Slot hours",
                "Hours that slots of cards were held within the chosen time. `hami-webhook report` prints the same.",
                "short",
                {"{{namespace}} {{model}}": _hours("card_seconds", 3600)},
                kind="table",
                width=8,
            ),
            Panel(
                "Memory hours",
                "GiB of card memory times hours that were held within the chosen time.",
                "short",
                {"{{namespace}} {{model}}": _hours("memory_mib_seconds", 3600 * 1024)},
                kind="table",
                width=8,
            ),
            Panel(
                "Core hours",
                "Whole cards' compute times hours that was held within the chosen time.",
                "short",
                {"{{namespace}} {{model}}": _hours("core_seconds", 3600 * 100)},
                kind="table",
                width=8,
            ),
        ],
    },
)
