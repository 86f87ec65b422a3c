from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from kubectl.apiserver import ApiServer
from kubectl.ui_process import served_ui
from playwright.sync_api import BrowserContext, Page, sync_playwright

from .objects import CHROMIUM, objects


@dataclass
class Ui:
    """`kubectl hami ui`, the API server whose objects it shows, and a browser that was let in.

    `faults` are what the browser complained of.
    """

    api: ApiServer
    address: str
    """With the token."""
    context: BrowserContext
    process: subprocess.Popen[str]
    faults: list[str] = field(default_factory=list)

    def page(self, path: str) -> Page:
        page = self.context.new_page()
        page.on("console", lambda message: self.faults.append(f"{page.url}: {message.text}"))
        page.on("pageerror", lambda error: self.faults.append(f"{page.url}: {error}"))
        page.on("dialog", lambda dialog: self.faults.append(f"{page.url}: dialog {dialog.message}"))
        page.goto(f"{self.address.partition('/#')[0]}{path}")
        return page


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    api = ApiServer(objects())
    with served_ui(api, tmp_path_factory.mktemp("ui")) as (address, process), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        context = browser.new_context(color_scheme="light", viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.goto(address)
        page.wait_for_url("**/overview")
        yield Ui(api, address, context, process)
        browser.close()


@pytest.fixture
def ui(served: Ui) -> Iterator[Ui]:
    """The pages of the objects of `objects`; nothing may be on the browser's console afterwards."""
    yield served
    faults = [*served.faults]
    for page in served.context.pages:
        page.close()
    served.faults.clear()  # what closing has broken off
    assert faults == []
