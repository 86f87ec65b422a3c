"""What every process does for the pod that it runs in, where it may."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.cluster.quotas_in_memory import WITHOUT_STATUS
from hami_webhook.controller.own_pod import OwnPod
from hami_webhook.server.roles import Loop, Role, Shared


def own_pod_of(shared: Shared) -> OwnPod | None:
    """The process's own pod; None where it has none that it may write to: a webhook alone writes no pods."""
    core, settings = shared.core, shared.settings
    if not settings.pod_name or settings.roles == {"webhook"}:
        return None
    object_events = ObjectEvents(core.cluster, core.problems)
    return OwnPod(core.cluster, core.state, object_events, settings.pod_namespace, settings.pod_name)


def own_pod_role(shared: Shared, own_pod: OwnPod, answers: Callable[[], bool]) -> Role:
    """The event on the pod, and the label by which the Service of HAMi's chart selects it if the process `answers`."""
    loops: dict[str, Loop] = {}
    if shared.quotas_in_memory:
        loops["event on own pod"] = partial(own_pod.warn, "QuotaStatusForbidden", WITHOUT_STATUS)

    async def keep_role() -> None:
        await shared.informers.wait_synced()
        await own_pod.keep_role(answers)

    if shared.settings.roles >= {"webhook", "extender"}:  # without the extender it may not write pods
        loops["scheduler role"] = keep_role
    return Role(loops=loops, subscribers=[own_pod])
