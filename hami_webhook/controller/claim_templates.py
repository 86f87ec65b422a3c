"""The ResourceClaimTemplates of pods whose limits became claims: made, and deleted (docs/spec/dra.md#8).

They are made for pods that are stored, so neither a dry run nor a pod that was refused leaves one. Namespaces don't
wait for each other: one template of each is made at a time, and where one is refused the namespace's others wait.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.cluster.api import AlreadyExists, Cluster, ClusterError, Conflict, Invalid, Kind, NotFound
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.config.drivers import DriverDevices
from hami_webhook.dra.claim_templates import OFF, TemplateSpec, converts, declared_templates
from hami_webhook.dra.holders import Key, requests_of
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.objects import Pod
from hami_webhook.loops import contained
from hami_webhook.state.caches import Change, Subscriptions
from hami_webhook.state.cluster_view import ClusterView

logger = logging.getLogger(__name__)

LOOP = "claim templates"
_MANAGED_BY = "app.kubernetes.io/managed-by"
_OURS = "hami-webhook"
_NAME = re.compile(r"hami-[0-9a-f]{16}")
_KEPT, _AGAIN = 60.0, 5.0
"""Seconds that a template stays which no pod refers to, and for which a namespace waits after one that failed."""
_AT_ONCE = 10
"""Namespaces of which a template is made at a time; further ones come in turn."""


class _User(Struct, frozen=True):
    """A pod that refers to a template, with the spec that it declares of it while it waits for its claim."""

    pod: Pod
    declared: TemplateSpec | None


class ClaimTemplates:
    """Makes and deletes templates while `run` runs; only the leader calls `run`."""

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        mode: str,
        object_events: ObjectEvents,
        failures: Counter[str],
    ) -> None:
        """`mode`: in which namespaces limits become claims."""
        self._cluster = cluster
        self._view = view
        self._mode = mode
        self._object_events = object_events
        self._failures = failures
        self._users: dict[Key, dict[str, _User]] = {}
        """The pods that refer to templates whose names are as ours, by UID."""
        self._due: dict[str, dict[Key, float]] = {}
        """When templates are to be looked at, by their namespaces."""
        self._working: set[str] = set()
        """The namespaces whose templates are being looked at."""
        self._turns = asyncio.Semaphore(_AT_ONCE)
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
                self._due.setdefault(key[0], {})[key] = now
                self._wake.set()
            else:
                self._due.get(key[0], {}).pop(key, None)
                self._unused.pop(key, None)

    async def run(self) -> None:
        """Work until cancelled; what a former leader left is looked at first."""
        self._look_at(self._users)
        self._look_at(key for key in self._view.caches.claims.templates if _NAME.fullmatch(key[1]))
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                self._begin(tasks)
                now = self._view.clock()
                idle = (due.values() for namespace, due in self._due.items() if namespace not in self._working)
                until = min(chain.from_iterable(idle), default=now + _KEPT)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), max(0.0, until - now))

    async def step(self) -> None:
        """Look at all templates that are due."""
        async with asyncio.TaskGroup() as tasks:
            self._begin(tasks)

    def _begin(self, tasks: asyncio.TaskGroup) -> None:
        """Look at what is due of the namespaces that nobody works on."""
        now = self._view.clock()
        self._due = {each: due for each, due in self._due.items() if due or each in self._working}
        for namespace, due in self._due.items():
            if namespace not in self._working and min(due.values()) <= now:
                self._working.add(namespace)
                tasks.create_task(self._work(namespace))

    async def _work(self, namespace: str) -> None:
        """Look at the templates of a namespace that are due, the earliest first, until one can't be made."""
        now, due = self._view.clock(), self._due[namespace]
        try:
            for key in sorted((key for key, at in due.items() if at <= now), key=due.__getitem__):
                async with self._turns:
                    if due.pop(key, None) is None:
                        continue  # nobody refers to it any longer
                    taken = True
                    with contained(self._failures, LOOP, f"template {'/'.join(key)}"):
                        taken = await self._look(key)
                if not taken:
                    again = self._view.clock() + _AGAIN
                    due.update({other: max(at, again) for other, at in due.items()})
                    due[key] = again  # behind those that were due before
                    return
        finally:
            self._working.discard(namespace)
            self._wake.set()

    async def _look(self, key: Key) -> bool:
        """Make, delete or leave a template; whether the API server took it."""
        template = self._view.caches.claims.templates.get(key)
        now = self._view.clock()
        users = [user for user in self._users.get(key, {}).values() if not user.pod.ended(now)]
        if users:
            self._unused.pop(key, None)
            return await self._provide(key, template, users)
        if template is not None and _is_ours(template):
            return await self._collect(key, template)
        self._unused.pop(key, None)
        return True

    async def _provide(self, key: Key, template: wire.ResourceClaimTemplate | None, users: Sequence[_User]) -> bool:
        """Make the template that pods wait for, if one of them declares it where limits become claims.

        Whether the API server took it, or never will.
        """
        declared = next(((user.pod, user.declared) for user in users if user.declared is not None), None)
        namespace = self._view.caches.namespaces.get(key[0])
        if declared is None or namespace is None or not converts(self._mode, namespace):
            return True
        pod, spec = declared
        problem, taken = "", True
        if template is None:
            try:
                await self._cluster.create(Kind.RESOURCE_CLAIM_TEMPLATES, _object(key, spec))
            except AlreadyExists:
                pass  # its watch shows it soon
            except NotFound:
                return True  # the namespace is going
            except ClusterError as error:
                problem = f"ResourceClaimTemplate {key[1]} can't be made for its limits: {error}"
                taken = isinstance(error, Invalid)
        elif not _says_the_same(template, spec):
            problem = (
                f"ResourceClaimTemplate {key[1]} isn't ours and requests other amounts than its limits; the pod gets, "
                "and is charged, the template's amounts"
            )
        await self._object_events.warn(
            "Pod", pod.namespace, pod.name, pod.uid, "ClaimTemplateUnusable", problem, topic=key[1]
        )
        return taken

    async def _collect(self, key: Key, template: wire.ResourceClaimTemplate) -> bool:
        """Delete a template that no pod has referred to for a while; whether it is done, or to be done later."""
        now = self._view.clock()
        until = self._unused.setdefault(key, now) + _KEPT
        if now < until:
            self._due[key[0]][key] = until
            return True
        try:
            uid = (template.metadata and template.metadata.uid) or ""
            await self._cluster.delete_claim_template(*key, uid)
        except (NotFound, Conflict):
            pass
        except ClusterError as error:
            logger.warning("ResourceClaimTemplate %s/%s can't be deleted: %s", *key, error)
            return False
        self._unused.pop(key, None)
        return True


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
