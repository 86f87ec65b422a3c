"""Running the roles of one process until it is signalled to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector
from starlette.routing import Route

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Cluster
from hami_webhook.cluster.clock import ServerClock
from hami_webhook.cluster.quotas_in_memory import QuotasInMemory
from hami_webhook.config import ConfigError, Settings
from hami_webhook.config.go_syntax import ListenAddress
from hami_webhook.controller.informers import SharedInformers, watched_kinds
from hami_webhook.controller.own_pod import OwnPod
from hami_webhook.core_options import options_of
from hami_webhook.devices.registry import Vendors
from hami_webhook.loops import Loops
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.scheduling.requeue_trigger import RequeueTrigger
from hami_webhook.server.app import application
from hami_webhook.server.connections import connection_limit
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.listener import Listener
from hami_webhook.server.policy_reload import PolicySource
from hami_webhook.server.probes import BuildCollector, probe_routes
from hami_webhook.server.process_metrics import CoreCollector, ProcessCollector
from hami_webhook.server.request_metrics import new_registry
from hami_webhook.server.roles import Loop, OwnListener, Role, Shared
from hami_webhook.server.roles.controller import Controller, controller_of
from hami_webhook.server.roles.extender import ExtenderRole, extender_of, requeue_trigger
from hami_webhook.server.roles.own_pod import own_pod_of, own_pod_role
from hami_webhook.server.roles.webhook import webhook_role
from hami_webhook.server.tls import CertificateFiles, ReloadingTls
from hami_webhook.usage.api import PodUsages

logger = logging.getLogger(__name__)

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
    usages: PodUsages | None = None,
) -> AsyncIterator[Running]:
    """The servers and loops of a process, up while the block runs; ready once `informers` is synced.

    `policies` are those of the policy file as first read. `clock` gives Unix seconds, the same in all replicas.
    `usages` reads what is measured, where that can be asked for. Raises `ConfigError` where an address can't be
    listened on, and `TlsError`.
    """
    source = PolicySource(settings.policy_file, vendors.governed, policies)
    shared = _shared(cluster, vendors, settings, source, clock, usages)
    parts = _Parts.of(shared, source)
    core, informers, registry = shared.core, shared.informers, shared.registry
    roles = parts.roles()
    leaving = asyncio.Event()
    tls = _tls(settings)
    probes = probe_routes(registry, lambda: _not_ready(informers, leaving), parts.remark)
    routes = [*probes, *(route for role in roles for route in role.routes)]
    main = _listener(settings.http_bind, routes, replace(shared.limits, max_connections=connection_limit()), tls)
    metrics = _listener(settings.metrics_bind_address, probes, shared.limits)
    listeners = [
        OwnListener(main, "--http_bind", settings.http_bind),
        OwnListener(metrics, "--metrics-bind-address", settings.metrics_bind_address),
        *(listener for role in roles for listener in role.listeners),
    ]
    own = _process_role(shared, parts, main, tls, source)
    subscribers = [core, *(subscriber for role in roles for subscriber in role.subscribers)]
    for collector in (collector for role in (own, *roles) for collector in role.collectors):
        registry.register(collector)

    def leave() -> None:
        leaving.set()
        main.end_keep_alive()

    try:
        for each in listeners:
            await _listen(each)
        async with asyncio.TaskGroup() as tasks:
            keep = Loops(core.failures).keep
            loops = (keep(name, loop) for role in (own, *roles) for name, loop in role.loops.items())
            jobs = [tasks.create_task(job) for job in (informers.run(core.caches, core.failures, subscribers), *loops)]
            try:
                extender = parts.extender.listener if parts.extender is not None else None
                yield Running(core, informers, main, metrics, extender, registry, leave)
                ending = [each.listener for each in listeners if each.listener is not metrics]  # shown to the end
                await asyncio.gather(*(listener.drain_and_stop() for listener in ending))
            finally:
                for job in jobs:
                    job.cancel()
    finally:
        await asyncio.gather(*(each.listener.drain_and_stop() for each in listeners))


def _shared(
    cluster: Cluster,
    vendors: Vendors,
    settings: Settings,
    source: PolicySource,
    clock: Callable[[], float],
    usages: PodUsages | None,
) -> Shared:
    """What all roles are built from."""
    preempts = "extender" in settings.roles and settings.preemption != "off"
    charges = not {"webhook", "controller"}.isdisjoint(settings.roles)
    kinds = watched_kinds(vendors, disruption_budgets=preempts, charges=charges)
    informers = SharedInformers(cluster, kinds, clock=clock)
    options = options_of(settings)
    core = Core(cluster, vendors, options, clock=clock, policies=lambda: source.current, watches=informers)
    alone = isinstance(cluster, QuotasInMemory)  # then no other replica can correct these quotas
    return Shared(core, informers, settings, limits_of(settings), new_registry(), alone, usages)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the process itself asks of its roles; None of a role that it doesn't have."""

    shared: Shared
    own_pod: OwnPod | None
    controller: Controller | None
    trigger: RequeueTrigger
    extender: ExtenderRole | None

    @classmethod
    def of(cls, shared: Shared, source: PolicySource) -> _Parts:
        roles, own_pod, trigger = shared.settings.roles, own_pod_of(shared), requeue_trigger(shared.core)
        controller = controller_of(shared, own_pod) if "controller" in roles else None
        extender = extender_of(shared, trigger, lambda: source.current) if "extender" in roles else None
        return cls(shared, own_pod, controller, trigger, extender)

    def roles(self) -> list[Role]:
        """What each brings."""
        roles = [webhook_role(self.shared)] if "webhook" in self.shared.settings.roles else []
        roles += [each.role() for each in (self.extender, self.controller) if each is not None]
        if self.own_pod is not None:
            roles.append(own_pod_role(self.shared, self.own_pod, self._answers))
        return roles

    def remark(self) -> str:
        """What an administrator should see to."""
        return self.controller.webhooks.problem if self.controller is not None else ""

    def skews(self) -> Iterator[tuple[str, float]]:
        """By how many seconds the clock is ahead of others."""
        clock = self.shared.core.clock
        if isinstance(clock, ServerClock):
            yield "api-server", clock.skew
        election = self.controller.election if self.controller is not None else None
        if election is not None and election.skew is not None:
            yield "leader", election.skew

    async def report(self, problem: str) -> None:
        """Record that the policy file can't be used."""
        if self.own_pod is not None and self.controller is not None:
            await self.own_pod.record("PolicyFileRefused", problem)

    def _answers(self) -> bool:
        """Accounts in memory are exact for one replica, which then gets all reviews."""
        leads = self.controller.leading if self.controller is not None else not self.shared.settings.leader_elect
        return not self.shared.quotas_in_memory or leads


def _process_role(
    shared: Shared, parts: _Parts, main: Listener, tls: ReloadingTls | None, source: PolicySource
) -> Role:
    """What every process runs, whatever its roles."""
    core = shared.core
    loops: dict[str, Loop] = {"ticking": partial(_ticking, core, parts.trigger.freed)}
    if tls is not None:
        loops["certificate files"] = tls.watch
    if shared.settings.policy_file:
        loops["policy file"] = partial(source.watch, _POLICY_POLL, parts.report, parts.trigger.freed)
    backend = "memory" if shared.quotas_in_memory else "status"
    collectors: list[Collector] = [
        BuildCollector(core.problems, core.failures),
        CoreCollector(core, quota_backend=backend),
        ProcessCollector(main, tls, source, shared.informers, parts.skews),
    ]
    return Role(loops=loops, collectors=collectors)


def _listener(
    address: ListenAddress, routes: Sequence[Route], limits: ListenerLimits, tls: ReloadingTls | None = None
) -> Listener:
    return Listener(application(routes), host=address.host, port=address.port, limits=limits, tls=tls)


def _not_ready(informers: SharedInformers, leaving: asyncio.Event) -> str | None:
    """Why the process may not be sent reviews."""
    if leaving.is_set():
        return "shutting down"
    return None if informers.synced else "caches are not synced yet"


def _tls(settings: Settings) -> ReloadingTls | None:
    """Of the main listener. Raises `TlsError`."""
    if not settings.tls:
        return None
    client_ca = Path(settings.client_ca_file) if settings.client_ca_file else None
    return ReloadingTls(CertificateFiles(Path(settings.cert_file), Path(settings.key_file), client_ca))


async def _ticking(core: Core, freed: Callable[[], None]) -> NoReturn:
    """Expire handshakes, and placements that were never bound."""
    expirations = 0
    while True:
        await asyncio.sleep(_TICK)
        core.state.tick(core.clock())
        if core.state.expirations > expirations:
            freed()
        expirations = core.state.expirations


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


async def _listen(own: OwnListener) -> None:
    try:
        await own.listener.start()
    except OSError as error:
        cause = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        raise ConfigError([f"{own.flag} {own.address}: can't be listened on: {cause}"]) from error


async def serve(
    cluster: Cluster,
    vendors: Vendors,
    settings: Settings,
    *,
    policies: PolicyRules,
    clock: Callable[[], float] = time.time,
    usages: PodUsages | None = None,
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
            running(cluster, vendors, settings, policies=policies, clock=clock, usages=usages) as process,
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
