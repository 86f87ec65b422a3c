"""A diagnosis on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from hami_webhook.doctor.checks import Diagnosis
from hami_webhook.terminal import counted


def print_diagnosis(diagnosis: Diagnosis, console: Console, *, details: bool) -> None:
    """Print the faults with their remedies, and what wasn't checked; with details also what is well."""
    for result in diagnosis.results:
        for finding in result.findings:
            console.print(Text.assemble(("FAULT ", "bold red"), f"{result.check}: {finding.subject}: {finding.fault}"))
            for line in finding.remedy.splitlines():
                console.print(Text(f"      {line}"))
        if result.unseen:
            console.print(Text.assemble(("UNSEEN ", "yellow"), f"{result.check}: {result.what}: {result.unseen}"))
        elif details and result.skipped:
            why = f"{result.check}: not made after {', '.join(result.skipped)}"
            console.print(Text.assemble(("SKIPPED ", "dim"), why))
        elif details and not result.findings:
            console.print(Text.assemble(("OK ", "green"), f"{result.check}: {result.what}"))
    console.print(Text(_summary(diagnosis)))


def _summary(diagnosis: Diagnosis) -> str:
    faults = sum(len(result.findings) for result in diagnosis.results)
    unseen = sum(bool(result.unseen) for result in diagnosis.results)
    skipped = sum(bool(result.skipped) for result in diagnosis.results)
    parts = [counted(len(diagnosis.results), "check"), counted(faults, "fault")]
    parts += [f"{skipped} not made, as faults explain what they would find"] if skipped else []
    parts += [f"{unseen} couldn't see everything with your rights"] if unseen else []
    return ", ".join(parts)
