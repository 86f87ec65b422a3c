"""Pods taken in order through admission, charge, placement and debit on an embedded cluster (docs/spec/cli.md)."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jsonpatch

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.review import API_VERSIONS, Review
from hami_webhook.assembly import Core, Options
from hami_webhook.cluster.api import ClusterError, Kind
from hami_webhook.cluster.embedded import fill
from hami_webhook.cluster.loading import Bundle
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.devices.foreign_scheduler import ForeignScheduler, NoNode
from hami_webhook.devices.placement_annotations import TIME
from hami_webhook.devices.registry import Vendors
from hami_webhook.integrations.volcano.annotation_keys import BIND_TIME
from hami_webhook.kube.objects import Pod, ResourceQuota, parse_time
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.pricing import charge_of
from hami_webhook.scheduling.fit import vendors_requested_by
from hami_webhook.scheduling.placer import Unschedulable
from hami_webhook.simulate.placements import Among, shown_placement, shown_prediction, stands_in

_UID_SPACE = uuid.UUID("8f1f5d1c-6a0e-5a55-9d0a-3c5b7a0d6f10")
_FALLBACK_START = 1767225600.0
"""When a run starts if its files name no time: 2026-01-01T00:00:00Z."""

_SETTLE_EVERY = 50
"""Placements in a namespace after which its quotas are recomputed, as the controller would by then; at once after one
that costs less than its pod was charged.
"""

_SERVER_SET = (
    *("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
    *("resourceVersion", "generation", "selfLink", "managedFields"),
)
"""Metadata that the API server sets itself: what a new pod brings of it is dropped, and its status too."""

_OTHER_NODE = "node didn't match the pod's nodeSelector"
_GATED = "the pod has scheduling gates"


@dataclass(frozen=True)
class Pods:
    """What to simulate: manifests in order; each goes to `default` if it names no namespace."""

    manifests: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Arrival:
    """A pod that went through admission: its manifest as it was judged last, and the pod as stored, None if denied."""

    namespace: str
    name: str
    manifest: Mapping[str, Any]
    warnings: Sequence[str] = ()
    patch: Sequence[Mapping[str, Any]] = ()
    pod: Pod | None = None
    code: int = 200
    message: str = ""


@dataclass(frozen=True)
class Outcome:
    """One pod's way through the pipeline, as the JSON result has it."""

    namespace: str
    name: str
    allowed: bool
    code: int = 200
    message: str = ""
    warnings: Sequence[str] = ()
    patch: Sequence[Mapping[str, Any]] = ()
    pod: Mapping[str, Any] | None = None
    placement: Mapping[str, Any] | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    debits: Mapping[str, int] = field(default_factory=dict)
    unplaced: bool = False
    """Allowed and asking for devices, but no node took it."""

    def as_json(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "name": self.name,
            "allowed": self.allowed,
            "code": self.code,
            "message": self.message,
            "warnings": list(self.warnings),
            "patch": [dict(operation) for operation in self.patch],
            "pod": self.pod,
            "placement": self.placement,
            "failed": dict(self.failed),
            "debits": dict(self.debits),
        }


@dataclass(frozen=True)
class Result:
    """A run's pods in order, and every ResourceQuota with its managed keys after it."""

    pods: Sequence[Outcome]
    quotas: Sequence[Mapping[str, Any]]

    def as_json(self) -> dict[str, Any]:
        return {"pods": [outcome.as_json() for outcome in self.pods], "quotas": [dict(quota) for quota in self.quotas]}


def start_of(bundle: Bundle) -> float:
    """When a run on these files starts: the newest time in them, so that the same files give the same run.

    A dump is judged as of when it was taken: handshakes and unbound placements in it are as old as they were then.
    """
    times = [
        *(found for item in bundle.nodes for found in _times(item.object)),
        *(found for item in bundle.pods for found in _times(item.object)),
    ]
    return max(times, default=_FALLBACK_START)


_STAMPS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")


def _times(obj: Mapping[str, Any]) -> Iterable[float]:
    """The times an object's metadata and conditions name, as far as they can be read."""
    meta, status = obj["metadata"], obj.get("status")
    annotations = meta.get("annotations")
    written = [meta.get("creationTimestamp")]
    if isinstance(annotations, Mapping):
        written += [annotations.get(TIME), annotations.get(BIND_TIME)]
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, Mapping):
            written += [condition.get("lastTransitionTime"), condition.get("lastHeartbeatTime")]
    for text in written:
        if isinstance(text, str) and _STAMPS.fullmatch(text):
            with contextlib.suppress(ValueError):  # a 13th month
                yield parse_time(text)
        elif isinstance(text, str) and text.isdecimal() and len(text) <= 11:
            yield float(text)


class Simulation:
    """One run. `fill` the cluster first, then `take` pods, then ask for the `result`."""

    def __init__(self, vendors: Vendors, options: Options, policies: PolicyRules, now: float) -> None:
        self._now = now
        self._scheduler_name = options.rules.scheduler_name
        self._schema = MemoryCluster(lambda: now)
        self.cluster = MemoryCluster(lambda: now)
        self.core = Core(self.cluster, vendors, options, clock=lambda: now, policies=lambda: policies)
        self._outcomes: list[Outcome] = []
        self._unsettled: dict[str, int] = {}

    async def fill(self, bundle: Bundle, *, trust_used: bool = False) -> None:
        """Put the files' objects into the cluster and its quotas' books right. Raises `LoadError`.

        `trust_used`: books that somebody kept already are left as they are.
        """
        for kind, obj in await fill(self.cluster, bundle):
            self.core.caches.put(kind, obj)
        for item in self.cluster.peek_all(Kind.RESOURCE_QUOTAS):
            books = QuotaAccount.read(ResourceQuota.from_object(item), self.core.vendors)
            if not trust_used or books.hard.keys() - books.used.keys():
                await self._recompute(books.quota.namespace, books.name)

    def warnings(self) -> list[str]:
        """What of the files can't be read and is left out, a sentence each."""
        unreadable = [
            f"{kind.removesuffix('s')} {_key(namespace, name)}: left out, because {text}"
            for (kind, namespace, name), text in sorted(self.core.caches.unreadable.items())
        ]
        problems = [
            f"{problem.kind.lower()} {_key(problem.namespace, problem.name)}: {problem.text}"
            for problem in self.core.state.problems()
        ]
        return [*unreadable, *problems]

    async def take(self, manifest: Mapping[str, Any]) -> Outcome:
        """Take one pod through the pipeline."""
        outcome = await self._take(manifest)
        self._outcomes.append(outcome)
        return outcome

    async def run(self, pods: Pods, progress: Callable[[Outcome], None] = lambda outcome: None) -> Result:
        """Take every pod, in order."""
        for manifest in pods.manifests:
            progress(await self.take(manifest))
        return await self.result()

    async def result(self) -> Result:
        quotas = []
        for item in self.cluster.peek_all(Kind.RESOURCE_QUOTAS):
            await self._recompute(item["metadata"]["namespace"], item["metadata"]["name"])
        for item in self.cluster.peek_all(Kind.RESOURCE_QUOTAS):
            books = QuotaAccount.read(ResourceQuota.from_object(item), self.core.vendors)
            quotas.append(
                {
                    "namespace": books.quota.namespace,
                    "name": books.name,
                    "hard": dict(sorted(books.hard.items())),
                    "used": dict(sorted(books.used.items())),
                }
            )
        return Result(self._outcomes, quotas)

    async def _take(self, manifest: Mapping[str, Any]) -> Outcome:
        arrival = await self.admit(manifest)
        if arrival.pod is None:
            return Outcome(arrival.namespace, arrival.name, False, arrival.code, arrival.message, arrival.warnings)
        return await self._place(arrival.pod, arrival.manifest, arrival.warnings, arrival.patch)

    async def admit(self, manifest: Mapping[str, Any]) -> Arrival:
        """Take one pod through admission and its charge, as far as it gets; it isn't placed."""
        meta = manifest.get("metadata") or {}
        namespace = meta.get("namespace") or "default"
        name = meta.get("name") or f"{meta.get('generateName') or 'pod-'}{len(self._outcomes):05d}"
        self.core.caches.put(Kind.NAMESPACES, await self.cluster.ensure_namespace(namespace))
        kept = {key: value for key, value in meta.items() if key not in _SERVER_SET}
        raw = {**manifest, "metadata": {**kept, "namespace": namespace, "name": name}}
        raw.pop("status", None)
        warnings: Sequence[str] = ()
        patch: Sequence[Mapping[str, Any]] = ()
        admitted: Mapping[str, Any] = raw
        try:
            answer = await self.core.gate.mutate(_review(raw, namespace, name))
            warnings, patch = answer.warnings, answer.patch
            admitted = jsonpatch.apply_patch(raw, list(patch))
            if self.cluster.peek(Kind.PODS, name, namespace) is not None:
                raise Denied(409, f'pods "{name}" already exists', reason="AlreadyExists")
            uid = str(uuid.uuid5(_UID_SPACE, f"{namespace}/{name}"))
            stored = {**admitted, "metadata": {**admitted["metadata"], "uid": uid}}
            await self._check_schema(stored)
            await self.core.gate.validate(_review(stored, namespace, name))
            created = await self.cluster.create(Kind.PODS, stored)
        except Denied as denial:
            return Arrival(namespace, name, admitted, warnings, code=denial.code, message=denial.message)
        except ClusterError as error:
            return Arrival(namespace, name, admitted, warnings, code=422, message=str(error))
        self.core.caches.put(Kind.PODS, created)
        return Arrival(namespace, name, admitted, warnings, patch, Pod.from_object(created))

    async def _place(
        self, pod: Pod, manifest: Mapping[str, Any], warnings: Sequence[str], patch: Sequence[Mapping[str, Any]]
    ) -> Outcome:
        allowed = Outcome(pod.namespace, pod.name, True, 200, "", warnings, patch, manifest)
        foreign = next((each for each in self.core.vendors.foreign if stands_in(each, pod)), None)
        if foreign is None:
            if self._scheduler_name and pod.scheduler_name != self._scheduler_name:
                return allowed
            if not vendors_requested_by(pod, self.core.vendors):
                return allowed
        if manifest["spec"].get("schedulingGates"):
            gated = {node.name: _GATED for node in self.core.state.nodes()}
            return replace(allowed, failed=gated, unplaced=True)
        # kube-scheduler asks the extender only about nodes that pass its own filters, and others have such filters too
        selector = (pod.node_selector or {}).items()
        suits = {node.name: selector <= node.labels.items() for node in self.core.state.nodes()}
        suitable = [name for name, suited in suits.items() if suited]
        charged = charge_of(pod, self.core.vendors, self.core.state, self._now).amounts
        shown, failed = await (self._by_us(pod, suitable) if foreign is None else self._by(foreign, pod, suitable))
        failed = failed | {name: _OTHER_NODE for name, suited in suits.items() if not suited}
        allowed = replace(allowed, failed=dict(sorted(failed.items())))
        if shown is None:
            return replace(allowed, unplaced=True)
        bound = await self.cluster.get(Kind.PODS, pod.name, pod.namespace)
        self.core.caches.put(Kind.PODS, bound)
        debits = charge_of(Pod.from_object(bound), self.core.vendors, self.core.state, self._now).amounts
        self._unsettled[pod.namespace] = self._unsettled.get(pod.namespace, 0) + 1
        # what a placement of ours costs more was committed with it; nobody books what another scheduler gives
        unbooked = debits != charged if foreign else any(debits.get(key, 0) < charged[key] for key in charged)
        if unbooked or self._unsettled[pod.namespace] >= _SETTLE_EVERY:
            await self._recompute(pod.namespace)
        return replace(allowed, placement=shown, debits=dict(sorted(debits.items())))

    async def _by_us(self, pod: Pod, nodes: Sequence[str]) -> tuple[dict[str, Any] | None, dict[str, str]]:
        """Place and bind a pod on one of the nodes: the placement as the result shows it, and why others failed."""
        placement = await self.core.placer.place(pod, nodes)
        assert placement is not None
        failed = {node: str(why) for node, why in placement.failed.items()}
        if isinstance(placement, Unschedulable):
            return None, failed
        await self.core.placer.bind(pod, placement.node)
        return shown_placement(pod, placement, self.core.vendors), failed

    async def _by(
        self, scheduler: ForeignScheduler, pod: Pod, nodes: Sequence[str]
    ) -> tuple[dict[str, Any] | None, dict[str, str]]:
        """As `_by_us`, in another scheduler's place."""
        predicted = scheduler.predict(pod, Among(self.core.state, nodes), self._now)
        if isinstance(predicted, NoNode):
            return None, dict(predicted.failed)
        notes = {"metadata": {"annotations": dict(predicted.annotations)}}
        await self.cluster.patch(Kind.PODS, pod.name, notes, pod.namespace)
        await self.cluster.bind(pod.namespace, pod.name, pod.uid, predicted.node)
        return shown_prediction(pod, predicted, scheduler), dict(predicted.failed)

    async def _check_schema(self, pod: dict[str, Any]) -> None:
        """Refuse what the API server would, before it asks validating webhooks. Raises `ClusterError`."""
        meta = pod["metadata"]
        await self._schema.ensure_namespace(meta["namespace"])
        await self._schema.create(Kind.PODS, pod)
        await self._schema.delete(Kind.PODS, meta["name"], meta["namespace"])

    async def _recompute(self, namespace: str, only: str = "") -> None:
        self._unsettled.pop(namespace, None)
        for item in self.cluster.peek_all(Kind.RESOURCE_QUOTAS, namespace):
            name = item["metadata"]["name"]
            if only in ("", name) and QuotaAccount.read(ResourceQuota.from_object(item), self.core.vendors).hard:
                await self.core.recomputer.run(namespace, name)


def _key(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _review(raw: Mapping[str, Any], namespace: str, name: str) -> Review:
    return Review(
        api_version=API_VERSIONS[0],
        uid=str(uuid.uuid5(_UID_SPACE, f"review {namespace}/{name}")),
        operation="CREATE",
        kind="Pod",
        subresource="",
        namespace=namespace,
        name=name,
        object=raw,
        old_object={},
    )
