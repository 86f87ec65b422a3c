"""Charging a pod to the quotas of its namespace and to those above it: to all or to none (docs/spec/quota.md#5.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hami_webhook.cluster.api import ClusterError
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import ChargeRequest, Refusal, refuse_now
from hami_webhook.quota.admission_charger import AdmissionCharger, ChargeCounts, Charged, Outcome
from hami_webhook.quota.namespace_labels import NamespaceLabels


class HierarchyCharger:
    """Charges ResourceQuotas with `own` and AcceleratorQuotas with `accelerator_quotas`, both within `timeout` seconds.

    A process that ends between the two leaves a charge that expires: a quota errs by refusing.
    """

    def __init__(
        self,
        own: AdmissionCharger,
        accelerator_quotas: AdmissionCharger,
        labels: NamespaceLabels,
        *,
        clock: Callable[[], float],
        timeout: float,
    ) -> None:
        self._own = own
        self._accelerator_quotas = accelerator_quotas
        self._labels = labels
        self._clock = clock
        self._timeout = timeout
        self._releasing: set[asyncio.Task[None]] = set()

    @property
    def counts(self) -> ChargeCounts:
        """What both did."""
        return self._own.counts

    def is_unlimited(self, pod: Pod) -> bool:
        """Whether the caches show, as of just now, that no quota of either kind could limit what a pod costs."""
        self._accelerator_quotas.refresh(pod)
        return self._own.has_no_quotas(pod) and self._accelerator_quotas.has_no_quotas(pod)

    async def charge(self, request: ChargeRequest, seconds: float | None = None) -> Outcome:
        """Charge one pod. `seconds` are left to answer in."""
        timeout = self._timeout if seconds is None else min(self._timeout, seconds)
        until = self._clock() + timeout
        unknown = await self._look_above(request.pod, timeout)
        if unknown is not None:
            self.counts.deny(unknown)
            return unknown
        if self._accelerator_quotas.concerns_none(request):
            return await self._own.charge(request, until - self._clock())
        chargers = (self._own, self._accelerator_quotas)
        # what would be charged in vain to the first has to be taken out again
        first, second = reversed(chargers) if self._accelerator_quotas.refuses(request) else chargers
        charged = await first.charge(request, until - self._clock())
        if isinstance(charged, Refusal):
            return charged
        other: Outcome | None = None
        try:
            other = await second.charge(request, max(0.0, until - self._clock()))
        finally:
            if not isinstance(other, Charged):
                releasing = asyncio.create_task(first.release(request, charged))
                self._releasing.add(releasing)
                releasing.add_done_callback(self._releasing.discard)
                await asyncio.shield(releasing)
        if isinstance(other, Refusal):
            return other
        return Charged({**charged.amounts, **other.amounts}, (*charged.warnings, *other.warnings))

    async def _look_above(self, pod: Pod, seconds: float) -> Refusal | None:
        """Know the AcceleratorQuotas, and the labels by which they select the pod's namespace, as of just now.

        No request where the watches show that; the refusal if it can't be known.
        """
        if self._own.shows_no_quotas(pod):
            self._own.refresh(pod)  # its list is needed next, and takes as long as the one above: both at once
        try:
            async with asyncio.timeout(seconds):
                await self._accelerator_quotas.look(pod)
                if not self._accelerator_quotas.has_no_quotas(pod) and await self._labels.refresh(pod.namespace):
                    await self._accelerator_quotas.look(pod, anew=True)
        except TimeoutError:
            return refuse_now(pod.namespace, "no answer from the API server in time")
        except ClusterError as error:
            return refuse_now(pod.namespace, str(error))
        return None
