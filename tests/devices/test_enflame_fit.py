"""Enflame's Fit, what is read back of it, and what its pods are charged (docs/spec/enflame.md#7 to #10)."""

from __future__ import annotations

import pytest
from builders import card, container, read_node

from hami_webhook.devices.codecs import DeviceEntry
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.pricing import charge_of, price_pending

from .enflame import ALLOCATED, R, T, both_node, drs_capacity, drs_card, drs_node, share, shared_node, slices, went
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
