"""Queries of a Prometheus server, whose answers are bounded."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hami_webhook.command_error import CommandError

_TIMEOUT = 60.0
"""Seconds in which an answer has to begin, and each further part of it to come."""
_LONGEST = 5
"""How many times as long all of an answer may take to come."""
_LARGEST_ANSWER = 64 << 20
"""Bytes: a sample takes 300."""
_Value = TypeVar("_Value")


class PrometheusError(CommandError):
    """There is no answer: why, for a person."""


def query(prometheus: str, text: str, timeout: float = _TIMEOUT) -> list[tuple[Mapping[str, str], float]]:
    """An instant query's vector, labels and values, from a server's URL. Raises `PrometheusError`."""
    return _asked(prometheus, "query", {"query": text}, timeout, lambda each: _point(each["value"])[1])


def query_range(
    prometheus: str, text: str, start: float, end: float, step: float, timeout: float = _TIMEOUT
) -> list[tuple[Mapping[str, str], list[tuple[float, float]]]]:
    """A query's series from `start` to `end`, with times in Unix seconds. Raises `PrometheusError`."""
    asked = {"query": text, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
    return _asked(prometheus, "query_range", asked, timeout, lambda each: [_point(point) for point in each["values"]])


def _point(pair: Any) -> tuple[float, float]:
    at, value = pair
    return float(at), float(value)


def _asked(
    prometheus: str, what: str, asked: Mapping[str, str], timeout: float, value: Callable[[Any], _Value]
) -> list[tuple[Mapping[str, str], _Value]]:
    """The labels of each result, and its value."""
    if urllib.parse.urlsplit(prometheus).scheme not in ("http", "https"):
        raise PrometheusError(f"--prometheus {prometheus!r}: must be a URL, such as http://prometheus.monitoring:9090")
    url = f"{prometheus.rstrip('/')}/api/v1/{what}?{urllib.parse.urlencode(asked)}"
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:  # noqa: S310 - http and https only, see above
            body = _body(answer, time.monotonic() + _LONGEST * timeout)
    except urllib.error.HTTPError as error:
        with error:
            raise PrometheusError(f"{prometheus}: {_reason(_start_of(error)) or error}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise PrometheusError(f"{prometheus}: can't be reached: {getattr(error, 'reason', error)}") from error
    if len(body) > _LARGEST_ANSWER:
        raise PrometheusError(f"{prometheus}: the answer has more than {_LARGEST_ANSWER >> 20} MiB, and isn't read")
    try:
        result = json.loads(body)["data"]["result"]
        return [({name: str(text) for name, text in each["metric"].items()}, value(each)) for each in result]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise PrometheusError(
            f"{prometheus}: the answer isn't that of Prometheus' HTTP API (/api/v1/{what})"
        ) from error


def _body(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """The answer, or more than may be read of it. Raises `TimeoutError`, however slowly its parts come."""
    body = bytearray()
    while len(body) <= _LARGEST_ANSWER and (part := answer.read1(1 << 20)):
        if time.monotonic() > deadline:
            raise TimeoutError("the answer takes too long")
        body += part
    return bytes(body)


def _start_of(error: urllib.error.HTTPError) -> bytes:
    """Some of the answer with an error; empty if it doesn't come."""
    try:
        return error.read(1 << 16)
    except (OSError, http.client.HTTPException):
        return b""


def _reason(body: bytes) -> str:
    """What Prometheus says is wrong, empty if it doesn't."""
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return str(answer.get("error", "")) if isinstance(answer, dict) else ""
