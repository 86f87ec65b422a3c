"""Whether a quota refuses what is over it, or only counts that (docs/spec/quota.md#7.1)."""

from __future__ import annotations

from enum import Enum

from hami_webhook.kube.objects import ResourceQuota

ENFORCEMENT = "hami.io/quota-enforcement"
OBSERVED = "hami.io/quota-observed"
"""The annotation with the number of charges that passed although the quota had no room for them."""


class Enforcement(Enum):
    """The values of the annotation `ENFORCEMENT`."""

    ENFORCE = "enforce"
    OBSERVE = "observe"

    @classmethod
    def of(cls, quota: ResourceQuota) -> Enforcement:
        """What is written on a quota; any other value than `observe` enforces."""
        return cls.OBSERVE if quota.annotations.get(ENFORCEMENT) == cls.OBSERVE.value else cls.ENFORCE


def observed_charges(quota: ResourceQuota) -> int:
    """The number in the annotation `OBSERVED`; 0 for what is none."""
    text = quota.annotations.get(OBSERVED, "")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 16 else 0
