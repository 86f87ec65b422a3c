"""The embedded cluster: the contract, then what only it has."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from hami_webhook.cluster.api import (
    JSON,
    AlreadyExists,
    Cluster,
    Conflict,
    EventNote,
    Gone,
    Invalid,
    Kind,
    NotFound,
    Unavailable,
    WatchEvent,
    WatchType,
)
from hami_webhook.cluster.memory import MemoryCluster

from .contract import CASES, Case
from .harness import GPU, MEM, lease, pod, quota, version_of

NOON = 1767268800.0  # 2026-01-01T12:00:00Z
HISTORY = 16


class MemoryHarness:
    def __init__(self) -> None:
        self.memory = MemoryCluster(lambda: NOON, history=HISTORY)
        self.cluster: Cluster = self.memory
        self._numbers = itertools.count()

    async def namespace(self) -> str:
        name = f"team-{next(self._numbers)}"
        await self.memory.ensure_namespace(name)
        return name

    async def create(self, kind: Kind, obj: JSON) -> JSON:
        return await self.memory.create(kind, obj)

    async def delete(self, kind: Kind, name: str, namespace: str = "") -> None:
        await self.memory.delete(kind, name, namespace)

    async def recorded(self, namespace: str) -> list[tuple[str, str, int]]:
        events = [event for event in self.memory.events if event.note.namespace == namespace]
        return [(event.note.reason, event.note.message, event.count) for event in events]

    async def outdated(self, kind: Kind, namespace: str) -> str:
        version = (await self.memory.list(kind)).resource_version
        for number in range(HISTORY + 1):
            await self.memory.create(kind, pod(namespace, f"filler-{number}"))
        return version

    async def moment(self) -> None:
        await asyncio.sleep(0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_contract(case: Case) -> None:
    await case(MemoryHarness())


@pytest.fixture
def cluster() -> MemoryCluster:
    """A cluster with the namespace `team`."""
    made = MemoryCluster(lambda: NOON)
    asyncio.run(made.ensure_namespace("team", {"kind": "test"}))
    return made


async def upcoming(events: asyncio.Queue[WatchEvent]) -> WatchEvent:
    async with asyncio.timeout(5):
        return await events.get()


# Creation


async def test_created_objects_get_identity_version_and_time(cluster: MemoryCluster) -> None:
    first = await cluster.create(Kind.PODS, pod("team", "a"))
    second = await cluster.create(Kind.PODS, pod("team", "b"))
    assert first["metadata"]["creationTimestamp"] == "2026-01-01T12:00:00Z"
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert int(version_of(first)) < int(version_of(second))
    assert (first["apiVersion"], first["kind"]) == ("v1", "Pod")
    assert cluster.peek(Kind.NAMESPACES, "team")["metadata"]["labels"] == {"kind": "test"}  # type: ignore[index]  # it exists


async def test_a_dumped_object_keeps_its_identity_and_status(cluster: MemoryCluster) -> None:
    meta = {"uid": "u-1", "creationTimestamp": "2025-05-05T05:05:05Z", "resourceVersion": "777"}
    made = await cluster.create(Kind.PODS, {**pod("team", "a", **meta), "status": {"phase": "Running"}})
    assert made["metadata"]["uid"] == "u-1"
    assert made["metadata"]["creationTimestamp"] == "2025-05-05T05:05:05Z"
    assert made["status"] == {"phase": "Running"}
    assert version_of(made) != "777"


async def test_names_are_generated_and_the_namespace_defaults(cluster: MemoryCluster) -> None:
    await cluster.ensure_namespace("default")
    obj = pod("")
    obj["metadata"] = {"generateName": "train-"}
    names = [(await cluster.create(Kind.PODS, obj))["metadata"]["name"] for _ in range(2)]
    assert names == ["train-00000", "train-00001"]
    assert [made["metadata"]["namespace"] for made in cluster.peek_all(Kind.PODS)] == ["default"] * 2
    assert "name" not in obj["metadata"]


async def test_creation_is_refused_for_a_taken_name_no_namespace_or_no_name(cluster: MemoryCluster) -> None:
    await cluster.create(Kind.PODS, pod("team"))
    with pytest.raises(AlreadyExists, match='pods "p" already exists'):
        await cluster.create(Kind.PODS, pod("team"))
    with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
        await cluster.create(Kind.PODS, pod("nowhere"))
    with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
        await cluster.create_lease("nowhere", lease("leader", "a"))
    for part in ("spec", "status"):
        with pytest.raises(Invalid, match="must be an object"):
            await cluster.create(Kind.PODS, {**pod("team", "broken"), part: []})
    with pytest.raises(Invalid, match="name or generateName is required"):
        await cluster.create(Kind.NODES, {})
    assert await cluster.ensure_namespace("team") == cluster.peek(Kind.NAMESPACES, "team")


# Replacing and deleting


async def test_replace_writes_spec_and_status_at_once(cluster: MemoryCluster) -> None:
    made = await cluster.create(Kind.RESOURCE_QUOTAS, quota("team"))
    new = {**quota("team", {GPU: "1"}), "status": {"used": {GPU: "1"}}}
    replaced = await cluster.replace(Kind.RESOURCE_QUOTAS, new)
    assert replaced["spec"] == {"hard": {GPU: "1"}}
    assert replaced["status"] == {"used": {GPU: "1"}}
    assert replaced["metadata"]["uid"] == made["metadata"]["uid"]
    with pytest.raises(Conflict):
        await cluster.replace(Kind.RESOURCE_QUOTAS, {**new, "metadata": made["metadata"]})
    with pytest.raises(NotFound):
        await cluster.replace(Kind.RESOURCE_QUOTAS, quota("team", name="none-such"))


async def test_graceful_deletion_keeps_the_pod_until_it_is_deleted_again(cluster: MemoryCluster) -> None:
    await cluster.create(Kind.PODS, pod("team"))
    await cluster.delete(Kind.PODS, "p", "team", grace=30)
    condemned = await cluster.get(Kind.PODS, "p", "team")
    assert condemned["metadata"]["deletionTimestamp"] == "2026-01-01T12:00:30Z"
    assert condemned["metadata"]["deletionGracePeriodSeconds"] == 30
    await cluster.delete(Kind.PODS, "p", "team", grace=60)
    assert await cluster.get(Kind.PODS, "p", "team") == condemned
    await cluster.delete(Kind.PODS, "p", "team", grace=10)
    hurried = (await cluster.get(Kind.PODS, "p", "team"))["metadata"]
    assert hurried["deletionTimestamp"] == "2026-01-01T12:00:10Z"
    assert hurried["deletionGracePeriodSeconds"] == 10
    await cluster.delete(Kind.PODS, "p", "team", grace=0)
    assert cluster.peek(Kind.PODS, "p", "team") is None
    with pytest.raises(NotFound):
        await cluster.delete(Kind.PODS, "p", "team")


async def test_a_pod_under_deletion_stays_so_and_is_not_bound(cluster: MemoryCluster) -> None:
    made = await cluster.create(Kind.PODS, pod("team"))
    await cluster.delete(Kind.PODS, "p", "team", grace=30)
    patched = await cluster.patch(
        Kind.PODS, "p", {"metadata": {"deletionTimestamp": None, "labels": {"a": "b"}}}, "team"
    )
    assert patched["metadata"]["deletionTimestamp"] == "2026-01-01T12:00:30Z"
    with pytest.raises(Conflict, match="is being deleted"):
        await cluster.bind("team", "p", made["metadata"]["uid"], "n")


async def test_a_gated_pod_is_not_bound(cluster: MemoryCluster) -> None:
    gated = pod("team")
    gated["spec"]["schedulingGates"] = [{"name": "wait"}]
    await cluster.create(Kind.PODS, gated)
    with pytest.raises(Conflict, match="schedulingGates"):
        await cluster.bind("team", "p", "", "n")
    await cluster.patch(Kind.PODS, "p", {"spec": {"schedulingGates": None}}, "team")
    await cluster.bind("team", "p", "", "n")


async def test_a_namespace_takes_its_objects_with_it(cluster: MemoryCluster) -> None:
    await cluster.ensure_namespace("other")
    for namespace in ("team", "other"):
        await cluster.create(Kind.PODS, pod(namespace))
        await cluster.create(Kind.RESOURCE_QUOTAS, quota(namespace))
        await cluster.create_lease(namespace, lease("leader", "a"))
    version = (await cluster.list(Kind.PODS)).resource_version
    await cluster.delete(Kind.NAMESPACES, "team")
    event = await anext(cluster.watch(Kind.PODS, version))
    assert (event.type, event.object["metadata"]["namespace"]) == (WatchType.DELETED, "team")
    for kind in (Kind.PODS, Kind.RESOURCE_QUOTAS):
        assert [obj["metadata"]["namespace"] for obj in cluster.peek_all(kind)] == ["other"]
    with pytest.raises(NotFound):
        await cluster.get_lease("team", "leader")
    assert await cluster.get_lease("other", "leader")


async def test_a_kubelet_reports_phases(cluster: MemoryCluster) -> None:
    made = await cluster.create(Kind.PODS, pod("team"))
    await cluster.bind("team", "p", made["metadata"]["uid"], "n")
    running = await cluster.set_phase("team", "p", "Running", containerStatuses=[{"name": "main"}])
    assert running["status"]["phase"] == "Running"
    assert running["status"]["conditions"][0]["type"] == "PodScheduled"
    assert running["status"]["containerStatuses"] == [{"name": "main"}]
    assert await cluster.set_phase("team", "p", "Running") == running


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": "x"},
        {"metadata": {"labels": "x"}},
        {"spec": "x"},
        {"spec": {"hard": "x"}},
        {"spec": {"hard": {GPU: "x"}}},
        {"spec": {"hard": {GPU: True}}},
        {"spec": {"hard": {"limits.nvidia.com/gpu/mem": "1"}}},
    ],
)
async def test_malformed_patches_are_refused(cluster: MemoryCluster, patch: JSON) -> None:
    made = await cluster.create(Kind.RESOURCE_QUOTAS, quota("team"))
    with pytest.raises(Invalid, match='ResourceQuota "q" is invalid: '):
        await cluster.patch(Kind.RESOURCE_QUOTAS, "q", patch, "team")
    assert cluster.peek(Kind.RESOURCE_QUOTAS, "q", "team") == made


async def test_an_emptied_status_has_no_maps(cluster: MemoryCluster) -> None:
    await cluster.create(Kind.RESOURCE_QUOTAS, {**quota("team"), "status": {"used": {MEM: 1000, "hugepages-2Mi": "0"}}})
    assert cluster.peek(Kind.RESOURCE_QUOTAS, "q", "team")["status"]["used"][MEM] == "1k"  # type: ignore[index]  # it exists
    patched = await cluster.patch_status(Kind.RESOURCE_QUOTAS, "q", {"status": None}, "team")
    assert patched["status"] == {}


# Watches


async def test_history_is_bounded_for_each_kind() -> None:
    cluster = MemoryCluster(lambda: NOON, history=3)
    await cluster.ensure_namespace("team")
    made = [await cluster.create(Kind.PODS, pod("team", f"p{number}")) for number in range(20)]
    with pytest.raises(Gone, match="too old resource version"):
        await anext(cluster.watch(Kind.PODS, version_of(made[-5])))
    event = await anext(cluster.watch(Kind.PODS, version_of(made[-4])))
    assert event.object == made[-3]
    assert (await anext(cluster.watch(Kind.NAMESPACES, "0"))).object["metadata"]["name"] == "team"


async def test_a_watch_that_falls_behind_the_history_is_gone() -> None:
    cluster = MemoryCluster(lambda: NOON, history=3)
    for number in range(2):
        await cluster.ensure_namespace(f"team-{number}")
    watch = cluster.watch(Kind.NAMESPACES, "0")
    assert (await anext(watch)).object["metadata"]["name"] == "team-0"
    for number in range(2, 9):
        await cluster.ensure_namespace(f"team-{number}")
    with pytest.raises(Gone):
        await anext(watch)


async def test_a_version_must_be_a_number(cluster: MemoryCluster) -> None:
    with pytest.raises(Invalid, match="invalid resource version 'x'"):
        cluster.watch(Kind.PODS, "x")


async def test_bookmarks_come_when_forced_and_move_the_version(cluster: MemoryCluster) -> None:
    version = (await cluster.list(Kind.PODS)).resource_version
    events: asyncio.Queue[WatchEvent] = asyncio.Queue()

    async def follow() -> None:
        async for event in cluster.watch(Kind.PODS, version):
            await events.put(event)

    following = asyncio.create_task(follow())
    await cluster.create(Kind.NODES, {"metadata": {"name": "n"}})
    made = await cluster.create(Kind.PODS, pod("team"))
    await cluster.ensure_namespace("later")
    cluster.bookmark()
    assert (await upcoming(events)).object == made
    bookmark = await upcoming(events)
    assert bookmark.type is WatchType.BOOKMARK
    assert int(version_of(bookmark.object)) > int(version_of(made))
    cluster.bookmark()
    patched = await cluster.patch(Kind.PODS, "p", {"metadata": {"labels": {"a": "b"}}}, "team")
    assert (await upcoming(events)).object == patched
    following.cancel()


async def test_closed_watches_are_unavailable_and_new_ones_work(cluster: MemoryCluster) -> None:
    version = (await cluster.list(Kind.PODS)).resource_version
    waiting = [asyncio.ensure_future(anext(cluster.watch(Kind.PODS, version))) for _ in range(2)]
    await asyncio.sleep(0)
    cluster.close_watches()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable] * 2
    made = await cluster.create(Kind.PODS, pod("team"))
    assert (await anext(cluster.watch(Kind.PODS, version))).object == made


def test_a_cluster_outlives_an_event_loop() -> None:
    cluster = MemoryCluster(lambda: NOON)

    async def wait_in_vain() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(cluster.watch(Kind.PODS, "0"))

    asyncio.run(wait_in_vain())
    asyncio.run(cluster.ensure_namespace("team"))
    assert cluster.peek(Kind.NAMESPACES, "team")


async def test_events_carry_their_times() -> None:
    now = NOON
    cluster = MemoryCluster(lambda: now)
    note = EventNote("Pod", "team", "p", "u", "Normal", "BindingSucceed", "message")
    await cluster.record_event(note)
    now += 5
    await cluster.record_event(note)
    (event,) = cluster.events
    assert (event.note, event.count, event.first, event.last) == (note, 2, NOON, NOON + 5)
