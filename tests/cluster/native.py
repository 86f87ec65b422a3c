"""Kubernetes' own two writers of ResourceQuotas (docs/spec/quota.md#3.1 and #3.2), on the embedded cluster.

Stand-ins for model tests: what they write must survive beside ours, and ours beside theirs. Both take an optional
`stale` object to act on, as if from a lagging cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from hami_webhook.cluster.api import JSON, Conflict, Forbidden, Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.kube.objects import ContainerKind, Pod, ResourceQuota
from hami_webhook.kube.quantity import Quantity
from hami_webhook.kube.scopes import matches

Amounts = dict[str, Fraction]

_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_RETRIES = 3


def is_native(key: str) -> bool:
    """Whether the pod evaluator owns a quota key; it never owns `limits.<extended resource>`."""
    if key in ("pods", "count/pods", *_COMPUTE):
        return True
    part, _, name = key.partition(".")
    if part == "limits":
        return name in _COMPUTE
    return key.startswith("hugepages-") or (part == "requests" and name != "storage")


def usage(pod: Pod) -> Amounts:
    """What a live pod uses of native keys."""
    used = {"pods": Fraction(1), "count/pods": Fraction(1)}
    for part in ("requests", "limits"):
        names = {name for container in pod.containers for name in getattr(container, part)}
        for name in names:
            amount = _effective(pod, part, name)
            used[f"{part}.{name}"] = amount
            if part == "requests" and (name in _COMPUTE or name.startswith("hugepages-")):
                used[name] = amount
    return {key: amount for key, amount in used.items() if is_native(key)}


async def recompute(cluster: MemoryCluster, quota: JSON, pods: Iterable[JSON], now: float) -> JSON:
    """kube-controller-manager: status.hard := spec.hard; used := old, overwritten by its own keys, cut to spec.hard.

    Writes back the `quota` it was given, whole and with its resourceVersion; raises `Conflict` if that is old.
    """
    read = ResourceQuota.from_object(quota)
    live = [pod for pod in map(Pod.from_object, pods) if not pod.ended(now) and matches(read, pod)]
    totals: Amounts = {key: Fraction(0) for key in read.hard if is_native(key)}
    for pod in live:
        for key, amount in usage(pod).items():
            if key in totals:
                totals[key] += amount
    used = {key: value for key, value in read.used.items() if key in read.hard} | _texts(totals)
    status = {"hard": dict(read.hard), "used": used}
    return await cluster.replace(Kind.RESOURCE_QUOTAS, {**quota, "status": status})


async def admit(cluster: MemoryCluster, pod: JSON, stale: Mapping[str, JSON] | None = None) -> None:
    """The API server's ResourceQuota plugin: judge a pod by status, charge native keys of all matching quotas.

    `stale` has quotas by name to judge first instead of the current ones. Raises `Forbidden`, or `Conflict` after the
    last retry; as in Kubernetes a quota charged before another one refused stays charged only after a conflict.
    """
    asked = Pod.from_object(pod)
    cost = usage(asked)
    pending: list[str] | None = None
    for attempt in range(_RETRIES + 1):
        cached = (stale or {}) if attempt == 0 else {}
        charged = []
        for current in cluster.peek_all(Kind.RESOURCE_QUOTAS, asked.namespace):
            name = current["metadata"]["name"]
            quota = cached.get(name, current)
            read = ResourceQuota.from_object(quota)
            delta = {key: amount for key, amount in cost.items() if key in read.status_hard and amount}
            if delta and matches(read, asked) and (pending is None or name in pending):
                charged.append((name, _charged(quota, read, delta, asked.name)))
        pending = []
        for name, quota in charged:
            try:
                await cluster.replace(Kind.RESOURCE_QUOTAS, quota)
            except Conflict:
                pending.append(name)
                if attempt == _RETRIES:
                    raise
        if not pending:
            return


def _charged(quota: JSON, read: ResourceQuota, delta: Amounts, pod: str) -> JSON:
    unknown = sorted(key for key in delta if key not in read.used)
    if unknown:
        raise Forbidden(f"status unknown for quota: {read.name}, resources: {','.join(unknown)}")
    used = {key: _value(read.used[key]) for key in delta}
    over = sorted(key for key in delta if used[key] + delta[key] > _value(read.status_hard[key]))
    if over:
        shown = ", ".join(
            f"{word}: {','.join(f'{key}={amounts[key]}' for key in over)}"
            for word, amounts in (("requested", _texts(delta)), ("used", read.used), ("limited", read.status_hard))
        )
        raise Forbidden(f'pods "{pod}" is forbidden: exceeded quota: {read.name}, {shown}')
    new = _texts({key: used[key] + delta[key] for key in delta})
    return {**quota, "status": {**quota["status"], "used": {**read.used, **new}}}


def _effective(pod: Pod, part: str, name: str) -> Fraction:
    apps = sidecars = peak = Fraction(0)
    for container in pod.containers:
        amount = _value(getattr(container, part).get(name, "0"))
        match container.kind:
            case ContainerKind.APP:
                apps += amount
            case ContainerKind.SIDECAR:
                sidecars += amount
            case ContainerKind.INIT:
                peak = max(peak, sidecars + amount)
    return max(apps + sidecars, peak)


def _value(text: object) -> Fraction:
    return Quantity.parse(text).value


def _texts(amounts: Amounts) -> dict[str, str]:
    return {key: str(Quantity(amount)) for key, amount in amounts.items()}
