"""The whole of quota as a state machine (the end of docs/spec/quota.md#12).

Users, two replicas with lagging caches, Kubernetes' own writers, the extender, our controller, a clock, and a crash or
a lost answer at any single step.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import jsonpatch
from builders import card, container, node
from cluster import native
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from replicas import reconciling

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.admission.review import Answer, Review
from hami_webhook.assembly import Core
from hami_webhook.cluster.api import JSON, ClusterError, Kind, Unavailable
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.informers import SharedInformers, watched_kinds
from hami_webhook.controller.quotas import QuotaReconciler, ReconcileIntervals
from hami_webhook.core_options import Options
from hami_webhook.kube import scopes
from hami_webhook.kube.objects import Pod
from hami_webhook.queueing.releaser import QueueReleaser
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.card_selection import COUNTED, DEVICE_TYPES
from hami_webhook.quota.enforcement import ENFORCEMENT, Enforcement
from hami_webhook.quota.floors import cost_of, floor_id
from hami_webhook.quota.ledger import LEDGER, State
from hami_webhook.quota.pricing import charge_of
from hami_webhook.scheduling.placer import Placement

from .lagging_cluster import Lagging
from .objects import KEYS, LARGE, NOON, SMALL, TEAM, account_of, change, creation, pod, quota, vendors

VENDORS = vendors()
LOW = {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["low"]}]}}
SOME = {"annotations": {DEVICE_TYPES: "H100", COUNTED: "types h100"}}
USE_TYPE = "nvidia.com/use-gputype"
NODES = {
    "n2": node("n2", card("GPU-S", SMALL)),
    "n3": node("n3", card("GPU-H", LARGE, type="NVIDIA-H100"), card("GPU-H2", LARGE, type="NVIDIA-H100", index=1)),
}
"""Nodes that come and go."""
NOTHING = ("", 0, "")
ACCIDENTS = st.just(NOTHING) | st.tuples(
    st.sampled_from(
        ["get:before", "list:before", *(f"{w}:{e}" for w in ("patch_status", "patch") for e in ("before", "after"))]
    ),
    st.integers(1, 2),
    st.sampled_from(["crash", "break", "native", "recount", "recompute", "admit"]),
)
"""At which step of a process (its name, and whether the first or the second such) what happens."""
KINDS_OF_POD: dict[str, dict[str, Any]] = {
    "small": {"gpu": 1, "mem": 2000},
    "two": {"gpu": 2, "mem": 1500},
    "big": {"gpu": 1, "mem": 5000},
    "half": {"gpu": 1, "percent": 50},
    "h100": {"gpu": 1, "mem": 1000, "annotations": {USE_TYPE: "H100"}},
    "init": {},
}
Accident = tuple[str, int, str]


async def sleep_for_ever(_: float) -> None:
    await asyncio.Event().wait()


def rest_of(item: JSON) -> JSON:
    """What of a quota isn't ours."""
    meta = {k: v for k, v in item["metadata"].items() if k not in ("resourceVersion", "annotations")}
    notes = {k: v for k, v in item["metadata"].get("annotations", {}).items() if k not in (LEDGER, COUNTED)}
    used = {k: v for k, v in item.get("status", {}).get("used", {}).items() if k not in VENDORS.quota_keys}
    return {"meta": meta, "notes": notes, "spec": item["spec"], "used": used}


class Replica:
    """One process."""

    def __init__(self, model: QuotaModel) -> None:
        self.port = Lagging(model.cluster)
        self.feed = SharedInformers(self.port, watched_kinds(VENDORS), clock=lambda: model.now, sleep=sleep_for_ever)
        self.core = Core(
            self.port,
            VENDORS,
            Options(rules=AdmissionRules(scheduler_name="hami-scheduler"), charge_timeout=1e6),
            clock=lambda: model.now,
            watches=self.feed,
            sleep=lambda _: asyncio.sleep(0),
        )
        core = self.core
        self.reconciler = QuotaReconciler(*reconciling(core), ReconcileIntervals(), jitter=lambda: 0.5)
        self.releaser = QueueReleaser(self.port, core.view, core.charger, core.capacity, core.failures)
        running = self.feed.run(core.caches, core.failures, [self.reconciler, self.releaser])
        self.task = asyncio.get_running_loop().create_task(running)


class QuotaModel(RuleBasedStateMachine):
    enforcement = Enforcement.ENFORCE

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = NOON
        self.plan = NOTHING
        self.steps = 0
        self.hung = False
        self.acting = 0
        self.broken: AssertionError | None = None
        self.settling = False
        self.names = 0
        self.in_flight: list[tuple[float, JSON]] = []
        self.before: dict[str, JSON] = {}
        self.truth: dict[str, JSON] = {}
        self.stale: JSON | None = None
        self.cluster = MemoryCluster(lambda: self.now, pause=self.pause)
        self.replicas: list[Replica] = []

    def teardown(self) -> None:
        async def close() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await self.loop.shutdown_asyncgens()

        self.loop.run_until_complete(close())
        self.loop.close()

    # the machinery

    def do(self, action: Callable[[], Awaitable[Any]], accident: Accident = NOTHING, replica: int = 0) -> Any:
        """Let a process act; on the way, at one of its steps, something may happen. A crashed process is replaced."""

        async def main() -> Any:
            others = asyncio.all_tasks()
            self.plan, self.steps, self.hung, self.acting = accident, 0, False, replica
            task = asyncio.ensure_future(action())
            for _ in itertools.takewhile(lambda _: not (task.done() or self.hung), itertools.count()):
                await asyncio.sleep(0)
            self.plan = NOTHING
            if not self.hung:
                return task.exception() or task.result()
            for broken in [*(asyncio.all_tasks() - others), self.replicas[replica].task]:
                broken.cancel()
                with suppress(asyncio.CancelledError):
                    await broken
            self.replicas[replica] = Replica(self)
            await self.replicas[replica].feed.wait_synced()
            return None

        result = self.loop.run_until_complete(main())
        if self.broken is not None:
            raise self.broken
        if isinstance(result, Exception) and not isinstance(result, Denied | ClusterError):
            raise result
        return result

    async def pause(self, step: str) -> None:
        at, number, what = self.plan
        self.steps += step == at
        now = step == at and self.steps == number
        if step == "patch_status:after":
            try:
                self.look()
            except AssertionError as error:  # a process may take it for a failure of its own
                self.broken = error
        if now and what == "crash":
            self.hung = True
            await asyncio.Event().wait()
        if now and what in ("native", "recount", "recompute", "admit"):
            self.plan = NOTHING
            await self.meanwhile(what)
        if now and what == "break":
            raise Unavailable("no answer")
        if step == "patch_status:before":
            self.before = {item["metadata"]["name"]: item for item in self.quotas()}

    async def meanwhile(self, what: str) -> None:
        """Somebody else acts between two steps of a process."""
        other = self.replicas[1 - self.acting].core
        with suppress(Denied, ClusterError):
            if what == "admit":
                self.names += 1
                name = f"p{self.names}"
                made = pod(name, gpu=1, mem=4000, uid=f"uid-{name}")
                await other.admission.validate(creation(name, made))
                await self.cluster.create(Kind.PODS, made)
            elif what == "recompute":
                settling, self.settling = self.settling, True
                for name in ("all", "low", "some"):
                    await other.recomputer.run(TEAM, name)
                self.settling = settling
            else:
                await self.native_write(what)

    async def native_write(self, what: str) -> None:
        if what == "native":
            for item in self.quotas():
                used = {**item["status"].get("used", {}), "pods": str(self.steps)}
                await self.cluster.replace(Kind.RESOURCE_QUOTAS, {**item, "status": {**item["status"], "used": used}})
        else:
            for item in self.quotas():
                await native.recompute(self.cluster, item, self.cluster.peek_all(Kind.PODS, TEAM), self.now)

    def quotas(self) -> list[JSON]:
        return list(self.cluster.peek_all(Kind.RESOURCE_QUOTAS, TEAM))

    def pods(self) -> list[Pod]:
        return [Pod.from_object(item) for item in self.cluster.peek_all(Kind.PODS, TEAM)]

    def look(self) -> None:
        """Q1, Q8, Q13 and Q14 after a write of ours."""
        for item in self.quotas():
            old = self.before[item["metadata"]["name"]]
            was, now = account_of(old, VENDORS), account_of(item, VENDORS)
            assert rest_of(old) == rest_of(item)
            for key, amount in now.used.items():
                assert amount >= 0
                if not self.settling:
                    assert amount <= was.used.get(key, 0) or amount <= now.hard[key], (key, amount)
                    undone = sum(e.amounts.get(key, 0) for e in was.ledger.values()) - sum(
                        e.amounts.get(key, 0) for e in now.ledger.values()
                    )
                    assert was.used.get(key, 0) - amount <= max(0, undone)
                elif key in was.used:
                    # what waits costs what it was charged: nothing but an administrator brings used above hard
                    assert amount <= was.used[key] or amount <= now.hard[key], (key, was.used, now.used, now.ledger)
        self.covers()

    def charges(self, read: QuotaAccount) -> list[tuple[Pod, dict[str, int]]]:
        """What every live pod in scope costs."""
        state = self.replicas[0].core.state
        found = []
        for p in self.pods():
            if not p.ended(self.now) and scopes.matches(read.quota, p):
                found.append((p, cost_of(read, p, VENDORS, state.capacity, self.now, 300.0).only(read.hard)))
        return found

    @invariant()
    def covers(self) -> None:
        """Q2: used covers what the pods hold."""
        for item in self.quotas():
            read = account_of(item, VENDORS)
            total = Counter[str]()
            for _, amounts in self.charges(read):
                total.update(amounts)
            for key, amount in total.items():
                assert read.used.get(key, 0) >= amount, (key, read.used, total, read.ledger)

    # what happens

    @initialize()
    def start(self) -> None:
        async def make() -> None:
            await self.cluster.ensure_namespace(TEAM)
            await self.cluster.create(Kind.NODES, node("n1", card("GPU-L", LARGE), card("GPU-L2", LARGE, index=1)))
            await self.cluster.create(Kind.NODES, NODES["n2"])
            zero = dict.fromkeys(KEYS.values(), "0")
            everything: JSON = {"gpu": 6, "mem": 20000, "pods": "50", "requests.nvidia.com/gpu": "40"}
            for made in (
                quota("all", **everything),
                quota("low", mem=9000, spec=LOW),
                {**(some := quota("some", gpu=2, mem=4000)), "metadata": {**some["metadata"], **SOME}},
            ):
                kept = {k: v for k, v in zero.items() if k in made["spec"]["hard"]}
                made["metadata"].setdefault("annotations", {})[ENFORCEMENT] = self.enforcement.value
                await self.cluster.create(Kind.RESOURCE_QUOTAS, {**made, "status": {"used": kept}})
            for item in self.quotas():
                await native.recompute(self.cluster, item, (), self.now)
            self.replicas = [Replica(self), Replica(self)]
            for replica in self.replicas:
                await replica.feed.wait_synced()
            self.stale = self.quotas()[0]

        self.loop.run_until_complete(make())

    @rule(
        kind=st.sampled_from(["half", *sorted(KINDS_OF_POD)]),
        low=st.booleans(),
        replica=st.integers(0, 1),
        accident=ACCIDENTS,
        dry_run=st.booleans() | st.just(False),
        stored=st.booleans() | st.just(True),
        late=st.booleans(),
    )
    def user_creates(
        self, kind: str, low: bool, replica: int, accident: Accident, dry_run: bool, stored: bool, late: bool
    ) -> None:
        self.names += 1
        name = f"p{self.names}"
        spec: JSON = {"priorityClassName": "low"} if low else {}
        if kind == "init":
            manifest = pod(name, container(gpu=1, mem=1000), init=(container("i", gpu=1, mem=3000),), **spec)
        else:
            manifest = pod(name, **spec, **KINDS_OF_POD[kind])
        self.create(manifest, replica, accident, dry_run=dry_run, stored=stored, late=late)

    def create(
        self, manifest: JSON, replica: int, accident: Accident, *, dry_run: bool, stored: bool, late: bool
    ) -> None:
        name = manifest["metadata"]["name"]
        handler = self.replicas[replica].core.admission
        versions = [item["metadata"]["resourceVersion"] for item in self.quotas()]

        def review(obj: JSON) -> Review:
            return creation(name, obj, dry_run=dry_run)

        async def admit() -> JSON:
            answer = await handler.mutate(review(manifest))
            made = jsonpatch.apply_patch(manifest, [dict(operation) for operation in answer.patch])
            made = {**made, "metadata": {**made["metadata"], "uid": f"uid-{name}"}}
            await handler.validate(review(made))
            return made

        result = self.do(admit, accident, replica)
        if dry_run:
            if accident == NOTHING:
                assert versions == [item["metadata"]["resourceVersion"] for item in self.quotas()]  # Q6
            return
        entries = [account_of(item, VENDORS).ledger for item in self.quotas()]
        if isinstance(result, Denied) and accident == NOTHING:
            assert all(f"uid-{name}" not in ledger for ledger in entries)  # Q6
        if isinstance(result, dict) and stored:
            assert "schedulingGates" in result["spec"] or any(f"uid-{name}" in ledger for ledger in entries)
            self.in_flight.append((self.now, result))
            if not late:
                self.api_server_stores()

    @rule()
    def api_server_stores(self) -> None:
        """The plugin judges what was allowed, then it is stored, no later than 34 s after it came."""
        for since, made in self.in_flight:
            with suppress(ClusterError):
                if self.now - since < 34:
                    self.loop.run_until_complete(native.admit(self.cluster, made))
                    self.loop.run_until_complete(self.cluster.create(Kind.PODS, made))
        self.in_flight.clear()

    def pick(self, number: int, **facts: bool) -> Pod | None:
        found = [
            p
            for p in self.pods()
            if not p.ended(self.now)
            and facts.get("bound", bool(p.node_name)) == bool(p.node_name)
            and facts.get("queued", p.queued) == p.queued
            and facts.get("placed", "hami.io/vgpu-node" in p.annotations) == ("hami.io/vgpu-node" in p.annotations)
        ]
        return found[number % len(found)] if found else None

    @rule(number=st.integers(0, 20), accident=ACCIDENTS)
    def extender_places(self, number: int, accident: Accident) -> None:
        found, accounts = self.pick(number, bound=False, queued=False), [account_of(q, VENDORS) for q in self.quotas()]
        if found is None:
            return
        room = all(each.used.get(key, 0) <= hard for each in accounts for key, hard in each.hard.items())
        placer = self.replicas[0].core.placer
        result = self.do(lambda: placer.place(found), accident)
        if isinstance(result, Placement) and room:
            self.placed_within_limits()

    def placed_within_limits(self) -> None:
        """Q16."""
        for item in self.quotas():
            read = account_of(item, VENDORS)
            for key, hard in read.hard.items():
                placed = sum(
                    amounts.get(key, 0)
                    for p, amounts in self.charges(read)
                    if charge_of(p, VENDORS, self.replicas[0].core.state.capacity, self.now).placed
                )
                assert placed <= hard

    @rule(number=st.integers(0, 20))
    def pod_is_bound(self, number: int) -> None:
        found = self.pick(number, bound=False, placed=True)
        if found and self.now - int(found.annotations["hami.io/vgpu-time"]) < 250:
            node_name = found.annotations["hami.io/vgpu-node"]
            with suppress(ClusterError):
                self.loop.run_until_complete(self.cluster.bind(TEAM, found.name, found.uid, node_name))

    @rule(number=st.integers(0, 20), phase=st.sampled_from(["Running", "Succeeded", "Failed"]))
    def kubelet_reports(self, number: int, phase: str) -> None:
        running = [{"name": "main", "state": {"running": {}}}] if phase == "Running" else []
        if found := self.pick(number, bound=True):
            self.loop.run_until_complete(self.cluster.set_phase(TEAM, found.name, phase, containerStatuses=running))

    @rule(number=st.integers(0, 20), grace=st.sampled_from([None, 30]))
    def user_deletes(self, number: int, grace: int | None) -> None:
        if found := self.pick(number):
            self.loop.run_until_complete(self.cluster.delete(Kind.PODS, found.name, TEAM, grace))

    @rule(number=st.integers(0, 20), text=st.sampled_from(["a", "b"]))
    def user_changes_labels(self, number: int, text: str) -> None:
        if found := self.pick(number):
            pod_obj = self.cluster.peek(Kind.PODS, found.name, TEAM)
            assert pod_obj is not None
            changed = {**pod_obj, "metadata": {**pod_obj["metadata"], "labels": {"x": text}}}
            self.loop.run_until_complete(self.cluster.replace(Kind.PODS, changed))

    @rule(
        number=st.integers(0, 20),
        types=st.sampled_from(["", "H100", "A10"]),
        replica=st.integers(0, 1),
        accident=ACCIDENTS,
        stored=st.booleans() | st.just(True),
    )
    def user_annotates(self, number: int, types: str, replica: int, accident: Accident, stored: bool) -> None:
        """A pod that waits is to get cards of other types."""
        found = self.pick(number, bound=False)
        if found is None or (before := self.cluster.peek(Kind.PODS, found.name, TEAM)) is None:
            return
        after = {**before, "metadata": {**before["metadata"], "annotations": {**found.annotations, USE_TYPE: types}}}
        handler = self.replicas[replica].core.admission
        result = self.do(lambda: handler.validate(change(before, after)), accident, replica)
        if isinstance(result, Answer) and stored:
            written = {"metadata": {"annotations": {USE_TYPE: types}}}
            self.loop.run_until_complete(self.cluster.patch(Kind.PODS, found.name, written, TEAM))

    @rule(name=st.sampled_from(sorted(NODES)))
    def node_comes_or_goes(self, name: str) -> None:
        """Of a node that is gone the pods' cards count everywhere, so only an idle one goes."""
        if any(name in (p.node_name, p.annotations.get("hami.io/vgpu-node")) for p in self.pods()):
            return
        if self.cluster.peek(Kind.NODES, name) is None:
            self.loop.run_until_complete(self.cluster.create(Kind.NODES, NODES[name]))
        else:
            self.loop.run_until_complete(self.cluster.delete(Kind.NODES, name))
        self.cache_catches_up(0)
        self.cache_catches_up(1)

    @rule(hard=st.sampled_from([8000, 20000, 30000]))
    def admin_changes_hard(self, hard: int) -> None:
        (item,) = [each for each in self.quotas() if each["metadata"]["name"] == "all"]
        spec = {**item["spec"], "hard": {**item["spec"]["hard"], KEYS["mem"]: str(hard)}}
        self.loop.run_until_complete(self.cluster.replace(Kind.RESOURCE_QUOTAS, {**item, "spec": spec}))

    @rule(old=st.booleans())
    def kubernetes_recomputes(self, old: bool) -> None:
        """From a cache that may lag: then its write conflicts, or sets its own keys too low, never ours."""
        managed = [account_of(item, VENDORS).used for item in self.quotas()]
        for item in self.quotas():
            pods = [] if old else self.cluster.peek_all(Kind.PODS, TEAM)
            with suppress(ClusterError):
                read = self.stale if old and self.stale and self.stale["metadata"]["name"] == "all" else item
                self.loop.run_until_complete(native.recompute(self.cluster, read, pods, self.now))
        assert [account_of(item, VENDORS).used for item in self.quotas()] == managed  # Q8
        self.stale = self.cluster.peek(Kind.RESOURCE_QUOTAS, "all", TEAM)

    @rule(replica=st.integers(0, 1))
    def cache_catches_up(self, replica: int) -> None:
        async def follow() -> None:
            port = self.replicas[replica].port
            port.open.set()
            for _ in range(40):
                await asyncio.sleep(0)
            port.open.clear()

        self.loop.run_until_complete(follow())

    @rule(accident=ACCIDENTS)
    def controller_works(self, accident: Accident) -> None:
        self.settling = True
        self.do(self.replicas[0].reconciler.step, accident)
        self.settling = False

    @rule(seconds=st.sampled_from([0.3, 1, 5, 20, 50]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.names > 2)
    @rule()
    def all_comes_to_rest(self) -> None:
        """TTL, debounce and a recompute later: Q3, Q4, Q5, Q9, Q15."""
        self.api_server_stores()
        for _ in range(3):
            self.cache_catches_up(0)
            self.cache_catches_up(1)
            self.now += 24
            self.controller_works(NOTHING)
        for item in self.quotas():
            read = account_of(item, VENDORS)
            live = {p.uid: amounts for p, amounts in self.charges(read)}
            assert [entry for entry in read.ledger.values() if entry.state is not State.FLOOR] == []
            needed = {floor_id(p, VENDORS) for p, _ in self.charges(read) if not p.node_name}
            assert read.ledger.keys() <= needed
            for key in read.hard:
                assert read.used[key] == sum(amounts.get(key, 0) for amounts in live.values()), (key, read, live)
