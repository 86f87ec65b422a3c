"""What a node's monitor reads, of which containers, and what it says where it can't."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hami_webhook.cluster.api import WatchEvent, WatchType
from hami_webhook.node.cards import CardMetrics, ProbeError
from hami_webhook.node.monitor import NodeMetrics
from hami_webhook.node.region_files import ContainerKey

from .monitored import SYSTEM, MonitoredNode, pod
from .regions import region

CARD = CardMetrics(0, "GPU-0", "A100", 1, 2, 3, 4, 5.0)


@pytest.fixture
def node(tmp_path: Path) -> MonitoredNode:
    return MonitoredNode(tmp_path)


async def look(node: MonitoredNode) -> NodeMetrics:
    """Two seconds after the look before."""
    node.now += 2
    return await node.monitor.look()


async def seen(node: MonitoredNode) -> list[tuple[str, str]]:
    return sorted((each.pod.name, each.container) for each in (await look(node)).containers)


async def test_containers_of_pods_that_are_on_the_node_are_read(node: MonitoredNode) -> None:
    for name in ("p", "q", "gone"):
        node.region(name, "main", region())
    node.put(pod("p", "main", "without"), pod("q", "main"))
    assert await seen(node) == [("p", "main"), ("q", "main")]
    node.pods.handle(WatchEvent(WatchType.DELETED, pod("q", "main")))
    node.pods.handle(WatchEvent(WatchType.MODIFIED, pod("p", "main", "without")))
    assert await seen(node) == [("p", "main")]


async def test_a_container_that_ended_uses_nothing(node: MonitoredNode) -> None:
    ended = {"name": "main", "state": {"terminated": {"exitCode": 0}}}
    for container in ("main", "proxy", "init"):
        node.region("p", container, region())
    node.region("over", "main", region())
    running = pod("p", "main", init=["init", "proxy"], statuses=[{"name": "main", "state": {"running": {}}}])
    over = pod("over", "main")
    over["status"]["phase"] = "Failed"
    node.put(running, over)
    assert await seen(node) == [("p", "init"), ("p", "main"), ("p", "proxy")]
    node.put(pod("p", "main", init=["init", "proxy"], statuses=[ended]), over)
    assert await seen(node) == [("p", "init"), ("p", "proxy")]


async def test_a_pod_that_cannot_be_read_costs_no_other(node: MonitoredNode) -> None:
    node.region("p", "main", region())
    spoilt = {**pod("spoilt", "main"), "spec": {"containers": "none"}}
    node.put(spoilt, pod("p", "main"))
    assert await seen(node) == [("p", "main")]


def test_the_first_containers_of_all_pods_come_first(node: MonitoredNode) -> None:
    node.put(pod("crowd", *(f"c{number}" for number in range(1000))), pod("p", "main", "second"))
    keys = [key for key, _ in node.pods.containers()]
    assert keys[:4] == [
        ContainerKey("uid-crowd", "c0"),
        ContainerKey("uid-p", "main"),
        ContainerKey("uid-crowd", "c1"),
        ContainerKey("uid-p", "second"),
    ]
    assert len(keys) == 1002


async def test_a_region_that_lies_costs_its_container_s_series_and_one_event(node: MonitoredNode) -> None:
    node.put(pod("p", "main"), pod("q", "main"))
    node.region("p", "main", region(magic=7))
    node.region("q", "main", region())
    assert await seen(node) == [("q", "main")]
    assert node.events == {}, "one that is being made can't be read at first"
    for size in (10, 20, 30):
        node.region("p", "main", bytes(size))
        assert (await look(node)).refused == 1
    assert node.events == {"SharedRegionUnreadable": 1}
    (event,) = node.cluster.events
    assert (event.note.namespace, event.note.name) == ("team-a", "p")
    assert event.note.message.startswith("the use of container main isn't known: its shared region: it ends at 10")
    node.region("p", "main", region())
    assert await seen(node) == [("p", "main"), ("q", "main")]


async def test_however_often_it_is_asked_it_reads_once_a_second(node: MonitoredNode) -> None:
    node.cards = [CARD]
    first = await node.monitor.look()
    node.now += 0.9
    assert await node.monitor.look() is first
    node.now += 0.1
    assert await node.monitor.look() is not first


async def test_a_clock_that_is_set_back_does_not_stop_it(node: MonitoredNode) -> None:
    first = await node.monitor.look()
    node.now -= 3600
    assert await node.monitor.look() is not first


async def test_without_nvml_containers_are_read_and_it_is_said_once(
    node: MonitoredNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.region("p", "main", region())
    node.put(pod("p", "main"))
    node.cards = ProbeError("NVML Shared Library Not Found")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await seen(node) == [("p", "main")]
    assert caplog.messages == [
        "no metrics of cards: NVML: NVML Shared Library Not Found; NVIDIA's runtime brings it into the container"
    ]


async def test_without_the_folder_cards_are_read_and_it_is_said_once(
    node: MonitoredNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.folder.rmdir()
    node.cards = [CARD]
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert (await look(node)).cards == [CARD]
    (said,) = caplog.messages
    assert said.startswith(f"{node.folder} doesn't exist, so no container is monitored")


@pytest.mark.parametrize(("namespace", "told"), [(SYSTEM, True), ("kube-system", True), ("team-a", False)])
async def test_hami_s_own_monitor_on_the_node_is_told_unless_a_tenant_pretends_it(
    node: MonitoredNode, caplog: pytest.LogCaptureFixture, namespace: str, told: bool
) -> None:
    node.cards = [CARD]
    node.put(pod("hami-device-plugin-x", "device-plugin", "vgpu-monitor", namespace=namespace))
    with caplog.at_level(logging.WARNING):
        await look(node)
        await look(node)
    said = f"HAMi's own monitor runs on this node too, in the pod {namespace}/hami-device-plugin-x"
    assert [message[: len(said)] for message in caplog.messages] == ([said] if told else [])
