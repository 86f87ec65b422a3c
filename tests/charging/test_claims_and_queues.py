"""Claims where pods wait for a quota: they get what these leave (docs/spec/queues.md#6)."""

from __future__ import annotations

import pytest
from builders import card, node
from queueing.test_releaser import queueing, waits
from quota.objects import LARGE, pod

from hami_webhook.cluster.api import JSON

from .claim_env import TEN, Cluster, claiming, got, owned_by, publish

L = node("n1", card("GPU-L", LARGE))
PASSES = "quota gpu-quota queues pods, and those that wait come first: devices that are claimed"


async def queued(team: Cluster, *names: str) -> None:
    """Of four places all come free while as many pods wait."""
    await publish(team, ten=TEN)
    await team.create(pod("runs", gpu=4, mem=1))
    await team.release()
    for name in names:
        await team.create(pod(name, gpu=1, mem=1))
    await team.release()
    assert waits(team) == sorted(names)
    await team.finish("runs")
    await team.run(12)


async def test_claims_take_no_room_that_waiting_pods_are_about_to_get() -> None:
    async with Cluster(L, queueing(gpu=4)) as team:
        await queued(team, *"abcd")
        refused = await team.refused(claiming("passing", "ten"))
        assert (refused.code, refused.message.startswith(PASSES)) == (403, True)
        assert (await team.fails(team.make("by-hand"))).message.startswith(PASSES)
        await team.release()
        assert (waits(team), team.used()) == ([], {"gpu": 4})


async def test_a_claim_that_says_it_is_a_pods_passes_nobody_when_it_is_allocated() -> None:
    async with Cluster(L, queueing(gpu=4)) as team:
        await queued(team, *"abcd")
        await team.make("forged", **owned_by("nobody", "x"))
        refused = await team.fails(team.allocate("forged", got("10000Mi")))
        assert refused.message.startswith(PASSES)
        await team.release()
        assert (waits(team), team.used()) == ([], {"gpu": 4})


@pytest.mark.parametrize("waiting", ["", "ab"])
async def test_claims_get_what_the_pods_that_wait_leave(waiting: str) -> None:
    async with Cluster(L, queueing(gpu=4)) as team:
        await queued(team, *waiting)
        await team.create(claiming("first", "ten"))
        await team.make("second")
        await team.generate("first", "r-ten")
        await team.allocate("first-r-ten", got("10000Mi"))
        await team.release()
        assert (waits(team), team.used()) == ([], {"gpu": 2 + len(waiting)})


async def test_where_nobody_waits_or_quotas_do_not_queue_claims_are_charged_as_ever() -> None:
    made: JSON = queueing(gpu=1)
    async with Cluster(L, made) as team:
        await publish(team, ten=TEN)
        await team.create(claiming("only", "ten"))
        refused = await team.refused(claiming("more", "ten"))
        assert refused.message.startswith("exceeding resource quota: exceeded quota: gpu-quota")
