"""`denyEnv` of a policy, on each path; refusals carry the warnings of their pods (docs/spec/policy.md#1, core.md#5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from builders import container

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.review import denied
from hami_webhook.policy.rules import PolicyRule, PolicyRules

from .reviews import JSON, SCHEDULER, handler_of, parsed, pod, review

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
