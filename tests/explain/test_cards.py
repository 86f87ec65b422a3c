"""Card by card: the first check it fails, in the standard words, with the numbers."""

from __future__ import annotations

from typing import Any

import pytest
from builders import bound_pod, card, container, node, pod, quota
from scheduling.placer_env import MEM

from .contexts import explained, on

MIG = {"name": "1g.10gb", "memoryMB": 9728, "core": 14, "sliceCount": 1, "placements": [{"start": 0, "size": 1}]}
ROWS: list[tuple[str, dict[str, Any], list[str], dict[str, Any], str, str]] = [
    ("memory that others have", {"memory": 24576}, ["G,NVIDIA,20000,10:;"], {"mem": 20000},
     "CardInsufficientMemory", "needs 19.5Gi, 4.5Gi of 24Gi free"),
    ("a card that is too small", {"memory": 8000}, [], {"mem": 9000},
     "CardInsufficientMemory", "needs 8.8Gi, 7.8Gi of 7.8Gi free"),
    ("a share of a card", {"memory": 1000}, ["G,NVIDIA,501,0:;"], {"percent": 50},
     "CardInsufficientMemory", "needs 500Mi, 499Mi of 1000Mi free"),
    ("no memory", {"memory": 0}, [], {"mem": 10},
     "CardInsufficientMemory", "can't be used: its device plugin registered it without memory"),
    ("no count", {"count": 0}, [], {"mem": 10},
     "CardTimeSlicingExhausted", "can't be used: its device plugin registered it with the count 0"),
    ("no profiles", {"mode": "mig"}, [], {"mem": 10},
     "CardMigTopologyInfeasible", "can't be used: its device plugin registered it in MIG mode without profiles"),
    ("cores", {}, ["G,NVIDIA,10,70:;"], {"mem": 10, "cores": 40},
     "CardInsufficientCore", "needs 40 cores, 30 of 100 free"),
    ("no core left", {}, ["G,NVIDIA,10,100:;"], {"mem": 10},
     "CardComputeUnitsExhausted", "needs a core, all 100 are taken"),
    ("slots", {"count": 2}, ["G,NVIDIA,10,1:;G,NVIDIA,10,1:;"], {"mem": 10},
     "CardTimeSlicingExhausted", "needs a slot, 2 of 2 are taken"),
    ("a card to itself", {}, ["G,NVIDIA,10,0:;"], {"mem": 10, "cores": 100},
     "ExclusiveDeviceAllocateConflict", "needs the card to itself, 1 of 10 slots are taken"),
    ("health", {"health": False}, [], {"mem": 10}, "CardNotHealth", "is registered as unhealthy"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "held", "asked", "label", "why"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_a_card_says_what_it_lacks(
    fields: dict[str, Any], held: list[str], asked: dict[str, Any], label: str, why: str
) -> None:
    others = [bound_pod(f"r{index}", "n", text) for index, text in enumerate(held)]
    found = on(
        explained(pod("p", container(gpu=1, **asked)), node("n", card("G", **{"memory": 8000, **fields})), *others), "n"
    )
    assert (found.fits, found.reason, found.container) == (False, f"1/1 {label}", "main")
    (line,) = found.cards
    assert (line.label, line.why) == (label, why)


def test_a_pod_that_does_not_say_which_card_it_has_is_named_on_one() -> None:
    foreign = pod("foreign", container(gpu=1), nodeName="n", uid="f", status={"phase": "Running"})
    found = on(explained(pod("p", container(gpu=1, mem=10)), node("n", card("G", 8000)), foreign), "n")
    (line,) = found.cards
    assert (found.fits, line.label, line.pods) == (False, "CardInsufficientMemory", ["default/foreign"])


LISTS = [
    ("a UUID that is denied", {"nvidia.com/nouse-gpuuuid": "G, H"}, "CardUuidMismatch",
     "G is excluded by nvidia.com/nouse-gpuuuid (G, H)"),
    ("a UUID that isn't listed", {"nvidia.com/use-gpuuuid": "H"}, "CardUuidMismatch",
     "G isn't in nvidia.com/use-gpuuuid (H)"),
    ("a type that isn't listed", {"nvidia.com/use-gputype": "A100"}, "CardTypeMismatch",
     "NVIDIA-Tesla V100-PCIE-32GB isn't in nvidia.com/use-gputype (a100)"),
    ("a type that is denied", {"nvidia.com/nouse-gputype": "V100"}, "CardTypeMismatch",
     "NVIDIA-Tesla V100-PCIE-32GB is excluded by nvidia.com/nouse-gputype (v100)"),
    ("a mode", {"nvidia.com/vgpu-mode": "mps"}, "CardTypeMismatch",
     "NVIDIA-Tesla V100-PCIE-32GB in mode hami-core doesn't go with nvidia.com/vgpu-mode=mps"),
]  # fmt: skip


@pytest.mark.parametrize(("notes", "label", "why"), [row[1:] for row in LISTS], ids=[row[0] for row in LISTS])
def test_a_card_says_which_list_forbids_it(notes: dict[str, str], label: str, why: str) -> None:
    explanation = explained(
        pod("p", gpu=1, mem=100, annotations=notes), node("n", card("G", 8000, type="NVIDIA-Tesla V100-PCIE-32GB"))
    )
    (line,) = on(explanation, "n").cards
    assert (line.label, line.why) == (label, why)
    (change,) = explanation.changes
    (step,) = change.steps
    assert (step.kind, step.subject, change.node) == ("annotation", next(iter(notes)), "n")


def test_what_the_node_s_monitor_found_is_told() -> None:
    sick = node("n", card("G", 8000), unhealthy={"G": ["xid-79"]})
    (line,) = on(explained(pod("p", gpu=1, mem=10), sick), "n").cards
    why = "is unhealthy, as its node's monitor says: its driver reported XID 79 (fallen off the bus)"
    assert (line.label, line.why) == ("CardNotHealth", why)


def test_the_operators_cordon_is_told() -> None:
    cordoned = node("n", card("G", 8000))
    cordoned["metadata"]["annotations"] |= {"hami.io/device-cordon": "G"}
    (line,) = on(explained(pod("p", gpu=1, mem=10), cordoned), "n").cards
    assert (line.label, line.why) == ("CardCordoned", "is excluded by the node's operator")


def test_a_quota_is_told_with_the_cost_up_to_the_card() -> None:
    found = explained(
        pod("p", gpu=2, percent=50), node("n", card("G", 8000), card("H", 8000)), quota("q", gpu=9, mem=6000, used={})
    )
    report = on(found, "n")
    assert report.reason == "1/2 AllocatedCardsInsufficientRequest, 1/2 ResourceQuotaNotFit"
    labels = {line.uuid: (line.label, line.why) for line in report.cards}
    assert labels == {
        "G": ("ResourceQuotaNotFit", f"would make the pod cost {MEM}=8000 where the quota leaves 6000"),
        "H": ("AllocatedCardsInsufficientRequest", "passes by itself, but 2 that go together are needed"),
    }


@pytest.mark.parametrize(
    ("scores", "why"),
    [
        ({"G": {"H": 10}, "H": {"G": 10}}, "there are no such cards that pass"),
        (None, "the node doesn't report how its cards are linked"),
    ],
)
def test_links_that_are_lacking_are_spelt_out(scores: Any, why: str) -> None:
    wants = pod("p", gpu=2, mem=100, annotations={"nvidia.com/require-nvlink": "true"})
    explanation = explained(wants, node("n", card("G", 8000), card("H", 8000), scores=scores))
    found = on(explanation, "n")
    assert found.reason == "2/2 NVLinkNotFit"
    sentence = f"passes by itself, but 2 all linked by NVLink are needed, and {why}"
    assert [(line.label, line.why) for line in found.cards] == [("NVLinkNotFit", sentence)] * 2
    without = [step.text for change in explanation.changes for step in change.steps]
    assert "without nvidia.com/require-nvlink=true the pod fits on n" in without


def test_the_container_that_is_stuck_finds_what_the_others_have_taken() -> None:
    found = on(
        explained(pod("p", container(gpu=1, mem=5000), container(gpu=1, mem=4000)), node("n", card("G", 8000))), "n"
    )
    (line,) = found.cards
    assert (found.container, line.used_memory, line.why) == ("main-1", 5000, "needs 3.9Gi, 2.9Gi of 7.8Gi free")


def test_a_card_in_parts_tells_how_many_it_gave() -> None:
    mig = card("G", 40960, mode="mig", migProfiles=[MIG])
    found = on(explained(pod("p", gpu=2, mem=5000), node("n", mig)), "n")
    assert [(line.label, line.why) for line in found.cards] == [
        ("AllocatedCardsInsufficientRequest", "passes by itself, but 2 that go together are needed"),
        (
            "CardMigTopologyInfeasible",
            "no instance of at least 4.9Gi can be placed, 1 instance is on it",
        ),
    ]


def test_too_few_cards_are_told_without_looking_at_them() -> None:
    found = on(explained(pod("p", gpu=3, mem=10), node("n", card("G", 8000), card("H", 8000))), "n")
    assert (found.reason, found.why) == (
        "NodeInsufficientDevice",
        "container main asks for 3 cards of NVIDIA, the node has 2",
    )
    assert [(line.label, line.why, line.needs_memory) for line in found.cards] == [("", "", None)] * 2


UNREGISTERED = [
    ("no annotation", {}, "registers no NVIDIA cards: it has no annotation hami.io/node-nvidia-register"),
    ("an annotation that can't be read", {"hami.io/node-nvidia-register": "["},
     "registers no NVIDIA cards: hami.io/node-nvidia-register: not valid JSON: "),
    (
        "a handshake long ago",
        {"hami.io/node-nvidia-register": "[]", "hami.io/node-handshake": "Requesting_2020-01-01 00:00:00"},
        "registers no NVIDIA cards: its device plugin left the handshake unanswered "
        "(hami.io/node-handshake=Requesting_2020-01-01 00:00:00)",
    ),
    ("no cards", {"hami.io/node-nvidia-register": "[]"},
     "registers no NVIDIA cards: its registration has no cards, or kubelet no longer offers nvidia.com/gpu"),
]  # fmt: skip


@pytest.mark.parametrize(("notes", "why"), [row[1:] for row in UNREGISTERED], ids=[row[0] for row in UNREGISTERED])
def test_an_unregistered_node_says_what_it_lacks(notes: dict[str, str], why: str) -> None:
    bare = {"metadata": {"name": "n", "annotations": notes}, "status": {"allocatable": {"nvidia.com/gpu": "0"}}}
    explanation = explained(pod("p", gpu=1, mem=10), bare)
    found = on(explanation, "n")
    assert found.reason == "node unregistered"
    assert found.why.startswith(why)
    assert [change.steps[0].kind for change in explanation.changes] == ["register"]
