"""The role `extender`: what kube-scheduler asks, on a listener of its own or on the main one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from hami_webhook.admission.identities import claims_profile
from hami_webhook.assembly import Core
from hami_webhook.cluster.kubernetes import REQUEST_TIMEOUT
from hami_webhook.config import Settings
from hami_webhook.devices.lock_annotations import NodeLock
from hami_webhook.devices.registry import Vendors
from hami_webhook.evictions.decisions import Decisions
from hami_webhook.evictions.pod_preemption import Preemption
from hami_webhook.kube.objects import Pod
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.scheduling.capacity_notifier import CapacityNotifier
from hami_webhook.scheduling.extender import Extender
from hami_webhook.scheduling.extender_metrics import ExtenderMetrics
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.left_locks import release_left_locks
from hami_webhook.scheduling.node_locks import NodeLocks, ShownNodes
from hami_webhook.scheduling.placer import LockedNodes
from hami_webhook.scheduling.requeue_trigger import RequeueTrigger
from hami_webhook.server.extender_app import MAX_BODY, ExtenderApp
from hami_webhook.server.listener import Listener
from hami_webhook.server.process_metrics import PreemptionCollector
from hami_webhook.server.request_metrics import RequestMetrics
from hami_webhook.server.roles import Loop, OwnListener, Role, Shared
from hami_webhook.server.tls import CertificateFiles, ReloadingTls


@dataclass(frozen=True, slots=True)
class ExtenderRole:
    """The extender of a process. `trigger` is what makes kube-scheduler try again; `tls` reloads itself in a loop."""

    shared: Shared
    extender: Extender
    trigger: RequeueTrigger
    schedulers: Callable[[], Collection[str]]
    preemption: Preemption | None
    app: ExtenderApp
    listener: Listener | None
    tls: ReloadingTls | None

    def role(self) -> Role:
        """What the process runs for it."""
        loops: dict[str, Loop] = {
            "scheduler wake-up": self.requeue,
            "locks left of binds": self.release_left_locks,
            "pod groups": self.extender.groups.run,
        }
        settings, listeners = self.shared.settings, []
        if self.preemption is not None:
            loops["preemption"] = self.preemption.decisions.run
        if self.tls is not None:
            loops["extender certificate"] = self.tls.watch
        if self.listener is not None and settings.extender_bind_address is not None:
            listeners = [OwnListener(self.listener, settings.extender_flag, settings.extender_bind_address)]
        # who isn't on loopback has shown a certificate to the main server, or has to send the token
        guarded = bool(settings.extender_token_file or settings.client_ca_file)
        return Role(
            routes=self.app.routes(loopback_only=not guarded) if settings.extender_on_main else (),
            listeners=listeners,
            loops=loops,
            collectors=[] if self.preemption is None else [PreemptionCollector(self.preemption.decisions)],
            subscribers=[CapacityNotifier(self.trigger, self.shared.core.vendors)],
        )

    async def requeue(self) -> NoReturn:
        """Keep kube-scheduler trying the pods that were refused, by a former process too."""
        await self.shared.informers.wait_synced()
        named, core = self.schedulers(), self.shared.core
        self.trigger.resume(pod.uid for pod in core.state.pods() if _may_have_been_refused(core.vendors, pod, named))
        await self.trigger.run()

    async def release_left_locks(self) -> NoReturn:
        """Release what binds left that broke off."""
        core, settings = self.shared.core, self.shared.settings
        await self.shared.informers.wait_synced()
        await release_left_locks(
            self.extender.locks,
            core.state,
            _locks_of(core.vendors),
            request_timeout=settings.kube_timeout or REQUEST_TIMEOUT,
            patience=settings.node_lock_retry_timeout,
        )


def requeue_trigger(core: Core) -> RequeueTrigger:
    """It touches the first node that has cards."""
    return RequeueTrigger(
        core.cluster,
        lambda: next((view.name for view in core.state.views() if view.inventories), None),
        clock=core.clock,
    )


def extender_of(shared: Shared, trigger: RequeueTrigger, policies: Callable[[], PolicyRules]) -> ExtenderRole:
    """The extender as the settings describe it. Raises `TlsError`."""
    core, informers, settings = shared.core, shared.informers, shared.settings

    def schedulers() -> set[str]:
        """The names that admission gives: of the settings, and of policies; none where it leaves the pod's own."""
        if not settings.scheduler_name:
            return set()
        named = {rule.scheduler_name for rule in policies().rules if rule.scheduler_name}
        return {settings.scheduler_name, claims_profile(settings.scheduler_name), *named}

    handle = Handle(
        core.cluster,
        core.state,
        core.vendors,
        core.clock,
        ready=informers.wait_synced,
        quotas=core.caches.covering,
        pods_complete=informers.pods_complete,
        disruption_budgets=core.caches.disruption_budgets.values,
    )
    locks = NodeLocks(
        core.cluster,
        clock=core.clock,
        expires=settings.node_lock_timeout,
        patience=settings.node_lock_retry_timeout,
        shown=ShownNodes.of(core.state),
        annotations={lock.annotation for lock in _locks_of(core.vendors)},
    )
    core.state.watch_nodes(locks.node_changed)
    placer = core.placer_for(handle, lambda pod: LockedNodes(locks.busy, locks.contended, locks.held_by(pod)))
    preemption = None
    if settings.preemption != "off":
        dry_run = settings.preemption == "dry-run"
        decisions = Decisions(handle, placer, core.nominations, core.limits, trigger, dry_run=dry_run)
        preemption = Preemption(handle, placer, decisions)
    extender = Extender(
        handle,
        placer,
        locks,
        trigger,
        single=settings.extender_mode == "single",
        schedulers=schedulers,
        preemption=preemption,
        metrics=ExtenderMetrics(shared.registry),
    )
    limits = replace(shared.limits, max_request_bytes=max(shared.limits.max_request_bytes, MAX_BODY))
    requests = RequestMetrics(shared.registry, "hami_webhook_extender", "extender request")
    app = ExtenderApp(extender, limits, requests, settings.extender_token_file)
    listener = tls = None
    if (address := settings.extender_bind_address) is not None:
        tls = _tls(settings)
        listener = Listener(app.application(), host=address.host, port=address.port, limits=limits, tls=tls)
    return ExtenderRole(shared, extender, trigger, schedulers, preemption, app, listener, tls)


def _tls(settings: Settings) -> ReloadingTls | None:
    """Of its own listener."""
    if not settings.extender_tls:
        return None
    client_ca = Path(settings.extender_client_ca_file) if settings.extender_client_ca_file else None
    return ReloadingTls(CertificateFiles(Path(settings.cert_file), Path(settings.key_file), client_ca))


def _locks_of(vendors: Vendors) -> set[NodeLock]:
    return {vendor.lock for vendor in vendors.values() if vendor.lock is not None}


def _may_have_been_refused(vendors: Vendors, pod: Pod, schedulers: Collection[str]) -> bool:
    """Whether kube-scheduler asks us for a place for the pod; `schedulers` are the names it has, none for any."""
    waits = not (pod.node_name or pod.terminal or pod.gated or pod.deletion_time is not None)
    ours = not schedulers or pod.scheduler_name in schedulers
    return waits and ours and not pod.named.isdisjoint(vendors.own_names)
