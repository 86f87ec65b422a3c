"""The worked scenarios of docs/spec/quota.md#13, from 17 on."""

from __future__ import annotations

import asyncio

import pytest
from builders import card, node
from cluster import native

from hami_webhook.cluster.api import Forbidden, Kind
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.ledger import State, reservation_id

from .objects import ALLOCATED, LARGE, MEM, SMALL, TEAM, pod, quota
from .world import World

L, S = node("n1", card("GPU-L", LARGE)), node("n2", card("GPU-S", SMALL))


async def test_scenario_17_a_lowered_limit_blocks_until_used_falls() -> None:
    async with World(L, quota(mem=10000)) as world:
        for name in "abc":
            await world.create(pod(name, gpu=1, mem=2000))
        await world.edit_hard(mem=4000)
        await world.run(2)
        message = (await world.refused(pod("d", gpu=1, mem=1))).message
        assert message.endswith(f"requested: {MEM}=1, used: {MEM}=6000, limited: {MEM}=4000")
        await world.finish("a")
        await world.finish("b")
        await world.run(2)
        assert world.mem() == 2000
        await world.create(pod("d", gpu=1, mem=2000))
        assert world.mem() == 4000


async def test_scenario_18_pods_let_in_while_the_webhook_was_down() -> None:
    async with World(L, quota(mem=2000)) as world:
        for name in "abc":
            await world.add(pod(name, gpu=1, mem=1000, schedulerName="hami-scheduler"))
        await world.run(2)
        assert world.mem() == 3000
        assert world.events("QuotaExceeded") == [f"{MEM}: used 3000, limited 2000"]
        assert (await world.refused(pod("d", gpu=1, mem=1))).code == 403
        assert await world.node_of("a") == "n1"
        assert await world.node_of("b") == "n1"
        assert await world.reasons("c") == {"n1": "1/1 ResourceQuotaNotFit"}


async def test_scenario_19_a_crash_between_charge_and_answer() -> None:
    async with World(L, quota(mem=4000)) as world:
        await world.admit(pod(gpu=1, mem=2000))
        assert world.mem() == 2000
        await world.run(44)
        assert world.mem() == 2000
        assert world.states() == {"uid-p": "admitted"}
        await world.run(2)
        assert world.mem() == 0
        assert world.ledger() == {}
        assert world.reconciler.expired == 1


async def test_a_pod_that_comes_and_goes_before_anybody_counts_leaves_nothing() -> None:
    async with World(L, quota(mem=4000)) as world:
        await world.create(pod(gpu=1, mem=2000))
        await world.drain()
        assert world.states() == {"uid-p": "admitted"}
        await world.delete("p")
        await world.run(2)
        assert world.mem() == 0
        assert world.ledger() == {}
        assert world.reconciler.expired == 0


async def test_scenario_20_a_generated_name_clashes_once() -> None:
    async with World(L, quota(mem=4000)) as world:
        await world.admit(pod("p-1", gpu=1, mem=2000), uid="u1")
        await world.create(pod("p-2", gpu=1, mem=2000), uid="u2")
        assert world.mem() == 4000
        await world.run(46)
        assert world.mem() == 2000
        assert world.ledger() == {}


async def test_scenario_21_the_native_plugin_refuses_after_we_charged() -> None:
    async with World(L, quota(mem=3000, pods="1")) as world:
        await world.cluster.create(Kind.PODS, pod("other"))
        items = (await world.cluster.list(Kind.PODS, TEAM)).items
        await native.recompute(world.cluster, world.quota(), items, world.now)
        await world.run(1)
        stored, _ = await world.admit(pod(gpu=1, mem=2000))
        with pytest.raises(Forbidden, match="exceeded quota: gpu-quota, requested: pods=1"):
            await native.admit(world.cluster, stored)
        assert world.mem() == 2000
        assert (await world.refused(pod(gpu=1, mem=2000), uid="again")).code == 403
        await world.run(46)
        assert world.mem() == 0
        assert world.quota()["status"]["used"]["pods"] == "1"
        assert len(world.events("QuotaMixed")) == 1


async def test_scenario_22_a_dry_run_gets_the_verdict_and_leaves_nothing() -> None:
    async with World(L, quota(mem=2000)) as world:
        before = world.quota()
        await world.admit(pod(gpu=1, mem=2000), dry_run=True)
        assert (await world.refused(pod(gpu=1, mem=3000), dry_run=True)).code == 403
        assert world.quota() == before
        assert world.mem() == 0


async def test_scenario_23_a_foreign_scheduler_is_no_way_around() -> None:
    volcano = {"schedulerName": "volcano"}
    async with World(L, quota(mem=2000)) as world:
        assert (await world.refused(pod("a", gpu=1, mem=3000, **volcano))).code == 403
        manifest = pod("b", gpu=1, mem=1000, **volcano)
        assert not (await world.core.admission.mutate(world.review(manifest))).patch
        created = await world.create(manifest)
        assert created.scheduler_name == "volcano"
        await world.cluster.bind(TEAM, "b", created.uid, "n1")
        await world.run(400)
        assert world.mem() == 1000
        await world.finish("b")
        await world.run(2)
        assert world.mem() == 0


MIG = node(
    "n1",
    card(
        "GPU-M",
        40960,
        mode="mig",
        migProfiles=[
            {"name": "2g.10gb", "memoryMB": 9984, "core": 28, "sliceCount": 2, "placements": [{"start": 0, "size": 2}]}
        ],
    ),
)

PLACED_BY_HAND: list[tuple[dict[str, object], str, dict[str, int]]] = [
    ({"gpu": 1, "percent": 50}, "n1", {"gpu": 1, "mem": LARGE // 2}),
    ({"gpu": 1, "percent": 50}, "n2", {"gpu": 1, "mem": SMALL // 2}),
    ({"gpu": 1}, "n2", {"gpu": 1, "mem": SMALL}),
    ({"gpu": 1, "mem": 700, "cores": 30}, "n1", {"gpu": 1, "mem": 700, "cores": 30}),
    ({"gpu": 1, "mem": 8000}, "mig", {"gpu": 1, "mem": 9984, "cores": 28}),
    # what Fit refuses there, and what is on a node without cards, stays on the charge of admission: the least it may be
    ({"gpu": 2, "percent": 50}, "n1", {"gpu": 2, "mem": 2 * (SMALL // 2)}),
    ({"gpu": 1, "percent": 50}, "cardless", {"gpu": 1, "mem": SMALL // 2}),
    ({"gpu": 1, "percent": 50}, "unknown", {"gpu": 1, "mem": SMALL // 2}),
]


@pytest.mark.parametrize(("amounts", "where", "debit"), PLACED_BY_HAND)
async def test_a_pod_that_somebody_else_put_on_a_node_costs_what_fit_books_there(
    amounts: dict[str, object], where: str, debit: dict[str, int]
) -> None:
    mig = {**MIG, "metadata": {**MIG["metadata"], "name": "mig"}}
    cardless = {"metadata": {"name": "cardless"}, "status": {}}
    async with World(L, S, mig, cardless, quota(gpu=9, mem=90000, cores=900)) as world:
        created = await world.create(pod(schedulerName="default-scheduler-2", **amounts))
        await world.cluster.bind(TEAM, "p", created.uid, where)
        await world.run(400)
        assert {key: amount for key, amount in world.used().items() if amount} == debit
        await world.create(pod("q", gpu=1, mem=20000))  # neighbours change nothing
        assert await world.node_of("q") in ("n1", "mig")
        await world.delete("q")
        await world.run(400)
        assert {key: amount for key, amount in world.used().items() if amount} == debit
        await world.finish("p")
        await world.run(2)
        assert not any(world.used().values())


async def test_what_others_wrote_on_a_pod_outranks_what_fit_would_book() -> None:
    async with World(L, quota(gpu=9, mem=90000)) as world:
        written = {ALLOCATED: "GPU-L,NVIDIA,5000,0:;"}
        raw = pod(gpu=1, percent=50, annotations=written, uid="by-hand", nodeName="n1")
        await world.cluster.create(Kind.PODS, raw)  # while the webhook was down
        await world.run(400)
        assert world.used() == {"gpu": 1, "mem": 5000}


async def test_scenario_25_units_are_rounded_up_once_per_pod() -> None:
    async with World(node("n1", card("GPU-1", 24268)), quota(mem=12), factor=1024) as world:
        await world.create(pod(gpu=1, percent=50))
        assert world.mem() == 12
        await world.node_of("p")
        await world.run(2)
        assert world.mem() == 12


async def test_scenario_26_a_mig_profile_costs_its_size() -> None:
    async with World(MIG, quota(mem=9000)) as world:
        await world.create(pod(gpu=1, mem=8000))
        assert world.mem() == 8000
        assert await world.reasons("p") == {"n1": "1/1 ResourceQuotaNotFit"}
        await world.edit_hard(mem=10000)
        await world.run(2)
        assert await world.node_of("p") == "n1"
        assert world.mem() == 9984
        assert world.ledger()["uid-p"].state is State.PLACING
        await world.run(2)
        assert world.mem() == 9984
        assert world.ledger() == {}


async def test_scenario_27_a_pod_on_a_lost_node_is_let_go_after_its_deadline() -> None:
    async with World(L, quota(mem=2000)) as world:
        await world.create(pod(gpu=1, mem=2000))
        await world.node_of("p")
        await world.run(5)
        start = world.now
        await world.delete("p", grace=30)
        await world.run(59)
        assert world.mem() == 2000
        await world.run(start + 60 - world.now)
        assert world.mem() == 2000
        await world.run(1)
        assert world.mem() == 0
        view = world.core.state.view("n1")
        assert view is not None
        assert view.used("NVIDIA", "GPU-L").memory == 2000
        await world.delete("p")
        await world.drain()
        view = world.core.state.view("n1")
        assert view is not None
        assert view.used("NVIDIA", "GPU-L").memory == 0


async def test_scenario_28_quantities_with_suffixes() -> None:
    async with World(L, quota(mem="3k")) as world:
        await world.create(pod("a", gpu=1, mem="2k"))
        await world.create(pod("b", gpu=1, mem="1k"))
        assert world.mem() == 3000
        assert world.quota()["status"]["used"][MEM] == "3k"


async def test_scenario_29_a_quota_created_in_a_busy_namespace() -> None:
    async with World(L, pod("a", gpu=1, mem=2000), pod("b", gpu=1, mem=2000)) as world:
        await world.add(quota(mem=5000))
        await world.drain()
        denial = await world.refused(pod("c", gpu=1, mem=2000))
        assert denial.message.endswith(f"requested: {MEM}=2000, used: {MEM}=4000, limited: {MEM}=5000")
        assert world.mem() == 4000


async def test_a_dry_run_in_a_busy_namespace_without_used_is_judged_but_not_written() -> None:
    async with World(L, pod("a", gpu=1, mem=2000)) as world:
        await world.add(quota(mem=3000))
        before = world.quota()
        assert (await world.refused(pod("b", gpu=1, mem=2000), dry_run=True)).code == 403
        await world.admit(pod("c", gpu=1, mem=1000), dry_run=True)
        assert world.quota() == before


async def test_the_path_of_hamis_chart_reserves_for_the_pod_and_validate_takes_the_charge_over() -> None:
    async with World(L, quota(mem=2000)) as world:
        stored, answer = await world.admit(pod(gpu=1, mem=1500), path="/webhook")
        secret = stored["metadata"]["annotations"]["hami.io/quota-reservation"]
        assert world.states() == {reservation_id(secret): "admitted"}
        assert answer.audit["quota"] == f"gpu-quota:{MEM}=1500"
        again = {**stored, "metadata": {**stored["metadata"], "uid": "u1"}}
        await world.core.admission.validate(world.review(again))
        assert world.states() == {"u1": "admitted"}
        assert world.mem() == 1500
        await world.cluster.create(Kind.PODS, again)
        await world.run(2)
        assert (world.mem(), world.ledger()) == (1500, {})


async def test_a_pod_with_a_reservation_is_recognised_when_it_appears() -> None:
    async with World(L, S, quota(mem=20000)) as world:
        created = await world.create(pod(gpu=1, percent=50), path="/webhook")
        assert world.mem() == 8192
        await asyncio.sleep(0)
        placed = await world.node_of("p")
        assert placed == "n1"
        assert world.states() == {created.uid: "placing"}
        await world.run(60)
        assert (world.mem(), world.ledger()) == (12288, {})


async def test_a_pod_with_a_reservation_that_is_deleted_at_once_costs_nothing_any_more() -> None:
    async with World(L, quota(mem=2000)) as world:
        await world.create(pod(gpu=1, mem=1500), path="/webhook")
        await world.drain()  # seen, and not yet recomputed
        await world.delete("p", grace=0)
        assert list(world.states().values()) == ["admitted"]
        await world.run(2)
        assert (world.mem(), world.ledger()) == (0, {})


async def test_a_percentage_with_a_reservation_waits_under_its_uid() -> None:
    async with World(L, S, quota(mem=20000)) as world:
        created: Pod = await world.create(pod(gpu=1, percent=50), path="/webhook")
        await world.run(2)
        assert world.states() == {created.uid: "waiting"}
        assert world.mem() == 8192
