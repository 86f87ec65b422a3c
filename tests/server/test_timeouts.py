"""A deadline that is only started where something is waited for behaves like one that always is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hami_webhook.server.bodies import within


def run(story: Any) -> Any:
    async def whole() -> Any:
        async with asyncio.timeout(5):
            return await story

    return asyncio.run(whole())


async def after(turns: int, result: Any = None, error: Exception | None = None) -> Any:
    for _ in range(turns):
        await asyncio.sleep(0.001)
    if error is not None:
        raise error
    return result


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_the_result_comes_through(turns: int) -> None:
    assert run(within(5, after(turns, "answer"))) == "answer"


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_an_error_comes_through(turns: int) -> None:
    with pytest.raises(ValueError, match="bad"):
        run(within(5, after(turns, error=ValueError("bad"))))


def test_what_waits_too_long_is_cancelled_and_may_clean_up() -> None:
    seen: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            await asyncio.sleep(0)
            seen.append("cleaned up")

    with pytest.raises(TimeoutError):
        run(within(0.01, endless()))
    assert seen == ["cancelled", "cleaned up"]


def test_work_that_outlives_its_cancellation_still_gives_its_result_as_with_a_plain_timeout() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "late"

    async def story() -> str:
        return await within(0.01, stubborn())

    async def plain() -> str:
        async with asyncio.timeout(0.01):
            return await stubborn()

    assert run(story()) == run(plain()) == "late"


def test_a_deadline_inside_is_its_own() -> None:
    async def inner() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            return "inner"
        return "none"

    assert run(within(5, inner())) == "inner"


def test_cancelling_from_outside_reaches_the_work() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def story() -> None:
        task = asyncio.create_task(within(5, work()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(story())
    assert seen == ["cancelled"]


def test_work_that_is_given_up_in_its_middle_is_closed() -> None:
    closed: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            closed.append(True)

    async def story() -> None:
        waiting = within(5, work())
        waiting.send(None)
        waiting.close()

    run(story())
    assert closed == [True]
