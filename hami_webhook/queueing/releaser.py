"""Releasing pods that wait for quota: each is charged in its turn, and then its scheduling gate is removed.

Source: docs/spec/queues.md#2. Which pods are next, `quota/queue_order.py` decides. The charge comes first, under the
pod's UID, so a process that ends between the two loses nothing: who leads next finds a gated pod that is charged, and
goes on. Nothing of the order is kept here, only which pods wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any

from msgspec import Struct, structs

from hami_webhook.charging.pods import PodCharger
from hami_webhook.charging.queue import Outcome
from hami_webhook.cluster.api import Cluster, ClusterError, Conflict, Kind, NotFound
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import PodGroup
from hami_webhook.kube.wire import MalformedObject
from hami_webhook.loops import contained
from hami_webhook.queueing.group_turns import group_turns
from hami_webhook.queueing.held_room import HeldRoom
from hami_webhook.queueing.places import Places
from hami_webhook.queueing.pod_queue import DemandCache, read_queue
from hami_webhook.queueing.promises import Promises, StartErrors
from hami_webhook.quota.account import ChargeRequest, Gate
from hami_webhook.quota.floors import floor_id
from hami_webhook.quota.pricing import ClusterCapacity, admission_charge
from hami_webhook.quota.queue_order import PendingReason, QueueDecision, QueuedPod, QueuePosition, QueueRoom, decide
from hami_webhook.quota.refusals import Refusal, refuse_now
from hami_webhook.state.caches import Change, Subscriptions
from hami_webhook.state.cluster_view import ClusterView

logger = logging.getLogger(__name__)

LOOP = "queues"

_MOST_AT_ONCE = 100
"""Pods that one round releases: their charges share a write for each quota."""

_PATCH_TIMEOUT = 10.0
"""Seconds for removing a gate: it is long given up when the entry of its pod ends."""
_GATES_AT_ONCE = 10
"""Gates that are removed at a time: each is a review of ours as well, and a hundred would wait for one another."""
_BEGUN_WITHIN = 5.0
"""Seconds within which a round begins to remove gates; the next one goes on, as the pods are charged."""

_PATCHES = 20
"""How often a gate is patched in a row while its pod is changed in ways that don't matter here."""

_AGAIN, _LOOK = 0.5, 5.0
"""Seconds after which is tried again what failed, and after which those who wait are looked at though nothing happened.
"""

_ASIDE, _LONGEST_ASIDE = 0.5, 16.0
"""Seconds for which a turn steps aside when its charge is refused though there is room, twice as long each time, and at
most."""

_LATE = 10.0
"""Seconds for which, after such a refusal, the turns of its namespace come after those of others: what they would be
charged is kept from nobody."""

_PAUSE_PER_SECOND = 1
"""Seconds between two rounds for each second that one takes to decide: many who wait leave time for everything else."""
_LONGEST_PAUSE = 0.25


class _Aside(Struct, frozen=True):
    """A turn whose charge was refused though there was room: since when, for how many seconds, and why."""

    since: float
    seconds: float
    text: str


class QueueReleaser:
    """Knows the waiting pods by subscription, and releases them while `run` runs; only the leader calls `run`.

    `released` counts pods. `decision` is the last one.
    """

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        charger: PodCharger,
        capacity: ClusterCapacity,
        failures: Counter[str],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._charger = charger
        self._capacity = capacity
        self._failures = failures
        self._sleep = sleep
        self._pods: dict[str, Pod] = {}
        self._places = Places()
        self._waiting: dict[str, QueuedPod] = {}
        self._demands = DemandCache(view.clock)
        self._held = HeldRoom(view)
        self._starts = Promises()
        self.woken = asyncio.Event()
        """Something changed that may let somebody be released."""
        self._again = False
        self._aside: dict[str, _Aside] = {}
        """By the UID of a turn, of pods that wait only."""
        self._late: dict[str, float] = {}
        """Until when the turns of a namespace come after those of others, in Unix seconds."""
        self._opened: dict[str, float] = {}
        """When the last gate of others went, of pods that wait, in Unix seconds; older than that by the pod itself."""
        self.released = 0
        self.decision = QueueDecision((), ())
        self.within: Sequence[tuple[QueuePosition, Sequence[Pod]]] = ()
        """Those that wait within their quotas' nominal, in turn: of a pod group one, with the pods it stands for."""
        self.reclaimed_for: Set[str] = frozenset()
        """The UIDs of those of them that others were evicted for."""

    def subscriptions(self) -> Subscriptions:
        """Pods, and all that decides whether they fit their quotas."""
        return {
            Kind.PODS: self._pod_changed,
            **dict.fromkeys(
                (Kind.RESOURCE_QUOTAS, Kind.ACCELERATOR_QUOTAS, Kind.NAMESPACES, Kind.NODES), self._other_changed
            ),
        }

    def _pod_changed(self, change: Change[Pod]) -> None:
        before, after = change.before, change.after
        uid = (after or before or _NOBODY).uid
        self._note_place(before, after)
        waits = after is not None and after.queued and not after.terminal and after.deletion_time is None
        if waits and after is not None:
            self._pods[uid] = after
            if before is not None and before.queued and len(before.gates) > len(after.gates) == 1:
                self._opened[uid] = float(int(self._view.clock()))  # in seconds, as creation is
        elif self._pods.pop(uid, None) is None:
            return
        else:
            self._opened.pop(uid, None)
        if before is None or after is None or not _waits_as_before(before, after):
            self.woken.set()

    def _note_place(self, before: Pod | None, after: Pod | None) -> None:
        """Keep the place of a pod that is gone for the one that replaces it, where somebody waits."""
        view = self._view
        if before is None and after is not None and after.queued:
            self._places.come(after, partial(_request_of, after, view.vendors), view.clock())
        elif before is not None and not before.terminal and (after is None or after.terminal):
            succeeded = after is not None and after.phase != "Failed"
            if succeeded or not self._pods or view.vendors.resource_names.isdisjoint(before.named):
                self._places.forget(before.uid)
            else:
                request, waited = _request_of(before, view.vendors), self._waiting.get(before.uid)
                self._places.leave(before, request, waited, view.clock())

    def _other_changed(self, change: Change[Any]) -> None:
        if self._pods:
            self.woken.set()

    async def run(self) -> None:
        """Release pods until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self.woken.clear()
            began = loop.time()
            failed = await self.step()
            await self._sleep(min(_LONGEST_PAUSE, _PAUSE_PER_SECOND * (loop.time() - began)) if self._pods else 0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause(failed=failed) if self._pods else None):
                    await self.woken.wait()

    def _pause(self, *, failed: bool) -> float:
        """Seconds until the next look, if nothing changes."""
        now = self._view.clock()
        due = min((each.since + each.seconds - now for each in self._aside.values()), default=_LOOK)
        return _AGAIN if failed else min(_LOOK, max(_AGAIN, due))

    async def step(self) -> bool:
        """Release the pods whose turn has come. Return whether a further round is due soon even if nothing changes."""
        pods, now = list(self._pods.values()), self._view.clock()
        self._aside = {uid: each for uid, each in self._aside.items() if uid in self._pods}
        self._late = {namespace: until for namespace, until in self._late.items() if now < until}
        resting = {uid for uid, each in self._aside.items() if 0 <= now - each.since < each.seconds}
        queue = await read_queue(
            pods, self._charger.known, self._view.vendors, self._capacity, self._demands, self._opened
        )
        self._places.assign(queue.waiting)
        self._waiting = queue.waiting
        by_turn = group_turns(queue.waiting, queue.pods, self._view.state.by_namespace.there, now)
        taking = [each for each in by_turn.turns if each.uid not in resting] if resting else by_turn.turns
        last = {each.uid for each in taking if each.namespace in self._late} if self._late else frozenset()
        decision = decide(taking, queue.rooms, now, self.reclaimed_for, last, self._starts.promised)
        rooms = queue.rooms
        if queue.accounts:
            rooms = await self._held.added_to(rooms, queue.accounts, self._starts.released_at)
        if resting:
            aside = [
                QueuePosition(each, 0, PendingReason(refused=self._aside[each.uid].text))
                for each in by_turn.turns
                if each.uid in resting
            ]
            decision = structs.replace(decision, waiting=[*decision.waiting, *aside])
        decision = self._starts.given(decision, rooms, now, last)
        self.decision = by_turn.of_each_pod(decision, queue.waiting)
        self.within = [
            (each, [queue.pods[uid] for uid in by_turn.pods[each.pod.uid]])
            for each in decision.waiting
            if each.own and not each.obstacle.waits_for_time
        ]
        turns = _first(decision.released, _MOST_AT_ONCE)
        self._again = len(turns) < len(decision.released)
        due = [(pod.uid, set[str](), [pod]) for pod in queue.charged if pod.uid not in resting]
        due += [
            (turn.uid, {name for name, _ in turn.demand}, [queue.pods[uid] for uid in by_turn.pods[turn.uid]])
            for turn in turns
        ]
        charges = await asyncio.gather(*(self._charge_safely(pods) for _, _, pods in due))
        full: set[str] = set()
        work: list[Awaitable[None]] = []
        one_of_few, until = asyncio.Semaphore(_GATES_AT_ONCE), asyncio.get_running_loop().time() + _BEGUN_WITHIN
        for (uid, quotas, pods), charge in zip(due, charges, strict=True):
            if isinstance(charge, Refusal):
                if charge.no_room_in:
                    self._again |= charge.code == 503
                    full |= _held_up(quotas, charge.no_room_in, queue.rooms)
                else:
                    self._step_aside(uid, pods[0].namespace, charge.message)
            elif quotas & full:  # a quota had no room for one before it: it mustn't pass that one
                self._again = True
                work.append(charge.release())
            else:
                self._aside.pop(uid, None)
                work += (self._open_in_turn(pod, one_of_few, until) for pod in pods)
        await asyncio.gather(*work)
        return self._again

    @property
    def start_errors(self) -> StartErrors:
        """Return the errors of the promised starts of released turns."""
        return self._starts.errors

    @property
    def remembered(self) -> int:
        """How many turns stepped aside and still wait."""
        return len(self._aside)

    def _step_aside(self, uid: str, namespace: str, text: str) -> None:
        """A charge was refused, and not for lack of room: others go on, and the turn comes again later."""
        now, before = self._view.clock(), self._aside.get(uid)
        seconds = _ASIDE if before is None else min(_LONGEST_ASIDE, 2 * before.seconds)
        self._aside[uid] = _Aside(now, seconds, text)
        self._late[namespace] = now + _LATE
        self.woken.set()  # what it was to be charged is left to others

    async def _charge_safely(self, pods: Sequence[Pod]) -> Outcome:
        charges: list[Outcome] = []
        with contained(self._failures, LOOP, pods[0].key):
            charges.append(await self._charge(pods))
        return charges[0] if charges else refuse_now(pods[0].namespace, "an internal error")

    def _request(self, pod: Pod) -> ChargeRequest:
        on_cards = partial(admission_charge, pod, self._view.vendors, self._capacity)
        return ChargeRequest(
            pod.uid,
            pod,
            on_cards(),
            on_cards=on_cards,
            floor_id=partial(floor_id, pod, self._view.vendors),
            gate=Gate.OPENING,
        )

    async def _charge(self, pods: Sequence[Pod]) -> Outcome:
        """Charge pods to their quotas, all or none."""
        first, *others = map(self._request, pods)
        return await self._charger.charge(structs.replace(first, others=tuple(others)))

    async def _open_in_turn(self, pod: Pod, one_of_few: asyncio.Semaphore, until: float) -> None:
        """Remove the gate of a pod that is charged when it is its turn; not after `until`, in the event loop's time."""
        async with one_of_few:
            if asyncio.get_running_loop().time() < until:
                await self._open(pod)
            else:
                self._again = True

    async def _open(self, pod: Pod) -> None:
        """Remove the gate of a pod that is charged."""
        try:
            async with asyncio.timeout(_PATCH_TIMEOUT):
                opened = await self._remove_gate(pod)
        except NotFound:  # the watch shows what became of it
            return
        except (ClusterError, TimeoutError) as error:
            about = {"namespace": pod.namespace, "pod": pod.name, "reason": str(error) or "no answer in time"}
            logger.warning("the gate of a pod can't be removed; trying again", extra=about)
            self._again = True
            return
        if not opened:
            self._again = True
            return
        self._pods.pop(pod.uid, None)
        self._opened.pop(pod.uid, None)
        self._starts.released(pod.uid, self._view.clock())
        self.released += 1

    async def _remove_gate(self, pod: Pod) -> bool:
        """Whether it is removed: of a version that costs what is charged, others are priced in the next round."""
        newest = pod
        for _ in range(_PATCHES):
            patch = {"metadata": {"resourceVersion": newest.resource_version}, "spec": {"schedulingGates": None}}
            try:
                await self._cluster.patch(Kind.PODS, pod.name, patch, pod.namespace)
            except Conflict:
                found = await self._cluster.get(Kind.PODS, pod.name, pod.namespace)
                try:
                    newest = Pod.from_object(found)
                except MalformedObject:
                    return False
                same_cost = floor_id(newest, self._view.vendors) == floor_id(pod, self._view.vendors)
                if not (same_cost and _waits_as_before(pod, structs.replace(newest, annotations=pod.annotations))):
                    return False
            else:
                return True
        return False


def _waits_as_before(before: Pod, after: Pod) -> bool:
    """Whether a change of a pod that waits, as of its labels or its status, means nothing to its turn and its cost."""
    same = (
        structs.replace(
            after,
            resource_version=before.resource_version,
            labels=before.labels,
            reported_since=before.reported_since,
        )
        == before
    )
    return same and PodGroup.of(after) == PodGroup.of(before)


def _request_of(pod: Pod, vendors: Vendors) -> str:
    """What a pod costs while it waits, whether or not its init containers have ended."""
    return floor_id(structs.replace(pod, init_finished=False) if pod.init_finished else pod, vendors)


def _held_up(quotas: Set[str], no_room_in: str, rooms: Mapping[str, QueueRoom]) -> set[str]:
    """Those of a turn's quotas in which others wait for it, as one has no room: that, and none that is wider."""
    found = rooms.get(no_room_in)
    return {
        no_room_in,
        *(name for name in quotas if found and name in rooms and rooms[name].namespaces <= found.namespaces),
    }


def _first(turns: Sequence[QueuedPod], most: int) -> Sequence[QueuedPod]:
    """The first turns, of the namespaces in turn, until so many pods are released with them; in their order."""
    if sum(turn.pods for turn in turns) <= most:
        return turns
    by_namespace: dict[str, deque[QueuedPod]] = {}
    for turn in turns:
        by_namespace.setdefault(turn.namespace, deque()).append(turn)
    pods, chosen, left = 0, set[str](), deque(by_namespace.values())
    while left and pods < most:
        own = left.popleft()
        turn = own.popleft()
        chosen.add(turn.uid)
        pods += turn.pods
        if own:
            left.append(own)
    return [turn for turn in turns if turn.uid in chosen]


_NOBODY = Pod(namespace="", name="", uid="", labels={}, annotations={}, containers=())
