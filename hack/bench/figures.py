"""What a benchmark measures, how it is shown, and the command line they share.

Machines differ and are noisy, so every figure stands beside a baseline measured in the same run, and the ratio comes
first; times are for orientation, beside what a fixed loop took when their benchmark ended (`hack.yardstick`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from hack.yardstick import loop_milliseconds
from hami_webhook.terminal import shows_progress

SIZES = ("smallest", "usual", "large")


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure should come to: its ratio to the baseline, or (`of` is `value`) the figure itself."""

    at_most: float | None = None
    at_least: float | None = None
    of: str = "ratio"

    def met(self, figure: Figure) -> bool:
        found = figure.ratio if self.of == "ratio" else figure.value
        if found is None:
            return False
        return (self.at_most is None or found <= self.at_most) and (self.at_least is None or found >= self.at_least)

    def __str__(self) -> str:
        bound = f"≤ {self.at_most:g}" if self.at_most is not None else f"≥ {self.at_least:g}"
        return bound if self.of == "ratio" else f"value {bound}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement in its unit, the baseline's in the same unit, and what one is of the other."""

    benchmark: str
    name: str
    value: float
    unit: str
    baseline: str
    baseline_value: float
    goal: Goal | None = None
    loop: float = 0.0
    """Milliseconds of a fixed loop in the same minutes."""

    @property
    def ratio(self) -> float | None:
        return self.value / self.baseline_value if self.baseline_value else None


Benchmark = Callable[[str], Sequence[Figure]]
"""Measures in one of the sizes."""


def least_seconds(runs: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """The fewest seconds each of `runs` took in `rounds` rounds, taken in turn so that a noisy moment hurts all."""
    best = [float("inf")] * len(runs)
    for _ in range(rounds):
        for place, run in enumerate(runs):
            started = time.perf_counter()
            run()
            best[place] = min(best[place], time.perf_counter() - started)
    return best


def show_progress(text: str) -> None:
    """Print a line on a terminal; nothing that draws by itself, because it would be measured with the rest."""
    if shows_progress():
        print(text, file=sys.stderr, flush=True)


def as_table(figures: Sequence[Figure]) -> Table:
    table = Table("benchmark", "figure")
    table.add_column("ratio", justify="right")
    table.add_column("should be", justify="right")
    table.add_column("value", justify="right")
    table.add_column("baseline", justify="right")
    table.add_column("of")
    table.add_column("loop, ms", justify="right")
    before = ""
    for figure in figures:
        if before and figure.benchmark != before:
            table.add_section()
        ratio = "-" if figure.ratio is None else f"{figure.ratio:.3g}"
        goal = "" if figure.goal is None else f"{figure.goal}"
        if figure.goal is not None and not figure.goal.met(figure):
            ratio, goal = f"[red]{ratio}[/red]", f"[red]{goal}[/red]"
        table.add_row(
            figure.benchmark if figure.benchmark != before else "",
            figure.name,
            ratio,
            goal,
            f"{figure.value:.3g} {figure.unit}" if figure.value < 1000 else f"{figure.value:.0f} {figure.unit}",
            f"{figure.baseline_value:.3g}" if figure.baseline_value < 1000 else f"{figure.baseline_value:.0f}",
            figure.baseline,
            f"{figure.loop:.0f}",
        )
        before = figure.benchmark
    return table


def show(table: Table) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=152)
    console.print(table)


def run(benchmarks: Mapping[str, Benchmark], about: str | None) -> None:
    """The command line of one benchmark or of several: measures, and prints the table."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if len(benchmarks) > 1:
        parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(benchmarks)}; default: all")
    parser.add_argument("--size", choices=SIZES, default="usual", help="smallest only shows that nothing is broken")
    arguments = parser.parse_args()
    names = getattr(arguments, "names", None) or list(benchmarks)
    unknown = [name for name in names if name not in benchmarks]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(benchmarks)}")
    figures: list[Figure] = []
    for number, name in enumerate(names, 1):
        show_progress(f"{name}: benchmark {number} of {len(names)}")
        found = benchmarks[name](arguments.size)
        loop = loop_milliseconds()
        figures += [replace(each, loop=loop) for each in found]
    show(as_table(figures))
