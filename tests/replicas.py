"""What tests build reconcilers of a core from."""

from __future__ import annotations

from collections import Counter

from hami_webhook.assembly import Core
from hami_webhook.charging.recomputer import Recomputer
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.state.cluster_view import ClusterView


def events_of(core: Core) -> ObjectEvents:
    return ObjectEvents(core.cluster, core.problems)


def reconciling(
    core: Core, recomputer: Recomputer | None = None
) -> tuple[Recomputer, ClusterView, ObjectEvents, Counter[str]]:
    """What a QuotaReconciler takes of a core."""
    return recomputer or core.recomputer, core.view, events_of(core), core.failures
