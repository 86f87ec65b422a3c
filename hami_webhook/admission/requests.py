"""What pods request of our vendors, checked; kept for the pods of a workload, which request the same."""

from __future__ import annotations

from collections.abc import Mapping

from hami_webhook.admission.denial import bad_request
from hami_webhook.devices.device_lister import NO_DEVICES, DeviceLister
from hami_webhook.devices.model import BadRequest, Requests
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Pod

_MOST_KNOWN, _LONGEST_KNOWN = 1000, 4096
"""Pods whose requests are kept, and the characters of containers and annotations that one of them may have."""
_MOST_ANNOTATIONS = _LONGEST_KNOWN // 10
"""More annotations than these always have more characters."""


def checked_requests(pod: Pod, vendors: Vendors, device_lister: DeviceLister = NO_DEVICES) -> dict[str, Requests]:
    """What a pod as it stands requests, by the keys of the vendors of which a container requests anything, sorted.

    Raises `Denied` for an amount that can't be meant.
    """
    found: dict[str, Requests] = {}
    named = list(map(vendors.named_by, pod.containers))
    try:
        for key in sorted(frozenset[str]().union(*named)):
            vendor = vendors[key]
            for container, keys in zip(pod.containers, named, strict=True):
                if key in keys:
                    vendor.check_amounts(container)
                    vendor.check_servable(container, device_lister)
            requests = vendor.requests_of(pod)
            if any(requests):
                vendor.check_pod(pod)
                found[key] = requests
    except BadRequest as error:
        raise bad_request(error) from error
    return found


class RequestCache:
    """What `checked_requests` gives for pods with the same containers and annotations, as those of a workload have.

    Refusals aren't kept, nor what depends on the nodes, nor pods with long annotations, which tenants could fill the
    memory with.
    """

    def __init__(self, vendors: Vendors) -> None:
        self._vendors = vendors
        self._known: dict[object, Mapping[str, Requests]] = {}
        self._by_nodes = frozenset(
            key for key, vendor in vendors.items() if type(vendor).check_servable is not Vendor.check_servable
        )
        """The keys of the vendors that refuse requests by the nodes there are."""

    def checked_requests(self, pod: Pod, device_lister: DeviceLister) -> Mapping[str, Requests]:
        """As the function of this name. Raises `Denied`."""
        if len(pod.annotations) > _MOST_ANNOTATIONS:
            return checked_requests(pod, self._vendors, device_lister)
        key = (*pod.annotations.items(), *[container.content for container in pod.containers])
        try:
            found = self._known.get(key)
        except TypeError:  # an amount that is no text or number
            return checked_requests(pod, self._vendors, device_lister)
        if found is None:
            found = checked_requests(pod, self._vendors, device_lister)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            if self._by_nodes.isdisjoint(found) and len(repr(key)) <= _LONGEST_KNOWN:
                self._known[key] = found
        return found
