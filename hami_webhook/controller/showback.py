"""What pods held for how long: sums over time by namespace, vendor, model, state and user (docs/metrics.md#showback).

Every process that may lead adds up all the time. Who leads exports the sums, and says in the Lease up to when; another
one restarts from there each time that it reads the Lease, so that it can take over with nothing lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hami_webhook.cluster.api import Kind
from hami_webhook.devices.codecs import BadAnnotation
from hami_webhook.devices.debit import Debit, per_device
from hami_webhook.devices.keys import Dimension
from hami_webhook.devices.model import NodeView
from hami_webhook.devices.placement_annotations import NODE, TIME, read_placed
from hami_webhook.devices.vendor import Vendor
from hami_webhook.dra.holders import Key as ClaimKey
from hami_webhook.dra.holders import controller_of, meta_of
from hami_webhook.kube.claims_wire import ResourceClaim
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.stamps import SUBMITTED_BY
from hami_webhook.quota.pricing import charge_of, named_in
from hami_webhook.quota.recompute import assumption_expires_at
from hami_webhook.state.caches import Change, Subscriptions
from hami_webhook.state.cluster_view import ClusterView

UNTIL = "hami.io/showback-until"
"""The Lease's annotation: Unix seconds up to which the leader's counters were read by somebody."""

OTHERS = "(others)"
"""The submitters of a namespace beyond the first `_MOST_SUBMITTERS`."""
_MOST_SUBMITTERS = 100
"""Of a namespace that have sums of their own: what they are called is the tenants' and portals' to say."""

_PODS_AT_ONCE = 20
"""Pods after which `start` yields to other tasks."""


class Holding(NamedTuple):
    """What a sum is of, and whose: cards that pods `placed` hold, or that pods `waiting` for a place are charged."""

    namespace: str
    vendor: str
    model: str
    state: str
    submitter: str = ""
    """By the pod's stamp; empty without one."""


class Totals(NamedTuple):
    """Slots, MiB and cores of quota, each times seconds."""

    cards: float = 0.0
    memory: float = 0.0
    cores: float = 0.0


@dataclass(slots=True)
class _Sum:
    """What is held since `at`, and the totals until then."""

    at: float
    held: Debit = field(default_factory=Debit)
    totals: Totals = field(default_factory=Totals)

    def advance(self, now: float) -> Totals:
        """The totals at `now`."""
        self.totals, self.at = self.after(now - self.at, self.held), now
        return self.totals

    def after(self, seconds: float, held: Debit) -> Totals:
        """The totals with so much held for so many seconds more."""
        cards, memory, cores = self.totals
        return Totals(cards + held.slots * seconds, memory + held.memory * seconds, cores + held.cores * seconds)

    def change(self, held: Debit, since: float, now: float, sign: int) -> None:
        """From `since` on so much more (sign 1) or less (-1) is held."""
        self.advance(now)
        self.held += Debit(sign * held.slots, sign * held.memory, sign * held.cores)
        self.totals = self.after(sign * (now - since), held)


@dataclass(frozen=True, slots=True)
class _PodHoldings:
    """What a pod holds, and since when."""

    since: float
    held: Mapping[Holding, Debit]


class Showback:
    """The sums of all pods from the process's start, or from where the leader before left off.

    `read` is for the exporter. It gives the totals of the read before, so that a series begins with 0, as Prometheus
    needs it to count its first amounts; `until` is of when the totals are that were read last.
    """

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._unread: set[str] | None = None
        """UIDs of pods and claims that `start` has still to read; None before it."""
        self._pods: dict[str, _PodHoldings] = {}
        """By UID, of pods and of claims that are charged by themselves."""
        self._claims: dict[str, ClaimKey] = {}
        """The claims that were seen, by UID."""
        self._sums: dict[Holding, _Sum] = {}
        self._submitters: dict[str, set[str]] = {}
        """Those with sums of their own, by namespace."""
        self._changes: dict[str, float] = {}
        """By UID when a pod's holdings change next though nothing happens to it."""
        self._last_read: Mapping[Holding, Totals] = {}
        self._last_read_at = self.until = view.clock()

    async def start(self) -> None:
        """Count the pods that are there, each since its own times; the caches are filled."""
        for claim in self._view.claims_in():
            self._claims[claim.uid] = (claim.namespace, claim.name)
        uids = [*[pod.uid for pod in self._view.state.pods()], *self._claims]
        self._unread = set(uids)
        for number, uid in enumerate(uids, start=1):
            self._unread.discard(uid)
            self._set(uid, since_its_times=True)
            if number % _PODS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def subscriptions(self) -> Subscriptions:
        """The changes that sums depend on."""
        return {
            Kind.PODS: lambda change: self.pod_changed(change.key.uid),
            Kind.NODES: self._node_changed,
            Kind.RESOURCE_CLAIMS: self._claim_changed,
        }

    def _claim_changed(self, change: Change[ResourceClaim]) -> None:
        """A claim was added, changed or is gone: its pod holds something else, or it does so itself."""
        self._claims[change.key.uid] = change.key[:2]
        for uid in {controller_of(each) for each in (change.before, change.after) if each is not None} - {""}:
            self._changed(uid)
        self._changed(change.key.uid)
        if change.after is None:
            self._claims.pop(change.key.uid, None)

    def _node_changed(self, change: Change[NodeView]) -> None:
        if change.before is not change.after:
            self.node_changed(change.key.name)

    def pod_changed(self, uid: str) -> None:
        """A pod was added, changed or is gone."""
        self._changed(uid)
        for key in self._view.caches.claims.keys_owned_by(uid):  # which are their own once it has ended
            claim = self._view.caches.claims.claims[key]
            self._claims[meta_of(claim).uid or ""] = key
            self._changed(meta_of(claim).uid or "")

    def _changed(self, uid: str) -> None:
        if self._unread is not None and uid not in self._unread:
            self._set(uid)

    def node_changed(self, name: str) -> None:
        """A node's cards may be others, of another model."""
        for allocation in self._view.state.allocations(name):
            self.pod_changed(allocation.pod.uid)

    def restart(self, until: float) -> None:
        """Restart the sums: the leader's counters have all amounts until then (Unix seconds)."""
        until = min(until, self._view.clock())
        if until == self.until:
            return
        self.until = self._last_read_at = until
        self._last_read = {}
        held = {holding: each.held for holding, each in self._sums.items()}
        self._sums = {holding: _Sum(until, debit) for holding, debit in held.items() if debit != Debit()}
        self._submitters = {}
        for holding in self._sums:
            if holding.submitter not in ("", OTHERS):
                self._submitters.setdefault(holding.namespace, set()).add(holding.submitter)
        for pod in self._pods.values():
            if pod.since > until:
                for holding, debit in pod.held.items():
                    each = self._sums[holding]
                    each.totals = each.after(until - pod.since, debit)

    def annotations(self) -> dict[str, str]:
        """What the Lease says while this process leads."""
        return {UNTIL: f"{self.until:.3f}"}

    def observe(self, annotations: Mapping[str, str]) -> None:
        """Begin where the leader's counters end, by its Lease; nothing if that can't be read."""
        with contextlib.suppress(ValueError, TypeError):
            until = float(annotations[UNTIL]) if UNTIL in annotations else self.until
            if math.isfinite(until):
                self.restart(until)

    def read(self) -> Iterator[tuple[Holding, Totals]]:
        """The totals as of the read before; 0 for sums that are new since then."""
        if self._unread is None or self._unread:
            return
        now = self._view.clock()
        for uid in [uid for uid, when in self._changes.items() if when < now]:
            self._set(uid, self._changes[uid])
        last, self.until = self._last_read, self._last_read_at
        totals = {holding: each.advance(now) for holding, each in self._sums.items()}
        self._last_read, self._last_read_at = totals, now
        for holding in sorted(totals):
            yield holding, last.get(holding, Totals())
            gone = holding.namespace not in self._view.caches.namespaces and self._sums[holding].held == Debit()
            if gone and last.get(holding) == totals[holding]:
                del self._sums[holding]
                self._submitters.pop(holding.namespace, None)

    def _set(self, uid: str, at: float | None = None, *, since_its_times: bool = False) -> None:
        """Count what the pod holds now in place of what it held so far, from `at` (Unix seconds; None: now) on."""
        now = self._view.clock()
        at = now if at is None else at
        pod = self._view.state.pod(uid)
        if pod is None and uid in self._claims:
            pod = self._view.bare_claim(self._claims[uid])
        held = self._holdings(pod, now) if pod is not None else {}
        due = self._changes.pop(uid, now)
        if not held:  # it is gone, but may have ended before
            at = min(at, due)
        if pod is not None and held:
            ends = (pod.deletion_deadline, assumption_expires_at(pod, self._view.placement_ttl))
            if later := [when for when in ends if when is not None and when >= now]:
                self._changes[uid] = min(later)
        before = self._pods.get(uid)
        if before is not None and before.held == held:
            return
        if before is not None:
            del self._pods[uid]
            self._add(before, at, -1)
        if pod is not None and held:
            since = min(at, _since(pod, held)) if since_its_times else at
            self._pods[uid] = _PodHoldings(since, held)
            self._add(self._pods[uid], max(since, self.until), 1)

    def _add(self, pod: _PodHoldings, since: float, sign: int) -> None:
        now = self._view.clock()
        for holding, debit in pod.held.items():
            self._sums.setdefault(holding, _Sum(now)).change(debit, since, now, sign)

    def _holdings(self, pod: Pod, now: float) -> dict[Holding, Debit]:
        """What the pod holds by its placement, else what it is charged."""
        view = self._view
        if pod.ended(now):
            return {}
        charge = charge_of(pod, view.vendors, view.capacity, now, view.placement_ttl)
        found: dict[Holding, Debit] = {}
        state, submitter = "placed" if charge.placed else "waiting", self._submitter(pod)
        named = named_in(pod, view.vendors)
        placed = {each.key for each in view.vendors.allocated_in(pod.annotations)} if charge.placed else set[str]()
        for key in sorted(named | placed) if charge.amounts else ():
            vendor = view.vendors[key]
            by_model = self._by_model(pod, vendor) if key in placed else {}
            if not by_model and key in named and (charged := _charged(vendor, charge.amounts)) != Debit():
                by_model = {"": charged}
            for model, debit in by_model.items():
                found[Holding(pod.namespace, key, model, state, submitter)] = debit
        for holding, debit in self._claimed(pod, submitter):
            found[holding] = found.get(holding, Debit()) + debit
        return found

    def _submitter(self, pod: Pod) -> str:
        """Whose sums the pod's are in."""
        stamp = pod.annotations.get(SUBMITTED_BY, "")
        known = self._submitters.setdefault(pod.namespace, set()) if stamp else set()
        if stamp and stamp not in known:
            if len(known) >= _MOST_SUBMITTERS:
                return OTHERS
            known.add(stamp)
        return stamp

    def _claimed(self, pod: Pod, submitter: str) -> Iterator[tuple[Holding, Debit]]:
        """What its claims hold, or cost while they wait."""
        holder = self._view.holder(pod)
        for device in holder.devices:
            yield Holding(pod.namespace, device.vendor, device.model, "placed", submitter), device.debit
        for key, debit in holder.wait.debits.items() if holder.waits and not holder.allocated else ():
            yield Holding(pod.namespace, key, "", "waiting", submitter), debit

    def _by_model(self, pod: Pod, vendor: Vendor) -> dict[str, Debit]:
        """What a placement holds of the vendor's cards; empty if it says nothing of them."""
        try:
            placed = read_placed(vendor, pod)
        except BadAnnotation:
            placed = None
        if placed is None:
            return {}
        view = self._view.state.view(pod.node_name or pod.annotations.get(NODE, ""))
        inventory = view.inventories.get(vendor.key) if view is not None else None
        models = {card.uuid: card.type for card in inventory.devices} if inventory is not None else {}
        found: dict[str, Debit] = {}
        debits = per_device(placed.counted, placed.kinds, init_finished=pod.init_finished)
        for (_, uuid), debit in debits.items():
            model = models.get(uuid, "")
            found[model] = found.get(model, Debit()) + debit
        return found


def _charged(vendor: Vendor, amounts: Mapping[str, int]) -> Debit:
    """The vendor's part of a charge."""
    of: dict[Dimension, int] = {}
    for key in vendor.quota_keys():
        of[key.dimension] = max(of.get(key.dimension, 0), amounts.get(key.name, 0) * key.factor)
    return Debit(of.get(Dimension.COUNT, 0), of.get(Dimension.MEMORY, 0), of.get(Dimension.CORES, 0))


def _since(pod: Pod, held: Mapping[Holding, Debit]) -> float:
    """Since when a pod has held that, by its own times."""
    created = pod.created or 0.0
    written = pod.annotations.get(TIME, "")
    placed = any(holding.state == "placed" for holding in held)
    return max(created, float(int(written[:18]))) if placed and written.isdecimal() else created
