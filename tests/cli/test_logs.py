"""Log lines: one an event, with stable keys, bounded, in both formats (docs/metrics.md#logs)."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from hami_webhook.logs import TRACE, JsonFormatter, TextFormatter, level_of

FORMATTERS = [TextFormatter(), JsonFormatter()]


def record(message: str, level: int = logging.INFO, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("hami_webhook.x", level, "x.py", 1, message, (), more.pop("exc_info", None))
    made.created = 1_763_692_800.25
    made.__dict__.update(more)
    return made


def test_a_line_of_text_ends_with_the_events_keys() -> None:
    line = TextFormatter().format(
        record("pod bound", namespace="team-a", pod="p", uid="u1", node="n", reason="", duration=0.1234567)
    )
    assert line == (
        "2025-11-21T02:40:00.250Z INFO hami_webhook.x: pod bound "
        'namespace="team-a" pod="p" uid="u1" node="n" duration=0.123457'
    )


@pytest.mark.parametrize(
    ("level", "v"), [(TRACE, 5), (logging.DEBUG, 4), (logging.INFO, 1), (logging.WARNING, 0), (logging.ERROR, 0)]
)
def test_a_line_of_json_has_the_level_and_klogs_verbosity(level: int, v: int) -> None:
    line = JsonFormatter().format(record("pod refused", level, namespace="team-a", code=403, reason='"no"', other="x"))
    assert json.loads(line) == {
        "ts": "2025-11-21T02:40:00.250Z",
        "level": logging.getLevelName(level).lower(),
        "v": v,
        "logger": "hami_webhook.x",
        "msg": "pod refused",
        "namespace": "team-a",
        "code": 403,
        "reason": '"no"',
    }


@pytest.mark.parametrize("formatter", FORMATTERS)
@pytest.mark.parametrize("text", ["a\nERROR forged", "\x1b[31m", "\u2028", "x" * 100_000])
def test_a_text_from_outside_stays_on_one_short_line(formatter: logging.Formatter, text: str) -> None:
    line = formatter.format(record(text, reason=text, pod=text))
    assert len(line) < 3 * 2100 + 200
    assert line.isprintable()


def raised(text: str) -> Any:
    try:
        raise RuntimeError(text)
    except RuntimeError:
        return sys.exc_info()


@pytest.mark.parametrize("text", ["the cause", "x" * 100_000])
def test_a_traceback_is_bounded_and_ends_with_the_cause(text: str) -> None:
    failed = record("review failed", logging.ERROR, exc_info=raised(text))
    line = JsonFormatter().format(failed)
    assert line.isprintable()
    assert json.loads(line)["traceback"].endswith(text[-100:])
    assert len(line) < 18_000
    assert TextFormatter().format(failed).endswith(text[-100:])


@pytest.mark.integration
@pytest.mark.parametrize(("flags", "levels"), [((), {"warning"}), (("-v", "1"), {"warning", "info"})])
def test_serve_logs_json_to_standard_error(flags: tuple[str, ...], levels: set[str]) -> None:
    """It ends at once, as it finds no cluster; what it said until then is an object a line."""
    command = [sys.executable, "-m", "hami_webhook", "serve", "--log-format", "json", *flags]
    environment = {"PYTHONPATH": ":".join(sys.path), "KUBECONFIG": "/nonexistent"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=60)
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert {line["level"] for line in lines} == levels
    assert done.returncode == 2


@pytest.mark.integration
def test_another_format_is_refused() -> None:
    command = [sys.executable, "-m", "hami_webhook", "serve", "--log-format", "xml"]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (2, 'hami-webhook: --log-format "xml": must be text or json\n')


@pytest.mark.parametrize(
    ("verbosity", "level"),
    [(0, logging.WARNING), (1, logging.INFO), (3, logging.INFO), (4, logging.DEBUG), (5, TRACE), (10, TRACE)],
)
def test_verbosity_decides_what_is_logged(verbosity: int, level: int) -> None:
    assert level_of(verbosity) == level
