"""Clusters of many nodes that answer a pod differently: 24 by hand, and as many copies of them as are asked for."""

from __future__ import annotations

from builders import bound_pod, card, node, pod, quota

from hami_webhook.cluster.api import JSON

WAITING = pod("waiting", gpu=1, mem=38000, annotations={"nvidia.com/use-gputype": "A100"})
"""It takes nearly all of an A100 with 40 GiB."""
SILENT: JSON = {"hami.io/node-handshake": "Requesting_2020-01-01 00:00:00"}
BROKEN: JSON = {"hami.io/node-nvidia-register": "["}
NO_CARDS_LEFT = {"nvidia.com/gpu": 0}


def mixed_nodes(copies: int = 1) -> list[JSON]:
    """Of each copy 24 nodes and the pods on them; of each name the copy's number is a part."""
    return [each for copy in range(copies) for each in _copy(f"{copy:03}")]


def _copy(name: str) -> list[JSON]:
    found = [node(f"cpu-{name}-{index}") for index in range(8)]
    found += [
        node(f"silent-{name}-{index}", card(f"S-{name}-{index}"), capacity=NO_CARDS_LEFT, **SILENT)
        for index in range(3)
    ]
    found.append(node(f"broken-{name}", **BROKEN))
    for index in range(4):
        t4s = (card(f"T-{name}-{index}-{number}", 16384, type="NVIDIA-Tesla T4") for number in range(4))
        found.append(node(f"t4-{name}-{index}", *t4s))
    for index in range(2):
        sick = (card(f"X-{name}-{index}-{number}", health=False) for number in range(8))
        found.append(node(f"sick-{name}-{index}", *sick))
    for index in range(6):
        where = f"a100-{name}-{index}"
        found.append(node(where, *(card(f"A-{name}-{index}-{number}") for number in range(8))))
        for number in range(8):
            memory = 20000 - 100 * (index + number)
            held = f"A-{name}-{index}-{number},NVIDIA,{memory},10:;"
            found.append(bound_pod(f"r-{name}-{index}-{number}", where, held, namespace="team-b"))
    return found


def quotas() -> list[JSON]:
    return [quota("q", gpu=4, mem=60000, used={"gpu": 1, "mem": 38000})]
