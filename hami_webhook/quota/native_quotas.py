"""Predict whether Kubernetes' own ResourceQuota plugin will refuse a new pod, if that is certain
(docs/spec/quota.md#7.2).

The plugin comes after every webhook: a pod that it refuses would leave its charge behind until that expires.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from hami_webhook.kube import scopes
from hami_webhook.kube.objects import Container, Pod, ResourceQuota
from hami_webhook.kube.quantity import Format, Quantity, QuantityError
from hami_webhook.kube.requests import effective

_COUNTS = ("pods", "count/pods")
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_SPECIFIED = frozenset(f"{prefix}{name}" for prefix in ("", "requests.", "limits.") for name in ("cpu", "memory"))
"""The keys of a quota that every container has to specify."""
_NANO = 10**9


def native_refusal(quota: ResourceQuota, pod: Pod, *, sized: bool) -> str | None:
    """Return the plugin's refusal if the quota has no room for the pod; None if it has, or if that isn't certain.

    `sized`: the containers' amounts are final, and all that the pod requests; else only pods are counted.
    """
    hard = quota.status_hard
    keys = [key for key in hard if key in _COUNTS or (sized and _counted(key))]
    if not keys or not scopes.matches(quota, pod):
        return None
    missing = {key: names for key in sorted(_SPECIFIED.intersection(keys)) if (names := _lacking(pod, key))}
    if missing:
        listed = "; ".join(f"{key} for: {','.join(names)}" for key, names in missing.items())
        return f"failed quota: {quota.name}: must specify {listed}"
    costs = {key: _cost(pod, key) for key in keys}
    over = sorted(key for key, cost in costs.items() if cost and _exceeds(quota, key, cost))
    if not over:
        return None
    requested = {key: Quantity(Fraction(costs[key], _NANO), _format(pod, key)) for key in over}

    def of(amounts: Mapping[str, object]) -> str:
        return ",".join(f"{key}={amounts[key]}" for key in over)

    return f"exceeded quota: {quota.name}, requested: {of(requested)}, used: {of(quota.used)}, limited: {of(hard)}"


def _counted(key: str) -> tuple[str, str] | None:
    """Which amounts of containers the plugin counts under a key: limits or requests, and the resource."""
    if key.startswith("limits."):
        name = key.removeprefix("limits.")
        return ("limits", name) if name in _COMPUTE else None
    name = key.removeprefix("requests.")
    extended = name != key and "/" in name and "kubernetes.io/" not in name
    return ("requests", name) if extended or name in _COMPUTE or name.startswith("hugepages-") else None


def _cost(pod: Pod, key: str) -> int:
    """What a pod costs a key at its peak, in 10^-9 of its unit; 0 too if that isn't known."""
    counted = _counted(key)
    if counted is None:
        return _NANO
    try:
        return effective((c.kind, _nano(_written(c, *counted) or 0)[0]) for c in pod.containers)
    except (QuantityError, TypeError):
        return 0


def _format(pod: Pod, key: str) -> Format:
    """How the first amount is written, which sums keep."""
    counted = _counted(key)
    written = [] if counted is None else [_written(container, *counted) for container in pod.containers]
    return next((_nano(amount)[1] for amount in written if amount is not None), Format.DECIMAL_SI)


def _written(container: Container, field: str, name: str) -> Any:
    """An amount of a container; where it has no request, that is the limit, by the API's default."""
    found = container.requests.get(name) if field == "requests" else None
    return container.limits.get(name) if found is None else found


def _lacking(pod: Pod, key: str) -> list[str]:
    """The names of the containers that don't specify a key, sorted."""
    field, name = _counted(key) or ("", "")
    return sorted({c.name for c in pod.containers if _written(c, field, name) is None})


def _exceeds(quota: ResourceQuota, key: str, cost: int) -> bool:
    """False where nobody has computed what is used."""
    try:
        return _nano(quota.used[key])[0] + cost > _nano(quota.status_hard[key])[0]
    except (KeyError, QuantityError, TypeError):
        return False


@lru_cache(maxsize=4096)
def _nano(written: Any) -> tuple[int, Format]:
    """An amount in 10^-9 of its unit, and how it is written. The same amounts come again with each pod."""
    quantity = Quantity.parse(written)
    return int(quantity.value * _NANO), quantity.format
