"""The cards that one round of reclaiming finds for pods, with what it may cost (docs/spec/queues.md#7)."""

from __future__ import annotations

import pytest
from builders import card, node, read_pod
from scheduling.placer_env import NOW, VENDORS

from hami_webhook.evictions import nominated_capacity
from hami_webhook.evictions.nominated_capacity import NominatedCapacity
from hami_webhook.kube.objects import Node
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.nominations import Nominations
from hami_webhook.time_slices import run_at_once


def test_a_round_ends_with_its_last_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nominated_capacity, "_FITS", 2)
    state = ClusterCache(VENDORS)
    state.set_node(Node.from_object(node("n1", card("a", 8000))), NOW)
    capacity = NominatedCapacity(state, Nominations(state, VENDORS, clock=lambda: NOW), VENDORS, set())
    for memory, fits, exhausted in ((8000, True, False), (7000, True, True), (6000, False, True)):
        pod = read_pod(f"p{memory}", gpu=1, mem=memory)
        assert run_at_once(capacity.fitting([pod], set())) is fits
        assert capacity.exhausted is exhausted


def test_what_one_takes_the_next_does_not_find() -> None:
    state = ClusterCache(VENDORS)
    state.set_node(Node.from_object(node("n1", card("a", 8000))), NOW)
    capacity = NominatedCapacity(state, Nominations(state, VENDORS, clock=lambda: NOW), VENDORS, set())
    pod = read_pod("p", gpu=1, mem=4000)
    for room in (True, True, False):
        assert run_at_once(capacity.fitting([pod], set())) is room
        run_at_once(capacity.place([pod], set()))
