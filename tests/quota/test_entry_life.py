"""The table of what becomes of ledger entries, and the page that shows it (docs/spec/quota.md#6)."""

from __future__ import annotations

from pathlib import Path

from hami_webhook.quota.entry_life import LIFE, Event, Fate
from hami_webhook.quota.ledger import State

PAGE = Path(__file__).parents[2] / "docs/spec/quota.md"


def as_markdown() -> str:
    rows = [["event", *(f"`{state.value}`" for state in LIFE)], ["---"] * (1 + len(LIFE))]
    for event in Event:
        fates = (LIFE[state].get(event) for state in LIFE)
        rows.append([event.value, *("–" if fate is None else fate.value for fate in fates)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).replace("| --- |", "|---|").replace(" --- |", "---|")


def test_the_specification_shows_the_table() -> None:
    text = PAGE.read_text()
    start = text.index("| event | `admitted`")
    assert text[start : text.index("\n\n", start) + 1] == as_markdown()


def test_whatever_an_entry_waits_for_it_ends() -> None:
    for state, fates in LIFE.items():
        ends = {event for event, fate in fates.items() if fate is Fate.DROPPED}
        # of a floor entry, which is of many pods, the last one that needs it is the evidence
        assert ends & ({Event.SHOWN, Event.GONE} if state is not State.FLOOR else {Event.OLD}), state
        if Event.UNSEEN in fates:
            assert fates[Event.OLD] is Fate.DROPPED, "what never comes would be charged for ever"


def test_no_age_ends_what_a_pod_that_waits_costs() -> None:
    assert all(fates.get(Event.NEEDED) is not Fate.DROPPED for fates in LIFE.values())
    assert Event.OLD not in LIFE[State.WAITING]


def test_every_state_is_there_and_says_what_a_new_quota_or_new_cards_do_to_it() -> None:
    assert set(LIFE) == set(State)
    assert all({Event.REPLACED, Event.OTHER_CARDS} <= fates.keys() for fates in LIFE.values())
