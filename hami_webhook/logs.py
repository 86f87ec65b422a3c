"""What log lines look like: one an event, as text or as JSON, with the keys of docs/metrics.md#logs."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from hami_webhook.kube.objects import Pod

TRACE = logging.DEBUG - 1
"""The level of what only verbosity 5 and above shows."""

KEYS = ("namespace", "pod", "uid", "review", "quota", "node", "path", "code", "reason", "duration")
"""The keys of an event, which a logger is given as `extra`; others aren't written."""

_MOST_TEXT = 2000
_MOST_TRACEBACK = 16_000
"""Characters of a message or a value, and of a traceback, which ends with what was raised."""
_VERBOSITY = {TRACE: 5, logging.DEBUG: 4, logging.INFO: 1}
"""The -v from which a level is logged, as klog counts; warnings and errors are logged always."""


def of_pod(pod: Pod) -> dict[str, object]:
    """The keys that name a pod."""
    return {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}


def set_up(log_format: str, verbosity: int) -> None:
    """Send this process's logs to standard error, as text or json, up to a klog verbosity."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.addLevelName(TRACE, "TRACE")
    logging.basicConfig(handlers=[handler], level=level_of(verbosity))


def level_of(verbosity: int) -> int:
    """The level of `logging` from which on a klog verbosity shows lines."""
    return min((level for level, least in _VERBOSITY.items() if verbosity >= least), default=logging.WARNING)


class TextFormatter(logging.Formatter):
    """A line for people; after it a traceback, if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={_quoted(value)}" for key, value in _fields(record))
        line = f"{_time(record)} {record.levelname} {record.name}: {_line(record.getMessage())}{fields}"
        return f"{line}\n{_traceback(self, record)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """An object in one line: `ts`, `level`, `v` (klog's verbosity), `logger`, `msg`, the event's keys, `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": _time(record),
            "level": record.levelname.lower(),
            "v": _VERBOSITY.get(record.levelno, 0),
            "logger": record.name,
            "msg": _line(record.getMessage()),
            **dict(_fields(record)),
        }
        if record.exc_info:
            line["traceback"] = _traceback(self, record)
        return json.dumps(line, ensure_ascii=False)


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, str | float]]:
    """The event's keys that have a value."""
    found: Mapping[str, object] = record.__dict__
    for key in KEYS:
        value = found.get(key)
        if isinstance(value, float):
            yield key, round(value, 6)
        elif isinstance(value, int):
            yield key, value
        elif value:
            yield key, _line(str(value))


def _quoted(value: str | float) -> str:
    return json.dumps(value, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _line(text: str) -> str:
    """A text on one line, no longer than is allowed."""
    kept = text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}… ({len(text)} characters)"
    return kept if kept.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in kept)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    assert record.exc_info
    text = formatter.formatException(record.exc_info)
    return text if len(text) <= _MOST_TRACEBACK else f"…{text[-_MOST_TRACEBACK:]}"
