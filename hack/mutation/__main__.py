"""`python -m hack.mutation`: how many small faults in the quotas, the Fit and the admission the tests notice.

Or in the packages that are named. A mutant is one fault, as a comparison turned round or a statement left out. Of each
module some are drawn by --seed; each runs against the tests that reach it, until one fails. Those that no test notices
are listed: they are the same program in other words, a test is missing, or nothing needs the code.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from hack.mutation.mutants import Mutant, mutants_of, sampled
from hack.mutation.suite import Outcome, Suite, read_reach, with_tests

ROOT = Path(__file__).parents[2]
PACKAGE = "hami_webhook"
MODULES = ("quota/*.py", "devices/fit*.py", "admission/*.py")
TESTS = (
    "quota",
    "charging",
    "queueing",
    "evictions",
    "admission",
    "controller",
    "devices",
    "integrations",
    "scheduling",
    "explain",
    "config",
    "state",
)
FOLDER = ROOT / ".mutation"
NOTICED = ("killed", "timeout")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen_modules(options.packages)
    os.chdir(ROOT)
    FOLDER.mkdir(exist_ok=True)
    with_tests([f"tests/{name}" for name in TESTS], partial(run, options))
    return 0


def run(options: argparse.Namespace, suite: Suite) -> None:
    modules = sorted(path for group in chosen_modules(options.packages) for path in group)
    reach_file = FOLDER / "reach.json"
    if not (options.keep_reach and reach_file.exists()):
        print(f"the tests of {', '.join(TESTS)} run once, with coverage", file=sys.stderr)
        suite.find_reach(modules, ROOT, reach_file)
    reach = read_reach(reach_file)
    for test in reach.failed:
        print(f"left out, as it fails without any mutant: {test}", file=sys.stderr)
    chosen = _chosen(options)
    outcomes: dict[Mutant, Outcome] = {}
    with (options.result or FOLDER / f"seed-{options.seed}.jsonl").open("w") as file:
        for number, mutant in enumerate(chosen, 1):
            outcome = suite.outcome_of(mutant, reach, ROOT, FOLDER / "failed")
            outcomes[mutant] = outcome
            row = {"mutant": mutant.name, "line": mutant.line} | asdict(outcome)
            print(json.dumps(row, ensure_ascii=False), file=file, flush=True)
            _progress(number, len(chosen), mutant, outcome)
    _summary(outcomes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m hack.mutation", description=__doc__)
    parser.add_argument(
        "packages",
        nargs="*",
        metavar="PACKAGE",
        help="or a module, as charging or devices/fit_pipeline.py; a sample of each",
    )
    parser.add_argument("--seed", type=int, default=1, help="which mutants are drawn (default 1)")
    parser.add_argument(
        "--sample", type=int, default=300, help="about how many of each package that is named, or of all; 0: every one"
    )
    parser.add_argument(
        "--survivors-of", type=Path, metavar="FILE", help="only those that a result file has as unnoticed"
    )
    parser.add_argument("--result", type=Path, metavar="FILE", help="JSON lines (default .mutation/seed-SEED.jsonl)")
    parser.add_argument("--keep-reach", action="store_true", help="what tests reach is as the last run found it")
    return parser


def chosen_modules(packages: Sequence[str]) -> list[list[Path]]:
    """The modules of each package that is named; of none, those that are looked at by default, as one group.

    Raises `SystemExit` where a name is none of a package or module.
    """
    root = ROOT / PACKAGE
    if not packages:
        return [[path for pattern in MODULES for path in root.glob(pattern)]]
    found = [sorted((root / name).rglob("*.py")) or [*root.glob(name)] for name in packages]
    if missing := [name for name, paths in zip(packages, found, strict=True) if not paths]:
        raise SystemExit(f"no package or module of {PACKAGE}: {', '.join(missing)}")
    return found


def _chosen(options: argparse.Namespace) -> list[Mutant]:
    groups = [
        {path.relative_to(ROOT).as_posix(): mutants_of(path, ROOT) for path in group}
        for group in chosen_modules(options.packages)
    ]
    every = [mutant for by_module in groups for mutants in by_module.values() for mutant in mutants]
    if options.survivors_of:
        rows = [json.loads(line) for line in options.survivors_of.read_text().splitlines()]
        wanted = {row["mutant"] for row in rows if row["status"] not in NOTICED}
        return [mutant for mutant in every if mutant.name in wanted]
    if not options.sample:
        return every
    return [mutant for by_module in groups for mutant in sampled(by_module, options.sample, options.seed)]


def _progress(number: int, total: int, mutant: Mutant, outcome: Outcome) -> None:
    if outcome.status not in NOTICED:
        print(f"{outcome.status}: {mutant.path}:{mutant.line} {mutant.where}: {mutant.change}")
    if sys.stderr.isatty() or number % 20 == 0 or number == total:
        print(f"{number} of {total}", file=sys.stderr, flush=True)


def _summary(outcomes: Mapping[Mutant, Outcome]) -> None:
    total, noticed = Counter[str](), Counter[str]()
    for mutant, outcome in outcomes.items():
        package = mutant.path.split("/")[1]
        for name in (package, "all"):
            total[name] += 1
            noticed[name] += outcome.status in NOTICED
    for name in (*sorted(total.keys() - {"all"}), "all"):
        print(f"{name}: {noticed[name]} of {total[name]} noticed, {noticed[name] / max(1, total[name]):.1%}")


if __name__ == "__main__":
    sys.exit(main())
