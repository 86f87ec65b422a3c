"""Several attempts to charge: their turns, whose an entry is, and what each takes back (docs/spec/quota.md#6)."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs
from quota.objects import NOON, TEAM, full
from quota.test_account import entry, read

from hami_webhook.charging.queue import ChargeResult
from hami_webhook.cluster.api import Kind, Unavailable
from hami_webhook.quota.batch import evaluate_batch
from hami_webhook.quota.ledger import LEDGER, Entry, State, decode, encode
from hami_webhook.quota.refusals import Refusal

from .test_queue import Desk, ask, desk


@pytest.mark.parametrize(
    ("known", "after"),
    [
        (entry(5, attempt="another"), "this"),
        (entry(5), "this"),  # of an older version
        (entry(5, attempt="this"), "this"),
        (entry(5, State.PLACING, actual=full(mem=4), attempt="another"), "another"),
        (entry(5, State.WAITING), ""),
    ],
)
def test_an_attempt_makes_the_entry_its_own_that_it_relies_on(known: Entry, after: str) -> None:
    one = read({"mem": 5}, {"u": known}, mem=10)
    found = evaluate_batch({"q": one}, [ask(gpu=1, mem=5).marked("this")], NOON + 3, 9, recomputed=frozenset())
    assert found.accounts["q"].ledger["u"].attempt == after
    assert found.accounts["q"].used == full(mem=5)
    assert (found.accounts["q"] is one) == (known.attempt == after)


@pytest.mark.parametrize("lost", ["patch_status:before", "patch_status:after"])
@pytest.mark.parametrize("rival", ["succeeds", "fails", "of an older version"])
def test_an_attempt_takes_back_its_own_entry_and_none_that_another_relies_on(lost: str, rival: str) -> None:
    """Two replicas review a pod, as a review is repeated; the first gets no answer, and its undo comes last.

    `python -m hack.explore repeated` found it.
    """

    @desk({"a": 10})
    async def reported(one: Desk) -> None:
        found: list[object] = []

        async def trouble(step: str) -> None:
            if step == lost:
                one.trouble = later
                raise Unavailable("no answer")

        async def later(step: str) -> None:
            one.trouble = None
            if rival == "fails":
                one.fail(Unavailable, "patch_status:after", [1])
            found.append(await one.rival.charge(ask()))
            if rival == "of an older version":  # which keeps what it knows of an entry
                text = one.read().annotations[LEDGER]
                older = encode({key: structs.replace(each, attempt="") for key, each in decode(text).items()})
                await one.cluster.patch_status(
                    Kind.RESOURCE_QUOTAS, "a", {"metadata": {"annotations": {LEDGER: older}}}, TEAM
                )

        one.trouble = trouble
        assert isinstance(await one.charger.charge(ask()), Refusal)
        assert [isinstance(each, ChargeResult) for each in found] == [rival != "fails"]
        assert one.state() == ((0, set()) if rival == "fails" else (5, {"u"}))

    reported()


@desk({"a": 10})
async def test_turns_are_taken_in_the_order_in_which_they_were_asked_for(one: Desk) -> None:
    first, second = one.store.turn(TEAM), one.store.turn(TEAM)
    await first.__aenter__()
    waiting = asyncio.create_task(second.__aenter__())
    await asyncio.sleep(0)
    charging = asyncio.create_task(one.charger.charge(ask()))
    await first.__aexit__(None, None, None)
    await waiting
    await asyncio.sleep(0.02)
    assert not charging.done()
    await second.__aexit__(None, None, None)
    assert isinstance(await charging, ChargeResult)
