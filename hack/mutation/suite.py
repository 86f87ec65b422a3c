"""The tests, collected once and run in forked children: with coverage, to know which test reaches which line, then with
one mutant each.

A child gives the functions of a module the code of its mutant, in whatever module they are imported by then, so
nothing is imported or collected again. What runs on import has run by then: faults there can't be looked at so.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import resource
import signal
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from coverage import Coverage

from hack.mutation.mutants import Mutant

_OPTIONS = ("-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", "--tb=no")
_MEMORY = 4 << 30
"""Bytes that a child may take: a mutant may build lists without end."""
_MOST_SECONDS = 3600
_FAILED = 1
_MOST_SECONDS_WAITING = 600.0
"""For a test that needs no processor: it may wait for what a mutant never does."""
_STATUSES = {0: "survived", -signal.SIGPROF: "timeout", -signal.SIGALRM: "timeout", -signal.SIGKILL: "unfinished"}
"""What became of a mutant, by the exit code of its tests; of all others it was killed."""


@dataclass(frozen=True)
class Reach:
    """Which tests reach the lines of each module, how many seconds each test takes, and which fail as it is."""

    tests: Mapping[str, Mapping[int, Sequence[str]]]
    seconds: Mapping[str, float]
    failed: Sequence[str]

    def of(self, mutant: Mutant) -> list[str]:
        """The tests that reach a mutant: those of its package first, and of these the quick ones."""
        lines = self.tests[mutant.path]
        found = {test for line in mutant.lines for test in lines.get(line, ()) if test} - {*self.failed}
        package = mutant.path.split("/")[1]
        return sorted(found, key=lambda test: (test.split("/")[1] != package, self.seconds[test], test))


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: `killed` by a test, or by a `timeout` of one; `survived`, `unreached` by any test, or
    `unfinished`: the tests didn't end within an hour.
    """

    status: str
    test: str
    seconds: float


def with_tests(paths: Sequence[str], work: Callable[[Suite], None]) -> None:
    """Collects the tests, and hands them on. Raises `RuntimeError` if that fails, or what is done with them."""
    if pytest.main([*_OPTIONS, *paths], plugins=[_Instead(work)]) not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError("this didn't come to its end: pytest says above why")


@dataclass(eq=False)  # pytest keeps its plugins in sets
class _Instead:
    """Does something else with the tests that were collected than to run them."""

    work: Callable[[Suite], None]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.work(Suite(session))
        return True


class Suite:
    """The collected tests, and the functions that they run."""

    def __init__(self, session: pytest.Session) -> None:
        self._items = {item.nodeid: item for item in session.items}
        self._functions: dict[tuple[str, str, int], list[types.FunctionType]] = {}
        self._caches: list[functools._lru_cache_wrapper[object]] = []
        gc.unfreeze()  # what the tests' conftest.py keeps from the collector isn't listed
        for each in gc.get_objects():
            if isinstance(each, types.FunctionType):
                code = each.__code__
                self._functions.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(each)
            elif isinstance(each, functools._lru_cache_wrapper):
                self._caches.append(each)

    def find_reach(self, modules: Sequence[Path], root: Path, kept: Path) -> None:
        """Runs all tests, and writes what they reach. One that fails without any mutant is named, and left out."""

        def body() -> int:
            os.environ["COVERAGE_CORE"] = "ctrace"  # the others can't tell tests apart
            coverage = Coverage(data_file=None, config_file=False, include=[str(path) for path in modules])
            seconds: dict[str, float] = {}
            failed = []
            coverage.start()
            for test, passed, took in self._results(list(self._items), coverage.switch_context):
                seconds[test] = took
                failed += [] if passed else [test]
            coverage.stop()
            data = coverage.get_data()
            found = {path.relative_to(root).as_posix(): data.contexts_by_lineno(str(path)) for path in modules}
            kept.write_text(json.dumps({"tests": found, "seconds": seconds, "failed": failed}))
            return 0

        if run_in_child(body, _MOST_SECONDS):
            raise RuntimeError("the tests can't be run with coverage")

    def outcome_of(self, mutant: Mutant, reach: Reach, root: Path, kept: Path) -> Outcome:
        """Runs the tests that reach a mutant, until one fails."""
        tests = reach.of(mutant)
        if not tests:
            return Outcome("unreached", "", 0)

        def limit(test: str) -> None:
            limit_time(30 + 5 * reach.seconds[test], _MOST_SECONDS_WAITING)

        def body() -> int:
            self._become(mutant, root)
            failed = next((test for test, passed, _ in self._results(tests, limit) if not passed), "")
            kept.write_text(failed)
            return _FAILED if failed else 0

        kept.write_text("")
        start = time.monotonic()
        code = run_in_child(body, _MOST_SECONDS)
        return Outcome(_STATUSES.get(code, "killed"), kept.read_text(), time.monotonic() - start)

    def _results(
        self, tests: Sequence[str], before: Callable[[str], object] = lambda test: None
    ) -> Iterator[tuple[str, bool, float]]:
        """Runs tests one by one: whether each passed, and how many seconds it took; `before` is called with each."""
        items = [self._items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            before(item.nodeid)
            start, failures = time.monotonic(), item.session.testsfailed
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            yield item.nodeid, item.session.testsfailed == failures, time.monotonic() - start

    def _become(self, mutant: Mutant, root: Path) -> None:
        mutant.apply()
        path = str(root / mutant.path)
        for code in _codes(compile(mutant.tree, path, "exec")):
            for function in self._functions.get((path, code.co_qualname, code.co_firstlineno), ()):
                function.__code__ = code
        for cache in self._caches:
            cache.cache_clear()


def read_reach(kept: Path) -> Reach:
    read = json.loads(kept.read_text())
    tests = {path: {int(line): names for line, names in lines.items()} for path, lines in read["tests"].items()}
    return Reach(tests, read["seconds"], read["failed"])


def _codes(code: types.CodeType) -> list[types.CodeType]:
    """A code object with those inside it."""
    inner = [each for const in code.co_consts if isinstance(const, types.CodeType) for each in _codes(const)]
    return [code, *inner]


def limit_time(computing: float, waiting: float) -> None:
    """End this process after so many seconds of its own processor time, or so many seconds from now.

    A busy machine lets a process wait, so the second limit is far from what a test takes.
    """
    signal.setitimer(signal.ITIMER_PROF, computing)
    signal.setitimer(signal.ITIMER_REAL, waiting)


def run_in_child(body: Callable[[], int], seconds: float) -> int:
    """The exit code of a function in a child process; -SIGKILL if it takes longer than so many seconds."""
    child = os.fork()
    if not child:
        _in_child(body)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL


def _in_child(body: Callable[[], int]) -> None:
    code = 70
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        code = body()
    finally:
        os._exit(code)
