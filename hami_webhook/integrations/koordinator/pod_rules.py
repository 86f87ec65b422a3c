"""What a pod of Koordinator's must not be (docs/spec/koordinator.md#5.4): each container first, then the pod's sum."""

from __future__ import annotations

from collections.abc import Iterable, Set

from hami_webhook.devices.model import BadRequest
from hami_webhook.integrations.koordinator.keys import (
    CORE,
    MEMORY,
    NPU_CORE,
    NPU_CPU,
    NPU_DVPP,
    NVIDIA,
    RATIO,
    SHARED,
)
from hami_webhook.integrations.koordinator.request import (
    GPU_TYPE,
    OWN,
    Amounts,
    RequestingContainer,
    cards_of,
    read,
    total,
)

_WITHOUT_SHARED = frozenset(map(frozenset, ({MEMORY}, {RATIO}, {CORE, MEMORY}, {CORE, RATIO})))
"""Legal too, but for what admission makes of app containers: only init containers are left like this."""

_LEGAL = _WITHOUT_SHARED.union(
    (frozenset((SHARED, *names)) for names in _WITHOUT_SHARED),
    (
        frozenset((SHARED, NPU_CORE, NPU_CPU, MEMORY)),
        frozenset((SHARED, NPU_CORE, NPU_CPU, NPU_DVPP, MEMORY)),
        frozenset((NPU_CORE, RATIO)),
    ),
)

_MOST_DVPP = 100


def check_amounts(containers: Iterable[RequestingContainer]) -> None:
    """Raises `BadRequest` for amounts that Koordinator's scheduler wouldn't take.

    Whether other GPU managers' names for NVIDIA's cards may be used with its own isn't decided here, but in `mixing`.
    """
    containers = list(containers)
    rows = [(container.kind, read(container)) for container in containers]
    for container, (_, amounts) in zip(containers, rows, strict=True):
        _check_container(container.name, amounts)
    amounts = total(rows)
    if any(name in amounts for name in OWN):
        _check_names(amounts.keys() - {NVIDIA})
        _check_sum(amounts)


def _check_container(name: str, amounts: Amounts) -> None:
    shared, core, ratio = amounts.get(SHARED, 0), amounts.get(CORE, 0), amounts.get(RATIO, 0)
    if (shared or core) and not {MEMORY, RATIO, NPU_CORE} & amounts.keys():
        raise BadRequest(f"container {name}: {SHARED if shared else CORE} needs {MEMORY} or {RATIO}")
    if ratio and MEMORY in amounts:
        raise BadRequest(f"{MEMORY} and {RATIO} in container {name} are mutually exclusive; give one of them")
    for resource, percent in ((CORE, core), (RATIO, ratio)):
        if shared and percent % shared:
            raise BadRequest(
                f"{resource} {percent} in container {name} is not a multiple of {SHARED} {shared}, over whose cards it "
                "is spread"
            )
        if shared and percent > 100 * shared:
            raise BadRequest(f"{resource} {percent} in container {name} exceeds 100 per GPU of {SHARED} {shared}")


def _check_names(named: Set[str]) -> None:
    """The names that a pod's sum has must be ones that Koordinator takes together."""
    if frozenset(named) in _LEGAL:
        return
    raise _invalid(
        f"{', '.join(name for name in GPU_TYPE if name in named)} can't stand together in a pod; Koordinator takes "
        f"{MEMORY} or {RATIO}, the same in all containers, perhaps with {CORE}"
    )


def _check_sum(amounts: Amounts) -> None:
    shared = amounts.get(SHARED, 0)
    for resource in (CORE, RATIO):
        percent = amounts.get(resource, 0)
        if shared and percent % shared:
            raise _invalid(f"{resource} {percent} of the whole pod is not a multiple of {SHARED} {shared}")
        if shared and percent > 100 * shared:
            raise _invalid(f"{resource} {percent} of the whole pod exceeds 100 per GPU of {SHARED} {shared}")
        if not shared and percent > 100 and percent % 100:
            raise _invalid(f"{resource} {percent} must be at most 100, or a multiple of 100")
    cards = cards_of(amounts.get(RATIO)) or 1
    if not shared and amounts.get(CORE, 0) > 100 * cards:
        raise _invalid(f"{CORE} {amounts[CORE]} of the whole pod exceeds 100 per GPU of {cards}")
    if NPU_CORE in amounts and shared > 1:
        raise _invalid(f"{SHARED} {shared} must be at most 1 beside {NPU_CORE}")
    if amounts.get(NPU_DVPP, 0) > _MOST_DVPP:
        raise _invalid(f"{NPU_DVPP} {amounts[NPU_DVPP]} must be at most {_MOST_DVPP}")


def _invalid(why: str) -> BadRequest:
    return BadRequest(f"invalid resource device requests: {why}")
