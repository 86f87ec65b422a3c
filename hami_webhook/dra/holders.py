"""Find the holder of each claim and its charge; a claim that several pods use is charged once (docs/spec/dra.md#6).

The pod's charge covers claims that were generated for the pod; every other claim is charged by itself. A claim's own
metadata never lowers its charge: tenants write owner references and annotations, and kube-controller-manager accepts a
matching claim of theirs as generated. So what a pod's claims hold is what was allocated to them, whatever the pod
declared. The caller decides which pods count and which quotas cover them, and passes them as `pods`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from msgspec import Struct

from hami_webhook.dra.allocation import Allocated, ClaimedDevice, allocated
from hami_webhook.dra.claim_templates import TemplateSpec, declared_templates
from hami_webhook.dra.cost import SECONDS, ClaimCost, Debits, DeviceInventory, cost_of, extended_requests
from hami_webhook.dra.devices import PublishedDevices
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.objects import MalformedObject, Pod

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a generated claim: the name in its pod's `spec.resourceClaims`."""
EXTENDED_RESOURCE_CLAIM = "resource.kubernetes.io/extended-resource-claim"
"""The annotation of a claim that kube-scheduler makes for a pod's extended resources."""
_META = wire.ClaimMeta()
_NODE_NAME = "metadata.name"

Key = tuple[str, str]
"""Namespace and name."""
Claims = Mapping[Key, wire.ResourceClaim]
Templates = Mapping[Key, wire.ResourceClaimTemplate]


class Holder(Struct, frozen=True):
    """The devices that a pod's claims, or a claim without a pod, hold, and the minimal cost of those not yet allocated.

    `allocated`: a claim has a counted allocation. `waits`: a claim has none, or doesn't exist yet. `lacking`: besides
    `devices`, the minimal request of claims with allocated devices that no slice publishes. `unseen`: sentences about
    devices without published amounts, and about missing templates; their cost is unknown.
    """

    devices: tuple[ClaimedDevice, ...] = ()
    wait: ClaimCost = ClaimCost()
    allocated: bool = False
    waits: bool = False
    lacking: Debits = {}
    unseen: tuple[str, ...] = ()


class BareClaim(Pod, frozen=True):
    """A claim without an owning pod, represented as a pod without containers, which is never bound and never ends."""

    claim: wire.ResourceClaim = wire.ResourceClaim()

    @classmethod
    def of(cls, claim: wire.ResourceClaim) -> BareClaim:
        meta = meta_of(claim)
        return cls(meta.namespace or "", meta.name or "", meta.uid or "", {}, {}, (), claim=claim)

    @property
    def key(self) -> str:
        """Return the name under which lists of pods show this claim."""
        return f"claim {super().key}"

    @property
    def charge_id(self) -> str:
        """Return the ledger id of the claim's charge until a watch shows the claim: a digest of its name, which is
        unique at any time.
        """
        digest = hashlib.blake2b(f"{self.namespace}/{self.name}".encode(errors="backslashreplace"), digest_size=15)
        return f"claim:{digest.hexdigest()}" if self.name else self.uid

    @property
    def requests(self) -> Sequence[wire.DeviceRequest]:
        """What it requests."""
        return requests_of(self.claim.spec)


def holders(
    pods: Iterable[Pod], claims: Iterable[wire.ResourceClaim], templates: Templates, inventory: DeviceInventory
) -> Iterator[tuple[Pod, Holder]]:
    """The pods with claims of their own, and the claims that are no pod's, with what they hold."""
    by_key = {key_of(claim): claim for claim in claims}
    owned: dict[str, list[Key]] = {}
    for key, claim in sorted(by_key.items(), key=itemgetter(0)):
        owned.setdefault(controller_of(claim), []).append(key)
    taken: set[Key] = set()
    for pod in pods:
        of_pod = {key: by_key[key] for key in owned.get(pod.uid, ()) if pod.uid}
        taken |= own_claims(pod, of_pod).keys()
        holder = holder_of(pod, of_pod, templates, inventory)
        if holder is not None:
            yield pod, holder
    for key, claim in by_key.items():
        owner = controller_of(claim)
        # nobody was charged for one that says that it is a pod's; what is allocated to it was
        uncharged = owner != "" and results_of(claim) is None
        if key not in taken and not uncharged:
            yield BareClaim.of(claim), holder_of_claims([claim], inventory)


def holder_of(pod: Pod, owned: Claims, templates: Templates, inventory: DeviceInventory) -> Holder | None:
    """Return what a pod's own claims among `owned` hold; None if the pod neither has nor needs claims."""
    if isinstance(pod, BareClaim):
        return holder_of_claims([pod.claim], inventory)
    extended = extended_requests(pod, inventory.extended) if not pod.node_name and not pod.extended_claim else ()
    if not (pod.resource_claims or pod.extended_claim or extended):
        return None
    own = own_claims(pod, owned)
    found = list(own.values())
    wait, unseen = ClaimCost(), list[str]()
    missing = list(_missing(pod, own))
    known = all((pod.namespace, name) in templates for name in missing)
    declared = {} if known else declared_templates(pod, inventory.devices.rows)
    seconds = SECONDS / (len(missing) + 1)
    if extended and not any(is_extended(claim) for claim in found):
        wait += _cost(extended, inventory, seconds)
    for name in missing:
        requests = _requests_of_template(pod.namespace, name, templates, declared)
        if requests is None:
            unseen.append(f"there is no ResourceClaimTemplate {name}")
        else:
            wait += _cost(requests, inventory, seconds)
    if not found and not (wait.debits or wait.problems or unseen):
        return None
    return holder_of_claims(found, inventory, wait, tuple(unseen))


def priced_requests(
    pod: Pod, owned: Claims, templates: Templates, inventory: DeviceInventory
) -> list[Sequence[wire.DeviceRequest]]:
    """Return, claim by claim, at least all requests whose cost `holder_of` needs."""
    if isinstance(pod, BareClaim):
        return [pod.requests]
    names = {each.template for each in pod.resource_claims if each.template}
    declared = declared_templates(pod, inventory.devices.rows) if names else {}
    of_templates = (_requests_of_template(pod.namespace, name, templates, declared) for name in sorted(names))
    found = [extended_requests(pod, inventory.extended), *(each for each in of_templates if each is not None)]
    return [*filter(None, found), *(requests_of(claim.spec) for claim in owned.values())]


def _requests_of_template(
    namespace: str, name: str, templates: Templates, declared: Mapping[str, TemplateSpec]
) -> Sequence[wire.DeviceRequest] | None:
    """What a template requests, or will once it is made of what its pod declares."""
    template = templates.get((namespace, name))
    if template is None and name in declared:
        template = declared[name].template
    if template is None:
        return None
    return requests_of(template.spec.spec if template.spec is not None else None)


def holder_of_claims(
    claims: Iterable[wire.ResourceClaim],
    inventory: DeviceInventory,
    wait: ClaimCost | None = None,
    unseen: tuple[str, ...] = (),
) -> Holder:
    """What claims hold, beside what else waits."""
    devices: list[ClaimedDevice] = []
    any_allocated, lacking = False, ClaimCost()
    waits, wait = wait is not None and bool(wait.debits or unseen), wait or ClaimCost()
    for claim in claims:
        results = results_of(claim)
        if results is None:
            cost = _cost(requests_of(claim.spec), inventory)
            wait, waits = wait + cost, waits or bool(cost.debits)
            continue
        try:
            held = held_by(claim, inventory.devices)
        except MalformedObject as error:
            held = Allocated(unseen=(str(error),))
        any_allocated = any_allocated or bool(held.devices or held.unknown)
        devices += held.devices
        if held.unknown:  # what it requests at least, for want of better
            lacking += _cost(requests_of(claim.spec), inventory)
            unseen = (*unseen, *held.unknown)
    return Holder(tuple(devices), wait, any_allocated, waits, lacking.debits, unseen)


def own_claims(pod: Pod, owned: Claims) -> dict[Key, wire.ResourceClaim]:
    """Of the claims that a pod controls those that are its own."""
    generated, extended = generated_claims(pod, owned), extended_claim(pod, owned)
    keys = [*generated.values(), *([] if extended is None else [extended])]
    return {key: owned[key] for key in keys}


def generated_claims(pod: Pod, owned: Claims) -> dict[str, Key]:
    """Return the claims generated from the pod's templates, by their names in `spec.resourceClaims`."""
    found: dict[str, Key] = {}
    for reference in pod.resource_claims:
        name = pod.generated_claims.get(reference.name)
        fits = (
            key
            for key, claim in owned.items()
            if key[0] == pod.namespace and key not in found.values()
            if (key[1] == name if name else _annotated(claim) == reference.name)
        )
        key = next(fits, None) if reference.template else None  # others are their own, or another pod's
        if key is not None:
            found[reference.name] = key
    return found


def extended_claim(pod: Pod, owned: Claims) -> Key | None:
    """Of the claims that a pod controls the one for its extended resources."""
    name, generated = pod.extended_claim, generated_claims(pod, owned).values()
    for key, claim in owned.items():
        # until the status names it, which kube-scheduler writes last
        fits = key[1] == name if name else (is_extended(claim) and key not in generated and not pod.node_name)
        if key[0] == pod.namespace and fits:
            return key
    return None


def _missing(pod: Pod, own: Claims) -> Iterator[str]:
    """The templates of a pod's claims that aren't there yet."""
    annotated = {_annotated(claim) for claim in own.values()}
    names = {name for _, name in own}
    for reference in pod.resource_claims:
        name = pod.generated_claims.get(reference.name)
        there = name in names if name else reference.name in annotated
        if reference.template and not there and name != "":  # with an empty name none is needed
            yield reference.template


def _cost(requests: Iterable[wire.DeviceRequest], inventory: DeviceInventory, seconds: float = SECONDS) -> ClaimCost:
    try:
        return cost_of(requests, inventory, seconds=seconds)
    except MalformedObject as error:
        return ClaimCost(problems=(str(error),))


def requests_of(spec: wire.ClaimSpec | None) -> Sequence[wire.DeviceRequest]:
    """What a claim or a template requests."""
    return (spec.devices.requests if spec is not None and spec.devices is not None else None) or ()


def results_of(claim: wire.ResourceClaim) -> Sequence[wire.AllocationResult] | None:
    """What is allocated; None if nothing is. A claim that is being deleted holds its devices as long as it is there."""
    allocation = claim.status.allocation if claim.status is not None else None
    if allocation is None:
        return None
    return (allocation.devices.results if allocation.devices is not None else None) or ()


def held_by(claim: wire.ResourceClaim, published: PublishedDevices) -> Allocated:
    """What is allocated to a claim. Raises `MalformedObject` for an amount that is none."""
    return allocated(results_of(claim) or (), published, node_of(claim))


def node_of(claim: wire.ResourceClaim) -> str:
    """The node that a claim's allocation names; empty if it names none, or several.

    kube-scheduler names the one that the devices are of, if one of them is of a node.
    """
    allocation = claim.status.allocation if claim.status is not None else None
    selector = allocation.node_selector if allocation is not None else None
    terms = (selector.node_selector_terms if selector is not None else None) or ()
    if len(terms) != 1:
        return ""
    fields = (each for each in terms[0].match_fields or () if each.key == _NODE_NAME and each.operator == "In")
    named = {value for each in fields for value in each.values or ()}
    return named.pop() if len(named) == 1 else ""


def meta_of(claim: wire.ResourceClaim) -> wire.ClaimMeta:
    return claim.metadata or _META


def key_of(claim: wire.ResourceClaim) -> Key:
    meta = meta_of(claim)
    return meta.namespace or "", meta.name or ""


def owner_of(claim: wire.ResourceClaim) -> wire.OwnerReference | None:
    """The reference to the pod that controls a claim; None if none does."""
    references = meta_of(claim).owner_references or ()
    return next((each for each in references if each.controller and each.kind == "Pod"), None)


def controller_of(claim: wire.ResourceClaim) -> str:
    """The UID of the pod that controls a claim; empty if none does."""
    owner = owner_of(claim)
    return (owner.uid or "") if owner is not None else ""


def _annotated(claim: wire.ResourceClaim) -> str | None:
    return (meta_of(claim).annotations or {}).get(POD_CLAIM_NAME)


def is_extended(claim: wire.ResourceClaim) -> bool:
    """Return whether the claim's annotation marks it as created for extended resources.

    Users can write this annotation.
    """
    return EXTENDED_RESOURCE_CLAIM in (meta_of(claim).annotations or {})
