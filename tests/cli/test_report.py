"""`hami-webhook report` against a server that answers as Prometheus does."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from aiohttp import web
from http_server import http_server

from hami_webhook.cli import main
from hami_webhook.prometheus import PrometheusError, query

TEAM = {"namespace": "team-a", "vendor": "NVIDIA", "model": "A10 [24G]", "state": "placed"}
WAITING = {"namespace": "team-a", "vendor": "NVIDIA", "state": "waiting"}
IDLE = {**TEAM, "namespace": "idle"}
SECONDS = {
    "card": [(TEAM, "7200"), (WAITING, "1800"), (IDLE, "0")],
    "memory_mib": [(TEAM, str(7200 * 4096))],
    "core": [(TEAM, str(7200 * 50))],
    "used_card": [(TEAM, "1800")],
    "used_memory_mib": [(TEAM, str(7200 * 1024))],
}


@contextmanager
def prometheus(
    status: int = 200, body: bytes | None = None, hours: Mapping[str, list[tuple[dict[str, str], str]]] = SECONDS
) -> Iterator[tuple[str, list[str]]]:
    """Its URL, and the queries it gets; `body` is what it answers in place of the hours."""
    asked: list[str] = []

    def answer(request: web.BaseRequest, _: bytes) -> web.Response:
        query = request.query["query"]
        asked.append(query)
        name = query.partition("showback_")[2].partition("_seconds")[0]
        found = [{"metric": labels, "value": [0, value]} for labels, value in hours.get(name, [])]
        answered = json.dumps({"status": "success", "data": {"resultType": "vector", "result": found}}).encode()
        return web.Response(
            status=status if request.path == "/api/v1/query" else 404, body=answered if body is None else body
        )

    with http_server(answer) as url:
        yield url, asked


def test_an_answer_without_end_is_read_up_to_its_most(capsys: pytest.CaptureFixture[str]) -> None:
    with http_server(lambda request, body: itertools.repeat(b" " * (1 << 20))) as url:
        assert main(["report", "--prometheus", url]) != 0
    assert "the answer has more than 64 MiB, and isn't read" in capsys.readouterr().err


def test_an_answer_that_comes_too_slowly_is_given_up() -> None:
    endless = http_server(lambda request, body: itertools.repeat(b" "))
    with endless as url, pytest.raises(PrometheusError, match=r"takes too long|timed out"):
        query(url, "up", 0.05)


def test_hours_as_csv(capsys: pytest.CaptureFixture[str]) -> None:
    with prometheus() as (url, asked):
        assert main(["report", "--prometheus", f"{url}/", "--since", "12h", "-o", "csv"]) == 0
    assert capsys.readouterr().out == (
        "namespace,vendor,model,state,card_hours,gib_hours,core_hours,used_card_hours,used_gib_hours\n"
        "team-a,NVIDIA,,waiting,0.500,0.000,0.000,0.000,0.000\n"
        "team-a,NVIDIA,A10 [24G],placed,2.000,8.000,100.000,0.500,2.000\n"
    )
    assert asked[0] == (
        "sum by (namespace,vendor,model,state) (increase(hami_webhook_showback_card_seconds_total[12h]))"
    )


def test_hours_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    with prometheus() as (url, asked):
        assert main(["report", "--prometheus", url]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        [
            "NAMESPACE",
            "VENDOR",
            "MODEL",
            "STATE",
            "CARD-HOURS",
            "GIB-HOURS",
            "CORE-HOURS",
            "USED-CARD-HOURS",
            "USED-GIB-HOURS",
        ],
        ["team-a", "NVIDIA", "waiting", "0.5", "0.0", "0.0", "0.0", "0.0"],
        ["team-a", "NVIDIA", "A10", "[24G]", "placed", "2.0", "8.0", "100.0", "0.5", "2.0"],
    ]
    assert all("[30d]" in query for query in asked)


def test_hours_of_each_user_are_those_that_pods_held(capsys: pytest.CaptureFixture[str]) -> None:
    alice = {**TEAM, "submitted_by": "alice"}
    hours = {"card": [(alice, "7200"), (TEAM, "3600")], "memory_mib": [(alice, str(7200 * 4096))], "core": []}
    with prometheus(hours=hours) as (url, asked):
        assert main(["report", "--prometheus", url, "--by", "user", "-o", "csv"]) == 0
        assert main(["report", "--prometheus", url, "--by", "user", "-o", "html"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "namespace,vendor,model,state,submitted_by,card_hours,gib_hours,core_hours\n"
        "team-a,NVIDIA,A10 [24G],placed,,1.000,0.000,0.000\n"
        "team-a,NVIDIA,A10 [24G],placed,alice,2.000,8.000,0.000\n"
    )
    assert "Hours by namespace, vendor, model, state and submitted by" in out
    assert "sum by (namespace,vendor,model,state,submitted_by) (increase(" in asked[0]
    assert not any("used" in each for each in asked)


def test_hours_as_html(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = {**TEAM, "model": "</td><script>"}
    with prometheus(hours={**SECONDS, "card": [(TEAM, "7200"), (hostile, "3600")]}) as (url, _):
        assert main(["report", "--prometheus", url, "--since", "12h", "-o", "html"]) == 0
    page = capsys.readouterr().out
    assert '<td>A10 [24G]</td><td>placed</td><td class="number">2.0</td>' in page
    assert "&lt;/td&gt;&lt;script&gt;" in page
    assert "What pods held or waited for in the 12h before 20" in page
    assert (page.count("<script"), page.count("</style>"), page.count("href"), page.count("src=")) == (0, 2, 0, 0)


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (400, b'{"status": "error", "error": "invalid parameter"}', "invalid parameter"),
        (502, b"<html>", "HTTP Error 502"),
        (500, b"[" * 60000, "HTTP Error 500"),
        (200, b"<html>", "the answer isn't that of Prometheus' HTTP API"),
        (200, b'{"data": {"result": [{"metric": {}}]}}', "the answer isn't that of Prometheus' HTTP API"),
        (
            200,
            b'{"data": {"result": [{"metric": {}, "value": [0, 1' + b"0" * 400 + b"]}]}}",
            "the answer isn't that of Prometheus' HTTP API",
        ),
        (200, b"[" * 60000, "the answer isn't that of Prometheus' HTTP API"),
    ],
)
def test_what_prometheus_says_is_wrong_is_said(
    status: int, body: bytes, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with prometheus(status, body) as (url, _):
        assert main(["report", "--prometheus", url]) == 2
    message = capsys.readouterr()
    assert message.out == ""
    assert f"{url}: " in message.err
    assert sentence in message.err


def test_an_error_whose_body_breaks_off_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\nno length\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert main(["report", "--prometheus", f"http://127.0.0.1:{server.getsockname()[1]}"]) == 2
        thread.join()
    assert "HTTP Error 503: Busy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "since", "sentence"),
    [
        ("http://127.0.0.1:9", "30", "--since '30': must be a duration of Prometheus, such as 30d, 12h or 1h30m"),
        ("http://127.0.0.1:9", "1d])", "must be a duration"),
        ("prometheus:9090", "30d", "--prometheus 'prometheus:9090': must be a URL"),
        ("file:///etc/passwd", "30d", "must be a URL"),
        ("http://127.0.0.1:9", "1h30m", "http://127.0.0.1:9: can't be reached: "),
    ],
)
def test_what_cant_be_asked_is_refused(url: str, since: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--prometheus", url, "--since", since]) == 2
    assert sentence in capsys.readouterr().err
