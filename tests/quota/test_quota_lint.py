"""Quotas that say something else than their authors mean, and right ones."""

from __future__ import annotations

from typing import Any

import pytest
from builders import accelerator_quota, card, node, read_node
from tables import in_one_test

from hami_webhook.config.devices import DeviceConfig
from hami_webhook.device_config import builtin_device_config, builtin_vendors, enabled_vendors
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Node, ResourceQuota
from hami_webhook.quota.accelerator_quota import read_accelerator_quota
from hami_webhook.quota.quota_lint import misreadings
from hami_webhook.state.cluster_cache import ClusterCache

from .objects import CORES, GPU, LARGE, MEM, NOON, SMALL, claiming_vendors
from .right_quotas import RIGHT

NVIDIA = "limits.nvidia.com/gpu, limits.nvidia.com/gpucores, limits.nvidia.com/gpumem"


def judged(
    hard: dict[str, str],
    *,
    vendors: Vendors | None = None,
    cards: tuple[int, ...] = (),
    annotations: dict[str, str] | None = None,
    **more: Any,
) -> list[tuple[str, str]]:
    """The reasons and sentences about a quota in a cluster with cards of these sizes."""
    state = ClusterCache(vendors or builtin_vendors())
    for index, memory in enumerate(cards):
        state.set_node(Node.from_object(node(f"n{index}", card(f"GPU-{index}", memory))), NOON)
    meta = {"name": "q", "annotations": annotations or {}}
    quota = ResourceQuota.from_object({"metadata": meta, "spec": {"hard": hard, **more}})
    found = misreadings(quota, vendors or builtin_vendors(), builtin_vendors(), state)
    assert all(each.key in each.text for each in found)
    return [(each.reason.value, each.text) for each in found]


def only(*names: str) -> Vendors:
    """The built-in vendors of these sections."""
    config: DeviceConfig = builtin_device_config().config
    return enabled_vendors(config.without([name for name in type(config).model_fields if name not in names]))


MISREAD = [
    # the key that counts it
    (
        {"requests.nvidia.com/gpumem": "16000"},
        "requests.nvidia.com/gpumem is counted by Kubernetes, which adds up the containers' numbers: it doesn't "
        f"multiply by cards, and ignores percentages and whole cards; write {MEM}",
    ),
    (
        {"requests.nvidia.com/gpucores": "200"},
        "requests.nvidia.com/gpucores is counted by Kubernetes, which adds up the containers' numbers: it doesn't "
        f"multiply by cards, and ignores percentages and whole cards; write {CORES}",
    ),
    (
        {"requests.nvidia.com/gpumem-percentage": "200"},
        "requests.nvidia.com/gpumem-percentage is counted by Kubernetes as a plain number; instead, "
        "quotas count " + NVIDIA,
    ),
    ({"nvidia.com/gpu": "4"}, f"nvidia.com/gpu has no effect, as nothing counts it; write {GPU}"),
    # misspelt
    ({"limits.nvidia.com/gpumen": "1"}, f"limits.nvidia.com/gpumen has no effect, {{}}; did you mean {MEM}?"),
    ({"limits.nvidia.com/gpuMem": "1"}, f"limits.nvidia.com/gpuMem has no effect, {{}}; did you mean {MEM}?"),
    ({"limits.nvida.com/gpumem": "1"}, f"limits.nvida.com/gpumem has no effect, {{}}; did you mean {MEM}?"),
    ({"limit.nvidia.com/gpumem": "1"}, f"limit.nvidia.com/gpumem has no effect, {{}}; did you mean {MEM}?"),
    ({"limits.nvidia.com/gpus": "1"}, f"limits.nvidia.com/gpus has no effect, {{}}; did you mean {GPU}?"),
    (
        {"requests.nvidia.com/gpumen": "1"},
        f"requests.nvidia.com/gpumen has no effect, as no pod requests nvidia.com/gpumen; did you mean {MEM}?",
    ),
    (
        {"requests.nvidia.com/gpus": "1"},
        "requests.nvidia.com/gpus has no effect, as no pod requests nvidia.com/gpus; did you mean "
        "requests.nvidia.com/gpu?",
    ),
    (
        {"limits.nvidia.com/mig-1g.5gb": "1"},
        f"limits.nvidia.com/mig-1g.5gb has no effect, {{}}; instead, quotas count {NVIDIA}",
    ),
    (
        {"limits.huawei.com/Ascend910B4-memroy": "1"},
        "limits.huawei.com/Ascend910B4-memroy has no effect, {}; did you mean limits.huawei.com/Ascend910B4-memory?",
    ),
    # without effect
    (
        {"limits.nvidia.com/gpumem-percentage": "50"},
        "limits.nvidia.com/gpumem-percentage has no effect, as quota doesn't count nvidia.com/gpumem-percentage; "
        f"instead, quotas count {NVIDIA}",
    ),
]  # fmt: skip


@in_one_test(("hard", "text"), MISREAD)
def test_a_key_that_counts_nothing_or_otherwise_names_the_right_one(hard: dict[str, str], text: str) -> None:
    assert judged(hard) == [("QuotaMisread", text.format("as nothing counts it"))]


@pytest.mark.parametrize("key", ["limits.hygon.com/dcumem", "hygon.com/dcunum", "limits.huawei.com/Ascend910B4-memory"])
def test_a_key_of_a_vendor_that_is_off_names_the_configuration(key: str) -> None:
    resource = key.removeprefix("limits.")
    off = f"{key} has no effect, as the device configuration enables no vendor with {resource}; enable it there"
    assert judged({key: "1"}, vendors=only("nvidia")) == [("QuotaMisread", off)]


@pytest.mark.parametrize(
    ("hard", "text"),
    [
        ({MEM: "16Gi"}, f"{MEM}: 16Gi means 17179869184 units of 1 MiB; for as many bytes write 16384"),
        ({MEM: "1Ki"}, f"{MEM}: 1Ki means 1024 units; write a number without a suffix"),
        ({GPU: "1Ki"}, f"{GPU}: 1Ki means 1024 units; write a number without a suffix"),
        (
            {MEM: "17179869184"},
            f"{MEM}: 17179869184 means 17179869184 units of 1 MiB, and looks like bytes; for as many bytes write 16384",
        ),
        ({MEM: "24G"}, f"{MEM}: 24G means 24000000000 units of 1 MiB, and looks like bytes; for as many bytes write "
                       "22889"),
        (
            {"limits.cambricon.com/mlu.smlu.vmemory": "16Gi"},
            "limits.cambricon.com/mlu.smlu.vmemory: 16Gi means 17179869184 units of 256 MiB; for as many bytes write "
            "64",
        ),
    ],
)  # fmt: skip
def test_an_amount_in_bytes_names_that_in_units(hard: dict[str, str], text: str) -> None:
    assert judged(hard) == [("QuotaUnitSuspicious", text)]


@pytest.mark.parametrize("amount", ["16GB", "-1", "1500m", ""])
def test_an_amount_that_the_api_server_refuses_is_told(amount: str) -> None:
    text = f"{GPU}: {amount} is no whole number of units, so the API server refuses it; write one, such as 8"
    assert judged({GPU: amount}) == [("QuotaUnitSuspicious", text)]


@pytest.mark.parametrize(
    "hard", [{MEM: "80"}, {MEM: "16383"}, {MEM: "320", GPU: "4"}, {MEM: "80", GPU: "0"}, {MEM: "3000", CORES: "2"}]
)
def test_less_than_the_smallest_card_has_is_told(hard: dict[str, str]) -> None:
    [(reason, text)] = judged(hard, cards=(LARGE, SMALL))
    assert reason == "QuotaUnitSuspicious"
    assert text == (
        f"{MEM}: {hard[MEM]} means {hard[MEM]} MiB in all, less than the smallest card has (16384 MiB), so no pod gets "
        "a whole card; write 16384 for that"
    )
    assert judged(hard) == []  # no card is known


@pytest.mark.parametrize("hard", [{MEM: "0"}, {MEM: "16384"}, {MEM: "3000", GPU: "2"}, {CORES: "50"}])
def test_nothing_and_a_card_and_shares_of_cards_are_limits_like_others(hard: dict[str, str]) -> None:
    assert judged(hard, cards=(LARGE, SMALL)) == []


def test_keys_that_kubernetes_counts_beside_ours_are_told() -> None:
    [(reason, text)] = judged({MEM: "20000", "pods": "10", "requests.cpu": "4"})
    assert reason == "QuotaMixed"
    assert text == (
        "also limits pods, requests.cpu, which Kubernetes counts: writes to one object conflict; give accelerators "
        "their own quota"
    )


@pytest.mark.parametrize(
    ("scopes", "message"),
    [
        (["Terminating"], ""),
        (["NotBestEffort", "Terminating"], ""),
        (["Terminating", "NotTerminating"], "Terminating Exists, NotTerminating Exists"),
        (["VolumeAttributesClass"], "VolumeAttributesClass Exists"),
    ],
)
def test_scopes_that_no_pod_is_in_are_told(scopes: list[str], message: str) -> None:
    text = f"no pod is in all its scopes ({message}), so nothing is counted; make a quota for each"
    assert judged({MEM: "20000"}, scopes=scopes) == ([("QuotaMisread", text)] if message else [])
    assert judged({"pods": "2"}, scopes=scopes) == []  # not ours to judge


def test_a_quota_may_be_misread_in_several_ways() -> None:
    hard = {MEM: "16Gi", "limits.nvidia.com/gpumen": "1", "pods": "1"}
    assert [reason for reason, _ in judged(hard)] == ["QuotaUnitSuspicious", "QuotaMisread", "QuotaMixed"]


@in_one_test("spec", RIGHT.values())
@in_one_test("cards", [(), (SMALL, LARGE)])
def test_right_quotas_are_left_alone(spec: dict[str, Any], cards: tuple[int, ...]) -> None:
    assert judged(**spec, cards=cards) == []


@pytest.mark.parametrize(("value", "message"), [("true", False), ("false", False), ("yes", True), ("", True)])
def test_an_unknown_word_about_preemption_is_told(value: str, message: bool) -> None:
    key = "hami.io/quota-preemption"
    text = f"{key}: {value} isn't known, so nobody is evicted for the quota; write true or false"
    assert judged({MEM: "9"}, annotations={key: value}) == ([("QuotaMisread", text)] if message else [])


def test_kubernetes_own_key_of_a_device_class_is_told_apart_from_ours() -> None:
    key = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
    (found,) = judged({MEM: "20000", key: "2"}, vendors=claiming_vendors())
    assert found[0] == "QuotaMixed"
    assert found[1].startswith(f"{key} is Kubernetes' own: it counts devices of claims when these are created")
    assert judged({key: "0"}, vendors=claiming_vendors()) == []


@pytest.mark.parametrize(
    ("spec", "texts"),
    [
        ({}, []),
        ({"nominal": {GPU: 4}, "reclaim": "on", "reclaimMinRuntime": "90s"}, []),
        ({"nominal": {GPU: 9}}, [f"nominal {GPU}: 9 must be at least 0 and at most hard, 8"]),
        (
            {"nominal": {MEM: 1}},
            [f"nominal {MEM}: has no effect, as hard doesn't limit it; limit it there, or leave it out"],
        ),
        (
            {"nominal": {GPU: "few"}},
            [f"nominal {GPU}: few is no amount, so nothing is the quota's own; write one that is at most hard, 8"],
        ),
        (
            {"nominal": {GPU: 4}, "reclaim": "always"},
            ["reclaim: always isn't known, so nobody is evicted; write off, dry-run or on"],
        ),
        (
            {"reclaim": "on"},
            ["reclaim: on has no effect without nominal or windows; set nominal to the team's own amounts"],
        ),
        (
            {"nominal": {GPU: 4}, "reclaimMinRuntime": "721h"},
            ["reclaimMinRuntime: 721h can't be read, so it is 10m; it must be at most 720h"],
        ),
    ],
)
def test_what_is_lent_is_read_or_explained(spec: dict[str, Any], texts: list[str]) -> None:
    quota = read_accelerator_quota(accelerator_quota(spec=spec, gpu=8), {})
    found = misreadings(quota, builtin_vendors(), builtin_vendors(), ClusterCache(builtin_vendors()))
    assert [each.text for each in found] == texts
    assert [each.key for each in found] == [text.partition(":")[0].removeprefix("nominal ") for text in texts]


_DCU_CARD, _HCU_CARD = (f"{name}-T1,4,65520,100,{name}-K100_AI,0,true,0,hami:" for name in ("DCU", "HCU"))


@pytest.mark.parametrize(
    ("hard", "nodes", "keys"),
    [
        ({"limits.hygon.com/dcumem": "200000"}, ["DCU"], []),
        ({"limits.hygon.com/dcumem": "200000"}, [], []),
        ({"limits.hygon.com/dcumem": "200000"}, ["DCU", "HCU"], ["limits.hygon.com/dcumem"]),
        ({"limits.hygon.com/hcumem": "200000"}, ["DCU", "HCU"], ["limits.hygon.com/hcumem"]),
        ({"limits.hygon.com/hcumem": "200000"}, ["HCU"], []),
        ({"limits.hygon.com/dcumem": "200000", "limits.hygon.com/hcumem": "200000"}, ["DCU", "HCU"], []),
        ({GPU: "1"}, ["DCU", "HCU"], []),
    ],
)
def test_a_quota_of_dcus_does_not_bind_the_same_cards_as_hcus_where_there_are_any(
    hard: dict[str, str], nodes: list[str], keys: list[str]
) -> None:
    """The author sees it; a cluster that has only one of the names hears nothing."""
    state = ClusterCache(builtin_vendors())
    for name in nodes:
        written = {f"hami.io/node-{name.lower()}-register": _DCU_CARD if name == "DCU" else _HCU_CARD}
        state.set_node(read_node(name.lower(), **written), NOON)
    quota = ResourceQuota.from_object({"metadata": {"name": "q"}, "spec": {"hard": hard}})
    found = misreadings(quota, builtin_vendors(), builtin_vendors(), state)
    assert [each.key for each in found] == keys
    for each in found:
        other = each.key.replace("dcu", "xcu").replace("hcu", "dcu").replace("xcu", "hcu")
        assert each.text.endswith(f"limit {other} too")
