"""What a placement writes on its pod: annotations and a label (docs/spec/core.md#9.1)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from hami_webhook.devices.model import NodeView
from hami_webhook.devices.placement_annotations import NODE, TIME
from hami_webhook.devices.pod_fit import NodeFit
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.reserved_annotations import is_scheduler_owned, kept_annotations
from hami_webhook.kube.names import is_label_value
from hami_webhook.kube.objects import Pod


def placement_annotations(pod: Pod, fit: NodeFit, view: NodeView, vendors: Vendors, now: float) -> dict[str, str]:
    """The annotations a placement of the pod writes: node, time (Unix seconds) and each vendor's own."""
    written = {NODE: fit.node, TIME: str(int(now))}
    for key, vendor in vendors.items():
        if any(key in row for row in fit.rows):
            written |= vendor.encode(pod, fit.rows, view.node, now)
    return written


def stale_metadata(pod: Pod, node: str, annotations: Mapping[str, str], vendors: Vendors) -> dict[str, dict[str, None]]:
    """What a former placement left on the pod, and one with these annotations doesn't replace, as a merge patch."""
    kept = annotations.keys() | kept_annotations()
    written = vendors.reserved.among(pod.annotations, with_cards=True)
    stale = {key: None for key in pod.annotations if key in written and key not in kept}
    found = {"annotations": stale} if stale else {}
    return found if is_label_value(node) or NODE not in pod.labels else {**found, "labels": {NODE: None}}


def carrying(pod: Pod, annotations: Mapping[str, str]) -> Pod:
    """The pod with this placement in place of any other."""
    others = {key: text for key, text in pod.annotations.items() if not is_scheduler_owned(key)}
    return replace(pod, annotations={**others, **annotations})
