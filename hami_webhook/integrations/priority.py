"""`nvidia.com/priority` on pods that another scheduler places (docs/spec/volcano.md#5.4, docs/spec/koordinator.md#4).

No node offers the resource, so it would keep such a pod from being scheduled; the container reads it from an
environment variable instead, as HAMi-core reads it.
"""

from __future__ import annotations

from hami_webhook.devices.model import BadRequest
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.quantity import parse_whole

PRIORITY = "nvidia.com/priority"
_VARIABLE = "CUDA_TASK_PRIORITY"


def move_priority(draft: PodDraft, others: str) -> None:
    """Turn each container's priority into the variable, unless it has that. Raises `BadRequest` for other than 0 or 1.

    `others` is what orders a queue there, for the refusal.
    """
    for container in draft.containers:
        if not container.names_resource(PRIORITY):
            continue
        for written in (container.limits, container.requests):
            value = written.get(PRIORITY)
            if value is not None and parse_whole(value) not in (0, 1):
                raise BadRequest(
                    f"invalid {PRIORITY} value {str(value)[:40]} in container {container.name}: must be 0 (high) or 1 "
                    f"(low), which act on one card at run time; for more levels there are {others}"
                )
        level = parse_whole(container.amount(PRIORITY))
        for written in (container.limits, container.requests):
            if PRIORITY in written:
                del written[PRIORITY]
        if level is not None:
            container.default_env(_VARIABLE, str(level))
