"""`kubectl hami ui` in a process of its own, asked as a browser asks it."""

from __future__ import annotations

import argparse
import asyncio
import csv
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from builders import card, node
from simulate.files import START, pod
from ui.objects import HTML, WAITING, hostile_results, objects

from hami_webhook.cluster.api import Unavailable
from hami_webhook.cluster.connect import ContextNames
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.doctor.installation import assumed
from hami_webhook.kubectl.live import LiveCluster, probing, read_with
from hami_webhook.kubectl.ui.access import ProxiedUsers, TokenHolders
from hami_webhook.kubectl.ui.pages import Pages
from hami_webhook.kubectl.ui.readings import Readings

from .apiserver import ApiServer, serving
from .conftest import Hami
from .test_ui_metrics import prometheus
from .test_verbs import SPACES, cluster, placed, with_uid
from .ui_process import address_of, served_ui, ui_routes

BUSY = {"namespace": "team-a", "name": "busy", "card": "n1/GPU-1"}


@contextmanager
def browser(api: ApiServer, folder: Path, *flags: str) -> Iterator[httpx.Client]:
    """A browser that hasn't been let in; its header `x-token` has the printed token."""
    with served_ui(api, folder, *flags) as (printed, _):
        address, _, token = printed.partition("/#")
        with httpx.Client(base_url=address, headers={"x-token": token}, timeout=60) as client:
            yield client


@contextmanager
def entered(api: ApiServer, folder: Path, *flags: str) -> Iterator[httpx.Client]:
    with browser(api, folder, *flags) as client:
        assert client.post("/login", content=client.headers["x-token"]).status_code == 204
        yield client


@pytest.mark.integration
def test_only_the_browser_with_the_token_gets_in(tmp_path: Path) -> None:
    with browser(ApiServer(cluster()), tmp_path) as client:
        assert client.get("/").status_code == 200
        walked = [
            (method, address_of(route, **BUSY)) for route in ui_routes() for method in sorted(route.methods or ())
        ]
        for method, path in walked:
            if path not in ("/", "/login"):
                assert client.request(method, path).status_code == 403, (method, path)
        assert client.post("/login", content="wrong").status_code == 403
        assert client.get("/cluster").status_code == 403
        assert client.post("/login", content=b"x" * 1000).status_code == 400
        entry = client.post("/login", content=client.headers["x-token"])
        assert re.search("HttpOnly.*SameSite=strict", entry.headers["set-cookie"])
        page = client.get("/cluster")
        assert page.status_code == 200
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "same-origin"
        for foreign in (
            {"Host": "evil.example"},
            {"Host": "127.0.0.1"},
            {"Origin": "http://127.0.0.1:1"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            for method, path in walked:
                assert client.request(method, path, headers=foreign).status_code == 403, (method, path, foreign)


@pytest.mark.integration
def test_no_text_of_others_turns_the_direction_of_a_page(tmp_path: Path) -> None:
    waiting = with_uid(pod("late", gpu=1, mem=1000, schedulerName="hami-scheduler"))
    said = {"type": "PodScheduled", "status": "False", "message": "no \u202enode\u2066, or \u200bcard"}
    waiting["status"] = {"conditions": [said]}
    with entered(ApiServer(cluster(waiting)), tmp_path) as client:
        page = client.get("/pods").text
    assert "no \ufffdnode\ufffd, or \ufffdcard" in page
    assert page.replace("\n", "").isprintable()


async def readings() -> Readings:
    async def reading() -> LiveCluster:
        return await read_with(MemoryCluster(lambda: START), assumed("hami-system"), "team-a", START)

    return Readings(reading, await reading(), ContextNames("team-a"))


PROXIED = {"host": "hami.example.com", "x-forwarded-user": "ann"}


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 200),
        ("GET", {"x-forwarded-user": ""}, 403),
        ("GET", {"host": "127.0.0.1"}, 403),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}, 200),  # back from a login
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"}, 403),
        ("POST", {"origin": "https://hami.example.com", "sec-fetch-site": "same-origin"}, 400),  # an empty form
        ("POST", {"origin": "https://evil.example"}, 403),
        ("POST", {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}, 403),
    ],
)
def test_behind_a_proxy_its_users_are_let_in(method: str, headers: dict[str, str], status: int) -> None:
    async def asked(*requests: tuple[str, str, dict[str, str]]) -> list[int]:
        app = Pages(await readings(), None, ProxiedUsers("https://hami.example.com", "X-Forwarded-User")).app()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://pod") as client:
            return [
                (await client.request(method, path, headers={**PROXIED, **more})).status_code
                for method, path, more in requests
            ]

    found = asyncio.run(asked((method, "/what-if", headers), ("GET", "/doctor", {}), ("POST", "/login", {})))
    assert found == [status, 404, 404]


async def test_a_client_that_goes_away_during_a_login_leaves_no_traceback() -> None:
    app = Pages(await readings(), None, TokenHolders("secret", 1)).app()
    headers = [(b"host", b"127.0.0.1:1"), (b"origin", b"http://127.0.0.1:1"), (b"content-length", b"6")]
    scope = {"type": "http", "method": "POST", "path": "/login", "headers": headers, "query_string": b""}
    messages: asyncio.Queue[Any] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": b"sec", "more_body": True})
    messages.put_nowait({"type": "http.disconnect"})
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, messages.get, send)
    assert sent[0]["status"] == 400
    assert not any(name == b"set-cookie" for name, _ in sent[0]["headers"])


@pytest.mark.integration
def test_clients_that_go_away_at_any_moment_leave_no_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with browser(ApiServer(cluster()), tmp_path) as client:
        port, token = client.base_url.port or 0, client.headers["x-token"]
        head = f"POST /login HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-length: {len(token)}\r\n\r\n"
        for number in range(60):
            sent = (head[:20], head, head + token[:5], head + token, "GET / HTTP/1.1\r\nhost: x\r\n\r\n")[number % 5]
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(sent.encode())
                if number % 2:  # without a goodbye
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert client.post("/login", content=token).status_code == 204
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("url", ["hami.example.com", "ftp://hami.example.com", "https://hami.example.com/path", ""])
def test_a_proxys_address_has_no_path(hami: Hami, url: str) -> None:
    run = hami(ApiServer(cluster()), "ui", f"--behind-proxy={url}")
    assert (run.status, "must be like https://hami.example.com" in run.err) == (2, True)


SECTIONS_OF_WAITING = (">30000</td>", "limits.nvidia.com/gpumem", "CardInsufficientMemory", "It has no cards yet.")
SECTIONS_OF_PLACED = (
    "nvidia.com/gpu</td>",
    "limits.nvidia.com/gpu",
    "A placed pod isn&#39;t evaluated again.",
    "GPU-1</td>",
)


@pytest.mark.integration
def test_pages_show_what_the_api_server_has(tmp_path: Path) -> None:
    with entered(ApiServer(cluster()), tmp_path) as client:
        page = client.get("/cluster").text
        assert [text for text in ("n1", "GPU-1", "23.4Gi of 40Gi", "unhealthy") if text not in page] == []
        assert "0 nodes, 0 cards" in client.get("/cluster?model=H100").text
        assert "0 nodes, 0 cards" in client.get("/cluster?label=pool=none").text
        assert "1 node, 2 cards" in client.get("/cluster?node=n&page=7").text
        page = client.get("/teams").text
        assert "team-a/gpu-quota" in page
        amounts = '</td><td class="number">'.join(("9.8Gi", "19.5Gi", "29.3Gi"))
        assert "48.8Gi of 58.6Gi" in page
        assert f">{amounts}</td>" in page
        page = client.get("/pods").text
        assert 'href="/pods/team-a/waiting"' in page
        page = client.get("/pods/team-a/waiting").text
        assert "team-a/waiting fits on none of 2 nodes" in page
        of_placed = client.get("/pods/team-a/busy").text
        for text, sections in ((page, SECTIONS_OF_WAITING), (of_placed, SECTIONS_OF_PLACED)):
            _, *parts = re.split('<section aria-label="(.*)">', text.partition("CSV, with")[0])
            assert parts[::2] == ["Asked", "Charged", "Evaluated", "Placed"]
            assert [each for part, each in zip(parts[1::2], sections, strict=True) if each not in part] == []
        missing = client.get("/pods/team-b/waiting")
        assert (missing.status_code, "one of that name is in team-a" in missing.text) == (404, True)
        assert "webhook-configurations" in client.get("/doctor").text


@pytest.mark.integration
def test_the_page_of_a_pod_shows_what_it_asks_another_scheduler_for(tmp_path: Path) -> None:
    notes = {"gpu-fraction": "0.25", "team": "a"}
    share = pod("share", annotations=notes, schedulerName="kai-scheduler", namespace="team-a")
    with entered(ApiServer([*SPACES, share]), tmp_path) as client:
        page = client.get("/pods/team-a/share").text
        assert "annotation gpu-fraction" in page
        assert ">0.25</td>" in page
        assert "annotation team" not in page


@pytest.mark.integration
def test_nothing_fits_on_nodes_that_take_no_new_pods(tmp_path: Path) -> None:
    closed = {
        "cordoned": {"unschedulable": True},
        "down": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]},
        "theirs": {"taints": [{"key": "team", "value": HTML, "effect": "NoExecute"}]},
        "ours": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]},
        "least": {"taints": [{"key": "team", "effect": "PreferNoSchedule"}]},
    }
    nodes = [{**node(name, card(f"G-{name}", type=name)), "spec": spec} for name, spec in closed.items()]
    with entered(ApiServer([*SPACES, *nodes]), tmp_path) as client:
        page = client.get("/overview").text
    largest = {
        name: re.findall('<td class="number">(?:<span[^>]*>)?([^<]*)', row)[4]
        for name, row in re.findall('<th scope="row"><a[^>]*>([^<]*)</a>(.*?)</tr>', page, re.S)
    }
    assert largest == {"cordoned": "–", "down": "–", "theirs": "–", "ours": "40Gi", "least": "40Gi"}
    assert "Nothing fits on 3 cards" in page
    assert "1 card of cordoned: it is cordoned (spec.unschedulable)" in page
    assert "1 card of down: its taint node.kubernetes.io/not-ready:NoSchedule isn&#39;t tolerated" in page
    assert page.count("<a class=closed") == 3
    assert HTML not in page


@pytest.mark.integration
def test_of_many_nodes_those_that_matter_are_shown(tmp_path: Path) -> None:
    nodes = [node(f"other-{each}", card(f"GPU-{each}-0", 8000)) for each in range(60)]
    with entered(ApiServer([*cluster(), *nodes]), tmp_path) as client:
        assert "1 of 2" in client.get("/cluster").text
        first, second = (
            re.findall('data-key="(other-.*?)"', client.get(f"/cluster?page={page}").text) for page in (1, 2)
        )
        assert sorted(first + second) == sorted(each["metadata"]["name"] for each in nodes)
        page = client.get("/pods/team-a/waiting").text
        assert '<td class="number">60</td><td>CardInsufficientMemory</td>' in page
        assert page.index("<td>n1</td>") < page.index("<td>other-0</td>")
        assert "changes were searched on the 7 nearest of 62 nodes" in page
        assert "other-9" not in page


@pytest.mark.integration
def test_a_page_that_is_no_number_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with entered(ApiServer(cluster()), tmp_path) as client:
        for digits in ("9" * 5_000, "-1", "two", "٣"):
            refused = client.get("/cluster", params={"page": digits})
            assert (refused.status_code, refused.text) == (400, "page must be a whole number of at most 9 digits\n")
        assert client.get("/cluster?page=").status_code == 200


@pytest.mark.integration
def test_the_models_of_the_overview_can_be_downloaded(tmp_path: Path) -> None:
    own = node("n2", card("H1", 81920, type="=H100"), labels={"pool": "training"})
    with entered(ApiServer(cluster(own)), tmp_path) as client:
        answer = client.get("/overview.csv?pool=pool")
    assert answer.headers["content-disposition"] == 'attachment; filename="models.csv"'
    h100, a100 = csv.DictReader(answer.text.splitlines())
    assert (h100["model"], h100["pool"], h100["MiB of each of 1"], h100["MiB free"]) == (
        *("'=H100", "training"),
        *("81920", "81920"),
    )
    figures = {key: a100[key] for key in ("cards", "healthy", "empty", "MiB promised", "MiB", "MiB of each of 2")}
    assert figures == {
        "cards": "2", "healthy": "1", "empty": "0", "MiB promised": "24000", "MiB": "81920", "MiB of each of 2": "",
    }  # fmt: skip


@pytest.mark.integration
def test_the_tables_of_a_pod_and_of_a_what_if_can_be_downloaded(tmp_path: Path) -> None:
    with entered(ApiServer(cluster()), tmp_path) as client:
        (link,) = re.findall('href="(/pod.csv/[^"]*)"', client.get("/pods/team-a/waiting").text)
        rows = [*csv.reader(client.get(link).text.splitlines())]
        assert ["Quotas"] in rows
        assert any(row[:1] == ["n1"] for row in rows)
        assert client.get("/pod.csv/team-a/none").status_code == 404
        form = {"manifest": yaml.safe_dump(pod("new", gpu=1, mem=2000)), "copies": "2"}
        rows = [*csv.reader(client.post("/what-if.csv", data=form).text.splitlines())]
        assert rows[:2] == [["Pods"], ["pod", "verdict", "node", "devices", "debits"]]
        assert [row[0] for row in rows[2:4]] == ["team-a/new-0", "team-a/new-1"]
        refused = client.post("/what-if.csv", data={"manifest": "a: [", "copies": "1"})
        assert (refused.status_code, "not YAML" in refused.text) == (400, True)


@pytest.mark.integration
def test_what_if_tries_copies_and_creates_nothing(tmp_path: Path) -> None:
    api = ApiServer(cluster())
    with entered(api, tmp_path) as client:
        manifest = yaml.safe_dump(pod("new", gpu=1, mem=2000))
        sent = manifest.replace("\n", "\t\r\n")  # browsers send \r\n, and files may have tabs
        form = {"manifest": sent, "copies": "2"}
        page = client.post("/what-if", data=form, headers={"Origin": str(client.base_url)})
        assert page.status_code == 200
        assert sent.replace("\r\n", "\n") in unescape(page.text)
        assert [name for name in ("new-0", "new-1") if name not in page.text] == []
        (address,) = re.findall('href="(/what-if[?][^"]*)"', page.text)
        opened = client.get(unescape(address)).text
        assert [text for text in ("name: new", 'value="2"') if text not in opened] == []
        assert "new-0" not in opened  # nothing is tried before somebody says so
        assert "new-0" not in client.get("/pods").text
        for data, sentence in (
            ({"manifest": "a: [", "copies": "1"}, "not YAML"),
            ({"manifest": manifest, "copies": "0"}, "at least one of each"),
            ({"manifest": manifest, "copies": "1001"}, "at most 1000 pods"),
            ({"manifest": manifest, "copies": "9" * 5_000}, "at most 9 digits"),
            ({"manifest": "", "copies": "1"}, "has no Pod and no workload"),
        ):
            page = client.post("/what-if", data=data)
            assert (page.status_code, sentence in page.text) == (400, True), page.text
        assert client.post("/what-if", data={"manifest": "#" * 2_000_000, "copies": "1"}).status_code == 400
    assert {method for method, _ in api.asked} == {"GET"}


QUERIES = ("q", "namespace", "state", "sort", "by", "pool", "node", "vendor", "model", "label", "health", "page")


@pytest.mark.integration
@pytest.mark.parametrize("named", [{}, {"page": "1", "by": "memory"}], ids=["refused", "used"])
def test_on_every_page_html_is_text_wherever_it_comes_from(tmp_path: Path, named: dict[str, str]) -> None:
    """Of objects, of a Prometheus server's labels, and of the address."""
    names = {"namespace": "team-a", "name": WAITING, "card": f"spoilt{HTML}/GPU{HTML}"}
    with prometheus(hostile_results) as url, entered(ApiServer(objects()), tmp_path, f"--prometheus={url}") as client:
        with client.stream("GET", "/events") as events:
            shown = (client.get("/overview").text for _ in events.iter_lines())
            assert any("<strong>HamiQuotaNearlyFull" in text for text in shown)
        escaped = 0
        for route in ui_routes():
            if route.path == "/events" or "GET" not in (route.methods or ()):
                continue
            for of_path in (names, dict.fromkeys(names, HTML)):
                answer = client.get(address_of(route, **of_path), params=dict.fromkeys(QUERIES, HTML) | named)
                assert answer.status_code in (200, 400, 404), (route.path, answer.text)
                media = answer.headers["content-type"].partition(";")[0]
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert media in ("text/html", "text/plain", "text/csv")
                if media == "text/html":
                    assert not re.search("<(img src=x|script>)", answer.text), (route.path, answer.text)
                    escaped += "&lt;script&gt;" in answer.text
        assert escaped > len([each for each in ui_routes() if ".csv" not in each.path]) / 2
        form = {"manifest": yaml.safe_dump(pod(HTML, gpu=1, mem=2000)), "copies": "2"}
        page = client.post("/what-if", data=form).text
        assert not re.search("<(img src=x|script>)", page)


@pytest.mark.integration
def test_a_change_is_told_at_once_and_a_failure_keeps_the_last_reading(tmp_path: Path) -> None:
    api = ApiServer(cluster())
    with entered(api, tmp_path) as client, client.stream("GET", "/events") as events:
        lines = (line for line in events.iter_lines() if line.startswith("data: ") and "stale" not in line)
        assert next(lines) == "data: 1"
        api.objects[:] = [*cluster(), placed("newcomer")]
        assert next(lines) == "data: 2"
        assert "newcomer" in client.get("/pods").text
        api.version = "v1.36.4"
        api.on_request = broken
        assert next(lines) == "data: 3"
        page = client.get("/pods").text
        assert ("newcomer" in page, "be read, so this is as it was before" in page) == (True, True)


def broken(path: str) -> None:
    raise ConnectionError


@pytest.mark.parametrize("lacking", [set(), {"/version"}], ids=["", "without the right to its version"])
async def test_whether_the_api_server_answers_is_known_without_reading_all(tmp_path: Path, lacking: set[str]) -> None:
    api, over = ApiServer(lacking=lacking), threading.Event()
    with serving(api, tmp_path) as kubeconfig:
        arguments = argparse.Namespace(kubeconfig=str(kubeconfig), context="", namespace="")
        async with probing(arguments, 0.5) as probe:
            await probe()

            def hangs(path: str) -> None:
                over.wait()

            api.on_request = hangs
            try:
                with pytest.raises(Unavailable, match="the API server didn't answer GET /version"):
                    await probe()
            finally:
                over.set()
            await probe()


async def test_pages_are_stale_while_the_api_server_does_not_answer() -> None:
    silence: list[Unavailable] = [Unavailable("silent")]

    async def probe() -> None:
        for error in silence:
            raise error

    found = await readings()
    task = asyncio.create_task(found.keep_probing(probe))
    version = await found.change(1)
    assert found.stale == "silent"
    silence.clear()
    await found.change(version)
    assert found.stale == ""
    task.cancel()
