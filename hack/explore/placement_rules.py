"""What must hold of placement, as far as it can be read off the objects of the API server, and of the caches.

Nothing here is computed by the code that is tested: what bound pods hold is added up from their annotation, and what a
node has is read from its own (docs/spec/core.md#9).

C: no card is given more than it has. L: a lock belongs to one pod, and isn't taken from who needs it. B: a pod is bound
with the allocation that was tested. A: what an extender assumes is never less than what is bound. E: who is evicted
goes for a pod that waits, and no more go than are needed. R: what is left when nothing happens any more.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hack.explore.rules import MEM, hard_of, live_pods, needed, quotas_of
from hack.explore.world import TEAM
from hami_webhook.cluster.api import JSON, Kind, WatchEvent, WatchType

if TYPE_CHECKING:
    from hack.explore.placement_world import PlacementWorld, Replica

LOCK = "hami.io/mutex.lock"
PHASE = "hami.io/bind-phase"
NODE = "hami.io/vgpu-node"
ALLOCATED = "hami.io/vgpu-devices-allocated"
REGISTERED = "hami.io/node-nvidia-register"
CARDS, MEMORY, PERCENT = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage"
ONLY = "nvidia.com/use-gpuuuid"
KUBE_SCHEDULER = "kube-scheduler"
"""What the names of actors begin with that evict as it does."""
GROUP, SIZE = "hami.io/pod-group", "hami.io/pod-group-size"

Card = tuple[str, str]
"""A card: of which node, and its UUID."""


def lock_of(node: JSON | None) -> str:
    """A node's lock, empty if it has none."""
    return str(((node or {}).get("metadata", {}).get("annotations") or {}).get(LOCK, ""))


def is_allocating(pod: JSON) -> bool:
    """Whether a pod is bound by an extender, and its kubelet has yet to allocate for it."""
    meta = pod["metadata"]
    phase = (meta.get("annotations") or {}).get(PHASE)
    return bool(pod["spec"].get("nodeName")) and phase == "allocating" and "deletionTimestamp" not in meta


def node_of(pod: JSON) -> str:
    """The node that a pod is bound to, empty for none."""
    return str(pod["spec"].get("nodeName") or "")


def shown(event: WatchEvent) -> str:
    """A change of a pod, for a story."""
    meta, node = event.object["metadata"], event.object["spec"].get("nodeName")
    if event.type is WatchType.DELETED:
        return f"pod {meta['name']} is gone"
    if not node:
        return f"pod {meta['name']} ({meta['uid']}) waits"
    notes = meta.get("annotations") or {}
    return f"pod {meta['name']} is on {node} with {notes.get(ALLOCATED, 'nothing')}, {notes.get(PHASE, '')}"


def pod_changed(world: PlacementWorld, event: WatchEvent, writer: str) -> Iterator[str]:
    """What a change of a pod breaks."""
    yield from _cards(world)
    pod, meta = event.object, event.object["metadata"]
    node = pod["spec"].get("nodeName", "")
    if writer.startswith("kubelet") and event.type is WatchType.MODIFIED:
        yield from _served(world, pod, writer)
    evicts = writer in world.processes or (writer.startswith(KUBE_SCHEDULER) and _devices(pod))
    if "deletionTimestamp" in meta and evicts and meta["name"] not in world.evicted:
        world.evicted.append(meta["name"])
        yield from _evicted(world, pod)
    if meta["uid"] in world.bound_by or not is_allocating(pod) or event.type is WatchType.DELETED:
        return
    held = lock_of(world.server.peek(Kind.NODES, node))
    if world.has_locks and not held.endswith(f",{meta['namespace']},{meta['name']}"):
        yield f"L2: {meta['name']} is bound to {node} by {writer}, where the lock is {held or 'free'}"
    if meta["annotations"].get(NODE) != node:
        yield f"B: {meta['name']} is bound to {node} with a placement on {meta['annotations'].get(NODE)}"
    found = _devices(pod)
    yield from _beside_foreign(world, node)
    limits, cards = _limits(pod), _memory_of(world.server.peek(Kind.NODES, node) or {})
    if len(found) != int(limits[CARDS]) or any(amount != _asked(pod, cards[uuid]) for uuid, amount in found):
        yield f"B: {meta['name']} requests {limits}, and is bound with {found}"
    only = meta["annotations"].get(ONLY)
    if only and any(uuid != only for uuid, _ in found):
        yield f"B: {meta['name']} may have {only} only, and is bound with {found}"


def _evicted(world: PlacementWorld, victim: JSON) -> Iterator[str]:
    """E: when a pod's eviction begins somebody waits who comes before it, and no more go than are waited for."""
    name = victim["metadata"]["name"]
    if name in world.unwanted:
        yield f"E: {name} is evicted, and nobody waits who comes before it"
    wait = [obj for kind, obj in world.scenario.objects if kind is Kind.PODS and not node_of(obj)]
    most = sum(priority_of(pod) > priority_of(victim) for pod in wait)
    if len(world.evicted) > most:
        yield f"E: {' and '.join(world.evicted)} are evicted, for {most} pods"


def evicted_for_nobody(world: PlacementWorld, name: str) -> set[str]:
    """The pod of a name, if it is bound, and nobody waits who comes before it."""
    pod = world.server.peek(Kind.PODS, name, TEAM)
    wait = [each for pods in _ready(world) for each in pods]
    if pod is None or not node_of(pod) or any(priority_of(each) > priority_of(pod) for each in wait):
        return set()
    return {name}


def priority_of(pod: JSON) -> int:
    return int(pod.get("spec", {}).get("priority") or 0)


def _beside_foreign(world: PlacementWorld, node: str) -> Iterator[str]:
    """C: no card is given that a pod holds which doesn't say so, and that was known when the Binding was sent."""
    ours = {card for card in _held(world) if card[0] == node}
    cards = _memory_of(world.server.peek(Kind.NODES, node) or {})
    if world.foreign_then and len(ours) + world.foreign_then > len(cards):
        yield f"C: {len(ours)} cards of {node} are given away, which has {len(cards)}, {world.foreign_then} with others"


def _served(world: PlacementWorld, pod: JSON, writer: str) -> Iterator[str]:
    """L1: the device plugin serves the pod that kubelet starts.

    But where another extender took over the lock of a pod that is gone: it doesn't know when that was bound.
    """
    meta, node = pod["metadata"], pod["spec"]["nodeName"]
    if meta["uid"] != _started(writer) and _knows_of(world, writer, node):
        yield f"L1: {writer}, and the device plugin serves {meta['name']} ({meta['uid']})"


def _started(kubelet: str) -> str:
    """The UID of the pod that a kubelet starts."""
    return kubelet.rpartition("(")[2].rstrip(")")


def _knows_of(world: PlacementWorld, kubelet: str, node: str) -> bool:
    """Whether the extender that has the node locked bound the pod that kubelet starts, so that it knows when."""
    return world.bound_by[_started(kubelet)] == world.locked_by[node]


def lock_changed(world: PlacementWorld, node: str, before: str, after: str, writer: str) -> Iterator[str]:
    """What a change of a node's lock breaks; as with `_served`, but for a pod that is gone and another one bound."""
    holder = before.partition(",")[2]
    if not before or after.partition(",")[2] == holder or writer.startswith("kubelet"):
        is_anothers = writer.startswith("kubelet") and f" starts {before.rpartition(',')[2]} " not in writer
        if before and is_anothers and _knows_of(world, writer, node):
            yield f"L3: {writer}, and takes away the lock {before}"
        return
    for pod in live_pods(world):
        meta = pod["metadata"]
        if f"{meta['namespace']},{meta['name']}" == holder and is_allocating(pod) and pod["spec"]["nodeName"] == node:
            yield f"L1: {writer} makes the lock of {node} {after or 'free'}, which {meta['name']} is still to use"


def caches(world: PlacementWorld) -> Iterator[str]:
    """A: each extender takes at least what is bound, of what it was shown and of what it bound itself."""
    for name, replica in world.replicas():
        for node in world.server.peek_all(Kind.NODES):
            yield from _assumed_on(world, name, replica, node["metadata"]["name"])


def _assumed_on(world: PlacementWorld, name: str, replica: Replica, node: str) -> Iterator[str]:
    view = replica.core.state.view(node)
    bound = Counter[Card]()
    for pod in live_pods(world):
        if pod["spec"].get("nodeName") != node:
            continue
        if replica.is_shown_all or world.bound_by.get(pod["metadata"]["uid"]) == name:
            bound.update({(node, uuid): memory for uuid, memory in _devices(pod)})
    cards = {} if view is None else view.inventories["NVIDIA"].devices
    idle = sum(view.used("NVIDIA", card.uuid).slots == 0 for card in cards) if view is not None else 0
    foreign = foreign_on(world, node) if replica.is_shown_all else 0
    if foreign and idle > max(0, len(cards) - len(bound) - foreign):
        yield f"A: {name} takes {idle} cards of {node} as idle, and pods that don't say which have {foreign}"
    for (_, uuid), memory in bound.items():
        assumed = 0 if view is None else view.used("NVIDIA", uuid).memory
        if assumed < memory:
            yield f"A: {name} takes {assumed} MiB of {uuid} as used, and {memory} are bound"


def _cards(world: PlacementWorld) -> Iterator[str]:
    held = _held(world)
    for node in world.server.peek_all(Kind.NODES):
        for uuid, memory in _memory_of(node).items():
            if held[node["metadata"]["name"], uuid] > memory:
                yield f"C: bound pods hold {held[node['metadata']['name'], uuid]} MiB of {uuid}, which has {memory}"


def at_rest(world: PlacementWorld, *, served: bool = True) -> Iterator[str]:
    """R: no lock is left, nothing is assumed that isn't bound, no group holds anything, and who fits is placed.

    Not `served`: locks may be left of pods that have been served, as anybody takes them over.
    """
    named = {f"{TEAM},{pod['metadata']['name']}": pod for pod in live_pods(world)}
    for node in world.server.peek_all(Kind.NODES):
        held = lock_of(node)
        holder = named.get(held.partition(",")[2])
        if held and (served or holder is None or not node_of(holder) or is_allocating(holder)):
            yield f"R: node {node['metadata']['name']} is locked by {held}"
    waiting = [pod for pod in live_pods(world) if not pod["spec"].get("nodeName")]
    for leader in world.scenario.leaders:
        replica = dict(world.replicas())[leader]
        state = replica.core.state
        for pod in waiting:
            if state.holds_devices(pod["metadata"]["uid"]):
                yield f"R: {leader} holds devices for {pod['metadata']['name']}, which waits"
        known = {each.uid for each in state.pods()} - {pod["metadata"]["uid"] for pod in live_pods(world)}
        if known:
            yield f"R: {leader} knows pods that aren't there: {sorted(known)}"
        if replica.extender.groups._holds:
            yield f"R: {leader} holds devices for groups {list(replica.extender.groups._holds)}"
    if not world.accidents:
        yield from _in_part(world)
    for pods in _ready(world):
        if _fit(world, pods):
            yield f"R: {' and '.join(pod['metadata']['name'] for pod in pods)} fit, and wait"
    if world.scenario.preempts:
        lowest = min((priority_of(pod) for pod in live_pods(world) if _devices(pod)), default=0)
        for pods in _ready(world):
            if min(map(priority_of, pods)) > lowest:
                yield f"R: {' and '.join(pod['metadata']['name'] for pod in pods)} wait, and evict nobody"


def _in_part(world: PlacementWorld) -> Iterator[str]:
    """Groups of which some are bound, and others wait."""
    groups: dict[str, list[bool]] = {}
    for pod in live_pods(world):
        if name := (pod["metadata"].get("labels") or {}).get(GROUP):
            groups.setdefault(name, []).append(bool(node_of(pod)))
    yield from (f"R: group {name} is placed in part" for name, bound in groups.items() if len({*bound}) > 1)


def _ready(world: PlacementWorld) -> Iterator[list[JSON]]:
    """The pods that wait, by group; without the groups of which some aren't there."""
    pods = live_pods(world)
    for pod in pods:
        if node_of(pod):
            continue
        labels = pod["metadata"].get("labels") or {}
        if GROUP not in labels:
            yield [pod]
            continue
        members = [each for each in pods if (each["metadata"].get("labels") or {}).get(GROUP) == labels[GROUP]]
        if len(members) == int(labels[SIZE]) and pod["metadata"]["name"] == members[0]["metadata"]["name"]:
            yield [each for each in members if not each["spec"].get("nodeName")]


def _fit(world: PlacementWorld, pods: list[JSON]) -> bool:
    """Whether there is room for all of these together, one card each; the first card that will do, by all orders."""
    free: dict[Card, int] = {}
    held = _held(world)
    for node in world.server.peek_all(Kind.NODES):
        name = node["metadata"]["name"]
        taken = foreign_on(world, name)
        for uuid, memory in reversed(_memory_of(node).items()):
            if taken and not held[name, uuid]:  # idle cards are presumed to be theirs, the last ones first
                taken -= 1
            else:
                free[name, uuid] = memory - held[name, uuid]
    return _fit_in(world, free, pods)


def _fit_in(world: PlacementWorld, free: dict[Card, int], pods: list[JSON]) -> bool:
    if not pods:
        return True
    pod, *others = pods
    only = (pod["metadata"].get("annotations") or {}).get(ONLY)
    asked = {
        card: _asked(pod, _memory_of(world.server.peek(Kind.NODES, card[0]) or {})[card[1]])
        for card in free
        if only in (None, card[1])
    }
    return any(
        _fit_in(world, {**free, card: free[card] - memory}, others)
        for card, memory in asked.items()
        if free[card] >= memory and _is_allowed(world, pod, memory)
    )


def _asked(pod: JSON, card: int) -> int:
    """The MiB that a pod asks for of a card of so many."""
    limits = _limits(pod)
    return int(limits[MEMORY]) if MEMORY in limits else card * int(limits[PERCENT]) // 100


def _is_allowed(world: PlacementWorld, pod: JSON, memory: int) -> bool:
    """Whether quotas have room for a pod that waits to hold so many MiB; its former cost is theirs by now."""
    return all(
        needed(world, quota)[MEM] - world.scenario.costs[pod["metadata"]["name"]][MEM] + memory <= hard_of(quota)[MEM]
        for quota in quotas_of(world)
    )


def _held(world: PlacementWorld) -> Counter[Card]:
    """What bound pods hold of cards, in MiB, as far as they say."""
    held = Counter[Card]()
    for pod in live_pods(world):
        node = node_of(pod)
        if node:
            held.update({(node, uuid): memory for uuid, memory in _devices(pod)})
    return held


def foreign_on(world: PlacementWorld, node: str) -> int:
    """How many cards pods hold that don't say which."""
    found = [pod for pod in live_pods(world) if node_of(pod) == node and not _devices(pod)]
    return sum(int(_limits(pod).get(CARDS, 0)) for pod in found)


def _devices(pod: JSON) -> list[tuple[str, int]]:
    """The UUIDs and MiB that a pod was given: `UUID,type,MiB,cores:` for each device."""
    text = (pod["metadata"].get("annotations") or {}).get(ALLOCATED, "")
    parts = [device.split(",") for device in text.replace(";", ":").split(":") if device]
    return [(part[0], int(part[2])) for part in parts]


def _memory_of(node: JSON) -> dict[str, int]:
    cards = json.loads(node["metadata"]["annotations"].get(REGISTERED, "[]"))
    return {card["id"]: card["devmem"] for card in cards}


def _limits(pod: JSON) -> dict[str, str]:
    found: dict[str, str] = pod["spec"]["containers"][0]["resources"]["limits"]
    return found
