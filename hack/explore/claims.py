"""Scenarios of ResourceClaims: what new ones cost, and what one is allocated, charged before it is stored.

A share of a card costs what it asks for until it is allocated, then what it got.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping

from hack.explore import rules
from hack.explore.replica import Process
from hack.explore.scenarios import Q, cost, deletes, pod, quota, recomputes
from hack.explore.world import TEAM, Actor, Scenario, World
from hami_webhook.admission.review import ClaimReview
from hami_webhook.cluster.api import JSON, ClusterError, Kind
from hami_webhook.config.drivers import DraSection
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.holders import POD_CLAIM_NAME
from hami_webhook.kube.claims_wire import ResourceClaim
from hami_webhook.kube.wire import convert

_DRIVER = "hami-core-gpu.project-hami.io"
_CLAIMS = Kind.RESOURCE_CLAIMS


@functools.cache
def vendors() -> Vendors:
    """Those of HAMi's chart, where claims are charged."""
    return enabled_vendors(builtin_device_config().config.model_copy(update={"dra": DraSection(enabled=True)}))


def claim(name: str, *alternatives: int, uid: str = "", pod_name: str = "") -> JSON:
    """A claim of a share of so many MiB, or else of so many; `pod_name`: generated for that pod."""
    exact = [{"deviceClassName": _DRIVER, "capacity": {"requests": {"memory": f"{m}Mi"}}} for m in alternatives]
    either = {"firstAvailable": [{"name": f"a{n}", **each} for n, each in enumerate(exact)]}
    meta: JSON = {"name": name, "namespace": TEAM, "uid": uid or f"uid-{name}"}
    if pod_name:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod_name, "uid": f"uid-{pod_name}", "controller": True}
        meta |= {"ownerReferences": [owner], "annotations": {POD_CLAIM_NAME: "share"}}
    form = {"exactly": exact[0]} if len(exact) == 1 else either
    return {"metadata": meta, "spec": {"devices": {"requests": [{"name": "r0", **form}]}}}


def _claiming(name: str) -> tuple[Kind, JSON]:
    """A pod that waits for the claim of a template."""
    made = pod(name)
    made["spec"]["resourceClaims"] = [{"name": "share", "resourceClaimTemplateName": "share"}]
    meta = {**made["metadata"], "uid": f"uid-{name}"}
    status = {"resourceClaimStatuses": [{"name": "share", "resourceClaimName": f"{name}-share"}]}
    return Kind.PODS, {**made, "metadata": meta, "status": status}


def _share(name: str) -> JSON:
    percent = {"default": "100", "validRange": {"min": "0", "step": "1", "max": "100"}}
    memory = {"default": "40Gi", "validRange": {"min": "1Mi", "step": "1Mi", "max": "40Gi"}}
    return {
        "name": name,
        "allowMultipleAllocations": True,
        "attributes": {"type": {"string": "hami-gpu"}, "uuid": {"string": name}, "productName": {"string": "A100"}},
        "capacity": {
            "memory": {"value": "40Gi", "requestPolicy": memory},
            "cores": {"value": "100", "requestPolicy": percent},
        },
    }


_PUBLISHED: list[tuple[Kind, JSON]] = [
    (
        Kind.RESOURCE_SLICES,
        {
            "metadata": {"name": "n1"},
            "spec": {
                "driver": _DRIVER,
                "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
                "nodeName": "n1",
                "devices": [_share("a0"), _share("a1")],
            },
        },
    ),
    (
        Kind.DEVICE_CLASSES,
        {
            "metadata": {"name": _DRIVER},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{_DRIVER}"'}}]},
        },
    ),
]
_TEMPLATE = (
    Kind.RESOURCE_CLAIM_TEMPLATES,
    {"metadata": {"name": "share", "namespace": TEAM}, "spec": {"spec": claim("share", 2000)["spec"]}},
)


# who acts


def _review(operation: str, before: JSON, after: JSON) -> ClaimReview:
    old, new = (convert(each, ResourceClaim, "claim") for each in (before, after))
    name, subresource = after["metadata"]["name"], "status" if operation == "UPDATE" else ""
    return ClaimReview("v1", name, operation, "ResourceClaim", subresource, TEAM, name, new, old)


def makes(replica: str, made: JSON, *after: str) -> Actor:
    """A user, or kube-controller-manager, creates a claim."""
    name = made["metadata"]["name"]

    async def act(world: World, actor: Actor) -> None:
        async def work(process: Process) -> None:
            await process.core.claims.review(_review("CREATE", {}, made))

        if await world.is_allowed(actor, f"{name} of {replica}", work):
            try:
                await world.request_as(actor).create(_CLAIMS, made)
            except ClusterError:
                world.note("    it isn't stored")

    return Actor(f"the creation of {name} ({replica})", act, after, replica)


def allocates(replica: str, name: str, memory: int, *after: str) -> Actor:
    """kube-scheduler allocates a claim that is there."""

    async def act(world: World, actor: Actor) -> None:
        before = world.server.peek(_CLAIMS, name, TEAM)
        if before is None:
            return
        got = {"driver": _DRIVER, "pool": "n1", "device": "a0", "request": "r0"}
        result = {**got, "consumedCapacity": {"memory": f"{memory}Mi", "cores": "0"}}
        status = {"allocation": {"devices": {"results": [result]}}}

        async def work(process: Process) -> None:
            await process.core.claims.review(_review("UPDATE", before, {**before, "status": status}))

        if await world.is_allowed(actor, f"the allocation of {name}", work):
            version = {"resourceVersion": before["metadata"]["resourceVersion"]}
            try:
                await world.request_as(actor).patch_status(_CLAIMS, name, {"metadata": version, "status": status}, TEAM)
            except ClusterError:
                world.note("    it isn't stored")

    return Actor(f"the allocation of {name} ({replica})", act, after, replica)


def gives_back(name: str, *after: str) -> Actor:
    """kube-scheduler takes the allocation of a claim away."""

    async def act(world: World, actor: Actor) -> None:
        if world.server.peek(_CLAIMS, name, TEAM) is not None:
            await world.request_as(actor).patch_status(_CLAIMS, name, {"status": {"allocation": None}}, TEAM)

    return Actor(f"{name} is given back", act, after)


def ends(name: str, *after: str) -> Actor:
    """A user deletes a claim."""

    async def act(world: World, actor: Actor) -> None:
        if world.server.peek(_CLAIMS, name, TEAM) is not None:
            await world.request_as(actor).delete(_CLAIMS, name, TEAM)

    return Actor(f"the deletion of {name}", act, after)


# what must hold


def _needs(world: World, quota: JSON) -> Mapping[str, int]:
    """What pods and claims cost: an allocated claim what it got, one that waits what it asks for, unless it is a pod's.

    A pod that waits costs what its template asks for, or what its claim got if that is more.
    """
    costs, total = world.scenario.costs, Counter[str]()
    pods = {each["metadata"]["uid"]: each["metadata"]["name"] for each in rules.live_pods(world)}
    got: dict[str, Counter[str]] = {uid: Counter() for uid in pods}
    for each in rules.claims_of(world):
        meta, held = each["metadata"], _allocated(each)
        owner = next((owner["uid"] for owner in meta.get("ownerReferences") or ()), "")
        if owner in got:
            got[owner].update(held)
        elif owner or held:
            total.update(held)
        else:
            total.update(next(found for name, found in costs.items() if name.startswith(f"{meta['name']} of")))
    for uid, name in pods.items():
        total.update({key: max(costs[name].get(key, 0), got[uid][key]) for key in {*costs[name], *got[uid]}})
    return {key: amount for key, amount in total.items() if key in rules.hard_of(quota)}


def _allocated(found: JSON) -> Mapping[str, int]:
    results = ((found.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", ())
    memory = [int(each["consumedCapacity"]["memory"].removesuffix("Mi")) for each in results]
    return {rules.GPU: len(memory), rules.MEM: sum(memory)} if memory else {}


_C1, _C2 = claim("c1", 2000), claim("c2", 2000)
_MADE = "the creation of c1 (A)"
_GOT = "the allocation of c1 (A)"

SCENARIOS = (
    Scenario(
        "two-claims: two replicas charge a claim each to a quota which has room for one",
        [*_PUBLISHED, (Q, quota("q", gpu=2, mem=3000))],
        [makes("A", _C1), makes("B", _C2)],
        needs=_needs,
        vendors=vendors,
        costs={"c1 of A": cost(1, 2000), "c2 of B": cost(1, 2000)},
    ),
    Scenario(
        "one-name: a claim of one name is posted to two replicas, one is deleted, and a leader recomputes",
        [*_PUBLISHED, (Q, quota("q", gpu=2, mem=3500))],
        [
            makes("A", claim("c1", 2000, uid="first")),
            makes("B", claim("c1", 2000, uid="second")),
            ends("c1", _MADE),
            recomputes("leader", "the deletion of c1"),
        ],
        needs=_needs,
        vendors=vendors,
        costs={"c1 of A": cost(1, 2000), "c1 of B": cost(1, 2000)},
        early=["leader"],
        exact=False,
        small=None,
    ),
    Scenario(
        "allocated: a claim is allocated more than it asked for at least, while another one is created",
        [
            *_PUBLISHED,
            (Q, quota("q", used={"gpu": 1, "mem": 2000}, gpu=2, mem=5000)),
            (_CLAIMS, claim("c1", 4000, 2000)),
        ],
        [allocates("A", "c1", 4000), makes("B", _C2)],
        needs=_needs,
        vendors=vendors,
        costs={"c1 of A": cost(1, 2000), "the allocation of c1": {rules.MEM: 2000}, "c2 of B": cost(1, 2000)},
    ),
    Scenario(
        "given-back: a claim is allocated, and taken away again, while a leader recomputes and another one is created",
        [
            *_PUBLISHED,
            (Q, quota("q", used={"gpu": 1, "mem": 2000}, gpu=2, mem=5000)),
            (_CLAIMS, claim("c1", 4000, 2000)),
        ],
        [allocates("A", "c1", 4000), gives_back("c1", _GOT), makes("B", _C2), recomputes("leader")],
        needs=_needs,
        vendors=vendors,
        costs={"c1 of A": cost(1, 2000), "the allocation of c1": {rules.MEM: 2000}, "c2 of B": cost(1, 2000)},
        exact=False,
        small=None,
    ),
    Scenario(
        "generated: the claim of a pod is allocated while the pod is deleted, and a leader recomputes",
        [
            *_PUBLISHED,
            _TEMPLATE,
            (Q, quota("q", used={"gpu": 1, "mem": 2000}, gpu=2, mem=6500)),
            _claiming("p1"),
            (_CLAIMS, claim("p1-share", 2000, pod_name="p1")),
        ],
        [allocates("A", "p1-share", 4000), deletes("p1"), recomputes("leader")],
        needs=_needs,
        vendors=vendors,
        costs={"p1": cost(1, 2000), "the allocation of p1-share": cost(1, 4000)},
        exact=False,
        small=None,
    ),
)
