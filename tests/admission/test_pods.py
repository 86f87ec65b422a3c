"""What admission does with a new pod: docs/spec/core.md#5, #16 (I), docs/spec/nvidia.md#5, docs/spec/security.md#2."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from builders import CORES, GPU, JSON, MEM, PERCENT, PRIORITY, container
from hypothesis import given
from hypothesis import strategies as st
from refusals import has_node, is_privileged

from hami_webhook.admission.defaults import DEFAULTED
from hami_webhook.admission.denial import Denied
from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.admission.review import Answer
from hami_webhook.policy.rules import PolicyRule, PolicyRules

from .reviews import (
    RULES,
    SCHEDULER,
    FakeServices,
    at_once,
    cpu,
    handler_of,
    mutate,
    parsed,
    patched,
    pod,
    refusal,
    review,
    validate,
    vendors,
)

Step = Callable[..., Answer]

WEIGHTS = "hami.io/device-scoring-weights"
PRIVILEGED: JSON = {"securityContext": {"privileged": True}}


def spec_after(obj: JSON, rules: AdmissionRules = RULES, **more: Any) -> JSON:
    spec: JSON = patched(obj, mutate(obj, rules, **more))["spec"]
    return spec


# core 16.I


def test_the_default_scheduler_is_replaced() -> None:
    obj = pod(gpu=1, mem=3000, schedulerName="default-scheduler")
    assert list(mutate(obj).patch) == [{"op": "replace", "path": "/spec/schedulerName", "value": SCHEDULER}]


@pytest.mark.parametrize("step", [mutate, validate])
@pytest.mark.parametrize("spec", [{}, {"initContainers": [container(gpu=1, mem=3000)]}, {"initContainers": [cpu()]}])
def test_a_pod_without_containers_is_denied(step: Step, spec: JSON) -> None:
    assert refusal(step, {**pod(), "spec": {"containers": [], **spec}}) == (403, "pod has no containers")


# the table of step 2


@pytest.mark.parametrize(
    ("scheduler", "name", "force", "ours"),
    [
        ("", SCHEDULER, True, True),
        ("", SCHEDULER, False, True),
        ("", "", True, True),
        ("", "", False, True),
        ("default-scheduler", SCHEDULER, True, True),
        ("default-scheduler", "", True, True),
        ("default-scheduler", SCHEDULER, False, False),
        ("default-scheduler", "", False, False),
        ("default-scheduler", "default-scheduler", False, True),
        (SCHEDULER, SCHEDULER, True, True),
        (SCHEDULER, SCHEDULER, False, True),
        (SCHEDULER, "", True, False),
        ("volcano", SCHEDULER, True, False),
        ("volcano", SCHEDULER, False, False),
        ("volcano", "", True, False),
    ],
)
def test_whether_a_pod_is_mutated_follows_the_scheduler_table(
    scheduler: str, name: str, force: bool, ours: bool
) -> None:
    rules = AdmissionRules(scheduler_name=name, force_overwrite_default_scheduler=force)
    obj = pod("p", container(limits={GPU: 1}), schedulerName=scheduler)
    after = spec_after(obj, rules)
    if ours:
        assert after["containers"][0]["resources"]["limits"] == {GPU: 1, CORES: "100"}
        assert after.get("schedulerName", "") == (name or scheduler)
    else:
        assert after == obj["spec"]


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        ({"containers": [container(gpu=1, mem=3000, **PRIVILEGED)]}, 403, is_privileged("main")),
        ({"nodeName": "n1"}, 403, has_node("n1")),
        ({"annotations": {WEIGHTS: "slot=1"}}, 403, None),
        ({"containers": [container(gpu="1500m", mem=3000)]}, 422, None),
    ],
)
def test_a_pod_of_a_foreign_scheduler_is_validated(fault: JSON, code: int, message: str | None) -> None:
    more = dict(fault)
    containers = more.pop("containers", [container(gpu=1, mem=3000)])
    found = refusal(validate, pod("p", *containers, schedulerName="volcano", **more))
    assert found[0] == code
    assert message in (None, found[1])


def run_webhook(obj: JSON, *, dry_run: bool = False, **more: Any) -> Answer:
    return at_once(handler_of(**more).webhook(parsed(review(obj, dryRun=dry_run))))


# denials, their order and texts


def test_the_first_privileged_container_is_named_init_containers_first() -> None:
    obj = pod("p", container(gpu=1, mem=3000, **PRIVILEGED), init=[cpu("setup"), cpu("probe", **PRIVILEGED)])
    assert refusal(mutate, obj) == (403, is_privileged("probe"))


def test_bad_amounts_come_before_privileged_containers_and_those_before_nodes() -> None:
    assert refusal(mutate, pod("p", container(gpu=-1, mem=3000, **PRIVILEGED), nodeName="n1"))[0] == 422
    assert refusal(mutate, pod("p", container(gpu=1, mem=3000, **PRIVILEGED), nodeName="n1"))[1] == is_privileged(
        "main"
    )
    assert refusal(mutate, pod(gpu=1, mem=3000, nodeName="n1", annotations={WEIGHTS: "x"}))[1] == has_node("n1")


def test_the_second_pass_sees_a_count_of_init_containers_only() -> None:
    obj = pod("p", cpu(**PRIVILEGED), init=[container("setup", gpu=1, mem=3000)])
    assert refusal(mutate, obj) == (403, is_privileged("main"))


def test_scoring_weights_of_a_cpu_pod_are_nobodys_business() -> None:
    assert list(mutate(pod("p", cpu(), annotations={WEIGHTS: "nonsense"})).patch) == []


PERCENTAGE = "invalid nvidia.com/gpumem-percentage value {} in container main: must be an integer between 0 and 100"
MEMORY = (
    "invalid nvidia.com/gpumem value {} in container main: must be an integer number of MiB between 0 and 2147483647"
)
BYTES = f"{MEMORY.format('16Gi')}; for 16Gi write 16384"
WHOLE = "invalid {} value {} in container main: must be an integer between 0 and 2147483647"


@pytest.mark.parametrize("step", [mutate, validate])
@pytest.mark.parametrize("part", ["limits", "requests"])
@pytest.mark.parametrize(
    ("resource", "value", "message"),
    [
        (PERCENT, 150, PERCENTAGE.format(150)),
        (PERCENT, "-1", PERCENTAGE.format(-1)),
        (PERCENT, "9223372036854775807", PERCENTAGE.format(9223372036854775807)),
        (MEM, "16Gi", BYTES),
        (MEM, "1e30", MEMORY.format("1e30")),
        (MEM, "9223372036854775807", MEMORY.format("9223372036854775807")),
        (MEM, -5, MEMORY.format(-5)),
        (MEM, "", MEMORY.format("")),
        (MEM, True, MEMORY.format(True)),
        (MEM, [1], MEMORY.format([1])),
        (GPU, "1500m", WHOLE.format(GPU, "1500m")),
        (GPU, 2.5, WHOLE.format(GPU, 2.5)),
        (GPU, "9223372036854775807", WHOLE.format(GPU, "9223372036854775807")),
        (CORES, "-1", WHOLE.format(CORES, "-1")),
        (CORES, "abc", WHOLE.format(CORES, "abc")),
        (PRIORITY, "1e30", WHOLE.format(PRIORITY, "1e30")),
    ],
)
def test_security_2_amounts_that_cant_be_meant_are_denied(
    step: Step, part: str, resource: str, value: object, message: str
) -> None:
    amounts: JSON = {"limits": {GPU: 1}} | {part: {GPU: 1, resource: value}}
    assert refusal(step, pod("p", container(**amounts))) == (422, message)


@pytest.mark.parametrize("step", [mutate, validate])
def test_a_bad_percentage_is_denied_without_a_count(step: Step) -> None:
    assert refusal(step, pod("p", container(limits={PERCENT: 150}))) == (422, PERCENTAGE.format(150))


@pytest.mark.parametrize("value", [0, "0", 100, "2k", "100"])
def test_whole_amounts_in_any_spelling_are_fine(value: int | str) -> None:
    mutate(pod("p", container(limits={GPU: 1, MEM: value})))


# what NVIDIA writes


@pytest.mark.parametrize(
    ("limits", "requests", "after"),
    [
        ({MEM: 3000}, None, {MEM: 3000, GPU: "1"}),
        ({CORES: 30}, None, {CORES: 30, GPU: "1"}),
        ({PERCENT: 50}, None, {PERCENT: 50, GPU: "1"}),
        ({PERCENT: 100}, None, {PERCENT: 100, GPU: "1", CORES: "100"}),
        ({MEM: 3000}, {GPU: "2"}, {MEM: 3000, GPU: "2"}),
        ({GPU: 2}, {GPU: "2"}, {GPU: 2, CORES: "100"}),
        ({GPU: 0, MEM: 3000}, None, {GPU: 0, MEM: 3000}),
        ({GPU: 1, MEM: 0}, None, {GPU: 1, MEM: 0}),
        ({GPU: 1, CORES: 0}, None, {GPU: 1, CORES: 0}),
        ({"cpu": 1}, {MEM: "3000"}, {"cpu": 1}),
    ],
)
def test_defaults_are_written_to_limits_alone(
    limits: dict[str, int], requests: dict[str, str] | None, after: JSON
) -> None:
    obj = pod("p", container(limits=limits, requests=requests))
    resources = spec_after(obj)["containers"][0]["resources"]
    assert resources["limits"] == after
    assert resources.get("requests") == requests


def test_overwrite_env_hides_gpus_from_containers_that_ask_for_none() -> None:
    known = vendors(overwriteEnv=True)
    hidden = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}
    own = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    obj = pod(
        "p",
        cpu(),
        cpu("b", env=[{"name": "A", "value": "1"}, own]),
        init=[cpu("i", env=None), container("g", gpu=1, mem=3000)],
    )
    after = spec_after(obj, known=known)
    assert after["containers"][0]["env"] == [hidden]
    assert after["containers"][1]["env"] == [{"name": "A", "value": "1"}, hidden]
    assert after["initContainers"][0]["env"] == [hidden]
    assert "env" not in after["initContainers"][1]


def test_overwrite_env_needs_no_namespace_for_cpu_pods_and_leaves_foreign_ones_alone() -> None:
    nowhere: dict[str, Any] = {"known": vendors(overwriteEnv=True), "services": FakeServices(there={})}
    assert len(mutate(pod("p", cpu()), **nowhere).patch) == 1
    assert list(mutate(pod("p", cpu(), schedulerName="volcano"), **nowhere).patch) == []


def test_an_environment_that_is_no_list_is_a_bad_request() -> None:
    obj = pod("p", container(limits={GPU: 1, PRIORITY: 1}, env={"A": 1}))
    assert refusal(mutate, obj) == (400, "the pod can't be read: spec.containers[0].env must be a list, not an object")


# the namespace


def test_the_requests_namespace_counts_not_the_pods() -> None:
    obj = pod(gpu=1, mem=3000)
    obj["metadata"]["namespace"] = "elsewhere"
    mutate(obj)
    validate(obj)


def test_the_scheduler_of_the_last_policy_that_names_one_wins_and_is_told() -> None:
    elsewhere = PolicyRule("elsewhere", namespaces=("x",), scheduler_name="third")
    naming = (PolicyRule("first", scheduler_name="one"), PolicyRule("special", scheduler_name="other"))
    policies = PolicyRules((*naming, PolicyRule("silent"), elsewhere))
    obj = pod(gpu=1, mem=3000, schedulerName=SCHEDULER)
    answer = mutate(obj, policies=policies)
    assert patched(obj, answer)["spec"]["schedulerName"] == "other"
    assert list(answer.warnings) == ["spec.schedulerName set to other by policy special"]
    assert answer.audit == {"policy": "special"}
    again = mutate(patched(obj, answer), policies=policies)
    assert (list(again.patch), list(again.warnings)) == ([], [])


def test_policy_comes_before_the_vendors_defaults_and_both_are_in_the_patch() -> None:
    obj = pod("p", container(limits={GPU: 1}))
    answer = mutate(obj, annotations={"hami.io/gpu-scheduler-policy": "topology-aware"})
    after = patched(obj, answer)
    assert after["metadata"]["annotations"]["hami.io/gpu-scheduler-policy"] == "topology-aware"
    assert after["spec"]["containers"][0]["resources"]["limits"] == {GPU: 1, CORES: "100"}
    assert answer.audit == {"policy": "namespace"}


def test_scheduler_owned_keys_of_a_namespace_are_reported_but_not_for_dry_runs() -> None:
    around = FakeServices()
    around.there["team-a"] = type(around.there["team-a"])("team-a", {}, {"hami.io/bind-phase": "x"})
    mutate(pod(gpu=1, mem=3000), services=around)
    assert around.ignored == [("team-a", ("hami.io/bind-phase",))]


def test_an_unknown_card_policy_is_told() -> None:
    obj = pod(gpu=1, mem=3000, annotations={"hami.io/gpu-scheduler-policy": "fastest"})
    assert "acts as spread" in mutate(obj).warnings[0]


@pytest.mark.parametrize(
    ("more", "about"),
    [
        ({"runtimeClassName": "kata-qemu"}, "spec.runtimeClassName kata-qemu"),
        ({"labels": {"kubevirt.io": "virt-launcher"}}, "label kubevirt.io"),
    ],
)
def test_a_virtual_machine_is_told_that_it_sees_no_shared_card(more: JSON, about: str) -> None:
    (warning,) = mutate(pod(gpu=1, mem=3000, **more)).warnings
    assert warning.startswith(f"{about}: shared cards are mounted into the container")
    assert list(mutate(pod("p", cpu(), **more)).warnings) == []


def test_ordinary_pods_get_no_warnings() -> None:
    assert list(mutate(pod(gpu=1, mem=3000)).warnings) == []


# any pod at all

AMOUNTS = st.sampled_from([0, 1, 2, "1", "0", "100", "2k", 3000, "50", 2.0, None])
NAMES = st.sampled_from([GPU, MEM, CORES, PERCENT, PRIORITY, "cpu", "memory", "example.com/a~b/c"])
MAPS = st.dictionaries(NAMES, AMOUNTS, max_size=4)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
UNKNOWN = st.dictionaries(st.sampled_from(["zone", "a/b", "~", "é", ""]), JUNK, max_size=2)
ENV = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["A", "CUDA_TASK_PRIORITY", "NVIDIA_VISIBLE_DEVICES", "GPU_CORE_UTILIZATION_POLICY"])},
        optional={"value": st.text(max_size=3), "valueFrom": JUNK},
    ),
    max_size=3,
)


def fields(**choices: st.SearchStrategy[Any]) -> st.SearchStrategy[JSON]:
    """A map in which each field may be missing."""
    return st.fixed_dictionaries({}, optional=choices)


CONTAINER = st.builds(
    lambda known, unknown, name: {**unknown, **known, "name": name},
    fields(
        resources=st.none()
        | st.builds(lambda a, b: {**a, **b}, fields(limits=MAPS | st.none(), requests=MAPS), UNKNOWN),
        env=st.none() | ENV,
        restartPolicy=st.just("Always"),
    ),
    UNKNOWN,
    st.sampled_from(["a", "b", "c"]),
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(["a", "nvidia.com/use-gpuuuid", "hami.io/gpu-scheduler-policy", "x/y~z"]),
    st.sampled_from(["", "GPU-a,GPU-b", "spread", "weird"]),
    max_size=3,
)
POD = st.builds(
    lambda meta, spec, init, containers, unknown: {
        **unknown,
        **meta,
        "spec": {**unknown, **spec, **init, "containers": containers},
    },
    fields(metadata=st.none() | fields(annotations=st.none() | ANNOTATIONS, labels=st.none(), name=st.just("p"))),
    fields(schedulerName=st.sampled_from(["", "default-scheduler", SCHEDULER, "volcano"]), runtimeClassName=st.none()),
    fields(initContainers=st.none() | st.lists(CONTAINER, max_size=2)),
    st.lists(CONTAINER, min_size=1, max_size=3),
    UNKNOWN,
)
POLICIES = PolicyRules(
    (PolicyRule("r", enforce={"hami.io/node-scheduler-policy": "spread"}, default={WEIGHTS: "slot=1,core=2,memory=3"}),)
)
WAYS: dict[str, dict[str, Any]] = {
    "as the chart has it": {},
    "with everything on": {"known": vendors(overwriteEnv=True, gpuCorePolicy="force", runtimeClassName="nvidia")},
    "with policy": {
        "policies": POLICIES,
        "annotations": {"nvidia.com/use-gpuuuid": "GPU-a", "nvidia.com/vgpu-mode": "mig"},
    },
}
MEANT_ENV = {"CUDA_TASK_PRIORITY", "NVIDIA_VISIBLE_DEVICES", "GPU_CORE_UTILIZATION_POLICY"}
CHOICES = {"nvidia.com/use-gpuuuid", "hami.io/node-scheduler-policy", "nvidia.com/vgpu-mode", WEIGHTS}


def unmeant(obj: JSON) -> bytes:
    """The pod without whatever admission may write."""
    rest = copy.deepcopy(obj)
    spec = rest["spec"]
    for key in ("schedulerName", "runtimeClassName"):
        spec.pop(key, None)
    for one in [*(spec.get("initContainers") or []), *spec["containers"]]:
        resources = one.get("resources") or {}
        for part in ("limits", "requests"):
            kept = {k: v for k, v in (resources.get(part) or {}).items() if k not in (GPU, CORES)}
            resources.pop(part, None)
            if kept:
                resources[part] = kept
        one["resources"] = resources
        one["env"] = [item for item in one.get("env") or [] if item.get("name") not in MEANT_ENV]
    meta = rest.get("metadata") or {}
    kept = {k: v for k, v in (meta.get("annotations") or {}).items() if k not in CHOICES | {DEFAULTED}}
    meta.pop("annotations", None)
    rest["metadata"] = {**meta, **({"annotations": kept} if kept else {})}
    return orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)


@pytest.mark.parametrize("way", WAYS)
@given(obj=POD)
def test_mutation_is_idempotent_and_touches_only_what_it_means(way: str, obj: JSON) -> None:
    before = orjson.dumps(obj)
    try:
        answer = mutate(obj, **WAYS[way])
    except Denied:
        return
    assert orjson.dumps(obj) == before, "the object itself must stay as it was"
    after = patched(obj, answer)
    assert unmeant(after) == unmeant(obj)
    again = mutate(after, **WAYS[way])
    assert list(again.patch) == []
    assert set(again.warnings) <= set(answer.warnings)
    for field in ("initContainers", "containers"):
        for one, was in zip(after["spec"].get(field) or [], obj["spec"].get(field) or [], strict=True):
            for name in MEANT_ENV:
                assert times(one, name) <= max(1, times(was, name)), "a variable is replaced, never repeated"


def times(container: JSON, name: str) -> int:
    return sum(item["name"] == name for item in container.get("env") or [])


def test_an_amount_too_large_for_json_integers_survives_as_it_came() -> None:
    # Any number beyond 64 bits is a float to JSON readers; it must not reach the patch.
    obj = pod(gpu=1, mem=3000, custom=2**63, ratio=0.1)
    after = patched(obj, mutate(obj))
    assert after["spec"]["custom"] == 2**63
    assert math.isclose(after["spec"]["ratio"], 0.1)


def test_the_rules_default_to_taking_over_the_default_scheduler() -> None:
    assert RULES.force_overwrite_default_scheduler
