"""Whose a claim is, and what each holder costs: every claim once, however many pods use it (docs/spec/dra.md#6).

A claim that was generated for a pod is the pod's, as the pod's charge covers it; any other is its own. What a claim
says of itself never makes it cost less: tenants write its owner references and annotations, and kube-controller-manager
takes a claim that was made by hand for the generated one if these fit. So what a pod's claims hold is what was
allocated to them, whatever the pod declared. When a pod ends, and which quotas cover it, is the caller's: `pods` are
those that count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from msgspec import Struct

from hami_webhook.dra import wire
from hami_webhook.dra.allocation import allocated
from hami_webhook.dra.cost import ClaimCost, Debits, DeviceInventory, cost_of
from hami_webhook.kube.wire import ObjectMeta

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a generated claim: the name in its pod's `spec.resourceClaims`."""
_META, _POD_SPEC, _POD_STATUS = wire.ClaimMeta(), wire.ClaimingPodSpec(), wire.ClaimingPodStatus()

Key = tuple[str, str]
"""Namespace and name."""


class Holder(Struct, frozen=True):
    """A pod, or a claim that is nobody's: what its claims `hold`, and the least that those that wait will cost.

    `unseen` are sentences about devices of which no slice says what they have, and about templates that there aren't:
    what these come to isn't known.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    hold: Debits = {}
    wait: ClaimCost = ClaimCost()
    unseen: tuple[str, ...] = ()


def holders(
    pods: Iterable[wire.ClaimingPod],
    claims: Iterable[wire.ResourceClaim],
    templates: Mapping[Key, wire.ResourceClaimTemplate],
    inventory: DeviceInventory,
) -> Iterator[Holder]:
    """The pods with claims of their own, and the claims that are no pod's. Raises `MalformedObject`."""
    by_key = {(_of(claim).namespace or "", _of(claim).name or ""): claim for claim in claims}
    owned: dict[str, list[Key]] = {}
    for key, claim in sorted(by_key.items(), key=itemgetter(0)):
        owned.setdefault(_controller(claim), []).append(key)
    live: set[str] = set()
    taken: set[Key] = set()
    for pod in pods:
        meta = pod.metadata or _META
        uid, namespace = meta.uid or "", meta.namespace or ""
        live.add(uid)
        own = {key: by_key[key] for key in owned.get(uid, ()) if uid and key[0] == namespace}
        found, missing = _of_pod(pod, own)
        taken |= found.keys()
        if found or missing:
            wait, unseen = _of_templates([(namespace, name) for name in missing], templates, inventory)
            yield _holder("Pod", meta, found.values(), inventory, wait, unseen)
    for key, claim in by_key.items():
        owner = _controller(claim)
        # one whose pod is gone is collected; what is allocated is held until then
        collected = owner != "" and owner not in live and _results(claim) is None
        if key not in taken and not collected:
            yield _holder("ResourceClaim", _of(claim), [claim], inventory)


def _of_templates(
    keys: Iterable[Key], templates: Mapping[Key, wire.ResourceClaimTemplate], inventory: DeviceInventory
) -> tuple[ClaimCost, tuple[str, ...]]:
    """What the claims that aren't generated yet will cost, and sentences about templates that there aren't."""
    cost, unseen = ClaimCost(), []
    for key in keys:
        template = templates.get(key)
        if template is None:
            unseen.append(f"there is no ResourceClaimTemplate {key[1]}")
        else:
            cost += _waiting(template.spec.spec if template.spec is not None else None, inventory)
    return cost, tuple(unseen)


def _of_pod(
    pod: wire.ClaimingPod, owned: Mapping[Key, wire.ResourceClaim]
) -> tuple[dict[Key, wire.ResourceClaim], list[str]]:
    """Of the claims that a pod controls those that are its own, and the templates of those that aren't there yet."""
    spec, status = pod.spec or _POD_SPEC, pod.status or _POD_STATUS
    chosen = {each.name: each.resource_claim_name for each in status.resource_claim_statuses or ()}
    found: dict[Key, wire.ResourceClaim] = {}
    missing: list[str] = []
    for reference in spec.resource_claims or ():
        template = reference.resource_claim_template_name
        if template is None:
            continue  # of a claim that is its own, or another pod's
        name = chosen.get(reference.name)
        fits = (
            key
            for key, claim in owned.items()
            if key not in found and (key[1] == name if name else _annotated(claim) == reference.name)
        )
        key = next(fits, None)
        if key is not None:
            found[key] = owned[key]
        elif reference.name not in chosen or name is not None:  # without a name none is needed
            missing.append(template)
    extended = status.extended_resource_claim_status
    found |= {key: claim for key, claim in owned.items() if extended and key[1] == extended.resource_claim_name}
    return found, missing


def _holder(
    kind: str,
    meta: ObjectMeta,
    claims: Iterable[wire.ResourceClaim],
    inventory: DeviceInventory,
    wait: ClaimCost | None = None,
    unseen: tuple[str, ...] = (),
) -> Holder:
    results: list[wire.AllocationResult] = []
    wait = wait or ClaimCost()
    for claim in claims:
        of_claim = _results(claim)
        if of_claim is None:
            wait += _waiting(claim.spec, inventory)
        else:
            results += of_claim
    held = allocated(results, inventory.devices)
    names = (meta.namespace or "", meta.name or "", meta.uid or "")
    return Holder(kind, *names, held.debits, wait, (*unseen, *held.unseen))


def _waiting(spec: wire.ClaimSpec | None, inventory: DeviceInventory) -> ClaimCost:
    requests = spec.devices.requests if spec is not None and spec.devices is not None else None
    return cost_of(requests or (), inventory)


def _results(claim: wire.ResourceClaim) -> Sequence[wire.AllocationResult] | None:
    """What is allocated; None if nothing is. A claim that is being deleted holds its devices as long as it is there."""
    allocation = claim.status.allocation if claim.status is not None else None
    if allocation is None:
        return None
    return (allocation.devices.results if allocation.devices is not None else None) or ()


def _of(claim: wire.ResourceClaim) -> wire.ClaimMeta:
    return claim.metadata or _META


def _controller(claim: wire.ResourceClaim) -> str:
    """The UID of the pod that controls a claim; empty if none does."""
    references = _of(claim).owner_references or ()
    return next((each.uid or "" for each in references if each.controller and each.kind == "Pod"), "")


def _annotated(claim: wire.ResourceClaim) -> str | None:
    return (_of(claim).annotations or {}).get(POD_CLAIM_NAME)
