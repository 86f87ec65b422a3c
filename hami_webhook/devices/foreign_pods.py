"""What admission does with the pods of every other scheduler: its name, pods with a node, keys of its own."""

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
    """Whether the pod says that it only shows a static pod, which its node runs already. Anybody may write so."""
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
    """Raises `BadRequest` for such an annotation that is still there when the pod is to be stored."""
    for key in keys:
        if key in annotations:
            raise BadRequest(f"annotation {key} is written by the scheduler only; remove it from the pod")


def name_scheduler(draft: PodDraft, scheduler: ForeignScheduler, others: Collection[str]) -> None:
    """Give a requesting pod without a scheduler the first name; warn of a name that isn't one of the scheduler's.

    A pod that names one of the `others` too, resources of somebody who comes first, gets none.
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
