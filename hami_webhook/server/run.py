"""Running the roles of one process until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.assembly import Core, Options
from hami_webhook.cluster.api import Cluster, ClusterError, EventNote
from hami_webhook.cluster.quotas_in_memory import WITHOUT_STATUS, QuotasInMemory
from hami_webhook.config import ConfigError, Settings, read_text
from hami_webhook.config.go_syntax import ListenAddress
from hami_webhook.controller.certificates import CertRotator
from hami_webhook.controller.informers import SharedInformers
from hami_webhook.controller.leader import LeaderElection
from hami_webhook.controller.leader_tasks import (
    LeaderTasks,
    certificate_keeper,
    leader_election,
    reconcile,
    webhook_reconciler,
)
from hami_webhook.controller.loops import Loops
from hami_webhook.controller.own_pod import OwnPod
from hami_webhook.controller.quotas import Pace, QuotaReconciler
from hami_webhook.controller.requeue_trigger import RequeueTrigger
from hami_webhook.controller.webhooks import WebhookReconciler
from hami_webhook.devices.registry import Vendors
from hami_webhook.policy.file import PolicySource
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.quota.recompute import Times
from hami_webhook.scheduling import placer
from hami_webhook.server.app import Sources, WebhookApp
from hami_webhook.server.connections import connection_limit
from hami_webhook.server.extender_server import ExtenderServer, a_node, extender_server
from hami_webhook.server.listener import Listener, ListenerLimits
from hami_webhook.server.metrics import CoreCollector, Number, exposition
from hami_webhook.server.tls import CertificateFiles, ReloadingTls

logger = logging.getLogger(__name__)

_CERTIFICATE_POLL = 2.0
_TICK = 5.0
_POLICY_POLL = 5.0
_LEAVING = 5.0
"""Seconds until every API server knows that a replica has left its Service."""

_Reading = tuple[str | None, str]
"""What a file holds, or why it can't be read."""


def options_of(settings: Settings) -> Options:
    """What the core needs of the settings."""
    return Options(
        rules=AdmissionRules(
            scheduler_name=settings.scheduler_name,
            force_overwrite_default_scheduler=settings.force_overwrite_default_scheduler,
            trusted_users=settings.trusted_users,
            trusted_groups=settings.trusted_groups,
            foreign_users=settings.foreign_users,
        ),
        policies=placer.SchedulingPolicies(settings.node_scheduler_policy, settings.gpu_scheduler_policy),
        times=Times(ttl=settings.quota_reservation_ttl, lapse=settings.node_lock_timeout),
        charge_timeout=settings.quota_charge_timeout,
        max_ledger=settings.quota_max_ledger,
        node_labels=settings.node_label_selector,
    )


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


class PolicyReload:
    """Puts a changed policy file in force, and calls `replaced` then.

    A text that can't be used changes nothing but `failures` and `problem`.
    """

    def __init__(
        self,
        path: str,
        source: PolicySource,
        report: Callable[[str], Awaitable[None]],
        replaced: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._source = source
        self._report = report
        self._replaced = replaced
        self._before: _Reading | None = None
        self._judged: _Reading | None = None
        self.failures = 0
        self.problem: str | None = None

    async def look(self) -> None:
        """Read the file once. What was read twice alike counts, so that half a file doesn't."""
        try:
            now: _Reading = (read_text(self._path), "")
        except ConfigError as error:
            now = (None, str(error))
        stable, self._before = now == self._before, now
        if not stable or now == self._judged:
            return
        self._judged = now
        text, problem = now
        self.problem = problem if text is None else self._source.replace_from(text)
        if self.problem is None:
            logger.info("policy file %s is in force: %d rules", self._path, len(self._source.current.rules))
            self._replaced()
            return
        self.failures += 1
        logger.warning("policy file not reloaded, the rules before stay in force: %s", self.problem)
        await self._report(self.problem)

    async def watch(self, interval: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> NoReturn:
        """`look` every `interval` seconds, until cancelled."""
        while True:
            await sleep(interval)
            await self.look()


@dataclass(frozen=True, slots=True)
class Running:
    """A process at work: its core and the caches' feed, and its servers with the ports they got.

    `leave` lets readiness fail and ends connections with their next answer, ahead of the end.
    """

    core: Core
    feed: SharedInformers
    main: Listener
    metrics: Listener
    extender: Listener | None
    collector: CoreCollector
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
    """The servers and loops of a process, up while the block runs; ready once `feed` is synced.

    `policies` are those of the policy file as first read. Raises `ConfigError` where an address can't be listened on,
    and `TlsError`.
    """
    leaving = asyncio.Event()
    feed: SharedInformers | None = None
    source = PolicySource(settings.policy_file, vendors.governed, policies)

    def not_ready() -> str | None:
        if leaving.is_set():
            return "shutting down"
        return None if feed is not None and feed.synced else "caches are not synced yet"

    async def report(problem: str) -> None:
        if settings.pod_name and "controller" in settings.roles:
            note = EventNote(
                "Pod", settings.pod_namespace, settings.pod_name, "", "Warning", "PolicyFileRefused", problem
            )
            with contextlib.suppress(ClusterError):
                await cluster.record_event(note)

    core = Core(
        cluster,
        vendors,
        options_of(settings),
        clock=clock,
        policies=lambda: source.current,
        synced=lambda: feed is not None and feed.synced,
    )
    reconciler = None
    if "controller" in settings.roles:
        pace = Pace(settings.quota_debounce, settings.quota_resync, settings.quota_reservation_ttl)
        reconciler = QuotaReconciler(core, pace)
    requeue_trigger = (
        RequeueTrigger(cluster, lambda: a_node(core), clock=clock) if "extender" in settings.roles else None
    )
    feed = SharedInformers(core, reconciler, requeue_trigger)
    limits = limits_of(settings)
    webhooks = webhook_reconciler(core, settings)
    doors = WebhookApp(
        core.admission,
        limits,
        ready=not_ready,
        remark=lambda: webhooks.problem,
        metrics=lambda: exposition(collector),
        sources=Sources(settings.api_server_cidrs),
    )
    replaced = requeue_trigger.freed if requeue_trigger is not None else lambda: None
    reload = PolicyReload(settings.policy_file, source, report, replaced)
    keeper = certificate_keeper(core, settings) if settings.certificate_secret else None
    extended = None
    if requeue_trigger is not None:
        extended = extender_server(core, feed, requeue_trigger, settings, limits, lambda: source.current)
    main_routes = extended.main_routes if extended is not None else ()
    tls = None
    if settings.tls:
        client_ca = Path(settings.client_ca_file) if settings.client_ca_file else None
        tls = ReloadingTls(CertificateFiles(Path(settings.cert_file), Path(settings.key_file), client_ca))
    main = Listener(
        (doors.application if "webhook" in settings.roles else doors.metrics_application)(*main_routes),
        host=settings.http_bind.host,
        port=settings.http_bind.port,
        limits=replace(limits, max_connections=connection_limit()),
        tls=tls,
    )
    metrics = Listener(
        doors.metrics_application(),
        host=settings.metrics_bind_address.host,
        port=settings.metrics_bind_address.port,
        limits=limits,
    )
    alone = isinstance(cluster, QuotasInMemory)  # then nobody else can put these books right
    election = leader_election(core, settings) if settings.leader_elect else None
    extender = extended.listener if extended is not None else None
    collector = CoreCollector(
        core,
        doors.counts,
        lambda: _numbers(main, tls, source, reload, reconciler, webhooks, election, extended),
        extender=extended.counts if extended is not None else None,
        legacy=settings.legacy_metrics,
        quota_backend="memory" if alone else "status",
    )

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
            if reconciler is not None:
                kept |= _controlling(core, feed, reconciler, keeper, webhooks, loops, election, alone)
            kept |= _about_own_pod(core, feed, settings, election, alone)
            if requeue_trigger is not None:
                kept["scheduler wake-up"] = requeue_trigger.run
            if extended is not None and extended.tls is not None:
                kept["extender certificate"] = partial(extended.tls.watch, _CERTIFICATE_POLL)
            if tls is not None:
                kept["certificate files"] = partial(tls.watch, _CERTIFICATE_POLL)
            if settings.policy_file:
                kept["policy file"] = partial(reload.watch, _POLICY_POLL)
            jobs = [tasks.create_task(feed.run())]
            jobs += [tasks.create_task(loops.keep(name, loop)) for name, loop in kept.items()]
            try:
                yield Running(core, feed, main, metrics, extender, collector, leave)
                await asyncio.gather(*(each.drain_and_stop() for each in (main, extender) if each is not None))
            finally:
                for job in jobs:
                    job.cancel()
    finally:
        await asyncio.gather(*(each.drain_and_stop() for each in (main, metrics, extender) if each is not None))


def _controlling(
    core: Core,
    feed: SharedInformers,
    reconciler: QuotaReconciler,
    keeper: CertRotator | None,
    webhooks: WebhookReconciler,
    loops: Loops,
    election: LeaderElection | None,
    alone: bool,
) -> dict[str, Callable[[], Awaitable[None]]]:
    """The controller's loops."""
    duties = LeaderTasks(core, feed, reconciler, keeper, webhooks, loops, alone)
    if election is None:
        kept: dict[str, Callable[[], Awaitable[None]]] = {"duties": duties.do}
    else:
        kept = {"leader election": partial(election.run, duties.do)}
    return kept | ({"quotas": lambda: reconcile(feed, reconciler)} if alone else {})


def _about_own_pod(
    core: Core, feed: SharedInformers, settings: Settings, election: LeaderElection | None, alone: bool
) -> dict[str, Callable[[], Awaitable[None]]]:
    """What is told of the process's own pod, and the label that has HAMi's chart send it reviews."""
    kept: dict[str, Callable[[], Awaitable[None]]] = {}
    if not settings.pod_name or settings.roles == {"webhook"}:  # which may record no event
        return kept
    own = OwnPod(core, settings.pod_namespace, settings.pod_name)
    if alone:
        kept["event on own pod"] = partial(own.warn, "QuotaStatusForbidden", WITHOUT_STATUS)
    if settings.roles >= {"webhook", "extender"}:  # without the extender it may not write pods

        async def keep_role() -> None:
            await feed.wait_synced()
            # books in memory are exact for one replica, which then gets all reviews
            await own.keep_role(lambda: not alone or election is None or election.leading)

        kept["scheduler role"] = keep_role
    return kept


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
async def _caches_set_aside(feed: SharedInformers) -> AsyncIterator[None]:
    """Keep the garbage collector from going through the caches: most of them lives as long as the process.

    In a large cluster each full collection would stop everything for a second, and make the start take longer.
    """

    async def set_aside() -> None:
        gc.disable()
        try:
            await feed.wait_synced()
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


def _numbers(
    main: Listener,
    tls: ReloadingTls | None,
    source: PolicySource,
    reload: PolicyReload,
    reconciler: QuotaReconciler | None,
    webhooks: WebhookReconciler,
    election: LeaderElection | None,
    extended: ExtenderServer | None,
) -> Iterator[Number]:
    """What the process itself has to tell."""
    leading = 1.0 if reconciler is not None and (election is None or election.leading) else 0.0
    if extended is not None:
        counts = extended.extender.counts
        yield Number("hami_webhook_extender_filtered_total", "Pods that nodes were sought for.", counts.filtered)
        yield Number("hami_webhook_extender_refused_total", "Pods that no node took.", counts.refused)
        yield Number("hami_webhook_extender_bound_total", "Pods bound.", counts.bound)
        yield Number("hami_webhook_extender_bind_failures_total", "Binds that failed.", counts.bind_failures)
    yield Number("hami_webhook_leader", "1 while this process reconciles quotas.", leading)
    if reconciler is not None:
        yield Number("hami_webhook_quota_expired_total", "Charges whose pod never came.", reconciler.expired)
        yield Number(
            "hami_webhook_quota_drift_total", "Recomputes that corrected used for no event.", reconciler.drifted
        )
        yield Number(
            "hami_webhook_wrong_webhook_configurations",
            "Webhook configurations whose conditions aren't known to be right and can't be put right.",
            webhooks.problems,
        )
    yield Number("hami_webhook_refused_total", "Requests and connections beyond the limits.", main.refused)
    yield Number("hami_webhook_policy_rules", "Rules of the policy file in force.", len(source.current.rules))
    yield Number("hami_webhook_policy_failures_total", "Policy files that could not be used.", reload.failures)
    if tls is not None:
        yield Number("hami_webhook_tls_failed_handshakes_total", "TLS handshakes that failed.", main.failed_handshakes)
        yield Number("hami_webhook_tls_reloads_total", "Certificates taken into use since the start.", tls.reloads)
        yield Number("hami_webhook_tls_failures_total", "Certificates that could not be used.", tls.failures)
        yield Number(
            "hami_webhook_tls_not_after_seconds", "End of the certificate's life.", tls.leaf.not_after.timestamp()
        )


async def serve(cluster: Cluster, vendors: Vendors, settings: Settings, *, policies: PolicyRules) -> None:
    """Run until SIGINT or SIGTERM. Requests in flight are finished, for `settings.shutdown_grace` at most.

    After SIGTERM a process that gets reviews goes on for `_LEAVING` seconds, or until a second signal, in which
    readiness fails and its Service forgets it.
    """
    leaving = min(settings.shutdown_grace, _LEAVING) if "webhook" in settings.roles else 0.0
    stop, at_once = asyncio.Event(), asyncio.Event()

    def told(number: signal.Signals) -> None:
        if stop.is_set() or number == signal.SIGINT:
            at_once.set()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told, number)
    try:
        async with running(cluster, vendors, settings, policies=policies) as process, _caches_set_aside(process.feed):
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
