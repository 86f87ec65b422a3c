"""What the pages list, by what was asked for in their address, and what they write as CSV."""

from __future__ import annotations

import csv

import pytest
from msgspec.structs import replace
from tables import in_one_test

from hami_webhook.kubectl.report import CardUse, KeyUse, PodUse, QuotaUse
from hami_webhook.kubectl.ui.listings import cards_csv, keys, pods, pods_csv
from hami_webhook.kubectl.ui.texts import memory_text

OLD = PodUse("a", "old", "Waiting", "", "hami-scheduler", [], [], {"limits.nvidia.com/gpu": 1}, created=100.0)
BUSY = PodUse("b", "busy", "Running", "n1", "hami-scheduler", ["G1", "G2"], ["A10"], {}, created=200.0)
GATED = PodUse("a", "gated", "Gated", "", "hami-scheduler", [], [], {})
ASKED = {"q": "", "namespace": "", "state": "", "sort": ""}


@in_one_test(
    ("asked", "found"),
    [
        ({}, [GATED, OLD, BUSY]),
        ({"namespace": "b"}, [BUSY]),
        ({"state": "waits"}, [GATED, OLD]),
        ({"state": "placed"}, [BUSY]),
        ({"q": "a10"}, [BUSY]),
        ({"q": "N1"}, [BUSY]),
        ({"q": "a/g"}, [GATED]),
        ({"sort": "age"}, [OLD, BUSY, GATED]),
        ({"sort": "cards"}, [BUSY, OLD, GATED]),
        ({"sort": "node"}, [BUSY, OLD, GATED]),
        ({"sort": "<script>"}, [GATED, OLD, BUSY]),
    ],
)
def test_pods_are_searched_filtered_and_sorted(asked: dict[str, str], found: list[PodUse]) -> None:
    assert pods([OLD, BUSY, GATED], {**ASKED, **asked}) == found


def key(name: str, used: int | None, hard: int, waiting: int = 0, queued: int = 0) -> KeyUse:
    return KeyUse(name, used, hard, waiting, 0, queued=queued)


@in_one_test(
    ("sort", "found"),
    [
        ("", ["a/gpu", "a/mem", "b/gpu", "b/mem"]),
        ("quota", ["a/gpu", "a/mem", "b/gpu", "b/mem"]),
        ("key", ["a/gpu", "b/gpu", "a/mem", "b/mem"]),
        ("used", ["b/mem", "a/mem", "a/gpu", "b/gpu"]),
        ("unplaced", ["a/gpu", "a/mem", "b/gpu", "b/mem"]),
        ("queued", ["b/gpu", "a/gpu", "a/mem", "b/mem"]),
        ("<script>", ["a/gpu", "a/mem", "b/gpu", "b/mem"]),
    ],
)
def test_keys_of_quotas_are_sorted_by_parts_of_what_they_allow(sort: str, found: list[str]) -> None:
    quotas = [
        QuotaUse("a", "a", [key("gpu", 1, 4, waiting=1), key("mem", 60_000, 80_000, waiting=8_000)], [], [], []),
        QuotaUse("b", "b", [key("gpu", None, 4, queued=2), key("mem", 0, 0)], [], [], []),
    ]
    rows = keys(quotas, sort)
    assert [f"{row.quota.name}/{row.key.key}" for row in rows] == found
    assert [row.key.key for row in rows if row.full] == ["mem"]


def test_csv_has_a_column_for_each_key_and_the_age() -> None:
    first, second = csv.DictReader(pods_csv([OLD, BUSY], 260.0).splitlines())
    assert (first["age in seconds"], first["limits.nvidia.com/gpu"]) == ("160", "1")
    assert (second["cards"], second["limits.nvidia.com/gpu"]) == ("G1 G2", "0")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", 'x","y', "x\ny"])
def test_a_name_is_no_formula_to_a_spreadsheet(name: str) -> None:
    card = CardUse("n1", "NVIDIA", name, name, True, 0, 10, 0, 100, 0, 100)
    (row,) = csv.DictReader(cards_csv([card]).splitlines(keepends=True))
    assert row["card"] == row["model"]
    assert row["card"] in (name, f"'{name}")
    assert row["card"][0] not in "=+-@\t"


def test_pods_that_do_not_say_when_they_came_have_no_age() -> None:
    (row,) = csv.DictReader(pods_csv([replace(OLD, created=None)], 260.0).splitlines())
    assert row["age in seconds"] == ""


@pytest.mark.parametrize(
    ("mebibytes", "text"),
    [
        (0, "0Mi"),
        (1023, "1023Mi"),
        (1024, "1Gi"),
        (24000, "23.4Gi"),
        (40959, "39.9Gi"),
        (1024**2, "1024Gi"),
        (5 * 1024**3, "5242880Gi"),
    ],
)
def test_memory_is_rounded_down(mebibytes: int, text: str) -> None:
    assert memory_text(mebibytes) == text
