"""A real Prometheus on what `make deploy` installs: its sums are those of the API server's objects, and its alerts are
silent on an ordinary day, while each fault has its own.

What takes longer than a test may is in tests/monitoring/alerts.yaml, on series as they are here: how long it lasts
until an alert fires, and the faults that show in minutes or hours: certificates that aren't renewed, slow reviews,
clocks, drift, refusals beside those of the day before.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import yaml

from hack.devcluster.plane import ControlPlane

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
from .objects import GPU, JSON, accelerator_quota, add_node, gpu_node, namespace, quota, replicated
from .prometheus import ALERTS, Prometheus, scraping

MIB = 1 << 20
REGISTERED = "hami.io/node-nvidia-register"
NODES = {"gpu-1": (24576, 24576, 24576), "gpu-2": (16384, 16384)}
WRONG = {
    "HamiNodeRegistrationUnreadable": {REGISTERED: '[{"id": "card", "count": 10, "devmem": "many", "devcore": 100}]'},
    "HamiNodeRegistrationSilent": {"hami.io/node-handshake": "Requesting_2026-01-01 00:00:00"},
    "HamiMixedGPUManagers": {"volcano.sh/node-vgpu-register": "another,10,16384,100,NVIDIA,0,true:"},
    "HamiNodeLockStuck": {"hami.io/mutex.lock": "2026-01-01T00:00:00Z,team-a,gone"},
}
"""Annotations of nodes that no pod runs on, by the alert for what is wrong with them."""
BUSY = {"HamiReviewsSlow"}
"""What waits to fire for ten minutes after a review took a second, as on a busy machine one may."""
MOMENTARY = {"HamiNoLeader", "HamiWebhookDown", "HamiExtenderUnreachable", *BUSY}
"""Alerts that a restart, or a machine that is busy, may have wait for a moment; none of them may fire."""
DEPLOYMENTS = {
    "webhook": "hami-webhook",
    "controller": "hami-webhook-controller",
    "hami-scheduler": "hami-scheduler",
}
"""By their label `component`."""
LEASE = "hami-scheduler-controller"
SCRAPE = 30
"""Seconds between scrapes, as the monitors have it."""


@pytest.fixture(scope="module")
def spaces(plane_with_node: ControlPlane) -> list[str]:
    """Namespaces that are there before the program is."""
    return [namespace(Kubectl(plane_with_node.kubeconfig)) for _ in range(3)]


@pytest.fixture(scope="module")
def prometheus(
    plane_with_node: ControlPlane, spaces: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """One that scrapes what is installed, on a cluster whose nodes have device plugins."""
    kubectl = Kubectl(plane_with_node.kubeconfig)
    cluster = Cluster(plane_with_node, kubectl, tmp_path_factory.mktemp("monitoring"))
    for name, memories in NODES.items():
        add_card_node(kubectl, name, *memories)
    with installed(cluster, "default") as output, scraping(cluster) as found, device_plugins(cluster):
        check_rollout(cluster, output)
        pods = {item["metadata"]["name"] for item in system_pods(kubectl)}
        assert len(pods) == 6
        eventually(found.targets, dict.fromkeys(pods, "up"))
        yield found
        for space in spaces:
            kubectl.delete_all("deployments", "pods", "resourcequotas", namespace=space)
        kubectl("delete", "nodes", "--ignore-not-found", *map(node_of, WRONG))
    kubectl("delete", "nodes", *NODES)


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

    eventually(differing, {})


def run(kubectl: Kubectl, *pods: JSON) -> None:
    """Create the pods and wait until they run."""
    kubectl.apply(*pods)
    for item in pods:
        name, space = item["metadata"]["name"], item["metadata"]["namespace"]
        kubectl("wait", f"pod/{name}", "-n", space, "--for=jsonpath={.status.phase}=Running", "--timeout=120s")


def check_a_change_of_leader(prometheus: Prometheus) -> None:
    """Kill the controller that leads: the sum of all cards is never another one, and lacking for less than a scrape."""
    kubectl, query = prometheus.kubectl, "sum(hami_gpu_memory_limit_bytes)"
    total, since, killed = prometheus.value(query), time.time(), leader(kubectl, LEASE)
    kubectl("delete", "pod", killed, "-n", SYSTEM, "--grace-period=0", "--force")
    eventually(lambda: leader(kubectl, LEASE) not in ("", killed))
    kubectl("rollout", "status", "deployment/hami-webhook-controller", "-n", SYSTEM, "--timeout=120s")
    prometheus.discover()
    eventually(lambda: prometheus.value(query), total)
    values = prometheus.values(query, since)
    assert set(values.values()) == {total}
    times = [since, *sorted(values), time.time()]  # an orderly end hands the lease over within a second
    assert max(later - before for before, later in pairwise(times)) < SCRAPE


def of_the_monitor(query: str) -> bool:
    """Whether it takes the monitor of nodes, which isn't there: tests/e2e/test_used.py has it."""
    own = r"hami_(?:vgpu_memory_(?:used|limit)_bytes|container_|webhook_container_idle|webhook_card_unhealthy)"
    return re.search(own, query) is not None


def panel_queries(*, of_monitor: bool = False) -> dict[str, str]:
    """The queries of all dashboards, with everything chosen, by dashboard, panel and letter."""
    boards = [json.loads(path.read_text()) for path in (ROOT / "manifests" / "dashboards").glob("*.json")]
    return {
        f"{board['title']}, {panel['title']}, {target['refId']}": re.sub(
            r"\$(namespace|quota|vendor|model)\b", ".*", re.sub(r"\$__(rate_interval|range)\b", "5m", target["expr"])
        )
        for board in boards
        for panel in board["panels"]
        for target in panel.get("targets", ())
        if of_the_monitor(target["expr"]) == of_monitor
    }


def alert_selectors() -> dict[str, str]:
    """The series that alerts look at, by alert: failures of reviews are all that there is nothing of."""
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["spec"]["groups"] for rule in group["rules"]]
    return {
        f"{rule['alert']}, {selector}": selector
        for rule in rules
        for selector in re.findall(r"(?:up|hami_\w+)(?:\{[^}]*\})?", rule["expr"])
        if not ("reviews_total{" in selector or "reason=~" in selector or of_the_monitor(selector))
    }


def check_data(prometheus: Prometheus, queries: dict[str, str]) -> None:
    """Every panel shows something, and every alert has something to look at."""

    def without_data() -> list[str]:
        return [
            name
            for name, query in queries.items()
            if not any(math.isfinite(each.value) for each in prometheus.query(query))
        ]

    eventually(without_data, [])


def active(prometheus: Prometheus) -> set[str]:
    """The alerts that fire, or wait until it lasted, but for what a busy machine raises."""
    rules = prometheus.rules()
    assert {rule.get("lastError", "") for rule in rules if rule["health"] == "err"} == set()
    return {rule["name"] for rule in rules if rule["state"] != "inactive"} - BUSY


def rollout(space: str, name: str, replicas: int, memory: JSON | None = None) -> JSON:
    """A Deployment of pods with one card each, and 2000 MiB of it or what else `memory` says."""
    spec: JSON = card_pod(space, name, 2000)["spec"]
    spec["containers"][0]["resources"]["limits"] |= memory or {}
    return replicated(space, name, spec, replicas=replicas)


def running(kubectl: Kubectl, space: str, name: str) -> int:
    found = kubectl.get("pods", "-n", space, "-l", f"app={name}", "--field-selector=status.phase=Running")
    return len(found["items"])


def restart(prometheus: Prometheus, component: str) -> None:
    """Delete one of a component's two replicas, and wait until two are scraped again."""
    kubectl = prometheus.kubectl
    pods = {item["metadata"]["name"]: item for item in system_pods(kubectl)}
    label = "app.kubernetes.io/component"
    gone = next(name for name, item in pods.items() if item["metadata"]["labels"][label] == component)
    kubectl("delete", "pod", gone, "-n", SYSTEM)
    kubectl("rollout", "status", f"deployment/{DEPLOYMENTS[component]}", "-n", SYSTEM, "--timeout=120s")
    prometheus.discover()


def test_an_ordinary_day_has_no_alert_and_the_sums_of_the_objects_whoever_leads(
    prometheus: Prometheus, spaces: list[str]
) -> None:
    kubectl = prometheus.kubectl
    a, b = spaces = spaces[:2]
    kubectl.apply(quota(a, gpu=3, mem=5000), quota(b, gpu=20, mem=200000))
    eventually(lambda: active(prometheus), set())
    since = time.time()
    kubectl.apply(rollout(a, "beyond-quota", 3), rollout(a, "mistaken", 1, {"nvidia.com/gpumem-percentage": "200"}))
    run(kubectl, card_pod(b, "one", 5000))
    eventually(lambda: running(kubectl, a, "beyond-quota"), 2)
    assert "exceeded quota" in kubectl.refused(card_pod(a, "one-more", 2000))
    kubectl.apply(card_pod(b, "too-large", 60000))
    check_sums(prometheus, *spaces)
    restart(prometheus, "webhook")
    check_a_change_of_leader(prometheus)
    run(kubectl, card_pod(b, "two", 4000))
    kubectl("scale", "deployment/beyond-quota", "-n", a, "--replicas=0")
    kubectl("delete", "pod", "one", "-n", b)
    check_sums(prometheus, *spaces)
    assert min(refusals(prometheus, reason) for reason in ("quota", "request")) > 0
    assert prometheus.alerts(since) - {(alert, "pending") for alert in MOMENTARY} == set()
    panels = panel_queries()
    assert len(panels) > 30
    # that a lock stands for so long that it is seen is a fault
    check_data(prometheus, {name: query for name, query in panels.items() if "node_lock_age" not in query})


def refusals(prometheus: Prometheus, reason: str) -> float:
    return prometheus.value(f'sum(hami_webhook_review_refusals_total{{reason="{reason}"}})') or 0


def node_of(alert: str) -> str:
    return alert.lower()


def fail_a_review(kubectl: Kubectl, space: str) -> None:
    assert "quota" in kubectl.refused(card_pod(space, "no-verdict", 1000))


@contextlib.contextmanager
def without(kubectl: Kubectl, kind: str, name: str) -> Iterator[None]:
    """Until the block ends the object isn't there."""
    found = kubectl.get(kind, name)
    kubectl("delete", kind, name)
    yield
    del found["metadata"]["resourceVersion"], found["metadata"]["uid"]
    kubectl.apply(found)


def stop(prometheus: Prometheus, component: str) -> None:
    """Scale a Deployment down to 0, and scrape its pods no more."""
    kubectl, labels = prometheus.kubectl, f"app.kubernetes.io/component={component}"
    kubectl("scale", f"deployment/{DEPLOYMENTS[component]}", "-n", SYSTEM, "--replicas=0")
    kubectl("wait", "pods", "-n", SYSTEM, "-l", labels, "--for=delete", "--timeout=120s")
    prometheus.discover()


def test_each_fault_has_its_own_alert(prometheus: Prometheus, spaces: list[str]) -> None:
    kubectl, space = prometheus.kubectl, spaces[2]
    kubectl.apply(quota(space, gpu=20))
    run(kubectl, card_pod(space, "one", 2000))
    eventually(lambda: active(prometheus), set())
    before: set[str] = set()

    def check(alert: str, fault: Callable[[], None] = lambda: None) -> None:
        """The fault, which may be done again, has this alert and no other."""

        def new() -> set[str]:
            fault()
            return active(prometheus) - before

        eventually(new, {alert})
        before.add(alert)

    for alert, notes in WRONG.items():
        node = gpu_node(node_of(alert), 8192)
        node["metadata"]["annotations"] |= notes
        add_node(kubectl, node, **({"gpu": 10} if alert == "HamiMixedGPUManagers" else {}))
        check(alert)
    kubectl.apply(quota(space, gpu=1))
    check("HamiQuotaNearlyFull")
    queueing = quota(space, "queue-quota", gpu=1)
    queueing["metadata"]["annotations"] = {"hami.io/quota-enforcement": "queue"}
    of_space = {"matchLabels": {"kubernetes.io/metadata.name": space}}
    budget = {"amounts": {GPU: "500h"}, "period": "Month"}
    kubectl.apply(quota(space, gpu=20), queueing)
    kubectl.apply(card_pod(space, "waits", 2000), accelerator_quota("spent", of_space, {GPU: 20}, budget=budget))
    check_data(prometheus, alert_selectors())
    kubectl("delete", "-n", space, "pod/waits", "resourcequota/queue-quota", "acceleratorquota/spent")
    with without(kubectl, "clusterrolebinding", "hami-webhook"):
        check("HamiReviewsFailing", lambda: fail_a_review(kubectl, space))
    stop(prometheus, "hami-scheduler")
    check("HamiExtenderUnreachable")
    stop(prometheus, "controller")
    check("HamiNoLeader")
    stop(prometheus, "webhook")
    check("HamiWebhookDown")
