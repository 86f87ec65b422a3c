"""The scenarios of placement, small enough to be gone through whole."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from hack.explore.placement_rules import ALLOCATED, GROUP, KUBE_SCHEDULER, LOCK, NODE, ONLY, PHASE, SIZE
from hack.explore.placement_world import CONTROLLER, PlacementScenario, PlacementWorld, Replica
from hack.explore.scenarios import Q, cost, deletes, labels, pod, quota, recomputes, vendors
from hack.explore.world import NOON, TEAM, Actor, World
from hami_webhook.cluster.api import JSON, ClusterError, Kind
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import format_time
from hami_webhook.scheduling.protocol import Proposal

ONCE = dict.fromkeys(("lost", "late", "crash", "stop", "stale", "conflict", "gone", "time", "second"), 1)


def node(name: str, *cards: int, lock: str = "") -> tuple[Kind, JSON]:
    """A node with cards of so many MiB; `lock` is the pod that has its lock from a former process."""
    card = {"count": 10, "devcore": 100, "type": "NVIDIA-A100", "numa": 0, "mode": "hami-core", "health": True}
    rows = [{"index": n, "id": f"GPU-{name}-{n}", "devmem": memory, **card} for n, memory in enumerate(cards)]
    amounts = {"nvidia.com/gpu": str(10 * len(cards))}
    written = {"hami.io/node-nvidia-register": json.dumps(rows)}
    if lock:
        written[LOCK] = f"{format_time(NOON - 1)},{TEAM},{lock}"
    return Kind.NODES, {
        "metadata": {"name": name, "annotations": written},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def half(name: str) -> JSON:
    """A pod that waits to be placed: half of a card."""
    made = pod(name, gpu=1, percent=50)
    return {**made, "metadata": {**made["metadata"], "uid": f"uid-{name}"}}


def waits(name: str, memory: int, *, uid: str = "", group: str = "", size: int = 2, only: str = "") -> JSON:
    """A pod that waits to be placed: one card's memory, in MiB."""
    made = pod(name, gpu=1, mem=memory)
    meta = {**made["metadata"], "uid": uid or f"uid-{name}"}
    if group:
        meta["labels"] = {GROUP: group, SIZE: str(size)}
    if only:
        meta["annotations"] = {ONLY: only}
    return {**made, "metadata": meta}


def of_priority(made: JSON, priority: int) -> JSON:
    return {**made, "spec": {**made["spec"], "priority": priority}}


def holds(made: JSON, node_name: str, card: str) -> JSON:
    """A pod that has a card since before, and was served."""
    memory = made["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"]
    written = {NODE: node_name, ALLOCATED: f"{card},NVIDIA,{memory},0:;", PHASE: "success"}
    meta = {**made["metadata"], "annotations": written}
    return {**made, "metadata": meta, "spec": {**made["spec"], "nodeName": node_name}}


@functools.cache
def without_locks() -> Vendors:
    """Cards as those of the vendors whose device plugins know no lock; in everything else they are NVIDIA's."""
    unlocked = copy.copy(vendors()["NVIDIA"])
    unlocked.lock = None
    return Vendors([unlocked])


def stored(*pods: JSON) -> list[tuple[Kind, JSON]]:
    return [(Kind.PODS, made) for made in pods]


def schedules(
    replica: str, name: str, *nodes: str, after: Sequence[str] = (), tries: int = 2, again: bool = False
) -> Actor:
    """A kube-scheduler places a pod by its extender, and tries again where that fails."""

    async def act(world: World, actor: Actor) -> None:
        assert isinstance(world, PlacementWorld)
        await world.schedule(actor, name, nodes, tries)

    return Actor(f"{replica} places {name}{' again' if again else ''}", act, tuple(after), replica)


def starts(replica: str) -> Actor:
    """An extender's process is started."""

    async def act(world: World, actor: Actor) -> None:
        world.note("    it looks for what was left")

    return Actor(f"the start of {replica}", act, process=replica)


def preempts(replica: str, name: str, full: str, hog: str, *others: str, again: bool = False) -> Actor:
    """A cycle of a kube-scheduler: on the node `full` the pod `hog` has the CPU that a pod lacks.

    Its extender filters the other nodes. If none takes the pod, kube-scheduler evicts on `full`, and its extender may
    add pods. As kube-scheduler does it, the pod is nominated, and all victims are deleted.
    """
    title = f"{KUBE_SCHEDULER} of {replica} places {name}, or evicts for it"

    async def act(world: World, actor: Actor) -> None:
        assert isinstance(world, PlacementWorld)
        pod = world.server.peek(Kind.PODS, name, TEAM)
        has_room = world.server.peek(Kind.PODS, hog, TEAM) is None
        world.observe(actor.name, (world.server.digest(pod), has_room))
        if pod is None or pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
            return
        with suppress(ClusterError):
            if chosen := await world.filter(actor, pod, [full, *others] if has_room else others, again):
                await world.bind(actor, pod, chosen, again)
            elif not has_room:
                await _evict(world, actor, pod, full, f"uid-{hog}")

    return Actor(f"{title}{' again' if again else ''}", act, (title,) if again else (), replica)


async def _evict(world: PlacementWorld, actor: Actor, pod: JSON, node_name: str, victim: str) -> None:
    proposed = {node_name: Proposal((victim,))}

    async def work(replica: Replica) -> Mapping[str, Proposal]:
        return await replica.extender.preempt(pod, proposed)

    completed = await world.have(actor, "preempt", work)
    uids = completed[node_name].victims if completed else ()
    world.note(f"    it evicts {', '.join(uids) or 'nobody'}")
    if uids:
        status = {"status": {"nominatedNodeName": node_name}}
        await world.request_as(actor).patch_status(Kind.PODS, pod["metadata"]["name"], status, TEAM)
    for uid in uids:
        await world.request_as(actor).delete_pod(TEAM, uid.removeprefix("uid-"), uid)


def writes(title: str, verb: str, *arguments: Any, after: Sequence[str] = ()) -> Actor:
    """Somebody writes an object."""

    async def act(world: World, actor: Actor) -> None:
        try:
            await getattr(world.request_as(actor), verb)(*arguments)
        except ClusterError as error:
            world.note(f"    {error}")

    return Actor(title, act, tuple(after))


def _annotates(name: str, key: str, text: str) -> Actor:
    patch = {"metadata": {"annotations": {key: text}}}
    return writes(f"a user writes {key} of {name}", "patch", Kind.PODS, name, patch, TEAM)


_GONE = "the deletion of p1"
_AGAIN = writes("p1 is created again", "create", Kind.PODS, waits("p1", 6000, uid="second-p1"), after=[_GONE])
_MEMBERS = [waits(name, 6000, group="first") for name in ("p1", "p2")]
_OTHERS = [waits(name, 6000, group="second") for name in ("p3", "p4")]
_HIGH, _LOW = of_priority(waits("high", 6000), 100), of_priority(waits("low", 6000), 0)
_VICTIMS = [of_priority(holds(waits(f"v{n}", 6000), f"n{n}", f"GPU-n{n}-0"), 10 * n) for n in (1, 2)]
_CARDS = node("small", 16384), node("large", 24576)
_HALF = {"gpu": 2, "mem": 16384}
_HALVES = {"p1": cost(1, 8192), "p2": cost(1, 8192)}
"""What half a card costs at least, where there is one of 16384 MiB, too."""
_EVICTS = schedules("A", "high", "n1", "n2")
_EVICTS_AGAIN = schedules("A", "high", "n1", "n2", after=[_EVICTS.name], again=True)
_PAIR = [of_priority(made, 100) for made in _MEMBERS]
_PAIR_STARTS = schedules("A", "p1", "n1", "n2")
_PAIR_AGAIN = schedules("A", "p1", "n1", "n2", after=[_PAIR_STARTS.name], again=True)
_HOG: JSON = {
    **pod("hog"),
    "metadata": {**pod("hog")["metadata"], "uid": "uid-hog"},
    "spec": {**pod("hog")["spec"], "nodeName": "n1"},
}
"""A pod without cards, whose CPU is wanted."""
_CYCLE, _NEXT_CYCLE = (preempts("A", "high", "n1", "hog", "n2", again=again) for again in (False, True))
_IN_QUOTA = [of_priority(holds(waits(f"v{n}", 8192), "small", "GPU-small-0"), 10 * n) for n in (1, 2)]
"""They fill the small card, so that half a card costs more than it was charged for."""
_BY_QUOTA = of_priority(half("high"), 100)
_GIVES_ROOM = quota(
    "q", used={"gpu": 3, "mem": 24576}, annotations={"hami.io/quota-preemption": "true"}, gpu=3, mem=26000
)
_COSTS_IN_QUOTA = {name: cost(1, 8192) for name in ("v1", "v2", "high")}
_BY_QUOTA_ON_LARGE = schedules("A", "high", "large")
_AGAIN_ON_LARGE = schedules("A", "high", "large", after=[_BY_QUOTA_ON_LARGE.name], again=True)
_scenario = partial(PlacementScenario, costs={}, small=0)


def _both(title: str, *arguments: Any, ci: bool = True, **named: Any) -> list[PlacementScenario]:
    """In both modes; not `ci`: in single mode only beyond the small bounds."""
    name, _, rest = title.partition(":")
    in_single = named if ci else {**named, "small": None}
    return [
        _scenario(title, *arguments, **named),
        _scenario(f"{name}-single:{rest}, in single mode", *arguments, single=True, **in_single),
    ]


SCENARIOS: Sequence[PlacementScenario] = (
    *_both(
        "room-for-one: an extender places two pods, and a card has room for one",
        [node("n1", 16384), *stored(waits("p1", 10000), waits("p2", 10000))],
        [schedules("A", "p1", "n1"), schedules("A", "p2", "n1")],
    ),
    *_both(
        "share: an extender places two pods on one card",
        [node("n1", 16384), *stored(waits("p1", 6000), waits("p2", 6000))],
        [schedules("A", "p1", "n1"), schedules("A", "p2", "n1")],
        slow_kubelets=True,
    ),
    *_both(
        "two-schedulers: two extenders place a pod each, and a card has room for one",
        [node("n1", 16384), *stored(waits("p1", 10000), waits("p2", 10000))],
        [schedules("A", "p1", "n1"), schedules("B", "p2", "n1")],
        early=["A", "B"],
    ),
    *_both(
        "new-leader: two extenders place the same pod, and the new leader another one",
        [node("n1", 16384), *stored(waits("p1", 6000), waits("p2", 6000))],
        [schedules("A", "p1", "n1"), schedules("B", "p1", "n1"), schedules("B", "p2", "n1")],
        leaders=["B"],
        small=None,
    ),
    *_both(
        "three-pods: of which two fit, on two nodes",
        [node("n1", 8192), node("n2", 8192), *stored(*(waits(f"p{n}", 6000) for n in (1, 2, 3)))],
        [schedules("A", f"p{n}", "n1", "n2") for n in (1, 2, 3)],
        small=None,
    ),
    *_both(
        "deleted: a pod is deleted while it is placed, and another one waits for its room",
        [node("n1", 8192), *stored(waits("p1", 6000), waits("p2", 6000))],
        [schedules("A", "p1", "n1"), deletes("p1"), schedules("A", "p2", "n1")],
        slow_kubelets=True,
    ),
    *_both(
        "relabelled: two extenders place the same pod, and a user writes a label of it",
        [node("n1", 16384), *stored(waits("p1", 6000))],
        [schedules("A", "p1", "n1"), schedules("B", "p1", "n1"), labels("p1")],
        early=["A", "B"],
        leaders=["B"],
        small=None,
    ),
    _scenario(
        "again-at-one: a pod is deleted, and one of its name is created, and placed by the same extender",
        [node("n1", 16384), *stored(waits("p1", 6000))],
        [
            schedules("A", "p1", "n1"),
            deletes("p1"),
            _AGAIN,
            schedules("A", "p1", "n1", after=[_AGAIN.name], again=True),
        ],
        slow_kubelets=True,
        small=None,
    ),
    *_both(
        "again: a pod is deleted, and one of its name is created and placed",
        [node("n1", 16384), *stored(waits("p1", 6000))],
        [
            schedules("A", "p1", "n1"),
            deletes("p1"),
            _AGAIN,
            schedules("B", "p1", "n1", after=[_AGAIN.name]),
        ],
        leaders=["B"],
        small=None,
    ),
    *_both(
        "changed: a user confines a pod to another card while it is placed",
        [node("n1", 8192, 8192), *stored(waits("p1", 6000, only="GPU-n1-0"))],
        [schedules("A", "p1", "n1"), _annotates("p1", ONLY, "GPU-n1-1")],
    ),
    *_both(
        "labelled: a user writes a label of a pod while it is placed, and another one is after its room",
        [node("n1", 8192), *stored(waits("p1", 6000), waits("p2", 6000))],
        [schedules("A", "p1", "n1"), labels("p1"), schedules("A", "p2", "n1")],
    ),
    *_both(
        "foreign: a person binds a pod that says nothing of its card, while two pods are placed",
        [node("n1", 8192, 8192), *stored(waits("p1", 6000), waits("p2", 6000), pod("f", gpu=1))],
        [
            schedules("A", "p1", "n1"),
            schedules("A", "p2", "n1"),
            writes("a person binds f", "bind", TEAM, "f", "", "n1"),
        ],
    ),
    _scenario(
        "left: a node has the lock of a pod that a former process didn't bind, and that fits nowhere by now",
        [node("n1", 8192, lock="p1"), *stored(waits("p1", 6000, only="GPU-n2-0"), waits("p2", 6000))],
        [schedules("A", "p2", "n1", tries=6)],
        loops=True,
        spared=["time", "second"],
    ),
    _scenario(
        "left-and-placed: an extender looks for locks that were left, and another one places the pod that has one",
        [node("n1", 8192, lock="p1"), *stored(waits("p1", 6000))],
        [schedules("B", "p1", "n1"), starts("A")],
        leaders=["B"],
        loops=True,
    ),
    _scenario(
        "group: two pods start together, and another one is after their room",
        [node("n1", 8192), node("n2", 8192), *stored(*_MEMBERS, waits("p3", 6000))],
        [schedules("A", name, "n1", "n2") for name in ("p1", "p2", "p3")],
        small=None,
    ),
    _scenario(
        "two-groups: there is room for one of two groups",
        [node("n1", 8192), node("n2", 8192), *stored(*_MEMBERS, *_OTHERS)],
        [schedules("A", name, "n1", "n2", tries=1) for name in ("p1", "p2", "p3", "p4")],
        small=None,
    ),
    _scenario(
        "group-deleted: a member of a group is deleted while it is placed, and another pod waits for its room",
        [node("n1", 8192), node("n2", 8192), *stored(*_MEMBERS, waits("p3", 6000))],
        [schedules("A", "p1", "n1", "n2"), deletes("p2"), schedules("A", "p3", "n1", "n2")],
    ),
    _scenario(
        "group-new-leader: two extenders place a member of a group each",
        [node("n1", 8192), node("n2", 8192), *stored(*_MEMBERS)],
        [schedules("A", "p1", "n1", "n2"), schedules("B", "p1", "n1", "n2"), schedules("B", "p2", "n1", "n2")],
        leaders=["B"],
        small=None,
    ),
    *_both(
        "quota: an extender places two pods of half a card on larger cards than they were charged for, room for one",
        [*_CARDS, (Q, quota("q", used=_HALF, gpu=2, mem=21000)), *stored(half("p1"), half("p2"))],
        [schedules("A", "p1", "large"), schedules("A", "p2", "large")],
        costs=_HALVES,
        slow_kubelets=True,
        ci=False,
    ),
    _scenario(
        "quota-two: two extenders place such a pod each, while the quota is recomputed",
        [*_CARDS, (Q, quota("q", used=_HALF, gpu=2, mem=21000)), *stored(half("p1"), half("p2"))],
        [schedules("A", "p1", "large"), schedules("B", "p2", "large"), recomputes(CONTROLLER)],
        costs=_HALVES,
        early=["A", "B"],
        small=None,
    ),
    _scenario(
        "quota-deleted: such a pod is deleted while it is placed, another one waits, and the quota is recomputed",
        [
            *_CARDS,
            (Q, quota("q", used={"gpu": 3, "mem": 32384}, gpu=3, mem=37000)),
            *stored(holds(waits("full", 16000), "small", "GPU-small-0"), half("p1"), half("p2")),
        ],
        [schedules("A", "p1", "large"), deletes("p1"), schedules("A", "p2", "large"), recomputes(CONTROLLER)],
        costs={**_HALVES, "full": cost(1, 16000)},
        exact=False,
        slow_kubelets=True,
        small=None,
    ),
    *_both(
        "unlocked: an extender places two pods by a vendor without a lock, and a card has room for one",
        [node("n1", 16384), *stored(waits("p1", 10000), waits("p2", 10000))],
        [schedules("A", "p1", "n1"), schedules("A", "p2", "n1")],
        vendors=without_locks,
        ci=False,
    ),
    _scenario(
        "unlocked-deleted: a pod is deleted while it is placed by a vendor without a lock, another waits for its room",
        [node("n1", 8192), *stored(waits("p1", 6000), waits("p2", 6000))],
        [schedules("A", "p1", "n1"), deletes("p1"), schedules("A", "p2", "n1")],
        vendors=without_locks,
        slow_kubelets=True,
    ),
    _scenario(
        "unlocked-after: an extender has placed a pod by a vendor without a lock, and another one is after its room",
        [node("n1", 16384), *stored(waits("p1", 10000), waits("p2", 10000))],
        [schedules("A", "p1", "n1"), schedules("B", "p2", "n1", after=["A places p1"])],
        vendors=without_locks,
        early=["A", "B"],
        spared=["late", "lost", "crash", "stop", "gone", "time", "second"],
    ),
    *_both(
        "preemption: a pod has one of two evicted, and another one is after its room",
        [node("n1", 8192), node("n2", 8192), *stored(*_VICTIMS, _HIGH, _LOW)],
        [_EVICTS, _EVICTS_AGAIN, schedules("A", "low", "n1", "n2")],
        preempts=True,
        ci=False,
    ),
    _scenario(
        "preemption-deleted: the pod that others are evicted for is deleted meanwhile",
        [node("n1", 8192), node("n2", 8192), *stored(*_VICTIMS, _HIGH, _LOW)],
        [_EVICTS, deletes("high"), schedules("A", "low", "n1", "n2")],
        preempts=True,
    ),
    _scenario(
        "preemption-room: another pod ends by itself, and the one that others are evicted for gets its room",
        [node("n1", 8192), node("n2", 8192), *stored(*_VICTIMS, _HIGH)],
        [_EVICTS, _EVICTS_AGAIN, deletes("v2")],
        preempts=True,
        small=None,
    ),
    _scenario(
        "preemption-two: two extenders evict for the same pod",
        [node("n1", 8192), node("n2", 8192), *stored(*_VICTIMS, _HIGH)],
        [_EVICTS, schedules("B", "high", "n1", "n2")],
        preempts=True,
        early=["A", "B"],
        leaders=["B"],
        small=None,
    ),
    _scenario(
        "preemption-group: two pods that start together have two evicted",
        [node("n1", 8192), node("n2", 8192), *stored(*_VICTIMS, *_PAIR)],
        [_PAIR_STARTS, _PAIR_AGAIN],
        preempts=True,
        small=None,
    ),
    _scenario(
        "preemption-group-deleted: of two pods that start together one is deleted, and another is after their room",
        [node("n1", 8192), node("n2", 8192), *stored(*_VICTIMS, *_PAIR, _LOW)],
        [_PAIR_STARTS, deletes("p2"), schedules("A", "low", "n1", "n2")],
        preempts=True,
        small=None,
    ),
    _scenario(
        "preemption-scheduler: kube-scheduler evicts for a pod that lacks CPU, and its extender for the same pod",
        [node("n1", 8192), node("n2", 8192), *stored(*_VICTIMS, _HOG, _HIGH)],
        [_CYCLE, _NEXT_CYCLE],
        preempts=True,
        spared=[
            "crash",
            "stop",
        ],  # a deletion may be on its way then, which neither kube-scheduler nor a successor sees
    ),
    _scenario(
        "preemption-added: to kube-scheduler's victims its extender adds one, and another pod is after their room",
        [node("n1", 8192), node("n2", 8192), *stored(_VICTIMS[0], of_priority(_VICTIMS[1], 200), _HOG, _HIGH, _LOW)],
        [_CYCLE, _NEXT_CYCLE, schedules("A", "low", "n1", "n2")],
        preempts=True,
    ),
    _scenario(
        "preemption-quota: a pod has one of two evicted for room in a quota, while that is recomputed",
        [*_CARDS, (Q, _GIVES_ROOM), *stored(*_IN_QUOTA, _BY_QUOTA)],
        [_BY_QUOTA_ON_LARGE, recomputes(CONTROLLER), _AGAIN_ON_LARGE],
        costs=_COSTS_IN_QUOTA,
        preempts=True,
        exact=False,
        small=None,
    ),
    _scenario(
        "preemption-quota-above: room in a quota would take a pod of a higher priority, which stays",
        [
            *_CARDS,
            (Q, {**_GIVES_ROOM, "spec": quota("q", gpu=3, mem=20000)["spec"]}),
            *stored(_IN_QUOTA[0], of_priority(_IN_QUOTA[1], 150), _BY_QUOTA),
        ],
        [_BY_QUOTA_ON_LARGE, recomputes(CONTROLLER)],
        costs=_COSTS_IN_QUOTA,
        preempts=True,
        exact=False,
    ),
)
