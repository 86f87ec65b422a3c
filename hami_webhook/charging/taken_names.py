"""The API server's own refusal of an object whose name another one has."""

from __future__ import annotations

from hami_webhook.cluster.api import Cluster, ClusterError, Kind
from hami_webhook.quota.refusals import Refusal


async def refuse_taken_name(cluster: Cluster, kind: Kind, namespace: str, name: str, uid: str) -> Refusal | None:
    """Read the object of this name live, and refuse in the API server's words if it has another UID."""
    try:
        meta = (await cluster.get(kind, name, namespace))["metadata"]
    except ClusterError:  # as a rule it was deleted just now
        return None
    if meta.get("uid") == uid:
        return None
    ending = "object is being deleted: " if meta.get("deletionTimestamp") else ""
    return Refusal(409, f'{ending}{kind.qualified} "{name}" already exists')
