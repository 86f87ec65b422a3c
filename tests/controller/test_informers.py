"""One stream of changes: each cached kind, to those who subscribed to it (docs/architecture.md)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from builders import accelerator_quota, node, pod, quota
from dra.objects import HAMI, resource_slice, share
from quota.objects import claiming_vendors, vendors
from quota.quota_env import QuotaEnv

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import JSON, Kind, Listing, NotFound
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.informers import OF_CLAIMS, SharedInformers, watched_kinds
from hami_webhook.core_options import Options
from hami_webhook.state.caches import Change, Subscriptions

POD = pod("p", namespace="team-a", uid="u", gpu=1, mem=1000)
CLAIM: JSON = {"metadata": {"name": "c", "namespace": "team-a", "uid": "v"}}
OBJECTS: dict[Kind, tuple[JSON, JSON]] = {
    Kind.NODES: (node("n1"), node("n1", labels={"a": "b"})),
    Kind.PODS: (POD, {**POD, "spec": {**POD["spec"], "nodeName": "n1"}}),
    Kind.NAMESPACES: ({"metadata": {"name": "x"}}, {"metadata": {"name": "x", "labels": {"a": "b"}}}),
    Kind.RESOURCE_QUOTAS: (quota("q", namespace="team-a", mem=1), quota("q", namespace="team-a", mem=2)),
    Kind.ACCELERATOR_QUOTAS: (accelerator_quota("q", mem=1), accelerator_quota("q", mem=2)),
    Kind.DEVICES: ({"metadata": {"name": "n1"}}, {"metadata": {"name": "n1"}, "spec": {"devices": []}}),
    Kind.POD_DISRUPTION_BUDGETS: (
        {"metadata": {"name": "b", "namespace": "team-a"}, "spec": {"selector": {}}},
        {"metadata": {"name": "b", "namespace": "team-a"}, "spec": {"selector": {"matchLabels": {"a": "b"}}}},
    ),
    Kind.RESOURCE_CLAIMS: (CLAIM, {**CLAIM, "status": {"allocation": {}}}),
    Kind.RESOURCE_CLAIM_TEMPLATES: (CLAIM, {**CLAIM, "spec": {"spec": {"devices": {}}}}),
    Kind.RESOURCE_SLICES: (resource_slice("n1", share("a"), name="s"), resource_slice("n1", share("b"), name="s")),
    Kind.DEVICE_CLASSES: (
        {"metadata": {"name": HAMI}},
        {"metadata": {"name": HAMI}, "spec": {"extendedResourceName": "example.com/card"}},
    ),
}


class Notified:
    """Remembers the changes of some kinds."""

    def __init__(self, *kinds: Kind, then: Callable[[], None] = lambda: None) -> None:
        self.kinds = kinds
        self.then = then
        self.changes: list[Change[Any]] = []

    def subscriptions(self) -> Subscriptions:
        return dict.fromkeys(self.kinds, self._told)

    def _told(self, change: Change[Any]) -> None:
        self.changes.append(change)
        self.then()


@pytest.mark.parametrize("kind", OBJECTS, ids=lambda kind: kind.value)
async def test_a_change_is_an_object_as_it_was_and_as_it_is(kind: Kind) -> None:
    async with QuotaEnv(of=claiming_vendors()) as env:
        caches, (first, second) = env.core.caches, OBJECTS[kind]
        made, changed, gone = caches.put(kind, first), caches.put(kind, second), caches.drop(kind, second)
        assert made.key.name == first["metadata"]["name"]
        assert made.before is None
        assert made.after is not None
        assert (changed.before, changed.after is None) == (made.after, False)
        assert changed.after != changed.before
        assert (gone.before, gone.after) == (changed.after, None)


def test_every_kind_that_is_watched_has_a_row() -> None:
    async def watched() -> set[Kind]:
        async with QuotaEnv(of=claiming_vendors()) as env:
            return set(watched_kinds(env.vendors, disruption_budgets=True))

    assert asyncio.run(watched()) == OBJECTS.keys()


def test_claims_are_watched_where_they_are_charged() -> None:
    assert tuple(kind for kind in Kind if kind.api_version == "resource.k8s.io/v1") == OF_CLAIMS
    assert set(OF_CLAIMS).intersection(watched_kinds(vendors())) == {Kind.DEVICE_CLASSES}
    assert set(OF_CLAIMS).isdisjoint(watched_kinds(vendors(), charges=False))
    assert set(OF_CLAIMS) <= set(watched_kinds(claiming_vendors()))
    of_fit = set(OF_CLAIMS).intersection(watched_kinds(claiming_vendors(), charges=False))
    assert of_fit == {Kind.RESOURCE_CLAIMS, Kind.RESOURCE_SLICES}


async def test_slices_of_other_drivers_are_not_kept() -> None:
    async with QuotaEnv(of=claiming_vendors()) as env:
        env.core.caches.put(Kind.RESOURCE_SLICES, resource_slice("n1", share("a"), name="s"))
        assert list(env.core.caches.claims.slices) == ["s"]
        env.core.caches.put(Kind.RESOURCE_SLICES, resource_slice("n1", share("a"), name="s", driver="net.example.com"))
        assert env.core.caches.claims.slices == {}
        assert env.core.caches.claims.inventory.devices.all == ()


async def test_subscribers_hear_of_their_kinds_in_order_and_one_that_fails_keeps_no_other_from_it() -> None:
    async with QuotaEnv() as env:
        heard: list[str] = []

        def fail() -> None:
            heard.append("failing")
            raise OverflowError("date value out of range")

        failing = Notified(Kind.RESOURCE_QUOTAS, then=fail)
        good, other = Notified(Kind.RESOURCE_QUOTAS, then=lambda: heard.append("good")), Notified(Kind.NODES)
        feed = SharedInformers(env.cluster, watched_kinds(env.vendors), clock=lambda: env.now)
        running = asyncio.create_task(feed.run(env.core.caches, env.core.failures, [failing, good, other]))
        await feed.wait_synced()
        heard.clear()
        good.changes.clear()
        await env.add(quota("q", mem=1))
        await env.drain()
        running.cancel()
        assert heard == ["failing", "good"]
        assert [change.key.name for change in good.changes] == ["q"]
        assert other.changes == []
        assert env.core.failures == {"resourcequotas informer": 1}


class WithoutClaims(MemoryCluster):
    """A cluster that is too old for claims."""

    async def list(self, kind: Kind, namespace: str = "", *, node: str = "") -> Listing:
        if kind in OF_CLAIMS:
            raise NotFound("the server could not find the requested resource")
        return await super().list(kind, namespace, node=node)


async def test_where_the_api_of_claims_is_not_served_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    looked_again = asyncio.Event()

    async def sleep(seconds: float) -> None:
        looked_again.set()
        await asyncio.Event().wait()

    cluster = WithoutClaims(lambda: 0.0)
    feed = SharedInformers(cluster, OF_CLAIMS, clock=lambda: 0.0, sleep=sleep)
    core = Core(cluster, claiming_vendors(), Options(), clock=lambda: 0.0, watches=feed)
    running = asyncio.create_task(feed.run(core.caches, Counter()))
    await feed.wait_synced()
    await looked_again.wait()
    running.cancel()
    lines = [record.getMessage() for record in caplog.records if "doing without" in record.getMessage()]
    assert [line.partition(",")[0] for line in lines] == ["doing without resourceclaims.resource.k8s.io"]
