"""The scenarios, small enough to be gone through whole."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping

from hack.explore.replica import Process
from hack.explore.rules import GPU, MEM
from hack.explore.world import TEAM, Actor, Scenario, World
from hami_webhook.cluster.api import JSON, ClusterError, Kind
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.registry import Vendors

_SHORT = {"gpu": "nvidia.com/gpu", "mem": "nvidia.com/gpumem", "percent": "nvidia.com/gpumem-percentage"}
NOTHING: Mapping[str, int] = {}
ONCE = dict.fromkeys(("lost", "late", "crash", "stale", "conflict", "gone"), 1)


@functools.cache
def vendors() -> Vendors:
    return enabled_vendors(builtin_device_config().config)


def quota(
    name: str, *, used: Mapping[str, int] | None = NOTHING, annotations: Mapping[str, str] | None = None, **hard: int
) -> JSON:
    """A ResourceQuota; `used`: of what isn't 0, None where it isn't known."""
    keys = {f"limits.{_SHORT[key]}": str(amount) for key, amount in hard.items()}
    made: JSON = {"metadata": {"name": name, "namespace": TEAM, "annotations": dict(annotations or {})}}
    made["spec"] = {"hard": keys}
    if used is not None:
        shown = {f"limits.{_SHORT[key]}": str(used.get(key, 0)) for key in hard}
        made["status"] = {"hard": keys, "used": shown}
    return made


def above(name: str, **hard: int) -> JSON:
    """An AcceleratorQuota of all namespaces, of which nothing is used."""
    keys = {f"limits.{_SHORT[key]}": amount for key, amount in hard.items()}
    status = {"hard": keys, "used": dict.fromkeys(keys, 0)}
    meta = {"name": name}
    return {"metadata": meta, "spec": {"namespaceSelector": {}, "hard": keys}, "status": status}


def pod(name: str, **limits: int) -> JSON:
    named = {_SHORT[key]: str(amount) for key, amount in limits.items()}
    containers = [{"name": "main", "image": "registry.invalid/none", "resources": {"limits": named}}]
    meta = {"name": name, "namespace": TEAM}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": containers}}


def cost(gpu: int, mem: int) -> Mapping[str, int]:
    return {GPU: gpu, MEM: gpu * mem}


def creates(replica: str, made: JSON, *after: str, name: str = "") -> Actor:
    """A user creates a pod: a replica reviews it, and the API server stores what is allowed."""

    async def act(world: World, actor: Actor) -> None:
        stored = await world.review(actor, made)
        if stored is not None:
            try:
                await world.request_as(actor).create(Kind.PODS, stored)
            except ClusterError:
                world.note("    it isn't stored")

    return Actor(name or f"the creation of {made['metadata']['name']} ({replica})", act, after, replica)


def recomputes(leader: str, *after: str, name: str = "") -> Actor:
    """A leader recomputes all quotas, as with each resync."""

    async def act(world: World, actor: Actor) -> None:
        async def work(process: Process) -> None:
            for each in process.reconcilers:
                each.resync()
                await each.step()

        try:
            await world.call(actor, work)
        except ClusterError:
            world.note("    it ended before")

    return Actor(name or f"the recompute of {leader}", act, after, leader)


def deletes(pod_name: str, *after: str) -> Actor:
    async def act(world: World, actor: Actor) -> None:
        if world.server.peek(Kind.PODS, pod_name, TEAM) is not None:
            await world.request_as(actor).delete(Kind.PODS, pod_name, TEAM)

    return Actor(f"the deletion of {pod_name}", act, after)


def places(scheduler: str, pod_name: str, *after: str, on: str) -> Actor:
    """A scheduler binds a pod that is there and isn't bound to a node."""

    async def act(world: World, actor: Actor) -> None:
        async def work(process: Process) -> str:
            found = process.core.state.by_namespace.of(TEAM).get(f"uid-{pod_name}")
            return "" if found is None else type(await process.core.placer.place(found, [on])).__name__

        try:
            world.note(f"    {await world.call(actor, work)}")
        except ClusterError as error:
            world.note(f"    {pod_name} isn't placed: {error}")

    return Actor(f"the placement of {pod_name} ({scheduler})", act, after, scheduler)


def releases(leader: str, *after: str, name: str = "") -> Actor:
    """A leader releases pods that wait for quota."""

    async def act(world: World, actor: Actor) -> None:
        try:
            await world.call(actor, lambda process: process.releaser.step())
        except ClusterError:
            world.note("    it ended before")

    return Actor(name or f"the release of {leader}", act, after, leader)


def labels(pod_name: str) -> Actor:
    """A user changes a label of a pod."""

    async def act(world: World, actor: Actor) -> None:
        await world.request_as(actor).patch(Kind.PODS, pod_name, {"metadata": {"labels": {"team": "a"}}}, TEAM)

    return Actor(f"a label of {pod_name}", act)


def remakes(quota_name: str, made: JSON, *after: str) -> Actor:
    """An administrator deletes a quota, and makes it anew."""

    async def act(world: World, actor: Actor) -> None:
        api = world.request_as(actor)
        await api.delete(Kind.RESOURCE_QUOTAS, quota_name, TEAM)
        await api.create(Kind.RESOURCE_QUOTAS, made)

    return Actor(f"quota {quota_name} made anew", act, after)


_REMADE = "quota q made anew"


def creation(name: str) -> str:
    return f"the creation of {name}"


def waiting(name: str, **limits: int) -> tuple[Kind, JSON]:
    """A pod that was there before anything of ours ran."""
    made = pod(name, **limits)
    return Kind.PODS, {**made, "metadata": {**made["metadata"], "uid": f"uid-{name}"}}


def _gated(name: str, **limits: int) -> tuple[Kind, JSON]:
    """The same behind our gate."""
    kind, made = waiting(name, **limits)
    return kind, {**made, "spec": {**made["spec"], "schedulingGates": [{"name": "hami.io/quota"}]}}


def node(name: str, *cards: int, model: str = "NVIDIA-A100") -> tuple[Kind, JSON]:
    """A node with cards of so many MiB."""
    card = {"count": 10, "devcore": 100, "type": model, "numa": 0, "mode": "hami-core", "health": True}
    rows = [{"index": n, "id": f"GPU-{name}-{n}", "devmem": memory, **card} for n, memory in enumerate(cards)]
    amounts = {_SHORT["gpu"]: str(10 * len(cards))}
    written = {"hami.io/node-nvidia-register": json.dumps(rows)}
    status = {"capacity": amounts, "allocatable": amounts}
    return Kind.NODES, {"metadata": {"name": name, "annotations": written}, "status": status}


Q = Kind.RESOURCE_QUOTAS
_CARDS = (node("small", 16384), node("large", 24576))
"""Half of a card costs 8192 MiB at least, and 12288 on the larger one."""
P1, P2 = pod("p1", gpu=1, mem=2000), pod("p2", gpu=1, mem=2000)
BOTH = {"p1": cost(1, 2000), "p2": cost(1, 2000)}
_QUEUES = {"hami.io/quota-enforcement": "queue"}
_TURN = (
    *_CARDS,
    (Q, quota("q", used={"gpu": 1, "mem": 8192}, annotations=_QUEUES, gpu=2, mem=13000)),
    waiting("p1", gpu=1, percent=50),
    _gated("p2", gpu=1, mem=4000),
)
_TURN_COSTS = {"p1": cost(1, 8192), "p2": cost(1, 4000)}

SCENARIOS = (
    Scenario(
        "two-replicas: each charges a pod to one quota, which has room for one",
        [(Q, quota("q", gpu=2, mem=3000))],
        [creates("A", P1), creates("B", P2)],
        BOTH,
        small=1,
    ),
    Scenario(
        "two-quotas: of which one has room for both pods, and one for one",
        [(Q, quota("first", gpu=2, mem=5000)), (Q, quota("second", mem=3000))],
        [creates("A", P1), creates("B", P2)],
        BOTH,
    ),
    Scenario(
        "batch: a replica charges two pods at once, and another one a third",
        [(Q, quota("q", gpu=2, mem=4000))],
        [creates("A", P1), creates("A", P2), creates("B", pod("p3", gpu=1, mem=2000))],
        {**BOTH, "p3": cost(1, 2000)},
    ),
    Scenario(
        "recount: a leader recomputes while a pod is created and deleted, and another one comes",
        [(Q, quota("q", gpu=2, mem=3000))],
        [
            creates("A", P1, name=creation("p1")),
            deletes("p1", creation("p1")),
            creates("B", P2),
            recomputes("leader"),
        ],
        BOTH,
        exact=False,
        small=None,
    ),
    Scenario(
        "room: a leader recomputes while two pods are created, for which there is room",
        [(Q, quota("q", gpu=2, mem=5000))],
        [creates("A", P1), creates("B", P2), recomputes("leader")],
        BOTH,
        small=None,
    ),
    Scenario(
        "late-cache: a pod is created where another one has just gone",
        [(Q, quota("q", used={"gpu": 1, "mem": 2000}, gpu=2, mem=3000)), waiting("p0", gpu=1, mem=2000)],
        [deletes("p0"), recomputes("leader", "the deletion of p0"), creates("A", P1, "the recompute of leader")],
        {**BOTH, "p0": cost(1, 2000)},
        early=["A"],
    ),
    Scenario(
        "unknown: nobody has computed used of a quota of a namespace with a pod",
        [waiting("p0", gpu=1, mem=1000), (Q, quota("q", used=None, gpu=3, mem=3000))],
        [creates("A", P1), creates("B", P2)],
        {**BOTH, "p0": cost(1, 1000)},
    ),
    Scenario(
        "two-leaders: both recompute while a pod is created",
        [(Q, quota("q", gpu=2, mem=3000))],
        [creates("A", P1), recomputes("leader"), recomputes("other")],
        BOTH,
        leaders=["leader", "other"],
    ),
    Scenario(
        "repeated: one pod is reviewed by two replicas, as a review is repeated",
        [(Q, quota("q", gpu=2, mem=3000))],
        [creates("A", P1), creates("B", P1)],
        BOTH,
        small=1,
    ),
    Scenario(
        "placement: a pod of half a card is placed on a larger card than it was charged for, while another comes",
        [
            *_CARDS,
            (Q, quota("first", used={"gpu": 1, "mem": 8192}, gpu=2, mem=13000)),
            (Q, quota("second", used={"mem": 8192}, mem=13000)),
            waiting("p1", gpu=1, percent=50),
        ],
        [places("scheduler", "p1", on="large"), creates("A", pod("p2", gpu=1, mem=4000))],
        {"p1": cost(1, 8192), "p2": cost(1, 4000)},
    ),
    Scenario(
        "two-placements: two schedulers place a pod of half a card each, and a quota has room for one of them",
        [
            *_CARDS,
            (Q, quota("first", used={"gpu": 2, "mem": 16384}, gpu=2, mem=24576)),
            (Q, quota("second", used={"mem": 16384}, mem=21000)),
            waiting("p1", gpu=1, percent=50),
            waiting("p2", gpu=1, percent=50),
        ],
        [places("scheduler", "p1", on="large"), places("other", "p2", on="large")],
        {"p1": cost(1, 8192), "p2": cost(1, 8192)},
    ),
    Scenario(
        "unbound: a user changes a label of a pod while it is placed",
        [*_CARDS, (Q, quota("q", used={"gpu": 1, "mem": 8192}, gpu=2, mem=13000)), waiting("p1", gpu=1, percent=50)],
        [places("scheduler", "p1", on="large"), labels("p1")],
        {"p1": cost(1, 8192)},
        small=1,
    ),
    Scenario(
        "placed-twice: two schedulers place the same pod, and a user changes a label of it",
        [*_CARDS, (Q, quota("q", used={"gpu": 1, "mem": 8192}, gpu=2, mem=13000)), waiting("p1", gpu=1, percent=50)],
        [places("scheduler", "p1", on="large"), places("other", "p1", on="large"), labels("p1")],
        {"p1": cost(1, 8192)},
        exact=False,
        small=None,
    ),
    Scenario(
        "floor: a pod of half a card is created, its quota recomputed, and the pod deleted",
        [*_CARDS, (Q, quota("q", gpu=2, mem=13000))],
        [
            creates("A", pod("p1", gpu=1, percent=50), name=creation("p1")),
            deletes("p1", creation("p1")),
            recomputes("leader"),
        ],
        {"p1": cost(1, 8192)},
        exact=False,
    ),
    Scenario(
        "queue: a pod waits for quota until another one is gone",
        [
            (Q, quota("q", used={"gpu": 1, "mem": 2000}, annotations=_QUEUES, gpu=2, mem=3000)),
            waiting("p0", gpu=1, mem=2000),
        ],
        [creates("A", P1), deletes("p0"), recomputes("leader", "the deletion of p0"), releases("leader")],
        {**BOTH, "p0": cost(1, 2000)},
        exact=False,
    ),
    Scenario(
        "turn: a pod is released from the queue, while another one is placed where it costs more",
        _TURN,
        [places("scheduler", "p1", on="large"), releases("leader")],
        _TURN_COSTS,
    ),
    Scenario(
        "two-turns: the same, and a second leader releases, too",
        _TURN,
        [places("scheduler", "p1", on="large"), releases("leader"), releases("second leader")],
        _TURN_COSTS,
        leaders=["leader", "second leader"],
        small=None,
    ),
    Scenario(
        "remade: a quota is deleted and made anew while a pod is created",
        [(Q, quota("q", gpu=2, mem=3000))],
        [creates("A", P1), remakes("q", quota("q", used=None, gpu=2, mem=3000)), recomputes("leader", _REMADE)],
        BOTH,
        early=["leader"],
        exact=False,
    ),
    Scenario(
        "above: pods are charged to their namespace's quota and to one above it, which has room for one",
        [
            (Q, quota("own", gpu=2, mem=5000)),
            (Kind.ACCELERATOR_QUOTAS, above("above", gpu=2, mem=3000)),
        ],
        [creates("A", P1), creates("B", P2)],
        BOTH,
    ),
)
