"""PodDisruptionBudgets (policy/v1) as kube-scheduler's preemption reads them: which pods they cover, and how many of
those may be disrupted now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.kube import wire
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.selectors import LabelSelector


class PodDisruptionBudget(Struct, frozen=True):
    """A budget's selector and status: a selector without requirements covers all pods of the namespace, none (`None`)
    covers nobody (docs/preemption.md#victims).

    `disrupted` are the names of pods whose disruption is in `allowed` already.
    """

    namespace: str
    name: str
    selector: LabelSelector | None
    allowed: int = 0
    disrupted: frozenset[str] = frozenset()

    @classmethod
    def from_object(cls, obj: Any) -> PodDisruptionBudget:
        """A budget from its JSON. Raises `MalformedObject`."""
        budget = wire.convert(obj, wire.PodDisruptionBudgetObject, "poddisruptionbudget")
        meta, status = budget.metadata or wire.ObjectMeta(), budget.status or wire.PodDisruptionBudgetStatus()
        selector = budget.spec.selector if budget.spec is not None else None
        return cls(
            namespace=meta.namespace or "",
            name=meta.name or "",
            selector=None if selector is None else LabelSelector.from_wire(selector),
            allowed=status.disruptions_allowed or 0,
            disrupted=frozenset(status.disrupted_pods or ()),
        )

    def without(self, pods: Iterable[Pod]) -> PodDisruptionBudget:
        """The budget once these pods are disrupted, too."""
        names = {pod.name for pod in pods if self.covers(pod)}
        return replace(self, allowed=self.allowed - len(names), disrupted=self.disrupted | names) if names else self

    def covers(self, pod: Pod) -> bool:
        """Whether evicting the pod counts against the budget."""
        return (
            self.namespace == pod.namespace
            and self.selector is not None
            and pod.name not in self.disrupted
            and self.selector.matches(pod.labels)
        )


def violating(pods: Iterable[Pod], budgets: Sequence[PodDisruptionBudget]) -> set[str]:
    """The UIDs of those pods whose eviction, one after the other, would exceed a budget."""
    left = [budget.allowed for budget in budgets]
    found: set[str] = set()
    for pod in pods:
        for index, budget in enumerate(budgets):
            if budget.covers(pod):
                left[index] -= 1
                if left[index] < 0:
                    found.add(pod.uid)
    return found
