"""Find the DeviceClasses that take managed resources, which then affects pods with limits (docs/spec/dra.md#10).

If a class takes one of a pod's resources, kube-scheduler's plugin DynamicResources requires every extended resource of
the pod in a node's allocatable. No node offers the memory and cores of cards, which the extender alone knows.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from hami_webhook.kube import claims_wire as wire

FILTER = "DynamicResources"
"""The plugin of kube-scheduler whose filter it is."""
CANNOT_FIT = "cannot fit resource"
"""What kube-scheduler says of such a pod."""


def taken_resources(classes: Mapping[str, wire.DeviceClass], managed: Container[str]) -> dict[str, str]:
    """The managed resources that classes take by their `extendedResourceName`, by the class."""
    taken = {name: (each.spec or wire.ClassSpec()).extended_resource_name or "" for name, each in classes.items()}
    return {name: resource for name, resource in taken.items() if resource in managed}
