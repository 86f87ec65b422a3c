"""Enflame's Fit, what is written and read of it, what its pods are charged (docs/spec/enflame.md#7 to #10, #14)."""

from __future__ import annotations

import pytest
from builders import card, container, read_node

from hami_webhook.devices.codecs import DeviceEntry
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.pricing import charge_of, price_pending

from .enflame import (
    ALLOCATED,
    WHOLE,
    R,
    T,
    both_node,
    drs_capacity,
    drs_card,
    drs_node,
    share,
    shared_node,
    slices,
    went,
)
from .fit_env import CHART, JSON, NOW, FitEnv, Placed, pod

CAPACITY = "enflame.com/gcu-drs-capacity"
# 7: Fit


@pytest.mark.parametrize(
    ("size", "per_card", "reason"), [(1, 4, ""), (2, 4, "1/1 ModeNotFit"), (1, 8, "1/1 ModeNotFit"), (None, 8, "")]
)
def test_slices_rounded_for_other_nodes_dont_fit(size: int | None, per_card: int, reason: str) -> None:
    amounts = {R.VGCU: 1, R.PERCENT: 25} | ({} if size is None else {R.SHARED_GCU: size})
    assert went(FitEnv([shared_node("n", 1, per_card)]), pod(**amounts), admit=False) == (
        reason or "n-enflame-0,Enflame,25,0:;"
    )


@pytest.mark.parametrize(
    ("amounts", "record"),
    [({R.PERCENT: 26}, "50,0"), ({R.PERCENT: 0}, "25,0"), ({}, "100,0"), ({R.PERCENT: 26, R.SHARED_GCU: 2}, "50,0")],
)
def test_a_percentage_admission_has_not_seen_is_rounded_at_placement(amounts: dict[str, object], record: str) -> None:
    incoming = pod(**({R.VGCU: 1} | amounts))
    assert went(FitEnv([shared_node("n", 1, 4)]), incoming, admit=False) == f"n-enflame-0,Enflame,{record}:;"


def test_a_card_with_broken_slices_is_full_earlier() -> None:
    env = FitEnv([read_node("n", **{CAPACITY: drs_capacity(drs_card(0, capacity=4))})])
    env.place(slices(3, "first"))
    assert went(env, slices(3)) == "1/1 CardInsufficientCore"
    assert went(env, slices(1)) == "n-enflame-drs-0,Enflame,6144,17:;"
    assert went(env, slices(1, "third")) == "1/1 CardTimeSlicingExhausted"


def two(first: int, second: int, **annotations: str) -> JSON:
    return pod("p", container("a", **{R.SLICES: first}), container("b", **{R.SLICES: second}), annotations=annotations)


def test_the_first_card_is_one_that_takes_every_container() -> None:
    env = FitEnv([drs_node("n", 2)])
    env.place(slices(3, "half"))
    assert went(env, two(1, 3, **{"hami.io/gpu-scheduler-policy": "binpack"}), keep=False).count("drs-0") == 2
    assert went(env, two(1, 1, **{"hami.io/gpu-scheduler-policy": "binpack"}), keep=False).count("drs-1") == 2
    assert went(env, two(3, 6)) == "1/2 CardInsufficientMemory, 1/2 CardNotFoundCustomFilterRule"
    assert went(env, two(6, 1)) == "1/2 CardNotFoundCustomFilterRule, 1/2 CardTimeSlicingExhausted"


def test_shared_containers_of_a_pod_are_on_one_card_too() -> None:
    env = FitEnv([shared_node("n", 2, 4)])
    halves = pod("p", container("a", **{R.VGCU: 1, R.PERCENT: 50}), container("b", **{R.VGCU: 1, R.PERCENT: 50}))
    assert went(env, halves, keep=False) == "n-enflame-1,Enflame,50,0:;n-enflame-1,Enflame,50,0:;"
    more = pod("p", container("a", **{R.VGCU: 1, R.PERCENT: 50}), container("b", **{R.VGCU: 1, R.PERCENT: 75}))
    assert went(env, more) == "1/2 CardInsufficientMemory, 1/2 CardNotFoundCustomFilterRule"


def test_containers_that_ask_for_another_vendors_card_need_none_of_it() -> None:
    capacity = {R.COUNT: 2, R.SHARED_GCU: 8, "nvidia.com/gpu": 10}
    env = FitEnv([read_node("n", card("G", 40960), capacity=capacity)])
    both = pod("p", container("a", gpu=1, mem=1000), container("b", **{R.VGCU: 1, R.PERCENT: 50}))
    assert went(env, both) == ";n-enflame-1,Enflame,50,0:;"


def test_none_of_the_forms_adds_to_the_node_score() -> None:
    env = FitEnv([drs_node("n", 1, capacity={R.GCU: 1})])
    for incoming in (slices(1), pod(**{R.GCU: 1})):
        assert env.placed(incoming, keep=False).score == 0


# 9: what is read back


@pytest.mark.parametrize(("percent", "slots"), [(17, 1), (50, 3), (100, 6), (34, 2), (1, 1), (99, 5)])
def test_the_size_of_a_placed_partition_follows_from_its_percent(percent: int, slots: int) -> None:
    notes = {"hami.io/vgpu-node": "node-a", ALLOCATED: f"node-a-enflame-drs-0,Enflame,1024,{percent}:;"}
    raw = pod(annotations=notes)
    bound = Pod.from_object(raw | {"spec": raw["spec"] | {"nodeName": "node-a"}})
    env = FitEnv([drs_node()])
    env.state.set_pod(bound, NOW)
    assert next(env.state.views()).used("Enflame-DRS", "node-a-enflame-drs-0").slots == slots


def test_the_size_is_counted_anew_when_the_table_becomes_known_or_changes() -> None:
    notes = {"hami.io/vgpu-node": "node-a", ALLOCATED: "node-a-enflame-drs-0,Enflame,8192,50:;"}
    raw = pod(annotations=notes)
    env = FitEnv([])
    env.state.set_pod(Pod.from_object(raw | {"spec": raw["spec"] | {"nodeName": "node-a"}}), NOW)
    for profiles, slots in (({"2g.16gb": "0"}, 1), ({"4g.16gb": "0"}, 2), (T, 3)):
        env.state.set_node(drs_node(profiles=profiles), NOW)
        assert next(env.state.views()).used("Enflame-DRS", "node-a-enflame-drs-0").slots == slots


def test_a_card_that_is_held_but_no_longer_registered_keeps_its_mode() -> None:
    env = FitEnv([both_node("n")])
    env.place(slices(1, "drs"))
    env.state.set_node(shared_node("n", 1, 4), NOW)
    assert went(env, share(25)) == "1/1 ModeNotFit"


def test_a_card_whose_minor_is_not_its_index_keeps_another_one_from_being_shared() -> None:
    env = FitEnv([both_node("n", 2, 4, drs_card(0, minor="1"))])
    env.place(slices(1, "drs"))
    for uuid, answer in (
        ("n-enflame-0", "n-enflame-0,Enflame,25,0:;"),
        ("n-enflame-1", "1/2 CardUuidMismatch, 1/2 ModeNotFit"),
    ):
        incoming = share(25, 1, "p", **{"enflame.com/use-gpuuuid": uuid})
        assert went(env, incoming, keep=False) == answer


def test_each_form_reads_its_own_entries_of_the_annotation() -> None:
    text = "n-enflame-0,Enflame,25,0:;;x-enflame-drs-enflame-1,Enflame,50,0:n-enflame-drs-2,Enflame,6144,17:;"
    read = Pod.from_object(pod(annotations={ALLOCATED: text}))
    assert CHART["Enflame"].decode(read) == [
        [DeviceEntry("n-enflame-0", "Enflame", 25, 0)],
        [],
        [DeviceEntry("x-enflame-drs-enflame-1", "Enflame", 50, 0)],
    ]
    assert CHART["Enflame-DRS"].decode(read) == [[], [], [DeviceEntry("n-enflame-drs-2", "Enflame", 6144, 17)]]
    assert CHART["Enflame-DRS"].decode(Pod.from_object(pod(annotations={ALLOCATED: ";"}))) is None


def test_an_annotation_nobody_can_read_is_told_of_once() -> None:
    env = FitEnv([drs_node()])
    raw = pod(annotations={"hami.io/vgpu-node": "node-a", ALLOCATED: "x,Enflame,many,1:;"}, **{R.SLICES: 1})
    bound = Pod.from_object(raw | {"spec": raw["spec"] | {"nodeName": "node-a"}})
    env.state.set_pod(bound, NOW)
    (problem,) = env.state.problems()
    assert problem.text.count(ALLOCATED) == 1
    assert len(charge_of(bound, CHART, env.state.capacity, NOW).problems) == 1


# 10: quota

OTHER = drs_node("node-b", profiles={"1g.6gb": "0", "4g.24gb": "1", "8g.48gb": "2"})


def drs_debit(count: int, memory: int, cores: int) -> dict[str, int]:
    amounts = {f"limits.{R.SLICES}": count, f"limits.{R.MEMORY}": memory, f"limits.{R.CORE}": cores}
    return {key: amount for key, amount in amounts.items() if amount}


def shared_debit(count: int, percent: int) -> dict[str, int]:
    return {f"limits.{R.VGCU}": count, f"limits.{R.PERCENT}": percent}


@pytest.mark.parametrize(
    ("incoming", "debit"),
    [
        (slices(3), drs_debit(3, 20480, 50)),
        (pod(**{R.CORE: 40}), drs_debit(3, 20480, 50)),
        (pod(**{R.MEMORY: 6144}), drs_debit(1, 6144, 17)),
        (share(26), shared_debit(1, 50)),
        (share(30, count=2), shared_debit(2, 200)),
        (share(None), shared_debit(1, 100)),
        (pod(**{R.GCU: 2}), {f"limits.{R.GCU}": 2}),
        (pod("p", container("app", **{R.SLICES: 1}), init=[container("i", **{R.SLICES: 3})]), drs_debit(3, 20480, 50)),
    ],
)
def test_the_waiting_charge_is_what_placement_will_debit(incoming: JSON, debit: dict[str, int]) -> None:
    env = FitEnv([drs_node(), shared_node("shared", 2, 4), read_node("whole", capacity={R.GCU: 2})])
    admitted = env.admit(incoming).pod
    assert admitted is not None
    assert price_pending(Pod.from_object(admitted), CHART, env.state.capacity).amounts == debit
    placed = env.placed(incoming)
    assert placed.debits == debit


@pytest.mark.parametrize(
    ("incoming", "nowhere", "differing"),
    [
        (pod(**{R.MEMORY: 6144}), drs_debit(1, 6144, 0), drs_debit(1, 6144, 0)),
        (pod(**{R.MEMORY: "7Gi"}), drs_debit(1, 7168, 0), drs_debit(1, 7168, 0)),
        (pod(**{R.MEMORY: 5000, R.CORE: 40}), drs_debit(1, 5000, 40), drs_debit(1, 5000, 40)),
        (pod(**{R.MEMORY: 20}), drs_debit(1, 1, 0), drs_debit(1, 20480, 0)),
        (pod(**{R.CORE: 40}), drs_debit(1, 1, 40), drs_debit(1, 20480, 40)),
        (slices(3), drs_debit(3, 1, 0), drs_debit(3, 20480, 50)),
        (slices(1), drs_debit(1, 1, 0), drs_debit(1, 6144, 13)),
        (slices(5), drs_debit(5, 1, 0), drs_debit(5, 1, 0)),
    ],
)
def test_where_the_profile_isnt_known_what_is_written_counts_or_the_least_it_can_be(
    incoming: JSON, nowhere: dict[str, int], differing: dict[str, int]
) -> None:
    for nodes, debit in (([], nowhere), ([drs_node(), OTHER], differing)):
        env = FitEnv(nodes)
        admitted = env.admit(incoming).pod
        assert admitted is not None
        assert price_pending(Pod.from_object(admitted), CHART, env.state.capacity).amounts == debit


@pytest.mark.parametrize(
    ("hard", "where"),
    [
        ({f"limits.{R.CORE}": 50}, "node-a"),
        ({f"limits.{R.CORE}": 49}, "node-c"),
        ({f"limits.{R.CORE}": 39}, None),
        ({f"limits.{R.MEMORY}": 20479}, "node-c"),
        ({f"limits.{R.SLICES}": 2}, "node-c"),
        ({f"limits.{R.SLICES}": 1}, None),
    ],
)
def test_a_node_whose_profile_overflows_the_quota_is_refused(hard: dict[str, int], where: str | None) -> None:
    twenty_percent = drs_node("node-c", profiles={"2g.16gb": "0", "5g.40gb": "1"})
    placed = FitEnv([drs_node(), twenty_percent], hard=hard).place(pod("p", **{R.CORE: 40}), admit=False)
    if isinstance(placed, Placed):
        assert placed.node == where
    else:
        assert placed == dict.fromkeys(("node-a", "node-c"), "1/1 ResourceQuotaNotFit")
        assert where is None


# 9 and 14: what is written, and the worked examples by their numbers

NANOSECONDS = str(int(NOW) * 10**9)


def test_1_the_seed_asks_for_a_quarter_of_a_named_card() -> None:
    env = FitEnv([shared_node("node1", 2, 4)])
    incoming = share(25, 1, "p", **{"enflame.com/use-gpuuuid": "node1-enflame-0"})
    admitted = env.admit(incoming)
    assert admitted.limits() == {R.VGCU: "1", R.PERCENT: "25", R.SHARED_GCU: "1"}
    assert admitted.warnings == []
    placed = env.placed(incoming)
    assert placed.annotations == {
        "hami.io/vgpu-node": "node1",
        "hami.io/vgpu-time": str(int(NOW)),
        ALLOCATED: "node1-enflame-0,Enflame,25,0:;",
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-time": NANOSECONDS,
        "enflame.com/gcu-assigned-id": "0",
        "enflame.com/gcu-assigned-minor": "0",
        "enflame.com/gcu-request-size": "1",
    }


@pytest.mark.parametrize(
    ("f", "written", "percent", "size"),
    [
        (4, 15, 25, 1),
        (4, 26, 50, 2),
        (4, None, 100, 4),
        (4, 0, 25, 1),
        (6, 16, 16, 1),
        (6, 17, 33, 2),
        (6, 22, 33, 2),
        (6, 84, 100, 6),
    ],
)
def test_2_percentages_are_rounded_up_to_slices(f: int, written: int | None, percent: int, size: int) -> None:
    admitted = FitEnv([shared_node(f=f)]).admit(share(written))
    assert admitted.limits() == {R.VGCU: "1", R.PERCENT: str(percent), R.SHARED_GCU: str(size)}
    assert admitted.requests() == {R.PERCENT: str(percent), R.SHARED_GCU: str(size)}
    reported = written is not None and written != percent
    assert list(admitted.warnings) == (
        [f"container main: {R.PERCENT} {written} becomes {percent}, as a card has {f} slices"] if reported else []
    )


def test_3_two_cards_are_whole_cards() -> None:
    env = FitEnv([shared_node("n1", 2, 4)])
    admitted = env.admit(share(30, count=2))
    assert admitted.limits() == {R.VGCU: "2", R.PERCENT: "100", R.SHARED_GCU: "8"}
    assert admitted.requests() == {R.PERCENT: "100", R.SHARED_GCU: "8"}
    assert admitted.warnings == [f"container main: {R.PERCENT} 30 becomes 100, as more than one card means whole cards"]
    placed = env.placed(share(30, count=2), keep=False)
    assert placed.annotations[ALLOCATED] == "n1-enflame-1,Enflame,100,0:n1-enflame-0,Enflame,100,0:;"
    assert placed.annotations["enflame.com/gcu-assigned-id"] == "1,0"
    assert placed.annotations["enflame.com/gcu-assigned-minor"] == "1,0"
    assert placed.annotations["enflame.com/gcu-request-size"] == "8"
    env.place(share(25, name="small"))
    assert went(env, share(30, count=2)) == "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"


def test_5_drs_by_slices() -> None:
    placed = FitEnv([drs_node()]).placed(pod("p", container("pod-gcu-example1", **{R.SLICES: 3})))
    assert placed.annotations == {
        "hami.io/vgpu-node": "node-a",
        "hami.io/vgpu-time": str(int(NOW)),
        ALLOCATED: "node-a-enflame-drs-0,Enflame,20480,50:;",
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-time": NANOSECONDS,
        "enflame.com/gcu-assigned-index": "0",
        "enflame.com/gcu-assigned-id": "0",
        "enflame.com/gcu-assigned-minor": "0",
        "enflame.com/gcu-request-size": "3",
        "assigned-containers": (
            '{"pod-gcu-example1":{"allocated":false,"request":3,"profileID":"1","profileName":"3g.20gb"}}'
        ),
    }
    assert went(FitEnv([drs_node()]), slices(1)) == "node-a-enflame-drs-0,Enflame,6144,17:;"
    assert went(FitEnv([drs_node()]), slices(2)) == "1/1 ModeNotFit"


@pytest.mark.parametrize(
    ("amounts", "size", "record"),
    [
        ({R.MEMORY: 20480, R.CORE: 40}, 3, "20480,50"),
        ({R.MEMORY: 20}, 3, "20480,50"),
        ({R.MEMORY: "20Gi"}, 3, "20480,50"),
        ({R.MEMORY: 6144}, 1, "6144,17"),
        ({R.MEMORY: 6145}, 3, "20480,50"),
        ({R.CORE: 51}, 6, "40960,100"),
        ({R.MEMORY: 81}, 1, "6144,17"),
    ],
)
def test_6_drs_by_need_gets_the_smallest_profile_that_serves(
    amounts: dict[str, object], size: int, record: str
) -> None:
    env = FitEnv([drs_node()])
    admitted = env.admit(pod(**amounts))
    written = {key: str(value) for key, value in amounts.items()} | {R.SLICES: str(size)}
    assert (admitted.limits(), admitted.requests()) == (written, written)
    assert [f"{R.SLICES} set to {size}" in warning for warning in admitted.warnings] == [True]
    assert went(env, pod(**amounts), keep=False) == f"node-a-enflame-drs-0,Enflame,{record}:;"
    assert went(env, pod(**amounts), admit=False) == f"node-a-enflame-drs-0,Enflame,{record}:;"


@pytest.mark.parametrize("amount", [49152, 41, 80, "41Gi"])
def test_6_what_no_profile_serves_fits_nowhere(amount: object) -> None:
    env = FitEnv([drs_node()])
    reported = env.admit(pod(**{R.MEMORY: amount})).warnings
    assert reported == ["container main: no profile of the nodes serves this; there are 1g.6gb, 3g.20gb, 6g.40gb"]
    assert went(env, pod(**{R.MEMORY: amount})) == "1/1 ModeNotFit"


def test_10_two_containers_get_one_card() -> None:
    incoming = pod("p", container("b", **{R.SLICES: 1}), container("a", **{R.SLICES: 3}))
    placed = FitEnv([drs_node(cards=2)]).placed(incoming)
    assert placed.annotations[ALLOCATED] == (
        "node-a-enflame-drs-1,Enflame,6144,17:;node-a-enflame-drs-1,Enflame,20480,50:;"
    )
    assert placed.annotations["enflame.com/gcu-request-size"] == "4"
    assert placed.annotations["assigned-containers"] == (
        '{"a":{"allocated":false,"request":3,"profileID":"1","profileName":"3g.20gb"},'
        '"b":{"allocated":false,"request":1,"profileID":"0","profileName":"1g.6gb"}}'
    )
    assert placed.debits == {"limits.enflame.com/drs-gcu": 4, "limits.enflame.com/gcu-memory": 26624} | {
        "limits.enflame.com/gcu-core": 67
    }


def test_11_whole_cards() -> None:
    env = FitEnv([read_node("testnode", capacity={R.GCU: 2})])
    placed = env.placed(pod(**{R.GCU: 1}), keep=False)
    assert placed.annotations == {
        "hami.io/vgpu-node": "testnode",
        "hami.io/vgpu-time": str(int(NOW)),
        "hami.io/enflame-gcu-devices-to-allocate": "testnode-GCU-1,GCU,100,100:;",
        WHOLE: "testnode-GCU-1,GCU,100,100:;",
    }
    assert placed.debits == {"limits.enflame.com/gcu": 1}
    env.place(pod("first", **{R.GCU: 1}))
    assert went(env, pod(**{R.GCU: 2})) == (
        "1/2 AllocatedCardsInsufficientRequest, 1/2 ExclusiveDeviceAllocateConflict"
    )
    assert went(env, pod(**{R.GCU: 3})) == "NodeInsufficientDevice"


def test_12_the_minor_tells_which_silicon_a_drs_card_is() -> None:
    env = FitEnv([both_node("n1", 2, 4, drs_card(0, minor="1"), drs_card(1, minor="0"))])
    placed = env.placed(slices(3))
    assert placed.annotations["enflame.com/gcu-assigned-index"] == "1"
    assert placed.annotations["enflame.com/gcu-assigned-id"] == "1"
    assert placed.annotations["enflame.com/gcu-assigned-minor"] == "0"
    assert went(env, share(25, name="other")) == "n1-enflame-1,Enflame,25,0:;"
    assert went(env, slices(6)) == "1/2 CardInsufficientMemory, 1/2 ModeNotFit"
    assert went(env, share(100)) == "1/2 CardInsufficientMemory, 1/2 ModeNotFit"
