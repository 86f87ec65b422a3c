"""The reasons of all events that the program records (docs/metrics.md#events), so that none is recorded unlisted."""

from __future__ import annotations

from typing import Literal

EventReason = Literal[
    "BadAllocation",
    "BindingFailed",
    "BindingSucceed",
    "CardHealthy",
    "CardUnhealthy",
    "CertificateSecretForeign",
    "CertificateUnusable",
    "DuplicateMigInstance",
    "FilteringFailed",
    "FilteringSucceed",
    "LeaseUnusable",
    "MixedGPUManagers",
    "PodGroupIncomplete",
    "PolicyFileRefused",
    "PolicyIgnored",
    "Preempted",
    "Preempting",
    "PreemptionDryRun",
    "PreemptionFailed",
    "PreemptionLimited",
    "QuotaExceeded",
    "QuotaMisread",
    "QuotaMixed",
    "QuotaObserved",
    "QuotaOverrun",
    "QuotaStatusForbidden",
    "QuotaUnitSuspicious",
    "QuotaWaiting",
    "SharedRegionUnreadable",
    "UnhealthyCardsUnreadable",
    "WebhookConditionsDiffer",
    "WebhookConditionsMended",
    "WebhookConditionsUnknown",
    "WebhookConfigurationEdited",
]
