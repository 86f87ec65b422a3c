"""The pods that are made of an object of any kind, by the table of `workload_kinds` (docs/spec/cli.md#workloads)."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from hami_webhook.cluster.api import JSON
from hami_webhook.cluster.loading import LoadedObject, LoadError, wrong
from hami_webhook.kube.message_text import shown
from hami_webhook.simulate.workload_kinds import HERE, Count, PodSource, WorkloadKind, steps_of

MOST_PODS = 100_000
"""Pods of one object."""

_POD_SPEC = frozenset(
    (
        *("activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "dnsConfig", "dnsPolicy"),
        *("containers", "enableServiceLinks", "hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostname"),
        *("imagePullSecrets", "initContainers", "nodeName", "nodeSelector", "overhead", "preemptionPolicy", "priority"),
        *("priorityClassName", "readinessGates", "resourceClaims", "resources", "restartPolicy", "runtimeClassName"),
        *("schedulerName", "schedulingGates", "securityContext", "serviceAccountName", "subdomain"),
        *("terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "volumes"),
    )
)
_CONTAINER = frozenset(
    (
        *("args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name"),
        *("ports", "readinessProbe", "restartPolicy", "securityContext", "startupProbe", "volumeDevices"),
        *("volumeMounts", "workingDir"),
    )
)
_DEFAULTS = ("affinity", "nodeSelector", "priorityClassName", "schedulerName", "tolerations")
"""What an object may say for all of its pods."""
_NO_WORD = re.compile(r"[^a-z0-9]+")
_LONGEST_LABEL = 40
_MOST_LOOKED_AT = 10_000


def pods_of_workload(workload: LoadedObject, kind: WorkloadKind) -> list[JSON] | None:
    """The pods of an object, unscheduled: `<object>-0` and on, or `<object>-<label>-0` where it has several kinds of
    them. None where it has no pod template. Raises `LoadError`.

    Those of one template share their spec, which must not be changed in place.
    """
    found = []
    for source in kind.sources:
        for at, path, label in _places(workload, source):
            count = _count(workload, source, at, path)
            template = _template(workload, source, kind, at, path)
            if template is not None:
                found.append((label or source.label, template, count))
    if not found:
        return None
    if sum(count for *_, count in found) > MOST_PODS:
        raise _fault(workload, f"makes more than {MOST_PODS} pods")
    owner = {
        "apiVersion": workload.object["apiVersion"],
        "kind": workload.kind,
        "name": workload.name,
        "uid": workload.object["metadata"].get("uid", ""),
        "controller": True,
        "blockOwnerDeletion": True,
    }
    namespace = workload.object["metadata"].get("namespace")
    given = {"namespace": namespace} if namespace else {}
    numbers: Counter[str] = Counter()
    pods = []
    for label, (meta, spec), count in found:
        word = _NO_WORD.sub("-", label.lower()[:_LONGEST_LABEL]).strip("-")
        prefix = f"{workload.name}-{word}" if word else workload.name
        for _ in range(count):
            name = f"{prefix}-{numbers[prefix]}"
            numbers[prefix] += 1
            metadata = {"name": name, **given, **meta, "ownerReferences": [owner]}
            pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return pods


def path_of_template(obj: JSON) -> str:
    """Where in an object something looks like a pod's spec, such as `spec.worker.template.spec`; empty for nowhere."""
    level: deque[tuple[Any, str]] = deque([(obj, "")])
    for _ in range(_MOST_LOOKED_AT):
        if not level:
            break
        value, path = level.popleft()
        if isinstance(value, dict):
            containers = value.get("containers")
            if isinstance(containers, list) and containers and isinstance(containers[0], dict):
                return path
            level += [(each, f"{path}.{key}" if path else str(key)) for key, each in value.items()]
        elif isinstance(value, list):
            level += [(each, f"{path}[{index}]") for index, each in enumerate(value)]
    return ""


def _places(workload: LoadedObject, source: PodSource) -> Iterator[tuple[JSON, str, str]]:
    """The objects that `at` leads to, each with its path and, where there may be several, its own name."""
    places: list[tuple[Any, str, str]] = [(workload.object, "", "")]
    for step in steps_of(source.at):
        places = [each for place in places for each in _next(workload, source, place, step)]
    for at, path, label in places:
        yield _object(workload, at, path), path, label


def _next(
    workload: LoadedObject, source: PodSource, place: tuple[Any, str, str], step: str
) -> Iterator[tuple[Any, str, str]]:
    value, path, label = place
    if step == "[]":
        if not isinstance(value, list):
            raise _fault(workload, wrong(path, "a list", value))
        for index, item in enumerate(value):
            name = (item.get("name") or item.get("groupName")) if isinstance(item, dict) else None
            yield item, f"{path}[{index}]", name if isinstance(name, str) else str(index)
        return
    value = _object(workload, value, path)
    if step == "*":
        for key, item in value.items():
            yield item, f"{path}.{key}", str(key)
        return
    path = f"{path}.{step}".removeprefix(".")
    found = value.get(step)
    if found is not None:
        yield found, path, label
    elif source.required:
        raise _fault(workload, wrong(path, "an object", None))


def _template(
    workload: LoadedObject, source: PodSource, kind: WorkloadKind, at: JSON, path: str
) -> tuple[JSON, JSON] | None:
    """The metadata and the spec of the pods that `at` describes; None if it describes none."""
    meta, spec = _written(workload, source, at, path)
    if source.container:
        containers = [
            *_objects((spec or {}).get("containers")),
            *(made for field in source.containers for made in _containers(source, at, field, spec)),
        ]
        if not containers:
            return None
        if source.gpu:
            containers[0] = _with_gpu(containers[0], _at(at, source.gpu))
        spec = {**(spec or {}), "containers": [_named(each, source.container, n) for n, each in enumerate(containers)]}
    if spec is None or (source.pod_spec and not spec.get("containers")):
        return None
    defaults = _at(workload.object, source.defaults) if source.defaults else None
    said = {key: defaults[key] for key in _DEFAULTS if defaults.get(key)} if isinstance(defaults, dict) else {}
    if kind.scheduler_name:
        said = {"schedulerName": kind.scheduler_name, **said}
    return meta, {**said, **spec} if said else spec


def _written(workload: LoadedObject, source: PodSource, at: JSON, path: str) -> tuple[JSON, JSON | None]:
    """The metadata and the spec as they are written, None for no spec."""
    spec = {key: value for key, value in at.items() if key in _POD_SPEC} if source.pod_spec else None
    meta = at if source.pod_spec and "metadata" not in at else at.get("metadata") if source.pod_spec else {}
    field = next((each for each in source.template if _at(at, each) is not None), "")
    if field:
        place = f"{path}.{field}"
        template = _object(workload, _at(at, field), place)
        inner = _object(workload, template.get("spec"), f"{place}.spec")
        meta = _object(workload, template.get("metadata") or {}, f"{place}.metadata")
        spec = {**spec, **inner} if spec else inner
    elif source.required:
        raise _fault(workload, wrong(f"{path}.{source.template[0]}", "an object", None))
    meta = meta if isinstance(meta, dict) else {}
    return {key: meta[key] for key in ("labels", "annotations") if meta.get(key)}, spec


def _object(workload: LoadedObject, value: Any, path: str) -> JSON:
    if not isinstance(value, dict):
        raise _fault(workload, wrong(path, "an object", value))
    return value


def _containers(source: PodSource, at: JSON, field: str, spec: JSON | None) -> Iterator[JSON]:
    """The containers that a field is; where it's `at` itself, none if the pods have some already."""
    if field == HERE:
        known = source.gpu or source.resources in at
        written = [at] if known and not (spec or {}).get("containers") else []
    else:
        found = _at(at, field)
        written = [found] if isinstance(found, dict) else _objects(found)
    for each in written:
        made = {key: value for key, value in each.items() if key in _CONTAINER}
        if source.resources in each:
            made["resources"] = each[source.resources]
        yield made


def _with_gpu(container: JSON, gpu: Any) -> JSON:
    """The container with the resource that another field names."""
    if not isinstance(gpu, dict) or not isinstance(gpu.get("name"), str) or "quantity" not in gpu:
        return container
    resources = container.get("resources")
    resources = resources if isinstance(resources, dict) else {}
    limits = resources.get("limits")
    limits = limits if isinstance(limits, dict) else {}
    return {**container, "resources": {**resources, "limits": {**limits, gpu["name"]: gpu["quantity"]}}}


def _named(container: JSON, name: str, number: int) -> JSON:
    return container if container.get("name") else {"name": f"{name}-{number}" if number else name, **container}


def _count(workload: LoadedObject, source: PodSource, at: JSON, path: str) -> int:
    """How many pods there are of what `at` describes."""
    count = 1
    for each in source.counts:
        count *= _factor(workload, each, at, f"{path}.{each.field}")
    return count


def _factor(workload: LoadedObject, count: Count, at: JSON, path: str) -> int:
    value = _at(at, count.field)
    if value is None:
        value = count.default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _fault(workload, wrong(path, "a whole number ≥ 0", value))
    if value > MOST_PODS:
        raise _fault(workload, f"{path} must be at most {MOST_PODS}, not {value}")
    return max(0, value - count.less)


def _objects(value: Any) -> list[JSON]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _at(obj: Mapping[str, Any], field: str) -> Any:
    """The value of a field, None if it isn't there."""
    value: Any = obj
    for step in field.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _fault(workload: LoadedObject, problem: str) -> LoadError:
    return LoadError(f"{workload.where}: {workload.kind} {shown(workload.name)}: {problem}")
