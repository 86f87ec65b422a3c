"""Shares of cards bring nodes, on a real API server with stock kube-schedulers (docs/spec/placeholders.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import builders
import pytest
import yaml

from .api_client import api_client
from .deployment import BOTH, ROOT, SYSTEM, Deployment, eventually
from .hamischeduler import HamiScheduler
from .objects import JSON, add_ready_node, job, namespace, pod, quota
from .scheduling import scheduler_account

GROUP, TYPE = "hami.io/placeholders", "node.kubernetes.io/instance-type"
MEMORY, CARDS = 20000, 4
MODEL = "E2E-GROWS"


@pytest.fixture(scope="module")
def program(one_replica: Deployment) -> Iterator[Deployment]:
    """The program with placeholders, and the rights of the manifests for them."""
    folder = ROOT / "manifests" / "components" / "placeholders"
    role, binding = yaml.safe_load_all((folder / "rbac.yaml").read_text())
    binding["subjects"][0]["name"] = BOTH
    scheduler_account(one_replica.kubectl)
    one_replica.kubectl.apply(role, binding, yaml.safe_load((folder / "priorityclass.yaml").read_text()))
    one_replica.stop("hami-webhook-0")
    one_replica.start("hami-webhook-0", "--placeholders=10", "--placeholders-per-group=10")
    yield one_replica
    one_replica.stop("hami-webhook-0")
    one_replica.start("hami-webhook-0")


class Pool:
    """A group of nodes that grows as Karpenter and Cluster Autoscaler make one grow.

    They count the pods that kube-scheduler finds no node for, and that an empty node of the group could take, less the
    nodes that joined and that such a pod could still go on. A new node has no resources of device plugins at first; a
    device plugin then registers the cards.
    """

    def __init__(self, program: Deployment, name: str) -> None:
        self.kubectl = program.kubectl
        self.api = api_client(program.kubectl.kubeconfig)
        self.labels = {GROUP: name, TYPE: "e2e.large"}
        self.name = name
        self.nodes: list[str] = []

    def node(self, name: str, cards: int) -> JSON:
        registered = [builders.card(f"{name}-{number}", MEMORY, type=f"NVIDIA {MODEL}") for number in range(cards)]
        return builders.node(name, *registered, labels={**self.labels, "kubernetes.io/hostname": name}, capacity={})

    def add_full_node(self, space: str) -> None:
        """The first node, whose cards a pod holds."""
        name = f"{self.name}-0"
        add_ready_node(self.kubectl, self.node(name, CARDS), gpu=10 * CARDS)
        holder = pod(space, "holder", gpu=CARDS, gpumem=MEMORY)
        holder["spec"]["nodeSelector"] = {GROUP: self.name}
        self.kubectl.apply(holder)
        eventually(lambda: self.kubectl.get("pod", "holder", "-n", space)["spec"].get("nodeName"), name)

    def placeholders(self) -> list[JSON]:
        found: list[JSON] = self.kubectl.get("pods", "-n", SYSTEM, "-l", f"{GROUP}={self.name}")["items"]
        return found

    def grow(self) -> int:
        """Add a node for each pod that waits for one; how many there are by now."""
        waiting, taken = 0, set[str]()
        for each in self.kubectl.get("pods", "--all-namespaces")["items"]:
            spec = each["spec"]
            taken.add(spec.get("nodeName", ""))
            conditions = each.get("status", {}).get("conditions", ())
            tried = any(c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions)
            limits = [container.get("resources", {}).get("limits", {}) for container in spec["containers"]]
            asked = {name for each in limits for name in each}
            cards = sum(int(each.get(builders.GPU, 0)) for each in limits)
            ours = spec.get("nodeSelector", {}).items() <= self.labels.items() and spec.get("nodeSelector")
            fits = ours and asked == {builders.GPU} and cards <= CARDS
            waiting += not spec.get("nodeName") and tried and bool(fits)
        for _ in range(waiting - len(set(self.nodes) - taken)):
            name = f"{self.name}-{len(self.nodes) + 1}"
            self.nodes.append(name)
            add_ready_node(self.kubectl, self.node(name, 0))
        return len(self.nodes)

    def register(self) -> None:
        """The device plugins of nodes that joined register the cards."""
        for name in self.nodes:
            amounts = {"pods": "500", "cpu": "64", builders.GPU: str(10 * CARDS)}
            made = self.node(name, CARDS)
            self.api.merge({"metadata": {"annotations": made["metadata"]["annotations"]}}, "node", name)
            status = json.dumps({"status": {"capacity": amounts, "allocatable": amounts}})
            self.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", status)

    def nodes_of(self, space: str, selector: str) -> list[str]:
        pods = self.kubectl.get("pods", "-n", space, "-l", selector)["items"]
        return sorted(each["spec"].get("nodeName", "") for each in pods)


def test_a_share_that_waits_brings_a_node_and_goes_on_it(program: Deployment, scheduler: HamiScheduler) -> None:
    """Pods that wait for quota bring none, nor do pods of tenants that carry the label; nothing stays behind."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    pool = Pool(program, f"one-{space}")
    pool.add_full_node(space)
    held = quota(namespace(kubectl), gpu=CARDS)
    held["metadata"]["annotations"] = {"hami.io/quota-enforcement": "queue"}
    kubectl.apply(held)
    tenant = held["metadata"]["namespace"]
    charged = pod(tenant, "charged", gpu=CARDS, gpumem=MEMORY)
    charged["spec"]["nodeSelector"] = {"e2e.example.com/node": "none"}
    kubectl.apply(charged)
    for number in range(2):
        gated = pod(tenant, f"gated-{number}", gpu=CARDS, gpumem=MEMORY)
        gated["metadata"]["labels"] = {GROUP: pool.name}
        gated["spec"]["nodeSelector"] = {GROUP: pool.name}
        kubectl.apply(gated)
    waits = pod(space, "waits", gpu=1, gpumem=100)
    waits["metadata"]["labels"] = {"app": "waits"}
    waits["spec"]["nodeSelector"] = {GROUP: pool.name}
    kubectl.apply(waits)

    eventually(pool.grow, 1)
    pool.register()
    eventually(lambda: pool.nodes_of(space, "app=waits"), pool.nodes)
    eventually(pool.placeholders, [])
    assert pool.grow() == 1
    assert len(kubectl.get("pods", "-n", tenant)["items"]) == 3
    events = kubectl.get("events", "-n", space, "--field-selector", "reason=NodeRequested")["items"]
    assert [each["involvedObject"]["name"] for each in events] == ["waits"]
    kubectl.delete_all("pods", namespace=space)
    kubectl.delete_all("pods", namespace=tenant)


def test_a_hundred_shares_bring_as_few_nodes_as_hold_them(program: Deployment, scheduler: HamiScheduler) -> None:
    kubectl, space = program.kubectl, namespace(program.kubectl)
    pool = Pool(program, f"many-{space}")
    pool.add_full_node(space)
    shares = job(space, "shares", 100, gpu=1, gpumem=MEMORY // 10)
    shares["spec"]["template"]["spec"]["nodeSelector"] = {GROUP: pool.name}
    kubectl.apply(shares)
    eventually(lambda: len(pool.nodes_of(space, "job-name=shares")), 100)

    eventually(pool.grow, 3)  # of 4 cards with 10 shares each
    pool.register()
    eventually(lambda: set(pool.nodes_of(space, "job-name=shares")), set(pool.nodes))
    eventually(pool.placeholders, [])
    assert pool.grow() == 3
    kubectl.delete_all("jobs", "pods", namespace=space)
