"""Detect rollouts that can't continue, because the old version's pods use the quota that new pods need
(docs/queues.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from hami_webhook.kube.objects import Pod

TEMPLATE_HASH = "pod-template-hash"
"""The label by which a Deployment distinguishes its versions; it is in its pods' names, too."""

_MOST = 512
"""Pods of a namespace that are looked at: a tenant may have a pod refused again and again."""


def other_version(pod: Pod, pods: Iterable[Pod]) -> str:
    """Return a sentence for the refusal if charged pods in the namespace belong to another version of the pod's
    Deployment; otherwise empty.
    """
    own = pod.labels.get(TEMPLATE_HASH)
    deployment, found, _ = pod.name.rpartition(f"-{own}-")
    if not own or not found:
        return ""
    for each in islice(pods, _MOST):
        other = each.labels.get(TEMPLATE_HASH, own)
        if other != own and each.name.startswith(f"{deployment}-{other}-") and not (each.queued or each.terminal):
            return (
                f"pods of another version of Deployment {deployment} hold quota. They never release it if its "
                "maxUnavailable is 0, the default below 4 replicas: set maxSurge to 0 with maxUnavailable 1, or the "
                "strategy Recreate"
            )
    return ""
