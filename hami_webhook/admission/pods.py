"""What admission does with a pod: the mutating and the validating steps, in the order of core chapter 5.

Pure: the namespace, the policies and the user come in as values; charging is the caller's last step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hami_webhook.admission import policy
from hami_webhook.admission.denial import Denied
from hami_webhook.admission.policy import Policies
from hami_webhook.devices.model import BadRequest
from hami_webhook.devices.owned import OWNED_LABELS, is_scheduler_owned, owned_in
from hami_webhook.devices.policy import GPU_POLICY, CardPolicy, parse_weights
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import ContainerKind, MalformedObject, Namespace, Pod
from hami_webhook.kube.patch import Operation
from hami_webhook.kube.quantity import Quantity, QuantityError

DEFAULT_SCHEDULER = "default-scheduler"
_NODE_USER = "system:node:"


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """What holds for every review: the scheduler's name, and who may write scheduler-owned annotations."""

    scheduler_name: str = ""
    force_overwrite_default_scheduler: bool = True
    trusted_users: frozenset[str] = frozenset()
    trusted_groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class User:
    """Who sends the request, as the API server says."""

    name: str = ""
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Mutation:
    """A pod after mutation: the patch, what to tell the user, and for the log what was done and why."""

    pod: Pod
    patch: list[Operation] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ignored_namespace_keys: tuple[str, ...] = ()


def names_managed(spec: Mapping[str, Any], vendors: Vendors) -> bool:
    """Whether any container of a pod spec names a managed resource; the cheap look that most pods end with."""
    managed = vendors.resource_names
    for field_name in ("containers", "initContainers"):
        containers = spec.get(field_name)
        if not isinstance(containers, list):
            continue
        for container in containers:
            resources = container.get("resources") if isinstance(container, Mapping) else None
            if not isinstance(resources, Mapping):
                continue
            for amounts in (resources.get("limits"), resources.get("requests")):
                if isinstance(amounts, Mapping) and not managed.isdisjoint(amounts):
                    return True
    return False


def read_pod(raw: Mapping[str, Any], namespace: str) -> PodDraft:
    """The pod of a review as a draft; raises `Denied` (400) where a field has the wrong type."""
    try:
        return PodDraft(raw, namespace)
    except MalformedObject as error:
        raise Denied(400, f"the pod can't be read: {error}") from error


def mutate(
    draft: PodDraft, vendors: Vendors, rules: AdmissionRules, namespace: Namespace | None, policies: Policies
) -> Mutation:
    """Normalise a new pod. Raises `Denied`.

    `namespace` is None while it isn't known: then a pod that asks for a managed device is refused for now.
    """
    pod = draft.original
    if not has_app_containers(pod):
        raise Denied(403, "pod has no containers")
    refuse_forged(pod)
    asked = asked_vendors(draft, vendors)
    if not asked:
        return Mutation(draft.result(), draft.operations() if _own_to_schedule(pod, rules, None) else [])
    if namespace is None:
        raise Denied(503, f"namespace {pod.namespace} isn't known yet; try again", retry_after=1)
    named = [rule for rule in policies.matching(namespace, pod.labels) if rule.scheduler_name is not None]
    scheduler = (named[-1].scheduler_name if named else None) or rules.scheduler_name
    if not _own_to_schedule(pod, rules, scheduler):
        return Mutation(pod)
    fresh = PodDraft(draft.raw, pod.namespace)
    outcome = policy.apply(fresh, namespace, policies, asked)
    _admit(fresh, vendors)
    refuse_privileged(pod)
    acted = list(outcome.rules)
    if scheduler and fresh.scheduler_name != scheduler:
        if outcome.scheduler_rule is not None:
            fresh.warn(f"spec.schedulerName set to {scheduler} by policy {outcome.scheduler_rule}")
            acted += [outcome.scheduler_rule] if outcome.scheduler_rule not in acted else []
        fresh.scheduler_name = scheduler
    refuse_node_name(pod)
    refuse_bad_weights(fresh.result())
    for warning in suspicions(fresh):
        fresh.warn(warning)
    return Mutation(
        fresh.result(),
        fresh.operations(),
        tuple(fresh.warnings),
        tuple(acted),
        tuple(fresh.notes),
        outcome.ignored_namespace_keys,
    )


def validate(pod: Pod, vendors: Vendors, namespace: Namespace | None, policies: Policies) -> tuple[Vendor, ...]:
    """Check a pod as it is about to be stored, whoever schedules it; the vendors it asks. Raises `Denied`."""
    if not has_app_containers(pod):
        raise Denied(403, "pod has no containers")
    refuse_forged(pod)
    asked = requested_vendors(pod, vendors)
    if not asked:
        return ()
    if namespace is None:
        raise Denied(503, f"namespace {pod.namespace} isn't known yet; try again", retry_after=1)
    refuse_privileged(pod)
    refuse_node_name(pod)
    refuse_bad_weights(pod)
    policy.check(pod, namespace, policies, asked)
    return asked


def validate_update(old: Pod, new: Pod, user: User, vendors: Vendors, rules: AdmissionRules) -> None:
    """Check a change of a pod: scheduler-owned metadata only by those who own it, managed amounts by nobody."""
    changed = sorted(
        [
            *(key for key in {*old.annotations, *new.annotations} if is_scheduler_owned(key)
              and old.annotations.get(key) != new.annotations.get(key)),
            *(f"label {key}" for key in OWNED_LABELS if old.labels.get(key) != new.labels.get(key)),
        ]
    )  # fmt: skip
    if changed and not _trusted(user, old, rules):
        raise Denied(
            403,
            f"{changed[0]} is written by the scheduler and device plugins only; "
            f"{user.name or 'this user'} may not add, change or remove it",
        )
    before = {container.name: container for container in old.containers}
    for container in new.containers:
        was = before.get(container.name)
        for name in sorted(vendors.resource_names):
            for field_name in ("limits", "requests"):
                amounts: Mapping[str, Any] = getattr(container, field_name)
                earlier: Mapping[str, Any] = getattr(was, field_name) if was else {}
                if not _same_amount(earlier.get(name), amounts.get(name)):
                    raise Denied(
                        403,
                        f"container {container.name}: {field_name}[{name}] can't be changed from "
                        f"{earlier.get(name, 'none')} to {amounts.get(name, 'none')} once the pod exists; "
                        "delete the pod and create it anew",
                    )


def asked_vendors(draft: PodDraft, vendors: Vendors) -> tuple[Vendor, ...]:
    """The vendors whose cards the pod asks for, found by normalising the draft. Raises `Denied`."""
    asked = _admit(draft, vendors)
    return tuple(vendors[key] for key in vendors if key in asked)


def requested_vendors(pod: Pod, vendors: Vendors) -> tuple[Vendor, ...]:
    """The vendors a pod asks for as it stands. Raises `Denied` for an amount that can't be meant."""
    asked = []
    for vendor in vendors.values():
        try:
            for container in pod.containers:
                if vendor.asks(container):
                    vendor.check_amounts(container)
                    if vendor.request(container) is not None and vendor not in asked:
                        asked.append(vendor)
        except BadRequest as error:
            raise _bad_request(error) from error
    return tuple(asked)


def _admit(draft: PodDraft, vendors: Vendors) -> set[str]:
    asked: set[str] = set()
    for container in draft.containers:
        for key, vendor in vendors.items():
            if not vendor.touches_every_container and not vendor.asks(container):
                continue
            try:
                if vendor.admit(container, draft):
                    asked.add(key)
            except BadRequest as error:
                raise _bad_request(error) from error
            except MalformedObject as error:
                raise Denied(400, f"the pod can't be read: {error}") from error
    return asked


def _bad_request(error: BadRequest) -> Denied:
    return Denied(500, str(error), reason="Invalid")


def _own_to_schedule(pod: Pod, rules: AdmissionRules, scheduler: str | None) -> bool:
    """Whether the pod is ours to mutate (the table of core chapter 5, step 2)."""
    name = pod.scheduler_name
    if not name or (name == DEFAULT_SCHEDULER and rules.force_overwrite_default_scheduler):
        return True
    return name in {rules.scheduler_name, scheduler} - {"", None}


def has_app_containers(pod: Pod) -> bool:
    return any(container.kind is ContainerKind.APP for container in pod.containers)


def refuse_forged(pod: Pod) -> None:
    """Deny a new pod that brings scheduler-owned metadata along."""
    owned: Collection[str] = owned_in(pod.annotations)
    if owned:
        raise Denied(403, f"annotation {next(iter(owned))} is written by the scheduler only; remove it from the pod")
    for key in sorted(OWNED_LABELS):
        if key in pod.labels:
            raise Denied(403, f"label {key} is written by the scheduler only; remove it from the pod")


def refuse_privileged(pod: Pod) -> None:
    for container in pod.containers:
        if container.privileged:
            raise Denied(403, f"container {container.name} is privileged")


def refuse_node_name(pod: Pod) -> None:
    if pod.node_name:
        raise Denied(403, "pod has node assigned")


def refuse_bad_weights(pod: Pod) -> None:
    try:
        parse_weights(pod.annotations, pod.name)
    except ValueError as error:
        raise Denied(403, str(error)) from error


def suspicions(draft: PodDraft) -> list[str]:
    """What is legal but hardly meant, a sentence each."""
    told = []
    text = draft.annotations.get(GPU_POLICY)
    if text is not None:
        told += [
            f'{GPU_POLICY}: "{item}" is no card policy and acts as spread' for item in CardPolicy.parse(text).unknown()
        ]
    return told


def _trusted(user: User, pod: Pod, rules: AdmissionRules) -> bool:
    """Whether the user may write scheduler-owned metadata of the pod: a node only of pods bound to it."""
    if user.name in rules.trusted_users or not user.groups.isdisjoint(rules.trusted_groups):
        return True
    return user.name.startswith(_NODE_USER) and pod.node_name != "" and user.name == _NODE_USER + pod.node_name


def _same_amount(before: Any, after: Any) -> bool:
    if before is None or after is None:
        return before is after
    try:
        return Quantity.parse(before) == Quantity.parse(after)
    except QuantityError:
        return bool(before == after)
