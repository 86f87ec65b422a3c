"""The ResourceClaimTemplates of pods whose limits became claims: made, and deleted (docs/spec/dra.md#8).

They are made for pods that are stored, so neither a dry run nor a pod that was refused leaves one.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.caches import Change
from hami_webhook.cluster.api import AlreadyExists, Cluster, ClusterError, Conflict, Invalid, Kind, NotFound
from hami_webhook.cluster_view import ClusterView
from hami_webhook.config.drivers import DriverDevices
from hami_webhook.controller.informers import Subscriptions
from hami_webhook.controller.loops import contained
from hami_webhook.controller.object_events import ObjectEvents
from hami_webhook.dra.claim_templates import OFF, TemplateSpec, converts, declared_templates
from hami_webhook.dra.holders import Key, requests_of
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.objects import Pod

logger = logging.getLogger(__name__)

LOOP = "claim templates"
_MANAGED_BY = "app.kubernetes.io/managed-by"
_OURS = "hami-webhook"
_NAME = re.compile(r"hami-[0-9a-f]{16}")
_KEPT, _AGAIN = 60.0, 5.0
"""Seconds that a template stays which no pod refers to, and until one that failed is tried again."""
_AT_ONCE = 10
"""Templates of a namespace that are looked at before those of the next one."""


class _User(Struct, frozen=True):
    """A pod that refers to a template, with the spec that it declares of it while it waits for its claim."""

    pod: Pod
    declared: TemplateSpec | None


class ClaimTemplates:
    """Makes and deletes templates while `run` runs, which the leader's does."""

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        mode: str,
        object_events: ObjectEvents,
        failures: Counter[str],
        *,
        wait: Callable[[Awaitable[object], float], Awaitable[object]] = asyncio.wait_for,
    ) -> None:
        """`mode`: in which namespaces limits become claims."""
        self._cluster = cluster
        self._view = view
        self._mode = mode
        self._object_events = object_events
        self._failures = failures
        self._wait = wait
        self._users: dict[Key, dict[str, _User]] = {}
        """The pods that refer to templates whose names are as ours, by UID."""
        self._due: dict[Key, float] = {}
        """When templates are to be looked at."""
        self._unused: dict[Key, float] = {}
        """Since when no pod refers to templates of ours."""
        self._wake = asyncio.Event()

    @property
    def enabled(self) -> bool:
        """Whether limits become claims anywhere."""
        return self._mode != OFF and bool(self._view.vendors.converting)

    def subscriptions(self) -> Subscriptions:
        if not self.enabled:
            return {}
        return {Kind.PODS: self._pod_changed, Kind.RESOURCE_CLAIM_TEMPLATES: self._template_changed}

    def _pod_changed(self, change: Change[Pod]) -> None:
        before, after = change.before, change.after
        was, now = _templates_of(before), _templates_of(after)
        if before is not None:
            for key in was:
                users = self._users.get(key, {})
                users.pop(before.uid, None)
                if not users:
                    self._users.pop(key, None)
        if after is not None:
            declared = _declared_by(after, self._view.vendors.converting) if now else {}
            for key in now:
                self._users.setdefault(key, {})[after.uid] = _User(after, declared.get(key[1]))
        self._look_at([*was, *now])

    def _template_changed(self, change: Change[wire.ResourceClaimTemplate]) -> None:
        key = change.key[:2]
        self._look_at([key] if _NAME.fullmatch(key[1]) else [])

    def _look_at(self, keys: Iterable[Key]) -> None:
        """Look at templates soon, if pods refer to them or they are there."""
        now = self._view.clock()
        for key in keys:
            if key in self._users or key in self._view.caches.claims.templates:
                self._due[key] = now
                self._wake.set()
            else:
                self._due.pop(key, None)
                self._unused.pop(key, None)

    async def run(self) -> None:
        """Work until cancelled; what a former leader left is looked at first."""
        self._look_at(self._users)
        self._look_at(key for key in self._view.caches.claims.templates if _NAME.fullmatch(key[1]))
        while True:
            await self.step()
            self._wake.clear()
            seconds = min(self._due.values(), default=self._view.clock() + _KEPT) - self._view.clock()
            try:
                await self._wait(self._wake.wait(), max(0.0, seconds))
            except TimeoutError:
                continue

    async def step(self) -> None:
        """Look at templates that are due: at some of each namespace, so that one with very many holds nobody up."""
        now = self._view.clock()
        due = sorted(key for key, at in self._due.items() if at <= now)
        for _, keys in groupby(due, key=itemgetter(0)):
            for key in islice(keys, _AT_ONCE):
                del self._due[key]
                with contained(self._failures, LOOP, f"template {'/'.join(key)}"):
                    await self._look(key)

    async def _look(self, key: Key) -> None:
        template = self._view.caches.claims.templates.get(key)
        now = self._view.clock()
        users = [user for user in self._users.get(key, {}).values() if not user.pod.ended(now)]
        if users:
            self._unused.pop(key, None)
            await self._provide(key, template, users)
        elif template is not None and _is_ours(template):
            await self._collect(key, template)
        else:
            self._unused.pop(key, None)

    async def _provide(self, key: Key, template: wire.ResourceClaimTemplate | None, users: Sequence[_User]) -> None:
        """Make the template that pods wait for, if one of them declares it where limits become claims."""
        declared = next(((user.pod, user.declared) for user in users if user.declared is not None), None)
        namespace = self._view.caches.namespaces.get(key[0])
        if declared is None or namespace is None or not converts(self._mode, namespace):
            return
        pod, spec = declared
        problem = ""
        if template is None:
            try:
                await self._cluster.create(Kind.RESOURCE_CLAIM_TEMPLATES, _object(key, spec))
            except AlreadyExists:
                pass  # its watch shows it soon
            except NotFound:
                return  # the namespace is going
            except ClusterError as error:
                problem = f"ResourceClaimTemplate {key[1]} can't be made for its limits: {error}"
                if not isinstance(error, Invalid):
                    self._due[key] = self._view.clock() + _AGAIN
        elif not _says_the_same(template, spec):
            problem = (
                f"ResourceClaimTemplate {key[1]} is somebody else's and requests something else than its limits; it "
                "gets, and is charged, what that says"
            )
        await self._object_events.warn(
            "Pod", pod.namespace, pod.name, pod.uid, "ClaimTemplateUnusable", problem, topic=key[1]
        )

    async def _collect(self, key: Key, template: wire.ResourceClaimTemplate) -> None:
        """Delete a template that no pod has referred to for a while."""
        now = self._view.clock()
        until = self._unused.setdefault(key, now) + _KEPT
        if now < until:
            self._due[key] = until
            return
        try:
            uid = (template.metadata and template.metadata.uid) or ""
            await self._cluster.delete_claim_template(*key, uid)
        except (NotFound, Conflict):
            pass
        except ClusterError as error:
            logger.warning("ResourceClaimTemplate %s/%s can't be deleted: %s", *key, error)
            self._due[key] = now + _KEPT
            return
        self._unused.pop(key, None)


def _templates_of(pod: Pod | None) -> list[Key]:
    """The templates that a pod refers to by names as ours."""
    claims = () if pod is None else pod.resource_claims
    return [(pod.namespace, each.template) for each in claims if pod and _NAME.fullmatch(each.template)]


def _declared_by(pod: Pod, rows: Sequence[DriverDevices]) -> Mapping[str, TemplateSpec]:
    """The templates that a pod declares and has no claim of yet."""
    waits = {each.template for each in pod.resource_claims if each.name not in pod.generated_claims}
    return {name: spec for name, spec in declared_templates(pod, rows).items() if name in waits} if waits else {}


def _is_ours(template: wire.ResourceClaimTemplate) -> bool:
    labels = (template.metadata and template.metadata.labels) or {}
    return labels.get(_MANAGED_BY) == _OURS


def _object(key: Key, spec: TemplateSpec) -> dict[str, object]:
    kind = Kind.RESOURCE_CLAIM_TEMPLATES
    return {
        "apiVersion": kind.api_version,
        "kind": kind.singular,
        "metadata": {"namespace": key[0], "name": key[1], "labels": {_MANAGED_BY: _OURS}},
        "spec": {"spec": msgspec.to_builtins(spec)},
    }


def _says_the_same(template: wire.ResourceClaimTemplate, spec: TemplateSpec) -> bool:
    """Whether the requests of a template are those of a spec, the API server's defaults aside."""
    return _requests(template) == _requests(spec.template)


def _requests(template: wire.ResourceClaimTemplate) -> list[wire.DeviceRequest]:
    return [
        replace(
            each,
            exactly=_without_default(each.exactly) if each.exactly is not None else None,
            first_available=tuple(map(_without_default, each.first_available or ())) or None,
        )
        for each in requests_of(template.spec.spec if template.spec is not None else None)
    ]


def _without_default(request: wire.ExactRequest) -> wire.ExactRequest:
    return replace(request, allocation_mode=None) if request.allocation_mode == "ExactCount" else request
