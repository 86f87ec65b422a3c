"""What NVIDIA reads of a node: cards, scores, cordon, handshake, cards that must be closed (docs/spec/nvidia.md#3)."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from hami_webhook.devices.handshake import Health
from hami_webhook.devices.model import RegistrationError
from hami_webhook.devices.vendors.nvidia.pairscores import (
    NvLink,
    PcieLevel,
    ProbedCard,
    RemoteType,
    nvlink_score,
    pair_scores,
)
from hami_webhook.scheduling.cluster_cache import ClusterCache

from .cards import (
    ALLOCATED,
    HANDSHAKE,
    MIG_RECORDS,
    Node,
    annotated,
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
    vendors,
    view,
)

# 3.1, 3.2, 3.5: what is registered


@pytest.mark.parametrize("register", ["[]", "null", ":"])
def test_a_node_without_cards_registers_nothing(register):
    assert nvidia().inventory(annotated()) is None
    assert record(pod(one()), view(annotated(register=register))) == "node unregistered"


def test_an_unreadable_registration_names_its_annotation():
    with pytest.raises(RegistrationError, match=r"hami\.io/node-nvidia-register: card 0 has 1 fields"):
        nvidia().inventory(annotated(register="junk:"))


def test_cards_are_told_by_their_annotation_and_not_by_their_model():
    found = nvidia().inventory(node(card("a", type="Ascend910B")))
    assert [(d.vendor, d.type, d.slots, d.memory, d.cores) for d in found.devices] == [
        ("NVIDIA", "Ascend910B", 10, 40960, 100)
    ]
    assert chosen(pod(one()), view(node(card("a", type="Ascend910B")))) == "a"


def test_both_encodings_give_the_same_cards():
    colon = annotated(register="GPU-a,10,40960,100,NVIDIA A100-SXM4-40GB,1,true,1,hami-core:")
    assert nvidia().inventory(colon).devices == nvidia().inventory(node(card("GPU-a", numa=1, index=1))).devices


@pytest.mark.parametrize("scores", ["", "x", "{}", '[{"uuid":"a","score":{"b":"fast"}}]'])
def test_unreadable_scores_are_ignored_with_a_warning_and_the_node_stays(scores):
    on = node(card("a"), card("b"), scores=scores)
    found = nvidia().inventory(on)
    assert len(found.devices) == 2
    assert found.facts.scores == {}
    (warning,) = found.warnings
    assert warning.startswith("hami.io/node-nvidia-score is ignored: ")
    assert chosen(pod(container(gpu=2), policy="topology-aware"), view(on)) == "b a"


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
def test_cordoned_cards_take_no_new_pods(cordon, answer):
    assert chosen(pod(one()), view(node(card("a"), card("b"), cordon=cordon))) == answer


# 3.3: handshake and health

NOON = datetime(2026, 8, 21, 12, 0, 0, tzinfo=UTC).timestamp()
ASKED = "Requesting_2026-08-21 12:00:00"
WAITING = Health(healthy=True, until=NOON + 60)
SILENT = Health(healthy=True, request_handshake=True)


def with_handshake(text, allocatable=None):
    notes = {} if text is None else {HANDSHAKE: text}
    status = {} if allocatable is None else {"allocatable": {"nvidia.com/gpu": allocatable}}
    return Node.from_object({"metadata": {"name": "n", "annotations": notes}, "status": status})


@pytest.mark.parametrize(
    ("handshake", "allocatable", "seconds", "expected"),
    [
        (None, "8", 0, Health(True)),
        ("Reported 2026", "8", 0, Health(True)),
        (ASKED, "8", 5, Health(True)),
        (ASKED, "8", 500, Health(True)),
        (ASKED, None, 5, WAITING),
        (ASKED, "0", 5, WAITING),
        (ASKED, "1.5", 5, WAITING),
        (ASKED, "junk", 5, WAITING),
        (ASKED, None, -500, WAITING),
        (ASKED, None, 59.9, WAITING),
        (ASKED, None, 60, Health(False)),
        (ASKED, None, 500, Health(False)),
        ("Requesting", None, 500, Health(True)),
        ("Requesting_", None, 500, Health(True)),
        ("Requesting_soon", None, 500, Health(True)),
        ("Requesting_2026-8-21 12:00:00", None, 500, Health(True)),
        ("Requesting_2026-13-21 12:00:00", None, 500, Health(True)),
        ("Requesting_2026-08-21T12:00:00Z", None, 500, Health(True)),
        (None, None, 0, SILENT),
        ("", "0", 0, SILENT),
        ("Reported_2026-08-21 11:00:00", None, 0, SILENT),
        ("Reported 2026-08-21 11:00:00", None, 0, SILENT),
        ("Deleted_2026-08-21 11:00:00", None, 0, SILENT),
    ],
)
def test_health_by_allocatable_and_handshake(handshake, allocatable, seconds, expected):
    assert nvidia().health(with_handshake(handshake, allocatable), NOON + seconds, UTC) == expected


def test_a_handshakes_time_is_read_in_the_schedulers_zone():
    east = timezone(timedelta(hours=8))
    asked = with_handshake("Requesting_2026-08-21 20:00:00")
    assert nvidia().health(asked, NOON + 1, east) == WAITING
    assert nvidia().health(asked, NOON + 60, east) == Health(False)


def test_without_a_zone_the_local_one_is_meant():
    local = datetime.fromtimestamp(NOON).strftime("%Y-%m-%d %H:%M:%S")  # noqa: DTZ006
    assert nvidia().health(with_handshake(f"Requesting_{local}"), NOON + 1) == WAITING


def test_a_handshake_from_before_time_itself_is_no_time():
    assert nvidia().health(with_handshake("Requesting_0001-01-01 00:00:00"), NOON).healthy


def test_the_count_resource_is_the_configured_one():
    vendor = nvidia(resource_count_name="hami.io/gpu")
    assert vendor.health(with_handshake(ASKED, "8"), NOON + 500, UTC) == Health(False)


# 3.4: closed cards


def placed_pod(name, devices, records=None):
    raw = raw_pod(container(), annotations={"hami.io/vgpu-node": "n1", ALLOCATED: devices})
    raw["metadata"] |= {"name": name, "uid": name}
    raw["spec"]["nodeName"] = "n1"
    if records is not None:
        raw["metadata"]["annotations"][MIG_RECORDS] = records if isinstance(records, str) else json.dumps(records)
    return pod_of(raw)


def pod_of(raw):
    return type(pod()).from_object(raw)


def mig_record(uuid, device=0, start=0):
    return {
        "containerIndex": 0,
        "deviceIndex": device,
        "gpuUUID": uuid,
        "profile": "2g.10gb",
        "placement": {"start": start, "size": 2},
    }


ON_M = "GPU-m,NVIDIA,10240,28:;"
MIXED = node(mig_card("GPU-m"), mig_card("GPU-n"), card("GPU-h"))


@pytest.mark.parametrize(
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
def test_a_card_whose_instances_are_unknown_is_closed(devices, records, closed):
    resident = placed_pod("x", devices, records)
    assert nvidia().unusable_devices(nvidia().inventory(MIXED), [resident]) == closed


def test_nothing_is_closed_on_a_node_without_pods():
    assert nvidia().unusable_devices(nvidia().inventory(MIXED), []) == set()


def test_a_closed_card_counts_as_unhealthy():
    assert record(pod(one(mem=5)), view(node(card("a")), closed=["a"])) == "1/1 CardNotHealth"


def test_the_placements_in_pods_records_are_the_cards_occupation():
    state = ClusterCache(vendors())
    state.set_node(node(mig_card("GPU-m")), NOON)
    state.set_pod(placed_pod("x", ON_M, [mig_record("GPU-m", start=2)]), NOON)
    on = state.view("n1")
    assert (on.used("NVIDIA", "GPU-m").slots, on.used("NVIDIA", "GPU-m").memory) == (1, 10240)
    fit = pod(container(gpu=2, mem=8000))
    assert chosen(fit, on) == "GPU-m GPU-m"
    assert chosen(pod(container(gpu=3, mem=8000)), on) == (
        "1/1 CardMigTopologyInfeasible, 2/1 AllocatedCardsInsufficientRequest"
    )


# 3.6: pair scores

GPU, SWITCH = RemoteType.GPU, RemoteType.SWITCH


def probed(uuid, level, links=(), peers="ab"):
    return ProbedCard(uuid, f"bus-{uuid}", {peer: level for peer in peers if peer != uuid and level}, links)


def to(peer, count):
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
def test_pcie_alone(level, score):
    assert pair_scores([probed("a", level), probed("b", level)]) == ({"a": {"b": score}, "b": {"a": score}}, [])


@pytest.mark.parametrize(("links", "score"), [(0, 0), (1, 100), (2, 200), (18, 1800), (19, 0), (-1, 0)])
def test_nvlinks_count_a_hundred_each_up_to_18(links, score):
    assert nvlink_score(links) == score


@pytest.mark.parametrize(
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
def test_a_pairs_score_is_pcie_plus_nvlink(level, a_links, b_links, score):
    scores, asymmetric = pair_scores([probed("a", level, a_links), probed("b", level, b_links)])
    assert (scores, asymmetric) == ({"a": {"b": score}, "b": {"a": score}}, [])


def test_a_pair_whose_directions_have_different_numbers_of_links_scores_nothing_and_is_told():
    cards = [probed("b", PcieLevel.SINGLE), probed("a", PcieLevel.SINGLE, to("b", 2))]
    assert pair_scores(cards) == ({"a": {"b": 0}, "b": {"a": 0}}, [("a", "b")])


def test_directions_may_score_differently_if_they_have_as_many_links():
    cards = [probed("a", PcieLevel.SINGLE, to("b", 2)), probed("b", PcieLevel.SINGLE, to("a", 1))]
    assert pair_scores(cards)[0] == {"a": {"b": 250}, "b": {"a": 150}}
