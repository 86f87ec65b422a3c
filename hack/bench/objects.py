"""Nodes, pods and reviews as the API has them, for the benchmarks: one kind of card, and nothing unusual."""

from __future__ import annotations

import json
from typing import Any

JSON = dict[str, Any]

CARDS = 8
CARD_MEMORY = 40960
SCHEDULER = "hami-scheduler"
NAMESPACE = "bench"
HARD = {"limits.nvidia.com/gpu": 10**6, "limits.nvidia.com/gpumem": 10**9}
"""Of a quota that never is full."""


def node(number: int) -> JSON:
    cards = [
        {"id": f"GPU-{number}-{i}", "index": i, "count": 10, "devmem": CARD_MEMORY, "devcore": 100,
         "type": "NVIDIA A100", "numa": i // 4, "mode": "hami-core", "health": True}
        for i in range(CARDS)
    ]  # fmt: skip
    notes = {
        "hami.io/node-nvidia-register": json.dumps(cards),
        "hami.io/node-nvidia-score": json.dumps(_scores(number)),
        "hami.io/node-handshake": "Requesting_2099-01-01 00:00:00",
    }
    return {
        "metadata": {"name": node_name(number), "annotations": notes},
        "status": {"allocatable": {"nvidia.com/gpu": str(10 * CARDS)}},
    }


def _scores(number: int) -> list[JSON]:
    """Pair scores: nodes of even number have an NVSwitch, the cards of the others are linked in two groups of four."""

    def score(x: int, y: int) -> int:
        return 1210 if number % 2 == 0 else 450 if x // 4 == y // 4 else 10

    uuids = [f"GPU-{number}-{i}" for i in range(CARDS)]
    return [
        {"uuid": uuid, "score": {peer: score(x, y) for y, peer in enumerate(uuids) if y != x}}
        for x, uuid in enumerate(uuids)
    ]


def node_name(number: int) -> str:
    return f"node-{number}"


def gpu(memory: int = 2000, **more: str) -> JSON:
    """The limits of a plain GPU request: one card, so much of its memory."""
    return {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory), **more}


def pod_with(name: str, limits: JSON, namespace: str = NAMESPACE, annotations: JSON | None = None) -> JSON:
    """A new pod."""
    container = {"name": "main", "image": "registry.invalid/train:1", "resources": {"limits": limits}}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app": "train"},
            "annotations": dict(annotations or {}),
        },
        "spec": {"containers": [container]},
    }


def running(number: int, on: int, card: int, memory: int = 2000, cores: int = 10, namespace: str = NAMESPACE) -> JSON:
    """A pod that runs on a card, with as much beside it as pods have."""
    allocated = f"GPU-{on}-{card},NVIDIA,{memory},{cores}:;"
    notes = {
        "hami.io/vgpu-node": node_name(on),
        "hami.io/vgpu-time": "1767225600",
        "hami.io/vgpu-devices-allocated": allocated,
    }
    env = [{"name": f"SETTING_{i}", "value": "x" * 40} for i in range(20)]
    limits = gpu(memory, **{"nvidia.com/gpucores": str(cores)})
    container = {"name": "main", "image": "registry.invalid/train:1", "env": env, "resources": {"limits": limits}}
    return {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": namespace,
            "labels": {"app": f"app-{number % 50}"},
            "annotations": notes,
        },
        "spec": {"schedulerName": SCHEDULER, "nodeName": node_name(on), "containers": [container]},
    }


def quota(name: str, hard: JSON, namespace: str = NAMESPACE) -> JSON:
    amounts = {key: str(amount) for key, amount in hard.items()}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"hard": amounts}}


def review(pod: JSON, operation: str = "CREATE") -> bytes:
    return review_of(pod, {"group": "", "version": "v1", "kind": "Pod"}, "pods", operation=operation)


def review_of(obj: JSON, kind: JSON, resource: str, **more: Any) -> bytes:
    """The review of an object of any kind; `more` are fields of its request."""
    request = {
        "uid": "6c1f6e1a-3b0c-4b0f-9f57-0d6b3f6a1c11",
        "kind": kind,
        "resource": {"group": kind["group"], "version": kind["version"], "resource": resource},
        "namespace": obj["metadata"]["namespace"],
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        "object": obj,
        "dryRun": False,
        **more,
    }
    whole = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(whole).encode()


async def ask(serve: Any, path: str, body: bytes) -> JSON:
    """The response of an application to a review."""
    scope: JSON = {
        "type": "http",
        "client": ("127.0.0.1", 1),
        "method": "POST",
        "path": path,
        "query_string": b"timeout=10s",
        "headers": [(b"content-type", b"application/json")],
    }
    sent: list[Any] = []

    async def receive() -> JSON:
        return {"type": "http.request", "body": body}

    async def send(part: Any) -> None:
        sent.append(part)

    await serve(scope, receive, send)
    response: JSON = json.loads(sent[-1]["body"])["response"]
    return response
