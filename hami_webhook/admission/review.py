"""`admission.k8s.io` AdmissionReview, v1 and v1beta1: the request read from bytes, the answer as bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import orjson
from msgspec.structs import replace

from hami_webhook.admission.denial import Denied
from hami_webhook.kube.claims_wire import ClaimMeta, ResourceClaim
from hami_webhook.kube.large_pod import LargePod
from hami_webhook.kube.message_text import cut, found
from hami_webhook.kube.wire import (
    AdmissionRequest,
    AdmissionReview,
    Fault,
    ObjectMeta,
    ResourceQuotaObject,
    ReviewedPod,
    UserInfo,
    Wire,
    describe,
    find_fault,
)

API_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")
REPORT_SOURCE = "hami.io/report-review-source"
"""The annotation of a pod in a dry run whose creator is to be warned of where its reviews came from."""
REVIEWED_FROM = "[review-source] the review came from "
"""How that warning begins; the address follows."""
T = TypeVar("T")


class Workload(Wire, frozen=True):
    """An object of any kind that may have pod templates; `spec` is JSON."""

    metadata: ObjectMeta | None = None
    spec: Any = None


class ObjectReview(msgspec.Struct, Generic[T], frozen=True):
    """One AdmissionRequest about a pod, a Binding, a ResourceClaim or a ResourceQuota.

    `object` is empty for a deletion, `old_object` for a creation; `groups` are the user's.
    """

    api_version: str
    uid: str
    operation: str
    kind: str
    subresource: str
    namespace: str
    name: str
    object: T
    old_object: T
    username: str = ""
    groups: Sequence[str] = ()
    dry_run: bool = False


Review = ObjectReview[ReviewedPod]
ClaimReview = ObjectReview[ResourceClaim]
"""Its claims have the namespace of the request."""
QuotaReview = ObjectReview[ResourceQuotaObject]
WorkloadReview = ObjectReview[Workload]
"""Of any kind that has pod templates."""
Amounts = Mapping[str, Mapping[str, int]]
"""What was charged: by quota name, by key."""


class Answer(msgspec.Struct, frozen=True):
    """What the AdmissionResponse says when the pod is allowed."""

    patch: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = ()
    audit: Mapping[str, str] = {}


UNCHANGED = Answer()
"""The answer for a pod that is allowed as it is."""


class _Allowed(msgspec.Struct, rename="camel", omit_defaults=True):
    """The AdmissionResponse for a pod that is allowed; a patch is written in Base64."""

    uid: str
    allowed: bool
    status: Mapping[str, int]
    patch_type: str = ""
    patch: bytes = b""
    warnings: tuple[str, ...] = ()
    audit_annotations: Mapping[str, str] = {}


class _AllowedReview(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    response: _Allowed


class BadReview(Denied):
    """The request body is no AdmissionReview that can be answered; `api_version`, `uid` and `name` as far as read."""

    def __init__(self, message: str, api_version: str = API_VERSIONS[0], uid: str = "", name: str = "") -> None:
        super().__init__(400, message)
        self.api_version = api_version
        self.uid = uid
        self.name = name


_JSON = "application/json"
_EXPLAINED = 64 * 1024
"""Bytes of a body up to which it is read as a whole to say what is wrong with it; of a larger one, what stopped us."""
_MOST_NAMES = 50_000
"""Names of labels and the like in a review, which are gone through in one piece: it takes 50 ms."""
_LARGE = 7 * _MOST_NAMES
"""Bytes of a body up to which it can't have more: `"a":"",`."""
_LARGE_POD_REVIEW = msgspec.json.Decoder(AdmissionReview[LargePod])
_POD_REVIEW = msgspec.json.Decoder(AdmissionReview[ReviewedPod])
_CLAIM_REVIEW = msgspec.json.Decoder(AdmissionReview[ResourceClaim])
_WORKLOAD_REVIEW = msgspec.json.Decoder(AdmissionReview[Workload])
_QUOTA_REVIEW = msgspec.json.Decoder(AdmissionReview[ResourceQuotaObject])
_ENCODER = msgspec.json.Encoder()
_NOBODY, _NO_POD, _NO_CLAIM, _NO_QUOTA = UserInfo(), ReviewedPod(), ResourceClaim(), ResourceQuotaObject()
_NO_LARGE_POD, _NO_WORKLOAD = LargePod(), Workload()


def parse_review(body: bytes, content_type: str) -> Review:
    """The review in a request body; raises `BadReview` with a sentence that says what is wrong."""
    if len(body) <= _LARGE:
        return _parse(body, content_type, _POD_REVIEW, _NO_POD)
    large: ObjectReview[Any] = _parse(body, content_type, _LARGE_POD_REVIEW, _NO_LARGE_POD)
    names = large.object.most_names() + large.old_object.most_names()
    if names > _MOST_NAMES:
        text = f"the pod's labels, annotations, node selector and overhead have {names} names, above {_MOST_NAMES}"
        raise BadReview(f"{text}: remove some", large.api_version, large.uid, large.name)
    try:
        return replace(large, object=large.object.read(), old_object=large.old_object.read())
    except msgspec.DecodeError as error:
        raise _unreadable(body, error) from error


def parse_claim_review(body: bytes, content_type: str) -> ClaimReview:
    """As `parse_review`, of a ResourceClaim."""
    review = _parse(body, content_type, _CLAIM_REVIEW, _NO_CLAIM)
    claim, old_claim = (_placed_in(review.namespace, each) for each in (review.object, review.old_object))
    return replace(review, object=claim, old_object=old_claim)


def parse_quota_review(body: bytes, content_type: str) -> QuotaReview:
    """As `parse_review`, of a ResourceQuota."""
    return _parse(body, content_type, _QUOTA_REVIEW, _NO_QUOTA)


def parse_workload_review(body: bytes, content_type: str) -> WorkloadReview:
    """As `parse_review`, of an object of any kind."""
    return _parse(body, content_type, _WORKLOAD_REVIEW, _NO_WORKLOAD)


def _placed_in(namespace: str, claim: ResourceClaim) -> ResourceClaim:
    """A claim with the namespace of its request."""
    meta = replace(claim.metadata or ClaimMeta(), namespace=namespace)
    return replace(claim, metadata=meta)


def _parse(
    body: bytes, content_type: str, decoder: msgspec.json.Decoder[AdmissionReview[T]], nothing: T
) -> ObjectReview[T]:
    """The review in a request body; an object that isn't there is `nothing`. Raises `BadReview`."""
    if not body:
        raise BadReview("the request body is empty; an AdmissionReview is expected")
    if content_type != _JSON:
        media_type, _, parameters = content_type.partition(";")
        if media_type.strip().lower() != _JSON or parameters.strip():
            raise BadReview(f"contentType={cut(content_type)}, expected {_JSON}")
    try:
        review = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(body, error) from error
    request = review.request
    if request is None or not _is_complete(review, request):
        raise _unreadable(body)
    assert review.api_version is not None
    user = request.user_info or _NOBODY
    return ObjectReview(
        review.api_version,
        request.uid or "",
        request.operation or "",
        (request.kind and request.kind.kind) or "",
        request.sub_resource or "",
        request.namespace or "",
        request.name or "",
        request.object or nothing,
        request.old_object or nothing,
        user.username or "",
        user.groups or (),
        request.dry_run or False,
    )


def _is_complete(review: AdmissionReview[T], request: AdmissionRequest[T]) -> bool:
    """Whether a review has what an answer takes, and the objects that its operation has."""
    return bool(
        review.kind == "AdmissionReview"
        and review.api_version in API_VERSIONS
        and request.uid
        and request.operation in OPERATIONS
        and (request.object is not None or request.operation not in ("CREATE", "UPDATE"))
        and (request.old_object is not None or request.operation != "UPDATE")
    )


def _unreadable(body: bytes, error: Exception | None = None) -> BadReview:
    """Why a body is no review that can be answered; `error` is that of the decoder."""
    if len(body) > _EXPLAINED:
        why = f": {cut(str(error))}" if error else "; its kind, its request or an object in the request is missing"
        text = f"the request body, of {len(body)} bytes, is no AdmissionReview that can be read{why}"
        return BadReview(text, *read_start(body[:1024]))
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as invalid:
        return BadReview(f"the request body is not valid JSON: {invalid}")
    if not isinstance(document, dict):
        return BadReview(f"expected an AdmissionReview, found {found(document)}")
    api_version = document.get("apiVersion")
    known_version = api_version if api_version in API_VERSIONS else API_VERSIONS[0]
    if document.get("kind") != "AdmissionReview":
        return BadReview(f"kind must be AdmissionReview, found {found(document.get('kind'))}", known_version)
    if api_version not in API_VERSIONS:
        return BadReview(f"apiVersion must be {' or '.join(API_VERSIONS)}, found {found(api_version)}")
    request = document.get("request")
    if not isinstance(request, dict):
        return BadReview("the AdmissionReview has no request", known_version)
    uid, name = request.get("uid"), request.get("name")
    if not isinstance(uid, str) or not uid:
        return BadReview("request.uid is missing", known_version)
    problem = _problem(request) if error is None else _mistyped(find_fault(document, error), request.get("kind"))
    return BadReview(problem, known_version, uid, name if isinstance(name, str) else "")


def _problem(request: Mapping[str, Any]) -> str:
    """What is missing from a request of which every field has the right type."""
    operation = request.get("operation")
    if operation not in OPERATIONS:
        return f"request.operation must be {', '.join(OPERATIONS)}, found {found(operation)}"
    return f"request.{'oldObject' if request.get('object') is not None else 'object'} is missing"


def _mistyped(fault: Fault, kind: Any) -> str:
    """A field of the wrong type, in words: of the request itself, or of the object in it."""
    match = _IN_OBJECT.fullmatch(fault.path)
    if match is not None:
        named = kind.get("kind") if isinstance(kind, dict) else None
        what = _CALLED.get(named, "pod") if isinstance(named, str) else "pod"
        return f"the {what} can't be read: {describe(fault._replace(path=match[1]), what)}"
    expected = _EXPECTATIONS.get(fault.expected)
    return f"{fault.path} must be {expected}, found {found(fault.value)}" if expected else fault.error


_CALLED = {"Binding": "Binding", "ResourceQuota": "quota", "ResourceClaim": "claim"}
_IN_OBJECT = re.compile(r"request\.(?:object|oldObject)\.(.+)")
_EXPECTATIONS = {"object": "an object", "str": "text", "bool": "true or false", "array": "a list of strings"}


_START = re.compile(
    rb'\s*\{\s*"kind"\s*:\s*"AdmissionReview"\s*,\s*"apiVersion"\s*:\s*"(admission\.k8s\.io/v1(?:beta1)?)"\s*,'
    rb'\s*"request"\s*:\s*\{\s*"uid"\s*:\s*"([\w.-]{1,128})"'
)


def read_start(start: bytes) -> tuple[str, str]:
    """Return the version and the ID of a review that isn't read further.

    If the start isn't as API servers write it: v1 and no ID.
    """
    found = _START.match(start)
    return (found[1].decode(), found[2].decode()) if found else (API_VERSIONS[0], "")


def allowed(api_version: str, uid: str, answer: Answer) -> bytes:
    """The AdmissionReview that allows, with the patch where there is one."""
    response = _Allowed(uid, True, {"code": 200}, warnings=tuple(answer.warnings), audit_annotations=answer.audit)
    if answer.patch:
        response.patch_type, response.patch = "JSONPatch", _ENCODER.encode(answer.patch)
    return _ENCODER.encode(_AllowedReview(api_version, "AdmissionReview", response))


def denied(api_version: str, uid: str, denial: Denied, name: str = "", kind: str = "pods") -> bytes:
    """The AdmissionReview that refuses; `name` is the object's for the status' details, `kind` its resource."""
    details: dict[str, Any] = {"kind": kind, "name": name}
    if denial.retry_after is not None:
        details["retryAfterSeconds"] = denial.retry_after
    status = {
        "status": "Failure",
        "reason": denial.reason,
        "code": denial.code,
        "message": denial.message,
        "details": details,
    }
    response: dict[str, Any] = {"uid": uid, "allowed": False, "status": status}
    if denial.warnings:
        response["warnings"] = denial.warnings
    return _ENCODER.encode({"apiVersion": api_version, "kind": "AdmissionReview", "response": response})


def audit_of(amounts: Amounts) -> dict[str, str]:
    """The audit annotation of what was charged."""
    charges = [
        f"{name}:{','.join(f'{key}={amount}' for key, amount in sorted(charged.items()))}"
        for name, charged in sorted(amounts.items())
        if charged
    ]
    return {"quota": ";".join(charges)} if charges else {}
