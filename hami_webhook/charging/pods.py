"""Charging pods at admission, and when they are let through the queue (docs/spec/quota.md#5.2 and #7).

Which quotas a pod is charged to, in which order, and whether enough is known of them. How they are charged is the
queues'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from hami_webhook.charging.namespaces import LiveNamespaces
from hami_webhook.charging.queue import ChargeCounts, ChargeQueue, ChargeResult, Outcome
from hami_webhook.charging.queues import ChargeQueues
from hami_webhook.charging.sources import ALL_NAMESPACES
from hami_webhook.cluster.api import ClusterError
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import ChargeRequest, Gate
from hami_webhook.quota.known_quotas import CURRENT_SECONDS, UNKNOWN, KnownQuotas, PodQuotas
from hami_webhook.quota.refusals import Refusal, refuse_now

_SOON_TOO_OLD = CURRENT_SECONDS / 2
"""Seconds after which what is known is listed for the next charge."""


class PodCharger:
    """Charges pods to the quotas of their namespaces and to those above, within `timeout` seconds."""

    def __init__(
        self,
        queues: ChargeQueues,
        shared: ChargeQueue,
        namespaces: LiveNamespaces,
        *,
        clock: Callable[[], float],
        timeout: float,
    ) -> None:
        self._queues = queues
        self._own = queues.own
        self._shared = shared
        self._namespaces = namespaces
        self._clock = clock
        self._timeout = timeout

    @property
    def counts(self) -> ChargeCounts:
        """What was charged."""
        return self._own.counts

    def known(self, pod: Pod) -> PodQuotas:
        """What the caches show of the quotas that a pod is charged to."""
        try:
            shared = self._shared.store.known(ALL_NAMESPACES) or UNKNOWN
            if shared.age > _SOON_TOO_OLD:
                self._shared.store.refresh(ALL_NAMESPACES)
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
            return ChargeResult()  # nothing is charged, so nothing has to be proved by a write
        shared = known.accelerator_quotas
        if not shared.none:
            current = await self._current_accelerator_quotas(request.pod, known, timeout)
            if isinstance(current, Refusal):
                self.counts.deny(current)
                return current
            shared = current
        queues = [self._own]
        if not shared.none and shared.concern(request):
            queues.append(self._shared)
            # what would be charged in vain to the first has to be taken out again
            if self._shared.refuses(request, shared) and not self._own.refuses(request, known.own):
                queues.reverse()
        is_just_known = shared.none and shared is known.accelerator_quotas
        return await self._queues.charge(
            queues, request, lambda: max(0.0, until - self._clock()), known.own if is_just_known else None
        )

    def _may_refuse(self, request: ChargeRequest, known: PodQuotas) -> bool:
        """Whether a quota would refuse the pod by what is known, or too little is."""
        if inf in (known.own.age, known.accelerator_quotas.age):
            return True
        shared = self._shared.refuses(request, known.accelerator_quotas)
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
                    await self._shared.store.look(ALL_NAMESPACES)
                    found = self._shared.known(ALL_NAMESPACES)
                if not found.none and await self._namespaces.refresh(pod.namespace):
                    await self._shared.store.look(ALL_NAMESPACES, fresh=True)
                    found = self._shared.known(ALL_NAMESPACES)
        except TimeoutError:
            return refuse_now(pod.namespace, "no answer from the API server in time")
        except ClusterError as error:
            return refuse_now(pod.namespace, str(error))
        return found
