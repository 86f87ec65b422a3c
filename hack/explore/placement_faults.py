"""Faults to plant in placement, and the scenarios that find them, as in `faults.py`."""

from __future__ import annotations

from hack.explore.faults import Planted

_EXTENDER, _PLACER, _LOCKS = "scheduling/extender.py", "scheduling/placer.py", "scheduling/node_locks.py"
_LEFT, _GROUPS, _CACHE = "scheduling/left_locks.py", "scheduling/pod_groups.py", "state/cluster_cache.py"
_DECISIONS = "evictions/decisions.py"

FAULTS = (
    Planted(
        "what others bound during the wait for a lock isn't looked at",
        _PLACER,
        [("if complete and not view.unplaced and not any(view.overcommitted()):", "if complete:")],
        "two-schedulers",
    ),
    Planted(
        "what others bound is looked at in the cache alone",
        _EXTENDER,
        [("complete=complete)", "complete=True)")],
        "two-schedulers",
        {"stale": 1},
    ),
    Planted(
        "cards of pods that don't say which they hold are presumed around a bind",
        _PLACER,
        [("if complete and not view.unplaced and", "if complete and")],
        "foreign",
    ),
    Planted(
        "devices that were chosen aren't held",
        _PLACER,
        [("        self._state.assume(held, now)\n", "        self._state.now = now\n")],
        "room-for-one",
    ),
    Planted(
        "a lock is taken on any version of the node",
        _LOCKS,
        [
            (
                '{"resourceVersion": version, "annotations": {lock.annotation: value}}}\n            stored',
                '{"annotations": {lock.annotation: value}}}\n            stored',
            )
        ],
        "two-schedulers",
    ),
    Planted(
        "a pod is bound in any version",
        _PLACER,
        [("node, resource_version=version, metadata=metadata", 'node, resource_version="", metadata=metadata')],
        "changed",
    ),
    Planted(
        "the lock stays after a bind that failed",
        _EXTENDER,
        [("await self.locks.release(node, pod, lock)", "pass")],
        "two-schedulers",
    ),
    Planted(
        "the lock goes though the pod may be bound",
        _EXTENDER,
        [("for lock in () if attempt.may_have_bound(error) else reversed(taken):", "for lock in reversed(taken):")],
        "room-for-one",
        {"stop": 1},
    ),
    Planted(
        "devices are let go though the pod may be bound",
        _EXTENDER,
        [("if not held and not attempt.may_have_bound(error):", "if not held:")],
        why="the pod keeps the lock, and under it what was bound is looked at again",
    ),
    Planted(
        "devices stay held after a bind that failed",
        _EXTENDER,
        [("if not held and not attempt.may_have_bound(error):", "if not held and not error:")],
        why="the pod is filtered again, and that gives up what it had",
    ),
    Planted(
        "a lock whose taking wasn't answered counts as taken",
        _LOCKS,
        [("        except BaseException:  #", "        except Conflict:  #")],
        why="an extender releases only what it took by an answer, and what it finds again it renews",
    ),
    Planted(
        "another extender's lock is taken over at once",
        _LOCKS,
        [
            (
                "            return self._clock() + _ALLOCATE_WITHIN\n        return inf",
                "            return self._clock() + _ALLOCATE_WITHIN\n        return self._clock()",
            )
        ],
        "two-schedulers",
    ),
    Planted(
        "a lock is taken over while the device plugin is about to unlock",
        _LOCKS,
        [
            ("return self._over[key][1] + _ALLOCATE_WITHIN", "return self._over[key][1]"),
            (
                "return self._clock() + _ALLOCATE_WITHIN\n        return inf",
                "return self._clock()\n        return inf",
            ),
        ],
        "share",
    ),
    Planted(
        "the lock of a pod that is gone is taken over at once",
        _LOCKS,
        [
            (
                "        except NotFound:\n            return bound + _ALLOCATE_WITHIN",
                "        except NotFound:\n            return bound",
            ),
            ("return self._over[key][1] + _ALLOCATE_WITHIN", "return self._over[key][1]"),
        ],
        "deleted",
    ),
    Planted(
        "a lock belongs to any pod of its holder's name",
        _LOCKS,
        [("(holder is None or holder.uid == pod.uid)", "(holder is None or holder is not None)")],
        why="what this process wrote for another pod is waited for by the cache alone, and that goes by UIDs, too",
    ),
    Planted(
        "a lock that is the pod's isn't renewed",
        _LOCKS,
        [
            (
                "            await self._renew(node, pod, lock, held, version, ours=holder is not None)\n",
                "            pass\n",
            )
        ],
        "relabelled",
    ),
    Planted(
        "a lock is released whatever its value",
        _LOCKS,
        [(".get(lock.annotation) != value:", ".get(lock.annotation) is None:")],
        "relabelled",
    ),
    Planted(
        "locks that were left are never released",
        _LEFT,
        [("if same := found.keys() & {*before}:", "if (same := found.keys() & {*before}) and not same:")],
        "left",
    ),
    Planted(
        "locks that were left are released at the first look",
        _LEFT,
        [("if same := found.keys() & {*before}:", "if same := found.keys() - {*before}:")],
        "left-and-placed",
    ),
    Planted(
        "locks of pods that are yet to be served are released after a while",
        _LEFT,
        [("if found[left] in unused:", "if found[left]:")],
        "left-and-placed",
        {"time": 2},
    ),
    Planted(
        "a pod that is being bound may be filtered",
        _EXTENDER,
        [("if pod.uid in self._binding:  # nor may", "if pod.uid == known:  # nor may")],
        why="under the lock what was bound is looked at again, and a bound pod counts whatever was given up",
    ),
    Planted(
        "a pod is bound twice at once",
        _EXTENDER,
        [("if binding.uid in self._binding:", "if binding.uid in self._fitting and not binding.uid:")],
        why="a pod isn't filtered while it is bound, and kube-scheduler binds only what it filtered",
    ),
    Planted(
        "an older event of a pod takes its devices away",
        "state/assumed_pods.py",
        [
            (
                "        if assumed is None:\n            return pod\n",
                "        if assumed or not assumed:\n            return pod\n",
            )
        ],
        why="whatever changes a pod makes its Binding fail, and it is decided for again",
    ),
    Planted(
        "a pod that is gone keeps its devices",
        _CACHE,
        [
            (
                "if uid else ())\n        self._release(uid)\n",
                "if uid else ())\n        pass\n",
            )
        ],
        "deleted",
    ),
    Planted(
        "an answer that comes late brings back a pod that is gone",
        _CACHE,
        [("        if pod.uid in self.gone:\n            return\n", "        if not pod.uid:\n            return\n")],
        why="between a look at a pod and its devices being held nothing is waited for here",
    ),
    Planted(
        "pods that don't say which cards they hold hold none",
        "state/node_entry.py",
        [("return presumed(view, unplaced, vendors) if unplaced else view", "return view")],
        "foreign",
    ),
    Planted(
        "a group of which one doesn't fit keeps what was found",
        _GROUPS,
        [
            (
                "            if not complete:\n                for member",
                "            if not complete and not found:\n                for member",
            )
        ],
        "group-deleted",
    ),
    Planted(
        "a group's devices are never let go",
        _GROUPS,
        [("if key in self._holds and now >= holds.until and", "if key in self._holds and not now and")],
        why="who fits is tried at the end, so no member stays that kube-scheduler never binds",
    ),
    Planted(
        "a group lets go the devices of a pod that is being bound",
        _GROUPS,
        [("if uid not in self._binding]", "if uid]")],
        why="a bound pod counts whatever was let go, and what was bound is looked at under the lock",
    ),
    Planted(
        "a group keeps the devices of a member that is bound or gone",
        _GROUPS,
        [
            (
                "if pod is None or pod.node_name or pod.terminal or pod.deletion_time is not None:",
                "if pod is not None and not pod.uid:",
            )
        ],
        "group-deleted",
    ),
    Planted(
        "who waits for its turn at a node isn't woken",
        "scheduling/fair_lock.py",
        [("turn.set_result(None)", "pass")],
        why="who waits gives up after a while, and is tried again",
    ),
    Planted(
        "pods are evicted for one that has found a place meanwhile",
        _DECISIONS,
        [("if not any(map(self._waits, eviction.pods)):", "if not eviction.pods:")],
        "preemption-room",
    ),
    Planted(
        "what others are evicted for isn't kept",
        "state/nominations.py",
        [("        if not before:\n            return {}", "        if before or not before:\n            return {}")],
        "preemption",
    ),
    Planted(
        "more are evicted while the first are ending",
        "evictions/pod_preemption.py",
        [
            (
                "        waits = self._limits.waits(pod.uid)\n        if not waits and",
                "        waits = False\n        if waits and",
            )
        ],
        why="the node that they leave is tried first, and takes the pod without others",
    ),
    Planted(
        "a placement isn't charged for what it costs beyond its pod",
        "charging/placements.py",
        [("self._queues.charge(self._queues.limiting(pod, actual), request,", "self._queues.charge([], request,")],
        "quota",
    ),
    Planted(
        "what others bound isn't looked at where the vendor has no lock",
        _EXTENDER,
        [
            (
                "                await self._placer.check_room(pod, node)\n",
                "                await self._placer.check_room(pod, node, complete=True)\n",
            )
        ],
        "unlocked-after",
        {"stale": 1},
    ),
)
