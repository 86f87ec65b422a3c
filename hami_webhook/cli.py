"""The command line: each verb calls into the package. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from hami_webhook import __version__, logs, pki, report
from hami_webhook.assembly import Options
from hami_webhook.build_info import build_info
from hami_webhook.cluster.api import ClusterError
from hami_webhook.cluster.loading import (
    STDIN,
    Bundle,
    LoadError,
    read_objects,
)
from hami_webhook.config import (
    SECTION_SWITCHES,
    ConfigError,
    LoadedDeviceConfig,
    add_flags,
    describe,
    read_text,
    resolve,
)
from hami_webhook.config.setting_values import NODE_ROLE
from hami_webhook.device_config import builtin_device_config, enabled_vendors, read_device_config
from hami_webhook.devices.registry import Vendors
from hami_webhook.explain.live import LiveReading, lacking, needs_of_pod, read_cluster
from hami_webhook.explain.read import Explainer, UnknownPod
from hami_webhook.explain.report import Explanation
from hami_webhook.explain.tables import show as show_explanation
from hami_webhook.kube.objects import parse_time
from hami_webhook.policy.file import PolicyFile
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.scheduling import kube_scheduler
from hami_webhook.scheduling.placer import SchedulingPolicies
from hami_webhook.server.tls import TlsError
from hami_webhook.simulate import folders, quota_check
from hami_webhook.simulate.manifests import SimulationFiles, pods_of, read_cluster_files, read_simulation_files
from hami_webhook.simulate.simulation import Result, Simulation, simulation_options, start_of
from hami_webhook.simulate.tables import show
from hami_webhook.terminal import (
    Parser,
    UsageError,
    aligned,
    formatted,
    print_sentences,
    print_warnings,
    progress,
    run_verb,
    without_control_characters,
)

if TYPE_CHECKING:
    from rich.console import Console

_UNUSABLE = (UsageError, ClusterError, ConfigError, LoadError, UnknownPod, pki.PkiError, TlsError, report.ReportError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; the exit status."""
    return run_verb("hami-webhook", parser().parse_args(argv), _UNUSABLE)


def scheduler(argv: Sequence[str] | None = None) -> int:
    """HAMi's own command: `serve` with all roles, where kube-scheduler sends to the main server; or `version`."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["version"]:
        return main(arguments)
    # the webhook configuration is the chart's own, and has no conditions
    return main(["serve", "--extender-bind-address=", "--webhook-configuration=", *arguments])


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
    verb.set_defaults(run=_serve)

    verb = verbs.add_parser("simulate", help="run the whole pipeline on files, with no cluster")
    verb.add_argument("pods", nargs="+", metavar="PODS", help="YAML or JSON of Pods and workloads; - is standard input")
    verb.add_argument(
        "--cluster",
        action="append",
        default=[],
        metavar="FILE",
        help="nodes, pods, quotas, namespaces, PriorityClasses, PodDisruptionBudgets; may be repeated (default: what "
        "else PODS hold, bound pods included)",
    )
    verb.add_argument("--config", metavar="FILE", help="device-config.yaml (default: what HAMi's chart renders)")
    verb.add_argument("--policy-file", metavar="FILE", help="policy rules")
    verb.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help="default: table")
    verb.add_argument("--strict", action="store_true", help="exit 1 if a pod was denied, found no node, or was evicted")
    _add_scheduler_flags(verb)
    verb.add_argument(
        "--preemption",
        choices=("on", "off"),
        default="on",
        help="whether pods of lower priority are evicted for a pod that no node takes (default: on)",
    )
    verb.add_argument(
        "--now", metavar="TIME", help="when the run starts, RFC 3339 (default: the newest time in the cluster files)"
    )
    verb.set_defaults(run=_simulate)

    verb = verbs.add_parser(
        "explain",
        help="say why a pod is where it is, or isn't anywhere, and what would have to change",
        description="Says node by node, card by card, with numbers, why a pod is where it is or isn't anywhere, and "
        "what would have to change. Reads only; without --cluster from the API server.",
    )
    verb.add_argument("pod", nargs="?", metavar="POD", help="NAME or NAMESPACE/NAME; which one, if --file has several")
    verb.add_argument("-n", "--namespace", metavar="NAME", help="the pod's namespace (default: default)")
    verb.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help="a pod or workload that doesn't exist yet: it is admitted first; - is stdin",
    )
    verb.add_argument(
        "--cluster",
        action="append",
        default=[],
        metavar="FILE",
        help="nodes, pods, quotas, namespaces, PriorityClasses, PodDisruptionBudgets from a file instead of the API "
        "server; may be repeated",
    )
    verb.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, the default one, then in-cluster")
    verb.add_argument("--config", metavar="FILE", help="device-config.yaml (default: what HAMi's chart renders)")
    verb.add_argument("--policy-file", metavar="FILE", help="policy rules")
    verb.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help="default: table")
    _add_scheduler_flags(verb)
    verb.add_argument(
        "--now", metavar="TIME", help="as of when, RFC 3339 (default: now, or the newest time in the cluster files)"
    )
    verb.add_argument("-v", "--verbose", action="store_true", help="name everything that your rights don't show")
    verb.set_defaults(run=_explain)

    verb = verbs.add_parser(
        "report",
        help="print how many hours of cards, memory and cores namespaces held",
        description="Prints by namespace, vendor, model and state the hours of cards, of GiB and of cores that pods "
        "held or waited for, from the showback counters in Prometheus.",
    )
    verb.add_argument("--prometheus", required=True, metavar="URL", help="such as http://prometheus.monitoring:9090")
    verb.add_argument("--since", default="30d", metavar="TIME", help="how long ago it begins, as 12h (default: 30d)")
    verb.add_argument("-o", "--output", choices=("table", "csv"), default="table", help="default: table")
    verb.set_defaults(run=_report)

    certs = verbs.add_parser("certs", help="certificates").add_subparsers(metavar="VERB", required=True)
    verb = certs.add_parser("generate", help="make a CA and a serving certificate for the service's names")
    verb.add_argument("--dir", default="certs", metavar="DIR", help="where to write (default: certs)")
    verb.add_argument("--service", default="hami-webhook", metavar="NAME", help="default: hami-webhook")
    verb.add_argument("--namespace", default="hami-system", metavar="NAME", help="default: hami-system")
    verb.add_argument("--name", action="append", default=[], metavar="NAME", help="one more DNS name or IP address")
    verb.add_argument("--force", action="store_true", help="overwrite what is there")
    verb.set_defaults(run=_generate_certificates)

    config = verbs.add_parser("config", help="configuration").add_subparsers(metavar="VERB", required=True)
    verb = config.add_parser("check", help="parse a device-config.yaml and print what it means")
    verb.add_argument("file", metavar="FILE")
    verb.set_defaults(run=_check_config)
    verb = config.add_parser(
        "kube-scheduler",
        help="write what kube-scheduler leaves to the extender into its configuration",
        description="Fills in the managedResources of the one extender in a KubeSchedulerConfiguration that has none: "
        "the resources that kube-scheduler leaves to us, by the device configuration.",
    )
    verb.add_argument("--from", dest="base", required=True, metavar="FILE", help="a KubeSchedulerConfiguration")
    verb.add_argument("--to", metavar="FILE", help="where to write the result (default: standard output)")
    verb.add_argument("--device-config-file", metavar="FILE", help="default: what HAMi's chart renders")
    for section, switch in SECTION_SWITCHES.items():
        flag = "--" + switch.replace("_", "-")
        verb.add_argument(flag, action="store_true", help=f"the section {section} counts, as for serve")
    verb.set_defaults(run=_configure_kube_scheduler)

    quota = verbs.add_parser("quota", help="quotas").add_subparsers(metavar="VERB", required=True)
    verb = quota.add_parser(
        "check",
        help="say what of ResourceQuotas in files is misread",
        description="Says what ResourceQuotas say that their authors can hardly have meant: keys that count nothing, "
        "units, scopes. Exits with 1 if there is such a thing, with 2 if a file can't be used.",
    )
    verb.add_argument("files", nargs="+", metavar="FILE", help="ResourceQuotas, and Nodes with their cards; - is stdin")
    verb.add_argument("--config", metavar="FILE", help="device-config.yaml (default: what HAMi's chart renders)")
    verb.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    verb.set_defaults(run=_check_quotas)

    folders.add_verb(verbs)

    verb = verbs.add_parser("version", help="print version, revision and build date")
    verb.set_defaults(run=_version)
    return found


def _add_scheduler_flags(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--scheduler-name", default="hami-scheduler", metavar="NAME", help="default: hami-scheduler")
    verb.add_argument("--node-scheduler-policy", choices=("binpack", "spread"), default="binpack")
    verb.add_argument("--gpu-scheduler-policy", default="spread", metavar="POLICY", help="default: spread")


def _warn(warnings: Iterable[str]) -> None:
    print_warnings("hami-webhook", warnings)


def _console(arguments: argparse.Namespace) -> Console | None:
    """Where a table is printed, None for other outputs. Raises `ModuleNotFoundError` without the extra `cli`."""
    if arguments.output != "table":
        return None
    from hami_webhook.console import SafeConsole

    return SafeConsole(width=None if sys.stdout.isatty() else 160)


def _serve(arguments: argparse.Namespace) -> int:
    # servers and clients are imported where they run: other verbs would take twice as long to start
    settings = resolve(arguments, os.environ)
    logs.set_up(settings.log_format, settings.verbosity)
    for warning in settings.warnings:
        logging.warning("%s", warning)
    if settings.ignored_sections:
        logging.info("device-config.yaml: %s ignored, not enabled by flag", ", ".join(settings.ignored_sections))
    if NODE_ROLE in settings.roles:
        if arguments.embedded_cluster:
            raise UsageError("--roles node probes the GPUs of a node: it needs a cluster, not --embedded-cluster")
        from hami_webhook.server.serve_node import serve_node

        uvloop.run(serve_node(settings))
        return 0
    config = _device_config(settings.device_config_file).config
    vendors = enabled_vendors(config.without(settings.ignored_sections))
    policies = _policies(settings.policy_file, vendors)
    if arguments.embedded_cluster:
        from hami_webhook.server.serve_embedded import serve_embedded

        serving = serve_embedded(_bundle(arguments.embedded_cluster), vendors, settings, policies)
    else:
        from hami_webhook.server.serve_kubernetes import serve_kubernetes

        serving = serve_kubernetes(vendors, settings, policies)
    try:
        uvloop.run(serving)
    except* OSError as group:
        raise UsageError(f"can't listen: {group.exceptions[0]}") from group
    return 0


def _simulate(arguments: argparse.Namespace) -> int:
    if [*arguments.cluster, *arguments.pods].count(STDIN) > 1:
        raise UsageError("standard input (-) can be read only once")
    console = _console(arguments)
    vendors = enabled_vendors(_device_config(arguments.config).config)
    policies = _policies(arguments.policy_file, vendors)
    files = read_simulation_files(arguments.cluster, arguments.pods, sys.stdin.buffer)
    _warn(files.warnings)
    now = _now(arguments.now) or start_of(files.bundle)
    simulation = Simulation(vendors, _options(arguments), policies, now, preemption=arguments.preemption == "on")
    result = asyncio.run(_simulated(simulation, files))
    if console is not None:
        show(result, console)
    else:
        print(formatted(result.as_json(), arguments.output))
    failed = any(not outcome.allowed or outcome.unplaced or outcome.preempted_by for outcome in result.pods)
    return 1 if arguments.strict and failed else 0


def _explain(arguments: argparse.Namespace) -> int:
    if not arguments.pod and not arguments.file:
        raise UsageError("explain needs a POD, or a pod's manifest with -f FILE")
    if [*arguments.cluster, arguments.file].count(STDIN) > 1:
        raise UsageError("standard input (-) can be read only once")
    namespace, name = _pod_name(arguments)
    console = _console(arguments)
    vendors = enabled_vendors(_device_config(arguments.config).config)
    policies = _policies(arguments.policy_file, vendors)
    manifest = _pod_of_file(arguments.file, namespace, name) if arguments.file else None
    at = _now(arguments.now)
    if arguments.cluster:
        reading = LiveReading(_bundle(arguments.cluster))
        now = at or start_of(reading.bundle)
    else:
        now = at or time.time()
        kubeconfig, existing = arguments.kubeconfig or os.environ.get("KUBECONFIG", ""), "" if manifest else name
        reading = asyncio.run(read_cluster(kubeconfig, namespace or "default", existing, now))
    options = _options(arguments)
    if not arguments.cluster:
        options = replace(options, zone=None)  # handshakes are in local time, as `serve` reads them
    simulation = Simulation(vendors, options, policies, now)
    explainer = Explainer(simulation, options.policies, arguments.scheduler_name, now, reading.unseen.keys())
    result = asyncio.run(_explained(explainer, reading, namespace or "default", name, manifest))
    if console is not None:
        show_explanation(result, console)
    else:
        print(formatted(result.as_json(), arguments.output))
    needed = lacking(reading.unseen, needs_of_pod(reading.unseen))
    everything = [each.sentence for each in reading.unseen.values()]
    print_sentences("hami-webhook", everything if arguments.verbose else needed)
    return 0


async def _explained(
    explainer: Explainer, reading: LiveReading, namespace: str, name: str, manifest: Mapping[str, Any] | None
) -> Explanation:
    await explainer.simulation.fill(reading.bundle, trust_used=True)
    _warn(explainer.simulation.warnings())
    found = explainer.of_known(namespace, name) if manifest is None else await explainer.of_new(manifest)
    return replace(found, notes=[*found.notes, *reading.pod_words])


def _pod_name(arguments: argparse.Namespace) -> tuple[str, str]:
    """The namespace and the name of POD, each empty if it isn't given."""
    namespace, slash, name = (arguments.pod or "").rpartition("/")
    if slash and not (namespace and name and "/" not in namespace):
        raise UsageError(f"POD must be NAME or NAMESPACE/NAME, not {arguments.pod!r}")
    if slash and arguments.namespace not in (None, namespace):
        raise UsageError(f"POD {arguments.pod} isn't in namespace {arguments.namespace}, which -n names")
    return namespace or arguments.namespace or "", name


def _pod_of_file(path: str, namespace: str, name: str) -> Mapping[str, Any]:
    """The pod of that name in a file, in `namespace` if it names none itself."""
    pods, warnings = pods_of([read_objects(path, sys.stdin.buffer)])
    _warn(warnings)
    found = [pod for pod in pods.manifests if name in ("", pod["metadata"].get("name"))]
    if len(found) != 1:
        problem = f"has {len(found)} pods" + (f" of the name {name}" if name else ", and POD must name one")
        raise UsageError(f"{path} {problem}")
    own = found[0]["metadata"].get("namespace")
    if namespace and own not in (None, "", namespace):
        raise UsageError(f"the pod in {path} is in namespace {own}, not in {namespace}")
    return {**found[0], "metadata": {**found[0]["metadata"], "namespace": own or namespace or "default"}}


def _options(arguments: argparse.Namespace) -> Options:
    policies = SchedulingPolicies(arguments.node_scheduler_policy, arguments.gpu_scheduler_policy)
    return simulation_options(arguments.scheduler_name, policies)


def _now(text: str | None) -> float | None:
    """Unix seconds of a --now, None if it isn't given."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        raise UsageError(f"--now must be an RFC 3339 time such as 2026-01-31T12:00:00Z, not {text!r}") from None


async def _simulated(simulation: Simulation, files: SimulationFiles) -> Result:
    await simulation.fill(files.bundle)
    _warn(simulation.warnings())
    with progress("simulating", len(files.pods.manifests)) as advance:
        return await simulation.run(files.pods, advance)


def _report(arguments: argparse.Namespace) -> int:
    console = _console(arguments)
    rows = report.read_hours(arguments.prometheus, arguments.since)
    if console is None:
        report.write_csv(rows, sys.stdout)
    else:
        report.show(rows, console)
    return 0


def _generate_certificates(arguments: argparse.Namespace) -> int:
    pair = pki.generate(
        arguments.service, arguments.namespace, now=datetime.now(UTC), extra_names=tuple(arguments.name)
    )
    for path in pki.write(Path(arguments.dir), pair, force=arguments.force):
        print(path)
    return 0


def _check_config(arguments: argparse.Namespace) -> int:
    loaded = read_device_config(arguments.file)
    for section in describe(loaded):
        rows = [(each.name, each.meaning, each.unit, each.quota_key or "-") for each in section.resources]
        lines = [*aligned([("resource", "meaning", "unit", "quota key"), *rows]), *section.notes]
        if section.needs_flag:
            lines.append(f"serve ignores it without {section.needs_flag}")
        title = f"{section.path}: {', '.join(section.backends)}"
        print(without_control_characters("\n  ".join((title, *lines))))
    _warn(loaded.warnings)
    return 0


def _check_quotas(arguments: argparse.Namespace) -> int:
    vendors = enabled_vendors(_device_config(arguments.config).config)
    checked = asyncio.run(quota_check.check(_bundle(arguments.files), vendors))
    if not checked:
        raise UsageError(f"no ResourceQuota in {', '.join(arguments.files)}")
    if arguments.output == "json":
        print(formatted({"quotas": [quota.as_json() for quota in checked]}, "json"))
    else:
        print("".join(f"{line}\n" for quota in checked for line in quota.lines()), end="")
    return 1 if any(quota.misread for quota in checked) else 0


def _configure_kube_scheduler(arguments: argparse.Namespace) -> int:
    ignored = [section for section, switch in SECTION_SWITCHES.items() if not getattr(arguments, switch)]
    config = _device_config(arguments.device_config_file).config.without(ignored)
    text = kube_scheduler.fill_in(read_text(arguments.base), arguments.base, enabled_vendors(config))
    if arguments.to is None:
        print(text, end="")
        return 0
    try:
        Path(arguments.to).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{arguments.to}: can't be written: {error.strerror}") from None
    return 0


def _version(arguments: argparse.Namespace) -> int:
    built = build_info()
    origin = f"revision {built.revision or 'unknown'}, build date {built.date or 'unknown'}"
    print(f"hami-webhook {__version__} ({origin}, Python {platform.python_version()})")
    return 0


def _device_config(path: str | None) -> LoadedDeviceConfig:
    loaded = read_device_config(path) if path else builtin_device_config()
    _warn(loaded.warnings)
    return loaded


def _policies(path: str | None, vendors: Vendors) -> PolicyRules:
    return PolicyFile.parse(read_text(path), path, vendors.governed) if path else PolicyRules.EMPTY


def _bundle(paths: Sequence[str]) -> Bundle:
    bundle, warnings = read_cluster_files(paths, sys.stdin.buffer)
    _warn(warnings)
    return bundle
