"""A cluster on which pods are placed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.model import NodeView, Usage
from hami_webhook.devices.pod_fit import PodRequest, read_pod_request
from hami_webhook.kube.objects import Namespace, Node, Pod
from hami_webhook.policy.rules import PolicyRules as Rules
from hami_webhook.scheduling.boundary import PolicyEnforcer
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.placer import (
    AssumedPlacement,
    CycleState,
    LockedNodes,
    Placement,
    Placer,
    SchedulingPolicies,
    Unschedulable,
)
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.time_slices import TimeSlices

NOW = 1_767_225_600.0
VENDORS = enabled_vendors(builtin_device_config().config)
GPU, MEM, CORES = "limits.nvidia.com/gpu", "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores"
REGISTER = "hami.io/node-nvidia-register"
ALLOCATED = "hami.io/vgpu-devices-allocated"


def uninterrupted() -> TimeSlices:
    return TimeSlices(lambda: 0.0)


class PlacerEnv:
    """An embedded cluster, what the scheduler knows of it, and a placer.

    `rules` are the policies in force, `namespaces` the Namespaces that aren't plain; None for one that isn't known.
    """

    def __init__(
        self,
        policies: SchedulingPolicies | None = None,
        pause: Callable[[str], Awaitable[None]] | None = None,
        slices: Callable[[], TimeSlices] = uninterrupted,
    ) -> None:
        self.now = NOW
        self.cluster = MemoryCluster(lambda: self.now, pause=pause)
        self.state = ClusterCache(VENDORS)
        self.rules = Rules.EMPTY
        self.namespaces: dict[str, Namespace | None] = {}
        self.placer = Placer(
            Handle(self.cluster, self.state, VENDORS, lambda: self.now),
            policies=policies,
            boundary=PolicyEnforcer(VENDORS, lambda: self.rules, self._namespace),
            slices=slices,
            locked_nodes=self._locked_nodes,
        )

    def _locked_nodes(self, pod: Pod) -> LockedNodes:
        return LockedNodes()

    async def _namespace(self, name: str) -> Namespace | None:
        return self.namespaces.get(name, Namespace(name, {}, {}))

    async def add(self, *objects: JSON) -> None:
        """Nodes (no spec), quotas (`hard`) and pods, told to the scheduler too."""
        for obj in objects:
            spec = obj.get("spec")
            if spec is None:
                stored = await self.cluster.create(Kind.NODES, obj)
                self.state.set_node(Node.from_object(stored), self.now)
                continue
            await self.cluster.ensure_namespace(obj["metadata"]["namespace"])
            if "hard" in spec:
                await self.cluster.create(Kind.RESOURCE_QUOTAS, obj)
            else:
                stored = await self.cluster.create(Kind.PODS, obj)
                self.state.set_pod(Pod.from_object(stored), self.now)

    async def place(self, raw: JSON, nodes: Sequence[str] | None = None) -> Placement | Unschedulable | None:
        """Create the pod if it isn't there, and place it."""
        meta = raw["metadata"]
        if self.cluster.peek(Kind.PODS, meta["name"], meta["namespace"]) is None:
            await self.add(raw)
        try:
            return await self.placer.place(self.read(meta["name"], meta["namespace"]), nodes)
        finally:
            await self.recorded()

    async def recorded(self) -> None:
        """Let the events be recorded that wait for it."""
        assert self.placer.events is not None
        await self.placer.events.flush()

    async def assumed(self, raw: JSON) -> AssumedPlacement:
        """Create the pod if it isn't there, and hold devices for it that nobody binds it with."""
        meta = raw["metadata"]
        if self.cluster.peek(Kind.PODS, meta["name"], meta["namespace"]) is None:
            await self.add(raw)
        found = await self.placer.consider(self.read(meta["name"], meta["namespace"]), None, (), choose=True)
        assert isinstance(found, CycleState), found
        return self.placer.assume(found)

    async def placed(self, raw: JSON, nodes: Sequence[str] | None = None) -> Placement:
        placement = await self.place(raw, nodes)
        assert isinstance(placement, Placement), placement
        return placement

    async def refused(self, raw: JSON, nodes: Sequence[str] | None = None) -> dict[str, str]:
        """Why no node takes the pod, by node."""
        unplaced = await self.place(raw, nodes)
        assert isinstance(unplaced, Unschedulable), unplaced
        return {name: str(why) for name, why in unplaced.failed.items()}

    def read(self, name: str, namespace: str = "default") -> Pod:
        return Pod.from_object(self.cluster.peek(Kind.PODS, name, namespace))

    def events(self, name: str) -> list[tuple[str, str, str]]:
        """Type, reason and message of the pod's events."""
        notes = [event.note for event in self.cluster.events]
        return [(note.type, note.reason, note.message) for note in notes if note.name == name]

    def used(self, name: str, uuid: str) -> tuple[int, int, int]:
        """Slots, MiB and cores taken of a card."""
        return amounts(view_of(self.state, name).used("NVIDIA", uuid))

    def quota_used(self, name: str = "q", namespace: str = "default") -> JSON:
        found = self.cluster.peek(Kind.RESOURCE_QUOTAS, name, namespace)
        assert found is not None
        used: JSON = found["status"]["used"]
        return used


def request_of(raw: JSON, card_policy: str = "spread") -> PodRequest:
    """What a pod requests of cards, which are some."""
    found = read_pod_request(Pod.from_object(raw), VENDORS, card_policy)
    assert found is not None
    return found


def view_of(state: ClusterCache, name: str = "n") -> NodeView:
    """A node that is known."""
    found = state.view(name)
    assert found is not None
    return found


def amounts(usage: Usage) -> tuple[int, int, int]:
    return (usage.slots, usage.memory, usage.cores)
