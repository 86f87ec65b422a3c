"""A Kubernetes API server's storage in memory: versions, conflicts, watches, for the simulator, the demo and tests.

`MemoryCluster` is the port of `cluster/api.py` plus what an administrator and a kubelet do (`create`, `replace`,
`delete`, `set_phase`). It lives in one event loop at a time and isn't safe across threads. Between two awaits of a
caller nothing changes: every operation takes effect at once, apart from the awaits of `pause`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hami_webhook.cluster.api import (
    JSON,
    AlreadyExists,
    Conflict,
    EventNote,
    EvictionRefused,
    Invalid,
    Kind,
    Listing,
    NotFound,
    Unavailable,
    WatchEvent,
    WatchType,
)
from hami_webhook.cluster.journal import Journal
from hami_webhook.cluster.quota_amounts import BadAmount, canonical
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.objects import Pod, format_time, parse_time
from hami_webhook.kube.patch import merge_patch

Key = tuple[str, str]
"""Namespace ("" if the kind has none) and name."""

_LEASES = "leases.coordination.k8s.io"
_MAX_ANNOTATIONS = 256 * 1024
_GRACE = 30
"""Seconds of grace of a pod that says nothing."""
_SERVER_FIELDS = ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generateName")
_POD_SPEC_MUTABLE = (
    "activeDeadlineSeconds",
    "affinity",
    "containers",
    "ephemeralContainers",
    "initContainers",
    "nodeSelector",
    "schedulingGates",
    "terminationGracePeriodSeconds",
    "tolerations",
)


class RecordedEvent(Struct, frozen=True):
    """An event and how often it was recorded; times are Unix seconds."""

    note: EventNote
    count: int
    first: float
    last: float


class MemoryCluster:
    """The embedded API server: see `Cluster` for the port's methods.

    `clock` gives Unix seconds. `history` is how many events of a kind a watch can reach back. `pause(step)` is awaited
    before an operation of the port takes effect (`"patch:before"`) and, for writes, between effect and return
    (`"patch:after"`); what it raises, the caller gets. `new_uid` makes UIDs; by default they count up.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        history: int = 10_000,
        pause: Callable[[str], Awaitable[None]] | None = None,
        new_uid: Callable[[], str] | None = None,
    ) -> None:
        counter = itertools.count(1)
        self.pause = pause
        self._clock = clock
        self._new_uid = new_uid or (lambda: f"00000000-0000-4000-8000-{next(counter):012x}")
        self._suffixes = itertools.count()
        self._version = 0
        self._bookmark = 0
        self._epoch = 0
        self._objects: dict[Kind, dict[Key, JSON]] = {kind: {} for kind in Kind}
        self._journals = {kind: Journal(history) for kind in Kind}
        self._leases: dict[Key, JSON] = {}
        self._events: dict[EventNote, RecordedEvent] = {}
        self._waiting: set[asyncio.Event] = set()

    # The port

    async def get(self, kind: Kind, name: str, namespace: str = "") -> JSON:
        await self._pause("get:before")
        return self._found(kind, _key(kind, name, namespace))

    async def list(self, kind: Kind, namespace: str = "", *, node: str = "") -> Listing:
        await self._pause("list:before")
        items = self.peek_all(kind, namespace)
        return Listing([item for item in items if _is_bound_to(item, node)], str(self._version))

    def watch(self, kind: Kind, resource_version: str, *, node: str = "") -> AsyncIterator[WatchEvent]:
        if not (resource_version.isascii() and resource_version.isdigit()):
            raise Invalid(f"invalid resource version {resource_version!r}")
        return self._watch(kind, int(resource_version), self._epoch, node)

    async def patch(self, kind: Kind, name: str, patch: JSON, namespace: str = "") -> JSON:
        await self._pause("patch:before")
        changed = self._patch(kind, _key(kind, name, namespace), patch, kept="status")
        await self._pause("patch:after")
        return changed

    async def patch_status(self, kind: Kind, name: str, patch: JSON, namespace: str = "") -> JSON:
        await self._pause("patch_status:before")
        if kind is Kind.ACCELERATOR_QUOTAS:  # of a custom resource /status keeps the status alone
            meta = patch.get("metadata") or {}
            patch = {**patch, "metadata": {key: meta[key] for key in ("resourceVersion",) if key in meta}}
        changed = self._patch(kind, _key(kind, name, namespace), patch, kept="spec")
        await self._pause("patch_status:after")
        return changed

    async def bind(
        self, namespace: str, pod: str, uid: str, node: str, *, resource_version: str = "", metadata: JSON | None = None
    ) -> None:
        await self._pause("bind:before")
        self._bind((namespace, pod), node, uid, resource_version, metadata or {})
        await self._pause("bind:after")

    async def delete_pod(self, namespace: str, pod: str, uid: str) -> None:
        await self._pause("delete_pod:before")
        await self._delete_pod((namespace, pod), uid, None)
        await self._pause("delete_pod:after")

    async def delete_claim_template(self, namespace: str, name: str, uid: str) -> None:
        self._with_uid(Kind.RESOURCE_CLAIM_TEMPLATES, (namespace, name), uid)
        await self.delete(Kind.RESOURCE_CLAIM_TEMPLATES, name, namespace)

    async def evict_pod(self, namespace: str, pod: str, uid: str, grace: int | None = None) -> None:
        await self._pause("evict_pod:before")
        found = Pod.from_object(self._found(Kind.PODS, (namespace, pod)))
        for obj in self.peek_all(Kind.POD_DISRUPTION_BUDGETS, namespace) if found.phase == "Running" else ():
            budget = PodDisruptionBudget.from_object(obj)
            if budget.covers(found):
                if budget.allowed < 1:
                    raise EvictionRefused("Cannot evict pod as it would violate the pod's disruption budget.")
                left = {"status": {"disruptionsAllowed": budget.allowed - 1}}
                self._patch(Kind.POD_DISRUPTION_BUDGETS, (namespace, budget.name), left, kept="spec")
        await self._delete_pod((namespace, pod), uid, grace)
        await self._pause("evict_pod:after")

    async def _delete_pod(self, key: Key, uid: str, grace: int | None) -> None:
        spec = self._with_uid(Kind.PODS, key, uid).get("spec") or {}
        own = spec.get("terminationGracePeriodSeconds", _GRACE) if grace is None else grace
        await self.delete(Kind.PODS, key[1], key[0], own if spec.get("nodeName") else 0)

    def _with_uid(self, kind: Kind, key: Key, uid: str) -> JSON:
        if uid != (has := self._found(kind, key)["metadata"]["uid"]):
            why = f"the UID in the precondition ({uid}) does not match the UID in record ({has})"
            raise Conflict(f'Operation cannot be fulfilled on {kind.singular} "{key[1]}": {why}')
        return self._found(kind, key)

    async def record_event(self, note: EventNote) -> None:
        await self._pause("record_event:before")
        now = self._clock()
        known = self._events.get(note)
        count, first = (known.count, known.first) if known else (0, now)
        self._events[note] = RecordedEvent(note, count + note.times, first, now)
        await self._pause("record_event:after")

    async def get_lease(self, namespace: str, name: str) -> JSON:
        await self._pause("get_lease:before")
        return self._found_lease(namespace, name)

    async def create_lease(self, namespace: str, lease: JSON) -> JSON:
        await self._pause("create_lease:before")
        name = lease["metadata"]["name"]
        self._found(Kind.NAMESPACES, ("", namespace))
        if (namespace, name) in self._leases:
            raise AlreadyExists(f'{_LEASES} "{name}" already exists')
        stamped = self._stamped(lease, {"namespace": namespace, "uid": self._new_uid()})
        self._leases[namespace, name] = stamped
        await self._pause("create_lease:after")
        return stamped

    async def replace_lease(self, namespace: str, lease: JSON) -> JSON:
        await self._pause("replace_lease:before")
        meta = lease["metadata"]
        name = meta["name"]
        current = self._found_lease(namespace, name)["metadata"]
        if not meta.get("resourceVersion"):
            raise Invalid(f'{_LEASES} "{name}" is invalid: metadata.resourceVersion: must be specified for an update')
        _check_version(_LEASES, name, meta["resourceVersion"], current)
        stamped = self._stamped(lease, {field: current[field] for field in ("namespace", "uid", "creationTimestamp")})
        self._leases[namespace, name] = stamped
        await self._pause("replace_lease:after")
        return stamped

    # The administrator's and the kubelet's side

    async def create(self, kind: Kind, obj: JSON) -> JSON:
        """Create an object with the spec and status given, as stored.

        A namespaced object without a namespace goes to `default`; its namespace must exist. `generateName` works. UID
        and creation time are assigned unless the object has them (so that a dump of a cluster keeps its own).
        """
        return await self.adopt(kind, _copy(obj))

    async def adopt(self, kind: Kind, obj: JSON) -> JSON:
        """As `create`, of an object in which nobody changes anything any more."""
        new = {**obj, "metadata": (meta := dict(obj.get("metadata") or {}))}
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = f"{meta['generateName']}{next(self._suffixes):05d}"
        if kind.namespaced:
            meta["namespace"] = meta.get("namespace") or "default"
            self._found(Kind.NAMESPACES, ("", meta["namespace"]))
        key = _key(kind, _name(kind, meta), meta.get("namespace", ""))
        if key in self._objects[kind]:
            raise AlreadyExists(f'{kind.qualified} "{key[1]}" already exists')
        meta["uid"] = meta.get("uid") or self._new_uid()
        meta["creationTimestamp"] = meta.get("creationTimestamp") or format_time(self._clock())
        new = _normal(kind, key, {"apiVersion": "v1", "kind": kind.singular, **new})
        if kind is Kind.PODS:
            new["status"] = {"phase": "Pending", **(new.get("status") or {})}
        return self._store(kind, key, new, WatchType.ADDED)

    def put(self, kind: Kind, obj: JSON, *, gone: bool = False) -> None:
        """An object as another API server has it, in place of that of its name; `gone`: as it had it last."""
        key = _key(kind, obj["metadata"]["name"], obj["metadata"].get("namespace", ""))
        self._objects[kind][key] = obj
        if gone:
            del self._objects[kind][key]

    async def ensure_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> JSON:
        """The namespace `name`, created with `labels` if there is none."""
        existing = self.peek(Kind.NAMESPACES, name)
        if existing is not None:
            return existing
        return await self.create(Kind.NAMESPACES, {"metadata": {"name": name, "labels": dict(labels or {})}})

    async def replace(self, kind: Kind, obj: JSON) -> JSON:
        """Replace an object whole, spec and status; its `metadata.resourceVersion`, if given, must be the current."""
        meta = obj.get("metadata") or {}
        key = _key(kind, _name(kind, meta), meta.get("namespace") or "default")
        old = self._found(kind, key)
        return self._update(kind, key, old, {"apiVersion": "v1", "kind": kind.singular, **_copy(obj)})

    async def delete(self, kind: Kind, name: str, namespace: str = "", grace: int | None = None) -> None:
        """Delete an object; a namespace takes its objects with it.

        With `grace` seconds above 0 a pod stays, under deletion, until it is deleted again without grace.
        A later, shorter grace brings the deadline forward.
        """
        key = _key(kind, name, namespace)
        old = self._found(kind, key)
        if kind is Kind.PODS and grace:
            self._condemn(key, old, grace)
            return
        if kind is Kind.NAMESPACES:
            for inner in (kind for kind in Kind if kind.namespaced):
                for inner_key in sorted(key for key in self._objects[inner] if key[0] == name):
                    self._remove(inner, inner_key)
            self._leases = {key: lease for key, lease in self._leases.items() if key[0] != name}
        self._remove(kind, key)

    async def set_phase(self, namespace: str, pod: str, phase: str, **status: Any) -> JSON:
        """What a kubelet reports: the pod's phase and, if given, more fields of its status."""
        old = self._found(Kind.PODS, key := (namespace, pod))
        new_status = {**(old.get("status") or {}), **_copy(status), "phase": phase}
        return self._update(Kind.PODS, key, old, {**old, "status": new_status})

    # What a test looks at or causes, without `pause`

    @property
    def events(self) -> Sequence[RecordedEvent]:
        """What `record_event` was given, repeats counted, in order of first appearance."""
        return [*self._events.values()]

    def peek(self, kind: Kind, name: str, namespace: str = "") -> JSON | None:
        """The current object, or None."""
        return self._objects[kind].get(_key(kind, name, namespace))

    def peek_all(self, kind: Kind, namespace: str = "") -> Sequence[JSON]:
        """The objects as they are now, by namespace and name."""
        stored = self._objects[kind]
        return [stored[key] for key in sorted(stored) if not namespace or key[0] == namespace]

    def bookmark(self) -> None:
        """Send every watch that has nothing else to say a bookmark at the current version."""
        self._bookmark = self._version
        self._wake_watches()

    def close_watches(self) -> None:
        """Break all running watches: they raise `Unavailable`."""
        self._epoch += 1
        self._wake_watches()

    # Inside: none of this awaits, but for a watch that waits

    async def _pause(self, step: str) -> None:
        if self.pause is not None:
            await self.pause(step)

    async def _watch(self, kind: Kind, version: int, epoch: int, node: str) -> AsyncIterator[WatchEvent]:
        await self._pause("watch:before")
        journal = self._journals[kind]
        while True:
            if epoch != self._epoch:
                raise Unavailable("the watch was closed")
            found = journal.after(version)
            if found is not None:
                version, event = found
                if _is_bound_to(event.object, node):
                    yield event
            elif self._bookmark > version:
                version = self._bookmark
                meta = {"resourceVersion": str(version)}
                yield WatchEvent(WatchType.BOOKMARK, {"apiVersion": "v1", "kind": kind.singular, "metadata": meta})
            else:
                changed = asyncio.Event()
                self._waiting.add(changed)
                try:
                    await changed.wait()
                finally:
                    self._waiting.discard(changed)

    def _wake_watches(self) -> None:
        for changed in self._waiting:
            changed.set()

    def _found(self, kind: Kind, key: Key) -> JSON:
        found = self._objects[kind].get(key)
        if found is None:
            raise NotFound(f'{kind.qualified} "{key[1]}" not found')
        return found

    def _found_lease(self, namespace: str, name: str) -> JSON:
        found = self._leases.get((namespace, name))
        if found is None:
            raise NotFound(f'{_LEASES} "{name}" not found')
        return found

    def _patch(self, kind: Kind, key: Key, patch: JSON, kept: str) -> JSON:
        old = self._found(kind, key)
        new = merge_patch(old, _copy(patch))
        for field in (kept, "apiVersion", "kind"):
            new.pop(field, None)
            if field in old:
                new[field] = old[field]
        return self._update(kind, key, old, new)

    def _update(self, kind: Kind, key: Key, old: JSON, new: JSON) -> JSON:
        """Store `new` in place of `old` if that is legal and changes something; what is then stored."""
        was, meta = old["metadata"], new.get("metadata")
        if not isinstance(meta, dict):
            raise _invalid(kind, key, "metadata", meta, "must be an object")
        _check_version(kind.qualified, key[1], meta.get("resourceVersion"), was)
        for field in ("name", "namespace", "uid"):
            if meta.get(field) and meta[field] != was.get(field):
                raise _invalid(kind, key, f"metadata.{field}", meta[field], "field is immutable")
        fixed = {field: was[field] for field in (*_SERVER_FIELDS, "name", "namespace", "uid") if field in was}
        rest = {field: value for field, value in meta.items() if field not in _SERVER_FIELDS}
        new = {**new, "metadata": {**rest, **fixed, "resourceVersion": was["resourceVersion"]}}
        if kind is Kind.PODS and _fixed_spec(new) != _fixed_spec(old):
            raise Invalid(
                f'Pod "{key[1]}" is invalid: spec: Forbidden: pod updates may not change fields like nodeName'
            )
        new = _normal(kind, key, new)
        return old if new == old else self._store(kind, key, new, WatchType.MODIFIED)

    def _bind(self, key: Key, node: str, uid: str, version: str, more: JSON) -> None:
        old, name = self._found(Kind.PODS, key), key[1]
        meta, spec, status = old["metadata"], old.get("spec") or {}, old.get("status") or {}
        no = f'Operation cannot be fulfilled on pods/binding "{name}":'
        for of, want, has in ("UID", uid, meta["uid"]), ("ResourceVersion", version, meta["resourceVersion"]):
            if want not in ("", has):
                raise Conflict(f"{no} Precondition failed: {of} in precondition: {want}, {of} in object meta: {has}")
        if "deletionTimestamp" in meta:
            raise Conflict(f"{no} pod {name} is being deleted, cannot be assigned to a host")
        if spec.get("nodeName"):
            raise Conflict(f'{no} pod {name} is already assigned to node "{spec["nodeName"]}"')
        if spec.get("schedulingGates"):
            raise Conflict(f"{no} pod {name} has non-empty .spec.schedulingGates")
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_time(self._clock())}
        others = [item for item in status.get("conditions") or () if item.get("type") != "PodScheduled"]
        meta = {**meta, **{on: {**(meta.get(on) or {}), **(more.get(on) or {})} for on in ("annotations", "labels")}}
        bound = {"spec": {**spec, "nodeName": node}, "status": {**status, "conditions": [*others, scheduled]}}
        self._store(Kind.PODS, key, _normal(Kind.PODS, key, {**old, "metadata": meta, **bound}), WatchType.MODIFIED)

    def _condemn(self, key: Key, old: JSON, grace: int) -> None:
        meta = old["metadata"]
        deadline = self._clock() + grace
        if "deletionTimestamp" in meta:
            before = meta.get("deletionGracePeriodSeconds", 0)
            if grace >= before:
                return
            deadline = parse_time(meta["deletionTimestamp"]) - before + grace
        deletion = {"deletionTimestamp": format_time(deadline), "deletionGracePeriodSeconds": grace}
        self._store(Kind.PODS, key, {**old, "metadata": {**meta, **deletion}}, WatchType.MODIFIED)

    def _store(self, kind: Kind, key: Key, new: JSON, type_: WatchType) -> JSON:
        stored = self._versioned(new)
        self._objects[kind][key] = stored
        self._dispatch(kind, WatchEvent(type_, stored))
        return stored

    def _remove(self, kind: Kind, key: Key) -> None:
        self._dispatch(kind, WatchEvent(WatchType.DELETED, self._versioned(self._objects[kind].pop(key))))

    def _dispatch(self, kind: Kind, event: WatchEvent) -> None:
        self._journals[kind].append(self._version, event)
        self._wake_watches()

    def _versioned(self, obj: JSON) -> JSON:
        self._version += 1
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}

    def _stamped(self, lease: JSON, meta: JSON) -> JSON:
        new = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **_copy(lease)}
        created = {"creationTimestamp": format_time(self._clock())}
        return self._versioned({**new, "metadata": {**created, **new["metadata"], **meta}})


def _is_bound_to(obj: JSON, node: str) -> bool:
    """Whether a pod is on the node; anything is on the node without a name."""
    return not node or obj["spec"].get("nodeName") == node


def _key(kind: Kind, name: str, namespace: str) -> Key:
    return (namespace if kind.namespaced else "", name)


def _name(kind: Kind, meta: JSON) -> str:
    name = meta.get("name")
    if not isinstance(name, str) or not name:
        raise Invalid(f'{kind.singular} "" is invalid: metadata.name: Required value: name or generateName is required')
    return name


def _copy(value: Any) -> Any:
    """A deep copy of JSON."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value


def _check_version(resource: str, name: str, wanted: object, current: JSON) -> None:
    if wanted and wanted != current["resourceVersion"]:
        raise Conflict(
            f'Operation cannot be fulfilled on {resource} "{name}": the object has been modified; '
            "please apply your changes to the latest version and try again"
        )


def _invalid(kind: Kind, key: Key, path: str, value: object, reason: str) -> Invalid:
    return Invalid(f'{kind.singular} "{key[1]}" is invalid: {path}: Invalid value: {value!r}: {reason}')


def _fixed_spec(pod: JSON) -> JSON:
    """The fields of a pod's spec that no update may change."""
    return {field: value for field, value in (pod.get("spec") or {}).items() if field not in _POD_SPEC_MUTABLE}


def _normal(kind: Kind, key: Key, obj: JSON) -> JSON:
    """`obj` as the API server would store it: validated, amounts canonical, empty maps left out."""
    new = {**obj, "metadata": _normal_meta(kind, key, obj["metadata"])}
    for part, fields in (("spec", ("hard",)), ("status", ("hard", "used"))):
        given = {} if obj.get(part) is None else obj[part]
        if not isinstance(given, dict):
            raise _invalid(kind, key, part, given, "must be an object")
        if kind is Kind.RESOURCE_QUOTAS:
            try:
                amounts = {field: canonical(f"{part}.{field}", given.get(field) or {}) for field in fields}
            except BadAmount as bad:
                raise _invalid(kind, key, *bad.args) from bad
            new[part] = {**given, **amounts}
            for field in fields:
                if not amounts[field]:
                    del new[part][field]
    return new


def _normal_meta(kind: Kind, key: Key, meta: JSON) -> JSON:
    meta = dict(meta)
    for field in ("labels", "annotations"):
        texts = meta.get(field)
        if not texts:
            meta.pop(field, None)
            continue
        if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
            raise _invalid(kind, key, f"metadata.{field}", texts, "must be a map of strings")
    size = sum(len(name.encode()) + len(text.encode()) for name, text in meta.get("annotations", {}).items())
    if size > _MAX_ANNOTATIONS:
        raise _invalid(kind, key, "metadata.annotations", "…", f"may not be more than {_MAX_ANNOTATIONS} bytes")
    return meta
