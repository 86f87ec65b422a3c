"""The core put together on a cluster: what the server, the controller and the simulator all run on."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property, partial

from hami_webhook.admission.claims import ClaimHandler
from hami_webhook.admission.handler import AdmissionHandler
from hami_webhook.caches import Caches, Change
from hami_webhook.charging.claims import ChargeTiming, ClaimCharger
from hami_webhook.charging.namespace_labels import NamespaceLabels
from hami_webhook.charging.pods import PodCharger
from hami_webhook.charging.queue import ChargeCounts, ChargeQueue
from hami_webhook.charging.queues import ChargeQueues
from hami_webhook.charging.recomputer import PodReader, Recomputer
from hami_webhook.charging.sources import AcceleratorQuotas, QuotaSource, ResourceQuotas
from hami_webhook.charging.store import QuotaCache, QuotaStore
from hami_webhook.cluster.api import Cluster, Kind
from hami_webhook.cluster.watches import NoWatches, Watches
from hami_webhook.cluster_view import ClusterView
from hami_webhook.core_options import Options
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.durations import Histogram
from hami_webhook.evictions.limits import EvictionLimits
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.namespaces import LiveNamespaces
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.claims import ClaimReader, TemplateReader, WithClaims
from hami_webhook.quota.deleted_ledgers import DeletedLedgers
from hami_webhook.quota.floors import is_shown
from hami_webhook.quota.ledger import RESERVATION, UPDATE, Entry, new_attempt
from hami_webhook.quota.other_managers import LeftByQueues
from hami_webhook.quota.pricing import CapacityLister
from hami_webhook.quota_ports.claims import ClaimPort, claim_inventory
from hami_webhook.quota_ports.pods import PodPort, Pricing
from hami_webhook.scheduling.boundary import PolicyBoundary
from hami_webhook.scheduling.cluster_cache import ClusterCache
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.nominations import Nominations
from hami_webhook.scheduling.placer import LockedNodes, Placer


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
        self.nominations = Nominations(self.state, vendors, clock=clock, card_policy=options.policies.card)
        self.limits = EvictionLimits(self.state, self.nominations, clock=clock, per_minute=options.evictions_per_minute)
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
        self.namespaces = LiveNamespaces(cluster, self.caches)
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

        def shows(account: QuotaAccount, identity: str, entry: Entry) -> bool:
            pod = self.state.observed(identity.removeprefix(UPDATE))
            return pod is not None and is_shown(account, entry, pod, vendors, self.state, clock(), placement_ttl)

        def queue(store: QuotaStore, recomputer: Recomputer) -> ChargeQueue:
            return ChargeQueue(
                store,
                clock=clock,
                recomputer=recomputer,
                sleep=sleep,
                timeout=options.charge_timeout,
                max_ledger=options.bounds.most,
                counts=counts,
                shows=shows,
            )

        shared = queue(self.accelerator_quotas, self.accelerator_recomputer)
        self.queues = ChargeQueues(queue(self.quotas, self.recomputer), shared)
        labels = NamespaceLabels(cluster, self.caches, clock=clock)
        self.charger = PodCharger(self.queues, shared, labels, clock=clock, timeout=options.charge_timeout)
        there = self.state.by_namespace.there
        queued, known = self.caches.queued, self.charger.known
        left = self.left_by_queues = LeftByQueues(queued, there, known, vendors, self.capacity, clock)
        self.templates = TemplateReader(cluster, claims)
        charging: ClaimPort | None = None
        if vendors.drivers:
            timing = ChargeTiming(options.charge_timeout, placement_ttl)
            claim_charger = ClaimCharger(
                cluster, vendors, with_claims, claims, self.charger, self.queues, left, clock=clock, timing=timing
            )
            charging = ClaimPort(claim_charger, watches)
        self.claims = ClaimHandler(charging)
        """Reviews of claims."""
        pricing = Pricing(vendors, self.capacity, clock, placement_ttl)
        pods_port = PodPort(
            cluster, self.caches, pricing, self.charger, self.queues, left, self.templates, watches, new_id
        )
        self.boundary = PolicyBoundary(vendors, policies, self.namespaces.namespace)
        self._options = options
        self.admission = AdmissionHandler(
            vendors,
            options.rules,
            policies=policies,
            namespaces=self.namespaces,
            charging=pods_port,
            device_lister=self.state,
            reservation_key=RESERVATION,
            inventory=partial(claim_inventory, claims, watches),
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
            queues=self.queues,
            nominations=self.nominations,
            locked_nodes=locked_nodes,
        )
