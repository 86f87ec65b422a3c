"""Queries of a Prometheus server, whose answers are bounded."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from hami_webhook.command_error import CommandError

_TIMEOUT = 60.0
"""Seconds in which an answer has to begin, and each further part of it to come."""
_LARGEST_ANSWER = 64 << 20
"""Bytes: a sample takes 300."""


class PrometheusError(CommandError):
    """There is no answer: why, for a person."""


def query(prometheus: str, text: str, timeout: float = _TIMEOUT) -> list[tuple[Mapping[str, str], float]]:
    """An instant query's vector, labels and values, from a server's URL. Raises `PrometheusError`."""
    if urllib.parse.urlsplit(prometheus).scheme not in ("http", "https"):
        raise PrometheusError(f"--prometheus {prometheus!r}: must be a URL, such as http://prometheus.monitoring:9090")
    url = f"{prometheus.rstrip('/')}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:  # noqa: S310 - http and https only, see above
            body = answer.read(_LARGEST_ANSWER + 1)
    except urllib.error.HTTPError as error:
        raise PrometheusError(f"{prometheus}: {_reason(error.read(1 << 16)) or error}") from error
    except (OSError, ValueError) as error:
        raise PrometheusError(f"{prometheus}: can't be reached: {getattr(error, 'reason', error)}") from error
    if len(body) > _LARGEST_ANSWER:
        raise PrometheusError(f"{prometheus}: the answer has more than {_LARGEST_ANSWER >> 20} MiB, and isn't read")
    try:
        result = json.loads(body)["data"]["result"]
        return [(each["metric"], float(each["value"][1])) for each in result]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise PrometheusError(f"{prometheus}: the answer isn't that of Prometheus' HTTP API (/api/v1/query)") from error


def _reason(body: bytes) -> str:
    """What Prometheus says is wrong, empty if it doesn't."""
    try:
        answer: Any = json.loads(body)
    except ValueError:
        return ""
    return str(answer.get("error", "")) if isinstance(answer, dict) else ""
