"""Kunlunxin by its tables: configuration (2), nodes (3), lists (4), admission (5), extraction (6), outputs (9)."""

import pytest
from builders import container, read_node

from hami_webhook.devices.lock_annotations import COMMON_LOCK
from hami_webhook.devices.model import FixedMemory, Request, ShareOfCard
from hami_webhook.devices.placement_annotations import read_placed
from hami_webhook.devices.pod_preferences import GPU_POLICY
from hami_webhook.devices.vendors.kunlun import KunlunVxpu, KunlunXpu, align
from hami_webhook.kube.objects import Pod

from . import xpus
from .fit_env import CHART, NOW, FitEnv, Placed, configured, pod
from .xpus import HALF, MEM, QUARTER, USE, VXPU, WHOLE, XPU, card, chosen, entry, kl, server, slices, with_limits

WHOLE_CARDS, VXPUS = CHART["kunlun"], CHART["XPU"]


def request(vendor, **limits):
    (found,) = Pod.from_object(pod(**limits)).containers
    return vendor.request(found)


# 2: configuration


@pytest.mark.parametrize(
    ("section", "backends", "names"),
    [
        ("kunlun: {}", [], set()),
        ("kunlun: {resourceCountName: a.b/x}", ["kunlun"], {"a.b/x"}),
        ("kunlun: {resourceVCountName: a.b/v}", ["XPU"], {"a.b/v"}),
        ("kunlun: {resourceVMemoryName: a.b/m}", [], set()),
        (
            "kunlun: {resourceCountName: a.b/x, resourceVCountName: a.b/v, resourceVMemoryName: a.b/m, factor: 2}",
            ["XPU", "kunlun"],
            {"a.b/x", "a.b/v", "a.b/m"},
        ),
    ],
)
def test_a_backend_without_a_count_name_is_inert(section, backends, names):
    found = configured("nvidia: {resourceCountName: a.b/other}\n" + section)
    assert list(found) == ["NVIDIA", *backends]
    assert found.resource_names == {"a.b/other", *names}


def test_the_names_of_the_chart():
    assert isinstance(WHOLE_CARDS, KunlunXpu)
    assert isinstance(VXPUS, KunlunVxpu)
    assert WHOLE_CARDS.resource_names == (XPU,)
    assert VXPUS.resource_names == (VXPU, MEM)
    assert [key.name for key in (*WHOLE_CARDS.quota_keys(), *VXPUS.quota_keys())] == [
        f"limits.{name}" for name in (XPU, VXPU, MEM)
    ]
    assert {xpus.WHOLE_ALLOCATED, xpus.INDICES, xpus.ALLOCATED, xpus.TO_ALLOCATE} <= {
        *WHOLE_CARDS.keys.owned,
        *VXPUS.keys.owned,
    }
    assert [vendor.lock for vendor in (WHOLE_CARDS, VXPUS)] == [None, COMMON_LOCK]


# 3: nodes


@pytest.mark.parametrize("capacity", [0, "1500m", -1, "x"])
def test_no_whole_cards_without_a_whole_positive_capacity(capacity):
    assert WHOLE_CARDS.inventory(read_node(capacity={XPU: capacity})) is None
    assert WHOLE_CARDS.inventory(read_node()) is None


@pytest.mark.parametrize(("count", "numa"), [(1, [1]), (3, [0, 1, 1]), (8, [0] * 4 + [1] * 4)])
def test_whole_cards_are_derived_from_capacity(count, numa):
    cards = WHOLE_CARDS.inventory(server(xpus=count)).devices
    assert [c.numa for c in cards] == numa
    assert [c.uuid for c in cards] == [f"n1-kunlun-{index}" for index in range(count)]
    assert {(c.vendor, c.type, c.slots, c.memory, c.cores, c.healthy) for c in cards} == {
        ("kunlun", "kunlun", 100, WHOLE, 100, True)
    }


def test_whole_cards_go_with_their_capacity():
    env = FitEnv([server(xpus=8)])
    env.state.set_node(read_node(), NOW)
    assert chosen(env.place(with_limits(container(**{XPU: 1})))) == "node unregistered"


def test_the_register_annotation_of_the_page():
    text = """[{"id":"KL-UUID-00","count":4,"devmem":98304,"devcore":100,"type":"XPU","health":true},
     {"id":"KL-UUID-01","index":1,"count":4,"devmem":98304,"devcore":100,"type":"XPU","health":true},
     {"id":"KL-UUID-02","index":2,"count":4,"devmem":98304,"devcore":100,"type":"XPU","health":true},
     {"id":"KL-UUID-03","index":3,"count":4,"devmem":98304,"devcore":100,"type":"XPU"}]"""
    cards = VXPUS.inventory(read_node(**{xpus.REGISTER: text})).devices
    assert [(c.uuid, c.index, c.healthy) for c in cards] == [(kl(i), i, i != 3) for i in range(4)]
    assert {(c.vendor, c.slots, c.memory, c.cores) for c in cards} == {("XPU", 4, WHOLE, 100)}


def test_every_card_of_the_list_is_offered_whatever_its_type():
    env = FitEnv([server(cards=[card(0, type="P800-OAM", mode="x", more=1), card(1, type=None)])])
    placed = env.place(with_limits(slices(2)))
    assert placed.annotations[xpus.ALLOCATED] == entry(0, WHOLE) + entry(1, WHOLE) + ";"


def test_a_repeated_index_is_told_and_only_its_first_card_used():
    bare = [{key: value for key, value in card(index).items() if key != "index"} for index in range(2)]
    found = VXPUS.inventory(server(cards=bare))
    assert found.warnings == (f"{xpus.REGISTER}: card KL-UUID-01 isn't used, as another has its index 0",)
    env = FitEnv([server(cards=bare)])
    assert chosen(env.place(with_limits(slices(2)))) == "1/2 NumaNotFit"
    assert chosen(env.place(with_limits(slices(1)))) == [0]


def test_a_new_controller_reads_the_list_while_a_fresh_handshake_waits():
    cards = [card(0)]
    env = FitEnv([server(cards=cards, **{xpus.HANDSHAKE: "Requesting_2025-12-31 23:59:55"})])
    assert chosen(env.place(with_limits(slices(1)))) == [0]


# 4: lists


LISTS = [
    ({}, "012"),
    ({USE: "", xpus.NOUSE: " "}, "012"),
    ({USE: " B , C "}, "12"),
    ({USE: "b"}, ""),
    ({xpus.NOUSE: "A,,B"}, "2"),
    ({USE: "A,B", xpus.NOUSE: "A"}, "1"),
    ({USE: "A,B", xpus.OLD_USE: "B,C"}, "1"),
    ({USE: "A", xpus.OLD_USE: " "}, "0"),
    ({USE: "A", xpus.OLD_USE: " ,"}, ""),
    ({xpus.OLD_USE: "C"}, "2"),
    ({xpus.NOUSE: "A", xpus.OLD_NOUSE: "C"}, "1"),
    ({xpus.OLD_NOUSE: "A,B,C"}, ""),
]


@pytest.mark.parametrize(("lists", "allowed"), LISTS)
@pytest.mark.parametrize("backend", ["kunlun", "XPU"])
def test_a_card_must_pass_all_four_lists(backend, lists, allowed):
    """Of three cards two are used, so that the third is taken or nothing."""
    ids_of, asked = (kl, {VXPU: 1}) if backend == "XPU" else (lambda index: xpus.ids([index]), {XPU: 1})
    named = {letter: ids_of(index) for index, letter in enumerate("ABC")}
    notes = {key: "".join(named.get(letter, letter) for letter in text) for key, text in lists.items()}
    got = ""
    for index in range(3):
        env = FitEnv([server(xpus=3, cards=[card(each) for each in range(3)])])
        xpus.use_whole(env, {0, 1, 2} - {index})
        answer = chosen(env.place(with_limits(container(**asked), **notes)))
        got += str(index) if answer == [index] else ""
    assert got == allowed


# 5: admission


@pytest.mark.parametrize(
    ("written", "aligned"),
    [
        (0, QUARTER),
        (1, QUARTER),
        (20480, QUARTER),
        (24576, QUARTER),
        (24577, HALF),
        (30000, HALF),
        (49152, HALF),
        (49153, WHOLE),
        (98304, WHOLE),
        (98305, WHOLE),
        (200000, WHOLE),
        ("24Gi", WHOLE),
        ("48Ki", HALF),
        ("20k", QUARTER),
    ],
)
@pytest.mark.parametrize("init", [False, True])
def test_memory_is_aligned_in_limits_and_requests(written, aligned, init):
    incoming = slices(1, written, "asks")
    manifest = pod("p", container("other", cpu=1), init=[incoming]) if init else with_limits(incoming)
    admitted = FitEnv([]).admit(manifest)
    (found,) = admitted.pod["spec"]["initContainers" if init else "containers"]
    assert found["resources"] == {
        "limits": {VXPU: "1", MEM: str(aligned)},
        "requests": {MEM: str(aligned)},
    }
    if isinstance(written, int):
        assert align(written) == aligned


def test_requests_that_differ_are_aligned_too():
    incoming = container(**{VXPU: 1, MEM: 30000}, requests={VXPU: 1, MEM: 10})
    admitted = FitEnv([]).admit(with_limits(incoming))
    assert admitted.requests() == {VXPU: "1", MEM: "49152"}


@pytest.mark.parametrize(
    "limits", [{XPU: 2}, {XPU: 3, VXPU: 2}, {VXPU: 1}, {MEM: 20000}, {VXPU: 0}, {VXPU: 1, MEM: 24576}]
)
def test_nothing_else_is_changed(limits):
    requests = {MEM: 24576} if limits.get(VXPU) and MEM in limits else None
    manifest = with_limits(container(**limits, requests=requests))
    assert FitEnv([]).admit(manifest).pod == manifest


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({VXPU: 1, MEM: -1}, f"{MEM} must not be negative"),
        ({MEM: -1}, f"{MEM} must not be negative"),
        ({VXPU: 1, MEM: 2**63 - 1}, f"invalid {MEM} value 9223372036854775807 in container main: must be"),
        ({VXPU: 1, MEM: "1e30"}, f"invalid {MEM} value 1e30 in container main: must be"),
    ],
)
def test_what_cannot_be_meant_is_refused(limits, message):
    assert FitEnv([]).admit(with_limits(container(**limits))).message.startswith(message)
    assert FitEnv([]).admit(with_limits(container(requests=limits))).message.startswith(message)


@pytest.mark.parametrize(
    ("limits", "warnings"),
    [
        ({VXPU: 6, MEM: 24576}, []),
        ({VXPU: 8, MEM: 49152}, []),
        ({VXPU: 5, MEM: 49152}, []),
        *(({XPU: count}, []) for count in (0, 1, 2, 4, 8)),
        ({VXPU: 8}, []),
        ({VXPU: 1, MEM: 98304}, []),
        ({VXPU: 1, MEM: 98303}, [f"{MEM} 98303 is aligned up to 98304 MiB, a whole card"]),
        ({VXPU: 1, MEM: 30000}, [f"{MEM} 30000 is aligned up to 49152 MiB, half a card"]),
        ({VXPU: 1, MEM: 98305}, [f"{MEM} 98305 is capped to 98304 MiB, a whole card"]),
        ({VXPU: 1, MEM: 1000000}, [f"{MEM} 1000000 is capped to 98304 MiB, a whole card"]),
        (
            {VXPU: 1, MEM: 1000001},
            [f"{MEM} 1000001 looks like bytes, but counts MiB; it is capped to 98304 MiB, a whole card"],
        ),
        (
            {VXPU: 1, MEM: "24Gi"},
            [f"{MEM} 24Gi looks like bytes, but counts MiB; it is capped to 98304 MiB, a whole card"],
        ),
        ({XPU: 3}, [f"{XPU} 3 can't be placed: whole cards are given out by 1, 2, 4 or 8"]),
        ({XPU: 9}, [f"{XPU} 9 can't be placed: a node has 8 cards"]),
        ({VXPU: 5}, [f"{VXPU} 5 can't be placed: whole cards are given out by 1, 2, 4 or 8"]),
        (
            {VXPU: 7, MEM: 24576},
            [f"{VXPU} 7 can't be placed: a node's driver can split 6 cards in quarters at most"],
        ),
        ({VXPU: 9, MEM: 49152}, [f"{VXPU} 9 can't be placed: a node has 8 cards"]),
        ({MEM: 24576}, [f"{MEM} means nothing without {VXPU}"]),
        ({MEM: 24576, XPU: 1}, [f"{MEM} means nothing without {VXPU}"]),
    ],
)
def test_what_is_hardly_meant_is_told(limits, warnings):
    assert FitEnv([]).admit(with_limits(container(**limits))).warnings == [
        f"container main: {text}" for text in warnings
    ]


# 6: extraction


@pytest.mark.parametrize(
    ("vendor", "limits", "found"),
    [
        (WHOLE_CARDS, {XPU: 3}, Request(3, ShareOfCard(100), 0)),
        (WHOLE_CARDS, {XPU: 0}, None),
        (WHOLE_CARDS, {VXPU: 1}, None),
        (VXPUS, {XPU: 1}, None),
        (VXPUS, {VXPU: 0, MEM: 5}, None),
        (VXPUS, {MEM: 24576}, None),
        (VXPUS, {VXPU: 2, MEM: 0}, Request(2, FixedMemory(QUARTER), 25)),
        (VXPUS, {VXPU: 2, MEM: 20480}, Request(2, FixedMemory(QUARTER), 25)),
        (VXPUS, {VXPU: 2, MEM: 24577}, Request(2, FixedMemory(HALF), 50)),
        (VXPUS, {VXPU: 2, MEM: "24Gi"}, Request(2, FixedMemory(WHOLE), 100)),
        (VXPUS, {VXPU: 2}, Request(2, FixedMemory(WHOLE), 100)),
    ],
)
def test_extraction(vendor, limits, found):
    assert request(vendor, **limits) == found
    (incoming,) = Pod.from_object(pod("p", container(requests=limits))).containers
    assert vendor.request(incoming) == found


def test_limits_come_before_requests():
    (incoming,) = Pod.from_object(pod("p", container(**{VXPU: 1, MEM: 1}, requests={VXPU: 2, MEM: 30000}))).containers
    assert VXPUS.request(incoming) == Request(1, FixedMemory(QUARTER), 25)


# 9: outputs


def test_a_container_without_slices_keeps_its_place_in_the_annotation():
    env = xpus.use_slices(FitEnv([xpus.vxpu_server()]), {1: (1, HALF)})
    placed = env.place(with_limits(slices(1, QUARTER, "a"), container("b", cpu=1), slices(1, HALF, "c")))
    expected = entry(0, QUARTER) + ";;" + entry(1, HALF) + ";"
    assert placed.annotations[xpus.ALLOCATED] == placed.annotations[xpus.TO_ALLOCATE] == expected
    assert xpus.WHOLE_ALLOCATED not in placed.annotations
    assert xpus.INDICES not in placed.annotations


def test_each_backend_pads_its_own_list():
    env = FitEnv([server(xpus=8, cards=[card(index) for index in range(8)])])
    manifest = pod("p", slices(1, HALF, "a"), container("b", **{XPU: 1}), init=[container("c", cpu=1)])
    placed = env.place(manifest)
    assert placed.annotations[xpus.ALLOCATED] == ";" + entry(0, HALF) + ";;"
    assert placed.annotations[xpus.WHOLE_ALLOCATED] == ";;n1-kunlun-1,kunlun,98304,100:;"
    assert placed.debits == {f"limits.{XPU}": 1, f"limits.{VXPU}": 1, f"limits.{MEM}": HALF}


def test_the_indices_of_all_containers_are_written_once_each():
    init, first, second = (container(name, **{XPU: count}) for name, count in (("i", 1), ("a", 2), ("b", 1)))
    placed = xpus.use_whole(FitEnv([server(xpus=8)]), [6]).place(pod("p", first, second, init=[init]))
    assert placed.annotations[xpus.WHOLE_ALLOCATED].count("n1-kunlun-4,") == 2
    assert placed.annotations[xpus.INDICES] == "4,5,7"


def test_bus_ids_with_colons_are_counted_as_used():
    env = FitEnv([server(cards=[card(index, id=f"0000:{index}b:00.0") for index in range(2)])])
    first = env.place(with_limits(slices(1), name="first"))
    assert first.annotations[xpus.ALLOCATED] == "0000:0b:00.0,XPU,98304,100:;"
    assert first.debits == {f"limits.{MEM}": WHOLE, f"limits.{VXPU}": 1}
    second = env.place(with_limits(slices(1), name="second"))
    assert second.annotations[xpus.ALLOCATED] == "0000:1b:00.0,XPU,98304,100:;"
    only = with_limits(slices(1), **{USE: "0000:0b:00.0"})
    assert chosen(env.place(only)) == "1/2 CardInsufficientMemory, 1/2 CardUuidMismatch"


@pytest.mark.parametrize("finished", [False, True])
def test_after_init_only_the_app_is_counted(finished):
    env = FitEnv([xpus.vxpu_server()])
    placed = env.place(pod("p", slices(1, QUARTER, "app"), init=[slices(1, HALF, "init")]))
    bound = pod("p", slices(1, QUARTER, "app"), init=[slices(1, HALF, "init")], annotations=placed.annotations)
    bound["spec"]["nodeName"] = "n1"
    if finished:
        bound["status"] = {"containerStatuses": [{"name": "app", "state": {"running": {}}}]}
    size = QUARTER if finished else HALF
    assert xpus.charge(env, bound).amounts == {f"limits.{MEM}": size, f"limits.{VXPU}": 1}
    found = read_placed(VXPUS, Pod.from_object(bound))
    assert [debit.memory for debit in found.per_device(init_finished=finished).values()] == [size]


def test_a_pod_of_hami_before_init_containers_is_read():
    notes = {xpus.WHOLE_ALLOCATED: f"{xpus.ids([2])},kunlun,98304,100:;", "hami.io/vgpu-node": "n1"}
    env = FitEnv([server(xpus=8)])
    old = pod("old", container(**{XPU: 1}), init=[container("c", cpu=1)], annotations=notes)
    old["spec"]["nodeName"] = "n1"
    env.state.set_pod(Pod.from_object(old), NOW)
    assert chosen(env.place(with_limits(container(**{XPU: 1})))) == [0]
    assert env.state.view("n1").used("kunlun", "n1-kunlun-2").slots == 1


def test_card_policies_other_than_mutex_change_nothing():
    for policy in ("binpack", "spread", "numa", "numa-first", "topology-aware", "binpack,numa"):
        env = xpus.use_whole(FitEnv([server(xpus=8)]), [5])
        placed = env.place(with_limits(container(**{XPU: 2}), **{GPU_POLICY: policy}))
        assert isinstance(placed, Placed)
        assert chosen(placed) == [4, 6]
