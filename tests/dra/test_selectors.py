"""CEL that tenants write: what it selects, and that none of it holds anything up."""

from __future__ import annotations

import itertools
from time import perf_counter

import pytest

from hami_webhook.dra.cost import cost_of
from hami_webhook.dra.selectors import LONGEST_EXPRESSION, selected

from .objects import HAMI, exactly, inventory, published, requests, resource_slice, share

DEVICES = published([resource_slice("n1", share("d0"), share("d1", "24Gi"))]).all
LIST = "[1,2,3,4,5,6,7,8,9,10]"
ENDLESS = "".join(f"{LIST}.all({name}, " for name in "abcdefgh") + "true" + ")" * 8


def names(*expressions: str) -> list[str]:
    found = selected(DEVICES, expressions, seconds=10.0, clock=perf_counter)
    return [device.id.name for device in found]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (f'device.driver == "{HAMI}"', ["d0", "d1"]),
        (f'device.attributes["{HAMI}"].uuid in ["d1", "d7"]', ["d1"]),
        (f'device.attributes["{HAMI}"].productName.matches("(?i)a100")', ["d0", "d1"]),
        (f'device.capacity["{HAMI}"].memory.isGreaterThan(quantity("30Gi"))', ["d0"]),
        (f'device.capacity["{HAMI}"].memory.isLessThan(quantity("30Gi"))', ["d1"]),
        ("device.allowMultipleAllocations", ["d0", "d1"]),
        # no scheduler gives a device for which it fails
        (f'device.attributes["{HAMI}"].missing == "x"', []),
        ('device.attributes["other.example.com"].missing == "x"', []),
        ("false", []),
    ],
)
def test_devices_are_selected_as_kubernetes_does(expression: str, expected: list[str]) -> None:
    assert names(expression) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "this is no CEL",
        'device.attributes["x"].version.isLessThan(semver("1.2.3"))',
        'device.driver == "" || quantity("much") > 0.0',
        "1",
        ENDLESS,
        "(" * 1200 + "false" + ")" * 1200,
        f'"{"x" * LONGEST_EXPRESSION}" == ""',
    ],
)
def test_what_cannot_be_judged_may_be_selected(expression: str) -> None:
    assert names(expression, f'device.attributes["{HAMI}"].uuid == "d1"') == ["d1"]


def test_the_time_for_all_devices_of_a_claim_is_bounded() -> None:
    """By the clock that is passed in: with each look at it a second passes, two of them to compile the expression."""
    ticks = itertools.count()
    found = selected(DEVICES * 10, ["false"], seconds=7.0, clock=lambda: float(next(ticks)))
    assert len(found) == 2 * 10 - 4


def test_requests_of_a_claim_share_its_time() -> None:
    """The second finds none left, and costs the least of all devices."""
    ticks = itertools.count()
    slow = [exactly(cel=f"device.driver == '{name}'", cores="1") for name in "xy"]
    cluster = inventory(resource_slice("n1", share("d0"), share("d1", "24Gi")), classes={})
    found = cost_of(requests(*slow), cluster, seconds=2.5, clock=lambda: float(next(ticks)))
    assert len(found.problems) == 1
    assert found.debits["NVIDIA"].memory == 1 + 24576


def test_what_the_same_requests_cost_is_found_once_for_the_same_devices() -> None:
    asked = []

    def clock() -> float:
        asked.append(1)
        return 0.0

    devices = inventory(resource_slice("n1", share("a0")))
    slow = requests(exactly(cel=ENDLESS))
    first = cost_of(slow, devices, clock=clock)
    before = len(asked)
    assert cost_of(slow, devices, clock=clock) is first
    assert len(asked) == before
    assert cost_of(requests(exactly(cel=ENDLESS, memory="1Gi")), devices, clock=clock) != first
