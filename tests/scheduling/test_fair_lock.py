"""Turns among namespaces: nobody waits for more than one pod of each other namespace, and none is forgotten."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.scheduling.fair_lock import FairLock

from .extender_env import turns


class Waiters:
    """Those who asked for a lock, by namespace and number, and the order in which they had it."""

    def __init__(self) -> None:
        self.lock = FairLock()
        self.had: list[tuple[str, int]] = []
        self.tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.go_on = asyncio.Semaphore(0)

    def come(self, namespace: str) -> None:
        number = sum(each == namespace for each, _ in self.tasks)

        async def wait() -> None:
            await self.lock.acquire(namespace)
            try:
                self.had.append((namespace, number))
                await self.go_on.acquire()
            finally:
                self.lock.release()

        self.tasks[namespace, number] = asyncio.create_task(wait())


async def test_a_namespace_with_many_pods_holds_another_up_by_one() -> None:
    waiters = Waiters()
    for namespace in "aaaaaaaaaab":
        waiters.come(namespace)
    await turns()
    for _ in range(2):
        waiters.go_on.release()
        await turns()
    assert [namespace for namespace, _ in waiters.had] == ["a", "b", "a"], "b came last of eleven"
    for task in waiters.tasks.values():
        task.cancel()


STEPS = st.lists(st.one_of(st.sampled_from("abcd"), st.just("next"), st.integers(0, 30)), max_size=60)


@given(STEPS)
def test_whatever_happens_turns_are_fair_and_none_is_lost(steps: list[str | int]) -> None:
    """A letter: a pod of that namespace comes; `next`: the turn ends; a number: that one gives up."""

    async def story() -> None:
        waiters = Waiters()
        waited: dict[tuple[str, int], int] = {}
        for step in steps:
            if step == "next":
                waiters.go_on.release()
            elif isinstance(step, int):
                known = list(waiters.tasks)
                if step < len(known):
                    waiters.tasks[known[step]].cancel()
            else:
                waiters.come(step)
                waited[list(waiters.tasks)[-1]] = len(waiters.had)
            await turns()
        for _ in waiters.tasks:
            waiters.go_on.release()
            await turns()
        for task in waiters.tasks.values():
            assert task.done(), "nobody is left"
        for namespace in "abcd":
            numbers = [number for each, number in waiters.had if each == namespace]
            assert numbers == sorted(numbers), "first come first served"
        for turn, (namespace, number) in enumerate(waiters.had):
            between = [each for each, _ in waiters.had[waited[namespace, number] : turn]]
            for other in {"a", "b", "c", "d"} - {namespace}:
                assert between.count(other) <= between.count(namespace) + 1

    asyncio.run(story())
