"""What a node registers, which NPUs pass, and what is written and told.

Source: docs/spec/ascend.md#3, #7.1 to #7.3, #9, #13.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from builders import container
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.devices.debit import Debit, per_vendor
from hami_webhook.devices.model import NodeView, RegistrationError
from hami_webhook.devices.reasons import Rejection
from hami_webhook.kube.objects import Pod
from hami_webhook.scheduling.cluster_cache import ClusterCache
from hami_webhook.scheduling.fit import fit_pod, read_pod_request
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.placer import Placer, Unschedulable

from .fit_env import CHART, NOW, FitEnv, Placed, pod
from .npus import B3, B4, B41, POLICY, SOFT, A, C, P, chips, chosen, node, npus, with_limits

# 3: the node side


def test_the_registration_of_the_page_is_read():
    text = (
        '[{"id":"9A40A05C","count":4,"devmem":65536,"devcore":20,"type":"Ascend910B3","health":true,'
        '"custominfo":{"NetworkID":0}},{"Index":1,"ID":"4E1BD05C","COUNT":4,"Devmem":65536,"devcore":20,'
        '"type":"Ascend910B3","HEALTH":true,"CustomInfo":{"networkid":1}},'
        '{"id":"third","index":2,"count":4,"devmem":65536,"devcore":20,"type":"Ascend910B3"}]'
    )
    inventory = CHART[B3].inventory(node(0, **{f"hami.io/node-register-{B3}": text}))
    read = [(d.uuid, d.index, d.slots, d.memory, d.cores, d.healthy, d.extra) for d in inventory.devices]
    assert read == [
        ("9A40A05C", 0, 4, 65536, 20, True, 0),
        ("4E1BD05C", 1, 4, 65536, 20, True, 1),
        ("third", 2, 4, 65536, 20, False, None),
    ]
    assert not inventory.facts.grouped


def test_only_the_chips_own_npus_count_and_custominfo_is_an_object():
    assert CHART[B4].inventory(node(2)) is None
    with pytest.raises(RegistrationError, match=f"node-register-{B3}"):
        CHART[B3].inventory(node(0, **{f"hami.io/node-register-{B3}": '[{"id":"a","custominfo":[]}]'}))


@pytest.mark.parametrize(
    ("groups", "grouped"), [([0, 1], True), ([0, None], False), ([0, "1"], False), ([0, True], False), ([0, 1.0], True)]
)
def test_groups_count_where_every_npu_names_a_number(groups, grouped):
    assert CHART[B3].inventory(node(npus(2, groups=groups))).facts.grouped == grouped
    assert not CHART[P].inventory(node(npus(2, P, groups=groups), P)).facts.grouped, "only 910 chips have groups"


@pytest.mark.parametrize(
    ("said", "default", "soft"),
    [("true", False, True), ("false", True, False), (None, True, True), (None, False, False), ("True", True, False)],
)
def test_a_node_says_itself_whether_it_does_soft_mode(said, default, soft):
    notes = {} if said is None else {"hami-vnpu-core": said}
    assert chips(soft=default)[B3].inventory(node(1, **notes)).facts.soft == soft


def test_an_expired_handshake_and_no_allocatable_take_the_npus_away():
    asked = {f"hami.io/node-handshake-{B3}": "Requesting_2025-12-31 23:58:00"}
    state = ClusterCache(CHART)
    for name, capacity in (("gone", 0), ("there", 4)):
        raw = node(1, name=name, **asked)
        amounts = {f"huawei.com/{B3}": str(capacity)}
        state.set_node(type(raw)(name, {}, raw.annotations, amounts, amounts), NOW)
    assert B3 not in state.view("gone").inventories
    assert B3 in state.view("there").inventories


# 7.1 and 7.2


def test_a_soft_pod_needs_a_soft_node_and_any_other_takes_both():
    for cards, on_soft in ((3, True), (3, False)):
        env = FitEnv([node(cards, soft=on_soft)])
        result = env.place(pod(annotations=SOFT, **with_limits(1, 10)))
        assert isinstance(result, Placed) if on_soft else result == {"n1": "1/3 ModeNotFit"}
        assert isinstance(env.place(pod("plain", **with_limits(1, 16384))), Placed)


def test_difference_soft_mode_with_too_few_npus_is_node_insufficient_device():
    assert FitEnv([node(1)]).place(pod(annotations=SOFT, **with_limits(2, 10))) == {"n1": "NodeInsufficientDevice"}


def test_more_npus_than_the_node_has():
    assert chosen(npus(2), count=3) == "NodeInsufficientDevice"
    assert chosen(npus(2, C), word=C, count=4) == "NodeInsufficientDevice"


def test_a_chip_gets_no_npus_of_another_whose_name_contains_its_own():
    both = node(npus(1, B41), B41)
    assert FitEnv([both]).place(pod(**with_limits(1, word=B4))) == {"n1": "NodeInsufficientDevice"}


# 7.3: every label in isolation

NOT_LISTED = {f"hami.io/no-use-{B3}-uuid": "NPU-0"}


@pytest.mark.parametrize(
    ("fields", "before", "amounts", "notes", "label"),
    [
        ({"health": False}, None, {}, {}, "CardNotHealth"),
        ({}, None, {}, NOT_LISTED, "CardUuidMismatch"),
        ({"count": 1}, {"memory": 1}, {"memory": 1}, {}, "CardTimeSlicingExhausted"),
        ({}, {"memory": 1}, {"memory": 1}, {POLICY: "mutex"}, "ExclusiveDeviceAllocateConflict"),
        ({}, {"memory": 16384}, {"memory": 65536}, {}, "CardInsufficientMemory"),
        ({}, {"memory": 16384}, {}, {}, "CardInsufficientMemory"),
        ({}, None, {"memory": 70000}, {}, "CardInsufficientMemory"),
        ({}, None, {"memory": 70000}, SOFT, "CardInsufficientMemory"),
        ({"devcore": 100}, {"memory": 1, "core": 71}, {"memory": 1, "core": 30}, SOFT, "CardInsufficientCore"),
        ({"devcore": 100}, {"memory": 1, "core": 1}, {"memory": 1, "core": 300}, SOFT, "CardInsufficientCore"),
        ({}, {"memory": 1, "core": 71}, {"memory": 1, "core": 30}, SOFT, "CardInsufficientCore"),
        ({"devcore": 100}, {"memory": 1}, {"memory": 1, "core": 100}, SOFT, "ExclusiveDeviceAllocateConflict"),
        ({}, {"memory": 1}, {"memory": 1, "core": 100}, SOFT, "ExclusiveDeviceAllocateConflict"),
        ({"devcore": 100}, {"memory": 1, "core": 100}, {"memory": 1}, SOFT, "CardComputeUnitsExhausted"),
        ({"devcore": 100}, {"memory": 1, "core": 100}, {"memory": 1}, {}, "CardComputeUnitsExhausted"),
    ],
)
def test_each_label_alone(fields, before, amounts, notes, label):
    env = FitEnv([node(npus(1, **fields), soft=True)])
    if before is not None:
        assert isinstance(env.place(pod("before", annotations=SOFT, **with_limits(1, **before))), Placed)
    assert env.place(pod(annotations=notes, **with_limits(1, **amounts)), admit=False) == {"n1": f"1/1 {label}"}


@pytest.mark.parametrize(
    ("fields", "before", "amounts", "notes"),
    [
        ({"count": 2}, {"memory": 1}, {"memory": 1}, SOFT),
        ({}, {"memory": 49152}, {"memory": 16384}, {}),
        ({"devcore": 100}, {"memory": 1, "core": 70}, {"memory": 1, "core": 30}, SOFT),
        ({}, {"memory": 1, "core": 70}, {"memory": 1, "core": 30}, SOFT),
        ({"devcore": 0}, {"memory": 1, "core": 0}, {"memory": 1}, {}),
        ({}, {"memory": 1}, {"memory": 1}, {POLICY: "binpack"}),
    ],
)
def test_just_enough_is_enough(fields, before, amounts, notes):
    env = FitEnv([node(npus(1, **fields), soft=True)])
    env.place(pod("before", annotations=SOFT, **with_limits(1, **before)))
    assert isinstance(env.place(pod(annotations=notes, **with_limits(1, **amounts))), Placed)


def test_spread_takes_the_emptiest_and_binpack_the_fullest_npu():
    env = FitEnv([node(3)])
    env.place(pod("a", annotations={f"hami.io/use-{B3}-uuid": "NPU-1"}, **with_limits(1, 1)))

    def goes(policy):
        result = env.place(pod(annotations={POLICY: policy}, **with_limits(1, 1)), keep=False)
        return json.loads(result.annotations[f"huawei.com/{B3}"])[0]["UUID"]

    assert (goes("spread"), goes("binpack"), goes("mutex")) == ("NPU-2", "NPU-1", "NPU-2")


@pytest.mark.parametrize(("word", "template", "slices"), [(P, 3072, 7), (A, 2184, 15), (B3, 16384, 4), (B4, 8192, 4)])
def test_no_more_slices_than_the_hardware_has(word, template, slices):
    env = FitEnv([node(1, word)])
    for number in range(slices):
        assert isinstance(env.place(pod(f"p{number}", **with_limits(1, 1, word=word))), Placed)
    assert env.place(pod(**with_limits(1, 1, word=word))) == {"n1": "1/1 CardTimeSlicingExhausted"}
    assert env.state.view("n1").used(word, "NPU-0").memory == slices * template


# 9: what is written


def test_init_containers_come_first_and_empty_ones_keep_their_place():
    env = FitEnv([node(npus(2, devcore=100), soft=True)])
    incoming = pod(
        "p",
        container("none"),
        container("b", **with_limits(2, 100, 7)),
        init=[container("i", **with_limits(1, 5))],
        annotations=SOFT,
    )
    result = env.place(incoming)
    assert result.annotations["hami.io/Ascend910B3-devices-allocated"] == (
        "NPU-1,Ascend910B3,5,0:;;NPU-1,Ascend910B3,100,7:NPU-0,Ascend910B3,100,7:;"
    )
    assert json.loads(result.annotations["huawei.com/Ascend910B3"]) == [
        {"UUID": "NPU-1", "memory": 5},
        {"UUID": "NPU-1", "memory": 100, "core": 7},
        {"UUID": "NPU-0", "memory": 100, "core": 7},
    ]
    assert result.debits[f"limits.huawei.com/{B3}-core"] == 14
    usage = env.state.view("n1").used(B3, "NPU-1")
    assert (usage.slots, usage.memory, usage.cores) == (1, 100, 7)


def test_two_chips_of_one_pod_have_annotations_of_their_own():
    registered = json.dumps(npus(1, P))
    env = FitEnv([node(1, **{f"hami.io/node-register-{P}": registered})])
    result = env.place(pod("p", container("a", **with_limits(1, 1)), container("b", **with_limits(1, 1, word=P))))
    assert result.annotations["hami.io/Ascend910B3-devices-allocated"] == "NPU-0,Ascend910B3,16384,0:;;"
    assert result.annotations["hami.io/Ascend310P-devices-allocated"] == ";NPU-0,Ascend310P,3072,0:;"
    assert result.annotations["huawei.com/Ascend310P"] == '[{"UUID":"NPU-0","temp":"vir01","memory":3072}]'


# 13: what a refused pod is told


def test_a_pod_that_no_node_takes_is_told_what_decides():
    async def reported(state, manifest):
        cluster = MemoryCluster(lambda: NOW)
        await cluster.ensure_namespace("default")
        stored = await cluster.create(Kind.PODS, manifest)
        placer = Placer(Handle(cluster, state, CHART, lambda: NOW))
        assert isinstance(await placer.place(Pod.from_object(stored)), Unschedulable)
        assert placer.events is not None
        await placer.events.flush()
        return [event.note.message for event in cluster.events]

    def events(env, manifest):
        return asyncio.run(reported(env.state, manifest))

    mode = events(FitEnv([node(1)]), pod(annotations=SOFT, **with_limits(1, 5)))
    assert "1 nodes ModeNotFit(n1)" in mode
    (hint,) = [text for text in mode if "hami-vnpu-core" in text]
    assert "vnpus.hamiVnpuCore" in hint
    full = FitEnv([node(npus(1, count=1))])
    full.place(pod("first", **with_limits(1, 1)))
    assert "an Ascend910B3 takes at most 1 containers" in " ".join(events(full, pod(**with_limits(1, 1))))
    elsewhere = events(FitEnv([node(1, P)]), pod(**with_limits(1, 1)))
    assert elsewhere == ["1 nodes NodeInsufficientDevice(n1)", "no available node, 1 nodes do not meet"]


# Fit never oversells


amounts = st.sampled_from(
    [
        with_limits(1),
        with_limits(2),
        with_limits(1, 1),
        with_limits(1, 16384),
        with_limits(1, 30000),
        with_limits(1, 65536),
        with_limits(3),
        {},
    ]
)
soft_amounts = st.builds(
    with_limits,
    st.integers(1, 3),
    st.sampled_from([1, 20000, 45000, None]),
    st.sampled_from([None, 0, 10, 60, 100, 250]),
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"health": st.sampled_from([True] * 5 + [False]), "count": st.integers(0, 4)},
            optional={"custominfo": st.fixed_dictionaries({"NetworkID": st.integers(0, 1)})},
        ),
        min_size=1,
        max_size=4,
    ),
    st.lists(
        st.tuples(
            st.booleans(),
            st.lists(amounts, max_size=2),
            st.lists(amounts, max_size=2),
            st.lists(soft_amounts, min_size=1, max_size=2),
            st.sampled_from(["binpack", "spread", "mutex", "topology-aware"]),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_fit_never_oversells_an_npu(fields, wishes):
    cards = [card | changed for card, changed in zip(npus(len(fields), devcore=100), fields, strict=True)]
    env = FitEnv([node(cards, soft=True)])
    for number, (soft, inits, apps, soft_apps, policy) in enumerate(wishes):
        notes = {POLICY: policy} | (SOFT if soft else {})
        listed = [container(f"a{n}", **wish) for n, wish in enumerate(soft_apps if soft else [*apps, with_limits(1)])]
        before = [container(f"i{n}", **wish) for n, wish in enumerate(inits)]
        result = env.place(pod(f"p{number}", *listed, init=before, annotations=notes))
        if isinstance(result, dict):
            assert all(result.values()), "a refusal has a reason"
            continue
        entries = json.loads(result.annotations[f"huawei.com/{B3}"])
        for entry in entries:
            if soft:
                assert "temp" not in entry
            else:
                assert (entry.get("temp"), entry["memory"]) in (
                    (None, 65536), ("vir05_1c_16g", 16384), ("vir10_3c_32g", 32768))  # fmt: skip
    view: NodeView = env.state.view("n1")
    for device in view.inventories[B3].devices:
        usage = view.used(B3, device.uuid)
        assert usage.slots <= device.slots
        assert usage.memory <= device.memory
        assert usage.cores <= 100
        assert device.healthy or usage.slots == 0


@given(st.lists(st.lists(soft_amounts, max_size=1), min_size=1, max_size=3))
def test_what_is_written_reads_back_as_what_was_placed(rows):
    env = FitEnv([node(npus(4, devcore=100), soft=True)])
    listed = [container(f"c{n}", **(row[0] if row else {})) for n, row in enumerate(rows)]
    raw = pod("p", *listed, container("last", **with_limits(1, 1)), annotations=SOFT)
    ask = read_pod_request(Pod.from_object(raw), CHART, "spread")
    result = fit_pod(env.state.view("n1"), ask, CHART, None)
    if isinstance(result, Rejection):
        return
    written = CHART[B3].encode(result.rows, env.state.view("n1").node, NOW)
    raw["metadata"]["annotations"] |= written
    back = CHART[B3].decode(Pod.from_object(raw))
    assert [[(e.uuid, e.memory, e.cores) for e in row] for row in back] == [
        [(d.uuid, d.share.memory, d.share.cores) for d in (row[B3].devices if B3 in row else ())] for row in result.rows
    ]
    total = per_vendor(result.claims(), ask.pod.kinds).get(B3, Debit())
    assert total.slots == sum(len(row) for row in back)
