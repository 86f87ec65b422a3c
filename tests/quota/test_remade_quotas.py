"""Quotas that are deleted and made anew while pods are on their way, which count for the new one too.

Source: docs/spec/quota.md#10.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import virtual_time
from builders import accelerator_quota
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.api import JSON, LONGEST_SILENCE, Kind
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.deleted_ledgers import DeletedLedgers
from hami_webhook.quota.ledger import LEDGER, Entry, State, encode

from .objects import NOON, TEAM, account_of, full, pod, quota
from .quota_env import QuotaEnv

OWN, ABOVE = quota(mem=1000), accelerator_quota(mem=1000)
BOTH = pytest.mark.parametrize("made", [OWN, ABOVE], ids=["of a namespace", "above namespaces"])


def kind_of(made: JSON) -> Kind:
    return Kind.RESOURCE_QUOTAS if made["kind"] == "ResourceQuota" else Kind.ACCELERATOR_QUOTAS


async def replace(env: QuotaEnv, made: JSON, name: str = "") -> None:
    meta = made["metadata"]
    await env.cluster.delete(kind_of(made), meta["name"], meta.get("namespace", ""))
    await env.add({**made, "metadata": {**meta, "name": name or meta["name"]}})


@BOTH
async def test_a_pod_that_is_there_counts_once(made: JSON) -> None:
    async with QuotaEnv(made) as env:
        await env.run(3)
        await env.create(pod("first", gpu=1, mem=600))
        await replace(env, made)
        await env.drain()
        await env.create(pod("second", gpu=1, mem=400))


async def test_a_quota_of_another_name_in_the_place_of_the_first_is_found() -> None:
    """The watch shows neither the deletion nor the new one."""
    async with QuotaEnv(OWN) as env:
        await env.run(3)
        await env.cluster.patch(Kind.RESOURCE_QUOTAS, "gpu-quota", {"metadata": {"labels": {"x": "y"}}}, TEAM)
        await env.drain()
        await env.silence(0)
        await replace(env, quota(mem=300, name="gpu-quota"), "other")
        # what was charged to the first isn't known, until so much time has passed that the watch isn't believed
        waits = await env.refused(pod("p", gpu=1, mem=400))
        assert (waits.code, "quota other was made just now" in waits.message) == (503, True)
        env.now += LONGEST_SILENCE + 1
        assert "exceeded quota: other" in (await env.refused(pod("p", gpu=1, mem=400))).message


@BOTH
async def test_what_another_replica_charged_counts_though_the_watch_is_late(made: JSON) -> None:
    """The second replica's watch shows the quota as it was before the charge, and not yet that it was replaced."""
    async with QuotaEnv(made, replicas=2) as env:
        await env.run(3)
        env.let_watches(1, open=False)
        await env.admit(pod("first", gpu=1, mem=600))
        await replace(env, made)
        refusal = await env.refused(pod("second", gpu=1, mem=500), replica=1)
        assert refusal.code == 503
        env.let_watches(1, open=True)
        await env.drain()
        assert "gpumem=600" in (await env.refused(pod("second", gpu=1, mem=500), replica=1)).message
        await env.admit(pod("third", gpu=1, mem=400), replica=1)


async def test_an_ordinary_new_quota_is_waited_for_by_nobody() -> None:
    """Nor one beside another of the same scopes, of which the watch is late."""
    async with QuotaEnv(OWN) as env:
        await env.run(3)
        pauses: list[float] = []

        async def pause(seconds: float) -> None:
            pauses.append(seconds)

        env.core.quotas._sleep = pause
        await env.add(quota(mem=500, name="second"))
        await env.drain()
        assert "exceeded quota: second" in (await env.refused(pod("p", gpu=1, mem=600))).message
        await env.cluster.ensure_namespace("new")
        env.let_watches(0, open=False)
        await env.add(quota(mem=500, namespace="new"))
        env.now += 3
        refused = await env.refused(pod("p", gpu=1, mem=600, namespace="new"))
        assert "exceeded quota" in refused.message
        assert pauses == [0, 0]


def test_pods_that_were_let_in_between_two_quotas_are_waited_for() -> None:
    """Their reviews found no quota: they are stored within a second, and counted then."""
    now = NOON
    ledgers = DeletedLedgers(45, lambda: now)
    old, new = ({**quota(mem=9), "metadata": {"name": "q", "namespace": TEAM, "uid": uid}} for uid in ("old", "new"))
    assert ledgers.settled_in(account_of(new)) == 0
    ledgers.note(ResourceQuota.from_object(old))
    now += 0.25
    assert ledgers.settled_in(account_of(new)) == 0.75
    assert ledgers.settled_in(account_of({**quota(mem=9, namespace="other")})) == 0
    now += 5
    assert ledgers.settled_in(account_of(new)) == 0


@pytest.mark.parametrize(
    ("used", "taken"),
    [(None, {"u"}), ({"mem": 0}, {"u"}), ({"mem": 0, "gpu": 0}, set[str]()), ({"mem": 5, "gpu": 1}, set())],
)
def test_charges_are_taken_over_until_use_is_known_of_all_keys(used: dict[str, int] | None, taken: set[str]) -> None:
    def made(uid: str, **meta: object) -> JSON:
        return {**quota(mem=9, gpu=9), "metadata": {"name": "q", "namespace": TEAM, "uid": uid, **meta}}

    ledgers = DeletedLedgers(45, lambda: NOON)
    ledger = encode({"u": Entry(State.ADMITTED, int(NOON), full(mem=5))})
    ledgers.note(ResourceQuota.from_object(made("old", annotations={LEDGER: ledger})))
    status = {} if used is None else {"used": {key: str(amount) for key, amount in full(**used).items()}}
    assert ledgers.entries(account_of({**made("new"), "status": status})).keys() == taken


def test_attack_quotas_that_are_deleted_without_charges_in_flight_fill_no_memory() -> None:
    now = NOON
    ledgers = DeletedLedgers(45, lambda: now)
    for number in range(10):
        made = {**quota(mem=9), "metadata": {"name": f"q{number}", "namespace": TEAM, "uid": f"u{number}"}}
        if number < 5:
            made["metadata"]["annotations"] = {LEDGER: encode({"u": Entry(State.ADMITTED, int(now), full(mem=5))})}
        ledgers.note(ResourceQuota.from_object(made))
        now += 10
    assert ledgers._deleted == []
    assert len(ledgers._last) == 1


async def test_what_was_charged_long_ago_or_is_no_charge_of_ours_is_not_taken_over() -> None:
    async with QuotaEnv(OWN) as env:
        await env.run(3)
        await env.admit(pod("never-came", gpu=1, mem=600))
        await env.drain()
        await env.cluster.delete(Kind.RESOURCE_QUOTAS, "gpu-quota", TEAM)
        await env.drain()
        env.now += 46
        await env.add(OWN)
        await env.drain()
        await env.admit(pod("p", gpu=1, mem=1000))


@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=8),
    turns=st.lists(st.integers(0, 100), min_size=8, max_size=8),
    remade=st.lists(st.integers(0, 60), min_size=1, max_size=2),
    above=st.booleans(),
    replicas=st.integers(1, 2),
)
def test_in_any_interleaving_no_more_is_admitted_than_both_objects_allow(
    sizes: list[int], turns: list[int], remade: list[int], above: bool, replicas: int
) -> None:
    """Pods are admitted, and stored some steps later; meanwhile the quota is deleted and made anew at once."""
    made = accelerator_quota(mem=10) if above else quota(mem=10)

    async def play() -> int:
        async with QuotaEnv(made, replicas=replicas) as env:
            await env.run(3)

            async def pause(step: str) -> None:
                await asyncio.sleep(0)

            async def create(number: int, size: int) -> None:
                for _ in range(turns[number]):
                    await asyncio.sleep(0)
                try:
                    stored, _ = await env.admit(pod(f"p{number}", gpu=1, mem=size), replica=number % replicas)
                except Denied:
                    return
                for _ in range(turns[-1 - number]):
                    await asyncio.sleep(0)
                await env.cluster.create(Kind.PODS, stored)

            async def administer() -> None:
                for steps in remade:
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    await replace(env, made)

            env.cluster.pause = pause
            tasks: list[Any] = [create(number, size) for number, size in enumerate(sizes)]
            await asyncio.gather(*tasks, administer())
            return sum(
                int(Pod.from_object(p).containers[0].limits["nvidia.com/gpumem"])
                for p in env.cluster.peek_all(Kind.PODS, TEAM)
            )

    assert virtual_time.run(play()) <= 10
