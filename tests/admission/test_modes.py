"""Pods that mean something only under a mode that policy gives them (docs/spec/policy.md#1, docs/spec/ascend.md#5)."""

from __future__ import annotations

import pytest
from builders import JSON, container

from hami_webhook.device_config import enabled_vendors, load_device_config
from hami_webhook.policy.rules import PolicyRule, PolicyRules

from .reviews import mutate, patched, pod, refusal

NPU = "huawei.com/Ascend910B3"
CONFIG = (
    f"vnpus: [{{commonWord: Ascend910B3, resourceName: {NPU}, resourceMemoryName: {NPU}-memory,"
    f" resourceCoreName: {NPU}-core, memoryAllocatable: 65536, templates: [{{name: t, memory: 16384}}]}}]"
)
NPUS = enabled_vendors(load_device_config(CONFIG, "test").config)
MODE = {"huawei.com/vnpu-mode": "hami-core"}
SLICES = {NPU: "2", f"{NPU}-memory": "10000", f"{NPU}-core": "20"}


@pytest.mark.parametrize(
    "way", [{"annotations": MODE}, {"policies": PolicyRules((PolicyRule("r", enforce=MODE),))},
            {"policies": PolicyRules((PolicyRule("r", default=MODE),))}]
)  # fmt: skip
def test_a_pod_that_only_policys_mode_allows_is_admitted_under_it(way: JSON) -> None:
    answer = mutate(pod("p", container(limits=SLICES)), known=NPUS, **way)
    after = patched(pod("p", container(limits=SLICES)), answer)
    assert after["metadata"]["annotations"] == MODE
    assert after["spec"]["containers"][0]["resources"]["limits"] == SLICES
    assert list(mutate(after, known=NPUS, **way).patch) == []


@pytest.mark.parametrize("way", [{}, {"annotations": {"hami.io/gpu-scheduler-policy": "binpack"}}])
@pytest.mark.parametrize("scheduler", ["", "volcano"])
def test_without_that_mode_its_refusal_stands(way: JSON, scheduler: str) -> None:
    code, message = refusal(mutate, pod("p", container(limits=SLICES), schedulerName=scheduler), known=NPUS, **way)
    assert code == 422
    assert f"{NPU}-core is only supported in hami-core" in message
