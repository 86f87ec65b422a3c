"""The scheduler's half of the handshake by which device plugins show that they run (docs/spec/core.md#3.2).

Only nodes with registered cards are requested. A running plugin overwrites the request; if it doesn't within a minute
and the node no longer offers the resource, its cards are dropped (`Vendor.health`). The request is left in place then,
as removing it would count as health for another minute.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from datetime import datetime

from hami_webhook.cluster.api import Cluster, ClusterError, Kind, NotFound
from hami_webhook.kube.objects import Node
from hami_webhook.loops import Sleep, contained, repeat
from hami_webhook.state.cluster_view import ClusterView

logger = logging.getLogger(__name__)

EVERY = 15.0
LOOP = "handshakes"


class Handshakes:
    """Requests handshakes of all nodes. `failures` counts unexpected exceptions."""

    def __init__(self, cluster: Cluster, view: ClusterView, failures: Counter[str]) -> None:
        self._cluster = cluster
        self._view = view
        self._failures = failures

    async def run(self, sleep: Sleep = asyncio.sleep) -> None:
        """A pass every 15 seconds, until cancelled."""
        await repeat(self.request_due, EVERY, sleep)

    async def request_due(self) -> int:
        """One pass over the nodes; the number of requests written."""
        requested = 0
        now = self._view.clock()
        for node in [view.node for view in self._view.state.views()]:
            with contained(self._failures, LOOP, f"node {node.name}"):
                requested += await self._request(node, now)
        return requested

    async def _request(self, node: Node, now: float) -> bool:
        """Request a handshake of a node's plugins if it is due; whether it was written."""
        stamp = f"Requesting_{datetime.fromtimestamp(now, self._view.zone):%Y-%m-%d %H:%M:%S}"
        annotations = {
            vendor.registration.handshake: stamp
            for vendor in self._view.vendors.values()
            if vendor.registration.handshake
            and vendor.registration.annotation in node.annotations
            and vendor.health(node, now, self._view.zone).request_handshake
        }
        if not annotations:
            return False
        try:
            await self._cluster.patch(Kind.NODES, node.name, {"metadata": {"annotations": annotations}})
        except NotFound:
            return False
        except ClusterError as error:
            about = {"node": node.name, "reason": str(error)}
            logger.warning("the handshake can't be written", extra=about)
            return False
        return True
