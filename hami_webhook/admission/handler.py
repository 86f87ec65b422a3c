"""The steps of `/mutate`, `/validate` and `/webhook` in their order (docs/spec/quota.md#4).

Looking up a namespace and charging the quota are the caller's: both come in as a protocol, so this knows no cluster.

A pod that names nothing managed passes first, without I/O, whatever is broken (Q7); the charge comes last, so that
nothing is charged that is refused here (Q6). `/mutate` must not charge: the pod isn't final, and has no UID.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Set
from functools import partial
from typing import Any

from hami_webhook.admission import policy
from hami_webhook.admission.defaults import forget_list
from hami_webhook.admission.denial import Denied, bad_request
from hami_webhook.admission.identities import (
    AdmissionRules,
    User,
    changed_keys,
    is_account_of,
    is_node,
    refuse_binding,
    refuse_relabelled,
)
from hami_webhook.admission.misspelt import NameSuggester
from hami_webhook.admission.new_pod import NewPod
from hami_webhook.admission.pods import (
    ForeignMutation,
    Mutation,
    added_privileged,
    is_unmanaged,
    may_get_claims,
    mutate,
    mutate_for_foreign,
    named_vendors,
    names_managed,
    normalise,
    own_to_schedule,
    read_pod,
    refuse_ephemeral,
    refuse_unplaced,
    reset,
    resources_in,
    validate_update,
)
from hami_webhook.admission.policy import AdmissionContext
from hami_webhook.admission.ports import ChargedPod, Namespaces, PodEstimate, QuotaService
from hami_webhook.admission.requests import RequestCache
from hami_webhook.admission.review import UNCHANGED, Answer, ObjectReview, Review, WorkloadReview, audit_of
from hami_webhook.admission.rules import EVERY_POD, NAMING_POD, STATIC_POD, check_rules
from hami_webhook.admission.submitters import Stamp, refuse_stamp, stamped_templates
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.foreign_pods import is_mirror, names_any
from hami_webhook.devices.foreign_scheduler import ForeignScheduler
from hami_webhook.devices.keys import PolicyTarget
from hami_webhook.devices.model import BadRequest
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.conversion import convert
from hami_webhook.dra.cost import DeviceInventory
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import QUOTA_GATE, Pod
from hami_webhook.kube.stamps import SUBMITTED_BY
from hami_webhook.kube.wire import ReviewedPod
from hami_webhook.policy.evaluation import governed_keys
from hami_webhook.policy.rules import PolicyRules

logger = logging.getLogger(__name__)


class AdmissionHandler:
    """Answers reviews of pods. Every method raises `Denied` for a refusal."""

    def __init__(
        self,
        vendors: Vendors,
        rules: AdmissionRules,
        *,
        policies: Callable[[], PolicyRules],
        namespaces: Namespaces,
        charging: QuotaService,
        device_lister: DeviceLister,
        reservation_key: str,
        inventory: Callable[[], Awaitable[DeviceInventory]],
        allocates: Callable[[Pod, frozenset[str]], bool],
    ) -> None:
        """`inventory` gives the devices and classes of ResourceClaims; it raises `Denied` while they aren't known.

        `allocates`: whether kube-scheduler has to allocate claims for a pod.
        """
        self._vendors = vendors
        self._rules = rules
        self._policies = policies
        self._namespaces = namespaces
        self._charging = charging
        self._device_lister = device_lister
        self._reservation_key = reservation_key
        self._inventory = inventory
        self._allocates = allocates
        self._requests = RequestCache(vendors)
        self._new = partial(NewPod, vendors, device_lister, self._requests)
        self._known_names = NameSuggester(vendors)
        self._governed_keys = governed_keys(vendors.governed.values())
        self._touches_all = bool(vendors.touching_every_container)

    async def mutate(self, review: Review, time_left: float | None = None) -> Answer:
        """`/mutate`: normalise, and check what comes of it. It charges nothing, so it needs no time for that."""
        if not _is_new_pod(review):
            return UNCHANGED
        done: Mutation | None = None
        try:
            mutated = await self._mutated(review)
            if mutated is None:
                return UNCHANGED
            done, new = mutated
            requests = await self._check(new, review, done.context)
            if requests:
                quotas = self._charging.shown(new.pod.namespace)
                if quotas:
                    self._charging.limit_runtime(done.draft, new, quotas)
                if done.converts:
                    await self._convert(done.draft, new)
                elif self._charging.queues(new.pod, new.requests, quotas):
                    done.draft.add_gate(QUOTA_GATE)
        except Denied as denial:
            self._warn_besides(denial, review, done)
            raise
        return _answer(done, new)

    async def validate(self, review: Review, time_left: float | None = None) -> Answer:
        """`/validate`: check, then charge as the last step.

        For a Binding, check the metadata that it would write on its pod.
        """
        if review.kind == "Binding":
            more = self._reservation_key, self._charging.counted_labels
            refuse_binding(review.object, _user_of(review), self._vendors, self._rules, *more)
        elif review.kind == "Pod" and review.operation == "UPDATE":
            return await self._update(review, time_left)
        if not _is_new_pod(review):
            return UNCHANGED
        meta, unmanaged = review.object.metadata, is_unmanaged(review.object, self._vendors)
        stamp = Stamp.of(meta.annotations) if meta is not None and meta.annotations else Stamp()
        if stamp.subject is not None or (self._rules.submitters is not None and not unmanaged):
            self._refuse_stamp(review, stamp, mutated=not unmanaged)
        if unmanaged:
            if not (self._vendors.drivers and may_get_claims(review.object)):
                return UNCHANGED
            # of a driver of somebody else, for all that is known: no rule of ours is about it
            new = self._new(read_pod(review.object, review.namespace))
        else:
            found = self._read(review)
            if found is None or not (await self._check(found, review, stored=True) or found.pod.resource_claims):
                return UNCHANGED
            new = found
        estimate = await self._priced(new, review, sized=_is_sized(review.object))
        if estimate is None:
            return UNCHANGED
        charged = await estimate.charge(
            _uid_of(new.pod) or review.uid,
            reservation=new.pod.annotations.get(self._reservation_key, ""),
            dry_run=review.dry_run,
            time_left=time_left,
            expects_gate=bool(new.requests),
        )
        return Answer(warnings=charged.warnings, audit=audit_of(charged.amounts))

    async def webhook(self, review: Review, time_left: float | None = None) -> Answer:
        """`/webhook`, HAMi's path: mutate, validate and charge at once, with a reservation in place of the UID."""
        if not _is_new_pod(review):
            return await self.validate(review, time_left)
        done: Mutation | None = None
        try:
            mutated = await self._mutated(review, own_path=False)
            if mutated is None:
                return UNCHANGED
            done, new = mutated
            if not await self._check(new, review, done.context):
                return _answer(done, new)
            if quotas := self._charging.shown(new.pod.namespace):
                self._charging.limit_runtime(done.draft, new, quotas)
            charged = await self._charge_reservation(done, new, review, time_left)
        except Denied as denial:
            self._warn_besides(denial, review, done)
            raise
        return _answer(done, new, charged)

    async def _charge_reservation(
        self, done: Mutation, new: NewPod, review: Review, time_left: float | None
    ) -> ChargedPod | None:
        """Charge a pod that has no UID yet, and leave the secret of its reservation on it; None for no charge."""
        if new.pod.queued:
            raise Denied(403, f"scheduling gate {QUOTA_GATE}: nobody would remove it here; remove it from the pod")
        estimate = await self._priced(new, review, sized=False)
        if estimate is None:
            return None
        secret, identity = estimate.new_reservation()
        charged = await estimate.charge(
            identity,
            reservation=new.pod.annotations.get(self._reservation_key, ""),
            dry_run=review.dry_run,
            time_left=time_left,
        )
        if charged.amounts and not review.dry_run:
            done.draft.annotations[self._reservation_key] = secret
        return charged

    async def _convert(self, draft: PodDraft, new: NewPod) -> None:
        """Convert the limits of a pod that breaks no rule into claims. Raises `Denied`."""
        try:
            conversion = convert(new.pod, new.requests, self._vendors, await self._inventory())
        except BadRequest as error:
            raise bad_request(error) from error
        if conversion is not None:
            conversion.apply(draft)
            forget_list(draft)

    def stamp_templates(self, review: WorkloadReview) -> Answer:
        """`/templates`: write on the pod templates of a workload who submitted them."""
        schedulers = self._vendors.asked_by_annotation
        made = stamped_templates(
            *(review.object.spec, review.old_object.spec, review.username, self._named_groups(review)),
            *(self._rules.submitters, schedulers),
        )
        return Answer(made) if made else UNCHANGED

    def _named_groups(self, review: ObjectReview[Any]) -> Set[str]:
        """Those of the user's groups that quotas name."""
        return self._charging.named_groups.intersection(review.groups)

    def _refuse_stamp(self, review: Review, stamp: Stamp, *, mutated: bool) -> None:
        """Refuse a new pod with another stamp than it should have; not one that its node runs already."""
        pod = read_pod(review.object, review.namespace)
        if not (pod.node_name and is_mirror(pod) and is_node(_user_of(review), pod.node_name)):
            refuse_stamp(stamp, self._stamp_of(review, stamp), review.groups, mutated=mutated)

    def misspelt(self, review: Review) -> list[str]:
        """`/names`: return the warnings to the creator of a pod without managed resources. Refuse nothing."""
        meta = review.object.metadata
        return self._known_names.misspelt(resources_in(review.object), (meta and meta.annotations) or {})

    def _warn_besides(self, denial: Denied, review: Review, done: Mutation | None) -> None:
        """Add to a refusal what the creator of the pod is warned of besides: it's often why."""
        drafted = done.draft.warnings if done is not None else ()
        denial.warnings = tuple(dict.fromkeys((*drafted, *self.misspelt(review))))

    def _read(self, review: Review) -> NewPod | None:
        """A new pod that breaks no rule for every pod; None for one that its node runs already.

        Nothing can be decided about that: it holds its cards, and the recompute counts them, whatever room there is.
        """
        new = self._new(read_pod(review.object, review.namespace))
        check_rules(EVERY_POD, new)
        # only the node itself says so: anybody may write the annotation
        if new.pod.node_name and is_mirror(new.pod) and is_node(_user_of(review), new.pod.node_name):
            check_rules(STATIC_POD, new)
            return None
        scheduler = self._vendors.reserving.get(new.pod.namespace)
        if scheduler is not None and self._reserves(scheduler, new, _user_of(review)):
            return None
        return new

    def _reserves(self, scheduler: ForeignScheduler, new: NewPod, user: User) -> bool:
        """Whether the scheduler of this namespace holds a card for others with the pod, which has its node and is free.

        Raises `Denied` for pods with cards that others make where it does so: they would be held without a charge.
        """
        if not (new.foreign or names_managed(new.pod, self._vendors)):
            return False
        if is_account_of(scheduler, user, self._vendors, self._rules):
            return True
        who = user.name or "this user"
        text = f"only {scheduler.title} makes pods with cards in namespace {new.pod.namespace}, not {who}"
        raise Denied(403, f"{text}; use another namespace, or name {scheduler.title}'s account in the configuration")

    async def _priced(self, new: NewPod, review: Review, *, sized: bool) -> PodEstimate | None:
        """What a pod costs; None where nothing has to be charged.

        The price of a pod for another scheduler may be a refusal, and what a dry run comes to no write proves.
        """
        quotas = self._charging.of(new.pod)
        if quotas.unlimited and not review.dry_run and not new.foreign:
            return None
        meta = review.object.metadata
        await quotas.refuse_uncreatable((meta and meta.name) or "", sized=sized)
        if self._vendors.drivers and (new.pod.resource_claims or not new.requests):
            await quotas.read_templates()
        return quotas.price(new.requests, new.foreign)

    async def _mutated(self, review: Review, *, own_path: bool = True) -> tuple[Mutation, NewPod] | None:
        """What mutation makes of a pod, and the pod as it is to be stored; None for one that names nothing managed."""
        if not self._touches_all and is_unmanaged(review.object, self._vendors):
            return None
        new = self._read(review)
        if new is None:
            return None
        pod = new.pod
        draft = PodDraft(review.object, original=pod)
        context = await self._context(pod) if new.foreign and new.governed_foreign else None
        foreign = mutate_for_foreign(draft, new, context) if new.foreign or new.mixed else ForeignMutation()
        if foreign.named and not names_any(draft, self._vendors.own_names):
            done = Mutation(draft)  # nothing of ours, in no container
        else:
            done = await self._ours(draft, new, foreign, context, own_path=own_path)
        if new.foreign:
            done = done.with_foreign(foreign)
        for message in done.draft.messages:
            logger.debug("%s: %s", pod.key, message)
        if done.ignored_namespace_keys and not review.dry_run:
            await self._namespaces.report_ignored(pod.namespace, done.ignored_namespace_keys)
        if self._rules.submitters is not None or SUBMITTED_BY in pod.annotations:
            self._stamp(done.draft, review)
        return done, self._new(done.draft.result(), new)

    def _stamp(self, draft: PodDraft, review: Review) -> None:
        """Write on a new pod who submitted it, whatever it says of that."""
        annotations = draft.annotations
        for key, text in self._stamp_of(review, Stamp.of(annotations)).items():
            if text is not None:
                annotations[key] = text
            elif key in annotations:
                del annotations[key]

    def _stamp_of(self, review: Review, written: Stamp) -> Stamp:
        """The stamp of a new pod that brings another one."""
        submitters = self._rules.submitters
        return Stamp() if submitters is None else submitters.stamp(review.username, self._named_groups(review), written)

    async def _ours(
        self,
        draft: PodDraft,
        new: NewPod,
        foreign: ForeignMutation,
        context: AdmissionContext | None,
        *,
        own_path: bool,
    ) -> Mutation:
        """What our own vendors and their policy make of a pod that other schedulers are done with."""
        refusal: Denied | None = None
        try:
            requested = normalise(draft, self._vendors, self._device_lister)
        except Denied as error:
            # a mode that policy chooses may allow what the pod alone can't mean
            requested, refusal = named_vendors(draft, self._vendors), error
            if not requested:
                raise
        if not requested:
            leave = own_to_schedule(new.pod, self._rules) or foreign.named
            return Mutation(draft if leave else reset(draft, new, context))
        context = context or await self._context(new.pod)
        done = mutate(
            draft, new, requested, self._rules, context, refusal, own_path=own_path, allocates=self._allocates
        )
        if done.context is not None:
            for warning in self._known_names.misspelt(new.named, new.pod.annotations):
                done.draft.warn(warning)
        return done

    async def _check(
        self, new: NewPod, review: Review, context: AdmissionContext | None = None, *, stored: bool = False
    ) -> bool:
        """Whether a new pod that breaks no rule for every pod requests cards of us or of another scheduler.

        `context` is where it arrives, if that is known, as it is for pods that mutation gave a scheduler. Raises
        `Denied` for whatever it breaks. `stored`: no mutation comes after this.
        """
        if context is None and not new.foreign and self._vendors.resource_names.isdisjoint(new.named):
            return False
        check_rules(NAMING_POD, new)
        requests = bool(new.requests or new.foreign)
        if requests:
            context = context or await self._context(new.pod)
            if stored and new.requests:
                refuse_unplaced(new, self._rules, context)
            if context.has_policy:
                policy.check(new.pod, context, [*map(self._vendors.__getitem__, new.requests), *new.governed_foreign])
                policy.check_environment(review.object, new.pod, context)
        return requests

    async def _context(self, pod: Pod) -> AdmissionContext:
        """Where a pod arrives. Raises `Denied` where its Namespace isn't known."""
        if not pod.namespace:
            raise Denied(400, "request.namespace is missing")
        namespace = await self._namespaces.namespace(pod.namespace)
        if namespace is None:
            raise Denied(503, f"namespace {pod.namespace} isn't known yet; try again", retry_after=1)
        return AdmissionContext(namespace, self._policies())

    async def _update(self, review: Review, time_left: float | None) -> Answer:
        """Check an update of a pod; where it makes a pod that waits cost more, charge that as the very last step."""
        old = read_pod(review.old_object, review.namespace)
        new = read_pod(review.object, review.namespace)
        validate_update(old, new, _user_of(review), self._vendors, self._rules, self._reservation_key)
        refuse_ephemeral(review.object, self._vendors)
        if old.labels != new.labels and names_managed(old, self._vendors):
            refuse_relabelled(old, new, self._charging.counted_labels)
        await self._refuse_loosened(old, new)
        done = self._privileged(new, added_privileged(review.old_object, review.object))
        same = old.annotations == new.annotations and old.node_selector == new.node_selector
        if same or new.node_name or new.terminal or not names_managed(new, self._vendors):
            return done
        estimate = self._charging.reprice(old, new)
        if estimate is None:
            return done
        charged = await estimate.charge(_uid_of(new), reservation="", dry_run=review.dry_run, time_left=time_left)
        return Answer(warnings=[*done.warnings, *charged.warnings])

    def _privileged(self, pod: Pod, ephemeral: str) -> Answer:
        """The answer to an update that adds a privileged ephemeral container of this name, if it has one."""
        if not ephemeral:
            return UNCHANGED
        try:
            requests = bool(self._requests.checked_requests(pod, self._device_lister))
        except Denied:  # it was admitted by other rules
            requests = names_managed(pod, self._vendors)
        if requests:
            raise Denied(
                403,
                f"ephemeral container {ephemeral} is privileged, so it would see every card of the node; add it "
                "without securityContext.privileged",
            )
        sees = f"ephemeral container {ephemeral} is privileged, so it sees every card of the node"
        asked = self._vendors.foreign_among(pod, pod.named)
        return Answer(warnings=[f"[{each.key}/privileged] {sees}" for each in asked])

    async def _refuse_loosened(self, old: Pod, new: Pod) -> None:
        """Refuse annotations that an update changes and that are looser than policy then; others are left as they are,
        as the pod may be older than the policy.
        """
        changed = changed_keys(old.annotations, new.annotations) & self._governed_keys
        if not changed:
            return
        governed: list[PolicyTarget] = [*named_vendors(new, self._vendors), *self._new(new).governed_foreign]
        if governed:
            policy.check(new, await self._context(new), governed, changed)


def _is_new_pod(review: Review) -> bool:
    """Any kind but a Pod and a Binding is a mistake in the webhook's configuration."""
    if review.kind not in ("Pod", "Binding"):
        raise Denied(400, f"this webhook reviews pods (core/v1 Pod), not {review.kind or 'objects without a kind'}")
    return review.kind == "Pod" and review.operation == "CREATE" and not review.subresource


def _uid_of(pod: Pod) -> str:
    """The pod's UID. Raises `Denied` for one that the API server makes for none: the ledger has ids of other kinds."""
    if ":" in pod.uid:
        raise Denied(400, "metadata.uid must be a UID as the API server makes them")
    return pod.uid


def _is_sized(pod: ReviewedPod) -> bool:
    """Whether nothing but its containers says what a pod requests."""
    return pod.spec is not None and not pod.spec.overhead and not pod.spec.resources


def _user_of(review: Review) -> User:
    return User(review.username, frozenset(review.groups))


def _answer(done: Mutation, new: NewPod, charged: ChargedPod | None = None) -> Answer:
    audit = {"policy": ",".join(done.rules)} if done.rules else {}
    warnings = (*done.draft.warnings, *new.warnings)
    if charged is None:
        return Answer(done.draft.operations(), warnings, audit)
    return Answer(done.draft.operations(), (*warnings, *charged.warnings), audit | audit_of(charged.amounts))
