"""Operation: how the processes do."""

from __future__ import annotations

from .panels import Dashboard, Panel, quantiles, rate

OPERATION = Dashboard(
    uid="hami-operation",
    title="HAMi / Operation",
    description="Webhook, controller and scheduler extender: latency, conflicts, caches, leader, certificate.",
    variables={},
    rows={
        "State": [
            Panel(
                "Leaders",
                "Controllers that lead: 1, or quotas aren't recomputed and the cluster's metrics are missing.",
                "short",
                {"leaders": "sum(hami_webhook_leader)"},
                kind="stat",
                width=4,
            ),
            Panel(
                "Processes up",
                "Processes that Prometheus reaches.",
                "short",
                {"{{container}}": 'sum by (container) (up{container=~"webhook|controller|extender"})'},
                kind="stat",
                width=8,
            ),
            Panel(
                "Certificate days left",
                "Days until the serving certificate of a replica ends; it is renewed long before.",
                "d",
                {"days": "min(hami_webhook_tls_not_after_seconds - time()) / 86400"},
                kind="stat",
                width=4,
            ),
            Panel(
                "Versions",
                "Processes by version and revision; two of each only while an upgrade runs.",
                "short",
                {"{{version}} {{revision}}": "count by (version, revision) (hami_build_info)"},
                kind="stat",
                width=8,
            ),
        ],
        "Admission": [
            Panel(
                "Review latency by path",
                "Time to answer the API server, which gives up after 10 s.",
                "s",
                quantiles("review_seconds", "path"),
            ),
            Panel(
                "Reviews by path and code",
                "Answers a second. A refused pod is an answer with 200.",
                "reqps",
                {"{{path}} {{code}}": rate("reviews_total", "path, code")},
            ),
            Panel(
                "Charge latency",
                "Time to charge a pod to its quotas, the wait for its batch included.",
                "s",
                quantiles("quota_charge_seconds"),
                width=8,
            ),
            Panel(
                "Charge conflicts",
                "Writes to quotas by charges, and charges that met a write of somebody else and were tried again.",
                "ops",
                {"writes": rate("quota_writes_total"), "conflicts": rate("quota_conflicts_total")},
                width=8,
            ),
            Panel(
                "Charges waiting",
                "Charges under way, or waiting for their batch, of each replica.",
                "short",
                {"{{pod}}": 'sum by (pod) (hami_webhook_quota_charges_waiting{container="webhook"})'},
                width=8,
            ),
        ],
        "Controller": [
            Panel(
                "Recompute drift",
                "Recomputes that corrected used without an event as the cause; should stay 0.",
                "short",
                {"drift": "sum(increase(hami_webhook_quota_drift_total[$__rate_interval]))"},
                width=8,
            ),
            Panel(
                "Cache age",
                "Time since the watch of a kind last gave a sign of life, in the process where that is longest.",
                "s",
                {"{{kind}}": "max by (kind) (hami_webhook_cache_age_seconds)"},
                width=8,
            ),
            Panel(
                "Leader over time",
                "Which controller leads.",
                "short",
                {"{{pod}}": "max by (pod) (hami_webhook_leader)"},
                width=8,
            ),
        ],
        "Scheduling": [
            Panel(
                "Extender latency by path",
                "Time to answer kube-scheduler; /bind includes the wait for the node's lock.",
                "s",
                quantiles("extender_seconds", "path"),
            ),
            Panel(
                "Wait for a node's lock",
                "Time that binds waited for the lock by which one pod at a time is bound to a node.",
                "s",
                quantiles("node_lock_wait_seconds"),
            ),
            Panel(
                "Node locks",
                "Age of the locks that stand now; device plugins let them go within seconds.",
                "s",
                {"{{node}} {{lock}}": "max by (node, lock) (hami_webhook_node_lock_age_seconds)"},
            ),
            Panel(
                "Preemption",
                "Decisions a minute on pods that no node took.",
                "cpm",
                {"{{outcome}}": f"60 * {rate('preemption_decisions_total', 'outcome')}"},
            ),
        ],
        "Processes": [
            Panel(
                "CPU",
                "CPU time a second of each process.",
                "short",
                {
                    "{{pod}}": 'sum by (pod) (rate(process_cpu_seconds_total{container=~"webhook|controller|extender"}'
                    "[$__rate_interval]))"
                },
            ),
            Panel(
                "Memory",
                "Resident memory of each process.",
                "bytes",
                {"{{pod}}": 'sum by (pod) (process_resident_memory_bytes{container=~"webhook|controller|extender"})'},
            ),
        ],
    },
)
