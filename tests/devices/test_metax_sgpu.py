"""Metax-SGPU: configuration, registration, admission, extraction, encoding (docs/spec/metax.md#2 to #6, #9)."""

from __future__ import annotations

import pytest
from builders import container, read_node
from tables import in_one_test

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.requests import checked_requests
from hami_webhook.devices.model import (
    BadRequest,
    Device,
    FixedMemory,
    RegistrationError,
    Request,
    ShareOfCard,
)
from hami_webhook.devices.pod_fit import read_pod_request
from hami_webhook.devices.vendors.metax.qos import SgpuCard
from hami_webhook.devices.vendors.metax.sgpu import read_memory
from hami_webhook.kube.objects import Pod

from .fit_env import CHART, JSON, FitEnv, Placed, configured, pod
from .metaxes import (
    APP_CLASS,
    OFFLINE,
    ONLINE,
    QOS,
    REGISTER,
    SGPU,
    VCORE,
    VMEMORY,
    g,
    one,
    pod_with_limits,
    sgpu_node,
)

SHARED = CHART["Metax-SGPU"]
SAMPLE = (
    '[{"uuid":"GPU-a16a","bdf":"0000:0a:00.0","model":"MXC500","totalDevCount":16,"totalCompute":100,"totalVRam":65536,'
    '"availableDevCount":6,"availableCompute":50,"availableVRam":32768,"numa":0,"healthy":true,'
    '"qosPolicy":"best-effort","linkZone":1}'
)
QOS_MESSAGE = f"{QOS} must be set one of [best-effort, fixed-share, burst-share]"
CLASS_MESSAGE = f"{APP_CLASS} must be set one of [online, offline]"
SINGLE_MESSAGE = "app-class pod must request single device"


# configuration


@pytest.mark.parametrize(("written", "aware"), [("true", True), ('"true"', True), ("false", False), ('"false"', False)])
def test_topology_awareness_is_a_boolean_or_its_text(written: str, aware: bool) -> None:
    vendors = configured(f"metax: {{resourceVCountName: {SGPU}, sgpuTopologyAware: {written}}}")
    assert getattr(vendors["Metax-SGPU"], "topology_aware", None) is aware


def test_without_names_of_its_memory_and_cores_a_card_is_given_whole() -> None:
    vendor = configured("metax: {resourceVCountName: a.b/s}")["Metax-SGPU"]
    limits: JSON = {"a.b/s": 1, VCORE: 5, VMEMORY: 2}
    (item,) = Pod.from_object(pod("p", container(**limits))).containers
    assert vendor.request(item) == Request(1, ShareOfCard(100), 100)


# registration


def test_what_is_missing_has_its_default_and_the_index_is_the_position() -> None:
    rest = '{"uuid":"a"},{"uuid":"b","numa":-1,"linkZone":-1,"index":7}]'
    inventory = SHARED.inventory(read_node(**{REGISTER: f"{SAMPLE},{rest}"}))
    assert inventory is not None
    key = "Metax-SGPU"
    assert inventory.devices == (
        Device(key, "GPU-a16a", 0, 16, 65536, 100, key, 0, healthy=True, extra=SgpuCard("best-effort", 1)),
        Device(key, "a", 1, 0, 0, 0, key, 0, healthy=False, extra=SgpuCard("", 0)),
        Device(key, "b", 2, 0, 0, 0, key, -1, healthy=False, extra=SgpuCard("", 0)),
    )


@pytest.mark.parametrize("text", ['[{"id":"a"}]', '[{"uuid":"a","qosPolicy":1}]', '[{"uuid":"a","linkZone":"1"}]'])
def test_what_cannot_be_read_is_no_card_at_all(text: str) -> None:
    with pytest.raises(RegistrationError, match=REGISTER):
        SHARED.inventory(read_node(**{REGISTER: text}))


# admission


def admitted(manifest: JSON) -> dict[str, str] | str:
    """The annotations admission leaves, or its message."""
    found = FitEnv([]).admit(manifest)
    return found.message if found.pod is None else found.pod["metadata"]["annotations"]


@in_one_test(
    ("notes", "count", "after"),
    [
        ({}, 1, {QOS: "best-effort"}),
        ({}, 3, {QOS: "best-effort"}),
        *(({QOS: qos}, 2, {QOS: qos}) for qos in ("best-effort", "fixed-share", "burst-share")),
        ({QOS: "Best-Effort"}, 1, QOS_MESSAGE),
        ({QOS: ""}, 1, QOS_MESSAGE),
        (ONLINE, 1, ONLINE),
        ({**ONLINE, QOS: "nonsense"}, 1, {**ONLINE, QOS: "nonsense"}),
        (OFFLINE, 1, {**OFFLINE, QOS: "best-effort"}),
        ({**OFFLINE, QOS: "nonsense"}, 1, QOS_MESSAGE),
        ({APP_CLASS: "Online"}, 1, CLASS_MESSAGE),
        ({APP_CLASS: ""}, 1, CLASS_MESSAGE),
        ({APP_CLASS: "other", QOS: "other"}, 2, CLASS_MESSAGE),
        (ONLINE, 2, SINGLE_MESSAGE),
        (OFFLINE, 2, SINGLE_MESSAGE),
        ({**OFFLINE, QOS: "other"}, 2, SINGLE_MESSAGE),
    ],
)
def test_class_and_qos_at_admission(notes: dict[str, str], count: int, after: dict[str, str] | str) -> None:
    assert admitted(pod_with_limits(notes=notes, sgpu=count)) == after


def test_every_container_is_looked_at_init_containers_too() -> None:
    assert admitted(pod("p", one(), init=[one("i", sgpu=1)])) == {QOS: "best-effort"}
    assert admitted(pod("p", one("a", sgpu=1), one("b", sgpu=2), annotations=ONLINE)) == SINGLE_MESSAGE
    assert admitted(pod("p", one("a", sgpu=1), one("b", sgpu=1), annotations=ONLINE)) == ONLINE


@pytest.mark.parametrize(
    "amounts", [{"vcore": 50, "vmemory": 4}, {"sgpu": 0, "vcore": 50}, {}], ids=["no count", "count 0", "nothing"]
)
def test_a_container_that_asks_for_no_card_is_left_alone(amounts: JSON) -> None:
    assert admitted(pod("p", one(**amounts), annotations={QOS: "nonsense"})) == {QOS: "nonsense"}


@pytest.mark.parametrize("notes", [{QOS: "x"}, {**OFFLINE, QOS: ""}, {APP_CLASS: "x"}])
def test_what_was_not_mutated_is_refused_all_the_same(notes: dict[str, str]) -> None:
    """By the validating path and, where that was missed, by Fit."""
    stored = Pod.from_object(pod_with_limits(notes=notes))
    with pytest.raises(Denied, match="must be set one of"):
        checked_requests(stored, CHART)
    with pytest.raises(BadRequest, match="must be set one of"):
        read_pod_request(stored, CHART, "spread")
    assert checked_requests(Pod.from_object(pod("p", one(vcore=5), annotations=notes)), CHART) == {}


def test_limits_and_requests_are_never_rewritten() -> None:
    limits: JSON = {SGPU: "1", VMEMORY: "2048Mi", VCORE: "10"}
    found = FitEnv([]).admit(pod("p", container(requests={SGPU: 1}, **limits)))
    assert (found.limits(), found.requests()) == (limits, {SGPU: "1"})


def test_more_cores_than_a_card_has_are_refused_but_of_online_pods() -> None:
    env = FitEnv([sgpu_node(g("A"))])
    refused = env.admit(pod_with_limits(vcore=101)).message
    assert f"{VCORE} 101 in container main is more than the 100 percent" in refused
    assert env.admit(pod_with_limits(vcore=100)).message == ""
    online = pod_with_limits(notes={APP_CLASS: "online"}, vcore=101)
    assert env.admit(online).message == ""
    assert isinstance(env.place(online), Placed)


# extraction


@pytest.mark.parametrize(
    ("limits", "request_"),
    [
        ({SGPU: 2}, Request(2, ShareOfCard(100), 100)),
        ({SGPU: 1, VCORE: 0}, Request(1, ShareOfCard(100), 0)),
        ({SGPU: 1, VCORE: 60, VMEMORY: 4}, Request(1, FixedMemory(4096), 60)),
        ({SGPU: 1, VCORE: 150, VMEMORY: 0}, Request(1, ShareOfCard(100), 150)),
        ({SGPU: "1k", VMEMORY: "0Gi"}, Request(1000, ShareOfCard(100), 100)),
        ({VCORE: 60, VMEMORY: 4}, None),
        ({SGPU: 0, VMEMORY: 4}, None),
    ],
)
def test_a_container_becomes_a_request(limits: JSON, request_: Request | None) -> None:
    (item,) = Pod.from_object(pod("p", container(**limits))).containers
    assert SHARED.request(item) == request_


def test_an_online_pods_compute_is_not_counted() -> None:
    for notes, cores in ((ONLINE, 0), (OFFLINE, 60), ({}, 60), ({APP_CLASS: "Online"}, 60)):
        asked = Pod.from_object(pod_with_limits(notes=notes, vcore=60))
        request = SHARED.request_in_pod(asked.containers[0], asked)
        assert request is not None
        assert request.cores == cores


@in_one_test(
    ("written", "mebibytes"),
    [
        (4, 4096),
        ("4", 4096),
        ("0", 0),
        ("2097151", 2147482624),
        ("2097152", None),
        ("2048Mi", 2048),
        ("16Gi", 16384),
        ("4G", 3814),
        ("1.5Gi", 1536),
        ("1.5", None),
        ("1500m", None),
        ("1k", 1024000),
        ("2k", 2048000),
        ("1M", 1024000000),
        ("1048576", 1073741824),
        ("2M", 1),
        ("1e3", 1024000),
        ("4e9", 3814),
        ("1Mi", 1),
        ("1023Ki", None),
        ("512Ki", None),
        ("1025Ki", 1),
        ("0Ki", 0),
        ("2147483647Mi", 2147483647),
        ("2147483648Mi", None),
        ("1Ei", None),
        ("-1", None),
        ("-1Gi", None),
        ("", None),
        ("4 Gi", None),
        (True, None),
        (None, None),
        ([], None),
        (4.0, 4096),
        (0.5, None),
    ],
)
def test_units_of_vmemory(written: object, mebibytes: int | None) -> None:
    assert read_memory(written) == mebibytes
