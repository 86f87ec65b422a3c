"""Node locks: the value on the wire, who may break one, and the queue before it (docs/spec/core.md#9.4)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable

import pytest
from builders import node, pod

from hami_webhook.cluster.api import ClusterError, Conflict, Kind, Unavailable
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.devices.lock_annotations import COMMON_LOCK, LockValue, NodeLock
from hami_webhook.kube.objects import Pod, format_time, parse_time
from hami_webhook.scheduling.node_locks import LOCK, LockContended, NodeLocks, ShownNodes

from .extender_env import turns
from .placer_env import NOW


class LockEnv:
    """Locks of two nodes, `n` and `m`, as one process has them; `at_nap` is awaited in every wait.

    `pods_on` are the pods with devices of a node by the cache.
    """

    def __init__(
        self,
        patience: float = 28.0,
        pause: Callable[[str], Awaitable[None]] | None = None,
        pods_on: Callable[[str], Iterable[Pod]] | None = None,
    ) -> None:
        self.now = NOW
        self.cluster = MemoryCluster(lambda: self.now, pause=pause)
        self.naps: list[float] = []
        self.at_nap: Callable[[], Awaitable[None]] | None = None
        self.endless_naps = False
        self.version: Callable[[], str] = str
        self.shown: str | None = None
        self.locks = NodeLocks(
            self.cluster,
            clock=lambda: self.now,
            patience=patience,
            shown=ShownNodes(lambda name, annotation: self.shown, lambda name: self.version(), pods_on),
            sleep=self.sleep,
            jitter=lambda: 0.5,
        )

    async def sleep(self, seconds: float) -> None:
        if self.endless_naps:
            await asyncio.Event().wait()
        self.naps.append(seconds)
        self.now += seconds
        if self.at_nap is not None:
            await self.at_nap()
        await asyncio.sleep(0)

    async def open(self, value: str | None = None, *pods: str) -> None:
        for name in "nm":
            await self.cluster.create(Kind.NODES, node(name))
        for namespace in ("a", "b"):
            await self.cluster.ensure_namespace(namespace)
        for name in pods:
            await self.cluster.create(Kind.PODS, pod(name, gpu=1, namespace="a"))
        if value is not None:
            await self.write(value)

    async def write(self, value: str | None) -> None:
        await self.cluster.patch(Kind.NODES, "n", {"metadata": {"annotations": {LOCK: value}}})

    def value(self, name: str = "n") -> str | None:
        found = self.cluster.peek(Kind.NODES, name)
        assert found is not None
        value: str | None = found["metadata"].get("annotations", {}).get(LOCK)
        return value

    async def take(self, who: Pod, name: str = "n") -> None:
        async with self.locks.turn(name) as deadline:
            await self.locks.take(name, who, deadline)


def a_pod(name: str, namespace: str = "b") -> Pod:
    return Pod.from_object(pod(name, gpu=1, namespace=namespace, uid=f"{namespace}-{name}"))


def at(seconds: float) -> str:
    return format_time(NOW + seconds)


@pytest.mark.parametrize(
    ("text", "since", "holder"),
    [
        ("2026-01-01T00:00:00Z,ns,p", NOW, ("ns", "p")),
        ("2026-01-01T01:00:00+01:00,ns,p", NOW, ("ns", "p")),
        ("2026-01-01T00:00:00Z", NOW, None),
    ],
)
def test_a_lock_is_read(text: str, since: float, holder: tuple[str, str] | None) -> None:
    assert LockValue.read(text) == LockValue(since, holder)


MINE = f"{at(0)},b,p"


@pytest.mark.parametrize(
    ("value", "after"),
    [
        (None, MINE),
        (f"{at(-200)},b,p", MINE),
        (f"{at(-301)},b,p", MINE),
        (f"{at(-200)},a,gone", MINE),
        (f"{at(-301)},a,lives", MINE),
        (f"{at(-301)}", MINE),
        (f"{at(-200)},b,xp", MINE),
    ],
    ids=["free", "own", "own, old", "holder gone", "old", "old, bare time", "a longer name that is gone"],
)
async def test_a_lock_that_may_be_had_is_had(value: str | None, after: str) -> None:
    env = LockEnv()
    await env.open(value, "lives")
    await env.take(a_pod("p"))
    assert env.value() == after
    assert env.naps == []


@pytest.mark.parametrize("value", [f"{at(-300)},a,lives", f"{at(-300)}"], ids=["held", "bare time"])
@pytest.mark.parametrize(
    ("patience", "error"),
    [
        (0, "node n has been locked within 5m0s: node lock contention"),
        (28, "timed out after 28s waiting for node n to be unlocked: node lock contention"),
        (90, "timed out after 1m30s waiting for node n to be unlocked: node lock contention"),
    ],
)
async def test_somebody_elses_lock_is_waited_for_as_long_as_there_is_patience(
    value: str, patience: float, error: str
) -> None:
    env = LockEnv(patience)
    held = value.replace(at(-300), at(0))
    await env.open(held, "lives")
    with pytest.raises(LockContended) as caught:
        await env.take(a_pod("p"))
    assert str(caught.value) == error
    assert env.value() == held
    assert patience <= env.now - NOW < patience + 1.1


async def test_a_lock_that_grows_old_while_one_waits_is_taken_over() -> None:
    env = LockEnv()
    await env.open(f"{at(-290)},a,lives", "lives")
    await env.take(a_pod("p"))
    since = parse_time(str(env.value()).partition(",")[0])
    assert 10 < since - NOW + 1 < 12.1


async def test_a_lock_that_is_let_go_while_one_waits_is_had_soon() -> None:
    env = LockEnv()
    await env.open(f"{at(0)},a,lives", "lives")
    env.shown = env.value()

    taking = asyncio.create_task(env.take(a_pod("p")))
    env.endless_naps = True
    await turns()
    assert not taking.done()
    await env.write(None)
    env.shown = None
    env.locks.node_changed("n")
    await taking
    assert env.now == NOW, "as soon as the cache shows it"


async def test_while_the_cache_shows_the_lock_the_api_server_is_asked_every_five_seconds() -> None:
    gets = [0]

    async def pause(step: str) -> None:
        gets[0] += step == "get:before"

    env = LockEnv(10, pause)
    await env.open(f"{at(0)},a,lives", "lives")
    env.shown = env.value()
    with pytest.raises(LockContended):
        await env.take(a_pod("p"))
    assert gets[0] <= 2 * 2, "the node and the holder"


async def test_the_namespaces_take_turns() -> None:
    """A tenant's many pods hold another one's up by one."""
    env = LockEnv()
    await env.open()
    served: list[str] = []

    async def bind(who: Pod) -> None:
        async with env.locks.turn("n", who) as deadline:
            await env.locks.take("n", who, deadline)
            served.append(who.key)
            await asyncio.sleep(0)
            await env.locks.release("n", who)

    many = [a_pod(f"p{number}", "many") for number in range(10)]
    await asyncio.gather(*map(bind, [*many, a_pod("p0", "few"), a_pod("p1", "few")]))
    assert served[:5] == ["many/p0", "few/p0", "many/p1", "few/p1", "many/p2"]


async def test_one_that_gives_up_waiting_holds_up_nobody_behind() -> None:
    env = LockEnv()
    await env.open()
    async with env.locks.turn("n"):
        waiting = [asyncio.create_task(env.take(a_pod(name))) for name in ("p", "q")]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
    await waiting[1]
    assert env.value() == f"{at(0)},b,q"
    assert waiting[0].cancelled()


async def test_whose_turn_does_not_come_in_time_is_told() -> None:
    env = LockEnv(0.01)
    await env.open()
    async with env.locks.turn("n"):
        with pytest.raises(LockContended) as caught:
            await env.take(a_pod("p"))
    message = "timed out after 10ms waiting for node n to be unlocked: node lock contention"
    assert str(caught.value) == message
    await env.take(a_pod("p"))


async def test_pods_for_another_node_never_wait() -> None:
    env = LockEnv(0)
    await env.open(f"{at(0)},a,lives", "lives")
    async with env.locks.turn("n"):
        await env.take(a_pod("p"), "m")
    assert env.value("m") == MINE
    assert env.naps == []


async def test_a_conflict_is_tried_again_five_times_in_all() -> None:
    left = [0]

    async def pause(step: str) -> None:
        if step == "patch:before" and left[0]:
            left[0] -= 1
            raise Conflict("changed")

    env = LockEnv(pause=pause)
    await env.open()
    left[0] = 4
    await env.take(a_pod("p"))
    assert env.naps == pytest.approx([0.075, 0.15, 0.3, 0.6])
    await env.locks.release("n", a_pod("p"))
    left[0] = 5
    with pytest.raises(Conflict):
        await env.take(a_pod("p"))
    assert env.value() is None


async def test_whether_the_holder_lives_must_be_known() -> None:
    gets = [0]

    async def pause(step: str) -> None:
        gets[0] += step == "get:before"
        if gets[0] == 2:
            raise Unavailable("down")

    env = LockEnv(pause=pause)
    await env.open(f"{at(0)},a,gone")
    with pytest.raises(Unavailable):
        await env.take(a_pod("p"))
    assert env.value() == f"{at(0)},a,gone"


@pytest.mark.parametrize(
    ("value", "after"),
    [
        (None, None),
        (f"{at(0)},b,p", None),
        (f"{at(1)},b,p", f"{at(1)},b,p"),
        (f"{at(0)},b,xp", f"{at(0)},b,xp"),
        (f"{at(0)},bb,p", f"{at(0)},bb,p"),
        (f"{at(0)},a,p", f"{at(0)},a,p"),
        (at(0), at(0)),
    ],
    ids=["free", "the same", "renewed", "longer name", "longer namespace", "other namespace", "bare time"],
)
async def test_a_left_lock_is_released_with_just_its_value(value: str | None, after: str | None) -> None:
    env = LockEnv()
    await env.open(value)
    await env.locks.remove("n", COMMON_LOCK, f"{at(0)},b,p")
    assert env.value() == after


async def test_of_two_schedulers_that_bind_one_pod_none_takes_the_lock_away_from_the_other() -> None:
    """Whichever fails: the device plugin finds the pod that is bound by the lock alone."""
    first, second = LockEnv(), LockEnv()
    await first.open()
    second.cluster = second.locks._cluster = first.cluster
    who = a_pod("p")
    await first.take(who)
    await second.take(who)
    assert first.value() == f"{at(1)},b,p"
    for env in (first, second):
        await env.locks.release("n", who)
    assert first.value() == f"{at(1)},b,p"


async def test_a_node_that_is_gone_is_an_error() -> None:
    env = LockEnv()
    await env.open()
    await env.cluster.delete(Kind.NODES, "n")
    with pytest.raises(ClusterError, match='nodes "n" not found'):
        await env.take(a_pod("p"))


async def test_a_pod_that_has_the_lock_from_before_does_not_queue_behind_those_who_wait_for_it() -> None:
    """Its bind broke off when the extender was killed; everybody else waits for just this pod."""
    env = LockEnv()
    await env.open(f"{at(-5)},a,first", "first")
    env.shown = env.value()
    others = asyncio.ensure_future(env.take(a_pod("second")))
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        async with env.locks.turn("n", a_pod("first", "a")) as deadline:
            await env.locks.take("n", a_pod("first", "a"), deadline)
    others.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await others


@pytest.mark.parametrize("where", ["bound", "placed"])
async def test_the_lock_of_a_pod_that_went_elsewhere_is_taken_over(where: str) -> None:
    env = LockEnv()
    await env.open(f"{at(-5)},a,moved", "moved")
    if where == "bound":
        moved = env.cluster.peek(Kind.PODS, "moved", "a")
        assert moved is not None
        await env.cluster.bind("a", "moved", moved["metadata"]["uid"], "m")
    else:
        await env.cluster.patch(Kind.PODS, "moved", {"metadata": {"annotations": {"hami.io/vgpu-node": "m"}}}, "a")
    await env.take(a_pod("p"))
    assert env.value() == MINE


MLU = NodeLock("cambricon.com/dsmlu.lock", 120.0, names_holder=False)


@pytest.mark.parametrize(
    ("value", "had"),
    [(None, True), (at(-30), False), (at(-121), True), ("nonsense", True)],
    ids=["free", "30 s old", "3 min old", "unreadable"],
)
async def test_the_lock_of_cambricon_is_a_bare_time_and_lasts_two_minutes(value: str | None, had: bool) -> None:
    """Example 11 of its page."""
    env = LockEnv(patience=0)
    await env.open()
    await env.cluster.patch(Kind.NODES, "n", {"metadata": {"annotations": {MLU.annotation: value}}})

    def shown() -> str | None:
        found = env.cluster.peek(Kind.NODES, "n")
        assert found is not None
        text: str | None = found["metadata"].get("annotations", {}).get(MLU.annotation)
        return text

    async with env.locks.turn("n") as deadline:
        if not had:
            with pytest.raises(LockContended, match="node n has been locked within 2 minutes"):
                await env.locks.take("n", a_pod("p"), deadline, MLU)
            await env.locks.release("n", a_pod("p"), MLU)
            assert shown() == value
            return
        await env.locks.take("n", a_pod("p"), deadline, MLU)
        assert shown() == at(0)
        await env.locks.release("n", a_pod("other"), MLU)


async def test_only_who_took_the_bare_lock_lets_it_go() -> None:
    env = LockEnv()
    await env.open()
    async with env.locks.turn("n") as deadline:
        await env.locks.take("n", a_pod("p"), deadline, MLU)
    await env.locks.release("n", a_pod("other"), MLU)
    await env.locks.release("n", a_pod("p"), MLU)
    found = env.cluster.peek(Kind.NODES, "n")
    assert found is not None
    assert MLU.annotation not in found["metadata"].get("annotations", {})


async def test_a_node_is_busy_while_a_pod_waits_there_or_the_cache_shows_a_lock() -> None:
    env = LockEnv()
    assert env.locks.busy == set()
    async with env.locks.turn("n"):
        assert env.locks.busy == {"n"}
    env.shown = f"{at(0)},a,lives"
    env.locks.node_changed("m")
    assert env.locks.busy == {"m"}
    env.shown = None
    env.locks.node_changed("m")
    assert env.locks.busy == set()


async def test_only_locks_that_were_not_taken_here_make_the_cache_of_pods_doubtful() -> None:
    """What `take` returns is the version of the node up to which others may have bound pods to it."""
    env = LockEnv()
    await env.open(None, "lives")
    env.version = lambda: str(env.cluster.peek(Kind.NODES, "n")["metadata"]["resourceVersion"])  # type: ignore[index]  # it is there

    def show() -> None:
        env.shown = env.value()
        env.locks.node_changed("n")

    async with env.locks.turn("n") as deadline:
        assert await env.locks.take("n", a_pod("p"), deadline) == 0
    show()
    await env.write(None)
    show()
    async with env.locks.turn("n") as deadline:
        assert await env.locks.take("n", a_pod("q"), deadline) == 0, "only this process was there"
    await env.write(f"{at(0)},a,lives")
    show()
    theirs = int(env.version())
    await env.write(None)
    show()
    async with env.locks.turn("n") as deadline:
        assert await env.locks.take("n", a_pod("r"), deadline) == theirs


async def test_attack_a_node_whose_lock_cannot_be_read_is_the_last_choice_for_a_minute() -> None:
    env = LockEnv()
    await env.open("x")
    with pytest.raises(ClusterError, match="can't be read"):
        await env.take(a_pod("p"))
    assert env.locks.contended == {"n"}
    env.now += 60
    assert env.locks.contended == set()


async def test_a_node_whose_lock_did_not_come_in_time_is_the_last_choice() -> None:
    env = LockEnv()
    await env.open(f"{at(0)},a,lives", "lives")
    with pytest.raises(LockContended):
        await env.take(a_pod("p"))
    assert env.locks.contended == {"n"}
    await env.take(a_pod("p"), "m")
    assert env.locks.contended == {"n"}
