"""What a pod waits for in a queue, as a sentence for everybody who may see the pod (docs/spec/queues.md#4)."""

from __future__ import annotations

import re
from collections.abc import Callable

from hami_webhook.kube.objects import Pod
from hami_webhook.quota.queue_order import Lack, Obstacle, Standing

WAITING, ABOVE_HARD, INCOMPLETE, REFUSED, RESERVED = (
    "Waiting",
    "AboveHard",
    "PodGroupIncomplete",
    "ChargeRefused",
    "Reserved",
)
QUEUE_REASONS = WAITING, ABOVE_HARD, INCOMPLETE, REFUSED, RESERVED


def reason_of(obstacle: Obstacle) -> str:
    """The reason of the condition of a pod that waits."""
    if obstacle.incomplete or obstacle.refused:
        return INCOMPLETE if obstacle.incomplete else REFUSED
    return ABOVE_HARD if obstacle.never else WAITING


def sentence(standing: Standing, pod_of: Callable[[str], Pod | None], note: str = "") -> str:
    """What stands in the pod's way, and how many are before it; `note` is what is reclaimed for it, or why nothing is.

    Pods are named in their own namespace only: of a quota of several, tenants don't learn each other's.
    """
    obstacle, namespace = standing.obstacle, standing.pod.key.partition("/")[0]
    if obstacle.incomplete:
        return obstacle.incomplete
    if obstacle.refused:
        return f"others are charged before it until its charge succeeds: {obstacle.refused}"
    if obstacle.never:
        text = "; ".join(f"{_of(each)}: requested {each.requested}, limited {each.hard}" for each in obstacle.lacks)
        return f"costs more than its quota's limit, so it waits until that is raised: {text}"
    parts = [
        f"{_of(each)}: requested {each.requested}, free {max(0, each.free)}, limited {each.hard}"
        for each in obstacle.lacks
    ]
    if obstacle.closed:
        parts.append(f"quota {_quota(obstacle.closed)} lets no pod pass those that wait before it")
    if obstacle.kept_for:
        mine = [pod.name for uid in obstacle.kept_for if (pod := pod_of(uid)) and pod.namespace == namespace]
        parts.append(f"room is kept for {', '.join(mine) or 'pods of other namespaces'}")
    if note:
        parts.append(note)
    before = {0: "no pod waits before it", 1: "1 pod waits before it"}
    parts.append(before.get(standing.ahead, f"{standing.ahead} pods wait before it"))
    return f"waits for quota: {'; '.join(parts)}"


_AHEAD = re.compile(r"(no|[0-9]{1,9}) pods? waits? before it$")


def ahead_in(text: str) -> int | None:
    """How many pods wait before one by such a sentence; None where it doesn't say."""
    found = _AHEAD.search(text)
    return None if found is None else 0 if found[1] == "no" else int(found[1])


def note_in(text: str) -> str:
    """What such a sentence says of what is reclaimed; empty where it says nothing."""
    return next((part for part in text.split("; ") if _NOTE.search(part)), "")


_NOTE = re.compile(r"^nobody is evicted for it: | evicted for ")


def _of(lack: Lack) -> str:
    return f"{lack.key} of {_quota(lack.quota)}"


def _quota(name: str) -> str:
    """`gpu-quota` of `team/gpu-quota`, which is in the pod's namespace."""
    namespace, _, own = name.partition("/")
    return name if namespace[:1].isupper() else own
