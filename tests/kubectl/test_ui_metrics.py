"""What the pages have of a Prometheus server, which may say anything, or nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from http_server import http_server
from simulate.files import JSON

from hami_webhook.kubectl.ui.metrics import Alert, Metrics

from .apiserver import ApiServer
from .test_verbs import cluster
from .ui_process import served_ui

NOW = 1_800_000_000.0
HTML = "<script>alert(1)</script>"
MODEL = "NVIDIA A100-SXM4-40GB"
CARD = {"node": "n1", "device_uuid": "GPU-1", "device_type": MODEL}


def results(query: str) -> list[JSON]:
    """What a server has that scrapes a leader, a node's monitor, and rules."""
    if query.startswith("ALERTS"):
        labels = {"alertname": "HamiQuotaNearlyFull", "severity": "info", "namespace": f"team{HTML}", "quota": "q"}
        return [{"metric": labels, "value": [NOW, "1"]}]
    if query.startswith("{__name__"):
        names = {
            "memory_used_bytes": 10 << 30,
            "utilization_ratio": 35,
            "temperature_celsius": 61,
            "power_usage_watts": 250,
        }
        return [
            {"metric": {"__name__": f"hami_host_gpu_{name}", **CARD}, "value": [NOW, str(value)]}
            for name, value in names.items()
        ]
    if "card_memory_allocated" in query:
        return [{"metric": {"model": MODEL}, "values": [[NOW - 60, "1024"], [NOW - 30, "NaN"], [NOW, "2048"]]}]
    if "device_uuid=" in query or "pod=" in query:
        assert '="GPU-1"' in query or '{namespace="team-a",pod="busy"}' in query
        now = time.time()
        return [{"metric": {}, "values": [[now - 60, "1"], [now - 30, "2"]]}]
    if "quota_used" in query:
        of = {
            "exported_namespace": "team-a",
            "namespace": "hami-system",
            "quota": "gpu-quota",
            "key": "limits.nvidia.com/gpu",
        }
        parts = [[NOW - 90, "1"], [NOW - 60, "2"]], [[NOW - 30, "3"]]
        return [{"metric": {**of, "pod": f"leader-{index}"}, "values": part} for index, part in enumerate(parts)]
    return []


@contextmanager
def prometheus(found: Callable[[str], Any] = results) -> Iterator[str]:
    def answer(request: web.BaseRequest, _: bytes) -> web.Response:
        return web.json_response({"status": "success", "data": {"result": found(request.query["query"])}})

    with http_server(answer) as url:
        yield url


def asked(url: str) -> Metrics:
    metrics = Metrics(url, clock=lambda: NOW)
    metrics.ask()
    return metrics


def test_alerts_use_and_the_last_hour_are_read() -> None:
    with prometheus() as url:
        metrics = asked(url)
    assert metrics.why_not == ""
    assert metrics.alerts == [Alert("HamiQuotaNearlyFull", "info", f"namespace=team{HTML}, quota=q")]
    assert metrics.measured.cards["n1", "GPU-1"].temperature == 61
    assert metrics.history == {
        ("model", MODEL): [(NOW - 60, 1024.0), (NOW, 2048.0)],
        ("quota", "team-a", "gpu-quota", "limits.nvidia.com/gpu"): [(NOW - 90, 1.0), (NOW - 60, 2.0), (NOW - 30, 3.0)],
    }


@pytest.mark.parametrize(
    "value",
    [
        [
            {
                "metric": {"model": MODEL},
                "values": [[NOW, "-1"], [NOW, "Inf"], [NOW, "NaN"], ["NaN", "1"], [0, "1"], [2 * NOW, "1"]],
            }
        ],
        [{"metric": {"model": "x" * 1000}, "values": [[NOW, "1"]]}],
    ],
)
def test_points_that_make_no_sense_are_left_out(value: list[JSON]) -> None:
    with prometheus(lambda query: value if "card_memory" in query else []) as url:
        metrics = asked(url)
    assert [point for points in metrics.history.values() for point in points] == []
    assert metrics.why_not == ""


async def test_a_name_stays_within_its_string_in_a_query() -> None:
    asked: list[str] = []

    def found(query: str) -> list[JSON]:
        asked.append(query)
        return []

    with prometheus(found) as url:
        await Metrics(url, clock=lambda: NOW).last_hour_of_card('x"} or vector(1) \\ \n')
    assert asked[0] == 'sum(hami_host_gpu_memory_used_bytes{device_uuid="x\\"} or vector(1) \\\\ \\n"}) / 2^30'


def test_of_alerts_series_and_points_so_many_are_kept() -> None:
    def many(query: str) -> list[JSON]:
        labels = (
            {f"label{number}": "x" * 300 for number in range(10)} | {"alertname": f"Hami{each}", "model": str(each)}
            for each in range(600)
        )
        if query.startswith(("ALERTS", "{")):
            return [{"metric": each, "value": [NOW, "1"]} for each in labels]
        return [{"metric": each, "values": [[NOW - 1 - at / 1000, "1"] for at in range(200)]} for each in labels]

    with prometheus(many) as url:
        metrics = asked(url)
    assert (len(metrics.alerts), len(metrics.history)) == (100, 500)
    assert max(map(len, metrics.history.values())) <= 121
    assert max(len(alert.about) for alert in metrics.alerts) < 400


@pytest.mark.parametrize(
    "answer", [[1], [{"metric": [], "value": [0, "1"]}], [{"metric": {}, "value": 7}], None, {"a": 1}]
)
def test_an_answer_that_is_none_is_said_and_the_last_one_stays(answer: Any) -> None:
    with prometheus() as url:
        metrics = asked(url)
    before = metrics.alerts, metrics.history
    with prometheus(lambda query: answer) as url:
        metrics._prometheus = url
        metrics.ask()
    assert "alerts and history aren't known: http://127.0.0.1" in metrics.why_not
    assert (metrics.alerts, metrics.history) == before


@pytest.mark.integration
def test_pages_show_them(tmp_path: Path) -> None:
    with prometheus() as url, served_ui(ApiServer(cluster()), tmp_path, f"--prometheus={url}") as (printed, _):
        address, _, token = printed.partition("/#")
        with httpx.Client(base_url=address, timeout=60) as client:
            client.post("/login", content=token)
            with client.stream("GET", "/events") as events:
                lines = (line for line in events.iter_lines() if line.startswith("data: ") and "stale" not in line)
                overview = client.get("/overview").text
                while "Memory used" not in overview:
                    next(lines)
                    overview = client.get("/overview").text
            card = client.get("/cluster").text
            of_card, of_pod = client.get("/cards/n1/GPU-1").text, client.get("/pods/team-a/busy").text
            assert client.get(f"/cards/n1/{HTML}").status_code == 404
    assert HTML not in overview
    assert "HamiQuotaNearlyFull</strong><br><small>namespace=team&lt;script&gt;" in overview
    figures = (
        re.search("memory used of [^>]*></progress><span>(.*?)<", overview),
        re.search("(.*) alert fires", overview),
    )
    assert [found and found[1] for found in figures] == ["12 %", "<li><strong>1</strong>"]  # 10 GiB of two cards' 80
    assert [text for text in ("10Gi really used", "61 °C 250 W", "35 %") if text not in card] == []
    assert [
        text for text in ("10Gi really used", "61 °C 250 W", "Gi used", "team-b/other") if text not in of_card
    ] == []
    assert "Gi used" in of_pod
