"""How reviews of pods reach the quotas: a new pod's gate, its cost and its charge (docs/spec/quota.md#5).

`price` reads nothing that isn't cached; `charge` is the last step of a review, and the only one that writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import Struct, structs

from hami_webhook.admission.denial import Denied, bad_request
from hami_webhook.admission.new_pod import NewPod
from hami_webhook.charging.pods import PodCharger
from hami_webhook.charging.queue import ChargeResult
from hami_webhook.charging.queues import ChargeQueues
from hami_webhook.charging.taken_names import refuse_taken_name
from hami_webhook.cluster.api import Cluster, ClusterError, Kind
from hami_webhook.cluster.watches import Watches
from hami_webhook.devices.foreign_scheduler import ForeignScheduler
from hami_webhook.devices.model import BadRequest, Requests
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.claims_wire import ResourceClaim, ResourceClaimTemplate
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import RESERVATION, MalformedObject, Pod, ResourceQuota
from hami_webhook.kube.pod_group import SIZE, PodGroup
from hami_webhook.queueing.headroom import CLAIMS, KUEUE, QueueHeadroom, manager_of, not_waiting
from hami_webhook.quota.account import ChargeRequest, Gate, QuotaAccount
from hami_webhook.quota.card_selection import CardSelection
from hami_webhook.quota.claims import TemplateReader, refuse_both_ways, unmet
from hami_webhook.quota.enforcement import Enforcement
from hami_webhook.quota.floors import floor_id
from hami_webhook.quota.known_quotas import PodQuotas
from hami_webhook.quota.ledger import LEDGER, decode, reservation_id, update_id
from hami_webhook.quota.native_quotas import native_refusal
from hami_webhook.quota.pricing import Charge, ClusterCapacity, charge_of, price_pending
from hami_webhook.quota.refusals import Refusal
from hami_webhook.quota.rollouts import other_version
from hami_webhook.quota.runtime import deadline_of, limits_runtime, runtime_fault, runtimes_of
from hami_webhook.quota_ports.answers import denial, unsynced
from hami_webhook.state.caches import Caches


class Pricing(Struct, frozen=True):
    """What pods are priced by; `placement_ttl` is in seconds."""

    vendors: Vendors
    capacity: ClusterCapacity
    clock: Callable[[], float]
    placement_ttl: float


class PodPort:
    """AdmissionHandler's port to the quotas, for pods. `new_id` gives secrets of reservations."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        pricing: Pricing,
        charger: PodCharger,
        queues: ChargeQueues,
        headroom: QueueHeadroom,
        watches: Watches,
        new_id: Callable[[], str],
    ) -> None:
        self.cluster = cluster
        self.caches = caches
        self.pricing = pricing
        self.vendors = pricing.vendors
        self.charger = charger
        self.headroom = headroom
        self.templates = TemplateReader(cluster, caches.claims)
        self.watches = watches
        self.new_id = new_id
        self.pods = caches.state.by_namespace
        self.refused_later = NativeQuotaPrecheck(cluster, caches)
        self.shown = caches.shown
        self._queues = queues

    @property
    def counted_labels(self) -> frozenset[str]:
        """The labels of pods that quotas count by, as the caches show them."""
        return self.caches.accelerator_quotas.counted_labels

    @property
    def named_groups(self) -> frozenset[str]:
        """The groups of users to which quotas give limits, as the caches show them."""
        return self.caches.accelerator_quotas.named_groups

    def of(self, pod: Pod) -> CachedPodQuotas:
        """A new pod with what the caches show of its quotas."""
        known = self.charger.known(pod)
        return CachedPodQuotas(self, pod, known, known.unlimited, self.pricing.capacity)

    def limit_runtime(self, draft: PodDraft, new: NewPod, quotas: Sequence[ResourceQuota]) -> None:
        """Give a new pod the deadline that these of its quotas ask for. Raises `Denied` for amounts that can't be
        meant.
        """
        quotas, pod = [each for each in quotas if limits_runtime(each)], new.pod
        if not quotas:
            return
        price = partial(price_pending, pod, self.vendors, self.pricing.capacity, asks=(new.requests, new.foreign))
        accounts, charge = [QuotaAccount.read(each, self.vendors) for each in quotas], _priced(price)
        runtimes = runtimes_of(accounts, pod, charge)
        if runtimes and pod.active_deadline is None:  # with one it is in the scope of others
            runtimes = runtimes_of(accounts, structs.replace(pod, active_deadline=1), charge)
        deadline = deadline_of(pod, runtimes)
        if deadline is not None:
            draft.active_deadline = deadline.seconds
            draft.warn(deadline.warning)
            new.pod = structs.replace(pod, active_deadline=deadline.seconds)

    def queues(self, pod: Pod, requests: Mapping[str, Requests], quotas: Sequence[ResourceQuota]) -> bool:
        """Whether a new pod gets our gate: as a member of a pod group, or for one of these quotas that queues and that
        it concerns.

        A pod that somebody else manages passes the queue, unless the gate of another holds it: any quota may then be
        one that queues by the time it is gone. Raises `Denied` for a group that its pods name with different sizes.
        """
        group, held = PodGroup.of(pod), bool(pod.gates) and pod.gated_by_others
        if held:
            quotas = self.caches.covering(pod.namespace) or ()
        else:
            quotas = [each for each in quotas if Enforcement.of(each) is Enforcement.QUEUE]
        if not requests or not (quotas or group):
            return False
        manager = manager_of(pod, self.vendors)
        if manager and not held and not (group and manager == KUEUE):
            return False
        if group:
            self._refuse_other_size(pod, group)
            return True
        charge = _priced(partial(price_pending, pod, self.vendors, self.pricing.capacity, asks=(requests, ())))
        return any(QuotaAccount.read(quota, self.vendors).concerns(pod, charge) for quota in quotas)

    def _refuse_other_size(self, pod: Pod, group: PodGroup) -> None:
        """Raise `Denied` for a pod that gives its group another size than the pods that are there."""
        member = self.pods.member(group.key)
        known = None if member is None else PodGroup.of(member)
        if member is not None and known is not None and known.size != group.size:
            text = f"pod {member.name} of pod group {group.name} says {known.size}; all its pods must say the same"
            raise Denied(403, f"label {SIZE} {group.size}: {text}")

    def reprice(self, before: Pod, after: Pod) -> WaitingPod | None:
        """What an update may add to the charge of a pod that waits; None if nothing."""
        vendors, pricing = self.vendors, self.pricing
        if floor_id(before, vendors) == floor_id(after, vendors):
            return None
        known = self.charger.known(after)
        if known.unlimited:
            return None

        def cost(cards: CardSelection | None = None) -> Charge:
            return charge_of(before, vendors, pricing.capacity, pricing.clock(), pricing.placement_ttl, cards)

        former = ChargeRequest(before.uid, before, cost(), on_cards=cost, floor_id=partial(floor_id, before, vendors))
        charge = _priced(partial(price_pending, after, vendors, pricing.capacity))
        return WaitingPod(self, after, charge, known, pricing.capacity, None if after.queued else former)

    async def is_unused(self, pod: Pod, secret: str) -> bool:
        """Whether a ledger has the reservation with this secret, and no other pod carries it, by live lists.

        False where that isn't known. Pods are listed only if there is such a reservation: any tenant may bring secrets.
        """
        identity = reservation_id(secret)
        try:
            quotas = await self._queues.covering(pod.namespace)
            if not any(identity in decode(quota.annotations.get(LEDGER)) for quota in quotas):
                return False
            pods = await self.cluster.list(Kind.PODS, pod.namespace)
        except ClusterError:
            return False
        return not any(
            item["metadata"]["uid"] != pod.uid and _annotations(item).get(RESERVATION) == secret for item in pods.items
        )

    def equal_members(self, pod: Pod) -> int:
        """How many other pods of a pod's group request the same."""
        group, vendors = PodGroup.of(pod), self.vendors
        members = [] if group is None else self.pods.members(group.key)
        same = floor_id(pod, vendors)
        return sum(each.uid != pod.uid and floor_id(each, vendors) == same for each in members)


class NativeQuotaPrecheck:
    """Looks for what the API server refuses a pod for once every webhook has allowed it (docs/spec/quota.md#7.2).

    Found in the caches, without a request; refused after a live read of the one object that stands in the way.

    `quotas` are the known ResourceQuotas of the pod's namespace. What can't be read refuses nothing: the pod is then
    charged, and its charge expires.
    """

    def __init__(self, cluster: Cluster, known: Caches) -> None:
        self._cluster = cluster
        self._known = known

    def suspects(self, pod: Pod, name: str, quotas: Sequence[ResourceQuota], *, sized: bool) -> bool:
        """Whether the caches show something that the API server would refuse the pod for; arguments as in `refusal`."""
        if name and self._known.has_pod(pod.namespace, name):
            return True
        return any(native_refusal(quota, pod, sized=sized) is not None for quota in quotas)

    async def refusal(self, pod: Pod, name: str, quotas: Sequence[ResourceQuota], *, sized: bool) -> Refusal | None:
        """The API server's own refusal, or None.

        `name` is empty while it isn't generated. `sized` is as in `native_refusal`.
        """
        if name and self._known.has_pod(pod.namespace, name):
            taken = await refuse_taken_name(self._cluster, Kind.PODS, pod.namespace, name, pod.uid)
            if taken is not None:
                return taken
        for quota in quotas:
            if native_refusal(quota, pod, sized=sized) is not None:
                text = await self._exceeded(quota, pod, sized=sized)
                if text is not None:
                    return Refusal(403, text, overrun=True)
        return None

    async def _exceeded(self, quota: ResourceQuota, pod: Pod, *, sized: bool) -> str | None:
        try:
            found = await self._cluster.get(Kind.RESOURCE_QUOTAS, quota.name, pod.namespace)
            return native_refusal(ResourceQuota.from_object(found), pod, sized=sized)
        except (ClusterError, MalformedObject):
            return None


class CachedPodQuotas(Struct):
    """A new pod, with what the caches show of its quotas just now."""

    port: PodPort
    pod: Pod
    known: PodQuotas
    unlimited: bool
    capacity: ClusterCapacity
    named: Sequence[ResourceClaim] = ()

    async def read_templates(self) -> None:
        """Read what its claims are made from and isn't cached."""
        port, claims = self.port, self.port.caches.claims
        found: Mapping[tuple[str, str], ResourceClaimTemplate] = {}
        if claims.without_template(self.pod):
            found = await port.templates.of(self.pod)
            self.capacity = ClusterCapacity(port.caches.state, claims.with_templates(found))
        await claims.prepare(self.pod, found)
        if not port.vendors.resource_names.isdisjoint(self.pod.named):
            self.named = await port.templates.named(self.pod)

    async def refuse_uncreatable(self, name: str, *, sized: bool) -> None:
        """Raise `Denied` for a pod that the API server is certain to refuse after us."""
        refused_later = self.port.refused_later
        quotas = [account.quota for account in self.known.own.accounts.values()]
        if not refused_later.suspects(self.pod, name, quotas, sized=sized):
            return
        refusal = await refused_later.refusal(self.pod, name, quotas, sized=sized)
        if refusal is not None:
            raise Denied(refusal.code, refusal.message, cause="quota" if refusal.overrun else "request")
        self.known = self.port.charger.known(self.pod)  # that took a read

    def price(self, requests: Mapping[str, Requests], foreign: Sequence[ForeignScheduler]) -> WaitingPod:
        """The pod with its price. Raises `Denied` for amounts that can't be meant, or if it may run too long."""
        vendors = self.port.vendors

        def price() -> Charge:
            charge = price_pending(self.pod, vendors, self.capacity, asks=(requests, foreign))
            if requests and vendors.drivers:
                refuse_both_ways(self.pod, requests, self.capacity, self.named, vendors.drivers)
            return charge

        cost = _priced(price)
        accounts = (*self.known.own.accounts.values(), *self.known.accelerator_quotas.accounts.values())
        if fault := runtime_fault(self.pod, runtimes_of(accounts, self.pod, cost)):
            raise Denied(403, fault, cause="quota")
        return WaitingPod(self.port, self.pod, cost, self.known, self.capacity)


class WaitingPod(Struct, frozen=True):
    """A pod with its price, ready to be charged; `former` is what it was before an update."""

    port: PodPort
    pod: Pod
    cost: Charge
    known: PodQuotas
    capacity: ClusterCapacity
    former: ChargeRequest | None = None

    async def charge(
        self, uid: str, *, reservation: str, dry_run: bool, time_left: float | None, expects_gate: bool = False
    ) -> ChargeResult:
        """Charge it. Raises `Denied`."""
        port, pod = self.port, self.pod
        if not port.watches.synced:
            raise unsynced(pod.namespace)
        if reservation and not await port.is_unused(pod, reservation):
            reservation = ""
        gate, why = self._gate(expects_gate=expects_gate)
        passing = await port.headroom.refusal(pod, why, self.capacity) if why else None
        if passing is not None:
            raise denial(passing)
        request = ChargeRequest(
            uid if self.former is None else update_id(uid),
            pod,
            self.cost,
            dry_run,
            reservation,
            partial(price_pending, pod, port.vendors, self.capacity),
            partial(floor_id, pod, port.vendors),
            self.former,
            gate,
            equal_members=partial(port.equal_members, pod),
        )
        outcome = await port.charger.charge(request, time_left, self.known)
        if isinstance(outcome, Refusal):
            pods = port.pods.of(pod.namespace).values()
            raise denial(outcome, other_version(pod, pods) if outcome.overrun and gate is not Gate.CLOSED else "")
        if pod.resource_claims:
            outcome = replace(outcome, warnings=[*outcome.warnings, *unmet(pod, self.capacity)])
        return outcome

    def _gate(self, *, expects_gate: bool) -> tuple[Gate, str]:
        """What quotas that queue expect of it; and, where it passes those that wait, why."""
        if self.pod.queued:
            return Gate.CLOSED, ""
        if expects_gate:
            manager = manager_of(self.pod, self.port.vendors)
            return (Gate.NONE, not_waiting(manager)) if manager else (Gate.MISSING, "")
        passes = self.former is None and self.port.vendors.drivers
        return Gate.NONE, CLAIMS if passes else ""

    def new_reservation(self) -> tuple[str, str]:
        """A secret, and the ledger id of the reservation that it stands for."""
        secret = self.port.new_id()
        return secret, reservation_id(secret)


def _priced(price: Callable[[], Charge]) -> Charge:
    """The price. Raises `Denied` for amounts that can't be meant."""
    try:
        return price()
    except BadRequest as error:
        raise bad_request(error) from error


def _annotations(obj: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = obj["metadata"].get("annotations") or {}
    return found
