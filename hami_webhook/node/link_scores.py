"""The pair scores of this node's GPUs, written where HAMi's device plugin writes them (docs/spec/nvidia.md#3.2).

A device plugin that writes them itself has precedence: what somebody else wrote is left alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence

import orjson

from hami_webhook.cluster.api import Cluster, ClusterError, Conflict, Kind
from hami_webhook.kube.objects import MalformedObject, Node
from hami_webhook.loops import News, Sleep, repeat
from hami_webhook.node.cards import ProbeError
from hami_webhook.node.pair_scores import ProbedCard, pair_scores

logger = logging.getLogger(__name__)

SCORES = "hami.io/node-nvidia-score"
"""What the vendor `nvidia` reads. Importing it would bring all that validates configuration, 15 MiB, to each node."""

WRITTEN = "hami.io/node-nvidia-score-written"
"""The checksum of the scores as they were written here: others have been written by somebody else."""

EVERY = 300.0


class LinkScores:
    """Keeps a node's pair scores right. `probe` returns how its GPUs are linked, or raises `ProbeError`."""

    def __init__(self, cluster: Cluster, node: str, probe: Callable[[], Sequence[ProbedCard]]) -> None:
        self._cluster = cluster
        self._node = node
        self._probe = probe
        self._news = News(logger, f"node {node}: ")

    async def run(self, sleep: Sleep = asyncio.sleep) -> None:
        """A look every five minutes, until cancelled."""
        await repeat(self.step, EVERY, sleep)

    async def step(self) -> bool:
        """Probe the GPUs, and write their scores unless they are there already; False if the node changed meanwhile."""
        try:
            cards = await asyncio.to_thread(self._probe)
        except ProbeError as error:
            self._news.say(f"no links are known: NVML: {error}")
            return True
        if not cards:
            self._news.say("no links to report: NVML finds no GPU")
            return True
        scores, asymmetric = pair_scores(cards)
        for one, other in asymmetric:
            logger.warning("%s and %s don't agree on their links: the pair scores 0", one, other)
        try:
            await self._write(encoded(scores))
        except Conflict:
            return False
        except (ClusterError, MalformedObject) as error:
            self._news.say(f"the pair scores can't be written: {error}")
        return True

    async def _write(self, text: str) -> None:
        node = await self._cluster.get(Kind.NODES, self._node)
        found = Node.from_object(node).annotations
        current = found.get(SCORES)
        if current is not None and found.get(WRITTEN) != checksum(current):
            self._news.say(f"{SCORES} is left alone: another program writes it, such as a device plugin")
            return
        if current != text:
            annotations = {SCORES: text, WRITTEN: checksum(text)}
            patch = {"resourceVersion": node["metadata"]["resourceVersion"], "annotations": annotations}
            await self._cluster.patch(Kind.NODES, self._node, {"metadata": patch})
        self._news.say(f"{SCORES} is up to date")


def encoded(scores: Mapping[str, Mapping[str, int]]) -> str:
    """The annotation: a record for each GPU."""
    return orjson.dumps([{"uuid": uuid, "score": peers} for uuid, peers in scores.items()]).decode()


def checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
