"""Placement in a cluster in which nothing happens by itself: extenders, kube-schedulers, kubelets with device plugins.

An extender is the real one with its caches and locks. A kube-scheduler filters, grades and binds one pod, and tries it
again a few times. A kubelet starts each pod that is bound to its node: the device plugin serves the pod that the lock
names, and takes the lock away.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from hack.explore import placement_rules as rules
from hack.explore import rules as quota_rules
from hack.explore.apiserver import Port, Request, SimulatedServer, at_once
from hack.explore.replica import Process, pause
from hack.explore.rules import QUOTAS, Broken
from hack.explore.world import TEAM, Actor, Choice, Scenario, World
from hami_webhook.cluster.api import JSON, ClusterError, Kind, Unavailable, WatchEvent
from hami_webhook.controller.informers import SharedInformers
from hami_webhook.devices.lock_annotations import COMMON_LOCK
from hami_webhook.devices.registry import Vendors
from hami_webhook.evictions.decisions import Decisions
from hami_webhook.evictions.pod_preemption import Preemption
from hami_webhook.scheduling.extender import Extender
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.left_locks import release_left_locks
from hami_webhook.scheduling.node_locks import NodeLocks, ShownNodes
from hami_webhook.scheduling.placer import LockedNodes
from hami_webhook.scheduling.protocol import Binding, ExtenderArgs
from hami_webhook.scheduling.requeue_trigger import RequeueTrigger
from hami_webhook.state.caches import Subscriber

CONTROLLER = "controller"
"""The process that recomputes quotas, where there are any."""
REQUEST_TIMEOUT = 30.0
_GONE_FOR_GOOD = 60.0
"""Seconds after which the API server itself has given a request up."""
_PATIENCE = 28.0
_REAL_NAP = 0.45
_LOOK, _LOOKS = 0.05, 20
_MOST_WAITS = 200
_SOON = (0.0, 3.0)
_LATER = (31.0, 100.0, 130.0)
"""Seconds between two looks at who waits: holds of groups last 30, and a lock that was left goes in two looks at it."""
_AT_ONCE = {"conflict", "second", "time"}
"""Accidents after which nothing is left: all is right as soon as who waits was tried again."""


@dataclasses.dataclass(frozen=True)
class PlacementScenario(Scenario):
    """`single` is the extenders' mode; those in `leaders` place what waits at the end.

    With `loops` they look for locks that were left all the time, not only at the end. `slow_kubelets` start a pod in
    several steps. With `preempts` extenders evict for pods that fit nowhere.
    """

    single: bool = False
    loops: bool = False
    slow_kubelets: bool = False
    preempts: bool = False
    leaders: Sequence[str] = ("A",)

    @property
    def has_quotas(self) -> bool:
        return any(kind in QUOTAS for kind, _ in self.objects)

    def world(self, vendors: Vendors, note: Callable[[str], None]) -> World:
        return PlacementWorld(self, vendors, note)


class KubeletServer(SimulatedServer):
    """The API server, with what device plugins do there in one step each."""

    async def allocate(self, kind: Kind, name: str, uid: str, node: str) -> bool:
        """kubelet has a device plugin allocate for a pod: it serves the pod that the node's lock names. Whether it did.

        kubelet may do so for a pod that is gone by now. Without a `node` the vendor has no lock, and serves the pod.
        """
        served = rules.lock_of(self.peek(Kind.NODES, node)).rpartition(",")[2] if node else name
        found = self.peek(kind, served, TEAM)
        if found is None or not rules.is_allocating(found):
            return False
        await self.patch(kind, found["metadata"]["name"], {"metadata": {"annotations": {rules.PHASE: "success"}}}, TEAM)
        return True

    async def unlock(self, kind: Kind, node: str) -> None:
        """The device plugin takes away the lock, as older ones do, without a look at whose it is."""
        await self.patch(kind, node, {"metadata": {"annotations": {rules.LOCK: None}}})

    async def end(self, kind: Kind, name: str) -> None:
        """kubelet has ended a pod that is deleted."""
        await self.delete(kind, name, TEAM)


class Replica(Process):
    """An extender's process."""

    extender: Extender
    locks: NodeLocks
    decisions: Decisions

    def __init__(self, world: PlacementWorld, name: str) -> None:
        self.scenario = world.scenario
        super().__init__(world, name, leads=name == CONTROLLER)

    def _assembled(self, feed: SharedInformers) -> Sequence[Subscriber]:
        core, state = self.core, self.core.state
        handle = Handle(
            self.port,
            state,
            core.vendors,
            core.clock,
            ready=feed.wait_synced,
            quotas=core.caches.covering,
            pods_complete=feed.pods_complete,
        )
        self.locks = locks = NodeLocks(
            self.port,
            clock=core.clock,
            patience=_PATIENCE,
            shown=ShownNodes.of(state),
            sleep=_Naps().nap,
            jitter=lambda: 0.2,
        )
        state.watch_nodes(locks.node_changed)
        placer = core.placer_for(handle, lambda pod: LockedNodes(locks.busy, locks.contended, locks.held_by(pod)))
        trigger = RequeueTrigger(self.port, lambda: None, clock=core.clock)
        decisions = Decisions(handle, placer, core.nominations, core.limits, trigger, dry_run=False)
        preemption = Preemption(handle, placer, decisions) if self.scenario.preempts else None
        self.decisions = decisions
        self.extender = Extender(handle, placer, locks, trigger, single=self.scenario.single, preemption=preemption)
        return super()._assembled(feed) if self.scenario.has_quotas else []

    async def look_for_left_locks(self) -> None:
        await release_left_locks(
            self.locks, self.core.state, [COMMON_LOCK], request_timeout=REQUEST_TIMEOUT, patience=_PATIENCE
        )

    @property
    def is_shown_all(self) -> bool:
        return not any(self.port.streams[kind].late for kind in (Kind.PODS, Kind.NODES))


class _Naps:
    """The waits of locks: half a second, for device plugins, is real, and so is one of twenty looks at a late cache."""

    def __init__(self) -> None:
        self._looks = 0

    async def nap(self, seconds: float) -> None:
        self._looks += seconds <= _LOOK
        if self._looks == _LOOKS:
            self._looks, seconds = 0, _LOOKS * _LOOK
        await (asyncio.sleep(seconds) if seconds >= _REAL_NAP else pause(seconds))


class PlacementWorld(World):
    """One run of a scenario."""

    scenario: PlacementScenario
    server: KubeletServer
    shared: Collection[Kind] = (Kind.PODS, Kind.NODES)
    late: Collection[Kind] = (Kind.PODS, Kind.NODES)
    api_server = KubeletServer

    def __init__(self, scenario: PlacementScenario, vendors: Vendors, note: Callable[[str], None]) -> None:
        if scenario.has_quotas:
            self.shared = self.late = (*self.shared, *QUOTAS)
        self.locks: dict[str, str] = {}
        self.evicted: list[str] = []
        """The names of pods that extenders evicted."""
        self.unwanted: set[str] = set()
        """The names of pods that an extender began to evict when nobody waited who they could be evicted for."""
        self._began: dict[int, float] = {}
        self._asked: dict[str, asyncio.Future[None]] = {}
        self.bound_by: dict[str, str] = {}
        """By UID the process that bound a pod; empty if it doesn't run any longer."""
        self.locked_by: dict[str, str] = {}
        """By node the process that wrote its lock last."""
        self.foreign_then = 0
        """When a Binding takes effect: how many cards its sender knew others to have that don't say which."""
        self._known_foreign: dict[int, int] = {}
        self._restarted = asyncio.Event()
        self._restarted.set()
        self.hurried = 0
        """kubelets that have their device plugin allocate and unlock the node, for which half a second is enough."""
        super().__init__(scenario, vendors, note)
        self.locks = {node["metadata"]["name"]: rules.lock_of(node) for node in self.server.peek_all(Kind.NODES)}

    # what may happen

    @property
    def done(self) -> bool:
        acted = all(actor.name in self.started for actor in self.scenario.actors)
        return acted and not self.pending and not self._unfinished() and not any(self._for_kubelets())

    def _beginnings(self) -> Iterator[Choice]:
        yield from super()._beginnings()
        for kubelet in self._for_kubelets():
            yield Choice(kubelet.name, partial(self._begin, kubelet))

    def _for_kubelets(self) -> Iterator[Actor]:
        """The pods that kubelets have yet to start, or to end."""
        yield from self._to_start()
        for pod in self.server.peek_all(Kind.PODS):
            meta, node = pod["metadata"], rules.node_of(pod)
            name = f"kubelet of {node} ends {meta['name']} ({meta['uid']})"
            if node and "deletionTimestamp" in meta and name not in self.started:
                yield Actor(name, partial(_end, meta["name"]))

    def _to_start(self) -> Iterator[Actor]:
        for pod in self.server.peek_all(Kind.PODS):
            meta, node = pod["metadata"], pod["spec"].get("nodeName", "")
            name = f"kubelet of {node} starts {meta['name']} ({meta['uid']})"
            if rules.is_allocating(pod) and name not in self.started:
                yield Actor(name, partial(_start, meta["name"], meta["uid"], node))

    @property
    def has_locks(self) -> bool:
        return self.vendors["NVIDIA"].lock is not None

    def choices(self) -> list[Choice]:
        found = super().choices()
        if self.hurried or (self.scenario.slow_kubelets and any(self._to_start())):
            found = [each for each in found if not each.text.endswith(" s pass") and each.text != "a second passes"]
        for name in self._asked:
            if self._may("gone"):
                found.append(Choice(f"{name}: gives up waiting", partial(self._give_up, name), "gone"))
        for name in self.processes if self._may("stop") else ():
            if any(each.process == name and not each.abandoned for each in self.pending):
                found.append(Choice(f"{name} is stopped, and cancels what it does", partial(self._stop, name), "stop"))
        return found

    def _accidents(self, request: Request) -> Iterator[Choice]:
        yield from super()._accidents(request)
        if request.kind is Kind.NODES and request.verb == "patch" and not request.took_effect:
            node = request.what.split()[-1]
            yield Choice(f"node {node} is written", partial(self._touch, node), "conflict")

    # what happens

    def ask(self, request: Request) -> None:
        self._began[id(request)] = self.loop.now
        sender = self.processes.get(request.process)
        if isinstance(sender, Replica) and request.verb == "get" and request.kind is Kind.PODS and sender.is_shown_all:
            self.unwanted |= rules.evicted_for_nobody(self, request.what.split()[-1])
        if request.verb == "bind" and isinstance(sender, Replica) and sender.is_shown_all:
            self._known_foreign[id(request)] = sum(
                rules.foreign_on(self, node["metadata"]["name"]) for node in self.server.peek_all(Kind.NODES)
            )
        if request.process.startswith("kubelet") and not self.scenario.slow_kubelets:
            request.reply(self._happen(request))
        else:
            super().ask(request)

    def _touch(self, node: str) -> None:
        """kubelet writes something of its node."""
        self._writer = f"kubelet of {node}"
        change = {"metadata": {"annotations": {"example.com/heartbeat": str(self.happened)}}}
        at_once(self.server.patch(Kind.NODES, node, change))

    def _give_up(self, name: str) -> None:
        self._asked[name].set_result(None)

    def _stop(self, name: str) -> None:
        """SIGTERM: what is under way is cancelled, and may let go what it has. Another process has its place then."""
        for task in self.loop.tasks_of(name):
            task.cancel()
        self.observe(name, "stopped")
        del self.processes[name]
        self._restart(name)

    def _crash(self, request: Request) -> None:
        super()._crash(request)
        self._restart(request.process)

    def _restart(self, name: str) -> None:
        self._restarted.clear()
        self._process(name)
        self._restarted.set()
        self.bound_by = {uid: "" if process == name else process for uid, process in self.bound_by.items()}

    def _pass(self, until: float) -> None:
        super()._pass(until)
        for request in list(self.pending):
            age = until - self._began[id(request)]
            if request.process in self.processes and not request.abandoned and age >= REQUEST_TIMEOUT:
                self.observe(request.process, (request.number, "timed out"))
                request.reply(Unavailable("timed out"))
            if request.abandoned and age >= _GONE_FOR_GOOD and not request.took_effect:
                self._drop(request)

    def _happen(self, request: Request) -> object:
        before = self._bound()
        self.foreign_then = self._known_foreign.get(id(request), 0)
        outcome = super()._happen(request)
        for uid in self._bound() - before:
            self.bound_by[uid] = "" if request.abandoned else request.process
        return outcome

    def _bound(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.server.peek_all(Kind.PODS) if pod["spec"].get("nodeName")}

    def _started(self, name: str) -> Process:
        replica = Replica(self, name)
        if self.scenario.preempts:
            self.loop.start(name, replica.decisions.run())
        if self.scenario.loops:
            self.loop.start(name, replica.look_for_left_locks())
        return replica

    def _look(self, kind: Kind, event: WatchEvent) -> None:
        if kind is Kind.NODES:
            name, now = event.object["metadata"]["name"], rules.lock_of(event.object)
            if self.locks.get(name, "") != now:
                self.note(f"    lock of node {name}: {now or 'free'}")
                self.faults += rules.lock_changed(self, name, self.locks.get(name, ""), now, self._writer)
                self.locked_by[name] = self._writer
            self.locks[name] = now
        elif kind is Kind.PODS and self._prepared:
            self.note(f"    {rules.shown(event)}")
            self.faults += rules.pod_changed(self, event, self._writer)
        if self.scenario.has_quotas:
            super()._look(kind, event)

    def _run(self) -> None:
        super()._run()
        self._check([*rules.caches(self)])

    def replicas(self) -> Iterator[tuple[str, Replica]]:
        for name, process in self.processes.items():
            assert isinstance(process, Replica)
            yield name, process

    # what actors do

    async def have(
        self, actor: Actor, what: str, work: Callable[[Replica], Awaitable[Any]], *, gives_up: bool = False
    ) -> Any:
        """Have the actor's extender do something. `Unavailable` if it ends meanwhile, or the actor gives up."""
        await self._restarted.wait()
        replica = self.processes[actor.process]
        assert isinstance(replica, Replica)
        self.observe(actor.process, (actor.name, what))
        self.observe(actor.name, what)

        async def whole() -> Any:
            return await work(replica)

        task = self.loop.start(actor.process, whole())
        given_up: asyncio.Future[None] = self.loop.create_future()
        if gives_up:
            self._asked[f"{actor.name}: {what}"] = given_up
        await asyncio.wait([task, given_up], return_when=asyncio.FIRST_COMPLETED)
        self._asked.pop(f"{actor.name}: {what}", None)
        if not task.done():
            raise Unavailable("nobody waits for its answer")
        if task.cancelled():
            raise Unavailable("the process ended")
        return task.result()

    async def filter(self, actor: Actor, pod: JSON, nodes: Collection[str], attempt: int) -> str:
        """The node that a kube-scheduler chooses, by what its extender leaves and how it grades; empty for none."""

        async def work(replica: Replica) -> str:
            args = ExtenderArgs(pod, names=sorted(nodes))
            found = await replica.extender.filter(args)
            left = list(found.names or ())
            why = found.error or "; ".join(found.failed.values())
            self.note(f"    filtered: {', '.join(left) or why}")
            if not left:
                return ""
            grades = dict(await replica.extender.prioritize(ExtenderArgs(pod, names=left)))
            return max(left, key=lambda node: grades[node])

        chosen: str = await self.have(actor, f"filter {pod['metadata']['uid']}, {attempt}", work)
        return chosen

    async def bind(self, actor: Actor, pod: JSON, node: str, attempt: int) -> str:
        """Have a pod bound; the error, empty if it is."""
        meta = pod["metadata"]
        binding = Binding(TEAM, meta["name"], meta["uid"], node)
        what = f"bind {meta['uid']} to {node}, {attempt}"
        error: str = await self.have(actor, what, lambda replica: replica.extender.bind(binding), gives_up=True)
        self.note(f"    {actor.process} answers: {error or 'bound'}")
        return error

    async def schedule(self, actor: Actor, name: str, nodes: Collection[str], tries: int) -> None:
        """Filter and bind a pod, until it is bound, or no node takes it, or so many times."""
        for attempt in range(tries):
            pod = self.server.peek(Kind.PODS, name, TEAM)
            if pod is None or pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
                return
            self.observe(actor.name, self.server.digest(pod))
            with suppress(ClusterError):
                node = await self.filter(actor, pod, nodes, attempt)
                if not node or not await self.bind(actor, pod, node, attempt):
                    return

    # the end

    def ending(self) -> None:
        """Who places what waits has learned most of it, so no two ends are equal."""

    def settle(self) -> None:
        """Nobody disturbs any more: kubelets start what is bound, leaders place what waits, and time passes."""
        if self.scenario.has_quotas:
            self._check([*quota_rules.at_end(self)])
        self._open = True
        for name, process in self.processes.items():
            for kind, stream in process.port.streams.items():
                self._catch_up(name, kind, stream)
        self._run()
        for leader in self.scenario.leaders:
            replica = self._process(leader)
            assert isinstance(replica, Replica)
            if not self.scenario.loops:
                self.loop.start(leader, replica.look_for_left_locks())
            self.loop.start(leader, replica.extender.groups.run())
        left: list[str] = []
        for wait in (*_SOON, *_LATER):
            self._pass(self.loop.now + wait)
            self._run()
            self._place_what_waits()
            left = [*self._recomputed(), *rules.at_rest(self)]
            if not left:
                return
            if wait == _SOON[-1] and self._is_right_at_once():
                self._check([*rules.at_rest(self, served=False)])
        raise Broken("; ".join(left))

    def _recomputed(self) -> Iterator[str]:
        """The controller recomputes the quotas; what is wrong with them then."""
        if self.scenario.has_quotas:
            for reconciler in self._process(CONTROLLER).reconcilers:
                reconciler.resync()
                self.loop.start(CONTROLLER, reconciler.step())
                self._run()
            yield from quota_rules.at_rest(self)

    def _is_right_at_once(self) -> bool:
        return self.accidents <= _AT_ONCE

    def _place_what_waits(self) -> None:
        """Try what isn't bound, and start what is, until nothing changes."""
        nodes = [node["metadata"]["name"] for node in self.server.peek_all(Kind.NODES)]
        before = -1
        while before < len(self._bound()):
            before = len(self._bound())
            waiting = [pod["metadata"]["name"] for pod in self.server.peek_all(Kind.PODS) if not rules.node_of(pod)]
            self._finish(
                Actor(f"{leader} places {name}", partial(_place, name, nodes), process=leader)
                for leader in self.scenario.leaders
                for name in waiting
            )

    def _finish(self, actors: Iterable[Actor]) -> None:
        """Let actors act, and kubelets start what they bind; time passes where all of them wait."""
        tasks = []
        due = list(actors)
        for _ in range(_MOST_WAITS):
            for actor in due:
                self.note(actor.name)
                self.started.append(actor.name)
                tasks.append(self.loop.start(actor.name, actor.act(self, actor)))
            self._run()
            due = list(self._for_kubelets())
            tasks = [task for task in tasks if not task.done() or task.result()]
            if not due and not tasks:
                return
            if not due and self.loop.next_timer is not None:
                self._pass(self.loop.next_timer)
        raise Broken("what waits is placed for ever")


async def _place(name: str, nodes: Collection[str], world: World, actor: Actor) -> None:
    assert isinstance(world, PlacementWorld)
    await world.schedule(actor, name, nodes, 2)


async def _start(name: str, uid: str, node: str, world: World, actor: Actor) -> None:
    assert isinstance(world, PlacementWorld)
    api: Port = world.request_as(actor)
    world.hurried += 1
    if await api.allocate(Kind.PODS, name, uid, node if world.has_locks else "") and world.has_locks:
        await api.unlock(Kind.NODES, node)
    world.hurried -= 1


async def _end(name: str, world: World, actor: Actor) -> None:
    await world.request_as(actor).end(Kind.PODS, name)
