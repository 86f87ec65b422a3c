"""The command line of `kubectl hami`. Results go to stdout, everything else to stderr; nothing is written."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from urllib.parse import urlsplit

from rich.console import Console

from hami_webhook import __version__
from hami_webhook.cluster.api import ClusterError
from hami_webhook.cluster.loading import STDIN, LoadError, read_objects
from hami_webhook.config import ConfigError
from hami_webhook.doctor.installation import NAMESPACE
from hami_webhook.doctor.tables import print_diagnosis
from hami_webhook.explain.read import UnknownPod
from hami_webhook.explain.tables import show as show_explanation
from hami_webhook.kubectl import tables
from hami_webhook.kubectl.live import LiveCluster, diagnosed, read
from hami_webhook.kubectl.ui.server import serve
from hami_webhook.simulate.manifests import pods_of
from hami_webhook.simulate.simulation import Pods
from hami_webhook.simulate.tables import show as show_simulation
from hami_webhook.terminal import (
    Parser,
    SafeConsole,
    UsageError,
    formatted,
    print_sentences,
    progress,
    run_verb,
)

_PIPE_WIDTH = 250
"""Columns of a table that no terminal shows."""
_EVERY = 2.0
"""Seconds between two reads with --watch, unless reading takes long itself."""
_SHARE = 5
"""How many times as long as reading took is waited at least, so that --watch is no load."""
_HIGHEST_PORT = 65535
_UNUSABLE = (UsageError, ClusterError, ConfigError, LoadError, UnknownPod)


@dataclass(frozen=True)
class Shown:
    """A result: its plain values for JSON and YAML, how it is printed as a table, and the exit status."""

    values: object
    show: Callable[[Console], None]
    status: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; the exit status."""
    return run_verb("kubectl hami", parser().parse_args(argv), _UNUSABLE)


def parser() -> Parser:
    """The command line."""
    found = Parser(
        prog="kubectl hami",
        description="What teams have of shared accelerators, why a pod waits, and whether HAMi is installed right. "
        "Reads with your own rights, and says what they don't let it see.",
    )
    found.add_argument("--version", action="version", version=f"kubectl-hami {__version__}")
    verbs = found.add_subparsers(metavar="VERB", required=True)

    verb = _verb(verbs, "quota", _quota, "what quotas' users have, and what still fits", watch=True)
    verb.add_argument("name", nargs="?", default="", metavar="NAME", help="one quota, with its pods")
    verb = _verb(verbs, "nodes", _nodes, "how much of each node's cards is in use", watch=True)
    verb.add_argument("name", nargs="?", default="", metavar="NAME", help="one node")
    verb = _verb(verbs, "cards", _cards, "how much of each card is in use, and who holds it", watch=True)
    verb.add_argument("name", nargs="?", default="", metavar="NODE", help="the cards of one node")
    verb = _verb(verbs, "pods", _pods, "where pods are, their cards and costs", watch=True)
    verb.add_argument("name", nargs="?", default="", metavar="NAME", help="one pod")

    explain = verbs.add_parser("explain", help="say why a pod waits, who uses a quota, what is wrong with a node")
    kinds = explain.add_subparsers(metavar="KIND", required=True)
    verb = _verb(kinds, "pod", _explain_pod, "why a pod is where it is, or nowhere, and what would change it")
    verb.add_argument("name", metavar="NAME")
    verb = _verb(kinds, "quota", _quota, "what makes up a quota's used, pod by pod")
    verb.add_argument("name", metavar="NAME")
    verb = _verb(kinds, "node", _explain_node, "what a node registers, and what is wrong with it")
    verb.add_argument("name", metavar="NAME")

    verb = verbs.add_parser(
        "doctor",
        help="check every link from the webhook configuration to a bound pod",
        description="Checks every link from the webhook configuration to a bound pod, and names each fault with its "
        "remedy. Nothing is written; a pod is created in a dry run. Exits 1 if a fault was found.",
    )
    _add_cluster_flags(verb)
    verb.add_argument("-o", "--output", choices=("json", "yaml", "wide"), default="", help="default: faults only")
    verb.set_defaults(run=_doctor)

    verb = verbs.add_parser(
        "ui",
        help="serve web pages of the cluster on loopback, for you alone",
        description="Serves read-only web pages of the cluster on 127.0.0.1, and prints the address that lets you in.",
    )
    _add_cluster_flags(verb)
    verb.add_argument("--config", metavar="FILE", help="device-config.yaml (default: the installed one)")
    verb.add_argument("--port", type=_port, default=0, help="default: any that is free")
    verb.add_argument(
        "--behind-proxy",
        type=_url,
        metavar="URL",
        help="where a proxy that knows its users serves the pages; listen on all addresses, and believe the proxy",
    )
    verb.add_argument(
        "--user-header",
        default="X-Forwarded-User",
        metavar="NAME",
        help="where that proxy names the user; requests without it are refused (default: X-Forwarded-User)",
    )
    verb.set_defaults(run=serve)

    verb = _verb(verbs, "simulate", _simulate, "say what would become of pods on this cluster, without creating them")
    verb.add_argument("files", nargs="+", metavar="FILE", help="YAML or JSON of Pods and workloads; - is stdin")
    verb.add_argument("--strict", action="store_true", help="exit 1 if a pod was denied or found no node")
    return found


def _port(text: str) -> int:
    if not text.isdecimal() or len(text) > len(str(_HIGHEST_PORT)) or int(text) > _HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to {_HIGHEST_PORT}, not {text!r}")
    return int(text)


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or parts.query:
        raise argparse.ArgumentTypeError(f"must be like https://hami.example.com, without a path, not {text!r}")
    return text


def _verb(
    verbs: argparse._SubParsersAction[Parser],
    name: str,
    run: Callable[[LiveCluster, argparse.Namespace], Shown],
    text: str,
    *,
    watch: bool = False,
) -> Parser:
    """A verb that shows something of a cluster."""
    verb: Parser = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    _add_cluster_flags(verb)
    verb.add_argument("--config", metavar="FILE", help="device-config.yaml (default: the installed one)")
    verb.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    verb.add_argument("-o", "--output", choices=("json", "yaml", "wide"), default="", help="default: a table")
    if watch:
        verb.add_argument("-w", "--watch", action="store_true", help="show it again whenever it changes")
    verb.set_defaults(run=lambda arguments: _run(arguments, run))
    return verb


def _add_cluster_flags(verb: Parser) -> None:
    """kubectl's flags for the cluster and the namespace, and where to find what the program goes by."""
    verb.add_argument("-n", "--namespace", default="", metavar="NAME", help="default: that of the context")
    verb.add_argument("--context", default="", metavar="NAME", help="context of the kubeconfig")
    verb.add_argument("--kubeconfig", default="", metavar="FILE", help="default: as kubectl")
    verb.add_argument(
        "--system-namespace", default=NAMESPACE, metavar="NAME", help=f"where HAMi is installed (default: {NAMESPACE})"
    )


def _run(arguments: argparse.Namespace, verb: Callable[[LiveCluster, argparse.Namespace], Shown]) -> int:
    """Read the cluster and show what the verb makes of it; again and again with --watch."""
    printed: str | None = None
    warned: set[str] = set()
    while True:
        began = time.monotonic()
        cluster = asyncio.run(read(arguments))
        shown = verb(cluster, arguments)
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


def _doctor(arguments: argparse.Namespace) -> int:
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
