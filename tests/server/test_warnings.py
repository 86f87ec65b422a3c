"""`/quotas` and `/names` warn, and whatever happens they refuse nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from admission.clusters import FULL, core_on, quota_cluster
from admission.reviews import body
from admission.reviews import review as review_of_pod
from builders import container, pod
from prometheus_client import generate_latest
from quota.objects import GPU, MEM

from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.server.app import LARGE, application, review_routes
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.request_metrics import new_registry

from .serving import AS_JSON, served

JSON = dict[str, Any]
UNITS = f"{MEM}: 16Gi means 17179869184 units of 1 MiB; for as many bytes write 16384"


def review(hard: Any, operation: str = "CREATE", annotations: Any = None) -> JSON:
    quota = {"metadata": {"name": "q", "namespace": "team", "annotations": annotations or {}}, "spec": {"hard": hard}}
    kind = {"group": "", "version": "v1", "kind": "ResourceQuota"}
    request: JSON = {"uid": "u1", "operation": operation, "kind": kind, "namespace": "team", "object": quota}
    if operation == "UPDATE":
        request["oldObject"] = quota
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
async def test_a_misread_quota_is_allowed_with_a_warning(tmp_path: Path, operation: str) -> None:
    async with served(tmp_path, await quota_cluster(FULL)) as webhook:
        inner = await webhook.review("/quotas", review({MEM: "16Gi"}, operation))
        assert inner == {"uid": "u1", "allowed": True, "status": {"code": 200}, "warnings": [UNITS]}
        inner = await webhook.review("/quotas", review({GPU: "4", MEM: "20000"}, operation))
        assert inner == {"uid": "u1", "allowed": True, "status": {"code": 200}}


async def test_a_quota_with_a_large_ledger_is_answered_too(tmp_path: Path) -> None:
    async with served(tmp_path, await quota_cluster(FULL)) as webhook:
        inner = await webhook.review(
            "/quotas", review({MEM: "16Gi"}, "UPDATE", {"hami.io/quota-ledger": "x" * 2 * LARGE})
        )
        assert inner["allowed"]
        assert inner["warnings"] == [UNITS]


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"", 400, "the request body is empty"),
        (b"{}", 400, "kind must be AdmissionReview"),
        (body(review(3)), 400, "the quota can't be read: spec.hard must be an object"),
        (body(review({MEM: "1"}, annotations={"a": "x" * 4096})), 413, ""),
    ],
)
async def test_what_can_not_be_read_fails_as_a_call_which_the_failure_policy_lets_pass(
    tmp_path: Path, content: bytes, status: int, message: str
) -> None:
    async with served(tmp_path, await quota_cluster(FULL), "--max-request-bytes", "4096") as webhook:
        answer = await webhook.client.post("/quotas", content=content, headers=AS_JSON)
        assert answer.status_code == status
        assert message in answer.text


async def test_a_failure_of_ours_fails_as_a_call_and_is_counted() -> None:
    def fail(quota: ResourceQuota) -> Sequence[str]:
        raise ZeroDivisionError

    registry = new_registry()
    handler = core_on(await quota_cluster()).admission
    app = application(review_routes(handler, ListenerLimits(), registry=registry, misreadings=fail))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post("/quotas", content=body(review({MEM: "1"})), headers=AS_JSON)
    assert answer.status_code == 500
    assert 'hami_webhook_reviews_total{code="500",path="/quotas"} 1.0' in generate_latest(registry).decode()


# `/names`


MISSPELT = pod("p", container(**{"nvidia.com/gpus": "1"}))


async def test_a_pod_is_allowed_with_a_warning(tmp_path: Path) -> None:
    async with served(tmp_path, await quota_cluster()) as webhook:
        inner = await webhook.review("/names", review_of_pod(MISSPELT))
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
        inner = await webhook.review("/names", review_of_pod(made))
        assert (inner["allowed"], inner.get("warnings")) == (True, None)


async def test_a_pod_that_can_not_be_read_fails_as_a_call_too(tmp_path: Path) -> None:
    async with served(tmp_path, await quota_cluster()) as webhook:
        answer = await webhook.client.post("/names", content=body(review_of_pod({"spec": 3})), headers=AS_JSON)
        assert answer.status_code == 400
