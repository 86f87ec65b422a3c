"""What goes into a simulation, what comes out of it, and its tables (docs/spec/cli.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from hami_webhook.kube.human_memory import human_mebibytes
from hami_webhook.kube.message_text import counted, first_of
from hami_webhook.kube.objects import Pod
from hami_webhook.node_filters.result import NotJudged
from hami_webhook.terminal import ShownTable

if TYPE_CHECKING:
    from rich.console import Console


class Pods(Struct, frozen=True):
    """What to simulate: manifests in order; each goes to `default` if it names no namespace."""

    manifests: Sequence[Mapping[str, Any]]


class Arrival(Struct, frozen=True):
    """A pod after admission: its manifest as it was reviewed last, and the pod as stored, None if denied."""

    namespace: str
    name: str
    manifest: Mapping[str, Any]
    warnings: Sequence[str] = ()
    patch: Sequence[Mapping[str, Any]] = ()
    pod: Pod | None = None
    code: int = 200
    message: str = ""


class Outcome(Struct, frozen=True):
    """The result of one pod in each stage of the pipeline, as the JSON output has it."""

    namespace: str
    name: str
    allowed: bool
    code: int = 200
    message: str = ""
    warnings: Sequence[str] = ()
    patch: Sequence[Mapping[str, Any]] = ()
    pod: Mapping[str, Any] | None = None
    placement: Mapping[str, Any] | None = None
    failed: Mapping[str, str] = {}
    debits: Mapping[str, int] = {}
    victims: Sequence[str] = ()
    """The pods that were evicted for it, as `namespace/name`."""
    preempted_by: str = ""
    """The pod that it was evicted for after it had been placed."""
    waits: str = ""
    """What it waits for in its quotas' queue, and when it starts at the latest."""
    unplaced: bool = False
    """Allowed and requesting devices, but no node fits."""

    def as_json(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "name": self.name,
            "allowed": self.allowed,
            "code": self.code,
            "message": self.message,
            "warnings": list(self.warnings),
            "patch": [dict(operation) for operation in self.patch],
            "pod": self.pod,
            "placement": self.placement,
            "failed": dict(self.failed),
            "debits": dict(self.debits),
            "victims": list(self.victims),
            "preempted_by": self.preempted_by,
            **({"waits": self.waits} if self.waits else {}),
        }


class Result(Struct, frozen=True):
    """A run's pods in order, and every ResourceQuota with its managed keys after it.

    `not_judged` are the rules of kube-scheduler that may have refused nodes and weren't evaluated.
    """

    pods: Sequence[Outcome]
    quotas: Sequence[Mapping[str, Any]]
    not_judged: Sequence[NotJudged] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "pods": [outcome.as_json() for outcome in self.pods],
            "quotas": [dict(quota) for quota in self.quotas],
            "not_judged": [to_builtins(rule) for rule in self.not_judged],
        }


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
