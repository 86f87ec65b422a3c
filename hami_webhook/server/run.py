"""Running the roles of one process until it is signalled to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from prometheus_client import CollectorRegistry

from hami_webhook.assembly import Core, options_of
from hami_webhook.cluster.api import Cluster
from hami_webhook.cluster.clock import ServerClock
from hami_webhook.cluster.quotas_in_memory import WITHOUT_STATUS, QuotasInMemory
from hami_webhook.config import ConfigError, Settings
from hami_webhook.config.go_syntax import ListenAddress
from hami_webhook.controller.accelerator_quotas import AcceleratorQuotaReconciler
from hami_webhook.controller.certificates import CertRotator
from hami_webhook.controller.freed import FreedDevices
from hami_webhook.controller.informers import SharedInformers, Subscriber
from hami_webhook.controller.leader import LeaderElection
from hami_webhook.controller.leader_tasks import (
    LeaderTasks,
    cert_rotator,
    leader_election,
    reconcile,
    webhook_reconciler,
)
from hami_webhook.controller.loops import Loops
from hami_webhook.controller.own_pod import OwnPod
from hami_webhook.controller.quotas import Pace, QuotaReconciler
from hami_webhook.controller.requeue_trigger import RequeueTrigger
from hami_webhook.controller.showback import Showback
from hami_webhook.controller.webhooks import WebhookReconciler
from hami_webhook.devices.registry import Vendors
from hami_webhook.policy.file import PolicySource
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.server.app import Sources, WebhookApp
from hami_webhook.server.cluster_metrics import ClusterCollector
from hami_webhook.server.connections import connection_limit
from hami_webhook.server.extender_server import a_node, extender_server
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.listener import Listener
from hami_webhook.server.metrics import CoreCollector
from hami_webhook.server.policy_reload import PolicyReload
from hami_webhook.server.process_metrics import ProcessCollector
from hami_webhook.server.request_metrics import new_registry
from hami_webhook.server.tls import CertificateFiles, ReloadingTls

logger = logging.getLogger(__name__)

_CERTIFICATE_POLL = 2.0
_TICK = 5.0
_POLICY_POLL = 5.0
_LEAVING = 5.0
"""Seconds until every API server knows that a replica has left its Service."""


def limits_of(settings: Settings) -> ListenerLimits:
    """What the listeners need of the settings."""
    return ListenerLimits(
        max_request_bytes=settings.max_request_bytes,
        max_header_bytes=settings.max_header_bytes,
        request_timeout=settings.request_timeout,
        max_concurrent_requests=settings.max_concurrent_requests,
        keep_alive=settings.keep_alive,
        shutdown_grace=max(settings.shutdown_grace, 0.1),
    )


@dataclass(frozen=True, slots=True)
class Running:
    """A process at work: its core and the informers of its caches, and its servers with the ports they got.

    `leave` lets readiness fail and ends connections with their next answer, ahead of the end.
    """

    core: Core
    informers: SharedInformers
    main: Listener
    metrics: Listener
    extender: Listener | None
    registry: CollectorRegistry
    leave: Callable[[], None]


@asynccontextmanager
async def running(
    cluster: Cluster,
    vendors: Vendors,
    settings: Settings,
    *,
    policies: PolicyRules = PolicyRules.EMPTY,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[Running]:
    """The servers and loops of a process, up while the block runs; ready once `informers` is synced.

    `policies` are those of the policy file as first read. `clock` gives Unix seconds, the same in all replicas. Raises
    `ConfigError` where an address can't be listened on, and `TlsError`.
    """
    leaving = asyncio.Event()
    informers: SharedInformers | None = None
    source = PolicySource(settings.policy_file, vendors.governed, policies)

    def not_ready() -> str | None:
        if leaving.is_set():
            return "shutting down"
        return None if informers is not None and informers.synced else "caches are not synced yet"

    async def report(problem: str) -> None:
        if own_pod is not None and "controller" in settings.roles:
            await own_pod.record("PolicyFileRefused", problem)

    core = Core(
        cluster,
        vendors,
        options_of(settings),
        clock=clock,
        policies=lambda: source.current,
        synced=lambda: informers is not None and informers.synced,
    )
    may_record = settings.roles != {"webhook"}
    own_pod = OwnPod(core, settings.pod_namespace, settings.pod_name) if settings.pod_name and may_record else None
    reconcilers: list[QuotaReconciler] = []
    if "controller" in settings.roles:
        pace = Pace(settings.quota_debounce, settings.quota_resync, settings.quota_reservation_ttl)
        reconcilers = [QuotaReconciler(core, pace), AcceleratorQuotaReconciler(core, pace)]
    showback = Showback(core)
    requeue_trigger = (
        RequeueTrigger(cluster, lambda: a_node(core), clock=clock) if "extender" in settings.roles else None
    )
    preempts = requeue_trigger is not None and settings.preemption != "off"
    subscribers: list[Subscriber] = []
    if requeue_trigger is not None:
        subscribers.append(FreedDevices(requeue_trigger, vendors))
    if reconcilers:
        subscribers += [showback, *reconcilers]
    if own_pod is not None:
        subscribers.append(own_pod)
    informers = SharedInformers(core, subscribers, disruption_budgets=preempts)
    limits = limits_of(settings)
    election = leader_election(core, settings, showback) if settings.leader_elect else None
    webhooks = webhook_reconciler(core, settings, election)
    registry = new_registry()
    webhook = WebhookApp(
        core.admission,
        limits,
        ready=not_ready,
        remark=lambda: webhooks.problem,
        misreadings=lambda quota: [each.text for each in core.misreadings(quota)],
        registry=registry,
        sources=Sources(settings.api_server_cidrs),
    )
    replaced = requeue_trigger.freed if requeue_trigger is not None else lambda: None
    reload = PolicyReload(settings.policy_file, source, report, replaced)
    rotator = cert_rotator(core, settings) if settings.certificate_secret else None
    extended = None
    if requeue_trigger is not None:
        extended = extender_server(core, informers, requeue_trigger, settings, limits, lambda: source.current, registry)
    main_routes = extended.main_routes if extended is not None else ()
    tls = None
    if settings.tls:
        client_ca = Path(settings.client_ca_file) if settings.client_ca_file else None
        tls = ReloadingTls(CertificateFiles(Path(settings.cert_file), Path(settings.key_file), client_ca))
    main = Listener(
        (webhook.application if "webhook" in settings.roles else webhook.metrics_application)(*main_routes),
        host=settings.http_bind.host,
        port=settings.http_bind.port,
        limits=replace(limits, max_connections=connection_limit()),
        tls=tls,
    )
    metrics = Listener(
        webhook.metrics_application(),
        host=settings.metrics_bind_address.host,
        port=settings.metrics_bind_address.port,
        limits=limits,
    )
    alone = isinstance(cluster, QuotasInMemory)  # then no other replica can correct these quotas
    extender = extended.listener if extended is not None else None
    backend = "memory" if alone else "status"

    def skews() -> Iterator[tuple[str, float]]:
        if isinstance(clock, ServerClock):
            yield "api-server", clock.skew
        if election is not None and election.skew is not None:
            yield "leader", election.skew

    def leading() -> bool:
        return bool(reconcilers) and (election is None or election.leading)

    registry.register(CoreCollector(core, quota_backend=backend))
    registry.register(
        ClusterCollector(core, showback, lambda: leading() and informers.synced, legacy=settings.legacy_metrics)
    )
    registry.register(ProcessCollector(main, tls, source, reload, reconcilers, webhooks, leading, informers, skews))

    def leave() -> None:
        leaving.set()
        main.end_keep_alive()

    try:
        await _listen(main, "--http_bind", settings.http_bind)
        await _listen(metrics, "--metrics-bind-address", settings.metrics_bind_address)
        if extender is not None and settings.extender_bind_address is not None:
            await _listen(extender, "--extender-bind-address", settings.extender_bind_address)
        async with asyncio.TaskGroup() as tasks:
            loops = Loops(core.failures)
            kept: dict[str, Callable[[], Awaitable[None]]] = {"ticking": lambda: _ticking(core, requeue_trigger)}
            if reconcilers:
                kept["showback"] = partial(_start, informers, showback)
                kept |= _controlling(core, informers, reconcilers, rotator, webhooks, loops, election, alone)
            if own_pod is not None:
                kept |= _own_pod_loops(own_pod, informers, settings, election, alone)
            if extended is not None:
                kept["scheduler wake-up"] = extended.requeue
                kept["locks left by a former process"] = extended.release_left_locks
            if extended is not None and extended.preemption is not None:
                kept["preemption"] = extended.preemption.run
            if extended is not None and extended.tls is not None:
                kept["extender certificate"] = partial(extended.tls.watch, _CERTIFICATE_POLL)
            if tls is not None:
                kept["certificate files"] = partial(tls.watch, _CERTIFICATE_POLL)
            if settings.policy_file:
                kept["policy file"] = partial(reload.watch, _POLICY_POLL)
            jobs = [tasks.create_task(informers.run())]
            jobs += [tasks.create_task(loops.keep(name, loop)) for name, loop in kept.items()]
            try:
                yield Running(core, informers, main, metrics, extender, registry, leave)
                await asyncio.gather(*(each.drain_and_stop() for each in (main, extender) if each is not None))
            finally:
                for job in jobs:
                    job.cancel()
    finally:
        await asyncio.gather(*(each.drain_and_stop() for each in (main, metrics, extender) if each is not None))


def _controlling(
    core: Core,
    informers: SharedInformers,
    reconcilers: Sequence[QuotaReconciler],
    rotator: CertRotator | None,
    webhooks: WebhookReconciler,
    loops: Loops,
    election: LeaderElection | None,
    alone: bool,
) -> dict[str, Callable[[], Awaitable[None]]]:
    """The controller's loops."""
    tasks_of_leader = LeaderTasks(core, informers, reconcilers, rotator, webhooks, loops, alone)
    if election is None:
        kept: dict[str, Callable[[], Awaitable[None]]] = {"duties": tasks_of_leader.run}
    else:
        kept = {"leader election": partial(election.run, tasks_of_leader.run)}
    return kept | ({"quotas": lambda: reconcile(informers, reconcilers)} if alone else {})


def _own_pod_loops(
    own_pod: OwnPod, informers: SharedInformers, settings: Settings, election: LeaderElection | None, alone: bool
) -> dict[str, Callable[[], Awaitable[None]]]:
    """The event on the process's own pod, and the label by which the Service of HAMi's chart selects it."""
    kept: dict[str, Callable[[], Awaitable[None]]] = {}
    if alone:
        kept["event on own pod"] = partial(own_pod.warn, "QuotaStatusForbidden", WITHOUT_STATUS)
    if settings.roles >= {"webhook", "extender"}:  # without the extender it may not write pods
        if election is not None:
            election.on_change = own_pod.changed

        async def keep_role() -> None:
            await informers.wait_synced()
            # accounts in memory are exact for one replica, which then gets all reviews
            await own_pod.keep_role(lambda: not alone or election is None or election.leading)

        kept["scheduler role"] = keep_role
    return kept


async def _start(informers: SharedInformers, showback: Showback) -> None:
    await informers.wait_synced()
    await showback.start()


async def _ticking(core: Core, requeue_trigger: RequeueTrigger | None) -> NoReturn:
    """Let what depends on time alone happen: handshakes expire, placements that were never bound lapse."""
    lapses = 0
    while True:
        await asyncio.sleep(_TICK)
        core.state.tick(core.clock())
        if requeue_trigger is not None and core.state.lapses > lapses:
            requeue_trigger.freed()
        lapses = core.state.lapses


@asynccontextmanager
async def _caches_set_aside(informers: SharedInformers) -> AsyncIterator[None]:
    """Keep the garbage collector from going through the caches: most of them lives as long as the process.

    In a large cluster each full collection would stop everything for a second, and make the start take longer.
    """

    async def set_aside() -> None:
        gc.disable()
        try:
            await informers.wait_synced()
        finally:
            gc.enable()
        gc.freeze()

    task = asyncio.create_task(set_aside())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _listen(listener: Listener, flag: str, address: ListenAddress) -> None:
    try:
        await listener.start()
    except OSError as error:
        cause = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        raise ConfigError([f"{flag} {address}: can't be listened on: {cause}"]) from error


async def serve(
    cluster: Cluster,
    vendors: Vendors,
    settings: Settings,
    *,
    policies: PolicyRules,
    clock: Callable[[], float] = time.time,
) -> None:
    """Run until SIGINT or SIGTERM. Requests in flight are finished, for `settings.shutdown_grace` at most.

    After SIGTERM a process that gets reviews goes on for `_LEAVING` seconds, or until a second signal, in which
    readiness fails and its Service forgets it.
    """
    leaving = min(settings.shutdown_grace, _LEAVING) if "webhook" in settings.roles else 0.0
    stop, at_once = asyncio.Event(), asyncio.Event()

    def signalled(number: signal.Signals) -> None:
        if stop.is_set() or number == signal.SIGINT:
            at_once.set()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled, number)
    try:
        async with (
            running(cluster, vendors, settings, policies=policies, clock=clock) as process,
            _caches_set_aside(process.informers),
        ):
            logger.warning(
                "serving %s on %s://%s:%d, metrics on port %d",
                ", ".join(sorted(settings.roles)),
                "https" if settings.tls else "http",
                settings.http_bind.host or "*",
                process.main.port,
                process.metrics.port,
            )
            await stop.wait()
            process.leave()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(leaving):
                    await at_once.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
