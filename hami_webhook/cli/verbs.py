"""The verbs that work on files: `simulate`, `explain`, `quota check`, and those of `config`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from hami_webhook.cli.inputs import bundle_of, device_config, policy_rules, reading_rules, warn
from hami_webhook.cli.tables import table_console
from hami_webhook.cluster.loading import STDIN, Bundle, LoadError
from hami_webhook.config import SECTION_SWITCHES, describe, read_text
from hami_webhook.core_options import Options
from hami_webhook.device_config import enabled_vendors, read_device_config
from hami_webhook.devices.registry import Vendors
from hami_webhook.explain.live import LiveReading, lacking, needs_of_pod, read_cluster
from hami_webhook.explain.read import Explainer
from hami_webhook.explain.report import Explanation
from hami_webhook.explain.tables import NEAREST
from hami_webhook.explain.tables import show as show_explanation
from hami_webhook.integrations.kueue import transformations
from hami_webhook.kube.objects import MalformedObject, ResourceQuota
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.quota.accelerator_quota import KIND, read_accelerator_quota
from hami_webhook.quota.quota_lint import Misreading
from hami_webhook.scheduling import kube_scheduler
from hami_webhook.scheduling.placer import SchedulingPolicies
from hami_webhook.simulate import other_nodes
from hami_webhook.simulate.manifests import ReadingRules, SimulationFiles, pods_of, read_simulation_files
from hami_webhook.simulate.node_flags import NodeChange, replay_hours, time_of
from hami_webhook.simulate.other_nodes import template_of
from hami_webhook.simulate.replay import without_pods
from hami_webhook.simulate.replay_report import replayed
from hami_webhook.simulate.results import Result, show
from hami_webhook.simulate.run_options import simulation_options, start_of
from hami_webhook.simulate.simulation import Simulation
from hami_webhook.terminal import UsageError, aligned, formatted, print_sentences, without_control_characters
from hami_webhook.usage.recorded_pods import read_record


def simulate(arguments: argparse.Namespace) -> int:
    """Run the pipeline on files, and print what became of the pods. The exit status."""
    change = NodeChange.of(arguments, [*arguments.cluster, *arguments.pods])
    hours = replay_hours(arguments, arguments.pods)
    if hours and not arguments.cluster:
        raise UsageError("--replay needs the cluster's nodes: give --cluster FILE")
    if not arguments.pods and not (change and arguments.cluster) and not hours:
        raise UsageError("nothing to simulate: name PODS, or give --cluster with --waiting, --add or --remove")
    console = table_console(arguments.output)
    vendors = enabled_vendors(device_config(arguments.config).config)
    policies = policy_rules(arguments.policy_file, vendors)
    rules = reading_rules(arguments)
    files = read_simulation_files(arguments.cluster, arguments.pods, sys.stdin.buffer, rules)
    warn(files.warnings)
    at = time_of("--now or --at", arguments.now)
    now = at or start_of(files.bundle)
    if hours:
        record = read_record(arguments.prometheus, vendors.own_names, at or time.time(), hours * 3600)
        bundle = without_pods(files.bundle)

        async def filled() -> Simulation:
            found = Simulation(vendors, _options(arguments), policies, now)
            await found.fill(bundle)
            return found

        report = asyncio.run(replayed(filled, record, change, template_of(change, rules)))
        if console is not None:
            report.show(console)
        else:
            print(formatted(report.as_json(), arguments.output))
        return 0
    simulation = Simulation(vendors, _options(arguments), policies, now, preemption=arguments.preemption == "on")
    result = asyncio.run(_simulated(simulation, files, change, rules, at))
    if console is not None:
        show(result, console)
    else:
        print(formatted(result.as_json(), arguments.output))
    failed = any(not outcome.allowed or outcome.unplaced or outcome.preempted_by for outcome in result.pods)
    if arguments.strict and not result.pods:
        print_sentences("hami-webhook", [f"no pod to simulate in {', '.join(arguments.pods)}"])
    return 1 if arguments.strict and (failed or not result.pods) else 0


def explain(arguments: argparse.Namespace) -> int:
    """Print why a pod is where it is, or isn't anywhere. The exit status."""
    if not arguments.pod and not arguments.file:
        raise UsageError("explain needs a POD, or a pod's manifest with -f FILE")
    if [*arguments.cluster, arguments.file].count(STDIN) > 1:
        raise UsageError("standard input (-) can be read only once")
    namespace, name = _pod_name(arguments)
    console = table_console(arguments.output)
    vendors = enabled_vendors(device_config(arguments.config).config)
    policies = policy_rules(arguments.policy_file, vendors)
    rules = reading_rules(arguments)
    manifest = _pod_of_file(arguments.file, namespace, name, rules) if arguments.file else None
    namespace = namespace or (manifest["metadata"].get("namespace") if manifest else rules.namespace()) or "default"
    at = time_of("--now", arguments.now)
    if arguments.cluster:
        reading = LiveReading(bundle_of(arguments.cluster, rules))
        now = at or start_of(reading.bundle)
    else:
        now = at or time.time()
        kubeconfig, existing = arguments.kubeconfig or os.environ.get("KUBECONFIG", ""), "" if manifest else name
        reading = asyncio.run(read_cluster(kubeconfig, namespace, existing, now))
    options = _options(arguments)
    if not arguments.cluster:
        options = replace(options, zone=None)  # handshakes are in local time, as `serve` reads them
    simulation = Simulation(vendors, options, policies, now)
    explainer = Explainer(simulation, options.policies, arguments.scheduler_name, now, reading.unseen.keys())
    nearest = None if arguments.all or console is None else NEAREST
    pod = (namespace, name)
    result = asyncio.run(_explained(explainer, reading, pod, manifest, nearest, stored=not arguments.cluster))
    if console is not None:
        show_explanation(result, console, everything=arguments.all)
    else:
        print(formatted(result.as_json(), arguments.output))
    needed = lacking(reading.unseen, needs_of_pod(reading.unseen))
    everything = [each.sentence for each in reading.unseen.values()]
    print_sentences("hami-webhook", everything if arguments.verbose else needed)
    return 0


async def _explained(
    explainer: Explainer,
    reading: LiveReading,
    pod: tuple[str, str],
    manifest: Mapping[str, Any] | None,
    nearest: int | None,
    *,
    stored: bool,
) -> Explanation:
    await explainer.simulation.fill(reading.bundle, trust_used=True, stored=stored)
    warn(explainer.simulation.warnings())
    found = explainer.of_known(*pod, nearest) if manifest is None else await explainer.of_new(manifest, nearest)
    return replace(found, notes=[*found.notes, *reading.pod_words])


def _pod_name(arguments: argparse.Namespace) -> tuple[str, str]:
    """The namespace and the name of POD, each empty if it isn't given."""
    namespace, slash, name = (arguments.pod or "").rpartition("/")
    if slash and not (namespace and name and "/" not in namespace):
        raise UsageError(f"POD must be NAME or NAMESPACE/NAME, not {arguments.pod!r}")
    if slash and arguments.namespace not in (None, namespace):
        raise UsageError(f"POD {arguments.pod} isn't in namespace {arguments.namespace}, which -n names")
    return namespace or arguments.namespace or "", name


def _pod_of_file(path: str, namespace: str, name: str, rules: ReadingRules) -> Mapping[str, Any]:
    """The pod of that name in a file, in `namespace` if it names none itself."""
    rules = replace(rules, namespace=(lambda: namespace) if namespace else rules.namespace, only="")
    pods, warnings = pods_of(rules.read([path], sys.stdin.buffer), rules)
    warn(warnings)
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


async def _simulated(
    simulation: Simulation, files: SimulationFiles, change: NodeChange, rules: ReadingRules, at: float | None
) -> Result:
    await simulation.fill(files.bundle)
    if at is not None:
        await simulation.move_clock(at)
    warn(simulation.warnings())
    return await other_nodes.simulate(simulation, files.pods, change, template_of(change, rules), "hami-webhook")


def check_config(arguments: argparse.Namespace) -> int:
    """Print what a device configuration means. The exit status."""
    loaded = read_device_config(arguments.file)
    for section in describe(loaded):
        rows = [(each.name, each.meaning, each.unit, each.quota_key or "-") for each in section.resources]
        lines = [*aligned([("resource", "meaning", "unit", "quota key"), *rows]), *section.notes]
        if section.needs_flag:
            lines.append(f"serve ignores it without {section.needs_flag}")
        title = f"{section.path}: {', '.join(section.backends)}"
        print(without_control_characters("\n  ".join((title, *lines))))
    warn(loaded.warnings)
    return 0


def check_quotas(arguments: argparse.Namespace) -> int:
    """Print what of ResourceQuotas is misread. The exit status."""
    vendors = enabled_vendors(device_config(arguments.config).config)
    checked = asyncio.run(_misread(bundle_of(arguments.files, reading_rules(arguments)), vendors))
    if not checked:
        raise UsageError(f"no ResourceQuota in {', '.join(arguments.files)}")
    if arguments.output == "json":
        quotas = [
            {
                "where": where,
                "namespace": quota.namespace,
                "name": quota.name,
                "misread": [{"reason": each.reason.value, "key": each.key, "message": each.text} for each in misread],
            }
            for where, quota, misread in checked
        ]
        print(formatted({"quotas": quotas}, "json"))
    else:
        for where, quota, misread in checked:
            for each in misread:
                print(f"{where}: {quota.kind} {quota.name}: {each.text}")
    return 1 if any(misread for _, _, misread in checked) else 0


async def _misread(bundle: Bundle, vendors: Vendors) -> list[tuple[str, ResourceQuota, Sequence[Misreading]]]:
    """Where each quota of the files stands, and what of it is misread on their nodes' cards. Raises `LoadError`."""
    simulation = Simulation(vendors, Options(), PolicyRules.EMPTY, start_of(bundle))
    await simulation.fill(Bundle(nodes=bundle.nodes))
    checked: list[tuple[str, ResourceQuota, Sequence[Misreading]]] = []
    for item in (*bundle.quotas, *bundle.accelerator_quotas):
        try:
            is_ours = item.kind == KIND
            quota = read_accelerator_quota(item.object, {}) if is_ours else ResourceQuota.from_object(item.object)
        except MalformedObject as error:
            raise LoadError(f"{item.where}: {item.kind} {item.name}: {error}") from error
        checked.append((item.where, quota, simulation.core.view.misreadings(quota)))
    return checked


def configure_kube_scheduler(arguments: argparse.Namespace) -> int:
    """Write what kube-scheduler leaves to the extender into its configuration. The exit status."""
    ignored = [section for section, switch in SECTION_SWITCHES.items() if not getattr(arguments, switch)]
    config = device_config(arguments.device_config_file).config.without(ignored)
    text = kube_scheduler.fill_in(read_text(arguments.base), arguments.base, enabled_vendors(config))
    if arguments.to is None:
        print(text, end="")
        return 0
    try:
        Path(arguments.to).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{arguments.to}: can't be written: {error.strerror}") from None
    return 0


_KUEUE_SUMS = """\
# Kueue multiplies the sums of a pod: for pods with one container with cards it counts as our quotas do. With several it
# counts more: 1 card of 10000 MiB and 3 of 1000 MiB are 13000 MiB for our quotas, and 4 x 11000 = 44000 for Kueue.
"""


def configure_kueue(arguments: argparse.Namespace) -> int:
    """Print what Kueue's configuration needs for our resources. The exit status."""
    found = transformations(enabled_vendors(device_config(arguments.config).config))
    print(f"{_KUEUE_SUMS}{formatted({'resources': {'transformations': list(found)}}, 'yaml')}")
    return 0
