"""Until when limits of windows hold: `kubectl hami quota`, and the team's page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from builders import accelerator_quota, card, node
from simulate.files import GPU

from hami_webhook.kube.objects import format_time

from .apiserver import ApiServer
from .conftest import Hami
from .test_ui import entered
from .test_verbs import DEPLOYED, SPACES

BEGAN, ENDS = (format_time((datetime.now(UTC) + timedelta(hours=hours)).timestamp()) for hours in (-1, 2))


def api(window: bool = True) -> ApiServer:
    quota = accelerator_quota("night", status={"hard": {GPU: 4}, "used": {GPU: 0}}, gpu=4)
    if window:
        quota["spec"]["windows"] = [{"at": BEGAN[:-1], "for": "3h", "hard": {GPU: 9}}]
        held = {"since": BEGAN, "until": ENDS, "names": [BEGAN[:-1]]}
        quota["status"] |= {"hard": {GPU: 9}, "window": held}
    return ApiServer([node("n1", card("GPU-1")), quota, *SPACES, *DEPLOYED])


def said() -> str:
    return f"AcceleratorQuota/night: {GPU}: 9 until {ENDS} (window {BEGAN[:-1]}), then 4"


def test_the_limit_of_now_and_until_when(hami: Hami) -> None:
    run = hami(api(), "quota", "-A")
    row = next(line for line in run.out.splitlines() if "night" in line)
    assert row.split()[:4] == ["AcceleratorQuota/night", GPU, "0", "9"]
    assert said() in run.out
    found = next(each for each in hami(api(), "quota", "-A", "-o", "json").result if "night" in each["name"])
    assert found["windows"] == said().partition(": ")[2]


def test_without_windows_nothing_is_said(hami: Hami) -> None:
    assert "until" not in hami(api(window=False), "quota", "-A").out


@pytest.mark.integration
def test_the_page_of_a_team_says_it(tmp_path: Path) -> None:
    with entered(api(), tmp_path) as client:
        assert said() in client.get("/teams/team-a").text
