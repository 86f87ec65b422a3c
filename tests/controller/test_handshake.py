"""The handshake with device plugins, on the embedded cluster."""

from __future__ import annotations

import asyncio
from datetime import UTC
from typing import Any

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.handshakes import Handshakes
from hami_webhook.core_options import Options
from hami_webhook.device_config import builtin_device_config, enabled_vendors

NOW = 1_767_225_600.0
CARD = '[{"id":"GPU-0","count":10,"devmem":8000,"devcore":100,"type":"NVIDIA A10","mode":"hami-core","health":true}]'
REGISTER, HANDSHAKE = "hami.io/node-nvidia-register", "hami.io/node-handshake"


def looked_at(allocatable: str, **annotations: str) -> tuple[int, dict[str, Any]]:
    """The number of requests of one pass, and the node's annotations after it."""

    async def run() -> tuple[int, dict[str, Any]]:
        cluster = MemoryCluster(lambda: NOW)
        core = Core(cluster, enabled_vendors(builtin_device_config().config), Options(zone=UTC), clock=lambda: NOW)
        amounts = {"nvidia.com/gpu": allocatable}
        made = {"metadata": {"name": "n", "annotations": annotations}, "status": {"allocatable": amounts}}
        core.caches.put(Kind.NODES, await cluster.create(Kind.NODES, made))
        requested = await Handshakes(cluster, core.view, core.failures).request_due()
        return requested, (await cluster.get(Kind.NODES, "n"))["metadata"].get("annotations") or {}

    return asyncio.run(run())


def test_a_plugin_that_registered_cards_and_offers_none_is_asked() -> None:
    requested, notes = looked_at("0", **{"hami.io/node-nvidia-register": CARD, "hami.io/node-handshake": "Reported x"})
    assert requested == 1
    assert notes[HANDSHAKE] == "Requesting_2026-01-01 00:00:00"


def test_a_question_stands_until_it_is_answered() -> None:
    question = "Requesting_2025-12-31 23:59:30"
    requested, notes = looked_at("0", **{"hami.io/node-nvidia-register": CARD, "hami.io/node-handshake": question})
    assert (requested, notes[HANDSHAKE]) == (0, question)


def test_nodes_without_cards_are_left_alone() -> None:
    assert looked_at("0") == (0, {})


def test_cards_that_kubelet_offers_need_no_answer() -> None:
    requested, notes = looked_at("10", **{"hami.io/node-nvidia-register": CARD})
    assert (requested, HANDSHAKE in notes) == (0, False)
