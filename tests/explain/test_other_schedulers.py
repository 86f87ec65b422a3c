"""Pods that Volcano or Koordinator places: explained by those projects' rules; KAI's as far as these are known."""

from __future__ import annotations

import pytest
from builders import container, pod

from hami_webhook.cluster.api import JSON

from .contexts import explained, on

NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
QUOTA: JSON = {
    "metadata": {"name": "q", "namespace": "default"},
    "spec": {"hard": {f"limits.{MEMORY}": "9000"}},
    "status": {"used": {f"limits.{MEMORY}": "3000"}},
}


def node(name: str, *memories: int) -> JSON:
    cards = "".join(f"{name}-{i},10,{memory},NVIDIA-Tesla T4,true,hami-core:" for i, memory in enumerate(memories))
    offers = {NUMBER: "10", MEMORY: "99999", "volcano.sh/vgpu-cores": "100"}
    meta = {"name": name, "annotations": {"volcano.sh/node-vgpu-register": cards}, "labels": {"zone": name}}
    return {"metadata": meta, "status": {"allocatable": offers}}


def with_limits(memory: int) -> JSON:
    limits = {NUMBER: "1", MEMORY: str(memory)}
    return {"name": "main", "image": "cuda", "resources": {"limits": limits}}


def test_the_nodes_are_judged_by_its_rules_and_it_is_said_who_places() -> None:
    found = explained(
        pod("p", with_limits(3000), schedulerName="volcano", nodeSelector={"zone": "b"}),
        *(node("a", 16000), node("b", 16000, 16000), {"metadata": {"name": "c", "labels": {"zone": "b"}}}),
        QUOTA,
    )
    assert found.verdict == "isn't placed, but fits on b"
    assert found.notes == ["Volcano places it; this answer evaluates the nodes by its rules"]
    assert [(n.name, n.fits, n.reason, n.why) for n in found.nodes] == [
        ("a", False, "", ""),
        ("b", True, "", "would give b-1 (2.9Gi, 0 cores)"),
        ("c", False, "node unregistered", ""),
    ]
    refusal = on(found, "a").refusal
    assert refusal is not None
    assert (refusal.filter, refusal.reasons) == (
        "NodeAffinity",
        ("node(s) didn't match Pod's node affinity/selector",),
    )
    (quota,) = found.quotas
    assert (quota.key, quota.used, quota.charged, quota.hard) == (f"limits.{MEMORY}", 3000, 3000, 9000)


def test_nodes_that_are_too_small_say_so() -> None:
    found = explained(pod("p", with_limits(17000)), node("a", 16000), node("b", 8000, 8000))
    assert found.verdict == "fits on none of 2 nodes"
    assert [node.reason for node in found.nodes] == ["1/1 CardInsufficientMemory", "2/2 CardInsufficientMemory"]
    assert found.notes[1] == "its scheduler is hami-scheduler, where volcano would choose cards for it"


@pytest.mark.parametrize(
    ("notes", "verdict", "expected"),
    [
        (
            {"volcano.sh/vgpu-ids-new": "a-0,NVIDIA,3000,0:", "volcano.sh/bind-phase": "success"},
            "is placed on a by Volcano",
            [],
        ),
        ({}, "is bound to a", ["it costs what it asks for, as Volcano wrote no cards on it"]),
    ],
)
def test_a_pod_on_a_node(notes: dict[str, str], verdict: str, expected: list[str]) -> None:
    found = explained(pod("p", with_limits(3000), annotations=notes, nodeName="a"), node("a", 16000))
    assert (found.verdict, found.notes) == (verdict, expected)


def test_what_admission_would_refuse_fits_nowhere() -> None:
    found = explained(pod("p", with_limits(1 << 40)), node("a", 16000))
    assert found.verdict.startswith("fits nowhere: invalid volcano.sh/vgpu-memory value 1099511627776")


KAI_NODE: JSON = {"metadata": {"name": "a", "labels": {"nvidia.com/gpu.memory": "80000"}}}
GPU_QUOTA: JSON = {
    "metadata": {"name": "q", "namespace": "default"},
    "spec": {"hard": {"limits.nvidia.com/gpumem": "50000"}},
    "status": {"used": {"limits.nvidia.com/gpumem": "40000"}},
}


@pytest.mark.parametrize(
    ("fields", "verdict", "notes"),
    [
        ({}, "isn't placed", ["KAI places it; the pod's events say what it waits for"]),
        ({"nodeName": "a"}, "is placed on a by KAI", []),
        (
            {"nodeName": "b"},
            "is bound to b",
            ["node b has no label nvidia.com/gpu.memory, so the least that a card could cost counts"],
        ),
    ],
)
def test_a_share_that_kai_places_has_its_costs_and_no_guess_where_it_goes(
    fields: JSON, verdict: str, notes: list[str]
) -> None:
    share = pod("p", {"name": "main"}, annotations={"gpu-fraction": "0.5"}, schedulerName="kai-scheduler", **fields)
    found = explained(share, KAI_NODE, {"metadata": {"name": "b"}}, GPU_QUOTA)
    assert (found.verdict, found.notes, list(found.nodes)) == (verdict, notes, [])
    (quota,) = found.quotas
    assert (quota.key, quota.charged, quota.hard) == ("limits.nvidia.com/gpumem", 40000, 50000)
    whole = pod("p", container(gpu=1), schedulerName="kai-scheduler", **fields)
    assert explained(whole, KAI_NODE, {"metadata": {"name": "b"}}, GPU_QUOTA).verdict == verdict
