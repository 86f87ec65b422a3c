"""Placing a pod: fit every node, choose, charge what is missing, write the decision on the pod.

Source: docs/spec/core.md#7.1, docs/spec/quota.md#8.

The order is what keeps two pods from one card and a quota from being overspent (Q2, Q16): devices are held in the cache
before anything is awaited, what they cost is charged before the Binding, and one Binding carries the allocation, so no
pod is bound without it. Locks of nodes, and what kube-scheduler is answered, are the extender's.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.charging.placements import NoRoom, PlacementCharger
from hami_webhook.charging.queue import ChargeResult
from hami_webhook.charging.queues import ChargeQueues, live_queues
from hami_webhook.charging.recomputer import read_pods
from hami_webhook.cluster.api import ClusterError, Conflict, Kind, Unavailable
from hami_webhook.devices.model import BadRequest, NodeView, Rows
from hami_webhook.devices.placement_annotations import BIND_PHASE, NODE, placement_counts
from hami_webhook.devices.pod_fit import PodRequest, read_pod_request
from hami_webhook.devices.reasons import RESOURCE_QUOTA_NOT_FIT, Rejection
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.kube.names import is_label_value
from hami_webhook.kube.objects import MalformedObject, Namespace, Pod, ResourceQuota
from hami_webhook.logs import TRACE, of_pod
from hami_webhook.policy.evaluation import PolicyViolation
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import PodBudget, pod_budget
from hami_webhook.quota.card_selection import CardSelection
from hami_webhook.quota.pricing import Charge, ClusterCapacity, placed_charge
from hami_webhook.scheduling.boundary import BoundedPod, PolicyEnforcer
from hami_webhook.scheduling.event_recorder import EventRecorder
from hami_webhook.scheduling.filter_cache import FilterCache, FilterResult, FittingNodes
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.placement_metadata import carrying, placement_annotations, stale_metadata
from hami_webhook.scheduling.scoring import (
    NodeRank,
    ScoredNode,
    best_first,
    combinations,
    failure_messages,
    grades,
    hints,
    remarks,
    success_message,
    unregistered,
)
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.nominations import Nominations
from hami_webhook.time_slices import TimeSlices

logger = logging.getLogger(__name__)

BIND_WITHIN = 10.0
"""Seconds after its charge by which a placement is written, or not at all (docs/spec/quota.md#8): long before the entry
expires, after which the recompute would take the charge for that of a placement that never came.
"""


class SchedulingPolicies(Struct, frozen=True):
    """The defaults where a pod says nothing: for nodes (`binpack` or `spread`) and for cards."""

    node: str = "binpack"
    card: str = "spread"


_ROUNDS = 3
"""Nodes that changed while others were tested are tested again as often."""


class PlacementSuperseded(ClusterError):
    """A pod can't be bound by the placement it was to be bound by: it has another one, none, or one too old."""


class Placement(Struct, frozen=True):
    """A bound pod's place: node, score before it came, what each container got, and the annotations that say so.

    `failed` are the nodes that didn't fit, with their reasons.
    """

    node: str
    score: float
    rows: Rows
    annotations: Mapping[str, str]
    failed: Mapping[str, Rejection] = {}


class Unschedulable(Struct, frozen=True):
    """No node takes the pod: why, by node; or `error`, why none could be tested. `advice` is for its events."""

    failed: Mapping[str, Rejection] = {}
    error: str = ""
    advice: Sequence[str] = ()


class AssumedPlacement(Struct, frozen=True):
    """A placement decided and held in the cache, not written yet.

    `fitted` is the pod as Fit read it, `written` what is to be written on it, and `pod` the pod as it is held.
    """

    fitted: Pod
    chosen: ScoredNode
    written: Mapping[str, str]
    pod: Pod

    @property
    def node(self) -> str:
        return self.chosen.node


class CycleState(Struct, frozen=True):
    """A pod's candidates looked at, and nothing written: what it requests and may cost, and how the nodes stand.

    `bounded` is the pod as it was fitted, `accounts` its namespace's quotas, `candidates` are the nodes' names. If
    scores were wanted, the fitting ones come best first, and `best` is the first's placement.
    """

    bounded: BoundedPod
    request: PodRequest
    accounts: Sequence[QuotaAccount]
    budget: PodBudget | None
    filtered: FilterResult
    candidates: Sequence[str]
    best: ScoredNode | None = None


class LockedNodes(NamedTuple):
    """How locks of nodes change a pod's choice: the nodes at which it would wait for others to be bound come last of
    those that are as good, the ones whose lock a bind gave up after all others, and those whose lock the pod has from a
    bind that broke off first, as others wait for it there.
    """

    busy: Collection[str] = ()
    contended: Collection[str] = ()
    held: Collection[str] = ()


class Placer:
    """Places pods one at a time on what the state knows, and writes the decision to the cluster.

    `nodes` are considered in place of the cluster's, if given, and no events are recorded then.
    """

    def __init__(
        self,
        handle: Handle,
        *,
        policies: SchedulingPolicies | None = None,
        boundary: PolicyEnforcer | None = None,
        queues: ChargeQueues | None = None,
        nominations: Nominations | None = None,
        locked_nodes: Callable[[Pod], LockedNodes] = lambda pod: LockedNodes(),
        nodes: ClusterCache | None = None,
        slices: Callable[[], TimeSlices] = TimeSlices,
    ) -> None:
        self._handle = handle
        self._cluster = handle.cluster
        self._known = handle.state
        """Where the namespace's pods are known, whose quota it is."""
        self._state = handle.state if nodes is None else nodes
        self._vendors = vendors = handle.vendors
        self._clock = clock = handle.clock
        self._policies = policies or SchedulingPolicies()
        self._boundary = boundary
        self._placement_ttl = handle.state.placement_ttl
        self._queues = queues or live_queues(handle.cluster, vendors, handle.state.capacity, clock)
        self._locked_nodes = locked_nodes
        self._slices = slices
        self._charger = PlacementCharger(
            self._queues, vendors, self._state.capacity, clock=clock, placement_ttl=self._placement_ttl
        )
        self._filter_cache = FilterCache(self._state, vendors, self._policies.node, nominations=nominations)
        self.events = EventRecorder(handle.cluster, clock) if nodes is None else None

    def on(self, nodes: ClusterCache) -> Placer:
        """One that considers other nodes than the cluster's, and records no events of it."""
        return Placer(
            self._handle,
            policies=self._policies,
            boundary=self._boundary,
            queues=self._queues,
            nodes=nodes,
            slices=self._slices,
        )

    async def place(self, pod: Pod, nodes: Sequence[str] | None = None) -> Placement | Unschedulable | None:
        """Choose node and devices for a pod, and bind it; None if it requests nothing managed, or is bound already.

        What filter and bind do together, without locks, for who has no kube-scheduler: the simulator and the demo.
        `nodes` are the candidates, all by default. Raises `ClusterError` where the cluster fails.
        """
        if pod.node_name:
            return None
        found = await self.consider(pod, nodes, await self._queues.covering(pod.namespace), choose=True)
        if not isinstance(found, CycleState):
            return found
        failed = dict(found.filtered.failed)
        fits = list(found.filtered.fits)
        best: ScoredNode | Rejection | None = found.best
        while fits:
            if not isinstance(best, ScoredNode):  # its answer may have changed since the others were tested
                best = self._filter_cache.fit(found.request, found.budget, fits[0].node)
            if isinstance(best, Rejection):
                failed[fits.pop(0).node] = best
                continue
            found = replace(found, filtered=FilterResult(fits, failed), best=best)
            placement = self.assume(found)
            try:
                charge = await self._charge(placement)
                self.record_placed(pod, found)
                await self._write(placement, charge)
            except NoRoom:
                self._state.forget(pod.uid, self._clock())
                cards = sum(len(best.view.inventories[vendor].devices) for vendor in found.request.vendors)
                failed[fits.pop(0).node] = Rejection({RESOURCE_QUOTA_NOT_FIT: cards}, cards)
                best = None
                continue
            except ClusterError as error:
                if not isinstance(error, Unavailable):  # else it may be bound, and keeps its devices
                    self._state.forget(pod.uid, self._clock())
                self.record(pod, "Warning", "FilteringFailed", str(error))
                raise
            return Placement(placement.node, best.score, best.fit.rows, placement.written, failed)
        return self._no_node(pod, found, failed)

    async def quotas_of(self, namespace: str) -> list[ResourceQuota]:
        """The quotas that cover a namespace's pods, by a live list. Raises `ClusterError`."""
        return await self._queues.covering(namespace)

    async def consider(
        self, pod: Pod, nodes: Sequence[str] | None, quotas: Sequence[ResourceQuota], *, choose: bool = False
    ) -> CycleState | Unschedulable | None:
        """Filter every candidate; nothing is written but events. `Unschedulable` for a pod that no node can take as it
        is, None for one that requests nothing managed. A placement it has and that isn't bound is given up.

        `choose`: find the best node's devices too. They are free until the event loop runs on; see `assume`.
        """
        found = await self._filter(pod, await self._namespace(pod), nodes, quotas, choose=choose)
        self._record_outcome(pod, found)
        return found

    def assume(self, found: CycleState) -> AssumedPlacement:
        """Hold the devices that were just chosen. What follows is `commit`, or `ClusterCache.forget`."""
        now, pod, chosen = self._clock(), found.bounded.pod, found.best
        assert chosen is not None
        annotations = placement_annotations(pod, chosen.fit, chosen.view, self._vendors, now)
        held = carrying(pod, annotations)
        self._state.assume(held, now)
        # device plugins are to read what Fit read
        return AssumedPlacement(found.bounded.pod, chosen, {**found.bounded.written, **annotations}, held)

    async def commit(self, placement: AssumedPlacement) -> None:
        """Charge an assumed placement, and bind the pod with its annotations in one write.

        Raises `Conflict` if the pod isn't the version that was fitted, or can't be bound, and `ClusterError`: with the
        charge undone, unless it is unknown whether the pod was bound. The cache still holds the devices then.
        """
        try:
            charge = await self._charge(placement)
        except NoRoom as error:
            raise ClusterError(f"the quota no longer allows it ({RESOURCE_QUOTA_NOT_FIT}): {error}") from error
        await self._write(placement, charge)

    async def _charge(self, placement: AssumedPlacement) -> ChargeResult:
        """Charge what a placement costs. Raises `NoRoom`, `ClusterError`."""
        started, pod = self._clock(), placement.fitted
        claims = placement.chosen.fit.claims()

        def on_cards(cards: CardSelection) -> Charge:
            selected = cards.on(placement.chosen.view)
            own = [claim for claim in claims if (claim.vendor, claim.uuid) in selected]
            return placed_charge(own, pod.kinds, self._vendors)

        actual = placed_charge(claims, pod.kinds, self._vendors)
        charge = await self._charger.charge(pod, actual, on_cards, seconds=BIND_WITHIN)
        if self._clock() - started > BIND_WITHIN:
            await charge.release()
            raise ClusterError(f"charging the placement took more than {BIND_WITHIN:g} s; it is tried again")
        return charge

    async def _write(self, placement: AssumedPlacement, charge: ChargeResult) -> None:
        """Bind the pod. Where it is unknown whether it was, the charge stays: the recompute goes by the pod."""
        pod, node, written = placement.fitted, placement.node, placement.written
        try:
            await self._bind(pod, node, written, stale_metadata(pod, node, written, self._vendors))
        except Unavailable:
            raise
        except ClusterError:
            await charge.release()
            raise

    async def _bind(self, pod: Pod, node: str, annotations: Mapping[str, str], stale: Mapping[str, Any]) -> None:
        """Bind a pod of just this version and say so; `stale` is removed first, as a Binding can only add."""
        version = pod.resource_version
        phase = {BIND_PHASE: "allocating", "hami.io/bind-time": str(int(self._clock()))}
        metadata: dict[str, Any] = {"annotations": {**annotations, **phase}}
        if annotations and is_label_value(node):
            metadata["labels"] = {NODE: node}
        try:
            if stale:
                patch = {"metadata": {**stale, "uid": pod.uid, "resourceVersion": version}}
                stored = await self._cluster.patch(Kind.PODS, pod.name, patch, pod.namespace)
                version = stored["metadata"]["resourceVersion"]
            await self._cluster.bind(
                pod.namespace, pod.name, pod.uid, node, resource_version=version, metadata=metadata
            )
        except (Conflict, Unavailable):
            # a lost answer, or a second try after one: the pod may be bound as it was to be
            if not await self._is_bound(pod, node):
                raise
        self.record(pod, "Normal", "BindingSucceed", f"Successfully binding node [{node}] to {pod.key}")

    async def bind_plainly(self, pod: Pod, node: str) -> None:
        """Bind a pod that requests nothing managed. Raises as `commit` does."""
        await self._bind(pod, node, {}, {})

    async def _namespace(self, pod: Pod) -> Namespace | None:
        """The pod's Namespace, None where there is no policy. Raises `ClusterError` if it isn't known."""
        return None if self._boundary is None else await self._boundary.namespace(pod.namespace)

    async def _filter(
        self,
        pod: Pod,
        namespace: Namespace | None,
        nodes: Sequence[str] | None,
        quotas: Sequence[ResourceQuota],
        *,
        choose: bool = False,
    ) -> CycleState | Unschedulable | None:
        """`consider` without a word. What changes while others have their turn is looked at again, `_ROUNDS` times at
        most; after that an answer may be some milliseconds old.

        `choose`: find the best node's devices too. Nothing else happens between that and the return.
        """
        slices = self._slices()
        now = self._clock()
        self._state.tick(now)
        self._state.release(pod.uid)  # or the pod would find its own former devices taken
        names = [node.name for node in self._state.nodes()] if nodes is None else nodes
        try:
            bounded = self._boundary.bounded(pod, namespace) if self._boundary and namespace else BoundedPod(pod)
            request = read_pod_request(bounded.pod, self._vendors, self._policies.card)
        except BadRequest as error:
            return Unschedulable(dict.fromkeys(names, Rejection(bare=str(error))))
        except PolicyViolation as violation:
            text = violation.attributed
            return Unschedulable(dict.fromkeys(names, Rejection(bare=text)), advice=[text])
        except ValueError as error:
            return Unschedulable(error=f"calcScore failed {error}")
        if request is None:
            return None
        accounts = [QuotaAccount.read(quota, self._vendors) for quota in quotas]
        for _ in range(_ROUNDS):
            before = slices.interruptions
            budget = self._budget(pod, accounts, now)
            filtered = await slices.run(self._filter_cache.filtering(request, budget, names))
            if slices.interruptions == before:
                break
        found = CycleState(bounded, request, accounts, budget, filtered, names)
        return await self._chosen(found, slices) if choose else found

    def _budget(self, pod: Pod, accounts: Sequence[QuotaAccount], now: float) -> PodBudget | None:
        known = self._known
        return pod_budget(
            pod,
            accounts,
            partial(known.placed_besides, pod, now=now),
            self._vendors,
            ClusterCapacity(known),
            now,
            self._placement_ttl,
        )

    def ranked(self, found: CycleState) -> list[NodeRank]:
        """The fitting nodes, the best first."""
        locked = self._locked_nodes(found.request.pod)
        return best_first(found.filtered.fits, found.request, self._policies.node, *locked)

    async def _chosen(self, found: CycleState, slices: TimeSlices) -> CycleState:
        """With the fitting nodes in order, and the best one's placement."""
        order = self.ranked(found)
        failed = dict(found.filtered.failed)
        while order:
            best = self._filter_cache.fit(found.request, found.budget, order[0].node)
            if isinstance(best, ScoredNode):
                return replace(found, filtered=FilterResult(order, failed), best=best)
            failed[order.pop(0).node] = best  # its answer has changed since
            await slices.interrupt()
        return replace(found, filtered=FilterResult(order, failed))

    def _record_outcome(self, pod: Pod, found: CycleState | Unschedulable | None) -> None:
        if isinstance(found, CycleState):
            for remark in remarks(found.request, self._known_of(found)):
                self.record(pod, "Warning", "PolicyIgnored", remark)
        elif isinstance(found, Unschedulable) and found.error:
            self.record(pod, "Warning", "FilteringFailed", found.error)
        elif isinstance(found, Unschedulable):
            self._unplaced(pod, found.failed, len(found.failed), found.advice)

    def _known_of(self, found: CycleState) -> Iterator[NodeView]:
        """The candidates that are known."""
        views = map(self._state.view, found.candidates)
        return (view for view in views if view is not None)

    def graded(self, fitting: FittingNodes, highest: int) -> dict[str, int]:
        """The fitting nodes' grades, 0 to `highest`."""
        locked = self._locked_nodes(fitting.request.pod)
        return grades(fitting.fits, fitting.request, self._policies.node, highest, *locked)

    def record_placed(self, pod: Pod, found: CycleState, fitting: FittingNodes | None = None) -> None:
        """The event that says which node was chosen, of which; and a line of the log that says which linked cards.

        `fitting`: the nodes that kube-scheduler chose among, where `found` is about the chosen one alone.
        """
        if found.best is not None and logger.isEnabledFor(TRACE):
            for line in combinations(found.request, found.best):
                logger.log(TRACE, "%s", line)
        chosen = found.filtered.fits[0]

        def message() -> str:  # sorting 1,000 nodes takes 1.5 ms
            if fitting is None:
                return success_message(chosen, found.filtered.fits, len(found.candidates))
            others = [each for each in fitting.fits if each.node != chosen.node]
            fits = best_first([chosen, *others], fitting.request, self._policies.node)
            return success_message(chosen, fits, fitting.candidates)

        self.record(pod, "Normal", "FilteringSucceed", message)

    def record_unplaced(self, pod: Pod, found: CycleState) -> None:
        """Events that say why no node takes the pod."""
        self._no_node(pod, found, found.filtered.failed)

    def _no_node(self, pod: Pod, found: CycleState, failed: Mapping[str, Rejection]) -> Unschedulable:
        known = list(self._known_of(found))
        for line in unregistered(found.request, known, self._vendors):
            logger.info("no node has registered such cards", extra={**of_pod(pod), "reason": line})
        advice = hints(failed, found.request, known, self._vendors, self._state)
        return self._unplaced(pod, failed, len(found.candidates), [*advice, *found.bounded.changes])

    def check_placed(self, pod: Pod, node: str) -> None:
        """Raises `PlacementSuperseded` unless the pod carries a placement on the node that counts."""
        placed = pod.annotations.get(NODE, "")
        if placed != node:
            raise PlacementSuperseded(f"pod {pod.key} was placed on {placed or 'no node'}, not on {node}")
        if self._state.is_revoked(pod) or not placement_counts(pod, self._clock(), self._placement_ttl):
            raise PlacementSuperseded(f"the placement of pod {pod.key} is too old to be bound; it is placed again")

    async def check_room(self, pod: Pod, node: str, *, complete: bool = False) -> None:
        """Raises `PlacementSuperseded` if the pod's devices, as held here, are taken by pods bound to the node.

        Called under the node's lock: another scheduler's extender may have been here since the devices were chosen.
        `complete`: the cache shows all that it bound, so the API server is asked only where devices are overcommitted,
        or where pods don't say which they hold: those are presumed to hold what others leave.
        """
        view = self._state.view(node)
        if view is None or self._state.pod(pod.uid) is None:
            return
        if complete and not view.unplaced and not any(view.overcommitted()):
            return
        listing = await self._cluster.list(Kind.PODS, node=node)
        bound = [found for found in read_pods(listing.items) if found.uid != pod.uid]
        theirs = self._state.with_just(view.node, bound, self._clock()).view(node)
        assert theirs is not None
        for card in theirs.overcommitted(self._state.usage_of(pod.uid)):
            raise PlacementSuperseded(f"card {card.uuid} of node {node} was taken by another scheduler meanwhile")

    async def _is_bound(self, pod: Pod, node: str) -> bool:
        """Whether a bind that failed, or whose answer was lost, is what the pod shows."""
        with contextlib.suppress(ClusterError, MalformedObject):
            found = Pod.from_object(await self._cluster.get(Kind.PODS, pod.name, pod.namespace))
            return found.uid == pod.uid and found.node_name == node
        return False

    def _unplaced(
        self, pod: Pod, failed: Mapping[str, Rejection], candidates: int, advice: Sequence[str] = ()
    ) -> Unschedulable:
        for message in [*failure_messages(failed, candidates), *advice]:
            self.record(pod, "Warning", "FilteringFailed", message)
        return Unschedulable(failed)

    def record(self, pod: Pod, kind: str, reason: EventReason, message: str | Callable[[], str]) -> None:
        """Have an event recorded on the pod; `kind` is Normal or Warning."""
        if self.events is not None:
            self.events.record(pod, kind, reason, message)
