"""Loops that must not end."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from hami_webhook.loops import Loops, contained


def test_a_loop_that_raises_is_logged_counted_and_started_again_ever_later(caplog: pytest.LogCaptureFixture) -> None:
    failures: Counter[str] = Counter()
    now, pauses, runs = 0.0, [], 0

    async def sleep(seconds: float) -> None:
        nonlocal now
        pauses.append(seconds)
        now += seconds

    async def loop() -> None:
        nonlocal now, runs
        runs += 1
        if runs == 9:
            now += 60
        if runs <= 10:
            raise OverflowError(f"run {runs}")

    asyncio.run(Loops(failures, sleep=sleep, monotonic=lambda: now).keep("handshakes", loop))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 1, 2]
    assert failures == {"handshakes": 10}
    assert "handshakes failed; starting it again in 4 s" in caplog.text
    assert "OverflowError: run 10" in caplog.text


async def test_a_cancelled_loop_ends() -> None:
    failures: Counter[str] = Counter()
    task = asyncio.ensure_future(Loops(failures).keep("waits", asyncio.Event().wait))  # type: ignore[arg-type]  # it returns True, which nobody reads
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not failures


def test_what_fails_about_one_object_is_contained(caplog: pytest.LogCaptureFixture) -> None:
    failures: Counter[str] = Counter()

    def fail() -> None:
        raise KeyError("metadata")

    with contained(failures, "handshakes", "node n"):
        fail()
    assert failures == {"handshakes": 1}
    assert "handshakes: node n failed; going on without it" in caplog.text
    assert "KeyError: 'metadata'" in caplog.text
