"""The command line. Results go to stdout, everything else to stderr.

A verb imports what it needs when it runs: `version` and `--help` start in half the time.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from hami_webhook import __version__
from hami_webhook.build_info import build_info
from hami_webhook.cli.tables import table_console
from hami_webhook.config import SECTION_SWITCHES, add_flags
from hami_webhook.simulate.node_flags import add_node_flags
from hami_webhook.terminal import Parser, lazily, print_sentences, run_verb


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; the exit status."""
    return run_verb("hami-webhook", parser().parse_args(argv))


def scheduler(argv: Sequence[str] | None = None) -> int:
    """HAMi's own command: `serve` with all roles, where kube-scheduler sends to the main server; or `version`."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["version"]:
        return main(arguments)
    # the webhook configuration is the chart's own, and has no conditions
    return main(["serve", "--extender-bind-address=", "--webhook-configuration=", *arguments])


def vgpu_monitor(argv: Sequence[str] | None = None) -> int:
    """HAMi's own command: `serve` with the role node, which there needs HOOK_PATH; or `version`."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["version"]:
        return main(arguments)
    if not os.environ.get("HOOK_PATH"):
        problem = "HOOK_PATH isn't set: set it to the folder of HAMi's hooks on this node, usually /usr/local/vgpu"
        print_sentences("vGPUmonitor", [problem])
        return 2
    return main(["serve", "--roles=node", *arguments])


def parser() -> Parser:
    """The command line."""
    found = Parser(
        prog="hami-webhook",
        description="Admission webhook, quota controller and Fit engine for accelerators shared among pods.",
    )
    found.add_argument("--version", action="version", version=f"hami-webhook {__version__}")
    verbs = found.add_subparsers(metavar="VERB", required=True)

    verb = verbs.add_parser("serve", help="run the webhook, the quota controller and the scheduler extender")
    add_flags(verb)
    verb.add_argument(
        "--embedded-cluster",
        action="append",
        default=[],
        metavar="FILE",
        help="serve an embedded cluster with the objects of FILE instead of a real API server; may be repeated",
    )
    verb.set_defaults(run=lazily("cli.serve", "serve"))

    verb = verbs.add_parser("simulate", help="run the whole pipeline on files, with no cluster")
    verb.add_argument("pods", nargs="*", metavar="PODS", help="YAML or JSON of Pods and workloads; - is standard input")
    add_node_flags(verb)
    _add_run_flags(verb, "; may be repeated (default: all other objects of PODS, and its bound pods)")
    verb.add_argument(
        "--strict",
        action="store_true",
        help="exit 1 if a pod was denied, found no node, or was evicted, or if the files have no pod",
    )
    verb.add_argument(
        "--preemption",
        choices=("on", "off"),
        default="on",
        help="whether pods of lower priority are evicted for a pod that fits on no node (default: on)",
    )
    verb.add_argument(
        "--now",
        "--at",
        metavar="TIME",
        help="start of the run, RFC 3339 (default: the newest time in the cluster files)",
    )
    verb.set_defaults(run=lazily("cli.verbs", "simulate"))

    verb = verbs.add_parser(
        "explain",
        help="show why a pod got its node and cards, or none, and the changes that would help",
        description="Shows, by node and card and with numbers, why a pod got its place or none, and the changes that "
        "would help. It only reads, without --cluster from the API server.",
    )
    verb.add_argument("pod", nargs="?", metavar="POD", help="NAME or NAMESPACE/NAME; needed if --file has several pods")
    verb.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help="a pod or workload that doesn't exist yet: it is admitted first; - is stdin",
    )
    _add_run_flags(verb, " from a file instead of the API server; may be repeated")
    verb.add_argument(
        "--now",
        metavar="TIME",
        help="time of the answer, RFC 3339 (default: now, or the newest time in the cluster files)",
    )
    verb.add_argument("--all", action="store_true", help="every node with all of its cards, and all changes")
    verb.add_argument("-v", "--verbose", action="store_true", help="name everything that your rights don't show")
    verb.set_defaults(run=lazily("cli.verbs", "explain"))

    verb = verbs.add_parser(
        "report",
        help="print the hours of cards, memory and cores that namespaces held",
        description="Prints the hours of cards, GiB and cores that pods held or waited for, by namespace, vendor, "
        "model and state. It reads the showback counters in Prometheus.",
    )
    verb.add_argument("--prometheus", required=True, metavar="URL", help="such as http://prometheus.monitoring:9090")
    verb.add_argument(
        "--since", default="30d", metavar="TIME", help="length of the period before now, such as 12h (default: 30d)"
    )
    verb.add_argument("--by", choices=("user",), help="a row for each user by the stamps of pods, without used hours")
    verb.add_argument(
        "-o", "--output", choices=("table", "csv", "html"), default="table", help="default: table; html is one file"
    )
    verb.set_defaults(run=_report)

    certs = verbs.add_parser("certs", help="certificates").add_subparsers(metavar="VERB", required=True)
    verb = certs.add_parser("generate", help="create a CA and a serving certificate for the service's names")
    verb.add_argument("--dir", default="certs", metavar="DIR", help="where to write (default: certs)")
    verb.add_argument("--service", default="hami-webhook", metavar="NAME", help="default: hami-webhook")
    verb.add_argument("--namespace", default="hami-system", metavar="NAME", help="default: hami-system")
    verb.add_argument("--name", action="append", default=[], metavar="NAME", help="one more DNS name or IP address")
    verb.add_argument("--force", action="store_true", help="overwrite existing files")
    verb.set_defaults(run=_generate_certificates)

    config = verbs.add_parser("config", help="configuration").add_subparsers(metavar="VERB", required=True)
    verb = config.add_parser("check", help="parse a device-config.yaml and print its meaning")
    verb.add_argument("file", metavar="FILE")
    verb.set_defaults(run=lazily("cli.verbs", "check_config"))
    verb = config.add_parser(
        "kube-scheduler",
        help="write the extender's resources into kube-scheduler's configuration",
        description="Fills in the managedResources of the one extender in a KubeSchedulerConfiguration that has none: "
        "the resources that kube-scheduler leaves to us, by the device configuration.",
    )
    verb.add_argument("--from", dest="base", required=True, metavar="FILE", help="a KubeSchedulerConfiguration")
    verb.add_argument("--to", metavar="FILE", help="where to write the result (default: standard output)")
    verb.add_argument("--device-config-file", metavar="FILE", help="default: that of HAMi's chart")
    for section, switch in SECTION_SWITCHES.items():
        flag = "--" + switch.replace("_", "-")
        verb.add_argument(flag, action="store_true", help=f"the section {section} counts, as for serve")
    verb.set_defaults(run=lazily("cli.verbs", "configure_kube_scheduler"))

    kueue = verbs.add_parser("kueue", help="configuration for Kueue").add_subparsers(metavar="VERB", required=True)
    verb = kueue.add_parser(
        "config",
        help="print the resource transformations for Kueue's configuration",
        description="Prints the resources.transformations by which Kueue counts memory and cores as our quotas do: "
        "those of one card, times the number of cards. This is exact for pods with one container with cards. With "
        "several, Kueue counts more, because it multiplies the pod's sums. Put the output into the Configuration in "
        "Kueue's ConfigMap kueue-manager-config.",
    )
    _add_config_flag(verb)
    verb.set_defaults(run=lazily("cli.verbs", "configure_kueue"))

    quota = verbs.add_parser("quota", help="quotas").add_subparsers(metavar="VERB", required=True)
    verb = quota.add_parser(
        "check",
        help="find probable mistakes in the ResourceQuotas of files",
        description="Finds probable mistakes in ResourceQuotas: keys that count nothing, units, scopes. Exits with 1 "
        "if it finds one, with 2 if a file can't be used.",
    )
    verb.add_argument("files", nargs="+", metavar="FILE", help="ResourceQuotas, and Nodes with their cards; - is stdin")
    _add_config_flag(verb)
    verb.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    _add_reading_flags(verb)
    verb.set_defaults(run=lazily("cli.verbs", "check_quotas"))

    verb = verbs.add_parser(
        "test",
        help="compare the results for the pods in folders with the expected ones",
        description="Runs the tests of all folders in DIR, at any depth, that have a hami-test.yaml. Their pods go "
        "through policy, admission, quotas and placement, without a cluster. Then the results are compared with the "
        "file's expectations. Exits with 1 if one differs, with 2 if a folder can't be used.",
    )
    verb.add_argument("dir", metavar="DIR", help="the folder with the test folders")
    verb.add_argument("--name", metavar="PATTERN", help="only tests of this name, such as 'team-a/*' (default: all)")
    verb.add_argument("--update", action="store_true", help="write the results into the files with other expectations")
    verb.add_argument("-o", "--output", choices=("text", "json", "junit", "html"), default="text", help="default: text")
    verb.set_defaults(run=lazily("simulate.folders", "run"))

    verb = verbs.add_parser("version", help="print version, revision and build date")
    verb.set_defaults(run=_version)
    return found


def _add_config_flag(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--config", metavar="FILE", help="device-config.yaml (default: that of HAMi's chart)")


def _add_reading_flags(verb: argparse.ArgumentParser) -> None:
    """How objects of files are read."""
    verb.add_argument(
        "-n",
        "--namespace",
        metavar="NAME",
        help="of objects that name none (default: that of the kubeconfig's context)",
    )
    verb.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, the default one, then in-cluster")
    verb.add_argument("--workloads", metavar="FILE", help="more kinds of objects that have pod templates")


def _add_run_flags(verb: argparse.ArgumentParser, cluster: str) -> None:
    """What pods are taken through the pipeline with, and how it is shown; `cluster` ends the help of `--cluster`."""
    objects = f"nodes, pods, quotas, namespaces, PriorityClasses, PodDisruptionBudgets{cluster}"
    verb.add_argument("--cluster", action="append", default=[], metavar="FILE", help=objects)
    _add_config_flag(verb)
    verb.add_argument("--policy-file", metavar="FILE", help="policy rules")
    verb.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help="default: table")
    _add_reading_flags(verb)
    verb.add_argument("--scheduler-name", default="hami-scheduler", metavar="NAME", help="default: hami-scheduler")
    verb.add_argument("--node-scheduler-policy", choices=("binpack", "spread"), default="binpack")
    verb.add_argument("--gpu-scheduler-policy", default="spread", metavar="POLICY", help="default: spread")


def _report(arguments: argparse.Namespace) -> int:
    from hami_webhook import report

    console = table_console(arguments.output)
    found = report.read_hours(arguments.prometheus, arguments.since, by_user=arguments.by == "user")
    if console is not None:
        report.show(found, console)
    elif arguments.output == "csv":
        report.write_csv(found, sys.stdout)
    else:
        from hami_webhook.cli import showback

        print(showback.as_html(found, arguments.since, datetime.now(UTC)))
    return 0


def _generate_certificates(arguments: argparse.Namespace) -> int:
    from hami_webhook import pki

    pair = pki.generate(
        arguments.service, arguments.namespace, now=datetime.now(UTC), extra_names=tuple(arguments.name)
    )
    for path in pki.write(Path(arguments.dir), pair, force=arguments.force):
        print(path)
    return 0


def _version(arguments: argparse.Namespace) -> int:
    built = build_info()
    origin = f"revision {built.revision or 'unknown'}, build date {built.date or 'unknown'}"
    print(f"hami-webhook {__version__} ({origin}, Python {platform.python_version()})")
    return 0
