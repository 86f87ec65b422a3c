"""The pods that are bound to nodes, as far as it takes to know whose figures to believe, and where monitors are."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping

import msgspec
import orjson
from msgspec import Struct

from hami_webhook.cluster.api import JSON, Kind, WatchType
from hami_webhook.cluster.informer import Change, Replaced
from hami_webhook.cluster.kept_fields import decode_whole

DEVICES = "hami.io/vgpu-devices-allocated"
"""What the vendor `nvidia` writes of a pod's cards. It isn't asked: see `node.link_scores.SCORES`."""
COMPONENT = "app.kubernetes.io/component"
_MONITOR = "node"
"""The component of the pods of our DaemonSet."""
_PORT = "metrics"
_UUID = re.compile(r"(?:^|[:;])([^:;,]+),NVIDIA,")


class _Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pass


class _Meta(_Wire, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Port(_Wire, frozen=True):
    name: str = ""
    container_port: int = 0


class _Container(_Wire, frozen=True):
    ports: tuple[_Port, ...] | None = None


class _Spec(_Wire, frozen=True):
    node_name: str = ""
    containers: tuple[_Container, ...] | None = None


class _Status(_Wire, frozen=True):
    phase: str = ""
    # Python's camel would be podIp
    pod_ip: str = msgspec.field(default="", name="podIP")


class _Pod(_Wire, frozen=True):
    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


_POD = msgspec.json.Decoder(_Pod)


def decode_bound(kind: Kind, content: msgspec.Raw | bytes) -> JSON:
    """A pod from its JSON text: the fields that are kept, with the annotations and labels that are read."""
    if kind is not Kind.PODS:
        return decode_whole(kind, content)
    pod = _POD.decode(content)
    meta = pod.metadata
    read = msgspec.structs.replace(
        meta,
        labels={COMPONENT: meta.labels[COMPONENT]} if meta.labels and COMPONENT in meta.labels else None,
        annotations={DEVICES: meta.annotations[DEVICES]} if meta.annotations and DEVICES in meta.annotations else None,
    )
    found: JSON = orjson.loads(msgspec.json.encode(msgspec.structs.replace(pod, metadata=read)))
    found["metadata"].setdefault("name", "")
    return found


class BoundPod(Struct, frozen=True):
    """A pod on a node; `uuids` are those of the cards of NVIDIA that it has."""

    namespace: str
    name: str
    node: str
    uuids: tuple[str, ...]


class BoundPods:
    """The bound pods, from an informer. Monitors are pods of the namespace `trusted` with our DaemonSet's label."""

    def __init__(self, trusted: str) -> None:
        self._trusted = trusted
        self._by_namespace: dict[str, dict[str, BoundPod]] = defaultdict(dict)
        self._by_node: dict[str, dict[tuple[str, str], BoundPod]] = defaultdict(dict)
        self._monitors: dict[tuple[str, str], tuple[str, str]] = {}

    def handle(self, change: Change) -> None:
        """Follow a change."""
        if isinstance(change, Replaced):
            for known in (self._by_namespace, self._by_node, self._monitors):
                known.clear()
            for obj in change.items:
                self._put(obj)
        else:
            self._put(change.object, gone=change.type is WatchType.DELETED)

    def with_cards(self, namespace: str = "") -> list[BoundPod]:
        """The pods of a namespace, or of all, that have cards, by name."""
        spaces = [namespace] if namespace else list(self._by_namespace)
        pods = (pod for space in spaces for pod in self._by_namespace.get(space, {}).values() if pod.uuids)
        return sorted(pods, key=lambda pod: (pod.namespace, pod.name))

    def on(self, node: str) -> Mapping[tuple[str, str], BoundPod]:
        """The pods that are bound to a node, by namespace and name."""
        return self._by_node.get(node, {})

    def monitors(self, nodes: Collection[str] | None = None) -> dict[str, str]:
        """Where the metrics of nodes are served, by node; of all nodes if none are named."""
        found = sorted(self._monitors.items())
        return {node: address for _, (node, address) in found if nodes is None or node in nodes}

    def _put(self, obj: JSON, *, gone: bool = False) -> None:
        pod = msgspec.convert(obj, _Pod)
        meta, node = pod.metadata, pod.spec.node_name
        key = meta.namespace, meta.name
        before = self._by_namespace.get(meta.namespace, {}).pop(meta.name, None)
        if before is not None:
            del self._by_node[before.node][key]
            if not self._by_namespace[meta.namespace]:
                del self._by_namespace[meta.namespace]
        self._monitors.pop(key, None)
        if gone or not node or pod.status.phase in ("Succeeded", "Failed"):
            return
        text = (meta.annotations or {}).get(DEVICES, "")
        found = BoundPod(meta.namespace, meta.name, node, tuple(dict.fromkeys(_UUID.findall(text))))
        self._by_namespace[meta.namespace][meta.name] = found
        self._by_node[node][key] = found
        port = next(
            (
                port.container_port
                for each in pod.spec.containers or ()
                for port in each.ports or ()
                if port.name == _PORT
            ),
            0,
        )
        is_monitor = meta.namespace == self._trusted and (meta.labels or {}).get(COMPONENT) == _MONITOR
        if is_monitor and port and pod.status.pod_ip:
            host = f"[{pod.status.pod_ip}]" if ":" in pod.status.pod_ip else pod.status.pod_ip
            self._monitors[key] = node, f"http://{host}:{port}/metrics"
