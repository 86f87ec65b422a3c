"""Which profile of our kube-scheduler a pod gets that claims have to be allocated for: docs/spec/dra.md#9."""

from __future__ import annotations

import pytest
from builders import GPU, JSON, MEM, container

from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.kube import claims_wire as wire
from hami_webhook.policy.rules import PolicyRule, PolicyRules

from .reviews import SCHEDULER, VENDORS, at_once, handler_of, mutate, parsed, patched, pod, review

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
