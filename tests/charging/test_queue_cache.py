"""Charging by what the cache knows of the quotas, and when that isn't enough (docs/spec/quota.md#7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from quota.objects import MEM, NOON, TEAM

from hami_webhook.charging.queue import RETRIES, ChargeResult
from hami_webhook.cluster.api import Kind
from hami_webhook.quota.refusals import Refusal

from .test_queue import Desk, ask, desk


@desk({"a": 10})
async def test_a_cache_may_serve_the_first_attempt_but_never_a_refusal(one: Desk) -> None:
    old = one.read()
    await one.rival.charge(ask("x", gpu=1, mem=10))
    one.steps.clear()
    one.cached = [old]
    outcome = await one.charger.charge(ask())
    assert isinstance(outcome, Refusal)
    assert f"used: {MEM}=10" in outcome.message
    assert one.steps == ["patch_status:before", "get:before"]
    full_ = one.read()
    await one.cluster.delete(Kind.RESOURCE_QUOTAS, "a", TEAM)
    await one.add("a", mem=10)
    one.cached = [full_]
    assert isinstance(await one.charger.charge(ask()), ChargeResult)


@desk({"a": 10})
async def test_a_good_cache_saves_the_read(one: Desk) -> None:
    one.cached = [one.read()]
    await one.charger.charge(ask())
    assert one.steps == ["patch_status:before", "patch_status:after"]
    one.steps.clear()
    one.cached = []
    assert await one.charger.charge(ask("v")) == ChargeResult({})
    assert one.steps == []


@desk({})
async def test_pods_that_no_quota_concerns_are_charged_without_a_batch(one: Desk) -> None:
    """Together they don't even wait for each other."""
    one.cached, one.silent_since = [], NOON
    assert await asyncio.gather(*(one.charger.charge(ask(name)) for name in "abc")) == [ChargeResult()] * 3
    assert (one.steps, one.slept) == ([], [])


@pytest.mark.parametrize(
    ("shown", "silent", "listed", "there", "none"),
    [
        (0, 1.9, None, 0, True),
        (0, 2.1, None, 0, False),
        (1, 1.9, None, 1, False),
        (0, 2.1, 1.9, 0, True),
        (0, 2.1, 2.1, 0, False),
        (0, 1.9, 1.9, 1, False),
        (None, 2.1, 1.9, 0, False),
    ],
    ids=["alive", "silent", "a quota", "listed", "listed before", "one that only the list had", "no cache"],
)
def test_a_namespace_has_no_quotas_if_neither_the_cache_nor_a_list_shows_any(
    shown: int | None, silent: float, listed: float | None, there: int, none: bool
) -> None:
    """`silent` and `listed`: seconds since the watch's last sign of life and since a list."""

    @desk({})
    async def run(one: Desk) -> None:
        if there:
            await one.add("a", gpu=9)
        if listed is not None:
            await one.charger.charge(ask())
            one.now += listed
        one.cached = None if shown is None else [one.read()] * shown
        one.silent_since = one.now - silent
        assert one.charger.known(ask().pod.namespace).none is none

    run()


LISTED = ["list:before"]
WRITTEN = ["patch_status:before", "patch_status:after"]


@pytest.mark.parametrize(
    ("cached", "silent", "steps"),
    [
        ([], 1.9, []),
        ([], 2.1, LISTED),
        ([{"gpu": 9, "mem": 10}], 2.1, WRITTEN),
        ([{"gpu": 9}, {"mem": 10}], 2.1, WRITTEN * 2),
        ([{"mem": 10}], 1.9, WRITTEN),
        ([{"mem": 10}], 2.1, LISTED + WRITTEN),
        ([{"cores": 10}], 1.9, []),
        ([{"cores": 10}], 2.1, LISTED),
        ([{"gpu": 9, "mem": 10, "spec": {"scopes": ["Terminating"]}}], 2.1, LISTED),
    ],
)
def test_what_the_cache_lacks_is_listed_once_its_watch_is_silent(
    cached: list[dict[str, Any]], silent: float, steps: list[str]
) -> None:
    @desk({})
    async def run(one: Desk) -> None:
        for number, hard in enumerate(cached):
            await one.add(f"q{number}", **hard)
        one.cached = [one.read(f"q{number}") for number in range(len(cached))]
        one.silent_since = one.now - silent
        one.steps.clear()
        assert isinstance(await one.charger.charge(ask(gpu=1, mem=5)), ChargeResult)
        assert one.steps == steps

    run()


@desk({})
async def test_a_list_is_remembered_for_two_seconds_beside_a_silent_watch(one: Desk) -> None:
    one.silent_since = one.now - 3

    async def charged(name: str) -> list[str]:
        one.cached = []
        one.steps.clear()
        await one.charger.charge(ask(name, gpu=1, mem=2))
        return one.steps

    assert await charged("u") == LISTED
    assert await charged("v") == []
    one.now += 2.1
    await one.add("new", mem=5)
    assert await charged("w") == LISTED + WRITTEN
    assert await charged("x") == WRITTEN  # remembered, with what the charge before made of it
    one.cached = []
    assert isinstance(await one.charger.charge(ask("y", gpu=1, mem=2)), Refusal)


@desk({})
async def test_a_watch_that_is_silent_about_our_own_write_is_not_believed(one: Desk) -> None:
    await one.add("a", gpu=9, mem=10)
    stale = [one.read()]
    one.silent_since = one.now - 3
    for name, steps in (("u", WRITTEN), ("v", LISTED + WRITTEN * 2)):
        one.cached = stale
        one.steps.clear()
        assert isinstance(await one.charger.charge(ask(name, gpu=1, mem=2)), ChargeResult)
        assert one.steps == steps
        if name == "u":
            await one.add("b", gpu=9, mem=10)
    assert (one.state("a"), one.state("b")) == ((4, {"u", "v"}), (2, {"v"}))


@desk()
async def test_a_cache_that_has_not_seen_our_last_write_costs_no_conflict(one: Desk) -> None:
    stale = [one.read("a"), one.read("b")]
    for name in ("u", "v"):
        one.cached = stale
        assert isinstance(await one.charger.charge(ask(name, gpu=1, mem=2)), ChargeResult)
    assert one.state("a") == one.state("b") == (4, {"u", "v"})
    assert one.charger.counts.conflicts == 0
    # the cache caught up with a later write of somebody else's; then a quota of another UID stands in its place
    await one.cluster.patch_status(Kind.RESOURCE_QUOTAS, "a", {"metadata": {"labels": {"x": "y"}}}, TEAM)
    await one.cluster.delete(Kind.RESOURCE_QUOTAS, "b", TEAM)
    await one.add("b", mem=10)
    one.cached = [one.read("a"), one.read("b")]
    assert isinstance(await one.charger.charge(ask("w", gpu=1, mem=2)), ChargeResult)
    assert (one.state("a"), one.state("b")) == ((6, {"u", "v", "w"}), (2, {"w"}))
    assert one.charger.counts.conflicts == 0


@desk({"a": 10})
async def test_nothing_is_kept_of_a_namespace_that_has_become_quiet(one: Desk) -> None:
    assert isinstance(await one.charger.charge(ask()), ChargeResult)
    assert list(one.store._seen) == [TEAM]
    one.now += 60
    await one.store.update("other", lambda snapshot: ({}, None), retries=RETRIES)
    assert list(one.store._seen) == ["other"]


@desk({"a": 10})
async def test_what_no_write_proves_is_not_believed_of_a_cache(one: Desk) -> None:
    old = one.read()
    await one.charger.charge(ask())
    charged = one.read()
    await one.cluster.delete(Kind.RESOURCE_QUOTAS, "a", TEAM)
    await one.add("a", mem=4)
    one.cached = [charged]
    assert isinstance(await one.charger.charge(ask()), Refusal)  # its entry isn't there any more
    one.cached = [old]
    assert isinstance(await one.charger.charge(ask("d", dry_run=True)), Refusal)
