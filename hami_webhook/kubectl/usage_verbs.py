"""What the verbs of `kubectl hami` show that list what is used: quotas, nodes, cards, pods."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import to_builtins
from rich.console import Console

from hami_webhook.cluster.api import Kind
from hami_webhook.kubectl import budgets, tables
from hami_webhook.kubectl.live import CommandResult, LiveCluster, require
from hami_webhook.kubectl.subjects import subject_uses
from hami_webhook.terminal import AbsentError


def _none(cluster: LiveCluster, arguments: argparse.Namespace, found: Sequence[object]) -> str:
    """What kubectl says where there is nothing to be listed; empty if there is something."""
    if found:
        return ""
    return "No resources found" if arguments.all_namespaces else f"No resources found in {cluster.namespace} namespace."


def _listing(rows: Sequence[object]) -> list[object]:
    return [to_builtins(row) for row in rows]


def _within(cluster: LiveCluster, arguments: argparse.Namespace) -> str:
    return "" if arguments.all_namespaces else cluster.namespace


def _subjects(cluster: LiveCluster, arguments: argparse.Namespace) -> CommandResult:
    require(cluster, Kind.ACCELERATOR_QUOTAS)
    accounts = cluster.overview.accounts(_within(cluster, arguments), arguments.name)
    found = list(subject_uses(accounts, arguments.by))
    if arguments.name and not accounts:
        raise AbsentError(f"no quota {arguments.name} with accelerators in {_where(cluster, arguments)}")
    none = _none(cluster, arguments, found)
    return CommandResult(_listing(found), lambda console: tables.print_subjects(found, console), none=none)


def _quota(cluster: LiveCluster, arguments: argparse.Namespace) -> CommandResult:
    if getattr(arguments, "by", None):
        return _subjects(cluster, arguments)
    require(cluster, Kind.RESOURCE_QUOTAS, cluster.namespace)
    found = cluster.overview.quotas(_within(cluster, arguments), arguments.name)
    if arguments.name and not found:
        raise AbsentError(f"no quota {arguments.name} with accelerators in {_where(cluster, arguments)}")
    details = bool(arguments.name) or arguments.output == "wide"
    none = _none(cluster, arguments, found)
    refused = [
        each for each in cluster.refused if not arguments.name or any(each.quota == quota.name for quota in found)
    ]

    def show(console: Console) -> None:
        tables.print_quotas(found, console, cluster.now, details=details)
        tables.print_refused(refused, console, cluster.now)

    return CommandResult(_listing(found), show, none=none)


def _budget(cluster: LiveCluster, arguments: argparse.Namespace) -> CommandResult:
    require(cluster, Kind.ACCELERATOR_QUOTAS)
    view, namespace = cluster.simulation.core.view, _within(cluster, arguments)
    found = [*budgets.budgets(view, "" if arguments.name else namespace, cluster.now, arguments.name)]
    if arguments.name and not found:
        raise AbsentError(f"no AcceleratorQuota {arguments.name} with a budget")
    none = "" if found else "No budgets found" if not namespace else f"No budgets found for namespace {namespace}."
    return CommandResult(_listing(found), lambda console: tables.print_budgets(found, console, cluster.now), none=none)


def _workload(cluster: LiveCluster, arguments: argparse.Namespace) -> CommandResult:
    assert cluster.workload is not None
    workload = cluster.workload
    labels = workload.labels.items()
    state = cluster.simulation.core.state
    names = {pod.name for pod in state.pods_in(workload.namespace) if labels and labels <= pod.labels.items()}
    pods = [pod for pod in cluster.pods(workload.namespace) if pod.name in names]
    values = {**to_builtins(workload), "pods": _listing(pods)}
    return CommandResult(values, lambda console: tables.print_workload(workload, pods, console, cluster.now))


def _nodes(cluster: LiveCluster, arguments: argparse.Namespace) -> CommandResult:
    require(cluster, Kind.NODES)
    found = cluster.overview.nodes(arguments.name)
    return _of_nodes(cluster, arguments, found, partial(tables.print_nodes, found))


def _cards(cluster: LiveCluster, arguments: argparse.Namespace) -> CommandResult:
    require(cluster, Kind.NODES)
    found = cluster.overview.cards(arguments.name)
    return _of_nodes(cluster, arguments, found, partial(tables.print_cards, found))


def _of_nodes(
    cluster: LiveCluster, arguments: argparse.Namespace, found: Sequence[object], print_table: Callable[..., None]
) -> CommandResult:
    if arguments.name and not found:
        raise AbsentError(_no_cards(cluster, arguments.name))
    wide = arguments.output == "wide"
    none = "" if found else _NO_CARDS
    return CommandResult(_listing(found), lambda console: print_table(console, cluster.now, details=wide), none=none)


_NO_CARDS = "No resources found: no node registers cards of an enabled vendor"


def _no_cards(cluster: LiveCluster, name: str) -> str:
    """Why nothing is shown of a node."""
    node = cluster.overview.node(name)
    return f"node {name} registers no cards of an enabled vendor" if node is not None else f"no node {name}"


def _pods(cluster: LiveCluster, arguments: argparse.Namespace) -> CommandResult:
    require(cluster, Kind.PODS, cluster.namespace)
    found = cluster.pods(_within(cluster, arguments), arguments.name)
    if arguments.name and not found:
        raise AbsentError(f"no pod {arguments.name} that asks for accelerators in {_where(cluster, arguments)}")
    wide = arguments.output == "wide"
    none = _none(cluster, arguments, found)
    unit_bytes = cluster.overview.unit_bytes
    return CommandResult(
        _listing(found),
        lambda console: tables.print_pods(found, console, unit_bytes, cluster.now, details=wide),
        none=none,
    )


def _idle(cluster: LiveCluster, arguments: argparse.Namespace) -> CommandResult:
    require(cluster, Kind.PODS, cluster.namespace)
    found = cluster.overview.idle(_within(cluster, arguments), arguments.idle_for)
    none = _none(cluster, arguments, found)
    unit_bytes = cluster.overview.unit_bytes
    return CommandResult(
        _listing(found), lambda console: tables.print_idle(found, console, unit_bytes, cluster.now), none=none
    )


def _queue(cluster: LiveCluster, arguments: argparse.Namespace) -> CommandResult:
    require(cluster, Kind.PODS, cluster.namespace)
    found = asyncio.run(cluster.queued_pods(_within(cluster, arguments)))
    none = _none(cluster, arguments, found)
    return CommandResult(_listing(found), lambda console: tables.print_queue(found, console, cluster.now), none=none)


def _where(cluster: LiveCluster, arguments: argparse.Namespace) -> str:
    return "any namespace" if arguments.all_namespaces else f"namespace {cluster.namespace}"


def _explain_node(cluster: LiveCluster, arguments: argparse.Namespace) -> CommandResult:
    require(cluster, Kind.NODES)
    found = cluster.overview.node(arguments.name)
    if found is None:
        raise AbsentError(f"no node {arguments.name}")
    return CommandResult(to_builtins(found), lambda console: tables.print_node(found, console, cluster.now))


SHOWN: Mapping[str, Callable[[LiveCluster, argparse.Namespace], CommandResult]] = {
    "quota": _quota,
    "budget": _budget,
    "nodes": _nodes,
    "cards": _cards,
    "pods": _pods,
    "idle": _idle,
    "queue": _queue,
    "node": _explain_node,
    "deployment": _workload,
    "job": _workload,
    "statefulset": _workload,
}
"""What each verb shows by its name; `explain node` by that of its kind."""
