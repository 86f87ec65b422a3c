"""What is logged of a pod on its way from its review to its binding."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from admission.clusters import FULL, quota_cluster
from admission.reviews import pod, review

from hami_webhook.cluster.api import Kind
from hami_webhook.logs import JsonFormatter

from .serving import served
from .sockets import until
from .test_metrics import node


async def test_a_pod_is_followed_by_its_uid_from_review_to_binding(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "hami_webhook")
    cluster = await quota_cluster(FULL)
    await cluster.create(Kind.NODES, node())
    async with served(tmp_path, cluster) as webhook:
        written = pod("p", gpu=1, mem=100, uid="u1", schedulerName="hami-scheduler")
        sent = review(written)
        assert (await webhook.review("/validate", sent))["allowed"]
        refused = await webhook.review("/validate", review(pod("big", gpu=99, mem=3000, uid="u2")))
        stored = await cluster.create(Kind.PODS, written)
        uid = stored["metadata"]["uid"]
        state = webhook.process.core.state
        await until(lambda: state.pod(uid) is not None)
        extender = webhook.extender_url
        for name in ("absent", "n1"):
            await webhook.client.post(f"{extender}/filter", json={"Pod": stored, "NodeNames": [name]})
        binding = {"PodName": "p", "PodNamespace": "team-a", "PodUID": uid, "Node": "n1"}
        assert (await webhook.client.post(f"{extender}/bind", json=binding)).json() == {"Error": ""}
    events = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    of_pod = [event for event in events if event.get("uid") in ("u1", uid)]
    assert [event["msg"] for event in of_pod] == [
        "pod allowed",
        "no node takes the pod",
        "nodes take the pod",
        "pod bound",
    ]
    assert all((event["namespace"], event["pod"]) == ("team-a", "p") and event["duration"] >= 0 for event in of_pod)
    assert of_pod[0]["review"] == sent["request"]["uid"]
    assert of_pod[1]["reason"] == "1 node: node unregistered"
    assert of_pod[-1]["node"] == "n1"
    (denied,) = [event for event in events if event.get("uid") == "u2"]
    assert (denied["msg"], denied["level"], denied["code"]) == ("pod refused", "info", 403)
    assert denied["reason"] == refused["status"]["message"]
