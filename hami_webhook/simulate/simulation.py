"""Pods taken in order through admission, charge, placement and debit on an embedded cluster (docs/spec/cli.md)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonpatch
from msgspec.structs import replace

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.pods import is_unmanaged
from hami_webhook.assembly import Core
from hami_webhook.cluster.api import ClusterError, Kind, WatchEvent, WatchType
from hami_webhook.cluster.embedded import fill
from hami_webhook.cluster.loading import Bundle
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.cluster.watches import NoWatches
from hami_webhook.core_options import Options
from hami_webhook.devices.foreign_scheduler import ForeignScheduler, NoNode
from hami_webhook.devices.model import BadRequest
from hami_webhook.devices.pod_fit import vendors_requested_by
from hami_webhook.devices.registry import Vendors
from hami_webhook.evictions.quota_room import quota_room
from hami_webhook.evictions.victims import Preemptor, Victims, choose_node
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.node_filters.gates import gate_names, waiting_for
from hami_webhook.node_filters.result import NotJudged
from hami_webhook.node_filters.snapshot import SchedulerSnapshot
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.quota.accelerator_quota import read_accelerator_quota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.cluster_shares import computing_shares
from hami_webhook.quota.pricing import charge_of
from hami_webhook.quota.runtime import latest_end
from hami_webhook.scheduling.node_classes import NodeClasses
from hami_webhook.scheduling.placer import CycleState, Unschedulable
from hami_webhook.simulate.placements import SelectedNodes, places_for, shown_placement, shown_prediction
from hami_webhook.simulate.priorities import PriorityClasses
from hami_webhook.simulate.queues import released, waits_of
from hami_webhook.simulate.results import Arrival, Outcome, Pods, Result
from hami_webhook.simulate.reviews import review_of, uid_of

_RECOMPUTE_EVERY = 50
"""Placements in a namespace after which its quotas are recomputed, as the controller would by then; at once after one
that costs less than its pod was charged.
"""

_UNCHARGED = "costs nothing, as the device configuration doesn't enable dra"
_SERVER_SET = (
    *("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
    *("resourceVersion", "generation", "selfLink", "managedFields"),
)
"""Metadata that the API server sets itself; in a new pod it is dropped, as is the status."""


async def _yield(seconds: float) -> None:
    """Yield to other tasks instead of pausing: nobody else writes to this cluster."""
    await asyncio.sleep(0)


class Simulation:
    """One run: `fill` the cluster first, then `take` pods, then get the `result`.

    `preemption`: pods of lower priority are evicted for those that no node takes. `user`, of these `groups`, submits
    the pods; empty for nobody that is known.
    """

    def __init__(
        self,
        vendors: Vendors,
        options: Options,
        policies: PolicyRules,
        now: float,
        *,
        preemption: bool = False,
        user: str = "",
        groups: Sequence[str] = (),
    ) -> None:
        self.now = now
        """Unix seconds."""
        self._user, self._groups = user, groups
        self._scheduler_names = options.rules.scheduler_names
        self._schema = MemoryCluster(lambda: self.now)
        self.cluster = MemoryCluster(lambda: self.now)
        self._watched = {Kind.ACCELERATOR_QUOTAS, Kind.NAMESPACES}  # nobody else writes to them
        watches = NoWatches(self._watched)
        self.core = Core(
            self.cluster,
            vendors,
            options,
            clock=lambda: self.now,
            policies=lambda: policies,
            watches=watches,
            sleep=_yield,
        )
        self.node_classes = NodeClasses(vendors)
        self._priorities = PriorityClasses()
        self._snapshot: SchedulerSnapshot | None = None
        self._not_judged: dict[NotJudged, None] = {}
        self._preemption = preemption
        self._outcomes: list[Outcome] = []
        self._indices: dict[tuple[str, str], int] = {}
        """Where the outcomes of the pods are that exist now, by namespace and name."""
        self._since_recompute: dict[str, int] = {}

    async def fill(self, bundle: Bundle, *, trust_used: bool = False, stored: bool = False) -> None:
        """Create the files' objects in the cluster and recompute its quotas. Raises `LoadError`.

        `trust_used`: complete used amounts of quotas are left as they are; `stored`: an API server stored the objects.
        """
        self._priorities = PriorityClasses(bundle.priority_classes)
        for kind, obj in await fill(self.cluster, bundle, stored=stored):
            self.core.caches.keep(kind, obj)
        await self.recompute_quotas(trust_used=trust_used)

    async def recompute_quotas(self, *, trust_used: bool) -> None:
        """Recompute all quotas, or those whose used amounts aren't complete."""
        for account in self._accounts():
            if not trust_used or account.hard.keys() - account.used.keys():
                await self._recompute(account)

    def follow(self, kind: Kind, event: WatchEvent) -> None:
        """An object is there, has changed, or is gone, as the API server of the cluster shows it."""
        snapshot, gone = self.snapshot, event.type is WatchType.DELETED
        obj = {"apiVersion": kind.api_version, "kind": kind.singular, **event.object}
        self.cluster.put(kind, obj, gone=gone)
        (self.core.caches.drop if gone else self.core.caches.put)(kind, obj)
        snapshot.follow(kind.singular, obj, gone=gone)

    @property
    def snapshot(self) -> SchedulerSnapshot:
        """The cluster as kube-scheduler's filters see it, made when it is asked for first."""
        if self._snapshot is None:
            self._snapshot = snapshot = SchedulerSnapshot(self.core.vendors.uncounted_names)
            for node in self.cluster.peek_all(Kind.NODES):
                snapshot.put_node(node)
            for pod in self.cluster.peek_all(Kind.PODS):
                snapshot.put_pod(pod)
            for namespace in self.core.caches.namespaces.values():
                snapshot.put_namespace(namespace.name, namespace.labels)
        return self._snapshot

    def warnings(self) -> list[str]:
        """What of the objects can't be read, a sentence for all of a kind with the same fault."""
        unreadable = (
            (kind.removesuffix("s"), _key(namespace, name), f"left out, because {text}")
            for (kind, namespace, name), text in sorted(self.core.caches.unreadable.items())
        )
        problems = (
            (problem.kind.lower(), _key(problem.namespace, problem.name), problem.text)
            for problem in self.core.state.problems()
        )
        claims = [] if self.core.vendors.drivers else self.cluster.peek_all(Kind.RESOURCE_CLAIMS)
        uncharged = (("resourceclaim", _key_of(claim), _UNCHARGED) for claim in claims)
        slices = self.core.caches.claims.inventory.devices.problems.items()
        in_slices = (("resourceslice", name, text) for name, text in sorted(slices))
        names: dict[tuple[str, str], list[str]] = {}
        for kind, name, text in (*unreadable, *problems, *uncharged, *in_slices):
            names.setdefault((kind, text), []).append(name)
        return [
            f"{kind} {name}{f' and {len(others)} more' if others else ''}: {text}"
            for (kind, text), (name, *others) in names.items()
        ]

    async def take(self, manifest: Mapping[str, Any]) -> Outcome:
        """Take one pod through the pipeline."""
        outcome = await self._take(manifest)
        if outcome.allowed:
            self._indices[outcome.namespace, outcome.name] = len(self._outcomes)
        self._outcomes.append(outcome)
        return outcome

    async def run(self, pods: Pods, advance: Callable[[], None] = lambda: None) -> Result:
        """Take every pod, in order; `advance` is called after each."""
        for manifest in pods.manifests:
            await self.take(manifest)
            advance()
        return await self.result()

    async def result(self) -> Result:
        async for pod, raw in released(self.core, self.cluster, self.quotas_known):
            await self.place_again(pod, raw)
        with self.quotas_known():
            waits = await waits_of(self.core)
        for (namespace, name), index in self._indices.items():
            if text := waits.get(uid_of(namespace, name)):
                self._outcomes[index] = replace(self._outcomes[index], waits=text)
        for account in self._accounts():
            await self._recompute(account)
        quotas = [
            {
                "namespace": account.quota.namespace,
                "name": account.label,
                "hard": dict(sorted(account.hard.items())),
                "used": dict(sorted(account.used.items())),
            }
            for account in self._accounts()
        ]
        return Result(self._outcomes, quotas, [*self._not_judged])

    def quotas_of(self, namespace: str) -> list[ResourceQuota]:
        """The quotas that cover a namespace's pods."""
        own = self.cluster.peek_all(Kind.RESOURCE_QUOTAS, namespace)
        accelerator_quotas = self.core.caches.accelerator_quotas.covering(namespace)
        return [*map(ResourceQuota.from_object, own), *accelerator_quotas]

    def waits_for_cards(self, raw: Mapping[str, Any]) -> bool:
        """Whether a pod of the cluster requests managed cards and isn't bound, nor over."""
        pod = self.core.state.pod(raw["metadata"].get("uid") or "")
        return pod is not None and not pod.node_name and not pod.ended(self.now) and self._requests(pod)

    def _requests(self, pod: Pod) -> bool:
        try:
            return bool(vendors_requested_by(pod, self.core.vendors))
        except BadRequest:
            return False

    async def move_clock(self, at: float) -> None:
        """The run is at this time (Unix seconds): pods are gone whose deadline and grace period are over by then."""
        self.now = at
        over = []
        for raw in self.cluster.peek_all(Kind.PODS):
            pod = self.core.state.pod(raw["metadata"].get("uid") or "")
            over += [raw] if pod is not None and latest_end(pod) <= at else []
        await self.withdraw(over)
        for raw in self.cluster.peek_all(Kind.ACCELERATOR_QUOTAS):  # of windows the time alone says what holds
            moved = {**raw, "status": {**(raw.get("status") or {}), "window": None}}
            self.follow(Kind.ACCELERATOR_QUOTAS, WatchEvent(WatchType.MODIFIED, moved))

    async def withdraw(self, pods: Sequence[Mapping[str, Any]]) -> None:
        """These pods were never there, and cost their quotas nothing."""
        for pod in pods:
            self.follow(Kind.PODS, WatchEvent(WatchType.DELETED, {**pod}))
        for namespace in sorted({pod["metadata"].get("namespace") or "default" for pod in pods}):
            await self._recompute_for(namespace)

    def with_priority(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """A new pod's manifest with the priority of its class. Raises `Denied`."""
        return self._priorities.applied(manifest)

    def _accounts(self, namespace: str = "") -> Iterator[QuotaAccount]:
        """The quotas as they are; the ResourceQuotas of one namespace, if it is given."""
        labels, vendors = self.core.caches.accelerator_quotas.labels(), self.core.vendors
        for item in self.cluster.peek_all(Kind.RESOURCE_QUOTAS, namespace):
            yield QuotaAccount.read(ResourceQuota.from_object(item), vendors)
        for item in self.cluster.peek_all(Kind.ACCELERATOR_QUOTAS):
            yield QuotaAccount.read(read_accelerator_quota(item, labels), vendors)

    async def _take(self, manifest: Mapping[str, Any]) -> Outcome:
        arrival = await self.admit(manifest)
        if arrival.pod is None:
            return Outcome(arrival.namespace, arrival.name, False, arrival.code, arrival.message, arrival.warnings)
        return await self._place(arrival.pod, arrival.manifest, arrival.warnings, arrival.patch)

    async def admit(self, manifest: Mapping[str, Any]) -> Arrival:
        """Admit and charge one pod; it isn't placed."""
        meta = manifest.get("metadata") or {}
        namespace = meta.get("namespace") or "default"
        name = meta.get("name") or f"{meta.get('generateName') or 'pod-'}{len(self._outcomes):05d}"
        self.core.caches.put(Kind.NAMESPACES, await self.cluster.ensure_namespace(namespace))
        kept = {key: value for key, value in meta.items() if key not in _SERVER_SET}
        given = {**manifest, "metadata": {**kept, "namespace": namespace, "name": name}}
        given.pop("status", None)
        raw: Mapping[str, Any] = given
        warnings: Sequence[str] = ()
        patch: Sequence[Mapping[str, Any]] = ()
        admitted: Mapping[str, Any] = raw
        try:
            admitted = raw = self._priorities.applied(raw)
            review = review_of(raw, namespace, name, self._user, self._groups)
            answer = await self.core.admission.mutate(review)
            warnings, patch = answer.warnings, answer.patch
            if is_unmanaged(review.object, self.core.vendors):
                warnings = (*warnings, *self.core.admission.misspelt(review))
            admitted = jsonpatch.apply_patch(raw, list(patch))
            if self.cluster.peek(Kind.PODS, name, namespace) is not None:
                raise Denied(409, f'pods "{name}" already exists', reason="AlreadyExists")
            uid = uid_of(namespace, name)
            stored = {**admitted, "metadata": {**admitted["metadata"], "uid": uid}}
            await self._check_schema(stored)
            last = await self.core.admission.validate(review_of(stored, namespace, name, self._user, self._groups))
            warnings = (*warnings, *last.warnings)
            created = await self.cluster.create(Kind.PODS, stored)
        except Denied as denial:
            warnings = tuple(dict.fromkeys((*warnings, *denial.warnings)))
            return Arrival(namespace, name, admitted, warnings, code=denial.code, message=denial.message)
        except ClusterError as error:
            return Arrival(namespace, name, admitted, warnings, code=422, message=str(error))
        # they came one after another, in the second before
        at = datetime.fromtimestamp(self.now - 1, UTC) + timedelta(microseconds=len(self._outcomes))
        meta = {**created["metadata"], "creationTimestamp": at.isoformat()}
        self.core.caches.put(Kind.PODS, {**created, "metadata": meta} if gate_names(created) else created)
        return Arrival(namespace, name, admitted, warnings, patch, Pod.from_object(created))

    async def _place(
        self, pod: Pod, manifest: Mapping[str, Any], warnings: Sequence[str], patch: Sequence[Mapping[str, Any]]
    ) -> Outcome:
        allowed = Outcome(pod.namespace, pod.name, True, 200, "", warnings, patch, manifest)
        other = next((each for each in self.core.vendors.foreign if places_for(each, pod)), None)
        if other is None:
            by_another = self._scheduler_names[0] and pod.scheduler_name not in self._scheduler_names
            if by_another or not vendors_requested_by(pod, self.core.vendors):
                return self._with_claims(allowed, pod)
        if gates := gate_names(manifest):
            why = waiting_for(gates)
            return replace(allowed, failed={node.name: why for node in self.core.state.nodes()}, unplaced=True)
        # kube-scheduler sends the extender only nodes that pass its own filters; other schedulers have the same filters
        filtered = self.snapshot.filter_nodes(manifest)
        self._not_judged |= dict.fromkeys(filtered.not_judged)
        suitable = [node.name for node in self.core.state.nodes() if node.name not in filtered.refusals]
        charged = charge_of(pod, self.core.vendors, self.core.capacity, self.now).amounts
        shown, failed = await (
            self._place_by_us(pod, suitable) if other is None else self._predict(other, pod, suitable)
        )
        if shown is None and other is None and (victims := await self._preempt(pod, suitable)):
            del failed[victims.node]
            shown, still = await self._place_by_us(pod, [victims.node])
            failed |= still
            allowed = replace(allowed, victims=[victim.key for victim in victims.pods])
        failed = failed | {name: ", ".join(refusal.reasons) for name, refusal in filtered.refusals.items()}
        allowed = replace(allowed, failed=dict(sorted(failed.items())))
        if shown is None:
            return replace(allowed, unplaced=True)
        # later pods are younger, so that preemption chooses them first
        start = datetime.fromtimestamp(self.now, UTC) + timedelta(microseconds=len(self._outcomes))
        started = {"status": {"startTime": start.isoformat()}}
        bound = await self.cluster.patch_status(Kind.PODS, pod.name, started, pod.namespace)
        self.core.caches.put(Kind.PODS, bound)
        self.snapshot.put_pod(bound)
        debits = charge_of(Pod.from_object(bound), self.core.vendors, self.core.capacity, self.now).amounts
        self._since_recompute[pod.namespace] = self._since_recompute.get(pod.namespace, 0) + 1
        # a higher cost is charged with our own placement; another scheduler's cards are charged by a recompute only
        charge_differs = debits != charged if other else any(debits.get(key, 0) < charged[key] for key in charged)
        if charge_differs or self._since_recompute[pod.namespace] >= _RECOMPUTE_EVERY:
            await self._recompute_for(pod.namespace)
        return replace(allowed, placement=shown, debits=dict(sorted(debits.items())))

    async def place_again(self, pod: Pod, raw: Mapping[str, Any]) -> Outcome:
        """Place an admitted pod that has waited: one of the run, or one of the cluster."""
        self.snapshot.put_pod({**raw})
        index = self._indices.get((pod.namespace, pod.name))
        if index is None:
            return await self._place(pod, raw, (), ())
        before = self._outcomes[index]
        placed = replace(await self._place(pod, raw, before.warnings, before.patch), pod=before.pod)
        self._outcomes[index] = placed
        return placed

    @contextlib.contextmanager
    def quotas_known(self) -> Iterator[None]:
        """All ResourceQuotas are in the cache as they are: who waits is decided by it, all else by live reads."""
        for quota in self.cluster.peek_all(Kind.RESOURCE_QUOTAS):
            self.core.caches.keep(Kind.RESOURCE_QUOTAS, quota)
        self._watched.add(Kind.RESOURCE_QUOTAS)
        try:
            yield
        finally:
            self._watched.remove(Kind.RESOURCE_QUOTAS)

    def _with_claims(self, allowed: Outcome, pod: Pod) -> Outcome:
        """A pod that isn't placed here, with what its claims cost while they wait; nobody allocates them here."""
        if not self.core.view.holder(pod).waits:
            return allowed
        charge = charge_of(pod, self.core.vendors, self.core.capacity, self.now)
        return replace(allowed, debits=dict(sorted(charge.amounts.items())))

    async def _place_by_us(self, pod: Pod, nodes: Sequence[str]) -> tuple[dict[str, Any] | None, dict[str, str]]:
        """Place and bind a pod on one of the nodes: the placement for the result, and the reasons of other nodes."""
        placement = await self.core.placer.place(pod, nodes)
        assert placement is not None
        failed = {node: str(why) for node, why in placement.failed.items()}
        if isinstance(placement, Unschedulable):
            return None, failed
        return shown_placement(pod, placement, self.core.vendors), failed

    async def _preempt(self, pod: Pod, nodes: Sequence[str]) -> Victims | None:
        """Evict others for a pod that none of the nodes takes; None if nobody is to be evicted."""
        if not self._preemption or pod.preemption_policy == "Never":
            return None
        core = self.core
        found = await core.placer.consider(pod, nodes, await core.queues.covering(pod.namespace))
        if not isinstance(found, CycleState):
            return None
        budgets = core.caches.disruption_budgets
        room = quota_room(pod, found.accounts, core.nominations)
        preemptor = Preemptor(found.request, found.budget, core.vendors, [*budgets.values()], self.now, room)
        victims = choose_node(preemptor, core.nominations.candidates(pod, found.filtered.failed))
        if victims is None or not victims.pods:
            return None
        for victim in victims.pods:
            core.caches.drop(Kind.PODS, await self.cluster.get(Kind.PODS, victim.name, victim.namespace))
            await self.cluster.delete(Kind.PODS, victim.name, victim.namespace)
            self.snapshot.drop_pod((victim.namespace, victim.name))
            index = self._indices.pop((victim.namespace, victim.name), None)
            if index is not None:
                self._outcomes[index] = replace(self._outcomes[index], preempted_by=pod.key)
        for key, budget in [*budgets.items()]:
            budgets[key] = replace(budget, allowed=max(0, budget.allowed - sum(map(budget.covers, victims.pods))))
        for namespace in {victim.namespace for victim in victims.pods}:
            await self._recompute_for(namespace)
        return victims

    async def _predict(
        self, scheduler: ForeignScheduler, pod: Pod, nodes: Sequence[str]
    ) -> tuple[dict[str, Any] | None, dict[str, str]]:
        """As `_place_by_us`, with the predicted placement of another scheduler."""
        predicted = scheduler.predict(pod, SelectedNodes(self.core.state, nodes), self.now)
        if isinstance(predicted, NoNode):
            return None, dict(predicted.failed)
        notes = {"metadata": {"annotations": dict(predicted.annotations)}}
        await self.cluster.patch(Kind.PODS, pod.name, notes, pod.namespace)
        await self.cluster.bind(pod.namespace, pod.name, pod.uid, predicted.node)
        return shown_prediction(pod, predicted, scheduler), dict(predicted.failed)

    async def _check_schema(self, pod: dict[str, Any]) -> None:
        """Refuse what the API server refuses before it calls validating webhooks. Raises `ClusterError`."""
        meta = pod["metadata"]
        await self._schema.ensure_namespace(meta["namespace"])
        await self._schema.create(Kind.PODS, pod)
        await self._schema.delete(Kind.PODS, meta["name"], meta["namespace"])

    async def _recompute_for(self, namespace: str) -> None:
        """Recompute the quotas that cover a namespace's pods."""
        self._since_recompute.pop(namespace, None)
        for account in [each for each in self._accounts(namespace) if namespace in each.quota.covered_namespaces]:
            await self._recompute(account)

    async def _recompute(self, account: QuotaAccount) -> None:
        if account.hard and account.quota.namespaces is None:
            await self.core.recomputer.run(account.quota.namespace, account.name)
        elif account.hard:
            shares = computing_shares(self.core.vendors, self.core.state.views)
            await self.core.accelerator_recomputer.run("", account.name, shares=shares)


def _key_of(obj: Mapping[str, Any]) -> str:
    meta = obj["metadata"]
    return _key(meta.get("namespace") or "", meta["name"])


def _key(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name
