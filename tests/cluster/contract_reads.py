"""The contract of reading, watching, binding, events and leases."""

from __future__ import annotations

import asyncio

import pytest

from hami_webhook.cluster.api import AlreadyExists, Conflict, EventNote, Gone, Invalid, Kind, NotFound, WatchType

from .harness import WAIT, Harness, case, lease, make_pod, pod, quota, version_of, watched

# Reading


@case
async def get_returns_what_was_created(harness: Harness) -> None:
    namespace, made = await make_pod(harness, labels={"app": "a"})
    found = await harness.cluster.get(Kind.PODS, "p", namespace)
    assert found["metadata"] == made["metadata"]
    assert found["metadata"]["labels"] == {"app": "a"}
    assert found["metadata"]["uid"]
    assert found["metadata"]["creationTimestamp"]
    assert found["status"]["phase"] == "Pending"


@case
async def what_does_not_exist_is_not_found(harness: Harness) -> None:
    namespace = await harness.namespace()
    for kind in Kind:
        # a definition may not be installed, and then even the path is unknown
        defined = kind in (Kind.DEVICES, Kind.ACCELERATOR_QUOTAS)
        words = "not found" if defined else f'{kind.qualified} "none-such" not found'
        with pytest.raises(NotFound, match=words):
            await harness.cluster.get(kind, "none-such", namespace if kind.namespaced else "")


@case
async def a_list_is_of_one_namespace_or_of_all(harness: Harness) -> None:
    first, second = await harness.namespace(), await harness.namespace()
    for namespace in (first, second):
        await harness.create(Kind.PODS, pod(namespace))
    here = await harness.cluster.list(Kind.PODS, first)
    everywhere = await harness.cluster.list(Kind.PODS)
    assert [obj["metadata"]["namespace"] for obj in here.items] == [first]
    assert {first, second} <= {obj["metadata"]["namespace"] for obj in everywhere.items}


@case
async def pods_are_listed_by_the_node_they_are_on(harness: Harness) -> None:
    namespace = await harness.namespace()
    here = f"node-{namespace}"
    for name, node in (("waits", ""), ("here", here), ("there", f"{here}-2")):
        made = await harness.create(Kind.PODS, pod(namespace, name))
        if node:
            await harness.cluster.bind(namespace, name, made["metadata"]["uid"], node)
    listing = await harness.cluster.list(Kind.PODS, node=here)
    assert [obj["metadata"]["name"] for obj in listing.items] == ["here"]


@case
async def a_list_of_nothing_is_empty(harness: Harness) -> None:
    listing = await harness.cluster.list(Kind.RESOURCE_QUOTAS, await harness.namespace())
    assert listing.items == []
    assert listing.resource_version


@case
async def namespaces_and_nodes_are_listed(harness: Harness) -> None:
    namespace = await harness.namespace()
    node = await harness.create(Kind.NODES, {"metadata": {"name": f"node-{namespace}"}})
    for kind, name in ((Kind.NAMESPACES, namespace), (Kind.NODES, node["metadata"]["name"])):
        listing = await harness.cluster.list(kind)
        assert name in [obj["metadata"]["name"] for obj in listing.items]


# Watching


@case
async def a_watch_tells_changes_in_order(harness: Harness) -> None:
    namespace = await harness.namespace()
    listing = await harness.cluster.list(Kind.PODS)
    await harness.create(Kind.PODS, pod(namespace))
    await harness.cluster.patch(Kind.PODS, "p", {"metadata": {"annotations": {"a": "1"}}}, namespace)
    await harness.delete(Kind.PODS, "p", namespace)
    events = await watched(harness.cluster, Kind.PODS, listing.resource_version, namespace, 3)
    assert [event.type for event in events] == [WatchType.ADDED, WatchType.MODIFIED, WatchType.DELETED]
    assert len({version_of(event.object) for event in events}) == 3


@case
async def a_watch_of_a_node_tells_of_its_pods_alone(harness: Harness) -> None:
    namespace = await harness.namespace()
    here = f"node-{namespace}"
    version = (await harness.cluster.list(Kind.PODS, node=here)).resource_version
    for name, node in (("there", f"{here}-2"), ("waits", ""), ("here", here)):
        made = await harness.create(Kind.PODS, pod(namespace, name))
        if node:
            await harness.cluster.bind(namespace, name, made["metadata"]["uid"], node)
    (event,) = await watched(harness.cluster, Kind.PODS, version, namespace, 1, node=here)
    assert event.object["metadata"]["name"] == "here"
    assert event.object["spec"]["nodeName"] == here


@case
async def a_watch_waits_for_what_comes(harness: Harness) -> None:
    namespace = await harness.namespace()
    version = (await harness.cluster.list(Kind.PODS)).resource_version
    watches = [asyncio.create_task(watched(harness.cluster, Kind.PODS, version, namespace, 2)) for _ in range(3)]
    await harness.moment()
    for name in ("a", "b"):
        await harness.create(Kind.PODS, pod(namespace, name))
        await harness.moment()
    seen = await asyncio.gather(*watches)
    assert [[event.object["metadata"]["name"] for event in events] for events in seen] == [["a", "b"]] * 3


@case
async def a_watch_resumes_after_a_version(harness: Harness) -> None:
    namespace, first = await make_pod(harness)
    second = await harness.create(Kind.PODS, pod(namespace, "second"))
    await harness.create(Kind.PODS, pod(namespace, "third"))
    after_first = await watched(harness.cluster, Kind.PODS, version_of(first), namespace, 2)
    after_second = await watched(harness.cluster, Kind.PODS, version_of(second), namespace, 1)
    assert [event.object["metadata"]["name"] for event in after_first] == ["second", "third"]
    assert [event.object["metadata"]["name"] for event in after_second] == ["third"]


@case
async def a_watch_from_too_old_a_version_is_gone(harness: Harness) -> None:
    namespace = await harness.namespace()
    version = await harness.outdated(Kind.PODS, namespace)
    if version is None:
        pytest.skip("this cluster forgets nothing on demand")
    with pytest.raises(Gone):
        await watched(harness.cluster, Kind.PODS, version, namespace, 1)


@case
async def a_deletion_carries_the_last_state(harness: Harness) -> None:
    namespace, made = await make_pod(harness)
    changed = await harness.cluster.patch(Kind.PODS, "p", {"metadata": {"annotations": {"last": "word"}}}, namespace)
    await harness.delete(Kind.PODS, "p", namespace)
    (deletion,) = await watched(harness.cluster, Kind.PODS, version_of(changed), namespace, 1)
    assert deletion.type is WatchType.DELETED
    assert deletion.object["metadata"]["annotations"] == {"last": "word"}
    assert deletion.object["metadata"]["uid"] == made["metadata"]["uid"]
    assert version_of(deletion.object) != version_of(changed)


@case
async def a_watch_is_of_one_kind(harness: Harness) -> None:
    namespace = await harness.namespace()
    version = (await harness.cluster.list(Kind.RESOURCE_QUOTAS)).resource_version
    await harness.create(Kind.PODS, pod(namespace))
    await harness.create(Kind.RESOURCE_QUOTAS, quota(namespace))
    (event,) = await watched(harness.cluster, Kind.RESOURCE_QUOTAS, version, namespace, 1)
    assert event.object["metadata"]["name"] == "q"


# Binding


@case
async def a_bound_pod_names_its_node(harness: Harness) -> None:
    namespace, made = await make_pod(harness)
    await harness.cluster.bind(namespace, "p", made["metadata"]["uid"], "node-a")
    bound = await harness.cluster.get(Kind.PODS, "p", namespace)
    assert bound["spec"]["nodeName"] == "node-a"
    assert bound["status"]["phase"] == "Pending"
    assert [(c["type"], c["status"]) for c in bound["status"]["conditions"]] == [("PodScheduled", "True")]


@case
async def a_pod_is_bound_once(harness: Harness) -> None:
    namespace, made = await make_pod(harness)
    await harness.cluster.bind(namespace, "p", made["metadata"]["uid"], "node-a")
    for node in ("node-b", "node-a"):
        with pytest.raises(Conflict, match="already assigned to node"):
            await harness.cluster.bind(namespace, "p", made["metadata"]["uid"], node)
    assert (await harness.cluster.get(Kind.PODS, "p", namespace))["spec"]["nodeName"] == "node-a"


@case
async def binding_another_pod_of_the_name_conflicts(harness: Harness) -> None:
    namespace, first = await make_pod(harness)
    await harness.delete(Kind.PODS, "p", namespace)
    second = await harness.create(Kind.PODS, pod(namespace))
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    with pytest.raises(Conflict):
        await harness.cluster.bind(namespace, "p", first["metadata"]["uid"], "node-a")
    assert "nodeName" not in (await harness.cluster.get(Kind.PODS, "p", namespace))["spec"]


@case
async def annotations_and_labels_of_a_binding_are_merged_into_the_pod_by_the_write_that_binds_it(
    harness: Harness,
) -> None:
    namespace = await harness.namespace()
    mine = pod(namespace)
    mine["metadata"] |= {"annotations": {"a": "1", "b": "1"}, "labels": {"a": "1", "b": "1"}}
    made = await harness.create(Kind.PODS, mine)
    merged = {"annotations": {"b": "2", "c": "2"}, "labels": {"b": "2", "c": "2"}}
    uid, version = made["metadata"]["uid"], made["metadata"]["resourceVersion"]
    await harness.cluster.bind(namespace, "p", uid, "node-a", resource_version=version, metadata=merged)
    (event,) = await watched(harness.cluster, Kind.PODS, version, namespace, 1)
    assert event.object["spec"]["nodeName"] == "node-a"
    for field in merged:
        assert event.object["metadata"][field] == {"a": "1", "b": "2", "c": "2"}


@case
async def binding_a_pod_that_changed_conflicts_and_merges_nothing(harness: Harness) -> None:
    namespace, made = await make_pod(harness)
    await harness.cluster.patch(Kind.PODS, "p", {"metadata": {"annotations": {"a": "1"}}}, namespace)
    uid, version = made["metadata"]["uid"], made["metadata"]["resourceVersion"]
    merged = {"annotations": {"a": "2"}}
    with pytest.raises(Conflict, match="Precondition failed: ResourceVersion"):
        await harness.cluster.bind(namespace, "p", uid, "node-a", resource_version=version, metadata=merged)
    left = await harness.cluster.get(Kind.PODS, "p", namespace)
    assert left["metadata"]["annotations"] == {"a": "1"}
    assert "nodeName" not in left["spec"]


@case
async def binding_what_does_not_exist_is_not_found(harness: Harness) -> None:
    with pytest.raises(NotFound):
        await harness.cluster.bind(await harness.namespace(), "none-such", "uid", "node-a")


# Events and leases


@case
async def repeated_events_are_counted(harness: Harness) -> None:
    namespace, made = await make_pod(harness)
    uid = made["metadata"]["uid"]

    def note(message: str) -> EventNote:
        return EventNote("Pod", namespace, "p", uid, "Warning", "FilteringFailed", message)

    for message in ("no node", "no node", "no card", "no node"):
        await harness.cluster.record_event(note(message))
    expected = [("FilteringFailed", "no card", 1), ("FilteringFailed", "no node", 3)]
    async with asyncio.timeout(WAIT):
        while sorted(await harness.recorded(namespace)) != expected:
            await harness.moment()


@case
async def a_lease_is_created_once(harness: Harness) -> None:
    namespace = await harness.namespace()
    with pytest.raises(NotFound):
        await harness.cluster.get_lease(namespace, "leader")
    made = await harness.cluster.create_lease(namespace, lease("leader", "a"))
    with pytest.raises(AlreadyExists):
        await harness.cluster.create_lease(namespace, lease("leader", "b"))
    found = await harness.cluster.get_lease(namespace, "leader")
    assert found == made
    assert found["spec"]["holderIdentity"] == "a"


@case
async def a_lease_is_replaced_only_at_its_version(harness: Harness) -> None:
    namespace = await harness.namespace()
    made = await harness.cluster.create_lease(namespace, lease("leader", "a"))
    taken = lease("leader", "b", resourceVersion=version_of(made))
    results = await asyncio.gather(
        *(harness.cluster.replace_lease(namespace, taken) for _ in range(2)), return_exceptions=True
    )
    (won,) = [result for result in results if isinstance(result, dict)]
    (lost,) = [result for result in results if isinstance(result, BaseException)]
    assert isinstance(lost, Conflict)
    assert won["spec"]["holderIdentity"] == "b"
    assert won["metadata"]["uid"] == made["metadata"]["uid"]
    with pytest.raises(Invalid):
        await harness.cluster.replace_lease(namespace, lease("leader", "c"))
