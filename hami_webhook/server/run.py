"""Running the roles of one process until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hami_webhook.admission.pods import AdmissionRules
from hami_webhook.admission.policy import Policies
from hami_webhook.assembly import Core, Options
from hami_webhook.cluster.api import Cluster
from hami_webhook.config import Settings
from hami_webhook.controller.feed import Feed
from hami_webhook.controller.quotas import Pace, QuotaReconciler
from hami_webhook.devices.registry import Vendors
from hami_webhook.placement import place
from hami_webhook.quota.recompute import Times
from hami_webhook.server.app import Doors
from hami_webhook.server.listener import Listener, ListenerLimits
from hami_webhook.server.metrics import CoreCollector, exposition
from hami_webhook.server.tls import CertificateFiles, ReloadingTls

logger = logging.getLogger(__name__)

_CERTIFICATE_POLL = 10.0


def options_of(settings: Settings) -> Options:
    """What the core needs of the settings."""
    return Options(
        rules=AdmissionRules(
            scheduler_name=settings.scheduler_name,
            force_overwrite_default_scheduler=settings.force_overwrite_default_scheduler,
            trusted_users=settings.trusted_users,
            trusted_groups=settings.trusted_groups,
        ),
        policies=place.Policies(settings.node_scheduler_policy, settings.gpu_scheduler_policy),
        times=Times(ttl=settings.quota_reservation_ttl, lapse=settings.node_lock_timeout),
        charge_timeout=settings.quota_charge_timeout,
        max_ledger=settings.quota_max_ledger,
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


@dataclass(frozen=True, slots=True)
class Running:
    """A process at work: its core, and the ports its servers got."""

    core: Core
    main: Listener
    metrics: Listener
    leave: Callable[[], None]


@asynccontextmanager
async def running(
    cluster: Cluster,
    vendors: Vendors,
    settings: Settings,
    *,
    policies: Callable[[], Policies] = lambda: Policies.EMPTY,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[Running]:
    """The servers and loops of a process, up while the block runs. Raises `OSError` and `TlsError` where they can't start."""
    leaving: list[bool] = []
    feed: Feed | None = None

    def not_ready() -> str | None:
        if leaving:
            return "shutting down"
        return None if feed is not None and feed.synced else "caches are not synced yet"

    core = Core(
        cluster,
        vendors,
        options_of(settings),
        clock=clock,
        policies=policies,
        synced=lambda: feed is not None and feed.synced,
    )
    controls = "controller" in settings.roles
    reconciler = QuotaReconciler(
        core, Pace(settings.quota_debounce, settings.quota_resync, settings.quota_reservation_ttl)
    )
    feed = Feed(core, reconciler if controls else None)
    limits = limits_of(settings)
    doors = Doors(core.gate, limits, ready=not_ready, metrics=lambda: exposition(collector))
    collector = CoreCollector(core, doors.counts)
    tls = None
    if settings.tls:
        client_ca = Path(settings.client_ca_file) if settings.client_ca_file else None
        tls = ReloadingTls(CertificateFiles(Path(settings.cert_file), Path(settings.key_file), client_ca))
    exempt = ("/healthz", "/readyz")
    main = Listener(
        doors.application(),
        host=settings.http_bind.host,
        port=settings.http_bind.port,
        limits=limits,
        tls=tls,
        exempt=exempt,
    )
    metrics = Listener(
        doors.metrics_application(),
        host=settings.metrics_bind_address.host,
        port=settings.metrics_bind_address.port,
        limits=limits,
        exempt=exempt,
    )

    def leave() -> None:
        leaving.append(True)
        main.end_keep_alive()

    async with asyncio.TaskGroup() as tasks:
        jobs = [tasks.create_task(feed.run())]
        if controls:
            jobs.append(tasks.create_task(reconciler.run()))
        if tls is not None:
            jobs.append(tasks.create_task(tls.watch(_CERTIFICATE_POLL)))
        try:
            await main.start()
            await metrics.start()
            await feed.wait_synced()
            yield Running(core, main, metrics, leave)
        finally:
            await main.drain_and_stop()
            await metrics.drain_and_stop()
            for job in jobs:
                job.cancel()


async def serve(
    cluster: Cluster, vendors: Vendors, settings: Settings, *, policies: Callable[[], Policies], drain: float
) -> None:
    """Run until SIGINT (at once) or SIGTERM (readiness fails first, for `drain` seconds)."""
    stop = asyncio.Event()
    slowly: list[bool] = []

    def on_sigterm() -> None:
        slowly.append(True)
        stop.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGTERM, on_sigterm)
    async with running(cluster, vendors, settings, policies=policies) as process:
        scheme = "https" if settings.tls else "http"
        logger.warning(
            "serving %s on %s://%s:%d, metrics on port %d",
            ", ".join(sorted(settings.roles)),
            scheme,
            settings.http_bind.host or "*",
            process.main.port,
            process.metrics.port,
        )
        await stop.wait()
        if slowly:
            process.leave()
            loop.remove_signal_handler(signal.SIGINT)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(drain)
