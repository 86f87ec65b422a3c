"""The annotation that lists a node's unhealthy cards: what is read of it, and what is left out in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tables import in_one_test

from hami_webhook.devices.unhealthy_cards import ANNOTATION, UnhealthyCard, decode, encode, unhealthy_cards

SINCE = "2026-11-24T18:00:00Z"
GOOD = {"causes": ["lost"], "since": SINCE}


def test_what_is_written_is_read_back() -> None:
    cards = {"GPU-1": UnhealthyCard(("ecc-double-bit", "xid-79"), SINCE), "GPU-0": UnhealthyCard(("lost",), SINCE)}
    assert decode(encode(cards)) == (cards, "")


@pytest.mark.parametrize(
    ("causes", "sentence"),
    [
        (["lost"], "NVML no longer finds it"),
        (["xid-79"], "its driver reported XID 79 (fallen off the bus)"),
        (["xid-61", "thermal-slowdown"], "its driver reported XID 61; the hardware slows it down, as it is too hot"),
        (["of-a-later-version"], "of-a-later-version"),
    ],
)
def test_causes_are_told_in_words(causes: list[str], sentence: str) -> None:
    assert unhealthy_cards({ANNOTATION: json.dumps({"G": {"causes": causes}})}) == ({"G": sentence}, "")


def test_a_node_without_it_has_none() -> None:
    assert unhealthy_cards({"other": "{"}) == ({}, "")


@in_one_test(
    "entry",
    [
        None,
        [],
        {},
        {"causes": "lost"},
        {"causes": []},
        {"causes": [1]},
        {"causes": ["lost"] * 17},
        {"causes": ["<b>"]},
        {"causes": ["x" * 33]},
        {"causes": ["lost\n"]},
    ],
)
def test_an_entry_that_can_not_be_read_closes_no_card(entry: Any) -> None:
    read, problem = decode(json.dumps({"good": GOOD, "bad": entry}))
    assert list(read) == ["good"]
    assert problem == f"""{ANNOTATION}: an entry is ignored: that of 'bad' is no {{"causes": ["lost"]}}"""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is no JSON"),
        ('{"G": ', "it is no JSON"),
        ("[" * 5000, "it is no JSON"),
        ("\ud800", "it is no JSON"),
        ("[]", "it is no JSON object of at most 256 cards"),
        (json.dumps({str(card): GOOD for card in range(257)}), "it is no JSON object of at most 256 cards"),
        (json.dumps({"G": GOOD}).ljust(65_537), "it has 65537 characters, and may have 65536"),
    ],
    ids=["empty", "cut off", "deep", "a lone surrogate", "a list", "too many cards", "too long"],
)
def test_a_text_that_can_not_be_read_closes_no_card(text: str, why: str) -> None:
    assert decode(text) == ({}, f"{ANNOTATION} is ignored: {why}")


def test_where_many_entries_are_wrong_one_is_shown() -> None:
    _, problem = decode(json.dumps({"x" * 1000: 0, "y": 0}))
    assert problem.startswith(f"{ANNOTATION}: 2 entries are ignored: that of 'xxx")
    assert len(problem) < 300
