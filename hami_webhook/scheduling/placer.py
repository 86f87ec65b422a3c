"""Placing a pod: fit every node, choose, charge what is missing, write the decision on the pod.

Source: docs/spec/core.md#7.1, docs/spec/quota.md#8.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hami_webhook.cluster.api import Cluster, ClusterError, Conflict, EventNote, Kind, Unavailable
from hami_webhook.devices.model import BadRequest, NodeView, Rows
from hami_webhook.devices.placement_annotations import NODE, TIME, placement_counts
from hami_webhook.devices.reasons import RESOURCE_QUOTA_NOT_FIT, Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.reserved_annotations import is_scheduler_owned, kept_annotations
from hami_webhook.kube.objects import MalformedObject, Namespace, Pod, ResourceQuota, is_label_value
from hami_webhook.policy.evaluation import PolicyViolation
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import PodBudget, pod_budget
from hami_webhook.quota.placement_charger import PlacementCharger, QuotaChanged
from hami_webhook.quota.pricing import placed_charge
from hami_webhook.quota.recompute import read_pods
from hami_webhook.quota.store import QuotaStore
from hami_webhook.scheduling.boundary import BoundedPod, PolicyBoundary
from hami_webhook.scheduling.cluster_cache import ClusterCache
from hami_webhook.scheduling.filter_cache import FilterCache, FilterResult
from hami_webhook.scheduling.fit import NodeFit, PodRequest, fit_pod, read_pod_request
from hami_webhook.scheduling.scoring import (
    NodeRank,
    ScoredNode,
    best_first,
    failure_messages,
    grades,
    hints,
    ranked,
    remarks,
    score,
    success_message,
    unregistered,
)

logger = logging.getLogger(__name__)

_READ = 256
"""As many quotas' books are kept read."""

_ANNOTATE_WITHIN = 10.0
"""Seconds after its charge by which a placement is written, or not at all (docs/spec/quota.md#8)."""


@dataclass(frozen=True, slots=True)
class SchedulingPolicies:
    """The defaults where a pod says nothing: for nodes (`binpack` or `spread`) and for cards."""

    node: str = "binpack"
    card: str = "spread"


class PlacementSuperseded(ClusterError):
    """A pod can't be bound by the placement it was to be bound by: it has another one, none, or one too old."""


@dataclass(frozen=True)
class Placement:
    """A pod's place: node, score before it came, what each container got, the annotations written, pod as stored.

    `failed` are the nodes that didn't fit, with their reasons.
    """

    node: str
    score: float
    rows: Rows
    annotations: Mapping[str, str]
    pod: Mapping[str, Any] = field(default_factory=dict)
    failed: Mapping[str, Rejection] = field(default_factory=dict)


@dataclass(frozen=True)
class Unschedulable:
    """No node takes the pod: why, by node; or `error`, why none could be asked. `advice` is for its events."""

    failed: Mapping[str, Rejection] = field(default_factory=dict)
    error: str = ""
    advice: Sequence[str] = ()


@dataclass(frozen=True)
class Evaluation:
    """Every candidate node asked: those that fit, best first, and those that don't."""

    fits: Sequence[ScoredNode]
    failed: Mapping[str, Rejection]


@dataclass(frozen=True)
class AssumedPlacement:
    """A placement decided and held in the state, not written yet; `at` is when it was decided (Unix seconds)."""

    pod: BoundedPod
    chosen: ScoredNode
    at: float


@dataclass(frozen=True)
class CycleState:
    """A pod's candidates looked at, and nothing written: what it asks and may cost, and how the nodes stand.

    `bounded` is the pod as it was fitted, `candidates` are the nodes' names. If that was asked, the fitting ones come
    best first, and `best` is the first's placement.
    """

    bounded: BoundedPod
    ask: PodRequest
    budget: PodBudget | None
    filtered: FilterResult
    candidates: Sequence[str]
    best: ScoredNode | None = None


def evaluate(
    views: Sequence[NodeView], ask: PodRequest, vendors: Vendors, budget: PodBudget | None, policies: SchedulingPolicies
) -> Evaluation:
    """Fit the pod on every node."""
    fits: list[ScoredNode] = []
    failed: dict[str, Rejection] = {}
    for view in views:
        result = fit_pod(view, ask, vendors, budget)
        if isinstance(result, NodeFit):
            fits.append(ScoredNode(result, view, score(result, view, ask, vendors, policies.node)))
        else:
            failed[view.name] = result
    return Evaluation(ranked(fits, ask, vendors, policies.node), failed)


class Placer:
    """Places pods one at a time on what the state knows, and writes the decision to the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        state: ClusterCache,
        vendors: Vendors,
        *,
        clock: Callable[[], float],
        policies: SchedulingPolicies | None = None,
        boundary: PolicyBoundary | None = None,
        placement_ttl: float = 300.0,
        store: QuotaStore | None = None,
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._vendors = vendors
        self._clock = clock
        self._policies = policies or SchedulingPolicies()
        self._boundary = boundary
        self._placement_ttl = placement_ttl
        self._store = store or QuotaStore(cluster, vendors, clock=clock)
        self._committer = PlacementCharger(self._store, vendors, state, clock=clock, placement_ttl=placement_ttl)
        self._memory = FilterCache(state, vendors, self._policies.node)
        self._read: dict[tuple[str, str], QuotaAccount] = {}
        self._silent = False
        self._known = state
        """Where the namespace's pods are known, whose quota it is."""

    def on(self, state: ClusterCache) -> Placer:
        """One that considers other nodes than the cluster's, and records no events of it."""
        other = Placer(
            self._cluster,
            state,
            self._vendors,
            clock=self._clock,
            policies=self._policies,
            boundary=self._boundary,
            placement_ttl=self._placement_ttl,
            store=self._store,
        )
        other._silent = True
        other._known = self._state
        return other

    async def place(self, pod: Pod, nodes: Sequence[str] | None = None) -> Placement | Unschedulable | None:
        """Choose node and cards for a pod and annotate it; None if it asks for nothing managed, or is bound already.

        A placement that the pod has from before and that wasn't bound is given up first. `nodes` are the candidates,
        all by default. Raises `ClusterError` where the cluster fails.
        """
        if pod.node_name:
            return None
        listing = await self._cluster.list(Kind.RESOURCE_QUOTAS, pod.namespace)
        quotas = [ResourceQuota.from_object(item) for item in listing.items]
        found = self._look(pod, await self._namespace(pod), nodes, quotas, choose=True)
        await self._tell_look(pod, found)
        if not isinstance(found, CycleState):
            return found
        failed = dict(found.filtered.failed)
        fits = list(found.filtered.fits)
        best: ScoredNode | Rejection | None = found.best
        while fits:
            if not isinstance(best, ScoredNode):  # its answer may have changed since the others were asked
                best = self._memory.fit(found.ask, found.budget, fits[0].node)
            if isinstance(best, Rejection):
                failed[fits.pop(0).node] = best
                continue
            try:
                placement = await self._write(found.bounded, best, self._clock())
            except QuotaChanged:
                cards = sum(len(best.view.inventories[vendor].devices) for vendor in found.ask.vendors)
                failed[fits.pop(0).node] = Rejection({RESOURCE_QUOTA_NOT_FIT: cards}, cards)
                best = None
                continue
            except ClusterError as error:
                await self.tell(pod, "Warning", "FilteringFailed", str(error))
                raise
            message = success_message(fits[0], fits, len(found.candidates))
            await self.tell(pod, "Normal", "FilteringSucceed", message)
            return replace(placement, failed=failed)
        return await self._unplaced_anywhere(pod, found, failed)

    async def decide(
        self, pod: Pod, node: str, quotas: Sequence[ResourceQuota]
    ) -> AssumedPlacement | Unschedulable | None:
        """Fit the pod on one node and hold the cards for it, in memory; None if it asks for nothing managed.

        What follows is `commit_assumed`, or `ClusterCache.forget`.
        """
        found = self._look(pod, await self._namespace(pod), [node], quotas, choose=True)
        if isinstance(found, CycleState) and found.best is not None:
            now = self._clock()
            chosen = found.best
            notes = placement_annotations(pod, chosen.fit, chosen.view, self._vendors, now)
            self._state.assume(_carrying(found.bounded.pod, notes), now)
            await self._tell_remarks(pod, found)
            return AssumedPlacement(found.bounded, chosen, now)
        await self._tell_look(pod, found)
        return Unschedulable(found.filtered.failed) if isinstance(found, CycleState) else found

    async def commit_assumed(self, decision: AssumedPlacement) -> None:
        """Charge and write a decided placement. Raises `ClusterError`; then the state still holds the cards."""
        try:
            await self._write(decision.pod, decision.chosen, decision.at)
        except QuotaChanged as error:
            raise ClusterError(f"the quota no longer allows it ({RESOURCE_QUOTA_NOT_FIT}): {error}") from error
        fits = [decision.chosen]
        message = success_message(decision.chosen, fits, len(fits))
        await self.tell(decision.pod.pod, "Normal", "FilteringSucceed", message)

    async def consider(
        self, pod: Pod, nodes: Sequence[str] | None, quotas: Sequence[ResourceQuota]
    ) -> CycleState | Unschedulable | None:
        """Filter every candidate; nothing is written but events. `Unschedulable` for a pod that no node can take as it
        is, None for one that requests nothing managed. A placement it has and that isn't bound is given up.
        """
        found = self._look(pod, await self._namespace(pod), nodes, quotas)
        await self._tell_look(pod, found)
        return found

    async def _namespace(self, pod: Pod) -> Namespace | None:
        """The pod's Namespace, None where there is no policy. Raises `ClusterError` if it isn't known."""
        return None if self._boundary is None else await self._boundary.namespace(pod.namespace)

    def _look(
        self,
        pod: Pod,
        namespace: Namespace | None,
        nodes: Sequence[str] | None,
        quotas: Sequence[ResourceQuota],
        *,
        choose: bool = False,
    ) -> CycleState | Unschedulable | None:
        """`consider` without a word: nothing else happens meanwhile, so what is found still holds on return.

        `choose`: find the best node's cards too.
        """
        now = self._clock()
        self._state.tick(now)
        self._state.release(pod.uid)
        names = [node.name for node in self._state.nodes()] if nodes is None else nodes
        try:
            bounded = self._boundary.bounded(pod, namespace) if self._boundary and namespace else BoundedPod(pod)
            ask = read_pod_request(bounded.pod, self._vendors, self._policies.card)
        except BadRequest as error:
            return Unschedulable(dict.fromkeys(names, Rejection(bare=str(error))))
        except PolicyViolation as violation:
            text = violation.attributed
            return Unschedulable(dict.fromkeys(names, Rejection(bare=text)), advice=[text])
        except ValueError as error:
            return Unschedulable(error=f"calcScore failed {error}")
        if ask is None:
            return None
        known = self._known
        budget = pod_budget(
            pod,
            self._books(quotas),
            (),
            self._vendors,
            known,
            now,
            self._placement_ttl,
            others_of=lambda books: known.placed_besides(pod, books, now),
        )
        filtered = self._memory.filtered(ask, budget, names)
        if not choose or not filtered.fits:
            return CycleState(bounded, ask, budget, filtered, names)
        order = best_first(filtered.fits, ask, self._policies.node)
        best = self._memory.fit(ask, budget, order[0].node)
        assert isinstance(best, ScoredNode)
        return CycleState(bounded, ask, budget, FilterResult(order, filtered.failed), names, best)

    def _books(self, quotas: Sequence[ResourceQuota]) -> list[QuotaAccount]:
        """The quotas' books; those of a version that was read before are not read again."""
        found = []
        for quota in quotas:
            key = quota.uid, quota.resource_version
            books = self._read.get(key)
            if books is None:
                books = QuotaAccount.read(quota, self._vendors)
                if len(self._read) >= _READ:
                    self._read.clear()
                if all(key):
                    self._read[key] = books
            found.append(books)
        return found

    async def _tell_look(self, pod: Pod, found: CycleState | Unschedulable | None) -> None:
        if isinstance(found, CycleState):
            await self._tell_remarks(pod, found)
        elif isinstance(found, Unschedulable) and found.error:
            await self.tell(pod, "Warning", "FilteringFailed", found.error)
        elif isinstance(found, Unschedulable):
            await self._unplaced(pod, found.failed, len(found.failed), found.advice)

    async def _tell_remarks(self, pod: Pod, found: CycleState) -> None:
        for remark in remarks(found.ask, self._known_of(found), self._vendors):
            await self.tell(pod, "Warning", "PolicyIgnored", remark)

    def _known_of(self, found: CycleState) -> Iterator[NodeView]:
        """The candidates that are known."""
        views = map(self._state.view, found.candidates)
        return (view for view in views if view is not None)

    def graded(self, ask: PodRequest, fits: Sequence[NodeRank], highest: int) -> dict[str, int]:
        """The fitting nodes' grades, 0 to `highest`."""
        return grades(fits, ask, self._policies.node, highest)

    async def tell_unplaced(self, pod: Pod, found: CycleState) -> None:
        """Events that say why no node takes the pod."""
        await self._unplaced_anywhere(pod, found, found.filtered.failed)

    async def _unplaced_anywhere(self, pod: Pod, found: CycleState, failed: Mapping[str, Rejection]) -> Unschedulable:
        known = list(self._known_of(found))
        for line in unregistered(found.ask, known, self._vendors):
            logger.info("%s: %s", pod.key, line)
        advice = hints(failed, found.ask, known, self._vendors, self._state)
        return await self._unplaced(pod, failed, len(found.candidates), [*advice, *found.bounded.changes])

    async def bind(self, pod: Pod, node: str) -> None:
        """Mark a placed pod as being allocated, bind it to its node, and say so.

        Raises `ClusterError`; not where the pod turns out to be bound to the node all the same, and
        `PlacementSuperseded` before it is bound by a placement that is another's by now, or too old.
        """
        phase = {"hami.io/bind-phase": "allocating", "hami.io/bind-time": str(int(self._clock()))}
        stored = Pod.from_object(
            await self._cluster.patch(
                Kind.PODS, pod.name, {"metadata": {"uid": pod.uid, "annotations": phase}}, pod.namespace
            )
        )
        if any(vendor.asks(container) for vendor in self._vendors.values() for container in stored.containers):
            self.check_placed(stored, node)
        try:
            await self._cluster.bind(pod.namespace, pod.name, pod.uid, node)
        except (Conflict, Unavailable):
            if not await self._is_bound(pod, node):
                raise
        await self.tell(pod, "Normal", "BindingSucceed", f"Successfully binding node [{node}] to {pod.key}")

    def check_placed(self, pod: Pod, node: str) -> None:
        """Raises `PlacementSuperseded` unless the pod carries a placement on the node that counts."""
        placed = pod.annotations.get(NODE, "")
        if placed != node:
            raise PlacementSuperseded(f"pod {pod.key} was placed on {placed or 'no node'}, not on {node}")
        if self._state.is_revoked(pod) or not placement_counts(pod, self._clock(), self._placement_ttl):
            raise PlacementSuperseded(f"the placement of pod {pod.key} is too old to be bound; it is placed anew")

    async def check_room(self, pod: Pod, node: str) -> None:
        """Raises `PlacementSuperseded` if the pod's cards, as held here, are taken by pods that are bound to the node.

        Asked under the node's lock, of the API server: another scheduler's extender may have been here before us.
        """
        view, own = self._state.view(node), self._state.pod(pod.uid)
        if view is None or own is None:
            return
        listing = await self._cluster.list(Kind.PODS, node=node)
        bound = [found for found in read_pods(listing.items) if found.uid != pod.uid]
        now = self._clock()
        full = self._state.with_just(view, [*bound, own], now).view(node)
        assert full is not None
        mine = self._state.with_just(view, [own], now).view(node)
        assert mine is not None
        for vendor, inventory in full.inventories.items():
            for device in inventory.devices:
                used = full.used(vendor, device.uuid)
                over = used.slots > device.slots or used.memory > device.memory or used.cores > device.cores
                if over and mine.used(vendor, device.uuid).slots:
                    raise PlacementSuperseded(
                        f"card {device.uuid} of node {node} was taken by another scheduler meanwhile"
                    )

    async def _is_bound(self, pod: Pod, node: str) -> bool:
        """Whether a bind that failed, or whose answer was lost, is what the pod shows."""
        with contextlib.suppress(ClusterError, MalformedObject):
            found = Pod.from_object(await self._cluster.get(Kind.PODS, pod.name, pod.namespace))
            return found.uid == pod.uid and found.node_name == node
        return False

    async def _write(self, bounded: BoundedPod, scored: ScoredNode, now: float) -> Placement:
        """Charge, then annotate. Raises `QuotaChanged`; `ClusterError` with the charge undone.

        Where it is unknown whether the annotations were written, the charge stays, as the recompute judges by the pod,
        and the cards stay held until the pod is placed anew or the placement lapses.
        """
        pod, fit = bounded.pod, scored.fit
        started = self._clock()
        commitment = await self._committer.commit(pod, placed_charge(fit.holds(), pod.kinds, self._vendors))
        if self._clock() - started > _ANNOTATE_WITHIN:
            await commitment.undo()
            raise ClusterError(f"charging the placement took more than {_ANNOTATE_WITHIN:g} s; it is tried anew")
        # device plugins are to read what Fit read
        annotations = {**bounded.written, **placement_annotations(pod, fit, scored.view, self._vendors, now)}
        try:
            stored = await self._cluster.patch(
                Kind.PODS, pod.name, placement_patch(pod, fit.node, annotations), pod.namespace
            )
        except Unavailable:
            self._state.assume(_carrying(pod, annotations), now)
            raise
        except ClusterError:
            await commitment.undo()
            raise
        self._state.assume(Pod.from_object(stored), now)
        return Placement(fit.node, scored.score, fit.rows, annotations, stored)

    async def _unplaced(
        self, pod: Pod, failed: Mapping[str, Rejection], candidates: int, advice: Sequence[str] = ()
    ) -> Unschedulable:
        for message in [*failure_messages(failed, candidates), *advice]:
            await self.tell(pod, "Warning", "FilteringFailed", message)
        return Unschedulable(failed)

    async def tell(self, pod: Pod, kind: str, reason: str, message: str) -> None:
        """Record an event on the pod, best effort."""
        if self._silent:
            return
        note = EventNote("Pod", pod.namespace, pod.name, pod.uid, kind, reason, message)
        try:
            await self._cluster.record_event(note)
        except ClusterError as error:
            logger.warning("%s: event %s can't be recorded: %s", pod.key, reason, error)


def _carrying(pod: Pod, notes: Mapping[str, str]) -> Pod:
    """The pod with this placement in place of any other."""
    others = {key: text for key, text in pod.annotations.items() if not is_scheduler_owned(key)}
    return replace(pod, annotations={**others, **notes})


def placement_annotations(pod: Pod, fit: NodeFit, view: NodeView, vendors: Vendors, now: float) -> dict[str, str]:
    """The annotations a placement of the pod writes: node, time (Unix seconds) and each vendor's own."""
    written = {NODE: fit.node, TIME: str(int(now))}
    for key, vendor in vendors.items():
        if any(key in row for row in fit.rows):
            written |= vendor.encode(fit.rows, view.node, now)
            written |= vendor.encode_containers(pod, fit.rows, view.node)
    return written


def placement_patch(pod: Pod, node: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    """The merge patch of a placement; what a former placement wrote and this one doesn't is removed.

    The node becomes a label too where its name is a legal label value.
    """
    kept = annotations.keys() | kept_annotations()
    stale = {key: None for key in pod.annotations if is_scheduler_owned(key) and key not in kept}
    patch: dict[str, Any] = {"metadata": {"annotations": {**stale, **annotations}}}
    if pod.uid:
        patch["metadata"]["uid"] = pod.uid
    if is_label_value(node):
        patch["metadata"]["labels"] = {NODE: node}
    elif NODE in pod.labels:
        patch["metadata"]["labels"] = {NODE: None}
    return patch
