"""Pods that hold cards and compute nothing, as their quotas limit that (docs/spec/time.md#5).

What is measured comes from the API `usage.hami.io`, which believes a node of its own pods alone. Pods without
figures get no condition, and the controller evicts nobody by figures from before its leader began.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from hami_webhook.cluster.api import JSON, Cluster, ClusterError, EvictionRefused, Kind
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.cluster.rate import in_background
from hami_webhook.evictions import policies
from hami_webhook.evictions.executor import Eviction, Executor
from hami_webhook.kube.conditions import condition_patch
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.kube.human_duration import human_duration
from hami_webhook.kube.objects import MalformedObject, Pod, format_time, parse_time
from hami_webhook.kube.pod_group import PodGroup
from hami_webhook.loops import News
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.idle import IdleRule, held_since, idle_rule, limits_idle, strictest
from hami_webhook.state.cluster_view import ClusterView
from hami_webhook.usage.api import PodUsage, PodUsages

logger = logging.getLogger(__name__)

LOOP = "idle pods"
QUOTA_IDLE, IDLE, COMPUTED = "hami.io/QuotaIdle", "Idle", "Computed"
"""The type of the condition that says so on a pod, and its reasons: of one that is idle, and of one that was."""

_SHORTEST, _LONGEST, _PER_LIMIT = 5.0, 60.0, 10
"""Seconds between two rounds; within these bounds, the shortest limit has so many rounds."""
_AT_ONCE = 50
"""Pods that are priced before others have their turn."""
_MOST = 10
"""Pods that one round writes to, and that it evicts."""


_Covered = tuple[Pod, IdleRule, float]


class _Held(Struct, frozen=True):
    """A pod with cards of a quota, the rule for it, and for how many seconds it is idle; None if that isn't known.

    `unit` is evicted together: its group, whose pods are idle together, else itself.
    """

    pod: Pod
    rule: IdleRule
    unit: object
    idle: float | None


class IdlePods:
    """Tells pods, and evicts them, while `run` runs; only the leader calls `run`.

    `usages` reads what is measured of the pods of a namespace, or of all. It raises `ClusterError`.
    """

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        usages: PodUsages,
        object_events: ObjectEvents,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._usages = usages
        self._events = object_events
        self._executor = Executor(cluster, object_events.record, clock=view.clock)
        self._notices: dict[str, float] | None = None
        """Since when the conditions of pods say that they are idle, by UID; None until they were read."""
        self._unused: dict[str, float] = {}
        """Since when each look found pods that never used CUDA, on cards that didn't compute then, by UID."""
        self._refused: dict[object, float] = {}
        """When an eviction of each unit was last refused by a budget or failed, in Unix seconds."""
        self._news = News(logger)

    async def run(self) -> None:
        """Work until cancelled."""
        in_background.set(True)
        self._notices = None
        while True:
            shortest = await self.step()
            await asyncio.sleep(min(_LONGEST, max(_SHORTEST, shortest / _PER_LIMIT)))

    async def step(self) -> float:
        """Look at all pods once; the shortest limit of a quota in seconds, 0 if none limits it."""
        rules = self._rules()
        shortest = min((rule.after for found in rules.values() for rule, _ in found), default=0.0)
        try:
            held = await self._held(rules)
        except ClusterError as error:
            self._news.say(f"nothing is done about idle pods: {error}")
            return shortest
        self._news.say("")
        await self._write(held)
        await self._evict(held)
        return shortest

    def _rules(self) -> Mapping[str, list[tuple[IdleRule, QuotaAccount]]]:
        """By namespace, what its quotas say."""
        caches, found = self._view.caches, defaultdict[str, list[tuple[IdleRule, QuotaAccount]]](list)
        for quota in (*caches.all_quotas(), *caches.accelerator_quotas.all()):
            rule = idle_rule(quota) if limits_idle(quota) else None
            account = QuotaAccount.read(quota, self._view.vendors) if rule is not None else None
            if rule is not None and account is not None:
                for namespace in quota.covered_namespaces:
                    found[namespace].append((rule, account))
        return found

    async def _held(self, rules: Mapping[str, list[tuple[IdleRule, QuotaAccount]]]) -> Sequence[_Held]:
        """The pods that hold cards of quotas with rules. Raises `ClusterError`."""
        found = await self._covered(rules)
        namespaces = {pod.namespace for pod, _, _ in found}
        if not namespaces:
            return ()
        if self._notices is None:
            self._notices = _noticed((await self._cluster.list(Kind.PODS)).items)
        usages = await self._usages(namespaces.pop() if len(namespaces) == 1 else "")
        known = {(each.metadata.namespace, each.metadata.name): each for each in usages}
        now = self._view.clock()
        units: dict[object, list[tuple[Pod, IdleRule, float | None]]] = defaultdict(list)
        unused: dict[str, float] = {}
        for pod, rule, since in found:
            group = PodGroup.of(pod)
            usage = known.get((pod.namespace, pod.name))
            if usage is not None and not usage.containers:
                unused[pod.uid] = self._unused.get(pod.uid, now)
            idle = _idle_for(usage, max(since, unused.get(pod.uid, 0.0)), now)
            units[pod.uid if group is None else group.key].append((pod, rule, idle))
        self._unused = unused
        return [_Held(pod, rule, unit, _least(of_unit)) for unit, of_unit in units.items() for pod, rule, _ in of_unit]

    async def _covered(self, rules: Mapping[str, list[tuple[IdleRule, QuotaAccount]]]) -> list[_Covered]:
        """These pods, the rule for each, and since when it could compute."""
        view, now = self._view, self._view.clock()
        found: list[_Covered] = []
        for namespace, of_namespace in rules.items():
            for number, pod in enumerate(view.state.pods_in(namespace)):
                if number % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)
                rule: IdleRule | None = None
                since = 0.0
                for each, account in of_namespace:
                    at = held_since(account, pod, view.vendors, view.capacity, now, view.placement_ttl)
                    if at is not None:
                        rule, since = strictest(each, rule), max(since, at)
                if rule is not None:
                    found.append((pod, rule, since))
        return found

    async def _write(self, held: Sequence[_Held]) -> None:
        """Write the conditions that are due, and events with those that begin."""
        if self._notices is None:
            return
        notices, written, now = self._notices, 0, self._view.clock()
        for uid in notices.keys() - {each.pod.uid for each in held}:
            del notices[uid]
        for each in held:
            since = notices.get(each.pod.uid)
            if each.idle is None or written == _MOST:
                continue
            if since is not None and since < now - each.idle - _SHORTEST:  # it computed after that
                written += 1
                if await self._set(each.pod, idle=False, text="the pod has computed since"):
                    del notices[each.pod.uid]
            elif since is None and each.idle >= each.rule.notice:
                written += 1
                text = _notice(each)
                if await self._set(each.pod, idle=True, text=text):
                    notices[each.pod.uid] = now
                    await self._executor.say(each.pod, "Warning", "QuotaIdle", text)

    async def _evict(self, held: Sequence[_Held]) -> None:
        """Evict those whose time is over; of a group all or none."""
        now, notices = self._view.clock(), self._notices or {}
        units: dict[object, list[_Held]] = defaultdict(list)
        for each in held:
            units[each.unit].append(each)
        self._refused = refused = {key: at for key, at in self._refused.items() if key in units}
        gone = 0
        # first who wasn't refused: those that a budget protects may be more than go in a round, and stay for ever
        for key, unit in sorted(units.items(), key=lambda each: refused.get(each[0], 0.0)):
            if not all(_is_due(each, notices.get(each.pod.uid), now) for each in unit):
                continue
            if gone + len(unit) > _MOST and gone:
                return
            gone += len(unit)
            for each in unit:
                if not await self._evict_one(each):
                    refused[key] = now
                    break

    async def _evict_one(self, each: _Held) -> bool:
        """Whether others of its group may go: nobody stands in the way of this one."""
        pod, limit = each.pod, human_duration(each.rule.after)
        text = f"evicted because it computed nothing for {human_duration(each.idle or 0.0)}: quota {each.rule.quota} "
        text += f"lets pods be idle for {limit}"
        try:
            await self._executor.end(pod, Eviction(policies.IDLE, [(pod, "")], [pod], why=lambda _: text))
        except EvictionRefused:
            why = f"idle, and not evicted by quota {each.rule.quota}: a PodDisruptionBudget doesn't allow it now"
            await self._warn(pod, policies.IDLE.blocked, why)
            return False
        except ClusterError as error:
            logger.warning("an idle pod can't be evicted: %s: %s", pod.key, error)
            return False
        return True

    async def _warn(self, pod: Pod, reason: EventReason, text: str) -> None:
        await self._events.warn("Pod", pod.namespace, pod.name, pod.uid, reason, text)

    async def _set(self, pod: Pod, *, idle: bool, text: str) -> bool:
        """Set the condition on the pod as it is; whether that worked."""
        try:
            found = await self._cluster.get(Kind.PODS, pod.name, pod.namespace)
            if found["metadata"].get("uid") != pod.uid:
                return False
            patch = _with_condition(found, idle=idle, text=text, now=self._view.clock())
            await self._cluster.patch_status(Kind.PODS, pod.name, patch, pod.namespace)
        except ClusterError as error:
            logger.debug("the condition of an idle pod can't be written: %s: %s", pod.key, error)
            return False
        return True


def _idle_for(usage: PodUsage | None, since: float, now: float) -> float | None:
    """For how many seconds a pod computed nothing that could since then; None if that isn't known."""
    if usage is None:
        return None
    times = [each.last_used for each in usage.containers]
    if not times:
        return now - since
    if None in times:
        return None
    # the difference of two times of one clock, which isn't ours
    ago = (usage.timestamp - max(time for time in times if time is not None)).total_seconds()
    return max(0.0, min(ago, now - since))


def _least(unit: Sequence[tuple[Pod, IdleRule, float | None]]) -> float | None:
    """For how many seconds all pods of a unit are idle; None if that isn't known of one."""
    times = [idle for _, _, idle in unit if idle is not None]
    return min(times) if len(times) == len(unit) else None


def _is_due(each: _Held, since: float | None, now: float) -> bool:
    """Whether a pod was idle for long enough, and had its condition for as long as its rule says."""
    rule = each.rule
    if not rule.evicts or each.idle is None or since is None:
        return False
    return each.idle >= rule.after and now - since >= rule.after - rule.notice


def _notice(each: _Held) -> str:
    rule, idle = each.rule, each.idle or 0.0
    text = f"holds cards and has computed nothing for {human_duration(idle)}"
    if not rule.evicts:
        return f"{text}, by quota {rule.quota} idle after {human_duration(rule.after)}"
    left = human_duration(max(rule.after - idle, rule.after - rule.notice))
    return f"{text}; evicted in {left} by quota {rule.quota}, unless it computes"


def _noticed(items: Sequence[JSON]) -> dict[str, float]:
    """Since when pods have the condition, by UID."""
    found = {}
    for item in items:
        for each in (item.get("status") or {}).get("conditions") or ():
            if each.get("type") == QUOTA_IDLE and each.get("status") == "True":
                try:
                    found[item["metadata"]["uid"]] = parse_time(each.get("lastTransitionTime"))
                except (MalformedObject, ValueError, TypeError):
                    continue
    return found


def _with_condition(found: JSON, *, idle: bool, text: str, now: float) -> JSON:
    """The patch that sets it, for the version of the pod that was read."""
    made = {
        "type": QUOTA_IDLE,
        "status": "True" if idle else "False",
        "reason": IDLE if idle else COMPUTED,
        "message": text,
        "lastTransitionTime": format_time(now),
    }
    return condition_patch(found, made)
