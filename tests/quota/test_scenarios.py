"""The worked scenarios of docs/spec/quota.md#13, #1 to #16, from the user's request to what the quota shows."""

from __future__ import annotations

import asyncio

from builders import card, container, node

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.api import Kind
from hami_webhook.kube.human_memory import human_mebibytes
from hami_webhook.scheduling.placer import Placement

from .objects import LARGE, SMALL, TEAM, pod, quota
from .quota_env import QuotaEnv

L, S = node("n1", card("GPU-L", LARGE)), node("n2", card("GPU-S", SMALL))


def exceeded(name: str, key: str, requested: str, used: int, limited: int) -> str:
    memory = [human_mebibytes(amount) for amount in (int(requested.split()[0]), used, limited)]
    in_gi = " (memory: {} requested, {} used, {} limited)".format(*memory) if key == "gpumem" else ""
    key = f"limits.nvidia.com/{key}"
    return (
        f"exceeding resource quota: exceeded quota: {name}, requested: {key}={requested}, "
        f"used: {key}={used}, limited: {key}={limited}{in_gi}"
    )


async def test_scenario_01_the_product_counts_at_admission() -> None:
    async with QuotaEnv(L, quota(gpu=2, mem=3000)) as env:
        denial = await env.refused(pod(gpu=2, mem=2000))
        assert denial.code == 403
        assert denial.reason == "Forbidden"
        assert denial.message == exceeded("gpu-quota", "gpumem", "4000", 0, 3000)
        assert env.used() == {"gpu": 0, "mem": 0}
        assert env.ledger() == {}


async def test_scenario_02_used_is_the_same_before_and_after_placement() -> None:
    async with QuotaEnv(node("n1", card("GPU-1", LARGE), card("GPU-2", LARGE)), quota(mem=4000)) as env:
        await env.create(pod(gpu=2, mem=2000))
        assert env.mem() == 4000
        await env.node_of("p")
        assert env.mem() == 4000
        await env.run(3)
        assert env.mem() == 4000
        assert env.ledger() == {}


async def test_scenario_03_the_count_is_enforced() -> None:
    async with QuotaEnv(L, quota(gpu=2)) as env:
        await env.create(pod("a", gpu=1, mem=100))
        await env.create(pod("b", gpu=1, mem=100))
        denial = await env.refused(pod("c", gpu=1, mem=100))
        assert denial.message == exceeded("gpu-quota", "gpu", "1", 2, 2)


async def test_scenario_04_two_replicas_admit_just_what_fits() -> None:
    async with QuotaEnv(L, quota(mem=10000), replicas=2) as env:
        answers = await asyncio.gather(
            *(env.admit(pod(f"p{n}", gpu=1, mem=1000), replica=n % 2) for n in range(20)), return_exceptions=True
        )
        refused = [answer for answer in answers if isinstance(answer, Denied)]
        assert len(refused) == 10
        assert {denial.code for denial in refused} == {403}
        assert env.mem() == 10000
        assert len(env.ledger()) == 10


async def test_scenario_05_a_waiting_pod_counts_until_it_is_deleted() -> None:
    async with QuotaEnv(node("n1", card("GPU-1", 1000)), quota(mem=3000)) as env:
        await env.create(pod("a", gpu=1, mem=2000))
        assert "n1" in await env.reasons("a")
        await env.run(10)
        assert (await env.refused(pod("b", gpu=1, mem=2000))).message == exceeded(
            "gpu-quota", "gpumem", "2000", 2000, 3000
        )
        await env.delete("a")
        await env.run(2)
        assert env.mem() == 0
        await env.create(pod("b", gpu=1, mem=2000))
        assert env.mem() == 2000


async def test_scenario_06_a_percentage_is_a_floor_first_and_the_card_then() -> None:
    async with QuotaEnv(L, quota(mem=20000)) as env:
        await env.cluster.create(Kind.NODES, node("n2", card("GPU-S", SMALL)))
        await env.drain()
        await env.create(pod(gpu=1, percent=50))
        assert env.mem() == 8192
        await env.cluster.delete(Kind.NODES, "n2")
        await env.run(3)
        assert list(env.states().values()) == ["floor"]
        assert env.mem() == 8192
        assert await env.node_of("p") == "n1"
        assert env.mem() == 12288
        await env.run(2)
        assert env.mem() == 12288
        assert env.in_flight() == {}


async def test_scenario_07_a_node_that_would_cost_too_much_is_refused() -> None:
    async with QuotaEnv(L, S, quota(mem=10000)) as env:
        await env.create(pod(gpu=1, percent=50))
        placed = await env.place("p")
        assert isinstance(placed, Placement)
        assert placed.node == "n2"
        assert {n: str(why) for n, why in placed.failed.items()} == {"n1": "1/1 ResourceQuotaNotFit"}
        await env.run(2)
        assert env.mem() == 8192


async def test_scenario_08_what_waiting_pods_are_charged_is_not_given_away() -> None:
    async with QuotaEnv(L, S, quota(mem=20000)) as env:
        await env.create(pod("a", gpu=1, percent=50))
        await env.create(pod("b", gpu=1, mem=10000))
        assert env.mem() == 18192
        placed = await env.place("a")
        assert isinstance(placed, Placement)
        assert placed.node == "n2"
        assert str(placed.failed["n1"]) == "1/1 ResourceQuotaNotFit"
        await env.run(2)
        assert env.mem() == 18192


async def test_scenario_09_not_even_the_smallest_card_fits() -> None:
    async with QuotaEnv(L, S, quota(mem=8000)) as env:
        denial = await env.refused(pod(gpu=1, percent=50))
        assert denial.message == exceeded("gpu-quota", "gpumem", "8192 (smallest eligible card)", 0, 8000)


async def test_scenario_10_without_known_cards_one_unit() -> None:
    async with QuotaEnv(quota(mem=1000)) as env:
        await env.create(pod(gpu=1, percent=50))
        assert env.mem() == 1
    async with QuotaEnv(quota(mem=0)) as env:
        assert (await env.refused(pod(gpu=1, percent=50))).code == 403


async def test_scenario_11_a_whole_card_takes_its_cores() -> None:
    async with QuotaEnv(L, quota(gpu=1, mem=30000, cores=100)) as env:
        created = await env.create(pod(gpu=1))
        assert str(created.containers[0].limits["nvidia.com/gpucores"]) == "100"
        assert env.used() == {"gpu": 1, "mem": 24576, "cores": 100}
        assert await env.node_of("p") == "n1"
        await env.run(2)
        assert env.used() == {"gpu": 1, "mem": 24576, "cores": 100}


async def test_scenario_12_init_and_app_share_a_card_or_the_pod_waits() -> None:
    two = node("n1", card("GPU-1", 10000), card("GPU-2", 10000, index=1))
    async with QuotaEnv(two, quota(mem=8000)) as env:
        await env.create(pod("p", container(gpu=1, mem=5000), init=(container("init", gpu=1, mem=8000),)))
        assert env.mem() == 8000
        placed = await env.place("p")
        assert isinstance(placed, Placement)
        assert len({d.uuid for row in placed.rows for a in row.values() for d in a.devices}) == 1
        await env.run(2)
        assert env.mem() == 8000
        done = [{"name": "init", "state": {"terminated": {"exitCode": 0}}}]
        await env.cluster.set_phase(TEAM, "p", "Pending", initContainerStatuses=done)
        await env.run(2)
        assert env.mem() == 5000


async def test_scenario_13_sidecars_count_with_what_runs_beside_them() -> None:
    sidecar, init = container("side", sidecar=True, gpu=1, mem=2000), container("init", gpu=1, mem=6000)
    async with QuotaEnv(L, quota(mem=8000)) as env:
        await env.create(pod("p", container(gpu=1, mem=3000), init=(sidecar, init)))
        assert env.mem() == 8000
        await env.node_of("p")
        running = [{"name": "main", "state": {"running": {}}}]
        await env.cluster.set_phase(TEAM, "p", "Running", containerStatuses=running)
        await env.run(2)
        assert env.mem() == 5000
    async with QuotaEnv(L, quota(mem=8000)) as env:
        await env.create(pod("p", container(gpu=1, mem=3000), init=(init, sidecar)))
        assert env.mem() == 6000


async def test_scenario_14_percentages_of_several_containers_add_up() -> None:
    async with QuotaEnv(node("n1", card("GPU-1", 40000)), quota(mem=24000)) as env:
        halves = [container(name, gpu=1, percent=40) for name in ("one", "two")]
        denial = await env.refused(pod("p", *halves, init=(container("init"),)))
        assert denial.message == exceeded("gpu-quota", "gpumem", "32000 (smallest eligible card)", 0, 24000)


async def test_scenario_15_every_quota_must_hold() -> None:
    async with QuotaEnv(L, quota("base", mem=10000), quota("tenant", mem=4000)) as env:
        denial = await env.refused(pod(gpu=1, mem=5000))
        assert denial.message == exceeded("tenant", "gpumem", "5000", 0, 4000)
        assert env.mem("base") == 0
        assert env.ledger("base") == {}
        await env.cluster.delete(Kind.RESOURCE_QUOTAS, "base", TEAM)
        assert "exceeded quota: tenant" in (await env.refused(pod(gpu=1, mem=5000))).message


async def test_scenario_16_scopes_are_honoured() -> None:
    low = {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["low"]}]}}
    async with QuotaEnv(L, quota(mem=2000, spec=low)) as env:
        await env.create(pod("a", gpu=1, mem=5000))
        await env.run(3)
        assert env.mem() == 0
        assert (await env.refused(pod("b", gpu=1, mem=3000, priorityClassName="low"))).code == 403
