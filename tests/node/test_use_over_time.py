"""When containers used a card last, and what they used in all, against sums that are made otherwise."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from hami_webhook.node.cards import CardMetrics
from hami_webhook.node.region import V0, V1_1, DeviceUse, Region
from hami_webhook.node.region_files import ContainerKey
from hami_webhook.node.use_over_time import UseOverTime

MIB = 1 << 20
START = 1_700_000_000.0
CARDS = [CardMetrics(0, "GPU-0", "A", *[None] * 5), CardMetrics(1, "GPU-1", "B", *[None] * 5)]
KEY = ContainerKey("uid", "main")


def region(*devices: tuple[str, int, int], last_kernel: int = 0) -> Region:
    """A region with the UUID, MiB and percent of each device."""
    found = tuple(
        DeviceUse(index, uuid, 0, 0, 0, 0, memory * MIB, percent)
        for index, (uuid, memory, percent) in enumerate(devices)
    )
    return Region(V1_1 if last_kernel else V0, found, 0, 0, 0, last_kernel)


def test_sums_are_those_of_a_minute_by_minute_account() -> None:
    """Containers of three teams come, compute now and then, and go, and the node is read at odd times."""
    chance = random.Random(31)
    over_time = UseOverTime()
    cards: dict[tuple[str, str], float] = defaultdict(float)
    memory: dict[tuple[str, str], float] = defaultdict(float)
    running: dict[ContainerKey, tuple[str, str, int, int]] = {}
    now = START
    for _ in range(300):
        step = chance.choice([1.0, 15.0, 30.0, 45.0])
        now += step
        kept = {key: held for key, held in running.items() if chance.random() < 0.9}
        for team, uuid, mib, percent in kept.values():
            owner = team, "NVIDIA-A" if uuid == "GPU-0" else "NVIDIA-B" if uuid == "GPU-1" else ""
            cards[owner] += step * (percent > 0)
            memory[owner] += step * mib
        running = {
            key: (team, uuid, chance.randrange(4000), chance.choice([0, 0, 70]))
            for key, (team, uuid, *_) in kept.items()
        }
        key = ContainerKey(f"uid-{chance.random()}", "main")
        running[key] = f"team-{chance.randrange(3)}", f"GPU-{chance.randrange(3)}", chance.randrange(4000), 50
        over_time.follow(
            {key: (team, region((uuid, mib, percent))) for key, (team, uuid, mib, percent) in running.items()},
            CARDS,
            now,
        )
    found = {(owner.namespace, owner.model): (used.cards, used.memory) for owner, used in over_time.sums.items()}
    assert len(found) == 9
    assert found == {owner: pytest.approx((cards[owner], memory[owner])) for owner in found}


def test_a_series_begins_with_0_and_an_hour_after_its_last_pod_is_gone() -> None:
    over_time = UseOverTime()
    over_time.follow({KEY: ("team-a", region(("GPU-0", 10, 50)))}, CARDS, START)
    assert [(used.cards, used.memory) for used in over_time.sums.values()] == [(0.0, 0.0)]
    over_time.follow({}, CARDS, START + 3599)
    assert len(over_time.sums) == 1
    over_time.follow({}, CARDS, START + 3601)
    assert over_time.sums == {}


def test_what_nobody_saw_for_long_does_not_count_and_a_lie_stays_a_number() -> None:
    over_time = UseOverTime()
    for at in (START, START + 10_000, START + 5_000):
        over_time.follow({KEY: ("team-a", region(("GPU-0", 2**44 - 1, 100)))}, CARDS, at)
    (used,) = over_time.sums.values()
    assert (used.cards, used.memory) == (300.0, 300.0 * 2**20)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([(0, region(("GPU-0", 1, 0), last_kernel=int(START) - 70))], -70.0),
        ([(0, region(("GPU-0", 1, 30), last_kernel=int(START) - 70))], 0.0),  # a kernel that runs for long
        ([(0, region(("GPU-0", 1, 0), last_kernel=int(START) + 10**9))], 0.0),
        ([(0, region(("GPU-0", 1, 0))), (90, region(("GPU-0", 1, 0)))], 0.0),
        ([(0, region(("GPU-0", 1, 0))), (60, region(("GPU-0", 1, 5))), (90, region(("GPU-0", 1, 0)))], 60.0),
    ],
    ids=["as it says", "it computes", "in the future", "never since it is seen", "seen to compute"],
)
def test_when_it_was_used_last(readings: list[tuple[int, Region]], expected: float) -> None:
    over_time = UseOverTime()
    for after, found in readings:
        over_time.follow({KEY: ("team-a", found)}, CARDS, START + after)
    assert over_time.last_used[KEY] == START + expected
