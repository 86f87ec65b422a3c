"""An embedded cluster with the objects of files in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hami_webhook.cluster.api import ClusterError, Kind
from hami_webhook.cluster.loading import Bundle, LoadedObject, LoadError
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.kube import wire
from hami_webhook.kube.objects import MalformedObject, ResourceQuota

_GROUPS = (
    (Kind.NAMESPACES, "namespaces"),
    (Kind.NODES, "nodes"),
    (Kind.DEVICES, "devices"),
    (Kind.DEVICE_CLASSES, "device_classes"),
    (Kind.RESOURCE_SLICES, "resource_slices"),
    (Kind.RESOURCE_CLAIM_TEMPLATES, "claim_templates"),
    (Kind.RESOURCE_CLAIMS, "claims"),
    (Kind.RESOURCE_QUOTAS, "quotas"),
    (Kind.ACCELERATOR_QUOTAS, "accelerator_quotas"),
    (Kind.POD_DISRUPTION_BUDGETS, "disruption_budgets"),
    (Kind.PODS, "pods"),
)


async def fill(cluster: MemoryCluster, bundle: Bundle) -> list[tuple[Kind, dict[str, Any]]]:
    """Create the bundle's objects, namespaces that files take for granted included; what was stored.

    Raises `LoadError` for an object the API would refuse, and for a quota that can't be read: nothing could be charged
    in its namespace. Other objects that can't be read are left to the caches, which note them.
    """
    stored = []
    for kind, group in _GROUPS:
        loaded: Iterable[LoadedObject] = getattr(bundle, group)
        for item in loaded:
            meta = item.object.get("metadata") or {}
            if kind.namespaced:
                known = cluster.peek(Kind.NAMESPACES, meta.get("namespace") or "default")
                namespace = await cluster.ensure_namespace(meta.get("namespace") or "default")
                if known is None:
                    stored.append((Kind.NAMESPACES, namespace))
            try:
                stored.append((kind, await cluster.adopt(kind, item.object)))
                if kind is Kind.RESOURCE_QUOTAS:
                    ResourceQuota.from_object(item.object)
                elif kind is Kind.ACCELERATOR_QUOTAS:
                    wire.convert(item.object, wire.AcceleratorQuotaObject, "acceleratorquota")
            except ClusterError as error:
                raise LoadError(f"{item.where}: {error}") from error
            except MalformedObject as error:
                raise LoadError(f"{item.where}: {item.kind} {item.name!r}: {error}") from error
    return stored
