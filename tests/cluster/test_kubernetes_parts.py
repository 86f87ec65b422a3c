"""What the real cluster's implementation is made of, as far as it needs no API server."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hami_webhook.cluster.api import ClusterError, EventNote, Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.events import EventCorrelator
from hami_webhook.cluster.kept_fields import decode_kept
from hami_webhook.cluster.rate import TokenBucket, in_background
from hami_webhook.kube.objects import Node, Pod

NOW = 1_767_225_600.0
NOTE = EventNote("Pod", "team", "p", "uid", "Warning", "FilteringFailed", "no available node, 3 nodes do not meet")


def test_a_repeated_event_is_counted() -> None:
    correlator = EventCorrelator("hami-scheduler", "replica-0")
    first = correlator.correlate(NOTE, NOW)
    assert first is not None
    assert first.create
    assert (first.namespace, first.body["count"], first.body["firstTimestamp"]) == ("team", 1, "2026-01-01T00:00:00Z")
    assert first.body["involvedObject"]["uid"] == "uid"
    correlator.recorded(first, NOW)
    for count in (2, 3):
        again = correlator.correlate(NOTE, NOW + count)
        assert again is not None
        assert (again.create, again.name, again.body["count"]) == (False, first.name, count)
        correlator.recorded(again, NOW)


def test_an_event_that_was_not_recorded_is_created_with_the_next() -> None:
    correlator = EventCorrelator("c", "i")
    assert correlator.correlate(NOTE, NOW) is not None
    again = correlator.correlate(NOTE, NOW)
    assert again is not None
    assert again.create


def test_many_messages_of_one_reason_become_one() -> None:
    correlator = EventCorrelator("c", "i")
    messages = []
    for number in range(20):
        note = EventNote("Pod", "team", "p", "uid", "Warning", "FilteringFailed", f"try {number}")
        recording = correlator.correlate(note, NOW + number)
        assert recording is not None
        correlator.recorded(recording, NOW)
        messages.append((recording.create, recording.body.get("message")))
    assert [create for create, _ in messages] == [True] * 11 + [False] * 9
    assert str(messages[10][1]).startswith("(combined from similar events): ")


def test_an_object_has_a_budget_of_events_of_each_reason() -> None:
    correlator = EventCorrelator("c", "i")
    written = sum(correlator.correlate(NOTE, NOW) is not None for _ in range(100))
    assert written == 25
    assert correlator.correlate(dataclasses.replace(NOTE, reason="Preempting"), NOW) is not None
    assert correlator.correlate(NOTE, NOW + 299) is None
    assert correlator.correlate(NOTE, NOW + 301) is not None


def test_what_the_budget_left_out_is_counted_with_the_next() -> None:
    correlator = EventCorrelator("c", "i")
    for times in [1] * 25 + [2] * 3:
        recording = correlator.correlate(dataclasses.replace(NOTE, times=times), NOW)
        if recording is not None:
            correlator.recorded(recording, NOW)
    later = correlator.correlate(NOTE, NOW + 301)
    assert later is not None
    assert later.body["count"] == 25 + 6 + 1


def test_events_of_cluster_wide_objects_go_to_the_default_namespace() -> None:
    recording = EventCorrelator("c", "i").correlate(
        EventNote("Namespace", "", "team", "", "Warning", "PolicyIgnored", "m"), NOW
    )
    assert recording is not None
    assert recording.namespace == "default"
    assert recording.body["involvedObject"] == {"kind": "Namespace", "name": "team", "apiVersion": "v1"}


def test_an_event_names_the_version_of_a_kind_of_our_own() -> None:
    note = EventNote("AcceleratorQuota", "", "all", "u", "Warning", "QuotaExceeded", "m")
    recording = EventCorrelator("c", "i").correlate(note, NOW)
    assert recording is not None
    assert recording.body["involvedObject"] == {
        "kind": "AcceleratorQuota",
        "name": "all",
        "uid": "u",
        "apiVersion": "hami.io/v1alpha1",
    }


@given(burst=st.integers(1, 20), rate=st.floats(0.5, 50), requests=st.integers(1, 80))
def test_a_bucket_lets_through_its_burst_and_then_its_rate(burst: int, rate: float, requests: int) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def run() -> None:
        bucket = TokenBucket(rate, burst, clock=lambda: 0.0, sleep=sleep)
        for _ in range(requests):
            await bucket.take()

    asyncio.run(run())
    assert slept == pytest.approx([(n + 1) / rate for n in range(max(0, requests - burst))])


async def test_what_can_wait_leaves_half_of_the_burst_to_what_cannot() -> None:
    now = 0.0
    sent: list[tuple[str, float]] = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        wake = now + seconds
        await asyncio.sleep(0)
        now = max(now, wake)

    bucket = TokenBucket(10.0, 10, clock=lambda: now, sleep=sleep)

    async def send(name: str) -> None:
        await bucket.take()
        sent.append((name, round(now, 6)))

    async def background() -> None:
        in_background.set(True)
        for number in range(6):
            await send(f"b{number}")

    await asyncio.create_task(background())
    for number in range(5):
        await send(f"u{number}")
    names, times = zip(*sent, strict=True)
    assert names == ("b0", "b1", "b2", "b3", "b4", "b5", "u0", "u1", "u2", "u3", "u4")
    assert times == pytest.approx((0, 0, 0, 0, 0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1))


async def test_what_can_wait_is_not_kept_waiting_for_ever() -> None:
    now = 0.0
    sent: list[float] = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    bucket = TokenBucket(1.0, 2, clock=lambda: now, sleep=sleep)
    for _ in range(12):
        await bucket.take()  # as many as are refilled in more than patience
    now_before = now

    async def background() -> None:
        in_background.set(True)
        await bucket.take()
        sent.append(now - now_before)

    urgent = bucket._tokens
    await asyncio.create_task(background())
    assert urgent < 0
    assert 0 < sent[0] <= 5 + 12


POD = {
    "metadata": {
        "name": "p", "namespace": "team", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"},
        "annotations": {"x": "y", "kubectl.kubernetes.io/last-applied-configuration": "{…}"},
        "managedFields": [{"manager": "kubectl"}], "creationTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": {
        "schedulerName": "hami-scheduler", "nodeName": "n", "nodeSelector": {"k": "v"}, "volumes": [{}],
        "initContainers": [{"name": "i", "image": "x", "restartPolicy": "Always"}],
        "containers": [
            {
                "name": "main", "image": "x", "env": [{"name": "PASSWORD", "value": "secret"}],
                "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}},
                "securityContext": {"privileged": True, "runAsUser": 0},
            }
        ],
    },
    "status": {
        "phase": "Running", "hostIP": "10.0.0.1",
        "containerStatuses": [{"name": "main", "imageID": "x", "restartCount": 0, "state": {"running": {"at": 1}}}],
        "initContainerStatuses": [
            {"name": "i", "restartCount": 0, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
        ],
    },
}  # fmt: skip


def kept(kind: Kind, obj: object) -> dict[str, Any]:
    return decode_kept(kind, orjson.dumps(obj))


def test_a_trimmed_pod_reads_like_the_whole_one() -> None:
    trimmed = kept(Kind.PODS, POD)
    whole, read = Pod.from_object(POD), Pod.from_object(trimmed)
    assert read == replace(whole, annotations={"x": "y"})
    assert "secret" not in str(trimmed)
    assert "image" not in str(trimmed)


def test_a_trimmed_node_reads_like_the_whole_one() -> None:
    node = {
        "metadata": {"name": "n", "labels": {"a": "b"}, "annotations": {"x": "y"}, "managedFields": []},
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {"capacity": {"nvidia.com/gpu": "1"}, "allocatable": {}, "images": [{"names": ["x"]}]},
    }
    assert Node.from_object(kept(Kind.NODES, node)) == Node.from_object(node)
    assert "images" not in kept(Kind.NODES, node)["status"]


@pytest.mark.parametrize("obj", [{}, {"metadata": {}, "spec": {"containers": [1]}}, {"spec": 1}])
def test_what_is_no_pod_is_left_as_it_is(obj: dict[str, object]) -> None:
    assert kept(Kind.PODS, obj) == obj


def test_a_trimmed_device_has_the_cards() -> None:
    card = {"type": "gpu", "id": "GPU-0", "minor": 0, "health": True, "labels": {}, "resources": {"a": "1"}}
    card["topology"] = {"nodeID": 0, "pcieID": "a"}
    device = {
        "metadata": {"name": "n1", "labels": {"a": "b"}, "annotations": {"c": "d"}, "managedFields": []},
        "spec": {"devices": [{**card, "conditions": [{}], "vfGroups": [{}]}, {"type": "rdma", "minor": 1}]},
        "status": {"allocations": []},
    }
    assert kept(Kind.DEVICES, device) == {
        "metadata": {"name": "n1", "labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"devices": [card, {"type": "rdma", "minor": 1}]},
    }
    assert kept(Kind.DEVICES, {"metadata": {"name": "n1"}}) == {"metadata": {"name": "n1"}}


def test_quotas_are_kept_whole() -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {}, "unknown": 1}}
    assert kept(Kind.RESOURCE_QUOTAS, quota) == quota


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (None, "can't be read; --kubeconfig or KUBECONFIG names another"),
        ("nonsense: [", "can't be used"),
        ("{}", "can't be used"),
    ],
)
def test_an_unusable_kubeconfig_is_told_of(tmp_path: Path, written: str | None, message: str) -> None:
    path = tmp_path / "config"
    if written is not None:
        path.write_text(written)
    with pytest.raises(ClusterError, match=message):
        asyncio.run(connect(str(path)))


def test_neither_kubeconfig_nor_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hami_webhook.cluster.connect._DEFAULT", tmp_path / "none")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match="no kubeconfig, and not in a pod of a cluster"):
        asyncio.run(connect())
