"""Which paths a process answers, by its roles and listeners, as docs/stability.md lists them."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from admission.clusters import FULL, quota_cluster
from admission.reviews import VENDORS

from hack.interface import items
from hami_webhook.server.run import running

from .serving import settings_of

PAGE = (Path(__file__).parents[2] / "docs" / "stability.md").read_text()
TABLE = re.findall(r"^\| (.*) \|$", PAGE.partition("## HTTP paths\n")[2].partition("\n## ")[0], re.MULTILINE)[1:]
ROWS = [[re.findall(r"`([^`]+)`", cell) for cell in row.split(" | ")] for row in TABLE]
"""The role (none: every process), the flags of the listeners, and the paths."""


@pytest.fixture(scope="module")
def known() -> set[str]:
    """The paths of the interface."""
    return {item.name.split()[-1] for item in items() if item.group == "path" and not item.name.startswith("kubectl")}


def documented(role: str, flag: str) -> set[str]:
    """The paths of a process with one role on the listener of a flag."""
    of_process = [row for row in ROWS if role in row[0] or not row[0]]
    return {path for _, flags, paths in of_process if flag in flags for path in paths}


def test_every_path_is_in_the_table(known: set[str]) -> None:
    assert {path for _, _, paths in ROWS for path in paths} == known


@pytest.mark.parametrize("role", ["webhook", "controller", "extender"])
async def test_a_process_answers_the_paths_of_its_role_and_no_others(role: str, known: set[str]) -> None:
    async with running(await quota_cluster(FULL), VENDORS, settings_of(f"--roles={role}")) as process:
        listeners = {
            "--http_bind": process.main,
            "--metrics-bind-address": process.metrics,
            **({"--extender-bind-address": process.extender} if process.extender is not None else {}),
        }
        for flag, listener in listeners.items():
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}", timeout=10) as client:
                answered = {path for path in known if (await client.post(path)).status_code != 404}
            assert answered == documented(role, flag), flag
    assert (process.extender is not None) == (role == "extender")
