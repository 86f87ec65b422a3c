"""The core put together on a cluster: what the server, the controller and the simulator all run on."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property, partial

from hami_webhook.admission.handler import AdmissionHandler
from hami_webhook.charging.claims import ChargeTiming, ClaimCharger
from hami_webhook.charging.kinds import ChargedKinds
from hami_webhook.charging.namespaces import LiveNamespaces
from hami_webhook.charging.pods import PodCharger
from hami_webhook.charging.queues import ChargeQueues
from hami_webhook.charging.recomputer import PodReader
from hami_webhook.charging.sources import AcceleratorQuotas, ResourceQuotas
from hami_webhook.cluster.api import Cluster, Kind
from hami_webhook.cluster.watches import NoWatches, Watches
from hami_webhook.core_options import Options
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.evictions.limits import EvictionLimits
from hami_webhook.kube.objects import RESERVATION, Pod, ResourceQuota
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.queueing.headroom import QueueHeadroom
from hami_webhook.quota.claims import ClaimReader
from hami_webhook.quota.deleted_ledgers import DeletedLedgers
from hami_webhook.quota.ledger import new_attempt
from hami_webhook.quota.pricing import ClusterCapacity
from hami_webhook.quota_ports.claims import ClaimHandler, claim_inventory
from hami_webhook.quota_ports.pods import PodPort, Pricing
from hami_webhook.scheduling.boundary import PolicyEnforcer
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.placer import LockedNodes, Placer
from hami_webhook.state.caches import Caches, Change
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.cluster_view import ClusterView
from hami_webhook.state.nominations import Nominations


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
        ours = options.own_namespace
        self.caches = Caches(self.state, clock, options.node_labels, self.nominations, deleted, watches, claims, ours)
        with_claims = ClusterCapacity(self.state, claims)
        self.capacity = with_claims if vendors.drivers else self.state.capacity
        self.view = ClusterView(self.caches, vendors, self.capacity, clock, placement_ttl, options.zone)
        self.problems: Counter[str] = Counter()
        """Events that were recorded about objects, by reason."""
        self.failures: Counter[str] = Counter()
        """Unexpected exceptions that loops survived, by loop."""
        self.namespaces = LiveNamespaces(cluster, self.caches, clock=clock)
        kinds = ChargedKinds(
            vendors=vendors,
            devices=self.state.capacity,
            capacity=self.capacity,
            pods=PodReader(cluster, self.state, ours),
            deleted=deleted,
            bounds=options.bounds,
            timeout=options.charge_timeout,
            clock=clock,
            claims=ClaimReader(cluster, claims) if vendors.drivers else None,
            sleep=sleep,
            new_attempt=new_attempt,
        )
        above = self.caches.accelerator_quotas
        own = kinds.of(ResourceQuotas(cluster), self.caches)
        shared = kinds.of(AcceleratorQuotas(cluster, above.labels), above)
        self.quotas, self.accelerator_quotas = own.store, shared.store
        self.recomputer, self.accelerator_recomputer = own.recomputer, shared.recomputer
        self.queues = ChargeQueues(own.queue, shared.queue)
        self.charger = PodCharger(
            self.queues, shared.queue, self.namespaces, clock=clock, timeout=options.charge_timeout
        )
        members = self.state.by_namespace.there
        headroom = QueueHeadroom(self.caches.queued, members, self.charger.known, vendors, self.capacity, clock)
        timing = ChargeTiming(clock, options.charge_timeout, placement_ttl)
        passing = headroom.refusal_of_claim
        claim_charger = ClaimCharger(cluster, vendors, with_claims, claims, self.charger, self.queues, passing, timing)
        self.claims = ClaimHandler(claim_charger if vendors.drivers else None, watches)
        pricing = Pricing(vendors, self.capacity, clock, placement_ttl)
        self.boundary = PolicyEnforcer(vendors, policies, self.namespaces.namespace)
        self._options = options
        self.admission = AdmissionHandler(
            vendors,
            options.rules,
            policies=policies,
            namespaces=self.namespaces,
            charging=PodPort(cluster, self.caches, pricing, self.charger, self.queues, headroom, watches, new_id),
            device_lister=self.state,
            reservation_key=RESERVATION,
            inventory=partial(claim_inventory, claims, watches),
            allocates=claims.allocates,
        )

    def subscriptions(self) -> Mapping[Kind, Callable[[Change[ResourceQuota]], None]]:
        """The changes that writers of quotas take turns by."""
        return {
            Kind.RESOURCE_QUOTAS: lambda change: self.quotas.shown(change.after),
            Kind.ACCELERATOR_QUOTAS: lambda change: self.accelerator_quotas.shown(change.after),
        }

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
