"""What Volcano's pods cost, and instances given twice (docs/spec/volcano.md#10 and #13); its worked examples (#15).

Of those, 3, 6, 7 and 10 are rows of test_volcano_admission.py and test_volcano_fit.py, 9 of test_mixing.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from devices.fit_env import NOW, configured, pod
from tables import in_one_test

from hami_webhook.devices.foreign_scheduler import Part
from hami_webhook.devices.model import BadRequest
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.pricing import Charge, charge_of, overrun, price_pending

from .schedulers_env import SchedulersEnv
from .volcanoes import IDS, MEMORY, NUMBER, PERCENTAGE, a40, debits, pod_with_limits, t4, vgpu, volcano_node

JSON = dict[str, Any]
PHASE, BOUND_AT, ON = "volcano.sh/bind-phase", "volcano.sh/bind-time", "volcano.sh/vgpu-node"
MIXED = (volcano_node("n1", t4("GPU-a")), volcano_node("n2", a40("GPU-m")))


def test_4_percentage_on_unequal_cards() -> None:
    env = SchedulersEnv([volcano_node("n1", t4("GPU-a")), volcano_node("n2", a40("GPU-b", "hami-core"))])
    admitted = env.admit(pod_with_limits(1, percent=20))
    assert admitted.limits() == {NUMBER: "1", PERCENTAGE: "20"}
    assert admitted.codes == ["volcano/percentage"]
    assert env.waiting(pod_with_limits(1, percent=20)) == debits(1, 3276)
    predicted, cost = env.place(pod_with_limits(1, percent=20, notes={"nvidia.com/use-gputype": "A100"}), admit=False)
    assert predicted.annotations[IDS] == "GPU-b,NVIDIA,8192,0:"
    assert cost == debits(1, 8192)


def test_5_mig() -> None:
    env = SchedulersEnv([volcano_node("n1", a40("GPU-m"))])
    predicted, cost = env.place(pod_with_limits(1, 8000, name="a", mode="mig"))
    assert predicted.annotations[IDS] == "GPU-m[group2-0],NVIDIA,8000,0:"
    assert predicted.parts == {0: (Part("GPU-m", 10240, 0, "2g.10gb"),)}
    assert cost == debits(1, 10240)
    predicted, cost = env.place(pod_with_limits(1, 5000, name="b", mode="mig"))
    assert predicted.annotations[IDS] == "GPU-m[group2-3],NVIDIA,5000,0:"
    assert cost == debits(1, 5120)
    assert env.failed(pod_with_limits(1, 15000, name="c", mode="mig")) == {"n1": "1/1 CardMigTopologyInfeasible"}


# 10.1


@pytest.mark.parametrize(
    ("manifest", "cost"),
    [
        (pod_with_limits(2, 3000, 30), debits(2, 6000, 60)),
        (pod("p", vgpu(1, 100, name="a"), vgpu(2, 200, 5, name="b")), debits(3, 500, 10)),
        (pod_with_limits(1), debits(1, 16384)),
        (pod_with_limits(2, percent=50, notes={"nvidia.com/use-gputype": "T4"}), debits(2, 16384)),
        (pod_with_limits(1, percent=50), debits(1, 8192)),
        (pod_with_limits(1, percent=50, notes={"volcano.sh/vgpu-use-gpuuuid": "GPU-z"}), debits(1)),
        (pod_with_limits(1, 8000, mode="mig"), debits(1, 10240)),
        (pod_with_limits(2, 3000, mode="mig"), debits(2, 10240)),
        (pod_with_limits(1, 50000, mode="mig"), debits(1, 50000)),
        (pod_with_limits(1, mode="mig"), debits(1, 40960)),
        (pod_with_limits(1, 8000, notes={"volcano.sh/vgpu-use-gpuuuid": "GPU-m"}), debits(1, 8000)),
        (pod_with_limits(0, 5), {}),
    ],
)
def test_a_waiting_pod_is_charged_what_it_surely_gets(manifest: JSON, cost: dict[str, int]) -> None:
    assert SchedulersEnv(MIXED).waiting(manifest) == cost


def test_a_mig_request_is_charged_as_it_is_where_the_debit_is_the_request() -> None:
    env = SchedulersEnv(MIXED, configured("volcano: {migDebit: request}"))
    assert env.waiting(pod_with_limits(1, 8000, mode="mig")) == debits(1, 8000)
    assert env.place(pod_with_limits(1, 8000, mode="mig"))[1] == debits(1, 8000)


def test_the_charge_is_remembered_where_cards_decide_it() -> None:
    env = SchedulersEnv(MIXED)
    assert price_pending(env.admit(pod_with_limits(1)).pod, env.vendors, env.state.capacity).floors == {
        f"limits.{MEMORY}"
    }
    assert price_pending(env.admit(pod_with_limits(1, 5)).pod, env.vendors, env.state.capacity).floors == frozenset()
    assert price_pending(env.admit(pod_with_limits(1, 5, mode="mig")).pod, env.vendors, env.state.capacity).floors


def test_an_amount_that_admission_refuses_has_no_charge() -> None:
    env = SchedulersEnv(MIXED)
    with pytest.raises(BadRequest):
        price_pending(Pod.from_object(pod_with_limits(1, "4Gi")), env.vendors, env.state.capacity)
    bound = env.keep(pod_with_limits(1, "4Gi"), "n1", {IDS: "GPU-a,NVIDIA,7,0:"})
    assert charge_of(bound, env.vendors, env.state.capacity, NOW).amounts == debits(1, 7)


# 10.2


def cost_of(env: SchedulersEnv, ids: str, manifest: JSON | None = None, node: str = "n2") -> Charge:
    with_limits = manifest or pod_with_limits(1, 8000, name="u")
    bound = env.keep(with_limits, node, {IDS: ids})
    return charge_of(bound, env.vendors, env.state.capacity, NOW)


@in_one_test(
    ("ids", "cost"),
    [
        ("GPU-m,NVIDIA,8000,30:", debits(1, 8000, 30)),
        ("GPU-m,NVIDIA,1,30:GPU-x,NVIDIA,9000,3:;GPU-m,NVIDIA,4,0:", debits(3, 9005, 33)),
        ("GPU-m,NVIDIA,1,30:GPU-x,NVIDIA,2,3:;GPU-m,NVIDIA,4,0:", debits(3, 8000, 33)),  # less than declared
        ("GPU-m[group2-0],NVIDIA,8000,0:", debits(1, 10240)),
        ("GPU-m[group2-3],NVIDIA,8000,0:", debits(1, 8000)),  # less than declared
        ("GPU-m[group2-4],NVIDIA,8000,0:", debits(1, 8000)),  # no such place
        ("GPU-m[group9-0],NVIDIA,8000,0:", debits(1, 8000)),
        ("GPU-x[group2-0],NVIDIA,8000,0:", debits(1, 8000)),  # no such card
        ("GPU-m,NVIDIA,x,0:GPU-m,NVIDIA,9,0:", debits(1, 8000)),  # less than declared
        ("GPU-m,NVIDIA,x,0:GPU-m,NVIDIA,9000,0:", debits(1, 9000)),
        ("junk", debits(1, 8000)),  # nothing can be read: what was charged stays
    ],
)
def test_a_placed_pod_costs_what_volcano_wrote(ids: str, cost: dict[str, int]) -> None:
    assert cost_of(SchedulersEnv(MIXED), ids).amounts == cost


@pytest.mark.parametrize("place", ["group1-0", "group2-3"])
def test_the_group_that_volcano_kept_for_an_idle_card_counts_as_written(place: str) -> None:
    made = pod_with_limits(1, 5000, name="u")
    assert cost_of(SchedulersEnv(MIXED), f"GPU-m[{place}],NVIDIA,5000,0:", made).amounts == debits(1, 5120)


def test_memory_that_older_versions_did_not_write_is_worked_out() -> None:
    """The i-th list is that of the i-th container that asked."""
    env = SchedulersEnv(MIXED)
    with_limits = pod("u", vgpu(name="idle"), vgpu(1, percent=25, name="b"), vgpu(1, 500, name="c"))
    assert cost_of(env, "GPU-m,NVIDIA,0,0:;GPU-m,NVIDIA,0,0:", with_limits).amounts == debits(2, 10240 + 500)
    unknown = cost_of(env, "GPU-x,NVIDIA,0,0:", pod_with_limits(1, percent=25, name="u"))
    assert unknown.amounts == debits(1)
    (problem,) = unknown.problems
    assert "the memory of GPU-x counts as 0" in problem


def test_a_cards_node_may_be_known_later() -> None:
    env = SchedulersEnv()
    bound = env.keep(pod_with_limits(1, 8000), "n2", {IDS: "GPU-m[group2-0],NVIDIA,8000,0:"})
    assert charge_of(bound, env.vendors, env.state.capacity, NOW).amounts == debits(1, 8000)
    env.state.set_node(MIXED[1], NOW)
    known = charge_of(bound, env.vendors, env.state.capacity, NOW)
    assert known.amounts == debits(1, 10240)
    assert charge_of(bound, env.vendors, env.state.capacity, NOW) is known
    assert charge_of(bound, env.vendors, SchedulersEnv().state.capacity, NOW).amounts == debits(1, 8000)


@pytest.mark.parametrize(
    ("notes", "counts"),
    [
        ({PHASE: "allocating", BOUND_AT: str(int(NOW) - 299)}, True),
        ({PHASE: "allocating", BOUND_AT: str(int(NOW) - 300)}, False),
        ({PHASE: "allocating", BOUND_AT: "soon"}, False),
        ({PHASE: "allocating"}, False),
        ({PHASE: "success", BOUND_AT: str(int(NOW))}, False),
    ],
)
def test_an_allocation_that_is_not_bound_counts_for_a_while(notes: dict[str, str], counts: bool) -> None:
    env = SchedulersEnv(MIXED)
    made = Pod.from_object(pod_with_limits(1, 8000, notes={IDS: "GPU-m[group2-0],NVIDIA,8000,0:", ON: "n2", **notes}))
    env.state.set_pod(made, NOW)
    charge = charge_of(made, env.vendors, env.state.capacity, NOW)
    assert charge.amounts == (debits(1, 10240) if counts else debits(1, 8000))
    assert charge.until == (int(notes[BOUND_AT]) + 300 if counts else None)
    predicted, _ = env.place(pod_with_limits(1, 5000, mode="mig", name="next"))
    assert predicted.annotations[IDS] == f"GPU-m[{'group2-3' if counts else 'group1-0'}],NVIDIA,5000,0:"


@pytest.mark.parametrize(
    ("phase", "memory"), [("success", 10240), ("allocating", 10240), (None, 10240), ("failed", 8000)]
)
def test_a_bound_pod_counts_unless_it_failed(phase: str | None, memory: int) -> None:
    made = pod_with_limits(1, 8000, name="u", notes={PHASE: phase} if phase else {})
    assert cost_of(SchedulersEnv(MIXED), "GPU-m[group2-0],NVIDIA,8000,0:", made).amounts == debits(1, memory)


def test_more_than_was_charged_is_an_overrun() -> None:
    env = SchedulersEnv(MIXED)
    bound = env.admit(pod_with_limits(1, 8000, name="u")).pod
    for ids, keys in (("GPU-m[group2-0],NVIDIA,8000,0:", [f"limits.{MEMORY}"]), ("GPU-m,NVIDIA,8000,0:", [])):
        charge = cost_of(env, ids)
        assert overrun(bound, charge, charge.amounts.keys(), env.vendors, env.state.capacity) == keys
        assert overrun(bound, charge, [], env.vendors, env.state.capacity) == []


def test_a_pod_of_hami_that_is_not_placed_stays_on_its_charge() -> None:
    """Both schedulers' amounts stand beside each other."""
    mixed = pod_with_limits(1, 1000, name="u")
    mixed["spec"]["containers"].append(
        {"name": "b", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "700"}}}
    )
    charge = cost_of(SchedulersEnv(MIXED), "GPU-m,NVIDIA,1000,0:", mixed)
    assert charge.amounts == {
        **debits(1, 1000),
        "limits.nvidia.com/gpu": 1,
        "limits.nvidia.com/gpumem": 700,
    }


def test_no_amount_that_a_pod_states_is_debited_lower() -> None:
    env = SchedulersEnv(MIXED)
    cost = cost_of(env, "GPU-a,NVIDIA,1,0:", pod_with_limits(2, 3000, 40, name="u"), "n1")
    assert cost.amounts == debits(2, 6000, 80)


def test_what_the_card_decides_costs_what_was_written_though_the_cards_left_are_larger() -> None:
    """Half of a T4 stays half of a T4 when the T4's node has gone."""
    env = SchedulersEnv(MIXED)
    half = pod_with_limits(1, percent=50, name="u")
    assert cost_of(env, "GPU-a,NVIDIA,8192,0:", half, "n1").amounts == debits(1, 8192)
    env.state.remove_node("n1")
    assert env.waiting(pod_with_limits(1, percent=50)) == debits(1, 20480)
    assert cost_of(env, "GPU-a,NVIDIA,8192,0:", half, "n1").amounts == debits(1, 8192)


# 13: instances given twice


def test_an_instance_that_two_pods_hold_is_remarked() -> None:
    env = SchedulersEnv(MIXED)
    (volcano,) = (scheduler for scheduler in env.vendors.foreign if scheduler.key == "volcano")
    env.keep(pod_with_limits(1, 8000, name="a"), "n2", {IDS: "GPU-m[group2-0],NVIDIA,8000,0:"})
    env.keep(pod_with_limits(1, 8000, name="b"), "n2", {IDS: "GPU-m[group2-1],NVIDIA,8000,0:"})
    env.keep(pod_with_limits(1, 8000, name="c"), "n1", {IDS: "GPU-m[group2-0],NVIDIA,8000,0:"})
    assert list(volcano.remarks(MIXED[1], env.state)) == []
    env.keep(pod_with_limits(1, 8000, name="d"), "n2", {IDS: "GPU-m[group2-0],NVIDIA,8000,0:"})
    assert list(volcano.remarks(MIXED[1], env.state)) == [
        ("DuplicateMigInstance", "GPU-m[group2-0] is held by default/a, default/d")
    ]
    env.state.remove_pod("uid-a")
    assert list(volcano.remarks(MIXED[1], env.state)) == []
