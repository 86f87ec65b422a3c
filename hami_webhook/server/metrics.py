"""The metrics of the core in this process, read when scraped (docs/spec/quota.md#11)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from hami_webhook.assembly import Core
from hami_webhook.server.exposition import Family

_CONFLICTS = Family("hami_webhook_quota_conflicts", "Charges that met a conflicting write.", is_counter=True)
_WRITES = Family("hami_webhook_quota_writes", "Writes to quotas by charges.", is_counter=True)
_DENIED = Family("hami_webhook_quota_denied", "Charges refused.", ("reason",), is_counter=True)
_BACKEND = Family("hami_webhook_quota_backend", "1 for where quotas are kept: status or memory.", ("backend",))
_FAULTS = Family(
    "hami_webhook_vendor_faults", "Unexpected exceptions of the vendors' rules on a node.", ("step",), is_counter=True
)
_IGNORED = Family(
    "hami_webhook_policy_ignored",
    "Namespaces of pods found with annotations that mean nothing there.",
    is_counter=True,
)


class CoreCollector(Collector):
    """What this process did to quotas and objects."""

    def __init__(self, core: Core, *, quota_backend: str = "status") -> None:
        self._core = core
        self._quota_backend = quota_backend

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        core, counts = self._core, self._core.charger.counts
        yield _CONFLICTS.of([((), counts.conflicts)])
        yield _WRITES.of([((), counts.writes)])
        yield _DENIED.of(((reason,), number) for reason, number in sorted(counts.denied.items()))
        yield from counts.waiting.collect()
        yield from counts.durations.collect()
        yield from core.recomputer.durations.collect()
        yield _BACKEND.of([((self._quota_backend,), 1)])
        yield _FAULTS.of(((step,), number) for step, number in sorted(core.vendors.faults.counts.items()))
        yield _IGNORED.of([((), len(core.namespaces.ignored))])
