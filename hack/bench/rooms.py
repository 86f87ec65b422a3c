"""How often a piece of work goes from one package to another: `python -m hack.bench.calls --rooms`.

Counted over the calls that really happen, in their order. A stay is a run of calls into one package. A climb is a call
from a lower layer of `pyproject.toml` to a higher one, by a function that was handed down. A straight line has few of
both. In each walk the caches are filled, and one like it went before. What the API server does isn't counted.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec import Struct
from rich.table import Table

import hami_webhook
from hack.bench.counting import ordered_calls
from hack.bench.objects import (
    HARD,
    JSON,
    NAMESPACE,
    SCHEDULER,
    ask,
    gpu,
    node,
    node_name,
    pod_with,
    quota,
    review,
    review_of,
)
from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.cluster.watches import NoWatches
from hami_webhook.config.drivers import DraSection
from hami_webhook.core_options import Options
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.queueing.releaser import QueueReleaser
from hami_webhook.scheduling.extender import Extender
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.node_locks import NodeLocks, ShownNodes
from hami_webhook.scheduling.placer import LockedNodes
from hami_webhook.scheduling.protocol import decode_args, decode_binding
from hami_webhook.scheduling.requeue_trigger import RequeueTrigger
from hami_webhook.server.app import application, review_routes
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.request_metrics import new_registry

_API_SERVER = ("cluster.memory", "cluster.journal")
_DRIVER = "hami-core-gpu.project-hami.io"
_CONFIG = builtin_device_config().config
_VENDORS = enabled_vendors(_CONFIG)
_CLAIMING = enabled_vendors(_CONFIG.model_copy(update={"dra": DraSection(enabled=True)}))
_NOW = 1_767_225_600.0
_CLAIM = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}

Work = Callable[[], Awaitable[None]]
Walk = Callable[["World", int], Awaitable[Work]]
"""Prepares the work that is counted, for the first pod or for the second."""


class Rooms(Struct, frozen=True):
    """The packages that calls went to, one after the other, how many calls went up, and how many there were."""

    stays: Sequence[str]
    climbs: int
    calls: int


def layers() -> dict[str, int]:
    """Of each package its layer, by the first contract of the project's `pyproject.toml`: 0 is the highest."""
    text = (Path(hami_webhook.__file__).parents[1] / "pyproject.toml").read_text()
    contract = tomllib.loads(text)["tool"]["importlinter"]["contracts"][0]
    return {name: at for at, row in enumerate(contract["layers"]) for name in row.split(" | ")}


def rooms_of(calls: Sequence[tuple[str, str]], layer: Mapping[str, int]) -> Rooms:
    """The stays and climbs of calls, given as the modules of callers and of what they call."""
    ways = [(caller.partition(".")[0], called.partition(".")[0]) for caller, called in calls]
    stays = [room for room, _ in groupby(called for _, called in ways)]
    climbs = sum(caller != "" and layer[called] < layer[caller] for caller, called in ways)
    return Rooms(stays, climbs, len(calls))


class World:
    """Two nodes whose cards differ, a quota that nobody fills, and the program beside them."""

    def __init__(self, vendors: Any = _VENDORS) -> None:
        self.cluster = cluster = MemoryCluster(lambda: _NOW)
        options = Options(rules=AdmissionRules(scheduler_name=SCHEDULER))
        self.core = core = Core(cluster, vendors, options, clock=lambda: _NOW, watches=NoWatches(tuple(Kind)))
        routes = review_routes(core.admission, ListenerLimits(), claims=core.claims, registry=new_registry())
        self.serve = application(routes)
        handle = Handle(cluster, core.state, core.vendors, core.clock, quotas=core.caches.covering)
        self.locks = locks = NodeLocks(cluster, clock=core.clock, shown=ShownNodes.of(core.state))
        core.state.watch_nodes(locks.node_changed)
        placer = core.placer_for(handle, lambda pod: LockedNodes(locks.busy, locks.contended, locks.held_by(pod)))
        trigger = RequeueTrigger(cluster, lambda: None, clock=core.clock)
        self.extender = Extender(handle, placer, locks, trigger, single=False)
        self.releaser = QueueReleaser(cluster, core.view, core.charger, core.capacity, core.failures)

    async def put(self, kind: Kind, obj: JSON) -> JSON:
        """Create an object, and let the caches show it."""
        stored = await self.cluster.create(kind, obj)
        change = self.core.caches.put(kind, stored)
        for name, changed in self.releaser.subscriptions().items():
            if name is kind:
                changed(change)
        return stored

    async def fill(self, **annotations: str) -> None:
        self.core.caches.put(Kind.NAMESPACES, await self.cluster.ensure_namespace(NAMESPACE))
        for number in range(2):
            made = node(number)
            notes = made["metadata"]["annotations"]
            if number == 0:  # what a share of a card costs at least, and not on the other
                notes["hami.io/node-nvidia-register"] = notes["hami.io/node-nvidia-register"].replace("40960", "20480")
            await self.put(Kind.NODES, made)
        limited = quota("gpu", HARD)
        limited["metadata"]["annotations"] = annotations
        amounts = {key: str(amount) for key, amount in HARD.items()}
        await self.put(Kind.RESOURCE_QUOTAS, {**limited, "status": {"hard": amounts, "used": dict.fromkeys(HARD, "0")}})


async def _review(world: World, number: int) -> Work:
    made = pod_with(f"pod-{number}", gpu())
    made["metadata"]["uid"] = f"uid-{number}"
    made["spec"]["schedulerName"] = SCHEDULER
    body = review(made)

    async def work() -> None:
        _allowed(await ask(world.serve, "/validate", body))

    return work


async def _placement(world: World, number: int) -> Work:
    """The pod costs more on its node than while it waits."""
    half = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}
    stored = await world.put(Kind.PODS, pod_with(f"pod-{number}", half))
    where = node_name(1)
    await world.cluster.patch(Kind.NODES, where, {"metadata": {"annotations": {"hami.io/mutex.lock": None}}})
    world.core.caches.put(Kind.NODES, await world.cluster.get(Kind.NODES, where))
    args = decode_args({"Pod": stored, "Nodes": None, "NodeNames": [where]})
    meta = stored["metadata"]
    binding = decode_binding({"PodName": meta["name"], "PodNamespace": NAMESPACE, "PodUID": meta["uid"], "Node": where})
    assert not isinstance(args, str)
    assert not isinstance(binding, str)

    async def work() -> None:
        filtered = await world.extender.filter(args)
        await world.extender.prioritize(args)
        error = await world.extender.bind(binding)
        if error:
            raise SystemExit(f"rooms: the pod wasn't bound: {filtered} {error}")

    return work


async def _allocation(world: World, number: int) -> Work:
    """A pod's own claim gets a share of a card."""
    if number == 0:
        for kind, obj in _published():
            await world.put(kind, obj)
    name = f"pod-{number}"
    made = pod_with(name, {})
    made["spec"]["resourceClaims"] = [{"name": "share", "resourceClaimTemplateName": "share"}]
    made["status"] = {"resourceClaimStatuses": [{"name": "share", "resourceClaimName": name}]}
    stored = await world.put(Kind.PODS, made)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": stored["metadata"]["uid"], "controller": True}
    meta: JSON = {"name": name, "namespace": NAMESPACE, "ownerReferences": [owner]}
    meta["annotations"] = {"resource.kubernetes.io/pod-claim-name": "share"}
    before = await world.put(Kind.RESOURCE_CLAIMS, {"metadata": meta, "spec": _SHARE})
    got: JSON = {"driver": _DRIVER, "pool": "node-0", "device": "card", "request": "card"}
    got["consumedCapacity"] = {"memory": "2000Mi", "cores": "10"}
    after = {**before, "status": {"allocation": {"devices": {"results": [got]}}}}
    body = review_of(
        after, _CLAIM, "resourceclaims", name=name, operation="UPDATE", subResource="status", oldObject=before
    )

    async def work() -> None:
        _allowed(await ask(world.serve, "/claims", body))

    return work


async def _release(world: World, number: int) -> Work:
    """A pod that waits is charged in its turn, and its gate goes."""
    made = pod_with(f"pod-{number}", gpu())
    made["spec"]["schedulingGates"] = [{"name": "hami.io/quota"}]
    await world.put(Kind.PODS, made)

    async def work() -> None:
        before = world.releaser.released
        await world.releaser.step()
        if world.releaser.released != before + 1:
            raise SystemExit("rooms: the pod wasn't released")

    return work


async def _recompute(world: World, number: int) -> Work:
    """A quota of a pod that waits and one that was charged and never came."""
    await world.put(Kind.PODS, pod_with(f"pod-{number}", {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}))
    await (await _review(world, 10 + number))()

    async def work() -> None:
        await world.core.recomputer.run(NAMESPACE, "gpu")

    return work


def _allowed(response: JSON) -> None:
    if not response["allowed"]:
        raise SystemExit(f"rooms: refused: {response['status']['message']}")


_SHARE = {
    "devices": {
        "requests": [
            {
                "name": "card",
                "exactly": {"deviceClassName": _DRIVER, "capacity": {"requests": {"memory": "2000Mi", "cores": "10"}}},
            }
        ]
    }
}


def _published() -> list[tuple[Kind, JSON]]:
    """A card in shares, its class, and the template of the claims."""
    card = {
        "name": "card",
        "allowMultipleAllocations": True,
        "attributes": {"type": {"string": "hami-gpu"}, "uuid": {"string": "c"}, "productName": {"string": "A100"}},
        "capacity": {"memory": {"value": "100Gi"}, "cores": {"value": "100"}},
    }
    pool = {"name": "node-0", "generation": 1, "resourceSliceCount": 1}
    sliced = {"driver": _DRIVER, "pool": pool, "nodeName": "node-0", "devices": [card]}
    chosen = {"selectors": [{"cel": {"expression": f'device.driver == "{_DRIVER}"'}}]}
    template = {"metadata": {"name": "share", "namespace": NAMESPACE}, "spec": {"spec": _SHARE}}
    return [
        (Kind.RESOURCE_SLICES, {"metadata": {"name": "node-0"}, "spec": sliced}),
        (Kind.DEVICE_CLASSES, {"metadata": {"name": _DRIVER}, "spec": chosen}),
        (Kind.RESOURCE_CLAIM_TEMPLATES, template),
    ]


WALKS: Mapping[str, tuple[Walk, JSON]] = {
    "a review that charges": (_review, {}),
    "a placement: filter, score, bind": (_placement, {}),
    "an allocation of a claim": (_allocation, {}),
    "a release from the queue": (_release, {"hami.io/quota-enforcement": "queue"}),
    "a recompute": (_recompute, {}),
}
"""With the annotations of the quota."""


def walked(name: str) -> Rooms:
    """The rooms of a walk whose like went before, in the same world."""
    walk, annotations = WALKS[name]

    async def second() -> list[tuple[str, str]]:
        world = World(_CLAIMING if walk is _allocation else _VENDORS)
        await world.fill(**annotations)
        await (await walk(world, 0))()
        work = await walk(world, 1)
        # being watched takes time, after which a filter would pause and look again at what may have changed
        with patch("hami_webhook.time_slices.SLICE", inf), ordered_calls(_API_SERVER) as calls:
            await work()
        return calls

    asyncio.run(second())  # for what is worked out once in a process
    return rooms_of(asyncio.run(second()), layers())


def as_rows() -> list[tuple[str, int, int, int, int]]:
    """Of each walk its name, how many stays, packages, climbs and calls it has."""
    found = [(name, walked(name)) for name in WALKS]
    return [(name, len(each.stays), len(set(each.stays)), each.climbs, each.calls) for name, each in found]


def as_table() -> Table:
    table = Table("work")
    for column in ("stays", "packages", "climbs", "calls"):
        table.add_column(column, justify="right")
    for name, *numbers in as_rows():
        table.add_row(name, *map(str, numbers))
    return table
