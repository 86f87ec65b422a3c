"""Updates that loosen what policy demands of a pod are refused, and all others are let through."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from builders import container
from tables import in_one_test

from hami_webhook.admission.review import UNCHANGED, Answer
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.kube.objects import Namespace
from hami_webhook.policy.rules import DeviceBounds, PolicyRule, PolicyRules

from .policies import NOUSE, NOUSE_TYPE, USE, USE_TYPE
from .reviews import JSON, FakeServices, NoTouch, cpu, handler_of, parsed, pod, refusal, update

NODE_POLICY, GPU_POLICY = "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"
ALL = enabled_vendors(builtin_device_config().config)
RULES = PolicyRules(
    (
        PolicyRule("no-b", devices={"NVIDIA": DeviceBounds(deny_uuids=("GPU-b",), allow_types=("A100",))}),
        PolicyRule("spread", enforce={NODE_POLICY: "spread"}, default={GPU_POLICY: "binpack"}),
        PolicyRule("volcano-a", devices={"volcano": DeviceBounds(allow_uuids=("GPU-a",))}),
    )
)
ADMITTED = {NOUSE: "GPU-b", USE_TYPE: "A100", NODE_POLICY: "spread", GPU_POLICY: "binpack"}
"""What admission wrote on a pod for these rules."""


def evaluate_update(before: JSON, after: JSON, old: JSON | None = None, **more: Any) -> Answer:
    """The answer to an update of a pod's annotations."""
    one = old or pod(gpu=1, mem=3000)
    reviewed = [{**one, "metadata": {**one["metadata"], "annotations": notes}} for notes in (before, after)]
    subresource = more.pop("subresource", "")
    judging = handler_of(**{"known": ALL, "policies": RULES, **more})
    return asyncio.run(judging.validate(parsed(update(reviewed[0], reviewed[1], subresource=subresource))))


def without(key: str) -> JSON:
    return {name: text for name, text in ADMITTED.items() if name != key}


LOOSENED = [
    (without(NOUSE), f"{NOUSE}: must name GPU-b, denied by policy no-b"),
    ({**ADMITTED, NOUSE: ""}, f"{NOUSE}: must name GPU-b, denied by policy no-b"),
    ({**ADMITTED, NOUSE: "GPU-c"}, f"{NOUSE}: must name GPU-b, denied by policy no-b"),
    (without(USE_TYPE), f"{USE_TYPE}: must be set: policy no-b allows only A100"),
    ({**ADMITTED, USE_TYPE: "A100,V100"}, f"{USE_TYPE}: must not name V100: policy no-b allows only A100"),
    (without(NODE_POLICY), f"{NODE_POLICY}: must be spread by policy spread: it isn't set"),
    ({**ADMITTED, NODE_POLICY: "binpack"}, f"{NODE_POLICY}: must be spread by policy spread: found binpack"),
    ({}, f"{NODE_POLICY}: must be spread by policy spread: it isn't set"),
]
TIGHTENED = [
    ADMITTED,
    {**ADMITTED, "mine": "1"},
    {**ADMITTED, NOUSE: "GPU-c,GPU-b"},
    {**ADMITTED, USE: "GPU-a,GPU-b"},
    {**ADMITTED, USE_TYPE: "A100-SXM4"},
    {**ADMITTED, NOUSE_TYPE: "PCIE"},
    {**ADMITTED, GPU_POLICY: "spread"},
    without(GPU_POLICY),
]


@in_one_test("subresource", ["", "status"])
@in_one_test(("after", "message"), LOOSENED)
def test_an_update_that_loosens_is_refused_with_the_policys_name(after: JSON, message: str, subresource: str) -> None:
    assert refusal(evaluate_update, ADMITTED, after, subresource=subresource) == (403, message)


@pytest.mark.parametrize("after", TIGHTENED)
def test_an_update_inside_the_boundary_is_let_through(after: JSON) -> None:
    assert evaluate_update(ADMITTED, after) is UNCHANGED


def test_the_namespaces_own_demands_are_named_too() -> None:
    message = f"{NOUSE}: must name GPU-z, denied by namespace team-a"
    of_namespace: dict[str, Any] = {"policies": PolicyRules.EMPTY, "annotations": {NOUSE: "GPU-z"}}
    assert refusal(evaluate_update, {NOUSE: "GPU-z"}, {}, **of_namespace) == (403, message)
    assert evaluate_update({NOUSE: "GPU-z"}, {NOUSE: "GPU-y,GPU-z"}, **of_namespace) is UNCHANGED


@pytest.mark.parametrize(
    "after",
    [
        {"mine": "1"},
        {GPU_POLICY: "spread"},
        {USE: "GPU-a", NOUSE: "GPU-b"},
        {USE_TYPE: "A100"},
        {NODE_POLICY: "spread"},
    ],
)
def test_a_pod_that_is_older_than_the_policy_may_change_what_its_policy_leaves_open(after: JSON) -> None:
    assert evaluate_update({}, after) is UNCHANGED


@pytest.mark.parametrize("after", [{NOUSE: "GPU-y"}, {USE_TYPE: "V100"}, {NODE_POLICY: "binpack"}])
def test_a_pod_that_is_older_than_the_policy_may_not_change_what_is_outside_it(after: JSON) -> None:
    assert refusal(evaluate_update, {}, after)[0] == 403


@pytest.mark.parametrize("node", ["", "n1"])
def test_a_bound_pod_keeps_its_choices_too(node: str) -> None:
    """Device plugins and the pods that share its cards go by them."""
    assert refusal(evaluate_update, ADMITTED, without(NODE_POLICY), old=pod(gpu=1, mem=3000, nodeName=node))[0] == 403


def test_pods_of_volcano_are_held_to_what_volcano_reads() -> None:
    use = "volcano.sh/vgpu-use-gpuuuid"
    theirs = pod("p", container("main", {"volcano.sh/vgpu-number": 1}), schedulerName="volcano")
    message = f"{use}: must be set: policy volcano-a allows only GPU-a"
    assert refusal(evaluate_update, {use: "GPU-a"}, {}, old=theirs) == (403, message)
    assert evaluate_update({use: "GPU-a"}, {use: "GPU-a", NOUSE: "x", "mine": "1"}, old=theirs) is UNCHANGED


@pytest.mark.parametrize("scheduler", ["", "hami-scheduler", "somebody-else"])
def test_whose_scheduler_places_it_makes_no_difference(scheduler: str) -> None:
    assert refusal(evaluate_update, ADMITTED, {}, old=pod(gpu=1, mem=3000, schedulerName=scheduler))[0] == 403


def test_a_pod_without_devices_and_one_whose_lists_stay_are_nobodys_business() -> None:
    assert evaluate_update(ADMITTED, {}, old=pod("p", cpu()), services=NoTouch()) is UNCHANGED
    assert evaluate_update({NOUSE: "x"}, {NOUSE: "x", "mine": "1"}, services=NoTouch()) is UNCHANGED


def test_other_vendors_lists_are_the_users_own() -> None:
    assert evaluate_update(ADMITTED, {**ADMITTED, "hygon.com/use-gpuuuid": "DCU-1"}) is UNCHANGED


def test_where_the_namespace_is_not_known_the_update_is_to_be_tried_again() -> None:
    message = "namespace team-a isn't known yet; try again"
    assert refusal(evaluate_update, ADMITTED, {}, services=FakeServices({})) == (503, message)
    known = FakeServices({"team-a": Namespace("team-a", {}, {})})
    assert refusal(evaluate_update, ADMITTED, {}, services=known)[0] == 403
