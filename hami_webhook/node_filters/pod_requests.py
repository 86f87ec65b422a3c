"""What a pod requests of its node, as NodeResourcesFit counts it: with init containers, sidecars, overhead and
pod-level resources, and for a pod on a node what its containers were given already.

Amounts are whole: cpu in thousandths, everything else in its unit (bytes, pieces), rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from hami_webhook.kube import scheduling_wire as scheduling
from hami_webhook.kube import wire
from hami_webhook.kube.objects import ContainerKind
from hami_webhook.kube.quantity import Quantity, QuantityError
from hami_webhook.kube.requests import effective

CPU, MEMORY, STORAGE, PODS = "cpu", "memory", "ephemeral-storage", "pods"
Milli = dict[str, int]

_NO_SPEC, _NO_STATUS = scheduling.PodSpec(), scheduling.PodStatus()


def pod_requests(pod: scheduling.Pod, *, placed: bool) -> dict[str, int]:
    """The requests of a pod, by resource. Raises `MalformedObject`.

    `placed`: it is on a node, where containers that are being resized count with the larger amount.
    """
    spec = pod.spec or _NO_SPEC
    status = pod.status if placed and pod.status is not None else _NO_STATUS
    infeasible = any(
        each.type == "PodResizePending" and each.reason == "Infeasible" for each in status.conditions or ()
    )
    given = {each.name: each for each in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))}

    def of_container(container: scheduling.Container) -> Milli:
        requests = _defaulted(container.resources)
        found = given.get(container.name)
        if found is None or found.resources is None:
            return requests
        return _in_effect(requests, found.resources.requests, found.allocated_resources, infeasible)

    def of_init_container(container: scheduling.Container) -> tuple[ContainerKind, Milli]:
        if container.restart_policy == "Always":
            return ContainerKind.SIDECAR, of_container(container)
        return ContainerKind.INIT, _defaulted(container.resources)

    total: Milli = {}
    if spec.init_containers:
        rows = [*map(of_init_container, spec.init_containers)]
        rows += [(ContainerKind.APP, of_container(each)) for each in spec.containers or ()]
        names = {name for _, amounts in rows for name in amounts}
        total = {name: effective((kind, amounts.get(name, 0)) for kind, amounts in rows) for name in names}
    else:
        for each in spec.containers or ():
            _add(total, of_container(each))
    if spec.resources is not None:
        _with_pod_level(total, spec.resources, status, infeasible)
    _add(total, _milli(spec.overhead))
    return whole(total)


def _with_pod_level(total: Milli, resources: wire.Resources, status: scheduling.PodStatus, infeasible: bool) -> None:
    """Requests of the pod as a whole replace the sum of its containers'."""
    written = _milli(resources.requests)
    pod_level = {name: amount for name, amount in written.items() if _is_pod_level(name)}
    if pod_level and status.resources is not None:
        in_effect = _in_effect(written, status.resources.requests, status.allocated_resources, infeasible)
        pod_level = {name: in_effect.get(name, 0) for name in pod_level}
    total.update(pod_level)
    limits = _milli(resources.limits)
    for name in filter(_is_pod_level, limits.keys() - total.keys()):
        total[name] = limits[name]


def _defaulted(resources: wire.Resources | None) -> Milli:
    """The requests of a container; the API server sets those that aren't written to the limits."""
    if resources is None:
        return {}
    return _milli(resources.limits) | _milli(resources.requests)


def _in_effect(requests: Milli, actual: wire.Amounts | None, allocated: wire.Amounts | None, infeasible: bool) -> Milli:
    """What counts while a container, or the pod, is resized."""
    found = {} if infeasible else dict(requests)
    _raise(found, _milli(actual))
    _raise(found, _milli(allocated))
    return found


def _is_pod_level(name: str) -> bool:
    return name in (CPU, MEMORY) or name.startswith("hugepages-")


def whole(milli: Mapping[str, int]) -> dict[str, int]:
    """Amounts in thousandths as NodeResourcesFit counts them, without the resources that it doesn't count."""
    return {name: amount if name == CPU else -(-amount // 1000) for name, amount in milli.items() if is_counted(name)}


def is_counted(name: str) -> bool:
    """Whether NodeResourcesFit counts a resource."""
    return name in (CPU, MEMORY, STORAGE, PODS) or "/" in name or name.startswith(("hugepages-", "attachable-volumes-"))


def amounts(written: wire.Amounts | None) -> dict[str, int]:
    """What a node can give, by resource. Raises `MalformedObject`."""
    return whole(_milli(written))


def _milli(written: wire.Amounts | None) -> Milli:
    return {name: _thousandths(amount) for name, amount in written.items()} if written else {}


def _thousandths(amount: Any) -> int:
    """An amount in thousandths, rounded up as the API server does. Raises `MalformedObject`."""
    try:
        return _parse(amount) if isinstance(amount, str) and len(amount) < 20 else _parse.__wrapped__(amount)
    except QuantityError as error:
        raise wire.MalformedObject(str(error)) from error


@lru_cache(maxsize=4096)
def _parse(amount: Any) -> int:
    value = Quantity.parse(amount).value * 1000
    return -(-value.numerator // value.denominator)


def _add(total: Milli, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: Milli, to: Mapping[str, int]) -> None:
    """Raise what is lower."""
    for name, amount in to.items():
        if amount > total.get(name, -1):
            total[name] = amount
