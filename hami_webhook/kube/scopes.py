"""Which pods a ResourceQuota's scopes cover (Kubernetes' quota evaluator for pods)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from hami_webhook.kube.objects import Container, ContainerKind, Pod, ResourceQuota, ScopeRequirement


def matches(quota: ResourceQuota, pod: Pod) -> bool:
    """Whether every scope of `quota` holds for `pod`. An unknown scope or operator holds for none."""
    return all(_holds(requirement, pod) for requirement in quota.scopes)


def can_match(requirements: Sequence[ScopeRequirement]) -> bool:
    """Whether there can be a pod for which all of them hold."""
    names = {name for requirement in requirements for name in requirement.values}
    classes = ("", *names, "-")  # none, each that is named, and another
    burstable = Container("main", ContainerKind.APP, {"cpu": "1"}, {})
    pods = (
        Pod(
            *("", "", "", {}, {}),
            containers=containers,
            active_deadline=deadline,
            cross_namespace_affinity=crosses,
            priority_class=priority_class,
        )
        for containers, deadline, crosses, priority_class in product(
            ((), (burstable,)), (None, 1), (False, True), classes
        )
    )
    return any(all(_holds(requirement, pod) for requirement in requirements) for pod in pods)


_PRESENCE: dict[str, Callable[[Pod], bool]] = {
    "Terminating": lambda pod: pod.active_deadline is not None and pod.active_deadline >= 0,
    "NotTerminating": lambda pod: pod.active_deadline is None or pod.active_deadline < 0,
    "BestEffort": lambda pod: pod.best_effort,
    "NotBestEffort": lambda pod: not pod.best_effort,
    "CrossNamespacePodAffinity": lambda pod: pod.cross_namespace_affinity,
}


def _holds(requirement: ScopeRequirement, pod: Pod) -> bool:
    if requirement.scope == "PriorityClass":
        name = pod.priority_class
        match requirement.operator:
            case "Exists":
                return name != ""
            case "DoesNotExist":
                return name == ""
            case "In":
                return name in requirement.values
            case "NotIn":
                return name not in requirement.values
        return False
    present = _PRESENCE.get(requirement.scope)
    return present is not None and requirement.operator == "Exists" and present(pod)
