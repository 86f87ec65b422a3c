"""The pages' objects as watches show them: always what a list would show, until one can't be watched."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from builders import card, node
from simulate.files import START

from hami_webhook.cluster.api import ClusterError, Forbidden, Kind, Listing, NotFound, Unavailable, WatchEvent
from hami_webhook.cluster.connect import ContextNames
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.doctor.installation import assumed
from hami_webhook.kubectl.live import LiveCluster, read_with
from hami_webhook.kubectl.ui.readings import Contents, Readings
from hami_webhook.kubectl.watched import WatchedObjects
from hami_webhook.simulate.simulation import Simulation

from .installation import claim
from .test_verbs import cluster, placed

EFFECTIVE = assumed("hami-system")
KINDS = {"Pod": Kind.PODS, "Node": Kind.NODES, "Namespace": Kind.NAMESPACES, "ResourceQuota": Kind.RESOURCE_QUOTAS}


async def served() -> MemoryCluster:
    api = MemoryCluster(lambda: START)
    for each in sorted(cluster(), key=lambda each: each["kind"] != "Namespace"):
        if each["kind"] in KINDS:
            await api.create(KINDS[each["kind"]], each)
    return api


class Restricted:
    """An API server that refuses to list or to watch a kind from some time on."""

    def __init__(self, api: MemoryCluster, error: ClusterError, kind: Kind, *, lists: bool = False) -> None:
        self._api = api
        self._error = error
        self._kind = kind
        self._lists = lists
        self.refuses = asyncio.Event()

    async def list(self, kind: Kind, namespace: str = "", *, node: str = "") -> Listing:
        if kind is self._kind and self._lists:
            raise self._error
        return await self._api.list(kind, namespace, node=node)

    async def watch(self, kind: Kind, resource_version: str, *, node: str = "") -> AsyncIterator[WatchEvent]:
        if kind is self._kind:
            await self.refuses.wait()
            raise self._error
        async for event in self._api.watch(kind, resource_version, node=node):
            yield event


def simulation() -> Simulation:
    return Simulation(EFFECTIVE.vendors, EFFECTIVE.options, EFFECTIVE.policies, START)


def seen(found: Simulation) -> LiveCluster:
    return LiveCluster(found, EFFECTIVE, "team-a", START, {}, found.warnings())


@asynccontextmanager
async def watching(api: MemoryCluster | Restricted, into: Simulation) -> AsyncIterator[AsyncGenerator[None, None]]:
    async with asyncio.timeout(60), aclosing(WatchedObjects(api, into).changes(60)) as changes:
        yield changes


async def change(api: MemoryCluster, choice: random.Random, number: int) -> None:
    """One change, of a pod or a node."""
    pods, nodes = api.peek_all(Kind.PODS), api.peek_all(Kind.NODES)
    match choice.randrange(5):
        case 0:
            await api.create(Kind.PODS, placed(f"new-{number}"))
        case 1 if pods:
            meta = choice.choice(pods)["metadata"]
            await api.delete(Kind.PODS, meta["name"], meta["namespace"])
        case 2:
            await api.create(Kind.NODES, node(f"new-{number}", card(f"GPU-new-{number}")))
        case 3 if nodes:
            name = choice.choice(nodes)["metadata"]["name"]
            await api.patch(Kind.NODES, name, {"spec": {"unschedulable": choice.random() < 0.5}})
        case _ if nodes:
            await api.delete(Kind.NODES, choice.choice(nodes)["metadata"]["name"])


@pytest.mark.parametrize("seed", range(5))
async def test_what_watches_show_is_what_lists_show(seed: int) -> None:
    api, watched, choice = await served(), simulation(), random.Random(seed)
    async with watching(api, watched) as changes:
        await anext(changes)
        for number in range(12):
            await change(api, choice, number)
            if number % 4 == 3:
                await anext(changes)
                listed = await read_with(api, EFFECTIVE, "team-a", START)
                found = seen(watched)
                assert Contents.of(found) == Contents.of(listed)
                for pod in found.pods():
                    explained = (each.explain(pod.namespace, pod.name) for each in (found, listed))
                    assert next(explained) == next(explained)


@pytest.mark.parametrize("error", [Forbidden("no"), Unavailable("gone")])
async def test_a_watch_that_fails_ends_it(error: ClusterError) -> None:
    api = Restricted(await served(), error, Kind.NODES)
    async with watching(api, simulation()) as changes:
        await anext(changes)
        api.refuses.set()
        assert [each async for each in changes] == []


async def test_a_list_that_fails_ends_it_unless_the_cluster_may_lack_the_kind() -> None:
    api = await served()
    async with watching(Restricted(api, Forbidden("no"), Kind.PODS, lists=True), simulation()) as changes:
        assert [each async for each in changes] == []
    async with watching(Restricted(api, NotFound("none"), Kind.DEVICES, lists=True), simulation()) as changes:
        await anext(changes)


async def test_what_can_not_be_watched_is_read_again_and_again() -> None:
    api = await served()
    forbidden, reads = Restricted(api, Forbidden("no"), Kind.NODES), 0
    forbidden.refuses.set()

    async def reading() -> LiveCluster:
        nonlocal reads
        reads += 1
        return await read_with(api, EFFECTIVE, "team-a", START)

    async def follow(before: LiveCluster) -> AsyncGenerator[LiveCluster, None]:
        found = simulation()
        async with watching(forbidden, found) as changes:
            async for _ in changes:
                yield seen(found)

    readings = Readings(reading, await reading(), ContextNames("team-a"), follow=follow)
    task = asyncio.create_task(readings.keep_reading())
    version = readings.version
    await api.create(Kind.PODS, placed("newcomer"))
    while not any(pod.name == "newcomer" for pod in readings.contents.pods):
        version = await readings.change(version)
    assert (reads > 1, readings.stale) == (True, "")
    task.cancel()


async def test_claims_are_followed_where_they_are_charged() -> None:
    api, found = await served(), simulation()
    async with asyncio.timeout(60), aclosing(WatchedObjects(api, found, claims=True).changes(60)) as changes:
        await anext(changes)
        await api.create(Kind.RESOURCE_CLAIMS, claim("cards", "10Gi"))
        await anext(changes)
        assert list(found.core.caches.claims.claims) == [("team-a", "cards")]
        await api.delete(Kind.RESOURCE_CLAIMS, "cards", "team-a")
        await anext(changes)
        assert not found.core.caches.claims.claims
