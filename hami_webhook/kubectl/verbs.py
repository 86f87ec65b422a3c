"""What the verbs of `kubectl hami` show. Results go to stdout, everything else to stderr; nothing is written."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import StringIO

from rich.console import Console

from hami_webhook.cluster.loading import STDIN, read_objects
from hami_webhook.console import SafeConsole
from hami_webhook.doctor.tables import print_diagnosis
from hami_webhook.explain.tables import show as show_explanation
from hami_webhook.kubectl import tables
from hami_webhook.kubectl.live import LiveCluster, diagnosed, read
from hami_webhook.simulate.manifests import pods_of
from hami_webhook.simulate.simulation import Pods
from hami_webhook.simulate.tables import show as show_simulation
from hami_webhook.terminal import UsageError, formatted, print_sentences, progress

_PIPE_WIDTH = 250
"""Columns of a table that no terminal shows."""
_EVERY = 2.0
"""Seconds between two reads with --watch, unless reading takes long itself."""
_SHARE = 5
"""How many times as long as reading took is waited at least, so that --watch is no load."""


@dataclass(frozen=True)
class Shown:
    """A result: its plain values for JSON and YAML, how it is printed as a table, and the exit status."""

    values: object
    show: Callable[[Console], None]
    status: int = 0


def show(arguments: argparse.Namespace) -> int:
    """Read the cluster and show what the verb makes of it; again and again with --watch. The exit status."""
    printed: str | None = None
    warned: set[str] = set()
    while True:
        began = time.monotonic()
        cluster = asyncio.run(read(arguments))
        shown = SHOWN[arguments.shown](cluster, arguments)
        text = _text(shown, arguments.output)
        if printed is None or text != printed:
            if printed is not None and sys.stdout.isatty():
                Console().clear()
            print(text, flush=True)
            printed = text
        print_sentences("kubectl hami", [each for each in (*cluster.warnings, *cluster.unseen) if each not in warned])
        warned |= {*cluster.warnings, *cluster.unseen}
        if not getattr(arguments, "watch", False):
            return shown.status
        time.sleep(max(_EVERY, _SHARE * (time.monotonic() - began)))


def _text(shown: Shown, output: str) -> str:
    if output in ("json", "yaml"):
        return formatted(shown.values, output)
    terminal = sys.stdout.isatty()
    console = SafeConsole(file=StringIO(), width=None if terminal else _PIPE_WIDTH, force_terminal=terminal)
    with console.capture() as capture:
        shown.show(console)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def diagnose(arguments: argparse.Namespace) -> int:
    """Show what `doctor` found; the exit status is 1 for faults."""
    found = asyncio.run(diagnosed(arguments))
    details = arguments.output == "wide"
    shown = Shown(found.as_json(), lambda console: print_diagnosis(found, console, details=details))
    print(_text(shown, arguments.output))
    return 0 if found.healthy else 1


def _listing(rows: Sequence[object]) -> list[object]:
    return [asdict(row) for row in rows]  # type: ignore[call-overload]  # every row is a dataclass of kubectl.report


def _within(cluster: LiveCluster, arguments: argparse.Namespace) -> str:
    return "" if arguments.all_namespaces else cluster.namespace


def _quota(cluster: LiveCluster, arguments: argparse.Namespace) -> Shown:
    found = cluster.overview.quotas(_within(cluster, arguments), arguments.name)
    if arguments.name and not found:
        raise UsageError(f"no quota {arguments.name} with accelerators in {_where(cluster, arguments)}")
    details = bool(arguments.name) or arguments.output == "wide"
    return Shown(_listing(found), lambda console: tables.print_quotas(found, console, details=details))


def _nodes(cluster: LiveCluster, arguments: argparse.Namespace) -> Shown:
    found = cluster.overview.nodes(arguments.name)
    if arguments.name and not found:
        raise UsageError(f"no node {arguments.name} with cards can be seen")
    wide = arguments.output == "wide"
    return Shown(_listing(found), lambda console: tables.print_nodes(found, console, details=wide))


def _cards(cluster: LiveCluster, arguments: argparse.Namespace) -> Shown:
    found = cluster.overview.cards(arguments.name)
    if arguments.name and not found:
        raise UsageError(f"no node {arguments.name} with cards can be seen")
    wide = arguments.output == "wide"
    return Shown(_listing(found), lambda console: tables.print_cards(found, console, details=wide))


def _pods(cluster: LiveCluster, arguments: argparse.Namespace) -> Shown:
    found = cluster.overview.pods(_within(cluster, arguments), arguments.name)
    if arguments.name and not found:
        raise UsageError(f"no pod {arguments.name} that asks for accelerators in {_where(cluster, arguments)}")
    wide = arguments.output == "wide"
    return Shown(_listing(found), lambda console: tables.print_pods(found, console, details=wide))


def _where(cluster: LiveCluster, arguments: argparse.Namespace) -> str:
    return "any namespace" if arguments.all_namespaces else f"namespace {cluster.namespace}"


def _explain_pod(cluster: LiveCluster, arguments: argparse.Namespace) -> Shown:
    found = cluster.explain(cluster.namespace, arguments.name)
    return Shown(found.as_json(), lambda console: show_explanation(found, console))


def _explain_node(cluster: LiveCluster, arguments: argparse.Namespace) -> Shown:
    found = cluster.overview.node(arguments.name)
    if found is None:
        raise UsageError(f"no node {arguments.name} can be seen")
    return Shown(asdict(found), lambda console: tables.print_node(found, console))


def _simulate(cluster: LiveCluster, arguments: argparse.Namespace) -> Shown:
    if arguments.files.count(STDIN) > 1:
        raise UsageError("standard input (-) can be read only once")
    pods, warnings = pods_of([read_objects(path, sys.stdin.buffer) for path in arguments.files])
    print_sentences("kubectl hami", warnings)
    manifests = [{**pod, "metadata": {"namespace": cluster.namespace, **pod["metadata"]}} for pod in pods.manifests]
    with progress("simulating", len(manifests)) as advance:
        result = asyncio.run(cluster.simulation.run(Pods(manifests), advance))
    failed = any(not outcome.allowed or outcome.unplaced for outcome in result.pods)
    status = 1 if arguments.strict and failed else 0
    return Shown(result.as_json(), lambda console: show_simulation(result, console), status)


SHOWN: Mapping[str, Callable[[LiveCluster, argparse.Namespace], Shown]] = {
    "quota": _quota,
    "nodes": _nodes,
    "cards": _cards,
    "pods": _pods,
    "pod": _explain_pod,
    "node": _explain_node,
    "simulate": _simulate,
}
"""What each verb shows by its name; `explain` by the name of its kind."""
