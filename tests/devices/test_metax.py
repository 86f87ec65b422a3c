"""MetaX but for the choice of shared cards, which is in `test_metax_fit.py` (docs/spec/metax.md).

First its shared cards: configuration, registration, admission, extraction, encoding, costs. Then its whole cards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

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
from hami_webhook.devices.vendors.metax.whole import read_table
from hami_webhook.kube.objects import Node, Pod

from .fit_env import CHART, JSON, FitEnv, Placed, configured, pod, registered
from .metaxes import (
    APP_CLASS,
    GPU,
    GPU_ALLOCATED,
    LOSSES,
    NODE_POLICY,
    OFFLINE,
    ONLINE,
    PLUGIN_ALLOCATED,
    PLUGIN_TIME,
    QOS,
    REGISTER,
    SGPU,
    SGPU_ALLOCATED,
    VCORE,
    VMEMORY,
    cards_of,
    g,
    gpu_node,
    one,
    placed,
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
    inventory = registered(SHARED, read_node(**{REGISTER: f"{SAMPLE},{rest}"}))
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


# 14, example 1


def test_1_basic() -> None:
    env = FitEnv([sgpu_node(g("GPU-A"))])
    admitted = env.admit(pod_with_limits(vcore=60, vmemory=4)).pod
    assert admitted is not None
    assert admitted["metadata"]["annotations"] == {QOS: "best-effort"}
    found = placed(env, pod_with_limits(vcore=60, vmemory=4))
    written = "GPU-A,Metax-SGPU,4096,60:;"
    assert found.annotations == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": "1767225600",
        "hami.io/metax-sgpu-devices-to-allocate": written,
        SGPU_ALLOCATED: written,
        PLUGIN_ALLOCATED: '[[{"uuid":"GPU-A","compute":60,"vRam":4096}]]',
        PLUGIN_TIME: "1767225600000000000",
    }


# section 9


def test_the_plugins_encoding_has_init_containers_first_empty_slots_and_no_zeros() -> None:
    manifest = pod(
        "p",
        one("plain"),
        one("none", sgpu=1, vcore=0, vmemory=1),
        one("two", sgpu=2, vcore=20, vmemory=2),
        init=[one("first", sgpu=1, vcore=40, vmemory=3)],
    )
    found = placed(FitEnv([sgpu_node(g("A"), g("B"))]), manifest)
    assert found.annotations[PLUGIN_ALLOCATED] == (
        '[[{"uuid":"B","compute":40,"vRam":3072}],[],[{"uuid":"B","vRam":1024}],'
        '[{"uuid":"A","compute":20,"vRam":2048},{"uuid":"B","compute":20,"vRam":2048}]]'
    )


def test_a_pod_is_told_of_the_vendor_it_uses_only_and_scored_by_it_only() -> None:
    """A node with both kinds: HAMi adds 2000 for the tables to a pod that asks for shared cards."""
    both = {**gpu_node(2, losses={"1": 0}).annotations, **sgpu_node(g("A")).annotations}
    env = FitEnv([read_node("n1", capacity={GPU: 2}, **both)])
    shared = placed(env, pod_with_limits("s", vcore=10, vmemory=1), keep=False)
    assert (shared.score, GPU_ALLOCATED in shared.annotations) == (0, False)
    whole = placed(env, pod_with_limits("w", gpu=1), keep=False)
    assert (whole.score, SGPU_ALLOCATED in whole.annotations, PLUGIN_TIME in whole.annotations) == (2000, False, False)


# section 10

KEYS = [f"limits.{name}" for name in (SGPU, VMEMORY, VCORE)]


def amounts_of(charge: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(charge.get(key, 0) for key in KEYS)


@pytest.mark.parametrize(
    ("notes", "amounts", "waiting", "after"),
    [
        ({}, {"sgpu": 1, "vcore": 50}, (1, 32, 50), (1, 64, 50)),
        ({}, {"sgpu": 2, "vmemory": "1536Mi"}, (2, 3, 200), (2, 3, 200)),
        ({}, {"sgpu": 1, "vcore": 0, "vmemory": "1025Mi"}, (1, 2, 0), (1, 2, 0)),
        (ONLINE, {"sgpu": 1, "vcore": 60, "vmemory": 4}, (1, 4, 0), (1, 4, 0)),
        (OFFLINE, {"sgpu": 1, "vcore": 60, "vmemory": 4}, (1, 4, 60), (1, 4, 60)),
    ],
)
def test_what_a_shared_card_costs_before_and_after_it_is_placed(
    notes: dict[str, str], amounts: JSON, waiting: tuple[int, ...], after: tuple[int, ...]
) -> None:
    env = FitEnv([sgpu_node(g("SMALL", totalVRam=32768), name="n0"), sgpu_node(g("A"), g("B"))])
    manifest = pod_with_limits("p", notes, **amounts)
    assert amounts_of(env.waiting(manifest)) == waiting
    assert amounts_of(placed(FitEnv(env.nodes[1:]), manifest).debits) == after


# whole cards: registration, the topology tables, broken ones (3, 6 to 8, 11, 13)

WHOLE = CHART["Metax-GPU"]
LOSS_TABLE = {"1": 150, "2": 80, "3": 390, "4": 80, "5": 150, "6": 0}
SCORE_TABLE = {"1": 0, "2": 110, "3": 330, "4": 660, "5": 700, "6": 850}


@in_one_test(
    ("text", "table"),
    [
        (None, {}),
        ("{}", {}),
        (json.dumps(LOSS_TABLE), LOSS_TABLE),
        ('{"1":-5}', {"1": -5}),
        ('{"1":1.5}', None),
        ('{"1":"150"}', None),
        ('{"1":true}', None),
        ('{"1":1e400}', None),
        ('{"1":99999999999999999999999}', None),
        ("[1]", None),
        ("null", None),
        ("{", None),
        ("", None),
    ],
)
def test_a_topology_table_is_a_json_object_of_integers(text: str | None, table: dict[str, int] | None) -> None:
    assert read_table(text) == table


def test_a_table_that_cannot_be_read_is_told_and_leaves_the_cards() -> None:
    inventory = registered(WHOLE, gpu_node(2, losses="{", scores={"1": 5}))
    assert inventory.warnings == (f"{LOSSES} is ignored: it must be a JSON object of integers",)
    assert inventory.facts.scores == {"1": 5}


@in_one_test(
    ("policy", "count", "tables", "score"),
    [
        ("binpack", 1, True, 1850),
        ("binpack", 6, True, 2000),
        ("spread", 1, True, 2000),
        ("spread", 6, True, 1150),
        ("spread", 7, True, 2000),
        ("binpack", 7, True, 0),
        ("binpack", 1, False, 0),
        ("spread", 1, False, 2000),
        ("Binpack", 6, True, 0),
        ("", 6, True, 0),
        (None, 6, True, 2000),
    ],
)
def test_the_node_score(policy: str | None, count: int, tables: bool, score: float) -> None:
    env = FitEnv([gpu_node(7, losses=LOSS_TABLE, scores=SCORE_TABLE) if tables else gpu_node(7)])
    notes = {} if policy is None else {NODE_POLICY: policy}
    assert placed(env, pod_with_limits(notes=notes, gpu=count)).score == score


@pytest.mark.parametrize(
    ("policy", "tables"),
    [
        ("binpack", {}),
        ("binpack", {"scores": SCORE_TABLE}),
        ("binpack", {"losses": {"2": 0}}),
        ("binpack", {"losses": "{"}),
        ("spread", {}),
        ("spread", {"losses": LOSS_TABLE}),
        ("spread", {"scores": {"2": 900}}),
        ("spread", {"scores": "{"}),
    ],
)
def test_a_node_without_its_table_or_entry_is_the_last_to_be_taken(policy: str, tables: dict[str, object]) -> None:
    """Issues 2566 and 2572: half a table made a node the best of all in one policy."""
    env = FitEnv([gpu_node(6, "bare", **tables), gpu_node(6, "full", losses={"1": 1999}, scores={"1": 1})])
    assert placed(env, pod_with_limits(notes={NODE_POLICY: policy}, gpu=1)).node == "full"


def test_cards_are_counted_once_over_all_containers() -> None:
    """Each container takes its own cards; an init container may use those of an app container."""
    env = FitEnv([gpu_node(6, losses=LOSS_TABLE)])
    found = placed(env, pod("p", one("a", gpu=1), one("b", gpu=2), init=[one("i", gpu=2)]))
    assert cards_of(found, GPU_ALLOCATED) == [
        ["n1-metax-5", "n1-metax-4"],
        ["n1-metax-5"],
        ["n1-metax-4", "n1-metax-3"],
    ]
    assert found.score == 2000 - LOSS_TABLE["3"]
    assert found.debits == {f"limits.{GPU}": 3}


def test_uuid_lists_have_no_effect_as_the_ids_are_not_hardware() -> None:
    notes = {"metax-tech.com/use-gpuuuid": "x", "metax-tech.com/nouse-gpuuuid": "n1-metax-0"}
    placed(FitEnv([gpu_node(1)]), pod_with_limits(notes=notes, gpu=1))


def test_broken_cards_are_not_given() -> None:
    """Which of the cards are broken isn't known; as many as are allocatable may be in use at once."""
    env = FitEnv(
        [Node.from_object({"metadata": {"name": "n1"}, "status": {"capacity": {GPU: "4"}, "allocatable": {GPU: "2"}}})]
    )
    assert env.place(pod_with_limits("three", gpu=3)) == {
        "n1": "2/4 AllocatedCardsInsufficientRequest, 2/4 CardNotHealth"
    }
    placed(env, pod_with_limits("a", gpu=1))
    assert env.place(pod_with_limits("two", gpu=2)) == {
        "n1": "1/4 AllocatedCardsInsufficientRequest, 1/4 CardTimeSlicingExhausted, 2/4 CardNotHealth"
    }
    assert isinstance(env.place(pod("xy", one("x", gpu=1), one("y", gpu=1))), dict)
    placed(env, pod_with_limits("b", gpu=1))
    assert env.place(pod_with_limits("c", gpu=1)) == {"n1": "2/4 CardNotHealth, 2/4 CardTimeSlicingExhausted"}


def test_capacity_without_allocatable_is_all_usable() -> None:
    bare = Node.from_object({"metadata": {"name": "n1"}, "status": {"capacity": {GPU: "2"}}})
    placed(FitEnv([bare]), pod_with_limits(gpu=2))
