"""Reading as much of a live cluster as the user's own rights allow."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.cluster.api import JSON, Cluster, Forbidden, Kind, NotFound
from hami_webhook.cluster.kept_fields import decode_for_scheduling
from hami_webhook.cluster.loading import GROUPS, Bundle
from hami_webhook.explain.pod_words import pod_words
from hami_webhook.explain.read import CLAIM_KINDS, KINDS, loaded

if TYPE_CHECKING:
    from hami_webhook.cluster.kubernetes import KubernetesCluster

_CONSEQUENCES = {
    Kind.NODES: "cards, their models and what still fits aren't known",
    Kind.PODS: "devices of pods aren't known",
    Kind.RESOURCE_QUOTAS: "quotas aren't known",
    Kind.ACCELERATOR_QUOTAS: "AcceleratorQuotas aren't known",
    Kind.NAMESPACES: "policies of namespaces aren't known",
    Kind.POD_DISRUPTION_BUDGETS: "evictions that they prevent aren't known",
    Kind.PRIORITY_CLASSES: "new pods count as of priority 0",
    Kind.RESOURCE_CLAIMS: "devices of claims aren't known",
    Kind.RESOURCE_CLAIM_TEMPLATES: "the claims from them aren't known",
    Kind.RESOURCE_SLICES: "the devices that claims are for aren't known",
    Kind.DEVICE_CLASSES: "resources and devices of classes aren't known",
}
"""What isn't known where the objects of a kind can't be seen."""

_ELSEWHERE = {
    Kind.PODS: "cards, cpu and ports may be in use by pods of other namespaces",
    Kind.RESOURCE_QUOTAS: "quotas of other namespaces aren't known",
    Kind.POD_DISRUPTION_BUDGETS: "evictions that they prevent there aren't known",
    Kind.RESOURCE_CLAIMS: "devices may be in use by claims of other namespaces",
}
"""What isn't known where only the objects of one namespace can be seen."""


LONGEST_WAIT = 10.0
"""Seconds in which an API server says something to who waits at a terminal."""
_MOST_EVENTS = 500
"""Events of a pod that are read: API servers keep them for an hour."""


class Unseen(Struct, frozen=True):
    """What of a kind couldn't be read, in a sentence: objects outside of one namespace if `elsewhere`, else all.

    `unknown`: not for lack of rights, but as the API server doesn't have the kind.
    """

    sentence: str
    elsewhere: bool = False
    unknown: bool = False


class LiveReading(Struct, frozen=True):
    """What could be read, and by kind what couldn't, for lack of rights or as the API server is too old.

    `pod_words` are what the status and the events of a pod say, where not all that decides on it could be read.
    """

    bundle: Bundle
    unseen: Mapping[Kind, Unseen] = {}
    pod_words: Sequence[str] = ()


def lacking(unseen: Mapping[Kind, Unseen], needs: Mapping[Kind, str]) -> list[str]:
    """What couldn't be read of what was needed, in a line: `needs` are kinds with what follows from lacking them.

    A line more for each kind that the API server doesn't have.
    """
    forbidden = [kind for kind in needs if kind in unseen and not unseen[kind].unknown]
    lines = [unseen[kind].sentence for kind in needs if kind in unseen and unseen[kind].unknown]
    if forbidden:
        names = [
            f"{kind.qualified} of other namespaces" if unseen[kind].elsewhere else kind.qualified for kind in forbidden
        ]
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        consequences = "; ".join(dict.fromkeys(needs[kind] for kind in forbidden))
        lines.insert(0, f"{listed} can't be listed with your rights: {consequences}")
    return lines


def needs_of_pod(unseen: Mapping[Kind, Unseen]) -> Mapping[Kind, str]:
    """What explaining a pod needs, with what follows from lacking it."""
    cards = {Kind.NODES: "the answer uses only the pod's own annotations, status and events"}
    if Kind.NODES not in unseen:
        cards = {Kind.PODS: "they may hold cards that look free"}
    return {
        **cards,
        Kind.NAMESPACES: "the policy of the namespace isn't known",
        **({} if Kind.RESOURCE_QUOTAS in unseen and unseen[Kind.RESOURCE_QUOTAS].elsewhere else _QUOTAS_OF_POD),
        Kind.ACCELERATOR_QUOTAS: "AcceleratorQuotas aren't known",
    }


_QUOTAS_OF_POD = {Kind.RESOURCE_QUOTAS: "its quotas aren't known"}


async def read_allowed(cluster: Cluster, namespace: str, *, claims: bool = False) -> LiveReading:
    """Nodes, pods, quotas, namespaces and Koordinator's Devices, of the whole cluster or else of `namespace`; with
    `claims` what these are charged by.

    Raises `ClusterError` for anything but lacking rights.
    """
    bundle = Bundle()
    unseen = {}
    kinds = (*KINDS, *(CLAIM_KINDS if claims else ()))
    reads = await asyncio.gather(*(_read(cluster, kind, namespace) for kind in kinds))
    for kind, (items, hidden) in zip(kinds, reads, strict=True):
        getattr(bundle, GROUPS[kind]).extend(loaded(kind, items))
        if hidden:
            unseen[kind] = hidden
    return LiveReading(bundle, unseen)


async def read_cluster(kubeconfig: str, namespace: str, name: str, now: float) -> LiveReading:
    """What explaining a pod takes, from an API server; an empty name is that of a pod that isn't there yet.

    Raises `Forbidden` where the pod can't be seen, and `ClusterError` for anything but lacking rights.
    """
    # imported here: who explains from files would take twice as long to start
    from hami_webhook.cluster.connect import CONNECTIONS_OF_A_READ, connect
    from hami_webhook.cluster.kubernetes import KubernetesCluster

    client = await connect(kubeconfig, connections=CONNECTIONS_OF_A_READ)
    async with KubernetesCluster(client, decode=decode_for_scheduling, silence=LONGEST_WAIT) as cluster:
        reading = await read_allowed(cluster, namespace)
        pods = reading.unseen.get(Kind.PODS)
        if name and pods is not None and not pods.elsewhere:
            raise Forbidden(pods.sentence)
        return await with_pod_words(reading, cluster, namespace, name, now) if name else reading


async def with_pod_words(
    reading: LiveReading, cluster: KubernetesCluster, namespace: str, name: str, now: float
) -> LiveReading:
    """The reading with what a pod's own status and events say, if the nodes or other pods can't be seen."""
    if reading.unseen.keys().isdisjoint((Kind.NODES, Kind.PODS)):
        return reading
    return replace(reading, pod_words=await read_pod_words(cluster, namespace, name, now))


async def read_pod_words(cluster: KubernetesCluster, namespace: str, name: str, now: float) -> Sequence[str]:
    """What a pod's own status and events say at `now` (Unix seconds), as far as they may be read.

    Raises `ClusterError` for anything but lacking rights.
    """
    try:
        pod = await cluster.get(Kind.PODS, name, namespace)
    except (Forbidden, NotFound):
        return ()
    selector = f"involvedObject.kind=Pod,involvedObject.name={name}"
    query = {"fieldSelector": selector, "limit": str(_MOST_EVENTS)}
    events: Sequence[JSON] = ()
    with suppress(Forbidden):
        events = (await cluster.call("GET", f"/api/v1/namespaces/{namespace}/events", query=query)).get("items") or ()
    return pod_words(pod, events, now)


async def _read(cluster: Cluster, kind: Kind, namespace: str) -> tuple[list[JSON], Unseen | None]:
    """The objects of a kind that may be read, and what couldn't be seen."""
    try:
        return (await cluster.list(kind)).items, None
    except NotFound:
        if kind.optional:  # its definition isn't installed
            return [], None
        old = f"the API server is too old to have {kind.api_version} {kind.value}: {_consequence(kind)}"
        return [], Unseen(old, unknown=True)
    except Forbidden:
        no_right = f"no right to list {kind.qualified}"
    if kind.namespaced:
        try:
            found = (await cluster.list(kind, namespace)).items
            sentence = f"{no_right} outside of namespace {namespace}: {_ELSEWHERE.get(kind, '')}".rstrip(": ")
            return found, Unseen(sentence, elsewhere=True)
        except Forbidden:
            no_right += f", in namespace {namespace} neither"
    elif kind is Kind.NAMESPACES:
        try:
            return [await cluster.get(kind, namespace)], None
        except (Forbidden, NotFound):
            no_right += f", nor to get {namespace}"
    elif kind is Kind.DEVICES:
        return [], None
    return [], Unseen(f"{no_right}: {_consequence(kind)}")


def _consequence(kind: Kind) -> str:
    return _CONSEQUENCES.get(kind, "they are left out")
