"""The worked scenarios of docs/spec/quota.md#13, from 17 on."""

from __future__ import annotations

import asyncio

import pytest
from builders import JSON, card, node
from cluster import native
from msgspec.structs import replace

from hami_webhook.admission.review import UNCHANGED
from hami_webhook.cluster.api import Forbidden, Kind
from hami_webhook.quota.floors import floor_id
from hami_webhook.quota.ledger import State, reservation_id

from .objects import ALLOCATED, LARGE, MEM, SMALL, TEAM, pod, quota
from .quota_env import QuotaEnv

L, S = node("n1", card("GPU-L", LARGE)), node("n2", card("GPU-S", SMALL))


async def test_scenario_17_a_lowered_limit_blocks_until_used_falls() -> None:
    async with QuotaEnv(L, quota(mem=10000)) as env:
        for name in "abc":
            await env.create(pod(name, gpu=1, mem=2000))
        await env.edit_hard(mem=4000)
        await env.run(2)
        message = (await env.refused(pod("d", gpu=1, mem=1))).message
        assert message.endswith(
            f"requested: {MEM}=1, used: {MEM}=6000, limited: {MEM}=4000"
            " (memory: 1Mi requested, 5.9Gi used, 3.9Gi limited)"
        )
        await env.finish("a")
        await env.finish("b")
        await env.run(2)
        assert env.mem() == 2000
        await env.create(pod("d", gpu=1, mem=2000))
        assert env.mem() == 4000


async def test_scenario_18_pods_let_in_while_the_webhook_was_down() -> None:
    async with QuotaEnv(L, quota(mem=2000)) as env:
        for name in "abc":
            await env.add(pod(name, gpu=1, mem=1000, schedulerName="hami-scheduler"))
        await env.run(2)
        assert env.mem() == 3000
        assert env.events("QuotaExceeded") == [f"{MEM}: used 3000, limited 2000; above the limit: team/c ({MEM}=1000)"]
        assert (await env.refused(pod("d", gpu=1, mem=1))).code == 403
        assert await env.node_of("a") == "n1"
        assert await env.node_of("b") == "n1"
        assert await env.reasons("c") == {"n1": "1/1 ResourceQuotaNotFit"}


async def test_scenario_19_a_crash_between_charge_and_answer() -> None:
    async with QuotaEnv(L, quota(mem=4000)) as env:
        await env.admit(pod(gpu=1, mem=2000))
        assert env.mem() == 2000
        await env.run(44)
        assert env.mem() == 2000
        assert env.states() == {"uid-p": "admitted"}
        await env.run(2)
        assert env.mem() == 0
        assert env.ledger() == {}
        assert env.reconciler.expired == 1


async def test_a_pod_that_comes_and_goes_before_anybody_counts_leaves_nothing() -> None:
    async with QuotaEnv(L, quota(mem=4000)) as env:
        await env.create(pod(gpu=1, mem=2000))
        await env.drain()
        assert env.states() == {"uid-p": "admitted"}
        await env.delete("p")
        await env.run(2)
        assert env.mem() == 0
        assert env.ledger() == {}
        assert env.reconciler.expired == 0


async def test_scenario_20_a_generated_name_clashes_once() -> None:
    async with QuotaEnv(L, quota(mem=4000)) as env:
        await env.admit(pod("p-1", gpu=1, mem=2000), uid="u1")
        await env.create(pod("p-2", gpu=1, mem=2000), uid="u2")
        assert env.mem() == 4000
        await env.run(46)
        assert env.mem() == 2000
        assert env.ledger() == {}


async def test_scenario_21_what_the_native_plugin_refuses_is_not_charged_or_expires() -> None:
    async with QuotaEnv(L, quota(mem=3000, pods="1")) as env:
        stored, _ = await env.admit(pod(gpu=1, mem=2000))
        await env.cluster.create(Kind.PODS, pod("other"))  # before the plugin sees ours
        items = (await env.cluster.list(Kind.PODS, TEAM)).items
        await native.recompute(env.cluster, env.quota(), items, env.now)
        refused = "exceeded quota: gpu-quota, requested: pods=1, used: pods=1, limited: pods=1"
        with pytest.raises(Forbidden, match=refused):
            await native.admit(env.cluster, stored)
        await env.run(1)
        assert env.mem() == 2000
        assert (await env.refused(pod("q", gpu=1, mem=500))).message == refused
        assert env.mem() == 2000
        await env.run(46)
        assert env.mem() == 0
        assert env.quota()["status"]["used"]["pods"] == "1"
        assert len(env.events("QuotaMixed")) == 1


async def test_scenario_22_a_dry_run_gets_the_verdict_and_leaves_nothing() -> None:
    async with QuotaEnv(L, quota(mem=2000)) as env:
        before = env.quota()
        await env.admit(pod(gpu=1, mem=2000), dry_run=True)
        assert (await env.refused(pod(gpu=1, mem=3000), dry_run=True)).code == 403
        assert env.quota() == before
        assert env.mem() == 0


async def test_scenario_23_a_foreign_scheduler_is_no_way_around() -> None:
    async with QuotaEnv(L, quota(mem=2000)) as env:
        assert (await env.refused(pod("a", gpu=1, mem=3000, schedulerName="volcano"))).code == 403
        manifest = pod("b", gpu=1, mem=1000, schedulerName="volcano")
        assert not (await env.core.admission.mutate(env.review(manifest))).patch
        created = await env.create(manifest)
        assert created.scheduler_name == "volcano"
        await env.cluster.bind(TEAM, "b", created.uid, "n1")
        await env.run(400)
        assert env.mem() == 1000
        await env.finish("b")
        await env.run(2)
        assert env.mem() == 0


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
    amounts: JSON, where: str, debit: dict[str, int]
) -> None:
    mig = {**MIG, "metadata": {**MIG["metadata"], "name": "mig"}}
    cardless = {"metadata": {"name": "cardless"}, "status": {}}
    spare = node("n3", card("GPU-X", LARGE))
    async with QuotaEnv(L, S, spare, mig, cardless, quota(gpu=9, mem=90000, cores=900)) as env:
        created = await env.create(pod(schedulerName="default-scheduler-2", **amounts))
        await env.cluster.bind(TEAM, "p", created.uid, where)
        await env.run(400)
        assert {key: amount for key, amount in env.used().items() if amount} == debit
        await env.create(pod("q", gpu=1, mem=20000))  # neighbours change nothing
        assert await env.node_of("q") in ("n1", "n3", "mig")
        await env.delete("q")
        await env.run(400)
        assert {key: amount for key, amount in env.used().items() if amount} == debit
        await env.finish("p")
        await env.run(2)
        assert not any(env.used().values())


async def test_what_others_wrote_on_a_pod_outranks_what_fit_would_book() -> None:
    async with QuotaEnv(L, quota(gpu=9, mem=90000)) as env:
        written = {ALLOCATED: "GPU-L,NVIDIA,5000,0:;"}
        raw = pod(gpu=1, percent=50, annotations=written, uid="by-hand", nodeName="n1")
        await env.cluster.create(Kind.PODS, raw)  # while the webhook was down
        await env.run(400)
        assert env.used() == {"gpu": 1, "mem": 5000}


async def test_scenario_25_units_are_rounded_up_once_per_pod() -> None:
    async with QuotaEnv(node("n1", card("GPU-1", 24268)), quota(mem=12), factor=1024) as env:
        await env.create(pod(gpu=1, percent=50))
        assert env.mem() == 12
        await env.node_of("p")
        await env.run(2)
        assert env.mem() == 12


async def test_scenario_26_a_mig_profile_costs_its_size() -> None:
    async with QuotaEnv(MIG, quota(mem=9000)) as env:
        await env.create(pod(gpu=1, mem=8000))
        assert env.mem() == 8000
        assert await env.reasons("p") == {"n1": "1/1 ResourceQuotaNotFit"}
        await env.edit_hard(mem=10000)
        await env.run(2)
        assert await env.node_of("p") == "n1"
        assert env.mem() == 9984
        assert env.ledger()["uid-p"].state is State.PLACING
        await env.run(2)
        assert env.mem() == 9984
        assert env.ledger() == {}


async def test_scenario_27_a_pod_on_a_lost_node_is_let_go_after_its_deadline() -> None:
    async with QuotaEnv(L, quota(mem=2000)) as env:
        await env.create(pod(gpu=1, mem=2000))
        await env.node_of("p")
        await env.run(5)
        start = env.now
        await env.delete("p", grace=30)
        await env.run(59)
        assert env.mem() == 2000
        await env.run(start + 60 - env.now)
        assert env.mem() == 2000
        await env.run(1)
        assert env.mem() == 0
        view = env.core.state.view("n1")
        assert view is not None
        assert view.used("NVIDIA", "GPU-L").memory == 2000
        await env.delete("p")
        await env.drain()
        view = env.core.state.view("n1")
        assert view is not None
        assert view.used("NVIDIA", "GPU-L").memory == 0


async def test_scenario_28_quantities_with_suffixes() -> None:
    async with QuotaEnv(L, quota(mem="3k")) as env:
        await env.create(pod("a", gpu=1, mem="2k"))
        await env.create(pod("b", gpu=1, mem="1k"))
        assert env.mem() == 3000
        assert env.quota()["status"]["used"][MEM] == "3k"


async def test_scenario_29_a_quota_created_in_a_busy_namespace() -> None:
    async with QuotaEnv(L, pod("a", gpu=1, mem=2000), pod("b", gpu=1, mem=2000)) as env:
        await env.add(quota(mem=5000))
        await env.drain()
        denial = await env.refused(pod("c", gpu=1, mem=2000))
        assert denial.message.endswith(
            f"requested: {MEM}=2000, used: {MEM}=4000, limited: {MEM}=5000"
            " (memory: 2Gi requested, 3.9Gi used, 4.9Gi limited)"
        )
        assert env.mem() == 4000


async def test_the_path_of_hamis_chart_reserves_for_the_pod_and_validate_takes_the_charge_over() -> None:
    async with QuotaEnv(L, quota(mem=2000)) as env:
        stored, answer = await env.admit(pod(gpu=1, mem=1500), path="/webhook")
        secret = stored["metadata"]["annotations"]["hami.io/quota-reservation"]
        assert env.states() == {reservation_id(secret): "admitted"}
        assert answer.audit["quota"] == f"gpu-quota:{MEM}=1500"
        again = {**stored, "metadata": {**stored["metadata"], "uid": "u1"}}
        await env.core.admission.validate(env.review(again))
        assert env.states() == {"u1": "admitted"}
        assert env.mem() == 1500
        await env.cluster.create(Kind.PODS, again)
        await env.run(2)
        assert (env.mem(), env.ledger()) == (1500, {})


async def test_a_pod_with_a_reservation_is_recognised_when_it_appears() -> None:
    async with QuotaEnv(L, S, quota(mem=20000)) as env:
        created = await env.create(pod(gpu=1, percent=50), path="/webhook")
        assert env.mem() == 8192
        await asyncio.sleep(0)
        placed = await env.node_of("p")
        assert placed == "n1"
        assert env.states() == {created.uid: "placing", floor_id(created, env.vendors): "floor"}
        await env.run(60)
        assert (env.mem(), env.in_flight()) == (12288, {})


async def test_a_pod_with_a_reservation_that_is_deleted_at_once_costs_nothing_any_more() -> None:
    async with QuotaEnv(L, quota(mem=2000)) as env:
        await env.create(pod(gpu=1, mem=1500), path="/webhook")
        await env.drain()  # seen, and not yet recomputed
        await env.delete("p", grace=0)
        assert list(env.states().values()) == ["admitted"]
        await env.run(2)
        assert (env.mem(), env.ledger()) == (0, {})


async def test_a_mirror_pod_is_counted_above_hard_and_blocks_new_pods() -> None:
    """Its node runs it already, so it isn't refused; the recompute counts it as soon as it shows."""
    async with QuotaEnv(L, quota(mem=2000)) as env:
        mirror = pod(
            "static", nodeName="n1", annotations={"kubernetes.io/config.mirror": "x"}, gpu=1, mem=3000, uid="u"
        )
        review = replace(env.review(mirror), username="system:node:n1", groups=["system:nodes"])
        assert await env.core.admission.validate(review) == UNCHANGED
        assert (env.mem(), env.ledger()) == (0, {}), "admission charges nothing"
        await env.cluster.create(Kind.PODS, mirror)
        await env.run(3)
        assert env.mem() == 3000
        assert "used: limits.nvidia.com/gpumem=3000" in (await env.refused(pod(gpu=1, mem=1))).message
