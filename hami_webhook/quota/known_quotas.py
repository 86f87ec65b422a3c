"""The accounts that caches provide without a live read, and their age."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from msgspec import Struct

from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import Accounts, ChargeRequest
from hami_webhook.quota.pricing import Charge

CURRENT_SECONDS = 2.0
"""Seconds without a sign of life from the watch for which its cache, or a list, is taken to show every quota."""


class KnownQuotas(Struct, frozen=True):
    """The cached accounts of a namespace or of the cluster. `age`: seconds since this set was known to be complete.

    `current`: the set was known to be complete just now. `none`: it was also empty, so no quota exists.
    """

    accounts: Accounts
    age: float
    current: bool
    none: bool

    def limit(self, pod: Pod, charge: Charge) -> bool:
        """Whether a quota may limit what a pod costs."""
        return not self.current or any(account.concerns(pod, charge) for account in self.accounts.values())

    def concern(self, request: ChargeRequest) -> bool:
        """Whether a quota may limit what a request's pods cost."""
        return any(self.limit(each.pod, each.charge) for each in request.pods)


UNKNOWN = KnownQuotas({}, inf, current=False, none=False)


class PodQuotas(NamedTuple):
    """A pod's quotas as the caches show them: the ResourceQuotas of its namespace, and the AcceleratorQuotas that
    select it.
    """

    own: KnownQuotas
    accelerator_quotas: KnownQuotas

    @property
    def unlimited(self) -> bool:
        """Whether there is no quota that could limit what the pod costs."""
        return self.own.none and self.accelerator_quotas.none
