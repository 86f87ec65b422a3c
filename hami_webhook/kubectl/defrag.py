"""`kubectl hami defrag`: the moves that free what is wanted, and, with --apply, their execution (docs/room.md#moves).

With --apply the node that is cleared is cordoned, so that nothing comes back to it; before each eviction the cluster is
read and the rest planned again, for the same node and among the same pods. What the plan didn't say ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins
from rich.console import Console
from rich.text import Text

from hami_webhook.cluster.api import Cluster, ClusterError, Conflict, EventNote, EvictionRefused, Kind
from hami_webhook.command_error import CommandError
from hami_webhook.devices.keys import MEBIBYTE
from hami_webhook.evictions.executor import Eviction, Executor
from hami_webhook.evictions.moves import Move, NoPlan, Plan
from hami_webhook.evictions.policies import DEFRAG
from hami_webhook.kube.human_memory import human_memory
from hami_webhook.kube.message_text import counted
from hami_webhook.kubectl.fragments import Movability, Owner, WantedCards
from hami_webhook.kubectl.live import CommandResult, LiveCluster, connected, read, require
from hami_webhook.terminal import print_sentences

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_EVERY = 0.5
"""Seconds between two looks at whether a pod was replaced."""
_TRIES = 5


class Stopped(CommandError):
    """The moves ended before their last one; the text says why."""


class ShownMove(Struct, frozen=True):
    """A move: `pod` is namespace/name; `memory` the MiB that it holds of cards; `may_veto` are its budgets."""

    pod: str
    node: str
    to: str
    owner: str
    priority: int
    cards: int
    memory: int
    running_since: float | None
    may_veto: Sequence[str]


def defrag(cluster: LiveCluster, arguments: argparse.Namespace) -> CommandResult:
    """Show the moves; with --apply do them."""
    require(cluster, Kind.NODES)
    require(cluster, Kind.PODS)
    found = movability(cluster, arguments)
    most = cluster.effective.options.evictions_per_minute
    plan = found.plan(most)
    if isinstance(plan, Plan) and plan.moves and arguments.apply:
        moves = list(shown_moves(found, plan))
        asyncio.run(_apply(arguments, plan, most))
        return _result(found, plan, moves, applied=True)
    return _result(found, plan, list(shown_moves(found, plan)), applied=False)


def movability(cluster: LiveCluster, arguments: argparse.Namespace, *, began: bool = False) -> Movability:
    """Who may move for what the flags say; `began`: moves are being done."""
    count, model = arguments.want
    wanted = WantedCards(count, model, arguments.gpumem, arguments.linked, arguments.priority_class)
    options = cluster.effective.options
    return Movability(cluster.simulation, options, wanted, cluster.namespace, cluster.closed_nodes, began=began)


def shown_moves(found: Movability, plan: Plan | NoPlan) -> Iterator[ShownMove]:
    for move in plan.moves if isinstance(plan, Plan) else ():
        pod, owner = move.pod.pod, Owner.of(found.raw(move.pod.pod))
        assert owner is not None
        vetoes = [f"PodDisruptionBudget {each.name}, {each.allowed} left" for each in found.budgets_of(pod)]
        cards = sum(amount for key, amount in move.pod.charge.items() if key in found.count_keys)
        yield ShownMove(
            pod.key, move.pod.node, move.to, f"{owner.kind}/{owner.name}", pod.priority, cards, move.pod.memory,
            pod.started, vetoes,
        )  # fmt: skip


def _result(found: Movability, plan: Plan | NoPlan, moves: Sequence[ShownMove], *, applied: bool) -> CommandResult:
    staying = [{"pods": number, "why": why} for why, number in found.staying]
    values: dict[str, Any] = {
        "wanted": str(found.wanted),
        "node": plan.node if isinstance(plan, Plan) else None,
        "moves": to_builtins(moves),
        "fewest": plan.fewest if isinstance(plan, Plan) else None,
        "why": plan.value if isinstance(plan, NoPlan) else "",
        "staying": staying,
        "applied": applied,
    }

    def show(console: Console) -> None:
        console.print(Text(_headline(found, plan, applied=applied)), soft_wrap=True)
        if moves:
            _print_moves(moves, console)
        for why, number in found.staying if moves or isinstance(plan, NoPlan) else ():
            console.print(Text(f"{counted(number, 'pod')} {'stays' if number == 1 else 'stay'}: {why}"), soft_wrap=True)

    return CommandResult(values, show, status=1 if isinstance(plan, NoPlan) else 0)


def _headline(found: Movability, plan: Plan | NoPlan, *, applied: bool) -> str:
    if isinstance(plan, NoPlan):
        return f"No moves free {found.wanted}: {plan.value}."
    if not plan.moves:
        return f"Node {plan.node} has {found.wanted} free now; no pod has to move."
    number = counted(len(plan.moves), "move")
    if applied:
        return f"Node {plan.node} has {found.wanted} free after {number}."
    more = "" if plan.fewest else "; fewer may do, but the search reached its limit"
    planned = f"Node {plan.node} would have {found.wanted} free after {number}{more}"
    return f"{planned}. This is only a plan: --apply carries it out."


def _print_moves(moves: Sequence[ShownMove], console: Console) -> None:
    from hami_webhook.kubectl.tables import print_rows

    rows = [
        (each.pod, each.node, each.to, each.owner, str(each.priority), str(each.cards),
         human_memory(each.memory * MEBIBYTE), ", ".join(each.may_veto) or "-")
        for each in moves
    ]  # fmt: skip
    print_rows(("POD", "FROM", "TO", "OWNER", "PRIORITY", "CARDS", "MEMORY", "MAY VETO"), rows, console)


# execution


async def _apply(arguments: argparse.Namespace, plan: Plan, most: int) -> None:
    """Do the moves of a plan. Raises `Stopped`, `ClusterError`."""
    left = {move.pod.pod.uid for move in plan.moves}
    async with connected(arguments) as (api, _), cordoned(api, plan.node):
        mover = Mover(api, arguments.timeout)
        while True:
            found = movability(await read(arguments), arguments, began=True)
            rest = found.plan(most, only=plan.node, among=left)
            if isinstance(rest, NoPlan):
                raise Stopped(
                    f"stopped, as the cluster has changed: without {counted(len(left), 'more pod')} node {plan.node} "
                    f"wouldn't have {found.wanted}: {rest.value}"
                )
            if not rest.moves:
                return
            move = rest.moves[0]
            place = await mover.move(found, move)
            left.discard(move.pod.pod.uid)
            print_sentences("kubectl hami", [f"moved {move.pod.pod.key} from {move.pod.node} to {place}"])


@asynccontextmanager
async def cordoned(api: Cluster, node: str) -> AsyncIterator[None]:
    """The node takes no new pods, and does again in any case. Raises `Stopped` if somebody else cordoned it before:
    it is theirs to uncordon.
    """
    await _cordon(api, node)
    try:
        yield
    finally:
        try:
            await api.patch(Kind.NODES, node, {"spec": {"unschedulable": None}})
        except ClusterError as error:
            print_sentences("kubectl hami", [f"node {node} stays cordoned: {error}; run kubectl uncordon {node}"])


async def _cordon(api: Cluster, node: str) -> None:
    """Cordon the node as it was read: of two people at once, one does."""
    for tries in range(_TRIES, 0, -1):
        live = await api.get(Kind.NODES, node)
        if (live.get("spec") or {}).get("unschedulable"):
            raise Stopped(f"stopped, as somebody cordoned node {node} since the plan was made; plan again")
        meta = {"resourceVersion": live["metadata"]["resourceVersion"]}
        try:
            await api.patch(Kind.NODES, node, {"metadata": meta, "spec": {"unschedulable": True}})
        except Conflict:  # others write to nodes all the time
            if tries == 1:
                raise
        else:
            return


class Mover:
    """Evicts pods and waits for their replacements, for `timeout` seconds each."""

    def __init__(
        self,
        api: Cluster,
        timeout: float,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._executor = Executor(api, self._record, clock=clock, sleep=sleep)

    async def move(self, found: Movability, move: Move) -> str:
        """The node of what its owner makes in its place. Raises `Stopped`, `ClusterError`."""
        pod, owner = move.pod.pod, Owner.of(found.raw(move.pod.pod))
        assert owner is not None
        until = self._clock() + self._timeout
        before = {each["metadata"]["uid"] for each in await self._of(owner, pod.namespace)}
        why = f"Moved off node {move.pod.node}, which gets {found.wanted} free"
        eviction = Eviction(DEFRAG, [(found.pod, move.pod.node)], [pod], why=lambda _: why)
        while True:
            try:
                there = await self._executor.end(pod, eviction)
                break
            except EvictionRefused as error:
                if self._clock() >= until:
                    raise Stopped(f"stopped, as {pod.key} may not be evicted: {error}") from error
                await self._sleep(_EVERY)
        if not there:
            raise Stopped(f"stopped, as {pod.key} is another pod by now, or is gone")
        place = await self._replaced(pod.key, pod.uid, owner, pod.namespace, before, until)
        if place == move.pod.node:
            raise Stopped(f"stopped, as {pod.key} was replaced on node {place} again: it tolerates the cordon")
        return place

    async def _replaced(self, name: str, uid: str, owner: Owner, namespace: str, before: set[str], until: float) -> str:
        while True:
            pods = await self._of(owner, namespace)
            new = [each for each in pods if each["metadata"]["uid"] not in before]
            gone = all(each["metadata"]["uid"] != uid for each in pods)
            nodes = [each["spec"]["nodeName"] for each in new if each["spec"].get("nodeName")]
            if gone and nodes:
                return str(nodes[0])
            if self._clock() >= until:
                what = "hasn't ended" if not gone else "has no node" if new else "wasn't made"
                whose = name if not gone else f"what {owner.kind} {owner.name} makes for {name}"
                raise Stopped(f"stopped, as {whose} {what} within {self._timeout:.0f} s")
            await self._sleep(_EVERY)

    async def _of(self, owner: Owner, namespace: str) -> list[Mapping[str, Any]]:
        """The pods of an owner."""
        pods = (await self._api.list(Kind.PODS, namespace)).items
        return [each for each in pods if (found := Owner.of(each)) is not None and found.uid == owner.uid]

    async def _record(self, note: EventNote) -> None:
        with suppress(ClusterError):
            await self._api.record_event(note)
