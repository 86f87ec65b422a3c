"""The port to a cluster: the little of the Kubernetes API that the program needs, and how it fails.

Objects are the API's own JSON, as plain dicts. Every implementation passes the contract suite in `tests/cluster`.
What is returned or handed to a watcher is never changed afterwards by the cluster, and must not be by the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from msgspec import Struct

from hami_webhook.command_error import CommandError
from hami_webhook.kube.event_reasons import EventReason

JSON = dict[str, Any]

LONGEST_SILENCE = 150.0
"""Seconds without an event or bookmark after which a watch is taken for dead: of a quiet kind API servers say nothing
for two minutes.
"""


class Kind(Enum):
    """The kinds that are read and patched, a row for each; the value is the resource's plural name.

    `singular` is what its objects have in `kind`. `watched` kinds are listed and watched by every process with caches,
    in this order; others by who needs them. An `optional` one exists only where its API is served.
    """

    NAMESPACES = ("namespaces", "Namespace", "v1", False, True)
    NODES = ("nodes", "Node", "v1", False, True)
    RESOURCE_QUOTAS = ("resourcequotas", "ResourceQuota", "v1", True, True)
    ACCELERATOR_QUOTAS = ("acceleratorquotas", "AcceleratorQuota", "hami.io/v1alpha1", False, True, True)
    PODS = ("pods", "Pod", "v1", True, True)
    DEVICES = ("devices", "Device", "scheduling.koordinator.sh/v1alpha1", False, False, True)
    RESOURCE_CLAIMS = ("resourceclaims", "ResourceClaim", "resource.k8s.io/v1", True, False, True)
    RESOURCE_CLAIM_TEMPLATES = (
        "resourceclaimtemplates",
        "ResourceClaimTemplate",
        "resource.k8s.io/v1",
        True,
        False,
        True,
    )
    RESOURCE_SLICES = ("resourceslices", "ResourceSlice", "resource.k8s.io/v1", False, False, True)
    DEVICE_CLASSES = ("deviceclasses", "DeviceClass", "resource.k8s.io/v1", False, False, True)
    POD_DISRUPTION_BUDGETS = ("poddisruptionbudgets", "PodDisruptionBudget", "policy/v1", True)
    PRIORITY_CLASSES = ("priorityclasses", "PriorityClass", "scheduling.k8s.io/v1")
    SECRETS = ("secrets", "Secret", "v1", True)
    MUTATING_WEBHOOKS = (
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        "admissionregistration.k8s.io/v1",
    )
    VALIDATING_WEBHOOKS = (
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        "admissionregistration.k8s.io/v1",
    )

    __hash__ = object.__hash__  # Enum's own is a call in Python
    singular: str
    api_version: str
    namespaced: bool
    watched: bool
    optional: bool

    def __new__(
        cls,
        plural: str,
        singular: str,
        api_version: str,
        namespaced: bool = False,
        watched: bool = False,
        optional: bool = False,
    ) -> Kind:
        kind = object.__new__(cls)
        kind._value_ = plural
        kind.singular, kind.api_version = singular, api_version
        kind.namespaced, kind.watched, kind.optional = namespaced, watched, optional
        return kind

    @property
    def qualified(self) -> str:
        """The plural name with its API group, as messages of the API server have it."""
        group, slash, _ = self.api_version.partition("/")
        return f"{self.value}.{group}" if slash else self.value

    @property
    def prefix(self) -> str:
        """The path of its version at the API server."""
        return f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"


class ClusterError(CommandError):
    """The cluster refused or failed; the text says what it said."""


class NotFound(ClusterError):
    """404: no such object."""


class AlreadyExists(ClusterError):
    """409 on create: the name is taken."""


class Conflict(ClusterError):
    """409: the object has another resourceVersion than the one the write was made for, or a pod is bound already."""


class Gone(ClusterError):
    """410: the resourceVersion is too old to watch from; list again."""


class Invalid(ClusterError):
    """422: the object as it would be isn't legal."""


class Forbidden(ClusterError):
    """403: these credentials may not do that."""

    absent = True


class EvictionRefused(ClusterError):
    """429 of an eviction: a PodDisruptionBudget doesn't allow it now."""


class Unavailable(ClusterError):
    """No answer, or a 429 or 5xx one: whether a write took effect is unknown."""


class WatchType(Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class WatchEvent(Struct, frozen=True):
    """One change. A deletion carries the object's last state; a bookmark only `metadata.resourceVersion`."""

    type: WatchType
    object: JSON


class Listing(Struct, frozen=True):
    """All objects of a kind at one resourceVersion."""

    items: list[JSON]
    resource_version: str


@dataclass(frozen=True, slots=True)
class EventNote:
    """An event to record on an object: `type` is Normal or Warning. It happened `times`."""

    kind: str
    namespace: str
    name: str
    uid: str
    type: str
    reason: EventReason
    message: str
    times: int = field(default=1, compare=False)


class Cluster(Protocol):
    """A Kubernetes API server, or the embedded one. Every call may raise `ClusterError`."""

    async def get(self, kind: Kind, name: str, namespace: str = "") -> JSON:
        """The current object (a live, linearizable read)."""
        ...

    async def list(self, kind: Kind, namespace: str = "", *, node: str = "") -> Listing:
        """All objects of the kind (in a namespace, or everywhere), as they are now: one consistent snapshot.

        `node`: of pods, only those that are bound to it.
        """
        ...

    def watch(self, kind: Kind, resource_version: str, *, node: str = "") -> AsyncIterator[WatchEvent]:
        """What changed after `resource_version`, in order, for ever; raises `Gone` if that is too long ago.

        `node`: of pods, only those that are bound to it.
        """
        ...

    async def create(self, kind: Kind, obj: JSON) -> JSON:
        """Create an object; `AlreadyExists` if the name is taken."""
        ...

    async def patch(self, kind: Kind, name: str, patch: JSON, namespace: str = "") -> JSON:
        """Merge-patch all but the status; `metadata.resourceVersion` in the patch makes it a compare-and-swap."""
        ...

    async def patch_status(self, kind: Kind, name: str, patch: JSON, namespace: str = "") -> JSON:
        """Merge-patch metadata and status through `/status`; the spec stays. The resourceVersion is as in `patch`."""
        ...

    async def bind(
        self, namespace: str, pod: str, uid: str, node: str, *, resource_version: str = "", metadata: JSON | None = None
    ) -> None:
        """Bind a pod to a node; `annotations` and `labels` of `metadata` are merged into the pod in the same write.

        `Conflict` if the pod is bound, or has another UID or, where one is given, another resourceVersion.
        """
        ...

    async def delete_pod(self, namespace: str, pod: str, uid: str) -> None:
        """Delete a pod with its own grace period: `Conflict` if its UID is another."""
        ...

    async def delete_claim_template(self, namespace: str, name: str, uid: str) -> None:
        """Delete a ResourceClaimTemplate: `Conflict` if its UID is another."""
        ...

    async def evict_pod(self, namespace: str, pod: str, uid: str, grace: int | None = None) -> None:
        """Evict a pod through the eviction API, with `grace` seconds, by default its own grace period.

        `EvictionRefused` if a PodDisruptionBudget forbids it, `Conflict` if its UID is another.
        """
        ...

    async def record_event(self, note: EventNote) -> None:
        """Record an event; the implementation aggregates repeats."""
        ...

    async def get_lease(self, namespace: str, name: str) -> JSON:
        """A coordination.k8s.io/v1 Lease."""
        ...

    async def create_lease(self, namespace: str, lease: JSON) -> JSON:
        """Create a Lease; `AlreadyExists` if somebody was first."""
        ...

    async def replace_lease(self, namespace: str, lease: JSON) -> JSON:
        """Replace a Lease; `Conflict` unless its `metadata.resourceVersion` is the current one."""
        ...
