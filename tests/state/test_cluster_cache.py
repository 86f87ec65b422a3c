"""The cluster's state, kept incrementally, is what a rebuild from scratch would make it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import Any

import pytest
from builders import bound_pod, card, container, node, pod
from msgspec.structs import replace
from scheduling.placer_env import ALLOCATED, NOW, REGISTER, VENDORS, amounts, view_of

from hami_webhook.cluster.api import JSON
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.state.cluster_cache import ClusterCache

MIG_CARD = card(
    "M",
    40960,
    mode="mig",
    count=7,
    migProfiles=[
        {"name": "1g", "memoryMB": 5120, "core": 14, "sliceCount": 1, "placements": [{"start": 0, "size": 1}]},
        {"name": "2g", "memoryMB": 10240, "core": 28, "sliceCount": 2, "placements": [{"start": 2, "size": 2}]},
    ],
)
V100 = "NVIDIA-Tesla V100-PCIE-32GB"
MIG_NOTE = "hami.io/vgpu-mig-allocations"
LOCK = "hami.io/mutex.lock"
IN_SLICE = '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"M","profile":"2g","placement":{"start":2,"size":2}}]'
TERMINATED = [{"name": "init", "state": {"terminated": {"exitCode": 0}}}]


def read_node(raw: JSON, version: int = 0) -> Node:
    return replace(Node.from_object(raw), resource_version=str(version))


def read_pod(raw: JSON, uid: str = "", version: int = 0) -> Pod:
    return replace(Pod.from_object(raw), uid=uid or raw["metadata"]["name"], resource_version=str(version))


def known(*objects: JSON, now: float = NOW) -> ClusterCache:
    state = ClusterCache(VENDORS)
    for obj in objects:
        if "spec" in obj:
            state.set_pod(read_pod(obj), now)
        else:
            state.set_node(read_node(obj), now)
    return state


def used(state: ClusterCache, uuid: str, name: str = "n") -> tuple[int, int, int]:
    return amounts(view_of(state, name).used("NVIDIA", uuid))


def cards(state: ClusterCache, name: str = "n") -> list[str]:
    return [device.uuid for inventory in view_of(state, name).inventories.values() for device in inventory.devices]


def held(raw: JSON, **status: Any) -> JSON:
    return {**raw, "status": {**raw["status"], **status}}


# one rule at a time


SICK = {"G": ["lost"]}


def test_pods_on_a_card_that_becomes_unhealthy_stay_and_it_is_open_again_when_it_is_well() -> None:
    state = known(node("n", card("G", 8000), card("H", 8000)), bound_pod("p", "n", "G,NVIDIA,2000,25:;"))

    def is_open() -> list[bool]:
        view = view_of(state)
        return [view.has_free_slot(device) for device in view.inventories["NVIDIA"].devices]

    assert is_open() == [True, True]
    state.set_node(read_node(node("n", card("G", 8000), card("H", 8000), unhealthy=SICK), 1), NOW)
    assert is_open() == [False, True]
    assert used(state, "G") == (1, 2000, 25)
    state.set_node(read_node(node("n", card("G", 8000), card("H", 8000)), 2), NOW)
    assert is_open() == [True, True]


def test_what_a_pod_of_another_scheduler_costs_does_not_change_with_its_card_s_health() -> None:
    plain = pod("p", gpu=1, mem=2000)
    plain["spec"]["nodeName"] = "n"

    def cost(unhealthy: dict[str, list[str]]) -> object:
        return known(node("n", card("G", 8000), unhealthy=unhealthy)).held(VENDORS["NVIDIA"], read_pod(plain))

    assert cost({}) is not None
    assert cost(SICK) == cost({})


def test_what_a_node_says_wrong_of_its_cards_health_is_told_and_closes_none() -> None:
    state = ClusterCache(VENDORS)
    unreadable = node("n", card("G", 8000))
    unreadable["metadata"]["annotations"]["hami.io/unhealthy-cards"] = "{"
    state.set_node(read_node(unreadable), NOW)
    assert [problem.text for problem in state.problems()] == ["hami.io/unhealthy-cards is ignored: it is no JSON"]
    view = view_of(state)
    assert view.has_free_slot(view.inventories["NVIDIA"].devices[0])


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({"status": {"phase": "Running"}}, (1, 2000, 25)),
        ({"status": {"phase": "Succeeded"}}, (0, 0, 0)),
        ({"status": {"phase": "Failed"}}, (0, 0, 0)),
        ({"status": {"phase": "Unknown"}}, (1, 2000, 25)),
        ({"deletion": "2020-01-01T00:00:00Z"}, (1, 2000, 25)),
    ],
    ids=["running", "succeeded", "failed", "unknown", "terminating since long ago"],
)
@pytest.mark.parametrize("seen_before", [True, False], ids=["updated", "seen first so"])
def test_a_pod_holds_its_cards_until_it_is_over(change: JSON, left: tuple[int, int, int], seen_before: bool) -> None:
    raw = bound_pod("p", "n", "G,NVIDIA,2000,25:;")
    state = known(node("n", card("G", 8000)), *([raw] if seen_before else []))
    meta = dict(raw["metadata"])
    if "deletion" in change:
        meta |= {"deletionTimestamp": change["deletion"], "deletionGracePeriodSeconds": 30}
    state.set_pod(read_pod({**raw, "metadata": meta, "status": change.get("status", raw["status"])}), NOW)
    assert used(state, "G") == left
    state.remove_pod("p")
    assert used(state, "G") == (0, 0, 0)
    assert state.pod("p") is None
    assert state.pods_in("default") == []


def unbound(written: str, text: str = "G,NVIDIA,2000,25:;") -> JSON:
    notes = {"hami.io/vgpu-node": "n", "hami.io/vgpu-time": written, ALLOCATED: text}
    return pod("p", gpu=1, annotations=notes)


@pytest.mark.parametrize(
    ("written", "counts"),
    [
        (str(int(NOW)), True),
        (str(int(NOW) - 299), True),
        (str(int(NOW) - 300), False),
        ("", False),
        ("soon", False),
        ("-5", False),
        ("1" * 5000, True),
    ],
)
def test_a_placement_that_was_not_bound_counts_while_it_is_young(written: str, counts: bool) -> None:
    state = known(node("n", card("G", 8000)), unbound(written))
    assert used(state, "G") == ((1, 2000, 25) if counts else (0, 0, 0))


def test_a_bound_placement_never_lapses() -> None:
    raw = unbound(str(int(NOW)))
    state = known(node("n", card("G", 8000)), raw)
    state.set_pod(read_pod({**raw, "spec": {**raw["spec"], "nodeName": "n"}}), NOW)
    state.tick(NOW + 10_000)
    assert used(state, "G") == (1, 2000, 25)


def test_a_released_placement_counts_again_only_when_it_is_written_anew() -> None:
    raw = unbound(str(int(NOW)))
    state = known(node("n", card("G", 8000)), raw)
    state.release("p")
    assert used(state, "G") == (0, 0, 0)
    touched = {**raw, "metadata": {**raw["metadata"], "labels": {"touched": "yes"}}}
    state.set_pod(read_pod(touched), NOW)
    assert used(state, "G") == (0, 0, 0), "the pod still shows what was released"
    state.set_pod(read_pod(unbound(str(int(NOW) - 1))), NOW)
    assert used(state, "G") == (1, 2000, 25), "another placement"
    state.release("p")
    state.assume(read_pod(unbound(str(int(NOW) - 1))), NOW)
    assert used(state, "G") == (1, 2000, 25), "the same placement once more"
    state.release("p")
    state.set_pod(read_pod({**raw, "spec": {**raw["spec"], "nodeName": "n"}}), NOW)
    assert used(state, "G") == (1, 2000, 25), "bound after all"
    state.release("p")
    assert used(state, "G") == (1, 2000, 25), "what is bound isn't released"


@pytest.mark.parametrize(
    ("status", "left"),
    [
        ({}, (1, 5000, 20)),
        ({"initContainerStatuses": [{"name": "init", "state": {"running": {}}}]}, (1, 5000, 20)),
        ({"initContainerStatuses": [{"name": "init", "state": {"terminated": {"exitCode": 1}}}]}, (1, 5000, 20)),
        ({"initContainerStatuses": TERMINATED}, (1, 4000, 10)),
        ({"containerStatuses": [{"name": "main", "state": {"running": {}}}]}, (1, 4000, 10)),
    ],
    ids=["waiting", "init runs", "init failed", "init done", "app runs"],
)
def test_usage_shrinks_when_init_is_over(status: JSON, left: tuple[int, int, int]) -> None:
    containers = pod("p", gpu=1, init=[container("init", gpu=1)], nodeName="n")["spec"]
    raw = {**bound_pod("p", "n", "G,NVIDIA,5000,20:;G,NVIDIA,4000,10:;"), "spec": containers}
    state = known(node("n", card("G", 8000)), held(raw, **status))
    assert used(state, "G") == left


@pytest.mark.parametrize("text", ["G,NVIDIA:;", "G,NVIDIA,x,1:;", "G,NVIDIA,-1,1:;", "G,NVIDIA,1,99999999999:;"])
def test_an_annotation_that_cannot_be_read_is_noted_and_not_counted(text: str) -> None:
    state = known(node("n", card("G", 8000)), bound_pod("p", "n", text))
    assert used(state, "G") == (0, 0, 0)
    (problem,) = state.problems()
    assert (problem.kind, problem.namespace, problem.name) == ("Pod", "default", "p")
    assert problem.text.startswith(f"{ALLOCATED} can't be read, so its cards aren't known: device ")
    state.set_pod(read_pod(bound_pod("p", "n", "G,NVIDIA,1,1:;")), NOW)
    assert state.problems() == []
    assert used(state, "G") == (1, 1, 1)


def test_a_new_pod_of_the_same_name_keeps_its_note_when_the_old_one_goes() -> None:
    state = known(node("n", card("G", 8000)))
    for uid in ("old", "new"):
        state.set_pod(read_pod(bound_pod("p", "n", "G,NVIDIA:;"), uid), NOW)
    state.remove_pod("old")
    assert len(state.problems()) == 1
    state.remove_pod("new")
    assert state.problems() == []


def test_a_registration_that_cannot_be_read_takes_only_that_node_out() -> None:
    broken = node("bad")
    broken["metadata"]["annotations"][REGISTER] = "[{"
    state = known(broken, node("n", card("G", 8000)))
    assert cards(state, "bad") == []
    assert cards(state) == ["G"]
    (problem,) = state.problems()
    assert (problem.kind, problem.name) == ("Node", "bad")
    assert problem.text.startswith(f"{REGISTER}: not valid JSON")
    state.remove_node("bad")
    assert state.problems() == []


def test_a_node_keeps_its_cards_while_its_registration_cannot_be_read() -> None:
    """Core page 3.2, step 4: a plugin that writes half a list takes nothing from the pods there."""
    good, broken = node("n", card("G", 8000)), node("n", capacity={"nvidia.com/gpu": 10})
    broken["metadata"]["annotations"][REGISTER] = "[{"
    state = known(good, bound_pod("p", "n", "G,NVIDIA,1,1:;"))
    state.set_node(read_node(broken), NOW)
    assert cards(state) == ["G"]
    assert used(state, "G") == (1, 1, 1)
    assert [problem.kind for problem in state.problems()] == ["Node"]
    state.set_node(read_node(node("n", card("H", 8000))), NOW)
    assert cards(state) == ["H"]
    assert state.problems() == []
    state.set_node(read_node(node("n")), NOW)
    assert cards(state) == [], "no list is not a list that can't be read"


def test_unreadable_pair_scores_are_noted_and_the_cards_stay() -> None:
    raw = node("n", card("G", 8000))
    raw["metadata"]["annotations"]["hami.io/node-nvidia-score"] = "{"
    state = known(raw)
    assert cards(state) == ["G"]
    assert state.problems()[0].text.startswith("hami.io/node-nvidia-score is ignored: ")


def test_instances_are_marks_on_their_card() -> None:
    raw = bound_pod("p", "n", "M,NVIDIA,10240,28:;")
    raw["metadata"]["annotations"][MIG_NOTE] = IN_SLICE
    state = known(node("n", MIG_CARD), raw)
    view = view_of(state)
    assert view.closed == frozenset()
    (mark,) = view.used("NVIDIA", "M").marks
    assert (mark.profile, mark.placement.start, mark.placement.size) == ("2g", 2, 2)


def test_an_instance_stays_marked_after_the_init_container_that_held_it() -> None:
    raw = bound_pod("p", "n", "M,NVIDIA,10240,28:;;")
    raw["metadata"]["annotations"][MIG_NOTE] = IN_SLICE
    raw["spec"] = pod("p", container(), init=[container("init", gpu=1)], nodeName="n")["spec"]
    state = known(node("n", MIG_CARD), held(raw, initContainerStatuses=TERMINATED))
    view = view_of(state)
    usage = view.used("NVIDIA", "M")
    assert amounts(usage) == (0, 0, 0)
    assert len(usage.marks) == 1
    assert usage.holders == ()


@pytest.mark.parametrize(
    ("text", "note", "closed"),
    [
        ("M,NVIDIA,10240,28:;", None, {"M"}),
        ("M,NVIDIA,10240,28:;", "not JSON", {"M"}),
        ("G,NVIDIA,10,1:;", IN_SLICE.replace('"M"', '"G"'), {"G"}),
        ("M,NVIDIA,10240,28:;", IN_SLICE.replace('"M"', '"elsewhere"'), {"M"}),
        ("M,NVIDIA,10240,28:;", IN_SLICE, set()),
        ("G,NVIDIA,10,1:;", None, set()),
    ],
    ids=["no record", "bad record", "record on a shared card", "record of an unknown card", "record", "no MIG"],
)
def test_cards_whose_instances_are_unknown_are_closed(text: str, note: str | None, closed: set[str]) -> None:
    raw = bound_pod("p", "n", text)
    if note is not None:
        raw["metadata"]["annotations"][MIG_NOTE] = note
    state = known(node("n", MIG_CARD, card("G", 8000)), raw)
    view = view_of(state)
    assert {uuid for _, uuid in view.closed} == closed
    state.remove_pod("p")
    view = view_of(state)
    assert view.closed == frozenset()


def test_cards_are_dropped_when_allocatable_falls_to_zero_and_come_back_with_it() -> None:
    state = known(node("n", card("G", 8000)))
    assert cards(state) == ["G"]
    state.set_node(read_node(node("n", card("G", 8000), capacity={"nvidia.com/gpu": "0"})), NOW)
    assert cards(state) == []
    state.set_node(read_node(node("n", card("G", 8000), capacity={"nvidia.com/gpu": "0"}), 2), NOW)
    assert cards(state) == [], "still dropped"
    state.set_node(read_node(node("n", card("G", 8000), capacity={"nvidia.com/gpu": "10"})), NOW)
    assert cards(state) == ["G"]


def test_cards_dropped_with_allocatable_come_back_with_a_new_registration() -> None:
    state = known(node("n", card("G", 8000)), node("n", card("G", 8000), capacity={"nvidia.com/gpu": "0"}))
    assert cards(state) == []
    state.set_node(read_node(node("n", card("G", 8000), card("H", 8000), capacity={"nvidia.com/gpu": "0"})), NOW)
    assert cards(state) == ["G", "H"]


def test_a_node_made_anew_has_no_past() -> None:
    state = known(node("n", card("G", 8000)), bound_pod("p", "n", "G,NVIDIA,1,1:;"))
    state.remove_node("n")
    state.set_node(read_node(node("n", card("G", 8000), capacity={"nvidia.com/gpu": "0"})), NOW)
    assert cards(state) == ["G"]


def test_a_handshake_expires_by_the_clock_alone() -> None:

    raw = node("n", card("G", 8000), capacity={"nvidia.com/gpu": "0"})
    raw["metadata"]["annotations"]["hami.io/node-handshake"] = "Requesting_2026-01-01 00:00:00"
    state = ClusterCache(VENDORS, zone=UTC)
    state.set_node(read_node(raw), NOW)
    state.tick(NOW + 59.9)
    assert cards(state) == ["G"]
    state.tick(NOW + 60)
    assert cards(state) == []
    state.set_node(read_node({**raw, "metadata": {**raw["metadata"], "annotations": {REGISTER: "[]"}}}), NOW + 61)
    state.set_node(read_node(node("n", card("G", 8000), capacity={"nvidia.com/gpu": "0"})), NOW + 61)
    assert cards(state) == ["G"]


def locked(raw: JSON, lock: str, **annotations: str) -> JSON:
    meta = raw["metadata"]
    return {**raw, "metadata": {**meta, "annotations": {**meta["annotations"], LOCK: lock, **annotations}}}


def test_cards_are_not_read_again_where_only_a_lock_changed() -> None:
    raw = node("n", card("G", 8000))
    state = known(raw)
    before, touched = state.view("n"), list[str]()
    assert before is not None
    state.watch_nodes(touched.append)
    for number, lock in enumerate(("2026-01-01T00:00:00Z,team,p", "", "2026-01-01T00:00:01Z,team,q")):
        state.set_node(read_node(locked(raw, lock), number + 1), NOW)
        view = state.view("n")
        assert view is not None
        assert view.node.annotations[LOCK] == lock
        assert view.inventories["NVIDIA"] is before.inventories["NVIDIA"]
    assert touched == 3 * ["n"]
    others = '[{"id": "H", "index": 0, "count": 1, "devmem": 8000, "devcore": 100, "type": "A", "health": true}]'
    state.set_node(read_node(locked(raw, "", **{REGISTER: others}), 4), NOW)
    assert cards(state) == ["H"]


def test_a_lock_keeps_no_expired_handshake() -> None:
    raw = node("n", card("G", 8000), capacity={"nvidia.com/gpu": "0"})
    raw["metadata"]["annotations"]["hami.io/node-handshake"] = "Requesting_2026-01-01 00:00:00"
    state = ClusterCache(VENDORS, zone=UTC)
    state.set_node(read_node(raw), NOW)
    state.set_node(read_node(locked(raw, "2026-01-01T00:00:00Z,team,p"), 1), NOW + 59)
    assert cards(state) == ["G"]
    state.set_node(read_node(locked(raw, ""), 2), NOW + 60)
    assert cards(state) == []


def test_eligible_cards_obey_the_pods_lists_and_node_selector() -> None:
    state = known(
        node("a", card("G1", 10000, type=V100), card("G2", 20000, type=V100, health=False), labels={"zone": "x"}),
        node("b", card("G3", 8000), labels={"zone": "y"}),
    )
    nvidia = VENDORS["NVIDIA"]

    def eligible(notes: dict[str, str], **spec: Any) -> set[str]:
        incoming = read_pod(pod("p", gpu=1, annotations=notes, **spec))
        return {device.uuid for device in state.eligible(nvidia, incoming)}

    assert eligible({}) == {"G1", "G2", "G3"}
    assert eligible({}, nodeSelector={"zone": "y"}) == {"G3"}
    assert eligible({"nvidia.com/use-gputype": "v100"}) == {"G1", "G2"}
    assert eligible({"nvidia.com/nouse-gpuuuid": "G1"}) == {"G2", "G3"}
    assert eligible({}, nodeSelector={"zone": "z"}) == set()


@pytest.mark.parametrize(
    ("change", "grows"),
    [
        (lambda s: s.set_node(read_node(node("n", card("G", 8000)), 9), NOW), False),
        (lambda s: s.set_node(read_node(node("n", card("G", 8000), labels={"a": "b"})), NOW), True),
        (lambda s: s.set_node(read_node(node("n", card("G", 8000, health=False))), NOW), True),
        (lambda s: s.set_node(read_node(node("other", card("H", 8000))), NOW), False),
        (lambda s: s.set_pod(read_pod(bound_pod("p", "n", "G,NVIDIA,1,1:;"), version=9), NOW), False),
        (lambda s: s.set_pod(read_pod(bound_pod("p", "n", "G,NVIDIA,2,1:;")), NOW), True),
        (lambda s: s.set_pod(read_pod(bound_pod("q", "n", "G,NVIDIA,2,1:;")), NOW), True),
        (lambda s: s.set_pod(read_pod(bound_pod("q", "other", "G,NVIDIA,2,1:;")), NOW), False),
        (lambda s: s.set_pod(read_pod(pod("q", gpu=1)), NOW), False),
        (lambda s: s.remove_pod("p"), True),
        (lambda s: s.remove_pod("q"), False),
        (lambda s: s.tick(NOW + 1000), False),
    ],
    ids=[
        "node heartbeat", "node label", "card unhealthy", "another node", "pod heartbeat", "pod amounts", "pod added",
        "pod elsewhere", "pod unplaced", "pod gone", "unknown pod gone", "time passes",
    ],
)  # fmt: skip
def test_a_generation_grows_with_what_is_read_and_with_nothing_else(
    change: Callable[[ClusterCache], None], grows: bool
) -> None:
    state = known(node("n", card("G", 8000)), bound_pod("p", "n", "G,NVIDIA,1,1:;"))
    before = view_of(state)
    change(state)
    after = view_of(state)
    assert (after.generation > before.generation) is grows
    assert (after is before) is not grows


def test_a_new_bind_phase_is_a_change_of_the_pods_node() -> None:
    """Who waits for the node's lock learns by it that the holder has its devices."""
    raw = bound_pod("p", "n", "a,NVIDIA,1000,0:;")
    state = known(node("n", card("a", 8000)), raw)
    changed: list[str] = []
    state.watch_nodes(changed.append)
    raw["metadata"]["annotations"]["hami.io/bind-phase"] = "success"
    state.set_pod(read_pod(raw), NOW)
    assert set(changed) == {"n"}
