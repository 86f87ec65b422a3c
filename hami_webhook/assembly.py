"""The core put together on a cluster: what the server, the controller and the simulator all run on."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from functools import cached_property, partial
from typing import Any

from msgspec import Struct, field

from hami_webhook.admission.claims import ClaimHandler
from hami_webhook.admission.denial import Denied, bad_request
from hami_webhook.admission.handler import AdmissionHandler
from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.caches import Caches, Change
from hami_webhook.claim_port import ClaimPort, denial, unsynced
from hami_webhook.cluster.api import Cluster, ClusterError, Kind
from hami_webhook.cluster.watches import NoWatches, Watches
from hami_webhook.cluster_view import ClusterView
from hami_webhook.config import Settings
from hami_webhook.devices.foreign_scheduler import ForeignScheduler
from hami_webhook.devices.model import BadRequest, Requests
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.dra.cost import DeviceInventory
from hami_webhook.durations import Histogram
from hami_webhook.kube.claims_wire import ResourceClaim, ResourceClaimTemplate
from hami_webhook.kube.objects import MalformedObject, Namespace, Pod, ResourceQuota
from hami_webhook.kube.pod_group import SIZE, PodGroup
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.quota.account import ChargeRequest, Gate, QuotaAccount, Refusal
from hami_webhook.quota.admission_charger import AdmissionCharger, ChargeCounts, Charged
from hami_webhook.quota.card_selection import CardSelection
from hami_webhook.quota.claim_charger import ChargeTiming, ClaimCharger
from hami_webhook.quota.claims import ClaimReader, TemplateReader, WithClaims, refuse_both_ways, unmet
from hami_webhook.quota.deleted_ledgers import DeletedLedgers
from hami_webhook.quota.floors import cost_of, floor_id
from hami_webhook.quota.hierarchy_charger import HierarchyCharger, PodQuotas
from hami_webhook.quota.ledger import (
    LEDGER,
    RESERVATION,
    UPDATE,
    Entry,
    State,
    decode,
    new_attempt,
    reservation_id,
    update_id,
)
from hami_webhook.quota.namespace_labels import NamespaceLabels
from hami_webhook.quota.other_managers import CLAIMS, KUEUE, LeftByQueues, manager_of, not_waiting
from hami_webhook.quota.pricing import CapacityLister, Charge, charge_of, waiting_charge
from hami_webhook.quota.recompute import LedgerBounds, PodReader, Recomputer
from hami_webhook.quota.refused_later import RefusedLater
from hami_webhook.quota.rollouts import other_version
from hami_webhook.quota.sources import AcceleratorQuotas, QuotaSource, ResourceQuotas
from hami_webhook.quota.store import QuotaCache, QuotaStore
from hami_webhook.quota.stores import QuotaStores
from hami_webhook.scheduling import placer
from hami_webhook.scheduling.boundary import PolicyBoundary
from hami_webhook.scheduling.cluster_cache import ClusterCache
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.placer import LockedNodes, Placer
from hami_webhook.scheduling.preemption.eviction_limits import DEFAULT_PER_MINUTE
from hami_webhook.scheduling.preemption.nominations import Nominations

logger = logging.getLogger(__name__)


class Options(Struct, frozen=True):
    """What the core runs with; seconds throughout."""

    rules: AdmissionRules = field(default_factory=AdmissionRules)
    policies: placer.SchedulingPolicies = field(default_factory=placer.SchedulingPolicies)
    bounds: LedgerBounds = field(default_factory=LedgerBounds)
    charge_timeout: float = 9.0
    evictions_per_minute: int = DEFAULT_PER_MINUTE
    zone: tzinfo | None = None
    node_labels: tuple[tuple[str, str], ...] = ()
    """Labels a node must have to be registered at all."""


def options_of(settings: Settings) -> Options:
    """What the core needs of the settings of `serve`."""
    return Options(
        rules=AdmissionRules(
            scheduler_name=settings.scheduler_name,
            force_overwrite_default_scheduler=settings.force_overwrite_default_scheduler,
            trusted_users=settings.trusted_users,
            trusted_groups=settings.trusted_groups,
            foreign_users=settings.foreign_users,
            controllers=settings.controllers,
            claims=settings.claims,
        ),
        policies=placer.SchedulingPolicies(settings.node_scheduler_policy, settings.gpu_scheduler_policy),
        bounds=LedgerBounds(settings.quota_reservation_ttl, settings.node_lock_timeout, settings.quota_max_ledger),
        charge_timeout=settings.quota_charge_timeout,
        evictions_per_minute=settings.preemption_evictions_per_minute,
        node_labels=settings.node_label_selector,
    )


class Core:
    """Admission, placement and quota of one process, on one cluster.

    `watches` fill the caches; until they are synced, pods that ask for managed devices are refused for now.
    """

    def __init__(
        self,
        cluster: Cluster,
        vendors: Vendors,
        options: Options,
        *,
        clock: Callable[[], float],
        policies: Callable[[], PolicyRules] = lambda: PolicyRules.EMPTY,
        watches: Watches | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        new_attempt: Callable[[], str] = new_attempt,
    ) -> None:
        self.cluster = cluster
        self.vendors = vendors
        self.clock = clock
        self.placement_ttl = placement_ttl = options.bounds.placement_ttl
        claims = ClaimCache(vendors.drivers, vendors.resource_names)
        self.state = ClusterCache(vendors, placement_ttl=placement_ttl, zone=options.zone, claimed=claims)
        claims.watch(self.state.claims_changed)
        self.nominations = Nominations(
            self.state,
            vendors,
            clock=clock,
            card_policy=options.policies.card,
            evictions_per_minute=options.evictions_per_minute,
        )
        deleted = DeletedLedgers(options.bounds.ttl, clock)
        watches = watches or NoWatches()
        self.caches = Caches(self.state, clock, options.node_labels, self.nominations, deleted, watches, claims)
        with_claims = WithClaims(self.state, claims)
        self.capacity: CapacityLister = with_claims if vendors.drivers else self.state
        """What charges depend on besides their pods."""
        self.view = ClusterView(self.caches, vendors, self.capacity, clock, placement_ttl, options.zone)
        """The same for who only reads."""
        self.problems: Counter[str] = Counter()
        """Events that were recorded about objects, by reason."""
        self.failures: Counter[str] = Counter()
        """Unexpected exceptions that loops survived, by loop."""
        self.ignored: set[tuple[str, tuple[str, ...]]] = set()
        """Namespaces that pods came to, with the annotations there that mean nothing."""
        accelerator_quotas = self.caches.accelerator_quotas

        def store(source: QuotaSource, cache: QuotaCache) -> QuotaStore:
            return QuotaStore(
                source,
                vendors,
                clock=clock,
                cache=cache,
                sleep=sleep,
                deleted=deleted.note,
                new_attempt=new_attempt,
            )

        self.quotas = store(ResourceQuotas(cluster), self.caches)
        self.accelerator_quotas = store(AcceleratorQuotas(cluster, accelerator_quotas.labels), accelerator_quotas)
        self.stores = QuotaStores(self.quotas, self.accelerator_quotas)
        pods = PodReader(cluster, self.state)

        def recomputer(store: QuotaStore, durations: Histogram | None = None) -> Recomputer:
            return Recomputer(
                store,
                pods,
                vendors,
                self.capacity,
                clock=clock,
                bounds=options.bounds,
                deleted=deleted,
                durations=durations,
                claims=ClaimReader(cluster, claims) if vendors.drivers else None,
            )

        self.recomputer = recomputer(self.quotas)
        self.accelerator_recomputer = recomputer(self.accelerator_quotas, self.recomputer.durations)
        counts = ChargeCounts()

        def charger(store: QuotaStore, recomputer: Recomputer) -> AdmissionCharger:
            return AdmissionCharger(
                store,
                clock=clock,
                recomputer=recomputer,
                sleep=sleep,
                timeout=options.charge_timeout,
                max_ledger=options.bounds.most,
                counts=counts,
                shows=self._shows,
            )

        self.charger = HierarchyCharger(
            charger(self.quotas, self.recomputer),
            charger(self.accelerator_quotas, self.accelerator_recomputer),
            NamespaceLabels(cluster, self.caches, clock=clock),
            clock=clock,
            timeout=options.charge_timeout,
        )
        there = self.state.by_namespace.there
        queued, known = self.caches.queued, self.charger.known
        left = self.left_by_queues = LeftByQueues(queued, there, known, vendors, self.capacity, clock)
        self.templates = TemplateReader(cluster, claims)
        charging: ClaimPort | None = None
        if vendors.drivers:
            timing = ChargeTiming(options.charge_timeout, placement_ttl)
            claim_charger = ClaimCharger(
                cluster, vendors, with_claims, claims, self.charger, self.stores, left, clock=clock, timing=timing
            )
            charging = ClaimPort(claim_charger, watches)
        self.claims = ClaimHandler(charging)
        """Reviews of claims."""
        self.boundary = PolicyBoundary(vendors, policies, self.namespace)
        self._options = options
        self.admission = AdmissionHandler(
            vendors,
            options.rules,
            policies=policies,
            namespaces=self,
            charging=_QuotaPort(self, watches, new_id),
            device_lister=self.state,
            reservation_key=RESERVATION,
            inventory=partial(self._inventory, watches),
            allocates=claims.allocates,
        )

    def subscriptions(self) -> Mapping[Kind, Callable[[Change[ResourceQuota]], None]]:
        """The changes that writers of quotas take turns by."""

        def noted(store: QuotaStore) -> Callable[[Change[ResourceQuota]], None]:
            return lambda change: None if change.after is None else store.shown(change.after)

        return {Kind.RESOURCE_QUOTAS: noted(self.quotas), Kind.ACCELERATOR_QUOTAS: noted(self.accelerator_quotas)}

    @cached_property
    def placer(self) -> Placer:
        """Places pods without a kube-scheduler."""
        return self.placer_for(Handle(self.cluster, self.state, self.vendors, self.clock))

    def placer_for(
        self, handle: Handle, locked_nodes: Callable[[Pod], LockedNodes] = lambda pod: LockedNodes()
    ) -> Placer:
        """A placer for an extender, whose binds lock nodes."""
        return Placer(
            handle,
            policies=self._options.policies,
            boundary=self.boundary,
            stores=self.stores,
            nominations=self.nominations,
            locked_nodes=locked_nodes,
        )

    async def namespace(self, name: str) -> Namespace | None:
        """The namespace from the cache, else by a live read; None if it isn't there or can't be asked for."""
        known = self.caches.namespaces.get(name)
        if known is not None:
            return known
        try:
            found = Namespace.from_object(await self.cluster.get(Kind.NAMESPACES, name))
        except (ClusterError, MalformedObject):
            return None
        self.caches.set_namespace(found)
        return found

    async def _inventory(self, watches: Watches) -> DeviceInventory:
        if not watches.synced:
            raise Denied(503, "ResourceClaims: caches not synced; try again", retry_after=1)
        await self.caches.claims.prepare_classes()
        return self.caches.claims.inventory

    def _shows(self, account: QuotaAccount, identity: str, entry: Entry) -> bool:
        """Whether the pod was seen, and costs the quota by itself what its entry says, or shows its update."""
        pod, now = self.state.observed(identity.removeprefix(UPDATE)), self.clock()
        if pod is None or account.quota.namespace not in ("", pod.namespace) or pod.ended(now):
            return False
        if not account.covers(pod):
            return False
        cost = cost_of(account, pod, self.vendors, self.state, now, self.placement_ttl)
        remembered = not cost.placed and account.floor(floor_id(pod, self.vendors)) is not None
        if entry.state is State.UPDATING:
            return remembered and entry.floor == floor_id(pod, self.vendors)
        return (account.is_fixed(cost) or remembered) and cost.only(account.hard) == entry.amounts

    async def report_ignored(self, namespace: str, keys: tuple[str, ...]) -> None:
        """Log scheduler-owned annotations on a Namespace, once; the controller records an event."""
        if (namespace, keys) not in self.ignored:
            self.ignored.add((namespace, keys))
            logger.warning("annotations ignored", extra={"namespace": namespace, "reason": ignored_annotations(keys)})


def ignored_annotations(keys: Iterable[str]) -> str:
    """What is wrong with scheduler-owned annotations on a Namespace."""
    return f"scheduler-owned annotations mean nothing on a Namespace: {', '.join(keys)}"


class _QuotaPort:
    """How admission charges pods: AdmissionHandler's port to the quotas."""

    def __init__(self, core: Core, watches: Watches, new_id: Callable[[], str]) -> None:
        self.core = core
        self.watches = watches
        self.new_id = new_id
        self.refused_later = RefusedLater(core.cluster, core.caches)

    def of(self, pod: Pod) -> _CachedPodQuotas:
        known = self.core.charger.known(pod)
        return _CachedPodQuotas(self, pod, known, known.unlimited, self.core.capacity)

    def queues(self, pod: Pod, requests: Mapping[str, Requests]) -> bool:
        caches, vendors, group = self.core.caches, self.core.vendors, PodGroup.of(pod)
        held = pod.gated_by_others
        quotas = caches.covering(pod.namespace) or () if held else caches.queueing(pod.namespace)
        if not requests or not (quotas or group):
            return False
        manager = manager_of(pod, vendors)
        if manager and not held and not (group and manager == KUEUE):
            return False
        if group:
            self._refuse_other_size(pod, group)
            return True
        try:
            charge = waiting_charge(pod, vendors, self.core.capacity, asks=(requests, ()))
        except BadRequest as error:
            raise bad_request(error) from error
        return any(QuotaAccount.read(quota, vendors).concerns(pod, charge) for quota in quotas)

    def _refuse_other_size(self, pod: Pod, group: PodGroup) -> None:
        """Raise `Denied` for a pod that gives its group another size than the pods that are there."""
        member = self.core.state.by_namespace.member(group.key)
        known = None if member is None else PodGroup.of(member)
        if member is not None and known is not None and known.size != group.size:
            text = f"pod {member.name} of pod group {group.name} says {known.size}; all its pods must say the same"
            raise Denied(403, f"label {SIZE} {group.size}: {text}")

    def reprice(self, before: Pod, after: Pod) -> _WaitingPod | None:
        core = self.core
        if floor_id(before, core.vendors) == floor_id(after, core.vendors):
            return None
        known = core.charger.known(after)
        if known.unlimited:
            return None

        def cost(cards: CardSelection | None = None) -> Charge:
            return charge_of(before, core.vendors, core.capacity, core.clock(), core.placement_ttl, cards)

        former = ChargeRequest(
            before.uid, before, cost(), on_cards=cost, floor_id=partial(floor_id, before, core.vendors)
        )
        try:
            charge = waiting_charge(after, core.vendors, core.capacity)
        except BadRequest as error:
            raise bad_request(error) from error
        return _WaitingPod(self, after, charge, known, core.capacity, None if after.queued else former)

    async def is_unused(self, pod: Pod, secret: str) -> bool:
        """Whether a ledger has the reservation with this secret, and no other pod carries it, by live lists.

        False where that isn't known. Pods are listed only if there is such a reservation: any tenant may bring secrets.
        """
        identity, cluster = reservation_id(secret), self.core.cluster
        try:
            quotas = await self.core.stores.covering(pod.namespace)
            if not any(identity in decode(quota.annotations.get(LEDGER)) for quota in quotas):
                return False
            pods = await cluster.list(Kind.PODS, pod.namespace)
        except ClusterError:
            return False
        return not any(
            item["metadata"]["uid"] != pod.uid and _annotations(item).get(RESERVATION) == secret for item in pods.items
        )


def _annotations(obj: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = obj["metadata"].get("annotations") or {}
    return found


class _CachedPodQuotas(Struct):
    """A new pod, with what the caches show of its quotas just now."""

    charging: _QuotaPort
    pod: Pod
    known: PodQuotas
    unlimited: bool
    capacity: CapacityLister
    named: Sequence[ResourceClaim] = ()

    async def read_templates(self) -> None:
        core = self.charging.core
        found: Mapping[tuple[str, str], ResourceClaimTemplate] = {}
        if core.caches.claims.without_template(self.pod):
            found = await core.templates.of(self.pod)
            self.capacity = WithClaims(core.state, core.caches.claims.with_templates(found))
        await core.caches.claims.prepare(self.pod, found)
        if not core.vendors.resource_names.isdisjoint(self.pod.named):
            self.named = await core.templates.named(self.pod)

    async def refuse_uncreatable(self, name: str, *, sized: bool) -> None:
        refused_later = self.charging.refused_later
        quotas = [account.quota for account in self.known.own.accounts.values()]
        if not refused_later.suspects(self.pod, name, quotas, sized=sized):
            return
        refusal = await refused_later.refusal(self.pod, name, quotas, sized=sized)
        if refusal is not None:
            raise Denied(refusal.code, refusal.message, cause="quota" if refusal.overrun else "request")
        self.known = self.charging.core.charger.known(self.pod)  # that took a read

    def price(self, requests: Mapping[str, Requests], foreign: Sequence[ForeignScheduler]) -> _WaitingPod:
        core = self.charging.core
        try:
            charge = waiting_charge(self.pod, core.vendors, self.capacity, asks=(requests, foreign))
            if requests and core.vendors.drivers:
                refuse_both_ways(self.pod, requests, self.capacity, self.named, core.vendors.drivers)
        except BadRequest as error:
            raise bad_request(error) from error
        return _WaitingPod(self.charging, self.pod, charge, self.known, self.capacity)


class _WaitingPod(Struct, frozen=True):
    """A pod with its price, ready to be charged."""

    charging: _QuotaPort
    pod: Pod
    cost: Charge
    known: PodQuotas
    capacity: CapacityLister
    former: ChargeRequest | None = None
    """What it was before an update."""

    async def charge(
        self, uid: str, *, reservation: str, dry_run: bool, time_left: float | None, expects_gate: bool = False
    ) -> Charged:
        if not self.charging.watches.synced:
            raise unsynced(self.pod.namespace)
        if reservation and not await self.charging.is_unused(self.pod, reservation):
            reservation = ""
        core = self.charging.core
        gate = Gate.CLOSED if self.pod.queued else Gate.MISSING if expects_gate else Gate.NONE
        why = ""
        if gate is Gate.MISSING and (manager := manager_of(self.pod, core.vendors)):
            gate, why = Gate.NONE, not_waiting(manager)
        elif gate is Gate.NONE and self.former is None and core.vendors.drivers:
            why = CLAIMS
        passing = await core.left_by_queues.refusal(self.pod, why, self.capacity) if why else None
        if passing is not None:
            raise denial(passing)
        request = ChargeRequest(
            uid if self.former is None else update_id(uid),
            self.pod,
            self.cost,
            dry_run,
            reservation,
            partial(waiting_charge, self.pod, core.vendors, self.capacity),
            partial(floor_id, self.pod, core.vendors),
            self.former,
            gate,
            equal_members=self._equal_members,
        )
        outcome = await core.charger.charge(request, time_left, self.known)
        if isinstance(outcome, Refusal):
            pods = core.state.by_namespace.of(self.pod.namespace).values()
            raise denial(outcome, other_version(self.pod, pods) if outcome.overrun and gate is not Gate.CLOSED else "")
        if self.pod.resource_claims:
            outcome = replace(outcome, warnings=[*outcome.warnings, *unmet(self.pod, self.capacity)])
        return outcome

    def _equal_members(self) -> int:
        """How many other pods of its group request the same."""
        group, core = PodGroup.of(self.pod), self.charging.core
        members = [] if group is None else core.state.by_namespace.members(group.key)
        vendors, same = core.vendors, floor_id(self.pod, core.vendors)
        return sum(each.uid != self.pod.uid and floor_id(each, vendors) == same for each in members)

    def new_reservation(self) -> tuple[str, str]:
        secret = self.charging.new_id()
        return secret, reservation_id(secret)
