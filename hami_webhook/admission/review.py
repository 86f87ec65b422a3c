"""`admission.k8s.io` AdmissionReview, v1 and v1beta1: the request read from bytes, the answer as bytes."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import orjson

from hami_webhook.admission.denial import Denied
from hami_webhook.config.errors import cut, found

API_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")


class Review(NamedTuple):
    """One AdmissionRequest. `object` and `old_object` are the API's JSON; `groups` are the user's."""

    api_version: str
    uid: str
    operation: str
    kind: str
    subresource: str
    namespace: str
    name: str
    object: Mapping[str, Any]
    old_object: Mapping[str, Any]
    username: str = ""
    groups: Sequence[str] = ()
    dry_run: bool = False


@dataclass(frozen=True)
class Answer:
    """What the AdmissionResponse says when the pod is allowed."""

    patch: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = ()
    audit: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def encoded(self) -> bytes:
        """The members of the response but for its `uid`, as JSON with a comma before each."""
        response: dict[str, Any] = {"allowed": True, "status": {"code": 200}}
        if self.patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(orjson.dumps(self.patch)).decode()
        if self.warnings:
            response["warnings"] = list(self.warnings)
        if self.audit:
            response["auditAnnotations"] = dict(self.audit)
        return b"," + orjson.dumps(response)[1:-1]


UNCHANGED = Answer()
"""The answer for a pod that is allowed as it is."""


class BadReview(Denied):
    """The request body is no AdmissionReview that can be answered; `api_version` and `uid` as far as they were read."""

    def __init__(self, message: str, api_version: str = API_VERSIONS[0], uid: str = "", code: int = 400) -> None:
        super().__init__(code, message)
        self.api_version = api_version
        self.uid = uid


def parse_review(body: bytes, content_type: str) -> Review:
    """The review in a request body; raises `BadReview` with a sentence that says what is wrong."""
    return read_review(load_review(body, content_type))


def load_review(body: bytes, content_type: str) -> Any:
    """The JSON of a request body; raises `BadReview` if it is none."""
    if not body:
        raise BadReview("the request body is empty; an AdmissionReview is expected")
    if content_type != _JSON:
        media_type, _, parameters = content_type.partition(";")
        if media_type.strip().lower() != _JSON or parameters.strip():
            raise BadReview(f"contentType={cut(content_type)}, expected {_JSON}")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadReview(f"the request body is not valid JSON: {error}") from error


_START = re.compile(
    rb'\s*\{\s*"kind"\s*:\s*"AdmissionReview"\s*,\s*"apiVersion"\s*:\s*"(admission\.k8s\.io/v1(?:beta1)?)"\s*,'
    rb'\s*"request"\s*:\s*\{\s*"uid"\s*:\s*"([\w.-]{1,128})"'
)


def read_start(start: bytes) -> tuple[str, str]:
    """The version and the id of a review that is read no further; as API servers write them, else v1 and no id."""
    found = _START.match(start)
    return (found[1].decode(), found[2].decode()) if found else (API_VERSIONS[0], "")


def new_pod(document: Any) -> tuple[str, str, Mapping[str, Any]] | None:
    """The version and the id of a review of a pod's creation, and the pod, by a look that sees no more than it must.

    None for any other review, and where anything looks odd: then it has to be read with care.
    """
    try:
        request, version = document["request"], document["apiVersion"]
        uid, pod = request["uid"], request["object"]
        usual = (
            request["operation"] == "CREATE"
            and request["kind"]["kind"] == "Pod"
            and not request.get("subResource")
            and type(request.get("dryRun", False)) is bool
            and document["kind"] == "AdmissionReview"
            and version in API_VERSIONS
            and type(uid) is str
            and type(pod) is dict
        )
    except (KeyError, TypeError, AttributeError):
        return None
    return (version, uid, pod) if usual and uid else None


def read_review(document: Any) -> Review:
    """The review that a JSON document is; raises `BadReview`."""
    return _read_usual(document) or _read_with_care(document)


_JSON = "application/json"
_TYPES = (*(str,) * 7, dict, dict, str, list, bool)
"""Of the fields of a review that `_read_usual` reads."""


def _read_usual(document: Any) -> Review | None:
    """The review of an object's creation as API servers write it, in a third of the time; None for any other."""
    try:
        request = document["request"]
        get, user, old = request.get, request["userInfo"], request.get("oldObject")
        review = Review(
            document["apiVersion"],
            request["uid"],
            request["operation"],
            request["kind"]["kind"],
            get("subResource", ""),
            get("namespace", ""),
            get("name", ""),
            request["object"],
            {} if old is None else old,
            user.get("username", ""),
            user.get("groups", []),
            get("dryRun", False),
        )
        usual = (
            tuple(map(type, review)) == _TYPES
            and review.operation == "CREATE"
            and document["kind"] == "AdmissionReview"
            and review.api_version in API_VERSIONS
            and {*map(type, review.groups)} <= {str}
        )
    except (KeyError, TypeError, AttributeError):
        return None
    return review if usual and review.uid and review.object else None


def _read_with_care(document: Any) -> Review:
    """Any review; raises `BadReview` with what is wrong."""
    if not isinstance(document, dict):
        raise BadReview(f"expected an AdmissionReview, found {found(document)}")
    api_version = document.get("apiVersion")
    known_version = api_version if api_version in API_VERSIONS else API_VERSIONS[0]
    if document.get("kind") != "AdmissionReview":
        raise BadReview(f"kind must be AdmissionReview, found {found(document.get('kind'))}", known_version)
    if api_version not in API_VERSIONS:
        raise BadReview(f"apiVersion must be {' or '.join(API_VERSIONS)}, found {found(api_version)}")
    request = document.get("request")
    if not isinstance(request, dict):
        raise BadReview("the AdmissionReview has no request", known_version)
    uid = request.get("uid")
    if not isinstance(uid, str) or not uid:
        raise BadReview("request.uid is missing", known_version)
    try:
        return _read(known_version, uid, request)
    except _Unusable as error:
        raise BadReview(f"request.{error}", known_version, uid) from error


class _Unusable(ValueError):
    pass


def _read(api_version: str, uid: str, request: dict[str, Any]) -> Review:
    user = _object(request, "userInfo")
    groups = user.get("groups")
    if groups is not None and not (isinstance(groups, list) and all(isinstance(group, str) for group in groups)):
        raise _Unusable("userInfo.groups must be a list of strings")
    dry_run = request.get("dryRun")
    if not isinstance(dry_run, bool | None):
        raise _Unusable(f"dryRun must be true or false, found {found(dry_run)}")
    review = Review(
        api_version,
        uid,
        _string(request, "operation"),
        _string(_object(request, "kind"), "kind"),
        _string(request, "subResource"),
        _string(request, "namespace"),
        _string(request, "name"),
        _object(request, "object"),
        _object(request, "oldObject"),
        _string(user, "username"),
        groups or (),
        dry_run or False,
    )
    if review.operation not in OPERATIONS:
        raise _Unusable(f"operation must be {', '.join(OPERATIONS)}, found {found(request.get('operation'))}")
    if review.operation in ("CREATE", "UPDATE") and not review.object:
        raise _Unusable("object is missing")
    if review.operation == "UPDATE" and not review.old_object:
        raise _Unusable("oldObject is missing")
    return review


def _object(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = parent.get(key)
    if type(value) is dict:
        return value
    if value is not None:
        raise _Unusable(f"{key} must be an object, found {found(value)}")
    return {}


def _string(parent: Mapping[str, Any], key: str) -> str:
    value = parent.get(key)
    if type(value) is str:
        return value
    if value is not None:
        raise _Unusable(f"{key} must be text, found {found(value)}")
    return ""


def allowed(api_version: str, uid: str, answer: Answer) -> bytes:
    """The AdmissionReview that allows, with the patch where there is one."""
    return _HEADS[api_version] + orjson.dumps(uid) + answer.encoded + b"}}"


def denied(api_version: str, uid: str, denial: Denied, pod: str = "") -> bytes:
    """The AdmissionReview that refuses; `pod` is the pod's name for the status' details."""
    details: dict[str, Any] = {"kind": "pods", "name": pod}
    if denial.retry_after is not None:
        details["retryAfterSeconds"] = denial.retry_after
    status = {
        "status": "Failure",
        "reason": denial.reason,
        "code": denial.code,
        "message": denial.message,
        "details": details,
    }
    return _dump(api_version, {"uid": uid, "allowed": False, "status": status})


def _dump(api_version: str, response: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"apiVersion": api_version, "kind": "AdmissionReview", "response": response})


_HEADS = {version: _dump(version, {"uid": ""}).removesuffix(b'""}}') for version in API_VERSIONS}
"""How an AdmissionReview begins, up to the request's id."""
