"""What explaining a pod that fits nowhere asks of the nodes: of equal ones a single one, and nothing of vendors that a
node doesn't name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hack.bench.objects import JSON, NAMESPACE, SCHEDULER, gpu, node, node_name, pod_with, quota, running
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.loading import Bundle
from hami_webhook.doctor.installation import assumed
from hami_webhook.explain import node_reports
from hami_webhook.explain.read import Explainer, loaded
from hami_webhook.explain.tables import NEAREST
from hami_webhook.state.node_entry import NodeEntry

NOW = 1767225600.0
WITH_CARDS = 16
"""Of 24 nodes."""


def objects(copies: int) -> Mapping[str, list[JSON]]:
    """Lists by their path: of 24 nodes 8 have no cards, 4 sick ones, 4 another model, and on 8 the pod has no room."""
    nodes: list[JSON] = []
    pods: list[JSON] = []
    for number in range(24 * copies):
        kind = number % 24
        made = node(number)
        if kind < 8:
            made["metadata"]["annotations"], made["status"]["allocatable"] = {}, {}
        elif kind < 16:
            notes = made["metadata"]["annotations"]
            cards = json.loads(notes["hami.io/node-nvidia-register"])
            cards = [{**card, "health": False} if kind < 12 else {**card, "type": "NVIDIA T4"} for card in cards]
            notes["hami.io/node-nvidia-register"] = json.dumps(cards)
        else:
            pods += [running(len(pods) + card, number, card, 20_000 - 100 * kind) for card in range(8)]
        made["metadata"]["labels"] = {"kubernetes.io/hostname": node_name(number)}
        made["status"]["allocatable"]["pods"] = "110"
        nodes.append(made)
    waiting = pod_with("waiting", gpu(38_000), annotations={"nvidia.com/use-gputype": "A100"})
    waiting["spec"]["schedulerName"] = SCHEDULER
    pods.append(waiting)
    for pod in pods:
        pod["metadata"]["uid"] = f"uid-{pod['metadata']['name']}"
    gpus = quota("gpu", {"limits.nvidia.com/gpu": 10**6})
    gpus["status"] = {"hard": gpus["spec"]["hard"], "used": {"limits.nvidia.com/gpu": "1"}}
    lists = {"nodes": nodes, "pods": pods, "resourcequotas": [gpus], "namespaces": [{"metadata": {"name": NAMESPACE}}]}
    return {f"/api/v1/{name}": items for name, items in lists.items()}


async def asked_of(copies: int, patch: pytest.MonkeyPatch) -> Counter[str]:
    """How often nodes are tested, and vendors' cards read, with so many copies of 24 nodes."""
    calls: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        called: Callable[..., Any] = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            calls[name] += 1
            return called(*arguments)

        patch.setattr(owner, name, counted)

    count(node_reports, "fit_and_score")
    count(NodeEntry, "_read_vendor")
    lists, effective = objects(copies), assumed("hami-system")
    bundle = Bundle(
        nodes=loaded(Kind.NODES, lists["/api/v1/nodes"]),
        pods=loaded(Kind.PODS, lists["/api/v1/pods"]),
        namespaces=loaded(Kind.NAMESPACES, lists["/api/v1/namespaces"]),
    )
    simulation = await effective.simulation(bundle, NOW)
    found = Explainer(simulation, effective.options.policies, "", NOW).of_known(NAMESPACE, "waiting", NEAREST)
    assert len(found.nodes) == 24 * copies
    patch.undo()
    return calls


async def test_nodes_that_are_equal_are_tested_once_and_read_for_the_vendors_that_they_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once, thrice = await asked_of(1, monkeypatch), await asked_of(3, monkeypatch)
    assert once["fit_and_score"] == thrice["fit_and_score"] < 24
    assert (once["_read_vendor"], thrice["_read_vendor"]) == (WITH_CARDS, 3 * WITH_CARDS)
