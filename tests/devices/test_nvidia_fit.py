"""NVIDIA's checks, NUMA binding, MIG and several containers (docs/spec/nvidia.md#7)."""

import pytest

from hami_webhook.devices import reasons
from hami_webhook.devices.model import FixedMemory, Request, ShareOfCard
from hami_webhook.devices.vendors.nvidia.mig import MigPlacement
from hami_webhook.scheduling.fit import NodeFit

from .cards import (
    A100_PROFILES,
    admitted,
    card,
    chosen,
    container,
    debit,
    first_allocation,
    fitted,
    init,
    mig_card,
    node,
    nvidia,
    one,
    placed,
    pod,
    profile,
    raw_pod,
    record,
    room,
    sidecar,
    used,
    view,
)

MODE = "nvidia.com/vgpu-mode"
BIND = {"nvidia.com/numa-bind": "true"}
USE_TYPE, NOUSE_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_UUID, NOUSE_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"


# 7.3: every label in isolation


@pytest.mark.parametrize(
    ("fields", "usage", "amounts", "extra", "label"),
    [
        ({"health": False}, None, {}, {}, "CardNotHealth"),
        ({"health": None}, None, {}, {}, "CardNotHealth"),
        ({}, None, {}, {"cordon": "a"}, "CardCordoned"),
        ({}, None, {}, {"notes": {USE_TYPE: "V100"}}, "CardTypeMismatch"),
        ({}, None, {}, {"notes": {NOUSE_TYPE: "a100"}}, "CardTypeMismatch"),
        ({}, None, {}, {"notes": {MODE: "mig"}}, "CardTypeMismatch"),
        ({}, None, {}, {"notes": {MODE: ""}}, "CardTypeMismatch"),
        ({}, None, {}, {"notes": {USE_UUID: "b"}}, "CardUuidMismatch"),
        ({}, None, {}, {"notes": {NOUSE_UUID: "x, a"}}, "CardUuidMismatch"),
        ({}, None, {}, {"notes": {USE_UUID: "a", NOUSE_UUID: "a"}}, "CardUuidMismatch"),
        ({"count": 2}, used(2), {}, {}, "CardTimeSlicingExhausted"),
        ({"count": 2}, used(3), {}, {}, "CardTimeSlicingExhausted"),
        ({"count": 0}, None, {}, {}, "CardTimeSlicingExhausted"),
        ({}, used(1), {}, {"policy": "mutex"}, "ExclusiveDeviceAllocateConflict"),
        ({}, used(1), {}, {"policy": "binpack, mutex"}, "ExclusiveDeviceAllocateConflict"),
        ({}, None, {}, {"room": 999}, "ResourceQuotaNotFit"),
        ({}, used(1, 39961), {}, {}, "CardInsufficientMemory"),
        ({"devmem": 0}, None, {"mem": 0}, {}, "CardInsufficientMemory"),
        ({}, used(1, 0, 71), {"cores": 30}, {}, "CardInsufficientCore"),
        ({}, used(1, 0, 1), {"cores": 250}, {}, "CardInsufficientCore"),
        ({}, used(1), {"cores": 100}, {}, "ExclusiveDeviceAllocateConflict"),
        ({}, used(1, 0, 100), {"cores": 0}, {}, "CardComputeUnitsExhausted"),
        ({"mode": "mig"}, None, {}, {}, "CardMigTopologyInfeasible"),
    ],
)
def test_each_label_alone(fields, usage, amounts, extra, label):
    on = view(node(card("a", **fields), cordon=extra.get("cordon")), {"a": usage} if usage else None)
    incoming = pod(one(**{"mem": 1000, **amounts}), policy=extra.get("policy"), annotations=extra.get("notes"))
    budget = room(incoming, memory=extra["room"]) if "room" in extra else None
    assert record(incoming, on, budget) == f"1/1 {label}"


@pytest.mark.parametrize(
    ("fields", "usage", "amounts", "extra"),
    [
        ({}, used(9, 39960, 70), {"cores": 30}, {}),
        ({}, used(1, 0, 99), {"cores": 0}, {}),
        ({"devcore": 0}, None, {"cores": 0}, {}),
        ({"devcore": 200}, used(1), {"cores": 100}, {}),
        ({"mode": "mps"}, None, {}, {"notes": {MODE: "mps"}}),
        ({}, None, {}, {"notes": {MODE: "mig,hami-core"}}),
        ({"mode": ""}, None, {}, {"notes": {MODE: ""}}),
        ({"mode": ""}, None, {}, {"notes": {MODE: "mig"}}),
        ({}, None, {}, {"notes": {USE_TYPE: "v100, a100-sxm4"}}),
        ({}, None, {}, {"notes": {USE_TYPE: " ", NOUSE_TYPE: "", USE_UUID: " ", NOUSE_UUID: ","}}),
        ({}, None, {}, {"notes": {USE_UUID: "b, a"}}),
        ({}, None, {}, {"policy": "mutex"}),
        ({}, None, {}, {"room": 1000}),
        ({}, None, {"mem": 40960}, {}),
    ],
)
def test_a_card_at_the_edge_still_fits(fields, usage, amounts, extra):
    on = view(node(card("a", **fields)), {"a": usage} if usage else None)
    incoming = pod(one(**{"mem": 1000, **amounts}), policy=extra.get("policy"), annotations=extra.get("notes"))
    assert chosen(incoming, on, room(incoming, memory=extra["room"]) if "room" in extra else None) == "a"


LADDER = [
    ("CardNotHealth", {"health": False}),
    ("CardCordoned", {"cordon": "a"}),
    ("CardTypeMismatch", {USE_TYPE: "V100"}),
    ("CardUuidMismatch", {USE_UUID: "b"}),
    ("CardTimeSlicingExhausted", {"count": 1}),
    ("ExclusiveDeviceAllocateConflict", {"policy": "mutex"}),
    ("ResourceQuotaNotFit", {"room": 0}),
    ("CardInsufficientMemory", {"devmem": 500}),
    ("CardInsufficientCore", {"devcore": 50}),
    ("CardMigTopologyInfeasible", {"mode": "mig"}),
]


@pytest.mark.parametrize("first", range(len(LADDER)))
def test_the_first_check_that_fails_gives_the_label(first):
    """From each rung on, everything below is wrong as well."""
    wrong = {key: value for _, given in LADDER[first:] for key, value in given.items()}
    fields = {key: wrong[key] for key in ("health", "count", "devmem", "devcore", "mode") if key in wrong}
    on = view(node(card("a", **fields), cordon=wrong.get("cordon")), {"a": used(1, 0, 10)})
    incoming = pod(
        one(mem=1000, cores=60 if first < 9 else 30),
        policy=wrong.get("policy"),
        annotations={key: wrong[key] for key in (USE_TYPE, USE_UUID) if key in wrong},
    )
    budget = room(incoming, memory=wrong["room"]) if "room" in wrong else None
    assert record(incoming, on, budget) == f"1/1 {LADDER[first][0]}"


def test_memory_comes_before_cores_and_cores_before_exclusiveness():
    assert record(pod(one(cores=100)), view(node(card("a")), {"a": used(1, 1, 1)})) == "1/1 CardInsufficientMemory"
    whole = pod(one(mem=1, cores=100))
    assert record(whole, view(node(card("a")), {"a": used(1, 1, 1)})) == "1/1 CardInsufficientCore"
    assert record(whole, view(node(card("a")), {"a": used(1, 1, 0)})) == "1/1 ExclusiveDeviceAllocateConflict"


@pytest.mark.parametrize(
    ("cards", "notes", "answer"),
    [
        ([card("a")], {}, "NodeInsufficientDevice"),
        ([card("a", health=False)], {}, "NodeInsufficientDevice"),
        ([card("a")], {MODE: "mig"}, "NodeInsufficientDevice"),
        ([mig_card("a")], {}, "a a"),
        ([mig_card("a")], {MODE: "mig,mps"}, "a a"),
        ([mig_card("a")], {MODE: "hami-core"}, "NodeInsufficientDevice"),
        ([mig_card("a")], {MODE: ""}, "NodeInsufficientDevice"),
    ],
)
def test_more_cards_than_the_node_has_are_refused_at_once_unless_mig_may_serve(cards, notes, answer):
    assert chosen(pod(container(gpu=2, mem=1000), annotations=notes), view(node(*cards))) == answer


def test_the_number_collected_is_told_and_left_out_when_it_is_none():
    on = view(node(*map(card, "abc")), {"a": used(1, 40960), "b": used(1, 40960)})
    assert record(pod(container(gpu=2, mem=1)), on) == (
        "1/3 AllocatedCardsInsufficientRequest, 2/3 CardInsufficientMemory"
    )
    none = view(node(*map(card, "ab")), {"a": used(1, 40960), "b": used(1, 40960)})
    assert record(pod(container(gpu=2, mem=1)), none) == "2/2 CardInsufficientMemory"


def test_the_labels_are_those_of_the_first_container_that_does_not_fit():
    incoming = pod(container("a", gpu=1, mem=1), container("b", gpu=1, mem=50000), container("c", gpu=9))
    assert record(incoming, view(node(*map(card, "abc")))) == "3/3 CardInsufficientMemory"


def test_the_walk_stops_at_the_count_and_uses_a_card_once():
    on = view(node(*map(card, "abcd")))
    assert chosen(pod(container(gpu=2, mem=1)), on) == "d c"
    assert chosen(pod(container(gpu=4, mem=1)), on) == "d c b a"


# 6, 7.9: what is booked


@pytest.mark.parametrize(
    ("request_", "devmem", "expected_share"),
    [
        (ShareOfCard(100), 40960, 40960),
        (ShareOfCard(50), 24577, 12288),
        (ShareOfCard(33), 100, 33),
        (ShareOfCard(1), 99, 1),
        (FixedMemory(7), 40960, 7),
    ],
)
def test_memory_is_rounded_down_but_never_to_nothing(request_, devmem, expected_share):
    device = nvidia().inventory(node(card("a", devmem=devmem))).devices[0]
    request = Request(1, request_, 0)
    assert nvidia().resolve_share(request, device, used(0)).memory == expected_share
    assert nvidia().floor(request, device) == expected_share


def test_cores_are_booked_at_most_as_a_whole_card():
    assert record(pod(one(mem=1, cores=250)), view(node(card("a")))) == "a,NVIDIA,1,100:;"


# 7.5: NUMA binding

TWO_BY_TWO = node(card("a"), card("b"), card("c", numa=1), card("d", numa=1))


@pytest.mark.parametrize(
    ("notes", "usage", "count", "answer"),
    [
        (BIND, {}, 2, "d c"),
        (BIND, {"d": used(1, 40960)}, 2, "b a"),
        ({"nvidia.com/numa-bind": "false"}, {"d": used(1, 40960)}, 2, "c b"),
        ({"nvidia.com/numa-bind": "yes"}, {"d": used(1, 40960)}, 2, "c b"),
        ({"nvidia.com/numa-bind": "1"}, {"d": used(1, 40960)}, 2, "b a"),
        (
            BIND,
            {"d": used(1, 40960), "a": used(1, 40960)},
            2,
            "1/4 AllocatedCardsInsufficientRequest, 1/4 NumaNotFit, 2/4 CardInsufficientMemory",
        ),
        (BIND, {}, 3, "2/4 AllocatedCardsInsufficientRequest, 2/4 NumaNotFit"),
        (BIND, {"a": used(1, 40960), "b": used(1, 40960)}, 3, "2/4 CardInsufficientMemory, 2/4 NumaNotFit"),
    ],
)
def test_numa_bound_cards_come_from_one_numa_node(notes, usage, count, answer):
    assert chosen(pod(container(gpu=count, mem=1), annotations=notes), view(TWO_BY_TWO, usage)) == answer


def test_a_card_that_fails_before_the_numa_check_starts_no_group():
    on = view(node(card("a"), card("b", type="V100"), card("c", numa=1), card("d", numa=1, health=False)))
    incoming = pod(container(gpu=2, mem=1), annotations={**BIND, USE_TYPE: "A100"})
    assert record(incoming, on) == (
        "1/4 AllocatedCardsInsufficientRequest, 1/4 CardNotHealth, 1/4 CardTypeMismatch, 1/4 NumaNotFit"
    )
    only_one = pod(container(gpu=2, mem=1), annotations={**BIND, USE_UUID: "a,b,c,d", NOUSE_TYPE: "V100"})
    zero = view(node(card("a"), card("b", numa=1, type="V100"), card("c")))
    assert chosen(only_one, zero) == "c a"


def test_a_card_that_fails_after_the_numa_check_has_started_its_group():
    on = view(node(card("a"), card("b", numa=1)))
    incoming = pod(container(gpu=2, mem=1), annotations={**BIND, NOUSE_UUID: "a"})
    assert record(incoming, on) == "1/2 CardUuidMismatch, 1/2 NumaNotFit"


@pytest.mark.parametrize(
    ("usage", "count", "answer"),
    [({}, 2, "d c"), ({"d": used(1, 40960)}, 2, "b a"), ({}, 3, "d c b"), ({"d": used(1, 40960)}, 3, "c b a")],
)
def test_numa_first_binds_if_it_can_and_spreads_over_numa_nodes_if_not(usage, count, answer):
    assert chosen(pod(container(gpu=count, mem=1), policy="numa-first"), view(TWO_BY_TWO, usage)) == answer


def test_numa_first_with_numa_bind_stays_bound():
    incoming = pod(container(gpu=3, mem=1), policy="numa-first", annotations=BIND)
    assert record(incoming, view(TWO_BY_TWO)) == "2/4 AllocatedCardsInsufficientRequest, 2/4 NumaNotFit"


def test_numa_firsts_refusal_is_that_of_the_unbound_try():
    assert record(
        pod(container(gpu=3, mem=1), policy="numa-first"), view(TWO_BY_TWO, {c: used(1, 40960) for c in "abc"})
    ) == ("1/4 AllocatedCardsInsufficientRequest, 3/4 CardInsufficientMemory")


# 7.7: MIG


def instances(incoming, on):
    """What a container got on MIG cards: (card, profile, start) each, or the refusal's text."""
    result = fitted(incoming, on)
    if not isinstance(result, NodeFit):
        return str(result)
    return [(d.uuid, d.share.profile, d.share.mark.placement.start) for d in first_allocation(result).devices]


@pytest.mark.parametrize(
    ("amounts", "usage", "answer"),
    [
        ({"mem": 1}, None, [("m", "1g.5gb", 6)]),
        ({"mem": 5120}, None, [("m", "1g.5gb", 6)]),
        ({"mem": 5121}, None, [("m", "2g.10gb", 0)]),
        ({"mem": 10241}, None, [("m", "3g.20gb", 4)]),
        ({"mem": 20481}, None, "1/1 CardMigTopologyInfeasible"),
        ({"percent": 50}, None, [("m", "3g.20gb", 4)]),
        ({"percent": 25}, None, [("m", "2g.10gb", 0)]),
        ({"percent": 51}, None, "1/1 CardMigTopologyInfeasible"),
        ({}, None, [("m", "3g.20gb", 4)]),
        ({"percent": 100}, None, [("m", "3g.20gb", 4)]),
        ({"mem": 8000}, used(3, 30720, 84, ("", 0, 2), ("", 2, 1), ("", 5, 1)), "1/1 CardMigTopologyInfeasible"),
        ({"mem": 8000}, used(2, 10240, 28, ("1g", 1, 1), ("1g", 2, 1)), [("m", "2g.10gb", 4)]),
        ({"mem": 8000}, used(1, 5120, 14, ("1g", 0, 1)), [("m", "2g.10gb", 2)]),
        ({"mem": 1}, used(2, 10240, 28, ("1g", 6, 1), ("1g", 5, 1)), [("m", "1g.5gb", 4)]),
        # 3g from high to low
        ({"mem": 20000}, used(1, 20480, 42, ("3g", 4, 4)), [("m", "3g.20gb", 0)]),
    ],
)  # fmt: skip
def test_the_smallest_profile_that_is_enough_is_placed_where_it_fits(amounts, usage, answer):
    on = view(node(mig_card("m")), {"m": usage} if usage else None)
    assert instances(pod(one(**amounts)), on) == answer


def test_a_full_profile_falls_through_to_the_next_larger_one():
    profiles = [profile("1g.5gb", 5120, 14, (0, 1)), profile("2g.10gb", 10240, 28, (2, 2))]
    incoming = pod(container(gpu=2, mem=5000))
    fit = placed(incoming, view(node(mig_card("m", profiles))))
    assert [(d.share.profile, d.share.memory, d.share.cores) for d in first_allocation(fit).devices] == [
        ("1g.5gb", 5120, 14),
        ("2g.10gb", 10240, 28),
    ]


def test_profiles_of_equal_memory_are_tried_by_slices_then_as_listed():
    def tried(*names_and_slices):
        profiles = [{**profile(name, 5120, 14, (0, 1)), "sliceCount": slices} for name, slices in names_and_slices]
        return instances(pod(one(mem=5)), view(node(mig_card("m", profiles))))[0][1]

    assert tried(("2g.b", 2), ("1g.a", 1)) == "1g.a"
    assert tried(("2g.b", 2), ("2g.a", 2)) == "2g.b"


def test_cores_play_no_part_in_the_choice_of_a_profile_and_the_profiles_are_booked():
    assert record(pod(one(mem=1, cores=90)), view(node(mig_card("m")))) == "m,NVIDIA,5120,14:;"


def test_a_container_stays_on_a_mig_card_while_it_has_room_then_goes_on():
    on = view(node(mig_card("m"), mig_card("n")))
    assert instances(pod(container(gpu=4, mem=8000)), on) == [
        ("n", "2g.10gb", 0),
        ("n", "2g.10gb", 2),
        ("n", "2g.10gb", 4),
        ("m", "2g.10gb", 0),
    ]


def test_a_whole_card_request_takes_at_most_one_instance_of_a_card():
    on = view(node(mig_card("m"), mig_card("n")))
    whole, _ = admitted(raw_pod(container(gpu=2)))
    assert instances(whole, on) == [("n", "3g.20gb", 4), ("m", "3g.20gb", 4)]
    assert instances(pod(container(gpu=3)), on) == "2/2 AllocatedCardsInsufficientRequest"


def test_difference_mig_instances_of_one_container_are_limited_by_placements_alone():
    seven = pod(container(gpu=7, mem=4000, cores=20))
    assert instances(seven, view(node(mig_card("m")))) == [("m", "1g.5gb", start) for start in range(6, -1, -1)]
    few_slots = view(node(mig_card("m", count=2)))
    assert instances(seven, few_slots) == [("m", "1g.5gb", start) for start in range(6, -1, -1)]
    assert record(pod(container(gpu=8, mem=4000, cores=20)), view(node(mig_card("m")))) == (
        "1/1 CardMigTopologyInfeasible, 7/1 AllocatedCardsInsufficientRequest"
    )
    aware = pod(container(gpu=7, mem=4000, cores=20), policy="topology-aware")
    assert len(instances(aware, view(node(mig_card("m"))))) == 7


def test_what_other_containers_hold_of_a_mig_card_counts_for_the_first_instance():
    full = view(node(mig_card("m")), {"m": used(1, 30720, 84, ("3g", 0, 4))})
    assert record(pod(container(gpu=2, mem=4000, cores=20)), full) == "1/1 CardInsufficientCore"


@pytest.mark.parametrize(("wanted", "answer"), [("mig", "m"), ("hami-core", "h"), ("hami-core,mig", "h"), (None, "h")])
def test_the_mode_chooses_between_mig_and_shared_cards(wanted, answer):
    on = view(node(mig_card("m"), card("h", mode="hami-core")))
    incoming = pod(one(mem=5000), annotations={} if wanted is None else {MODE: wanted})
    assert chosen(incoming, on) == answer


def test_containers_of_one_pod_see_each_others_instances():
    incoming = pod(container("a", gpu=1, mem=8000), container("b", gpu=1, mem=8000))
    fit = placed(incoming, view(node(mig_card("m"))))
    marks = [row["NVIDIA"].devices[0].share.mark.placement for row in fit.rows]
    assert marks == [MigPlacement(0, 2), MigPlacement(2, 2)]


def test_a_floor_is_what_an_idle_card_would_be_booked_with():
    device = nvidia().inventory(node(mig_card("m"))).devices[0]
    assert nvidia().floor(Request(1, FixedMemory(8000), 0), device) == 10240
    assert nvidia().floor(Request(1, ShareOfCard(100), 0), device) == 20480
    assert nvidia().floor(Request(1, FixedMemory(30000), 0), device) == 30000


def test_the_label_where_nothing_can_be_booked_is_the_mig_one():
    assert nvidia().unresolvable == reasons.CARD_MIG_TOPOLOGY_INFEASIBLE
    assert [p["name"] for p in A100_PROFILES] == ["1g.5gb", "2g.10gb", "3g.20gb"]


# 7.8: several containers


@pytest.mark.parametrize(
    ("containers", "answer"),
    [
        # two containers share a card when there is only one
        ([container("a", gpu=1, mem=1000), container("b", gpu=1, mem=1000)], "A1000;A1000;"),
        # each adds its usage before the next
        ([container("a", gpu=1, mem=30000), container("b", gpu=1, mem=20000)], None),
        # init containers are fitted on the state before the pod
        ([init(gpu=1, mem=30000), container("b", gpu=1, mem=20000)], "A30000;A20000;"),
        ([init("i", gpu=1, mem=30000), init("j", gpu=1, mem=40000)], "A30000;A40000;"),
        # sidecars count like app containers, for those after them
        ([sidecar(gpu=1, mem=20000), container("b", gpu=1, mem=30000)], None),
        ([sidecar(gpu=1, mem=20000), init(gpu=1, mem=30000)], None),
        ([init(gpu=1, mem=30000), sidecar(gpu=1, mem=20000)], "A30000;A20000;"),
        ([init(gpu=1, mem=50000), container("b", gpu=1, mem=1)], None),
    ],
)
def test_containers_are_fitted_one_after_another(containers, answer):
    found = record(pod(*containers), view(node(card("A"))))
    if answer is None:
        assert found == "1/1 CardInsufficientMemory"
    else:
        assert found == "".join(f"A,NVIDIA,{part[1:]},0:;" for part in answer.split(";") if part)


def test_a_pods_slots_are_its_app_containers_and_one_for_init():
    incoming = pod(init("i", gpu=1, mem=1), init("j", gpu=1, mem=1), container("a", gpu=1, mem=1))
    fit = placed(incoming, view(node(card("A", count=1))))
    assert debit(fit, incoming.kinds) == (1, 1, 0)
    two = pod(container("a", gpu=1, mem=1), container("b", gpu=1, mem=1))
    assert record(two, view(node(card("A", count=1)))) == "1/1 CardTimeSlicingExhausted"


def test_containers_without_cards_keep_their_slot_in_the_record():
    incoming = pod(init("i"), container("a"), container("b", gpu=1, mem=3000, cores=30), container("c"))
    assert record(incoming, view(node(card("G")))) == ";;G,NVIDIA,3000,30:;;"


def test_a_mig_record_counts_containers_init_first():
    incoming = pod(init("i", gpu=1, mem=1), container("a"), container("b", gpu=1, mem=8000))
    on = view(node(mig_card("m")))
    written = nvidia().encode(placed(incoming, on).rows, on.node, 0)["hami.io/vgpu-mig-allocations"]
    assert '"containerIndex":0,"deviceIndex":0' in written
    assert '"containerIndex":2,"deviceIndex":0' in written


def test_shared_cards_write_no_mig_record():
    on = view(node(card("a")))
    assert set(nvidia().encode(placed(pod(one()), on).rows, on.node, 0)) == {
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-devices-allocated",
    }
