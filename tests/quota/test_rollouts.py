"""What is said of pods that wait for the version of their Deployment before them."""

from __future__ import annotations

from typing import Any

import pytest
from builders import JSON
from queueing.test_releaser import GATES, L
from tables import in_one_test

from hami_webhook.kube.objects import Pod
from hami_webhook.quota.rollouts import other_version

from .objects import pod, quota
from .quota_env import QuotaEnv

HASH = "pod-template-hash"
SAID = "pods of another version of Deployment web hold quota. They never release it if its maxUnavailable is 0"


def of_version(name: str, version: str, **fields: Any) -> JSON:
    return pod(name, gpu=1, mem=1, labels={"app": "web", HASH: version}, **fields)


@in_one_test(
    ("other", "said"),
    [
        (of_version("web-aa-1", "aa"), True),
        (of_version("web-bb-1", "bb"), False),
        (of_version("web-aa-1", "aa", status={"phase": "Succeeded"}), False),
        (of_version("web-aa-1", "aa", schedulingGates=GATES), False),
        (of_version("web-api-aa-1", "aa"), False),
        (of_version("other-aa-1", "aa"), False),
        (pod("web-aa-1", gpu=1), False),
        (pod("web-0", gpu=1), False),
    ],
)
def test_whether_another_version_holds_the_room(other: JSON, said: bool) -> None:
    new = Pod.from_object(of_version("web-bb-2", "bb"))
    assert other_version(new, [Pod.from_object(other)]).startswith(SAID) is said
    assert other_version(Pod.from_object(pod("p", gpu=1)), [Pod.from_object(other)]) == ""


def test_of_very_many_pods_few_are_looked_at() -> None:
    new, old = (Pod.from_object(of_version(f"web-{each}-1", each)) for each in ("bb", "aa"))
    looked = 0

    def pods() -> Any:
        nonlocal looked
        for _ in range(100_000):
            looked += 1
            yield new
        yield old

    assert (other_version(new, pods()), looked) == ("", 512)


@pytest.mark.parametrize(("made", "said"), [(of_version("web-bb-1", "bb"), True), (pod("other", gpu=1, mem=1), False)])
async def test_a_refusal_says_so(made: JSON, said: bool) -> None:
    async with QuotaEnv(L, quota(gpu=1)) as env:
        await env.create(of_version("web-aa-1", "aa"))
        message = (await env.refused(made)).message
        assert message.startswith("exceeding resource quota: exceeded quota: gpu-quota")
        assert (SAID in message) is said
