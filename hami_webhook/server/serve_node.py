"""The role `node`: the monitor of one node, and how its GPUs are linked. `node_process` starts it with its settings.

It has no caches of the cluster: of the API server it reads its own node and the pods on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial

import msgspec
import uvloop
from starlette.applications import Starlette

from hami_webhook import logs
from hami_webhook.cluster.api import Cluster, ClusterError, Kind
from hami_webhook.cluster.in_pod import PodClient
from hami_webhook.cluster.informer import Informer
from hami_webhook.cluster.kubernetes import Client, KubernetesCluster
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.loops import Loops, repeat
from hami_webhook.node import claim_regions
from hami_webhook.node.card_health import CardHealthLoop
from hami_webhook.node.cards import CardActivity
from hami_webhook.node.claim_regions import ClaimRegions
from hami_webhook.node.feedback import MIG_LOCK, PriorityFeedback
from hami_webhook.node.link_scores import LinkScores
from hami_webhook.node.monitor import Monitor
from hami_webhook.node.node_pods import NodePods, decode_monitored
from hami_webhook.node.nvml import CardHealthProbe, probe, read_cards
from hami_webhook.node.region_files import RegionFolder
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.listener import Listener
from hami_webhook.server.node_process import NodeSettings
from hami_webhook.server.probes import BuildCollector, probe_routes
from hami_webhook.server.request_metrics import new_registry
from hami_webhook.server.usage_metrics import unhealthy_text, usage_text

_CONTAINERS = "containers"
"""The folder of all regions, in that of HAMi's hooks."""
_CLAIMS = "claims"
"""The folder of those that HAMi's driver for claims keeps."""
_HAMIS_NAMESPACE = "kube-system"
"""Where HAMi's chart is often installed, if not where we are."""

Loop = Callable[[], Awaitable[None]]


class NodeRole:
    """What the process runs: loops by the name that their failures are counted under, and the listener of metrics."""

    def __init__(self, cluster: Cluster, settings: NodeSettings, *, clock: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._settings = settings
        self._problems: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._pods = NodePods({_HAMIS_NAMESPACE, settings.pod_namespace})
        loop = asyncio.get_running_loop()
        self._informer = Informer(
            cluster,
            Kind.PODS,
            clock=loop.time,
            sleep=asyncio.sleep,
            random=random.random,
            node=settings.node_name,
        )
        self._clock = clock
        self._containers = os.path.join(settings.hook_path, _CONTAINERS)
        folder = RegionFolder(self._containers) if settings.hook_path else None
        events = ObjectEvents(cluster, self._problems)
        path = os.path.join(settings.hook_path, _CLAIMS)
        self._claims = ClaimRegions(cluster, self._pods, path, clock) if settings.hook_path else None
        activity = CardActivity()
        self._monitor = Monitor(self._pods, folder, read_cards, events, clock, self._claims, activity)
        self._health = CardHealthLoop(
            cluster,
            settings.node_name,
            CardHealthProbe(),
            events,
            clock,
            booted=time.time() - time.clock_gettime(time.CLOCK_BOOTTIME),
            mig_lock=MIG_LOCK,
            activity=activity,
        )
        registry = new_registry()
        registry.register(BuildCollector(self._problems, self.failures))
        routes = probe_routes(registry, self._not_ready, more=self._usage)
        self.listener = Listener(
            Starlette(routes=routes), host=settings.host, port=settings.port, limits=ListenerLimits()
        )

    def loops(self) -> Mapping[str, Loop]:
        """The loops."""
        loops: dict[str, Loop] = {
            "link scores": LinkScores(self._cluster, self._settings.node_name, probe).run,
            "card health": self._health.run,
        }
        if self._settings.hook_path:
            loops["pods of the node"] = self._follow_pods
        if self._claims is not None:
            loops["claims of pods"] = partial(self._follow_claims, self._claims)
        if self._settings.priority_feedback:
            folder = RegionFolder(self._containers)
            loops["priority feedback"] = PriorityFeedback(self._pods, folder).run
            loops["left-over regions"] = partial(self._remove_leftovers, folder)
        return loops

    async def _remove_leftovers(self, folder: RegionFolder) -> None:
        """Remove regions of pods that are gone, where HAMi's own monitor doesn't."""
        await self._informer.synced.wait()

        async def step() -> None:
            uids = {pod.uid for pod in self._pods.pods}
            if uids and not self._pods.hamis_monitor:  # a node without any pod is a wrong NODE_NAME
                before = self._clock() - self._settings.resync_interval
                await asyncio.to_thread(folder.remove_leftovers, uids, before=before)

        await repeat(step, self._settings.resync_interval, asyncio.sleep)

    async def _follow_pods(self) -> None:
        await self._informer.run(self._pods.handle)

    async def _follow_claims(self, claims: ClaimRegions) -> None:
        await self._informer.synced.wait()
        await repeat(claims.step, claim_regions.EVERY, asyncio.sleep)

    def _not_ready(self) -> str | None:
        known = self._informer.synced.is_set() or not self._settings.hook_path
        return None if known else "the pods of this node aren't known yet"

    async def _usage(self) -> AsyncIterator[bytes]:
        use = await self._monitor.look()
        for piece in usage_text(use, self._settings.node_name, legacy=self._settings.legacy_metrics):
            yield piece
            await asyncio.sleep(0)
        yield unhealthy_text(self._health.cards, self._settings.node_name)


async def serve_node(settings: NodeSettings, client: Callable[[str], Awaitable[Client]]) -> None:
    """Run until SIGINT or SIGTERM. `client` makes one of a kubeconfig's path, or of none.

    Raises `ClusterError`, and `OSError` where the address can't be listened on.
    """
    cluster = KubernetesCluster(
        await client(settings.kubeconfig),
        decode=decode_monitored,
        timeout=settings.kube_timeout,
        component="hami-webhook-node",
        instance=settings.node_name,
    )
    async with cluster:
        role = NodeRole(cluster, settings)
        await role.listener.start()
        loops = Loops(role.failures)
        task = asyncio.ensure_future(asyncio.gather(*(loops.keep(*named) for named in role.loops().items())))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await role.listener.drain_and_stop()


async def small_client(kubeconfig: str) -> Client:
    """The pod's own client, unless a kubeconfig is given or this is no pod. Raises `ClusterError`."""
    client = None if kubeconfig else PodClient.here()
    if client is not None:
        return client
    from hami_webhook.cluster.connect import connect  # 23 MiB that a pod does without

    return await connect(kubeconfig)


def main(text: str) -> int:
    """Run with settings as JSON; the exit status."""
    settings = msgspec.json.decode(text, type=NodeSettings)
    logs.set_up(settings.log_format, settings.verbosity)
    try:
        uvloop.run(serve_node(settings, small_client))
    except ClusterError as error:
        print(f"hami-webhook: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        cause = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        where = f"--metrics-bind-address {settings.host}:{settings.port}"
        print(f"hami-webhook: {where}: can't be listened on: {cause}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
