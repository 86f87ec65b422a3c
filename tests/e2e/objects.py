"""Objects that the end-to-end tests apply."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import builders

from .api_client import api_client
from .deployment import Kubectl, eventually

JSON = dict[str, Any]
GPU, MEM, CORES = "limits.nvidia.com/gpu", "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores"


def namespace(kubectl: Kubectl) -> str:
    """A namespace nobody else uses, ready for pods."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    accounts = "serviceaccounts", "-n", name, "--field-selector=metadata.name=default"
    eventually(lambda: len(kubectl.get(*accounts)["items"]), 1)
    return name


def define_devices(kubectl: Kubectl) -> None:
    """Install the definition of Koordinator's Device objects, and wait until the API server has it."""
    kubectl("apply", "-f", str(Path(__file__).with_name("koordinator-devices.yaml")))
    kubectl("wait", "crd/devices.scheduling.koordinator.sh", "--for=condition=Established", "--timeout=120s")


def remove_devices(kubectl: Kubectl) -> None:
    """Delete that definition, and the objects with it."""
    kubectl("delete", "crd", "devices.scheduling.koordinator.sh")


def quota(namespace: str, name: str = "gpu-quota", **hard: Any) -> JSON:
    return builders.quota(name, namespace=namespace, **hard)


def accelerator_quota(name: str, selector: JSON, hard: JSON | None = None, **spec: Any) -> JSON:
    """A quota of the namespaces that a LabelSelector selects; `spec` is the rest of its spec."""
    return builders.accelerator_quota(name, selector, spec, **(hard or {}))


def pod(namespace: str, name: str, **asked: int | str) -> JSON:
    """A pod with one container; `gpu`, `gpumem`, `gpucores` and so on are NVIDIA's resources."""
    limits: JSON = {f"nvidia.com/{key.replace('_', '-')}": str(value) for key, value in asked.items()}
    return builders.pod(name, namespace=namespace, **limits)


def job(space: str, name: str, count: int, **asked: int) -> JSON:
    """A Job of so many pods at once, which asks for NVIDIA's resources."""
    spec = pod(space, "", **asked)["spec"] | {"restartPolicy": "Never"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": space},
        "spec": {"parallelism": count, "completions": count, "template": {"spec": spec}},
    }


def replicated(space: str, name: str, spec: JSON, *, kind: str = "Deployment", replicas: int = 1, **more: Any) -> JSON:
    """A workload of apps/v1 with a pod's spec; `more` are other fields of its own."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": space},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template, **more},
    }


def gpu_node(name: str, *memories: int) -> JSON:
    """A node with cards of these sizes in MiB, of which its kubelet has said nothing yet."""
    cards = [builders.card(f"{name}-{i}", memory, type="NVIDIA A10") for i, memory in enumerate(memories)]
    return builders.node(name, *cards, capacity={})


def add_node(kubectl: Kubectl, node: JSON, **amounts: int) -> None:
    """Create a node that has these amounts of NVIDIA's resources, as kubelet registers it."""
    register(kubectl, node, {f"nvidia.com/{key}": value for key, value in amounts.items()})


def register(kubectl: Kubectl, node: JSON, amounts: Mapping[str, object]) -> None:
    """Create a node that has these amounts."""
    offered = {key: str(value) for key, value in amounts.items()}
    kubectl.apply(node | {"status": {"capacity": offered, "allocatable": offered}})


def add_ready_node(kubectl: Kubectl, node: JSON, *taints: JSON, **amounts: object) -> None:
    """Create a node that kube-scheduler may use: with room for pods, and with no taints but these."""
    known = {"gpu": "nvidia.com/gpu"}
    register(kubectl, node, {"pods": 500, "cpu": 64} | {known.get(key, key): each for key, each in amounts.items()})
    api_client(kubectl.kubeconfig).merge({"spec": {"taints": list(taints)}}, "node", node["metadata"]["name"])
