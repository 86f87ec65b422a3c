"""What reviews of pods take from the cluster and the quotas, as the handler sees it: it knows neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hami_webhook.admission.new_pod import NewPod
from hami_webhook.admission.review import Amounts
from hami_webhook.devices.foreign_scheduler import ForeignScheduler
from hami_webhook.devices.model import Requests
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Namespace, Pod, ResourceQuota


class Namespaces(Protocol):
    """The cluster's namespaces."""

    async def namespace(self, name: str) -> Namespace | None:
        """The namespace; None if it isn't known now."""
        ...

    async def report_ignored(self, namespace: str, keys: tuple[str, ...]) -> None:
        """Tell administrators of annotations that mean nothing on a Namespace."""
        ...


class ChargedPod(Protocol):
    """A pod that is charged: with which amounts, and what its creator is warned of."""

    @property
    def amounts(self) -> Amounts: ...
    @property
    def warnings(self) -> Sequence[str]: ...


class PodEstimate(Protocol):
    """A pod, with what it costs while it waits."""

    async def charge(
        self, uid: str, *, reservation: str, dry_run: bool, time_left: float | None, expects_gate: bool = False
    ) -> ChargedPod:
        """Charge it under its UID, or the id of a new reservation. Raises `Denied`.

        `reservation` is the secret it brings, if it is charged already. For a pod with the scheduling gate of quota,
        only check whether it could ever be charged. `expects_gate`: mutation adds the gate if a quota queues.
        """
        ...

    def new_reservation(self) -> tuple[str, str]:
        """For a pod that has no UID yet: a secret, for its annotation only, and the id that it is charged under."""
        ...


class NewPodQuotas(Protocol):
    """The quotas of a new pod, as they are known when it arrives."""

    @property
    def unlimited(self) -> bool:
        """Whether there is none that could limit what the pod costs, so that it needs no price."""
        ...

    async def refuse_uncreatable(self, name: str, *, sized: bool) -> None:
        """Raise `Denied` for a pod that the API server is certain to refuse after us; its charge would be left over.

        `name` is empty while it isn't generated; `sized`: the containers' amounts are final, and all that it requests.
        """
        ...

    async def read_templates(self) -> None:
        """Find out what the templates of the pod's claims say, by a read where no watch has shown one."""
        ...

    def price(self, requests: Mapping[str, Requests], foreign: Sequence[ForeignScheduler]) -> PodEstimate:
        """What the pod costs by its requests of our vendors and by the other schedulers that it asks for cards, and by
        the claims that will be made for it.

        Raises `Denied` for amounts that can't be meant.
        """
        ...


class QuotaService(Protocol):
    """The quotas that pods are charged to."""

    @property
    def counted_labels(self) -> frozenset[str]:
        """The labels of pods that quotas count by."""
        ...

    @property
    def named_groups(self) -> frozenset[str]:
        """The groups of users to which quotas give limits."""
        ...

    def of(self, pod: Pod) -> NewPodQuotas: ...

    def shown(self, namespace: str) -> Sequence[ResourceQuota]:
        """The quotas that the caches show for a namespace's pods."""
        ...

    def limit_runtime(self, draft: PodDraft, new: NewPod, quotas: Sequence[ResourceQuota]) -> None:
        """Give a new pod the deadline that these quotas ask for (docs/spec/time.md#1)."""
        ...

    def queues(self, pod: Pod, requests: Mapping[str, Requests], quotas: Sequence[ResourceQuota]) -> bool:
        """Whether a new pod has to wait its turn in one of these quotas, by its requests of our vendors."""
        ...

    def reprice(self, before: Pod, after: Pod) -> PodEstimate | None:
        """Estimate how much an update may add to a waiting pod's cost, without a read. None if it adds nothing."""
        ...
