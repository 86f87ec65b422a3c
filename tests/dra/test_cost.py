"""What claims cost before anything is allocated, and what allocations hold (docs/spec/dra.md)."""

from __future__ import annotations

from typing import Any

import pytest
from builders import container, read_pod
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.devices.debit import Debit
from hami_webhook.devices.keys import Dimension
from hami_webhook.dra.allocation import allocated
from hami_webhook.dra.cost import ClaimCost, cost_of, extended_requests
from hami_webhook.dra.devices import DeviceID, QualifiedName
from hami_webhook.kube.objects import MalformedObject

from .objects import (
    HAMI,
    JSON,
    MIG,
    NVIDIA,
    exactly,
    inventory,
    published,
    requests,
    resource_slice,
    result,
    share,
    total,
    whole,
)

CLUSTER = inventory(
    resource_slice("n1", share("a0"), share("a1")),
    resource_slice("n2", share("b0", "24Gi", "NVIDIA A10")),
    resource_slice("n3", whole("c0"), whole("c1", "80Gi", model="NVIDIA H100"), driver=NVIDIA),
    resource_slice("n4", whole("m0", "9728Mi", "mig"), whole("m1", "19968Mi", "mig"), driver=NVIDIA),
)
A10 = f'device.attributes["{HAMI}"].productName == "NVIDIA A10"'
BOTH = Dimension.MEMORY, Dimension.CORES


@in_one_test(
    ("request_", "debit", "floors"),
    [
        (exactly(memory="10Gi", cores="30"), Debit(1, 10240, 30), ()),
        (exactly(memory="10Gi", cores="30", count=2), Debit(2, 20480, 60), ()),
        # rounded as the device's policy says
        (exactly(memory="1048577", cores="0"), Debit(1, 2, 0), ()),
        (exactly(memory="1", cores="30500m"), Debit(1, 1, 31), ()),
        (exactly(memory="-5Gi", cores="1"), Debit(1, 1, 1), ()),
        # left out: the policy's default of the smallest
        (exactly(cores="10"), Debit(1, 24576, 10), (Dimension.MEMORY,)),
        (exactly(), Debit(1, 24576, 100), BOTH),
        # of those that have so much, and that selectors leave
        (exactly(memory="30Gi", cores="10"), Debit(1, 30720, 10), ()),
        (exactly(cel=f"!({A10})"), Debit(1, 40960, 100), BOTH),
        (exactly(cel=f'device.capacity["{HAMI}"].memory.compareTo(quantity("40Gi")) >= 0'), Debit(1, 40960, 100), BOTH),
        # cards and instances that aren't shared are given whole
        (exactly(NVIDIA), Debit(1, 40960, 100), BOTH),
        (exactly(NVIDIA, memory="41Gi"), Debit(1, 81920, 100), BOTH),
        (exactly(MIG), Debit(1, 9728, 0), BOTH),
        (exactly(MIG, memory="10Gi", count=2), Debit(2, 39936, 0), BOTH),
        # all of a node, of the one where they are least
        (exactly(allocationMode="All"), Debit(1, 24576, 100), BOTH),
        (exactly(allocationMode="All", memory="4Gi", cores="10", cel=f"!({A10})"), Debit(2, 8192, 20), ()),
        # a domain that the device lacks is empty
        (exactly(cel='!has(device.attributes["other.example.com"].x)'), Debit(1, 24576, 100), BOTH),
    ],
)
def test_a_request_costs_the_least_that_it_can_get(request_: JSON, debit: Debit, floors: tuple[Dimension, ...]) -> None:
    assert cost_of(requests(request_), CLUSTER) == ClaimCost({"NVIDIA": debit}, frozenset(floors))


@pytest.mark.parametrize(
    "free",
    [
        exactly(adminAccess=True, allocationMode="All"),
        exactly("gpu.other.example.com", count=8),
        [exactly(memory="4Gi"), exactly("gpu.other.example.com")],
    ],
)
def test_admin_access_and_other_drivers_cost_nothing(free: JSON | list[JSON]) -> None:
    assert cost_of(requests(free), CLUSTER).debits == {}


def test_the_first_available_costs_as_the_cheapest_of_them() -> None:
    alternatives = [exactly(NVIDIA), exactly(memory="10Gi", cores="100"), exactly(memory="20Gi", cores="50")]
    assert cost_of(requests(alternatives), CLUSTER).debits == {"NVIDIA": Debit(1, 10240, 50)}


def test_an_alternative_that_no_device_can_satisfy_makes_nothing_cheaper() -> None:
    alternatives = [exactly(cel="false"), exactly(memory="10Gi", cores="100")]
    assert cost_of(requests(alternatives), CLUSTER) == ClaimCost({"NVIDIA": Debit(1, 10240, 100)})


def test_requests_add_up() -> None:
    found = cost_of(requests(exactly(memory="1Gi", cores="1"), exactly(MIG)), CLUSTER)
    assert found.debits == {"NVIDIA": Debit(2, 1024 + 9728, 1)}


@pytest.mark.parametrize(
    ("request_", "debit"),
    [
        (exactly(memory="100Gi", cores="10", count=2), Debit(2, 204800, 20)),
        (exactly(cel="false"), Debit(1, 1, 0)),
        (exactly(allocationMode="All", cel="false"), Debit(1, 1, 0)),
    ],
)
def test_what_no_device_can_satisfy_costs_what_it_declares_and_is_told(request_: JSON, debit: Debit) -> None:
    found = cost_of(requests(request_), CLUSTER)
    problem = f"request r0: no device of class {HAMI} that is published now can satisfy it"
    assert (found.debits, found.problems) == ({"NVIDIA": debit}, (problem,))


def test_valid_values_are_the_next_that_is_large_enough() -> None:
    devices = inventory(resource_slice("n1", share("a0", default="10Gi", validValues=["20Gi", "5Gi", "10Gi"])))
    costs = [cost_of(requests(exactly(cores="1", **memory)), devices) for memory in ({}, {"memory": "6Gi"})]
    assert [each.debits["NVIDIA"].memory for each in costs] == [10240, 10240]
    assert cost_of(requests(exactly(memory="21Gi")), devices).problems


def test_a_class_that_is_not_known_yet_selects_the_devices_of_its_row() -> None:
    devices = inventory(resource_slice("n4", whole("m0", "9728Mi", "mig"), whole("c0"), driver=NVIDIA), classes={})
    assert cost_of(requests(exactly(NVIDIA)), devices).debits["NVIDIA"].memory == 40960


def test_an_amount_that_is_none_is_refused() -> None:
    with pytest.raises(MalformedObject, match="'much' is not a quantity"):
        cost_of(requests(exactly(memory="much")), CLUSTER)


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"nvidia.com/gpu": "2"}, 2),
        ({f"deviceclass.resource.kubernetes.io/{HAMI}": "1"}, 1),
        ({"nvidia.com/gpu": "0"}, 0),
        ({"amd.com/gpu": "1"}, 0),
    ],
)
def test_extended_resources_are_requests_of_the_class_that_takes_them(limits: JSON, count: int) -> None:
    pod = read_pod("p", container(**limits), container(**limits))
    found = extended_requests(pod, {"nvidia.com/gpu": HAMI})
    assert [(each.exactly.device_class_name, each.exactly.count) for each in found if each.exactly] == (
        [(HAMI, 2 * count)] if count else []
    )


@pytest.mark.parametrize(
    ("held", "debit"),
    [
        (result("a0", consumedCapacity={"memory": "10Gi", "cores": "30"}), Debit(1, 10240, 30)),
        (result("a0", consumedCapacity={f"{HAMI}/memory": "10Gi"}), Debit(1, 10240, 100)),
        (result("c1", "n3", NVIDIA), Debit(1, 81920, 100)),
        (result("m0", "n4", NVIDIA), Debit(1, 9728, 0)),
        (result("a0", consumedCapacity={"memory": "-10Gi", "cores": "-1"}), Debit(1, 0, 0)),
        # gone from its slice, but the result says what it took
        (result("gone", consumedCapacity={"memory": "1Gi", "cores": "5"}), Debit(1, 1024, 5)),
    ],
)
def test_an_allocation_holds_what_was_consumed_or_the_whole_device(held: Any, debit: Debit) -> None:
    found = allocated([held, result("x", driver="gpu.other.example.com")], CLUSTER.devices)
    assert (total(found.devices), found.unseen) == ({"NVIDIA": debit}, ())


def test_admin_access_holds_nothing_and_an_unseen_device_is_told() -> None:
    found = allocated([result("a0", adminAccess=True), result("gone", "n9", NVIDIA)], CLUSTER.devices)
    assert found.devices == ()
    assert found.unseen == (f"device gone of pool n9 of driver {NVIDIA} is in no ResourceSlice",)


def test_an_allocated_device_is_known_by_its_model() -> None:
    (device,) = allocated([result("b0", "n2")], CLUSTER.devices).devices
    assert (device.node, device.model, device.uuid) == ("n2", "NVIDIA A10", "b0")


def test_only_the_newest_generation_of_a_pool_counts_and_slices_that_disagree_are_told() -> None:
    devices = published(
        [
            resource_slice("n1", share("old"), generation=1),
            resource_slice("n1", share("new"), generation=2, name="s1"),
            resource_slice("n1", share("new", "10Gi"), share("more"), generation=2, name="s2"),
            resource_slice("n2", share("bad", "much"), name="s3"),
            resource_slice("n3", {"name": "x"}, driver="gpu.other.example.com"),
        ]
    )
    assert sorted({device.id.name for device in devices.all}) == ["more", "new"]
    (first,) = devices.named(DeviceID(HAMI, "n1", "new"))
    assert first.model.capacity[QualifiedName(HAMI, "memory")].value == 40 * 2**30
    assert devices.problems == {
        "s2": "device new of pool n1 is in another slice too",
        "s3": "'much' is not a quantity",
    }


GIB = st.integers(1, 80).map(lambda n: f"{n}Gi")
DEVICES = st.lists(st.tuples(st.booleans(), GIB), min_size=1, max_size=6)
RANDOM = st.randoms(use_true_random=True)


@given(devices=DEVICES, memory=st.none() | st.integers(1, 80 * 1024), count=st.integers(1, 3), pick=RANDOM)
def test_nothing_that_can_be_allocated_costs_less_than_its_claim_did(
    devices: list[tuple[bool, str]], memory: int | None, count: int, pick: Any
) -> None:
    """Q11 for claims: what any scheduler may give, by Kubernetes' rules, is at least the floor."""
    written = [share(f"d{i}", size) if shared else whole(f"d{i}", size) for i, (shared, size) in enumerate(devices)]
    cluster = inventory(resource_slice("n1", *written))
    amounts = {} if memory is None else {"memory": f"{memory}Mi"}
    floor = cost_of(requests(exactly(count=count, **amounts)), cluster)
    given_out = []
    for i, (shared, size) in enumerate(devices):
        has = int(size.removesuffix("Gi")) * 1024
        if memory is None or memory <= has:
            consumed: JSON = {"consumedCapacity": {"memory": f"{memory or has}Mi", "cores": "100"}}
            given_out.append(result(f"d{i}", **(consumed if shared else {})))
    if not given_out:
        assert floor.problems
        return
    got = total(allocated([pick.choice(given_out) for _ in range(count)], cluster.devices).devices)["NVIDIA"]
    least = floor.debits["NVIDIA"]
    assert (got.slots, got.memory >= least.memory, got.cores >= least.cores) == (least.slots, True, True)
