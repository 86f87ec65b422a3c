"""The core put together on a cluster: what the server, the controller and the simulator all run on."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.handler import AdmissionHandler
from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.admission.pods import bad_request
from hami_webhook.cluster.api import LONGEST_SILENCE, Cluster, ClusterError, Kind
from hami_webhook.config import Settings
from hami_webhook.device_config import builtin_vendors
from hami_webhook.devices.model import BadRequest, Requests
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.objects import MalformedObject, Namespace, Node, Pod, ResourceQuota, checked_device
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.quota.accelerator_cache import AcceleratorQuotaCache
from hami_webhook.quota.account import ChargeRequest, QuotaAccount, Refusal
from hami_webhook.quota.admission_charger import AdmissionCharger, ChargeCounts, Charged
from hami_webhook.quota.hierarchy_charger import HierarchyCharger
from hami_webhook.quota.ledger import LEDGER, RESERVATION, Entry, decode, reservation_id
from hami_webhook.quota.misread import Misreading, misreadings
from hami_webhook.quota.pricing import Charge, charge_of, waiting_charge
from hami_webhook.quota.recompute import Recomputer, Times
from hami_webhook.quota.sources import AcceleratorQuotas, ResourceQuotas
from hami_webhook.quota.store import QuotaStore
from hami_webhook.scheduling import placer
from hami_webhook.scheduling.boundary import PolicyBoundary
from hami_webhook.scheduling.cluster_cache import ClusterCache
from hami_webhook.scheduling.placer import Placer
from hami_webhook.scheduling.preemption.nominations import Nominations

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """What the core runs with; seconds throughout."""

    rules: AdmissionRules = field(default_factory=AdmissionRules)
    policies: placer.SchedulingPolicies = field(default_factory=placer.SchedulingPolicies)
    times: Times = field(default_factory=Times)
    charge_timeout: float = 3.0
    max_ledger: int = 1000
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
        ),
        policies=placer.SchedulingPolicies(settings.node_scheduler_policy, settings.gpu_scheduler_policy),
        times=Times(ttl=settings.quota_reservation_ttl, placement_ttl=settings.node_lock_timeout),
        charge_timeout=settings.quota_charge_timeout,
        max_ledger=settings.quota_max_ledger,
        node_labels=settings.node_label_selector,
    )


class Core:
    """Admission, placement and quota of one process, on one cluster.

    `synced` says whether the caches have caught up; until then pods that ask for managed devices are refused for now.
    """

    def __init__(
        self,
        cluster: Cluster,
        vendors: Vendors,
        options: Options,
        *,
        clock: Callable[[], float],
        policies: Callable[[], PolicyRules] = lambda: PolicyRules.EMPTY,
        synced: Callable[[], bool] = lambda: True,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self.cluster = cluster
        self.vendors = vendors
        self.clock = clock
        self.zone = options.zone
        """The time zone of handshakes; None for the local one."""
        self.placement_ttl = placement_ttl = options.times.placement_ttl
        self.state = ClusterCache(vendors, placement_ttl=placement_ttl, zone=options.zone)
        self.nominations = Nominations(self.state, vendors, clock=clock, card_policy=options.policies.card)
        self.caches = Caches(self.state, clock, options.node_labels, self.nominations)
        self.problems: Counter[str] = Counter()
        """Events that were recorded about objects, by reason."""
        self.failures: Counter[str] = Counter()
        """Unexpected exceptions that loops survived, by loop."""
        self.ignored: set[tuple[str, tuple[str, ...]]] = set()
        """Namespaces that pods came to, with the annotations there that mean nothing."""
        above = self.caches.accelerator_quotas
        self.quotas = QuotaStore(ResourceQuotas(cluster), vendors, clock=clock, cache=self.caches, sleep=sleep)
        self.accelerator_quotas = QuotaStore(
            AcceleratorQuotas(cluster, above.labels), vendors, clock=clock, cache=above, sleep=sleep
        )
        self.recomputer = Recomputer(
            self.quotas, cluster, vendors, self.state, clock=clock, times=options.times, cached=self.state.observed
        )
        self.accelerator_recomputer = Recomputer(
            self.accelerator_quotas,
            cluster,
            vendors,
            self.state,
            clock=clock,
            times=options.times,
            cached=self.state.observed,
            namespaces=above.selected,
            durations=self.recomputer.durations,
        )
        counts = ChargeCounts()

        def charger(store: QuotaStore, recomputer: Recomputer, scope: str | None) -> AdmissionCharger:
            return AdmissionCharger(
                store,
                clock=clock,
                recompute=recomputer.inline,
                sleep=sleep,
                timeout=options.charge_timeout,
                max_ledger=options.max_ledger,
                scope=scope,
                counts=counts,
                shows=self._shows,
            )

        self.charger = HierarchyCharger(
            charger(self.quotas, self.recomputer, None),
            charger(self.accelerator_quotas, self.accelerator_recomputer, ""),
            clock=clock,
            timeout=options.charge_timeout,
        )
        self.boundary = PolicyBoundary(vendors, policies, self.namespace)
        self.placer = Placer(
            cluster,
            self.state,
            vendors,
            clock=clock,
            policies=options.policies,
            boundary=self.boundary,
            placement_ttl=placement_ttl,
            store=self.quotas,
            above=self.accelerator_quotas,
            nominations=self.nominations,
        )
        self.admission = AdmissionHandler(
            vendors,
            options.rules,
            policies=policies,
            namespaces=self,
            charging=_QuotaPort(self, synced, new_id),
            lister=self.state,
            reservation_key=RESERVATION,
        )

    def known(self, name: str) -> Namespace | None:
        """The namespace, if it is in the cache."""
        return self.caches.namespaces.get(name)

    async def namespace(self, name: str) -> Namespace | None:
        """The namespace from the cache, else by a live read; None if it isn't there or can't be asked for."""
        known = self.known(name)
        if known is not None:
            return known
        try:
            found = Namespace.from_object(await self.cluster.get(Kind.NAMESPACES, name))
        except (ClusterError, MalformedObject):
            return None
        self.caches.set_namespace(found)
        return found

    def misreadings(self, quota: ResourceQuota) -> list[Misreading]:
        """What of a quota is misread, with the cards that are known now."""
        return misreadings(quota, self.vendors, builtin_vendors(), self.state)

    def _shows(self, account: QuotaAccount, identity: str, entry: Entry) -> bool:
        """Whether a pod with this UID was seen, and costs the quota by itself what its entry says."""
        pod, now = self.state.observed(identity), self.clock()
        if pod is None or account.quota.namespace not in ("", pod.namespace) or pod.ended(now):
            return False
        charge = charge_of(pod, self.vendors, self.state, now, self.placement_ttl, account.cards)
        return charge.derivable and account.covers(pod) and charge.only(account.hard) == entry.amounts

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

    def __init__(self, core: Core, synced: Callable[[], bool], new_id: Callable[[], str]) -> None:
        self.core = core
        self.synced = synced
        self.new_id = new_id

    def is_unlimited(self, pod: Pod) -> bool:
        return self.core.charger.is_unlimited(pod)

    def price(self, pod: Pod, requests: Mapping[str, Requests]) -> _WaitingPod:
        try:
            charge = waiting_charge(pod, self.core.vendors, self.core.state, requests=requests)
        except BadRequest as error:
            raise bad_request(error) from error
        return _WaitingPod(self, pod, charge)

    async def is_unused(self, pod: Pod, secret: str) -> bool:
        """Whether a ledger has the reservation with this secret, and no other pod carries it, by live lists.

        False where that isn't known. Pods are listed only if there is such a reservation: any tenant may bring secrets.
        """
        identity, cluster = reservation_id(secret), self.core.cluster
        try:
            quotas = await self.core.placer.quotas_of(pod.namespace)
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


@dataclass(frozen=True, slots=True)
class _WaitingPod:
    """A pod with its price, ready to be charged."""

    charging: _QuotaPort
    pod: Pod
    cost: Charge

    async def charge(self, uid: str, *, reservation: str, dry_run: bool, time_left: float | None) -> Charged:
        if not self.charging.synced():
            namespace = self.pod.namespace
            raise Denied(
                503, f"quota: can't charge namespace {namespace} now: caches not synced; try again", retry_after=1
            )
        if reservation and not await self.charging.is_unused(self.pod, reservation):
            reservation = ""
        core = self.charging.core
        if core.caches.accelerator_quotas.size and await core.namespace(self.pod.namespace) is None:
            text = f"quota: can't charge namespace {self.pod.namespace} now: it can't be read; try again"
            raise Denied(503, text, retry_after=1)
        request = ChargeRequest(
            uid,
            self.pod,
            self.cost,
            dry_run,
            reservation,
            lambda cards: waiting_charge(self.pod, core.vendors, core.state, cards),
        )
        outcome = await core.charger.charge(request, time_left)
        if isinstance(outcome, Refusal):
            retry_after = 1 if outcome.code == 503 else None
            raise Denied(outcome.code, outcome.message, cause="quota", retry_after=retry_after)
        return outcome

    async def reserve(self, *, reservation: str, dry_run: bool, time_left: float | None) -> tuple[Charged, str]:
        secret = self.charging.new_id()
        charged = await self.charge(
            reservation_id(secret), reservation=reservation, dry_run=dry_run, time_left=time_left
        )
        return charged, secret


class Caches:
    """What is known of the cluster's objects, kept by informers or by the caller that makes the objects."""

    def __init__(
        self,
        state: ClusterCache,
        clock: Callable[[], float],
        node_labels: tuple[tuple[str, str], ...] = (),
        nominations: Nominations | None = None,
    ) -> None:
        self.state = state
        self._nominations = nominations
        self.disruption_budgets: dict[tuple[str, str], PodDisruptionBudget] = {}
        self._node_labels = node_labels
        self.namespaces: dict[str, Namespace] = {}
        self.accelerator_quotas = AcceleratorQuotaCache(self.namespaces)
        self._quotas: dict[str, dict[str, ResourceQuota]] = {}
        self._clock = clock
        self.current_within: Callable[[float], bool] = lambda seconds: False
        """Whether the quotas' watch gave a sign of life in the last seconds, so that the quotas were complete then."""
        self.unreadable: dict[tuple[str, str, str], str] = {}

    def quotas(self, namespace: str) -> Sequence[ResourceQuota] | None:
        """The namespace's quotas, None unless the cache is synced and its watch alive."""
        return list(self._quotas.get(namespace, {}).values()) if self.current_within(LONGEST_SILENCE) else None

    def covering(self, namespace: str) -> Sequence[ResourceQuota] | None:
        """The quotas of both kinds that cover a namespace's pods; None unless the caches are synced and alive."""
        own, above = self.quotas(namespace), self.accelerator_quotas.quotas()
        if own is None or above is None:
            return None
        return [*own, *self.accelerator_quotas.covering(namespace)]

    def quota(self, namespace: str, name: str) -> ResourceQuota | None:
        return self._quotas.get(namespace, {}).get(name)

    def quota_of(self, kind: Kind, namespace: str, name: str) -> ResourceQuota | None:
        """The quota of a kind; None for other kinds."""
        match kind:
            case Kind.RESOURCE_QUOTAS:
                return self.quota(namespace, name)
            case Kind.ACCELERATOR_QUOTAS:
                return self.accelerator_quotas.quota(name)
        return None

    def all_quotas(self) -> list[ResourceQuota]:
        return [quota for quotas in self._quotas.values() for quota in quotas.values()]

    def set_namespace(self, namespace: Namespace) -> None:
        """A namespace is there, or has other labels or annotations."""
        before = self.namespaces.get(namespace.name)
        self.namespaces[namespace.name] = namespace
        if before is None or before.labels != namespace.labels:
            self.accelerator_quotas.relabelled()

    def put(self, kind: Kind, obj: dict[str, Any]) -> None:
        """An object was added or changed. One that can't be read is left out and noted."""
        key = _key(kind, obj)
        self.unreadable.pop(key, None)
        try:
            self._put(kind, obj)
        except MalformedObject as error:
            self.drop(kind, obj)
            self.unreadable[key] = str(error)
        except Exception as error:
            logger.exception("%s can't be read", " ".join(key))
            self.drop(kind, obj)
            self.unreadable[key] = f"{type(error).__name__}: {error}"

    def _put(self, kind: Kind, obj: dict[str, Any]) -> None:
        match kind:
            case Kind.NODES:
                node = Node.from_object(obj)
                if all(node.labels.get(key) == value for key, value in self._node_labels):
                    self.state.set_node(node, self._clock())
                else:
                    self.state.remove_node(node.name)
            case Kind.PODS:
                pod = Pod.from_object(obj).compact()
                self.state.set_pod(pod, self._clock())
                if self._nominations is not None:
                    self._nominations.set_pod(pod)
            case Kind.NAMESPACES:
                self.set_namespace(Namespace.from_object(obj))
            case Kind.RESOURCE_QUOTAS:
                quota = ResourceQuota.from_object(obj)
                self._quotas.setdefault(quota.namespace, {})[quota.name] = quota
            case Kind.ACCELERATOR_QUOTAS:
                self.accelerator_quotas.put(obj)
            case Kind.DEVICES:
                self.state.set_device(*checked_device(obj))
            case Kind.POD_DISRUPTION_BUDGETS:
                budget = PodDisruptionBudget.from_object(obj)
                self.disruption_budgets[budget.namespace, budget.name] = budget

    def drop(self, kind: Kind, obj: dict[str, Any]) -> None:
        """An object is gone."""
        self.unreadable.pop(_key(kind, obj), None)
        meta = obj.get("metadata") or {}
        name, namespace = meta.get("name") or "", meta.get("namespace") or ""
        match kind:
            case Kind.NODES:
                self.state.remove_node(name)
            case Kind.PODS:
                self.state.remove_pod(meta.get("uid") or "")
                if self._nominations is not None:
                    self._nominations.remove_pod(meta.get("uid") or "")
            case Kind.NAMESPACES:
                self.namespaces.pop(name, None)
                self.accelerator_quotas.relabelled()
            case Kind.RESOURCE_QUOTAS:
                self._quotas.get(namespace, {}).pop(name, None)
            case Kind.ACCELERATOR_QUOTAS:
                self.accelerator_quotas.drop(name)
            case Kind.DEVICES:
                self.state.remove_device(name)
            case Kind.POD_DISRUPTION_BUDGETS:
                self.disruption_budgets.pop((namespace, name), None)


def _key(kind: Kind, obj: Mapping[str, Any]) -> tuple[str, str, str]:
    meta = obj.get("metadata") or {}
    return kind.value, meta.get("namespace") or "", meta.get("name") or ""
