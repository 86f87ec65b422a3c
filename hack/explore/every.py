"""All scenarios of charging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hack.explore import claims, scenarios, updates
from hack.explore.world import Scenario

SCENARIOS = (*scenarios.SCENARIOS, *claims.SCENARIOS, *updates.SCENARIOS)


def named(
    name: str, accidents: Mapping[str, int], most: int | None = None, among: Sequence[Scenario] = SCENARIOS
) -> Scenario:
    """A scenario by its name, with these accidents, and so many of them at most."""
    (found,) = (each for each in among if each.name == name)
    accidents = {kind: times for kind, times in accidents.items() if kind not in found.spared}
    return replace(found, accidents=accidents, most=sum(accidents.values()) if most is None else most)
