"""What NVIDIA reads of a node: cards, scores, cordon, handshake, cards that must be closed (docs/spec/nvidia.md#3)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone

import pytest
from builders import read_node
from tables import in_one_test

from hami_webhook.devices.handshake import Health
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.node.pair_scores import (
    NvLink,
    PcieLevel,
    ProbedCard,
    RemoteType,
    pair_scores,
)
from hami_webhook.state.cluster_cache import ClusterCache

from .cards import (
    ALLOCATED,
    HANDSHAKE,
    JSON,
    MIG_RECORDS,
    card,
    chosen,
    container,
    mig_card,
    node,
    nvidia,
    one,
    pod,
    raw_pod,
    record,
    registered,
    vendors,
    view,
)

# 3.2, 3.5: what is registered


@pytest.mark.parametrize("scores", ["", "x", "{}", '[{"uuid":"a","score":{"b":"fast"}}]'])
def test_unreadable_scores_are_ignored_with_a_warning_and_the_node_stays(scores: str) -> None:
    on = node(card("a"), card("b"), scores=scores)
    found = registered(on)
    assert len(found.devices) == 2
    assert found.facts.scores == {}
    (warning,) = found.warnings
    assert warning.startswith("hami.io/node-nvidia-score is ignored: ")
    assert chosen(pod(container(gpu=2), policy="topology-aware"), view(on)) == "b a"


def test_cards_in_mig_mode_without_profiles_are_told_and_left_out() -> None:
    on = node(mig_card("m", []), mig_card("n"), card("h", mode="hami-core"), scores={})
    assert registered(on).warnings == ("cards in MIG mode without profiles can't be used: m",)
    assert chosen(pod(one(mem=5), annotations={"nvidia.com/vgpu-mode": "mig"}), view(on)) == "n"


@pytest.mark.parametrize(
    ("cordon", "answer"),
    [
        (None, "b"),
        ("", "b"),
        (" , ", "b"),
        ("b", "a"),
        (" b ,,c", "a"),
        ("B", "b"),
        ("a,b", "2/2 CardCordoned"),
    ],
)
def test_cordoned_cards_take_no_new_pods(cordon: str | None, answer: str) -> None:
    assert chosen(pod(one()), view(node(card("a"), card("b"), cordon=cordon))) == answer


def test_what_volcanos_plugin_registers_adds_no_card() -> None:
    theirs = {"volcano.sh/node-vgpu-register": "GPU-1,10,24576,NVIDIA A10,true,hami-core:"}
    assert nvidia().inventory(read_node(**theirs)) is None


# 3.3: handshake and health

NOON = datetime(2026, 8, 21, 12, 0, 0, tzinfo=UTC).timestamp()
ASKED = "Requesting_2026-08-21 12:00:00"
WAITING = Health(healthy=True, until=NOON + 60)


def with_handshake(text: str | None, allocatable: str | None = None) -> Node:
    notes = {} if text is None else {HANDSHAKE: text}
    status = {} if allocatable is None else {"allocatable": {"nvidia.com/gpu": allocatable}}
    return Node.from_object({"metadata": {"name": "n", "annotations": notes}, "status": status})


@pytest.mark.parametrize(("handshake", "seconds"), [(None, 0), ("Reported 2026", 0), (ASKED, 5), (ASKED, 500)])
def test_cards_that_are_allocatable_need_no_handshake(handshake: str | None, seconds: int) -> None:
    assert nvidia().health(with_handshake(handshake, "8"), NOON + seconds, UTC) == Health(healthy=True)


def test_a_handshakes_time_is_read_in_the_schedulers_zone() -> None:
    east = timezone(timedelta(hours=8))
    asked = with_handshake("Requesting_2026-08-21 20:00:00")
    assert nvidia().health(asked, NOON + 1, east) == WAITING
    assert nvidia().health(asked, NOON + 60, east) == Health(False)


def test_without_a_zone_the_local_one_is_meant() -> None:
    local = datetime.fromtimestamp(NOON).strftime("%Y-%m-%d %H:%M:%S")  # noqa: DTZ006
    assert nvidia().health(with_handshake(f"Requesting_{local}"), NOON + 1) == WAITING


def test_a_handshake_from_before_time_itself_is_no_time() -> None:
    assert nvidia().health(with_handshake("Requesting_0001-01-01 00:00:00"), NOON).healthy


# 3.4: closed cards


def placed_pod(name: str, devices: str, records: object = None) -> Pod:
    raw = raw_pod(container(), annotations={"hami.io/vgpu-node": "n1", ALLOCATED: devices})
    raw["metadata"] |= {"name": name, "uid": name}
    raw["spec"]["nodeName"] = "n1"
    if records is not None:
        raw["metadata"]["annotations"][MIG_RECORDS] = records if isinstance(records, str) else json.dumps(records)
    return Pod.from_object(raw)


def mig_record(uuid: str, device: int = 0, start: int = 0) -> JSON:
    return {
        "containerIndex": 0,
        "deviceIndex": device,
        "gpuUUID": uuid,
        "profile": "2g.10gb",
        "placement": {"start": start, "size": 2},
    }


ON_M = "GPU-m,NVIDIA,10240,28:;"
MIXED = node(mig_card("GPU-m"), mig_card("GPU-n"), card("GPU-h"))


@in_one_test(
    ("devices", "records", "closed"),
    [
        (ON_M, [mig_record("GPU-m")], set()),
        (ON_M, None, {"GPU-m"}),
        (ON_M, "", {"GPU-m"}),
        (ON_M, "junk", {"GPU-m"}),
        (ON_M, [], {"GPU-m"}),
        (ON_M, [mig_record("GPU-m"), mig_record("GPU-m")], {"GPU-m"}),
        ("GPU-m[0-1],NVIDIA,10240,28:;", None, {"GPU-m"}),
        (ON_M, [mig_record("GPU-n")], {"GPU-m"}),
        ("GPU-h,NVIDIA,10240,0:;", None, set()),
        ("GPU-h,NVIDIA,10240,0:;", [mig_record("GPU-h")], {"GPU-h"}),
        (ON_M, [mig_record("GPU-m"), mig_record("GPU-gone", 1)], {"GPU-m", "GPU-n"}),
        ("GPU-h,NVIDIA,10240,0:;", [mig_record("GPU-gone")], {"GPU-m", "GPU-n"}),
        (f"GPU-h,NVIDIA,10240,0:{ON_M}", [mig_record("GPU-m", 1)], set()),
        (";", [mig_record("GPU-m")], set()),
        ("junk,", [mig_record("GPU-m")], set()),
    ],
)
def test_a_card_whose_instances_are_unknown_is_closed(devices: str, records: object, closed: set[str]) -> None:
    resident = placed_pod("x", devices, records)
    assert nvidia().occupancy.unusable_devices(registered(MIXED), [resident]) == closed


def test_a_closed_card_counts_as_unhealthy() -> None:
    assert record(pod(one(mem=5)), view(node(card("a")), closed=["a"])) == "1/1 CardNotHealth"


def test_the_placements_in_pods_records_are_the_cards_occupation() -> None:
    state = ClusterCache(vendors())
    state.set_node(node(mig_card("GPU-m")), NOON)
    state.set_pod(placed_pod("x", ON_M, [mig_record("GPU-m", start=2)]), NOON)
    on = state.view("n1")
    assert on is not None
    assert (on.used("NVIDIA", "GPU-m").slots, on.used("NVIDIA", "GPU-m").memory) == (1, 10240)
    fit = pod(container(gpu=2, mem=8000))
    assert chosen(fit, on) == "GPU-m GPU-m"
    assert chosen(pod(container(gpu=3, mem=8000)), on) == (
        "1/1 CardMigTopologyInfeasible, 2/1 AllocatedCardsInsufficientRequest"
    )


# 3.6: pair scores

GPU, SWITCH = RemoteType.GPU, RemoteType.SWITCH


def probed(uuid: str, level: PcieLevel | None, links: Sequence[NvLink] = (), peers: str = "ab") -> ProbedCard:
    return ProbedCard(uuid, f"bus-{uuid}", {peer: level for peer in peers if peer != uuid and level}, links)


def to(peer: str, count: int) -> list[NvLink]:
    return [NvLink(GPU, f"bus-{peer}")] * count


@pytest.mark.parametrize(
    ("level", "score"),
    [
        (PcieLevel.SYSTEM, 10),
        (PcieLevel.NODE, 20),
        (PcieLevel.HOSTBRIDGE, 30),
        (PcieLevel.MULTIPLE, 40),
        (PcieLevel.SINGLE, 50),
        (PcieLevel.INTERNAL, 60),
        (None, 0),
    ],
)
def test_pcie_alone(level: PcieLevel | None, score: int) -> None:
    assert pair_scores([probed("a", level), probed("b", level)]) == ({"a": {"b": score}, "b": {"a": score}}, [])


@in_one_test(
    ("level", "a_links", "b_links", "score"),
    [
        (PcieLevel.SINGLE, to("b", 2), to("a", 2), 250),
        (PcieLevel.SYSTEM, to("b", 18), to("a", 18), 1810),
        (PcieLevel.SYSTEM, to("b", 19), to("a", 19), 10),
        (PcieLevel.SYSTEM, [NvLink(SWITCH)] * 18, [NvLink(SWITCH)] * 18, 1810),
        (PcieLevel.SYSTEM, [NvLink(SWITCH)] * 18, [NvLink(SWITCH)] * 12, 1210),
        (PcieLevel.SYSTEM, [NvLink(SWITCH)] * 18, [], 10),
        (PcieLevel.SYSTEM, [NvLink(SWITCH)] * 18, to("c", 4), 10),
        (PcieLevel.NODE, to("c", 4), to("c", 4), 20),
        (PcieLevel.NODE, [*to("b", 1), NvLink(SWITCH)], [*to("a", 1), NvLink(SWITCH)], 120),
        (None, to("b", 3), to("a", 3), 300),
    ],
)
def test_a_pairs_score_is_pcie_plus_nvlink(
    level: PcieLevel | None, a_links: list[NvLink], b_links: list[NvLink], score: int
) -> None:
    scores, asymmetric = pair_scores([probed("a", level, a_links), probed("b", level, b_links)])
    assert (scores, asymmetric) == ({"a": {"b": score}, "b": {"a": score}}, [])


def test_a_pair_whose_directions_have_different_numbers_of_links_scores_nothing_and_is_told() -> None:
    cards = [probed("b", PcieLevel.SINGLE), probed("a", PcieLevel.SINGLE, to("b", 2))]
    assert pair_scores(cards) == ({"a": {"b": 0}, "b": {"a": 0}}, [("a", "b")])


def test_directions_may_score_differently_if_they_have_as_many_links() -> None:
    cards = [probed("a", PcieLevel.SINGLE, to("b", 2)), probed("b", PcieLevel.SINGLE, to("a", 1))]
    assert pair_scores(cards)[0] == {"a": {"b": 250}, "b": {"a": 150}}
