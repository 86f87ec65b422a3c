"""`make mutation`: which faults it puts into a module, and that a sample is the same each time."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hack.mutation.__main__ import chosen_modules
from hack.mutation.mutants import mutants_of, sampled
from hack.mutation.suite import limit_time, run_in_child

ROOT = Path(__file__).parents[2]
FAULTS = [
    ("def f(a):\n    return a < 3\n", ["return None", "return a <= 3", "return a < 4"]),
    ("def f(a):\n    return not a\n", ["return None", "return not not a"]),
    ("def f(a, b):\n    if a and b:\n        g()\n", ["if not (a and b):", "if a or b:", "pass"]),
    ("def f(a):\n    return [b for b in a if b]\n", ["return None", "return [b for b in a]"]),
    ("def f(a):\n    raise E(min(a))\n", ["pass", "raise E(max(a))"]),
    ("def f(a):\n    for b in a:\n        continue\n", ["break"]),
    ('A = 1\n\ndef f(a: int = 1) -> "T":\n    """A docstring."""\n    return False\n', ["return True"]),
    (
        "def f(a):\n    b = 'x' if a else -1\n",
        ["b = 'xXX' if", "b = 'x' if not a", "b = 'x' if a else +1", "b = 'x' if a else -2"],
    ),
]


@pytest.mark.parametrize(("source", "expected"), FAULTS, ids=[source for source, _ in FAULTS])
def test_each_fault_is_one_change_of_the_module(tmp_path: Path, source: str, expected: list[str]) -> None:
    file = tmp_path / "module.py"
    file.write_text(source)
    before = ast.unparse(ast.parse(source)).splitlines()
    changed = []
    for number in range(len(mutants_of(file, tmp_path))):
        mutant = mutants_of(file, tmp_path)[number]  # a tree of its own
        mutant.apply()
        compile(mutant.tree, "module.py", "exec")
        changed += [after for after in ast.unparse(mutant.tree).splitlines() if after not in before]
    assert len(changed) == len(expected)
    for line in expected:
        assert any(each.strip().startswith(line) for each in changed), line


def test_a_sample_has_some_of_each_module_and_is_the_same_for_a_seed(tmp_path: Path) -> None:
    small, large = tmp_path / "small.py", tmp_path / "large.py"
    small.write_text("def f(a):\n    return a < 3\n")
    large.write_text("".join(f"def f{number}(a):\n    return a < 3\n" for number in range(50)))

    def names(seed: int) -> list[str]:
        return [each.name for each in sampled({str(f): mutants_of(f, tmp_path) for f in (small, large)}, 20, seed)]

    assert names(1) == names(1) != names(2)
    assert sum(name.startswith("small.py") for name in names(1)) == 2
    assert len(names(1)) == 22


def test_a_sample_too_small_for_two_of_each_module_draws_by_their_size(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.py" for number in range(4)]
    for file in files:
        file.write_text(
            "".join(f"def f{number}(a):\n    return a < 3\n" for number in range(1 + 30 * (file == files[0])))
        )
    drawn = sampled({str(file): mutants_of(file, tmp_path) for file in files}, 7, 1)
    assert {each.path for each in drawn} == {"0.py"}


def test_a_package_that_is_named_is_there() -> None:
    with pytest.raises(SystemExit, match=r"of hami_webhook: chargin$"):
        chosen_modules(["charging", "devices/fit_pipeline.py", "chargin"])
    charging, fit = chosen_modules(["charging", "devices/fit_pipeline.py"])
    assert ROOT / "hami_webhook/charging/store.py" in charging
    assert fit == [ROOT / "hami_webhook/devices/fit_pipeline.py"]


def compute() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("computing", "waiting", "test", "code"),
    [
        (0.05, 600, compute, -signal.SIGPROF),
        (600, 0.05, lambda: time.sleep(600), -signal.SIGALRM),
        (0.05, 600, lambda: time.sleep(0.2), 0),  # as on a machine that is busy with something else
    ],
    ids=["computes", "waits for ever", "waits"],
)
def test_a_test_is_ended_by_its_own_processor_time(
    computing: float, waiting: float, test: Callable[[], object], code: int
) -> None:
    def body() -> int:
        limit_time(computing, waiting)
        test()
        return 0

    assert run_in_child(body, 600) == code


@pytest.mark.integration
def test_the_tests_of_a_fault_run_among_those_of_the_project(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTICED, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "killed tests/quota/test_ledger.py" in done.stdout.splitlines()


NOTICED = """
import sys
from pathlib import Path
from hack.mutation.mutants import mutants_of
from hack.mutation.suite import read_reach, with_tests
from hami_webhook.quota import ledger

root, kept = Path.cwd(), Path(sys.argv[1]) / "kept"
module = Path(ledger.__file__)

def work(suite):
    suite.find_reach([module], root, kept)
    reach = read_reach(kept)
    outcomes = (suite.outcome_of(each, reach, root, kept.with_name("failed")) for each in mutants_of(module, root))
    killed = next(each for each in outcomes if each.status == "killed")
    print(killed.status, killed.test.partition("::")[0])

with_tests(["tests/quota/test_ledger.py"], work)
"""
