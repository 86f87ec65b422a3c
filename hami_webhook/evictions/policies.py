"""The seven policies by which pods are evicted, a row each.

All policies share the steps of this package; a row has the differences.
Source: docs/preemption.md, docs/spec/queues.md#7, docs/spec/time.md#5.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.evictions.candidates import Candidates
from hami_webhook.kube.event_reasons import EventReason


class Ending(Enum):
    """How a victim is ended."""

    BY_DELETION = "deleted, with the condition that kube-scheduler gives its own victims"
    BY_EVICTION_API = "evicted by the API, which has the last word on PodDisruptionBudgets"
    BY_KUBE_SCHEDULER = "named to kube-scheduler, which ends them"


class EvictionPolicy(Struct, frozen=True):
    """The candidates, how victims end, and the reasons of events: `evicted` on the victim, the others on the preemptor.

    A write that the API server doesn't take is tried `tries` times. `per_minute`: only so many go for a namespace in a
    minute. `nominated`: kube-scheduler learns which node they leave.
    """

    candidates: Collection[Candidates]
    ending: Ending
    evicted: EventReason
    evicting: EventReason
    dry_run: EventReason
    blocked: EventReason
    tries: int = 5
    per_minute: bool = True
    nominated: bool = True


POD = EvictionPolicy(
    {Candidates.OF_DEVICES},
    Ending.BY_DELETION,
    evicted="Preempted",
    evicting="Preempting",
    dry_run="PreemptionDryRun",
    blocked="PreemptionLimited",
)
"""For a pod that no node takes."""
QUOTA = replace(POD, candidates={Candidates.OF_DEVICES, Candidates.OF_QUOTA})
"""For one whose quotas have the annotation hami.io/quota-preemption."""
COMPLETION = replace(POD, ending=Ending.BY_KUBE_SCHEDULER)
"""For one that kube-scheduler evicts others for, who leave CPU or memory, and not enough devices."""
GROUP = replace(POD, nominated=False)
"""For a pod group that doesn't fit: kube-scheduler would offer a node that it hears of alone."""
RECLAIM = EvictionPolicy(
    {Candidates.LENT},
    Ending.BY_EVICTION_API,
    evicted="QuotaReclaimed",
    evicting="QuotaReclaiming",
    dry_run="QuotaReclaimDryRun",
    blocked="QuotaReclaimBlocked",
    tries=1,
    per_minute=False,
    nominated=False,
)
"""For a pod, or a group, that waits for what is its own team's and is lent; what isn't evicted is looked for again."""
DEFRAG = replace(RECLAIM, candidates={Candidates.MOVABLE}, evicted="PodMoved", tries=3, per_minute=True)
"""For room that a person wants on a node: no pod waits for it yet, so that only who goes has an event."""
IDLE = replace(RECLAIM, candidates={Candidates.IDLE}, evicted="QuotaIdleEvicted", blocked="QuotaIdleBlocked")
"""For nobody: pods that hold cards and compute nothing; who is protected is tried again."""
