"""Pods that claims are allocated for: their profile, and limits that become claims (docs/spec/dra.md#8 and #9)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import GPU, JSON, MEM, container
from dra.objects import inventory, resource_slice, share
from msgspec.structs import replace
from quota.objects import claiming_vendors
from refusals import is_privileged

from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.dra.claim_templates import CONVERT, LABELLED, OFF, TEMPLATE_SPECS
from hami_webhook.kube import claims_wire as wire
from hami_webhook.policy.rules import PolicyRule, PolicyRules

from .reviews import SCHEDULER, VENDORS, at_once, cpu, handler_of, mutate, parsed, patched, pod, refusal, review

PROFILE = f"{SCHEDULER}-claims"
NIC = {"name": "nic", "resourceClaimName": "nic"}


def classes(*names: str, **takes: str) -> ClaimCache:
    """What watches have shown: classes, and those that take an extended resource."""
    cache = ClaimCache((), VENDORS.resource_names)
    for name in (*names, *takes):
        cache.put_class(name, wire.DeviceClass(spec=wire.ClassSpec(extended_resource_name=takes.get(name))))
    return cache


@pytest.mark.parametrize(
    ("limits", "fields", "scheduler"),
    [
        ({}, {}, SCHEDULER),
        ({}, {"resourceClaims": [NIC]}, PROFILE),
        ({}, {"resourceClaims": [NIC], "schedulerName": SCHEDULER}, PROFILE),
        ({}, {"resourceClaims": [NIC], "schedulerName": PROFILE}, PROFILE),
        ({}, {"resourceClaims": [NIC], "schedulerName": "volcano"}, "volcano"),
        ({}, {"schedulerName": PROFILE}, SCHEDULER),
        ({"deviceclass.resource.kubernetes.io/nic": "1"}, {}, PROFILE),
        ({"example.com/nic": "1"}, {}, PROFILE),
        ({"deviceclass.resource.kubernetes.io/other": "1"}, {}, SCHEDULER),
        ({"example.com/other": "1"}, {}, SCHEDULER),
    ],
)
def test_pods_that_claims_are_allocated_for_get_the_profile_that_can(
    limits: JSON, fields: JSON, scheduler: str
) -> None:
    """The other profile would bind them without; a class that takes a resource of ours changes nothing."""
    known = classes("nic", rdma="example.com/nic", gpu=GPU)
    obj = pod("p", container(limits={GPU: 1, MEM: 3000, **limits}), **fields)
    answer = mutate(obj, classes=known)
    after = patched(obj, answer)
    assert after["spec"].get("schedulerName") == scheduler
    assert list(mutate(after, classes=known).patch) == []


def test_hamis_own_chart_has_no_such_profile() -> None:
    obj = pod("p", container(limits={GPU: 1, MEM: 3000}), resourceClaims=[NIC])
    answer = at_once(handler_of().webhook(parsed(review(obj))))
    assert patched(obj, answer)["spec"]["schedulerName"] == SCHEDULER


def test_a_scheduler_that_policy_names_stays() -> None:
    obj = pod("p", container(limits={GPU: 1, MEM: 3000}), resourceClaims=[NIC])
    named = {name: PolicyRules((PolicyRule("r", scheduler_name=name),)) for name in ("batch", SCHEDULER)}
    found = {name: patched(obj, mutate(obj, policies=each))["spec"]["schedulerName"] for name, each in named.items()}
    assert found == {"batch": "batch", SCHEDULER: PROFILE}


# Limits that become claims, as the API server sees the pods (docs/spec/dra.md#8)


CARDS = inventory(resource_slice("n1", share("a0"), share("a1")))


def stored(obj: JSON, mode: str = CONVERT, **more: Any) -> JSON:
    return patched(obj, mutate(obj, rules(mode), known=claiming_vendors(), inventory=CARDS, **more))


def rules(mode: str = CONVERT) -> AdmissionRules:
    return AdmissionRules(scheduler_name=SCHEDULER, claims=mode)


def names(found: JSON) -> set[str]:
    """The resources that its containers name."""
    spec = found["spec"]
    return {
        name
        for each in (*spec["containers"], *spec.get("initContainers", ()))
        for amounts in (each.get("resources", {}).get("limits", {}), each.get("resources", {}).get("requests", {}))
        for name in amounts
    }


def test_limits_become_claims_and_the_rest_stays() -> None:
    first = container("i", gpu=1, mem=1000)
    obj = pod("p", container("a", gpu=1, mem=3000, cpu="1"), cpu("b"), init=(first,))
    obj["spec"]["resourceClaims"] = [{"name": "hami-0", "resourceClaimName": "mine"}]
    obj["spec"]["containers"][0]["resources"]["claims"] = [{"name": "hami-0"}]
    found = stored(obj)
    assert names(found) == {"cpu", "memory"}
    ((template, spec),) = json.loads(found["metadata"]["annotations"][TEMPLATE_SPECS]).items()
    assert spec["devices"]["requests"][0]["exactly"]["capacity"] == {"requests": {"cores": "0", "memory": "3000Mi"}}
    assert found["spec"]["resourceClaims"] == [
        {"name": "hami-0", "resourceClaimName": "mine"},
        {"name": "hami-1", "resourceClaimTemplateName": template},
    ]
    assert found["spec"]["containers"][0]["resources"]["claims"] == [{"name": "hami-0"}, {"name": "hami-1"}]
    assert found["spec"]["initContainers"][0]["resources"]["claims"] == [{"name": "hami-1"}]
    assert "schedulerName" not in found["spec"]
    assert set(found["metadata"]["annotations"]) == {TEMPLATE_SPECS}
    # once more, as when another webhook changed the pod
    assert stored(found) == found


def test_a_container_that_comes_later_keeps_the_templates_of_the_others() -> None:
    found = stored(pod(gpu=1, mem=3000))
    found["spec"]["containers"].append(container("late", gpu=2, mem=5))
    again = stored(found)
    assert len(json.loads(again["metadata"]["annotations"][TEMPLATE_SPECS])) == 2
    assert [each["name"] for each in again["spec"]["resourceClaims"]] == ["hami-0", "hami-1"]


def test_what_others_wrote_into_the_annotation_goes() -> None:
    obj = pod(gpu=1, mem=3000, annotations={TEMPLATE_SPECS: '{"hami-0123456789abcdef": {}}'})
    assert list(json.loads(stored(obj)["metadata"]["annotations"][TEMPLATE_SPECS])) == [
        each["resourceClaimTemplateName"] for each in stored(obj)["spec"]["resourceClaims"]
    ]


@pytest.mark.parametrize(
    ("mode", "label", "converted"),
    [
        (OFF, "convert", False),
        (LABELLED, None, False),
        (LABELLED, "convert", True),
        (LABELLED, "off", False),
        (CONVERT, None, True),
        (CONVERT, "off", False),
        (CONVERT, "convert", True),
    ],
)
def test_which_namespaces_it_holds_for(mode: str, label: str | None, converted: bool) -> None:
    found = stored(pod(gpu=1, mem=3000), mode, labels={} if label is None else {"hami.io/claims": label})
    assert ("resourceClaims" in found["spec"]) == converted
    assert (found["spec"].get("schedulerName") == SCHEDULER) == (not converted)


@pytest.mark.parametrize(
    "obj",
    [
        pod("p", cpu()),
        pod("p", {**cpu(), "resources": {"claims": [{"name": "c"}]}}, resourceClaims=[{"name": "c"}]),
        pod(gpu=1, mem=3000, schedulerName="volcano"),
        pod(gpu=0),
    ],
    ids=["no cards", "claims of its own", "another scheduler's", "a count of zero"],
)
def test_other_pods_are_left_alone(obj: JSON) -> None:
    assert stored(obj) == obj


@pytest.mark.parametrize(
    ("resource", "vendors"),
    [
        ("huawei.com/Ascend310P", claiming_vendors()),
        ("nvidia.com/gpu", claiming_vendors(converting=frozenset())),
    ],
    ids=["no driver", "no driver that limits become claims for"],
)
def test_other_vendors_pods_stay_limits_for_the_extender(resource: str, vendors: Vendors) -> None:
    obj = pod("p", {"name": "c", "resources": {"limits": {resource: "1"}}})
    found = patched(obj, mutate(obj, rules(), known=vendors, inventory=CARDS))
    assert found["spec"]["schedulerName"] == SCHEDULER
    assert resource in names(found)


def test_the_extenders_scheduler_is_not_asked_for_but_what_policy_names_is() -> None:
    assert stored(pod(gpu=1, mem=5, schedulerName=SCHEDULER))["spec"]["schedulerName"] == "default-scheduler"
    policies = PolicyRules((PolicyRule("r", scheduler_name="batch"),))
    assert stored(pod(gpu=1, mem=5), policies=policies)["spec"]["schedulerName"] == "batch"


def test_policy_holds_before_limits_become_claims() -> None:
    found = stored(pod(gpu=1, mem=5), annotations={"nvidia.com/nouse-gpuuuid": "GPU-bad"})
    assert "GPU-bad" in found["metadata"]["annotations"][TEMPLATE_SPECS]


def test_rules_hold_for_pods_whose_limits_become_claims() -> None:
    more = {"known": claiming_vendors(), "inventory": CARDS}
    privileged = pod("p", container("a", gpu=1, mem=5, securityContext={"privileged": True}))
    assert refusal(mutate, privileged, rules(), **more) == (403, is_privileged("a"))
    code, message = refusal(mutate, pod(gpu=1, annotations={"nvidia.com/vgpu-mode": "mig"}), rules(), **more)
    assert code == 422
    assert message.startswith("annotation nvidia.com/vgpu-mode")
    unknown = replace(CARDS, devices=inventory().devices)
    code, message = refusal(mutate, pod(gpu=1, percent=5), rules(), **{**more, "inventory": unknown})
    assert "a percentage of it isn't" in message
