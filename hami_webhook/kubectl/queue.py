"""Where the pods stand that wait for quota (docs/queues.md#where-a-pod-stands)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.assembly import Core
from hami_webhook.kube.objects import QUOTA_GATE, Pod, ResourceQuota
from hami_webhook.kube.pod_group import GroupKey, PodGroup
from hami_webhook.queueing.group_turns import group_turns
from hami_webhook.queueing.pod_queue import DemandCache, PodQueue, read_queue
from hami_webhook.queueing.words import ahead_in, note_in, sentence, start_in, with_durations
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.known_quotas import KnownQuotas, PodQuotas
from hami_webhook.quota.queue_order import QueuedPod, decide


class QueuedPodUse(Struct, frozen=True):
    """A pod in the queue of a quota: `namespace/name`, or `AcceleratorQuota/name`.

    `place` is 1 for who is first; None where it has none, or where it isn't known. `since`: Unix seconds. The pods of
    a group have one place: `name` is the first of them, `pods` is how many wait.
    """

    quota: str
    place: int | None
    namespace: str
    name: str
    priority: int
    since: float
    waits_for: str
    group: str = ""
    pods: int = 1

    @property
    def title(self) -> str:
        """The pod, or the group with how many of its pods wait."""
        return f"{self.namespace}/{f'{self.group} (group of {self.pods})' if self.group else self.name}"


async def queued_pods(core: Core, said_of: Callable[[Pod], str], *, complete: bool) -> list[QueuedPodUse]:
    """The pods that wait, by quota and place. `said_of` gives what a pod's own condition says.

    Without `complete` others may be before them that can't be seen: their places are what their conditions say.
    """
    waiting = core.caches.queued()
    queue = await read_queue(
        waiting, lambda pod: _quotas(core, pod), core.vendors, core.capacity, DemandCache(core.clock)
    )
    now = core.clock()
    turns = group_turns(queue.waiting, queue.pods, core.state.by_namespace.there, now)
    decision = turns.of_each_pod(decide(turns.turns, queue.rooms, now), queue.waiting)
    texts = {
        standing.pod.uid: with_durations(
            sentence(standing, core.state.pod, _notes_in(said_of(queue.pods[standing.pod.uid]))), now
        )
        for standing in decision.waiting
    }
    texts |= dict.fromkeys((pod.uid for pod in decision.released), "its turn has come")
    texts |= dict.fromkeys((pod.uid for pod in queue.charged), "is charged: its gate is removed next")
    some_own = any(standing.own for standing in decision.waiting)
    beyond = {standing.pod.uid for standing in decision.waiting if some_own and not standing.own}
    found: list[QueuedPodUse] = []
    places: Counter[str] = Counter()
    groups: dict[tuple[str, GroupKey], int] = {}
    for pod in sorted(waiting, key=lambda pod: (pod.uid in beyond, -pod.priority, pod.waits_since, pod.uid)):
        queued = queue.waiting.get(pod.uid)
        if queued is None:
            others = ", ".join(gate for gate in pod.gates if gate != QUOTA_GATE)
            text = f"has other scheduling gates: {others}" if others else texts.get(pod.uid, said_of(pod))
            found.append(_row("", None, pod, text))
            continue
        group = PodGroup.of(pod)
        for quota in _queues_of(queued, queue):
            if group is not None and (quota, group.key) in groups:
                index = groups[quota, group.key]
                found[index] = replace(found[index], pods=found[index].pods + 1)
                continue
            if group is not None:
                groups[quota, group.key] = len(found)
            places[quota] += 1
            place, text = places[quota], texts[pod.uid]
            row = _row(quota, place, pod, text) if complete else _as_it_says(quota, pod, said_of(pod), now)
            found.append(row if group is None else replace(row, group=group.name))
    return sorted(found, key=lambda row: (row.quota, row.place is None, row.place or 0))


def _notes_in(said: str) -> str:
    return "; ".join(filter(None, (note_in(said), start_in(said))))


def _as_it_says(quota: str, pod: Pod, said: str, now: float) -> QueuedPodUse:
    before = ahead_in(said)
    return _row(
        quota, None if before is None else before + 1, pod, with_durations(said, now) or "its condition doesn't say yet"
    )


def _queues_of(queued: QueuedPod, queue: PodQueue) -> Sequence[str]:
    """The quotas in whose queue a pod is; all that it costs something where none queues any more."""
    names = [name for name, _ in queued.demand]
    return [name for name in names if queue.rooms[name].order is not None] or names or [""]


def _row(quota: str, place: int | None, pod: Pod, text: str) -> QueuedPodUse:
    return QueuedPodUse(quota, place, pod.namespace, pod.name, pod.priority, pod.waits_since, text)


def _quotas(core: Core, pod: Pod) -> PodQuotas:
    """The quotas of a pod as they were read."""

    def known(quotas: Sequence[ResourceQuota]) -> KnownQuotas:
        accounts = {quota.name: QuotaAccount.read(quota, core.vendors) for quota in quotas}
        return KnownQuotas(accounts, 0.0, current=True, none=not accounts)

    caches = core.caches
    return PodQuotas(known(caches.quotas(pod.namespace)), known(caches.accelerator_quotas.covering(pod.namespace)))
