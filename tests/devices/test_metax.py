"""The metax page's worked examples (section 14, by number) and the quota example of section 10."""

from __future__ import annotations

import pytest
from builders import read_node

from hami_webhook.devices.reasons import Rejection
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import pod_budget
from hami_webhook.quota.pricing import charge_of, waiting_charge
from hami_webhook.scheduling.fit import fit_pod, read_pod_request

from .fit_env import CHART, NOW, FitEnv, pod
from .metaxes import (
    AWARE,
    CARD_POLICY,
    GPU,
    GPU_ALLOCATED,
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
    amounts = {} if vmemory is None else {"vmemory": vmemory}
    found = placed(FitEnv([sgpu_node(g("GPU-A"))]), pod_with_limits(vcore=50, **amounts))
    assert found.annotations[SGPU_ALLOCATED] == f"GPU-A,Metax-SGPU,{mebibytes},50:;"


# section 9


def test_both_encodings_have_init_containers_first_and_keep_empty_slots() -> None:
    env = FitEnv([sgpu_node(g("A"), g("B"))])
    manifest = pod(
        "p",
        one("plain"),
        one("none", sgpu=1, vcore=0, vmemory=1),
        one("two", sgpu=2, vcore=20, vmemory=2),
        init=[one("first", sgpu=1, vcore=40, vmemory=3)],
    )
    found = placed(env, manifest)
    assert found.annotations[SGPU_ALLOCATED] == (
        "B,Metax-SGPU,3072,40:;;B,Metax-SGPU,1024,0:;A,Metax-SGPU,2048,20:B,Metax-SGPU,2048,20:;"
    )
    assert found.annotations[PLUGIN_ALLOCATED] == (
        '[[{"uuid":"B","compute":40,"vRam":3072}],[],[{"uuid":"B","vRam":1024}],'
        '[{"uuid":"A","compute":20,"vRam":2048},{"uuid":"B","compute":20,"vRam":2048}]]'
    )


def test_a_whole_card_is_written_under_hamis_two_keys_only() -> None:
    found = placed(FitEnv([gpu_node(4)]), pod_with_limits(gpu=1))
    written = "n1-metax-3,Metax-GPU,65536,100:;"
    assert {key: text for key, text in found.annotations.items() if "metax" in key} == {
        "hami.io/metax-gpu-devices-to-allocate": written,
        GPU_ALLOCATED: written,
    }


def test_a_pod_is_told_of_the_vendor_it_uses_only_and_scored_by_it_only() -> None:
    """A node with both kinds: HAMi adds 2000 for the tables to a pod that asks for shared cards."""
    both = gpu_node(2, losses={"1": 0}).annotations | sgpu_node(g("A")).annotations
    env = FitEnv([read_node("n1", capacity={GPU: 2}, **both)])
    shared = placed(env, pod_with_limits("s", vcore=10, vmemory=1), keep=False)
    assert (shared.score, GPU_ALLOCATED in shared.annotations) == (0, False)
    whole = placed(env, pod_with_limits("w", gpu=1), keep=False)
    assert (whole.score, SGPU_ALLOCATED in whole.annotations, PLUGIN_TIME in whole.annotations) == (2000, False, False)


# section 10


def account_of(**hard: str) -> QuotaAccount:
    keys = {"vmemory": VMEMORY, "vcore": VCORE, "sgpu": SGPU, "gpu": GPU}
    return QuotaAccount.read(
        ResourceQuota.from_object(
            {
                "metadata": {"name": "q", "namespace": "default"},
                "spec": {"hard": {f"limits.{keys[key]}": amount for key, amount in hard.items()}},
                "status": {"used": {f"limits.{keys[key]}": "0" for key in hard}},
            }
        ),
        CHART,
    )


def test_the_quota_example() -> None:
    quota = account_of(vmemory="64", vcore="200")
    env = FitEnv([sgpu_node(g("BIG"), g("SMALL", totalVRam=32768), g("MID", totalVRam=65536))])
    mem, core = f"limits.{VMEMORY}", f"limits.{VCORE}"
    notes = {CARD_POLICY: "spread", "metax-tech.com/nouse-gpuuuid": "SMALL"}
    first = placed(env, pod_with_limits("a", notes, sgpu=2, vcore=40, vmemory=8))
    assert (first.debits[mem], first.debits[core]) == (16, 80)
    second = placed(env, pod_with_limits("b", {"metax-tech.com/use-gpuuuid": "SMALL"}, vcore=50))
    assert (second.debits[mem], second.debits[core]) == (32, 50)
    # only 64 GiB cards free: 49152 + 65536 MiB would be more than 64 GiB
    third = Pod.from_object(pod_with_limits("c", {QOS: "best-effort"}, vcore=50))
    budget = pod_budget(third, [quota], env.state.pods_in("default"), CHART, env.state, NOW, 300)
    ask = read_pod_request(third, CHART, "spread")
    assert ask is not None
    (view,) = env.state.views()
    refused = fit_pod(view, ask, CHART, budget)
    assert isinstance(refused, Rejection)
    assert str(refused) == "3/3 ResourceQuotaNotFit"
    fourth = Pod.from_object(pod_with_limits("d", vcore=80, vmemory=4))
    used = {mem: 48, core: 130}
    over = quota.with_increase("-", None, used).overrun(waiting_charge(fourth, CHART, env.state))
    assert over == (core,)


@pytest.mark.parametrize(
    ("notes", "amounts", "waiting", "after"),
    [
        ({}, {"sgpu": 2, "vcore": 40, "vmemory": 8}, (2, 16, 80), (2, 16, 80)),
        ({}, {"sgpu": 1, "vcore": 50}, (1, 32, 50), (1, 64, 50)),
        ({}, {"sgpu": 2, "vmemory": "1536Mi"}, (2, 3, 200), (2, 3, 200)),
        ({}, {"sgpu": 1, "vcore": 0, "vmemory": "1025Mi"}, (1, 2, 0), (1, 2, 0)),
        (ONLINE, {"sgpu": 1, "vcore": 60, "vmemory": 4}, (1, 4, 0), (1, 4, 0)),
        (OFFLINE, {"sgpu": 1, "vcore": 60, "vmemory": 4}, (1, 4, 60), (1, 4, 60)),
    ],
)
def test_what_a_shared_card_costs_before_and_after_it_is_placed(
    notes: dict[str, str], amounts: dict[str, object], waiting: tuple[int, ...], after: tuple[int, ...]
) -> None:
    env = FitEnv([sgpu_node(g("SMALL", totalVRam=32768), name="n0"), sgpu_node(g("A"), g("B"))])
    manifest = pod_with_limits("p", notes, **amounts)
    keys = [f"limits.{name}" for name in (SGPU, VMEMORY, VCORE)]
    before = waiting_charge(Pod.from_object(manifest), CHART, env.state)
    assert tuple(before.amounts.get(key, 0) for key in keys) == waiting
    assert before.derivable is ("vmemory" in amounts)
    found = placed(FitEnv(env.nodes[1:]), manifest)
    assert tuple(found.debits.get(key, 0) for key in keys) == after


def test_no_card_known_costs_a_unit_of_memory_a_device() -> None:
    charge = waiting_charge(Pod.from_object(pod_with_limits(sgpu=2, vcore=0)), CHART, FitEnv([]).state)
    assert charge.amounts == {f"limits.{SGPU}": 2, f"limits.{VMEMORY}": 2}


def test_whole_cards_cost_their_number_only() -> None:
    env = FitEnv([gpu_node(4)])
    waiting = waiting_charge(Pod.from_object(pod_with_limits(gpu=3)), CHART, env.state)
    assert (waiting.amounts, waiting.derivable) == ({f"limits.{GPU}": 3}, True)
    assert placed(env, pod_with_limits(gpu=3)).debits == {f"limits.{GPU}": 3}


@pytest.mark.parametrize(("hard", "fits"), [("6", True), ("5", False), ("5632Mi", True), ("5631Mi", False)])
def test_a_memory_quota_is_in_gibibytes_or_in_bytes(hard: str, fits: bool) -> None:
    charge = waiting_charge(Pod.from_object(pod_with_limits(vmemory="5632Mi")), CHART, FitEnv([]).state)
    assert (account_of(vmemory=hard).overrun(charge) == ()) is fits


def test_a_quota_of_nothing_blocks_a_pod_that_names_no_memory() -> None:
    charge = waiting_charge(Pod.from_object(pod_with_limits()), CHART, FitEnv([]).state)
    assert account_of(vmemory="0Gi", sgpu="5").overrun(charge) == (f"limits.{VMEMORY}",)


def test_init_and_app_containers_combine_per_card() -> None:
    env = FitEnv([sgpu_node(g("A"))])
    manifest = pod(
        "p",
        one("app", sgpu=1, vcore=20, vmemory=5),
        one("beside", sgpu=1, vcore=30, vmemory=1),
        init=[one("init", sgpu=1, vcore=90, vmemory=8), one("side", sidecar=True, sgpu=1, vcore=5, vmemory=1)],
    )
    assert placed(env, manifest).debits == {f"limits.{SGPU}": 3, f"limits.{VMEMORY}": 8, f"limits.{VCORE}": 90}


def test_a_placed_pod_costs_what_its_annotation_says() -> None:
    notes = {SGPU_ALLOCATED: "GPU-A,Metax-SGPU,1536,60:;", "hami.io/vgpu-node": "n1"}
    manifest = pod_with_limits("p", notes, vcore=10, vmemory=1)
    manifest["spec"]["nodeName"] = "n1"
    charge = charge_of(Pod.from_object(manifest), CHART, FitEnv([]).state, NOW)
    assert (charge.placed, charge.amounts) == (
        True,
        {f"limits.{SGPU}": 1, f"limits.{VMEMORY}": 2, f"limits.{VCORE}": 60},
    )
