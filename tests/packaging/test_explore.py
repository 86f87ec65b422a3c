"""`make explore`: every interleaving of charging and of placement in small scenarios, and whether faults are noticed.

The scenarios with their small bounds are gone through whole; the larger ones, and most faults, by `make explore`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hack.explore import every, placement_faults, placement_scenarios, scenarios
from hack.explore.__main__ import SCENARIOS, once
from hack.explore.faults import FAULTS
from hack.explore.planting import Change, Planted, planted
from hack.explore.planting import replace as replace_in
from hack.explore.search import explore, path_of, replayed, walk
from hack.explore.world import Scenario

QUICK = (
    "writes carry no resourceVersion",
    "what a refused batch wrote stays",
    "the gate goes before the charge",
    "what others bound during the wait for a lock isn't looked at",
    "the lock goes though the pod may be bound",
    "locks that were left are released at the first look",
    "a group of which one doesn't fit keeps what was found",
)
"""Faults that any run of this suite has to notice; `python -m hack.explore --faults` plants all."""
SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
SMALL = [each for each in SCENARIOS if each.small is not None]
PLANTED = (*FAULTS, *placement_faults.FAULTS)


@pytest.mark.integration
@pytest.mark.parametrize("scenario", SMALL, ids=[each.name for each in SMALL])
def test_every_interleaving_keeps_the_rules(scenario: Scenario) -> None:
    found = explore(every.named(scenario.name, once(scenario), scenario.small, SCENARIOS), scenarios.vendors())
    assert found.complete, found.fault and replayed(scenario, scenarios.vendors(), found.fault.path)


@pytest.mark.parametrize("fault", [each for each in PLANTED if each.name in QUICK], ids=lambda fault: fault.name)
def test_a_planted_fault_has_a_story_that_can_be_told_again(fault: Planted) -> None:
    scenario = every.named(fault.scenario, fault.accidents, among=SCENARIOS)
    with planted(fault):
        found = explore(scenario, scenarios.vendors())
        assert found.fault is not None
        story, broken = replayed(scenario, scenarios.vendors(), path_of(found.fault.number))
    assert broken == found.fault.text
    assert story[0].startswith("  1. ")
    assert replayed(scenario, scenarios.vendors(), found.fault.path)[1] == ""


def test_every_fault_can_be_planted() -> None:
    """A fault whose place is gone would be one that nothing notices."""
    assert len({each.name for each in PLANTED}) == len(PLANTED)
    assert {each.name for each in PLANTED}.issuperset(QUICK)
    for fault in PLANTED:
        with planted(fault):
            pass
        assert bool(fault.scenario) != bool(fault.why)


@pytest.mark.parametrize(
    ("function", "before", "message"),
    [
        ("free", "of < 0", "0 functions are called free"),
        ("Room.free", "of < 1", "Room.free has 'of < 1' 0 times"),
        ("Room.free", "of", "Room.free has 'of' 2 times"),
    ],
)
def test_a_fault_whose_place_is_gone_says_so(function: str, before: str, message: str) -> None:
    source = "class Room:\n    def free(self, of):\n        if of < 0: raise Full(of)\n"
    with pytest.raises(LookupError) as error:
        replace_in(ast.parse(source), Change(function, before, "None"))
    assert str(error.value) == message


@pytest.mark.parametrize("faults", [FAULTS, placement_faults.FAULTS], ids=["charging", "placement"])
def test_the_page_says_how_many_are_found(faults: Sequence[Planted]) -> None:
    found = sum(bool(fault.scenario) for fault in faults)
    assert f"The explorer finds {found} of {len(faults)} planted faults" in SECURITY.read_text()


@pytest.mark.parametrize(
    ("name", "accidents", "most", "number"),
    [
        # the first scheduler took back what the second one's pod was bound by, all within a second
        ("placed-twice", {}, 1, "0200001001"),
        # the second replica, whose write was lost, took back what the first one had allowed the pod by
        ("repeated", scenarios.ONCE, 1, "0102"),
        # a pod was deleted and recomputed while the allocation of its claim was charged for what it cost beyond the pod
        ("generated", {}, 1, "010111"),
        # docs/security.md#every-interleaving says what these were
        ("two-schedulers", {}, None, "01"),
        ("foreign", {}, None, "0"),
        ("room-for-one", {"stop": 1}, None, "002"),
        ("new-leader", {"lost": 1}, None, "01003"),
        ("new-leader", {}, None, "022"),
        ("deleted", {"lost": 1}, None, "0400000211"),
        ("deleted", {"crash": 1}, None, "030000000211"),
        ("preemption-room", {}, None, "021111"),
        ("preemption-group-deleted", {}, None, "0111"),
        ("preemption-group-deleted", placement_scenarios.ONCE, 1, "0004"),
    ],
)
def test_a_run_that_once_broke_a_rule_breaks_none(
    name: str, accidents: Mapping[str, int], most: int | None, number: str
) -> None:
    story, broken = replayed(every.named(name, accidents, most, SCENARIOS), scenarios.vendors(), path_of(number))
    assert len(story) >= len(number)
    assert broken == ""


@pytest.mark.parametrize(
    ("name", "accidents", "states"),
    [("two-quotas", scenarios.ONCE, 60), ("two-schedulers", placement_scenarios.ONCE, 200)],
)
def test_a_run_is_the_same_each_time(name: str, accidents: Mapping[str, int], states: int) -> None:
    scenario = every.named(name, accidents, among=SCENARIOS)
    runs = [explore(scenario, scenarios.vendors(), most_states=states) for _ in range(2)]
    assert replace(runs[0], seconds=0) == replace(runs[1], seconds=0)
    assert walk(scenario, scenarios.vendors(), 1, 5).fault is None
