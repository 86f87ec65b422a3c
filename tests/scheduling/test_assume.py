"""A placement counts from its decision on, exactly once, in whatever order its writing, bind and events come."""

from __future__ import annotations

from dataclasses import dataclass, field

from builders import card, node, pod
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hami_webhook.kube.objects import Node, Pod
from hami_webhook.state.cluster_cache import ClusterCache

from .placer_env import ALLOCATED, NOW, VENDORS, amounts, view_of

CARDS = ("G", "H")
UIDS = ("1", "2")
PHASE = {"hami.io/bind-phase": "allocating", "hami.io/bind-time": str(int(NOW))}
Usage = dict[str, tuple[int, int, int]]
NONE: Usage = dict.fromkeys(CARDS, (0, 0, 0))


def notes_of(card_of: str, second: int) -> dict[str, str]:
    time = str(int(NOW) + second)
    return {"hami.io/vgpu-node": "n", "hami.io/vgpu-time": time, ALLOCATED: f"{card_of},NVIDIA,1000,10:;"}


def empty() -> ClusterCache:
    state = ClusterCache(VENDORS)
    state.set_node(Node.from_object(node("n", *(card(uuid, 8000) for uuid in CARDS))), NOW)
    return state


def bare(uid: str = "1") -> Pod:
    return replace(Pod.from_object(pod(f"p{uid}", gpu=1, mem=1000, cores=10)), uid=uid)


def carrying(one: Pod, notes: dict[str, str], node_name: str = "") -> Pod:
    return replace(one, annotations=notes, node_name=node_name)


def usage(state: ClusterCache) -> Usage:
    view = view_of(state)
    return {uuid: amounts(view.used("NVIDIA", uuid)) for uuid in CARDS}


@dataclass
class Truth:
    """A pod as the API server has it, what of that the watch hasn't shown yet, and what the scheduler knows it did."""

    stored: Pod | None
    unheard: list[Pod | None] = field(default_factory=list)
    deciding: dict[str, str] | None = None
    """What is about to be written."""
    claims: dict[str, str] | None = None
    """The placement that must count."""
    gone: bool = False
    """The deletion was heard of."""

    def now_is(self, stored: Pod | None) -> None:
        self.stored = stored
        self.unheard.append(stored)

    @property
    def bound(self) -> bool:
        return self.stored is not None and bool(self.stored.node_name)


def step(state: ClusterCache, truth: Truth, uid: str, what: str, card_of: str, second: int) -> None:
    stored = truth.stored
    match what:
        case "decide" if not truth.bound and truth.deciding is None:
            state.release(uid)
            truth.deciding = notes_of(card_of, second)
            state.assume(carrying(stored or bare(uid), truth.deciding), NOW)
            truth.claims = None if truth.gone else truth.deciding
        case "write" if truth.deciding is not None:
            if stored is None:
                state.forget(uid, NOW)
                truth.claims = None
            elif not truth.bound:
                truth.now_is(carrying(stored, truth.deciding))
                assert truth.stored is not None
                state.assume(truth.stored, NOW)
            truth.deciding = None
        case "write unheard" if truth.deciding is not None and stored is not None:
            truth.now_is(carrying(stored, truth.deciding))  # the answer is lost, or comes later
        case "phase" if stored is not None and stored.annotations:
            truth.now_is(carrying(stored, {**stored.annotations, **PHASE}, stored.node_name))
        case "bind" if stored is not None and truth.deciding is None and truth.claims is not None:
            truth.now_is(replace(stored, node_name="n"))
        case "fail" if not truth.bound:
            state.forget(uid, NOW)
            truth.deciding = truth.claims = None
        case "refused" if not truth.bound and truth.deciding is None:
            state.release(uid)
            truth.claims = None
        case "label" if stored is not None:
            truth.now_is(replace(stored, labels={"touched": str(second)}))
        case "delete" if stored is not None:
            truth.now_is(None)
        case "hear" if truth.unheard:
            event = truth.unheard.pop(0)
            if event is not None:
                state.set_pod(event, NOW)
            else:
                state.remove_pod(uid)
                truth.claims, truth.gone = None, True


steps = st.lists(
    st.tuples(
        st.sampled_from(UIDS),
        st.sampled_from(
            ("decide", "write", "write unheard", "phase", "bind", "fail", "refused", "label", "delete", *["hear"] * 4)
        ),
        st.sampled_from(CARDS),
        st.integers(0, 2),
    ),
    max_size=40,
)


@given(steps, st.booleans())
def test_a_card_is_never_counted_twice_nor_lost(sequence: list[tuple[str, str, str, int]], known: bool) -> None:
    state = empty()
    truths = {uid: Truth(bare(uid)) for uid in UIDS}
    for uid, truth in truths.items():
        if known:
            state.set_pod(bare(uid), NOW)
        else:
            truth.unheard.append(bare(uid))
    for uid, what, card_of, second in sequence:
        step(state, truths[uid], uid, what, card_of, second)
        held = [t.claims[ALLOCATED].partition(",")[0] for t in truths.values() if t.claims is not None]
        expected = {uuid: (held.count(uuid), 1000 * held.count(uuid), 10 * held.count(uuid)) for uuid in CARDS}
        assert usage(state) == expected, (uid, what)
    for uid, truth in truths.items():  # once all is heard, nothing is left that the API server doesn't have
        while truth.unheard:
            step(state, truth, uid, "hear", "", 0)
        assert (state.pod(uid) is None) is (truth.stored is None)


def test_a_pod_that_is_gone_does_not_come_back_with_a_late_answer() -> None:
    state = empty()
    state.set_pod(bare(), NOW)
    state.remove_pod("1")
    state.assume(carrying(bare(), notes_of("G", 0)), NOW)
    assert (usage(state), state.pod("1")) == (NONE, None)
    state.forget("1", NOW)
    state.set_pod(carrying(bare(), notes_of("G", 0)), NOW)
    assert usage(state)["G"] == (1, 1000, 10), "events are believed"


def test_what_is_neither_bound_nor_forgotten_lapses() -> None:
    state = empty()
    state.set_pod(bare(), NOW)
    state.assume(carrying(bare(), notes_of("G", 0)), NOW)
    state.tick(NOW + 299)
    assert usage(state)["G"] == (1, 1000, 10)
    assert state.expirations == 0
    state.tick(NOW + 300)
    assert usage(state) == NONE
    assert state.expirations == 1
    state.set_pod(bare(), NOW + 301)
    assert usage(state) == NONE
