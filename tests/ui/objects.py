"""What the browsers' tests look at: a cluster with HTML wherever the API allows it."""

from __future__ import annotations

import itertools
import time
from urllib.parse import quote

from builders import card, container, node
from kubectl.test_verbs import HELD, SPACES, placed, with_uid
from simulate.files import GPU, JSON, MEM, pod, quota

from hack.devcluster.boards import MODELS, find

HTML = "<img src=x onerror=alert(1)><script>alert(2)</script>"
GROUPS = (("GPU-1", "GPU-2"), ("GPU-3", "GPU-4"))
"""The cards of node n1 that NVLink joins."""
WAITING = f"waiting{HTML}"
POD = f"/pods/team-a/{quote(WAITING, safe='')}"
CARDS = "/cards/n1/GPU-1", f"/cards/{quote(f'spoilt{HTML}', safe='')}/{quote(f'GPU{HTML}', safe='')}"
PATHS = ("/overview", "/cluster", *CARDS, "/teams", "/teams/team-a", "/pods", POD, "/what-if", "/doctor")
UPDATED = 60_000
"""Milliseconds after which a change that was read surely is on the page, however busy the machine is."""


def objects() -> list[JSON]:
    """A node of four cards, one that has none, and one full of HTML; in team-a a placed pod and one that waits."""
    cards = [card(uuid, health=uuid != "GPU-2", index=index) for index, uuid in enumerate(sum(GROUPS, ()))]
    scores = {
        uuid: {peer: 200 if {uuid, peer} <= {*group} else 10 for peer in sum(GROUPS, ()) if peer != uuid}
        for group in GROUPS
        for uuid in group
    }
    spoilt = node(f"spoilt{HTML}", card(f"GPU{HTML}", type=f"Model{HTML}"), labels={f"label{HTML}": HTML})
    spoilt["metadata"]["annotations"] |= {HTML: HTML, "hami.io/mutex.lock": HTML}
    noted = pod(
        WAITING, container(f"main{HTML}", gpu=1, mem=30000), annotations={HTML: HTML}, schedulerName="hami-scheduler"
    )
    noted["metadata"]["labels"] = {HTML: HTML}
    noted["spec"]["containers"][0]["image"] = HTML
    unscheduled = {"type": "PodScheduled", "status": "False", "message": f"0/3 nodes are available: {HTML}"}
    noted["status"] = {"conditions": [unscheduled]}
    placement = {**HELD, "hami.io/vgpu-node": spoilt["metadata"]["name"]}
    placement["hami.io/vgpu-devices-allocated"] = f"GPU{HTML},NVIDIA,1000,10:;"
    held = pod("held", gpu=1, mem=1000, annotations=placement, nodeName=spoilt["metadata"]["name"])
    return [
        node("n1", *cards, scores=scores, labels={"pool": "training"}),
        node("cpu"),
        spoilt,
        placed("busy"),
        placed("other", "team-b", memory=4000),
        with_uid(noted),
        with_uid(held),
        quota(gpu="4", mem="60000", used={GPU: "2", MEM: "50000", "pods": "3"}, pods="10"),
        quota(f"quota{HTML}", gpu="1", namespace="team-b", used={GPU: "1"}),
        *SPACES,
    ]


def mixed_fleet() -> list[JSON]:
    """24 nodes with the cards of every vendor, as their device plugins register them."""
    nodes = []
    for index, vendor in zip(range(24), itertools.cycle(MODELS), strict=False):
        board = find(vendor, None, None)
        offer = board.offer(name := f"{board.vendor}-{index}")
        made = node(name, labels=offer.labels, capacity=offer.capacity)
        made["metadata"]["annotations"] = offer.annotations
        made["spec"] = {"unschedulable": index % 8 == 7}
        nodes.append(made)
    return [*nodes, *SPACES]


def large_fleet() -> list[JSON]:
    """1,000 nodes with 8 cards each."""
    nodes = [node(f"n{x}", *(card(f"G{x}-{y}", type=f"M{x % 5}") for y in range(8))) for x in range(1000)]
    return [*nodes, *SPACES]


def hostile_results(query: str) -> list[JSON]:
    """What a Prometheus server says that has HTML in all labels, and names without spaces: alerts, use, an hour."""
    now, long = time.time(), "x" * 253
    cards = [("n1", "GPU-1", "NVIDIA A100-SXM4-40GB"), (f"spoilt{HTML}", f"GPU{HTML}", f"Model{HTML}")]
    if query.startswith("ALERTS"):
        names = (("HamiQuotaNearlyFull", "info"), (f"Hami{HTML}", HTML), (f"Hami{long}", long))
        return [
            {"metric": {"alertname": name, "severity": severity, HTML: HTML, long: long}, "value": [now, "1"]}
            for name, severity in names
        ]
    if query.startswith("{__name__"):
        figures = {"memory_used_bytes": 10 << 30, "utilization_ratio": 35, "temperature_celsius": 61}
        return [
            {
                "metric": {
                    "__name__": f"hami_host_gpu_{name}", "node": node, "device_uuid": uuid, "device_type": model
                },
                "value": [now, str(value)],
            }
            for name, value in figures.items()
            for node, uuid, model in cards
        ]  # fmt: skip
    points = [[now - 60 + 30 * number, str(1000 * number)] for number in range(3)]
    labels: dict[str, list[JSON]] = {
        "card_memory_allocated": [{"model": model} for _, _, model in cards],
        "memory_used_bytes) / 2^20": [{"device_type": model} for _, _, model in cards],
        "refusals": [{"reason": HTML}, {"reason": long}],
        "quota_used": [{"namespace": "team-a", "quota": "quota", "key": GPU}],
    }
    of: list[JSON] = next((found for text, found in labels.items() if text in query), [{}])
    return [{"metric": each, "values": points} for each in of]
