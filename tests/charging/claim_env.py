"""A small cluster with claims: what users, kube-controller-manager and a scheduler do with them."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Self

import pytest
from dra.objects import CLASSES, HAMI, exactly, resource_slice, share
from quota.objects import TEAM, claiming_vendors, pod
from quota.quota_env import QuotaEnv

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.review import ClaimReview
from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.dra.holders import POD_CLAIM_NAME
from hami_webhook.kube.claims_wire import ResourceClaim
from hami_webhook.kube.wire import convert


def spec(*requests: JSON | list[JSON]) -> JSON:
    """Of a claim; a list is the alternatives of one request."""
    written = [
        {"name": f"r{i}", "firstAvailable": [{"name": f"a{j}", **each} for j, each in enumerate(request)]}
        if isinstance(request, list)
        else {"name": f"r{i}", "exactly": request}
        for i, request in enumerate(requests)
    ]
    return {"devices": {"requests": written}}


TEN = spec(exactly(memory="10000Mi", cores="10"))


def template(name: str, requests: JSON = TEN) -> JSON:
    return {"metadata": {"name": name, "namespace": TEAM}, "spec": {"spec": requests}}


def claiming(name: str, *templates: str, uses: str = "", **fields: Any) -> JSON:
    """A pod with a claim for each template, and one that it names."""
    found = pod(name, {"name": "main", "image": "x"}, **fields)
    references: list[JSON] = [{"name": f"r-{each}", "resourceClaimTemplateName": each} for each in templates]
    references += [{"name": "shared", "resourceClaimName": uses}] if uses else []
    found["spec"]["resourceClaims"] = references
    return found


BY_LIMITS: JSON = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}


def by_both(limits: JSON, *templates: str, uses: str = "") -> JSON:
    """A pod that asks for cards by limits and by claims."""
    both = claiming("a", *templates, uses=uses)
    both["spec"]["containers"][0]["resources"] = {"limits": limits}
    return both


async def publish(found: QuotaEnv, *slices: JSON, **templates: JSON) -> None:
    """Slices, the classes, and templates."""
    for each in slices or (resource_slice("n1", share("a0"), share("a1")),):
        await found.cluster.create(Kind.RESOURCE_SLICES, each)
    for name, expressions in CLASSES.items():
        selectors = [{"cel": {"expression": each}} for each in expressions]
        await found.cluster.create(Kind.DEVICE_CLASSES, {"metadata": {"name": name}, "spec": {"selectors": selectors}})
    for name, requests in templates.items():
        await found.cluster.create(Kind.RESOURCE_CLAIM_TEMPLATES, template(name, requests))
    await found.drain()


class Cluster(QuotaEnv):
    """With what kube-controller-manager and kube-scheduler do."""

    def __init__(self, *objects: JSON, **how: Any) -> None:
        super().__init__(*objects, of=claiming_vendors(), **how)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    async def make(self, name: str, requests: JSON = TEN, **meta: Any) -> JSON:
        """Create a claim as its reviews allow. Raises `Denied`."""
        meta = {"name": name, "namespace": TEAM, "uid": f"uid-{name}", **meta}
        made = {"metadata": meta, "spec": requests}
        await self.core.claims.review(self.claim_review("CREATE", {}, made))
        stored = await self.cluster.create(Kind.RESOURCE_CLAIMS, made)
        await self.drain()
        return stored

    async def generate(self, owner: str, reference: str, requests: JSON = TEN, name: str = "") -> str:
        """The claim for a pod's reference, which the pod's status names then."""
        name = name or f"{owner}-{reference}"
        await self.make(name, requests, **owned_by(owner, reference))
        await self.choose(owner, reference, name)
        return name

    async def choose(self, owner: str, reference: str, claim: str) -> None:
        found = self.cluster.peek(Kind.PODS, owner, TEAM)
        assert found is not None
        statuses = [*(found.get("status") or {}).get("resourceClaimStatuses", ())]
        statuses.append({"name": reference, "resourceClaimName": claim})
        await self.cluster.patch_status(Kind.PODS, owner, {"status": {"resourceClaimStatuses": statuses}}, TEAM)
        await self.drain()

    async def allocate(self, claim: str, *devices: JSON, dry_run: bool = False, settle: bool = True) -> None:
        """Write an allocation as its review allows. Raises `Denied`."""
        before = self.cluster.peek(Kind.RESOURCE_CLAIMS, claim, TEAM)
        assert before is not None
        after = await self.review_allocation(before, *devices, dry_run=dry_run)
        if not dry_run:
            await self.cluster.replace(Kind.RESOURCE_CLAIMS, after)
        if settle:
            await self.drain()

    async def review_allocation(self, before: JSON, *devices: JSON, dry_run: bool = False) -> JSON:
        """The claim with an allocation that its review allows. Raises `Denied`."""
        after = {**before, "status": {"allocation": {"devices": {"results": [*devices]}}}}
        await self.core.claims.review(self.claim_review("UPDATE", before, after, dry_run=dry_run))
        return after

    async def bind(self, name: str) -> None:
        await self.cluster.bind(TEAM, name, f"uid-{name}", "n1")

    def claim_review(self, operation: str, before: JSON, after: JSON, *, dry_run: bool = False) -> ClaimReview:
        old, new = (convert(each, ResourceClaim, "claim") for each in (before, after))
        subresource = "status" if operation == "UPDATE" else ""
        name = after["metadata"]["name"]
        return ClaimReview("v1", name, operation, "ResourceClaim", subresource, TEAM, name, new, old, dry_run=dry_run)

    async def fails(self, what: Coroutine[Any, Any, object]) -> Denied:
        with pytest.raises(Denied) as caught:
            await what
        return caught.value


def owned_by(owner: str, reference: str) -> JSON:
    """The metadata of a claim that is generated for a pod."""
    references = [{"kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}]
    return {"ownerReferences": references, "annotations": {POD_CLAIM_NAME: reference}}


def got(memory: str | None, cores: str = "10", device: str = "a0") -> JSON:
    found: JSON = {"driver": HAMI, "pool": "n1", "device": device, "request": "r0"}
    return found if memory is None else {**found, "consumedCapacity": {"memory": memory, "cores": cores}}
