"""Scenarios of updates: of pods that wait, and of the quotas themselves while pods are charged.

Of a pod only what it asks for of cards may change: the API server lets nobody change amounts of extended resources,
nor give any to ephemeral containers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import orjson

from hack.explore import rules
from hack.explore.apiserver import review_of
from hack.explore.replica import Process
from hack.explore.scenarios import (
    BOTH,
    P1,
    P2,
    Q,
    above,
    cost,
    creates,
    creation,
    node,
    pod,
    quota,
    recomputes,
)
from hack.explore.world import TEAM, Actor, Scenario, World
from hami_webhook.admission.review import parse_review
from hami_webhook.cluster.api import JSON, ClusterError, Kind
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.card_selection import COUNTED, CardSelection

_TYPES = "nvidia.com/use-gputype"
_TYPED = {"hami.io/quota-device-types": "H100"}


def of_type(name: str, model: str) -> JSON:
    """A pod that wants a card of a type."""
    made = pod(name, gpu=1, mem=2000)
    meta = {**made["metadata"], "uid": f"uid-{name}", "annotations": {_TYPES: model}}
    return {**made, "metadata": meta}


def _of_h100(used: int) -> tuple[Kind, JSON]:
    """A quota of one H100."""
    made = quota("h100", used={"gpu": used}, annotations=_TYPED, gpu=1)
    counted = {COUNTED: str(CardSelection.of(ResourceQuota.from_object(made)))}
    return Q, {**made, "metadata": {**made["metadata"], "annotations": {**_TYPED, **counted}}}


def retypes(replica: str, name: str, model: str, *after: str) -> Actor:
    """A user lets a pod that waits get cards of another type."""
    what = f"the update of {name}"

    async def act(world: World, actor: Actor) -> None:
        before = world.server.peek(Kind.PODS, name, TEAM)
        if before is None:
            return
        notes = {"metadata": {"annotations": {_TYPES: model}}}
        meta = {**before["metadata"], **notes["metadata"]}
        request = {
            **orjson.loads(review_of({**before, "metadata": meta}, TEAM))["request"],
            "operation": "UPDATE",
            "oldObject": before,
        }
        body = orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})

        async def work(process: Process) -> None:
            await process.core.admission.validate(parse_review(body, "application/json"))

        if await world.is_allowed(actor, what, work):
            version = {"resourceVersion": before["metadata"]["resourceVersion"]}
            patch = {"metadata": {**notes["metadata"], **version}}
            try:
                await world.request_as(actor).patch(Kind.PODS, name, patch, TEAM)
            except ClusterError:
                world.note("    it isn't stored")

    return Actor(f"{what} ({replica})", act, after, replica)


def edits(name: str, *after: str, gpu: int, mem: int) -> Actor:
    """An administrator changes the limits of a quota."""
    keys = quota(name, gpu=gpu, mem=mem)["spec"]["hard"]

    async def act(world: World, actor: Actor) -> None:
        await world.request_as(actor).patch(Q, name, {"spec": {"hard": keys}}, TEAM)

    return Actor(f"quota {name} is changed to {gpu}, {mem}", act, after)


def remakes_above(name: str, made: JSON, *after: str) -> Actor:
    """An administrator deletes an AcceleratorQuota, and creates it again."""

    async def act(world: World, actor: Actor) -> None:
        api = world.request_as(actor)
        await api.delete(Kind.ACCELERATOR_QUOTAS, name)
        await api.create(Kind.ACCELERATOR_QUOTAS, made)

    return Actor(f"AcceleratorQuota {name} created again", act, after)


def _needs(world: World, quota: JSON) -> Mapping[str, int]:
    """What pods cost a quota of H100s: those that are to get one."""
    total = Counter[str]()
    for each in rules.live_pods(world):
        if each["metadata"]["annotations"][_TYPES] == "H100":
            total.update(world.scenario.costs[each["metadata"]["name"]])
    return {key: amount for key, amount in total.items() if key in rules.hard_of(quota)}


_LOWERED = "quota q is changed to 1, 1000"
_H100S = (node("a", 40000, model="NVIDIA-A10"), node("h", 80000, model="NVIDIA-H100"))
_ONE: Mapping[str, Mapping[str, int]] = {
    **BOTH,
    "the update of p1": cost(1, 2000),
    "the update of p2": cost(1, 2000),
}

SCENARIOS = (
    Scenario(
        "two-updates: two pods that wait are to get cards of a quota which has room for one",
        [*_H100S, _of_h100(0), (Kind.PODS, of_type("p1", "A10")), (Kind.PODS, of_type("p2", "A10"))],
        [retypes("A", "p1", "H100"), retypes("B", "p2", "H100")],
        _ONE,
        needs=_needs,
    ),
    Scenario(
        "update-repeated: the update of a pod is sent to two replicas, and a leader recomputes",
        [*_H100S, _of_h100(0), (Kind.PODS, of_type("p1", "A10"))],
        [retypes("A", "p1", "H100"), retypes("B", "p1", "H100"), recomputes("leader")],
        _ONE,
        needs=_needs,
        exact=False,
        small=None,
    ),
    Scenario(
        "moved-away: a pod that waits is to get other cards, while one is created that wants its own",
        [*_H100S, _of_h100(1), (Kind.PODS, of_type("p1", "H100"))],
        [retypes("A", "p1", "A10"), creates("B", of_type("p2", "H100")), recomputes("leader")],
        _ONE,
        needs=_needs,
        exact=False,
        small=None,
    ),
    Scenario(
        "lowered: the limits of a quota are lowered and raised again while two pods are created",
        [(Q, quota("q", gpu=2, mem=4000))],
        [
            creates("A", P1),
            creates("B", P2),
            edits("q", gpu=1, mem=1000),
            edits("q", _LOWERED, gpu=1, mem=2000),
        ],
        BOTH,
        small=None,
    ),
    Scenario(
        "raised: the limits of a full quota are raised while a pod is created, and a leader recomputes",
        [(Q, quota("q", used={"gpu": 1, "mem": 2000}, gpu=1, mem=2000)), (Kind.PODS, of_type("p0", "A10"))],
        [creates("A", P1), edits("q", gpu=2, mem=4000), recomputes("leader")],
        {**BOTH, "p0": cost(1, 2000)},
    ),
    Scenario(
        "remade-above: an AcceleratorQuota is deleted and created again while a pod is created",
        [(Kind.ACCELERATOR_QUOTAS, above("above", gpu=2, mem=3000))],
        [
            creates("A", P1, name=creation("p1")),
            remakes_above("above", {**above("above", gpu=2, mem=3000), "status": {}}),
            recomputes("leader", "AcceleratorQuota above created again"),
        ],
        BOTH,
        early=["leader"],
        exact=False,
    ),
)
