"""The page of a pod: what it asks for, what it is charged, what nodes answer, and where it is placed, in this order."""

from __future__ import annotations

from collections.abc import Sequence, Set

from msgspec import Struct

from hami_webhook.cluster.api import Kind
from hami_webhook.explain.report import Explanation
from hami_webhook.explain.tables import node_tables, placement_table, quota_table
from hami_webhook.kube.message_text import cut
from hami_webhook.kube.objects import Container, MalformedObject, Pod
from hami_webhook.kubectl.live import LiveCluster
from hami_webhook.terminal import ShownTable


class PageSection(Struct, frozen=True):
    """Tables, or a sentence where there are none."""

    title: str
    tables: Sequence[ShownTable]
    sentence: str = ""


def pod_sections(explanation: Explanation, cluster: LiveCluster) -> list[PageSection]:
    """The sections, in order."""
    place, quotas, nodes = explanation.place, explanation.quotas, [*node_tables(explanation.nodes)]
    why_empty = "A placed pod isn't evaluated again." if place else "No node was evaluated."
    free = "Its quotas can't be seen." if Kind.RESOURCE_QUOTAS in cluster.unseen else "No quota counts it."
    return [
        PageSection("Asked", *_asked(explanation, cluster)),
        PageSection("Charged", [quota_table(quotas)] if quotas else [], "" if quotas else free),
        PageSection("Evaluated", nodes, "" if nodes else why_empty),
        PageSection("Placed", [placement_table(place)] if place else [], "" if place else "It has no cards yet."),
    ]


def _asked(explanation: Explanation, cluster: LiveCluster) -> tuple[Sequence[ShownTable], str]:
    """The resources of managed devices that each container names."""
    raw = cluster.simulation.cluster.peek(Kind.PODS, explanation.name, explanation.namespace)
    try:
        pod = Pod.from_object(raw) if raw is not None else None
    except MalformedObject:
        pod = None
    if pod is None:
        return [], "Its requests can't be read."
    vendors = cluster.simulation.core.vendors
    rows = [row for container in pod.containers for row in _rows(container, vendors.resource_names)]
    for scheduler in vendors.foreign_among(pod, pod.named):
        asked = sorted(scheduler.asked_in(pod.annotations).items())
        rows += [("-", f"annotation {key}", cut(amount)) for key, amount in asked]
    rows += [("-", f"ResourceClaim {each.name}", "-") for each in pod.resource_claims]
    if not rows:
        return [], "No container names a resource of an enabled vendor."
    return [ShownTable("Resources", ("container", "resource", "amount"), rows, amounts=frozenset(("amount",)))], ""


def _rows(container: Container, names: Set[str]) -> list[tuple[str, str, str]]:
    amounts = {**container.requests, **container.limits}
    return [(container.name, name, str(amount)) for name, amount in amounts.items() if name in names]
