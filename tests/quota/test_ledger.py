"""The ledger's annotation (docs/spec/quota.md#6): what is written is read back, and what can't be read is left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tables import in_one_test

from hami_webhook.quota.ledger import Entry, State, decode, encode, is_full

AMOUNTS = st.dictionaries(st.sampled_from(["limits.a/b", "limits.c/d"]), st.integers(0, 2**40))
TEXTS = st.text(max_size=4)
ENTRIES = st.builds(
    Entry, st.sampled_from(State), st.integers(0, 2**33), AMOUNTS, st.none() | AMOUNTS, st.booleans(), *[TEXTS] * 4
).map(lambda each: replace(each, claim="", floor_id=each.claim) if each.state is State.UPDATING else each)


@given(st.dictionaries(st.text(min_size=1, max_size=8), ENTRIES, min_size=1))
def test_round_trip(ledger: dict[str, Entry]) -> None:
    assert decode(encode(ledger)) == ledger


def test_the_text_is_as_the_page_shows_it() -> None:
    entry = Entry(State.ADMITTED, 1763692800, {"limits.nvidia.com/gpumem": 2000, "limits.nvidia.com/gpu": 1})
    assert encode({"3f1c": entry}) == (
        '{"3f1c":{"s":"admitted","t":1763692800,"c":{"limits.nvidia.com/gpu":1,"limits.nvidia.com/gpumem":2000}}}'
    )
    placing = Entry(State.PLACING, 5, {"k": 2}, {"k": 1})
    assert encode({"a": Entry(State.UPDATING, 1, {}, floor_id="f", attempt="9c31")}) == (
        '{"a":{"s":"updating","t":1,"c":{},"f":"f","w":"9c31"}}'
    )
    assert encode({"a": Entry(State.PLACING, 1, {}, claim="f")}) == '{"a":{"s":"placing","t":1,"c":{},"f":"f"}}'
    assert encode({"b": placing, "a": Entry(State.WAITING, 1, {})}) == (
        '{"a":{"s":"waiting","t":1,"c":{}},"b":{"s":"placing","t":5,"c":{"k":2},"a":{"k":1}}}'
    )


def test_an_empty_ledger_has_no_annotation() -> None:
    assert encode({}) is None
    assert decode(None) == decode("") == {}


@in_one_test(
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


def test_an_entry_is_raised_key_by_key() -> None:
    entry = Entry(State.ADMITTED, 1, {"k": 5, "l": 2, "none": 0})
    assert entry.raised_to({"k": 3, "l": 4, "m": 0}) == {"k": 5, "l": 4, "m": 0, "none": 0}


def ledger_of(mine: int = 0, others: int = 0, *, floors: int = 0, waiting: int = 0) -> dict[str, Entry]:
    """Charges in flight of namespace `a` and of others; floor entries and entries of older versions, both of `a`."""
    kinds = (
        *((State.ADMITTED, "a", mine), (State.ADMITTED, "b", others)),
        *((State.FLOOR, "a", floors), (State.WAITING, "a", waiting)),
    )
    made = [Entry(state, 1, {}, namespace=namespace) for state, namespace, count in kinds for _ in range(count)]
    return {str(number): entry for number, entry in enumerate(made)}


@pytest.mark.parametrize(
    ("ledger", "most", "state", "full"),
    [
        (ledger_of(3), 4, State.ADMITTED, False),
        (ledger_of(4), 4, State.ADMITTED, True),
        (ledger_of(3, floors=1), 4, State.ADMITTED, False),
        (ledger_of(3, waiting=1), 4, State.ADMITTED, True),
        (ledger_of(floors=1), 8, State.FLOOR, False),
        (ledger_of(floors=2), 8, State.FLOOR, True),
        (ledger_of(7, floors=1), 8, State.FLOOR, False),
        (ledger_of(), 3, State.FLOOR, False),
        (ledger_of(floors=1), 3, State.FLOOR, True),
    ],
)
def test_a_ledger_of_one_namespace_takes_a_quarter_as_many_floor_entries_as_charges_in_flight(
    ledger: dict[str, Entry], most: int, state: State, full: bool
) -> None:
    assert is_full(ledger, most, state) is full


@in_one_test(
    ("ledger", "namespaces", "full"),
    [
        (ledger_of(1, 7), 4, False),  # less than its share, however full the ledger is
        (ledger_of(2, 5), 4, False),  # its share, and there is room
        (ledger_of(2, 6), 4, True),
        (ledger_of(3, 4), 4, False),
        (ledger_of(4), 4, True),  # half of all
        (ledger_of(4, floors=1), 1, False),  # a share of more than half is its own
        (ledger_of(2, 2, waiting=4), 4, False),
        (ledger_of(floors=4), 4, False),
        (ledger_of(0, 8), 50, False),
        (ledger_of(1, 7), 50, True),
    ],
)
def test_each_of_several_namespaces_has_its_share_and_of_what_is_left_up_to_half_of_all(
    ledger: dict[str, Entry], namespaces: int, full: bool
) -> None:
    assert is_full(ledger, 8, State.ADMITTED, "a", namespaces) is full
