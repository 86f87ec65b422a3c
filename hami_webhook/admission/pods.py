"""What admission does with a pod: how it changes a new one, and checks a change, in the order of docs/spec/core.md#5.

What new pods are refused for is the table of `rules`.

Pure: the namespace, the policies and the user come in as values; charging is the caller's last step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hami_webhook.admission import policy
from hami_webhook.admission.defaults import DEFAULTED, read_defaults, write_defaults
from hami_webhook.admission.denial import Denied, bad_request
from hami_webhook.admission.identities import (
    AdmissionRules,
    User,
    claims_profile,
    refuse_changes,
    refuse_other_request,
    refuse_release,
)
from hami_webhook.admission.new_pod import NewPod
from hami_webhook.admission.policy import AdmissionContext
from hami_webhook.devices import newer_annotations
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.foreign_pods import DEFAULT_SCHEDULER, name_scheduler
from hami_webhook.devices.model import BadRequest
from hami_webhook.devices.pod_preferences import GPU_POLICY, CardPolicy
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.reserved_annotations import OWNED_LABELS
from hami_webhook.devices.vendor import Vendor
from hami_webhook.dra.claim_templates import OFF, converts
from hami_webhook.kube.draft import PodDraft, pod_in
from hami_webhook.kube.message_text import cut
from hami_webhook.kube.objects import Container, MalformedObject, Pod
from hami_webhook.kube.quantity import Quantity, QuantityError
from hami_webhook.kube.wire import Resources, ReviewedPod
from hami_webhook.policy.rules import PolicyRule


class Mutation(Struct, frozen=True):
    """A pod after mutation, the policies that acted on it, and the keys that mean nothing on its Namespace.

    `context` is where it arrives, if that mattered. `converts`: its limits are to become claims.
    """

    draft: PodDraft
    rules: tuple[str, ...] = ()
    ignored_namespace_keys: tuple[str, ...] = ()
    context: AdmissionContext | None = None
    converts: bool = False

    def with_foreign(self, foreign: ForeignMutation) -> Mutation:
        """Return this mutation with the policy results of other schedulers added."""
        if not (foreign.named or foreign.rules or foreign.ignored_namespace_keys):
            return self
        rules = tuple(dict.fromkeys((*foreign.rules, *self.rules)))
        ignored = sorted({*foreign.ignored_namespace_keys, *self.ignored_namespace_keys})
        return Mutation(self.draft, rules, tuple(ignored), self.context)


class ForeignMutation(Struct, frozen=True):
    """Whether a pod is for other schedulers, and what policy did to it for their sake, as in `Mutation`."""

    named: bool = False
    rules: tuple[str, ...] = ()
    ignored_namespace_keys: tuple[str, ...] = ()


def names_managed(pod: Pod, vendors: Vendors) -> bool:
    """Whether any container names a managed resource; the cheap look that most pods end with."""
    return not vendors.resource_names.isdisjoint(pod.named)


def is_unmanaged(pod: ReviewedPod, vendors: Vendors) -> bool:
    """Whether a new pod is none of our business: it names no managed resource, asks for none by annotation, and brings
    nothing of the scheduler's.

    Most pods end with this look. False for a pod without app containers, which is refused.
    """
    spec, meta = pod.spec, pod.metadata
    if spec is None or not spec.containers:
        return False
    managed = vendors.resource_names
    for container in (*spec.containers, *(spec.init_containers or ())):
        resources = container.resources
        if resources is not None and not (
            managed.isdisjoint(resources.limits or ()) and managed.isdisjoint(resources.requests or ())
        ):
            return False
    if meta is None:
        return True
    if not OWNED_LABELS.isdisjoint(meta.labels or ()):
        return False
    if not meta.annotations:
        return True
    asked = vendors.asked_by_annotation.get(spec.scheduler_name or "")
    return not (asked and asked.asked_in(meta.annotations)) and not forged(meta.annotations, vendors, with_cards=False)


def may_get_claims(pod: ReviewedPod) -> bool:
    """Whether ResourceClaims may be made for a pod: it names templates, or extended resources."""
    references = (pod.spec and pod.spec.resource_claims) or ()
    return any(each.resource_claim_template_name for each in references) or any(
        "/" in name for name in resources_in(pod)
    )


def resources_in(pod: ReviewedPod) -> set[str]:
    """The resources that the containers of a pod name, in limits and requests, ephemeral ones aside."""
    spec = pod.spec
    if spec is None:
        return set()
    found = [each.resources for each in (*(spec.containers or ()), *(spec.init_containers or ()))]
    amounts = [amounts for each in found if each is not None for amounts in (each.limits, each.requests)]
    return {name for each in amounts for name in each or ()}


def forged(annotations: Mapping[str, str], vendors: Vendors, *, with_cards: bool) -> set[str]:
    """The scheduler-owned keys among annotations, those of other projects' schedulers included.

    `with_cards`: the pod names managed resources.
    """
    return vendors.reserved.among(annotations, with_cards=with_cards) | (
        vendors.foreign_annotations & annotations.keys()
    )


def read_pod(obj: ReviewedPod, namespace: str) -> Pod:
    """The pod of a review as it stands, in the request's namespace. Raises `Denied` (400) where a field is mistyped."""
    try:
        return pod_in(obj, namespace)
    except MalformedObject as error:
        raise Denied(400, f"the pod can't be read: {error}") from error


def normalise(draft: PodDraft, vendors: Vendors, device_lister: DeviceLister) -> tuple[Vendor, ...]:
    """Let every vendor normalise the pod's containers.

    Return the vendors whose cards the pod requests. Raises `Denied`.
    """
    found: dict[str, Vendor] = {}
    defaulted = DEFAULTED in draft.original.annotations
    if defaulted:
        read_defaults(draft)
    try:
        for container in draft.containers:
            concerned = sorted(vendors.named_by(container.container) | vendors.touching_every_container)
            while concerned:
                key = concerned.pop(0)
                vendor = vendors[key]
                if vendor.admit(container, draft, device_lister):
                    found[key] = vendor
                if container.limits.changes or container.requests.changes:  # what one writes may be another's
                    named = vendors.named_by(container.container) | vendors.touching_every_container
                    concerned = sorted(each for each in named if each > key)
            if container.defaulted:
                defaulted = True
        requested = tuple([found[key] for key in sorted(found)])
        for vendor in requested:
            vendor.admit_pod(draft, device_lister)
    except BadRequest as error:
        raise bad_request(error) from error
    if defaulted:
        write_defaults(draft)
    return requested


def mutate_for_foreign(draft: PodDraft, new: NewPod, context: AdmissionContext | None) -> ForeignMutation:
    """Let the other schedulers that a pod is for put it into their form, after policy. Raises `Denied`.

    The first of them gives the pod a scheduler, unless it names our vendors' resources too. `new` is the original pod.
    `context` may be None if no policy governs the pod for another scheduler.
    """
    vendors, device_lister, found = new.vendors, new.device_lister, new.foreign
    outcome = policy.UNTOUCHED if context is None else policy.apply(draft, context, new.governed_foreign)
    try:
        for scheduler in found:
            scheduler.admit(draft, device_lister)
        found = [scheduler for scheduler in found if scheduler.named_by(draft)]
        others = vendors.own_names
        for scheduler in found:
            name_scheduler(draft, scheduler, others)
            others |= scheduler.resource_names
        if found or new.mixed:
            named = draft.named if new.foreign else new.named
            vendors.mixing.admit(draft, named, device_lister, pinned_matters=bool(found))
    except BadRequest as error:
        raise bad_request(error) from error
    return ForeignMutation(bool(found), outcome.rules, outcome.ignored_namespace_keys)


def reset(draft: PodDraft, new: NewPod, context: AdmissionContext | None) -> PodDraft:
    """Return the original pod, with only the changes of other schedulers."""
    fresh = draft.reset()
    mutate_for_foreign(fresh, new, context)
    return fresh


def named_vendors(pod: Pod | PodDraft, vendors: Vendors) -> tuple[Vendor, ...]:
    """The vendors of which a container names any resource."""
    named = frozenset[str]().union(*map(vendors.named_by, pod.containers))
    return tuple(vendor for key, vendor in vendors.items() if key in named)


def mutate(
    draft: PodDraft,
    new: NewPod,
    requested: tuple[Vendor, ...],
    rules: AdmissionRules,
    context: AdmissionContext,
    refusal: Denied | None = None,
    *,
    own_path: bool = True,
    allocates: Callable[[Pod, frozenset[str]], bool],
) -> Mutation:
    """Finish a new pod that asks for cards, after `normalise` gave `requested`: policy, scheduler. Raises `Denied`.

    `refusal` is why it couldn't be normalised; it stands unless policy changes what the pod's containers mean.
    `own_path`: the path isn't HAMi's, so limits may become claims, and our kube-scheduler has a profile that allocates
    claims. `allocates` returns whether a pod needs that profile.
    """
    pod = new.pod
    naming = _naming(context.matching(pod)) if context.has_policy else None
    scheduler = (naming and naming.scheduler_name) or rules.scheduler_name
    scheduler = _profile(scheduler, rules) if own_path and allocates(pod, new.named) else scheduler
    if not own_to_schedule(pod, rules, scheduler):
        if refusal is not None:
            raise refusal
        return Mutation(reset(draft, new, context))
    outcome = policy.UNTOUCHED
    if context.has_policy:
        governed = reset(draft, new, context)
        outcome = policy.apply(governed, context, requested)
        if governed.annotations.changes:
            # what a vendor writes may depend on what policy wrote before it
            normalise(governed, new.vendors, new.device_lister)
            draft, refusal = governed, None
    if refusal is not None:
        raise refusal
    acted = list(outcome.rules)
    become_claims = own_path and rules.claims != OFF and _become_claims(new, requested, rules, context)
    if become_claims:  # kube-scheduler allocates them by itself, whatever it is called
        ours = bool(draft.scheduler_name) and draft.scheduler_name in rules.scheduler_names
        scheduler = (naming and naming.scheduler_name) or (DEFAULT_SCHEDULER if ours else "")
    if scheduler and draft.scheduler_name != scheduler:
        if naming is not None:
            draft.warn(f"spec.schedulerName set to {scheduler} by policy {naming.name}")
            acted += [naming.name] if naming.name not in acted else []
        draft.scheduler_name = scheduler
    for warning in suspicions(draft, requested):
        draft.warn(warning)
    return Mutation(draft, tuple(acted), outcome.ignored_namespace_keys, context, become_claims)


def _naming(matching: Sequence[PolicyRule]) -> PolicyRule | None:
    """The rule that names the pod's scheduler: the last that names any."""
    return next((rule for rule in reversed(matching) if rule.scheduler_name is not None), None)


def _profile(scheduler: str, rules: AdmissionRules) -> str:
    """The scheduler of a pod that claims have to be allocated for, in place of the one that others get."""
    return claims_profile(scheduler) if scheduler == rules.scheduler_name else scheduler


def _become_claims(
    new: NewPod, requested: tuple[Vendor, ...], rules: AdmissionRules, context: AdmissionContext
) -> bool:
    """Whether limits of a pod are to become claims: of no other scheduler, and of a vendor whose may."""
    converting = {row.vendor for row in new.vendors.converting}
    return (
        any(vendor.key in converting for vendor in requested)
        and not new.foreign
        and converts(rules.claims, context.namespace)
    )


def validate_update(
    old: Pod, new: Pod, user: User, vendors: Vendors, rules: AdmissionRules, reservation: str = ""
) -> None:
    """Check a change of a pod: scheduler-owned metadata only by those who own it, managed amounts by nobody."""
    refuse_changes(old, new, user, vendors, rules, reservation)
    refuse_other_request(old, new, user, vendors, rules)
    refuse_release(old, new, user, rules)
    if names_managed(old, vendors) or names_managed(new, vendors):
        _refuse_other_amounts(old, new, vendors)


def _refuse_other_amounts(old: Pod, new: Pod, vendors: Vendors) -> None:
    before = {container.name: container for container in old.containers}
    after = {container.name: container for container in new.containers}
    for container in dict.fromkeys((*before, *after)):
        written = [each for each in (before.get(container), after.get(container)) if each is not None]
        named = frozenset[str]().union(*(each.named for each in written))
        for name in sorted(vendors.resource_names & named):
            for field in ("limits", "requests"):
                earlier = _written(before.get(container), field).get(name)
                now = _written(after.get(container), field).get(name)
                if not _same_amount(earlier, now):
                    raise Denied(
                        403,
                        f"container {container}: {field}[{name}] can't be changed from {_shown(earlier)} to "
                        f"{_shown(now)} once the pod exists; delete the pod and create it again",
                    )


def refuse_ephemeral(pod: ReviewedPod, vendors: Vendors) -> None:
    """Deny an ephemeral container that names a managed resource: it would be used and never charged."""
    for container in (pod.spec and pod.spec.ephemeral_containers) or ():
        resources = container.resources or Resources()
        named = sorted(vendors.resource_names.intersection((*(resources.limits or ()), *(resources.requests or ()))))
        if named:
            raise Denied(
                403, f"ephemeral container {container.name}: {named[0]} can't be given to an ephemeral container"
            )


def added_privileged(old: ReviewedPod, new: ReviewedPod) -> str:
    """The name of the first privileged ephemeral container that an update adds; empty if it adds none.

    One that is there already can't be removed, and must not keep others from changing the pod.
    """
    before = {container.name for container in (old.spec and old.spec.ephemeral_containers) or ()}
    for container in (new.spec and new.spec.ephemeral_containers) or ():
        security = container.security_context
        if security is not None and security.privileged is True and container.name not in before:
            return container.name or ""
    return ""


def own_to_schedule(pod: Pod, rules: AdmissionRules, scheduler: str = "") -> bool:
    """Whether the pod is ours to mutate (docs/spec/core.md#5, step 2); `scheduler` is the name that policy gives."""
    name = pod.scheduler_name
    if not name or (name == DEFAULT_SCHEDULER and rules.force_overwrite_default_scheduler):
        return True
    return name in (*rules.scheduler_names, scheduler)


_OPT_OUT, _IGNORE = "hami.io/webhook", "ignore"
"""The label by which a pod opts out of mutation."""


def refuse_unplaced(new: NewPod, rules: AdmissionRules, context: AdmissionContext) -> None:
    """Deny a pod, as it will be stored, that mutation would have given to our scheduler and has not.

    Its cards came after our mutating webhook was asked: kube-scheduler alone would place it, on no card
    (docs/spec/core.md#5).
    """
    pod, scheduler = new.pod, rules.scheduler_name
    if pod.scheduler_name != DEFAULT_SCHEDULER or scheduler in ("", DEFAULT_SCHEDULER) or new.foreign:
        return
    if not rules.force_overwrite_default_scheduler or pod.labels.get(_OPT_OUT) == _IGNORE:
        return
    if any(rule.scheduler_name == DEFAULT_SCHEDULER for rule in context.matching(pod)):
        return
    named = min(new.named & new.vendors.own_names)
    raise Denied(
        403,
        f"pod requests {named} and has the scheduler {DEFAULT_SCHEDULER}, which chooses no cards: another webhook "
        f"added them after ours ran. Make that one run first: API servers call webhooks in the order of their "
        f"configurations' names, and reinvocationPolicy calls ours again only for pods that had cards before. Or let "
        f"it set spec.schedulerName {scheduler}; label pods that are meant for {DEFAULT_SCHEDULER} "
        f"{_OPT_OUT}={_IGNORE}",
    )


_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
"""The label by which a pod asks for a queue of Kueue's."""
_OF_KUBEVIRT = "kubevirt.io"
"""The label of the pods in which KubeVirt runs its virtual machines."""
_VIRTUAL_MACHINE = "shared cards are mounted into the container, and a virtual machine in it doesn't see them"


def suspicions(draft: PodDraft, requested: tuple[Vendor, ...] = ()) -> list[str]:
    """Return a warning for each setting that is valid, but probably a mistake.

    `requested` are the vendors of the pod's cards.
    """
    found, text = [], draft.annotations.get(GPU_POLICY)
    if text is not None or not newer_annotations.KEYS.isdisjoint(draft.original.annotations):
        is_2_11 = any(vendor.is_2_11 for vendor in requested)
        found += [] if text is None else CardPolicy.parse(text).warnings_of(is_2_11=is_2_11)
        found += newer_annotations.warnings_of(draft.original.annotations, is_2_11=is_2_11)
    runtime = draft.runtime_class_name
    if "kata" in runtime.lower():
        found.append(f"spec.runtimeClassName {runtime}: {_VIRTUAL_MACHINE}")
    if _OF_KUBEVIRT in draft.original.labels:
        found.append(f"label {_OF_KUBEVIRT}: {_VIRTUAL_MACHINE}")
    if _KUEUE_QUEUE in draft.original.labels:
        found += [text for vendor in requested if (text := _counted_by_sums(draft, vendor))]
    return found


def _counted_by_sums(draft: PodDraft, vendor: Vendor) -> str:
    asking = sum(each.names_resource(vendor.count_name) for each in draft.containers)
    if asking < 2:
        return ""
    return (
        f"{asking} containers request {vendor.count_name}: Kueue multiplies their sums, and counts more memory and "
        "cores than quotas do; give the cards to one container, or count only cards in Kueue"
    )


def _written(container: Container | None, field: str) -> Mapping[str, Any]:
    if container is None:
        return {}
    return container.limits if field == "limits" else container.requests


def _shown(amount: Any) -> str:
    return "none" if amount is None else cut(str(amount))


def _same_amount(before: Any, after: Any) -> bool:
    """None, for an amount that isn't there, is no quantity, and the same as itself only."""
    if before == after:
        return True
    try:
        return Quantity.parse(before) == Quantity.parse(after)
    except QuantityError:
        return False
