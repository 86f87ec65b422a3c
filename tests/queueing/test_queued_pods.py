"""What pods with the scheduling gate of quota cost (docs/spec/queues.md#2)."""

from __future__ import annotations

from functools import partial

import pytest
from quota.objects import NOON, account_of, full, quota, read_pod, vendors

from hami_webhook.kube.objects import QUOTA_GATE
from hami_webhook.queueing import pod_queue
from hami_webhook.queueing.pod_queue import DemandCache
from hami_webhook.quota.ledger import Entry, State
from hami_webhook.quota.pricing import ClusterCapacity, charge_of
from hami_webhook.quota.queue_order import Demand
from hami_webhook.quota.recompute import LedgerBounds, recompute

GATES = [{"name": QUOTA_GATE}]


@pytest.mark.parametrize(
    ("gates", "gated", "queued"),
    [
        (None, False, False),
        ([], False, False),
        (GATES, True, True),
        ([{"name": "other"}], True, False),
        ([{"name": "other"}, *GATES], True, True),
        (["hami.io/quota"], True, False),
        ({"name": QUOTA_GATE}, True, True),
    ],
)
def test_which_pods_wait_for_quota(gates: object, gated: bool, queued: bool) -> None:
    pod = read_pod("p", gpu=1, mem=2000, schedulingGates=gates)
    assert (pod.gated, pod.queued) == (gated, queued)
    charge = charge_of(pod, vendors(), ClusterCapacity(), NOON)
    assert charge.amounts == ({} if queued else full(gpu=1, mem=2000))


@pytest.mark.parametrize(
    ("age", "states", "used"),
    [
        (None, {}, full(gpu=1, mem=2000)),
        (44, {"waits": State.ADMITTED}, full(gpu=2, mem=5000)),
        (46, {}, full(gpu=1, mem=2000)),
    ],
)
def test_a_recompute_counts_a_gated_pod_for_as_long_as_its_entry_lasts(
    age: int | None, states: dict[str, State], used: dict[str, int]
) -> None:
    account = account_of(quota(gpu=10, mem=10000))
    if age is not None:
        account = account.with_increase("waits", Entry(State.ADMITTED, int(NOON) - age, full(gpu=1, mem=3000)), {})
    pods = [
        read_pod("runs", uid="runs", gpu=1, mem=2000),
        read_pod("waits", uid="waits", gpu=1, mem=3000, schedulingGates=GATES),
        read_pod("half", uid="half", gpu=1, percent=50, schedulingGates=GATES),
    ]
    done = recompute(account, pods, vendors(), ClusterCapacity(), NOON, LedgerBounds())
    assert dict(done.after.used) == used
    assert {identity: entry.state for identity, entry in done.after.ledger.items()} == states
    assert done.wake == (NOON + 1 if states else None)


def test_what_depends_on_cards_is_priced_again_after_a_while_and_of_many_a_few_in_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_queue, "_MOST_AGAIN", 2)
    now = NOON
    demands = DemandCache(lambda: now)

    def priced(seconds: float, *, terms: str = "the limits", fixed: bool = False) -> int:
        """How many of three requests are priced in a round that begins after so many seconds."""
        nonlocal now
        now += seconds
        computed: list[str] = []

        def compute(name: str) -> tuple[Demand, bool]:
            computed.append(name)
            return ((name, (("gpu", 1),)),), fixed

        demands.begin()
        for name in ("a", "b", "c", "a"):
            request = (name, ())
            assert demands.of(request, terms, partial(compute, name)) == ((name, (("gpu", 1),)),)
        return len(computed)

    assert [priced(seconds) for seconds in (0, 4.9, 0.1, 0, 5)] == [3, 0, 2, 1, 2]
    assert [priced(0, terms="others", fixed=True), priced(1000, terms="others")] == [3, 0]
