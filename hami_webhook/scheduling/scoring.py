"""Node scores, the choice among fitting nodes with its ties, and the messages about it.

Source: docs/spec/core.md#8, #12; docs/spec/nvidia.md#8.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct

from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.fit_request import Budget
from hami_webhook.devices.model import Allocation, NodeView
from hami_webhook.devices.pod_fit import NodeFit, PodRequest, fit_pod
from hami_webhook.devices.pod_preferences import NODE_POLICY
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.message_text import first_of
from hami_webhook.state.presumed_usage import remark

_TIE = 1e-6
"""Scores that differ by less are equal."""

_EVENT_TEXT = 1024
"""Characters that an event's text has room for."""


def node_score(view: NodeView) -> float:
    """10 × (used/all slots + used/all cores + used/all memory) over all cards, before the pod; 0 where a total is 0."""
    slots = cores = memory = used_slots = used_cores = used_memory = 0
    for key, inventory in view.inventories.items():
        for device in inventory.devices:
            usage = view.used(key, device.uuid)
            slots += device.slots
            cores += device.cores
            memory += device.memory
            used_slots += usage.slots
            used_cores += usage.cores
            used_memory += usage.memory
    if min(slots, cores, memory) <= 0:
        return 0.0
    return 10 * (used_slots / slots + used_cores / cores + used_memory / memory)


def score(fit: NodeFit, view: NodeView, request: PodRequest, vendors: Vendors, default_node_policy: str) -> float:
    """The node's score with what the vendors that allocated add for this placement."""
    policy = request.shape.annotations.get(NODE_POLICY, default_node_policy)
    return node_score(view) + sum(vendors[key].score(request.shape, view, fit.rows, policy) for key in request.vendors)


class ScoredNode(Struct, frozen=True):
    """A fitting node with its score."""

    fit: NodeFit
    view: NodeView
    score: float

    @property
    def node(self) -> str:
        return self.fit.node


class NodeRank(Struct, frozen=True, gc=False):
    """All by which a fitting node is compared with others: its score, and its cards where a pod goes by their links.

    `links` is least for the best: whether the chosen cards aren't all linked, how many are left in the groups broken
    for them, how many would do, how many there are, how good the chosen ones' links aren't.
    """

    node: str
    score: float
    links: tuple[int, ...] = ()


def node_rank(scored: ScoredNode, request: PodRequest, vendors: Vendors) -> NodeRank:
    """The score and rank of a fitting node."""
    vendor = next(
        (k for k, t in request.terms.items() if t.policy.topology_aware and vendors[k].topology_ranks_nodes), ""
    )
    if not vendor:
        return NodeRank(scored.node, scored.score)
    first = _first_allocation(scored.fit, vendor)
    cards = len(scored.view.inventories[vendor].devices)
    links = (not first.fully_linked, first.left_in_groups, first.candidates, cards, -first.link_quality)
    return NodeRank(scored.node, scored.score, links)


def fit_and_score(
    view: NodeView, request: PodRequest, vendors: Vendors, budget: Budget | None, default_node_policy: str
) -> tuple[ScoredNode, NodeRank] | Rejection:
    """The pod's placement on a node, with its score and rank; or why there is none, as for `fit_pod`."""
    fit = fit_pod(view, request, vendors, budget)
    if isinstance(fit, Rejection):
        return fit
    try:
        scored = ScoredNode(fit, view, score(fit, view, request, vendors, default_node_policy))
        return scored, node_rank(scored, request, vendors)
    except Exception as error:
        return vendors.faults.record("score", view.name, error)


def ranked(
    fits: Sequence[ScoredNode], request: PodRequest, vendors: Vendors, default_node_policy: str
) -> list[ScoredNode]:
    """The fitting nodes, best first.

    By node policy (`spread` the lowest score, anything else the highest), then by name. For `topology-aware` pods a
    fully linked set comes first, then the fewest cards left in the link groups broken for it, the fewest fitting cards,
    the fewest registered, the better links — behind the score, if the pod itself carries a node policy.
    """
    by_name = {scored.node: scored for scored in fits}
    order = best_first([node_rank(scored, request, vendors) for scored in fits], request, default_node_policy)
    return [by_name[each.node] for each in order]


def best_first(
    fits: Sequence[NodeRank],
    request: PodRequest,
    default_node_policy: str,
    busy: Collection[str] = (),
    contended: Collection[str] = (),
    held: Collection[str] = (),
) -> list[NodeRank]:
    """As `ranked`, of nodes that are known by how they stand; of equal ones those that are `busy` come last, the
    `contended` ones after all others, and those `held` first.
    """
    keys = _rank_keys(fits, request, default_node_policy)
    # sorts are stable, and each of these is on plain values, which compare quickly
    by_name = sorted(range(len(fits)), key=[each.node for each in fits].__getitem__)
    if busy:
        by_name.sort(key=[each.node in busy for each in fits].__getitem__)
    order = [fits[index] for index in sorted(by_name, key=keys.__getitem__)]
    rank = _lock_ranks(contended, held)
    return sorted(order, key=lambda each: rank.get(each.node, 0)) if rank else order


def grades(
    fits: Sequence[NodeRank],
    request: PodRequest,
    default_node_policy: str,
    highest: int,
    busy: Collection[str] = (),
    contended: Collection[str] = (),
    held: Collection[str] = (),
) -> dict[str, int]:
    """The fitting nodes' grades from 0 to `highest`, the best, by rank: nodes that are as good have the same grade.

    Of those that are as good the `busy` ones have a lower grade, if not lower than the next ones'. The `contended` ones
    rank behind all others, those `held` before all.
    """
    keys = _rank_keys(fits, request, default_node_policy)
    rank = _lock_ranks(contended, held)
    if busy or rank:
        keys = [(rank.get(each.node, 0), key, each.node in busy) for key, each in zip(keys, fits, strict=True)]
    order = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    last = max(1, len(order) - 1)
    grade = {key: round(highest * (last - rank) / last) for key, rank in order.items()}
    return {each.node: grade[key] for each, key in zip(fits, keys, strict=True)}


def _lock_ranks(contended: Collection[str], held: Collection[str]) -> dict[str, int]:
    """The ranks before the scores of nodes whose locks matter more; 0 for all others."""
    return dict.fromkeys(contended, 1) | dict.fromkeys(held, -1)


def _rank_keys(fits: Sequence[NodeRank], request: PodRequest, default_node_policy: str) -> list[Any]:
    """What the nodes are put in order by, before their names: the least is the best."""
    own_policy = request.shape.annotations.get(NODE_POLICY)
    spread = (default_node_policy if own_policy is None else own_policy) == "spread"
    ranks = _score_ranks([each.score for each in fits], lowest_first=spread)
    if not any(each.links for each in fits):
        return [ranks[each.score] for each in fits]
    if own_policy is not None:
        return [(ranks[each.score], *each.links) for each in fits]
    return [(*each.links, ranks[each.score]) for each in fits]


def _score_ranks(scores: Sequence[float], *, lowest_first: bool) -> dict[float, int]:
    """Each score's rank, 0 the best; a score that is as good as equal to the best one of a rank shares that rank."""
    ranks: dict[float, int] = {}
    leader: float | None = None
    rank = -1
    for score in sorted(set(scores), reverse=not lowest_first):
        if leader is None or abs(score - leader) >= _TIE:
            leader, rank = score, rank + 1
        ranks[score] = rank
    return ranks


def _first_allocation(fit: NodeFit, vendor: str) -> Allocation:
    return next(row[vendor] for row in fit.rows if vendor in row)


def success_message(chosen: NodeRank, fits: Sequence[NodeRank], candidates: int) -> str:
    """The `FilteringSucceed` event: fitting nodes in sort order, the chosen one last; the first only if all have room.

    `fits` has the best one first.
    """
    start = f"find fit node({chosen.node}), {candidates - len(fits)} nodes not fit, {len(fits)} nodes fit("
    scores = [_score(chosen)]
    room = _EVENT_TEXT - len(start) - len(scores[0]) - len("...,)")
    for other in (each for each in fits if each.node != chosen.node):
        score = _score(other)
        room -= len(score) + 1
        if room < 0:
            scores.append("...")
            break
        scores.append(score)
    return f"{start}{','.join(reversed(scores))})"


def _score(each: NodeRank) -> str:
    return f"{each.node}:{each.score:.2f}"


def failure_messages(failed: Mapping[str, Rejection], candidates: int) -> list[str]:
    """The `FilteringFailed` events: one per label with its nodes, then the total; a free text has none of its own."""
    by_label: dict[str, list[str]] = {}
    for node in sorted(failed):
        rejection = failed[node]
        for label in rejection.labels():
            if " " not in label:
                by_label.setdefault(label, []).append(node)
    messages = [f"{len(by_label[label])} nodes {label}({_joined(by_label[label])})" for label in sorted(by_label)]
    return [*messages, f"no available node, {candidates} nodes do not meet"]


def _joined(items: Iterable[str]) -> str:
    """The items with commas between, as far as an event's text has room for them."""
    taken: list[str] = []
    size = 0
    for item in items:
        taken.append(item)
        size += len(item) + 1
        if size > _EVENT_TEXT:
            break
    return ",".join(taken)


def hints(
    failed: Mapping[str, Rejection],
    request: PodRequest,
    views: Iterable[NodeView],
    vendors: Vendors,
    device_lister: DeviceLister,
) -> list[str]:
    """What the requested vendors say of there being no cards, and on the labels nodes refused with."""
    requested = [vendors[key] for key in request.vendors]
    sentences = [vendor.registration.missing for vendor in requested if not any(device_lister.inventories(vendor.key))]
    refusing: dict[str, list[NodeView]] = {}
    held: list[str] = []
    for view in views:
        if view.unplaced and view.name in failed and (found := remark(view, request.vendors)):
            held.append(f"node {view.name}: {found}")
        for label in failed[view.name].labels() if view.name in failed else ():
            refusing.setdefault(label, []).append(view)
    for label in sorted(refusing):
        for vendor in requested:
            having = [view for view in refusing[label] if vendor.key in view.inventories]
            sentences += [vendor.hint(label, having)] if having else []
    if held:
        more = f"; {len(held) - 1} more nodes have such pods" if len(held) > 1 else ""
        sentences.append(held[0] + more)
    return [text for text in sentences if text]


def remarks(request: PodRequest, views: Iterable[NodeView]) -> list[str]:
    """What the pod's owner should know of how it is placed, a sentence each: words that mean nothing, blind choices."""
    sentences = list(next(iter(request.terms.values())).policy.warnings_of())
    for key, terms in request.terms.items():
        if not terms.policy.topology_aware:
            continue
        blind = [v.name for v in views if key in v.inventories and v.inventories[key].links_unknown]
        if blind:
            sentences.append(
                f"topology-aware is blind on {len(blind)} node{'s' if len(blind) > 1 else ''} without pair scores"
                f"({','.join(sorted(blind))})"
            )
    return sentences


def combinations(request: PodRequest, best: ScoredNode) -> Iterator[str]:
    """What HAMi logs of the cards that a topology-aware choice gave each container (docs/spec/core.md#12)."""
    for row in best.fit.rows:
        for key, allocation in row.items():
            if not request.terms[key].policy.topology_aware:
                continue
            indices = {device.uuid: device.index for device in best.view.inventories[key].devices}
            cards = [
                {
                    "Idx": indices[device.uuid],
                    "UUID": device.uuid,
                    "Type": key,
                    "Usedmem": device.share.memory,
                    "Usedcores": device.share.cores,
                }
                for device in allocation.devices
            ]
            what = "best device combination" if len(cards) > 1 else "worst device"
            pod = f"{request.pod.namespace}/{request.pod.name}"
            yield f'"device allocate success" pod="{pod}" {what}={orjson.dumps({key: cards}).decode()}'


def unregistered(request: PodRequest, views: Sequence[NodeView], vendors: Vendors) -> Iterator[str]:
    """For each requested vendor, a sentence about the nodes where none of its cards are read, and from what."""
    for key in request.vendors:
        without = [view.name for view in views if key not in view.inventories]
        if without:
            yield f"no {key} cards can be read from {vendors[key].source} of {first_of(without, 10)}"


def failed_nodes(failed: Mapping[str, Rejection], awaited: str) -> tuple[dict[str, str], dict[str, str]]:
    """All refusals, and among them those where kube-scheduler is to look for no victims: all but the `awaited` node's.

    What we refuse for has no place in its dry run, which ends in an error where nobody has to go for what it knows. Of
    the node where victims are ending it only sees that they are.
    """
    texts: dict[int, str] = {}  # many nodes share a reason
    refused = {}
    for node in sorted(failed):
        why = failed[node]
        if id(why) not in texts:
            texts[id(why)] = str(why)
        refused[node] = texts[id(why)]
    return refused, {node: text for node, text in refused.items() if node != awaited}
