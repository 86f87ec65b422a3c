"""Reading as much of a live cluster as the user's own rights allow."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from hami_webhook.cluster.api import JSON, Cluster, Forbidden, Kind, NotFound
from hami_webhook.cluster.loading import Bundle
from hami_webhook.explain.read import KINDS, loaded

_CONSEQUENCES = {
    Kind.NODES: "cards, their models and what still fits aren't known",
    Kind.PODS: "what pods hold isn't known",
    Kind.RESOURCE_QUOTAS: "quotas aren't known",
    Kind.ACCELERATOR_QUOTAS: "quotas above namespaces aren't known",
    Kind.NAMESPACES: "what namespaces allow their pods isn't known",
    Kind.POD_DISRUPTION_BUDGETS: "which evictions they stand against isn't known",
    Kind.PRIORITY_CLASSES: "new pods are taken to have priority 0",
}
"""What isn't known where the objects of a kind can't be seen."""

_ELSEWHERE = {
    Kind.PODS: "cards may be in use by pods of other namespaces",
    Kind.RESOURCE_QUOTAS: "quotas of other namespaces aren't known",
    Kind.POD_DISRUPTION_BUDGETS: "which evictions they stand against there isn't known",
}
"""What isn't known where only the objects of one namespace can be seen."""


@dataclass(frozen=True)
class LiveReading:
    """What could be read, and by kind a sentence for everything that couldn't for lack of rights."""

    bundle: Bundle
    unseen: Mapping[Kind, str] = field(default_factory=dict)


async def read_allowed(cluster: Cluster, namespace: str) -> LiveReading:
    """Nodes, pods, quotas, namespaces and Koordinator's Devices, of the whole cluster or else of `namespace`.

    Raises `ClusterError` for anything but lacking rights.
    """
    bundle = Bundle()
    unseen = {}
    reads = await asyncio.gather(*(_read(cluster, kind, namespace) for kind, _ in KINDS))
    for (kind, group), (items, lacking) in zip(KINDS, reads, strict=True):
        getattr(bundle, group).extend(loaded(kind, items))
        if lacking:
            unseen[kind] = lacking
    return LiveReading(bundle, unseen)


async def _read(cluster: Cluster, kind: Kind, namespace: str) -> tuple[list[JSON], str]:
    """The objects of a kind that may be read, and what couldn't be seen."""
    try:
        return (await cluster.list(kind)).items, ""
    except NotFound:  # the definition of the kind isn't installed
        return [], ""
    except Forbidden:
        lacking = f"no right to list {kind.qualified}"
    if kind.namespaced:
        try:
            found = (await cluster.list(kind, namespace)).items
            return found, f"{lacking} outside of namespace {namespace}: {_ELSEWHERE.get(kind, '')}".rstrip(": ")
        except Forbidden:
            lacking += f", in namespace {namespace} neither"
    elif kind is Kind.NAMESPACES:
        try:
            return [await cluster.get(kind, namespace)], ""
        except (Forbidden, NotFound):
            lacking += f", nor to get {namespace}"
    elif kind is Kind.DEVICES:
        return [], ""
    return [], f"{lacking}: {_CONSEQUENCES.get(kind, 'they are left out')}"
