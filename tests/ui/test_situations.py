"""Every page in Chromium, whatever the cluster is like, who looks at it, and what has failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from chromium import CHROMIUM
from kubectl.apiserver import ApiServer
from kubectl.test_measured import NODE, used
from kubectl.test_ui_metrics import prometheus
from playwright.sync_api import Browser, Page, expect
from simulate.files import JSON

from hack import screenshots

from .conftest import Ui, entered, opened
from .looks import faults_of_looks
from .objects import CARDS, POD, UPDATED, hostile_results, large_fleet, mixed_fleet, objects

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium-headless-shell shows the pages"),
]

Situation = Callable[[Browser, Path], Iterator[tuple[Ui, Sequence[str]]]]
"""The pages, and those that are looked at."""
OF_ANY_FLEET = "/overview", "/cluster", "/teams", "/teams/team-a", "/pods"
OF_ALL = *OF_ANY_FLEET, *CARDS, POD
IF_STALE = "/overview", POD
"""Where the last reading is shown, a page is as it was, but for what all of them say of that in the same place."""


def has(page: Page, selector: str, text: str) -> None:
    expect(page.locator(selector).first).to_contain_text(text, timeout=UPDATED)


def of(fleet: Sequence[JSON], figures: str, paths: Sequence[str] = OF_ANY_FLEET) -> Situation:
    def situation(browser: Browser, folder: Path) -> Iterator[tuple[Ui, Sequence[str]]]:
        with opened(browser, [*fleet], folder) as ui:
            has(ui.page("/overview"), ".figures li", figures)
            yield ui, paths

    return situation


def a_tenant(browser: Browser, folder: Path) -> Iterator[tuple[Ui, Sequence[str]]]:
    with opened(browser, objects(), folder) as ui:
        ui.api.only = "team-a"
        has(ui.page("/teams"), ".unseen", "Not seen")
        yield ui, (*OF_ANY_FLEET, POD, "/doctor")


def refuses(path: str) -> None:
    raise ConnectionError


def an_api_server_that_is_gone(browser: Browser, folder: Path) -> Iterator[tuple[Ui, Sequence[str]]]:
    with opened(browser, objects(), folder) as ui:
        ui.api.on_request = refuses
        has(ui.page("/overview"), "#state", "stale: the cluster can't be read")
        yield ui, (*IF_STALE, "/doctor")


def an_api_server_that_hangs(browser: Browser, folder: Path) -> Iterator[tuple[Ui, Sequence[str]]]:
    over = threading.Event()

    def hangs(path: str) -> None:
        over.wait()

    with opened(browser, objects(), folder) as ui:
        ui.api.on_request = hangs
        try:
            has(ui.page("/overview"), "#state", "stale: the API server")
            yield ui, IF_STALE
        finally:
            over.set()


def a_prometheus_server(browser: Browser, folder: Path) -> Iterator[tuple[Ui, Sequence[str]]]:
    with prometheus(hostile_results) as url, opened(browser, objects(), folder, f"--prometheus={url}") as ui:
        page = ui.page("/overview")
        has(page, "#alerts + ul", "HamiQuotaNearlyFull")
        has(page, ".charts", "Gi used of Model")
        yield ui, OF_ALL


def monitors(browser: Browser, folder: Path) -> Iterator[tuple[Ui, Sequence[str]]]:
    found = [*objects(), used("busy", "team-a", 700, 7200), used("other", "team-b", 100, 1), NODE]
    with opened(browser, found, folder) as ui:
        has(ui.page("/overview"), "table", "Memory used")
        yield ui, OF_ALL


def an_hour(browser: Browser, folder: Path) -> Iterator[tuple[Ui, Sequence[str]]]:
    """The cluster of the pictures in the documents, with charts from memory."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(screenshots.served()) as address:
        ui = Ui(ApiServer(), address, entered(browser, address))
        expect(ui.page("/overview").locator(".chart canvas")).not_to_have_count(0, timeout=UPDATED)
        yield ui, ("/overview", "/teams", "/doctor", "/cards/a100-0/a100-0-0", "/teams/vision", "/pods/vision/train-0")


SITUATIONS: Mapping[str, Situation] = {
    "no node": of([], "0 cards on 0 nodes"),
    "every vendor": of(mixed_fleet(), "208 cards on 24 nodes"),
    "1,000 nodes": of(large_fleet(), "8000 cards on 1000 nodes", ("/overview", "/cluster")),
    "a tenant": a_tenant,
    "a Prometheus server": a_prometheus_server,
    "monitors": monitors,
    "an hour": an_hour,
    "an API server that is gone": an_api_server_that_is_gone,
    "an API server that hangs": an_api_server_that_hangs,
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_all_pages_look_right(browser: Browser, tmp_path: Path, situation: str) -> None:
    with contextmanager(SITUATIONS[situation])(browser, tmp_path) as (ui, paths):
        faults = []
        for path in paths:
            page = ui.page(path)
            # at once: an update of the page may replace those that are clicked one after the other
            page.locator("summary").evaluate_all("all => all.slice(0, 5).forEach(each => each.click())")
            assert page.locator("main img, main script").count() == 0
            faults += faults_of_looks(page)
            page.close()
        assert faults + ui.faults == []


def test_a_page_whose_program_was_killed_says_so_at_once_and_stays(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, objects(), tmp_path) as ui:
        pages = [ui.context.new_page() for _ in IF_STALE]
        for page, path in zip(pages, IF_STALE, strict=True):
            page.clock.install()  # no time passes on the pages
            page.goto(f"{ui.address.partition('/#')[0]}{path}")
            expect(page.get_by_role("status")).to_have_text("live")
        assert ui.process is not None
        ui.process.kill()
        for page in pages:
            expect(page.get_by_role("status")).to_have_text("stale: the program doesn't answer", timeout=UPDATED)
            assert faults_of_looks(page) == []
