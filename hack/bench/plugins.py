"""`python -m hack.bench.plugins KUBECONFIG`: the device plugins of all nodes, as lean as they can be.

Each answers when its pod was bound: it marks the pod as served, and lets its node's lock go.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from hami_webhook.cluster.api import JSON, Kind, NotFound, WatchType
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.informer import Change, Informer, Replaced
from hami_webhook.cluster.kubernetes import KubernetesCluster

_SERVED = {"metadata": {"annotations": {"hami.io/bind-phase": "success", "hami.io/vgpu-devices-to-allocate": ";"}}}
_UNLOCKED = {"metadata": {"annotations": {"hami.io/mutex.lock": None}}}


async def serve(login: str) -> None:
    """Serve every pod that is bound, until cancelled."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    seen: set[str] = set()
    async with KubernetesCluster(await connect(login)) as cluster:

        async def allocate(pod: JSON) -> None:
            meta = pod["metadata"]
            with contextlib.suppress(NotFound):
                await cluster.patch(Kind.PODS, meta["name"], _SERVED, meta["namespace"])
                await cluster.patch(Kind.NODES, pod["spec"]["nodeName"], _UNLOCKED)

        def handle(change: Change) -> None:
            if isinstance(change, Replaced):
                return
            pod = change.object
            meta = pod["metadata"]
            phase = (meta.get("annotations") or {}).get("hami.io/bind-phase")
            bound = change.type is not WatchType.DELETED and pod["spec"].get("nodeName")
            if bound and phase == "allocating" and meta["uid"] not in seen:
                seen.add(meta["uid"])
                tasks.add(task := asyncio.create_task(allocate(pod)))
                task.add_done_callback(tasks.discard)

        await Informer(cluster, Kind.PODS, clock=loop.time, sleep=asyncio.sleep, random=lambda: 0.5).run(handle)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
