"""When containers used a card last, and what they used in all, against sums that are made otherwise."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest

from hami_webhook.node.cards import CardActivity, CardHealth, CardMetrics
from hami_webhook.node.feedback import BLOCKED
from hami_webhook.node.monitor import UseOverTime
from hami_webhook.node.region import V0, V1_1, DeviceUse, Region
from hami_webhook.node.region_files import ContainerKey

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


NEXT = ContainerKey("next", "main")
BUSY = region(("GPU-0", 1, 60))


class Driven:
    """A container whose card the driver samples every five seconds."""

    def __init__(self) -> None:
        self.over_time = UseOverTime()
        self.activity = CardActivity()
        self.now = START

    def idle(
        self,
        seconds: int,
        found: Region | None,
        *,
        computes: bool | None = False,
        cards: str = "GPU-0",
        neighbour: Region | None = None,
    ) -> float:
        """For how long it is idle, after so many seconds in which its region says that and its card does that."""
        wanted = {cards} if cards else set[str]()
        for _ in range(seconds // 5):
            self.now += 5
            self.activity.look([CardHealth("GPU-0", frozenset(), frozenset(), None, computes)], self.now)
            seen = {} if found is None else {KEY: ("team-a", found)}
            if neighbour is not None:
                seen[NEXT] = ("team-b", neighbour)
            self.over_time.follow(seen, CARDS, self.now, {KEY: wanted, NEXT: {"GPU-0"}}, self.activity)
        return self.now - self.over_time.last_used.get(KEY, self.now)


@pytest.mark.parametrize(
    "forged",
    [
        region(("GPU-0", 1, 0), last_kernel=int(START) + 10**9),
        region(("GPU-0", 1, 90), last_kernel=1),
        region(("GPU-7", 1, 90)),
        replace(region(("GPU-0", 1, 0), last_kernel=1), recent_kernel=BLOCKED),
    ],
    ids=["kernels", "utilisation", "another's card", "made to wait"],
)
def test_attack_a_region_that_claims_to_compute_is_idle_while_the_driver_sees_nothing(forged: Region) -> None:
    node = Driven()
    assert node.idle(600, forged, computes=True) == 0
    assert node.idle(3600, forged) == 3600
    assert node.idle(3600, forged, cards="") == 7200, "a pod without an allocation is held to the machine's cards"


def test_attack_a_region_that_is_made_again_does_not_begin_again() -> None:
    node, forged = Driven(), region(("GPU-0", 1, 90))
    node.idle(5, forged, computes=True)
    node.idle(3600, forged)
    node.idle(60, None)
    assert node.idle(60, region(("GPU-0", 1, 0))) == 3720


def test_ordinary_day_who_computes_or_waits_for_others_or_is_not_known_is_not_idle() -> None:
    node, rests = Driven(), region(("GPU-0", 1, 0), last_kernel=int(START))
    assert node.idle(3600, region(("GPU-0", 1, 30)), computes=True) == 0
    waits = replace(rests, recent_kernel=BLOCKED)
    assert node.idle(3600, waits, computes=True) == 0, "priority feedback keeps it from computing"
    claims = region(("GPU-0", 1, 30))
    assert node.idle(3600, claims, computes=None) == 0, "the driver has no samples, as with MIG"
    assert node.idle(3600, claims, computes=False, cards="GPU-9") == 0, "a card that the driver doesn't name"
    assert node.idle(3600, rests, computes=True) == 0, "its card computes, and nobody says so"


def test_who_rests_beside_one_that_computes_is_idle() -> None:
    node, rests = Driven(), region(("GPU-0", 1, 0), last_kernel=int(START))
    assert node.idle(3600, rests, computes=True, neighbour=BUSY) == 3600


def test_a_time_in_which_the_driver_was_not_asked_counts_as_computing() -> None:
    node, claims = Driven(), region(("GPU-0", 1, 30))
    node.idle(600, claims)
    node.now += 60
    assert node.idle(5, claims) == 0
    assert node.idle(600, claims) == 600


def test_what_the_driver_said_last_is_not_known_for_long() -> None:
    activity = CardActivity()
    assert activity.last({"GPU-0"}, START) is None
    activity.look([CardHealth("GPU-0", frozenset(), frozenset(), None, False)], START)
    assert [activity.last({"GPU-0"}, START + after) for after in (0, 15, 16, -1)] == [START, START, None, None]
    assert activity.last({"GPU-0", "GPU-1"}, START) is None
