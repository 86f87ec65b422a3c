"""NVIDIA's checks, NUMA binding, MIG and several containers (docs/spec/nvidia.md#7)."""

from __future__ import annotations

import pytest
from tables import in_one_test

from hami_webhook.devices.model import FixedMemory, MemoryRequest, NodeView, Request, ShareOfCard, Usage
from hami_webhook.devices.pod_fit import NodeFit
from hami_webhook.devices.vendors.nvidia.mig import decode_allocations
from hami_webhook.kube.objects import Pod

from .cards import (
    ALLOCATED,
    JSON,
    MIG_RECORDS,
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
    registered,
    used,
    view,
)

MODE = "nvidia.com/vgpu-mode"
BIND = {"nvidia.com/numa-bind": "true"}
USE_TYPE, NOUSE_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_UUID, NOUSE_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"


# 7.3: what is special in the checks


@in_one_test(
    ("fields", "notes", "cordon", "answer"),
    [
        ({}, {}, "a", "1/1 CardCordoned"),
        ({}, {USE_TYPE: "V100"}, "", "1/1 CardTypeMismatch"),
        ({}, {NOUSE_TYPE: "a100"}, "", "1/1 CardTypeMismatch"),
        ({}, {MODE: "mig"}, "", "1/1 CardTypeMismatch"),
        ({}, {MODE: ""}, "", "1/1 CardTypeMismatch"),
        ({"mode": "mig"}, {}, "", "1/1 CardMigTopologyInfeasible"),
        ({}, {USE_TYPE: "v100, a100-sxm4"}, "", "a"),
        ({"mode": "mps"}, {MODE: "mps"}, "", "a"),
        ({}, {MODE: "mig,hami-core"}, "", "a"),
        ({"mode": ""}, {MODE: ""}, "", "a"),
        ({"mode": ""}, {MODE: "mig"}, "", "a"),
        # the first check that fails gives the label
        ({"health": False}, {USE_TYPE: "V100"}, "a", "1/1 CardNotHealth"),
        ({}, {USE_TYPE: "V100"}, "a", "1/1 CardCordoned"),
        ({}, {USE_TYPE: "V100", USE_UUID: "b"}, "", "1/1 CardTypeMismatch"),
        ({"mode": "mig", "devcore": 9}, {}, "", "1/1 CardInsufficientCore"),
    ],
)
def test_health_cordon_type_and_mode(fields: JSON, notes: dict[str, str], cordon: str, answer: str) -> None:
    on = view(node(card("a", **fields), cordon=cordon))
    assert chosen(pod(one(mem=1000, cores=10), annotations=notes), on) == answer


def test_a_card_without_memory_serves_nobody() -> None:
    assert record(pod(one(mem=0)), view(node(card("a", devmem=0)))) == "1/1 CardInsufficientMemory"


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
def test_more_cards_than_the_node_has_are_refused_at_once_unless_mig_may_serve(
    cards: list[JSON], notes: dict[str, str], answer: str
) -> None:
    assert chosen(pod(container(gpu=2, mem=1000), annotations=notes), view(node(*cards))) == answer


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
def test_memory_is_rounded_down_but_never_to_nothing(request_: MemoryRequest, devmem: int, expected_share: int) -> None:
    device = registered(node(card("a", devmem=devmem))).devices[0]
    request = Request(1, request_, 0)
    share = nvidia().resolve_share(request, device, used(0))
    assert share is not None
    assert share.memory == expected_share
    assert nvidia().floor(request, device) == expected_share


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
def test_numa_bound_cards_come_from_one_numa_node(
    notes: dict[str, str], usage: dict[str, Usage], count: int, answer: str
) -> None:
    assert chosen(pod(container(gpu=count, mem=1), annotations=notes), view(TWO_BY_TWO, usage)) == answer


def test_a_card_that_fails_before_the_numa_check_starts_no_group() -> None:
    on = view(node(card("a"), card("b", type="V100"), card("c", numa=1), card("d", numa=1, health=False)))
    incoming = pod(container(gpu=2, mem=1), annotations={**BIND, USE_TYPE: "A100"})
    assert record(incoming, on) == (
        "1/4 AllocatedCardsInsufficientRequest, 1/4 CardNotHealth, 1/4 CardTypeMismatch, 1/4 NumaNotFit"
    )
    only_one = pod(container(gpu=2, mem=1), annotations={**BIND, USE_UUID: "a,b,c,d", NOUSE_TYPE: "V100"})
    zero = view(node(card("a"), card("b", numa=1, type="V100"), card("c")))
    assert chosen(only_one, zero) == "c a"


def test_a_card_that_fails_after_the_numa_check_has_started_its_group() -> None:
    on = view(node(card("a"), card("b", numa=1)))
    incoming = pod(container(gpu=2, mem=1), annotations={**BIND, NOUSE_UUID: "a"})
    assert record(incoming, on) == "1/2 CardUuidMismatch, 1/2 NumaNotFit"


@pytest.mark.parametrize(
    ("usage", "count", "answer"),
    [({}, 2, "d c"), ({"d": used(1, 40960)}, 2, "b a"), ({}, 3, "d c b"), ({"d": used(1, 40960)}, 3, "c b a")],
)
def test_numa_first_binds_if_it_can_and_spreads_over_numa_nodes_if_not(
    usage: dict[str, Usage], count: int, answer: str
) -> None:
    assert chosen(pod(container(gpu=count, mem=1), policy="numa-first"), view(TWO_BY_TWO, usage)) == answer


def test_numa_first_with_numa_bind_stays_bound() -> None:
    incoming = pod(container(gpu=3, mem=1), policy="numa-first", annotations=BIND)
    assert record(incoming, view(TWO_BY_TWO)) == "2/4 AllocatedCardsInsufficientRequest, 2/4 NumaNotFit"


def test_numa_firsts_refusal_is_that_of_the_unbound_try() -> None:
    assert record(
        pod(container(gpu=3, mem=1), policy="numa-first"), view(TWO_BY_TWO, {c: used(1, 40960) for c in "abc"})
    ) == ("1/4 AllocatedCardsInsufficientRequest, 3/4 CardInsufficientMemory")


# 7.7: MIG


def instances(incoming: Pod, on: NodeView) -> list[tuple[str, str | None, int]] | str:
    """What a container got on MIG cards: (card, profile, start) each, or the refusal's text."""
    result = fitted(incoming, on)
    if not isinstance(result, NodeFit):
        return str(result)
    return [(d.uuid, d.share.profile, d.share.mark.placement.start) for d in first_allocation(result).devices]


@in_one_test(
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
def test_the_smallest_profile_that_is_enough_is_placed_where_it_fits(
    amounts: JSON, usage: Usage | None, answer: object
) -> None:
    on = view(node(mig_card("m")), {"m": usage} if usage else None)
    assert instances(pod(one(**amounts)), on) == answer


def test_a_full_profile_falls_through_to_the_next_larger_one() -> None:
    profiles = [profile("1g.5gb", 5120, 14, (0, 1)), profile("2g.10gb", 10240, 28, (2, 2))]
    incoming = pod(container(gpu=2, mem=5000))
    fit = placed(incoming, view(node(mig_card("m", profiles))))
    assert [(d.share.profile, d.share.memory, d.share.cores) for d in first_allocation(fit).devices] == [
        ("1g.5gb", 5120, 14),
        ("2g.10gb", 10240, 28),
    ]


def test_profiles_of_equal_memory_are_tried_by_slices_then_as_listed() -> None:
    def tried(*names_and_slices: tuple[str, int]) -> str | None:
        profiles = [{**profile(name, 5120, 14, (0, 1)), "sliceCount": slices} for name, slices in names_and_slices]
        return instances(pod(one(mem=5)), view(node(mig_card("m", profiles))))[0][1]

    assert tried(("2g.b", 2), ("1g.a", 1)) == "1g.a"
    assert tried(("2g.b", 2), ("2g.a", 2)) == "2g.b"


def test_cores_play_no_part_in_the_choice_of_a_profile_and_the_profiles_are_booked() -> None:
    assert record(pod(one(mem=1, cores=90)), view(node(mig_card("m")))) == "m,NVIDIA,5120,14:;"


def test_a_container_stays_on_a_mig_card_while_it_has_room_then_goes_on() -> None:
    on = view(node(mig_card("m"), mig_card("n")))
    assert instances(pod(container(gpu=4, mem=8000)), on) == [
        ("n", "2g.10gb", 0),
        ("n", "2g.10gb", 2),
        ("n", "2g.10gb", 4),
        ("m", "2g.10gb", 0),
    ]


def test_a_whole_card_request_takes_at_most_one_instance_of_a_card() -> None:
    on = view(node(mig_card("m"), mig_card("n")))
    whole, _ = admitted(raw_pod(container(gpu=2)))
    assert instances(whole, on) == [("n", "3g.20gb", 4), ("m", "3g.20gb", 4)]
    assert instances(pod(container(gpu=3)), on) == "2/2 AllocatedCardsInsufficientRequest"


def test_difference_mig_instances_of_one_container_are_limited_by_placements_alone() -> None:
    seven = pod(container(gpu=7, mem=4000, cores=20))
    assert instances(seven, view(node(mig_card("m")))) == [("m", "1g.5gb", start) for start in range(6, -1, -1)]
    few_slots = view(node(mig_card("m", count=2)))
    assert instances(seven, few_slots) == [("m", "1g.5gb", start) for start in range(6, -1, -1)]
    assert record(pod(container(gpu=8, mem=4000, cores=20)), view(node(mig_card("m")))) == (
        "1/1 CardMigTopologyInfeasible, 7/1 AllocatedCardsInsufficientRequest"
    )
    aware = pod(container(gpu=7, mem=4000, cores=20), policy="topology-aware")
    assert len(instances(aware, view(node(mig_card("m"))))) == 7


def test_what_other_containers_hold_of_a_mig_card_counts_for_the_first_instance() -> None:
    full = view(node(mig_card("m")), {"m": used(1, 30720, 84, ("3g", 0, 4))})
    assert record(pod(container(gpu=2, mem=4000, cores=20)), full) == "1/1 CardInsufficientCore"


@pytest.mark.parametrize(("wanted", "answer"), [("mig", "m"), ("hami-core", "h"), ("hami-core,mig", "h"), (None, "h")])
def test_the_mode_chooses_between_mig_and_shared_cards(wanted: str | None, answer: str) -> None:
    on = view(node(mig_card("m"), card("h", mode="hami-core")))
    incoming = pod(one(mem=5000), annotations={} if wanted is None else {MODE: wanted})
    assert chosen(incoming, on) == answer


def test_a_floor_is_what_an_idle_card_would_be_booked_with() -> None:
    device = registered(node(mig_card("m"))).devices[0]
    assert nvidia().floor(Request(1, FixedMemory(8000), 0), device) == 10240
    assert nvidia().floor(Request(1, ShareOfCard(100), 0), device) == 20480
    assert nvidia().floor(Request(1, FixedMemory(30000), 0), device) == 30000


# 7.8: several containers


def test_containers_see_each_others_instances_and_a_record_counts_them_init_first() -> None:
    """An app container sees those of other app containers only."""
    incoming = pod(init("i", gpu=1, mem=8000), *(container(name, gpu=1, mem=8000) for name in "ab"), container("c"))
    on = view(node(mig_card("m")))
    written = decode_allocations(nvidia().encode(incoming, placed(incoming, on).rows, on.node, 0)[MIG_RECORDS])
    assert written is not None
    assert [(each.row, each.device, each.instance.placement.start) for each in written] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 2),
    ]


def test_shared_cards_write_no_mig_record() -> None:
    on = view(node(card("a")))
    incoming = pod(one())
    assert set(nvidia().encode(incoming, placed(incoming, on).rows, on.node, 0)) == {
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-devices-allocated",
    }


def test_mig_instances_are_written_and_booked_with_their_profile() -> None:
    """Example 7 of section 14."""
    on = view(node(mig_card("GPU-m")))
    incoming = pod(container(gpu=2, mem=8000), annotations={MODE: "mig"})
    fit = placed(incoming, on)
    written = nvidia().encode(incoming, fit.rows, on.node, 0)
    assert written[ALLOCATED] == "GPU-m,NVIDIA,10240,28:GPU-m,NVIDIA,10240,28:;"
    assert written[MIG_RECORDS] == (
        '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-m","profile":"2g.10gb","placement":{"start":0,"size":2}},'
        '{"containerIndex":0,"deviceIndex":1,"gpuUUID":"GPU-m","profile":"2g.10gb","placement":{"start":2,"size":2}}]'
    )
    assert debit(fit, incoming.kinds) == (2, 20480, 56)


@pytest.mark.parametrize(
    ("policy", "memory", "candidates"),
    [("topology-aware,mutex", 1000, 3), ("topology-aware", 1000, 4), ("topology-aware", 40960, 3)],
)
def test_the_candidates_are_the_cards_that_pass(policy: str, memory: int, candidates: int) -> None:
    """Example 9: nodes are ranked by them."""
    on = view(node(*(card(str(i)) for i in range(4))), {"3": used(1, 100, 1)})
    allocation = first_allocation(placed(pod(one(mem=memory), policy=policy), on))
    assert (allocation.candidates, allocation.link_quality) == (candidates, 0)


def test_a_priority_is_for_run_time_and_moves_no_pod() -> None:
    on = view(node(card("a"), card("b")))
    assert chosen(pod(one(mem=1000, priority=1)), on) == chosen(pod(one(mem=1000)), on)
