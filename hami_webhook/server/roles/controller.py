"""The role `controller`: the loops that one of the processes runs, the leader, and the metrics of the cluster."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hami_webhook.assembly import Core
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.config import Settings
from hami_webhook.controller import (
    claim_templates,
    device_classes,
    handshakes,
    idle_pods,
    node_audit,
    placeholders,
    pod_group_events,
    quotas,
    runtime_events,
    webhooks,
)
from hami_webhook.controller.accelerator_quotas import AcceleratorQuotaReconciler
from hami_webhook.controller.certificates import CertificateTarget, CertRotator
from hami_webhook.controller.claim_templates import ClaimTemplates
from hami_webhook.controller.device_classes import DeviceClassEvents
from hami_webhook.controller.handshakes import Handshakes
from hami_webhook.controller.idle_pods import IdlePods
from hami_webhook.controller.leader import LeaderElection, LeaseHooks, LeaseLock, lease_of
from hami_webhook.controller.namespaces import NamespaceAnnotations
from hami_webhook.controller.node_audit import NodeAudit
from hami_webhook.controller.own_pod import OwnPod
from hami_webhook.controller.placeholders import PlaceholderLimits, Placeholders
from hami_webhook.controller.pod_group_events import PodGroupEvents
from hami_webhook.controller.quotas import QuotaReconciler, ReconcileIntervals
from hami_webhook.controller.runtime_events import RuntimeEvents
from hami_webhook.controller.showback import Showback
from hami_webhook.controller.webhooks import WebhookReconciler
from hami_webhook.loops import Loops
from hami_webhook.queueing import reclaim, releaser, reports
from hami_webhook.queueing.reclaim import Reclaimer
from hami_webhook.queueing.releaser import QueueReleaser
from hami_webhook.queueing.reports import QueueReports
from hami_webhook.server.cluster_metrics import ClusterCollector
from hami_webhook.server.process_metrics import ControllerCollector
from hami_webhook.server.roles import Loop, Role, Shared


@dataclass(frozen=True, slots=True)
class Controller:
    """Without an `election` this process is the only one, and leads."""

    shared: Shared
    reconcilers: Sequence[QuotaReconciler]
    releaser: QueueReleaser
    reclaimer: Reclaimer
    group_events: PodGroupEvents
    runtime_events: RuntimeEvents
    templates: ClaimTemplates
    class_events: DeviceClassEvents
    showback: Showback
    election: LeaderElection | None
    webhooks: WebhookReconciler
    rotator: CertRotator | None
    placeholders: Placeholders | None
    loops: Loops

    @property
    def leading(self) -> bool:
        """Whether this process is the leader."""
        return self.election is None or self.election.leading

    def role(self) -> Role:
        """What the process runs for it."""
        shared = self.shared
        loops: dict[str, Loop] = {"showback": self._count}
        if self.election is None:
            loops["duties"] = self._lead
        else:
            loops["leader election"] = partial(self.election.run, self._lead)
        if shared.quotas_in_memory:
            loops["quotas"] = self._reconcile
        return Role(
            loops=loops,
            collectors=[
                ClusterCollector(
                    shared.core.view,
                    self.showback,
                    lambda: self.leading and shared.informers.synced,
                    legacy=shared.settings.legacy_metrics,
                ),
                ControllerCollector(
                    self.reconcilers,
                    self.webhooks,
                    self.reclaimer,
                    lambda: self.leading,
                    self.releaser.start_errors,
                ),
            ],
            subscribers=[
                self.showback,
                *self.reconcilers,
                self.releaser,
                self.group_events,
                self.runtime_events,
                self.templates,
                self.class_events,
            ],
        )

    async def _count(self) -> None:
        await self.shared.informers.wait_synced()
        await self.showback.start()

    async def _lead(self) -> None:
        """The tasks of the leader, until cancelled; without quotas where every process keeps them by itself."""
        core, keep = self.shared.core, self.loops.keep
        view, failures = core.view, core.failures
        async with asyncio.TaskGroup() as tasks:
            if self.rotator is not None:
                tasks.create_task(keep("certificates", self.rotator.lead))
            tasks.create_task(keep(webhooks.LOOP, self.webhooks.lead))
            await self.shared.informers.wait_synced()
            tasks.create_task(keep(handshakes.LOOP, Handshakes(core.cluster, view, failures).run))
            audit = NodeAudit(view, _object_events(core), failures)
            tasks.create_task(keep(node_audit.LOOP, audit.run))
            tasks.create_task(keep("namespace annotations", NamespaceAnnotations(view, _object_events(core)).run))
            tasks.create_task(keep(device_classes.LOOP, self.class_events.run))
            tasks.create_task(keep(releaser.LOOP, self.releaser.run))
            tasks.create_task(keep(reclaim.LOOP, self.reclaimer.run))
            queue_reports = QueueReports(
                core.cluster, view, self.releaser, _object_events(core), lambda: self.reclaimer.notes
            )
            tasks.create_task(keep(reports.LOOP, queue_reports.run))
            tasks.create_task(keep(pod_group_events.LOOP, self.group_events.run))
            tasks.create_task(keep(runtime_events.LOOP, self.runtime_events.run))
            if self.shared.usages is not None:
                idle = IdlePods(core.cluster, view, self.shared.usages, _object_events(core))
                tasks.create_task(keep(idle_pods.LOOP, idle.run))
            if self.placeholders is not None:
                tasks.create_task(keep(placeholders.LOOP, self.placeholders.run))
            if self.templates.enabled:
                tasks.create_task(keep(claim_templates.LOOP, self.templates.run))
            if not self.shared.quotas_in_memory:
                tasks.create_task(keep(quotas.LOOP, self._reconcile))

    async def _reconcile(self) -> None:
        """Reconcile the quotas until cancelled."""
        await self.shared.informers.wait_synced()
        async with asyncio.TaskGroup() as tasks:
            for reconciler in self.reconcilers:
                reconciler.resync()
                tasks.create_task(reconciler.run())


def controller_of(shared: Shared, own_pod: OwnPod | None) -> Controller:
    """The controller as the settings describe it; the label on the own pod follows who leads."""
    core, settings = shared.core, shared.settings
    showback = Showback(core.view)
    releaser = QueueReleaser(core.cluster, core.view, core.charger, core.capacity, core.failures)
    election = _leader_election(core, settings, showback, own_pod) if settings.leader_elect else None
    pace = ReconcileIntervals(settings.quota_debounce, settings.quota_resync, settings.quota_reservation_ttl)
    return Controller(
        shared,
        [
            QuotaReconciler(core.recomputer, core.view, _object_events(core), core.failures, pace),
            AcceleratorQuotaReconciler(
                core.accelerator_recomputer, core.view, _object_events(core), core.failures, pace
            ),
        ],
        releaser,
        Reclaimer(
            core.cluster,
            core.view,
            releaser,
            core.charger,
            core.nominations,
            core.limits,
            _object_events(core),
            core.failures,
        ),
        PodGroupEvents(core.view, _object_events(core)),
        RuntimeEvents(core.caches, _object_events(core), core.clock),
        ClaimTemplates(core.cluster, core.view, settings.claims, _object_events(core), core.failures),
        DeviceClassEvents(core.view, _object_events(core)),
        showback,
        election,
        _webhook_reconciler(core, settings, election),
        _cert_rotator(core, settings) if settings.certificate_secret else None,
        _placeholders(core, settings) if settings.placeholders else None,
        Loops(core.failures),
    )


def _leader_election(core: Core, settings: Settings, showback: Showback, own_pod: OwnPod | None) -> LeaderElection:
    lease, object_events = lease_of(settings), _object_events(core)

    async def report(uid: str, problem: str) -> None:
        await object_events.warn("Lease", lease.namespace, lease.name, uid, "LeaseUnusable", problem)

    def changed(leading: bool) -> None:
        if own_pod is not None:
            own_pod.changed()

    return LeaderElection(
        core.cluster,
        LeaseLock(lease, f"{settings.pod_name or socket.gethostname()}_{uuid.uuid4()}"),
        clock=core.clock,
        monotonic=time.monotonic,
        hooks=LeaseHooks(report, showback.annotations, showback.observe, changed),
    )


def _cert_rotator(core: Core, settings: Settings) -> CertRotator:
    target = CertificateTarget(
        settings.pod_namespace, settings.certificate_secret, settings.webhook_service, settings.webhook_configuration
    )
    return CertRotator(core.cluster, target, clock=core.clock, object_events=_object_events(core))


def _webhook_reconciler(core: Core, settings: Settings, election: LeaderElection | None) -> WebhookReconciler:
    async def leads() -> bool:
        return election is None or await election.holds()

    return WebhookReconciler(
        core.cluster,
        settings.webhook_configuration,
        core.vendors,
        _object_events(core),
        leads,
        lambda: core.caches.claims.inventory.extended,
        lambda: core.caches.accelerator_quotas.counted_labels,
    )


def _placeholders(core: Core, settings: Settings) -> Placeholders:
    limits = PlaceholderLimits(
        settings.placeholders,
        settings.placeholders_per_group,
        settings.placeholder_timeout,
        settings.placeholder_image,
        settings.pod_namespace,
        settings.scheduler_name,
        settings.gpu_scheduler_policy,
        settings.preemption == "on",
    )
    return Placeholders(core, limits, _object_events(core))


def _object_events(core: Core) -> ObjectEvents:
    return ObjectEvents(core.cluster, core.problems)
