"""A process as it is explored: the real core with its caches and loops, on the port to a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hack.explore.apiserver import Port
from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.assembly import Core
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.controller.accelerator_quotas import AcceleratorQuotaReconciler
from hami_webhook.controller.informers import SharedInformers, watched_kinds
from hami_webhook.controller.quotas import QuotaReconciler, ReconcileIntervals
from hami_webhook.core_options import Options
from hami_webhook.queueing.releaser import QueueReleaser
from hami_webhook.state.caches import Subscriber

if TYPE_CHECKING:
    from hack.explore.world import World

_REAL_PAUSE = 0.99
"""Seconds from which a pause takes time; shorter ones end at once, as the next request waits to be chosen anyway."""


class Process:
    """One process: a replica of the webhook, of the controller, or a scheduler."""

    reconcilers: Sequence[QuotaReconciler | AcceleratorQuotaReconciler]
    releaser: QueueReleaser

    def __init__(self, world: World, name: str, *, leads: bool) -> None:
        self.name = name
        self.leads = leads
        self.port = Port(world.server, name, world.ask, world.shared)
        feed = SharedInformers(
            self.port, watched_kinds(world.vendors), clock=world.clock, sleep=for_ever, jitter=lambda: 0.5
        )
        self.core = core = Core(
            self.port,
            world.vendors,
            Options(rules=AdmissionRules(scheduler_name="hami-scheduler")),
            clock=world.clock,
            watches=feed,
            sleep=pause,
            new_id=lambda: f"secret of {name}",
            new_attempt=partial(world.new_attempt, name),
        )
        subscribers = [core, *self._assembled(feed)]
        self.port.open = True
        world.loop.start(name, feed.run(core.caches, core.failures, subscribers))
        world.loop.run_ready()
        self.port.open = False
        assert feed.synced

    def _assembled(self, feed: SharedInformers) -> Sequence[Subscriber]:
        """What runs on the core, put together; of it, what follows changes."""
        core = self.core
        events = ObjectEvents(self.port, core.problems)
        rest = core.view, events, core.failures, ReconcileIntervals()
        above = AcceleratorQuotaReconciler(core.accelerator_recomputer, *rest, jitter=lambda: 0.5)
        self.reconcilers = [QuotaReconciler(core.recomputer, *rest, jitter=lambda: 0.5), above]
        self.releaser = QueueReleaser(self.port, core.view, core.charger, core.capacity, core.failures, sleep=pause)
        return [*self.reconcilers, self.releaser] if self.leads else []


async def for_ever(_: float) -> None:
    await asyncio.Event().wait()


async def pause(seconds: float) -> None:
    await asyncio.sleep(seconds if seconds >= _REAL_PAUSE else 0)
