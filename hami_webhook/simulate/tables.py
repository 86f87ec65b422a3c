"""A run's result as two tables on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hami_webhook.simulate.simulation import Outcome, Result


def show(result: Result, console: Console) -> None:
    """Print the pods and the quotas."""
    pods = Table(title="Pods", title_justify="left")
    for heading in ("pod", "verdict", "node", "devices", "debits"):
        pods.add_column(heading, overflow="fold")
    for outcome in result.pods:
        pods.add_row(
            escape(f"{outcome.namespace}/{outcome.name}"),
            escape(verdict(outcome)),
            escape(str(outcome.placement["node"])) if outcome.placement else "-",
            escape(_devices(outcome)) or "-",
            escape("\n".join(f"{key}={amount}" for key, amount in outcome.debits.items())) or "-",
        )
    console.print(pods)
    quotas = Table(title="Quotas", title_justify="left")
    for heading in ("quota", "key", "used", "hard"):
        quotas.add_column(heading, justify="right" if heading in ("used", "hard") else "left")
    for quota in result.quotas:
        for key, hard in quota["hard"].items():
            quotas.add_row(f"{quota['namespace']}/{quota['name']}", key, str(quota["used"].get(key, "?")), str(hard))
    if quotas.row_count:
        console.print(quotas)
    denied = sum(not outcome.allowed for outcome in result.pods)
    unplaced = sum(outcome.unplaced for outcome in result.pods)
    evicted = sum(bool(outcome.preempted_by) for outcome in result.pods)
    placed = sum(outcome.placement is not None for outcome in result.pods) - evicted
    summary = f"{len(result.pods)} pods: {placed} placed, {denied} denied, {unplaced} without a node"
    console.print(f"{summary}, {evicted} evicted" if evicted else summary)


def verdict(outcome: Outcome) -> str:
    """Allowed, with warnings, evictions and the reasons of nodes; or the denial."""
    if not outcome.allowed:
        return f"denied ({outcome.code}): {outcome.message}"
    lines = ["allowed", *(f"warning: {warning}" for warning in outcome.warnings)]
    if outcome.unplaced:
        lines.append("no node: " + ("; ".join(_grouped(outcome)) or "the cluster has none"))
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
    return [
        f"{why} ({', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''})"
        for why, names in sorted(nodes.items())
    ]


def _devices(outcome: Outcome) -> str:
    if not outcome.placement:
        return ""
    lines = []
    for container in outcome.placement["containers"]:
        for device in container["devices"]:
            profile = f" {device['profile']}" if device["profile"] else ""
            lines.append(
                f"{container['name']}: {device['uuid']} {device['memory']} MiB {device['cores']} cores{profile}"
            )
    return "\n".join(lines)
