"""Whatever a node registers and a pod asks for: probes are answered, and others' pods are placed meanwhile.

The extender has an event loop of its own here, and is asked over sockets from other threads.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from builders import JSON, card, node, pod
from probes import Probes
from scheduling.extender_env import ExtenderEnv

from hami_webhook.devices.pod_preferences import GPU_POLICY
from hami_webhook.scheduling.extender import Extender
from hami_webhook.server.extender_app import MAX_BODY, ExtenderApp
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.listener import Listener
from hami_webhook.server.request_metrics import RequestMetrics, new_registry
from hami_webhook.time_slices import TimeSlices

PROBE_WITHIN = 5.0
"""Seconds; a second is promised, but this machine may have more to do. Without a bound it would be hours."""
TOPOLOGY = {GPU_POLICY: "topology-aware"}
LIMITS = ListenerLimits(max_request_bytes=MAX_BODY, shutdown_grace=0.2)


def hostile_node(name: str, cards: int) -> JSON:
    """Random scores of every pair, one way, which is read: those of 200 cards just fit into a node's annotations."""
    chance = random.Random(name)
    uuids = [f"{number:x}" for number in range(cards)]
    scores = {x: {y: chance.randrange(1860) for y in uuids[:at]} for at, x in enumerate(uuids)}
    return node(name, *(card(uuid, type="A") for uuid in uuids), scores=scores)


async def serve(extender: Extender) -> Listener:
    requests = RequestMetrics(new_registry(), "hami_webhook_extender", "extender request")
    listener = Listener(ExtenderApp(extender, LIMITS, requests).application(), host="127.0.0.1", port=0, limits=LIMITS)
    await listener.start()
    return listener


@contextmanager
def extender_on(*objects: JSON) -> Iterator[tuple[ExtenderEnv, int]]:
    """An extender that knows these objects, in a thread of its own, and its port."""
    ready: list[tuple[ExtenderEnv, int, Callable[[], object]]] = []
    started = threading.Event()

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        env = ExtenderEnv("cooperative", slices=TimeSlices)
        await env.add(*objects)
        listener = await serve(env.extender)
        ready.append((env, listener.port, lambda: loop.call_soon_threadsafe(stop.set)))
        started.set()
        await stop.wait()
        await listener.drain_and_stop()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert started.wait(60)
    env, port, stop = ready[0]
    try:
        yield env, port
    finally:
        stop()
        thread.join(20)


def post(port: int, path: str, body: JSON, within: float = 20) -> Any:
    return httpx.post(f"http://127.0.0.1:{port}{path}", content=json.dumps(body), timeout=within).json()


def placed(env: ExtenderEnv, port: int, name: str, nodes: list[str]) -> str:
    """Filter and bind a pod as kube-scheduler does; the error of either."""
    raw = env.raw(name)
    answer = post(port, "/filter", {"Pod": raw, "Nodes": None, "NodeNames": nodes})
    if not answer["NodeNames"]:
        return str(answer)
    meta = raw["metadata"]
    names = {"PodName": name, "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
    return str(post(port, "/bind", {**names, "Node": answer["NodeNames"][0]})["Error"])


@pytest.mark.parametrize(("cards", "asked"), [(48, 24), (200, 100)])
def test_a_node_and_a_pod_that_mean_harm_stop_nobody_else(cards: int, asked: int) -> None:
    hostile = [hostile_node(f"hostile-{number}", cards) for number in range(3)]
    usual = [node(f"usual-{number}", card(f"GPU-{number}")) for number in range(8)]
    harm = [pod(f"harm-{number}", gpu=asked, mem=1000 + number, annotations=TOPOLOGY) for number in range(10)]
    others = [pod(f"other-{number}", gpu=1, mem=1000) for number in range(8)]
    names = [each["metadata"]["name"] for each in hostile]
    with (
        extender_on(*hostile, *usual, *harm, *others) as (env, port),
        ThreadPoolExecutor(10) as threads,
        Probes(port, PROBE_WITHIN) as probes,
    ):
        bodies = [{"Pod": env.raw(each["metadata"]["name"]), "NodeNames": names} for each in harm]
        filters = [threads.submit(post, port, "/filter", body) for body in bodies]
        errors = [placed(env, port, f"other-{number}", [f"usual-{number}"]) for number in range(8)]
        answers = [each.result() for each in filters]
    assert errors == [""] * len(others)
    assert [sorted(each["NodeNames"] or ()) for each in answers] == [names] * len(harm)
    assert max(probes.seconds) < PROBE_WITHIN
