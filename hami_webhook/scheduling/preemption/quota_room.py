"""Room in quotas that say that pods of lower priority may be evicted for it (docs/preemption.md#quota)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import PodBudget, charged, pod_budget
from hami_webhook.quota.ledger import State
from hami_webhook.quota.preemption import gives_room
from hami_webhook.quota.pricing import charge_of
from hami_webhook.scheduling.cluster_cache import ClusterCache


class QuotaRoom:
    """What a pod may cost without some of the other pods of its namespace.

    `accounts` are the namespace's quotas, `named` the names of those that give room; `going` picks those of some pods
    that are ending. `now` is in Unix seconds.
    """

    def __init__(
        self,
        pod: Pod,
        accounts: Sequence[QuotaAccount],
        named: Collection[str],
        state: ClusterCache,
        vendors: Vendors,
        now: float,
        going: Callable[[Iterable[Pod]], set[str]],
    ) -> None:
        self._pod = pod
        self._named = named
        self._state = state
        self._vendors = vendors
        self._now = now
        self._pods = [
            each
            for each in state.pods_in(pod.namespace)
            if each.uid != pod.uid and not each.ended(now) and any(self._cost(account, each) for account in accounts)
        ]
        self.ending = going(self._pods)
        """The UIDs of pods whose room will be free."""
        self._accounts = [self._as_recomputed(account) if account.label in named else account for account in accounts]

    @property
    def candidates(self) -> list[Pod]:
        """The pods that may be evicted for room: those that are bound and have a lower priority."""
        return [
            each
            for each in self._pods
            if each.node_name
            and each.priority < self._pod.priority
            and each.uid not in self.ending
            and each.deletion_time is None
        ]

    def without(self, victims: Collection[str]) -> PodBudget | None:
        """The pod's budget when the pods with these UIDs and those that are ending are gone."""
        gone = [each for each in self._pods if each.uid in victims or each.uid in self.ending]

        def placed_by_others(account: QuotaAccount) -> dict[str, int]:
            others = self._state.placed_besides(self._pod, account, self._now)
            return _less(others, [self._cost(account, each, placed=True) for each in gone])

        accounts = [
            replace(account, used=_less(account.used, [self._cost(account, each) for each in gone]))
            for account in self._accounts
        ]
        return pod_budget(
            *(self._pod, accounts, placed_by_others, self._vendors),
            *(self._state, self._now, self._state.placement_ttl),
        )

    def _as_recomputed(self, account: QuotaAccount) -> QuotaAccount:
        """The account without what pods that have ended are still charged."""
        live = Counter[str]()
        for pod in (self._pod, *self._pods):
            live.update(self._cost(account, pod))
        for identity, entry in account.ledger.items():
            if entry.state is State.UPDATING or (entry.state is State.ADMITTED and self._state.pod(identity) is None):
                live.update(account.counted(entry.amounts))
        return replace(account, used={key: min(used, live[key]) for key, used in account.used.items()})

    def _cost(self, account: QuotaAccount, pod: Pod, *, placed: bool = False) -> Mapping[str, int]:
        """What the pod costs a quota that gives room, by its placement alone or as it is charged."""
        if account.label not in self._named or not account.covers(pod):
            return {}
        more = (self._vendors, self._state, self._now, self._state.placement_ttl)
        if not placed:
            return account.counted(charged(account, pod, *more))
        charge = charge_of(pod, *more, account.cards)
        return account.counted(charge.exact) if charge.placed else {}


def quota_room(
    pod: Pod,
    accounts: Sequence[QuotaAccount],
    state: ClusterCache,
    vendors: Vendors,
    now: float,
    going: Callable[[Iterable[Pod]], set[str]],
) -> QuotaRoom | None:
    """The room for a pod in those of its namespace's quotas that have the annotation; None if none has it."""
    named = {account.label for account in accounts if gives_room(account.quota) and account.covers(pod)}
    return QuotaRoom(pod, accounts, named, state, vendors, now, going) if named else None


def _less(amounts: Mapping[str, int], parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    left = dict(amounts)
    for part in parts:
        for key in left.keys() & part.keys():
            left[key] -= part[key]
    return left
