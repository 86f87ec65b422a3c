"""What the program serves, as OpenAPI 3.1: `hack/render_schemas.py` writes it into `docs/schemas/openapi.json`.

What is read of a review comes from the types that read it. What kube-scheduler sends has keys in any case, which types
can't say, so it is written here in kube-scheduler's own spelling. A test compares the paths with a process's routes.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from hami_webhook.admission.review import API_VERSIONS, Workload
from hami_webhook.kube.claims_wire import ResourceClaim
from hami_webhook.kube.wire import AdmissionReview, ResourceQuotaObject, ReviewedPod

Schema = dict[str, Any]

MAIN: Schema = {
    "url": "https://{service}",
    "description": "the main listener, --http_bind",
    "variables": {"service": {"default": "hami-webhook.hami-system.svc"}},
}
METRICS: Schema = {
    "url": "http://{pod}:9395",
    "description": "probes and Prometheus, --metrics-bind-address",
    "variables": {"pod": {"default": "127.0.0.1"}},
}
EXTENDER: Schema = {"url": "http://127.0.0.1:8081", "description": "beside kube-scheduler, --extender-bind-address"}

PODS, QUOTAS = AdmissionReview[ReviewedPod], AdmissionReview[ResourceQuotaObject]
CLAIMS, WORKLOADS = AdmissionReview[ResourceClaim], AdmissionReview[Workload]
NAMES = {
    "AdmissionReview_ReviewedPod_": "PodReview",
    "AdmissionRequest_ReviewedPod_": "PodRequest",
    "AdmissionReview_ResourceClaim_": "ClaimReview",
    "AdmissionRequest_ResourceClaim_": "ClaimRequest",
    "AdmissionReview_Workload_": "WorkloadReview",
    "AdmissionRequest_Workload_": "WorkloadRequest",
    "AdmissionReview_ResourceQuotaObject_": "QuotaReview",
    "AdmissionRequest_ResourceQuotaObject_": "QuotaRequest",
}
"""Of types with parameters what they are called here."""


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def fields(*required: str, **properties: Schema) -> Schema:
    found: Schema = {"type": "object", "properties": properties}
    return {**found, "required": list(required)} if required else found


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def mapping(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def listed(items: Schema) -> Schema:
    return {"type": "array", "items": items}


TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "minLength": 1}
AMOUNT: Schema = {"type": "integer"}
OBJECT: Schema = {"type": "object"}

ANSWER = fields(
    *("apiVersion", "kind", "response"),
    apiVersion={"enum": list(API_VERSIONS)},
    kind={"const": "AdmissionReview"},
    response=fields(
        *("uid", "allowed", "status"),
        uid=TEXT,
        allowed={"type": "boolean"},
        status=fields("code", code=AMOUNT, status=TEXT, reason=TEXT, message=TEXT, details=OBJECT),
        patchType={"const": "JSONPatch"},
        patch={"type": "string", "contentEncoding": "base64", "contentMediaType": "application/json-patch+json"},
        warnings=listed(TEXT),
        auditAnnotations=mapping(TEXT),
    ),
)
NODE_LIST = fields(metadata=OBJECT, items=or_null(listed(OBJECT)))
META_VICTIMS = fields(Pods=or_null(listed(fields("UID", UID=NAME))), NumPDBViolations=AMOUNT)
WHOLE_VICTIMS = fields(Pods=or_null(listed(OBJECT)), NumPDBViolations=AMOUNT)

OF_KUBE_SCHEDULER: dict[str, Schema] = {
    "ExtenderArgs": fields("Pod", Pod=OBJECT, NodeNames=or_null(listed(TEXT)), Nodes=or_null(NODE_LIST)),
    "ExtenderFilterResult": fields(
        "Error",
        Nodes=or_null(NODE_LIST),
        NodeNames=or_null(listed(TEXT)),
        FailedNodes=or_null(mapping(TEXT)),
        FailedAndUnresolvableNodes=or_null(mapping(TEXT)),
        Error=TEXT,
    ),
    "HostPriorityList": listed(fields("Host", "Score", Host=TEXT, Score=AMOUNT)),
    "ExtenderBindingArgs": fields(
        *("PodName", "PodNamespace", "PodUID", "Node"), PodName=NAME, PodNamespace=NAME, PodUID=NAME, Node=NAME
    ),
    "ExtenderBindingResult": fields("Error", Error=TEXT),
    "ExtenderPreemptionArgs": fields(
        "Pod",
        Pod=OBJECT,
        NodeNameToVictims=or_null(mapping(WHOLE_VICTIMS)),
        NodeNameToMetaVictims=or_null(mapping(META_VICTIMS)),
    ),
    "ExtenderPreemptionResult": {
        "anyOf": [
            fields("NodeNameToMetaVictims", NodeNameToMetaVictims=mapping(META_VICTIMS)),
            fields("Error", Error=NAME),
        ]
    },
}
"""`kube-scheduler/extender/v1`; keys are read in any case."""


def text(description: str) -> Schema:
    return {"description": description, "content": {"text/plain": {"schema": TEXT}}}


def content(name: str) -> Schema:
    return {"application/json": {"schema": ref(name)}}


def review(identifier: str, name: str, summary: str, status: str) -> Schema:
    """A route of reviews."""
    answer = {"description": "the review with its answer", "content": content("ReviewAnswer")}
    timeout = {"name": "timeout", "in": "query", "schema": TEXT, "description": "how long the API server waits, as 10s"}
    return {
        "servers": [MAIN],
        "post": {
            "operationId": identifier,
            "summary": summary,
            "parameters": [timeout],
            "requestBody": {"required": True, "content": content(name)},
            "responses": {
                "200": answer,
                "403": text("the client's address isn't in --api-server-cidrs"),
                "503": text("too many requests are in work"),
                **({"default": {**answer, "description": status}} if status else {}),
            },
            "security": [{}, {"clientCertificate": []}],
        },
    }


def extension(identifier: str, takes: str, gives: str, summary: str) -> Schema:
    """A route that kube-scheduler calls."""
    answer = {"description": "faults are in its field Error", "content": content(gives)}
    return {
        "servers": [EXTENDER, MAIN],
        "post": {
            "operationId": identifier,
            "summary": summary,
            "requestBody": {"required": True, "content": content(takes)},
            "responses": {
                "200": answer,
                "400": text("there is no body, or it didn't come whole"),
                "401": text("the bearer token of --extender-token-file is missing"),
                "403": text(
                    "on the main listener: the client isn't on loopback, and has shown neither token nor certificate"
                ),
                "408": text("the body took too long"),
                "413": text("the body is too large"),
                "500": {
                    "description": "a fault of the program; its log says which",
                    "content": content("ExtenderBindingResult"),
                },
                "503": text("too many requests are in work"),
            },
            "security": [{}, {"bearerToken": []}, {"clientCertificate": []}],
        },
    }


def probe(identifier: str, summary: str, servers: list[Schema], **responses: Schema) -> Schema:
    found = {code.removeprefix("_"): response for code, response in responses.items()}
    return {"servers": servers, "get": {"operationId": identifier, "summary": summary, "responses": found}}


EVERYWHERE: list[Schema] = [METRICS, MAIN, EXTENDER]
PATHS: dict[str, Schema] = {
    "/mutate": review("mutate", "PodReview", "normalise a pod; never looks at quota", ""),
    "/validate": review("validate", "PodReview", "check a pod, then charge it", ""),
    "/templates": review("templates", "WorkloadReview", "stamp pod templates with who submits them", ""),
    "/claims": review("claims", "ClaimReview", "charge a new ResourceClaim, or what one is allocated", ""),
    "/webhook": review("webhook", "PodReview", "both at once, for HAMi's chart", ""),
    "/quotas": review(
        "quotas", "QuotaReview", "warn of a misread quota; none is refused", "the review couldn't be answered"
    ),
    "/names": review(
        *("names", "PodReview", "warn of misspelt resources; no pod is refused", "the review couldn't be answered")
    ),
    "/filter": extension("filter", "ExtenderArgs", "ExtenderFilterResult", "which nodes fit"),
    "/filter-simulation": extension(
        "simulateFilter",
        "ExtenderArgs",
        "ExtenderFilterResult",
        "which of these whole nodes would fit, without effects",
    ),
    "/prioritize": extension("prioritize", "ExtenderArgs", "HostPriorityList", "how good the nodes are, 0 to 10"),
    "/bind": extension("bind", "ExtenderBindingArgs", "ExtenderBindingResult", "place a pod on a node, and bind it"),
    "/preempt": extension("preempt", "ExtenderPreemptionArgs", "ExtenderPreemptionResult", "which victims make room"),
    "/healthz": probe("healthz", "whether the process works", EVERYWHERE, _200=text("nothing")),
    "/readyz": probe(
        *("readyz", "whether the process may be sent work", EVERYWHERE),
        _200=text("nothing, or what an administrator should see to"),
        _503=text("why not; the extender's own listener answers 200 only"),
    ),
    "/metrics": probe("metrics", "metrics for Prometheus", [METRICS, MAIN], _200=text("in Prometheus' text format")),
}


def render() -> str:
    """The document."""
    _, found = msgspec.json.schema_components(
        [PODS, CLAIMS, WORKLOADS, QUOTAS], ref_template="#/components/schemas/{name}"
    )
    read = json.loads(json.dumps(found), object_hook=_renamed)
    schemas = {NAMES.get(name, name): schema for name, schema in read.items()}
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "hami-webhook",
            "version": "1",
            "summary": "Reviews of pods, claims and quotas, the scheduler extender, probes and metrics",
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "paths": PATHS,
        "components": {
            "schemas": {**schemas, "ReviewAnswer": ANSWER, **OF_KUBE_SCHEDULER},
            "securitySchemes": {
                "clientCertificate": {"type": "mutualTLS", "description": "of --client-ca-file"},
                "bearerToken": {"type": "http", "scheme": "bearer", "description": "of --extender-token-file"},
            },
        },
    }
    return json.dumps(document, indent=2) + "\n"


def _renamed(value: Schema) -> Schema:
    """A schema with names of `NAMES` in place of the types', less titles and docstrings."""
    if set(value) == {"$ref"}:
        name = value["$ref"].rpartition("/")[2]
        return ref(NAMES.get(name, name))
    is_schema = "type" in value or "anyOf" in value
    return {key: each for key, each in value.items() if not (is_schema and key in ("title", "description"))}
