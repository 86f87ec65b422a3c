"""Who may write scheduler-owned metadata, and that managed amounts stay: docs/spec/security.md#1 and #2."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from builders import GPU, JSON, MEM, container
from tables import in_one_test

from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.admission.review import Answer
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.registry import Vendors

from .reviews import (
    SCHEDULER,
    VENDORS,
    NoTouch,
    at_once,
    cpu,
    handler_of,
    mutate,
    parsed,
    pod,
    refusal,
    update,
    validate,
    vendors,
)

OWN = "system:serviceaccount:hami-system:hami-scheduler"
PLUGIN = "system:serviceaccount:hami-system:hami-device-plugin"
RULES = AdmissionRules(
    scheduler_name=SCHEDULER, trusted_users=frozenset({OWN, PLUGIN}), trusted_groups=frozenset({"system:masters"})
)
OWNED = (
    *("hami.io/vgpu-node", "hami.io/vgpu-time", "hami.io/bind-time", "hami.io/bind-phase"),
    *("hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-devices-allocated", "hami.io/vgpu-mig-allocations"),
    *("hami.io/Ascend910B-devices-allocated", "huawei.com/Ascend910B", "predicate-time", "NEURON_ALLOCATED"),
    *("iluvatar.ai/predicate-gpu-idx-0", "metax-tech.com/gpu-devices-allocated", "BAIDU_COM_DEVICE_IDX"),
)


HANDLER = handler_of(RULES, services=NoTouch())


def evaluate_update(old: JSON, new: JSON, user: str = "alice", *groups: str, **more: str) -> Answer:
    # Nothing outside may be asked: an update is judged by what it carries.
    review = parsed(update(old, new, user, *groups, **more))
    return at_once(HANDLER.validate(review))


def denied(old: JSON, new: JSON, user: str = "alice", *groups: str, **more: str) -> str:
    code, message = refusal(evaluate_update, old, new, user, *groups, **more)
    assert code == 403
    return message


# on CREATE


@in_one_test("step", [mutate, validate])
@in_one_test("scheduler", ["", SCHEDULER, "volcano", "default-scheduler"])
@in_one_test("containers", [[container(gpu=1, mem=3000)], [cpu()]])
@in_one_test("key", OWNED)
def test_security_1_a_new_pod_must_not_bring_an_allocation(
    step: Callable[..., Answer], scheduler: str, containers: list[JSON], key: str
) -> None:
    obj = pod("p", *containers, annotations={key: "", "mine": "x"}, schedulerName=scheduler)
    if not key.startswith("hami.io/"):  # NVIDIA alone is enabled: it is another project's
        if (step, scheduler) != (validate, "default-scheduler"):  # mutation would have changed that
            step(obj)
        return
    code, message = refusal(step, obj)
    assert code == 403
    assert f"annotation {key} " in message


@pytest.mark.parametrize("step", [mutate, validate])
@pytest.mark.parametrize("one", [container(gpu=1, mem=3000), cpu()], ids=["gpu", "cpu"])
def test_security_1_a_new_pod_must_not_bring_the_node_label(step: Callable[..., Answer], one: JSON) -> None:
    code, message = refusal(step, pod("p", one, labels={"hami.io/vgpu-node": "n1"}))
    assert (code, message) == (
        403,
        "label hami.io/vgpu-node is written by the scheduler only; remove it from the pod",
    )


@pytest.mark.parametrize(
    "key",
    [
        "hami.io/quota-reservation",
        "nvidia.com/use-gpuuuid",
        "HAMI.IO/vgpu-node",
        "mthreads.com/request-gpu-num",
        "vgpu",
    ],
)
def test_other_annotations_are_the_users(key: str) -> None:
    mutate(pod(gpu=1, mem=3000, annotations={key: "x"}))
    validate(pod(gpu=1, mem=3000, annotations={key: "x"}))


def vendors_with_own_keys() -> Vendors:
    known = vendors()
    known["NVIDIA"].keys = DeviceKeys(allocated="huawei.com/Custom")
    return type(known)(list(known.values()))


def test_security_1_keys_that_only_an_enabled_vendor_knows_are_owned_too() -> None:
    known = vendors_with_own_keys()
    forged = pod(gpu=1, mem=3000, annotations={"huawei.com/Custom": "x"})
    assert refusal(mutate, forged, known=known)[0] == 403
    mutate(forged)
    review = parsed(update(pod(gpu=1, mem=3000), forged))
    code, _ = refusal(lambda: at_once(handler_of(RULES, known=known).validate(review)))
    assert code == 403


# on UPDATE: whose metadata it is

BOUND = pod(gpu=1, mem=3000, nodeName="n1", annotations={"hami.io/bind-phase": "allocating", "mine": "1"})


def changed(obj: JSON, **annotations: str | None) -> JSON:
    new = copy.deepcopy(obj)
    for key, value in annotations.items():
        key = key.replace("__", "/").replace("_", "-").replace("hami/", "hami.io/")
        if value is None:
            new["metadata"]["annotations"].pop(key)
        else:
            new["metadata"].setdefault("annotations", {})[key] = value
    return new


CHANGES = {
    "adds": changed(BOUND, hami__vgpu_time="1"),
    "changes": changed(BOUND, hami__bind_phase="success"),
    "removes": changed(BOUND, hami__bind_phase=None),
    "empties": changed(BOUND, hami__bind_phase=""),
}


def test_security_1_a_node_may_not_touch_a_pod_that_is_on_no_node_yet() -> None:
    old = pod(gpu=1, mem=3000, annotations={"mine": "1"})
    new = changed(old, hami__vgpu_node="n1")
    new["spec"]["nodeName"] = "n1"
    denied(old, new, "system:node:n1", "system:nodes")
    denied(old, changed(old, hami__vgpu_node=""), "system:node:", "system:nodes")


def test_security_1_the_node_label_is_owned_too() -> None:
    old, new = pod("p", cpu()), pod("p", cpu(), labels={"hami.io/vgpu-node": "n1"})
    assert denied(old, new).startswith("label hami.io/vgpu-node")
    assert denied(new, old).startswith("label hami.io/vgpu-node")
    evaluate_update(old, new, OWN)


@pytest.mark.parametrize("subresource", ["status", "resize", "ephemeralcontainers"])
def test_security_1_subresources_are_no_way_around(subresource: str) -> None:
    denied(BOUND, CHANGES["changes"], subresource=subresource)
    evaluate_update(BOUND, CHANGES["changes"], OWN, subresource=subresource)


def test_everything_else_may_change_freely() -> None:
    new = changed(BOUND, mine="2", other="x", hami__monitor="s")
    new["metadata"]["labels"] = {"a": "b"}
    new["spec"]["containers"][0] |= {"image": "other", "env": [{"name": "A", "value": "1"}]}
    new["spec"]["containers"][0]["resources"]["limits"] |= {"cpu": "4"}
    new["spec"]["tolerations"] = [{"operator": "Exists"}]
    evaluate_update(BOUND, new)


def test_a_node_that_is_assigned_is_no_reason_to_refuse_a_change() -> None:
    evaluate_update(BOUND, changed(BOUND, mine="2"))


# on UPDATE: amounts


def with_amounts(limits: JSON | None = None, requests: JSON | None = None, name: str = "main", **more: Any) -> JSON:
    return pod("p", container(name, limits, requests), cpu("side"), **more)


@in_one_test("user", ["alice", OWN, PLUGIN])
@in_one_test("subresource", ["", "resize"])
@in_one_test(
    ("before", "after", "message"),
    [
        ({GPU: 1}, {GPU: 2}, "limits[nvidia.com/gpu] can't be changed from 1 to 2"),
        ({GPU: 1}, {}, "limits[nvidia.com/gpu] can't be changed from 1 to none"),
        ({}, {GPU: 1}, "limits[nvidia.com/gpu] can't be changed from none to 1"),
        ({GPU: 1, MEM: "2k"}, {GPU: 1, MEM: 2001}, "limits[nvidia.com/gpumem] can't be changed from 2k to 2001"),
        ({GPU: 1}, {GPU: "one"}, "limits[nvidia.com/gpu] can't be changed from 1 to one"),
        ({GPU: 0}, {}, "limits[nvidia.com/gpu] can't be changed from 0 to none"),
    ],
)
def test_security_2_managed_amounts_stay_whoever_asks(
    user: str, subresource: str, before: JSON, after: JSON, message: str
) -> None:
    end = " once the pod exists; delete the pod and create it again"
    old, new = with_amounts(before), with_amounts(after)
    assert denied(old, new, user, subresource=subresource) == f"container main: {message}{end}"
    old, new = with_amounts({}, before), with_amounts({}, after)
    assert denied(old, new, user, subresource=subresource) == f"container main: {message}{end}".replace(
        "limits", "requests"
    )


def test_security_2_init_containers_count() -> None:
    old, new = (
        pod("p", cpu(), init=[container("i", gpu=1, mem=3000)]),
        pod("p", cpu(), init=[container("i", gpu=2, mem=3000)]),
    )
    assert "container i: limits[nvidia.com/gpu]" in denied(old, new)


@pytest.mark.parametrize(
    ("before", "after"), [({MEM: "2k"}, {MEM: 2000}), ({MEM: "3000"}, {MEM: 3000}), ({GPU: "1"}, {GPU: "1000m"})]
)
def test_another_spelling_of_the_same_amount_is_no_change(
    before: dict[str, str], after: dict[str, int] | dict[str, str]
) -> None:
    evaluate_update(with_amounts(before), with_amounts(after))


def test_cpu_and_memory_may_be_resized_beside_a_card() -> None:
    evaluate_update(with_amounts({GPU: 1, "cpu": 1}), with_amounts({GPU: 1, "cpu": 2}), subresource="resize")


def test_an_added_sidecar_is_fine_unless_it_brings_a_managed_amount() -> None:
    old = pod(gpu=1, mem=3000)
    evaluate_update(old, pod(gpu=1, mem=3000, init=[cpu("proxy", restartPolicy="Always")]))
    assert "container proxy: limits" in denied(
        old, pod(gpu=1, mem=3000, init=[container("proxy", gpu=1, mem=3000, restartPolicy="Always")])
    )


def test_a_container_with_a_managed_amount_can_be_neither_removed_nor_renamed() -> None:
    assert "container main" in denied(pod("p", container(gpu=1, mem=3000), cpu("b")), pod("p", cpu("b")))
    assert "container main" in denied(pod(gpu=1, mem=3000), pod("p", container("other", gpu=1, mem=3000)))


@pytest.mark.parametrize("part", ["limits", "requests"])
def test_security_2_ephemeral_containers_cant_ask_for_cards(part: str) -> None:
    old = pod(gpu=1, mem=3000)
    new = pod(gpu=1, mem=3000, ephemeralContainers=[cpu("shell"), {"name": "debug", "resources": {part: {GPU: 1}}}])
    message = denied(old, new, OWN, subresource="ephemeralcontainers")
    assert message == "ephemeral container debug: nvidia.com/gpu can't be given to an ephemeral container"
    evaluate_update(
        old,
        pod(gpu=1, mem=3000, ephemeralContainers=[cpu("shell"), {"name": "bare"}]),
        subresource="ephemeralcontainers",
    )


PRIVILEGED = {"name": "debug", "securityContext": {"privileged": True}}


@pytest.mark.parametrize("user", ["alice", OWN])
def test_no_privileged_ephemeral_container_comes_beside_cards(user: str) -> None:
    old = pod(gpu=1, mem=3000, ephemeralContainers=[cpu("shell")])
    new = pod(gpu=1, mem=3000, ephemeralContainers=[cpu("shell"), PRIVILEGED])
    assert denied(old, new, user, subresource="ephemeralcontainers") == (
        "ephemeral container debug is privileged, so it would see every card of the node; add it without "
        "securityContext.privileged"
    )


@pytest.mark.parametrize(
    "asked",
    [{"gpu": 1, "mem": 3000}, {"gpu": 0}, {"cpu": 1}],
    ids=["not privileged", "no cards", "unmanaged"],
)
def test_other_ephemeral_containers_pass(asked: JSON) -> None:
    debug = cpu("debug", securityContext={"privileged": False}) if asked.get("gpu") else PRIVILEGED
    answer = evaluate_update(pod(**asked), pod(**asked, ephemeralContainers=[debug]), subresource="ephemeralcontainers")
    assert list(answer.warnings) == []


def test_one_that_is_there_already_keeps_nobody_from_changing_the_pod() -> None:
    """It came while the webhook was away, and can't be removed."""
    old = pod(gpu=1, mem=3000, ephemeralContainers=[PRIVILEGED])
    evaluate_update(old, changed(old, mine="1"))
    another = pod(gpu=1, mem=3000, ephemeralContainers=[PRIVILEGED, {**PRIVILEGED, "name": "more"}])
    assert "container more is privileged" in denied(old, another, subresource="ephemeralcontainers")


def test_an_update_is_no_reason_to_charge_or_mutate() -> None:
    for path in ("mutate", "webhook"):
        review = parsed(update(pod(gpu=1, mem=3000), changed(pod(gpu=1, mem=3000), mine="1")))
        answer = at_once(getattr(HANDLER, path)(review))
        assert list(answer.patch) == []


def test_hamis_path_checks_updates_too() -> None:
    review = parsed(update(BOUND, CHANGES["changes"]))
    assert refusal(lambda: at_once(handler_of(RULES).webhook(review)))[0] == 403


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
def test_other_operations_are_nobodys_business(operation: str) -> None:
    written = update(BOUND, BOUND)
    written["request"] |= {"operation": operation, "object": None}
    for path in ("mutate", "validate", "webhook"):
        answer = at_once(getattr(HANDLER, path)(parsed(written)))
        assert list(answer.patch) == []


def test_the_enabled_vendor_is_the_one_the_tests_think_of() -> None:
    assert VENDORS.resource_names >= {GPU, MEM}
