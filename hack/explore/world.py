"""A cluster in which nothing happens by itself: what may happen next is a list, and the explorer chooses from it.

Processes are the real core with its caches and loops, on the port to a cluster. Actors are who makes something happen:
the API server that has a pod reviewed and stores it, a leader that recomputes, a scheduler that places, users.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jsonpatch
import orjson

from hack.explore import rules
from hack.explore.apiserver import SHARED, Port, Request, SimulatedServer, Stream, at_once, review_of
from hack.explore.replica import Process
from hack.explore.stepping import SteppingLoop
from hami_webhook.admission.denial import Denied
from hami_webhook.admission.review import parse_review
from hami_webhook.cluster.api import JSON, ClusterError, Kind, Unavailable, WatchEvent
from hami_webhook.devices.registry import Vendors

NOON = 1767268800.0
TEAM = "team"
_LATE = (Kind.RESOURCE_QUOTAS, Kind.ACCELERATOR_QUOTAS, Kind.PODS, Kind.RESOURCE_CLAIMS)
"""The kinds whose watches may be late."""
_SETTLING = 24.0


class Choice(NamedTuple):
    """Something that may happen next; `accident` is what it takes of the scenario's bounds."""

    text: str
    happen: Callable[[], None]
    accident: str = ""


@dataclass(frozen=True)
class Actor:
    """Something that happens once, after the actors that it names, at any time; `act` is given the world."""

    name: str
    act: Callable[[World, Actor], Coroutine[Any, Any, None]]
    after: tuple[str, ...] = ()
    process: str = ""
    """Who it has work for."""


@dataclass(frozen=True)
class Scenario:
    """What there is, who acts, and what may go wrong; `accidents` are how often each at most, and `most` all together.

    `title` begins with the name.

    `costs` are what pods cost while they wait, by name. Processes named in `early` have caches from the beginning,
    which may be late; others start when they first have something to do. Those in `leaders` follow changes as a leader
    does. `small` is how many accidents there may be where it is gone through in seconds; None where that takes longer.
    `spared` are the accidents that it isn't tried with. `exact`: at the end, unless something was lost, used is what
    the pods cost, and no recompute is needed for it. `needs`: what all that there is costs a quota, where that isn't
    by `costs` alone; `vendors`: other ones than those of HAMi's chart.
    """

    title: str
    objects: Sequence[tuple[Kind, JSON]]
    actors: Sequence[Actor]
    costs: Mapping[str, Mapping[str, int]]
    accidents: Mapping[str, int] = field(default_factory=dict)
    most: int = 2
    early: Sequence[str] = ()
    leaders: Sequence[str] = ("leader",)
    exact: bool = True
    small: int | None = 0
    spared: Collection[str] = ()
    needs: Callable[[World, JSON], Mapping[str, int]] | None = None
    vendors: Callable[[], Vendors] | None = None

    @property
    def name(self) -> str:
        return self.title.partition(":")[0]

    def world(self, vendors: Vendors, note: Callable[[str], None]) -> World:
        """A run of it, from the beginning."""
        return World(self, vendors, note)


class World:
    """One run of a scenario. `choices` is what may happen next; `take` lets one of them happen."""

    shared: Collection[Kind] = SHARED
    late: Collection[Kind] = _LATE
    api_server: type[SimulatedServer] = SimulatedServer

    def __init__(self, scenario: Scenario, vendors: Vendors, note: Callable[[str], None] = lambda text: None) -> None:
        random.seed(0)
        self.scenario = scenario
        self.vendors = vendors if scenario.vendors is None else scenario.vendors()
        self.note = note
        self.loop = SteppingLoop()
        self.loop.set_exception_handler(self._unexpected)
        self.server = self.api_server(self.clock, self._written)
        self.pending: list[Request] = []
        self.histories: dict[str, int] = {}
        self.left = dict(scenario.accidents)
        self.happened = 0
        self.accidents: set[str] = set()
        self.started: list[str] = []
        self.running: dict[str, asyncio.Task[None]] = {}
        self.outcomes: dict[str, str] = {}
        """What became of reviews, by pod: `allowed`, or the refusal."""
        self.reviewed: dict[str, int] = {}
        """At which version of the quotas reviews came."""
        self.versions: list[dict[str, JSON]] = []
        """The quotas as they were, one after the other."""
        self.faults: list[str] = []
        self._reviews: dict[str, tuple[str, asyncio.Task[Any]]] = {}
        self.processes: dict[str, Process] = {}
        self._attempts = Counter[str]()
        self._last = ""
        self._writer = ""
        self._open = self._prepared = False
        for kind, obj in ((Kind.NAMESPACES, {"metadata": {"name": TEAM}}), *scenario.objects):
            at_once(self.server.create(kind, obj))
        for name in scenario.early:
            self._process(name)
        self._prepared = True

    def clock(self) -> float:
        return NOON + self.loop.now

    def new_attempt(self, name: str) -> str:
        """The mark of a process's next attempt to charge."""
        self._attempts[name] += 1
        return f"{name} {self._attempts[name]}"

    def end(self) -> None:
        for process in self.processes.values():
            process.port.dead = True
        self.loop.end()

    # what may happen

    @property
    def done(self) -> bool:
        return not self.pending and len(self.started) == len(self.scenario.actors) and not self._unfinished()

    def choices(self) -> list[Choice]:
        """What may happen next, the most ordinary first."""
        found: list[Choice] = []
        accidents: list[Choice] = []
        waiting = sorted(self.pending, key=lambda each: (each.process != self._last, each.process, each.number))
        for request in waiting:
            found += self._ordinary(request)
            accidents += self._accidents(request)
        found += self._beginnings()
        for name, process in self.processes.items():
            for kind, stream in process.port.streams.items():
                if stream.late:
                    text = f"{name} is shown {len(stream.events)} changes of {kind.value}"
                    found.append(Choice(text, partial(self._catch_up, name, kind, stream)))
        for pod in self._reviews:
            accidents.append(
                Choice(f"the API server gives up the review of {pod}", partial(self._hang_up, pod), "gone")
            )
        due = self.loop.next_timer
        if due is not None and not self.done:
            passing = Choice(f"{due - self.loop.now:g} s pass", partial(self._pass, due), "" if not found else "time")
            (accidents if found else found).append(passing)
        if self.pending and self._may("second"):
            accidents.append(Choice("a second passes", partial(self._pass, self.loop.now + 1), "second"))
        return found + [each for each in accidents if self._may(each.accident)]

    def _beginnings(self) -> Iterator[Choice]:
        for actor in self.scenario.actors:
            if actor.name not in self.started and all(self._is_over(each) for each in actor.after):
                yield Choice(f"{actor.name} begins", partial(self._begin, actor))

    def _ordinary(self, request: Request) -> Iterator[Choice]:
        if request.took_effect:
            yield Choice(f"{request}: the answer arrives", partial(self._answer, request, request.kept))
            return
        yield Choice(str(request), partial(self._serve, request))
        if request.abandoned:
            yield Choice(f"{request}: never takes effect", partial(self._drop, request))

    def _accidents(self, request: Request) -> Iterator[Choice]:
        if request.process not in self.processes:
            if request.verb == "create" and not request.took_effect:
                yield Choice(f"{request}: refused by another plugin", partial(self._lose, request), "refused")
            return
        if not request.abandoned:
            if not request.took_effect:
                yield Choice(f"{request}: lost on the way", partial(self._lose, request), "lost")
            if not request.reads and not request.took_effect:
                yield Choice(
                    f"{request}: takes effect, the answer is lost", partial(self._lose_answer, request), "lost"
                )
                yield Choice(f"{request}: takes effect, the answer is late", partial(self._keep, request), "late")
            yield Choice(f"{request.process} ends, and is started again", partial(self._crash, request), "crash")
        if request.reads or request.took_effect:
            return
        for name, process in self.processes.items():
            for kind in self.late:
                if kind is request.kind and not process.port.streams[kind].late:
                    text = f"{request}; {kind.value} are shown to {name} late from now on"
                    yield Choice(text, partial(self._serve_late, request, name, kind), "stale")
        if request.kind is Kind.RESOURCE_QUOTAS and request.process in self.processes:
            quota = request.what.split()[-1]
            yield Choice(f"kube-controller-manager writes quota {quota}", partial(self._recount, quota), "conflict")

    def _may(self, accident: str) -> bool:
        return not accident or (self.left.get(accident, 0) > 0 and self.happened < self.scenario.most)

    def take(self, choice: Choice) -> None:
        """Let it happen, and everything that follows from it by itself. Raises `rules.Broken`."""
        self.note(choice.text)
        if choice.accident:
            self.left[choice.accident] -= 1
            self.happened += 1
            self.accidents.add(choice.accident)
        choice.happen()
        self._run()

    @property
    def spent(self) -> frozenset[tuple[str, int]]:
        """The accidents that happened, each with its number among those of its kind.

        A run that goes on from the same signature with fewer of them may take every choice of one with more, and is
        checked as strictly or more so: who has seen the former needs no look at the latter.
        """
        had = self.scenario.accidents
        return frozenset((kind, n) for kind, left in self.left.items() for n in range(had[kind] - left))

    def signature(self) -> int:
        """The same in all runs that can't be told apart any longer, but by the accidents that are left."""
        late = [
            (name, kind.value, tuple(self.server.digest(event.object) for event in stream.events))
            for name, process in self.processes.items()
            for kind, stream in process.port.streams.items()
            if stream.late
        ]
        waiting = sorted(
            (each.process, each.number, each.content, each.took_effect, each.abandoned, self.server.digest(each.kept))
            for each in self.pending
        )
        return hash(
            (
                frozenset(self.server.state.items()),
                self.loop.now,
                frozenset(self.histories.items()),
                tuple(waiting),
                tuple(late),
                frozenset(self.started),
                frozenset(self.outcomes.items()),
            )
        )

    # what happens

    def ask(self, request: Request) -> None:
        """A process sends a request."""
        if self._open:
            request.reply(self._happen(request))
        else:
            self.pending.append(request)

    def _begin(self, actor: Actor) -> None:
        self.started.append(actor.name)
        if actor.process:
            self._process(actor.process)
        self.running[actor.name] = self.loop.start(actor.name, actor.act(self, actor))

    def _serve(self, request: Request) -> None:
        self._answer(request, self._happen(request))

    def _serve_late(self, request: Request, name: str, kind: Kind) -> None:
        self.processes[name].port.streams[kind].late = True
        self._serve(request)

    def _keep(self, request: Request) -> None:
        request.kept = self._happen(request)

    def _lose(self, request: Request) -> None:
        self._answer(request, Unavailable("no answer"))

    def _lose_answer(self, request: Request) -> None:
        self._happen(request)
        self._lose(request)

    def _drop(self, request: Request) -> None:
        self.pending.remove(request)

    def _happen(self, request: Request) -> object:
        self._last = self._writer = request.process
        outcome = request.happen()
        if isinstance(outcome, Exception):
            self.note(f"    {type(outcome).__name__}: {outcome}")
        return outcome

    def _answer(self, request: Request, outcome: object) -> None:
        self._last = request.process
        self.pending.remove(request)
        if not request.abandoned:
            self.observe(request.process, (request.number, self.server.digest(outcome)))
            request.reply(outcome)

    def _crash(self, request: Request) -> None:
        name = request.process
        process = self.processes[name]
        process.port.dead = True
        del self.processes[name]
        self.histories.pop(name, None)
        for task in self.loop.tasks_of(name):
            task.cancel()

    def _hang_up(self, pod: str) -> None:
        process, review = self._reviews[pod]
        self.observe(process, f"the review of {pod} is given up")
        review.cancel()

    def _catch_up(self, name: str, kind: Kind, stream: Stream) -> None:
        stream.late = False
        for event in stream.events:
            self.observe(name, (kind.value, self.server.digest(event.object)))
        stream.wake()

    def _pass(self, until: float) -> None:
        self.loop.now = until

    def _recount(self, quota: str) -> None:
        """kube-controller-manager counts something of its own."""
        self._writer = "kube-controller-manager"
        status = {"used": {"pods": str(1 + self.happened)}}
        with suppress(ClusterError):
            at_once(self.server.patch_status(Kind.RESOURCE_QUOTAS, quota, {"status": status}, TEAM))

    def _process(self, name: str) -> Process:
        """A process, which is started if it isn't running."""
        if name not in self.processes:
            self.processes[name] = self._started(name)
            self.observe(name, ("started", frozenset(self.server.state.items())))
        return self.processes[name]

    def _started(self, name: str) -> Process:
        return Process(self, name, leads=name in self.scenario.leaders)

    def _run(self) -> None:
        self.loop.run_ready()
        for process in self.processes.values():
            self.faults += [f"{process.name}: an unexpected exception in {loop}" for loop in process.core.failures]
        for name in [name for name, task in self.running.items() if task.done()]:
            error = self.running.pop(name).exception()
            if error is not None:
                self.faults.append(f"{name}: {type(error).__name__}: {error}")
        if self.faults:
            raise rules.Broken("; ".join(self.faults))

    def observe(self, who: str, what: object) -> None:
        """A process or an actor learns something: what it does next depends on nothing else."""
        self.histories[who] = hash((self.histories.get(who, 0), self.loop.now, what))

    def _written(self, kind: Kind, event: WatchEvent) -> None:
        for name, process in self.processes.items():
            stream = process.port.streams.get(kind)
            if stream is None:
                continue
            stream.events.append(event)
            if not stream.late:
                self.observe(name, (kind.value, self.server.digest(event.object)))
                stream.wake()
        self._look(kind, event)

    def _look(self, kind: Kind, event: WatchEvent) -> None:
        """A change is noted, and checked."""
        if kind in rules.QUOTAS:
            self._note_quota(event.object)
        if self._prepared:
            self.faults += rules.after_write(self, kind, event, self._writer)
        if kind in rules.QUOTAS:
            self.versions.append({quota["metadata"]["name"]: quota for quota in rules.quotas_of(self)})

    def _note_quota(self, quota: JSON) -> None:
        used, ledger = (orjson.dumps(found).decode() for found in (rules.used_of(quota), rules.ledger_of(quota)))
        self.note(f"    quota {quota['metadata']['name']}: used {used}, ledger {ledger}")

    def _unexpected(self, loop: asyncio.AbstractEventLoop, context: JSON) -> None:
        self.faults.append(f"an unexpected exception: {context.get('exception') or context['message']}")

    def _unfinished(self) -> list[str]:
        return [name for name, task in self.running.items() if not task.done()]

    def _is_over(self, name: str) -> bool:
        return name in self.started and name not in self._unfinished()

    # what actors do

    def request_as(self, actor: Actor) -> Port:
        """The API server for who isn't a process of ours."""
        return Port(self.server, actor.name, self.ask, self.shared)

    async def call(self, actor: Actor, work: Callable[[Process], Awaitable[Any]], *, pod: str = "") -> Any:
        """Have the actor's process do something; `Unavailable` if it ends meanwhile.

        `pod`: it reviews that one, and may be given up.
        """
        name = actor.process
        process = self.processes[name]
        self.observe(name, actor.name)

        async def whole() -> Any:
            return await work(process)

        task = self.loop.start(name, whole())
        if pod:
            self._reviews[pod] = name, task
        await asyncio.wait([task])
        self._reviews.pop(pod, None)
        if task.cancelled():
            raise Unavailable("the process ended, or nobody waits for its answer")
        return task.result()

    async def is_allowed(self, actor: Actor, what: str, work: Callable[[Process], Awaitable[object]]) -> bool:
        """Whether a review allows what is asked for. It may be given up by the name `what`."""
        self.reviewed[what] = len(self.versions)
        try:
            await self.call(actor, work, pod=what)
        except (Denied, Unavailable) as error:
            self.outcomes[what] = str(error)
            self.note(f"    {what} is refused: {error}")
            self.faults += rules.after_refusal(self, what)
            return False
        self.outcomes[what] = "allowed"
        self.note(f"    {what} is allowed")
        return True

    async def review(self, actor: Actor, pod: JSON) -> JSON | None:
        """Have a replica review a new pod, as the API server does; the pod to store, None for a refusal."""
        pod_name = pod["metadata"]["name"]
        stored: list[JSON] = []

        async def whole(process: Process) -> None:
            answer = await process.core.admission.mutate(parse_review(review_of(pod, TEAM), "application/json"))
            made: JSON = jsonpatch.apply_patch(pod, [dict(operation) for operation in answer.patch])
            made = {**made, "metadata": {**made["metadata"], "uid": f"uid-{pod_name}"}}
            await process.core.admission.validate(parse_review(review_of(made, TEAM), "application/json"))
            stored.append(made)

        return stored[0] if await self.is_allowed(actor, pod_name, whole) else None

    # the end

    def ending(self) -> Hashable | None:
        """What `settle` depends on: the objects, and what leaders have learned; None where somebody waits for time.

        Others only follow watches by then.
        """
        if self.loop.next_timer is not None:
            return None
        leaders = tuple(self.histories.get(name) for name in self.scenario.leaders)
        return frozenset(self.server.state.items()), self.loop.now, leaders, frozenset(self.accidents)

    def settle(self) -> None:
        """Nobody does anything any more: leaders recompute until nothing is due. Raises `rules.Broken`."""
        self._check([*rules.at_end(self)])
        self._open = True
        for name, process in self.processes.items():
            for kind, stream in process.port.streams.items():
                self._catch_up(name, kind, stream)
        self._run()
        for _ in range(3):
            self.loop.now += _SETTLING
            for name in self.scenario.leaders:
                process = self._process(name)
                for step in (*(each.step for each in process.reconcilers), process.releaser.step):
                    task = self.loop.start(name, step())
                    self._run()
                    self._check([] if task.done() else [f"{name}: {step.__qualname__} doesn't end"])
        self._check([*rules.at_rest(self)])

    def stuck(self) -> None:
        """Nothing may happen, and somebody waits."""
        raise rules.Broken(f"nothing may happen any more, and these aren't done: {', '.join(self._unfinished())}")

    def _check(self, faults: Sequence[str]) -> None:
        if faults:
            raise rules.Broken("; ".join(faults))
