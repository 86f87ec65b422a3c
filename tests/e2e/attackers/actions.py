"""How the attackers draw what they do."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

Weighted = Sequence[tuple[int, Callable[[], int]]]


class Budget:
    """How many actions all attackers do together; beyond that they go on until it was enough of a fight.

    `patience` is seconds after which nobody goes on.
    """

    def __init__(self, actions: int, enough: Callable[[], bool], patience: float) -> None:
        self.done = 0
        self._actions = actions
        self._enough = enough
        self._deadline = time.monotonic() + patience
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Whether there is one more action to do."""
        with self._lock:
            if time.monotonic() > self._deadline or (self.done >= self._actions and self._enough()):
                return False
            self.done += 1
            return True


class Actor:
    """One attacker: what it does follows from `dice`, and from what it sees. An action gives a status code."""

    def __init__(self, dice: random.Random, pause: float = 0.0) -> None:
        self.dice = dice
        self.pause = pause
        """Seconds between actions, so that those who are quick leave some to the others."""
        self.answers: Counter[tuple[str, int]] = Counter()
        """How often each action was answered with each code, by the action's name."""

    def actions(self) -> Weighted:
        """What there is to do, each with its weight."""
        raise NotImplementedError

    def run(self, budget: Budget) -> None:
        weighted = self.actions()
        weights = [weight for weight, _ in weighted]
        while budget.take():
            ((_, act),) = self.dice.choices(weighted, weights)
            code = act()
            self.answers[act.__name__, code] += 1
            time.sleep(self.pause)
