"""The worked examples of docs/spec/enflame.md, by their numbers in section 14, and section 9's annotations."""

from __future__ import annotations

import pytest
from builders import container, read_node

from .enflame import ALLOCATED, WHOLE, R, both_node, drs_card, drs_node, share, shared_node, slices, went
from .fit_env import NOW, FitEnv, pod

POLICY = "hami.io/gpu-scheduler-policy"
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


def test_4_a_card_gives_what_is_left_and_no_more() -> None:
    env = FitEnv([shared_node("n1", 1, 4)])
    env.place(share(75, name="first"))
    assert went(env, share(50)) == "1/1 CardInsufficientMemory"
    assert went(env, share(25)) == "n1-enflame-0,Enflame,25,0:;"


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


def test_7_a_half_used_card() -> None:
    env = FitEnv([drs_node()])
    env.place(slices(3, "first"))
    assert went(env, slices(6)) == "1/1 CardInsufficientMemory"
    assert went(env, slices(3, **{POLICY: "mutex"})) == "1/1 ExclusiveDeviceAllocateConflict"
    assert went(env, slices(3, "second")) == "node-a-enflame-drs-0,Enflame,20480,50:;"
    assert went(env, slices(1)) == "1/1 CardTimeSlicingExhausted"


def test_8_six_ones_fit_on_a_card_of_six() -> None:
    env = FitEnv([drs_node()])
    for number in range(6):
        assert went(env, slices(1, f"p{number}")) == "node-a-enflame-drs-0,Enflame,6144,17:;"
    usage = next(env.state.views()).used("Enflame-DRS", "node-a-enflame-drs-0")
    assert (usage.slots, usage.memory) == (6, 36864)
    assert went(env, slices(1)) == "1/1 CardTimeSlicingExhausted"


@pytest.mark.parametrize(("policy", "card"), [("spread", 0), ("binpack", 1)])
def test_9_the_card_follows_the_policy(policy: str, card: int) -> None:
    env = FitEnv([drs_node(cards=2)])
    assert went(env, slices(3, "first")).startswith("node-a-enflame-drs-1,")
    assert went(env, slices(3, **{POLICY: policy})).startswith(f"node-a-enflame-drs-{card},")


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


def test_12_a_card_is_in_one_mode() -> None:
    env = FitEnv([both_node()])
    env.place(share(25, name="shared"))
    assert went(env, slices(1)) == "1/1 ModeNotFit"
    assert went(env, share(25, name="more")) == "n1-enflame-0,Enflame,25,0:;"
    env.remove("shared")
    env.remove("more")
    assert went(env, slices(1, "drs")) == "n1-enflame-drs-0,Enflame,6144,17:;"
    assert went(env, share(25)) == "1/1 ModeNotFit"
    env.remove("drs")
    assert went(env, share(25)) == "n1-enflame-0,Enflame,25,0:;"


def test_12_the_minor_tells_which_silicon_a_drs_card_is() -> None:
    env = FitEnv([both_node("n1", 2, 4, drs_card(0, minor="1"), drs_card(1, minor="0"))])
    placed = env.placed(slices(3))
    assert placed.annotations["enflame.com/gcu-assigned-index"] == "1"
    assert placed.annotations["enflame.com/gcu-assigned-id"] == "1"
    assert placed.annotations["enflame.com/gcu-assigned-minor"] == "0"
    assert went(env, share(25, name="other")) == "n1-enflame-1,Enflame,25,0:;"
    assert went(env, slices(6)) == "1/2 CardInsufficientMemory, 1/2 ModeNotFit"
    assert went(env, share(100)) == "1/2 CardInsufficientMemory, 1/2 ModeNotFit"
