"""Putting the scheduler extender together: its listener, and what it shares with the rest of the process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from prometheus_client import CollectorRegistry
from starlette.routing import Route

from hami_webhook.assembly import Core
from hami_webhook.cluster.kubernetes import REQUEST_TIMEOUT
from hami_webhook.config import Settings
from hami_webhook.controller.informers import SharedInformers
from hami_webhook.controller.requeue_trigger import RequeueTrigger
from hami_webhook.kube.objects import Pod
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.scheduling.extender import Extender
from hami_webhook.scheduling.extender_metrics import ExtenderMetrics
from hami_webhook.scheduling.left_locks import release_left_locks
from hami_webhook.scheduling.node_locks import NodeLocks
from hami_webhook.scheduling.preemption.preemption import Preemption
from hami_webhook.server.extender_app import MAX_BODY, ExtenderApp
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.listener import Listener
from hami_webhook.server.process_metrics import PreemptionCollector
from hami_webhook.server.request_metrics import RequestMetrics
from hami_webhook.server.tls import CertificateFiles, ReloadingTls


@dataclass(frozen=True, slots=True)
class ExtenderServer:
    """The extender of a process, its listener if it has one, and its routes for the main server.

    `tls` reloads itself where it is watched. `requeue` keeps kube-scheduler trying the pods that were refused;
    `release_left_locks` returns when it has released what a former process left.
    """

    extender: Extender
    listener: Listener | None
    tls: ReloadingTls | None
    main_routes: Sequence[Route]
    preemption: Preemption | None
    requeue: Callable[[], Awaitable[NoReturn]]
    release_left_locks: Callable[[], Awaitable[None]]


def a_node(core: Core) -> str | None:
    """The first node that has cards, for `RequeueTrigger`."""
    return next((view.name for view in core.state.views() if view.inventories), None)


def extender_server(
    core: Core,
    informers: SharedInformers,
    requeue_trigger: RequeueTrigger,
    settings: Settings,
    limits: ListenerLimits,
    policies: Callable[[], PolicyRules],
    registry: CollectorRegistry,
) -> ExtenderServer:
    """The extender as the settings describe it. Raises `TlsError`."""

    def version(node: str) -> str:
        found = core.state.node(node)
        return found.resource_version if found is not None else ""

    def lock_seen(node: str, annotation: str) -> str | None:
        found = core.state.node(node)
        return found.annotations.get(annotation) if found is not None else None

    def schedulers() -> set[str]:
        """The names that admission gives: of the settings, and of policies; none where it leaves the pod's own."""
        if not settings.scheduler_name:
            return set()
        named = {rule.scheduler_name for rule in policies().rules if rule.scheduler_name}
        return {settings.scheduler_name, *named}

    async def requeue() -> NoReturn:
        await informers.wait_synced()
        named = schedulers()
        requeue_trigger.resume(pod.uid for pod in core.state.pods() if _may_have_been_refused(core, pod, named))
        await requeue_trigger.run()

    locks_of_vendors = {vendor.lock for vendor in core.vendors.values() if vendor.lock is not None}
    locks = NodeLocks(
        core.cluster,
        clock=core.clock,
        expires=settings.node_lock_timeout,
        patience=settings.node_lock_retry_timeout,
        seen=lock_seen,
        version=version,
        pods_on=lambda node: (allocation.pod for allocation in core.state.allocations(node)),
        annotations={lock.annotation for lock in locks_of_vendors},
    )
    core.state.node_changed = locks.node_changed
    core.placer.locked_nodes = lambda: (locks.busy, locks.contended)
    preemption = None
    if settings.preemption != "off":
        preemption = Preemption(
            core.cluster,
            core.state,
            core.vendors,
            core.placer,
            core.nominations,
            dry_run=settings.preemption == "dry-run",
            clock=core.clock,
            disruption=core.caches.disruption_budgets.values,
            ready=informers.wait_synced,
            refused=requeue_trigger.refused,
            freed=requeue_trigger.freed,
        )
        registry.register(PreemptionCollector(preemption))
    extender = Extender(
        core.cluster,
        core.state,
        core.vendors,
        core.placer,
        locks,
        single=settings.extender_mode == "single",
        clock=core.clock,
        ready=informers.wait_synced,
        quotas=core.caches.covering,
        pods_complete=informers.pods_complete,
        schedulers=schedulers,
        refused=requeue_trigger.refused,
        placed=requeue_trigger.settled,
        freed=requeue_trigger.freed,
        preemption=preemption,
        metrics=ExtenderMetrics(registry),
    )

    async def release_left() -> None:
        await informers.wait_synced()
        timeout = settings.kube_timeout or REQUEST_TIMEOUT
        await release_left_locks(extender, core.state, locks_of_vendors, request_timeout=timeout)

    generous = replace(limits, max_request_bytes=max(limits.max_request_bytes, MAX_BODY))
    requests = RequestMetrics(registry, "hami_webhook_extender", "extender request")
    app = ExtenderApp(extender, generous, requests, settings.extender_token_file)
    # who isn't on loopback has shown a certificate to the main server, or has to send the token
    guarded = bool(settings.extender_token_file or settings.client_ca_file)
    main_routes = app.routes(loopback_only=not guarded) if settings.extender_on_main else ()
    address = settings.extender_bind_address
    if address is None:
        return ExtenderServer(extender, None, None, main_routes, preemption, requeue, release_left)
    tls = None
    if settings.extender_client_ca_file:
        files = CertificateFiles(
            Path(settings.cert_file), Path(settings.key_file), Path(settings.extender_client_ca_file)
        )
        tls = ReloadingTls(files)
    elif settings.tls and not address.is_loopback:
        tls = ReloadingTls(CertificateFiles(Path(settings.cert_file), Path(settings.key_file)))
    listener = Listener(app.application(), host=address.host, port=address.port, limits=generous, tls=tls)
    return ExtenderServer(extender, listener, tls, main_routes, preemption, requeue, release_left)


def _may_have_been_refused(core: Core, pod: Pod, schedulers: Collection[str]) -> bool:
    """Whether kube-scheduler asks us for a place for the pod; `schedulers` are the names it has, none for any."""
    waits = not (pod.node_name or pod.terminal or pod.gated or pod.deletion_time is not None)
    ours = not schedulers or pod.scheduler_name in schedulers
    return waits and ours and not pod.named.isdisjoint(core.vendors.own_names)
