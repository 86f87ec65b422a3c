"""Which of the things that a node says are believed, and for how long it is waited for."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from aiohttp import web
from http_server import http_server

from hami_webhook.cluster.api import JSON, Kind, WatchEvent, WatchType
from hami_webhook.cluster.informer import Replaced
from hami_webhook.usage.bound_pods import BoundPods, decode_bound
from hami_webhook.usage.scrape import Fetcher, Monitors

from .test_samples import TEXT

SYSTEM = "hami-system"


def pod(namespace: str, name: str, node: str = "n1", cards: str = "GPU-0", **status: Any) -> JSON:
    notes = {"hami.io/vgpu-devices-allocated": f"{cards},NVIDIA,100,10:;", "other": "x"}
    meta = {"namespace": namespace, "name": name, "annotations": notes}
    return {"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": "Running", **status}}


def monitor(node: str, namespace: str = SYSTEM, address: str = "10.1.2.3", **labels: str) -> JSON:
    meta = {"namespace": namespace, "name": f"on-{node}", "labels": {"app.kubernetes.io/component": "node", **labels}}
    ports = [{"name": "metrics", "containerPort": 9394}]
    return {
        "metadata": meta,
        "spec": {"nodeName": node, "containers": [{"ports": ports}]},
        "status": {"podIP": address},
    }


def known(*pods: JSON) -> BoundPods:
    found = BoundPods(SYSTEM)
    found.handle(Replaced(iter(pods)))
    return found


class Nodes:
    """What the node n1 says, and what was asked of it and of others, which say nothing."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[str] = []

    async def __call__(self, address: str) -> str:
        self.asked.append(address)
        if address != "http://10.1.2.3:9394/metrics":
            raise ValueError("HTTP status 500")
        return self.text


async def test_a_node_is_believed_of_its_own_pods_and_cards_alone() -> None:
    """A compromised node tells of a pod and a card of another one, and of a pod that isn't there."""
    pods = known(pod("team-a", "p"), pod("team-a", "q", "n2"), monitor("n1"), monitor("n2", address="10.1.2.4"))
    lies = TEXT.replace('pod="p"', 'pod="q"') + TEXT.replace('pod="p"', 'pod="nowhere"') + TEXT.replace("n1", "n2")
    said = (await Monitors(pods, Nodes(TEXT + lies), lambda: 100.0).of(["n1"]))["n1"].found
    assert said is not None
    assert set(said.pods) == {("team-a", "p")}
    assert {node for node, _ in said.cards} == {"n1"}


async def test_a_node_is_asked_once_for_many_who_ask() -> None:
    now = 100.0
    nodes = Nodes(TEXT)
    monitors = Monitors(known(pod("team-a", "p"), monitor("n1"), monitor("n2", address="10.1.2.4")), nodes, lambda: now)
    answers = await asyncio.gather(*(monitors.of() for _ in range(50)))
    assert len(nodes.asked) == 2
    assert all(set(each) == {"n1", "n2"} and each["n2"].found is None for each in answers)
    now = 104.0
    await monitors.of()
    assert len(nodes.asked) == 2
    now = 106.0
    assert (await monitors.of(["n1"]))["n1"].at == 106.0
    assert len(nodes.asked) == 3


@pytest.mark.parametrize(
    "found",
    [
        monitor("n1", namespace="team-a"),
        monitor("n1", address=""),
        {**monitor("n1"), "status": {"podIP": "10.1.2.3", "phase": "Failed"}},
        {**monitor("n1"), "spec": {"nodeName": "n1", "containers": [{}]}},
        monitor("n1", **{"app.kubernetes.io/component": "webhook"}),
    ],
    ids=["a tenant's pod", "no address", "it has ended", "no port", "another component"],
)
def test_what_is_no_monitor_is_not_asked(found: JSON) -> None:
    assert known(found).monitors() == {}


def test_pods_are_followed() -> None:
    pods = known(pod("team-a", "p"), pod("team-a", "without", cards=""), monitor("n1", address="fd00::1"))
    assert pods.monitors() == {"n1": "http://[fd00::1]:9394/metrics"}
    assert [(each.name, each.uuids) for each in pods.with_cards("team-a")] == [("p", ("GPU-0",))]
    pods.handle(WatchEvent(WatchType.MODIFIED, pod("team-a", "p", "n2", cards="GPU-1,NVIDIA,1,1:GPU-2")))
    assert (set(pods.on("n1")), set(pods.on("n2"))) == ({("team-a", "without"), (SYSTEM, "on-n1")}, {("team-a", "p")})
    pods.handle(WatchEvent(WatchType.MODIFIED, pod("team-a", "p", "n2", phase="Succeeded")))
    pods.handle(WatchEvent(WatchType.DELETED, monitor("n1")))
    assert (pods.with_cards(), pods.monitors()) == ([], {})


def test_of_a_pod_nothing_is_kept_that_is_not_read() -> None:
    meta = b'"metadata":{"name":"p","annotations":{"secret":"x"},"labels":{"secret":"b"}}'
    found = decode_bound(Kind.PODS, b'{%s,"spec":{"nodeName":"n1","containers":[{"env":["secret"]}]}}' % meta)
    assert (found["metadata"]["name"], found["spec"]["nodeName"]) == ("p", "n1")
    assert "secret" not in str(found)


async def test_an_answer_without_end_and_a_redirect_are_refused() -> None:
    with http_server(lambda request, body: itertools.repeat(b" " * (1 << 20))) as url:
        async with Fetcher() as fetch:
            with pytest.raises(ValueError, match="more than 8 MiB"):
                await fetch(url)
    with http_server(lambda request, body: web.Response(status=302, headers={"Location": "http://10.0.0.1/"})) as url:
        async with Fetcher() as fetch:
            with pytest.raises(ValueError, match="HTTP status 302"):
                await fetch(url)
