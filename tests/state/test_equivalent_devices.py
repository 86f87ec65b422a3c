"""The sorts of cards are what a look at every card of every node would find."""

from __future__ import annotations

from typing import Any

import pytest
from builders import card, node, pod
from hypothesis import given
from hypothesis import strategies as st
from scheduling.placer_env import NOW, VENDORS

from hami_webhook.devices.model import Device
from hami_webhook.state.cluster_cache import ClusterCache

from .test_cluster_cache import read_node, read_pod

NVIDIA = VENDORS["NVIDIA"]
NAMES, ZONES, TYPES = ("a", "b", "c"), ("x", "y"), ("NVIDIA A100", "NVIDIA V100")

CARDS = st.lists(
    st.builds(
        lambda number, memory, kind: card(f"G{number}", memory, type=kind),
        st.integers(0, 5),
        st.sampled_from((8000, 16000)),
        st.sampled_from(TYPES),
    ),
    max_size=3,
    unique_by=lambda made: made["id"],
)
CHANGES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.none() | st.tuples(CARDS, st.sampled_from(ZONES))), min_size=1, max_size=8
)
WISHES = st.fixed_dictionaries(
    {},
    optional={
        "nvidia.com/use-gpuuuid": st.sampled_from(("G1", "G1,G2", "G9")),
        "nvidia.com/nouse-gpuuuid": st.sampled_from(("G1", "G3,G4")),
        "nvidia.com/use-gputype": st.sampled_from(("a100", "v100,a100")),
        "nvidia.com/nouse-gputype": st.just("v100"),
    },
)
SELECTORS = st.none() | st.builds(lambda zone: {"zone": zone}, st.sampled_from((*ZONES, "z")))


def sorts(devices: Any) -> set[tuple[int, str]]:
    return {(device.memory, device.type) for device in devices}


def everywhere(state: ClusterCache, notes: dict[str, str], selector: dict[str, str] | None) -> list[Device]:
    uuids, types = NVIDIA.lists(notes)
    found = []
    for name in NAMES:
        view = state.view(name)
        if view is None or any(view.node.labels.get(key) != value for key, value in (selector or {}).items()):
            continue
        inventory = view.inventories.get("NVIDIA")
        found += [
            d for d in (inventory.devices if inventory else ()) if uuids.admits(d.uuid) and types.admits_type(d.type)
        ]
    return found


@given(CHANGES, st.lists(st.tuples(WISHES, SELECTORS), min_size=1, max_size=3))
def test_sorts_are_what_a_look_at_every_card_finds(changes: Any, wishes: Any) -> None:
    state = ClusterCache(VENDORS)
    for name, change in changes:
        if change is None:
            state.remove_node(name)
        else:
            made, zone = change
            state.set_node(read_node(node(name, *made, labels={"zone": zone})), NOW)
        for notes, selector in wishes:  # after each change: answers are remembered
            spec = {} if selector is None else {"nodeSelector": selector}
            incoming = read_pod(pod("p", gpu=1, annotations=notes, **spec))
            assert sorts(state.eligible(NVIDIA, incoming)) == sorts(everywhere(state, notes, selector))


@pytest.mark.parametrize("notes", [{}, {"nvidia.com/use-gputype": "a100"}])
def test_cards_alike_are_one_sort_however_many_there_are(notes: dict[str, str]) -> None:
    state = ClusterCache(VENDORS)
    for number in range(20):
        state.set_node(read_node(node(f"n{number}", *(card(f"G{number}-{i}", 8000) for i in range(8)))), NOW)
    assert len(state.eligible(NVIDIA, read_pod(pod("p", gpu=1, annotations=notes)))) == 1


def test_wishes_for_ever_other_cards_are_not_all_remembered() -> None:
    state = ClusterCache(VENDORS)
    state.set_node(read_node(node("n", card("G1", 8000))), NOW)
    for number in range(600):
        incoming = read_pod(pod("p", gpu=1, annotations={"nvidia.com/nouse-gpuuuid": f"X{number}"}))
        assert len(state.eligible(NVIDIA, incoming)) == 1
    assert len(state._device_classes._answers) <= 256


def test_a_wish_of_any_length_is_answered_and_a_long_one_not_remembered() -> None:
    state = ClusterCache(VENDORS)
    state.set_node(read_node(node("n", card("G1", 8000))), NOW)
    for number in range(3):
        many = ",".join(f"X{number}-{item}" for item in range(20_000))
        incoming = read_pod(pod("p", gpu=1, annotations={"nvidia.com/nouse-gpuuuid": many}))
        assert len(state.eligible(NVIDIA, incoming)) == 1
    assert not state._device_classes._answers
