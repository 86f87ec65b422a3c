"""What one replica at a time does: quotas, handshakes, remarks on nodes and namespaces, certificates, webhooks."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
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
from hami_webhook.controller.webhooks import WebhookReconciler

_LEASE_SUFFIX = "-controller"
"""Sets our lease apart from that of the kube-scheduler beside us, which has the name the settings give."""


@dataclass(frozen=True, slots=True)
class LeaderTasks:
    """What one replica at a time does; `each_for_itself`: but for the quotas, which every one keeps in its memory."""

    core: Core
    feed: SharedInformers
    reconciler: QuotaReconciler
    keeper: CertRotator | None
    webhooks: WebhookReconciler
    loops: Loops
    each_for_itself: bool = False

    async def do(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self.keeper is not None:
                tasks.create_task(self.loops.keep("certificates", self.keeper.lead))
            tasks.create_task(self.loops.keep(webhooks.LOOP, self.webhooks.lead))
            await self.feed.wait_synced()
            tasks.create_task(self.loops.keep(handshakes.LOOP, Handshakes(self.core).run))
            tasks.create_task(self.loops.keep(mixed_managers.LOOP, MixedManagerAudit(self.core).run))
            tasks.create_task(self.loops.keep("namespace annotations", NamespaceAnnotations(self.core).run))
            if not self.each_for_itself:
                tasks.create_task(self.loops.keep(quotas.LOOP, lambda: reconcile(self.feed, self.reconciler)))


async def reconcile(feed: SharedInformers, reconciler: QuotaReconciler) -> None:
    """Keep the quotas right until cancelled."""
    await feed.wait_synced()
    reconciler.resync()
    await reconciler.run()


def leader_election(core: Core, settings: Settings) -> LeaderElection:
    namespace, name = settings.leader_elect_resource_namespace, settings.leader_elect_resource_name + _LEASE_SUFFIX
    object_events = ObjectEvents(core.cluster, core.problems)

    async def report(uid: str, problem: str) -> None:
        await object_events.tell("Lease", namespace, name, uid, "LeaseUnusable", problem)

    return LeaderElection(
        core.cluster,
        namespace,
        name,
        f"{settings.pod_name or socket.gethostname()}_{uuid.uuid4()}",
        clock=core.clock,
        monotonic=time.monotonic,
        report=report,
    )


def certificate_keeper(core: Core, settings: Settings) -> CertRotator:
    place = CertificateTarget(
        settings.pod_namespace, settings.certificate_secret, settings.webhook_service, settings.webhook_configuration
    )
    return CertRotator(core.cluster, place, clock=core.clock, object_events=ObjectEvents(core.cluster, core.problems))


def webhook_reconciler(core: Core, settings: Settings) -> WebhookReconciler:
    object_events = ObjectEvents(core.cluster, core.problems)
    return WebhookReconciler(core.cluster, settings.webhook_configuration, core.vendors, object_events)
