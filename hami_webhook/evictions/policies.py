"""The policies by which pods are evicted for others, a row each: what differs, and what is said of it.

A pod that waits for room has others evicted in one way: who may go is listed, the least of them without whom it fits
are found, limits are asked, and the executor ends them. A row says which kinds of candidates there are, who ends them,
and by which events it is told; docs/preemption.md and docs/spec/queues.md#7 say why.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.kube.event_reasons import EventReason


class Ending(Enum):
    """How a victim is ended."""

    BY_DELETION = "deleted, with the condition that kube-scheduler gives its own victims"
    BY_EVICTION_API = "evicted by the API, which has the last word on PodDisruptionBudgets"
    BY_KUBE_SCHEDULER = "kube-scheduler ends those whom it is told"


class Policy(Struct, frozen=True):
    """`evicted` is said of victims; the other reasons, of the pod that they go for. `tries`: as often is a write tried
    that the API server doesn't take. Victims of one that is `nominated` are named to kube-scheduler by the node that
    they leave.
    """

    ending: Ending
    evicted: EventReason
    evicting: EventReason
    dry_run: EventReason
    blocked: EventReason
    tries: int = 1
    nominated: bool = False


POD = Policy(
    Ending.BY_DELETION,
    evicted="Preempted",
    evicting="Preempting",
    dry_run="PreemptionDryRun",
    blocked="PreemptionLimited",
    tries=5,
    nominated=True,
)
"""A pod that no node takes, for one of higher priority."""
COMPLETION = replace(POD, ending=Ending.BY_KUBE_SCHEDULER)
"""The same where kube-scheduler evicts for CPU or memory, and asks who has to go besides."""
GROUP = replace(POD, nominated=False)
"""A pod group that doesn't fit: kube-scheduler isn't told a node, as it would offer that one alone."""
RECLAIM = Policy(
    Ending.BY_EVICTION_API,
    evicted="QuotaReclaimed",
    evicting="QuotaReclaiming",
    dry_run="QuotaReclaimDryRun",
    blocked="QuotaReclaimBlocked",
)
"""A pod that waits for what is its own team's, and is lent."""
