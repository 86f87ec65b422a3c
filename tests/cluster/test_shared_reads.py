"""Reads that are shared while they are under way, and no longer."""

from __future__ import annotations

import asyncio

import pytest

from hami_webhook.cluster.api import Unavailable
from hami_webhook.cluster.shared_reads import SharedReads


class Reads:
    def __init__(self) -> None:
        self.begun = 0
        self.answer = asyncio.Event()
        self.shared = SharedReads(self.read)

    async def read(self, key: str) -> str:
        self.begun += 1
        number = self.begun
        await self.answer.wait()
        if key == "broken":
            raise Unavailable("no answer")
        return f"{key} {number}"


async def test_who_comes_while_a_read_is_under_way_waits_for_it() -> None:
    reads = Reads()
    waiting = [asyncio.create_task(reads.shared.get("a")) for _ in range(3)]
    other = asyncio.create_task(reads.shared.get("b"))
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    reads.answer.set()
    assert [await each for each in waiting[1:]] == [("a 1", False)] * 2, "although the first gave up"
    assert await other == ("b 2", True)


async def test_an_answer_that_is_there_is_nobodys_who_comes_later() -> None:
    """Also at once, before the loop ran anything else: who needs a newer answer would be given the same for ever."""
    reads = Reads()
    reads.answer.set()
    assert [await reads.shared.get("a") for _ in range(3)] == [("a 1", True), ("a 2", True), ("a 3", True)]


async def test_all_who_wait_get_the_error_and_the_next_reads_anew() -> None:
    reads = Reads()
    waiting = [asyncio.create_task(reads.shared.get("broken")) for _ in range(2)]
    await asyncio.sleep(0)
    reads.answer.set()
    for each in waiting:
        with pytest.raises(Unavailable):
            await each
    with pytest.raises(Unavailable):
        await reads.shared.get("broken")
    assert reads.begun == 2
