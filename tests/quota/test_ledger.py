"""The ledger's annotation (docs/spec/quota.md#6): what is written is read back, and what can't be read is left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.quota.ledger import Entry, State, decode, encode

AMOUNTS = st.dictionaries(st.sampled_from(["limits.a/b", "limits.c/d"]), st.integers(0, 2**40))
ENTRIES = st.builds(Entry, st.sampled_from(State), st.integers(0, 2**33), AMOUNTS, st.none() | AMOUNTS)


@given(st.dictionaries(st.text(min_size=1, max_size=8), ENTRIES, min_size=1))
def test_round_trip(ledger: dict[str, Entry]) -> None:
    assert decode(encode(ledger)) == ledger


def test_the_text_is_as_the_page_shows_it() -> None:
    entry = Entry(State.ADMITTED, 1763692800, {"limits.nvidia.com/gpumem": 2000, "limits.nvidia.com/gpu": 1})
    assert encode({"3f1c": entry}) == (
        '{"3f1c":{"s":"admitted","t":1763692800,"c":{"limits.nvidia.com/gpu":1,"limits.nvidia.com/gpumem":2000}}}'
    )
    placing = Entry(State.PLACING, 5, {"k": 2}, {"k": 1})
    assert encode({"b": placing, "a": Entry(State.WAITING, 1, {})}) == (
        '{"a":{"s":"waiting","t":1,"c":{}},"b":{"s":"placing","t":5,"c":{"k":2},"a":{"k":1}}}'
    )


def test_an_empty_ledger_has_no_annotation() -> None:
    assert encode({}) is None
    assert decode(None) == decode("") == {}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "null",
        '{"a":1}',
        '{"a":{"s":"gone","t":1,"c":{}}}',
        '{"a":{"s":"waiting","t":"1","c":{}}}',
        '{"a":{"s":"waiting","t":true,"c":{}}}',
        '{"a":{"s":"waiting","t":1}}',
        '{"a":{"s":"waiting","t":1,"c":{"k":-1}}}',
        '{"a":{"s":"waiting","t":1,"c":{"k":1.5}}}',
        '{"a":{"s":"waiting","t":1,"c":{"k":true}}}',
    ],
)
def test_an_entry_that_cannot_be_read_is_left_out(text: str) -> None:
    assert decode(text) == {}
    good = '{"s":"waiting","t":1,"c":{"k":1}}'
    if text.startswith('{"a"'):
        assert decode(text[:-1] + f',"b":{good}}}') == {"b": Entry(State.WAITING, 1, {"k": 1})}


@pytest.mark.parametrize(("age", "expired"), [(0, False), (44.9, False), (45, True), (-10, False), (-45, True)])
def test_expiry(age: float, expired: bool) -> None:
    assert Entry(State.ADMITTED, 1000, {}).expired(1000 + age, 45) is expired
