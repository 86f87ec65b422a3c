"""Quotas whose status is kept in this process: the contract on the embedded cluster, and what only it shows."""

from __future__ import annotations

import asyncio

import pytest

from hami_webhook.cluster.api import JSON, Conflict, Kind, WatchType
from hami_webhook.cluster.quotas_in_memory import QuotasInMemory

from .contract import CASES, Case
from .harness import GPU, MEM, quota
from .test_memory import MemoryHarness


class InMemoryHarness(MemoryHarness):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = QuotasInMemory(self.memory)


OF_THE_API_SERVER = {
    "annotations_beyond_256_kib_are_refused",
    "amounts_come_back_canonical",
    "illegal_amounts_are_refused",
    "a_patch_that_changes_nothing_keeps_the_version",  # it writes one amount in two spellings
}
"""What the API server makes of a text that reaches it; here nothing does, and who writes counts entries himself."""

KEPT = [case for case in CASES if case.__name__ not in OF_THE_API_SERVER]


@pytest.mark.parametrize("case", KEPT, ids=lambda case: case.__name__)
async def test_contract(case: Case) -> None:
    await case(InMemoryHarness())


@pytest.fixture
def harness() -> InMemoryHarness:
    return InMemoryHarness()


@pytest.fixture
def namespace(harness: InMemoryHarness) -> str:
    """A namespace with a quota."""

    async def made() -> str:
        name = await harness.namespace()
        await harness.create(Kind.RESOURCE_QUOTAS, quota(name))
        return name

    return asyncio.run(made())


async def charge(harness: InMemoryHarness, namespace: str, used: str) -> JSON:
    found = await harness.cluster.get(Kind.RESOURCE_QUOTAS, "q", namespace)
    version = found["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version, "annotations": {"ledger": used}}, "status": {"used": {MEM: used}}}
    return await harness.cluster.patch_status(Kind.RESOURCE_QUOTAS, "q", patch, namespace)


async def test_nothing_reaches_the_cluster_and_every_read_shows_it(harness: InMemoryHarness, namespace: str) -> None:
    before = harness.memory.peek(Kind.RESOURCE_QUOTAS, "q", namespace)
    written = await charge(harness, namespace, "700")
    assert harness.memory.peek(Kind.RESOURCE_QUOTAS, "q", namespace) == before
    assert written["status"]["used"] == {MEM: "700"}
    assert written["metadata"]["annotations"] == {"ledger": "700"}
    assert await harness.cluster.get(Kind.RESOURCE_QUOTAS, "q", namespace) == written
    assert (await harness.cluster.list(Kind.RESOURCE_QUOTAS)).items == [written]


async def test_what_others_change_is_seen_beside_it(harness: InMemoryHarness, namespace: str) -> None:
    await charge(harness, namespace, "700")
    raised = await harness.memory.replace(Kind.RESOURCE_QUOTAS, quota(namespace, {GPU: "9"}))
    found = await harness.cluster.get(Kind.RESOURCE_QUOTAS, "q", namespace)
    assert found["spec"]["hard"] == {GPU: "9"}
    assert found["status"]["used"][MEM] == "700"
    stale = {"metadata": {"resourceVersion": raised["metadata"]["resourceVersion"]}, "status": {"used": {MEM: "1"}}}
    with pytest.raises(Conflict):
        await harness.cluster.patch_status(Kind.RESOURCE_QUOTAS, "q", stale, namespace)


async def test_a_quota_made_anew_starts_with_nothing(harness: InMemoryHarness, namespace: str) -> None:
    await charge(harness, namespace, "700")
    await harness.delete(Kind.RESOURCE_QUOTAS, "q", namespace)
    await harness.create(Kind.RESOURCE_QUOTAS, quota(namespace))
    found = await harness.cluster.get(Kind.RESOURCE_QUOTAS, "q", namespace)
    assert MEM not in (found.get("status") or {}).get("used", {})
    assert (await charge(harness, namespace, "5"))["status"]["used"] == {MEM: "5"}


async def test_a_watch_tells_of_writes_before_and_after_it_began(harness: InMemoryHarness, namespace: str) -> None:
    version = (await harness.cluster.list(Kind.RESOURCE_QUOTAS)).resource_version
    await charge(harness, namespace, "1")
    watch = harness.cluster.watch(Kind.RESOURCE_QUOTAS, version)
    first = await anext(watch)
    await charge(harness, namespace, "2")
    second = await anext(watch)
    assert [event.object["status"]["used"][MEM] for event in (first, second)] == ["1", "2"]
    await harness.memory.patch(Kind.RESOURCE_QUOTAS, "q", {"metadata": {"labels": {"a": "b"}}}, namespace)
    third = await anext(watch)
    assert third.object["metadata"]["labels"] == {"a": "b"}
    assert third.object["status"]["used"][MEM] == "2"
    # whoever goes on from there is told what the cluster has to tell from there
    again = harness.cluster.watch(Kind.RESOURCE_QUOTAS, third.object["metadata"]["resourceVersion"])
    await harness.delete(Kind.RESOURCE_QUOTAS, "q", namespace)
    assert (await anext(again)).type is WatchType.DELETED
