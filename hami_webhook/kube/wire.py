"""The fields that are read of Kubernetes' objects, as msgspec structures: decoding an object is validating it.

Missing and null fields are None, and unlisted ones are dropped (docs/decisions/0006-typed-decode.md). Amounts and times
stay as they are written; `kube/objects.py` gives them their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import orjson

Texts = dict[str, str]
Amounts = dict[str, Any]
"""Quantities as written (strings or JSON numbers), by resource."""
T = TypeVar("T")


class MalformedObject(ValueError):
    """A field of a Kubernetes object has the wrong type; the text starts with its path."""


class Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A JSON object of an API, its members in camelCase."""


class ObjectMeta(Wire, frozen=True):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    generate_name: str | None = None
    resource_version: str | None = None
    labels: Texts | None = None
    annotations: Texts | None = None
    creation_timestamp: Any = None
    deletion_timestamp: Any = None
    deletion_grace_period_seconds: int | None = None


class Resources(Wire, frozen=True):
    limits: Amounts | None = None
    requests: Amounts | None = None


class SecurityContext(Wire, frozen=True):
    privileged: Any = None


class ContainerObject(Wire, frozen=True):
    name: str | None = None
    restart_policy: str | None = None
    resources: Resources | None = None
    security_context: SecurityContext | None = None


class PodAffinityTerm(Wire, frozen=True):
    namespaces: tuple[str, ...] | None = None
    namespace_selector: Any = None


class WeightedPodAffinityTerm(Wire, frozen=True):
    pod_affinity_term: PodAffinityTerm | None = None


class PodAffinity(Wire, frozen=True):
    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] | None = None

    def terms(self) -> Iterator[PodAffinityTerm]:
        """Required and preferred terms."""
        yield from self.required_during_scheduling_ignored_during_execution or ()
        for weighted in self.preferred_during_scheduling_ignored_during_execution or ():
            if weighted.pod_affinity_term is not None:
                yield weighted.pod_affinity_term


class Affinity(Wire, frozen=True):
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class PodResourceClaimObject(Wire, frozen=True):
    """A pod's reference to a claim: by its name, or to the template that one is generated from."""

    name: str | None = None
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class SchedulingGroup(Wire, frozen=True):
    pod_group_name: str | None = None


class PodSpec(Wire, frozen=True):
    containers: tuple[ContainerObject, ...] | None = None
    init_containers: tuple[ContainerObject, ...] | None = None
    node_name: str | None = None
    scheduler_name: str | None = None
    node_selector: Texts | None = None
    priority_class_name: str | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    affinity: Affinity | None = None
    scheduling_gates: Any = None
    resource_claims: tuple[PodResourceClaimObject, ...] | None = None
    scheduling_group: SchedulingGroup | None = None


class RunningState(Wire, frozen=True):
    pass


class Terminated(Wire, frozen=True):
    exit_code: int | None = 0
    finished_at: Any = None


class ContainerState(Wire, frozen=True):
    running: RunningState | None = None
    terminated: Terminated | None = None


class ContainerStatus(Wire, frozen=True):
    name: str | None = None
    restart_count: int | None = None
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class ExtendedResourceClaimStatus(Wire, frozen=True):
    resource_claim_name: str | None = None


class PodCondition(Wire, frozen=True):
    type: str | None = None
    status: Any = None
    last_transition_time: Any = None


class PodStatus(Wire, frozen=True):
    phase: str | None = None
    conditions: tuple[PodCondition, ...] | None = None
    start_time: Any = None
    nominated_node_name: str | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    resource_claim_statuses: tuple[PodResourceClaimObject, ...] | None = None
    extended_resource_claim_status: ExtendedResourceClaimStatus | None = None


class PodObject(Wire, frozen=True):
    """A pod of which an informer keeps everything that is read: no environment and no images, which may be secrets."""

    metadata: ObjectMeta | None = None
    spec: PodSpec | None = None
    status: PodStatus | None = None


class EnvVar(Wire, frozen=True):
    name: str | None = None
    value: str | None = None
    value_from: Any = None


class NodeSelectorRequirement(Wire, frozen=True):
    key: str | None = None
    operator: str | None = None
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(Wire, frozen=True):
    match_expressions: tuple[NodeSelectorRequirement, ...] | None = None


class NodeSelector(Wire, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = None


class NodeAffinity(Wire, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class ReviewedAffinity(Affinity, frozen=True):
    node_affinity: NodeAffinity | None = None


class ReviewedResources(Resources, frozen=True):
    claims: Any = None


class ReviewedContainer(ContainerObject, frozen=True):
    resources: ReviewedResources | None = None
    env: tuple[EnvVar, ...] | None = None


class ReviewedPodSpec(PodSpec, frozen=True):
    affinity: ReviewedAffinity | None = None
    containers: tuple[ReviewedContainer, ...] | None = None
    init_containers: tuple[ReviewedContainer, ...] | None = None
    ephemeral_containers: tuple[ContainerObject, ...] | None = None
    runtime_class_name: str | None = None
    overhead: Any = None
    resources: Any = None


class ReviewedPod(PodObject, frozen=True):
    """A pod, or a Binding, as admission reads it."""

    spec: ReviewedPodSpec | None = None


class UserInfo(Wire, frozen=True):
    username: str | None = None
    groups: tuple[str, ...] | None = None


class GroupVersionKind(Wire, frozen=True):
    kind: str | None = None


class AdmissionRequest(Wire, Generic[T], frozen=True):
    uid: str | None = None
    operation: str | None = None
    kind: GroupVersionKind | None = None
    sub_resource: str | None = None
    namespace: str | None = None
    name: str | None = None
    object: T | None = None
    old_object: T | None = None
    user_info: UserInfo | None = None
    dry_run: bool | None = None


class AdmissionReview(Wire, Generic[T], frozen=True):
    """`admission.k8s.io` v1 and v1beta1."""

    api_version: str | None = None
    kind: str | None = None
    request: AdmissionRequest[T] | None = None


class NodeStatus(Wire, frozen=True):
    capacity: Amounts | None = None
    allocatable: Amounts | None = None


class NodeSpec(Wire, frozen=True):
    provider_id: str | None = msgspec.field(default=None, name="providerID")
    taints: Any = None


class NodeObject(Wire, frozen=True):
    metadata: ObjectMeta | None = None
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class NamespaceObject(Wire, frozen=True):
    """A Namespace; of any other kind, what identifies and describes it."""

    metadata: ObjectMeta | None = None


class ScopeSelectorRequirement(Wire, frozen=True):
    scope_name: str | None = None
    operator: str | None = None
    values: tuple[str, ...] | None = None


class ScopeSelector(Wire, frozen=True):
    match_expressions: tuple[ScopeSelectorRequirement, ...] | None = None


class ResourceQuotaSpec(Wire, frozen=True):
    hard: Amounts | None = None
    scopes: tuple[str, ...] | None = None
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Wire, frozen=True):
    hard: Amounts | None = None
    used: Amounts | None = None


class ResourceQuotaObject(Wire, frozen=True):
    metadata: ObjectMeta | None = None
    spec: ResourceQuotaSpec | None = None
    status: ResourceQuotaStatus | None = None


class LabelSelectorRequirement(Wire, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class LabelSelectorObject(Wire, frozen=True):
    match_labels: Texts | None = None
    match_expressions: tuple[LabelSelectorRequirement, ...] | None = None


class QueueSpec(Wire, frozen=True):
    order: str | None = None
    overtaking: str | None = None


class BudgetSpec(Wire, frozen=True):
    amounts: Amounts | None = None
    period: str | None = None
    then: str | None = None
    time_zone: str | None = None


class SubjectOverride(Wire, frozen=True):
    subject: str | None = None
    group: str | None = None
    hard: Amounts | None = None


class PerSubjectSpec(Wire, frozen=True):
    user: bool | None = None
    label: str | None = None
    hard: Amounts | None = None
    overrides: tuple[SubjectOverride, ...] | None = None
    groups: tuple[SubjectOverride, ...] | None = None


class AcceleratorQuotaSpec(Wire, frozen=True):
    namespace_selector: LabelSelectorObject | None = None
    hard: Amounts | None = None
    device_types: tuple[str, ...] | None = None
    node_selector: Texts | None = None
    enforcement: str | None = None
    queue: QueueSpec | None = None
    nominal: Amounts | None = None
    reclaim: str | None = None
    reclaim_min_runtime: str | None = None
    budget: BudgetSpec | None = None
    pod_selector: LabelSelectorObject | None = None
    per: PerSubjectSpec | None = None
    max_runtime: str | None = None
    default_runtime: str | None = None
    longer_runtime: str | None = None
    idle_after: str | None = None
    idle: str | None = None
    windows: tuple[dict[str, Any], ...] | None = None


class AcceleratorQuotaStatus(Wire, frozen=True):
    hard: Amounts | None = None
    used: Amounts | None = None
    ledger: str | None = None
    observed: int | None = None
    counted_cards: str | None = None
    counted_subjects: str | None = None
    subject_use: str | None = None
    subjects: tuple[dict[str, Any], ...] | None = None
    other_subjects: dict[str, Any] | None = None
    namespaces: tuple[dict[str, Any], ...] | None = None
    conditions: tuple[dict[str, Any], ...] | None = None
    budget: dict[str, Any] | None = None
    window: dict[str, Any] | None = None
    shares: dict[str, Any] | None = None


class AcceleratorQuotaObject(Wire, frozen=True):
    """An AcceleratorQuota (hami.io/v1alpha1)."""

    metadata: ObjectMeta | None = None
    spec: AcceleratorQuotaSpec | None = None
    status: AcceleratorQuotaStatus | None = None


class PodDisruptionBudgetSpec(Wire, frozen=True):
    selector: LabelSelectorObject | None = None


class PodDisruptionBudgetStatus(Wire, frozen=True):
    disruptions_allowed: int | None = None
    disrupted_pods: dict[str, Any] | None = None


class PodDisruptionBudgetObject(Wire, frozen=True):
    """A PodDisruptionBudget (policy/v1)."""

    metadata: ObjectMeta | None = None
    spec: PodDisruptionBudgetSpec | None = None
    status: PodDisruptionBudgetStatus | None = None


class DeviceInfo(Wire, frozen=True):
    """A device of Koordinator's Device object, without what koordlet reports of its state."""

    type: Any = None
    id: Any = None
    minor: Any = None
    health: Any = None
    labels: Any = None
    resources: Any = None
    topology: Any = None


class DeviceSpec(Wire, frozen=True):
    devices: tuple[DeviceInfo, ...] | None = None


class DeviceObject(Wire, frozen=True):
    """Koordinator's Device (scheduling.koordinator.sh/v1alpha1)."""

    metadata: ObjectMeta | None = None
    spec: DeviceSpec | None = None


def convert(obj: Any, type_: type[T], kind: str) -> T:
    """A decoded JSON object as a structure; `kind` is what it is called where it is none. Raises `MalformedObject`."""
    if isinstance(obj, type_):
        return obj
    try:
        return msgspec.convert({} if obj is None else obj, type_)
    except msgspec.ValidationError as error:
        raise MalformedObject(describe(find_fault(obj, error), kind)) from error


def decode(content: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[T], kind: str) -> T:
    """The structure in JSON text. Raises `MalformedObject`, and `orjson.JSONDecodeError` for text that is no JSON."""
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedObject(describe(find_fault(orjson.loads(bytes(content)), error), kind)) from error


class Fault(NamedTuple):
    """A value of the wrong type: where it is, as `spec.containers[0].name`, and the JSON type that is expected, in
    msgspec's word such as `str`; empty if nothing more than `error` is known.
    """

    path: str
    expected: str
    value: Any
    error: str


def find_fault(obj: Any, error: Exception) -> Fault:
    """The value that msgspec's error is about, which names its place but for the keys of maps."""
    text = str(error)
    match = _EXPECTED.fullmatch(text)
    if match is None:
        return Fault("", "", obj, text)
    path, value = _locate(obj, _STEP.findall(match["path"] or ""), match["found"]) or ("", obj)
    return Fault(path.removeprefix("."), match["expected"].removesuffix(" | null"), value, text)


def describe(fault: Fault, kind: str) -> str:
    """A fault as a sentence that begins with the path."""
    expected = _EXPECTATIONS.get(fault.expected)
    if expected is None:
        return f"{kind} can't be read: {fault.error}"
    return f"{fault.path or kind} must be {expected}, not {type_name(fault.value)}"


def type_name(value: Any) -> str:
    """A value's JSON type with its article."""
    return _NAMES.get(type(value), "null" if value is None else type(value).__name__)


_EXPECTED = re.compile(r"Expected `(?P<expected>[^`]+)`, got `(?P<found>[^`]+)`(?: - at `\$(?P<path>[^`]*)`)?")
_STEP = re.compile(r"\.[^.\[\]]+|\[[^\]]*\]")
_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
_TYPES = {dict: "object", list: "array", str: "str", bool: "bool", int: "int", float: "float", type(None): "null"}
_EXPECTATIONS = {
    "object": "an object",
    "array": "a list",
    "str": "a string",
    "int": "an integer",
    "bool": "a boolean",
}


def _locate(value: Any, steps: list[str], found: str) -> tuple[str, Any] | None:
    """The path and the value that `steps` lead to, if it has the type `found`; `[...]` is any key of a map."""
    if not steps:
        return ("", value) if _TYPES.get(type(value), found) == found else None
    step, rest = steps[0], steps[1:]
    members: list[tuple[str, Any]] = []
    if step == "[...]" and isinstance(value, Mapping):
        members = [(f"[{key}]", item) for key, item in value.items()]
    elif step.startswith(".") and isinstance(value, Mapping):
        members = [(step, value.get(step[1:]))]
    elif isinstance(value, list | tuple) and step[1:-1].isdigit():
        members = [(step, value[int(step[1:-1])])]
    for name, item in members:
        located = _locate(item, rest, found)
        if located is not None:
            return name + located[0], located[1]
    return None
