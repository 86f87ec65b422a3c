"""The scheduler extender: filter, prioritize and bind as kube-scheduler asks for them (docs/spec/core.md#7.1 and #9.2).

Two modes. **single**, HAMi's: `/filter` decides node and cards, writes them on the pod and answers the one node.
**cooperative**: `/filter` answers every node that fits, `/prioritize` grades them, so that kube-scheduler's own scores
count too, and `/bind` fits again under the node's lock, decides the cards, writes and binds in one go.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hami_webhook.cluster.api import JSON, Cluster, ClusterError, Kind, NotFound, Unavailable
from hami_webhook.devices import reasons
from hami_webhook.devices.lock_annotations import NodeLock
from hami_webhook.devices.placement_annotations import NODE
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import MalformedObject, Node, Pod, ResourceQuota, is_subdomain
from hami_webhook.scheduling.cluster_cache import ClusterCache
from hami_webhook.scheduling.fit import BadRequest, PodRequest, vendors_requested_by
from hami_webhook.scheduling.node_locks import LockContended, NodeLocks
from hami_webhook.scheduling.placer import AssumedPlacement, CycleState, Placement, Placer, Unschedulable
from hami_webhook.scheduling.scoring import NodeRank

logger = logging.getLogger(__name__)

HIGHEST_GRADE = 10
"""kube-scheduler's `MaxExtenderPriority`."""

_REMEMBERED = 512
_SYNC_SECONDS = 25.0
_UNRESOLVABLE = frozenset(
    (
        *(reasons.NODE_UNREGISTERED, reasons.NODE_INSUFFICIENT_DEVICE),
        *(reasons.CARD_TYPE_MISMATCH, reasons.CARD_UUID_MISMATCH),
    )
)
"""What no pod's going away would change: preemption needs not try."""


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """What kube-scheduler sends to filter and prioritize: names of nodes it knows we cache, or whole nodes."""

    pod: JSON
    names: Sequence[str] | None
    nodes: Sequence[JSON] | None


@dataclass(frozen=True, slots=True)
class Filtered:
    """The answer to filter: the nodes that are left, in the form that was asked, and why others aren't."""

    names: Sequence[str] | None = None
    nodes: Sequence[JSON] | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Binding:
    """What kube-scheduler sends to bind."""

    namespace: str
    name: str
    uid: str
    node: str


@dataclass(slots=True)
class ExtenderCounts:
    """What was answered, for metrics."""

    filtered: int = 0
    refused: int = 0
    bound: int = 0
    bind_failures: int = 0


@dataclass(slots=True)
class _BindAttempt:
    """A bind under way: what was decided for it, and whether it has begun to be written."""

    decision: AssumedPlacement | None = None
    writing: bool = False


class Extender:
    """Answers a kube-scheduler. `ready` returns once the caches may be believed.

    `schedulers` are the names of the schedulers whose pods may be bound, none for any. `quotas` are a namespace's
    quotas from the cache, None if that can't be believed. `refused` is told of every pod that no node takes, and
    `placed` of those that got a place; `freed` is called when devices that were held for a pod are let go.
    """

    def __init__(
        self,
        cluster: Cluster,
        state: ClusterCache,
        vendors: Vendors,
        placer: Placer,
        locks: NodeLocks,
        *,
        single: bool,
        clock: Callable[[], float],
        ready: Callable[[], Awaitable[None]],
        quotas: Callable[[str], Sequence[ResourceQuota] | None],
        schedulers: Callable[[], Collection[str]] = tuple,
        refused: Callable[[str], None] = lambda uid: None,
        placed: Callable[[str], None] = lambda uid: None,
        freed: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._vendors = vendors
        self._placer = placer
        self._locks = locks
        self._single = single
        self._clock = clock
        self._ready = ready
        self._quotas = quotas
        self._schedulers = schedulers
        self._refused = refused
        self._placed = placed
        self._freed = freed
        self._deciding = asyncio.Lock()
        self._binding: dict[str, str] = {}
        self._fitting: OrderedDict[str, tuple[PodRequest, Sequence[NodeRank]]] = OrderedDict()
        self.counts = ExtenderCounts()

    async def filter(self, args: ExtenderArgs) -> Filtered:
        """Which nodes can take the pod."""
        self.counts.filtered += 1
        try:
            pod = Pod.from_object(args.pod)
            asks = self._asks(pod)
        except MalformedObject as error:
            return Filtered(error=f"the pod can't be read: {error}")
        if not asks:
            return Filtered(args.names, args.nodes)
        if args.nodes is None and args.names is None:
            return Filtered(error="extender args missing nodes")
        try:
            await self._synced()
            if args.nodes is not None:
                return await self._filter_whole(pod, args.nodes)
            assert args.names is not None
            return await self._filter_names(pod, list(args.names))
        except (ClusterError, MalformedObject) as error:
            return Filtered(error=str(error))

    async def _synced(self) -> None:
        try:
            async with asyncio.timeout(_SYNC_SECONDS):
                await self._ready()
        except TimeoutError:
            raise ClusterError("the caches of nodes, pods and quotas aren't filled yet; try again") from None

    def _asks(self, pod: Pod) -> bool:
        try:
            return bool(vendors_requested_by(pod, self._vendors))
        except BadRequest:
            return True  # what is wrong is told by who considers it

    async def _filter_names(self, pod: Pod, names: list[str]) -> Filtered:
        known = self._state.pod(pod.uid)
        bound = pod.node_name or (known.node_name if known is not None else "")
        if bound:  # it has its place: nothing is written again
            return Filtered([name for name in names if name == bound])
        if known is not None and known.key != pod.key:
            return Filtered(error=f"pod {pod.key} isn't the one with the UID {pod.uid}, which is {known.key}")
        if pod.uid in self._binding:  # nor may it lose the cards that it is being bound with
            return Filtered(error=f"pod {pod.key} is being bound to node {self._binding[pod.uid]}")
        if self._state.release(pod.uid):
            self._freed()
        if self._single:
            async with self._deciding:
                return self._answer(pod, names, await self._placer.place(pod, names))
        found = await self._placer.consider(pod, names, await self._quotas_of(pod.namespace))
        if not isinstance(found, CycleState):
            return self._answer(pod, names, found)
        fits, refused = found.filtered.fits, found.filtered.failed
        if not fits:
            await self._placer.tell_unplaced(pod, found)
            return self._answer(pod, names, Unschedulable(refused))
        self._fitting.pop(pod.uid, None)
        self._fitting[pod.uid] = (found.ask, fits)
        while len(self._fitting) > _REMEMBERED:
            self._fitting.popitem(last=False)
        return Filtered([each.node for each in fits], None, *_sorted_out(refused))

    def _answer(self, pod: Pod, names: list[str], placement: Placement | Unschedulable | None) -> Filtered:
        if placement is None:
            return Filtered(names)
        if isinstance(placement, Placement):
            self._placed(pod.uid)
            failed, unresolvable = _sorted_out(placement.failed)
            return Filtered([placement.node], None, failed, unresolvable)
        self.counts.refused += 1
        self._refused(pod.uid)
        if placement.error:
            return Filtered(error=placement.error)
        failed, unresolvable = _sorted_out(placement.failed)
        return Filtered(None, None, failed, unresolvable)

    async def _filter_whole(self, pod: Pod, nodes: Sequence[JSON]) -> Filtered:
        """A dry run on the nodes as given, with nothing on them: what the cluster autoscaler asks."""
        state = self._state.without_any()
        named: dict[str, JSON] = {}
        unreadable: dict[str, str] = {}
        for raw in nodes:
            name = _name_of(raw)
            named[name] = raw
            try:
                state.set_node(Node.from_object(raw), self._clock())
            except MalformedObject as error:
                unreadable[name] = str(error)
        found = await self._placer.on(state).consider(pod, list(named), await self._quotas_of(pod.namespace))
        if found is None:
            return Filtered(None, nodes)
        if isinstance(found, Unschedulable):
            failed, unresolvable = _sorted_out(found.failed)
            return Filtered(None, None if found.error else [], failed, unresolvable, found.error)
        fitting = {each.node for each in found.filtered.fits}
        failed, unresolvable = _sorted_out(found.filtered.failed)
        return Filtered(
            None, [raw for name, raw in named.items() if name in fitting], {**failed, **unreadable}, unresolvable
        )

    async def prioritize(self, args: ExtenderArgs) -> list[tuple[str, int]]:
        """The nodes' grades, 0 to 10: what filter found out, or 0 where it wasn't asked."""
        meta = args.pod.get("metadata")
        uid = meta.get("uid") if isinstance(meta, dict) else None
        known = self._fitting.get(uid) if isinstance(uid, str) else None
        grades = self._placer.graded(*known, HIGHEST_GRADE) if known is not None else {}
        names = args.names if args.names is not None else [_name_of(node) for node in args.nodes or ()]
        return [(name, grades.get(name, 0)) for name in names]

    async def bind(self, binding: Binding) -> str:
        """Bind a pod as the API server knows it; the error, empty if it is bound."""
        if binding.uid in self._binding:
            return f"pod {binding.namespace}/{binding.name} is being bound already"
        self._binding[binding.uid] = binding.node
        try:
            error = await self._checked_bind(binding)
        finally:
            del self._binding[binding.uid]
        if error:
            self.counts.bind_failures += 1
            return error
        self.counts.bound += 1
        self._placed(binding.uid)
        self._fitting.pop(binding.uid, None)
        return ""

    async def _checked_bind(self, binding: Binding) -> str:
        try:
            found = await self._cluster.get(Kind.PODS, binding.name, binding.namespace)
            pod = Pod.from_object(found)
        except NotFound:
            known = self._state.pod(binding.uid)
            if known is not None and (known.namespace, known.name) == (binding.namespace, binding.name):
                self._let_go(binding.uid)
            return f'pod "{binding.name}" not found'
        except (ClusterError, MalformedObject) as error:
            return str(error)
        if pod.uid != binding.uid:
            return f'pod "{binding.name}" is another one by now: its UID is {pod.uid}, not {binding.uid}'
        if pod.node_name:
            return "" if pod.node_name == binding.node else f"pod {pod.key} is bound to {pod.node_name} already"
        if why := self._unbindable(pod, found):
            return f"pod {pod.key} {why}"
        try:
            if await self._is_no_node(binding.node):
                await self._placer.tell(pod, "Warning", "BindingFailed", f"failed to get node {binding.node}")
                if pod.annotations.get(NODE, binding.node) == binding.node:
                    self._let_go(pod.uid)
                return f'node "{binding.node}" not found'
            await self._bind(pod, binding.node)
        except (ClusterError, BadRequest, ValueError) as error:
            await self._placer.tell(pod, "Warning", "BindingFailed", str(error))
            return str(error)
        return ""

    def _unbindable(self, pod: Pod, found: JSON) -> str:
        """Why the API server would refuse to bind the pod, or we do; empty if neither."""
        if pod.deletion_time is not None:
            return "is being deleted, cannot be assigned to a host"
        if pod.terminal:
            return f"has ended: its phase is {pod.phase}"
        if found["spec"].get("schedulingGates"):
            return "has non-empty .spec.schedulingGates"
        ours = self._schedulers()
        if ours and pod.scheduler_name not in ours:
            return f"is to be bound by scheduler {pod.scheduler_name}, not by {' or '.join(sorted(ours))}"
        return ""

    async def _is_no_node(self, name: str) -> bool:
        """Whether there is no such node, by the API server where the cache doesn't have it."""
        if self._state.view(name) is None:
            try:
                await self._cluster.get(Kind.NODES, name)
            except NotFound:
                return True
        return False

    async def _bind(self, pod: Pod, node: str) -> None:
        asked = vendors_requested_by(pod, self._vendors)
        locks = self._locks_for(asked)
        if asked and self._single:
            self._placer.check_placed(pod, node)
        attempt = _BindAttempt()
        try:
            if asked and not self._single:
                attempt.decision = await self._decide(pod, node)
            if not locks:
                if asked:
                    await self._placer.check_room(pod, node)
                await self._write(pod, node, attempt)
                return
            async with self._locks.turn(node, pod) as deadline:
                tried: list[NodeLock] = []
                try:
                    for lock in locks:
                        tried.append(lock)
                        await self._locks.take(node, pod, deadline, lock)
                    await self._placer.check_room(pod, node)
                    await self._write(pod, node, attempt)
                except BaseException as error:
                    if isinstance(error, LockContended):
                        tried.pop()  # the last one is somebody else's
                    for lock in reversed(tried):
                        with contextlib.suppress(ClusterError):
                            await self._locks.release(node, pod, lock)
                    raise
        except BaseException as error:
            unknown = isinstance(error, Unavailable) or not isinstance(error, Exception)
            if not self._single and not (attempt.writing and unknown):  # else it may be bound, and keeps its cards
                self._let_go(pod.uid)
            raise

    def _locks_for(self, asked: Sequence[str]) -> list[NodeLock]:
        """The locks that the asked vendors' plugins go by, in the order of their names."""
        locks = {self._vendors[key].lock for key in asked}
        return sorted((lock for lock in locks if lock is not None), key=lambda lock: lock.annotation)

    async def _write(self, pod: Pod, node: str, attempt: _BindAttempt) -> None:
        attempt.writing = True
        if attempt.decision is not None:
            await self._placer.commit_assumed(attempt.decision)
        await self._placer.bind(pod, node)

    def _let_go(self, uid: str) -> None:
        """Give up what is held for a pod that isn't bound."""
        self._state.forget(uid, self._clock())
        self._freed()

    async def _decide(self, pod: Pod, node: str) -> AssumedPlacement | None:
        """Hold the cards before waiting for the node's lock, so that who doesn't fit learns it at once."""
        await self._synced()
        decided = await self._placer.decide(pod, node, await self._quotas_of(pod.namespace))
        if isinstance(decided, Unschedulable):
            why = decided.error or str(decided.failed.get(node, ""))
            self._refused(pod.uid)
            raise ClusterError(f"node {node} can't take the pod any longer: {why}")
        return decided

    async def _quotas_of(self, namespace: str) -> Sequence[ResourceQuota]:
        known = self._quotas(namespace)
        if known is not None:
            return known
        listing = await self._cluster.list(Kind.RESOURCE_QUOTAS, namespace)
        return [ResourceQuota.from_object(item) for item in listing.items]


def _name_of(node: JSON) -> str:
    """A node's name, empty if it has none."""
    meta = node.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    return name if isinstance(name, str) else ""


def _sorted_out(failed: Mapping[str, Rejection]) -> tuple[dict[str, str], dict[str, str]]:
    """All refusals, and among them those that nobody's going away would change."""
    texts: dict[int, tuple[str, bool]] = {}  # many nodes share a reason
    told, unresolvable = {}, {}
    for node in sorted(failed):
        why = failed[node]
        known = texts.get(id(why))
        if known is None:
            known = texts[id(why)] = str(why), why.labels() <= _UNRESOLVABLE
        told[node], final = known
        if final:
            unresolvable[node] = told[node]
    return told, unresolvable


def decode_args(body: Any) -> ExtenderArgs | str:
    """kube-scheduler's `ExtenderArgs`, keys in any case; or the error to answer."""
    if not isinstance(body, dict):
        return "extender args must be a JSON object"
    fields = {str(key).lower(): value for key, value in body.items()}
    pod = fields.get("pod")
    if not isinstance(pod, dict):
        return "extender args missing pod"
    names, nodes = fields.get("nodenames"), fields.get("nodes")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        return "extender args: NodeNames must be a list of names"
    if nodes is not None:
        items = {str(key).lower(): value for key, value in nodes.items()} if isinstance(nodes, dict) else {}
        nodes = [] if items and items.get("items") is None else items.get("items")
        if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
            return "extender args: Nodes must be a list of nodes"
    return ExtenderArgs(pod, names, nodes)


def decode_binding(body: Any) -> Binding | str:
    """kube-scheduler's `ExtenderBindingArgs`, keys in any case; or the error to answer."""
    fields = {str(key).lower(): value for key, value in body.items()} if isinstance(body, dict) else {}
    wanted = ("podnamespace", "podname", "poduid", "node")
    values = [fields.get(name) for name in wanted]
    if not all(isinstance(value, str) and value for value in values):
        return "extender binding args must name PodName, PodNamespace, PodUID and Node"
    namespace, name, uid, node = (str(value) for value in values)
    for what, value in (("PodNamespace", namespace), ("PodName", name), ("Node", node)):
        if not is_subdomain(value):
            return f"extender binding args: {what} {value[:100]!r} is no name that a Kubernetes object can have"
    return Binding(namespace, name, uid, node)


def encode_filtered(filtered: Filtered) -> JSON:
    """kube-scheduler's `ExtenderFilterResult`."""
    nodes: JSON | None = None
    if filtered.nodes is not None:
        nodes = {"metadata": {}, "items": list(filtered.nodes)}
    return {
        "Nodes": nodes,
        "NodeNames": None if filtered.names is None else list(filtered.names),
        "FailedNodes": dict(filtered.failed) or None,
        "FailedAndUnresolvableNodes": dict(filtered.unresolvable) or None,
        "Error": filtered.error,
    }
