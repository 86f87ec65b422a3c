"""Admission rules shared by all other schedulers: setting the scheduler's name, refusing pods with a node, protecting
its annotations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hami_webhook.devices.foreign_scheduler import ForeignScheduler
from hami_webhook.devices.model import BadRequest
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.message_text import cut
from hami_webhook.kube.objects import Pod

DEFAULT_SCHEDULER = "default-scheduler"
_MIRROR = "kubernetes.io/config.mirror"


def is_mirror(pod: Pod) -> bool:
    """Return whether the pod has the annotation of a mirror pod, which only shows a static pod.

    Any user can write it.
    """
    return _MIRROR in pod.annotations


def refuse_node_name(pod: Pod) -> None:
    """Raises `BadRequest` for a pod that would skip its scheduler."""
    if pod.node_name:
        raise BadRequest(has_node(pod.node_name))


def has_node(name: str) -> str:
    """The refusal of a pod with cards that names its node."""
    return (
        f"pod has node assigned ({cut(name)}), so no scheduler would choose its cards; remove spec.nodeName, and name "
        "the node by spec.nodeSelector kubernetes.io/hostname"
    )


def drop_owned(draft: PodDraft, keys: Iterable[str]) -> None:
    """Remove annotations that only the scheduler may write, which a copied manifest brings along."""
    for key in keys:
        if key in draft.annotations:
            del draft.annotations[key]
            draft.note(f"annotation {key} removed: only the scheduler writes it")


def refuse_owned(annotations: Mapping[str, str], keys: Iterable[str]) -> None:
    """Raise `BadRequest` if the pod to be stored has an annotation that only the scheduler may write."""
    for key in keys:
        if key in annotations:
            raise BadRequest(f"annotation {key} is written by the scheduler only; remove it from the pod")


def name_scheduler(draft: PodDraft, scheduler: ForeignScheduler, others: Collection[str]) -> None:
    """Give a requesting pod without a scheduler the first name; warn of a name that isn't one of the scheduler's.

    Set no name on a pod that also names one of `others`: resources of a scheduler with precedence.
    """
    name = scheduler.scheduler_of(draft)
    if name in scheduler.scheduler_names:
        return
    if name not in ("", DEFAULT_SCHEDULER):
        draft.warn(
            f"[{scheduler.key}/scheduler] scheduler {name} doesn't place these resources; "
            f"{' or '.join(scheduler.scheduler_names)} does"
        )
    elif scheduler.injects_scheduler and not names_any(draft, others):
        draft.scheduler_name = scheduler.scheduler_names[0]


def names_any(draft: PodDraft, resources: Collection[str]) -> bool:
    """Whether a container names one of the resources, in limits or in requests."""
    return any(each in resources for c in draft.containers for written in (c.limits, c.requests) for each in written)
