"""How straight the walks of docs/architecture.md are: stays in packages, and climbs between them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hack.bench.rooms import WALKS, as_rows, layers, rooms_of

PAGE = Path(__file__).parents[2] / "docs/architecture.md"
MOST_APART = 0.1


def test_the_page_says_what_is_counted() -> None:
    shown = {
        name: numbers.split(" | ")
        for name, numbers in re.findall(r"^\| (an? .+?) \| ([\d |]+) \|$", PAGE.read_text(), re.M)
    }
    rows = as_rows()
    now = "\n".join(f"| {name} | {stays} | {rooms} | {climbs} |" for name, stays, rooms, climbs, _ in rows)
    assert shown.keys() == WALKS.keys(), now
    for name, *numbers, _ in rows:
        for on_page, counted in zip(map(int, shown[name]), numbers, strict=True):
            assert abs(counted - on_page) <= max(1, MOST_APART * on_page), f"write on the page what is so now:\n{now}"


@pytest.mark.parametrize(
    ("calls", "stays", "climbs"),
    [
        ([], [], 0),
        ([("", "quota.batch")], ["quota"], 0),
        (
            [("", "quota.batch"), ("quota.batch", "quota.account"), ("quota.batch", "kube.objects")],
            ["quota", "kube"],
            0,
        ),
        ([("charging.queue", "quota.batch"), ("quota.placing", "charging.claims")], ["quota", "charging"], 1),
        ([("charging.queue", "state.caches"), ("state.caches", "charging.queue")], ["state", "charging"], 0),
    ],
)
def test_stays_and_climbs(calls: list[tuple[str, str]], stays: list[str], climbs: int) -> None:
    found = rooms_of(calls, layers())
    assert (found.stays, found.climbs) == (stays, climbs)
