"""A node as its monitor sees it: pods, their regions, and cards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hami_webhook.cluster.informer import Replaced
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.node.cards import CardMetrics, ProbeError
from hami_webhook.node.claim_regions import ClaimRegions
from hami_webhook.node.monitor import Monitor
from hami_webhook.node.node_pods import NodePods
from hami_webhook.node.region_files import ContainerKey, RegionFolder

NOW = 1_700_000_000.0
SYSTEM = "hami-system"


def pod(
    name: str,
    *containers: str,
    init: Sequence[str] = (),
    namespace: str = "team-a",
    statuses: Sequence[Any] = (),
    **meta: Any,
) -> dict[str, Any]:
    """A pod on the node; `statuses` are those of its app containers."""
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", **meta},
        "spec": {
            "nodeName": "gpu-1",
            "containers": [{"name": each} for each in containers],
            "initContainers": [{"name": each} for each in init],
        },
        "status": {"phase": "Running", "containerStatuses": list(statuses)},
    }


class MonitoredNode:
    """A monitor with what it looks at. `folder` is that of all regions; beside it is `claims`, if there is a `cluster`
    that has claims.
    """

    def __init__(self, folder: Path, cluster: MemoryCluster | None = None) -> None:
        self.folder = folder
        self.now = NOW
        self.cards: Sequence[CardMetrics] | ProbeError = ()
        self.cluster = MemoryCluster(lambda: self.now)
        self.pods = NodePods({"kube-system", SYSTEM})
        self.events: Counter[str] = Counter()
        self.regions = RegionFolder(str(folder))
        recording = ObjectEvents(self.cluster, self.events)
        path = str(folder.parent / "claims")
        self.claims = ClaimRegions(cluster, self.pods, path, lambda: self.now) if cluster is not None else None
        self.monitor = Monitor(self.pods, self.regions, self._read_cards, recording, lambda: self.now, self.claims)

    def put(self, *pods: dict[str, Any]) -> None:
        """These are the pods of the node."""
        self.pods.handle(Replaced(iter(pods)))

    def region(self, pod: str, container: str, content: Iterable[int]) -> Path:
        """Write a container's region."""
        file = self.folder / ContainerKey(f"uid-{pod}", container).folder / "1.cache"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(content))
        return file

    def _read_cards(self) -> Sequence[CardMetrics]:
        if isinstance(self.cards, ProbeError):
            raise self.cards
        return self.cards
