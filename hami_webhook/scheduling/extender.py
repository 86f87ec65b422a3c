"""The scheduler extender: filter, prioritize and bind as kube-scheduler asks for them (docs/spec/core.md#7.1 and #9.2).

Two modes. **single**, HAMi's: `/filter` decides node and devices, holds them in memory and answers the one node.
**cooperative**: `/filter` answers every node that fits, and `/prioritize` grades them, so that kube-scheduler's own
scores count too; `/bind` decides the devices. In both `/bind` writes: the node's lock, what the placement costs, and a
Binding that carries the allocation. After a restart nothing is held in memory, and `/bind` decides in both modes.

If a bind fails, `/bind` releases its placement; a placement of `/filter` waits for the next try, until it expires.
Where it is unknown whether the Binding was written, devices stay held in both: to give them away twice is worse than to
wait. Which nodes fit is the placer's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct

from hami_webhook.cluster.api import JSON, ClusterError, Conflict, Kind, NotFound, Unavailable
from hami_webhook.devices.lock_annotations import NodeLock
from hami_webhook.devices.placement_annotations import NODE
from hami_webhook.devices.pod_fit import BadRequest, may_request_cards, vendors_requested_by
from hami_webhook.kube.message_text import counted
from hami_webhook.kube.objects import MalformedObject, Node, Pod, ResourceQuota
from hami_webhook.kube.pod_group import PodGroup
from hami_webhook.scheduling.extender_metrics import ExtenderMetrics
from hami_webhook.scheduling.filter_cache import FittingNodes
from hami_webhook.scheduling.framework import Handle, keep_latest
from hami_webhook.scheduling.node_locks import NodeLocks
from hami_webhook.scheduling.placer import AssumedPlacement, CycleState, PlacementSuperseded, Placer, Unschedulable
from hami_webhook.scheduling.pod_groups import PodGroups
from hami_webhook.scheduling.post_filter import PostFilter
from hami_webhook.scheduling.protocol import Binding, ExtenderArgs, Filtered, Proposal
from hami_webhook.scheduling.requeue_trigger import RequeueTrigger
from hami_webhook.scheduling.scoring import failed_nodes
from hami_webhook.time_slices import TimeSlices

logger = logging.getLogger(__name__)

_REASONS_LOGGED = 3
"""Of the reasons why nodes don't take a pod, the most frequent ones that a log line has."""

HIGHEST_GRADE = 10
"""kube-scheduler's `MaxExtenderPriority`."""

_REMEMBERED = 4096
_TRIES = 5
_SYNC_SECONDS = 25.0
"""Less than the 30 s that kube-scheduler waits for an extender, so that it hears why nothing is answered."""


class _BindAttempt(Struct):
    """A bind under way: the placement it is made by, and whether it has begun to be written."""

    placement: AssumedPlacement | None = None
    writing: bool = False

    def may_have_bound(self, error: BaseException) -> bool:
        """Whether a bind that failed so may still take effect: then the pod keeps its devices, and its node's lock."""
        return self.writing and (isinstance(error, Unavailable) or not isinstance(error, Exception))


class Extender:
    """Answers a kube-scheduler.

    `schedulers` are the names of the schedulers whose pods may be bound, none for any. `queue` is notified of every pod
    that no node takes, of those that got a place, and when devices that were held for a pod are let go. `preemption` is
    for pods that fit on no node; None leaves them to wait.
    """

    def __init__(
        self,
        handle: Handle,
        placer: Placer,
        locks: NodeLocks,
        queue: RequeueTrigger,
        *,
        single: bool,
        schedulers: Callable[[], Collection[str]] = tuple,
        preemption: PostFilter | None = None,
        metrics: ExtenderMetrics | None = None,
    ) -> None:
        self._handle = handle
        self._cluster = handle.cluster
        self._state = handle.state
        self._vendors = handle.vendors
        self._clock = handle.clock
        self._placer = placer
        self.locks = locks
        self._queue = queue
        self._single = single
        self._schedulers = schedulers
        self._preemption = preemption
        self._assumed: OrderedDict[str, AssumedPlacement] = OrderedDict()  # by UID, in single mode
        self._binding: dict[str, str] = {}
        self._fitting: OrderedDict[str, FittingNodes] = OrderedDict()  # by UID, in cooperative mode
        groups = None if preemption is None else preemption.groups
        self.groups = PodGroups(handle, placer, queue, self._quotas_of, self._binding.keys(), groups)
        self._metrics = metrics or ExtenderMetrics()

    async def filter(self, args: ExtenderArgs) -> Filtered:
        """Which nodes can take the pod."""
        began = self._clock()
        filtered = await self._filter(args)
        refused = bool(filtered.error) or not (filtered.names or filtered.nodes)
        level, message = (logging.INFO, "no node takes the pod") if refused else (logging.DEBUG, "nodes take the pod")
        if logger.isEnabledFor(level):
            logger.log(level, message, extra=self._about(args.pod, filtered, self._clock() - began))
        return filtered

    @staticmethod
    def _about(pod: JSON, filtered: Filtered, seconds: float) -> dict[str, object]:
        """What a log line says of a filtered pod."""
        texts = Counter({**filtered.failed, **filtered.unresolvable}.values()).most_common(_REASONS_LOGGED)
        return {
            **_named(pod.get("metadata")),
            "reason": filtered.error or "; ".join(f"{counted(number, 'node')}: {text}" for text, number in texts),
            "duration": seconds,
        }

    async def _filter(self, args: ExtenderArgs) -> Filtered:
        self._metrics.filtered.inc()
        try:
            pod = Pod.from_object(args.pod)
            managed = may_request_cards(pod, self._vendors)
        except MalformedObject as error:
            return Filtered(error=f"the pod can't be read: {error}")
        if not managed:
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
                await self._handle.ready()
        except TimeoutError:
            raise ClusterError("the caches of nodes, pods and quotas aren't filled yet; try again") from None

    async def _filter_names(self, pod: Pod, names: list[str]) -> Filtered:
        answer = self._placed_or_refused(pod, names) or await self._with_its_group(pod, names)
        if answer is not None:
            return answer
        if self._state.release(pod.uid):
            self._queue.freed()
        quotas = await self._quotas_of(pod.namespace)
        found = await self._placer.consider(pod, names, quotas, choose=self._single)
        if found is None:
            return Filtered(names)
        if isinstance(found, Unschedulable):
            return self._refusal(pod, found)
        fits, refused = found.filtered.fits, found.filtered.failed
        if not fits:
            self._placer.record_unplaced(pod, found)
            if self._preemption is not None:
                await self._preemption.consider(pod, found)
            return self._refusal(pod, Unschedulable(refused))
        if self._single:
            if pod.uid in self._binding:  # a bind began while it was filtered
                return Filtered(error=f"pod {pod.key} is being bound to node {self._binding[pod.uid]}")
            self._queue.settled(pod.uid)
            return Filtered([self._assume(pod, found).node], None, *failed_nodes(refused, self._awaited(pod)))
        keep_latest(self._fitting, pod.uid, FittingNodes(found.request, fits, len(found.candidates)), _REMEMBERED)
        return Filtered([each.node for each in fits], None, *failed_nodes(refused, self._awaited(pod)))

    async def _with_its_group(self, pod: Pod, names: Sequence[str]) -> Filtered | None:
        """The answer for a pod that is placed together with others; None for others."""
        group = PodGroup.of(pod)
        if group is None:
            return None
        node = await self.groups.place(pod, group, names)
        if isinstance(node, Unschedulable):
            return self._refusal(pod, node)
        self._queue.settled(pod.uid)
        return Filtered([node])

    def _placed_or_refused(self, pod: Pod, names: list[str]) -> Filtered | None:
        """The answer for a pod that has its place, is being bound, or isn't the one that is known; None for others."""
        known = self._state.pod(pod.uid)
        bound = pod.node_name or (known.node_name if known is not None else "")
        if bound:  # nothing is written again
            return Filtered([name for name in names if name == bound])
        if known is not None and known.key != pod.key:
            return Filtered(error=f"pod {pod.key} isn't the one with the UID {pod.uid}, which is {known.key}")
        if pod.uid in self._binding:  # nor may it lose the devices that it is being bound with
            return Filtered(error=f"pod {pod.key} is being bound to node {self._binding[pod.uid]}")
        return None

    def _refusal(self, pod: Pod, why: Unschedulable) -> Filtered:
        self._metrics.refuse(why.failed.values())
        self._queue.refused(pod.uid)
        if why.error:
            return Filtered(error=why.error)
        return Filtered(None, None, *failed_nodes(why.failed, self._awaited(pod)))

    def _awaited(self, pod: Pod) -> str:
        return "" if self._preemption is None else self._preemption.awaited(pod)

    async def _filter_whole(self, pod: Pod, nodes: Sequence[JSON]) -> Filtered:
        """A dry run on the nodes as given, with nothing on them: as the cluster autoscaler calls."""
        state, slices = self._state.without_any(), TimeSlices()
        named: dict[str, JSON] = {}
        unreadable: dict[str, str] = {}
        for raw in nodes:
            name = _name_of(raw)
            named[name] = raw
            try:
                state.set_node(Node.from_object(raw), self._clock())
            except MalformedObject as error:
                unreadable[name] = str(error)
            await slices.interrupt()
        found = await self._placer.on(state).consider(pod, list(named), await self._quotas_of(pod.namespace))
        if found is None:
            return Filtered(None, nodes)
        if isinstance(found, Unschedulable):
            failed, unresolvable = failed_nodes(found.failed, "")
            return Filtered(None, None if found.error else [], failed, unresolvable, found.error)
        fitting = {each.node for each in found.filtered.fits}
        failed, unresolvable = failed_nodes(found.filtered.failed, "")
        return Filtered(
            None, [raw for name, raw in named.items() if name in fitting], {**failed, **unreadable}, unresolvable
        )

    async def preempt(self, pod: JSON, proposed: Mapping[str, Proposal]) -> dict[str, Proposal]:
        """kube-scheduler's candidates for preemption, completed (docs/preemption.md#mixed-requests)."""
        if self._preemption is None:
            return dict(proposed)
        await self._synced()
        if PodGroup.of(read := Pod.from_object(pod)) is not None:  # its group evicts nobody
            return {}
        return await self._preemption.complete(read, proposed, await self._quotas_of(read.namespace))

    async def prioritize(self, args: ExtenderArgs) -> list[tuple[str, int]]:
        """The nodes' grades, 0 to 10: what filter found out, or 0 where it wasn't called."""
        meta = args.pod.get("metadata")
        uid = meta.get("uid") if isinstance(meta, dict) else None
        known = self._fitting.get(uid) if isinstance(uid, str) else None
        grades = self._placer.graded(known, HIGHEST_GRADE) if known is not None else {}
        names = args.names if args.names is not None else [_name_of(node) for node in args.nodes or ()]
        return [(name, grades.get(name, 0)) for name in names]

    async def bind(self, binding: Binding) -> str:
        """Bind a pod as the API server knows it; the error, empty if it is bound."""
        if binding.uid in self._binding:
            return f"pod {binding.namespace}/{binding.name} is being bound already"
        began = self._clock()
        self._binding[binding.uid] = binding.node
        try:
            error = await self._checked_bind(binding)
        finally:
            del self._binding[binding.uid]
        about = {
            "namespace": binding.namespace,
            "pod": binding.name,
            "uid": binding.uid,
            "node": binding.node,
            "reason": error,
            "duration": self._clock() - began,
        }
        logger.info("pod not bound" if error else "pod bound", extra=about)
        if error:
            self._metrics.bind_failures.inc()
            return error
        self._metrics.bound.inc()
        self._queue.settled(binding.uid)
        self.groups.bound(binding.uid)
        self._fitting.pop(binding.uid, None)
        self._assumed.pop(binding.uid, None)
        return ""

    async def _checked_bind(self, binding: Binding) -> str:
        """Bind the pod as the cache has it, or as the API server does if the two turn out to differ."""
        pod = self._state.observed(binding.uid)
        failure = version = ""
        for _ in range(_TRIES):
            found = await self._bindable(binding, pod)
            if isinstance(found, str):
                return found
            tried = found
            if tried.node_name:
                return ""
            if failure and tried.resource_version == version:  # that wasn't why
                break
            try:
                if await self._is_no_node(binding.node):
                    return self._no_node(tried, binding.node)
                await self._bind(tried, binding.node)
            except (Conflict, NotFound) as error:
                failure, version, pod = str(error), tried.resource_version, None
            except (ClusterError, BadRequest, ValueError) as error:
                failure = str(error)
                break
            else:
                if tried.created is not None:
                    self._metrics.binding_seconds.observe(max(0.0, self._clock() - tried.created))
                return ""
        self._placer.record(tried, "Warning", "BindingFailed", failure)
        return failure

    async def _bindable(self, binding: Binding, known: Pod | None) -> Pod | str:
        """The pod as it is known, or as the API server has it where that isn't or can't be bound; or why that can't."""
        same = known is not None and (known.namespace, known.name) == (binding.namespace, binding.name)
        if known is not None and same and not self._unbindable(known, binding):
            return known
        # kube-scheduler may have heard of a change before us, such as of gates that are gone
        read = await self._read_live(binding)
        return read if isinstance(read, str) else self._unbindable(read, binding) or read

    async def _read_live(self, binding: Binding) -> Pod | str:
        """The pod as the API server has it, or why it can't be read."""
        try:
            return Pod.from_object(await self._cluster.get(Kind.PODS, binding.name, binding.namespace))
        except NotFound:
            return self._not_found(binding)
        except (ClusterError, MalformedObject) as error:
            return str(error)

    def _no_node(self, pod: Pod, node: str) -> str:
        """Say that the node is gone, and let go what was held there."""
        self._placer.record(pod, "Warning", "BindingFailed", f"failed to get node {node}")
        held = self._state.pod(pod.uid)
        if held is None or held.annotations.get(NODE, node) == node:
            self._let_go(pod.uid)
        return f'node "{node}" not found'

    def _not_found(self, binding: Binding) -> str:
        known = self._state.pod(binding.uid)
        if known is not None and (known.namespace, known.name) == (binding.namespace, binding.name):
            self._let_go(binding.uid)
        return f'pod "{binding.name}" not found'

    def _unbindable(self, pod: Pod, binding: Binding) -> str:
        """Why the API server would refuse to bind the pod so, or we do; empty if neither."""
        if pod.uid != binding.uid:
            return f'pod "{binding.name}" is another one by now: its UID is {pod.uid}, not {binding.uid}'
        why = ""
        if pod.node_name:
            why = "" if pod.node_name == binding.node else f"is bound to {pod.node_name} already"
        elif pod.deletion_time is not None:
            why = "is being deleted, cannot be assigned to a host"
        elif pod.terminal:
            why = f"has ended: its phase is {pod.phase}"
        elif pod.gated:
            why = "has non-empty .spec.schedulingGates"
        elif (ours := self._schedulers()) and pod.scheduler_name not in ours:
            why = f"is to be bound by scheduler {pod.scheduler_name}, not by {' or '.join(sorted(ours))}"
        return f"pod {pod.key} {why}" if why else ""

    async def _is_no_node(self, name: str) -> bool:
        """Whether there is no such node, by the API server where the cache doesn't have it."""
        if self._state.view(name) is None:
            try:
                await self._cluster.get(Kind.NODES, name)
            except NotFound:
                return True
        return False

    async def _bind(self, pod: Pod, node: str) -> None:
        requested = vendors_requested_by(pod, self._vendors)
        if not requested:
            await self._placer.bind_plainly(pod, node)
            return
        attempt = _BindAttempt()
        try:
            attempt.placement = await self._placement(pod, node)
            if locks := self._locks_for(requested):
                await self._commit_locked(attempt, pod, node, locks)
            else:
                await self._placer.check_room(pod, node)
                await self._commit(attempt, pod, node)
        except BaseException as error:
            held = self.groups.bind_failed(pod.uid, error) or self._single
            if not held and not attempt.may_have_bound(error):
                self._let_go(pod.uid)
            raise

    async def _commit_locked(self, attempt: _BindAttempt, pod: Pod, node: str, locks: Sequence[NodeLock]) -> None:
        """Commit under the node's locks, which stay where that succeeds: device plugins let them go."""
        began = self._clock()
        async with self.locks.turn(node, pod) as deadline:
            taken: list[NodeLock] = []
            others: list[int | None] = []
            try:
                for lock in locks:
                    others.append(await self.locks.take(node, pod, deadline, lock))
                    taken.append(lock)
                self._metrics.lock_wait_seconds.observe(max(0.0, self._clock() - began))
                # what was bound under another's lock, the cache may not show yet
                complete = all(version is not None and self._handle.pods_complete(version) for version in others)
                await self._placer.check_room(pod, node, complete=complete)
                await self._commit(attempt, pod, node)
            except BaseException as error:
                for lock in () if attempt.may_have_bound(error) else reversed(taken):
                    with contextlib.suppress(ClusterError):
                        await self.locks.release(node, pod, lock)
                raise

    async def _commit(self, attempt: _BindAttempt, pod: Pod, node: str) -> None:
        attempt.writing = True
        if attempt.placement is not None:
            await self._placer.commit(attempt.placement)
        else:
            await self._placer.bind_plainly(pod, node)

    def _locks_for(self, requested: Sequence[str]) -> list[NodeLock]:
        """The locks that the requested vendors' plugins use, in the order of their names."""
        locks = {self._vendors[key].lock for key in requested}
        return sorted((lock for lock in locks if lock is not None), key=lambda lock: lock.annotation)

    def _let_go(self, uid: str) -> None:
        """Give up what is held for a pod that isn't bound."""
        if self._state.forget(uid, self._clock()):
            self._queue.freed()

    async def _placement(self, pod: Pod, node: str) -> AssumedPlacement | None:
        """The placement that `/filter` decided in single mode, or one decided now; None for a pod that needs none.

        The devices are held before the node's lock is waited for, so that who doesn't fit learns it at once.
        """
        known = self.groups.placement(pod.uid) or self._assumed.get(pod.uid)
        if known is None and PodGroup.of(pod) is not None:
            raise PlacementSuperseded(f"no devices are held for the pod group of pod {pod.key}: it is placed again")
        if known is not None:
            self._placer.check_placed(known.pod, node)
            if known.fitted.resource_version == pod.resource_version:
                return known
        if self._single and NODE in pod.annotations:
            self._placer.check_placed(pod, node)
        await self._synced()
        found = await self._placer.consider(pod, [node], await self._quotas_of(pod.namespace), choose=True)
        if found is None:
            return None
        if isinstance(found, Unschedulable) or found.best is None:
            refusal = found if isinstance(found, Unschedulable) else Unschedulable(found.filtered.failed)
            self._queue.refused(pod.uid)
            why = refusal.error or str(refusal.failed.get(node, ""))
            raise ClusterError(f"node {node} can't take the pod any longer: {why}")
        return self._assume(pod, found)

    def _assume(self, pod: Pod, found: CycleState) -> AssumedPlacement:
        placement = self._placer.assume(found)
        self._placer.record_placed(pod, found, self._fitting.get(pod.uid))
        self.groups.replace(pod.uid, placement)
        if self._single:
            keep_latest(self._assumed, pod.uid, placement, _REMEMBERED)
        return placement

    async def _quotas_of(self, namespace: str) -> Sequence[ResourceQuota]:
        known = self._handle.quotas(namespace)
        return await self._placer.quotas_of(namespace) if known is None else known


def _name_of(node: JSON) -> str:
    """A node's name, empty if it has none."""
    meta = node.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    return name if isinstance(name, str) else ""


def _named(meta: object) -> dict[str, object]:
    """A pod's name for a log line."""
    found = meta if isinstance(meta, dict) else {}
    return {"namespace": found.get("namespace"), "pod": found.get("name"), "uid": found.get("uid")}
