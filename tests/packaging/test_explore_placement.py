"""`make explore`, its half of placement: every interleaving of filter, bind, locks and groups, and planted faults.

The scenarios with their small bounds are gone through whole; the larger ones, and most faults, by `make explore`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hack.explore.every import named
from hack.explore.faults import Planted, planted
from hack.explore.placement_faults import FAULTS
from hack.explore.placement_scenarios import ONCE, SCENARIOS
from hack.explore.scenarios import vendors
from hack.explore.search import explore, path_of, replayed, walk
from hack.explore.world import Scenario

QUICK = (
    "what others bound during the wait for a lock isn't looked at",
    "the lock goes though the pod may be bound",
    "locks that were left are released at the first look",
    "a group of which one doesn't fit keeps what was found",
)
"""Faults that any run of this suite has to notice; `python -m hack.explore --faults` plants all."""
SMALL = [each for each in SCENARIOS if each.small is not None]


@pytest.mark.integration
@pytest.mark.parametrize("scenario", SMALL, ids=[each.name for each in SMALL])
def test_every_interleaving_keeps_the_rules(scenario: Scenario) -> None:
    found = explore(named(scenario.name, ONCE, scenario.small, SCENARIOS), vendors())
    assert found.complete, found.fault and replayed(scenario, vendors(), found.fault.path)


@pytest.mark.parametrize("fault", [each for each in FAULTS if each.name in QUICK], ids=lambda fault: fault.name)
def test_a_planted_fault_has_a_story_that_can_be_told_again(fault: Planted) -> None:
    scenario = named(fault.scenario, fault.accidents, among=SCENARIOS)
    with planted(fault):
        found = explore(scenario, vendors())
        assert found.fault is not None
        story, broken = replayed(scenario, vendors(), path_of(found.fault.number))
    assert broken == found.fault.text
    assert story[0].startswith("  1. ")
    assert replayed(scenario, vendors(), found.fault.path)[1] == ""


def test_every_fault_can_be_planted() -> None:
    """A fault whose text is gone would be one that nothing notices."""
    assert len({each.name for each in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        with planted(fault):
            pass
        assert bool(fault.scenario) != bool(fault.why)


@pytest.mark.parametrize(
    ("scenario", "accidents", "number"),
    [
        ("two-schedulers", {}, "01"),
        ("foreign", {}, "0"),
        ("room-for-one", {"stop": 1}, "002"),
        ("new-leader", {"lost": 1}, "01003"),
        ("new-leader", {}, "022"),
    ],
)
def test_a_run_that_once_broke_a_rule_breaks_none(scenario: str, accidents: Mapping[str, int], number: str) -> None:
    """docs/security.md#every-interleaving says what they were."""
    found = named(scenario, accidents, among=SCENARIOS)
    story, broken = replayed(found, vendors(), path_of(number))
    assert len(story) > len(number)
    assert broken == ""


def test_a_run_is_the_same_each_time() -> None:
    scenario = named("two-schedulers", ONCE, among=SCENARIOS)
    runs = [explore(scenario, vendors(), most_states=200) for _ in range(2)]
    assert (runs[0].states, runs[0].steps) == (runs[1].states, runs[1].steps)
    assert walk(scenario, vendors(), 1, 5).fault is None
