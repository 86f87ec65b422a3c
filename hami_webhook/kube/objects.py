"""Pods, Nodes, Namespaces and ResourceQuotas as the program sees them: frozen values.

Each `from_object` takes the JSON object of the API (`core/v1`), or the structure of `kube/wire.py` that it was decoded
into, and raises `MalformedObject` with the path of the first field whose type is wrong. Unknown fields are ignored.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.kube import wire
from hami_webhook.kube.message_text import shown
from hami_webhook.kube.quantity import Quantity, QuantityError
from hami_webhook.kube.quota_fields import NO_PERCENTS, Lending, Percents, PerSubject, WrittenBudget, WrittenWindow
from hami_webhook.kube.selectors import LabelSelector
from hami_webhook.kube.wire import MalformedObject as MalformedObject

JSON = Mapping[str, Any]
QUOTA_GATE = "hami.io/quota"
"""The scheduling gate of pods that wait for quota (docs/spec/queues.md#1)."""
RESERVATION = "hami.io/quota-reservation"
"""A secret that finds the charge of a pod that was charged before it had a UID (docs/spec/quota.md#6)."""
QUOTA_RESERVED = "hami.io/QuotaReserved"
"""The type of the condition that a pod has which waits, or has waited (docs/spec/queues.md#4)."""

_META, _RESOURCES = wire.ObjectMeta(), wire.Resources()
_POD_SPEC, _POD_STATUS, _NODE_STATUS = wire.PodSpec(), wire.PodStatus(), wire.NodeStatus()
_NO_EXTENDED = wire.ExtendedResourceClaimStatus()
_NO_GROUP = wire.SchedulingGroup()
_NO_CLAIMS: Mapping[str, str] = {}
_NO_NAMES: frozenset[str] = frozenset()
_QUOTA_SPEC, _QUOTA_STATUS = wire.ResourceQuotaSpec(), wire.ResourceQuotaStatus()


class ContainerKind(Enum):
    """An ordinary init container, a restartable one (sidecar), or an app container."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"
    __hash__ = object.__hash__  # Enum's own is a call in Python


class Container(Struct, frozen=True):
    """One container's name, kind and resources; amounts are as written (strings or JSON numbers)."""

    name: str
    kind: ContainerKind
    limits: Mapping[str, Any]
    requests: Mapping[str, Any]
    privileged: bool = False

    @classmethod
    def from_object(cls, obj: wire.ContainerObject, *, is_init: bool = False) -> Container:
        """A container of a pod, of its `initContainers` if `is_init`."""
        resources, security = obj.resources or _RESOURCES, obj.security_context
        kind = ContainerKind.APP
        if is_init:
            kind = ContainerKind.SIDECAR if obj.restart_policy == "Always" else ContainerKind.INIT
        privileged = security is not None and security.privileged is True
        return cls(obj.name or "", kind, resources.limits or {}, resources.requests or {}, privileged)

    @property
    def content(self) -> tuple[object, ...]:
        """What containers that are equal have in common, hashable where amounts are; `1` and `True` differ in type."""
        amounts = tuple([(*each.items(), *map(type, each.values())) for each in (self.limits, self.requests)])
        return self.name, self.kind, self.privileged, amounts

    def amount(self, resource: str) -> Any:
        """What is written for `resource` in limits, else in requests; None if in neither."""
        found = self.limits.get(resource)
        return self.requests.get(resource) if found is None else found

    def names_resource(self, resource: str) -> bool:
        return resource in self.limits or resource in self.requests

    @property
    def named(self) -> set[str]:
        """The resources that are named."""
        return {*self.limits, *self.requests}


class PodResourceClaim(Struct, frozen=True):
    """A pod's reference, called `name`, to a claim: by the claim's name, or to the `template` it is generated from."""

    name: str
    claim: str = ""
    template: str = ""


class Pod(Struct, frozen=True, weakref=True):
    """A pod as the scheduler and the quota see it. `containers` has init containers first, in manifest order."""

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    containers: tuple[Container, ...]
    scheduler_name: str = ""
    node_name: str = ""
    node_selector: Mapping[str, str] | None = None
    priority_class: str = ""
    priority: int = 0
    preemption_policy: str = ""
    grace_period: int | None = None
    active_deadline: int | None = None
    cross_namespace_affinity: bool = False
    phase: str = ""
    started: float | None = None
    nominated_node: str = ""
    created: float | None = None
    deletion_time: float | None = None
    deletion_grace: float | None = None
    init_finished: bool = False
    resource_version: str = ""
    gates: tuple[str, ...] = ()
    """The names of its scheduling gates."""
    resource_claims: tuple[PodResourceClaim, ...] = ()
    generated_claims: Mapping[str, str] = {}
    """The claims that the status names for references to templates; empty for one that needs none."""
    extended_claim: str = ""
    """The claim for its extended resources."""
    scheduling_group: str = ""
    """The name of its PodGroup, as `spec.schedulingGroup` has it."""
    reported_since: float | None = None
    """Since when it waits for quota alone, by its condition; None for a pod without our gate."""
    finished: float | None = None
    """When the last container of a terminal pod ended; None where its status doesn't say."""

    @classmethod
    def from_object(cls, obj: Any, namespace: str = "") -> Pod:
        """A pod from its JSON; `namespace` is used where the object has none."""
        pod = wire.convert(obj, wire.PodObject, "pod")
        meta, spec, status = pod.metadata or _META, pod.spec or _POD_SPEC, pod.status or _POD_STATUS
        created, deleted = meta.creation_timestamp, meta.deletion_timestamp
        containers = (
            *[Container.from_object(each, is_init=True) for each in spec.init_containers or ()],
            *[Container.from_object(each) for each in spec.containers or ()],
        )
        return cls(  # by position: Python makes a dictionary for more than 15 names, which takes as long as the rest
            meta.namespace or namespace,
            meta.name or meta.generate_name or "",
            meta.uid or "",
            meta.labels or {},
            meta.annotations or {},
            containers,
            spec.scheduler_name or "",
            spec.node_name or "",
            spec.node_selector or {},
            spec.priority_class_name or "",
            spec.priority or 0,
            spec.preemption_policy or "",
            spec.termination_grace_period_seconds,
            spec.active_deadline_seconds,
            spec.affinity is not None and _crosses_namespaces(spec.affinity),
            status.phase or "",
            None if status.start_time is None else _time(status.start_time, "status.startTime"),
            status.nominated_node_name or "",
            None if created is None else _time(created, "metadata.creationTimestamp"),
            None if deleted is None else _time(deleted, "metadata.deletionTimestamp"),
            meta.deletion_grace_period_seconds,
            pod.status is not None and _init_finished(status, containers),
            meta.resource_version or "",
            _gates(spec.scheduling_gates) if spec.scheduling_gates else (),
            () if spec.resource_claims is None else tuple(map(_reference, spec.resource_claims)),
            _NO_CLAIMS if status.resource_claim_statuses is None else _generated(status.resource_claim_statuses),
            (status.extended_resource_claim_status or _NO_EXTENDED).resource_claim_name or "",
            (spec.scheduling_group or _NO_GROUP).pod_group_name or "",
            _reported_since(status.conditions) if spec.scheduling_gates and status.conditions else None,
            _finished(status) if status.phase in ("Succeeded", "Failed") else None,
        )

    def compact(self) -> Pod:
        """The same pod in less memory, to be kept: sharing names, labels and containers with equal ones of others.

        The pods of a workload have the same labels and requests.
        """
        return replace(
            self,
            namespace=sys.intern(self.namespace),
            node_name=sys.intern(self.node_name),
            labels=_shared(("labels", *self.labels.items()), self.labels),
            containers=_shared(("containers", *[each.content for each in self.containers]), self.containers),
        )

    @property
    def key(self) -> str:
        """`namespace/name`, how Kubernetes prints a pod."""
        return f"{self.namespace}/{self.name}"

    @property
    def gated(self) -> bool:
        """It has scheduling gates."""
        return bool(self.gates)

    @property
    def queued(self) -> bool:
        """It waits for quota: it has our scheduling gate, and costs nothing (docs/spec/queues.md#2)."""
        return QUOTA_GATE in self.gates

    @property
    def gated_by_others(self) -> bool:
        """It has scheduling gates that aren't ours: another manager says when it starts."""
        return any(gate != QUOTA_GATE for gate in self.gates)

    @property
    def waits_since(self) -> float:
        """Since when it waits for quota alone, in Unix seconds: its creation, if no condition says more."""
        return max(self.created or 0.0, self.reported_since or 0.0)

    @property
    def terminal(self) -> bool:
        """The phase is Succeeded or Failed."""
        return self.phase in ("Succeeded", "Failed")

    def ended(self, now: float) -> bool:
        """Whether quota no longer counts the pod at `now` (Unix seconds): terminal, or past its deletion deadline."""
        if self.terminal:
            return True
        deadline = self.deletion_deadline
        return deadline is not None and now > deadline

    @property
    def deletion_deadline(self) -> float | None:
        """When a pod under deletion stops counting for quota: one grace period after its deletionTimestamp."""
        if self.deletion_time is None or self.deletion_grace is None:
            return None
        return self.deletion_time + self.deletion_grace

    @property
    def named(self) -> frozenset[str]:
        """The resources that a container names, in limits or in requests."""
        return _NO_NAMES.union(*[names for each in self.containers for names in (each.limits, each.requests)])

    @property
    def kinds(self) -> tuple[ContainerKind, ...]:
        """The containers' kinds, in their order."""
        return tuple([container.kind for container in self.containers])

    @property
    def best_effort(self) -> bool:
        """The QoS class is BestEffort: no container names cpu or memory above zero."""
        for container in self.containers:
            for amounts in (container.limits, container.requests):
                if any(_positive(amounts.get(name)) for name in ("cpu", "memory")):
                    return False
        return True


class Node(Struct, frozen=True, weakref=True):
    """A node's name, labels, annotations, capacity and allocatable (amounts as written).

    `provided`: it has a `providerID`, without which no autoscaler adds nodes like it. `taints` are as written.
    """

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    capacity: Mapping[str, Any]
    allocatable: Mapping[str, Any]
    resource_version: str = ""
    provided: bool = False
    taints: Any = None

    @classmethod
    def from_object(cls, obj: Any) -> Node:
        node = wire.convert(obj, wire.NodeObject, "node")
        meta, status = node.metadata or _META, node.status or _NODE_STATUS
        return cls(
            name=meta.name or "",
            labels=meta.labels or {},
            annotations=meta.annotations or {},
            capacity=status.capacity or {},
            allocatable=status.allocatable or {},
            resource_version=meta.resource_version or "",
            provided=bool(node.spec and node.spec.provider_id),
            taints=node.spec and node.spec.taints,
        )


class Namespace(Struct, frozen=True):
    """A namespace's name, labels and annotations."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @classmethod
    def from_object(cls, obj: Any) -> Namespace:
        meta = wire.convert(obj, wire.NamespaceObject, "namespace").metadata or _META
        return cls(meta.name or "", meta.labels or {}, meta.annotations or {})


class ScopeRequirement(Struct, frozen=True):
    """One entry of `scopeSelector.matchExpressions`, or of `scopes` with the operator Exists."""

    scope: str
    operator: str
    values: tuple[str, ...] = ()


class ResourceQuota(Struct, frozen=True):
    """A quota's hard limits and status (amounts as written), its scopes and its annotations.

    Only an AcceleratorQuota (`quota/accelerator_quota.py`) has `namespaces`, the selected ones, and what follows.
    """

    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, str]
    hard: Mapping[str, Any]
    status_hard: Mapping[str, Any]
    used: Mapping[str, Any]
    scopes: tuple[ScopeRequirement, ...] = ()
    resource_version: str = ""
    namespaces: frozenset[str] | None = None
    report: Mapping[str, Any] = {}
    lending: Lending | None = None
    budget: WrittenBudget | None = None
    pod_selector: LabelSelector | None = None
    per: PerSubject | None = None
    windows: tuple[WrittenWindow, ...] = ()
    window_status: Mapping[str, Any] = {}
    percents: Percents = NO_PERCENTS

    @classmethod
    def from_object(cls, obj: Any) -> ResourceQuota:
        quota = wire.convert(obj, wire.ResourceQuotaObject, "resourcequota")
        meta, spec, status = quota.metadata or _META, quota.spec or _QUOTA_SPEC, quota.status or _QUOTA_STATUS
        return cls(
            namespace=meta.namespace or "",
            name=meta.name or "",
            uid=meta.uid or "",
            annotations=meta.annotations or {},
            hard=spec.hard or {},
            status_hard=status.hard or {},
            used=status.used or {},
            scopes=tuple(_scopes(spec)) if spec.scopes or spec.scope_selector else (),
            resource_version=meta.resource_version or "",
        )

    @property
    def kind(self) -> str:
        return "ResourceQuota" if self.namespaces is None else "AcceleratorQuota"

    @property
    def covered_namespaces(self) -> frozenset[str]:
        """Its own namespace, or those that an AcceleratorQuota selects."""
        return frozenset((self.namespace,)) if self.namespaces is None else self.namespaces


def checked_device(obj: Any) -> tuple[str, JSON]:
    """The name of Koordinator's Device object, which is its node's, and the object as it is."""
    device = wire.convert(obj, wire.DeviceObject, "device")
    return (device.metadata or _META).name or "", obj


_known: dict[object, Any] = {}
_MOST_KNOWN = 10_000
T = TypeVar("T")


def _shared(content: object, value: T) -> T:
    """One value for all with the same content."""
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    try:
        found: T = _known.setdefault(content, value)
    except TypeError:  # an amount that is no text or number
        return value
    return found


def parse_time(text: str) -> float:
    """Unix seconds of an RFC 3339 time; raises ValueError."""
    parsed = datetime.fromisoformat(text)
    if parsed.tzinfo is None:
        raise ValueError(f"{shown(text)} has no time zone")
    return parsed.timestamp()


def format_time(now: float) -> str:
    """Unix seconds as RFC 3339 in UTC with whole seconds, as Kubernetes writes times."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _gates(written: Any) -> tuple[str, ...]:
    """The names of gates; one that can't be read has none, and gates all the same."""
    gates = written if isinstance(written, list | tuple) else [written]
    return tuple([sys.intern(str(each.get("name"))) if isinstance(each, Mapping) else "" for each in gates])


def _scopes(spec: wire.ResourceQuotaSpec) -> Iterator[ScopeRequirement]:
    for scope in spec.scopes or ():
        yield ScopeRequirement(scope, "Exists")
    selector = spec.scope_selector
    for each in (selector and selector.match_expressions) or ():
        yield ScopeRequirement(each.scope_name or "", each.operator or "", each.values or ())


def _reference(written: wire.PodResourceClaimObject) -> PodResourceClaim:
    return PodResourceClaim(
        written.name or "", written.resource_claim_name or "", written.resource_claim_template_name or ""
    )


def _generated(written: Sequence[wire.PodResourceClaimObject]) -> dict[str, str]:
    return {each.name or "": each.resource_claim_name or "" for each in written}


def _reported_since(conditions: Sequence[wire.PodCondition]) -> float | None:
    """When the condition of a pod that waits for quota became False."""
    for each in conditions:
        if each.type == QUOTA_RESERVED and each.status == "False" and each.last_transition_time is not None:
            return _time(each.last_transition_time, "status.conditions.lastTransitionTime")
    return None


def _finished(status: wire.PodStatus) -> float | None:
    """When the last container ended; a time that can't be read isn't there."""
    times = []
    for each in (*(status.container_statuses or ()), *(status.init_container_statuses or ())):
        if each.state is not None and each.state.terminated is not None:
            with contextlib.suppress(MalformedObject):
                times.append(_time(each.state.terminated.finished_at, ""))
    return max(times, default=None)


def _init_finished(status: wire.PodStatus, containers: Sequence[Container]) -> bool:
    """Whether the ordinary init containers are over for good, by the pod alone (docs/spec/quota.md#5)."""
    if not (status.container_statuses or status.init_container_statuses):
        return False
    for app in status.container_statuses or ():
        states = (app.state, app.last_state)
        if app.restart_count or any(state and (state.running or state.terminated) for state in states):
            return True
    ordinary = {container.name for container in containers if container.kind is ContainerKind.INIT}
    done = {
        init.name
        for init in status.init_container_statuses or ()
        if init.state is not None and init.state.terminated is not None and not init.state.terminated.exit_code
    }
    return bool(ordinary) and ordinary <= done


def _crosses_namespaces(affinity: wire.Affinity) -> bool:
    """Whether any term of a pod's affinity to pods names namespaces."""
    return any(
        term.namespaces or term.namespace_selector is not None
        for rules in (affinity.pod_affinity, affinity.pod_anti_affinity)
        if rules is not None
        for term in rules.terms()
    )


def _positive(amount: Any) -> bool:
    """Whether an amount as written is above zero; one that is no quantity counts as if it were."""
    try:
        return amount is not None and Quantity.parse(amount).value > 0
    except QuantityError:
        return True


def _time(value: Any, path: str) -> float:
    if isinstance(value, datetime):  # YAML reads an unquoted time as one
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    try:
        return parse_time(value)
    except (ValueError, TypeError) as error:
        raise MalformedObject(f"{path} must be an RFC 3339 time, not {shown(value)}") from error
