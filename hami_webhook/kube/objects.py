"""The few fields of Pods, Nodes, Namespaces and ResourceQuotas that the program reads, as frozen values.

Each `from_object` takes the JSON object of the API (`core/v1`) and raises `MalformedObject` with the path of the
first field whose type is wrong. Unknown fields are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import cached_property
from typing import Any

from hami_webhook.kube.quantity import Quantity, QuantityError

JSON = Mapping[str, Any]


class MalformedObject(ValueError):
    """A field of a Kubernetes object has the wrong type; the text starts with its path."""


class ContainerKind(Enum):
    """An ordinary init container, a restartable one (sidecar), or an app container."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True)
class Container:
    """One container's name, kind and resources; amounts are as written (strings or JSON numbers)."""

    name: str
    kind: ContainerKind
    limits: Mapping[str, Any]
    requests: Mapping[str, Any]
    privileged: bool = False

    def amount(self, resource: str) -> Any:
        """What is written for `resource` in limits, else in requests; None if in neither."""
        found = self.limits.get(resource)
        return self.requests.get(resource) if found is None else found

    def asks_for(self, resource: str) -> bool:
        return resource in self.limits or resource in self.requests

    @property
    def named(self) -> set[str]:
        """The resources that are named."""
        return {*self.limits, *self.requests}


@dataclass(frozen=True)
class Pod:
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
    active_deadline: int | None = None
    cross_namespace_affinity: bool = False
    phase: str = ""
    created: float | None = None
    deletion_time: float | None = None
    deletion_grace: float | None = None
    init_finished: bool = False
    resource_version: str = ""
    memo: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)
    """What others derived from this very pod and may look up again; a changed pod starts with an empty one."""

    @classmethod
    def from_object(cls, obj: Any, namespace: str = "") -> Pod:
        """A pod from its JSON; `namespace` is used where the object has none."""
        pod = _mapping(obj, "pod")
        meta = _mapping(pod.get("metadata"), "metadata")
        spec = _mapping(pod.get("spec"), "spec")
        status = _mapping(pod.get("status"), "status")
        containers = tuple(read_containers(spec))
        return cls(
            namespace=_text(meta.get("namespace"), "metadata.namespace") or namespace,
            name=_text(meta.get("name"), "metadata.name") or _text(meta.get("generateName"), "metadata.generateName"),
            uid=_text(meta.get("uid"), "metadata.uid"),
            labels=texts(meta.get("labels"), "metadata.labels"),
            annotations=texts(meta.get("annotations"), "metadata.annotations"),
            containers=containers,
            scheduler_name=_text(spec.get("schedulerName"), "spec.schedulerName"),
            node_name=_text(spec.get("nodeName"), "spec.nodeName"),
            node_selector=texts(spec.get("nodeSelector"), "spec.nodeSelector"),
            priority_class=_text(spec.get("priorityClassName"), "spec.priorityClassName"),
            active_deadline=_whole(spec.get("activeDeadlineSeconds"), "spec.activeDeadlineSeconds"),
            cross_namespace_affinity=_has_cross_namespace_terms(spec),
            phase=_text(status.get("phase"), "status.phase"),
            created=_time(meta.get("creationTimestamp"), "metadata.creationTimestamp"),
            deletion_time=_time(meta.get("deletionTimestamp"), "metadata.deletionTimestamp"),
            deletion_grace=_whole(meta.get("deletionGracePeriodSeconds"), "metadata.deletionGracePeriodSeconds"),
            init_finished=_init_finished(status, containers),
            resource_version=_text(meta.get("resourceVersion"), "metadata.resourceVersion"),
        )

    @property
    def key(self) -> str:
        """`namespace/name`, how Kubernetes prints a pod."""
        return f"{self.namespace}/{self.name}"

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

    @cached_property
    def kinds(self) -> tuple[ContainerKind, ...]:
        return tuple(container.kind for container in self.containers)

    @cached_property
    def best_effort(self) -> bool:
        """The QoS class is BestEffort: no container names cpu or memory above zero."""
        for container in self.containers:
            for amounts in (container.limits, container.requests):
                if any(_positive(amounts.get(name)) for name in ("cpu", "memory")):
                    return False
        return True


@dataclass(frozen=True, slots=True)
class Node:
    """A node's name, labels, annotations, capacity and allocatable (amounts as written)."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    capacity: Mapping[str, Any]
    allocatable: Mapping[str, Any]
    resource_version: str = ""
    memo: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)
    """What others work out of the node, once."""

    @classmethod
    def from_object(cls, obj: Any) -> Node:
        node = _mapping(obj, "node")
        meta = _mapping(node.get("metadata"), "metadata")
        status = _mapping(node.get("status"), "status")
        return cls(
            name=_text(meta.get("name"), "metadata.name"),
            labels=texts(meta.get("labels"), "metadata.labels"),
            annotations=texts(meta.get("annotations"), "metadata.annotations"),
            capacity=_mapping(status.get("capacity"), "status.capacity"),
            allocatable=_mapping(status.get("allocatable"), "status.allocatable"),
            resource_version=_text(meta.get("resourceVersion"), "metadata.resourceVersion"),
        )


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace's name, labels and annotations."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @classmethod
    def from_object(cls, obj: Any) -> Namespace:
        meta = _mapping(_mapping(obj, "namespace").get("metadata"), "metadata")
        return cls(
            name=_text(meta.get("name"), "metadata.name"),
            labels=texts(meta.get("labels"), "metadata.labels"),
            annotations=texts(meta.get("annotations"), "metadata.annotations"),
        )


@dataclass(frozen=True, slots=True)
class ScopeRequirement:
    """One entry of `scopeSelector.matchExpressions`, or of `scopes` with the operator Exists."""

    scope: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceQuota:
    """A quota's hard limits and status (amounts as written), its scopes and its annotations."""

    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, str]
    hard: Mapping[str, Any]
    status_hard: Mapping[str, Any]
    used: Mapping[str, Any]
    scopes: tuple[ScopeRequirement, ...] = ()
    resource_version: str = ""

    @classmethod
    def from_object(cls, obj: Any) -> ResourceQuota:
        quota = _mapping(obj, "resourcequota")
        meta = _mapping(quota.get("metadata"), "metadata")
        spec = _mapping(quota.get("spec"), "spec")
        status = _mapping(quota.get("status"), "status")
        return cls(
            namespace=_text(meta.get("namespace"), "metadata.namespace"),
            name=_text(meta.get("name"), "metadata.name"),
            uid=_text(meta.get("uid"), "metadata.uid"),
            annotations=texts(meta.get("annotations"), "metadata.annotations"),
            hard=_mapping(spec.get("hard"), "spec.hard"),
            status_hard=_mapping(status.get("hard"), "status.hard"),
            used=_mapping(status.get("used"), "status.used"),
            scopes=tuple(_scopes(spec)),
            resource_version=_text(meta.get("resourceVersion"), "metadata.resourceVersion"),
        )


def checked_device(obj: Any) -> tuple[str, JSON]:
    """The name of Koordinator's Device object, which is its node's, and the object as it is."""
    device = _mapping(obj, "device")
    meta = _mapping(device.get("metadata"), "metadata")
    for place in ("labels", "annotations"):
        texts(meta.get(place), f"metadata.{place}")
    for index, item in enumerate(_sequence(_mapping(device.get("spec"), "spec").get("devices"), "spec.devices")):
        if item is None:
            raise MalformedObject(f"spec.devices[{index}] must be an object, not null")
        _mapping(item, f"spec.devices[{index}]")
    return _text(meta.get("name"), "metadata.name"), device


def read_containers(spec: JSON) -> Iterator[Container]:
    """The containers of a pod spec, init containers first."""
    for place, default in (("initContainers", ContainerKind.INIT), ("containers", ContainerKind.APP)):
        for index, item in enumerate(_sequence(spec.get(place), f"spec.{place}")):
            path = f"spec.{place}[{index}]"
            if item is None:
                raise MalformedObject(f"{path} must be an object, not null")
            container = _mapping(item, path)
            resources = _mapping(container.get("resources"), f"{path}.resources")
            security = _mapping(container.get("securityContext"), f"{path}.securityContext")
            sidecar = default is ContainerKind.INIT and container.get("restartPolicy") == "Always"
            yield Container(
                name=_text(container.get("name"), f"{path}.name"),
                kind=ContainerKind.SIDECAR if sidecar else default,
                limits=_mapping(resources.get("limits"), f"{path}.resources.limits"),
                requests=_mapping(resources.get("requests"), f"{path}.resources.requests"),
                privileged=security.get("privileged") is True,
            )


def parse_time(text: str) -> float:
    """Unix seconds of an RFC 3339 time; raises ValueError."""
    parsed = datetime.fromisoformat(text)
    if parsed.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return parsed.timestamp()


def format_time(now: float) -> str:
    """Unix seconds as RFC 3339 in UTC with whole seconds, as Kubernetes writes times."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def is_subdomain(text: str) -> bool:
    """Whether `text` is a DNS subdomain as Kubernetes names objects: lower case, digits, `-` and `.`, at most 253
    characters.
    """
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def is_label_value(text: str) -> bool:
    """Whether Kubernetes accepts `text` as a label's value (at most 63 characters)."""
    return _LABEL_VALUE.fullmatch(text) is not None


def _scopes(spec: JSON) -> Iterator[ScopeRequirement]:
    for scope in _sequence(spec.get("scopes"), "spec.scopes"):
        yield ScopeRequirement(_text(scope, "spec.scopes[]"), "Exists")
    selector = _mapping(spec.get("scopeSelector"), "spec.scopeSelector")
    for item in _sequence(selector.get("matchExpressions"), "spec.scopeSelector.matchExpressions"):
        path = "spec.scopeSelector.matchExpressions[]"
        expression = _mapping(item, path)
        yield ScopeRequirement(
            scope=_text(expression.get("scopeName"), f"{path}.scopeName"),
            operator=_text(expression.get("operator"), f"{path}.operator"),
            values=tuple(_text(v, f"{path}.values") for v in _sequence(expression.get("values"), f"{path}.values")),
        )


def _init_finished(status: JSON, containers: Sequence[Container]) -> bool:
    """Whether the ordinary init containers are over for good, judged from the pod alone (docs/spec/quota.md#5)."""
    if status.get("containerStatuses") is None and status.get("initContainerStatuses") is None:
        return False
    for item in _sequence(status.get("containerStatuses"), "status.containerStatuses"):
        app = _mapping(item, "status.containerStatuses[]")
        if (_whole(app.get("restartCount"), "status.containerStatuses[].restartCount") or 0) > 0:
            return True
        for state in (app.get("state"), app.get("lastState")):
            if isinstance(state, Mapping) and ("running" in state or "terminated" in state):
                return True
    ordinary = {container.name for container in containers if container.kind is ContainerKind.INIT}
    done = set()
    for item in _sequence(status.get("initContainerStatuses"), "status.initContainerStatuses"):
        init = _mapping(item, "status.initContainerStatuses[]")
        state = _mapping(init.get("state"), "status.initContainerStatuses[].state")
        terminated = _mapping(state.get("terminated"), "status.initContainerStatuses[].state.terminated")
        if "terminated" in state and terminated.get("exitCode", 0) == 0:
            done.add(_text(init.get("name"), "status.initContainerStatuses[].name"))
    return bool(ordinary) and ordinary <= done


def _has_cross_namespace_terms(spec: JSON) -> bool:
    if spec.get("affinity") is None:
        return False
    affinity = _mapping(spec.get("affinity"), "spec.affinity")
    for kind in ("podAffinity", "podAntiAffinity"):
        path = f"spec.affinity.{kind}"
        rules = _mapping(affinity.get(kind), path)
        required = _sequence(rules.get("requiredDuringSchedulingIgnoredDuringExecution"), f"{path}.required")
        preferred = _sequence(rules.get("preferredDuringSchedulingIgnoredDuringExecution"), f"{path}.preferred")
        terms = [*required, *(_mapping(item, f"{path}.preferred[]").get("podAffinityTerm") for item in preferred)]
        if any(
            isinstance(t, Mapping) and (t.get("namespaces") or t.get("namespaceSelector") is not None) for t in terms
        ):
            return True
    return False


def _positive(amount: Any) -> bool:
    """Whether an amount as written is above zero; one that is no quantity counts as if it were."""
    try:
        return amount is not None and Quantity.parse(amount).value > 0
    except QuantityError:
        return True


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, (dict, Mapping)):
        raise MalformedObject(f"{path} must be an object, not {_kind(value)}")
    return value


def _sequence(value: Any, path: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise MalformedObject(f"{path} must be a list, not {_kind(value)}")
    return value


def _text(value: Any, path: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedObject(f"{path} must be a string, not {_kind(value)}")
    return value


def texts(value: Any, path: str) -> Mapping[str, str]:
    """`value` as a map from string to string (labels, annotations); raises `MalformedObject`."""
    found = _mapping(value, path)
    for key, item in found.items():
        if not isinstance(item, str):
            raise MalformedObject(f"{path}[{key}] must be a string, not {_kind(item)}")
    return found


def _whole(value: Any, path: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise MalformedObject(f"{path} must be an integer, not {_kind(value)}")


def _time(value: Any, path: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, datetime):  # YAML reads an unquoted time as one
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    try:
        return parse_time(_text(value, path))
    except ValueError as error:
        raise MalformedObject(f"{path} must be an RFC 3339 time, not {value!r}") from error


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null" if value is None else type(value).__name__)
