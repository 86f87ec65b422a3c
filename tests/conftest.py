"""How the property tests run: the same examples each time, and no deadlines, as a busy machine isn't a fault.

`make test` looks at a few examples of each property; `make coverage`, which CI runs too, at two hundred.
"""

from __future__ import annotations

import gc
import gettext
import logging
import os
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from async_tests import run_async
from hypothesis import settings

from hack import yardstick
from hami_webhook import pki

settings.register_profile("quick", deadline=None, derandomize=True, database=None, max_examples=10)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


gc.set_threshold(50_000, 20, 20)  # what collecting tests makes stays: looking for garbage took a sixth of its time
# argparse looks for translations of its words 100 times for each parser
gettext.find = cache(gettext.find)  # type: ignore[assignment]  # overloaded, and called in one way
# libyaml reads ten times as fast as the parser in Python
yaml.safe_load = partial(yaml.load, Loader=yaml.CSafeLoader)
yaml.safe_load_all = partial(yaml.load_all, Loader=yaml.CSafeLoader)

LONGEST = (
    *("ui/test_situations.py", "ui/test_browser.py", "devices/test_adding_a_vendor.py", "kubectl/test_ui.py"),
    *("server/test_run.py", "server/test_serve_node.py"),
    *("server/test_app.py", "kubectl/test_doctor.py", "kubectl/test_watched.py", "server/test_listener.py"),
    *("fuzz/test_fuzz.py", "server/test_listener_overload.py", "devices/test_two_hundred_cards.py"),
    *("e2e/test_documents.py", "e2e/test_placement.py", "e2e/test_chart.py", "e2e/test_large_pods.py"),
    *("e2e/test_upgrade.py", "e2e/test_deploy.py", "e2e/test_preemption.py"),
    *("e2e/test_restarts.py", "e2e/test_kubectl.py", "e2e/test_used.py", "e2e/test_attacks.py"),
)
"""Files that take long, longest first: begun last, one of them would run beside an idle core."""
_CPU, _MUCH = "CPU seconds", 10
"""The property of a test's report, and seconds of a file from which the summary names it."""
_PLACES = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files."""
    items.sort(key=lambda item: _PLACES.get(item.path, len(LONGEST)))


def pytest_collection_finish() -> None:
    """Look for garbage no longer among the collected tests and the imported modules, which stay."""
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Trust nobody's authority instead of the machine's 150, here and in processes that tests start.

    Each process reads them as it imports aiohttp, and each client of a server without TLS again.
    """
    file = tempfile.NamedTemporaryFile(suffix=".pem")  # noqa: SIM115  it is closed when pytest ends
    config.add_cleanup(file.close)
    file.write(pki.authority(now=datetime.now(UTC)).certificate)
    file.flush()
    os.environ |= {"SSL_CERT_FILE": file.name, "SSL_CERT_DIR": os.devnull}
    # where it is there, jsonschema builds 38 grammars as it is imported, for formats that no schema here has
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # "not found", as the import system has it


def pytest_sessionstart(session: pytest.Session) -> None:
    """Leave out what pytest-xdist's workers send of a test that its controller doesn't show.

    That its test began, was set up, was cleaned up after and ended: each is a message that wakes two threads there.
    """
    for plugin in session.config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":
            plugin.sendevent = partial(_send_shown, plugin.sendevent)


def _send_shown(send: Callable[..., None], name: str, **event: Any) -> None:
    report = event["data"] if name == "testreport" else None
    passed_before_or_after = report is not None and report["when"] != "call" and report["outcome"] == "passed"
    if name not in ("logstart", "logfinish") and not passed_before_or_after:
        send(name, **event)


def _cpu_seconds() -> float:
    """What this process used, and the processes that it started and that have ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which files used the most CPU time, beside what a fixed loop takes now."""
    seconds = Counter[str]()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":  # the report of the teardown has the properties, too
                seconds[report.fspath] += dict(report.user_properties).get(_CPU, 0)
    if shown := [f"{used:.0f} s in {file}" for file, used in seconds.most_common(5) if used >= _MUCH]:
        terminalreporter.write_line(f"CPU: {', '.join(shown)}; {yardstick.shown(yardstick.loop_milliseconds())}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """An unexpected exception of a vendor's rules fails the test that met it, though it is only a node's refusal."""
    met = _Records()
    logger = logging.getLogger("hami_webhook.devices.registry")
    logger.addHandler(met)
    before = _cpu_seconds()
    outcome = yield
    item.user_properties.append((_CPU, _cpu_seconds() - before))
    logger.removeHandler(met)
    if met.records and item.get_closest_marker("vendor_faults") is None:
        error = met.records[0].exc_info
        outcome.force_exception(AssertionError(f"a vendor's rules failed: {error and error[1]!r}"))  # type: ignore[attr-defined]  # pluggy's Result


class _Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_async(pyfuncitem)
