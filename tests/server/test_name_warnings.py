"""`/names`: it warns of resources that are nearly called as ours are, and whatever happens it refuses no pod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from admission.clusters import quota_cluster
from admission.reviews import body, review
from builders import container, pod

from .serving import AS_JSON, served

MISSPELT = pod("p", container(**{"nvidia.com/gpus": "1"}))


async def test_a_pod_is_allowed_with_a_warning(tmp_path: Path) -> None:
    async with served(tmp_path, await quota_cluster()) as webhook:
        inner = await webhook.review("/names", review(MISSPELT))
        assert inner == {
            "uid": inner["uid"],
            "allowed": True,
            "status": {"code": 200},
            "warnings": ["nvidia.com/gpus isn't a name that means anything here; did you mean nvidia.com/gpu?"],
        }


@pytest.mark.parametrize(
    "made", [pod("p", container(**{"example.com/gpu": "1"})), {"metadata": {"name": "p"}}, pod("p")]
)
async def test_of_other_pods_nothing_is_said(tmp_path: Path, made: Any) -> None:
    async with served(tmp_path, await quota_cluster()) as webhook:
        inner = await webhook.review("/names", review(made))
        assert (inner["allowed"], inner.get("warnings")) == (True, None)


async def test_what_can_not_be_read_fails_as_a_call_which_the_failure_policy_lets_pass(tmp_path: Path) -> None:
    async with served(tmp_path, await quota_cluster()) as webhook:
        answer = await webhook.client.post("/names", content=body(review({"spec": 3})), headers=AS_JSON)
        assert answer.status_code == 400
