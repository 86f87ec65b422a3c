"""The role `node`: no server, and of the API server only the node that this process runs on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter

from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kept_fields import decode_kept
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.config import Settings
from hami_webhook.controller.loops import Loops
from hami_webhook.server.roles.node import node_role


async def serve_node(settings: Settings) -> None:
    """Run until SIGINT or SIGTERM. Raises `ClusterError`."""
    cluster = KubernetesCluster(await connect(settings.kubeconfig), decode=decode_kept, timeout=settings.kube_timeout)
    async with cluster:
        loops = Loops(Counter())
        kept = (loops.keep(name, loop) for name, loop in node_role(cluster, settings.node_name).loops.items())
        task = asyncio.ensure_future(asyncio.gather(*kept))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task
