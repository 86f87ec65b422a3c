"""A new pod with what admission has to know of it, found once and handed on (docs/architecture.md, a review)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_webhook.admission.requests import RequestCache
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.foreign_scheduler import ForeignScheduler
from hami_webhook.devices.model import Requests
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod


class NewPod:
    """A pod that is about to be stored.

    `named` are the resources that its containers name. `foreign` are the other schedulers that it asks for cards.
    `mixed` are those resources that belong to different managers of the same cards. `requests` are those to our
    vendors, by their keys; none before the rules have read them. `warnings` are findings of the rules that don't refuse
    the pod.
    """

    __slots__ = (
        *("device_lister", "foreign", "known", "mixed"),
        *("named", "pod", "requests", "vendors", "warnings"),
    )

    def __init__(
        self,
        vendors: Vendors,
        device_lister: DeviceLister,
        known: RequestCache,
        pod: Pod,
        before: NewPod | None = None,
    ) -> None:
        """`before` is the pod before mutation: if its containers are the same, so is what follows from them."""
        self.pod = pod
        self.vendors = vendors
        self.device_lister = device_lister
        self.known = known
        self.named: frozenset[str]
        self.foreign: Sequence[ForeignScheduler]
        self.mixed: bool
        if before is not None and before.pod.containers is pod.containers:
            self.named, self.foreign, self.mixed = before.named, before.foreign, before.mixed
        else:
            self.named = pod.named
            self.foreign = vendors.foreign_among(pod, self.named)
            self.mixed = bool(vendors.mixing.managing(self.named))
        self.requests: Mapping[str, Requests] = {}
        self.warnings: list[str] = []

    @property
    def governed_foreign(self) -> list[ForeignScheduler]:
        """Return the other schedulers that must choose cards for the pod and whose pods policy governs."""
        return [each for each in self.foreign if each.governable and each.requested_by(self.pod)]
