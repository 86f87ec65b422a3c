"""What a namespace leaves for one placement: rules (a) and (b) of docs/spec/quota.md#8 as one number per key."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders import card, node
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.devices.model import DeviceHold
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import PodBudget, placed_by_others, pod_budget
from hami_webhook.quota.ledger import Entry, State

from .objects import LARGE, MEM, NOON, SMALL, account_of, full, quota, read_pod, vendors
from .test_account import read
from .test_pricing import state
from .test_recompute import derivable, half

CARDS = state(node("n1", card("GPU-L", LARGE)), node("n2", card("GPU-S", SMALL)))
SMALL_AMOUNTS = st.integers(0, 40)


def budget(*accounts: QuotaAccount, others: Sequence[Pod] = (), pod: Pod | None = None) -> PodBudget | None:
    mine = pod or read_pod(gpu=1, mem=5, uid="mine")
    known = (vendors(), CARDS.capacity, NOON, 300)
    return pod_budget(mine, accounts, lambda one: placed_by_others(one, mine, [mine, *others], *known), *known)


@given(hard=SMALL_AMOUNTS, used=SMALL_AMOUNTS, own=SMALL_AMOUNTS, placed=SMALL_AMOUNTS, cost=st.integers(1, 40))
def test_the_budget_says_just_what_a_and_b_say(hard: int, used: int, own: int, placed: int, cost: int) -> None:
    one = read({"mem": used}, {"mine": Entry(State.WAITING, 1, full(mem=own))}, mem=hard)
    found = budget(one, others=[half("other", mem=placed)] if placed else [])
    assert found is not None
    a = placed + cost <= hard
    b = cost <= own or used - own + cost <= hard
    assert found.admits([DeviceHold("NVIDIA", "GPU-L", 0, cost, 0)]) is (a and b)


def test_the_smallest_budget_of_all_quotas_in_scope_holds() -> None:
    scoped = account_of({**quota("s", mem=1), "spec": {"hard": {MEM: "1"}, "scopes": ["Terminating"]}})
    native = account_of(quota("n", pods="1"))
    many = [read({}, name="a", mem=50), read({"mem": 20, "cores": 3}, name="b", mem=30, gpu=2, cores=7), scoped, native]
    found = budget(*many)
    assert found is not None
    assert found.limits == full(mem=15, gpu=2, cores=4)
    assert budget(scoped, native) is None


@pytest.mark.parametrize(
    ("other", "counted"),
    [
        (derivable("w"), 0),
        (half("p", mem=7), 7),
        (half("p", mem=7, age=300), 0),
        (half("p", mem=7, age=300, bound=True), 7),
        (half("p", mem=7, status={"phase": "Failed"}), 0),
        (half("mine", mem=7), 0),
    ],
)
def test_only_other_live_placed_pods_take_from_a(other: Pod, counted: int) -> None:
    found = budget(read({}, mem=100), others=[other, half("last", mem=2)], pod=half("mine", mem=90))
    assert found is not None
    assert found.limits == full(mem=98 - counted)


def test_what_nobody_computed_leaves_the_pod_its_own_charge() -> None:
    found = budget(account_of(quota(mem=100)))
    assert found is not None
    assert found.limits == full(mem=5)


def test_amounts_are_compared_in_units_rounded_up_once() -> None:
    found = PodBudget(full(mem=12), read_pod(gpu=1).kinds, vendors(1024))
    claims = [DeviceHold("NVIDIA", "A", 0, 6000, 0), DeviceHold("NVIDIA", "B", 0, 6288, 0)]
    assert found.admits(claims)
    assert not found.admits([*claims, DeviceHold("NVIDIA", "C", 0, 1, 0)])
    assert found.cost(claims) == (12288, 0, 2)
