"""What Enflame pods are charged, waiting and placed (docs/spec/enflame.md#10)."""

from __future__ import annotations

import pytest
from builders import container, read_node

from hami_webhook.devices.keys import Dimension, QuotaKey
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.pricing import waiting_charge

from .enflame import R, drs_node, share, shared_node, slices
from .fit_env import CHART, JSON, FitEnv, Placed, pod

CAPACITY = "enflame.com/gcu-drs-capacity"
OTHER = drs_node("node-b", profiles={"1g.6gb": "0", "4g.24gb": "1", "8g.48gb": "2"})


def test_managed_keys() -> None:
    assert CHART["GCU"].quota_keys() == (QuotaKey(f"limits.{R.GCU}", Dimension.COUNT),)
    assert CHART["Enflame"].quota_keys() == (
        QuotaKey(f"limits.{R.VGCU}", Dimension.COUNT),
        QuotaKey(f"limits.{R.PERCENT}", Dimension.MEMORY),
    )
    assert CHART["Enflame-DRS"].quota_keys() == (
        QuotaKey(f"limits.{R.SLICES}", Dimension.COUNT),
        QuotaKey(f"limits.{R.MEMORY}", Dimension.MEMORY, 1, binary_is_bytes=True),
        QuotaKey(f"limits.{R.CORE}", Dimension.CORES),
    )


def drs_debit(count: int, memory: int, cores: int) -> dict[str, int]:
    amounts = {f"limits.{R.SLICES}": count, f"limits.{R.MEMORY}": memory, f"limits.{R.CORE}": cores}
    return {key: amount for key, amount in amounts.items() if amount}


def shared_debit(count: int, percent: int) -> dict[str, int]:
    return {f"limits.{R.VGCU}": count, f"limits.{R.PERCENT}": percent}


@pytest.mark.parametrize(
    ("incoming", "debit"),
    [
        (slices(3), drs_debit(3, 20480, 50)),
        (pod(**{R.CORE: 40}), drs_debit(3, 20480, 50)),
        (pod(**{R.MEMORY: 6144}), drs_debit(1, 6144, 17)),
        (share(26), shared_debit(1, 50)),
        (share(30, count=2), shared_debit(2, 200)),
        (share(51), shared_debit(1, 75)),
        (share(None), shared_debit(1, 100)),
        (pod(**{R.GCU: 2}), {f"limits.{R.GCU}": 2}),
        (pod("p", container("app", **{R.SLICES: 1}), init=[container("i", **{R.SLICES: 3})]), drs_debit(3, 20480, 50)),
    ],
)
def test_the_waiting_charge_is_what_placement_will_debit(incoming: JSON, debit: dict[str, int]) -> None:
    env = FitEnv([drs_node(), shared_node("shared", 2, 4), read_node("whole", capacity={R.GCU: 2})])
    admitted = env.admit(incoming).pod
    assert admitted is not None
    assert waiting_charge(Pod.from_object(admitted), CHART, env.state).amounts == debit
    placed = env.place(incoming)
    assert isinstance(placed, Placed)
    assert placed.debits == debit


@pytest.mark.parametrize(
    ("incoming", "nowhere", "differing"),
    [
        (pod(**{R.MEMORY: 6144}), drs_debit(1, 6144, 0), drs_debit(1, 6144, 0)),
        (pod(**{R.MEMORY: "7Gi"}), drs_debit(1, 7168, 0), drs_debit(1, 7168, 0)),
        (pod(**{R.MEMORY: 5000, R.CORE: 40}), drs_debit(1, 5000, 40), drs_debit(1, 5000, 40)),
        (pod(**{R.MEMORY: 20}), drs_debit(1, 1, 0), drs_debit(1, 20480, 0)),
        (pod(**{R.CORE: 40}), drs_debit(1, 1, 40), drs_debit(1, 20480, 40)),
        (slices(3), drs_debit(3, 1, 0), drs_debit(3, 20480, 50)),
        (slices(1), drs_debit(1, 1, 0), drs_debit(1, 6144, 13)),
        (slices(5), drs_debit(5, 1, 0), drs_debit(5, 1, 0)),
    ],
)
def test_where_the_profile_isnt_known_what_is_written_counts_or_the_least_it_can_be(
    incoming: JSON, nowhere: dict[str, int], differing: dict[str, int]
) -> None:
    for nodes, debit in (([], nowhere), ([drs_node(), OTHER], differing)):
        env = FitEnv(nodes)
        admitted = env.admit(incoming).pod
        assert admitted is not None
        assert waiting_charge(Pod.from_object(admitted), CHART, env.state).amounts == debit


@pytest.mark.parametrize(
    ("hard", "where"),
    [
        ({f"limits.{R.CORE}": 50}, "node-a"),
        ({f"limits.{R.CORE}": 49}, "node-c"),
        ({f"limits.{R.CORE}": 39}, None),
        ({f"limits.{R.MEMORY}": 20479}, "node-c"),
        ({f"limits.{R.SLICES}": 2}, "node-c"),
        ({f"limits.{R.SLICES}": 1}, None),
    ],
)
def test_a_node_whose_profile_overflows_the_quota_is_refused(hard: dict[str, int], where: str | None) -> None:
    twenty_percent = drs_node("node-c", profiles={"2g.16gb": "0", "5g.40gb": "1"})
    placed = FitEnv([drs_node(), twenty_percent], hard=hard).place(pod("p", **{R.CORE: 40}), admit=False)
    if isinstance(placed, Placed):
        assert placed.node == where
    else:
        assert placed == dict.fromkeys(("node-a", "node-c"), "1/1 ResourceQuotaNotFit")
        assert where is None
