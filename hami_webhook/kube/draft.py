"""A pod under change: reads see the changes made so far, and the patch has the operations for just those."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from msgspec.structs import replace

from hami_webhook.kube.objects import Container, Pod, PodResourceClaim
from hami_webhook.kube.patch import MapDraft, Operation
from hami_webhook.kube.quantity import parse_whole
from hami_webhook.kube.wire import (
    ObjectMeta,
    Resources,
    ReviewedContainer,
    ReviewedPod,
    ReviewedPodSpec,
    convert,
)

_NO_META, _NO_SPEC, _NO_RESOURCES = ObjectMeta(), ReviewedPodSpec(), Resources()


class ContainerDraft:
    """One container under change."""

    listed: Collection[str] = ()
    """The defaulted resources of an earlier pass, as the pod says; anybody may have written that."""

    def __init__(self, path: str, obj: ReviewedContainer, container: Container) -> None:
        self.name = container.name
        self.kind = container.kind
        self._path = path
        self._original = container
        self.written_env = obj.env
        self._resources = obj.resources
        resources = obj.resources or _NO_RESOURCES
        self.limits = MapDraft(f"{path}/resources/limits", resources.limits)
        self.requests = MapDraft(f"{path}/resources/requests", resources.requests)
        self.claims: list[dict[str, str]] = []
        """Those that are added, as `resources.claims` has them."""
        self.defaulted: list[str] = []
        """The resources of which a limit was added where nothing was named."""
        self._with_request: set[str] = set()
        self._env: dict[int, dict[str, str]] = {}
        self._new_env: list[dict[str, str]] = []
        self._gone_env: set[int] = set()

    @property
    def container(self) -> Container:
        """The container with its changes."""
        known = self._original
        if not (self.limits.changes or self.requests.changes):
            return known
        return Container(known.name, known.kind, self.limits.plain(), self.requests.plain(), known.privileged)

    def amount(self, resource: str) -> Any:
        """What is written for `resource` in limits, else in requests."""
        found = self.limits.get(resource)
        return self.requests.get(resource) if found is None else found

    def names_resource(self, resource: str) -> bool:
        return resource in self.limits or resource in self.requests

    @property
    def named(self) -> set[str]:
        """The resources that are named."""
        return self.container.named

    def set_limit(self, resource: str, amount: int) -> None:
        """Write a limit, and the request of that name where there is one (the API server demands that they agree).

        A resource without a name isn't configured: nothing is written.
        """
        if not resource:
            return
        if parse_whole(self.limits.get(resource)) != amount:
            self.limits[resource] = str(amount)
        if resource in self.requests and parse_whole(self.requests[resource]) != amount:
            self.requests[resource] = str(amount)

    def default_limit(self, resource: str, amount: int) -> None:
        """As `set_limit`; where nothing was named, `defaulted` has the resource then."""
        if resource and not self.names_resource(resource):
            self.defaulted.append(resource)
        self.set_limit(resource, amount)
        if resource in self._with_request:
            self.requests[resource] = str(amount)

    def forget_default(self, resource: str, amount: int) -> None:
        """Take out a limit that is `listed`, with the request that API servers make of it, if both are this amount."""
        if resource not in self.listed:
            return
        if parse_whole(self.limits.get(resource)) == amount == parse_whole(self.requests.get(resource, amount)):
            del self.limits[resource]
            if resource in self.requests:
                self._with_request.add(resource)
                del self.requests[resource]

    def set_both(self, resource: str, amount: int) -> None:
        """Write an amount into both limits and requests, as a plain integer."""
        for amounts in (self.limits, self.requests):
            if str(amounts.get(resource)) != str(amount):
                amounts[resource] = str(amount)

    def copy_across(self, resource: str) -> None:
        """Write what limits or requests say of a resource in the other of the two, if that says nothing."""
        for lacking, written in ((self.limits, self.requests), (self.requests, self.limits)):
            if resource not in lacking and resource in written:
                lacking[resource] = written[resource]

    def env_value(self, name: str) -> str | None:
        """What the container itself gives an environment variable; None for nothing, or for a reference."""
        values = [item.value or "" for item in self.written_env or () if item.name == name and item.value_from is None]
        return values[-1] if values else None

    def set_env(self, name: str, value: str, *, once: bool = False) -> None:
        """Set an environment variable: in place where it exists, else at the end.

        A name that occurs repeatedly is set wherever it does, or, with `once`, kept only where it occurs first.
        """
        entry = {"name": name, "value": value}
        found = False
        for index, item in enumerate(self.written_env or ()):
            if item.name == name:
                if found and once:
                    self._gone_env.add(index)
                elif (item.value or "") == value and item.value_from is None:  # an empty value is left out
                    self._env.pop(index, None)
                else:
                    self._env[index] = entry
                found = True
        for added in self._new_env:
            if added["name"] == name:
                found = True
                added["value"] = value
        if not found:
            self._new_env.append(entry)

    def default_env(self, name: str, value: str) -> None:
        """Add an environment variable unless the container has one of that name, whatever its value."""
        names = [*(item.name for item in self.written_env or ()), *(item["name"] for item in self._new_env)]
        if name not in names:
            self._new_env.append({"name": name, "value": value})

    def operations(self) -> Iterator[Operation]:
        written = [(key, each) for key, each in (("limits", self.limits), ("requests", self.requests)) if each.changes]
        if written and self._resources is None:
            yield {"op": "add", "path": f"{self._path}/resources", "value": {key: dict(each) for key, each in written}}
        else:
            for _, each in written:
                yield from each.operations()
        if self.claims:  # of a container that had limits
            claims = self._resources.claims if self._resources is not None else None
            yield from _added(f"{self._path}/resources/claims", claims, self.claims)
        for index, entry in self._env.items():
            if index not in self._gone_env:
                yield {"op": "replace", "path": f"{self._path}/env/{index}", "value": entry}
        for index in sorted(self._gone_env, reverse=True):
            yield {"op": "remove", "path": f"{self._path}/env/{index}"}
        if self._new_env and self.written_env is None:
            yield {"op": "add", "path": f"{self._path}/env", "value": self._new_env}
        else:
            for entry in self._new_env:
                yield {"op": "add", "path": f"{self._path}/env/-", "value": entry}


def pod_in(obj: Any, namespace: str) -> Pod:
    """The pod in a namespace, whatever its JSON says; in its own if `namespace` is empty. Raises `MalformedObject`."""
    pod = Pod.from_object(obj, namespace)
    return replace(pod, namespace=namespace) if namespace and pod.namespace != namespace else pod


class PodDraft:
    """A pod under change, made from its JSON or from what that was decoded into; raises `MalformedObject`.

    `original` is the pod as `pod_in` reads it. `gates` are the names of its scheduling gates.
    """

    def __init__(self, obj: Any, namespace: str = "", *, original: Pod | None = None) -> None:
        self.object = obj = obj if isinstance(obj, ReviewedPod) else convert(obj, ReviewedPod, "pod")
        self.original = pod_in(obj, namespace) if original is None else original
        meta, spec = obj.metadata or _NO_META, obj.spec or _NO_SPEC
        self.annotations = MapDraft("/metadata/annotations", meta.annotations)
        self.labels = MapDraft("/metadata/labels", meta.labels)
        self.scheduler_name = spec.scheduler_name or ""
        self.runtime_class_name = spec.runtime_class_name or ""
        self.active_deadline = self.original.active_deadline
        self.gates = list(self.original.gates)
        self.claims = list(self.original.resource_claims)
        containers = iter(self.original.containers)  # init containers first
        self.containers = [
            ContainerDraft(f"/spec/{field}/{index}", item, next(containers))
            for field, items in (("initContainers", spec.init_containers), ("containers", spec.containers))
            for index, item in enumerate(items or ())
        ]
        self.warnings: list[str] = []
        self._warned: set[str] = set()
        self.messages: list[str] = []

    def reset(self) -> PodDraft:
        """A draft of the same pod without the changes."""
        return PodDraft(self.object, original=self.original)

    @property
    def named(self) -> set[str]:
        """The resources that a container names, in limits or in requests."""
        return set().union(*[container.named for container in self.containers])

    def add_claim(self, name: str, template: str) -> None:
        """Add a claim that is generated from a template."""
        self.claims.append(PodResourceClaim(name, template=template))

    def add_gate(self, name: str) -> None:
        """Add a scheduling gate, unless the pod has it."""
        if name not in self.gates:
            self.gates.append(name)

    def warn(self, text: str) -> None:
        """Warn the user of something that is legal but worth knowing; each text once."""
        if text not in self._warned:
            self._warned.add(text)
            self.warnings.append(text)

    def note(self, text: str) -> None:
        """Say what was done and why, for the log only."""
        self.messages.append(text)

    def result(self) -> Pod:
        """The pod with its changes; with the very containers of the original where none was changed."""
        containers = self.original.containers
        if [each for each in self.containers if each.limits.changes or each.requests.changes]:
            containers = tuple([each.container for each in self.containers])
        return replace(
            self.original,
            annotations=self.annotations.plain() if self.annotations.changes else self.original.annotations,
            labels=self.labels.plain() if self.labels.changes else self.original.labels,
            containers=containers,
            scheduler_name=self.scheduler_name,
            active_deadline=self.active_deadline,
            gates=tuple(self.gates),
            resource_claims=tuple(self.claims),
        )

    def operations(self) -> list[Operation]:
        """The JSON Patch from the original to the draft; empty if nothing changed."""
        spec = self.object.spec or _NO_SPEC
        operations: list[Operation] = []
        written = [each for each in (self.annotations, self.labels) if each.changes]
        if written and self.object.metadata is None:
            operations.append({"op": "add", "path": "/metadata", "value": {}})
        for each in written:
            operations += each.operations()
        if self.runtime_class_name != (spec.runtime_class_name or ""):
            operations.append(_named("/spec/runtimeClassName", spec.runtime_class_name, self.runtime_class_name))
        if self.scheduler_name != (spec.scheduler_name or ""):
            operations.append(_named("/spec/schedulerName", spec.scheduler_name, self.scheduler_name))
        if self.active_deadline != self.original.active_deadline:
            path = "/spec/activeDeadlineSeconds"
            operations.append({"op": "add", "path": path, "value": self.active_deadline})
        if len(self.gates) > len(self.original.gates):
            gates = [{"name": name} for name in self.gates[len(self.original.gates) :]]
            operations += _added("/spec/schedulingGates", spec.scheduling_gates, gates)
        if len(self.claims) > len(self.original.resource_claims):
            added = self.claims[len(self.original.resource_claims) :]
            claims = [{"name": each.name, "resourceClaimTemplateName": each.template} for each in added]
            operations += _added("/spec/resourceClaims", spec.resource_claims, claims)
        for container in self.containers:
            operations += container.operations()
        return operations


def _named(path: str, before: str | None, name: str) -> Operation:
    """The operation that writes a name, where there may be another."""
    return {"op": "add" if before is None else "replace", "path": path, "value": name}


def _added(path: str, before: object, items: list[dict[str, str]]) -> list[Operation]:
    """The operations that add items, one at least, to a list, which may not be there yet."""
    if before is None:
        return [{"op": "add", "path": path, "value": items}]
    return [{"op": "add", "path": f"{path}/-", "value": item} for item in items]
