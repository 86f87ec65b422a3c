"""Mirror pods: what a node runs already is neither refused nor changed, if the node itself says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from builders import container
from refusals import has_node
from tables import in_one_test

from hami_webhook.admission.review import UNCHANGED, Answer

from .reviews import JSON, FakeServices, cpu, handler_of, parsed, pod, refusal, review
from .test_identities import CHART, KOORDINATORS, VOLCANOS, share, vgpu

MIRROR = {"kubernetes.io/config.mirror": "hash"}
NODE = {"username": "system:node:n1", "groups": ["system:nodes", "system:authenticated"]}
PATHS = pytest.mark.parametrize("path", ["mutate", "validate", "webhook"])


def reviewed(obj: JSON, path: str, user: JSON = NODE, services: Any = None) -> Answer:
    handler = handler_of(known=CHART, services=services)
    answer: Answer = asyncio.run(getattr(handler, path)(parsed(review(obj, userInfo=user))))
    return answer


def mirror(*containers: JSON, **how: Any) -> JSON:
    made = containers or (container(gpu=1, mem=3000),)
    return pod("p", *made, **{"nodeName": "n1", "annotations": MIRROR, **how})


@PATHS
@pytest.mark.parametrize(
    "containers",
    [
        (),
        (container(gpu=1, mem=3000), cpu("agent", securityContext={"privileged": True})),
        (container(gpu="a lot"),),
    ],
    ids=["a card", "privileged", "amounts that can't be meant"],
)
def test_a_node_shows_what_it_runs(path: str, containers: tuple[JSON, ...]) -> None:
    """Nothing is asked of quota or policy: the pod holds its cards already."""
    services = FakeServices()
    assert reviewed(mirror(*containers), path, services=services) == UNCHANGED
    assert services.charged == []


FORGED: dict[str, tuple[JSON, JSON]] = {
    "a tenant": ({"username": "alice", "groups": ["system:authenticated"]}, {}),
    "another node": ({"username": "system:node:n2", "groups": ["system:nodes"]}, {}),
    "a name alone": ({"username": "system:node:n1", "groups": ["system:authenticated"]}, {}),
    "a service account of that name": (
        {"username": "system:serviceaccount:team-a:system:node:n1", "groups": ["system:nodes"]},
        {},
    ),
    "no mirror": (NODE, {"annotations": {}}),
}


@PATHS
@pytest.mark.parametrize(("user", "how"), FORGED.values(), ids=FORGED)
def test_nobody_else_skips_the_scheduler_by_the_annotation(path: str, user: JSON, how: JSON) -> None:
    assert refusal(reviewed, mirror(**how), path, user) == (403, has_node("n1"))


@PATHS
def test_without_a_node_it_is_a_pod_like_any_other(path: str) -> None:
    user = {"username": "system:node:", "groups": ["system:nodes"]}
    services = FakeServices()
    assert reviewed(mirror(nodeName=""), path, user, services) != UNCHANGED or services.charged


@PATHS
@in_one_test("key", ["hami.io/vgpu-devices-allocated", *VOLCANOS, *KOORDINATORS])
def test_it_brings_no_allocation(path: str, key: str) -> None:
    """What its annotations say of cards would be believed, also for another scheduler's resources."""
    one = vgpu() if key in VOLCANOS else share() if key in KOORDINATORS else container(gpu=1, mem=3000)
    code, message = refusal(reviewed, mirror(one, annotations={**MIRROR, key: "GPU-1,NVIDIA,10,1:;"}), path)
    assert code in (403, 422)
    assert f"annotation {key} is written by the scheduler only" in message
