"""Lock values that nobody can mean, or of the future: none keeps a node for longer than a lock lasts.

Source: docs/spec/core.md#9.4.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.cluster.api import ClusterError
from hami_webhook.scheduling.node_locks import LockContended

from .placer_env import NOW
from .test_node_locks import LockEnv, a_pod, at

NO_LOCKS = (
    *("", "x", "2026-01-01T00:00:00Z,ns", "2026-01-01T00:00:00Z,a,b,c", "now,ns,p", "2026-01-01T00:00:00,ns,p"),
    *("2026-01-01T00:00:00Z,,", "2026-01-01T00:00:00Z,,p", "2026-01-01T00:00:00Z,ns,", "2999-01-01T00:00:00Z,,"),
    *("2026-01-01T00:00:00Z,..,p", "2026-01-01T00:00:00Z,ns,../../nodes", "2026-01-01T00:00:00Z,ns,p?x=y", ",,", "💥"),
)


@pytest.mark.parametrize("text", NO_LOCKS)
async def test_what_is_no_lock_fails_at_once_and_is_broken_when_it_has_been_seen_as_long_as_a_lock_lasts(
    text: str,
) -> None:
    calls: list[str] = []

    async def pause(step: str) -> None:
        calls.append(step)

    env = LockEnv(pause=pause)
    await env.open(text)
    for age in (0, 1, 100, 300):
        env.now = NOW + age
        del calls[:]
        with pytest.raises(ClusterError, match=r"node n: hami.io/mutex.lock can't be read"):
            await env.take(a_pod("p"))
        assert calls == ["get:before"], "the node, and nothing else"
    assert env.value() == text
    assert env.naps == []
    env.now = NOW + 301
    await env.take(a_pod("p"))
    assert env.value() == f"{at(301)},b,p"


async def test_the_error_for_what_is_no_lock_quotes_its_beginning_and_says_when_it_ends() -> None:
    env = LockEnv()
    await env.open("x" * 100_000)
    with pytest.raises(ClusterError) as caught:
        await env.take(a_pod("p"))
    message = str(caught.value)
    assert message.startswith("node n: hami.io/mutex.lock can't be read, and is ignored in 5m0s: 'xxx")
    assert message.endswith("isn't a time, or a time, a namespace and a pod")
    assert len(message) < 500


@pytest.mark.parametrize("ahead", [1, 3600, 1e9, 2e11])
@pytest.mark.parametrize("holder", [",a,lives", ""], ids=["held", "bare time"])
async def test_a_lock_of_the_future_was_taken_when_it_was_first_seen(holder: str, ahead: float) -> None:
    env = LockEnv(patience=0)
    value = at(ahead) + holder
    await env.open(value, "lives")
    for age in (0, 1, 299, 300):
        env.now = NOW + age
        if env.now < NOW + ahead:  # else it is believed by now
            with pytest.raises(LockContended):
                await env.take(a_pod("p"))
    assert env.value() == value
    env.now = NOW + 302
    await env.take(a_pod("p"))
    assert env.value() == f"{at(302)},b,p"


async def test_another_value_is_another_lock() -> None:
    """Clocks differ: a lock that a plugin let go leaves nothing behind for the next one."""
    env = LockEnv(patience=0)
    await env.open(f"{at(5)},a,lives", "lives")
    with pytest.raises(LockContended):
        await env.take(a_pod("p"))
    env.now = NOW + 400
    await env.write(f"{at(405)},a,lives")
    for age in (400, 700):
        env.now = NOW + age
        with pytest.raises(LockContended):
            await env.take(a_pod("p"))


@given(
    text=st.one_of(st.text(), st.sampled_from(NO_LOCKS), st.datetimes().map(lambda when: f"{when.isoformat()}Z,a,p"))
)
def test_no_value_keeps_a_node_for_longer_than_a_lock_lasts(text: str) -> None:
    async def story() -> None:
        lists: list[str] = []

        async def pause(step: str) -> None:
            lists.extend([step] if step.startswith("list") else [])

        env = LockEnv(patience=0, pause=pause)
        await env.open(text, "p")
        with contextlib.suppress(ClusterError):
            await env.take(a_pod("p"))
        env.now += 301
        await env.take(a_pod("p"))
        assert str(env.value()).endswith(",b,p")
        assert lists == []

    asyncio.run(story())
