"""How many pods are evicted for the pods of a namespace, and when no more are (docs/preemption.md#limits).

A tenant can rename, delete and make again all that is in its namespace, controllers too, but not the namespace: so
what preemption costs is remembered by namespace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf

from msgspec import Struct, field

from hami_webhook.evictions.policies import EvictionPolicy
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.message_text import counted
from hami_webhook.kube.objects import Pod
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.nominations import Nominations

DEFAULT_PER_MINUTE = 60
_MINUTE = 60.0
_STAYED = 60.0
"""Seconds after its bind from which a pod has used what was freed for it; one that ends earlier hasn't."""
_REMEMBERED = 3600.0
"""Seconds for which an unused eviction counts, and after which victims that are still ending are waited for no more."""
_SEEN = 2.0
"""Seconds after which kube-scheduler has heard of a deletion: its own, and one for the rounding of times."""
_LONGEST_BACKOFF = 600.0
_MOST_UNUSED = 8
"""As many unused evictions of a namespace are remembered: the backoff doesn't grow after these."""


class LimitReached(Struct, frozen=True):
    """Why nobody is evicted, and until when (Unix seconds); 0 if that depends on victims that are ending."""

    reason: str
    until: float = 0.0


class _PodEviction(Struct, frozen=True, eq=False):
    """The UIDs of the victims of a pod, or of all pods of a group, how many of them count, and when that was decided
    (Unix seconds).
    """

    namespace: str
    pods: tuple[str, ...]
    victims: frozenset[str]
    count: int
    at: float


class _NamespaceEvictions(Struct):
    """What was evicted for a namespace: within a minute; for pods that are gone, while victims may be ending; and the
    times at which it turned out that a pod doesn't use what was freed.
    """

    recent: deque[_PodEviction] = field(default_factory=deque)
    abandoned: list[_PodEviction] = []
    unused: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_UNUSED))


class EvictionLimits:
    """The evictions for every namespace, at most `per_minute` in a minute; `clock` gives Unix seconds."""

    def __init__(
        self,
        state: ClusterCache,
        nominations: Nominations,
        *,
        clock: Callable[[], float],
        per_minute: int = DEFAULT_PER_MINUTE,
    ) -> None:
        self._state = state
        self._going = nominations.going
        self._clock = clock
        self._per_minute = per_minute
        self._of_pods: dict[str, _PodEviction] = {}
        """The last eviction for each pod that waits, by UID."""
        self._bound: dict[str, tuple[_PodEviction, float]] = {}
        """The last eviction for each pod that was bound a short while ago, and when, by UID."""
        self._of_namespaces: dict[str, _NamespaceEvictions] = {}
        nominations.watch(self.set_pod, self.remove_pod)

    def set_pod(self, pod: Pod) -> None:
        """A pod was added or changed."""
        if pod.node_name and pod.uid in self._of_pods:
            self._bound[pod.uid] = self._of_pods.pop(pod.uid), self._clock()
        if pod.terminal or pod.deletion_time is not None:
            self.remove_pod(pod.uid)

    def remove_pod(self, uid: str) -> None:
        """A pod is gone, has ended, or will never be bound."""
        if uid in self._of_pods:
            self._abandon(self._of_pods[uid])
        elif uid in self._bound:
            eviction, since = self._bound.pop(uid)
            if self._clock() < since + _STAYED and not self._is_victim(uid):
                self._abandon(eviction)

    def evicted(self, pods: Sequence[Pod], victims: Collection[str], count: int | None = None) -> None:
        """Pods with these UIDs go for a pod, or for all of a group; `count` of them, if it isn't known which."""
        self._drop_old()
        for pod in pods:
            if pod.uid in self._of_pods:
                self._abandon(self._of_pods[pod.uid])
        namespace, uids = pods[0].namespace, tuple(pod.uid for pod in pods)
        count = len(victims) if count is None else count
        eviction = _PodEviction(namespace, uids, frozenset(victims), count, self._clock())
        self._of_pods |= dict.fromkeys(uids, eviction)
        self._of_namespaces.setdefault(namespace, _NamespaceEvictions()).recent.append(eviction)

    def failed(self, uid: str) -> None:
        """Forget the evictions for this pod, or for its group: they failed."""
        if uid in self._of_pods:
            self._undo(self._of_pods[uid])

    def is_known(self, uid: str) -> bool:
        """Return whether this process decided the evictions for the pod."""
        return uid in self._of_pods

    def waits(self, uid: str) -> bool:
        """Whether pods that were evicted for the pod are still ending."""
        eviction = self._of_pods.get(uid)
        return eviction is not None and bool(self._ending(eviction))

    def are_seen_ending(self, uid: str, node: str) -> bool:
        """Whether kube-scheduler sees by now that pods that were evicted for the pod are ending on the node."""
        eviction = self._of_pods.get(uid)
        victims = filter(None, map(self._state.pod, eviction.victims if eviction is not None else ()))
        seen = self._clock() - _SEEN
        return any(each.node_name == node and _deleted_at(each) <= seen for each in victims)

    def reached(self, policy: EvictionPolicy, pods: Sequence[Pod], victims: int) -> LimitReached | None:
        """Why so many pods may not be evicted for a pod now, or for those of a group; None if they may."""
        unused = self._unused(pods)
        known = self._of_namespaces.get(pods[0].namespace)
        if unused is not None or known is None or not policy.per_minute:
            return unused
        count = sum(eviction.count for eviction in known.recent)
        if count and count + victims > self._per_minute:
            until = known.recent[0].at + _MINUTE
            evicted = f"{counted(count, 'pod')} {'was' if count == 1 else 'were'}"
            return LimitReached(
                f"{evicted} evicted for namespace {pods[0].namespace} within a minute, and {victims} more "
                f"would exceed {self._per_minute} (--preemption-evictions-per-minute)",
                until,
            )
        return None

    def _unused(self, pods: Sequence[Pod]) -> LimitReached | None:
        """Why nobody may be evicted for a pod, or a group, whose namespace didn't use what was freed for it before.

        One that had others evicted, who have ended, and needs more of them doesn't use what was freed.
        """
        pod = pods[0]
        for each in pods:
            if each.uid in self._of_pods and not self.waits(each.uid):
                self._abandon(self._of_pods[each.uid])
        self._drop_old()
        known = self._of_namespaces.get(pod.namespace)
        if known is None:
            return None
        ending = {uid for eviction in known.abandoned for uid in self._ending(eviction)}
        if ending:
            were = f"{len(ending)} pods that were" if len(ending) > 1 else "a pod that was"
            return LimitReached(
                f"{were} evicted for other pods of namespace {pod.namespace}, which don't need it any longer, "
                f"{'are' if len(ending) > 1 else 'is'} still ending"
            )
        now = self._clock()
        until = _backoff_end(known.unused)
        if now < until:
            return LimitReached(
                f"pods of namespace {pod.namespace} had others evicted {len(known.unused)} times within an hour and "
                f"weren't bound, or ended within a minute; not before {until - now:.0f} s from now",
                until,
            )
        return None

    def _abandon(self, eviction: _PodEviction) -> None:
        """The pod won't use what was freed for it; nor all others of its group."""
        if not self._began(eviction):
            self._undo(eviction)
            return
        self._forget(eviction)
        known = self._of_namespaces.setdefault(eviction.namespace, _NamespaceEvictions())
        known.unused.append(self._clock())
        if self._ending(eviction):
            known.abandoned.append(eviction)

    def _forget(self, eviction: _PodEviction) -> None:
        for uid in eviction.pods:
            if self._of_pods.get(uid) is eviction:
                del self._of_pods[uid]
            if uid in self._bound and self._bound[uid][0] is eviction:
                del self._bound[uid]

    def _undo(self, eviction: _PodEviction) -> None:
        self._forget(eviction)
        known = self._of_namespaces.get(eviction.namespace)
        if known is not None and eviction in known.recent:
            known.recent.remove(eviction)

    def _ending(self, eviction: _PodEviction) -> set[str]:
        """The UIDs of those victims that haven't ended."""
        if self._clock() >= eviction.at + _REMEMBERED:
            return set()
        return self._going(filter(None, map(self._state.pod, eviction.victims)))

    def _is_victim(self, uid: str) -> bool:
        """Whether the pod was evicted for others: it would have stayed."""
        return any(uid in each.victims for known in self._of_namespaces.values() for each in known.recent)

    def _began(self, eviction: _PodEviction) -> bool:
        """Whether any victim was evicted: kube-scheduler may not do what it asked about."""
        pods = [self._state.pod(uid) for uid in eviction.victims]
        return bool(self._ending(eviction)) or any(pod is None or pod.deletion_time is not None for pod in pods)

    def _drop_old(self) -> None:
        """Forget what counts no more, of all namespaces."""
        now = self._clock()
        self._bound = {uid: each for uid, each in self._bound.items() if now < each[1] + _STAYED}
        for namespace, known in [*self._of_namespaces.items()]:
            while known.recent and known.recent[0].at + _MINUTE <= now:
                known.recent.popleft()
            while known.unused and known.unused[0] + _REMEMBERED <= now:
                known.unused.popleft()
            known.abandoned = [each for each in known.abandoned if self._ending(each)]
            if not (known.recent or known.abandoned or known.unused):
                del self._of_namespaces[namespace]


class DisruptionBudgets:
    """PodDisruptionBudgets, less what was evicted since their status was written.

    `shown` gives them, each the same object until it has another version.
    """

    def __init__(self, shown: Callable[[], Iterable[PodDisruptionBudget]]) -> None:
        self._shown = shown
        self._known: dict[tuple[str, str], tuple[PodDisruptionBudget, PodDisruptionBudget]] = {}
        """Each as it is shown, and as it is left."""

    def left(self) -> list[PodDisruptionBudget]:
        """What they allow now."""
        known, self._known = self._known, {}
        for shown in self._shown():
            key = shown.namespace, shown.name
            seen, left = known.get(key, (shown, shown))
            self._known[key] = shown, left if seen is shown else shown
        return [left for _, left in self._known.values()]

    def spend(self, pods: Sequence[Pod]) -> None:
        """These pods are evicted."""
        self.left()
        self._known = {key: (shown, left.without(pods)) for key, (shown, left) in self._known.items()}


def _deleted_at(pod: Pod) -> float:
    """When the pod's deletion was asked for (Unix seconds); infinite if it wasn't."""
    return inf if pod.deletion_time is None else pod.deletion_time - (pod.deletion_grace or 0.0)


def _backoff_end(unused: Collection[float]) -> float:
    """Until when nobody is evicted after these times: the first one is free, after the next it doubles each time."""
    if len(unused) < 2:
        return 0.0
    return max(unused) + min(_MINUTE * (1 << (len(unused) - 2)), _LONGEST_BACKOFF)
