"""What quotas allow in a time: budgets of hours, and limits of windows, in the commands and on the team's page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from builders import accelerator_quota, card, node
from simulate.files import GPU, JSON

from hami_webhook.kube.objects import format_time

from .apiserver import ApiServer
from .conftest import Hami
from .test_queue import gated
from .test_ui import entered
from .test_verbs import DEPLOYED, SPACES


def budgeted(spent: str, rate: int, unseen: str = "0s") -> JSON:
    """A quota of both teams, whose period began ten days ago and ends in ten; summed just now."""
    now = datetime.now(UTC)
    period = {"since": now - timedelta(10), "until": now + timedelta(10), "summedTo": now}
    times = {name: format_time(time.timestamp()) for name, time in period.items()}
    status = {"budget": {**times, "spent": {GPU: spent}, "rate": {GPU: rate}, "unseen": {GPU: unseen}}}
    made = accelerator_quota(
        "research", spec={"budget": {"amounts": {GPU: "500h"}, "period": "480h"}}, status=status, gpu=9
    )
    made["metadata"]["creationTimestamp"] = times["since"]
    return made


def api(*objects: JSON) -> ApiServer:
    return ApiServer([node("n1", card("GPU-1")), *objects, *SPACES, *DEPLOYED])


def test_what_is_left_and_how_long_it_lasts(hami: Hami) -> None:
    out = hami(api(budgeted("400h", 2)), "budget").out.splitlines()
    assert out[0].split() == ["QUOTA", "KEY", "SPENT", "BUDGET", "LEFT", "HELD", "NOW", "ENDS", "IN", "LASTS"]
    assert out[1].split() == ["research", GPU, "400h", "500h", "100h", "2", "9d", "2d1h"]
    assert len(out) == 2


@pytest.mark.parametrize(("spent", "rate", "lasts"), [("400h", 0, "to its end"), ("1h", 1, "to its end")])
def test_a_budget_that_lasts(hami: Hami, spent: str, rate: int, lasts: str) -> None:
    assert hami(api(budgeted(spent, rate)), "budget", "research").out.splitlines()[1].endswith(lasts)


def test_a_spent_budget_and_what_nobody_saw(hami: Hami) -> None:
    run = hami(api(budgeted("510h", 1, "90m")), "budget", "-A")
    assert "is spent" in run.out
    assert f"up to 1.50h more of {GPU} may have been held while no controller watched" in run.out
    found = hami(api(budgeted("510h", 1, "90m")), "budget", "-A", "-o", "json").result
    assert [(each["quota"], each["key"], each["amount"], each["unseen"]) for each in found] == [
        ("research", GPU, 500, 1.5)
    ]


def test_without_budgets_it_says_so(hami: Hami) -> None:
    quota = budgeted("0s", 0)
    del quota["spec"]["budget"]
    assert hami(api(quota), "budget", "-A").err.strip() == "No budgets found"
    run = hami(api(quota), "budget", "research")
    assert run.status == 1
    assert "no AcceleratorQuota research with a budget" in run.err


def test_a_tenant_without_the_right_to_see_quotas_above_is_answered_so(hami: Hami) -> None:
    run = hami(ApiServer([budgeted("1h", 0), *SPACES, *DEPLOYED], only="team-a"), "budget")
    assert run.status == 1
    assert "acceleratorquotas.hami.io can't be listed with your rights" in run.err


def test_why_a_pod_waits_for_the_next_period(hami: Hami) -> None:
    """Live by the queue, and as its condition has it by `explain`: there is room enough."""
    quota = budgeted("500h", 0)
    quota["spec"] |= {"enforcement": "queue", "budget": {**quota["spec"]["budget"], "then": "Queue"}}
    said = f"Waits for the next period: budget of quota research: 500h of {GPU} since 2026-11-01 00:00 are spent"
    run = hami(api(quota, gated("p", said=said)), "queue", "-A", "-o", "json")
    (row,) = run.result
    assert row["waits_for"].startswith(f"Waits for the next period: budget of quota research: 500h of {GPU} since ")
    assert "; next period begins " in row["waits_for"]
    assert hami(api(quota, gated("p", said=said)), "explain", "pod", "p").out.splitlines()[0].endswith(said)


@pytest.mark.integration
def test_the_teams_page_has_a_burn_down(tmp_path: Path) -> None:
    with entered(api(budgeted("400h", 2)), tmp_path) as client:
        page = client.get("/teams/team-a").text
        assert "100h of 500h left; at the present rate it lasts: 2d" in page
        assert page.count("<polyline") == 2
    plain = budgeted("0s", 0)
    del plain["spec"]["budget"]
    with entered(api(plain), tmp_path) as client:
        assert "Budgets" not in client.get("/teams/team-a").text


# Until when limits of windows hold


BEGAN, ENDS = (format_time((datetime.now(UTC) + timedelta(hours=hours)).timestamp()) for hours in (-1, 2))


def windowed(window: bool = True) -> ApiServer:
    quota = accelerator_quota("night", status={"hard": {GPU: 4}, "used": {GPU: 0}}, gpu=4)
    if window:
        quota["spec"]["windows"] = [{"at": BEGAN[:-1], "for": "3h", "hard": {GPU: 9}}]
        held = {"since": BEGAN, "until": ENDS, "names": [BEGAN[:-1]]}
        quota["status"] |= {"hard": {GPU: 9}, "window": held}
    return ApiServer([node("n1", card("GPU-1")), quota, *SPACES, *DEPLOYED])


def said() -> str:
    return f"AcceleratorQuota/night: {GPU}: 9 until {ENDS} (window {BEGAN[:-1]}), then 4"


def test_the_limit_of_now_and_until_when(hami: Hami) -> None:
    run = hami(windowed(), "quota", "-A")
    row = next(line for line in run.out.splitlines() if "night" in line)
    assert row.split()[:4] == ["AcceleratorQuota/night", GPU, "0", "9"]
    assert said() in run.out
    found = next(each for each in hami(windowed(), "quota", "-A", "-o", "json").result if "night" in each["name"])
    assert found["windows"] == said().partition(": ")[2]


def test_without_windows_nothing_is_said(hami: Hami) -> None:
    assert "until" not in hami(windowed(window=False), "quota", "-A").out


@pytest.mark.integration
def test_the_page_of_a_team_says_it(tmp_path: Path) -> None:
    with entered(windowed(), tmp_path) as client:
        assert said() in client.get("/teams/team-a").text
