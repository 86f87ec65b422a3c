"""The metax page's worked examples (section 14, by number), outputs and quota (9, 10), and its whole cards."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from builders import read_node
from tables import in_one_test

from hami_webhook.devices.vendors.metax.whole import read_table
from hami_webhook.kube.objects import Node

from .fit_env import CHART, JSON, FitEnv, pod
from .metaxes import (
    AWARE,
    CARD_POLICY,
    GPU,
    GPU_ALLOCATED,
    LOSSES,
    NODE_POLICY,
    OFFLINE,
    ONLINE,
    PLUGIN_ALLOCATED,
    PLUGIN_TIME,
    QOS,
    SGPU,
    SGPU_ALLOCATED,
    VCORE,
    VMEMORY,
    cards_of,
    chosen,
    g,
    gpu_node,
    one,
    placed,
    pod_with_limits,
    sgpu_node,
    zoned,
)

FIXED = {QOS: "fixed-share"}


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


def test_2_qos() -> None:
    env = FitEnv([sgpu_node(g("GPU-A", qosPolicy="fixed-share"))])
    placed(env, pod_with_limits("first", FIXED, vcore=30, vmemory=8))
    assert env.place(pod_with_limits("b", vcore=30, vmemory=4)) == {"n1": "1/1 CardQosPolicyMismatch"}
    assert chosen(env, pod_with_limits("c", FIXED, vcore=30, vmemory=4), keep=False) == ["GPU-A"]
    assert env.place(pod_with_limits("d", FIXED, vcore=100, vmemory=4)) == {"n1": "1/1 CardInsufficientCore"}
    assert env.place(pod_with_limits("e", vcore=100, vmemory=4)) == {"n1": "1/1 CardInsufficientCore"}


@pytest.mark.parametrize(
    ("count", "cards"), [(2, ["G2", "G1"]), (3, ["G5", "G4", "G3"]), (4, ["G2", "G1", "G5", "G4"])]
)
def test_3_the_smallest_zone(count: int, cards: list[str]) -> None:
    assert chosen(FitEnv([sgpu_node(*zoned(1, 1, 2, 2, 2))]), pod_with_limits(sgpu=count)) == cards


def test_4_filled_up_from_unlinked_cards() -> None:
    assert chosen(FitEnv([sgpu_node(*zoned(1, 1, 1, 0, 0))]), pod_with_limits(sgpu=4)) == ["G3", "G2", "G1", "G5"]


def test_5_loss_between_nodes() -> None:
    env = FitEnv([sgpu_node(*zoned(1, 1, 1, 1), name="a"), sgpu_node(*zoned(1, 1, name="H"), name="b")])
    found = placed(env, pod_with_limits(notes={AWARE: "true"}, sgpu=2), keep=False)
    assert (found.node, found.score) == ("b", 100 * 10000)
    alone = placed(FitEnv(env.nodes[:1]), pod_with_limits(notes={AWARE: "true"}, sgpu=2))
    assert alone.score == 60 * 10000
    # without the annotation usage decides: of equals the first name, else the busier one
    assert placed(env, pod_with_limits(sgpu=2), keep=False).node == "a"
    placed(env, pod_with_limits("small", {"metax-tech.com/use-gpuuuid": "H1"}, vcore=1, vmemory=1))
    assert placed(env, pod_with_limits(sgpu=1), keep=False).node == "b"
    assert placed(env, pod_with_limits(notes={NODE_POLICY: "spread"}, sgpu=1), keep=False).node == "a"


def test_6_whole_cards() -> None:
    env = FitEnv([gpu_node(6, losses={"1": 150, "2": 80}), gpu_node(6, "n2", losses={"1": 90, "2": 200})])
    single = placed(env, pod_with_limits(gpu=1), keep=False)
    assert (single.node, single.score, cards_of(single, GPU_ALLOCATED)) == ("n2", 1910, [["n2-metax-5"]])
    double = placed(env, pod_with_limits(gpu=2), keep=False)
    assert (double.node, double.score) == ("n1", 1920)


def test_7_whole_cards_one_of_them_busy() -> None:
    env = FitEnv([gpu_node(2)])
    assert cards_of(placed(env, pod_with_limits("busy", gpu=1)), GPU_ALLOCATED) == [["n1-metax-1"]]
    busy = {"n1": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardTimeSlicingExhausted"}
    assert env.place(pod_with_limits("two", gpu=2)) == busy
    assert env.place(pod_with_limits("three", gpu=3)) == {"n1": "NodeInsufficientDevice"}


def test_8_online() -> None:
    env = FitEnv([sgpu_node(g("G1"), g("G2"))])
    placed(env, pod_with_limits("on", {**ONLINE, "metax-tech.com/use-gpuuuid": "G1"}, vmemory=4))
    placed(env, pod_with_limits("off", {**OFFLINE, "metax-tech.com/use-gpuuuid": "G2"}, vmemory=4, vcore=30))
    found = placed(env, pod_with_limits("again", ONLINE, vmemory=4), keep=False)
    assert found.annotations[SGPU_ALLOCATED] == "G1,Metax-SGPU,4096,0:;"
    assert found.annotations[PLUGIN_ALLOCATED] == '[[{"uuid":"G1","vRam":4096}]]'
    assert env.place(pod_with_limits("ordinary", vmemory=4)) == {"n1": "2/2 CardAppClassMismatch"}
    assert chosen(env, pod_with_limits("off-2", OFFLINE, vmemory=4, vcore=30), keep=False) == ["G2"]


def test_9_two_containers() -> None:
    env = FitEnv([sgpu_node(g("GPU-A"))])
    found = placed(env, pod("p", one("a", sgpu=1, vcore=60, vmemory=4), one("b", sgpu=1, vcore=30, vmemory=8)))
    assert found.annotations[SGPU_ALLOCATED] == "GPU-A,Metax-SGPU,4096,60:;GPU-A,Metax-SGPU,8192,30:;"
    assert found.annotations[PLUGIN_ALLOCATED] == (
        '[[{"uuid":"GPU-A","compute":60,"vRam":4096}],[{"uuid":"GPU-A","compute":30,"vRam":8192}]]'
    )
    (view,) = env.state.views()
    used = view.used("Metax-SGPU", "GPU-A")
    assert (used.slots, used.memory, used.cores) == (2, 12288, 90)
    assert found.debits == {f"limits.{SGPU}": 2, f"limits.{VCORE}": 90, f"limits.{VMEMORY}": 12}


@pytest.mark.parametrize(
    ("vmemory", "mebibytes"), [("4", 4096), ("2048Mi", 2048), ("4G", 3814), ("1.5Gi", 1536), (None, 65536)]
)
def test_10_units(vmemory: str | None, mebibytes: int) -> None:
    amounts: JSON = {} if vmemory is None else {"vmemory": vmemory}
    found = placed(FitEnv([sgpu_node(g("GPU-A"))]), pod_with_limits(vcore=50, **amounts))
    assert found.annotations[SGPU_ALLOCATED] == f"GPU-A,Metax-SGPU,{mebibytes},50:;"


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


def test_the_quota_example() -> None:
    cards = sgpu_node(g("BIG"), g("SMALL", totalVRam=32768), g("MID"))
    env = FitEnv([cards], hard={KEYS[1]: 64, KEYS[2]: 200})
    two = {CARD_POLICY: "spread", "metax-tech.com/nouse-gpuuuid": "SMALL"}
    placed(env, pod_with_limits("a", two, sgpu=2, vcore=40, vmemory=8))
    assert amounts_of(env.charged()) == (2, 16, 80)
    placed(env, pod_with_limits("b", {"metax-tech.com/use-gpuuuid": "SMALL"}, vcore=50))
    assert amounts_of(env.charged()) == (3, 48, 130)
    # only cards of 64 GiB are free
    assert env.place(pod_with_limits("c", vcore=50)) == {"n1": "3/3 ResourceQuotaNotFit"}
    assert amounts_of(env.waiting(pod_with_limits("d", vcore=80, vmemory=4))) == (1, 4, 80), "more than 70 are left"


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


def test_capacity_makes_cards() -> None:
    inventory = WHOLE.inventory(gpu_node(2))
    assert inventory is not None
    assert [(d.uuid, d.index, d.slots, d.memory, d.cores, d.type, d.numa, d.healthy) for d in inventory.devices] == [
        ("n1-metax-0", 0, 1, 65536, 100, "Metax-GPU", 0, True),
        ("n1-metax-1", 1, 1, 65536, 100, "Metax-GPU", 0, True),
    ]


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
    inventory = WHOLE.inventory(gpu_node(2, losses="{", scores={"1": 5}))
    assert inventory is not None
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


def test_two_containers_with_whole_cards_fit() -> None:
    """HAMi wants the second container to take the first one's card, which is full."""
    found = placed(FitEnv([gpu_node(2)]), pod("p", one("a", gpu=1), one("b", gpu=1)))
    assert cards_of(found, GPU_ALLOCATED) == [["n1-metax-1"], ["n1-metax-0"]]
    refused = FitEnv([gpu_node(2)]).place(pod("p", one("a", gpu=1), one("b", gpu=2)))
    assert refused == {"n1": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardTimeSlicingExhausted"}


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
