"""`hami-webhook test DIR`: runs on files, against what is expected of them. Source: docs/spec/cli.md#test. The results
as text, JSON, JUnit's XML and HTML.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import fnmatch
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from msgspec import Struct

from hami_webhook.cluster.loading import LoadError
from hami_webhook.config import ConfigError, read_text
from hami_webhook.device_config import builtin_device_config, enabled_vendors, read_device_config
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.message_text import path_text
from hami_webhook.policy.file import PolicyFile
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.scheduling.placer import SchedulingPolicies
from hami_webhook.simulate.expectations import Absent, Difference
from hami_webhook.simulate.folder_test import FILE_NAME, FolderTest
from hami_webhook.simulate.manifests import ReadingRules, read_simulation_files
from hami_webhook.simulate.results import Result, verdict
from hami_webhook.simulate.run_options import simulation_options, start_of
from hami_webhook.simulate.simulation import Simulation
from hami_webhook.simulate.workload_file import read_workload_table
from hami_webhook.terminal import (
    ShownTable,
    UsageError,
    formatted,
    print_warnings,
    progress,
    without_control_characters,
)

if TYPE_CHECKING:
    from rich.console import Console


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
        written: Mapping[str, Callable[[Sequence[TestedFolder]], str]] = {
            "json": lambda tested: formatted(as_json(tested), "json"),
            "junit": as_junit,
            "html": as_html,
        }
        print(written[arguments.output](tested))
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


_STYLES = {"-": "red", "+": "green"}


class TestedFolder(Struct, frozen=True):
    """A test, its result, and the differences from the expected one; `updated`: its file was rewritten."""

    test: FolderTest
    result: Result
    differences: Sequence[Difference]
    warnings: Sequence[str]
    updated: bool

    def lines(self) -> Iterator[str]:
        """The differences by path, each with its line in the file; after those of a pod what became of it."""
        for place, found in groupby(self.differences, lambda difference: difference.path[:2]):
            for each in found:
                yield f"{self._where(each)}: {_path(each)}"
                yield from _compared(each)
            yield from self._verdict(place)

    def _where(self, difference: Difference) -> str:
        return f"{self.test.path}:{self.test.line_of(difference)}"

    def _verdict(self, place: Sequence[str | int]) -> Iterator[str]:
        """What became of the pod that an expectation is about."""
        if len(place) < 2 or place[0] != "pods":
            return
        expected = self.test.expected["pods"][int(place[1])]
        for pod in self.result.pods:
            if pod.name == expected["name"] and pod.namespace == expected.get("namespace", pod.namespace):
                yield f"({pod.namespace}/{pod.name}: {'; '.join(verdict(pod).splitlines())})"
                return

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.test.name,
            "file": str(self.test.path),
            "description": self.test.written.description,
            "passed": not self.differences,
            "updated": self.updated,
            "differences": [
                {
                    "path": _path(each),
                    "line": self.test.line_of(each),
                    **({} if isinstance(each.expected, Absent) else {"expected": each.expected}),
                    **({} if isinstance(each.actual, Absent) else {"actual": each.actual}),
                }
                for each in self.differences
            ],
        }


def show(tested: Sequence[TestedFolder], console: Console) -> None:
    """Print a line for each test, below it what differs, and how many passed at the end."""
    from rich.text import Text

    for each in tested:
        description = f": {each.test.written.description}" if each.test.written.description else ""
        console.print(Text.assemble(_state(each), f" {each.test.name}{description}"))
        for line in each.lines():
            console.print(Text(f"      {line}", _STYLES.get(line[:1], "")))
    failed = sum(bool(each.differences) for each in tested)
    console.print(f"{len(tested) - failed} passed, {failed} failed")


def _state(tested: TestedFolder) -> tuple[str, str]:
    if tested.differences:
        return "FAIL ", "bold red"
    return ("wrote", "bold yellow") if tested.updated else ("ok   ", "green")


def as_json(tested: Sequence[TestedFolder]) -> dict[str, Any]:
    """The tests in order, and how many passed."""
    failed = sum(bool(each.differences) for each in tested)
    return {"tests": [each.as_json() for each in tested], "passed": len(tested) - failed, "failed": failed}


def as_junit(tested: Sequence[TestedFolder]) -> str:
    """The tests in the XML that CI systems read."""
    failed = sum(bool(each.differences) for each in tested)
    suite = ElementTree.Element("testsuite", name="hami-webhook test", tests=f"{len(tested)}", failures=f"{failed}")
    for each in tested:
        case = ElementTree.SubElement(suite, "testcase", classname="hami-webhook", name=each.test.name)
        case.set("file", str(each.test.path))
        if each.differences:
            failure = ElementTree.SubElement(case, "failure", message=f"{len(each.differences)} differences")
            failure.text = without_control_characters("\n".join(each.lines()))
    ElementTree.indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}'


def as_html(tested: Sequence[TestedFolder]) -> str:
    """The tests as one file: what became of each, and what differs."""
    from hami_webhook.html_report import html_report

    failed = [each for each in tested if each.differences]
    rows = [[_state(each)[0].strip(), each.test.name, each.test.written.description] for each in tested]
    return html_report(
        "Test folders",
        f"{len(tested) - len(failed)} passed, {len(failed)} failed",
        [ShownTable("Tests", ("result", "test", "description"), rows)],
        [(each.test.name, "\n".join(each.lines())) for each in failed],
    )


def _path(difference: Difference) -> str:
    return path_text(difference.named_path, quote_keys=True)


def _compared(difference: Difference) -> Iterator[str]:
    """The expected lines after `-`, those that came out after `+`; of long values what is around the differences."""
    before, after = _written(difference.expected), _written(difference.actual)
    if len(before) == 1 or len(after) == 1:
        yield from (f"- {line}" for line in before)
        yield from (f"+ {line}" for line in after)
        return
    for line in [*difflib.unified_diff(before, after, n=2, lineterm="")][2:]:
        yield line if line.startswith("@@") else f"{line[:1]} {line[1:]}"


def _written(value: Any) -> list[str]:
    if isinstance(value, Absent):
        return [f"({value.remark})"]
    return formatted(value, "yaml" if value and isinstance(value, dict | list) else "json").splitlines()
