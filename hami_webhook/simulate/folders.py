"""`hami-webhook test DIR`: runs on files, against what is expected of them. Source: docs/spec/cli.md#test."""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hami_webhook.cluster.loading import LoadError
from hami_webhook.config import ConfigError, read_text
from hami_webhook.device_config import builtin_device_config, enabled_vendors, read_device_config
from hami_webhook.devices.registry import Vendors
from hami_webhook.policy.file import PolicyFile
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.scheduling.placer import SchedulingPolicies
from hami_webhook.simulate.folder_report import TestedFolder, as_html, as_json, as_junit, show
from hami_webhook.simulate.folder_test import FILE_NAME, FolderTest
from hami_webhook.simulate.manifests import ReadingRules, read_simulation_files
from hami_webhook.simulate.simulation import Simulation, simulation_options, start_of
from hami_webhook.simulate.workload_file import read_workload_table
from hami_webhook.terminal import UsageError, formatted, print_warnings, progress

if TYPE_CHECKING:
    from rich.console import Console


_WRITTEN: Mapping[str, Callable[[Sequence[TestedFolder]], str]] = {
    "json": lambda tested: formatted(as_json(tested), "json"),
    "junit": as_junit,
    "html": as_html,
}


def run(arguments: argparse.Namespace) -> int:
    """Run the tests in a folder, and print what differs. The exit status."""
    paths = _paths(arguments.dir, arguments.name)
    console = _console() if arguments.output == "text" else None
    tested, faults = [], []
    with progress("testing", len(paths)) as advance:
        for name, path in paths.items():
            try:
                tested.append(asyncio.run(_tested(FolderTest.read(path, name), update=arguments.update)))
            except (ConfigError, LoadError) as error:
                faults.append(str(error))
            advance()
    for each in tested:
        print_warnings("hami-webhook", (f"{each.test.name}: {warning}" for warning in each.warnings))
    if console is not None:
        show(tested, console)
    else:
        print(_WRITTEN[arguments.output](tested))
    if faults:
        raise UsageError("\n".join(faults))
    return 1 if any(each.differences for each in tested) else 0


def _console() -> Console:
    from hami_webhook.console import SafeConsole

    return SafeConsole(highlight=False, soft_wrap=True)


def _paths(folder: str, pattern: str | None) -> Mapping[str, Path]:
    """The files of the tests by their names: where their folders are in `folder`, which is `.` itself."""
    root = Path(folder)
    if not root.is_dir():
        raise UsageError(f"DIR must be a folder, and {folder} {'is a file' if root.exists() else 'is not there'}")
    files = sorted(Path(at, FILE_NAME) for at, _, names in os.walk(root) if FILE_NAME in names)
    paths = {str(path.parent.relative_to(root)): path for path in files}
    if not paths:
        raise UsageError(f"{folder}: no folder in it has a {FILE_NAME} with the expected results of its pods")
    found = {name: path for name, path in paths.items() if pattern is None or fnmatch.fnmatchcase(name, pattern)}
    if not found:
        raise UsageError(f"--name {pattern!r}: no test is called so; there are {', '.join(paths)}")
    return found


async def _tested(test: FolderTest, *, update: bool) -> TestedFolder:
    """Run a test. Raises `ConfigError` or `LoadError` if its files can't be used, or if it expects nothing."""
    if test.expects_nothing and not update:
        sentence = "has no expectations: write the expected results under expected, or let --update write them"
        raise ConfigError([f"{test.path}: {sentence}"])
    vendors, warnings = _vendors(test.config_file)
    policies = PolicyRules.EMPTY
    if test.policy_file:
        policies = PolicyFile.parse(read_text(test.policy_file), test.policy_file, vendors.governed)
    written = test.written
    rules = ReadingRules(read_workload_table(test.workload_file), lambda: written.namespace)
    files = read_simulation_files(test.cluster_files, test.pod_files, sys.stdin.buffer, rules)
    options = simulation_options(
        written.scheduler_name, SchedulingPolicies(written.node_scheduler_policy, written.gpu_scheduler_policy)
    )
    start = start_of(files.bundle) if written.now is None else written.now
    user, groups = written.as_, written.as_groups
    simulation = Simulation(vendors, options, policies, start, preemption=written.preemption, user=user, groups=groups)
    await simulation.fill(files.bundle)
    if written.now is not None:
        await simulation.move_clock(written.now)
    result = await simulation.run(files.pods)
    found = result.as_json()
    del found["not_judged"]  # is about the cluster's files, and nothing that a test expects
    before = test
    if update and (test.expects_nothing or test.differences(found)):
        test = test.updated(found)
        test.write()
    warnings = [*warnings, *files.warnings, *simulation.warnings()]
    return TestedFolder(test, result, test.differences(found), warnings, test.text != before.text)


@functools.lru_cache(maxsize=8)
def _vendors(config_file: str | None) -> tuple[Vendors, Iterable[str]]:
    """The vendors that a device configuration enables, and what is to be said about it."""
    loaded = read_device_config(config_file) if config_file else builtin_device_config()
    return enabled_vendors(loaded.config), loaded.warnings
