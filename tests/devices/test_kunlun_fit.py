"""Kunlunxin in Fit: counts (7.3), reasons (7.4), quota (10), handles (11), a node with both plugins (13, item 11)."""

import pytest
from builders import container, read_node

from hami_webhook.devices.vendors.kunlun import wings
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.budget import PodBudget
from hami_webhook.scheduling.fit import NodeFit, fit_pod, read_pod_request

from . import xpus
from .fit_env import CHART, FitEnv, Placed, pod
from .xpus import HALF, MEM, NOUSE, QUARTER, VXPU, WHOLE, XPU, card, chosen, ids, kl, server, slices, with_limits


def whole(count, name="main"):
    return container(name, **{XPU: count})


def vyard(sizes=()):
    return xpus.use_slices(FitEnv([xpus.vxpu_server()]), dict(sizes))


def all_but(*indices, sizes=None):
    """A vXPU server on which the other cards are used whole."""
    return vyard({index: (1, WHOLE) for index in range(8) if index not in indices} | (sizes or {}))


# counts


@pytest.mark.parametrize("count", [3, 5, 6, 7])
def test_whole_cards_come_by_1_2_4_and_8(count):
    assert chosen(FitEnv([server(xpus=8)]).place(with_limits(whole(count)))) == "1/8 NumaNotFit"
    assert chosen(vyard().place(with_limits(slices(count)))) == "1/8 NumaNotFit"


@pytest.mark.parametrize("incoming", [whole(9), slices(9, HALF)])
def test_more_than_the_node_has(incoming):
    env = FitEnv([server(xpus=8, cards=[card(index) for index in range(8)])])
    assert chosen(env.place(with_limits(incoming))) == "NodeInsufficientDevice"


@pytest.mark.parametrize(
    ("count", "free", "answer"),
    [
        (1, (0, 4, 5, 6), [0]),
        (1, (0, 1, 4), [4]),
        (1, (0, 1, 4, 5, 6), [4]),
        (1, (0, 1, 4, 5, 6, 7), [0]),
        (1, (1, 2, 5, 6), [1]),
        (2, (0, 1, 2, 5, 6), [5, 6]),
        (2, (0, 1, 2, 4, 5, 6), [0, 1]),
        (2, (0, 1, 2, 3, 5, 6, 7), [5, 6]),
        (2, (0, 4), [0, 4]),
        (2, (0, 5), "1/8 NumaNotFit"),
        (4, (0, 1, 2, 4, 5, 6, 7), [4, 5, 6, 7]),
        (4, (0, 1, 2, 5, 6, 7), [1, 2, 5, 6]),
        (4, (0, 1, 3, 4, 5, 7), [0, 1, 4, 5]),
        (4, (0, 3, 4, 5, 7), [0, 3, 4, 7]),
        (4, (2, 3, 6, 7), [2, 3, 6, 7]),
        (4, (0, 2, 3, 4, 6, 7), [2, 3, 6, 7]),
        (4, (0, 2, 4, 6), [0, 2, 4, 6]),
        (4, (1, 3, 5, 7), [1, 3, 5, 7]),
        (4, (0, 1, 6, 7), "1/8 NumaNotFit"),
        (8, range(8), [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_whole_cards_and_whole_slices_choose_alike(count, free, answer):
    used = [index for index in range(8) if index not in free]
    assert chosen(xpus.use_whole(FitEnv([server(xpus=8)]), used).place(with_limits(whole(count)))) == answer
    assert chosen(all_but(*free).place(with_limits(slices(count)))) == answer


@pytest.mark.parametrize(
    ("count", "size", "free", "answer"),
    [
        (3, QUARTER, range(8), [0, 1, 2]),
        (3, QUARTER, (0, 1, 2, 3, 5, 6, 7), [5, 6, 7]),
        (3, QUARTER, (1, 2, 3, 5, 6, 7), [1, 2, 3]),
        (3, QUARTER, (0, 1, 4, 5), "1/8 NumaNotFit"),
        (5, HALF, range(8), [0, 1, 2, 3, 4]),
        (5, HALF, (0, 1, 4, 5, 6, 7), [0, 4, 5, 6, 7]),
        (5, HALF, (0, 1, 3, 4, 6, 7), [0, 1, 3, 4, 7]),
        (5, HALF, (0, 1, 2, 7, 5), [0, 1, 2, 5, 7]),
        (5, HALF, (0, 1, 2, 3, 6, 7), [0, 1, 2, 3, 6]),
        (5, HALF, (1, 2, 4, 5, 6, 7), [1, 4, 5, 6, 7]),
        (5, HALF, (1, 2, 3, 4, 6, 7), [1, 2, 3, 6, 7]),
        (6, HALF, (0, 1, 4, 5, 6, 7), [0, 1, 4, 5, 6, 7]),
        (7, HALF, (0, 1, 4, 5, 6, 7), "1/8 NumaNotFit, 2/8 CardInsufficientMemory"),
        (7, HALF, range(8), [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_slices_come_in_other_counts_too(count, size, free, answer):
    assert chosen(all_but(*free).place(with_limits(slices(count, size)))) == answer


def test_equal_requests_of_several_slices_stack():
    env = vyard()
    for name in "abcd":
        assert chosen(env.place(with_limits(slices(2, QUARTER), name=name))) == [0, 1]
    assert chosen(env.place(with_limits(slices(2, QUARTER), name="e"))) == [2, 3]


def test_one_slice_prefers_cards_in_use_in_the_order_of_the_wings():
    """Left has four fitting cards, right three: the right wing comes first, but has no card in use."""
    env = vyard({2: (1, HALF), 5: (1, WHOLE)})
    assert chosen(env.place(with_limits(slices(1, HALF)))) == [2]
    env = vyard({2: (1, HALF), 5: (1, WHOLE), 7: (1, HALF), 3: (1, HALF)})
    assert chosen(env.place(with_limits(slices(1, HALF)))) == [7]


def test_slices_of_one_pod_come_from_one_card():
    """Left has two fitting cards, right three, one of them in use: by the wings alone that one would come first."""
    env = all_but(0, 1, 5, 6, 7, sizes={7: (1, QUARTER)})
    assert chosen(env.place(with_limits(slices(1, QUARTER)), keep=False)) == [7]
    both = with_limits(slices(2, QUARTER, name="a"), slices(1, QUARTER, name="b"))
    assert chosen(env.place(both)) == [0, 1, 0]


def test_four_quarters_fill_a_card():
    env = all_but(3)
    for name in "abcd":
        assert chosen(env.place(with_limits(slices(1, QUARTER), name=name))) == [3]
    assert chosen(env.place(with_limits(slices(1, QUARTER), name="e"))) == "1/8 NumaNotFit, 8/8 CardInsufficientMemory"


@pytest.mark.parametrize("sizes", [(QUARTER, HALF), (HALF, QUARTER), (QUARTER, WHOLE), (HALF, WHOLE)])
def test_a_card_carries_slices_of_one_size(sizes):
    env = all_but(3, sizes={3: (1, sizes[0])})
    assert "1/8 NumaNotFit" in chosen(env.place(with_limits(slices(1, sizes[1]))))


def test_a_card_outside_the_wings_is_no_candidate():
    env = FitEnv([server(xpus=9, cards=[card(8)])])
    assert chosen(env.place(with_limits(slices(1)))) == "1/1 NumaNotFit"
    five = FitEnv([server(cards=[card(index) for index in (0, 1, 2, 3, 8)])])
    assert chosen(five.place(with_limits(slices(5, HALF)))) == "1/5 NumaNotFit"
    assert (
        chosen(xpus.use_whole(env, range(8)).place(with_limits(whole(1))))
        == "1/9 NumaNotFit, 8/9 ExclusiveDeviceAllocateConflict"
    )


def test_nodes_with_fewer_cards_work():
    assert chosen(FitEnv([server(xpus=2)]).place(with_limits(whole(2)))) == [0, 1]
    assert chosen(FitEnv([xpus.vxpu_server(count=3)]).place(with_limits(slices(3, QUARTER)))) == [0, 1, 2]
    assert chosen(FitEnv([server(xpus=6)]).place(with_limits(whole(4)))) == [0, 1, 2, 3]
    assert chosen(FitEnv([server(cards=[card(4), card(1), card(5), card(0)])]).place(with_limits(slices(2)))) == [0, 1]


def test_unhealthy_cards_take_nothing():
    env = FitEnv([server(cards=[card(0, health=None), card(1)])])
    assert chosen(env.place(with_limits(slices(2, QUARTER)))) == "1/2 CardNotHealth, 1/2 NumaNotFit"
    assert chosen(env.place(with_limits(slices(1, QUARTER)))) == [1]


# handles


def test_a_node_with_seven_cards_can_split_six():
    seven = FitEnv([xpus.vxpu_server(count=7)])
    assert chosen(seven.place(with_limits(slices(7, QUARTER)))) == "1/7 NodeInsufficientHandle"
    assert chosen(seven.place(with_limits(slices(6, QUARTER)))) == [0, 1, 2, 3, 4, 5]


def test_handles_are_kept_over_several_pods_and_containers():
    env = vyard()
    placed = env.place(with_limits(slices(4, QUARTER, "a"), slices(2, HALF, "b"), slices(2, HALF, "c"), name="first"))
    assert chosen(placed) == [0, 1, 2, 3, 4, 5, 4, 5]
    # 8 cards + 4 × 4 + 2 × 2 = 28 handles
    assert chosen(env.place(with_limits(slices(2, QUARTER), name="full"))) == [0, 1]
    assert chosen(env.place(with_limits(slices(2, HALF), name="halves"))) == [6, 7]
    # 32 handles
    assert chosen(env.place(with_limits(slices(1, HALF), name="one"))) == [6]


def test_where_handles_run_out_the_rule_is_tried_with_fewer_idle_cards():
    """Cards 0 to 2 are full of quarters, 4 has one: 8 + 4 × 4 = 24 handles, so two idle cards may be split."""
    sizes = dict.fromkeys((0, 1, 2), (4, QUARTER)) | {4: (1, QUARTER)}
    assert chosen(vyard(sizes).place(with_limits(slices(2, QUARTER)))) == [4, 5]
    # of the four of the right wing three are idle; with 3 and 5 as the only idle ones no four go together
    assert chosen(vyard(sizes).place(with_limits(slices(4, QUARTER)))) == "1/8 NodeInsufficientHandle"
    # three of the right wing, 4 to 6, need two splits
    assert chosen(vyard(sizes).place(with_limits(slices(3, QUARTER)))) == [4, 5, 6]


def test_the_retry_may_go_to_the_other_wing():
    """8 + 6 × 4 = 32 handles: the pair of idle cards, the tightest wing, can't be split."""
    sizes = dict.fromkeys((0, 1, 2), (1, QUARTER)) | dict.fromkeys((3, 4, 5), (4, QUARTER))
    assert chosen(vyard(sizes).place(with_limits(slices(2, QUARTER)))) == [0, 1]


def test_no_card_is_left_within_the_handles_for_a_pod_that_has_slices_already():
    """8 + 6 × 4 = 32 handles: the first container shares a card, and for the second none of the idle ones is left."""
    sizes = dict.fromkeys(range(6), (1, QUARTER))
    pair = with_limits(slices(1, QUARTER, "a"), slices(1, HALF, "b"))
    assert chosen(vyard(sizes).place(pair)) == "1/8 NodeInsufficientHandle"
    assert chosen(vyard(sizes).place(with_limits(slices(1, QUARTER, "a"), slices(1, QUARTER, "b")))) == [0, 0]


# reasons


def test_mutex_counts_cards_that_would_fit_if_they_need_not_be_idle():
    """Cards 0 to 3 would fit, 0 also if it weren't excluded; 4 and 5 are split otherwise, 6 and 7 are full."""
    sizes = dict.fromkeys(range(4), (1, HALF)) | dict.fromkeys((4, 5), (1, QUARTER)) | dict.fromkeys((6, 7), (1, WHOLE))
    one = with_limits(slices(1, HALF), **{xpus.POLICY: "binpack,mutex", NOUSE: kl(0)})
    assert chosen(vyard(sizes).place(one)) == (
        "1/8 CardUuidMismatch, 2/8 CardInsufficientMemory, 4/8 ExclusiveDeviceAllocateConflict"
    )


def test_mutex_takes_idle_cards_only():
    assert chosen(vyard({5: (1, QUARTER)}).place(with_limits(slices(1, QUARTER), **{xpus.POLICY: "mutex"}))) == [4]


def test_mutex_means_nothing_more_to_whole_cards():
    env = xpus.use_whole(FitEnv([server(xpus=2)]), [0, 1])
    answer = "1/2 NumaNotFit, 2/2 ExclusiveDeviceAllocateConflict"
    assert chosen(env.place(with_limits(whole(1), **{xpus.POLICY: "mutex"}))) == answer
    assert chosen(env.place(with_limits(whole(1)))) == answer


def test_an_excluded_card_does_not_hide_what_else_is_wrong():
    env = xpus.use_whole(FitEnv([server(xpus=4)]), [1, 2])
    assert chosen(env.place(with_limits(whole(2), **{NOUSE: ids([0])}))) == (
        "1/4 CardUuidMismatch, 2/4 ExclusiveDeviceAllocateConflict"
    )
    apart = with_limits(whole(2), **{NOUSE: ids([0, 1, 2, 4, 5, 7])})
    assert chosen(FitEnv([server(xpus=8)]).place(apart)) == "1/8 NumaNotFit, 6/8 CardUuidMismatch"


# quota in Fit


def budget(manifest, **limits):
    incoming = Pod.from_object(manifest)
    named = {"xpu": XPU, "vxpu": VXPU, "mem": MEM}
    return PodBudget({f"limits.{named[key]}": most for key, most in limits.items()}, incoming.kinds, CHART)


def within(env, manifest, **limits):
    """The cards by container when the quota has so much left; or why not."""
    ask = read_pod_request(Pod.from_object(manifest), CHART, "spread")
    found = fit_pod(env.state.view("n1"), ask, CHART, budget(manifest, **limits))
    if not isinstance(found, NodeFit):
        return str(found)
    return [
        [int(device.uuid[-1]) for allocation in row.values() for device in allocation.devices] for row in found.rows
    ]


@pytest.mark.parametrize(
    ("manifest", "enough", "short"),
    [
        (with_limits(slices(2, QUARTER)), {"mem": 2 * QUARTER}, {"mem": 2 * QUARTER - 1}),
        (with_limits(slices(2, QUARTER)), {"vxpu": 2}, {"vxpu": 1}),
        (with_limits(slices(2)), {"mem": 2 * WHOLE}, {"mem": 2 * WHOLE - 1}),
    ],
)
def test_a_selection_beyond_the_quota_is_refused(manifest, enough, short):
    assert within(vyard(), manifest, **enough) == [[0, 1]]
    assert within(vyard(), manifest, **short) == "1/8 ResourceQuotaNotFit"
    assert within(vyard(), manifest, **dict.fromkeys(short, 0)) == "1/8 ResourceQuotaNotFit"


def test_whole_cards_beyond_the_quota_are_refused():
    env = FitEnv([server(xpus=8)])
    assert within(env, with_limits(whole(2)), xpu=2) == [[0, 1]]
    assert within(env, with_limits(whole(2)), xpu=1) == "1/8 ResourceQuotaNotFit"


def test_an_init_container_takes_its_pods_cards_where_quota_demands():
    """By the rule it would take the last free card of the left wing, which would cost a fifth card."""
    env = xpus.use_whole(FitEnv([server(xpus=8)]), [0, 1, 2])
    manifest = pod("p", whole(4, "app"), init=[whole(1, "init")])
    assert within(env, manifest, xpu=5) == [[3], [4, 5, 6, 7]]
    assert within(env, manifest, xpu=4) == [[4], [4, 5, 6, 7]]


def test_an_app_container_takes_the_slices_of_its_init_container_where_quota_demands():
    manifest = pod("p", slices(2, QUARTER, "app"), init=[slices(1, QUARTER, "init")])
    env = vyard({5: (1, QUARTER)})
    assert within(env, manifest, mem=3 * QUARTER) == [[5], [0, 1]]
    assert within(env, manifest, mem=2 * QUARTER) == [[5], [4, 5]]


# a node with both plugins


def both(**annotations):
    return FitEnv([server(xpus=8, cards=[card(index) for index in range(8)], **annotations)])


def test_a_whole_card_blocks_slices_of_its_index_and_vice_versa():
    env = xpus.use_whole(both(), [0])
    assert chosen(env.place(with_limits(slices(1, QUARTER), name="a"))) == [1]
    assert chosen(env.place(with_limits(whole(1), name="b"))) == [2]
    for incoming, taken in ((slices(1, QUARTER), kl(0)), (whole(1), ids([1]))):
        answer = chosen(env.place(with_limits(incoming, **{xpus.USE: taken})))
        assert answer == "1/8 ExclusiveDeviceAllocateConflict, 7/8 CardUuidMismatch"


def test_both_kinds_in_one_container_get_different_cards():
    placed = both().place(with_limits(container(**{XPU: 4, VXPU: 4, MEM: HALF})))
    assert isinstance(placed, Placed)
    assert placed.annotations["BAIDU_COM_DEVICE_IDX"] == "4,5,6,7"
    assert chosen(placed) == [0, 1, 2, 3]


# node score


@pytest.mark.parametrize(
    ("used", "tasks"),
    [(range(8), 0), ((), 1), ((0, 1), 2), ((0,), 3), ((0, 4), 4), (range(4), 1), ((0, 1, 2), 2), ((4, 5, 6, 7), 1)],
)
def test_mtf(used, tasks):
    assert wings.tasks_to_fill(frozenset(used)) == tasks


@pytest.mark.parametrize(
    ("before", "given", "score"),
    [
        ((), range(8), 3000),
        ((), (0, 1, 2, 3), 2000),
        ((), (0, 1), 1000),
        ((), (0,), 0),
        ((0,), (1,), 3000),
        ((0, 4), (1, 5), 3000),
        (range(4), (4,), 1000),
        ((0, 1), (2,), 2000),
        ((0, 1, 2, 4, 5, 6), (3, 7), 3000),
    ],
)
def test_the_score_compares_the_node_before_and_after(before, given, score):
    assert wings.score(frozenset(before), frozenset(before) | frozenset(given)) == score


def test_vxpu_scores_nothing_and_other_cards_silence_the_score():
    assert vyard().place(with_limits(slices(4))).score == 0
    assert FitEnv([server(xpus=8)]).place(with_limits(whole(8))).score == 3000
    assert both().place(with_limits(whole(8))).score == 0
    gpu = '[{"id":"G","count":1,"devmem":9,"devcore":9,"type":"A10","health":true}]'
    mixed = read_node(capacity={XPU: 8}, **{"hami.io/node-nvidia-register": gpu})
    assert FitEnv([mixed]).place(with_limits(whole(8), **{xpus.NODE_POLICY: "spread"})).score == 0
