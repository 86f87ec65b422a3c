"""Several quotas in one namespace, each of some cards, against the real API server."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from .deployment import Deployment, eventually
from .objects import GPU, add_node, namespace, pod, quota
from .scheduling import place_waiting, scheduler_account

JSON = dict[str, Any]
TYPES, SELECTOR = "hami.io/quota-device-types", "hami.io/quota-node-selector"
CARDS = {"h100": ("NVIDIA H100 80GB HBM3", 81559), "a10": ("NVIDIA A10", 23028)}


def node_of(name: str, kind: str, count: int, pool: str) -> JSON:
    model, memory = CARDS[kind]
    cards = [
        {"id": f"{name}-{i}", "index": i, "count": 10, "devmem": memory, "devcore": 100, "type": f"NVIDIA-{model}",
         "mode": "hami-core", "health": True}
        for i in range(count)
    ]  # fmt: skip
    meta = {"name": name, "labels": {"pool": pool}, "annotations": {"hami.io/node-nvidia-register": json.dumps(cards)}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta}


@pytest.fixture(scope="module")
def program(two_replicas: Deployment) -> Deployment:
    scheduler_account(two_replicas.kubectl)
    nodes = {"some-h": node_of("some-h", "h100", 6, "train"), "some-a": node_of("some-a", "a10", 30, "serve")}
    for name, node in nodes.items():
        add_node(two_replicas.kubectl, node, gpu=60 if name == "some-h" else 300)
    return two_replicas


def counting(space: str, name: str, annotations: dict[str, str], **hard: int) -> JSON:
    made = quota(space, name, **hard)
    made["metadata"]["annotations"] = annotations
    return made


def of_type(space: str, name: str, model: str = "", **asked: int) -> JSON:
    made = pod(space, name, **asked)
    made["metadata"]["annotations"] = {"nvidia.com/use-gputype": model} if model else {}
    return made


def test_four_h100_twenty_a10_and_200_gib_hold_at_once(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(
        counting(space, "h100", {TYPES: "H100"}, gpu=4),
        counting(space, "a10", {TYPES: "A10"}, gpu=20),
        counting(space, "memory", {}, mem=204800),
    )
    # those that take H100 only are refused at admission from the fifth on
    for number in range(3):
        kubectl.apply(of_type(space, f"h{number}", "H100", gpu=1, gpumem=8000))
    anywhere = [of_type(space, f"p{number:02}", gpu=1, gpumem=8000) for number in range(22)]
    kubectl.apply(*anywhere)
    eventually(lambda: [kubectl.used(space, name) for name in ("h100", "a10")], [{"gpu": "3"}, {"gpu": "0"}])
    refused = kubectl.refused(of_type(space, "more", gpu=1, gpumem=8000))
    assert (
        "exceeded quota: memory, requested: limits.nvidia.com/gpumem=8000, used: limits.nvidia.com/gpumem=200000"
        in (refused)
    )
    went = Counter(place_waiting(program.login("hami-scheduler"), space, ["some-h", "some-a"]).values())
    assert went["some-h"] <= 4
    assert went["some-a"] <= 20
    assert went[""] == 25 - went["some-h"] - went["some-a"]
    eventually(lambda: kubectl.used(space, "h100"), {"gpu": str(went["some-h"])})
    eventually(lambda: kubectl.used(space, "a10"), {"gpu": str(went["some-a"])})
    assert went == {"some-h": 4, "some-a": 20, "": 1}
    events = ("events", "-n", space)
    eventually(lambda: any("ResourceQuotaNotFit" in item["message"] for item in kubectl.get(*events)["items"]))
    refused = kubectl.refused(of_type(space, "more", "H100", gpu=1, gpumem=1))
    assert f"exceeded quota: h100, requested: {GPU}=1, used: {GPU}=4, limited: {GPU}=4" in refused


def test_a_pool_is_counted_by_the_labels_of_its_nodes_as_they_are(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(counting(space, "gpu-quota", {SELECTOR: "pool=train"}, gpu=1))
    kubectl.apply(of_type(space, "p", gpu=1, gpumem=1000))
    assert place_waiting(program.login("hami-scheduler"), space, ["some-a"]) == {"p": "some-a"}
    eventually(lambda: kubectl.used(space), {"gpu": "0"})
    kubectl("label", "node", "some-a", "--overwrite", "pool=train")
    try:
        eventually(lambda: kubectl.used(space), {"gpu": "1"})
        assert f"requested: {GPU}=1, used: {GPU}=1" in kubectl.refused(of_type(space, "q", gpu=1, gpumem=1000))
    finally:
        kubectl("label", "node", "some-a", "--overwrite", "pool=serve")
    eventually(lambda: kubectl.used(space), {"gpu": "0"})
    kubectl("annotate", "quota", "gpu-quota", "-n", space, "--overwrite", f"{SELECTOR}=pool=serve")
    eventually(lambda: kubectl.used(space), {"gpu": "1"})
