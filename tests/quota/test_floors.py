"""Floor entries: what waits is charged once for all pods that request the same (docs/spec/quota.md#6)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
import virtual_time
from builders import accelerator_quota, card, container, node
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.api import JSON, ClusterError, Kind
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.floors import floor_id
from hami_webhook.quota.ledger import State, encode

from .objects import KEYS, LARGE, SMALL, TEAM, full, pod, quota, read_pod, vendors
from .quota_env import QuotaEnv

NODES = (node("n1", card("L", LARGE)), node("n2", card("S", SMALL)))
NOISY, QUIET = "noisy", "quiet"


async def with_namespaces(env: QuotaEnv, *names: str) -> None:
    for name in names:
        await env.cluster.ensure_namespace(name)
    await env.run(3)


# what is remembered

HALF: JSON = {"gpu": 1, "percent": 50}


@in_one_test(
    ("other", "same"),
    [
        (pod("q", uid="v", labels={"a": "b"}, **HALF), True),
        (pod("q", annotations={"checksum/config": "9f", "hami.io/quota-reservation": "x"}, **HALF), True),
        (pod("q", schedulerName="other", tolerations=[], **HALF), True),
        (pod("q", gpu=1, percent=51), False),
        (pod("q", gpu=2, percent=50), False),
        (pod("q", annotations={"nvidia.com/use-gputype": "L4"}, **HALF), False),
        (pod("q", annotations={"nvidia.com/nouse-gpuuuid": "S"}, **HALF), False),
        (pod("q", nodeSelector={"pool": "a"}, **HALF), False),
        (pod("q", container(**HALF), init=(container("i", **HALF),)), False),
        ({**pod("q", **HALF), "metadata": {"name": "q", "namespace": "other"}}, False),
    ],
)
def test_pods_have_one_floor_entry_if_their_charge_depends_on_the_same(other: JSON, same: bool) -> None:
    known = vendors()
    one = floor_id(read_pod("p", uid="u", **HALF), known)
    assert (floor_id(read_pod_object(other), known) == one) is same


def read_pod_object(obj: JSON) -> Pod:
    return Pod.from_object(obj)


async def test_pods_that_request_the_same_have_one_entry_and_keep_their_charge() -> None:
    async with QuotaEnv(*NODES, quota(mem=90_000)) as env:
        for number in range(4):
            await env.create(pod(f"p{number}", **HALF))
        await env.cluster.delete(Kind.NODES, "n2")
        await env.run(60)
        await env.create(pod("late", **HALF))
        assert env.mem() == 5 * SMALL // 2
        assert len(env.ledger()) == 2, "one for all that wait, one of the pod in flight"
        await env.run(60)
        [entry] = env.ledger().values()
        assert (entry.state, entry.amounts) == (State.FLOOR, full(mem=SMALL // 2))
        for name in ("p0", "p1", "p2", "p3", "late"):
            await env.delete(name, grace=0)
        await env.run(60)
        assert (env.mem(), env.ledger()) == (0, {})
        await env.create(pod("anew", **HALF))
        assert env.mem() == LARGE // 2, "nobody waits, so it is what the cards are now"


INVENTORY = st.sampled_from(["n1", "n2"])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.sampled_from([25, 50]), st.sampled_from([NOISY, QUIET])),
        st.tuples(st.just("node"), INVENTORY, st.just("")),
        st.tuples(st.just("place"), st.integers(0, 20), st.just("")),
        st.tuples(st.just("delete"), st.integers(0, 20), st.just("")),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 60.0]), st.just("")),
    ),
    max_size=30,
)


@given(ACTIONS)
def test_used_is_the_sum_of_what_was_charged_and_cards_that_come_or_go_move_nothing(actions: list[Any]) -> None:
    virtual_time.run(_run(actions))


async def _run(actions: list[Any]) -> None:
    """Each pod that waits costs what it was charged at its creation: written down here, whatever the ledger says."""
    charged: dict[tuple[str, str], int] = {}
    async with QuotaEnv(*NODES, accelerator_quota(mem=60_000), replicas=2) as env:
        await with_namespaces(env, NOISY, QUIET)

        def placed() -> dict[tuple[str, str], int]:
            found = {}
            for namespace, name in charged:
                text = env.pod(name, namespace).annotations.get("hami.io/vgpu-devices-allocated", "")
                if text:
                    found[namespace, name] = int(text.split(",")[2])
            return found

        for number, (action, value, space) in enumerate(actions):
            before = env.account_above().used.get(KEYS["mem"], 0)
            if action == "create":
                name = f"p{number}"
                with suppress(Denied):
                    await env.create(pod(name, namespace=space, gpu=1, percent=value), replica=number % 2, uid=name)
                    charged[space, name] = env.account_above().used[KEYS["mem"]] - before
            elif action == "node":
                if env.cluster.peek(Kind.NODES, value) is None:
                    await env.add(NODES[value == "n2"])
                else:
                    await env.cluster.delete(Kind.NODES, value)
                await env.run(20)
                assert env.account_above().used.get(KEYS["mem"], 0) <= before
            elif action == "place" and charged:
                space, name = list(charged)[value % len(charged)]
                with suppress(ClusterError):
                    await env.core.placer.place(env.pod(name, space))
                await env.drain()
            elif action == "delete" and charged:
                space, name = list(charged)[value % len(charged)]
                del charged[space, name]
                await env.delete(name, 0, space)
            elif action == "wait":
                await env.run(value)
            assert env.account_above().used.get(KEYS["mem"], 0) <= 60_000
            assert env.account_above().used.get(KEYS["mem"], 0) >= sum((charged | placed()).values())
        await env.run(120)
        assert env.account_above().used[KEYS["mem"]] == sum((charged | placed()).values())
        assert {entry.state for entry in env.account_above().ledger.values()} <= {State.FLOOR}
        assert len(env.account_above().ledger) <= 4


# what one namespace does to the ledger of a quota of several


async def test_many_waiting_percentages_take_one_entry() -> None:
    async with QuotaEnv(*NODES, accelerator_quota(mem=10**7), max_ledger=50) as env:
        await with_namespaces(env, NOISY, QUIET)
        sizes = set()
        for number in range(60):
            await env.create(pod(f"p{number}", namespace=NOISY, gpu=1, percent=1))
            sizes.add(len(env.account_above().ledger))
        await env.create(pod("q", namespace=QUIET, gpu=1, percent=30))
        assert max(sizes) <= 5
        await env.run(60)
        assert env.account_above().used == full(mem=60 * (SMALL // 100) + SMALL * 30 // 100)
        assert [entry.namespace for entry in env.account_above().ledger.values()].count(NOISY) == 1


async def test_a_namespace_of_many_different_requests_is_refused_alone() -> None:
    async with QuotaEnv(*NODES, accelerator_quota(mem=10**7), max_ledger=20) as env:
        await with_namespaces(env, NOISY, QUIET)
        refusals = []
        for number in range(40):
            shapes: dict[str, Any] = {
                "percent": 1 + number % 30,
                "annotations": {"nvidia.com/nouse-gpuuuid": f"x{number // 30}"},
            }
            try:
                await env.create(pod(f"p{number}", namespace=NOISY, gpu=1, **shapes))
            except Denied as denied:
                refusals.append(denied)
        assert len(refusals) == 30, "half of 20 entries are one namespace's at most"
        assert {denied.code for denied in refusals} == {503}
        assert refusals[0].message == (
            "quota: can't charge namespace noisy now: so many pods with different requests wait there that "
            "AcceleratorQuota all can't remember another one, and this pod's charge depends on the cards. Wait until "
            "pods there start or end, or request the same as another pod there; try again"
        )
        await env.create(pod("same", namespace=NOISY, gpu=1, percent=1, annotations={"nvidia.com/nouse-gpuuuid": "x0"}))
        await env.create(pod("declared", namespace=NOISY, gpu=1, mem=1))
        for number in range(5):
            await env.create(pod(f"q{number}", namespace=QUIET, gpu=1, percent=1 + number))
        await env.delete("p5", 0, NOISY)
        await env.run(60)
        await env.create(pod("next", namespace=NOISY, gpu=1, percent=99))


async def test_charges_without_pods_fill_the_part_of_their_namespace_only() -> None:
    async with QuotaEnv(accelerator_quota(mem=10**7), max_ledger=20) as env:
        await with_namespaces(env, NOISY, QUIET)
        for number in range(10):
            await env.admit(pod(f"p{number}", namespace=NOISY, gpu=1, mem=1))  # and it is refused afterwards
        for number in range(10, 40):
            denied = await env.refused(pod(f"p{number}", namespace=NOISY, gpu=1, mem=1))
            assert (denied.code, denied.message) == (
                503,
                "quota: can't charge namespace noisy now: pods in flight take its part of the ledger of "
                "AcceleratorQuota all; try again",
            )
        for number in range(30):
            await env.create(pod(f"q{number}", namespace=QUIET, gpu=1, mem=1))
        await env.run(60)
        assert env.account_above().used == full(mem=30)
        await env.admit(pod("again", namespace=NOISY, gpu=1, mem=1))


@pytest.mark.parametrize(("namespaces", "share"), [(4, 5), (50, 1)])
async def test_each_namespace_has_its_share_however_full_the_ledger_is(namespaces: int, share: int) -> None:
    names = [f"space-{number}" for number in range(namespaces - 1)]
    async with QuotaEnv(accelerator_quota(mem=10**7), max_ledger=20) as env:
        await with_namespaces(env, *names, TEAM)
        for number in range(50):
            with suppress(Denied):
                await env.admit(pod(f"p{number}", namespace=names[number % 2], gpu=1, mem=1))
        assert len(env.account_above().ledger) == 20
        for number in range(share):
            await env.admit(pod(f"q{number}", namespace=TEAM, gpu=1, mem=1))
        assert len(env.account_above().ledger) == 20 + share


async def test_an_ordinary_day_of_percentages_over_fifty_namespaces() -> None:
    """300 pods at once on three replicas: nobody is refused, few writes, a ledger of some entries a namespace."""
    spaces = [f"space-{number:02}" for number in range(50)]
    async with QuotaEnv(*NODES, accelerator_quota(mem=10**7), replicas=3) as env:
        await with_namespaces(env, *spaces)
        writes = 0

        async def pause(step: str) -> None:
            nonlocal writes
            writes += step == "patch_status:after"
            await asyncio.sleep(0)

        env.cluster.pause = pause

        async def come(number: int) -> None:
            manifest = pod(f"p{number}", namespace=spaces[number % 50], gpu=1, percent=50)
            stored, _ = await env.admit(manifest, replica=number % 3)
            await env.cluster.create(Kind.PODS, stored)

        await asyncio.gather(*map(come, range(300)))
        assert writes <= 0.3 * 300, writes
        env.cluster.pause = None
        await env.run(120)
        assert env.account_above().used == full(mem=300 * SMALL // 2)
        assert len(env.account_above().ledger) == 50
        assert len(encode(env.account_above().ledger) or "") < 50 * 250
