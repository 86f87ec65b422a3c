"""What one replica at a time does: the quota reconcile loop, handshakes, remarks on nodes, certificates."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Unavailable
from hami_webhook.config import Settings
from hami_webhook.controller.certificates import CertificateKeeper, Place
from hami_webhook.controller.feed import Feed
from hami_webhook.controller.handshake import Handshakes
from hami_webhook.controller.leader import LeaderElection
from hami_webhook.controller.neighbours import Neighbours
from hami_webhook.controller.quotas import QuotaReconciler

logger = logging.getLogger(__name__)

_LEASE_SUFFIX = "-controller"
"""Sets our lease apart from that of the kube-scheduler beside us, which has the name the settings give."""


@dataclass(frozen=True, slots=True)
class Duties:
    """What one replica at a time does; `each_for_itself`: but for the quotas, which every one keeps in its memory."""

    core: Core
    feed: Feed
    reconciler: QuotaReconciler | None
    keeper: CertificateKeeper | None
    each_for_itself: bool = False

    async def do(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self.keeper is not None:
                tasks.create_task(self.keeper.lead())
            await self.feed.wait_synced()
            if self.reconciler is not None:
                tasks.create_task(Handshakes(self.core).run())
                tasks.create_task(Neighbours(self.core).run())
                if not self.each_for_itself:
                    tasks.create_task(reconcile(self.feed, self.reconciler))


async def reconcile(feed: Feed, reconciler: QuotaReconciler) -> None:
    """Keep the quotas right until cancelled."""
    await feed.wait_synced()
    reconciler.start_over()
    await reconciler.run()


def leader_election(core: Core, settings: Settings) -> LeaderElection:
    return LeaderElection(
        core.cluster,
        settings.leader_elect_resource_namespace,
        settings.leader_elect_resource_name + _LEASE_SUFFIX,
        f"{settings.pod_name or socket.gethostname()}_{uuid.uuid4()}",
        clock=core.clock,
        monotonic=time.monotonic,
    )


def certificate_keeper(core: Core, settings: Settings) -> CertificateKeeper:
    place = Place(
        settings.pod_namespace,
        settings.certificate_secret,
        settings.webhook_service,
        settings.webhook_configuration,
        settings.pod_name,
    )

    def alive(replica: str) -> bool:
        return any(pod.name == replica and not pod.terminal for pod in core.state.pods_in(settings.pod_namespace))

    return CertificateKeeper(core.cluster, place, Path(settings.cert_file).parent, clock=core.clock, alive=alive)


async def fetched(keeper: CertificateKeeper, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Fetch the certificate, until that works: without a certificate nothing can be served."""
    while True:
        try:
            return await keeper.fetch()
        except Unavailable as error:
            logger.warning("certificates: %s; trying again", error)
            await sleep(1)
