"""Whatever the order of events, the state is what a rebuild from scratch would make it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from builders import card, container, node, pod
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scheduling.placer_env import ALLOCATED, NOW, REGISTER, VENDORS, amounts

from hami_webhook.cluster.api import JSON
from hami_webhook.devices.model import NodeView, Usage
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.presumed_usage import unplaced_vendors

from .test_cluster_cache import IN_SLICE, MIG_CARD, MIG_NOTE, TERMINATED, read_node, read_pod


@dataclass
class CacheEnv:
    """The objects as they are, and the state that was told of every change."""

    now: float
    state: ClusterCache
    nodes: dict[str, Node]
    pods: dict[str, Pod]


REGISTRATIONS = (
    (card("G1", 8000), card("G2", 8000)),
    (card("G1", 8000), MIG_CARD),
    (card("G2", 8000, health=False),),
    (card("G1", 8000, count=2, numa=1),),
    (),
)
PLACEMENTS = (
    "G1,NVIDIA,1000,10:;G2,NVIDIA,500,0:;",
    "G1,NVIDIA,1000,10:G2,NVIDIA,1000,10:;;",
    ";M,NVIDIA,10240,28:;",
    "G1,NVIDIA,oops,10:;;",
    "elsewhere,NVIDIA,1,1:;",
    "",
)

node_change = st.tuples(
    st.just("node"), st.sampled_from("ab"), st.integers(0, len(REGISTRATIONS)), st.sampled_from((0, 30, 59, 90))
)
pod_change = st.tuples(
    st.just("pod"),
    st.sampled_from("1234"),
    st.sampled_from("ab"),
    st.sampled_from(PLACEMENTS),
    st.sampled_from(("bound", "fresh", "old", "nowhere")),
    st.sampled_from(("Pending", "Running", "Succeeded")),
    st.booleans(),
    st.booleans(),
)
changes = st.lists(
    st.one_of(
        node_change,
        pod_change,
        pod_change,
        st.tuples(st.just("node gone"), st.sampled_from("ab")),
        st.tuples(st.just("pod gone"), st.sampled_from("1234")),
        st.tuples(st.just("time"), st.sampled_from((1, 40, 250))),
    ),
    max_size=14,
)


def apply(env: CacheEnv, change: tuple[Any, ...], version: int) -> None:
    match change:
        case ("node", name, registration, age):
            if registration == len(REGISTRATIONS):
                view = env.state.view(name)
                if view is not None and view.inventories:
                    return  # it would keep its cards, which a rebuild can't know
                raw = node(name, capacity={"nvidia.com/gpu": "0"})
                raw["metadata"]["annotations"][REGISTER] = "broken"
            else:
                raw = node(name, *REGISTRATIONS[registration], capacity={"nvidia.com/gpu": "0"})
            raw["metadata"]["annotations"]["hami.io/node-handshake"] = "Requesting_" + stamp(env.now - age)
            env.nodes[name] = read_node(raw, version)
            env.state.set_node(env.nodes[name], env.now)
        case ("node gone", name):
            env.nodes.pop(name, None)
            env.state.remove_node(name)
        case ("pod", uid, where, text, how, phase, init_over, recorded):
            env.pods[uid] = read_pod(a_pod(env.now, uid, where, text, how, phase, init_over, recorded), uid, version)
            env.state.set_pod(env.pods[uid], env.now)
        case ("pod gone", uid):
            env.pods.pop(uid, None)
            env.state.remove_pod(uid)
        case ("time", seconds):
            env.now += seconds
            env.state.tick(env.now)


def stamp(at: float) -> str:

    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def a_pod(now: float, uid: str, where: str, text: str, how: str, phase: str, init_over: bool, recorded: bool) -> JSON:
    notes = {} if how == "nowhere" else {"hami.io/vgpu-node": where, ALLOCATED: text}
    if how in ("fresh", "old"):
        notes["hami.io/vgpu-time"] = str(int(now) - (10 if how == "fresh" else 290))
    if recorded:
        notes[MIG_NOTE] = IN_SLICE.replace('"containerIndex":0', '"containerIndex":1')
    spec: JSON = {"nodeName": where} if how == "bound" else {}
    status = {"phase": phase, "initContainerStatuses": TERMINATED if init_over else []}
    return {**pod(f"p{uid}", gpu=1, init=[container(gpu=1)], annotations=notes, **spec), "status": status}


def contents(view: NodeView) -> object:
    """All that a view tells, but for versions and the order of events."""

    def usage(one: Usage) -> object:
        holders = sorted((h.pod.uid, h.slots, h.memory, h.cores, plain(h.pod)) for h in one.holders)
        return (*amounts(one), holders, sorted(map(repr, one.marks)))

    def plain(one: Pod) -> str:
        return repr(replace(one, resource_version=""))

    return (
        replace(view.node, resource_version=""),
        dict(view.inventories),
        {key: usage(one) for key, one in view.usage.items()},
        view.closed,
    )


def message(state: ClusterCache) -> object:
    return (
        {view.name: contents(view) for view in state.views()},
        state.problems(),
        {name: sorted(p.uid for p in state.pods_in(name)) for name in ("default", "other")},
        sorted(p.uid for p in state.pods()),
    )


@given(changes, st.integers(0, 1000))
def test_the_state_is_what_a_rebuild_would_make_it_in_any_order_of_events(
    steps: list[tuple[Any, ...]], seed: int
) -> None:

    env = CacheEnv(NOW, ClusterCache(VENDORS, zone=UTC), {}, {})
    shown: list[tuple[NodeView, str]] = []
    for version, step in enumerate(steps):
        before, pods = {view.name: view for view in env.state.views()}, [*env.pods.values()]
        apply(env, step, version)
        # of those who don't say which cards they have a node may offer too little to hold any
        unsaid = any(unplaced_vendors(each, VENDORS) for each in (*pods, *env.pods.values()))
        for view in env.state.views():
            earlier = before.get(view.name)
            if earlier is not None:
                changed = contents(earlier) != contents(view)
                newer = view.generation > earlier.generation
                assert newer is changed or (newer and unsaid), step
            shown.append((view, repr(view)))
    rebuilt = ClusterCache(VENDORS, zone=UTC)
    objects: list[Node | Pod] = [*env.nodes.values(), *env.pods.values()]
    random.Random(seed).shuffle(objects)
    for obj in objects:
        if isinstance(obj, Pod):
            rebuilt.set_pod(obj, env.now)
        else:
            rebuilt.set_node(obj, env.now)
    env.state.tick(env.now)
    assert message(env.state) == message(rebuilt)
    assert all(repr(view) == text for view, text in shown), "a view was changed"
