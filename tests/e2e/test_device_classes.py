"""Pods with limits beside DeviceClasses of others, on a real kube-scheduler with the manifests' configuration.

The classes are those that the charts of NVIDIA's and other drivers bring; slices are written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from dra.objects import resource_slice

from hack.devcluster.boards import find

from .deployment import Deployment, Kubectl, eventually
from .hamischeduler import HamiScheduler
from .kubelet import Kubelets
from .objects import JSON, add_ready_node, namespace, pod
from .test_placement import bound, node_with_cards, nodes_with_cards, pods_of

CLASSES = {"gpu.nvidia.com": "nvidia.com/gpu", "metax.example.com": "metax-tech.com/sgpu", "nic.example.com": ""}
"""DeviceClasses as drivers' charts have them, with the resource of ours that each takes."""
API = "resource.k8s.io/v1"


@pytest.fixture
def classes(program: Deployment, kubelets: Kubelets) -> Iterator[None]:
    kubectl = program.kubectl
    for name, resource in CLASSES.items():
        spec: JSON = {"selectors": [{"cel": {"expression": f'device.driver == "{name}"'}}]}
        spec |= {"extendedResourceName": resource} if resource else {}
        kubectl.apply({"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec})
    yield
    kubectl("delete", "deviceclasses", *CLASSES)
    kubectl("delete", "resourceslices", "--all")
    kubectl.delete_all("pods", "nodes")


def test_shares_are_placed_though_a_class_takes_their_resource(
    program: Deployment, scheduler: HamiScheduler, classes: None
) -> None:
    """Nodes offer the count alone, as real ones do: nobody but the extender knows of memory and cores."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    node_with_cards(kubectl, space, "one", 4)
    board = find("metax", None, 2).offer(f"metax-{space}")
    meta = {"name": f"metax-{space}", "annotations": board.annotations, "labels": {"gpu": "on"}}
    add_ready_node(kubectl, {"apiVersion": "v1", "kind": "Node", "metadata": meta}, **board.capacity)
    shapes: list[JSON] = [
        pod(space, "whole", gpu=1),
        pod(space, "memory", gpu=1, gpumem=500),
        pod(space, "cores", gpu=1, gpumem=500, gpucores=10),
        pod(space, "percent", gpu=1, gpumem_percentage=10),
    ]
    for name, asked in {"sgpu": {}, "parts": {"vcore": "10", "vmemory": "2"}}.items():
        made = pod(space, name)
        limits = {f"metax-tech.com/{key}": value for key, value in {"sgpu": "1", **asked}.items()}
        made["spec"]["containers"][0]["resources"] = {"limits": limits}
        shapes.append(made)
    kubectl.apply(*shapes)
    eventually(lambda: bound(kubectl, space), len(shapes))
    assert kubectl.get("resourceclaims", "-n", space)["items"] == []
    eventually(lambda: class_events(kubectl), {name: f"takes {taken}" for name, taken in CLASSES.items() if taken})


def class_events(kubectl: Kubectl) -> dict[str, str]:
    """What events say of each class first."""
    of_classes = ("-n", "default", "--field-selector", "reason=DeviceClassTakesResource")
    found = kubectl.get("events", *of_classes)["items"]
    return {each["involvedObject"]["name"]: each["message"].partition(",")[0] for each in found}


def test_a_pod_with_limits_and_claims_goes_where_both_are(
    program: Deployment, scheduler: HamiScheduler, classes: None
) -> None:
    """A network card by a claim beside a share of a GPU; only the profile without that filter is closed to claims.

    Where a class takes the pod's own resource, nothing places it on Kubernetes 1.36 and newer, and `explain` says why.
    """
    kubectl = program.kubectl
    space = namespace(kubectl)
    nodes = nodes_with_cards(kubectl, space, ["bare", "nic"], 2, 24576)
    publish_nic(kubectl, nodes[1])
    kubectl.apply(*with_nic(pod(space, "taken", gpu=1, gpumem=500)))
    eventually(lambda: "cannot fit resource" in json.dumps(pods_of(kubectl, space)))
    text = kubectl.hami("explain", "pod", "taken", "-n", space).stdout
    assert "DeviceClass gpu.nvidia.com takes nvidia.com/gpu" in " ".join(text.split())
    kubectl("delete", "pod", "taken", "-n", space)
    kubectl("patch", "deviceclass", "gpu.nvidia.com", "--type=merge", "-p", '{"spec": {"extendedResourceName": null}}')
    kubectl.apply(*with_nic(pod(space, "train", gpu=1, gpumem=500)))
    eventually(lambda: bound(kubectl, space), 1)
    (placed,) = pods_of(kubectl, space)
    assert (placed["spec"]["schedulerName"], placed["spec"]["nodeName"]) == ("hami-scheduler-claims", nodes[1])
    assert kubectl.get("resourceclaim", "train", "-n", space)["status"]["allocation"]["devices"]["results"]


def test_no_pod_is_bound_without_the_devices_of_its_claims(
    program: Deployment, scheduler: HamiScheduler, classes: None
) -> None:
    """A tenant names the profile that allocates no claims, in a pod that the webhook isn't asked about."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    publish_nic(kubectl, node_with_cards(kubectl, space, "nic", 1))
    sly = pod(space, "sly")
    sly["spec"]["schedulerName"] = "hami-scheduler"
    kubectl.apply(*with_nic(sly))
    eventually(lambda: "claim allocation not found for node" in json.dumps(pods_of(kubectl, space)))
    kubectl.apply(pod(space, "usual", gpu=1, gpumem=500))
    eventually(lambda: bound(kubectl, space), 1)
    (placed,) = (each["metadata"]["name"] for each in pods_of(kubectl, space) if each["spec"].get("nodeName"))
    assert placed == "usual"


def publish_nic(kubectl: Kubectl, node: str) -> None:
    """A network card of a node, by a driver that isn't ours."""
    made = resource_slice(node, {"name": "nic0"}, driver="nic.example.com")
    kubectl.apply({"apiVersion": API, "kind": "ResourceSlice", **made})


def with_nic(made: JSON) -> tuple[JSON, JSON]:
    """A claim of a network card, and a pod with it."""
    meta = made["metadata"]
    made["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimName": meta["name"]}]
    made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "nic"}]
    requests = [{"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}]
    claim = {"apiVersion": API, "kind": "ResourceClaim", "metadata": meta, "spec": {"devices": {"requests": requests}}}
    return claim, made
