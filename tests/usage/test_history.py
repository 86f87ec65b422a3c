"""What containers used over a time, from recorded answers of a Prometheus server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
from aiohttp import web
from http_server import http_server

from hami_webhook.prometheus import PrometheusError
from hami_webhook.usage.history import ContainerHistory, read_history

MIB = 1 << 20
WEEK = 7 * 86400
RENAMED = {"namespace": "hami-system", "pod": "monitor", "container": "node"}
"""The labels that a server without `honorLabels` gives a monitor's series itself."""
Answers = Mapping[str, object]


def labels(pod: str, namespace: str = "team-a", container: str = "main") -> dict[str, str]:
    return {"namespace": namespace, "pod": pod, "container": container}


def used(
    pod: str,
    *,
    p95: object = 800 * MIB,
    most: object = 1000 * MIB,
    cores: object = 30,
    peak: object = 90,
    n: object = 336,
) -> list[tuple[str, dict[str, str], object]]:
    """The parts of the answers about a container: by what a query has, the labels and the value."""
    return [
        ("quantile_over_time(0.95, hami_vgpu_memory", labels(pod), p95),
        ("max_over_time(hami_vgpu_memory", labels(pod), most),
        ("quantile_over_time(0.95, hami_container_device", labels(pod), cores),
        ("max_over_time(hami_container_device", labels(pod), peak),
        ("count_over_time(", labels(pod), n),
    ]


@contextmanager
def history(*parts: tuple[str, dict[str, str], object]) -> Iterator[tuple[str, list[str]]]:
    """The URL of a server that has these parts, and the queries it gets."""
    asked: list[str] = []

    def answer(request: web.BaseRequest, _: bytes) -> web.Response:
        query = request.query["query"]
        asked.append(query)
        found = [{"metric": of, "value": [0, str(value)]} for text, of, value in parts if text in query]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": found}})

    with http_server(answer) as url:
        yield url, asked


def test_a_container_has_its_95th_percentile_its_most_and_for_how_long_it_was_measured() -> None:
    with history(*used("p")) as (url, asked):
        found = read_history(url, WEEK)
    assert found == {("team-a", "p", "main"): ContainerHistory(WEEK, 800, 1000, 30, 90)}
    assert [query.count("[604800s]") + query.count("[604800s:1800s]") for query in asked] == [1] * 5


def test_labels_that_the_server_renamed_are_read() -> None:
    renamed = [
        (text, RENAMED | {f"exported_{name}": value for name, value in of.items()}, value)
        for text, of, value in used("p", n=48)
    ]
    with history(*renamed) as (url, _):
        assert read_history(url, WEEK) == {("team-a", "p", "main"): ContainerHistory(86400, 800, 1000, 30, 90)}


@pytest.mark.parametrize("namespace", ["team-a", 'x"} or {a="'])
def test_one_namespace_alone_is_asked_for(namespace: str) -> None:
    with history() as (url, asked):
        read_history(url, WEEK, namespace)
    quoted = namespace.replace('"', '\\"')
    for query in asked:
        assert f'{{namespace="{quoted}"}}' in query
        assert f'{{exported_namespace="{quoted}"}}' in query


@pytest.mark.parametrize(
    ("hostile", "expected"),
    [
        ({"most": "NaN"}, {}),
        ({"most": -1}, {}),
        ({"most": "1e300"}, {}),
        ({"p95": "NaN"}, ContainerHistory(WEEK, 1000, 1000, 30, 90)),
        ({"cores": "+Inf", "peak": "+Inf"}, ContainerHistory(WEEK, 800, 1000, None, None)),
        ({"n": "1e9"}, ContainerHistory(WEEK, 800, 1000, 30, 90)),
        ({"n": "NaN"}, ContainerHistory(0, 800, 1000, 30, 90)),
        ({"cores": 0.2, "peak": 0.2}, ContainerHistory(WEEK, 800, 1000, 1, 1)),
    ],
)
def test_values_that_make_no_sense_are_left_out(hostile: dict[str, object], expected: object) -> None:
    with history(*used("p", **hostile)) as (url, _):
        assert read_history(url, WEEK) == ({("team-a", "p", "main"): expected} if expected else {})


def test_a_server_that_is_none_is_reported() -> None:
    not_prometheus: Callable[[web.BaseRequest, bytes], web.Response] = lambda *_: web.json_response([])  # noqa: E731
    with http_server(not_prometheus) as url, pytest.raises(PrometheusError, match="isn't that of Prometheus"):
        read_history(url, WEEK)
