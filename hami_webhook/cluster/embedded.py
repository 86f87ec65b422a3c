"""An embedded cluster with the objects of files in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hami_webhook.cluster.api import ClusterError, Kind
from hami_webhook.cluster.loading import GROUPS, Bundle, LoadedObject, LoadError
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.kube import wire
from hami_webhook.kube.objects import MalformedObject, ResourceQuota


async def fill(cluster: MemoryCluster, bundle: Bundle, *, stored: bool = False) -> list[tuple[Kind, dict[str, Any]]]:
    """Create the bundle's objects, namespaces that files take for granted included; the objects as they are there.

    `stored`: they were read from an API server, so those with a version are neither checked nor completed again, which
    takes a twentieth of an explanation on 1,000 nodes.

    Raises `LoadError` for an object the API would refuse, and for a quota that can't be read: nothing could be charged
    in its namespace. Other objects that can't be read are left to the caches, which note them.
    """
    filled = []
    for kind, group in GROUPS.items():
        loaded: Iterable[LoadedObject] = getattr(bundle, group) if kind is not Kind.PRIORITY_CLASSES else ()
        for item in loaded:
            meta = item.object.get("metadata") or {}
            if kind.namespaced:
                namespace = meta.get("namespace") or "default"
                if cluster.peek(Kind.NAMESPACES, namespace) is None:
                    filled.append((Kind.NAMESPACES, await cluster.ensure_namespace(namespace)))
            try:
                if stored and meta.get("resourceVersion"):
                    cluster.put(kind, obj := item.object)
                else:
                    obj = await cluster.adopt(kind, item.object)
                filled.append((kind, obj))
                if kind is Kind.RESOURCE_QUOTAS:
                    ResourceQuota.from_object(item.object)
                elif kind is Kind.ACCELERATOR_QUOTAS:
                    wire.convert(item.object, wire.AcceleratorQuotaObject, "acceleratorquota")
            except ClusterError as error:
                raise LoadError(f"{item.where}: {error}") from error
            except MalformedObject as error:
                raise LoadError(f"{item.where}: {item.kind} {item.name!r}: {error}") from error
    return filled
