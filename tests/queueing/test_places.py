"""A pod that replaces another one takes its place in the queue (docs/spec/queues.md#3)."""

from __future__ import annotations

from typing import Any

import pytest
from builders import JSON
from quota.objects import TEAM, pod
from quota.quota_env import QuotaEnv

from hami_webhook.cluster.api import Kind
from hami_webhook.kube.objects import Pod
from hami_webhook.queueing.places import Places
from queueing.test_releaser import GATES, L, queueing, waits


def replica(number: int, gpu: int = 1, **fields: Any) -> JSON:
    return pod(f"set-{number}", gpu=gpu, mem=1, **fields)


async def running(env: QuotaEnv, *, after: float = 5) -> None:
    """Replicas 0 and 1 run, and 2 waits."""
    for number in range(3):
        await env.create(replica(number))
        await env.run(after)
    await env.release()
    await env.run(12)
    assert [name for name in waits(env) if name != "parked"] == ["set-2"]


@pytest.mark.parametrize("failed", [False, True])
async def test_a_replica_that_is_made_anew_comes_before_those_that_wait_since(failed: bool) -> None:
    async with QuotaEnv(L, queueing(gpu=2)) as env:
        await running(env)
        for again in range(2):  # what it took over is handed on
            if failed:
                await env.cluster.patch_status(Kind.PODS, "set-0", {"status": {"phase": "Failed"}}, TEAM)
                await env.run(1)
            await env.delete("set-0")
            await env.create(replica(0), uid=f"again-{again}")
            await env.run(12)
            await env.release()
            assert (waits(env), env.used()) == (["set-2"], {"gpu": 2})


async def test_one_that_waits_keeps_its_place() -> None:
    async with QuotaEnv(L, queueing(gpu=2)) as env:
        await running(env)
        await env.create(pod("other", gpu=1, mem=1))
        await env.release()
        await env.delete("set-2")
        await env.run(5)
        await env.create(replica(2), uid="again")
        await env.finish("set-1")
        await env.run(12)
        await env.release()
        assert waits(env) == ["other"]


@pytest.mark.parametrize(
    ("made", "late"),
    [
        (replica(0, gpu=2), 0),
        (replica(0, annotations={"nvidia.com/use-gputype": "GPU-L"}), 0),
        (pod("set-9", gpu=1, mem=1), 0),
        (replica(0, schedulingGates=[{"name": "example.com/mine"}]), 0),
        (replica(0), 61),
    ],
    ids=["more", "other cards", "another name", "held", "late"],
)
async def test_nobody_takes_a_place_with_something_else(made: JSON, late: float) -> None:
    async with QuotaEnv(L, queueing(gpu=2)) as env:
        await running(env)
        await env.delete("set-0")
        if late:  # the room is taken meanwhile, and what comes waits behind who came before it
            await env.create(pod("full", gpu=1, mem=1))
            await env.run(late)
        await env.create(made, uid="again")
        if made["spec"].get("schedulingGates"):
            await env.cluster.patch(Kind.PODS, "set-0", {"spec": {"schedulingGates": GATES}}, TEAM)
        await env.run(12)
        await env.release()
        assert "set-2" not in waits(env)
        assert made["metadata"]["name"] in waits(env)


async def test_what_held_no_room_leaves_no_place() -> None:
    """Else a tenant would keep old pods that cost nothing, to be before all others whenever it likes."""
    async with QuotaEnv(L, queueing(gpu=2)) as env:
        await env.create(pod("parked", gpu=1, mem=1, schedulingGates=[{"name": "example.com/mine"}]))
        for name, phase in (("succeeded", "Succeeded"), ("failed", "Failed")):
            await env.create(pod(name, gpu=1, mem=1))
            await env.release()
            await env.cluster.patch_status(Kind.PODS, name, {"status": {"phase": phase}}, TEAM)
        await env.run(90)
        await running(env)
        for name in ("parked", "succeeded", "failed"):
            await env.delete(name)
            await env.create(pod(name, gpu=1, mem=1), uid=f"again-{name}")
        await env.finish("set-1")
        await env.run(12)
        await env.release()
        assert waits(env) == ["failed", "parked", "succeeded"]


def test_a_pod_that_stopped_counting_long_ago_leaves_no_place() -> None:
    """A finalizer keeps one that is being deleted for as long as its owner likes."""
    places = Places()
    for deadline, inherits in ((100.0, False), (1000.0, True)):
        gone = Pod.from_object(
            {
                **pod("p", uid="old", gpu=1),
                "metadata": {
                    **pod("p", uid="old", gpu=1)["metadata"],
                    "creationTimestamp": "1970-01-01T00:00:01Z",
                    "deletionTimestamp": f"1970-01-01T00:{int(deadline) // 60:02}:{int(deadline) % 60:02}Z",
                    "deletionGracePeriodSeconds": 0,
                },
            }
        )
        places.leave(gone, "r", None, 1000.0)
        places.come(Pod.from_object(pod("p", uid="new", gpu=1)), lambda: "r", 1001.0)
        assert (places._inherited == {"new": 1.0}) is inherits


@pytest.mark.parametrize(("late", "inherits"), [(59.9, True), (60.0, False)])
def test_a_place_is_kept_for_less_than_a_minute(late: float, inherits: bool) -> None:
    places, made = Places(), pod("p", uid="old", gpu=1)
    made["metadata"]["creationTimestamp"] = "1970-01-01T00:00:01Z"
    places.leave(Pod.from_object(made), "r", None, 1000.0)
    places.come(Pod.from_object(pod("p", uid="new", gpu=1)), lambda: "r", 1000.0 + late)
    assert (places._inherited == {"new": 1.0}) is inherits


def test_places_of_one_namespace_are_few_and_displace_no_others() -> None:
    places = Places()
    created = {"creationTimestamp": "1970-01-01T00:00:01Z"}

    def made(namespace: str, name: str) -> Pod:
        found = pod(name, uid=name, namespace=namespace, gpu=1)
        return Pod.from_object({**found, "metadata": {**found["metadata"], **created}})

    places.leave(made("quiet", "p"), "r", None, 1000.0)
    for number in range(1000):
        places.leave(made("loud", f"p{number}"), "r", None, 1000.0)
    assert len(places._left) == 257
    places.come(made("quiet", "p"), lambda: "r", 1001.0)
    assert places._inherited == {"p": 1.0}
    places.leave(made("loud", "late"), "r", None, 1100.0)
    assert list(places._left) == [("loud", "late")]
    for name, now in (("other", 1110.0), ("late", 1120.0), ("last", 1175.0)):
        places.leave(made("loud", name), "r", None, now)
    assert [name for _, name in places._left] == ["late", "last"], "what is left again is kept from then on"
