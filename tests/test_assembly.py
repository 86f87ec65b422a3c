"""The core put together: namespaces, caches, and what reaches the quotas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import pytest
from admission.clusters import FULL, NOW, Broken, Recorder, core_on, quota_cluster, spent
from admission.reviews import parsed, pod, review
from builders import GPU, JSON, MEM

from hami_webhook.admission.denial import Denied
from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster, RecordedEvent
from hami_webhook.cluster.watches import NoWatches
from hami_webhook.core_options import Options
from hami_webhook.kube.objects import Namespace
from hami_webhook.state.caches import Caches

NAMESPACE = {"metadata": {"name": "team-a", "annotations": {"a": "cached"}}}


def test_a_cached_namespace_needs_no_read() -> None:
    async def known() -> Namespace | None:
        core = core_on(Broken())
        core.caches.put(Kind.NAMESPACES, NAMESPACE)
        return await core.namespaces.namespace("team-a")

    cached = asyncio.run(known())
    assert cached is not None
    assert cached.annotations == {"a": "cached"}


def test_a_namespace_that_is_gone_or_cant_be_asked_for_isnt_known() -> None:
    async def known() -> tuple[Namespace | None, Namespace | None, Namespace | None]:
        core = core_on(await quota_cluster())
        core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "old"}})
        core.caches.drop(Kind.NAMESPACES, {"metadata": {"name": "old"}})
        return (
            await core.namespaces.namespace("old"),
            await core.namespaces.namespace("team-a"),
            await core_on(Broken()).namespaces.namespace("team-a"),
        )

    gone, live, unasked = asyncio.run(known())
    assert (gone, unasked) == (None, None)
    assert live is not None
    assert live.name == "team-a"


def test_scheduler_owned_keys_on_a_namespace_are_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The event is the controller's: replicas of the webhook have no right to record any."""

    async def reported() -> tuple[Core, Sequence[RecordedEvent]]:
        cluster = MemoryCluster(lambda: NOW)
        notes = {"hami.io/vgpu-node": "x", "hami.io/bind-phase": "y"}
        await cluster.create(Kind.NAMESPACES, {"metadata": {"name": "team-a", "annotations": notes}})
        core = core_on(cluster)
        for _ in range(3):
            await core.admission.mutate(parsed(review(pod(gpu=1, mem=3000))))
        return core, cluster.events

    core, events = asyncio.run(reported())
    assert events == []
    assert len(core.namespaces.ignored) == 1
    message = "scheduler-owned annotations mean nothing on a Namespace: hami.io/bind-phase, hami.io/vgpu-node"
    assert [(vars(record)["namespace"], vars(record)["reason"]) for record in caplog.records] == [("team-a", message)]


def test_an_object_on_which_a_cache_fails_is_left_out_and_noted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    core = core_on(None)
    monkeypatch.setattr(core.state, "set_node", lambda *_: 1 / 0)
    core.caches.put(Kind.NODES, {"metadata": {"name": "n"}})
    assert core.caches.unreadable == {("nodes", "", "n"): "ZeroDivisionError: division by zero"}
    assert "ZeroDivisionError" in caplog.text


def test_a_pod_is_refused_while_its_reservation_cant_be_looked_up() -> None:
    async def refused() -> None:
        core = core_on(Broken())
        core.caches.put(Kind.NAMESPACES, NAMESPACE)
        await core.admission.webhook(
            parsed(review(pod(gpu=1, mem=3000, annotations={"hami.io/quota-reservation": "s"})))
        )

    with pytest.raises(Denied) as caught:
        asyncio.run(refused())
    assert caught.value.code == 503


def quota_object(**meta: object) -> JSON:
    return {"metadata": {"name": "q", "namespace": "team-a", **meta}, "spec": {"hard": {f"limits.{GPU}": "1"}}}


@pytest.mark.parametrize(
    ("kind", "good", "bad", "there"),
    [
        (Kind.NAMESPACES, NAMESPACE, {"metadata": {"name": "team-a", "labels": 1}}, lambda c: bool(c.namespaces)),
        (Kind.RESOURCE_QUOTAS, quota_object(), quota_object(annotations=[]), lambda c: bool(c.all_quotas())),
        (
            Kind.NODES,
            {"metadata": {"name": "n"}},
            {"metadata": {"name": "n"}, "status": []},
            lambda c: bool(list(c.state.views())),
        ),
        (Kind.PODS, pod(gpu=1, mem=3000, uid="u"), {**pod(uid="u"), "spec": []}, lambda c: bool(list(c.state.pods()))),
    ],
    ids=lambda value: value.value if isinstance(value, Kind) else "",
)
def test_a_cache_leaves_out_what_it_cant_read_and_forgets_what_is_gone(
    kind: Kind, good: JSON, bad: JSON, there: Callable[[Caches], bool]
) -> None:
    caches = core_on(None).caches
    caches.put(kind, good)
    assert there(caches)
    caches.put(kind, bad)
    assert not there(caches)
    assert len(caches.unreadable) == 1
    caches.put(kind, good)
    assert there(caches)
    assert not caches.unreadable
    caches.put(kind, bad)
    caches.drop(kind, bad)
    assert not caches.unreadable
    caches.put(kind, good)
    caches.drop(kind, good)
    assert not there(caches)


def test_cached_quotas_are_believed_only_while_their_watch_is_alive() -> None:
    unwatched = core_on(None).caches
    unwatched.put(Kind.RESOURCE_QUOTAS, quota_object())
    assert (unwatched.silence(), unwatched.covering("team-a")) == (inf, None)
    caches = core_on(None, watches=NoWatches(tuple(Kind))).caches
    caches.put(Kind.RESOURCE_QUOTAS, quota_object())
    assert caches.silence() == 0
    assert [quota.name for quota in caches.covering("team-a") or ()] == ["q"]
    assert caches.covering("other") == []
    cached = caches.quota("team-a", "q")
    assert cached is not None
    assert cached.name == "q"
    assert caches.quota("team-a", "x") is None


def test_a_namespace_without_quota_costs_no_call_while_the_cache_is_alive() -> None:
    async def calls() -> list[str]:
        cluster = Recorder(await quota_cluster())
        core = core_on(cluster, watches=NoWatches(tuple(Kind)))
        core.caches.put(Kind.NAMESPACES, NAMESPACE)
        await core.admission.validate(parsed(review(pod(gpu=1, mem=3000, uid="u"))))
        return cluster.calls

    assert asyncio.run(calls()) == []


def test_the_secret_of_a_reservation_is_a_uuid() -> None:
    async def reserved() -> tuple[Sequence[Mapping[str, Any]], dict[str, int]]:
        cluster = await quota_cluster(FULL)
        core = Core(cluster, core_on(cluster).vendors, Options(), clock=lambda: NOW)
        answer = await core.admission.webhook(parsed(review(pod(gpu=1, mem=3000))))
        return answer.patch, spent(cluster)

    patch, used = asyncio.run(reserved())
    assert used == {GPU: 1, MEM: 3000}
    (value,) = (operation["value"] for operation in patch if operation["path"] == "/metadata/annotations")
    assert len(value["hami.io/quota-reservation"]) == 36


def test_only_nodes_with_the_selected_labels_are_registered() -> None:
    cluster = MemoryCluster(lambda: NOW)
    options = Options(node_labels=(("gpu", "on"),))
    core = Core(cluster, core_on(cluster).vendors, options, clock=lambda: NOW)

    def reported(**labels: str) -> list[str]:
        core.caches.put(Kind.NODES, {"metadata": {"name": "n", "labels": labels}})
        return [view.name for view in core.state.views()]

    assert reported(gpu="off") == []
    assert reported(gpu="on", zone="a") == ["n"]
    assert reported(zone="a") == []
