"""What came out of the tests of folders, as text, JSON, JUnit's XML, and HTML."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from msgspec import Struct

from hami_webhook.kube.message_text import path_text
from hami_webhook.simulate.expectations import Absent, Difference
from hami_webhook.simulate.folder_test import FolderTest
from hami_webhook.simulate.results import Result
from hami_webhook.simulate.tables import verdict
from hami_webhook.terminal import ShownTable, formatted, without_control_characters

if TYPE_CHECKING:
    from rich.console import Console

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
