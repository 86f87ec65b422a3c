"""The model of quota, walked by hypothesis and by plain dice."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import Phase, settings

from .model import KINDS_OF_POD, NOTHING, Accident, QuotaModel

EXAMPLES = settings().max_examples
QuotaModel.TestCase.settings = settings(
    max_examples=EXAMPLES // 4,
    stateful_step_count=50,
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.generate),
)
TestQuotaModel = QuotaModel.TestCase


def accident(dice: random.Random) -> Accident:
    if dice.random() < 0.5:
        return NOTHING
    at = dice.choice(
        ["get:before", "list:before", "patch_status:before", "patch_status:after", "patch:before", "patch:after"]
    )
    return at, dice.randint(1, 2), dice.choice(["crash", "break", "native", "recount", "recompute", "admit"])


@pytest.mark.parametrize("seed", range(EXAMPLES // 2))
def test_a_long_random_walk(seed: int) -> None:
    """The same machine, driven hard where hypothesis is shy: most steps create, place and recompute."""
    dice = random.Random(seed)
    machine = QuotaModel()

    def number() -> int:
        return dice.randrange(20)

    moves: list[tuple[int, Callable[[], None]]] = [
        (
            6,
            lambda: machine.user_creates(
                dice.choice(["half", *KINDS_OF_POD]),
                dice.random() < 0.3,
                dice.randrange(2),
                accident(dice),
                dice.random() < 0.1,
                dice.random() < 0.9,
                dice.random() < 0.3,
            ),
        ),
        (8, lambda: machine.extender_places(number(), accident(dice))),
        (1, machine.api_server_stores),
        (2, lambda: machine.pod_is_bound(number())),
        (3, lambda: machine.kubelet_reports(number(), dice.choice(["Running", "Succeeded", "Failed"]))),
        (2, lambda: machine.user_deletes(number(), dice.choice([None, 30]))),
        (
            4,
            lambda: machine.user_annotates(
                number(), dice.choice(["", "H100", "A10"]), dice.randrange(2), accident(dice), dice.random() < 0.8
            ),
        ),
        (2, lambda: machine.node_comes_or_goes(dice.choice(["n2", "n3"]))),
        (1, lambda: machine.admin_changes_hard(dice.choice([8000, 20000, 30000]))),
        (1, lambda: machine.kubernetes_recomputes(dice.random() < 0.5)),
        (4, lambda: machine.cache_catches_up(dice.randrange(2))),
        (4, lambda: machine.controller_works(accident(dice))),
        (4, lambda: machine.time_passes(dice.choice([0.3, 1, 5, 20, 50]))),
    ]
    machine.start()
    try:
        for _ in range(60):
            dice.choices([move for _, move in moves], [weight for weight, _ in moves])[0]()
            machine.covers()
        machine.all_comes_to_rest()
    finally:
        machine.teardown()
