"""What test_made_up_kind.py runs on a copy in which RuntimeClasses are watched, as docs/architecture.md says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from builders import node

from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.informers import SharedInformers, watched_kinds
from hami_webhook.device_config import builtin_vendors
from hami_webhook.state.caches import Caches, Change, Subscriptions
from hami_webhook.state.cluster_cache import ClusterCache

CLASSES = next(kind for kind in Kind if kind.value == "runtimeclasses")


class Part:
    """Subscribes to one kind."""

    def __init__(self, kind: Kind, changed: Callable[[Change[Any]], None]) -> None:
        self._subscriptions = {kind: changed}

    def subscriptions(self) -> Subscriptions:
        return self._subscriptions


def class_with(handler: str) -> JSON:
    return {"metadata": {"name": "s"}, "handler": handler}


def fail(change: Change[Any]) -> None:
    raise OverflowError("a field out of range")


async def test_a_subscriber_hears_of_each_change_though_another_fails_and_nobody_else_does() -> None:
    classes: asyncio.Queue[Change[JSON]] = asyncio.Queue()
    nodes: asyncio.Queue[Change[Any]] = asyncio.Queue()
    cluster, vendors, failures = MemoryCluster(lambda: 0.0), builtin_vendors(), Counter[str]()
    caches = Caches(ClusterCache(vendors), lambda: 0.0)
    parts = [Part(CLASSES, fail), Part(CLASSES, classes.put_nowait), Part(Kind.NODES, nodes.put_nowait)]
    informers = SharedInformers(cluster, watched_kinds(vendors), clock=lambda: 0.0)
    running = asyncio.create_task(informers.run(caches, failures, parts))
    await informers.wait_synced()

    async with asyncio.timeout(60):  # a change that nobody is told of would be waited for without end
        await cluster.create(CLASSES, class_with("a"))
        made = await classes.get()
        assert (made.key.name, made.before) == ("s", None)
        assert made.after is not None
        assert made.after["handler"] == "a"
        await cluster.replace(CLASSES, class_with("b"))
        changed = await classes.get()
        assert changed.before == made.after
        assert changed.after is not None
        assert changed.after["handler"] == "b"
        await cluster.delete(CLASSES, "s")
        gone = await classes.get()
        assert (gone.before, gone.after) == (changed.after, None)

        await cluster.create(Kind.NODES, node("n1"))
        assert (await nodes.get()).key.name == "n1"
        assert (classes.empty(), nodes.empty()) == (True, True)
        assert failures == {"runtimeclasses informer": 3}
    running.cancel()
