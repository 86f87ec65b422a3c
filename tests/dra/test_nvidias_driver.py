"""What devices of NVIDIA's driver cost beyond whole cards: passthrough, shares of its feature ConsumableShares, and
capacities by their fully qualified names (docs/spec/dra.md#3 and #5).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.devices.debit import Debit
from hami_webhook.dra.allocation import allocated
from hami_webhook.dra.cost import cost_of

from .objects import (
    HAMI,
    JSON,
    MIG,
    NVIDIA,
    VFIO,
    consumable,
    exactly,
    inventory,
    passed_through,
    requests,
    resource_slice,
    result,
    share,
    total,
    whole,
)


def waiting(device: JSON, device_class: str = NVIDIA, driver: str = NVIDIA, **amounts: Any) -> Debit:
    """What a request costs while it waits, where there is one device."""
    request = exactly(device_class)
    if amounts:
        request["capacity"] = {"requests": amounts}
    return cost_of(requests(request), inventory(resource_slice("n1", device, driver=driver))).debits["NVIDIA"]


def held(device: JSON, driver: str = NVIDIA, **consumed: str) -> Debit:
    """What an allocation of the device costs that consumed this."""
    found = result(device["name"], driver=driver, consumedCapacity=consumed) if consumed else None
    found = found or result(device["name"], driver=driver)
    return total(allocated([found], inventory(resource_slice("n1", device, driver=driver)).devices).devices)["NVIDIA"]


def test_a_card_that_is_passed_through_costs_all_of_it() -> None:
    card = passed_through("v0", "80Gi")
    assert waiting(card, VFIO) == held(card) == Debit(1, 81920, 100)


@pytest.mark.parametrize(
    ("mode", "requested", "consumed", "debit"),
    [
        # shares of 1/4, though no memory is asked for; more shares, more of the card
        ("4", {}, {"memory": "0", "shares": "1"}, Debit(1, 10240, 25)),
        ("4", {"memory": "0"}, {"memory": "0", "shares": "1"}, Debit(1, 10240, 25)),
        ("4", {"shares": "2"}, {"memory": "0", "shares": "2"}, Debit(1, 20480, 50)),
        ("4", {"memory": "30Gi"}, {"memory": "30Gi", "shares": "1"}, Debit(1, 30720, 25)),
        ("3", {}, {"memory": "0", "shares": "1"}, Debit(1, 13654, 34)),
        # nothing limits a share of an unlimited number: it may use all
        ("unlimited", {}, {"memory": "0"}, Debit(1, 40960, 100)),
        ("unlimited", {"memory": "1Mi"}, {"memory": "1Mi"}, Debit(1, 40960, 100)),
        # by memory: what is asked for, by default all
        ("memory", {}, {"memory": "40Gi"}, Debit(1, 40960, 100)),
        ("memory", {"memory": "10Gi"}, {"memory": "10Gi"}, Debit(1, 10240, 100)),
    ],
)
def test_a_share_costs_its_part_of_the_card(
    mode: str, requested: dict[str, str], consumed: dict[str, str], debit: Debit
) -> None:
    card = consumable("c0", mode)
    assert (waiting(card, **requested), held(card, **consumed)) == (debit, debit)


def test_a_share_of_a_mig_instance_costs_its_part_of_the_memory() -> None:
    instance = consumable("m0", "2", "20Gi", "mig")
    assert waiting(instance, MIG) == held(instance, memory="0", shares="1") == Debit(1, 10240, 0)


def test_a_share_of_no_memory_whose_card_is_gone_is_not_known() -> None:
    gone = [result("gone", driver=NVIDIA, consumedCapacity={"memory": "0", "shares": "1"})]
    found = allocated(gone, inventory(resource_slice("n1", consumable("c0", "4"), driver=NVIDIA)).devices)
    assert (found.devices, found.unpriced) == ((), ())
    assert found.unseen == (f"device gone of pool n1 of driver {NVIDIA} is in no ResourceSlice",)


@given(memory=st.integers(0, 50_000), cores=st.integers(0, 110))
def test_a_qualified_name_costs_what_the_short_one_does(memory: int, cores: int) -> None:
    """Kubernetes 1.38 takes both; of both in one request, which it refuses, the larger counts."""
    card, amounts = share("a0"), {"memory": f"{memory}Mi", "cores": str(cores)}
    qualified = {f"{HAMI}/{name}": amount for name, amount in amounts.items()}
    costs = [
        waiting(card, HAMI, HAMI, **each)
        for each in (amounts, qualified, {**amounts, f"{HAMI}/memory": "0"}, {**qualified, "memory": "0"})
    ]
    assert costs == [costs[0]] * 4
    assert held(card, HAMI, **amounts) == held(card, HAMI, **qualified)
    assert held(card, HAMI, **amounts, **{f"{HAMI}/memory": "0"}) == held(card, HAMI, **amounts)


def test_shares_by_their_qualified_name_cost_the_same() -> None:
    card = consumable("c0", "4")
    assert waiting(card, **{f"{NVIDIA}/shares": "3"}) == waiting(card, shares="3") == Debit(1, 30720, 75)


def test_a_device_of_a_type_without_a_row_is_told_apart_from_one_that_no_slice_has() -> None:
    slices = inventory(resource_slice("n1", whole("x0", kind="vgpu"), whole("c0"), driver=NVIDIA))
    found = allocated([result("x0", driver=NVIDIA), result("gone", driver=NVIDIA)], slices.devices)
    assert found.devices == ()
    assert found.unseen == (f"device gone of pool n1 of driver {NVIDIA} is in no ResourceSlice",)
    (text,) = found.unpriced
    assert text.startswith(f"device x0 of pool n1 of driver {NVIDIA} is of type vgpu, and no row of dra.devices prices")
