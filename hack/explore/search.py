"""Every run of a scenario, the simplest first, until no state is new; beyond that, random walks.

A run is the list of choices that it takes, by their numbers; 0, the most ordinary one, goes on where the last step
was. The runs with the fewest accidents come first, and of these the ones with the fewest other choices, so that the
first fault found has a short story. Nothing that a process does depends on anything but what it has learned, so two
runs that left the same objects, and showed every process the same, go on in the same way: of them one is followed. That
is the partial-order reduction, too: steps that don't concern each other lead to the same state in either order. An
accident that had no effect, as a late answer that nobody missed, leads back to a state that was seen without it.

When all have acted, leaders recompute until nothing is due. Of ends that differ only in what the others have learned,
who do nothing any more, one is settled.
"""

from __future__ import annotations

import heapq
import logging
import math
import random
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hack.explore.rules import Broken
from hack.explore.world import Choice, Scenario
from hami_webhook import time_slices
from hami_webhook.devices.registry import Vendors

Path = tuple[int, ...]
MOST_STEPS = 400
"""Of one run: what takes more goes in circles."""
_Next = tuple[int, int, int, Path]
"""A run to be followed: its accidents, its choices other than the ordinary ones, its length, and its choices."""
_Seen = dict[int, list[frozenset[tuple[str, int]]]]
"""By state the accidents that had happened where it was seen."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Fault:
    """A rule that doesn't hold, and the run that shows it."""

    scenario: str
    text: str
    path: Path

    @property
    def number(self) -> str:
        """What `replayed` takes: the choices in base 36, those above 35 in brackets; zeros at the end left out."""
        taken = list(self.path)
        while taken and taken[-1] == 0:
            taken.pop()
        return "".join(_DIGITS[choice] if choice < len(_DIGITS) else f"({choice})" for choice in taken) or "0"


@dataclass
class Explored:
    """How much was looked at, and the first fault. `complete`: nothing that the bounds allow is left."""

    scenario: str
    states: int = 0
    runs: int = 0
    steps: int = 0
    longest: int = 0
    seconds: float = 0.0
    complete: bool = False
    fault: Fault | None = None


def path_of(number: str) -> Path:
    """The choices of a run by its number."""
    found: list[int] = []
    rest = number
    while rest:
        if rest[0] == "(":
            text, _, rest = rest[1:].partition(")")
            found.append(int(text))
        else:
            found.append(_DIGITS.index(rest[0]))
            rest = rest[1:]
    return tuple(found)


class _Run:
    """One run, from the beginning."""

    def __init__(
        self,
        scenario: Scenario,
        vendors: Vendors,
        note: Callable[[str], None] = lambda text: None,
        settled: set[Hashable] | None = None,
    ) -> None:
        """`settled` are the ends that needn't be settled again; those of this run are added."""
        self.world = scenario.world(vendors, note)
        self.path: list[int] = []
        self.over = False
        self._settled = set() if settled is None else settled

    def choices(self) -> list[Choice]:
        """What may happen next; nothing when the run is over. Raises `Broken`."""
        world = self.world
        if world.done or self.over:
            self._settle()
            return []
        found = world.choices()
        if not found:
            world.stuck()
        if len(self.path) > MOST_STEPS:
            raise Broken(f"no end after {MOST_STEPS} steps")
        return found

    def take(self, number: int, choices: Sequence[Choice]) -> None:
        self.path.append(number)
        self.world.take(choices[number])

    def _settle(self) -> None:
        if not self.over:
            self.over = True
            ending = self.world.ending()
            if ending is None or ending not in self._settled:
                self.world.settle()
                self._settled.add(ending)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the log, as accidents are what is wanted here, and without slices of real time."""
    before = logging.root.manager.disable, time_slices.SLICE
    logging.disable(logging.CRITICAL)
    time_slices.SLICE = math.inf
    try:
        yield
    finally:
        logging.disable(before[0])
        time_slices.SLICE = before[1]


def explore(
    scenario: Scenario,
    vendors: Vendors,
    *,
    most_states: int | None = None,
    seconds: float | None = None,
    progress: Callable[[Explored], None] = lambda found: None,
) -> Explored:
    """All runs, until a rule is broken or nothing is new; or until so many states, or seconds of CPU."""
    found = Explored(scenario.name)
    began = time.process_time()
    seen: _Seen = {}
    settled: set[Hashable] = set()
    frontier: list[_Next] = [(0, 0, 0, ())]
    with _quiet():
        while frontier and found.fault is None:
            if (most_states and found.states >= most_states) or (seconds and time.process_time() - began > seconds):
                break
            _, cost, _, prefix = heapq.heappop(frontier)
            run = _Run(scenario, vendors, settled=settled)
            try:
                _follow(run, prefix, cost, seen, frontier, found)
            except Broken as broken:
                found.fault = Fault(scenario.name, str(broken), tuple(run.path))
            finally:
                run.world.end()
            found.runs += 1
            found.seconds = time.process_time() - began
            progress(found)
    found.complete = not frontier and found.fault is None
    return found


def _follow(run: _Run, prefix: Path, cost: int, seen: _Seen, frontier: list[_Next], found: Explored) -> None:
    """Take a run's first choices, then ordinary ones until it is over or comes to a state that was seen before."""
    for number in prefix:
        run.take(number, run.choices())
        found.steps += 1
    while True:
        spent = run.world.spent
        before = seen.setdefault(run.world.signature(), [])
        if any(each <= spent for each in before):
            return
        before.append(spent)
        found.states += 1
        choices = run.choices()
        found.longest = max(found.longest, len(run.path))
        if not choices:
            return
        for number in range(1, len(choices)):
            accidents = len(spent) + bool(choices[number].accident)
            heapq.heappush(frontier, (accidents, cost + 1, len(run.path) + 1, (*run.path, number)))
        run.take(0, choices)
        found.steps += 1


def walk(scenario: Scenario, vendors: Vendors, seed: int, walks: int) -> Explored:
    """Random runs: half of their choices are ordinary, the others any. `states` are those that were seen."""
    found = Explored(scenario.name)
    began = time.process_time()
    seen: set[int] = set()
    with _quiet():
        for number in range(walks):
            dice = random.Random(f"{seed} {number}")
            run = _Run(scenario, vendors)
            try:
                while choices := run.choices():
                    seen.add(run.world.signature())
                    run.take(dice.randrange(len(choices)) if dice.random() < 0.5 else 0, choices)
            except Broken as broken:
                found.fault = Fault(scenario.name, str(broken), tuple(run.path))
            finally:
                run.world.end()
            found.runs += 1
            found.steps += len(run.path)
            found.longest = max(found.longest, len(run.path))
            found.states = len(seen)
            if found.fault:
                break
    found.seconds = time.process_time() - began
    return found


def replayed(scenario: Scenario, vendors: Vendors, path: Path) -> tuple[list[str], str]:
    """The story of a run, in numbered steps, and what it breaks; empty if nothing.

    Where the code has changed since, and there are fewer choices, the ordinary one is taken.
    """
    story: list[str] = []
    steps = 0

    def note(text: str) -> None:
        nonlocal steps
        steps += not text.startswith(" ")
        story.append(text if text.startswith(" ") else f"{steps:3}. {text}")

    with _quiet():
        run = _Run(scenario, vendors, note)
        story.clear()
        steps = 0
        try:
            taken = iter(path)
            while choices := run.choices():
                number = next(taken, 0)
                run.take(number if number < len(choices) else 0, choices)
        except Broken as broken:
            return story, str(broken)
        finally:
            run.world.end()
    return story, ""
