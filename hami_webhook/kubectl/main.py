"""The command line of `kubectl hami`; `kubectl.verbs` has what it runs. Completion and --help go without that."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import durationpy

from hami_webhook import __version__
from hami_webhook.doctor import NAMESPACE
from hami_webhook.simulate.node_flags import add_node_flags
from hami_webhook.terminal import Parser, lazily, number_in, run_verb

_HIGHEST_PORT = 65535
_SHORTEST_PAST, _LONGEST_PAST = 600, 365 * 86400
_MOST_CARDS, _MOST_MEBIBYTES, _LONGEST_MODEL = 1024, 10_000_000, 64


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; the exit status."""
    return run_verb("kubectl hami", parser().parse_args(argv), absent_status=1)


def parser() -> Parser:
    """The command line."""
    found = Parser(
        prog="kubectl hami",
        description="Shows the quotas and cards of teams, why a pod waits, and faults of the installation. Reads with "
        "your own rights, and names the objects that they don't show.",
    )
    found.add_argument("--version", action="version", version=f"kubectl-hami {__version__}")
    _add_cluster_flags(found, first=True)
    verbs = found.add_subparsers(metavar="VERB", required=True)

    verb = _verb(verbs, "quota", "used and hard of quotas, their pods, and the room that is left", watch=True)
    verb.add_argument("name", nargs="?", default="", metavar="NAME", help="one quota, with its pods")
    verb.add_argument("--by", choices=("user", "label"), help="what each user, or value of a label, uses of its limit")
    verb = _verb(verbs, "budget", "the hours that quotas' budgets allow, what of them is left, and how long it lasts")
    verb.add_argument("name", nargs="?", default="", metavar="NAME", help="the budget of one quota")
    verb = _verb(verbs, "nodes", "slots, memory and cores in use on each node", watch=True)
    verb.add_argument("name", nargs="?", default="", metavar="NAME", help="one node")
    verb = _verb(verbs, "cards", "slots, memory and cores in use on each card, and its pods", watch=True)
    verb.add_argument("name", nargs="?", default="", metavar="NODE", help="the cards of one node")
    verb = _verb(verbs, "pods", "pods with accelerators: their nodes, cards and costs", watch=True)
    verb.add_argument("name", nargs="?", default="", metavar="NAME", help="one pod")

    verb = _verb(
        verbs,
        "idle",
        "pods that hold cards and don't use them, by namespace, and the amounts that they would free",
        watch=True,
    )
    verb.add_argument(
        "--idle-for",
        type=_duration,
        default="1h",
        metavar="DURATION",
        help="least time for which a pod hasn't used its cards, such as 30m or 1h30m (default: 1h)",
    )

    verb = _verb(verbs, "advise", "what workloads used of what they are promised, and the limits that would do")
    _add_prometheus(verb, required=True)
    verb.add_argument(
        "--since",
        type=_past,
        default="7d",
        metavar="DURATION",
        help="the time before now that counts, such as 12h or 30d (default: 7d)",
    )

    _verb(verbs, "queue", "pods that wait for quota: their places, and the room that each needs", watch=True)

    explain = verbs.add_parser("explain", help="show why a pod waits, the pods of a quota, the faults of a node")
    _add_cluster_flags(explain)
    kinds = explain.add_subparsers(metavar="KIND", required=True)
    verb = _verb(kinds, "pod", "why a pod got its node and cards, or none, and the changes that would help")
    verb.add_argument("name", metavar="NAME")
    verb.add_argument("--all", action="store_true", help="every node with all of its cards, and all changes")
    verb = _verb(kinds, "quota", "the charges that make up a quota's used, pod by pod")
    verb.add_argument("name", metavar="NAME")
    verb = _verb(kinds, "node", "the cards that a node registers, and its faults")
    verb.add_argument("name", metavar="NAME")
    for workload in ("deployment", "job", "statefulset"):
        verb = _verb(kinds, workload, f"the replicas of a {workload} that a quota refuses, and the nodes of its pods")
        verb.add_argument("name", metavar="NAME")

    verb = verbs.add_parser(
        "doctor",
        help="check every link from the webhook configuration to a bound pod",
        description="Checks every link from the webhook configuration to a bound pod, and names each fault with its "
        "remedy. Nothing is written; a pod is created in a dry run. Exits 1 if a fault was found; advice isn't one.",
    )
    _add_cluster_flags(verb)
    verb.add_argument("-o", "--output", choices=("json", "yaml", "wide"), default="", help="default: faults and advice")
    verb.set_defaults(run=lazily("kubectl.verbs", "diagnose"))

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
        help="the address at which a proxy that authenticates users serves the pages; listen on all addresses, and "
        "trust the proxy",
    )
    verb.add_argument(
        "--user-header",
        default="X-Forwarded-User",
        metavar="NAME",
        help="the header in which that proxy names the user; requests without it are refused (default: "
        "X-Forwarded-User)",
    )
    _add_prometheus(verb)
    verb.set_defaults(run=lazily("kubectl.ui.server", "serve"))

    verb = _verb(verbs, "defrag", "the fewest pods that would have to move so that a node has cards for a pod")
    verb.add_argument(
        "--want", required=True, type=_cards, metavar="COUNTxMODEL", help="cards of one node, such as 4xH100"
    )
    verb.add_argument("--gpumem", type=_mebibytes, default=0, metavar="MIB", help="of each card (default: whole cards)")
    verb.add_argument("--linked", action="store_true", help="cards that fast links join")
    verb.add_argument(
        "--priority-class",
        default="",
        metavar="NAME",
        help="that of the pod that is to come: only pods of a lower priority move (default: the cluster's)",
    )
    verb.add_argument("--apply", action="store_true", help="evict them, one after the other, with your own rights")
    verb.add_argument(
        "--timeout",
        type=_duration,
        default="10m",
        metavar="DURATION",
        help="longest wait for each pod to go and its replacement to be placed (default: 10m)",
    )

    verb = _verb(verbs, "simulate", "show the results for pods on this cluster, without creating them")
    verb.add_argument("files", nargs="*", metavar="FILE", help="YAML or JSON of Pods and workloads; - is stdin")
    add_node_flags(verb)
    verb.add_argument("--at", metavar="TIME", help="time of the run, RFC 3339 (default: now)")
    verb.add_argument("--strict", action="store_true", help="exit 1 if a pod was denied or found no node")
    return found


def _port(text: str) -> int:
    if (port := number_in(text, 0, _HIGHEST_PORT)) is None:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to {_HIGHEST_PORT}, not {text!r}")
    return port


def _cards(text: str) -> tuple[int, str]:
    count, _, model = text.partition("x")
    number = number_in(count, 1, _MOST_CARDS)
    if number is None or not model.strip():
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {_MOST_CARDS}, x, and a model, not {text!r}")
    if len(model) > _LONGEST_MODEL or not model.isprintable() or "," in model:
        raise argparse.ArgumentTypeError(f"MODEL has at most {_LONGEST_MODEL} printable characters and no comma")
    return number, model.strip()


def _mebibytes(text: str) -> int:
    if (number := number_in(text, 1, _MOST_MEBIBYTES)) is None:
        raise argparse.ArgumentTypeError(f"must be a number of MiB from 1 to {_MOST_MEBIBYTES}, not {text!r}")
    return number


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or parts.query:
        raise argparse.ArgumentTypeError(f"must be like https://hami.example.com, without a path, not {text!r}")
    return text


def _prometheus(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"must be a URL such as http://prometheus.monitoring:9090, not {text!r}")
    return text


def _duration(text: str) -> float:
    with suppress(ValueError):
        if text[:1].isdecimal():
            return float(durationpy.from_str(text).total_seconds())
    raise argparse.ArgumentTypeError(f"must be a duration such as 30m, 1h30m or 2d, not {text!r}")


def _past(text: str) -> float:
    seconds = _duration(text)
    if not _SHORTEST_PAST <= seconds <= _LONGEST_PAST:
        raise argparse.ArgumentTypeError(f"must be from 10m to 365d, not {text!r}")
    return seconds


def _verb(
    verbs: argparse._SubParsersAction[Parser],
    name: str,
    text: str,
    *,
    watch: bool = False,
) -> Parser:
    """A verb that shows something of a cluster: `kubectl.verbs` says what."""
    verb: Parser = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    _add_cluster_flags(verb)
    verb.add_argument("--config", metavar="FILE", help="device-config.yaml (default: the installed one)")
    verb.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    verb.add_argument("-o", "--output", choices=("json", "yaml", "wide"), default="", help="default: a table")
    verb.add_argument("-v", "--verbose", action="store_true", help="name everything that your rights don't show")
    if watch:
        verb.add_argument("-w", "--watch", action="store_true", help="show it again whenever it changes")
        _add_prometheus(verb)
    verb.set_defaults(run=_show, shown=name)
    return verb


def _add_cluster_flags(verb: Parser, *, first: bool = False) -> None:
    """kubectl's flags for the cluster and the namespace, and where to find what the program goes by.

    They may stand before the verb, too (`first`), where they have their defaults: a verb sets only what is given to it.
    """

    def add(*flags: str, default: str, metavar: str, text: str) -> None:
        verb.add_argument(*flags, default=default if first else argparse.SUPPRESS, metavar=metavar, help=text)

    add("-n", "--namespace", default="", metavar="NAME", text="default: that of the context")
    add("--context", default="", metavar="NAME", text="context of the kubeconfig")
    add("--kubeconfig", default="", metavar="FILE", text="default: as kubectl")
    where = f"where HAMi is installed (default: {NAMESPACE})"
    add("--system-namespace", default=NAMESPACE, metavar="NAME", text=where)


def _add_prometheus(verb: Parser, *, required: bool = False) -> None:
    """Where what is really used is asked for, or must be, as only that has a history."""
    default = "" if required else " (default: the API usage.hami.io)"
    verb.add_argument(
        "--prometheus",
        type=_prometheus,
        required=required,
        metavar="URL",
        help=f"read measured use from this server{default}",
    )


def _show(arguments: argparse.Namespace) -> int:
    watch = getattr(arguments, "watch", False)
    if not watch:
        gc.disable()  # what is read is needed to the end; on 1,000 nodes collections take a tenth of the time
    try:
        from hami_webhook.kubectl import verbs

        return verbs.show(arguments)
    finally:
        if not watch:
            gc.freeze()  # nor is it looked through again when the process ends: a tenth more
        gc.enable()
