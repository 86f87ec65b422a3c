from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from chromium import CHROMIUM
from kubectl.apiserver import ApiServer
from kubectl.ui_process import served_ui
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from simulate.files import JSON

from .objects import UPDATED, objects


@dataclass
class Ui:
    """`kubectl hami ui`, the API server whose objects it shows, and a browser that was let in.

    `faults` are what the browser complained of.
    """

    api: ApiServer
    address: str
    """With the token."""
    context: BrowserContext
    process: subprocess.Popen[str] | None = None
    faults: list[str] = field(default_factory=list)

    def _console(self, text: str) -> None:
        if "ERR_NETWORK_CHANGED" not in text:  # another test has made a network namespace
            self.faults.append(text)

    def page(self, path: str) -> Page:
        page = self.context.new_page()
        page.on("console", lambda message: self._console(f"{page.url}: {message.text}"))
        page.on("pageerror", lambda error: self.faults.append(f"{page.url}: {error}"))
        page.on("dialog", lambda dialog: self.faults.append(f"{page.url}: dialog {dialog.message}"))
        page.goto(f"{self.address.partition('/#')[0]}{path}")
        return page


def entered(browser: Browser, address: str) -> BrowserContext:
    """A browser that was let in by the address with the token."""
    context = browser.new_context(color_scheme="light", viewport={"width": 1440, "height": 900})
    context.set_default_timeout(UPDATED)
    page = context.new_page()
    page.goto(address)
    page.wait_for_url("**/overview")
    return context


@contextmanager
def opened(browser: Browser, found: list[JSON], folder: Path, *flags: str) -> Iterator[Ui]:
    """A program of its own, of an API server that has these objects."""
    api = ApiServer(found)
    with served_ui(api, folder, *flags) as (address, process):
        context = entered(browser, address)
        yield Ui(api, address, context, process)
        context.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def served(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    with opened(browser, objects(), tmp_path_factory.mktemp("ui")) as ui:
        yield ui


@pytest.fixture
def ui(served: Ui) -> Iterator[Ui]:
    """The pages of the objects of `objects`; nothing may be on the browser's console afterwards."""
    yield served
    faults = [*served.faults]
    for page in served.context.pages:
        page.close()
    served.faults.clear()  # what closing has broken off
    assert faults == []
