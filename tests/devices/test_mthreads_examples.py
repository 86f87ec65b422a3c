"""The worked examples of docs/spec/mthreads.md#14, each under its own number."""

import pytest

from .fit_env import Placed, pod
from .moore import ALLOCATED, BINPACK, CORE, LIST, MEM, REQUESTED, VGPU, env, mt_node, placed, short, with_limits


def debits(result):
    assert isinstance(result, Placed), result
    return [result.debits.get(f"limits.{name}", 0) for name in (VGPU, MEM, CORE)]


def slice_of(memory, cores, name="p", **rest):
    return pod(name, with_limits(n=1, mem=memory, core=cores), **rest)


def test_1_a_slice():
    where = env()
    admitted = where.admit(slice_of(32, 8))
    assert short(admitted.limits()) == {"n": "1", "mem": "32", "core": "8"}
    result = where.place(admitted.pod)
    assert result.annotations[ALLOCATED] == "mt-1-mthreads-1,Mthreads,16384,8:;"
    assert result.annotations["mthreads.com/gpu-index"] == "1"
    assert debits(result) == [1, 32, 8]


@pytest.mark.parametrize("written", [{}, {"core": 1}])
def test_2_a_whole_card(written):
    where = env()
    admitted = where.admit(pod("p", with_limits(n=1, **written)))
    assert short(admitted.limits()) == {"n": "1", "mem": "96", "core": "16"}
    assert placed(where, admitted.pod) == "mt-1-mthreads-1,Mthreads,49152,16:;"


def test_3_two_whole_cards():
    where = env()
    admitted = where.admit(pod("p", with_limits(n=2, mem=2, core=1)))
    assert short(admitted.limits()) == {"n": "2", "mem": "192", "core": "32"}
    assert admitted.pod["metadata"]["annotations"][REQUESTED] == "2"
    result = where.place(admitted.pod)
    assert result.annotations[ALLOCATED] == "mt-1-mthreads-1,Mthreads,49152,16:mt-1-mthreads-0,Mthreads,49152,16:;"
    assert result.annotations["mthreads.com/gpu-index"] == "1,0"
    assert debits(result) == [2, 192, 32]


def test_4_what_sgpu_cannot_cut_is_refused_with_what_it_can():
    for units in (3, 1):
        assert env().admit(pod("p", with_limits(n=1, mem=units))).message == LIST
    assert "[2, 4, 8, 16, 32, 64, 96]" in env().admit(pod("p", with_limits(n=1, mem="32Gi"))).message
    assert env().admit(pod("p", with_limits(n=0))).message == f"{VGPU} must be greater than 0"


def test_5_containers_share_the_first_ones_card_or_the_node_fails():
    def two(memory):
        return pod("p", *(with_limits(name, n=1, mem=memory, core=8) for name in "ab"))

    assert placed(env(), two(32)) == "mt-1-mthreads-1,Mthreads,16384,8:;" * 2
    assert placed(env(), two(64)) == "1/2 CardInsufficientMemory, 1/2 CardNotFoundCustomFilterRule"


@pytest.mark.parametrize(("notes", "card"), [({}, 0), (BINPACK, 1)])
def test_6_spread_and_binpack(notes, card):
    where = env()
    assert placed(where, slice_of(32, 8, "first")) == "mt-1-mthreads-1,Mthreads,16384,8:;"
    assert placed(where, slice_of(16, 4, annotations=notes)) == f"mt-1-mthreads-{card},Mthreads,8192,4:;"


@pytest.mark.parametrize(
    ("taken", "asked", "label"),
    [
        (12, {"mem": 2, "core": 8}, "CardInsufficientCore"),
        (16, {"mem": 2}, "CardComputeUnitsExhausted"),
        (12, {}, "CardInsufficientMemory"),
    ],
)
def test_7_one_card_in_use(taken, asked, label):
    where = env(mt_node(16, 96))
    assert placed(where, slice_of(2, taken, "first")) == f"mt-1-mthreads-0,Mthreads,1024,{taken}:;"
    assert placed(where, pod("p", with_limits(n=1, **asked))) == f"1/1 {label}"


def test_8_three_cards_of_two():
    where = env()
    admitted = where.admit(pod("p", with_limits(n=3)))
    assert short(admitted.limits()) == {"n": "3", "mem": "288", "core": "48"}
    assert placed(where, admitted.pod) == "NodeInsufficientDevice"


def test_9_a_smaller_card_is_given_whole():
    where = env(mt_node(32, 128))
    admitted = where.admit(pod("p", with_limits(n=1)))
    assert short(admitted.limits()) == {"n": "1", "mem": "96", "core": "16"}
    result = where.place(admitted.pod)
    assert result.annotations[ALLOCATED] == "mt-1-mthreads-1,Mthreads,32768,16:;"
    assert debits(result) == [1, 64, 16]
