"""What must hold, as far as it can be read off the objects of the API server (docs/spec/quota.md#12).

Nothing here is computed by the code that is tested: what pods cost is written in the scenario, and what placed ones
hold is added up from their annotation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import orjson

from hami_webhook.cluster.api import JSON, Kind, WatchEvent, WatchType

if TYPE_CHECKING:
    from hack.explore.world import World

GPU, MEM = "limits.nvidia.com/gpu", "limits.nvidia.com/gpumem"
LEDGER = "hami.io/quota-ledger"
_OURS = (LEDGER, "hami.io/quota-counted-cards", "hami.io/quota-observed")
_ALLOCATED = "hami.io/vgpu-devices-allocated"
_GATE = "hami.io/quota"
_ENFORCEMENT = "hami.io/quota-enforcement"
_UNNOTICED = {"conflict", "stale", "second"}
"""Accidents that no user notices."""
_UNDONE = {*_UNNOTICED, "gone"}
"""Those after which nothing is left."""


_AS_IT_SHOULD = ("already exists", "no longer exists")
"""What a refusal says though nothing is wrong but what was asked for."""

QUOTAS = (Kind.RESOURCE_QUOTAS, Kind.ACCELERATOR_QUOTAS)


class Broken(Exception):
    """A rule doesn't hold."""


def after_write(world: World, kind: Kind, event: WatchEvent, writer: str) -> list[str]:
    """The rules that a change of an object breaks."""
    faults: list[str] = []
    name = event.object["metadata"]["name"]
    if kind in QUOTAS and event.type is WatchType.MODIFIED and writer in world.processes:
        faults += _own_write(world, world.versions[-1][name], event.object, writer)
    if kind in (*QUOTAS, Kind.PODS, Kind.RESOURCE_CLAIMS):
        faults += _covered(world)
    if kind is Kind.PODS:
        faults += _placed_within_hard(world)
    return faults


def _own_write(world: World, was: JSON, now: JSON, writer: str) -> Iterator[str]:
    before, after, hard = used_of(was), used_of(now), hard_of(now)
    name = now["metadata"]["name"]
    if _rest_of(was) != _rest_of(now):
        yield f"Q8: {writer} changed what isn't ours of quota {name}"
    freed = Counter[str]()
    for identity, entry in ledger_of(was).items():
        kept = ledger_of(now).get(identity, {"c": {}})["c"]
        freed.update({key: amount - kept.get(key, 0) for key, amount in entry["c"].items() if entry["s"] != "floor"})
    for key, amount in after.items():
        if amount < 0:
            yield f"Q13: used of {key} in quota {name} is {amount}"
        if key in before and key in hard and hard[key] < amount > before[key]:
            yield f"Q1: {writer} raised used of {key} in quota {name} to {amount}, above {hard[key]}"
        fell = before.get(key, 0) - amount
        if key in hard and not world.processes[writer].leads and fell > max(0, freed[key]):
            yield f"Q14: {writer} lowered used of {key} in {name} by {fell}, and took {freed[key]} from the ledger"


def _covered(world: World) -> Iterator[str]:
    for quota in quotas_of(world):
        used = used_of(quota)
        for key, amount in needed(world, quota).items():
            if key in used and used[key] < amount:
                name = quota["metadata"]["name"]
                yield f"Q2: used of {key} in quota {name} is {used[key]}, and its pods cost {amount}"


def _placed_within_hard(world: World) -> Iterator[str]:
    for quota in quotas_of(world):
        placed = Counter[str]()
        for pod in live_pods(world):
            placed.update(_held(pod))
        for key, amount in hard_of(quota).items():
            if placed[key] > amount:
                name = quota["metadata"]["name"]
                yield f"Q16: placed pods hold {placed[key]} of {key}, and quota {name} allows {amount}"


def after_refusal(world: World, pod: str) -> Iterator[str]:
    """A refused pod didn't fit at some time since its review came (Q12), or something was wrong.

    Where it may wait for room it isn't refused for lack of it.
    """
    why, cost = world.outcomes[pod], world.scenario.costs[pod]
    if "exceeded quota" in why:
        seen = [quota for version in world.versions[max(0, world.reviewed[pod] - 1) :] for quota in version.values()]
        if not any(_has_no_room(quota, pod, cost) for quota in seen):
            yield f"Q12: {pod} is refused though it always fitted: {why}"
    elif world.accidents <= _UNNOTICED and not any(text in why for text in _AS_IT_SHOULD):
        yield f"{pod} is refused though nothing is wrong: {why}"


def _has_no_room(quota: JSON, pod: str, cost: Mapping[str, int]) -> bool:
    used, hard = used_of(quota), hard_of(quota)
    if {f"uid-{pod}", f"update:uid-{pod.removeprefix('the update of ')}"} & ledger_of(quota).keys():
        return False
    before = {} if (quota["metadata"].get("annotations") or {}).get(_ENFORCEMENT) == "queue" else used
    return any(before.get(key, 0) + cost.get(key, 0) > amount for key, amount in hard.items())


def at_end(world: World) -> Iterator[str]:
    """When all have acted: a refusal left nothing (Q6), and one pod is one charge (Q5)."""
    if not (world.scenario.exact and world.accidents <= _UNDONE):
        return
    for quota in quotas_of(world):
        name, used, needs = quota["metadata"]["name"], used_of(quota), needed(world, quota)
        there = {each["metadata"]["uid"] for each in (*live_pods(world), *claims_of(world))}
        for identity, entry in ledger_of(quota).items():
            if entry["s"] in ("admitted", "placing") and not there & {identity, entry.get("f")}:
                yield f"Q6: quota {name} has an entry of {identity}, which isn't there"
        for key in hard_of(quota).keys() & used.keys():
            if used[key] != needs[key]:
                yield f"Q5, Q6: used of {key} in quota {name} is {used[key]}, and its pods cost {needs[key]}"


def at_rest(world: World) -> Iterator[str]:
    """When time has passed and all was recomputed: used is what there is, and nothing else is remembered (Q3).

    Nobody waits with room.
    """
    waiting = any(not pod["spec"].get("nodeName") for pod in live_pods(world)) or any(
        not (claim.get("status") or {}).get("allocation") for claim in claims_of(world)
    )
    for quota in quotas_of(world):
        name, used, needs = quota["metadata"]["name"], used_of(quota), needed(world, quota)
        for key in hard_of(quota):
            if used.get(key) != needs[key]:
                yield f"Q3: at rest used of {key} in quota {name} is {used.get(key)}, and its pods cost {needs[key]}"
        for identity, entry in ledger_of(quota).items():
            if entry["s"] != "floor" or not waiting:
                yield f"Q3: at rest quota {name} has an entry {identity} in state {entry['s']}"
    for pod in live_pods(world):
        cost = world.scenario.costs[pod["metadata"]["name"]]
        if _is_gated(pod) and all(
            used_of(quota).get(key, 0) + cost.get(key, 0) <= amount
            for quota in quotas_of(world)
            for key, amount in hard_of(quota).items()
        ):
            yield f"{pod['metadata']['name']} waits at rest though there is room"


# what is read


def quotas_of(world: World) -> list[JSON]:
    """Those of both kinds; their names differ."""
    return [quota for kind in QUOTAS for quota in world.server.peek_all(kind)]


def needed(world: World, quota: JSON) -> Counter[str]:
    """What the live pods cost a quota."""
    if world.scenario.needs is not None:
        return Counter(world.scenario.needs(world, quota))
    total, hard = Counter[str](), hard_of(quota)
    for pod in live_pods(world):
        if not _is_gated(pod):
            cost = _held(pod) if pod["spec"].get("nodeName") else world.scenario.costs[pod["metadata"]["name"]]
            total.update({key: amount for key, amount in cost.items() if key in hard})
    return total


def live_pods(world: World) -> list[JSON]:
    found = world.server.peek_all(Kind.PODS)
    return [pod for pod in found if pod["status"]["phase"] not in ("Succeeded", "Failed")]


def claims_of(world: World) -> Sequence[JSON]:
    return world.server.peek_all(Kind.RESOURCE_CLAIMS)


def _held(pod: JSON) -> Mapping[str, int]:
    """What a bound pod holds, by its allocated annotation: `UUID,type,MiB,cores:` for each device."""
    if not pod["spec"].get("nodeName"):
        return {}
    devices = pod["metadata"]["annotations"][_ALLOCATED].replace(";", ":").split(":")
    memory = [int(device.split(",")[2]) for device in devices if device]
    return {GPU: len(memory), MEM: sum(memory)}


def _is_gated(pod: JSON) -> bool:
    return any(gate["name"].startswith(_GATE) for gate in pod["spec"].get("schedulingGates") or ())


def used_of(quota: JSON) -> dict[str, int]:
    return _amounts((quota.get("status") or {}).get("used"))


def hard_of(quota: JSON) -> dict[str, int]:
    return {key: amount for key, amount in _amounts(quota["spec"]["hard"]).items() if key.startswith("limits.")}


def ledger_of(quota: JSON) -> JSON:
    annotations, status = quota["metadata"].get("annotations") or {}, quota.get("status") or {}
    found: JSON = orjson.loads(annotations.get(LEDGER) or status.get("ledger") or "{}")
    return found


def _amounts(written: Mapping[str, object] | None) -> dict[str, int]:
    texts = {key: str(amount) for key, amount in (written or {}).items()}
    return {key: int(text[:-1]) * 1000 if text.endswith("k") else int(text) for key, text in texts.items()}


def _rest_of(quota: JSON) -> JSON:
    """What of a quota isn't ours."""
    meta = {key: value for key, value in quota["metadata"].items() if key not in ("resourceVersion", "annotations")}
    notes = {key: text for key, text in (quota["metadata"].get("annotations") or {}).items() if key not in _OURS}
    used = {key: amount for key, amount in used_of(quota).items() if not key.startswith("limits.")}
    return {"meta": meta, "notes": notes, "spec": quota["spec"], "used": used}
