"""However many pods wait, and however they differ, what a round takes is little for each of them."""

from __future__ import annotations

from collections import Counter

import pytest
from builders import card, node
from queueing.test_releaser import GATES, queueing, shared
from quota.objects import pod
from quota.quota_env import QuotaEnv

from hack.bench.counting import counted_calls
from hami_webhook.cluster.api import Kind

MOST_CALLS = 20
"""Of our functions, in a round, for one more pod that waits as before."""


async def second_round(pods: int, *, different: bool) -> Counter[str]:
    """What is called in a round, of which nothing is new, with so many pods in a full quota."""
    async with QuotaEnv(node("n1", card("GPU-L", 40000)), queueing(gpu=2), shared(gpu=pods)) as env:
        for number in range(pods):
            made = pod(f"p{number}", gpu=1, mem=number + 1 if different else 1, uid=f"u{number}", schedulingGates=GATES)
            await env.cluster.create(Kind.PODS, made)
        await env.release()
        with counted_calls() as calls:
            assert not await env.releaser.step()
        return calls


@pytest.mark.parametrize("different", [False, True])
async def test_a_pod_that_waits_on_costs_a_round_nearly_nothing(different: bool) -> None:
    few, many = [await second_round(pods, different=different) for pods in (20, 120)]
    assert (few["quota.queue:_priced"], many["quota.queue:_priced"]) == (0, 0)
    # those that are equal are decided on once
    assert different or many["quota.queue_order:_Deciding.obstacle"] == few["quota.queue_order:_Deciding.obstacle"]
    assert many.total() - few.total() <= 100 * MOST_CALLS
