"""Showback: what pods held for how long, exact over any row of leaders (docs/metrics.md#showback)."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from admission.clusters import NOW, core_on
from admission.reviews import pod
from charging.claim_env import TEN, claiming, got, owned_by, template
from dra.objects import resource_slice, share
from hypothesis import given
from hypothesis import strategies as st
from quota.objects import claiming_vendors

from hami_webhook.cluster.api import Kind
from hami_webhook.controller.showback import OTHERS, UNTIL, Holding, Showback, Totals
from hami_webhook.kube.stamps import SUBMITTED_BY

CARDS = [{"id": "G0", "count": 9, "devmem": 9000, "devcore": 100, "type": "A10", "health": True}]
NODE = {"metadata": {"name": "n1", "annotations": {"hami.io/node-nvidia-register": orjson.dumps(CARDS).decode()}}}
NAMESPACE = {"metadata": {"name": "team-a"}}
WAITING = Holding("team-a", "NVIDIA", "", "waiting")
PLACED = Holding("team-a", "NVIDIA", "A10", "placed")


class Process:
    """A controller: its caches, and its showback, which read the Lease when it started."""

    def __init__(self, env: ShowbackEnv) -> None:
        self.core = core_on(None, clock=lambda: env.now)
        self.showback = Showback(self.core.view)
        self.core.caches.put(Kind.NODES, NODE)
        self.core.caches.put(Kind.NAMESPACES, NAMESPACE)
        for each in env.pods.values():
            self.core.caches.put(Kind.PODS, each)
        asyncio.run(self.showback.start())
        self.showback.observe(env.lease)

    def put(self, obj: dict[str, Any]) -> None:
        self.core.caches.put(Kind.PODS, obj)
        self.showback.pod_changed(obj["metadata"]["uid"])

    def drop(self, obj: dict[str, Any]) -> None:
        self.core.caches.drop(Kind.PODS, obj)
        self.showback.pod_changed(obj["metadata"]["uid"])


class ShowbackEnv:
    """Processes that see the same pods at the same time; the first one leads, and Prometheus reads it."""

    def __init__(self) -> None:
        self.now = NOW
        self.pods: dict[str, dict[str, Any]] = {}
        self.held: dict[str, tuple[Holding, Totals]] = {}
        self.lease: dict[str, str] = {}
        self.samples: dict[tuple[Process, Holding], Totals] = {}
        self.counted: Counter[tuple[Holding, str]] = Counter()
        self.expected: Counter[tuple[Holding, str]] = Counter()
        self.processes = [Process(self)]
        self.lease = self.leader.annotations()
        self.processes.append(Process(self))

    @property
    def leader(self) -> Showback:
        return self.processes[0].showback

    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        for holding, amounts in self.held.values():
            for name, amount in amounts._asdict().items():
                self.expected[holding, name] += amount * seconds

    def put(self, uid: str, *, placed: bool = False, memory: int = 100) -> None:
        known = self.pods.get(uid)
        obj = pod(uid, gpu=1, mem=memory, uid=uid)
        obj["metadata"]["creationTimestamp"] = known["metadata"]["creationTimestamp"] if known else self.stamp()
        if placed:
            obj["metadata"]["annotations"] = {
                "hami.io/vgpu-node": "n1",
                "hami.io/vgpu-time": str(int(self.now)),
                "hami.io/vgpu-devices-allocated": f"G0,NVIDIA,{memory},10:;",
            }
            obj["spec"]["nodeName"] = "n1"
        self.pods[uid] = obj
        self.held[uid] = (PLACED, Totals(1, memory, 10)) if placed else (WAITING, Totals(1, memory, 0))
        for process in self.processes:
            process.put(obj)

    def delete(self, uid: str) -> None:
        obj = self.pods.pop(uid)
        del self.held[uid]
        for process in self.processes:
            process.drop(obj)

    def scrape(self) -> None:
        """Prometheus reads the leader; the others read its Lease."""
        for holding, totals in self.leader.read():
            known = self.samples.get((self.processes[0], holding), totals)
            for name, value in totals._asdict().items():
                assert value >= getattr(known, name), "a counter never falls"
                self.counted[holding, name] += value - getattr(known, name)
            self.samples[self.processes[0], holding] = totals
        self.lease = self.leader.annotations()
        for other in self.processes[1:]:
            other.showback.observe(self.lease)

    def kill(self) -> None:
        """The leader is gone; the next one leads, and is read twice before the one that starts now might lead."""
        self.processes.pop(0)
        self.leader.observe(self.lease)
        self.processes.append(Process(self))
        self.scrape()
        self.scrape()

    def stamp(self) -> str:
        return datetime.fromtimestamp(self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def result(self) -> dict[tuple[Holding, str], float]:
        """What Prometheus counted once it has read all."""
        self.scrape()
        self.scrape()
        return {key: value for key, value in self.counted.items() if value}


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(1, 100)),
        st.tuples(st.sampled_from(["wait", "place", "delete"]), st.integers(0, 3)),
        st.sampled_from([("scrape", 0), ("kill", 0)]),
    ),
    max_size=40,
)


@given(ACTIONS)
def test_prometheus_counts_all_whoever_leads(actions: list[tuple[str, int]]) -> None:
    """Whatever comes and goes, and whenever a leader is killed, nothing is lost and nothing counted twice."""
    env = ShowbackEnv()
    for action, number in actions:
        uid = f"u{number}"
        match action:
            case "pass":
                env.pass_time(number)
            case "wait" if uid not in env.pods:
                env.put(uid)
            case "place":
                env.put(uid, placed=True, memory=100 * (number + 1))
            case "delete" if uid in env.pods:
                env.delete(uid)
            case "scrape":
                env.scrape()
            case "kill":
                env.kill()
    assert env.result() == pytest.approx({key: value for key, value in env.expected.items() if value})


def test_a_series_begins_with_0_and_follows_by_one_read() -> None:
    env = ShowbackEnv()
    env.put("u", placed=True)
    env.pass_time(30)
    assert dict(env.leader.read()) == {PLACED: Totals()}
    env.pass_time(30)
    assert dict(env.leader.read()) == {PLACED: Totals(30, 3000, 300)}


@pytest.mark.parametrize("gone", [False, True])
def test_a_pod_under_deletion_counts_until_its_deadline(gone: bool) -> None:
    env = ShowbackEnv()
    env.put("u", placed=True)
    ending = {"deletionTimestamp": env.stamp(), "deletionGracePeriodSeconds": 30}
    env.processes[0].put({**env.pods["u"], "metadata": {**env.pods["u"]["metadata"], **ending}})
    env.now += 100
    if gone:
        env.processes[0].drop(env.pods["u"])
    list(env.leader.read())
    assert dict(env.leader.read()) == {PLACED: Totals(30, 3000, 300)}


def test_the_only_replica_goes_on_after_its_restart_where_the_lease_says() -> None:
    env = ShowbackEnv()
    env.put("u", placed=True)
    env.pass_time(1000)
    env.lease = {UNTIL: f"{env.now - 60}"}
    started = Process(env).showback
    list(started.read())
    assert dict(started.read()) == {PLACED: Totals(60, 6000, 600)}


@pytest.mark.parametrize("text", ["nonsense", "nan", "inf", "", "99999999999999"])
def test_a_lease_that_says_nothing_of_use_begins_now_at_the_latest(text: str) -> None:
    env = ShowbackEnv()
    env.put("u", placed=True)
    env.leader.observe({UNTIL: text})
    env.pass_time(10)
    list(env.leader.read())
    assert dict(env.leader.read()) == {PLACED: Totals(10, 1000, 100)}


def test_the_sums_of_a_namespace_that_is_gone_go_once_they_were_read() -> None:
    env = ShowbackEnv()
    env.put("u", placed=True)
    env.pass_time(10)
    env.delete("u")
    env.processes[0].core.caches.drop(Kind.NAMESPACES, NAMESPACE)
    assert [dict(env.leader.read()).get(PLACED) for _ in range(4)] == [
        Totals(),
        Totals(10, 1000, 100),
        None,
        None,
    ]


def test_what_claims_hold_is_added_up_by_model() -> None:
    """A pod's claim, first as what it will cost, and also once the pod has ended; a claim that is charged by itself."""
    now = NOW
    core = core_on(None, vendors=claiming_vendors(), clock=lambda: now)
    showback = Showback(core.view)
    changed = showback.subscriptions()

    def put(kind: Kind, obj: dict[str, Any]) -> None:
        change = core.caches.put(kind, obj)
        if kind in changed:
            changed[kind](change)

    def allocated(name: str, **meta: Any) -> dict[str, Any]:
        results = [got("10000Mi")]
        meta = {"name": name, "namespace": "team-a", "uid": f"uid-{name}", **meta}
        return {"metadata": meta, "spec": TEN, "status": {"allocation": {"devices": {"results": results}}}}

    put(Kind.NAMESPACES, NAMESPACE)
    put(Kind.RESOURCE_SLICES, resource_slice("n1", share("a0")))
    put(Kind.RESOURCE_CLAIM_TEMPLATES, {**template("ten"), "metadata": {"name": "ten", "namespace": "team-a"}})
    asyncio.run(showback.start())
    waiting = claiming("p", "ten")
    waiting["metadata"] |= {"namespace": "team-a", "uid": "uid-p"}
    put(Kind.PODS, waiting)
    now += 10
    put(Kind.RESOURCE_CLAIMS, allocated("p-r-ten", **owned_by("p", "r-ten")))
    now += 5
    put(Kind.RESOURCE_CLAIMS, allocated("by-hand"))
    now += 1
    put(Kind.PODS, {**waiting, "status": {"phase": "Succeeded"}})
    now += 2
    list(showback.read())
    held = Holding("team-a", "NVIDIA", "NVIDIA A100", "placed")
    assert dict(showback.read()) == {
        WAITING: Totals(10, 100000, 100),
        held: Totals(5 + 3 * 2, (5 + 3 * 2) * 10000, (5 + 3 * 2) * 10),
    }


def stamped(name: str, user: str | None, **more: Any) -> dict[str, Any]:
    made = pod(name, gpu=1, mem=100, uid=name, created=NOW, **more)
    made["metadata"] |= {"annotations": {} if user is None else {SUBMITTED_BY: user}}
    return made


def test_what_each_user_held_is_counted_apart() -> None:
    env = ShowbackEnv()
    process = Process(env)
    for name, user in (("a1", "alice"), ("a2", "alice"), ("b", "bob"), ("c", None)):
        process.put(stamped(name, user))
    list(process.showback.read())
    env.now += 10
    list(process.showback.read())
    cards = {holding.submitter: totals.cards for holding, totals in process.showback.read()}
    assert cards == {"alice": 20, "bob": 10, "": 10}


def test_attack_any_number_of_names_has_100_sums_of_their_own_in_a_namespace() -> None:
    env = ShowbackEnv()
    process = Process(env)
    for number in range(150):
        made = stamped(f"p{number}", f"user-{number}")
        process.put(made)
        if number < 5:
            process.drop(made)  # an ended pod takes no other user's name
    other = stamped("q", "alice")
    other["metadata"]["namespace"] = "team-b"
    process.put(other)
    list(process.showback.read())
    env.now += 1
    list(process.showback.read())
    found = {(holding.namespace, holding.submitter): totals.cards for holding, totals in process.showback.read()}
    own = [name for space, name in found if space == "team-a"]
    assert len(own) == 101
    assert found["team-a", "(others)"] == 50
    assert found["team-b", "alice"] == 1
    env.now += 1
    process.showback.restart(env.now)
    assert sum(holding.submitter != OTHERS for holding, _ in process.showback.read()) == 95 + 1
