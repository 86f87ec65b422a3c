"""The contract of patches: preconditions, what may change, and what a quota's status accepts."""

from __future__ import annotations

import asyncio

import pytest

from hami_webhook.cluster.api import JSON, ClusterError, Conflict, EvictionRefused, Invalid, Kind, NotFound

from .harness import GPU, MEM, Harness, at, case, make_pod, make_quota, quota, version_of, watched

# Patching


@case
async def a_patch_adds_changes_and_deletes(harness: Harness) -> None:
    namespace, _ = await make_pod(harness, annotations={"kept": "1", "changed": "1", "dropped": "1"})
    patch = {"metadata": {"annotations": {"changed": "2", "dropped": None, "new": "3", "absent": None}}}
    changed = await harness.cluster.patch(Kind.PODS, "p", patch, namespace)
    assert changed["metadata"]["annotations"] == {"kept": "1", "changed": "2", "new": "3"}
    assert await harness.cluster.get(Kind.PODS, "p", namespace) == changed


@case
async def the_last_annotation_leaves_no_empty_map(harness: Harness) -> None:
    namespace, _ = await make_pod(harness, annotations={"only": "1"})
    changed = await harness.cluster.patch(Kind.PODS, "p", {"metadata": {"annotations": {"only": None}}}, namespace)
    assert "annotations" not in changed["metadata"]


@case
async def a_node_is_patched(harness: Harness) -> None:
    name = f"node-{await harness.namespace()}"
    await harness.create(Kind.NODES, {"metadata": {"name": name}})
    changed = await harness.cluster.patch(Kind.NODES, name, {"metadata": {"annotations": {"hami.io/x": "1"}}})
    assert changed["metadata"]["annotations"]["hami.io/x"] == "1"


@case
async def patching_what_does_not_exist_is_not_found(harness: Harness) -> None:
    namespace = await harness.namespace()
    for write in (harness.cluster.patch, harness.cluster.patch_status):
        with pytest.raises(NotFound):
            await write(Kind.RESOURCE_QUOTAS, "none-such", {"metadata": {"annotations": {"a": "1"}}}, namespace)


@case
async def a_patch_for_another_version_conflicts(harness: Harness) -> None:
    namespace, made = await make_quota(harness)
    current = await harness.cluster.patch(
        Kind.RESOURCE_QUOTAS, "q", at(version_of(made), annotations={"a": "1"}), namespace
    )
    text = (
        'Operation cannot be fulfilled on resourcequotas "q": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    for write in (harness.cluster.patch, harness.cluster.patch_status):
        with pytest.raises(Conflict, match=text):
            await write(Kind.RESOURCE_QUOTAS, "q", at(version_of(made), annotations={"a": "2"}), namespace)
    assert await harness.cluster.get(Kind.RESOURCE_QUOTAS, "q", namespace) == current


@case
async def of_concurrent_compare_and_swaps_one_wins(harness: Harness) -> None:
    namespace, made = await make_quota(harness, {MEM: "0"})
    writes = [
        harness.cluster.patch_status(
            Kind.RESOURCE_QUOTAS, "q", {**at(version_of(made)), "status": {"used": {MEM: str(amount)}}}, namespace
        )
        for amount in range(1, 9)
    ]
    results = await asyncio.gather(*writes, return_exceptions=True)
    (won,) = [result for result in results if isinstance(result, dict)]
    assert all(isinstance(result, dict | Conflict) for result in results)
    assert (await harness.cluster.get(Kind.RESOURCE_QUOTAS, "q", namespace))["status"] == won["status"]


@case
async def a_patch_that_changes_nothing_keeps_the_version(harness: Harness) -> None:
    namespace, made = await make_quota(harness, {MEM: "4k"})
    same = {"metadata": {"annotations": {"absent": None}}}
    assert version_of(await harness.cluster.patch(Kind.RESOURCE_QUOTAS, "q", same, namespace)) == version_of(made)
    equal = {**at(version_of(made)), "status": {"used": {MEM: "4000"}}}
    after = await harness.cluster.patch_status(Kind.RESOURCE_QUOTAS, "q", equal, namespace)
    assert version_of(after) == version_of(made)


@case
async def each_change_has_a_version_of_its_own(harness: Harness) -> None:
    namespace, made = await make_pod(harness)
    versions = {version_of(made)}
    for number in range(5):
        patch = {"metadata": {"annotations": {"n": str(number)}}}
        versions.add(version_of(await harness.cluster.patch(Kind.PODS, "p", patch, namespace)))
    assert len(versions) == 6


@case
async def names_and_uids_can_not_be_patched(harness: Harness) -> None:
    namespace, made = await make_pod(harness)
    with pytest.raises(ClusterError):
        await harness.cluster.patch(Kind.PODS, "p", {"metadata": {"name": "other"}}, namespace)
    with pytest.raises(ClusterError):
        await harness.cluster.patch(Kind.PODS, "p", {"metadata": {"uid": "other"}}, namespace)
    assert await harness.cluster.get(Kind.PODS, "p", namespace) == made


@case
async def a_patch_can_not_bind_a_pod(harness: Harness) -> None:
    namespace, _ = await make_pod(harness)
    with pytest.raises(Invalid):
        await harness.cluster.patch(Kind.PODS, "p", {"spec": {"nodeName": "n"}}, namespace)


@case
async def annotations_beyond_256_kib_are_refused(harness: Harness) -> None:
    namespace, made = await make_quota(harness)
    with pytest.raises(Invalid, match=r"metadata\.annotations.*262144 bytes"):
        await harness.cluster.patch_status(
            Kind.RESOURCE_QUOTAS, "q", {"metadata": {"annotations": {"a": "x" * 262144}}}, namespace
        )
    assert await harness.cluster.get(Kind.RESOURCE_QUOTAS, "q", namespace) == made


@case
async def annotations_are_strings(harness: Harness) -> None:
    namespace, _ = await make_pod(harness)
    with pytest.raises(ClusterError):
        await harness.cluster.patch(Kind.PODS, "p", {"metadata": {"annotations": {"a": 1}}}, namespace)


@case
async def what_was_returned_never_changes(harness: Harness) -> None:
    namespace, _ = await make_pod(harness, annotations={"a": "1"})
    got = await harness.cluster.get(Kind.PODS, "p", namespace)
    listed = (await harness.cluster.list(Kind.PODS, namespace)).items
    patch: JSON = {"metadata": {"annotations": {"a": "2"}}}
    changed = await harness.cluster.patch(Kind.PODS, "p", patch, namespace)
    patch["metadata"]["annotations"]["a"] = "3"
    await harness.delete(Kind.PODS, "p", namespace)
    assert got["metadata"]["annotations"] == {"a": "1"}
    assert listed[0]["metadata"]["annotations"] == {"a": "1"}
    assert changed["metadata"]["annotations"] == {"a": "2"}


# Quotas and their status


@case
async def a_patch_leaves_status_alone(harness: Harness) -> None:
    namespace, _ = await make_quota(harness, {GPU: "1"})
    patch = {"spec": {"hard": {GPU: "8"}}, "status": {"used": {GPU: "3"}}}
    changed = await harness.cluster.patch(Kind.RESOURCE_QUOTAS, "q", patch, namespace)
    assert changed["spec"]["hard"][GPU] == "8"
    assert changed["status"]["used"] == {GPU: "1"}


@case
async def a_status_patch_leaves_the_spec_alone(harness: Harness) -> None:
    namespace, _ = await make_quota(harness)
    patch = {"spec": {"hard": {GPU: "8"}}, "status": {"hard": {GPU: "4"}, "used": {GPU: "3"}}}
    changed = await harness.cluster.patch_status(Kind.RESOURCE_QUOTAS, "q", patch, namespace)
    assert changed["spec"]["hard"] == {GPU: "4", MEM: "20k"}
    assert changed["status"] == {"hard": {GPU: "4"}, "used": {GPU: "3"}}


@case
async def a_status_patch_changes_used_and_annotation_in_one_version(harness: Harness) -> None:
    namespace, made = await make_quota(harness, {GPU: "0"})
    patch = {**at(version_of(made), annotations={"hami.io/quota-ledger": "{}"}), "status": {"used": {GPU: "1"}}}
    changed = await harness.cluster.patch_status(Kind.RESOURCE_QUOTAS, "q", patch, namespace)
    (event,) = await watched(harness.cluster, Kind.RESOURCE_QUOTAS, version_of(made), namespace, 1)
    for seen in (changed, event.object):
        assert seen["metadata"]["annotations"] == {"hami.io/quota-ledger": "{}"}
        assert seen["status"]["used"] == {GPU: "1"}
    assert version_of(event.object) == version_of(changed)


@case
async def a_status_patch_keeps_foreign_keys(harness: Harness) -> None:
    namespace, _ = await make_quota(harness, {GPU: "1", MEM: "100", "pods": "7"})
    patch = {"status": {"used": {GPU: None, MEM: "200"}}}
    changed = await harness.cluster.patch_status(Kind.RESOURCE_QUOTAS, "q", patch, namespace)
    assert changed["status"]["used"] == {MEM: "200", "pods": "7"}


@case
async def amounts_come_back_canonical(harness: Harness) -> None:
    namespace = await harness.namespace()
    made = await harness.create(Kind.RESOURCE_QUOTAS, quota(namespace, {MEM: "4000", GPU: 2, "cpu": "1500m"}))
    assert made["spec"]["hard"] == {MEM: "4k", GPU: "2", "cpu": "1500m"}
    for written, canonical in (("12288", "12288"), ("1000000", "1M"), ("2048Ki", "2Mi"), ("1e3", "1e3"), ("0", "0")):
        patch = {"status": {"hard": {MEM: written}, "used": {MEM: written}}}
        changed = await harness.cluster.patch_status(Kind.RESOURCE_QUOTAS, "q", patch, namespace)
        assert changed["status"] == {"hard": {MEM: canonical}, "used": {MEM: canonical}}


@case
async def illegal_amounts_are_refused(harness: Harness) -> None:
    namespace, made = await make_quota(harness, {GPU: "1"})
    for amounts in ({GPU: "-1"}, {MEM: "1500m"}, {"requests.nvidia.com/gpu": "-1"}, {"pods": "0.5"}, {"gpus": "1"}):
        with pytest.raises(Invalid):
            await harness.cluster.patch_status(Kind.RESOURCE_QUOTAS, "q", {"status": {"used": amounts}}, namespace)
    with pytest.raises(Invalid):
        await harness.cluster.patch(Kind.RESOURCE_QUOTAS, "q", {"spec": {"hard": {GPU: "-1"}}}, namespace)
    assert await harness.cluster.get(Kind.RESOURCE_QUOTAS, "q", namespace) == made


@case
async def requests_of_an_extended_resource_may_have_a_fraction(harness: Harness) -> None:
    namespace, _ = await make_quota(harness)
    patch = {"status": {"used": {"requests.nvidia.com/gpu": "1500m"}}}
    changed = await harness.cluster.patch_status(Kind.RESOURCE_QUOTAS, "q", patch, namespace)
    assert changed["status"]["used"] == {"requests.nvidia.com/gpu": "1500m"}


# Deleting


@case
async def a_pod_is_deleted_by_its_uid_only(harness: Harness) -> None:
    namespace, made = await make_pod(harness)
    uid = made["metadata"]["uid"]
    with pytest.raises(Conflict, match="UID in the precondition"):
        await harness.cluster.delete_pod(namespace, "p", "another")
    await harness.cluster.delete_pod(namespace, "p", uid)
    with pytest.raises(NotFound):
        await harness.cluster.delete_pod(namespace, "p", uid)
    with pytest.raises(NotFound):
        await harness.cluster.get(Kind.PODS, "p", namespace)


@case
async def a_claim_template_is_deleted_by_its_uid_only(harness: Harness) -> None:
    namespace, _ = await make_pod(harness)
    kind = Kind.RESOURCE_CLAIM_TEMPLATES
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]
    spec = {"spec": {"devices": {"requests": requests}}}
    written = {"apiVersion": kind.api_version, "kind": kind.singular, "spec": spec}
    meta = {"name": "t", "namespace": namespace}
    uid = (await harness.cluster.create(kind, {**written, "metadata": meta}))["metadata"]["uid"]
    with pytest.raises(Conflict, match="UID in the precondition"):
        await harness.cluster.delete_claim_template(namespace, "t", "another")
    await harness.cluster.delete_claim_template(namespace, "t", uid)
    with pytest.raises(NotFound):
        await harness.cluster.get(kind, "t", namespace)


@case
async def a_pod_is_evicted_unless_a_budget_forbids_it(harness: Harness) -> None:
    namespace, made = await make_pod(harness, labels={"app": "a"})
    cluster, uid = harness.cluster, made["metadata"]["uid"]
    budget = {
        "metadata": {"name": "none", "namespace": namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
    }
    await harness.create(Kind.POD_DISRUPTION_BUDGETS, budget)
    await cluster.patch_status(Kind.PODS, "p", {"status": {"phase": "Running"}}, namespace)
    with pytest.raises(EvictionRefused, match="Cannot evict pod as it would violate the pod's disruption budget"):
        await cluster.evict_pod(namespace, "p", uid)
    await cluster.patch_status(Kind.PODS, "p", {"status": {"phase": "Pending"}}, namespace)
    with pytest.raises(Conflict, match="UID in the precondition"):
        await cluster.evict_pod(namespace, "p", "another")
    await cluster.evict_pod(namespace, "p", uid, 5)
    with pytest.raises(NotFound):
        await cluster.evict_pod(namespace, "p", uid)
