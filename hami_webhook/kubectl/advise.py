"""`kubectl hami advise`: what workloads used of what they are promised, and the limits to write (docs/used.md).

It only reads. A limit of memory is above all that was used, as HAMi-core refuses a container more; one of cores only
slows a container, so it is by the 95th percentile.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct, to_builtins
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.devices.codecs import BadAnnotation
from hami_webhook.devices.keys import MEBIBYTE, Dimension, QuotaKey
from hami_webhook.devices.model import DeviceHold
from hami_webhook.devices.placement_annotations import read_placed
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.human_duration import human_duration
from hami_webhook.kube.human_memory import human_memory
from hami_webhook.kube.objects import Pod
from hami_webhook.kubectl.fragments import Owner
from hami_webhook.kubectl.live import CommandResult, LiveCluster, require
from hami_webhook.quota.rollouts import TEMPLATE_HASH
from hami_webhook.terminal import natural
from hami_webhook.usage.history import Container, ContainerHistory, read_history

_SHARE = 7
"""The part of the time, one in so many, for which a container must have been measured: a day of a week."""
_RESERVE = 10
"""A limit is by one part in so many above what was used."""
_LEAST_CORES = 5
"""Percent of a card: with less a container that computes seldom would take long for the little it does."""

_Key = tuple[str, str, str, str, str]
"""Namespace, kind and name of a workload, a container of its pods, and the vendor of that container's cards."""


class Amounts(Struct, frozen=True):
    """Of one card: what is promised at most, the 95th percentile and the most of what was used, and the limit to write.

    `frees`: by how much the pods' promises would fall, over all of their cards. None is what isn't known, or what isn't
    to be written. Memory is in MiB, cores in percent of a card, where 0 promised means no limit.
    """

    promised: int
    p95: int | None = None
    most: int | None = None
    limit: int | None = None
    frees: int = 0


class Advice(Struct, frozen=True):
    """A container of a workload's live pods. `measured` is for how many seconds its longest measured pod was.

    `limits` is what to write, by resource, in its unit; empty if nothing is, with `why`.
    """

    namespace: str
    kind: str
    name: str
    container: str
    pods: int
    measured: int
    memory: Amounts
    cores: Amounts
    limits: Mapping[str, int] = {}
    why: str = ""


def advise(cluster: LiveCluster, arguments: argparse.Namespace) -> CommandResult:
    """What the verb shows. Raises `PrometheusError`."""
    require(cluster, Kind.PODS, cluster.namespace)
    namespace, seconds = "" if arguments.all_namespaces else cluster.namespace, int(arguments.since)
    holdings = _holdings(cluster, namespace)
    history = read_history(arguments.prometheus, seconds, namespace) if holdings else {}
    found = [_advice(cluster.simulation.core.vendors, key, pods, history, seconds) for key, pods in holdings.items()]
    found.sort(key=lambda each: (-each.memory.frees, -each.cores.frees, each.namespace, natural(each.name)))
    where = "any namespace" if arguments.all_namespaces else f"namespace {namespace}"
    none = "" if found else f"No resources found: no pod in {where} holds cards by its limits."
    return CommandResult(to_builtins(found), partial(_print, found, seconds), none=none)


def _holdings(cluster: LiveCluster, namespace: str) -> Mapping[_Key, list[tuple[Pod, list[DeviceHold]]]]:
    """By container of a workload the live pods with the cards that it holds."""
    found: dict[_Key, list[tuple[Pod, list[DeviceHold]]]] = defaultdict(list)
    core = cluster.simulation.core
    for pod in core.state.pods_in(namespace) if namespace else core.state.pods():
        if pod.ended(cluster.now) or not pod.node_name:
            continue
        raw = cluster.simulation.cluster.peek(Kind.PODS, pod.name, pod.namespace)
        kind, name = _workload(pod, raw)
        for vendor in core.vendors.values():
            for container, holds in _held(vendor, pod):
                found[pod.namespace, kind, name, container, vendor.key].append((pod, holds))
    return found


def _held(vendor: Vendor, pod: Pod) -> Iterator[tuple[str, list[DeviceHold]]]:
    try:
        placed = read_placed(vendor, pod)
    except BadAnnotation:
        return
    if placed is None or len(placed.kinds) != len(pod.containers) or vendor.masks_cores or vendor.cores_in_units:
        return
    for row, container in enumerate(pod.containers):
        if holds := [each for each in placed.claims if each.row == row]:
            yield container.name, holds


def _workload(pod: Pod, raw: JSON | None) -> tuple[str, str]:
    """Kind and name of what a person writes: the pod's owner, or the Deployment of its ReplicaSet, or itself."""
    owner = None if raw is None else Owner.of(raw)
    if owner is None:
        return "Pod", pod.name
    suffix = f"-{pod.labels.get(TEMPLATE_HASH, '')}"
    if owner.kind == "ReplicaSet" and suffix != "-" and owner.name.endswith(suffix):
        return "Deployment", owner.name.removesuffix(suffix)
    return owner.kind, owner.name


def _advice(
    vendors: Mapping[str, Vendor],
    key: _Key,
    pods: Sequence[tuple[Pod, Sequence[DeviceHold]]],
    history: Mapping[Container, ContainerHistory],
    seconds: int,
) -> Advice:
    namespace, kind, name, container, vendor = key
    measured = [each for pod, _ in pods if (each := history.get((namespace, pod.name, container))) is not None]
    longest = max((each.seconds for each in measured), default=0)
    holds = [hold for _, of_pod in pods for hold in of_pod]
    amounts = {
        Dimension.MEMORY: _used([each.memory for each in holds], [(e.memory_p95, e.memory_most) for e in measured]),
        Dimension.CORES: _used([each.cores for each in holds], [(e.cores_p95, e.cores_most) for e in measured]),
    }
    limits: dict[str, int] = {}
    if not measured:
        why = "not measured"
    elif longest < seconds // _SHARE:
        why = "not measured for long enough"
    elif not amounts[Dimension.MEMORY].most:
        why = "used no memory"
    else:
        for resource in vendors[vendor].quota_keys():
            found = amounts.get(resource.dimension)
            limit = None if found is None else _limit(resource, found)
            if found is not None and limit is not None:
                promised = [each.memory if resource.dimension is Dimension.MEMORY else each.cores for each in holds]
                size = limit * resource.factor
                amounts[resource.dimension] = replace(
                    found, limit=size, frees=sum(max(0, each - size) for each in promised)
                )
                limits[resource.name.removeprefix("limits.")] = limit
        why = "" if limits else "uses what it is promised"
    memory, cores = amounts.values()
    return Advice(namespace, kind, name, container, len(pods), longest, memory, cores, limits, why)


def _used(promised: Sequence[int], used: Sequence[tuple[int | None, int | None]]) -> Amounts:
    """The amounts of all pods; what isn't known of one of them isn't known."""
    known = [(p95, most) for p95, most in used if p95 is not None and most is not None]
    if not known or len(known) < len(used):
        return Amounts(max(promised))
    return Amounts(max(promised), max(p95 for p95, _ in known), max(most for _, most in known))


def _limit(resource: QuotaKey, used: Amounts) -> int | None:
    """The limit to write in the resource's unit; None if it wouldn't be below what is promised."""
    if resource.memory_is_percentage or used.p95 is None:
        return None
    if resource.dimension is Dimension.MEMORY:
        size = _with_reserve(used.most or 0)
    else:
        size = max(_LEAST_CORES, _with_reserve(used.p95 or 0))
    limit = -(-size // resource.factor)
    return limit if limit * resource.factor < used.promised else None


def _with_reserve(used: int) -> int:
    return used + -(-used // _RESERVE)


_HEADINGS = (
    "NAMESPACE", "WORKLOAD", "CONTAINER", "PODS", "MEASURED", "MEMORY P95", "MOST", "OF", "CORES P95", "MOST", "OF",
    "LIMITS TO WRITE", "WOULD FREE",
)  # fmt: skip


def _print(found: Sequence[Advice], seconds: int, console: Console) -> None:
    from hami_webhook.kubectl.tables import print_rows

    print_rows(_HEADINGS, map(_row, found), console)
    console.print()
    for sentence in _sentences(found, seconds):
        console.print(Text(sentence), soft_wrap=True)


def _row(each: Advice) -> Sequence[str]:
    limits = ", ".join(f"{resource}={amount}" for resource, amount in each.limits.items())
    return (
        each.namespace, f"{each.kind}/{each.name}", each.container, str(each.pods),
        human_duration(each.measured) if each.measured else "-",
        _memory(each.memory.p95), _memory(each.memory.most), _memory(each.memory.promised),
        _number(each.cores.p95), _number(each.cores.most), str(each.cores.promised or "-"),
        limits or f"- ({each.why})", _frees(each.memory.frees, each.cores.frees),
    )  # fmt: skip


def _sentences(found: Sequence[Advice], seconds: int) -> Iterator[str]:
    since = human_duration(seconds)
    frees = _frees(sum(each.memory.frees for each in found), sum(each.cores.frees for each in found))
    if frees != "-":
        yield f"By the last {since}, the limits would free {frees}. Nothing was changed: write them into the workloads."
    elif any(each.measured for each in found):
        yield f"By the last {since}, no limit is to be written."
    else:
        yield (
            f"Prometheus has no history of these pods in the last {since}. It needs to scrape the nodes' monitors: see "
            "docs/monitor.md"
        )
    if any(each.measured and each.measured < seconds // _SHARE for each in found):
        least = human_duration(seconds // _SHARE)
        yield f"Containers that were measured for less than {least} get no limit: wait, or give a shorter --since."


def _frees(memory: int, cores: int) -> str:
    parts = [human_memory(memory * MEBIBYTE)] if memory else []
    return " and ".join([*parts, *([f"{cores} % of a card"] if cores else [])]) or "-"


def _memory(amount: int | None) -> str:
    return "-" if amount is None else human_memory(amount * MEBIBYTE)


def _number(amount: int | None) -> str:
    return "-" if amount is None else str(amount)
