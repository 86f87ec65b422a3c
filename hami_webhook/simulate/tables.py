"""A run's result as two tables and a summary, and these on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hami_webhook.kube.human_memory import human_mebibytes
from hami_webhook.kube.message_text import first_of
from hami_webhook.simulate.results import Outcome, Result
from hami_webhook.terminal import ShownTable, counted

if TYPE_CHECKING:
    from rich.console import Console


def show(result: Result, console: Console) -> None:
    """Print the pods and the quotas."""
    for table in tables_of(result):
        console.print(table.printable())
    console.print(summary(result))


def tables_of(result: Result) -> Iterator[ShownTable]:
    """The pods, and the quotas if there are any."""
    pods = [
        (
            f"{outcome.namespace}/{outcome.name}",
            verdict(outcome),
            str(outcome.placement["node"]) if outcome.placement else "-",
            _devices(outcome) or "-",
            "\n".join(f"{key}={amount}" for key, amount in outcome.debits.items()) or "-",
        )
        for outcome in result.pods
    ]
    yield ShownTable("Pods", ("pod", "verdict", "node", "devices", "debits"), pods)
    quotas = [
        (f"{quota['namespace']}/{quota['name']}", key, str(quota["used"].get(key, "?")), str(hard))
        for quota in result.quotas
        for key, hard in quota["hard"].items()
    ]
    if quotas:
        yield ShownTable("Quotas", ("quota", "key", "used", "hard"), quotas, amounts=frozenset(("used", "hard")))


def summary(result: Result) -> str:
    """How many pods were placed, denied and left without a node, and how many were evicted, if any.

    Then the rules that weren't evaluated.
    """
    denied = sum(not outcome.allowed for outcome in result.pods)
    unplaced = sum(outcome.unplaced for outcome in result.pods)
    evicted = sum(bool(outcome.preempted_by) for outcome in result.pods)
    placed = sum(outcome.placement is not None for outcome in result.pods) - evicted
    text = f"{counted(len(result.pods), 'pod')}: {placed} placed, {denied} denied, {unplaced} without a node"
    not_judged = "".join(f"; {rule.filter} isn't evaluated: {rule.why}" for rule in result.not_judged)
    return f"{text}, {evicted} evicted{not_judged}" if evicted else f"{text}{not_judged}"


def verdict(outcome: Outcome) -> str:
    """Allowed, with warnings, evictions and the reasons of nodes; or the denial."""
    warnings = [f"warning: {warning}" for warning in outcome.warnings]
    if not outcome.allowed:
        return "\n".join((f"denied ({outcome.code}): {outcome.message}", *warnings))
    lines = ["allowed", *warnings]
    if outcome.unplaced:
        lines.append("no node: " + ("; ".join(_grouped(outcome)) or "the cluster has none"))
    if outcome.waits:
        lines.append(f"waits: {outcome.waits}")
    if outcome.victims:
        lines.append(f"evicted for it: {', '.join(outcome.victims)}")
    if outcome.preempted_by:
        lines.append(f"then evicted for {outcome.preempted_by}")
    return "\n".join(lines)


def _grouped(outcome: Outcome) -> list[str]:
    """Reasons with their nodes, at most three names each."""
    nodes: dict[str, list[str]] = {}
    for node, why in outcome.failed.items():
        nodes.setdefault(why, []).append(node)
    return [f"{why} ({first_of(names)})" for why, names in sorted(nodes.items())]


def _devices(outcome: Outcome) -> str:
    if not outcome.placement:
        return ""
    lines = []
    for container in outcome.placement["containers"]:
        for device in container["devices"]:
            profile = f" {device['profile']}" if device["profile"] else ""
            lines.append(
                f"{container['name']}: {device['uuid']} {human_mebibytes(device['memory'])} "
                f"{device['cores']} cores{profile}"
            )
    return "\n".join(lines)
