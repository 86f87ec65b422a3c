"""What the verbs of `kubectl hami` show. Results go to stdout, everything else to stderr; nothing is written."""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys
import time
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from msgspec.structs import replace
from rich.console import Console

from hami_webhook.cluster.api import Kind
from hami_webhook.console import SafeConsole
from hami_webhook.explain.live import lacking, needs_of_pod
from hami_webhook.explain.tables import NEAREST
from hami_webhook.explain.tables import show as show_explanation
from hami_webhook.kubectl.live import CommandResult, LiveCluster, diagnosed, read, require
from hami_webhook.terminal import UsageError, formatted, print_sentences

if TYPE_CHECKING:
    from hami_webhook.simulate.node_flags import NodeChange

_PIPE_WIDTH = 250
"""Columns of a table that no terminal shows."""
_EVERY = 2.0
"""Seconds between two reads with --watch, unless reading takes long itself."""
_SHARE = 5
"""How many times as long as reading took is waited at least, so that --watch is no load."""


def show(arguments: argparse.Namespace) -> int:
    """Read the cluster and show what the verb makes of it; again and again with --watch. The exit status."""
    printed: str | None = None
    warned: set[str] = set()
    while True:
        began = time.monotonic()
        cluster = asyncio.run(read(arguments))
        shown = _shown(cluster, arguments)
        text = _text(shown, arguments.output)
        if printed is None or text != printed:
            if printed is not None and sys.stdout.isatty():
                Console().clear()
            if text:
                print(text, flush=True)
            else:
                print(shown.none, file=sys.stderr)
            printed = text
        sentences = [*cluster.warnings, *_lacking(cluster, arguments, empty=not text), *_unmeasured(cluster, arguments)]
        print_sentences("kubectl hami", [each for each in sentences if each not in warned])
        warned |= {*sentences}
        if not getattr(arguments, "watch", False):
            return shown.status
        time.sleep(max(_EVERY, _SHARE * (time.monotonic() - began)))


def _shown(cluster: LiveCluster, arguments: argparse.Namespace) -> CommandResult:
    """What a verb shows, by its name; `explain` by the name of its kind."""
    if arguments.shown == "pod":
        return _explain_pod(cluster, arguments)
    if arguments.shown == "simulate":
        return _simulate(cluster, arguments)
    if arguments.shown == "defrag":
        from hami_webhook.kubectl.defrag import defrag

        return defrag(cluster, arguments)
    if arguments.shown == "advise":
        from hami_webhook.kubectl.advise import advise

        return advise(cluster, arguments)
    # imported here, as what the other verbs need: none of it is needed to explain a pod, which starts a twelfth sooner
    from hami_webhook.kubectl.usage_verbs import SHOWN

    return SHOWN[arguments.shown](cluster, arguments)


def _text(shown: CommandResult, output: str) -> str:
    if output in ("json", "yaml"):
        return formatted(shown.values, output)
    if shown.none:
        return ""
    terminal = sys.stdout.isatty()
    console = SafeConsole(file=StringIO(), width=None if terminal else _PIPE_WIDTH, force_terminal=terminal)
    with console.capture() as capture:
        shown.show(console)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _lacking(cluster: LiveCluster, arguments: argparse.Namespace, *, empty: bool) -> Sequence[str]:
    """What the reader's rights don't show: with --verbose all of it, else what the verb needed."""
    if arguments.verbose:
        return cluster.all_unseen
    needed = lacking(cluster.unseen, _needs(cluster, arguments))
    return [*cluster.effective.unseen, *needed] if empty else needed


def _unmeasured(cluster: LiveCluster, arguments: argparse.Namespace) -> Sequence[str]:
    """Why it isn't known what is really used; that nothing serves it only where columns show it."""
    measured = cluster.measured
    shows = arguments.output == "wide" or arguments.shown == "idle"
    return [measured.why] if measured.why and (shows or not measured.absent) else []


def _needs(cluster: LiveCluster, arguments: argparse.Namespace) -> Mapping[Kind, str]:
    """The kinds that the verb needs, with what follows from lacking them."""
    shown, all_namespaces = arguments.shown, arguments.all_namespaces
    wide = arguments.output == "wide"
    if shown == "pod":
        return needs_of_pod(cluster.unseen)
    if shown in _NEEDS:
        return _NEEDS[shown]
    needs: dict[Kind, str] = {}
    if shown == "quota":
        if arguments.name or wide:
            needs[Kind.NODES] = "models of cards and what still fits aren't known"
        if all_namespaces:
            needs[Kind.RESOURCE_QUOTAS] = f"only those of {cluster.namespace} are shown"
        needs[Kind.ACCELERATOR_QUOTAS] = "AcceleratorQuotas aren't shown"
    elif shown == "queue":
        needs = dict.fromkeys((Kind.PODS, Kind.ACCELERATOR_QUOTAS), "places are those that the pods' conditions have")
    elif shown in ("pods", "idle", "advise"):
        if wide and shown != "advise":
            needs[Kind.NODES] = "models of cards aren't known"
        if all_namespaces:
            needs[Kind.PODS] = f"only those of {cluster.namespace} are shown"
    else:
        needs[Kind.PODS] = "their devices aren't counted"
    return needs


_NEEDS_OF_SIMULATE = {
    Kind.NODES: "where pods would go isn't known",
    Kind.PODS: "they may hold cards that look free",
    Kind.RESOURCE_QUOTAS: "quotas of other namespaces refuse nothing here",
    Kind.ACCELERATOR_QUOTAS: "AcceleratorQuotas refuse nothing here",
    Kind.NAMESPACES: "policies of namespaces aren't known",
}

_NEEDS: Mapping[str, Mapping[Kind, str]] = {
    "budget": {},
    "simulate": _NEEDS_OF_SIMULATE,
    "defrag": {
        Kind.PODS: "they may hold cards that look free",
        Kind.POD_DISRUPTION_BUDGETS: "which evictions they stand against isn't known",
        Kind.PRIORITY_CLASSES: "what is wanted has priority 0",
    },
    "deployment": {},
    "job": {},
    "statefulset": {},
}


def diagnose(arguments: argparse.Namespace) -> int:
    """Show what `doctor` found; the exit status is 1 for faults."""
    # imported here: it takes a fifteenth of the time in which the other verbs start
    from hami_webhook.doctor.tables import print_diagnosis

    found = asyncio.run(diagnosed(arguments))
    details = arguments.output == "wide"
    shown = CommandResult(found.as_json(), lambda console: print_diagnosis(found, console, details=details))
    print(_text(shown, arguments.output))
    return 0 if found.healthy else 1


def _explain_pod(cluster: LiveCluster, arguments: argparse.Namespace) -> CommandResult:
    require(cluster, Kind.PODS, cluster.namespace)
    complete = arguments.all or arguments.output in ("json", "yaml")
    found = cluster.explain(cluster.namespace, arguments.name, None if complete else NEAREST)
    values = found.as_json() if arguments.output in ("json", "yaml") else None
    return CommandResult(values, lambda console: show_explanation(found, console, everything=arguments.all))


def _simulate(cluster: LiveCluster, arguments: argparse.Namespace) -> CommandResult:
    from hami_webhook.simulate.manifests import ReadingRules, pods_of
    from hami_webhook.simulate.node_flags import NodeChange, replay_hours, time_of
    from hami_webhook.simulate.other_nodes import simulate, template_of
    from hami_webhook.simulate.results import show as show_simulation

    change = NodeChange.of(arguments, arguments.files)
    hours, at = replay_hours(arguments, arguments.files), time_of("--at", arguments.at)
    if hours:
        return _replay(cluster, arguments, change, hours, at or cluster.now)
    if not arguments.files and not change:
        raise UsageError("nothing to simulate: name a FILE, or give --waiting, --add or --remove")
    rules = ReadingRules(namespace=lambda: cluster.namespace, only=arguments.namespace)
    pods, warnings = pods_of(rules.read(arguments.files, sys.stdin.buffer), rules)
    print_sentences("kubectl hami", warnings)
    if at is not None:
        asyncio.run(cluster.simulation.move_clock(at))
    result = asyncio.run(simulate(cluster.simulation, pods, change, template_of(change, rules), "kubectl hami"))
    if Kind.NODES in cluster.unseen:  # that no node fits isn't known
        result = replace(result, pods=[replace(outcome, unplaced=False) for outcome in result.pods])
    failed = not result.pods or any(not outcome.allowed or outcome.unplaced for outcome in result.pods)
    status = 1 if arguments.strict and failed else 0
    return CommandResult(result.as_json(), lambda console: show_simulation(result, console), status)


def _replay(
    cluster: LiveCluster, arguments: argparse.Namespace, change: NodeChange, hours: int, end: float
) -> CommandResult:
    from hami_webhook.simulate.manifests import ReadingRules
    from hami_webhook.simulate.other_nodes import template_of
    from hami_webhook.simulate.replay import without_pods
    from hami_webhook.simulate.replay_report import replayed
    from hami_webhook.usage.recorded_pods import read_record

    require(cluster, Kind.NODES)
    template = template_of(change, ReadingRules(namespace=lambda: cluster.namespace, only=arguments.namespace))
    record = read_record(arguments.prometheus, cluster.effective.vendors.own_names, end, hours * 3600)
    bundle = without_pods(cluster.bundle)
    filled = functools.partial(cluster.effective.simulation, bundle, cluster.now)
    report = asyncio.run(replayed(filled, record, change, template))
    return CommandResult(report.as_json(), report.show)
