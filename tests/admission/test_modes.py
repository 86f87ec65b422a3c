"""What policy adds to a pod or forbids it: a mode, and variables of the environment (docs/spec/policy.md#1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from builders import JSON, container

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.review import denied
from hami_webhook.device_config import enabled_vendors, load_device_config
from hami_webhook.policy.rules import PolicyRule, PolicyRules

from .reviews import SCHEDULER, handler_of, mutate, parsed, patched, pod, refusal, review

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


# `denyEnv` of a policy, on each path; refusals carry the warnings of their pods (docs/spec/policy.md#1, core.md#5)


RULES = PolicyRules((PolicyRule("hold", deny_env=frozenset({"CUDA_DISABLE_CONTROL"})),))
PATHS = pytest.mark.parametrize("path", ["mutate", "validate", "webhook"])


def denial(path: str, obj: JSON, policies: PolicyRules = PolicyRules.EMPTY) -> Denied:
    handler = handler_of(policies=policies)
    call: Callable[..., object] = getattr(handler, path)
    with pytest.raises(Denied) as caught:
        asyncio.run(call(parsed(review(obj))))  # type: ignore[arg-type]  # one of three methods
    return caught.value


@PATHS
@pytest.mark.parametrize(
    "env", [{"value": "true"}, {"value": "0"}, {}, {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
)
def test_it_is_denied_on_every_path(path: str, env: JSON) -> None:
    """Whatever its value, and where mutation was skipped or another webhook added it."""
    written = {"name": "CUDA_DISABLE_CONTROL", **env}
    obj = pod("p", container(gpu=1, mem=1000, env=[{"name": "A", "value": "b"}, written]), schedulerName=SCHEDULER)
    found = denial(path, obj, RULES)
    assert (found.code, found.cause) == (403, "policy")
    assert found.message == (
        "container main: CUDA_DISABLE_CONTROL must not be set in a pod with cards, by policy hold; remove it"
    )


@pytest.mark.parametrize("path", ["mutate", "webhook"])
def test_a_refusal_has_the_warnings_of_its_pod(path: str) -> None:
    obj = pod("p", container(gpu=1, mem=1000), nodeName="n1", annotations={"nvidia.com/gpumem": "3000"})
    found = denial(path, obj)
    (text,) = found.warnings
    assert text.startswith("annotation nvidia.com/gpumem means nothing")
    assert text.encode() in denied("admission.k8s.io/v1", "u", found)
    assert b"warnings" not in denied("admission.k8s.io/v1", "u", Denied(403, "no"))
