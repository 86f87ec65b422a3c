"""Faults to plant in placement, and the scenarios that find them, as in `faults.py`."""

from __future__ import annotations

from hack.explore.planting import Change, Planted

_EXTENDER, _PLACER, _LOCKS = "scheduling/extender.py", "scheduling/placer.py", "scheduling/node_locks.py"
_LEFT, _GROUPS, _CACHE = "scheduling/left_locks.py", "scheduling/pod_groups.py", "state/cluster_cache.py"
_DECISIONS, _PREEMPTION = "evictions/decisions.py", "evictions/pod_preemption.py"
_ALL_WAIT = "all(each is not None and not each.node_name and each.deletion_time is None for each in shown)"

FAULTS = (
    Planted(
        "what others bound during the wait for a lock isn't looked at",
        _PLACER,
        [Change("Placer.check_room", "complete and not view.unplaced and not any(view.overcommitted())", "complete")],
        "two-schedulers",
    ),
    Planted(
        "what others bound is looked at in the cache alone",
        _EXTENDER,
        [Change("Extender._commit_locked", "complete", "True")],
        "two-schedulers",
        {"stale": 1},
    ),
    Planted(
        "cards of pods that don't say which they hold are presumed around a bind",
        _PLACER,
        [
            Change(
                "Placer.check_room",
                "complete and not view.unplaced and not any(view.overcommitted())",
                "complete and not any(view.overcommitted())",
            )
        ],
        "foreign",
    ),
    Planted(
        "devices that were chosen aren't held",
        _PLACER,
        [Change("Placer.assume", "self._state.assume(held, now)", "self._state.now = now")],
        "room-for-one",
    ),
    Planted(
        "a lock is taken on any version of the node",
        _LOCKS,
        [
            Change(
                "NodeLocks._try",
                '{"resourceVersion": version, "annotations": {lock.annotation: value}}',
                '{"annotations": {lock.annotation: value}}',
            )
        ],
        "two-schedulers",
    ),
    Planted(
        "a pod is bound in any version",
        _PLACER,
        [
            Change(
                "Placer._bind",
                "self._cluster.bind(pod.namespace, pod.name, pod.uid, node, "
                "resource_version=version, metadata=metadata)",
                'self._cluster.bind(pod.namespace, pod.name, pod.uid, node, resource_version="", metadata=metadata)',
            )
        ],
        "changed",
    ),
    Planted(
        "the lock stays after a bind that failed",
        _EXTENDER,
        [Change("Extender._commit_locked", "await self.locks.release(node, pod, lock)", "pass")],
        "two-schedulers",
    ),
    Planted(
        "the lock goes though the pod may be bound",
        _EXTENDER,
        [
            Change(
                "Extender._commit_locked", "() if attempt.may_have_bound(error) else reversed(taken)", "reversed(taken)"
            )
        ],
        "room-for-one",
        {"stop": 1},
    ),
    Planted(
        "devices are let go though the pod may be bound",
        _EXTENDER,
        [Change("Extender._bind", "not held and not attempt.may_have_bound(error)", "not held")],
        why="the pod keeps the lock, and under it what was bound is looked at again",
    ),
    Planted(
        "devices stay held after a bind that failed",
        _EXTENDER,
        [Change("Extender._bind", "attempt.may_have_bound(error)", "error")],
        why="the pod is filtered again, and that gives up what it had",
    ),
    Planted(
        "a lock whose taking wasn't answered counts as taken",
        _LOCKS,
        [Change("NodeLocks._try", "BaseException", "Conflict")],
        why="an extender releases only what it took by an answer, and what it finds again it renews",
    ),
    Planted(
        "another extender's lock is taken over at once",
        _LOCKS,
        [
            Change(
                "NodeLocks._free_at",
                "if found.node_name and is_served(found):\n    return self._clock() + _ALLOCATE_WITHIN",
                "...\nreturn self._clock()",
            )
        ],
        "two-schedulers",
    ),
    Planted(
        "a lock is taken over while the device plugin is about to unlock",
        _LOCKS,
        [
            Change("NodeLocks._free_by_cache", "self._over[key][1] + _ALLOCATE_WITHIN", "self._over[key][1]"),
            Change("NodeLocks._free_at", "self._clock() + _ALLOCATE_WITHIN", "self._clock()"),
        ],
        "share",
    ),
    Planted(
        "the lock of a pod that is gone is taken over at once",
        _LOCKS,
        [
            Change("NodeLocks._free_at", "self._last_bind.get(node, -inf)", "-inf"),
            Change("NodeLocks._free_by_cache", "self._over[key][1] + _ALLOCATE_WITHIN", "self._over[key][1]"),
        ],
        "deleted",
    ),
    Planted(
        "the lock that a pod had before its bind is taken over at once",
        _LOCKS,
        [
            Change(
                "NodeLocks._free_at",
                "self._last_bind.get(node, -inf)",
                "self._last_bind.get(node, -inf) if taken_for is not None else -inf",
            ),
            Change(
                "NodeLocks._free_by_cache",
                "self._clock() if holders else self._last_bind.get(node, -inf)",
                "self._clock() if holders else self._last_bind.get(node, -inf) if is_ours else -inf",
            ),
        ],
        "deleted",
        {"lost": 1},
    ),
    Planted(
        "a lock belongs to any pod of its holder's name",
        _LOCKS,
        [Change("NodeLocks._kept", "holder.uid == pod.uid", "holder is not None")],
        why="what this process wrote for another pod is waited for by the cache alone, and that goes by UIDs, too",
    ),
    Planted(
        "a lock that is the pod's isn't renewed",
        _LOCKS,
        [
            Change(
                "NodeLocks._kept", "await self._renew(node, pod, lock, held, version, ours=holder is not None)", "pass"
            )
        ],
        "relabelled",
    ),
    Planted(
        "a lock is released whatever its value",
        _LOCKS,
        [
            Change(
                "NodeLocks.remove",
                '(found["metadata"].get("annotations") or {}).get(lock.annotation) != value',
                '(found["metadata"].get("annotations") or {}).get(lock.annotation) is None',
            )
        ],
        "relabelled",
    ),
    Planted(
        "locks that were left are never released",
        _LEFT,
        [
            Change(
                "release_left_locks",
                "(same := found.keys() & {*before})",
                "(same := found.keys() & {*before}) and not same",
            )
        ],
        "left",
    ),
    Planted(
        "locks that were left are released at the first look",
        _LEFT,
        [Change("release_left_locks", "found.keys() & {*before}", "found.keys() - {*before}")],
        "left-and-placed",
    ),
    Planted(
        "locks of pods that are yet to be served are released after a while",
        _LEFT,
        [Change("release_left_locks", "found[left] in unused", "found[left]")],
        "left-and-placed",
        {"time": 2},
    ),
    Planted(
        "a pod that is being bound may be filtered",
        _EXTENDER,
        [Change("Extender._placed_or_refused", "pod.uid in self._binding", "pod.uid == known")],
        why="under the lock what was bound is looked at again, and a bound pod counts whatever was given up",
    ),
    Planted(
        "a pod is bound twice at once",
        _EXTENDER,
        [Change("Extender.bind", "binding.uid in self._binding", "binding.uid in self._fitting and not binding.uid")],
        why="a pod isn't filtered while it is bound, and kube-scheduler binds only what it filtered",
    ),
    Planted(
        "an older event of a pod takes its devices away",
        "state/assumed_pods.py",
        [Change("AssumedPods.observe", "assumed is None", "assumed or not assumed")],
        why="whatever changes a pod makes its Binding fail, and it is decided for again",
    ),
    Planted(
        "a pod that is gone keeps its devices",
        _CACHE,
        [Change("ClusterCache.remove_pod", "self._release(uid)", "pass")],
        "deleted",
    ),
    Planted(
        "an answer that comes late brings back a pod that is gone",
        _CACHE,
        [Change("ClusterCache.assume", "pod.uid in self.gone", "not pod.uid")],
        why="between a look at a pod and its devices being held nothing is waited for here",
    ),
    Planted(
        "pods that don't say which cards they hold hold none",
        "state/node_entry.py",
        [Change("NodeEntry.viewed", "presumed(view, unplaced, vendors) if unplaced else view", "view")],
        "foreign",
    ),
    Planted(
        "a group of which one doesn't fit keeps what was found",
        _GROUPS,
        [Change("PodGroups._search", "self._state.forget(member.uid, now)", "pass")],
        "group-deleted",
    ),
    Planted(
        "a group's devices are never let go",
        _GROUPS,
        [Change("PodGroups.expire", "now >= holds.until", "not now")],
        why="who fits is tried at the end, so no member stays that kube-scheduler never binds",
    ),
    Planted(
        "a group lets go the devices of a pod that is being bound",
        _GROUPS,
        [Change("PodGroups._let_go", "uid not in self._binding", "uid")],
        why="a bound pod counts whatever was let go, and what was bound is looked at under the lock",
    ),
    Planted(
        "a group keeps the devices of a member that is bound or gone",
        _GROUPS,
        [
            Change(
                "PodGroups.expire",
                "pod is None or pod.node_name or pod.terminal or pod.deletion_time is not None",
                "pod is not None and not pod.uid",
            )
        ],
        "group-deleted",
    ),
    Planted(
        "who waits for its turn at a node isn't woken",
        "scheduling/fair_lock.py",
        [Change("FairLock.release", "turn.set_result(None)", "pass")],
        why="who waits gives up after a while, and is tried again",
    ),
    Planted(
        "pods are evicted for one that has found a place meanwhile",
        _DECISIONS,
        [Change("Decisions._are_waiting", _ALL_WAIT, "True")],
        "preemption-room",
    ),
    Planted(
        "what others are evicted for isn't kept",
        "state/nominations.py",
        [Change("Nominations._reserved", "not before", "before or not before")],
        "preemption",
    ),
    Planted(
        "more are evicted while the first are ending",
        _PREEMPTION,
        [
            Change("Preemption._is_postponed", "self._limits.waits(pod.uid)", "False"),
            Change("Preemption._is_postponed", "not waits", "waits"),
        ],
        why="the node that they leave is tried first, and takes the pod without others",
    ),
    Planted(
        "a placement isn't charged for what it costs beyond its pod",
        "charging/placements.py",
        [Change("PlacementCharger.charge", "self._queues.limiting(pod, actual)", "[]")],
        "quota",
    ),
    Planted(
        "what others bound isn't looked at where the vendor has no lock",
        _EXTENDER,
        [
            Change(
                "Extender._bind",
                "self._placer.check_room(pod, node)",
                "self._placer.check_room(pod, node, complete=True)",
            )
        ],
        "unlocked-after",
        {"stale": 1},
    ),
    Planted(
        "pods of a higher priority are evicted for room in a quota",
        "evictions/quota_room.py",
        [Change("QuotaRoom.candidates", "self._pod.priority", "self._pod.priority + 100")],
        "preemption-quota-above",
    ),
    Planted(
        "kube-scheduler evicts for a pod that the extender has others evicted for",
        _PREEMPTION,
        [
            Change(
                "Preemption.complete",
                "self._limits.waits(pod.uid) or "
                "(nominated is not None and self._nominations.waits(pod, nominated.node))",
                "not pod",
            )
        ],
        "preemption-scheduler",
    ),
    Planted(
        "the cards that kube-scheduler's victims leave aren't kept",
        "state/nominations.py",
        [
            Change(
                "Nominations.set_pod", "self._put(Nomination(pod, pod.nominated_node, inf))", "self.withdraw(pod.uid)"
            )
        ],
        "preemption-added",
    ),
    Planted(
        "pods are evicted for a group of which a member is gone",
        _DECISIONS,
        [Change("Decisions._are_waiting", _ALL_WAIT, _ALL_WAIT.replace("all", "any"))],
        "preemption-group-deleted",
    ),
)
