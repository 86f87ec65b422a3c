"""Whether pods of lower priority may be evicted for room in a quota (docs/preemption.md#quota)."""

from __future__ import annotations

from hami_webhook.kube.objects import ResourceQuota

QUOTA_PREEMPTION = "hami.io/quota-preemption"


def gives_room(quota: ResourceQuota) -> bool:
    """Return whether the quota's annotation allows evictions for room; only the value `true` does."""
    return quota.annotations.get(QUOTA_PREEMPTION) == "true"
