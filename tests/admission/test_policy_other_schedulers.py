"""Policy on pods that Volcano places: its mode is a choice, its lists are bounded (docs/spec/policy.md#1 to #4)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from builders import MEM, container

from hami_webhook.config import ConfigError
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.kube.objects import Namespace
from hami_webhook.policy.file import PolicyFile
from hami_webhook.policy.rules import DeviceBounds, PolicyRule, PolicyRules

from .reviews import JSON, SCHEDULER, FakeServices, cpu, mutate, patched, pod, refusal, validate
from .test_pods import Step

KNOWN = enabled_vendors(builtin_device_config().config)
MODE = "volcano.sh/vgpu-mode"
USE, NOUSE = "volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid"
USE_TYPE, NOUSE_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
BY_POLICY = re.compile(" by (policy|namespace) ")
LIMITS = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"}


def pod_with_limits(notes: JSON | None = None, limits: JSON | None = None, *more: JSON) -> JSON:
    return pod("p", container(limits=limits or LIMITS), *more, annotations=notes, schedulerName="volcano")


def after(manifest: JSON, **way: Any) -> tuple[JSON, list[str], str]:
    """Annotations, what was said of policy, and the rules that acted; a second pass changes and says nothing new."""
    answer = mutate(manifest, known=KNOWN, **way)
    done = patched(manifest, answer)
    again = mutate(done, known=KNOWN, **way)
    assert list(again.patch) == []
    assert not any(map(BY_POLICY.search, again.warnings))
    validate({**done, "metadata": {**done["metadata"], "uid": "u"}}, known=KNOWN, **way)
    said = [warning for warning in answer.warnings if BY_POLICY.search(warning)]
    return done["metadata"].get("annotations", {}), said, answer.audit.get("policy", "")


def must(**mode: str) -> PolicyRules:
    parts: dict[str, Any] = {part: {MODE: value} for part, value in mode.items()}
    return PolicyRules((PolicyRule("r", **parts),))


@pytest.mark.parametrize(
    ("own", "of_namespace", "policies", "mode", "acted"),
    [
        (None, {MODE: " MIG "}, PolicyRules.EMPTY, "mig", "namespace"),
        (" ", {MODE: "mig"}, PolicyRules.EMPTY, "mig", "namespace"),
        (None, {}, must(default="mig"), "mig", "r"),
        ("mig", {}, must(enforce=" Mig"), "mig", ""),
        ("time-slicing", {}, must(enforce="mig"), "mig", "r"),
        ("mig", {}, must(enforce=""), None, "r"),
        (None, {}, must(enforce=""), None, ""),
        (None, {MODE: ""}, PolicyRules.EMPTY, None, ""),
    ],
)
def test_the_mode_is_a_choice(
    own: str | None, of_namespace: JSON, policies: PolicyRules, mode: str | None, acted: str
) -> None:
    notes, said, rules = after(
        pod_with_limits(None if own is None else {MODE: own}), annotations=of_namespace, policies=policies
    )
    assert (notes.get(MODE), rules) == (mode, acted)
    assert [line.partition(" ")[0] for line in said] == ([MODE] if acted else [])


@pytest.mark.parametrize(
    ("own", "of_namespace", "expected"),
    [
        ({USE: " GPU-b , GPU-c "}, {USE: "GPU-a,GPU-b"}, {USE: "GPU-b"}),
        ({NOUSE: "GPU-y"}, {NOUSE: "GPU-z"}, {NOUSE: "GPU-y,GPU-z"}),
        ({USE_TYPE: "a100-sxm4,V100"}, {USE_TYPE: "A100"}, {USE_TYPE: "a100-sxm4"}),
        ({}, {"nvidia.com/use-gpuuuid": "GPU-a", "hami.io/gpu-scheduler-policy": "binpack"}, {}),
    ],
)
def test_its_lists_are_bounded_and_what_it_does_not_read_is_left_out(
    own: JSON, of_namespace: JSON, expected: JSON
) -> None:
    assert after(pod_with_limits(own), annotations=of_namespace)[0] == expected


@pytest.mark.parametrize(
    ("step", "own", "way", "message"),
    [
        (
            mutate,
            {USE: "GPU-c"},
            {"annotations": {USE: "GPU-a"}},
            "vgpu-use-gpuuuid: none of GPU-c is allowed in namesp",
        ),
        (
            mutate,
            {USE: "GPU-c"},
            {"policies": PolicyRules((PolicyRule("r", devices={"volcano": DeviceBounds(allow_uuids=("GPU-a",))}),))},
            "vgpu-use-gpuuuid: none of GPU-c is allowed",
        ),
        (validate, {}, {"annotations": {USE: "GPU-a"}}, f"{USE}: must be set"),
        (
            validate,
            {MODE: "hami-core"},
            {"policies": must(enforce="mig")},
            f"{MODE}: must be mig by policy r: found ha",
        ),
        (validate, {}, {"policies": must(enforce="mig")}, f"{MODE}: must be mig by policy r: it isn't set"),
    ],
)
def test_what_policy_leaves_nothing_of_or_finds_too_loose_is_refused(
    step: Step, own: JSON, way: Any, message: str
) -> None:
    code, said = refusal(step, pod_with_limits(own), known=KNOWN, **way)
    assert (code, said[: len(message)]) == (403, message)


STRICT = {MODE: "mig", USE: "GPU-a", USE_TYPE: "A100"}


@pytest.mark.parametrize(
    "manifest",
    [
        pod("p", cpu()),
        pod("p", container(limits={**LIMITS, "volcano.sh/vgpu-number": "0"})),
        pod("p", container(limits={"volcano.sh/vgpu-memory": "0"})),
        pod("p", container(limits={"koordinator.sh/gpu.shared": "1", "koordinator.sh/gpu-memory-ratio": "50"})),
    ],
)
def test_a_pod_that_asks_for_none_of_its_cards_is_left_alone(manifest: JSON) -> None:
    assert after(manifest, annotations=STRICT)[0] == {}


def test_a_pod_of_two_is_governed_for_both() -> None:
    rules = PolicyRules(
        (PolicyRule("r", default={MODE: "mig"}, enforce={"nvidia.com/vgpu-mode": "mps"}, scheduler_name="x"),)
    )
    both = pod("p", container(limits=LIMITS), container("b", {"nvidia.com/gpu": "1", MEM: "500"}))
    notes, said, acted = after(both, annotations={USE: "GPU-v", "nvidia.com/use-gpuuuid": "GPU-h"}, policies=rules)
    assert notes == {MODE: "mig", "nvidia.com/vgpu-mode": "mps", USE: "GPU-v", "nvidia.com/use-gpuuuid": "GPU-h"}
    assert sorted(acted.split(",")) == ["namespace", "r"]
    assert len(said) == 5


def test_the_schedulers_name_is_for_our_pods() -> None:
    rules = PolicyRules((PolicyRule("r", scheduler_name=SCHEDULER),))
    unnamed = pod("p", container(limits=LIMITS))
    assert patched(unnamed, mutate(unnamed, known=KNOWN, policies=rules))["spec"]["schedulerName"] == "volcano"


def test_without_its_namespace_a_pod_waits_and_keys_of_the_scheduler_mean_nothing_there() -> None:
    for step in (mutate, validate):
        code, _ = refusal(step, pod_with_limits(), known=KNOWN, services=FakeServices({}))
        assert code == 503
    around = FakeServices({"team-a": Namespace("team-a", {}, {"volcano.sh/vgpu-ids-new": "x"})})
    mutate(pod_with_limits(), known=KNOWN, services=around)
    assert around.ignored == [("team-a", ("volcano.sh/vgpu-ids-new",))]


def test_the_policy_file_knows_its_choice_and_its_lists() -> None:
    text = "policies: [{name: r, enforce: {volcano.sh/vgpu-mode: mig}, devices: {volcano: {allowUUIDs: [GPU-a]}}}]"
    rule = PolicyRule("r", enforce={MODE: "mig"}, devices={"volcano": DeviceBounds(allow_uuids=("GPU-a",))})
    assert PolicyFile.parse(text, "p", KNOWN.governed) == PolicyRules((rule,))
    for wrong, words in (
        ("default: {volcano.sh/vgpu-use-gpuuuid: a}", "write its items under devices.volcano.allowUUIDs"),
        ("default: {volcano.sh/vgpu-ids-new: a}", "is written by the scheduler alone"),
        ("devices: {koordinator: {}}", "is no enabled backend key"),
    ):
        with pytest.raises(ConfigError, match=words):
            PolicyFile.parse(f"policies: [{{name: r, {wrong}}}]", "p", KNOWN.governed)
