"""The reconcile loop: when it works, what it says, what it remembers. No time passes but that of `QuotaEnv`."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from builders import JSON, accelerator_quota, card, container, node
from quota.objects import ALLOCATED, LARGE, MEM, NOON, SMALL, TEAM, full, pod, quota
from quota.quota_env import QuotaEnv, no_sleep

from hami_webhook.cluster.api import Conflict, Kind, Unavailable
from hami_webhook.controller.quotas import ReconcileIntervals
from hami_webhook.quota.ledger import LEDGER, Entry, State, encode

L = node("n1", card("GPU-L", LARGE))


def at(env: QuotaEnv) -> float:
    return round(env.reconciler.next_due() - env.now, 3)


async def test_changes_are_gathered_for_the_debounce_and_never_longer_than_two_seconds() -> None:
    async with QuotaEnv(quota(mem=9)) as env:
        env.reconciler.touch(TEAM)
        assert at(env) == 0.5
        looked = {}
        for quarter in range(1, 9):
            env.now += 0.25
            looked[quarter / 4] = await env.reconciler.step()
            env.reconciler.touch(TEAM)
        assert looked == {0.25: 0, 0.5: 0, 0.75: 0, 1.0: 0, 1.25: 0, 1.5: 0, 1.75: 0, 2.0: 1}
        assert at(env) == 0.5


@pytest.mark.parametrize(
    ("how", "recomputed"),
    [
        ("charged", [2.0]),
        ("charged, and its entry dropped when it comes", [2.0]),
        ("charged, and its entry dropped before it is seen", [2.0]),
        ("each second", [10.0]),
        ("not charged", [0.5]),
        ("for more than its entry", [0.5]),
        ("placed", [0.5]),
        ("deleted", [0.5]),
    ],
)
async def test_a_pod_that_comes_with_its_charge_is_recomputed_when_no_more_come(
    how: str, recomputed: list[float]
) -> None:
    """Used has what it costs already, so that only its entry is left to be dropped: within 2 s, in a burst 10."""
    async with QuotaEnv(L, quota(mem=90000)) as env:
        await env.run(5)
        began, found = env.now, list[float]()
        if how == "not charged":
            await env.cluster.create(Kind.PODS, pod(gpu=1, mem=2000, uid="u"))
        elif how == "for more than its entry":
            await env.admit(pod(gpu=1, mem=1000), uid="u")
            await env.cluster.create(Kind.PODS, pod(gpu=1, mem=2000, uid="u"))
        elif how.startswith("charged, and its entry dropped"):
            stored, _ = await env.admit(pod(gpu=1, mem=2000))
            await env.drain()
            other = Entry(State.ADMITTED, int(env.now), full(gpu=1, mem=500))
            patch = {
                "metadata": {"annotations": {LEDGER: encode({"other": other})}},
                "status": {"used": {MEM: "2500"}},
            }
            await env.cluster.patch_status(Kind.RESOURCE_QUOTAS, "gpu-quota", patch, TEAM)
            if how.endswith("is seen"):
                await env.drain()
            await env.cluster.create(Kind.PODS, stored)
        else:
            await env.create(pod(gpu=1, mem=2000))
        if how == "placed":
            await env.place("p")
        if how == "deleted":
            await env.cluster.delete(Kind.PODS, "p", TEAM)
        await env.drain()
        number = 0
        while env.now < began + 11 and not found:
            env.now += 0.25
            if how == "each second" and (env.now - began) % 1 == 0:
                number += 1
                await env.create(pod(f"p{number}", gpu=1, mem=2000))
            if await env.reconciler.step():
                found.append(env.now - began)
        assert found == recomputed
        if how == "charged":
            assert env.ledger() == {}


@pytest.mark.parametrize(("jitter", "seconds"), [(0.0, 270.0), (0.5, 300.0), (1.0, 330.0)])
async def test_a_resync_comes_every_five_minutes_give_or_take_ten_percent(jitter: float, seconds: float) -> None:
    async with QuotaEnv(quota(mem=9)) as env:
        env.reconciler._jitter = lambda: jitter
        env.now += 1000
        await env.reconciler.step()
        assert at(env) == pytest.approx(seconds)


async def test_used_edited_by_hand_is_put_right_by_the_resync_and_counts_as_drift() -> None:
    async with QuotaEnv(L, quota(mem=9000)) as env:
        await env.create(pod(gpu=1, mem=2000))
        await env.run(2)
        await env.cluster.patch_status(Kind.RESOURCE_QUOTAS, "gpu-quota", {"status": {"used": {MEM: "7"}}}, TEAM)
        await env.run(100)
        assert env.mem() == 7
        await env.run(300)
        assert env.mem() == 2000
        assert env.reconciler.drifted == 1


async def test_an_entry_expires_although_recomputes_meanwhile_changed_nothing() -> None:
    async with QuotaEnv(L, quota(mem=9000)) as env:
        await env.admit(pod(gpu=1, mem=2000))
        await env.run(10)
        env.reconciler.touch(TEAM)
        await env.run(34.5)
        assert env.mem() == 2000
        await env.run(1)
        assert env.mem() == 0
        assert env.reconciler.expired == 1
        assert env.reconciler.drifted == 0


async def test_an_entry_from_the_future_holds_nothing() -> None:
    async with QuotaEnv(L, quota(mem=9000)) as env:
        await env.run(1)
        entry = json.dumps({"x": {"s": "admitted", "t": 253402300799, "c": {MEM: 9000}}})
        status = {"status": {"used": {MEM: "9000"}}, "metadata": {"annotations": {LEDGER: entry}}}
        await env.cluster.patch_status(Kind.RESOURCE_QUOTAS, "gpu-quota", status, TEAM)
        await env.run(3)
        assert env.mem() == 0


async def test_an_old_floor_entry_makes_no_work() -> None:
    async with QuotaEnv(L, quota(mem=20000)) as env:
        await env.create(pod(gpu=1, percent=50))
        await env.run(100)
        assert list(env.states().values()) == ["floor"]
        assert at(env) > 100


async def test_a_placement_that_is_never_bound_lapses() -> None:
    async with QuotaEnv(L, quota(mem=20000)) as env:
        await env.cluster.create(Kind.NODES, node("n2", card("GPU-S", SMALL)))
        await env.drain()
        await env.create(pod(gpu=1, percent=50))
        await env.cluster.delete(Kind.NODES, "n2")
        await env.run(2)
        notes = {
            ALLOCATED: "GPU-L,NVIDIA,12288,0:;",
            "hami.io/vgpu-node": "n1",
            "hami.io/vgpu-time": str(int(env.now)),
        }
        await env.cluster.patch(Kind.PODS, "p", {"metadata": {"annotations": notes}}, TEAM)  # as HAMi's scheduler does
        await env.run(200)
        assert env.mem() == 12288
        await env.cluster.create(Kind.NODES, node("n2", card("GPU-S", SMALL)))
        env.reconciler._next_resync = env.now + 1000
        await env.run(101)
        assert env.mem() == 8192


async def test_a_placement_of_this_very_process_is_noticed() -> None:
    async with QuotaEnv(L, quota(mem=30000)) as env:
        await env.create(pod(gpu=1))
        await env.run(2)
        await env.place("p")
        assert at(env) == 0.5


async def test_what_quota_does_not_depend_on_makes_no_work() -> None:
    async with QuotaEnv(L, quota(mem=9000)) as env:
        await env.create(pod(gpu=1, mem=2000))
        await env.run(60)
        await env.cluster.patch(Kind.PODS, "p", {"metadata": {"labels": {"a": "b"}}}, TEAM)
        await env.add(pod("plain", container()))
        await env.drain()
        assert at(env) > 10


@pytest.mark.parametrize("change", ["terminal", "deleted", "active deadline", "init finished"])
async def test_what_quota_depends_on_is_recomputed_soon(change: str) -> None:
    made = pod("p", container(gpu=1, mem=1), init=(container("i", gpu=1, mem=2),))
    async with QuotaEnv(L, quota(mem=9000), made) as env:
        await env.run(60)
        if change == "terminal":
            await env.finish("p")
        elif change == "deleted":
            await env.delete("p")
        elif change == "active deadline":
            await env.cluster.patch(Kind.PODS, "p", {"spec": {"activeDeadlineSeconds": 9}}, TEAM)
        else:
            done = [{"name": "i", "state": {"terminated": {"exitCode": 0}}}]
            await env.cluster.set_phase(TEAM, "p", "Pending", initContainerStatuses=done)
        await env.drain()
        assert at(env) == 0.5


async def test_quota_exceeded_is_said_once_and_again_when_it_changes() -> None:
    async with QuotaEnv(L, quota(mem=5000)) as env:
        await env.create(pod("a", gpu=1, mem=2000))
        await env.create(pod("b", gpu=1, mem=3000))
        await env.run(2)
        await env.edit_hard(mem=4000)
        await env.run(700)
        assert env.events("QuotaExceeded") == [f"{MEM}: used 5000, limited 4000; above the limit: team/b ({MEM}=3000)"]
        assert env.quota()["status"]["hard"] == {MEM: "4k"}
        await env.edit_hard(mem=1000)
        await env.run(2)
        assert len(env.events("QuotaExceeded")) == 2


async def test_a_bad_allocation_is_charged_as_declared_and_said_once() -> None:
    async with QuotaEnv(L, quota(mem=5000)) as env:
        await env.create(pod(gpu=1, mem=2000))
        notes = {ALLOCATED: "GPU-L,NVIDIA,x,0:;", "hami.io/vgpu-node": "n1", "hami.io/vgpu-time": str(int(NOON))}
        await env.cluster.patch(Kind.PODS, "p", {"metadata": {"annotations": notes}}, TEAM)
        await env.cluster.bind(TEAM, "p", "uid-p", "n1")
        await env.run(700)
        assert env.mem() == 2000
        [event] = [e for e in env.cluster.events if e.note.reason == "BadAllocation"]
        assert (event.note.kind, event.note.name, event.note.uid, event.count) == ("Pod", "p", "uid-p", 1)


async def test_a_binary_suffix_is_obeyed_and_earns_an_event() -> None:
    async with QuotaEnv(quota(mem="2Gi", gpu=4)) as env:
        await env.run(700)
        means = f"{MEM}: 2Gi means 2147483648 units of 1 MiB"
        assert env.events("QuotaUnitSuspicious") == [f"{means}; for as many bytes write 2048"]
        assert env.events("QuotaMixed") == []


async def test_a_quota_that_only_kubernetes_counts_earns_an_event_if_it_is_misread() -> None:
    key = "requests.nvidia.com/gpumem"
    plain = quota("plain", spec={"hard": {"requests.nvidia.com/gpu": "4"}})
    async with QuotaEnv(quota(spec={"hard": {key: "16000"}}), plain) as env:
        await env.run(2)
        [message] = env.events("QuotaMisread")
        assert message.startswith(f"{key} is counted by Kubernetes")
        assert message.endswith(f"write {MEM}")
        await env.cluster.patch(Kind.RESOURCE_QUOTAS, "gpu-quota", {"spec": {"hard": {key: None, MEM: "9"}}}, TEAM)
        await env.run(2)
        await env.cluster.patch(Kind.RESOURCE_QUOTAS, "gpu-quota", {"spec": {"hard": {key: "8000"}}}, TEAM)
        await env.run(2)
        assert [event.count for event in env.cluster.events if event.note.reason == "QuotaMisread"] == [2]


async def test_a_quota_of_both_kinds_earns_one_event() -> None:
    keys: JSON = {"pods": "3", "limits.nvidia.com/gpumem-percentage": "50", "requests.nvidia.com/gpu": "4"}
    async with QuotaEnv(quota(mem=9, **keys)) as env:
        await env.run(700)
        [message] = env.events("QuotaMixed")
        assert message.startswith("also limits pods, requests.nvidia.com/gpu, which Kubernetes counts")
    async with QuotaEnv(quota("plain", pods="3")) as env:
        await env.run(10)
        assert env.cluster.events == []


async def wipe(env: QuotaEnv) -> None:
    """`kubectl replace` without a resourceVersion: metadata and spec are the file's, status stays."""
    item = env.quota()
    meta = {"name": "gpu-quota", "namespace": TEAM}
    await env.cluster.replace(Kind.RESOURCE_QUOTAS, {"metadata": meta, "spec": item["spec"], "status": item["status"]})
    assert env.ledger() == {}


@pytest.mark.parametrize("told_first", [True, False])
@pytest.mark.parametrize("another", [True, False])
async def test_entries_wiped_by_a_replace_count_until_their_time_is_up(told_first: bool, another: bool) -> None:
    async with QuotaEnv(L, quota(mem=9000)) as env:
        await env.admit(pod("a", gpu=1, mem=2000))
        await env.run(5)
        await wipe(env)
        if told_first:
            await env.drain()
        if another:
            await env.admit(pod("b", gpu=1, mem=1000))
        env.reconciler.touch(TEAM)
        await env.run(3)
        expected = {"uid-a": "admitted"} | ({"uid-b": "admitted"} if another else {})
        assert env.states() == expected
        assert env.mem() == 2000 + 1000 * another
        await env.run(60)
        assert (env.mem(), env.ledger()) == (0, {})


async def test_an_entry_that_was_confirmed_or_undone_is_not_brought_back() -> None:
    async with QuotaEnv(L, quota(mem=9000), quota("small", gpu=1)) as env:
        await env.create(pod("a", gpu=1, mem=2000))
        await env.run(2)
        await env.refused(pod("b", gpu=1, mem=3000))
        await env.delete("a")
        await env.run(2)
        assert (env.mem(), env.ledger()) == (0, {})


async def test_a_failing_recompute_is_tried_again_later_and_later() -> None:
    async with QuotaEnv(quota(mem=9)) as env:
        tries = []

        async def fail(step: str) -> None:
            if step == "get:before":
                tries.append(env.now)
                raise Unavailable("no answer")

        env.cluster.pause = fail
        env.reconciler.touch(TEAM)
        for _ in range(5):
            env.now = env.reconciler.next_due()
            await env.reconciler.step()
        assert [round(b - a, 3) for a, b in itertools.pairwise(tries)] == [0.75, 1.5, 3.0, 6.0]
        env.cluster.pause = None
        env.now = env.reconciler.next_due()
        await env.reconciler.step()
        assert at(env) > 100


async def test_six_lost_races_are_a_failure() -> None:
    async with QuotaEnv(pod(gpu=1, mem=2)) as env:
        await env.add(quota(mem=9))
        writes = []

        async def lose(step: str) -> None:
            if step == "patch_status:before":
                writes.append(step)
                raise Conflict("another was first")

        env.cluster.pause = lose
        await env.drain()
        env.now += 1
        await env.reconciler.step()
        assert len(writes) == 6
        assert at(env) == 0.75


async def test_a_deleted_quota_is_forgotten_once_its_charges_in_flight_have_expired() -> None:
    async with QuotaEnv(L, quota(mem=9000)) as env:
        await env.admit(pod("a", gpu=1, mem=2000))
        await env.run(2)
        await env.cluster.delete(Kind.RESOURCE_QUOTAS, "gpu-quota", TEAM)
        await env.run(2)
        await env.add(quota(mem=9000))
        await env.run(2)
        assert (env.mem(), env.states()) == (2000, {"uid-a": "admitted"}), "its pod may still come"
        await env.run(45)
        assert (env.mem(), env.ledger()) == (0, {})


async def test_a_quota_deleted_under_the_recompute_is_let_go() -> None:
    async with QuotaEnv(quota(mem=9)) as env:
        await env.cluster.delete(Kind.RESOURCE_QUOTAS, "gpu-quota", TEAM)
        env.reconciler.touch(TEAM)
        env.now += 1
        await env.reconciler.step()
        await env.drain()
        assert at(env) > 100


async def test_the_loop_wakes_when_touched() -> None:
    async with QuotaEnv(L, quota(mem=9000)) as env:
        waits: list[float] = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            if seconds > 1:
                await asyncio.Event().wait()
            env.now += seconds
            await no_sleep(0)

        task = asyncio.create_task(env.reconciler.run(sleep))
        await env.drain()
        await env.add(pod(gpu=1, mem=2000))
        await env.drain()
        await env.drain()
        assert env.mem() == 2000
        assert waits[0] > 100
        assert 0.5 in waits
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_event_that_cannot_be_recorded_is_said_later() -> None:
    async with QuotaEnv() as env:

        async def fail(step: str) -> None:
            if step == "record_event:before":
                raise Unavailable("no answer")

        env.cluster.pause = fail
        await env.add(quota(mem="1Ki"))
        await env.run(2)
        assert env.events("QuotaUnitSuspicious") == []
        env.cluster.pause = None
        await env.run(700)
        assert len(env.events("QuotaUnitSuspicious")) == 1


async def test_the_pace_is_as_configured() -> None:
    async with QuotaEnv(L, quota(mem=9000), pace=ReconcileIntervals(debounce=5, resync=1000, ttl=45)) as env:
        env.reconciler.touch(TEAM)
        assert at(env) == 2.0


async def test_a_quota_whose_pods_take_long_to_list_delays_no_other_and_is_recomputed_again_after_that() -> None:
    async with QuotaEnv(L, quota(mem=9000), quota(mem=9000, namespace="team-b")) as env:
        lists, going_on = 0, asyncio.Event()

        async def wait(step: str) -> None:
            nonlocal lists
            if step == "list:before":
                lists += 1
                if lists == 1:
                    await going_on.wait()

        async def never(_: float) -> None:
            await asyncio.Event().wait()

        env.cluster.pause = wait
        running = asyncio.create_task(env.reconciler.run(sleep=never))
        seen = []
        for scope in (TEAM, "team-b", TEAM, "team-c"):
            env.reconciler.touch(scope)
            env.now += 1
            env.reconciler.touch("wakes the loop")
            await env.drain()
            seen.append(lists)
        due_meanwhile = env.reconciler.next_due()
        going_on.set()
        await env.drain()
        running.cancel()
        assert (*seen, lists) == (1, 2, 2, 2, 3)
        assert due_meanwhile > env.now


@pytest.mark.parametrize(("seconds", "longest"), [(0.0, 2.0), (0.25, 5.0), (5.0, 10.0)])
async def test_a_quota_of_many_namespaces_is_recomputed_as_often_as_it_is_cheap(seconds: float, longest: float) -> None:
    """In a burst of changes, and by how long the list of its pods and the write take."""
    async with QuotaEnv(accelerator_quota(mem=9)) as env:
        above = env.reconcilers[1]

        async def take(step: str) -> None:
            if step == "list:before":
                env.now += seconds

        env.cluster.pause = take
        above.touch(TEAM)
        await env.run(20)
        env.cluster.pause = None
        began, looked = env.now, 0
        while not looked:
            above.touch(TEAM)
            env.now += 0.25
            looked = await above.step()
        assert env.now - began == longest
