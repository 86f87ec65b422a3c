"""The wire form of reviews and answers, on the application that serves them.

Sources: docs/spec/core.md#5, docs/spec/security.md#4. tests/fuzz has bodies that are changed at random.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
import tracemalloc
from typing import Any

import httpx
import orjson
import pytest
from builders import GPU, JSON, MEM, container
from httpx import Response
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from refusals import has_node
from starlette.types import ASGIApp

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.review import Answer, BadReview, allowed, denied, parse_review
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod
from hami_webhook.server.app import application as serving
from hami_webhook.server.app import review_routes
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.request_metrics import new_registry

from . import reviews
from .reviews import VENDORS, FakeServices, body, cpu, handler_of, pod, review

PATHS = ("/mutate", "/validate", "/webhook")
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


def application(known: Vendors = VENDORS, services: FakeServices | None = None) -> ASGIApp:
    handler = handler_of(known=known, services=services)
    return serving(review_routes(handler, ListenerLimits(), registry=new_registry()))


APP = application()


def post(
    content: bytes,
    path: str = "/webhook",
    app: ASGIApp = APP,
    content_type: bytes | str | None = "application/json",
    **params: Any,
) -> Response:
    async def call() -> Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            headers: JSON = {} if content_type is None else {"content-type": content_type}
            return await client.post(path, content=content, headers=headers, params=params)

    return asyncio.run(call())


def answered(response: Response, version: str = "v1") -> JSON:
    """The AdmissionResponse, after a look at whether it is one."""
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    found = orjson.loads(response.content)
    assert set(found) == {"apiVersion", "kind", "response"}
    assert found["kind"] == "AdmissionReview"
    assert found["apiVersion"] == f"admission.k8s.io/{version}"
    inner: JSON = found["response"]
    assert isinstance(inner["uid"], str)
    if inner["allowed"]:
        assert inner["status"] == {"code": 200}
        assert ("patch" in inner) == ("patchType" in inner)
    else:
        status = inner["status"]
        assert status["status"] == "Failure"
        assert 400 <= status["code"] < 600
        assert status["reason"]
        assert status["message"]
        assert status["details"]["kind"] == "pods"
        assert "patch" not in inner
    return inner


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_review_is_answered_in_kind(version: str) -> None:
    inner = answered(post(body(review(pod(gpu=1, mem=3000), version=version)), "/mutate"), version)
    assert (inner["uid"], inner["allowed"], inner["patchType"]) == (UID, True, "JSONPatch")
    patch = orjson.loads(base64.b64decode(inner["patch"]))
    assert patch == [{"op": "add", "path": "/spec/schedulerName", "value": "hami-scheduler"}]
    assert "warnings" not in inner
    refused = answered(post(body(review(pod(gpu=1, mem=3000, nodeName="n"), version=version)), "/mutate"), version)
    assert refused["status"] == {
        "status": "Failure",
        "reason": "Forbidden",
        "code": 403,
        "message": has_node("n"),
        "details": {"kind": "pods", "name": "p"},
    }


@pytest.mark.parametrize("path", PATHS)
def test_a_cpu_pod_gets_an_empty_allow(path: str) -> None:
    inner = answered(post(body(review(pod("p", cpu()))), path))
    assert inner == {"uid": UID, "allowed": True, "status": {"code": 200}}


def without(key: str, inside: str = "request") -> JSON:
    written = review(pod(gpu=1, mem=3000))
    (written[inside] if inside else written).pop(key)
    return written


def with_request(**more: Any) -> JSON:
    return review(pod(gpu=1, mem=3000), **more)


def with_pod(obj: object) -> JSON:
    return review(obj)


def with_spec(**spec: object) -> JSON:
    obj = pod(gpu=1, mem=3000)
    obj["spec"] |= spec
    return review(obj)


def with_meta(**meta: object) -> JSON:
    obj = pod(gpu=1, mem=3000)
    obj["metadata"] |= meta
    return review(obj, name="p")


def with_resources(resources: object) -> JSON:
    return review(pod("p", {"name": "main", "resources": resources}))


DEEP = b'{"kind":' + b"[" * 100_000
MALFORMED: dict[str, tuple[object, str]] = {
    "nothing": (b"", "the request body is empty"),
    "not JSON": (b"{", "not valid JSON"),
    "text": (b"hello", "not valid JSON"),
    "NaN": (body(review(pod(gpu=1, mem=3000))).replace(b'"3000"', b"NaN"), "not valid JSON"),
    "infinity": (body(review(pod(gpu=1, mem=3000))).replace(b'"3000"', b"1e999"), "not valid JSON"),
    "two documents": (body(review(pod(gpu=1, mem=3000))) * 2, "not valid JSON"),
    "invalid UTF-8": (body(review(pod(gpu=1, mem=3000))).replace(b"alice", b"al\xffce"), "not valid JSON"),
    "a lone surrogate": (body(review(pod(gpu=1, mem=3000))).replace(b"alice", b"\\ud800"), "not valid JSON"),
    "endless nesting": (DEEP, "is no AdmissionReview that can be read"),
    "a list": ([], "expected an AdmissionReview, found a list"),
    "null": (None, "expected an AdmissionReview, found nothing"),
    "an empty object": ({}, "kind must be AdmissionReview, found nothing"),
    "another kind": (pod(gpu=1, mem=3000), 'kind must be AdmissionReview, found the text "Pod"'),
    "no apiVersion": (without("apiVersion", ""), "apiVersion must be"),
    "an unknown apiVersion": (review(pod(gpu=1, mem=3000), version="v2"), "apiVersion must be"),
    "no request": (without("request", ""), "has no request"),
    "no uid": (without("uid"), "request.uid is missing"),
    "an empty uid": (with_request(uid=""), "request.uid is missing"),
    "uid as number": (with_request(uid=1), "request.uid is missing"),
    "no kind": (without("kind"), "objects without a kind"),
    "kind as text": (with_request(kind="Pod"), 'request.kind must be an object, found the text "Pod"'),
    "kind.kind as number": (with_request(kind={"kind": 1}), "request.kind.kind must be text, found 1"),
    "a Deployment": (with_request(kind={"kind": "Deployment"}), "not Deployment"),
    "no operation": (without("operation"), "request.operation must be CREATE"),
    "an unknown operation": (with_request(operation="create"), "request.operation must be CREATE"),
    "no object": (without("object"), "request.object is missing"),
    "object null": (with_pod(None), "request.object is missing"),
    "object as list": (with_pod([]), "request.object must be an object, found a list"),
    "an update without oldObject": (with_request(operation="UPDATE"), "request.oldObject is missing"),
    "oldObject as number": (with_request(operation="UPDATE", oldObject=1), "request.oldObject must be an object"),
    "namespace as number": (with_request(namespace=1), "request.namespace must be text"),
    "name as list": (with_request(name=[]), "request.name must be text"),
    "subResource as object": (with_request(subResource={}), "request.subResource must be text"),
    "userInfo as text": (with_request(userInfo="alice"), "request.userInfo must be an object"),
    "username as number": (with_request(userInfo={"username": 1}), "request.userInfo.username must be text"),
    "groups as text": (with_request(userInfo={"groups": "g"}), "groups must be a list of strings"),
    "groups as empty object": (with_request(userInfo={"groups": {}}), "groups must be a list of strings"),
    "dryRun as text": (with_request(dryRun="true"), "dryRun must be true or false"),
    "dryRun as number": (with_request(dryRun=0), "dryRun must be true or false"),
    "metadata as list": (with_pod({"metadata": [], "spec": {}}), "metadata must be an object"),
    "labels of numbers": (with_meta(labels={"a": 1}), "metadata.labels[a] must be a string"),
    "a time as text": (
        with_meta(creationTimestamp="soon"),
        "the pod can't be read: metadata.creationTimestamp must be an RFC 3339 time",
    ),
    "env as object": (with_spec(containers=[{"name": "c", "env": {}}]), "spec.containers[0].env must be a list"),
    "containers as object": (with_spec(containers={}), "spec.containers must be a list"),
    "a null container": (with_spec(containers=[None]), "spec.containers[0] must be an object"),
    "resources as list": (with_resources([]), "spec.containers[0].resources must be an object"),
    "securityContext as text": (
        with_spec(containers=[{"name": "c", "securityContext": "x"}]),
        "spec.containers[0].securityContext must be an object",
    ),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", MALFORMED)
def test_security_4_a_malformed_review_gets_400_and_a_sentence(
    case: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    written, sentence = MALFORMED[case]
    around = FakeServices()
    content = written if isinstance(written, bytes) else body(written)
    with caplog.at_level(logging.DEBUG):
        inner = answered(post(content, path, application(services=around)))
    assert not inner["allowed"]
    assert inner["status"]["code"] == 400
    assert inner["status"]["reason"] == "BadRequest"
    assert sentence in inner["status"]["message"]
    assert around.charged == []
    assert not [record for record in caplog.records if record.exc_info]


KEYS = {f"k{number}": 0 for number in range(100_000)}


@pytest.mark.parametrize(
    ("document", "uid", "sentence"),
    [
        (KEYS, "", "its kind, its request or an object in the request is missing"),
        (
            {**with_request(operation="create"), **KEYS},
            UID,
            "its kind, its request or an object in the request is missing",
        ),
        (with_request(uid="", more=KEYS), "", "its kind, its request or an object in the request is missing"),
        (with_pod({"spec": {"more": KEYS, "containers": 5}}), UID, "Expected `array | null`, got `int`"),
    ],
)
def test_attack_very_many_keys_are_not_read_to_say_what_is_wrong(document: JSON, uid: str, sentence: str) -> None:
    """A stranger's body: the event loop serves others meanwhile, and the memory that the keys would take stays free."""
    # as API servers order it
    first = {key: document.get(key) for key in ("kind", "apiVersion")}
    request = document.get("request", {})
    content = body({**first, **document, "request": {"uid": request.get("uid"), **request}})
    tracemalloc.start()
    try:
        with pytest.raises(BadReview) as caught:
            parse_review(content, "application/json")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < len(content) / 10
    assert f"the request body, of {len(content)} bytes, is no AdmissionReview that can be read" in str(caught.value)
    assert sentence in str(caught.value)
    assert (caught.value.uid, len(str(caught.value)) < 300) == (uid, True)


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "text/plain",
        "application/yaml",
        "application/json; charset=utf-8",
        "application/json-patch+json",
        "é" * 90,
    ],
)
def test_another_content_type_gets_400(content_type: str | None) -> None:
    encoded = content_type and content_type.encode("latin-1")
    inner = answered(post(body(review(pod("p", cpu()))), content_type=encoded))
    assert (inner["allowed"], inner["status"]["code"]) == (False, 400)
    assert "expected application/json" in inner["status"]["message"]
    assert len(inner["status"]["message"]) < 200


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON", "application/json ; "])
def test_json_may_be_written_otherwise(content_type: str) -> None:
    assert answered(post(body(review(pod("p", cpu()))), content_type=content_type))["allowed"]


def test_what_could_be_read_of_a_malformed_review_is_in_the_answer() -> None:
    inner = answered(post(body(review(None, version="v1beta1"))), "v1beta1")
    assert inner["uid"] == UID
    no_uid = review(pod(gpu=1, mem=3000), version="v1beta1")
    del no_uid["request"]["uid"]
    assert answered(post(body(no_uid)), "v1beta1")["uid"] == ""
    named = answered(post(body(with_request(name="web", operation="create"))))
    assert named["status"]["details"]["name"] == "web"


def test_odd_amounts_are_denied_not_crashed_on() -> None:
    amounts: list[object] = [True, False, [], {}, 1e300, -1, "", "1" * 200, "１", 2**64 - 1, -(2**63)]
    for amount in amounts:
        inner = answered(post(body(with_resources({"limits": {GPU: amount}}))))
        assert not inner["allowed"]
        assert f"invalid {GPU} value" in inner["status"]["message"]


def test_a_name_and_retry_after_are_in_the_details() -> None:
    inner = orjson.loads(denied("admission.k8s.io/v1beta1", "u", Denied(503, "later", retry_after=1), "p"))
    assert inner["apiVersion"] == "admission.k8s.io/v1beta1"
    assert inner["response"]["status"]["details"] == {"kind": "pods", "name": "p", "retryAfterSeconds": 1}
    assert inner["response"]["status"]["reason"] == "ServiceUnavailable"


def test_warnings_and_audit_annotations_are_told() -> None:
    message = orjson.loads(allowed("admission.k8s.io/v1", "u", Answer(warnings=("w",), audit={"quota": "q"})))
    assert message["response"] == {
        "uid": "u",
        "allowed": True,
        "status": {"code": 200},
        "warnings": ["w"],
        "auditAnnotations": {"quota": "q"},
    }


def test_a_refused_amount_is_no_internal_error_and_has_a_reason_with_which_kubectl_shows_the_message() -> None:
    status = answered(post(body(with_resources({"limits": {MEM: -1}}))))["status"]
    assert (status["code"], status["reason"]) == (422, "BadRequest")


@pytest.mark.parametrize(
    ("code", "given", "cause"), [(403, "", "request"), (403, "policy", "policy"), (503, "", "unavailable")]
)
def test_a_refusal_counts_under_what_it_was_for(code: int, given: str, cause: str) -> None:
    assert Denied(code, "no", cause=given).cause == cause


MANY = {f"k{number}": "v" for number in range(700_000)}
"""10 MiB of JSON."""


def with_map(path: str, value: object) -> bytes:
    """A review of a pod with this at one of its places for maps."""
    made = pod("p", container(gpu=1), uid="u")
    part, _, name = path.rpartition(".")
    made[part] = {**made[part], name: value}
    return body(review(made))


@pytest.mark.parametrize("path", ["metadata.labels", "metadata.annotations", "spec.nodeSelector", "spec.overhead"])
def test_a_pod_of_very_many_names_is_refused_before_they_are_read(path: str) -> None:
    """Decoding 10 MiB of them took 0.3 s, in which no other review was answered."""
    content = with_map(path, MANY)
    began = time.process_time()
    orjson.loads(content)
    whole, began = time.process_time() - began, time.process_time()
    with pytest.raises(BadReview) as refused:
        parse_review(content, "application/json")
    took = time.process_time() - began
    assert "overhead have 700000 names, above 50000: remove some" in str(refused.value)
    assert (refused.value.code, refused.value.uid) == (400, "705ab4f5-6393-11e8-b7cc-42010a800002")
    assert took < whole / 4


@pytest.mark.parametrize("path", ["metadata.labels", "metadata.annotations", "spec.nodeSelector"])
@pytest.mark.parametrize("value", [{"a": 1}, ["a"], "a"])
def test_maps_of_a_large_pod_are_validated_as_those_of_a_small_one(path: str, value: object) -> None:
    small = with_map(path, value)
    for content in (small, small + b" " * 10**6):
        with pytest.raises(BadReview, match=r"must be|Expected"):
            parse_review(content, "application/json")


TEXTS = st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=5)


@given(TEXTS, TEXTS, TEXTS, TEXTS, st.booleans())
def test_a_large_review_says_what_a_small_one_does(
    labels: JSON | None, notes: JSON | None, selector: JSON | None, overhead: JSON | None, update: bool
) -> None:
    made = pod("p", container(gpu=1), labels=labels, annotations=notes)
    made["spec"] |= {"nodeSelector": selector, "overhead": overhead}
    content = orjson.dumps(reviews.update(pod("p"), made) if update else review(made))
    found, large = (parse_review(each, "application/json") for each in (content, content + b" " * 10**6))
    assert replace(large, object=found.object, old_object=found.old_object) == found
    for one, other in ((found.object, large.object), (found.old_object, large.old_object)):
        assert Pod.from_object(one) == Pod.from_object(other)
        assert (one.spec and one.spec.overhead) == (other.spec and other.spec.overhead)
