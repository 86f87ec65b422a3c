"""PodDisruptionBudgets, less what was evicted since their status was written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.objects import Pod


class DisruptionBudgets:
    """The budgets that `shown` gives, each the same object until it has another version."""

    def __init__(self, shown: Callable[[], Iterable[PodDisruptionBudget]]) -> None:
        self._shown = shown
        self._spent: dict[tuple[str, str], tuple[PodDisruptionBudget, frozenset[str]]] = {}
        """The names of the pods that were evicted, and the version of the budget at which they were."""

    def left(self) -> list[PodDisruptionBudget]:
        """What they allow now."""
        shown = {(each.namespace, each.name): each for each in self._shown()}
        self._spent = {key: spent for key, spent in self._spent.items() if shown.get(key) is spent[0]}
        left = []
        for key, budget in shown.items():
            spent = self._spent[key][1] if key in self._spent else frozenset[str]()
            left.append(replace(budget, allowed=budget.allowed - len(spent), disrupted=budget.disrupted | spent))
        return left

    def spend(self, pods: Sequence[Pod]) -> None:
        """These pods are evicted."""
        for budget in self._shown():
            key = budget.namespace, budget.name
            seen, spent = self._spent.get(key, (None, frozenset[str]()))
            covered = frozenset(pod.name for pod in pods if budget.covers(pod))
            if covered:
                self._spent[key] = budget, covered | (spent if seen is budget else frozenset())
