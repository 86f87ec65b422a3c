"""A simulated cluster with other nodes: some are added, some go, and pods that wait are tried (docs/room.md).

Only the simulation's own cluster changes. Pods of nodes that go, and those that wait, are taken through the pipeline
again as their owners would make them: without a placement, charged by what the quotas leave.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from hami_webhook.cluster.api import Kind, WatchEvent, WatchType
from hami_webhook.cluster.loading import LoadedObject
from hami_webhook.devices.reserved_annotations import is_scheduler_owned
from hami_webhook.kube.message_text import counted, first_of
from hami_webhook.kube.new_node import new_node
from hami_webhook.kube.objects import QUOTA_GATE, RESERVATION
from hami_webhook.simulate.manifests import ReadingRules
from hami_webhook.simulate.node_flags import AddedNodes, NodeChange
from hami_webhook.simulate.results import Pods, Result
from hami_webhook.simulate.simulation import Simulation
from hami_webhook.terminal import UsageError, print_sentences, progress


class Prepared(Struct, frozen=True):
    """The pods to take again, the first first, and sentences on what was changed."""

    manifests: Sequence[Mapping[str, Any]]
    sentences: Sequence[str]


def template_of(change: NodeChange, rules: ReadingRules) -> Sequence[LoadedObject]:
    """The objects of the file that the flags name. Raises `LoadError`."""
    return rules.read([change.template], sys.stdin.buffer)[0] if change.template else ()


async def simulate(
    simulation: Simulation, pods: Pods, change: NodeChange, template: Sequence[LoadedObject], program: str
) -> Result:
    """Change the nodes as `prepare` does, and take the pods through the pipeline; `program` says what was changed."""
    if change:
        prepared = await prepare(simulation, change, template)
        print_sentences(program, prepared.sentences)
        pods = Pods([*prepared.manifests, *pods.manifests])
    with progress("simulating", len(pods.manifests)) as advance:
        return await simulation.run(pods, advance)


async def prepare(simulation: Simulation, change: NodeChange, template: Sequence[LoadedObject] = ()) -> Prepared:
    """Change the simulation's nodes; the pods of those that go, then the pods that wait, by priority and age.
    `template` are the objects of the file of that name.

    Raises `UsageError` for nodes that can't be added or removed.
    """
    sentences = []
    remove, waiting = change.remove, change.waiting
    if change.added is not None:
        names = await _add(simulation, change.added, change.like, template)
        sentences.append(f"{counted(len(names), 'node')} added: {first_of(names)}")
    known = {node.name for node in simulation.core.state.nodes()}
    if unknown := [name for name in remove if name not in known]:
        raise UsageError(f"no node {unknown[0]} to be removed; the cluster has {first_of(sorted(known)) or 'none'}")
    bound = [pod for pod in simulation.cluster.peek_all(Kind.PODS) if pod["spec"].get("nodeName") in {*remove}]
    moved = [pod for pod in bound if _is_replaced(pod)]
    ended = sorted(_key(pod) for pod in bound if _lasts(pod) and pod not in moved and not _is_of_node(pod))
    if remove:
        sentences.append(
            f"{counted(len({*remove}), 'node')} removed, with {counted(len(moved), 'pod')} to be placed again"
        )
    if ended:
        sentences.append(f"{counted(len(ended), 'pod')} without an owner would end: {first_of(ended)}")
    tried = (
        sorted(filter(simulation.waits_for_cards, simulation.cluster.peek_all(Kind.PODS)), key=_turn) if waiting else []
    )
    if waiting:
        sentences.append(f"{counted(len(tried), 'pod')} that wait for cards")
    for name in remove:
        node = simulation.cluster.peek(Kind.NODES, name)
        assert node is not None
        simulation.follow(Kind.NODES, WatchEvent(WatchType.DELETED, node))
    await simulation.withdraw([*bound, *tried])
    return Prepared([_again(pod) for pod in (*sorted(moved, key=_turn), *tried)], sentences)


async def _add(simulation: Simulation, added: AddedNodes, like: str, template: Sequence[LoadedObject]) -> Sequence[str]:
    known = {node.name for node in simulation.core.state.nodes()}
    if template:
        nodes = [item.object for item in template if item.kind == "Node"]
        if len(nodes) != 1:
            raise UsageError(f"--template must have one Node, not {len(nodes)}")
        model: Mapping[str, Any] = nodes[0]
    else:
        found = simulation.cluster.peek(Kind.NODES, like or added.name)
        if found is None:
            shown = first_of(sorted(known)) or "none"
            raise UsageError(
                f"no node {like or added.name} to add others like it; the cluster has {shown}. --like NODE or "
                "--template FILE says what --add adds"
            )
        model = found
    names = [f"{added.name}-new-{number}" for number in range(1, added.count + 1)]
    if taken := known & {*names}:
        raise UsageError(f"the cluster has a node {min(taken)} already: choose another name for --add")
    for name in names:
        simulation.follow(
            Kind.NODES, WatchEvent(WatchType.ADDED, await simulation.cluster.adopt(Kind.NODES, new_node(model, name)))
        )
    return names


def _again(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod as its owner makes it."""
    meta, spec = pod["metadata"], pod["spec"]
    annotations = {
        key: text
        for key, text in (meta.get("annotations") or {}).items()
        if not is_scheduler_owned(key) and key != RESERVATION
    }
    gates = [each for each in spec.get("schedulingGates") or () if each.get("name") != QUOTA_GATE]
    left_out = {"nodeName", "schedulingGates"}
    kept = {key: value for key, value in spec.items() if key not in left_out}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**meta, "annotations": annotations},
        "spec": {**kept, "schedulingGates": gates} if gates else kept,
    }


def _lasts(pod: Mapping[str, Any]) -> bool:
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return not ended and "deletionTimestamp" not in pod["metadata"]


def _owners(pod: Mapping[str, Any]) -> set[str]:
    owners = pod["metadata"].get("ownerReferences") or ()
    return {each.get("kind") or "" for each in owners if each.get("controller")}


def _is_of_node(pod: Mapping[str, Any]) -> bool:
    """Whether it goes with its node: a DaemonSet's, or a static pod."""
    return not _owners(pod).isdisjoint(("DaemonSet", "Node"))


def _is_replaced(pod: Mapping[str, Any]) -> bool:
    return _lasts(pod) and bool(_owners(pod)) and not _is_of_node(pod)


def _turn(pod: Mapping[str, Any]) -> tuple[int, str, str]:
    """The most important first, then the oldest."""
    return -(pod["spec"].get("priority") or 0), pod["metadata"].get("creationTimestamp") or "", _key(pod)


def _key(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata'].get('namespace') or 'default'}/{pod['metadata']['name']}"
