"""What admission makes of a new pod of Koordinator's (docs/spec/koordinator.md#5.2 to #5.4), and warns of (5.6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from hami_webhook.devices.foreign_pods import DEFAULT_SCHEDULER, drop_owned, refuse_node_name
from hami_webhook.devices.foreign_scheduler import NodeLister
from hami_webhook.devices.model import BadRequest
from hami_webhook.integrations.koordinator.hints import check_hints, read_hint
from hami_webhook.integrations.koordinator.keys import (
    ALIASES,
    CORE,
    GPU,
    ISOLATION,
    MEMORY,
    NPU_CORE,
    NPU_CPU,
    NPU_DVPP,
    NVIDIA,
    RATIO,
    SCHEDULER_NAME,
    SCHEDULERS_OWN,
    SHARED,
)
from hami_webhook.integrations.koordinator.request import (
    GPU_TYPE,
    OWN,
    Amounts,
    RequestingContainer,
    Want,
    cards_of,
    pod_total,
    read,
    total,
    whole,
)
from hami_webhook.integrations.priority import move_priority
from hami_webhook.integrations.sections import KoordinatorSection
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.objects import ContainerKind
from hami_webhook.kube.patch import MapDraft
from hami_webhook.kube.quantity import parse_whole


def admit(pod: PodDraft, section: KoordinatorSection, node_lister: NodeLister) -> None:
    """Normalise a pod, and warn. Raises `BadRequest`."""
    refuse_node_name(pod.original)
    move_priority(pod, "PriorityClasses and ElasticQuotas")
    apps = [container for container in pod.containers if container.kind is ContainerKind.APP]
    for container in apps:
        normalise(container, pod)
    offered = any(parse_whole(node.allocatable.get(SHARED)) for node in node_lister.nodes())
    counted = offered or any(_needs_count(read(container)) for container in pod.containers)
    for container in apps:
        complete(container, counted=counted)
    drop_owned(pod, SCHEDULERS_OWN)
    check_amounts(pod.containers)
    check_hints(pod.annotations)
    amounts = pod_total(pod.containers)
    want = Want.of(amounts)
    if want is None:
        return  # there were only zeros
    _label(pod, section, want)
    if SHARED in amounts and not offered:
        pod.warn(
            f"[koordinator/shared] no node offers {SHARED}, so the pod waits until one does; koord-manager's feature "
            "gate EnableSyncGPUSharedResource makes nodes offer it"
        )
    for warning in warnings_of(pod, section, want, amounts.get(MEMORY, 0), node_lister):
        pod.warn(warning)


def normalise(container: ContainerDraft, pod: PodDraft) -> None:
    """Put an app container's amounts into Koordinator's own form."""
    for amounts in (container.limits, container.requests):
        _rename(container, amounts, pod)
        for resource in OWN:
            if parse_whole(amounts.get(resource)) == 0:
                del amounts[resource]
        _spell_out(container, amounts)


def _needs_count(found: Amounts) -> bool:
    """Whether the number of cards is given, or follows from nothing else that Koordinator reads."""
    return SHARED in found or (RATIO not in found and cards_of(found.get(CORE)) is not None)


def complete(container: ContainerDraft, *, counted: bool) -> None:
    """Name in both limits and requests what an app container requests; `counted`: its number of cards too.

    Where nodes don't offer that resource a pod that names it is never scheduled, and Koordinator doesn't need it.
    """
    found = read(container)
    missing = SHARED not in found and any(name in found for name in OWN) and not _asks_for_whole_npus(found)
    if missing and counted:
        ratio = found.get(RATIO)
        container.set_both(SHARED, cards_of(found.get(CORE) if ratio is None else ratio) or 1)
    for resource in OWN:
        container.copy_across(resource)


def _rename(container: ContainerDraft, amounts: MapDraft, pod: PodDraft) -> None:
    for alias, proper in ALIASES.items():
        if alias in amounts:
            pod.warn(f"[koordinator/alias] container {container.name}: {alias} is read as {proper}")
            if proper not in amounts:
                amounts[proper] = amounts[alias]
            del amounts[alias]


def _spell_out(container: ContainerDraft, amounts: MapDraft) -> None:
    """The shorthand means that much of both, and overwrites them."""
    value = amounts.get(GPU)
    if value is None:
        return
    percent = parse_whole(value)
    if percent is None:
        whole(container, GPU, value)
    elif percent <= 0 or (percent > 100 and percent % 100):
        raise BadRequest(
            f"{GPU} {value} in container {container.name} must be a percentage of one card from 1 to 100, or a "
            "multiple of 100 for whole cards"
        )
    amounts[CORE] = amounts[RATIO] = value
    del amounts[GPU]


def _asks_for_whole_npus(amounts: Amounts) -> bool:
    """Whether whole Ascend cards are requested, which go by ratio, without a number of cards."""
    return NPU_CORE in amounts and RATIO in amounts and MEMORY not in amounts


def _label(pod: PodDraft, section: KoordinatorSection, want: Want) -> None:
    value, provider = pod.labels.get(ISOLATION), section.isolation_provider
    missing = value is None and want.fractional and section.inject_isolation_label
    if missing or (value is not None and value.lower() == provider.lower()):
        pod.labels[ISOLATION] = provider


def warnings_of(
    pod: PodDraft, section: KoordinatorSection, want: Want, memory: int, node_lister: NodeLister
) -> Iterator[str]:
    """What is legal but hardly meant; `memory` is what the whole pod requests, in bytes."""
    label = pod.labels.get(ISOLATION)
    if label and label != section.isolation_provider:
        yield (
            f"[koordinator/isolation] label {ISOLATION} has the unknown value {label}, so nothing is enforced; "
            f"{section.isolation_provider} would be"
        )
    elif want.fractional and not label:
        yield (
            f"[koordinator/isolation] without the label {ISOLATION}: {section.isolation_provider} the whole card is "
            "visible and nothing is enforced"
        )
    if label and want.ratio == 100:
        yield f"[koordinator/isolation-unused] label {ISOLATION} has no effect on whole cards"
    if label and want.fractional and not any(node.labels.get(ISOLATION) == label for node in node_lister.nodes()):
        yield f"[koordinator/isolation-node] no node has the label {ISOLATION}: {label}, so the pod can't be scheduled"
    running = [each.name for each in pod.containers if each.kind is not ContainerKind.INIT]
    if len(running) > 1:
        yield (
            f"[koordinator/containers] each of the containers {', '.join(running)} gets all the pod's cards with the "
            "same limit, also those that asked for nothing"
        )
    if want.memory is not None and memory % want.count:
        yield (
            f"[koordinator/remainder] {MEMORY} {memory} over {want.count} cards leaves a remainder: each gets "
            f"{want.memory} bytes, and the rest is lost"
        )
    scope = read_hint(pod.annotations).scope
    if scope and want.fractional and want.count > 1:
        yield f"[koordinator/topology] several shared cards within one {scope} can't be scheduled"
    named = pod.labels.get(SCHEDULER_NAME) or pod.scheduler_name
    if not section.inject_scheduler_name and named in ("", DEFAULT_SCHEDULER):
        yield (
            f"[koordinator/scheduler] {DEFAULT_SCHEDULER} would bind the pod without choosing cards for it; "
            f"{' or '.join(section.scheduler_names)} does"
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
