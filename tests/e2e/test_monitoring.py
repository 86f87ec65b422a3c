"""A real Prometheus on what `make deploy` installs: its sums are those of the API server's objects."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
import yaml

from .deployment import ROOT, SYSTEM, Kubectl, eventually
from .installation import (
    ALLOCATED,
    Cluster,
    add_card_node,
    card_pod,
    check_rollout,
    device_plugins,
    installed,
    leader,
    system_pods,
)
from .objects import JSON, add_node, gpu_node, namespace, quota
from .prometheus import ALERTS, Prometheus, scraping

MIB = 1 << 20
REGISTERED = "hami.io/node-nvidia-register"
NODES = {"gpu-1": (24576, 24576, 24576), "gpu-2": (16384, 16384)}
WRONG = {
    "unreadable": {REGISTERED: '[{"id": "card", "count": 10, "devmem": "many", "devcore": 100}]'},
    "silent": {"hami.io/node-handshake": "Requesting_2026-01-01 00:00:00"},
    "mixed": {
        "volcano.sh/node-vgpu-register": "another,10,16384,100,NVIDIA,0,true:",
        "hami.io/mutex.lock": "2026-01-01T00:00:00Z,team-a,gone",
    },
}
"""Nodes that no pod runs on, with the annotations that something is wrong with."""
FAULTS = {
    "HamiNodeLockStuck",
    "HamiNodeRegistrationUnreadable",
    "HamiNodeRegistrationSilent",
    "HamiMixedGPUManagers",
    "HamiQuotaNearlyFull",
}
"""The alerts for what is wrong with these nodes, and with a quota that is full."""
LEASE = "hami-scheduler-controller"
SCRAPE = 30
"""Seconds between scrapes, as the monitors have it."""


@pytest.fixture
def card_nodes(cluster: Cluster) -> Iterator[None]:
    kubectl = cluster.kubectl
    for name, memories in NODES.items():
        add_card_node(kubectl, name, *memories)
    for name, notes in WRONG.items():
        node = gpu_node(name, 8192)
        node["metadata"]["annotations"] |= notes
        add_node(kubectl, node, **({"gpu": 10} if name == "mixed" else {}))
    yield
    kubectl("delete", "node", *NODES, *WRONG)


def counted(kubectl: Kubectl) -> dict[str, float]:
    """What HAMi's dashboards and ours sum, by their queries, counted from Nodes and Pods."""
    served = [item for item in kubectl.get("nodes")["items"] if "nvidia.com/gpu" in item["status"].get("capacity", {})]
    registered = [json.loads(item["metadata"]["annotations"][REGISTERED]) for item in served]
    cards = {card["id"]: card["devmem"] for listed in registered for card in listed}
    held = [
        (uuid, int(memory), int(cores))
        for item in kubectl.get("pods", "-A")["items"]
        if item["spec"].get("nodeName") and item["status"]["phase"] not in ("Succeeded", "Failed")
        for container in item["metadata"].get("annotations", {}).get(ALLOCATED, "").split(";")
        for uuid, _, memory, cores in (each.split(",") for each in container.split(":") if each)
    ]
    total, allocated = sum(cards.values()) * MIB, sum(memory for _, memory, _ in held) * MIB
    return {
        "count(hami_gpu_memory_limit_bytes)": len(cards),
        "sum(hami_gpu_memory_limit_bytes)": total,
        "sum(hami_gpu_memory_allocated_bytes)": allocated,
        "sum(hami_gpu_shared_count)": len(held),
        "sum(hami_gpu_core_allocated_ratio)": sum(cores for _, _, cores in held),
        "sum(hami_node_gpu_memory_allocated_ratio)": sum(memory / cards[uuid] for uuid, memory, _ in held),
        "sum(hami_vgpu_memory_allocated_bytes)": allocated,
        "sum(hami_webhook_cards)": len(cards),
        "sum(hami_webhook_cards_free)": len(cards.keys() - {uuid for uuid, _, _ in held}),
        "sum(hami_webhook_card_memory_bytes)": total,
        "sum(hami_webhook_card_memory_allocated_bytes)": allocated,
        "sum(hami_webhook_card_slots_allocated)": len(held),
        "sum(hami_webhook_leader)": 1,
    }


def charged(kubectl: Kubectl, *spaces: str) -> dict[str, float]:
    """What the Team dashboard shows of quotas, from ResourceQuotas: what is placed and what waits makes up used."""
    found = {}
    for space in spaces:
        for key, text in kubectl.get("resourcequota", "gpu-quota", "-n", space)["status"]["used"].items():
            amount = float(text[:-1]) * 1000 if text.endswith("k") else float(text)
            labels = f'{{namespace="{space}",quota="gpu-quota",key="{key}"}}'
            found[f"sum(hami_webhook_quota_used{labels})"] = amount
            found[f"sum(hami_webhook_quota_placed{labels}) + sum(hami_webhook_quota_waiting{labels})"] = amount
    return found


def check_sums(prometheus: Prometheus, *spaces: str) -> None:
    """Every sum is soon that of the objects."""

    def differing() -> dict[str, tuple[float | None, float]]:
        wanted = counted(prometheus.kubectl) | charged(prometheus.kubectl, *spaces)
        found = {query: prometheus.value(query) for query in wanted}
        return {query: (found[query], value) for query, value in wanted.items() if found[query] != pytest.approx(value)}

    eventually(differing, {}, seconds=45)


def run(kubectl: Kubectl, *pods: JSON) -> None:
    """Create the pods and wait until they run."""
    kubectl.apply(*pods)
    for item in pods:
        name, space = item["metadata"]["name"], item["metadata"]["namespace"]
        kubectl("wait", f"pod/{name}", "-n", space, "--for=jsonpath={.status.phase}=Running", "--timeout=50s")


def check_a_change_of_leader(prometheus: Prometheus) -> None:
    """Kill the controller that leads: the sum of all cards is never another one, and lacking for less than a scrape."""
    kubectl, query = prometheus.kubectl, "sum(hami_gpu_memory_limit_bytes)"
    total, since, killed = prometheus.value(query), time.time(), leader(kubectl, LEASE)
    kubectl("delete", "pod", killed, "-n", SYSTEM, "--grace-period=0", "--force")
    eventually(lambda: leader(kubectl, LEASE) not in ("", killed), seconds=60)
    kubectl("rollout", "status", "deployment/hami-webhook-controller", "-n", SYSTEM, "--timeout=50s")
    prometheus.discover()
    eventually(lambda: prometheus.value(query), total)
    values = prometheus.values(query, since)
    assert set(values.values()) == {total}
    times = [since, *sorted(values), time.time()]  # an orderly end hands the lease over within a second
    assert max(later - before for before, later in pairwise(times)) < SCRAPE


def panel_queries() -> dict[str, str]:
    """The queries of all dashboards, with everything chosen, by dashboard, panel and letter."""
    boards = [json.loads(path.read_text()) for path in (ROOT / "manifests" / "dashboards").glob("*.json")]
    return {
        f"{board['title']}, {panel['title']}, {target['refId']}": re.sub(
            r"\$(namespace|quota|vendor|model)\b", ".*", re.sub(r"\$__(rate_interval|range)\b", "5m", target["expr"])
        )
        for board in boards
        for panel in board["panels"]
        for target in panel.get("targets", ())
    }


def alert_selectors() -> dict[str, str]:
    """The series that alerts look at, by alert: failures of reviews are all that there is nothing of."""
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["spec"]["groups"] for rule in group["rules"]]
    return {
        f"{rule['alert']}, {selector}": selector
        for rule in rules
        for selector in re.findall(r"(?:up|hami_\w+)(?:\{[^}]*\})?", rule["expr"])
        if "reviews_total{" not in selector and "reason=~" not in selector
    }


def check_every_query(prometheus: Prometheus) -> None:
    """Every panel shows something, and every alert has something to look at."""
    queries = panel_queries() | alert_selectors()
    assert len(queries) > 50

    def without_data() -> list[str]:
        return [
            name
            for name, query in queries.items()
            if not any(math.isfinite(each.value) for each in prometheus.query(query))
        ]

    eventually(without_data, [])


def check_alerts(prometheus: Prometheus) -> None:
    """Just the alerts for what is wrong are on, or wait until it lasted."""

    def states() -> tuple[set[str], set[str]]:
        rules = prometheus.rules()
        active = {rule["name"] for rule in rules if rule["state"] != "inactive"}
        return active, {rule.get("lastError", "") for rule in rules if rule["health"] != "ok"}

    eventually(states, (FAULTS, set()))


def test_sums_are_those_of_the_objects_whoever_leads(cluster: Cluster, card_nodes: None) -> None:
    kubectl = cluster.kubectl
    a, b = spaces = [namespace(kubectl) for _ in range(2)]
    kubectl.apply(quota(a, gpu=2, mem=20000), quota(b, gpu=20, mem=200000))
    with installed(cluster, "default") as output, scraping(cluster) as prometheus, device_plugins(cluster):
        check_rollout(cluster, output)
        pods = {item["metadata"]["name"] for item in system_pods(kubectl)}
        assert len(pods) == 6
        eventually(prometheus.targets, dict.fromkeys(pods, "up"))
        run(kubectl, card_pod(a, "one", 2000), card_pod(a, "two", 3000), card_pod(b, "one", 5000))
        assert "exceeded quota" in kubectl.refused(card_pod(a, "three", 1000))
        kubectl.apply(card_pod(b, "too-large", 60000))
        check_sums(prometheus, *spaces)
        check_alerts(prometheus)
        kubectl("delete", "pod", "one", "-n", b)
        check_sums(prometheus, *spaces)
        check_a_change_of_leader(prometheus)
        run(kubectl, card_pod(b, "two", 4000))
        check_sums(prometheus, *spaces)
        check_every_query(prometheus)
        for space in spaces:
            kubectl("delete", "pods", "--all", "-n", space, "--grace-period=0", "--force")
