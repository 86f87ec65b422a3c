"""Charging a pod to the quotas of its namespace and to those above it: to all or to none (docs/spec/quota.md#5.2).

No compare-and-swap covers two objects, so Q10 is kept by order: charge the one, then the other, and take the first out
again if the second refuses. Q1 holds for each at every moment, as both only ever charge too much. What is charged, and
how, is the chargers'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import NamedTuple

from hami_webhook.cluster.api import ClusterError
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import ChargeRequest, Gate, Refusal, refuse_now
from hami_webhook.quota.admission_charger import AdmissionCharger, ChargeCounts, Charged, Outcome, limits
from hami_webhook.quota.namespace_labels import NamespaceLabels
from hami_webhook.quota.sources import ALL_NAMESPACES
from hami_webhook.quota.store import CURRENT_SECONDS, UNKNOWN, KnownQuotas

_SOON_TOO_OLD = CURRENT_SECONDS / 2
"""Seconds after which what is known is listed for the next charge."""


class PodQuotas(NamedTuple):
    """What the caches show of a pod's quotas: those of its namespace, and those above it."""

    own: KnownQuotas
    accelerator_quotas: KnownQuotas

    @property
    def unlimited(self) -> bool:
        """Whether there is no quota that could limit what the pod costs."""
        return self.own.none and self.accelerator_quotas.none


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

    def known(self, pod: Pod) -> PodQuotas:
        """What the caches show of the quotas that a pod is charged to."""
        try:
            shared = self._accelerator_quotas.store.known(ALL_NAMESPACES) or UNKNOWN
            if shared.age > _SOON_TOO_OLD:
                self._accelerator_quotas.store.refresh(ALL_NAMESPACES)
            return PodQuotas(self._own.store.known(pod.namespace) or UNKNOWN, shared)
        except Exception:  # what is wrong with a cache is answered with the batch
            return PodQuotas(UNKNOWN, UNKNOWN)

    async def charge(
        self, request: ChargeRequest, seconds: float | None = None, known: PodQuotas | None = None
    ) -> Outcome:
        """Charge one pod. `seconds` are left to answer in; `known` is what was found just now of its quotas."""
        timeout = self._timeout if seconds is None else min(self._timeout, seconds)
        until = self._clock() + timeout
        known = known or self.known(request.pod)
        if request.gate is Gate.CLOSED and not self._may_refuse(request, known):
            return Charged()  # nothing is charged, so nothing has to be proved by a write
        shared = known.accelerator_quotas
        if not shared.none:
            current = await self._current_accelerator_quotas(request.pod, known, timeout)
            if isinstance(current, Refusal):
                self.counts.deny(current)
                return current
            shared = current
        if shared.none or not limits(shared, request):
            unread = shared.none and shared is known.accelerator_quotas
            return await self._own.charge(request, until - self._clock(), known.own if unread else None)
        chargers = (self._own, self._accelerator_quotas)
        # what would be charged in vain to the first has to be taken out again
        shared_first = self._accelerator_quotas.refuses(request, shared) and not self._own.refuses(request, known.own)
        first, second = reversed(chargers) if shared_first else chargers
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
        own, above = (charged, other) if first is self._own else (other, charged)
        amounts, warnings = {**charged.amounts, **other.amounts}, (*charged.warnings, *other.warnings)
        return Charged(amounts, warnings, own.writes, above.writes)

    async def release(self, request: ChargeRequest, charged: Charged) -> None:
        """Take a charge out of all its quotas again; best effort, what can't be taken out expires."""
        await self._own.release(request, charged)
        await self._accelerator_quotas.release(request, replace(charged, writes=charged.writes_above))

    def _may_refuse(self, request: ChargeRequest, known: PodQuotas) -> bool:
        """Whether a quota would refuse the pod by what is known, or too little is."""
        if inf in (known.own.age, known.accelerator_quotas.age):
            return True
        shared = self._accelerator_quotas.refuses(request, known.accelerator_quotas)
        return shared or self._own.refuses(request, known.own)

    async def _current_accelerator_quotas(self, pod: Pod, known: PodQuotas, seconds: float) -> KnownQuotas | Refusal:
        """The AcceleratorQuotas, and the labels by which they select the pod's namespace, as of just now.

        No request where the watches show that; the refusal if it can't be known.
        """
        found = known.accelerator_quotas
        if not known.own.accounts and known.own.age > _SOON_TOO_OLD:
            # its list is needed next, and takes as long as the one above: both at once
            self._own.store.refresh(pod.namespace)
        try:
            async with asyncio.timeout(seconds):
                if not found.current:
                    await self._accelerator_quotas.store.look(ALL_NAMESPACES)
                    found = self._accelerator_quotas.known(ALL_NAMESPACES)
                if not found.none and await self._labels.refresh(pod.namespace):
                    await self._accelerator_quotas.store.look(ALL_NAMESPACES, anew=True)
                    found = self._accelerator_quotas.known(ALL_NAMESPACES)
        except TimeoutError:
            return refuse_now(pod.namespace, "no answer from the API server in time")
        except ClusterError as error:
            return refuse_now(pod.namespace, str(error))
        return found
