"""The tasks of the leader: quotas, handshakes, audits of nodes and namespaces, certificates, webhooks."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from hami_webhook.assembly import Core
from hami_webhook.config import Settings
from hami_webhook.controller import handshakes, mixed_managers, quotas, webhooks
from hami_webhook.controller.certificates import CertificateTarget, CertRotator
from hami_webhook.controller.handshakes import Handshakes
from hami_webhook.controller.informers import SharedInformers
from hami_webhook.controller.leader import LeaderElection
from hami_webhook.controller.loops import Loops
from hami_webhook.controller.mixed_managers import MixedManagerAudit
from hami_webhook.controller.namespaces import NamespaceAnnotations
from hami_webhook.controller.object_events import ObjectEvents
from hami_webhook.controller.quotas import QuotaReconciler
from hami_webhook.controller.showback import Showback
from hami_webhook.controller.webhooks import WebhookReconciler

_LEASE_SUFFIX = "-controller"
"""Distinguishes our Lease from that of the kube-scheduler in the same pod, which has the name in the settings."""


@dataclass(frozen=True, slots=True)
class LeaderTasks:
    """The tasks of the leader; `quotas_in_memory`: without quotas, which every replica then keeps by itself."""

    core: Core
    informers: SharedInformers
    reconcilers: Sequence[QuotaReconciler]
    rotator: CertRotator | None
    webhooks: WebhookReconciler
    loops: Loops
    quotas_in_memory: bool = False

    async def run(self) -> None:
        """Run all tasks until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self.rotator is not None:
                tasks.create_task(self.loops.keep("certificates", self.rotator.lead))
            tasks.create_task(self.loops.keep(webhooks.LOOP, self.webhooks.lead))
            await self.informers.wait_synced()
            tasks.create_task(self.loops.keep(handshakes.LOOP, Handshakes(self.core).run))
            tasks.create_task(self.loops.keep(mixed_managers.LOOP, MixedManagerAudit(self.core).run))
            tasks.create_task(self.loops.keep("namespace annotations", NamespaceAnnotations(self.core).run))
            if not self.quotas_in_memory:
                tasks.create_task(self.loops.keep(quotas.LOOP, lambda: reconcile(self.informers, self.reconcilers)))


async def reconcile(informers: SharedInformers, reconcilers: Sequence[QuotaReconciler]) -> None:
    """Reconcile the quotas until cancelled."""
    await informers.wait_synced()
    async with asyncio.TaskGroup() as tasks:
        for reconciler in reconcilers:
            reconciler.resync()
            tasks.create_task(reconciler.run())


def lease_of(settings: Settings) -> tuple[str, str]:
    """The namespace and the name of the Lease that replicas of the controller compete for."""
    return settings.leader_elect_resource_namespace, settings.leader_elect_resource_name + _LEASE_SUFFIX


def leader_election(core: Core, settings: Settings, showback: Showback) -> LeaderElection:
    namespace, name = lease_of(settings)
    object_events = ObjectEvents(core.cluster, core.problems)

    async def report(uid: str, problem: str) -> None:
        await object_events.warn("Lease", namespace, name, uid, "LeaseUnusable", problem)

    return LeaderElection(
        core.cluster,
        namespace,
        name,
        f"{settings.pod_name or socket.gethostname()}_{uuid.uuid4()}",
        clock=core.clock,
        monotonic=time.monotonic,
        report=report,
        annotations=showback.annotations,
        observed=showback.observe,
    )


def cert_rotator(core: Core, settings: Settings) -> CertRotator:
    target = CertificateTarget(
        settings.pod_namespace, settings.certificate_secret, settings.webhook_service, settings.webhook_configuration
    )
    return CertRotator(core.cluster, target, clock=core.clock, object_events=ObjectEvents(core.cluster, core.problems))


def webhook_reconciler(core: Core, settings: Settings, election: LeaderElection | None) -> WebhookReconciler:
    """Without an election this process is the only one."""
    object_events = ObjectEvents(core.cluster, core.problems)

    async def leads() -> bool:
        return election is None or await election.holds()

    return WebhookReconciler(core.cluster, settings.webhook_configuration, core.vendors, object_events, leads)
