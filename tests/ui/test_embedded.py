"""The pages that `make run` serves of the embedded cluster."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from chromium import CHROMIUM
from playwright.sync_api import expect, sync_playwright

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium-headless-shell shows the pages"),
]

DEMO = Path(__file__).parents[2] / "hack" / "demo.py"


def test_a_browser_sees_what_the_demo_placed() -> None:
    with subprocess.Popen([sys.executable, DEMO, "--keep"], stdout=subprocess.PIPE, text=True) as process:
        deadline = threading.Timer(240, process.kill)
        deadline.start()
        try:
            assert process.stdout is not None
            address = next(line.strip() for line in process.stdout if line.startswith("http://127.0.0.1:"))
            with sync_playwright() as playwright:
                page = playwright.chromium.launch(executable_path=CHROMIUM).new_page()
                page.goto(address)
                page.wait_for_url("**/overview")
                expect(page.locator("#live")).to_contain_text("cards on 2 nodes")
                pages = [link.inner_text() for link in page.get_by_role("navigation").get_by_role("link").all()]
                assert pages == ["Overview", "Cluster", "Teams", "Pods", "What if"]
                page.get_by_role("link", name="Teams").click()
                row = page.get_by_role("row", name="limits.nvidia.com/gpumem")
                assert [cell.inner_text() for cell in row.get_by_role("cell").all()][1:3] == [
                    "90 %\n35.4Gi of 39.1Gi",
                    "3.6Gi",
                ]
                page.get_by_role("link", name="Pods").click()
                expect(page.locator("tbody tr", has_text="Running")).not_to_have_count(0)
        finally:
            deadline.cancel()
            process.kill()
