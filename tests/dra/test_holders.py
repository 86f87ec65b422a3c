"""Whose claims are: each once, and no word of a claim about itself makes it cost less."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.devices.debit import Debit
from hami_webhook.dra.cost import IMPLICIT_RESOURCE, SECONDS, ClaimCost
from hami_webhook.dra.holders import EXTENDED_RESOURCE_CLAIM, POD_CLAIM_NAME, BareClaim, Holder, holder_of, holders
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.wire import convert

from .objects import HAMI, JSON, NVIDIA, exactly, inventory, resource_slice, share, total

CLUSTER = inventory(resource_slice("n1", share("a0"), share("a1")))
SPEC: JSON = {"devices": {"requests": [{"name": "r0", "exactly": exactly(memory="10Gi", cores="10")}]}}
TEN = Debit(1, 10240, 10)


def claim(name: str, *, owner: str = "", of: str = "", held: str = "", **meta: Any) -> JSON:
    """A claim for 10 GiB; controlled by the pod with the UID `owner`, for its reference `of`; `held`: allocated."""
    found: JSON = {"metadata": {"name": name, "namespace": "a", "uid": f"uid-{name}", **meta}, "spec": SPEC}
    if owner:
        found["metadata"]["ownerReferences"] = [{"kind": "Pod", "uid": owner, "controller": True}]
    if of:
        found["metadata"]["annotations"] = {POD_CLAIM_NAME: of}
    if held:
        consumed = {"memory": held, "cores": "10"}
        result = {"driver": HAMI, "pool": "n1", "device": "a0", "request": "r0", "consumedCapacity": consumed}
        found["status"] = {"allocation": {"devices": {"results": [result]}}}
    return found


def pod(name: str, *templates: str, uses: str = "", chosen: str | None = "-", extended: str = "") -> JSON:
    """A pod with the reference `r-TEMPLATE` to each template; `chosen` is the claim that its status names for it."""
    references: list[JSON] = [{"name": f"r-{each}", "resourceClaimTemplateName": each} for each in templates]
    references += [{"name": "shared", "resourceClaimName": uses}] if uses else []
    found: JSON = {"metadata": {"name": name, "namespace": "a", "uid": f"uid-{name}"}}
    found["spec"], found["status"] = {"resourceClaims": references}, {}
    if chosen != "-":
        found["status"]["resourceClaimStatuses"] = [{"name": f"r-{templates[0]}", "resourceClaimName": chosen}]
    if extended:
        found["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": extended}
    return found


def extended_pod(**spec: Any) -> JSON:
    found = pod("p")
    found["spec"] |= {"containers": [{"resources": {"limits": {f"{IMPLICIT_RESOURCE}{HAMI}": "1"}}}], **spec}
    return found


def extended_claim() -> JSON:
    found = claim("e", owner="uid-p", held="40Gi")
    found["metadata"]["annotations"] = {EXTENDED_RESOURCE_CLAIM: "true"}
    return found


def found(pods: list[JSON], claims: list[JSON], *templates: str) -> list[tuple[Pod, Holder]]:
    made = {
        ("a", name): convert({"spec": {"spec": SPEC}}, wire.ResourceClaimTemplate, "template") for name in templates
    }
    return list(
        holders(
            map(Pod.from_object, pods),
            [convert(each, wire.ResourceClaim, "claim") for each in claims],
            made,
            CLUSTER,
        )
    )


def costs(*arguments: Any) -> dict[str, tuple[int, int]]:
    """By kind and name the MiB that are held, and those that are waited for."""
    nothing = Debit()
    return {
        f"{'ResourceClaim' if isinstance(each, BareClaim) else 'Pod'}/{each.name}": (
            total(holder.devices).get("NVIDIA", nothing).memory,
            holder.wait.debits.get("NVIDIA", nothing).memory,
        )
        for each, holder in found(*arguments)
    }


@in_one_test(
    ("pods", "claims", "expected"),
    [
        # the life of a generated claim: its template, the claim, its allocation; each time it costs once
        ([pod("p", "t")], [], {"Pod/p": (0, 10240)}),
        ([pod("p", "t")], [claim("c", owner="uid-p", of="r-t")], {"Pod/p": (0, 10240)}),
        ([pod("p", "t", chosen="c")], [claim("c", owner="uid-p", of="r-t", held="9Gi")], {"Pod/p": (9216, 0)}),
        # its pod is gone, or doesn't count any longer
        ([], [claim("c", owner="uid-p", of="r-t", held="9Gi")], {"ResourceClaim/c": (9216, 0)}),
        ([], [claim("c", owner="uid-p", of="r-t")], {}),
        # its pod is there, and it isn't what the pod asks for: nobody was charged for it
        ([pod("p")], [claim("c", owner="uid-p", of="r-t")], {}),
        ([pod("p")], [claim("c", owner="uid-p", of="r-t", held="9Gi")], {"ResourceClaim/c": (9216, 0)}),
        # a pod that needs no claim for its reference
        ([pod("p", "t", chosen=None)], [], {}),
        # some are allocated
        ([pod("p", "t", "u")], [claim("c", owner="uid-p", of="r-t", held="9Gi")], {"Pod/p": (9216, 10240)}),
        # claims for extended resources, which their pod's status names last
        ([extended_pod()], [], {"Pod/p": (0, 40960)}),
        ([extended_pod()], [extended_claim()], {"Pod/p": (40960, 0)}),
        ([extended_pod(nodeName="n1")], [], {}),
        ([extended_pod(nodeName="n1")], [extended_claim()], {"ResourceClaim/e": (40960, 0)}),
        ([pod("p", extended="e")], [claim("e", owner="uid-p", held="40Gi")], {"Pod/p": (40960, 0)}),
        # claims by hand, shared by pods
        ([], [claim("c")], {"ResourceClaim/c": (0, 10240)}),
        ([pod("p", uses="c"), pod("q", uses="c")], [claim("c", held="9Gi")], {"ResourceClaim/c": (9216, 0)}),
        ([pod("p")], [], {}),
    ],
)
def test_a_claim_costs_once_from_its_template_to_its_end(
    pods: list[JSON], claims: list[JSON], expected: dict[str, tuple[int, int]]
) -> None:
    assert costs(pods, claims, "t", "u") == expected


FORGED = {
    "of a pod that doesn't ask for it": claim("f", owner="uid-p", of="another", held="30Gi"),
    "of a pod whose status names another": claim("f", owner="uid-p", of="r-t", held="30Gi"),
    "of no pod": claim("f", owner="uid-none", of="r-t", held="30Gi"),
    "with the annotation alone": claim("f", of="r-t", held="30Gi"),
    "of the pod of another namespace": claim("f", owner="uid-p", of="r-t", held="30Gi", namespace="b"),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_claim_that_only_says_that_it_is_a_pods_is_its_own(forged: JSON) -> None:
    pods = [pod("p", "t", chosen="c")]
    generated = claim("c", owner="uid-p", of="r-t", held="10Gi")
    assert costs(pods, [generated, forged], "t") == {"Pod/p": (10240, 0), "ResourceClaim/f": (30720, 0)}


def test_a_claim_made_by_hand_that_takes_the_generated_ones_place_costs_what_it_got() -> None:
    """kube-controller-manager takes it: seen on 1.36.3."""
    assert costs([pod("p", "t", chosen="f")], [claim("f", owner="uid-p", of="r-t", held="30Gi")], "t") == {
        "Pod/p": (30720, 0)
    }


def test_what_is_not_known_is_told() -> None:
    ((_, lacking),) = found([pod("p", "t")], [])
    assert lacking.unseen == ("there is no ResourceClaimTemplate t",)
    gone = claim("c", held="1Gi")
    gone["status"]["allocation"]["devices"]["results"] = [{"driver": NVIDIA, "pool": "n9", "device": "x"}]
    ((_, unseen),) = found([], [gone])
    assert (total(unseen.devices), len(unseen.unseen)) == ({}, 1)
    assert unseen.lacking == {"NVIDIA": TEN}, "what it requests at least, for want of better"


CLAIMS = st.lists(
    st.tuples(st.sampled_from(["", "uid-p", "uid-q", "uid-none"]), st.sampled_from(["", "r-t", "r-u"]), st.booleans()),
    max_size=6,
)


@given(CLAIMS, st.sampled_from(["-", "c0", "c1", "none"]), st.permutations(range(6)))
def test_what_is_allocated_is_held_by_somebody_just_once(
    written: list[tuple[str, str, bool]], chosen: str, order: list[int]
) -> None:
    """Whatever claims say of themselves, and in whatever order they come."""
    claims = [claim(f"c{i}", owner=owner, of=of, held="3Gi" * held) for i, (owner, of, held) in enumerate(written)]
    pods = [pod("p", "t", "u", chosen=chosen), pod("q", "t")]
    by_holder = costs(pods, claims, "t", "u")
    assert sum(hold for hold, _ in by_holder.values()) == 3072 * sum(held for *_, held in written)
    assert costs(pods, [claims[i] for i in order if i < len(claims)], "t", "u") == by_holder


def test_the_claims_that_will_be_made_for_a_pod_share_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: list[float] = []

    def recorded(requests: Any, inventory: Any, *, seconds_of: list[float] = seconds, **how: float) -> ClaimCost:
        seconds_of.append(how["seconds"])
        return ClaimCost()

    monkeypatch.setattr("hami_webhook.dra.holders.cost_of", recorded)
    names = [f"t{index}" for index in range(40)]
    templates = {("a", name): convert({"spec": {"spec": SPEC}}, wire.ResourceClaimTemplate, "t") for name in names}
    waiting = Pod.from_object(pod("p", *names))
    holder_of(waiting, {}, templates, CLUSTER)
    assert len(seconds) == 40
    assert sum(seconds) <= SECONDS
