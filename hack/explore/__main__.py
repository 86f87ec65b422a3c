"""`python -m hack.explore`: every interleaving of charging and of placement in small scenarios, and whether rules hold.

The core runs as it is, on a simulated API server; what happens next (which request takes effect, whose answer is lost
or late, which watch lags, who ends, when time passes) is chosen, and every choice is tried. A fault is told as a story
of numbered steps, and has a number by which `--replay` tells it again.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hack.explore import every, placement_faults, placement_scenarios, scenarios
from hack.explore.faults import FAULTS
from hack.explore.planting import planted
from hack.explore.search import Explored, Fault, explore, path_of, replayed, walk
from hack.explore.world import Scenario

_LARGE = 2
SCENARIOS: Sequence[Scenario] = (*every.SCENARIOS, *placement_scenarios.SCENARIOS)
_HEADER = f"{'scenario':<24} {'accidents':>9} {'states':>9} {'runs':>8} {'steps':>9} {'longest':>7} {'CPU s':>7}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m hack.explore", description=__doc__)
    parser.add_argument("scenario", nargs="*", choices=[[], *(each.name for each in SCENARIOS)])
    parser.add_argument(
        "--accidents", type=int, help="how many at most; by default those of each scenario's small bounds"
    )
    parser.add_argument(
        "--seconds", type=float, help="of CPU for each scenario, after which the rest is walked at random"
    )
    parser.add_argument("--walks", type=int, default=200, help="random runs where the rest wasn't looked at (200)")
    parser.add_argument("--replay", metavar="NUMBER", help="tell a run of one scenario by its number")
    parser.add_argument("--faults", action="store_true", help="plant the known faults, one after the other")
    options = parser.parse_args(arguments)
    if options.faults:
        return _plant(options.seconds)
    gc.freeze()
    chosen = [each for each in SCENARIOS if not options.scenario or each.name in options.scenario]
    bounds = {each.name: each.small or 0 if options.accidents is None else options.accidents for each in chosen}
    chosen = [every.named(each.name, once(each), bounds[each.name], SCENARIOS) for each in chosen]
    if options.replay is not None:
        return _tell(chosen[0], options.replay)
    print(_HEADER)
    return max(_explored(each, options.seconds, options.walks) for each in chosen)


def once(scenario: Scenario) -> Mapping[str, int]:
    """All accidents that it may have, once each."""
    return placement_scenarios.ONCE if scenario in placement_scenarios.SCENARIOS else scenarios.ONCE


def _explored(scenario: Scenario, seconds: float | None, walks: int) -> int:
    found = explore(scenario, scenarios.vendors(), seconds=seconds)
    print(_row(scenario, found), "" if found.complete or found.fault else "not all", flush=True)
    if not found.complete and not found.fault:
        found = walk(replace(scenario, most=scenario.most + _LARGE), scenarios.vendors(), 1, walks)
        print(_row(scenario, found), "random walks", flush=True)
    if found.fault is None:
        return 0
    return _tell(scenario, found.fault.number)


def _row(scenario: Scenario, found: Explored) -> str:
    return (
        f"{scenario.name:<24} {scenario.most:>9} {found.states:>9} {found.runs:>8} {found.steps:>9} {found.longest:>7} "
        f"{found.seconds:>7.1f}"
    )


def _tell(scenario: Scenario, number: str) -> int:
    story, broken = replayed(scenario, scenarios.vendors(), path_of(number))
    print(f"\n{scenario.title}\nrun {number}, of {scenario.most} accidents at most:")
    print("\n".join(story))
    print(f"\nbroken: {broken}" if broken else "\nnothing is broken")
    return int(bool(broken))


def _plant(seconds: float | None) -> int:
    """Each fault with the scenario that finds it; whether all that should be found are."""
    missed = 0
    for fault in (*FAULTS, *placement_faults.FAULTS):
        if not fault.scenario:
            print(f"not found   {fault.name}: {fault.why}", flush=True)
            continue
        scenario = every.named(fault.scenario, fault.accidents, among=SCENARIOS)
        with planted(fault):
            found = explore(scenario, scenarios.vendors(), seconds=seconds)
        # the same run has to be right without the fault
        alone = found.fault and not replayed(scenario, scenarios.vendors(), found.fault.path)[1]
        missed += not alone
        print(_outcome(fault.name, found, found.fault if alone else None), flush=True)
    return int(missed > 0)


def _outcome(name: str, found: Explored, fault: Fault | None) -> str:
    if fault is None:
        return f"MISSED      {name} ({found.scenario}, {found.runs} runs)"
    return f"found       {name} ({found.scenario} {fault.number}, {found.runs} runs): {fault.text.partition(';')[0]}"


if __name__ == "__main__":
    sys.exit(main())
