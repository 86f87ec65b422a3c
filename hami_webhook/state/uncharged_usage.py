"""Infer the devices of a pod that the default scheduler or a person bound without our placement."""

from __future__ import annotations

from msgspec.structs import replace

from hami_webhook.devices.debit import Debit, per_vendor
from hami_webhook.devices.model import BadRequest, Inventory, NodeView
from hami_webhook.devices.pod_fit import NodeFit, PodRequest, fit_pod
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.derived import DerivedValues
from hami_webhook.kube.objects import Pod

_held: DerivedValues[Pod, dict[str, tuple[Inventory, Debit | None]]] = DerivedValues()
"""What a pod holds by vendor, with the node's devices that this was worked out with."""


def infer_usage(view: NodeView, vendor: Vendor, pod: Pod, vendors: Vendors) -> Debit | None:
    """Return the usage that Fit adds for the pod's request of one vendor; None if the node couldn't serve it.

    Fit runs on the empty node, because the order of pods is unknown, and a pod's charge must not depend on its
    neighbours. Computed once for a pod and the node's cards.
    """
    inventory = view.inventories.get(vendor.key)
    if inventory is None:
        return None
    held = _held.get(pod) or _held.keep(pod, {})
    known = held.get(vendor.key)
    if known is None or known[0] is not inventory:
        known = held[vendor.key] = (inventory, _fit_on_empty(view, vendor, pod, vendors))
    return known[1]


def _fit_on_empty(view: NodeView, vendor: Vendor, pod: Pod, vendors: Vendors) -> Debit | None:
    try:
        requested = [vendor.request_in_pod(each, pod) if vendor.named_by(each) else None for each in pod.containers]
        terms = vendor.terms(pod, "")
    except (BadRequest, ValueError):
        return None
    pod_request = PodRequest(
        pod, [{vendor.key: request} if request else {} for request in requested], {vendor.key: terms}
    )
    fitted = fit_pod(replace(view, usage={}, closed=frozenset(), unhealthy={}), pod_request, vendors, None)
    if not isinstance(fitted, NodeFit):
        return None
    return per_vendor(fitted.claims(), pod.kinds, init_finished=pod.init_finished).get(vendor.key)
