"""What the core runs with, of the settings of `serve`."""

from __future__ import annotations

from datetime import tzinfo

from msgspec import Struct, field

from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.admission.submitters import KUBERNETES_CONTROLLERS, Submitters
from hami_webhook.config import Settings
from hami_webhook.evictions.limits import DEFAULT_PER_MINUTE
from hami_webhook.quota.recompute import LedgerBounds
from hami_webhook.scheduling import placer


class Options(Struct, frozen=True):
    """What the core runs with; seconds throughout."""

    rules: AdmissionRules = field(default_factory=AdmissionRules)
    policies: placer.SchedulingPolicies = field(default_factory=placer.SchedulingPolicies)
    bounds: LedgerBounds = field(default_factory=LedgerBounds)
    charge_timeout: float = 9.0
    evictions_per_minute: int = DEFAULT_PER_MINUTE
    zone: tzinfo | None = None
    node_labels: tuple[tuple[str, str], ...] = ()
    """Labels a node must have to be registered at all."""
    own_namespace: str = ""
    """Ours, whose placeholders count nowhere."""


def options_of(settings: Settings) -> Options:
    """What the core needs of the settings of `serve`."""
    return Options(
        rules=AdmissionRules(
            scheduler_name=settings.scheduler_name,
            force_overwrite_default_scheduler=settings.force_overwrite_default_scheduler,
            trusted_users=settings.trusted_users,
            trusted_groups=settings.trusted_groups,
            foreign_users=settings.foreign_users,
            controllers=settings.controllers,
            claims=settings.claims,
            submitters=Submitters(
                KUBERNETES_CONTROLLERS | settings.submitted_by_controllers, settings.submitted_by_portals
            )
            if settings.submitted_by
            else None,
        ),
        policies=placer.SchedulingPolicies(settings.node_scheduler_policy, settings.gpu_scheduler_policy),
        bounds=LedgerBounds(settings.quota_reservation_ttl, settings.node_lock_timeout, settings.quota_max_ledger),
        charge_timeout=settings.quota_charge_timeout,
        evictions_per_minute=settings.preemption_evictions_per_minute,
        node_labels=settings.node_label_selector,
        own_namespace=settings.pod_namespace,
    )
