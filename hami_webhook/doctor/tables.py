"""A diagnosis on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from hami_webhook.doctor.checks import Diagnosis
from hami_webhook.doctor.facts import Finding


def print_diagnosis(diagnosis: Diagnosis, console: Console, *, details: bool) -> None:
    """Print how many faults there are and what couldn't be seen, then the faults, then advice.

    With details also why checks couldn't see everything or weren't made, and what is well.
    """
    console.print(Text(diagnosis.summary))
    if diagnosis.unseen and not details:
        console.print(Text(f"Not seen: {', '.join(diagnosis.unseen)} (-o wide says why)"), soft_wrap=True)
    for result in diagnosis.results:
        _print_findings(console, ("FAULT ", "bold red"), result.check, result.findings)
    for result in diagnosis.results:
        _print_findings(console, ("ADVICE ", "yellow"), result.check, result.advice)
    for result in diagnosis.results if details else ():
        if result.unseen:
            console.print(Text.assemble(("UNSEEN ", "yellow"), f"{result.check}: {result.what}: {result.unseen}"))
        elif result.skipped:
            why = f"{result.check}: not made because of {', '.join(result.skipped)}"
            console.print(Text.assemble(("SKIPPED ", "dim"), why))
        elif not (result.findings or result.advice):
            console.print(Text.assemble(("OK ", "green"), f"{result.check}: {result.what}"))


def _print_findings(console: Console, mark: tuple[str, str], check: str, findings: Sequence[Finding]) -> None:
    for finding in findings:
        console.print(Text.assemble(mark, f"{check}: {finding.subject}: {finding.fault}"))
        for line in finding.remedy.splitlines():
            console.print(Text(f"      {line}"))
