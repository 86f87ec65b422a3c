"""What is kept of an API object: the few fields that the program reads (`kube/objects.py`), so that memory stays small.

A pod of 10 KB shrinks to less than 1 KB; environment values and images, which may be secrets, aren't kept at all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from hami_webhook.cluster.api import JSON, Kind

_META = (
    *("name", "namespace", "uid", "resourceVersion", "generateName", "labels", "annotations", "creationTimestamp"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)
_POD_SPEC = (
    *("nodeName", "schedulerName", "nodeSelector", "priorityClassName", "activeDeadlineSeconds", "affinity"),
    "schedulingGates",
)
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_CARD = ("type", "id", "minor", "health", "labels", "resources", "topology")
_CONTAINERS = ("initContainers", "containers")
_STATUSES = ("initContainerStatuses", "containerStatuses")


def trim(kind: Kind, obj: JSON) -> JSON:
    """The object with what is read of it; an object that isn't as the API makes it is left as it is."""
    keep = _KEEPERS.get(kind)
    try:
        return obj if keep is None else keep(obj)
    except (AttributeError, TypeError, KeyError):
        return obj


def _meta(obj: JSON) -> JSON:
    meta = _only(obj["metadata"], _META)
    notes = meta.get("annotations")
    if notes and _APPLIED in notes:
        meta["annotations"] = {key: value for key, value in notes.items() if key != _APPLIED}
    if "namespace" in meta:
        meta["namespace"] = sys.intern(meta["namespace"])
    if "labels" in meta:
        meta["labels"] = _shared(meta["labels"])
    return meta


def _pod(obj: JSON) -> JSON:
    spec = obj["spec"]
    kept: JSON = _only(spec, _POD_SPEC)
    if isinstance(kept.get("nodeName"), str):
        kept["nodeName"] = sys.intern(kept["nodeName"])
    for group in _CONTAINERS:
        if spec.get(group):
            kept[group] = [_container(container) for container in spec[group]]
    status = obj.get("status") or {}
    told: JSON = _only(status, ("phase",))
    for group in _STATUSES:
        if status.get(group):
            told[group] = [_container_status(item) for item in status[group]]
    return {"metadata": _meta(obj), "spec": kept, "status": told}


def _container(container: JSON) -> JSON:
    kept = _only(container, ("name", "restartPolicy"))
    resources = container.get("resources")
    if resources:
        kept["resources"] = {part: _shared(resources[part]) for part in ("limits", "requests") if part in resources}
    if (container.get("securityContext") or {}).get("privileged"):
        kept["securityContext"] = {"privileged": True}
    return kept


def _container_status(item: JSON) -> JSON:
    kept = _only(item, ("name", "restartCount"))
    for field in ("state", "lastState"):
        state = item.get(field)
        if state:
            kept[field] = {phase: _only(facts or {}, ("exitCode",)) for phase, facts in state.items()}
    return kept


def _node(obj: JSON) -> JSON:
    return {"metadata": _meta(obj), "status": _only(obj.get("status") or {}, ("capacity", "allocatable"))}


def _namespace(obj: JSON) -> JSON:
    return {"metadata": _meta(obj)}


def _device(obj: JSON) -> JSON:
    """Koordinator's Device: its GPUs, without what koordlet tells of their state."""
    cards = [_only(card, _CARD) for card in obj["spec"].get("devices") or () if card.get("type") == "gpu"]
    return {"metadata": _meta(obj), "spec": {"devices": cards}}


_known: dict[tuple[tuple[str, Any], ...], JSON] = {}
_MOST_KNOWN = 10_000


def _shared(texts: Any) -> Any:
    """One map for all equal ones: the pods of a workload ask for the same, and are labelled alike."""
    if not isinstance(texts, dict):
        return texts
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    return _known.setdefault(tuple(texts.items()), texts)


def _only(obj: Mapping[str, Any], fields: tuple[str, ...]) -> JSON:
    return {field: obj[field] for field in fields if field in obj}


_KEEPERS: Mapping[Kind, Callable[[JSON], JSON]] = {
    Kind.PODS: _pod,
    Kind.NODES: _node,
    Kind.NAMESPACES: _namespace,
    Kind.DEVICES: _device,
}
