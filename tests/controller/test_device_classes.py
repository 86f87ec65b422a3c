"""Events on DeviceClasses that take a resource which pods ask for by limits (docs/spec/dra.md#10)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from replicas import events_of

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.device_classes import DeviceClassEvents
from hami_webhook.controller.informers import watched_kinds
from hami_webhook.core_options import Options
from hami_webhook.device_config import builtin_device_config, enabled_vendors

JSON = dict[str, Any]
NOW = 1_767_225_600.0
VENDORS = enabled_vendors(builtin_device_config().config)


def device_class(name: str, resource: str | None) -> JSON:
    return {"metadata": {"name": name}, "spec": {"extendedResourceName": resource} if resource else {}}


class ClassesEnv:
    """DeviceClasses and the controller that looks at them; claims aren't charged."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(lambda: NOW)
        self.core = Core(self.cluster, VENDORS, Options(), clock=lambda: NOW)
        self._audit = DeviceClassEvents(self.core.view, events_of(self.core))

    def put(self, name: str, resource: str | None) -> None:
        self.core.caches.put(Kind.DEVICE_CLASSES, device_class(name, resource))

    def new_events(self) -> list[tuple[str, str]]:
        """Object and message of the events of one more look."""
        before = len(self.cluster.events)
        asyncio.run(self._audit.audit())
        return [(f"{each.note.kind} {each.note.name}", each.note.message) for each in self.cluster.events[before:]]


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpumem", "metax-tech.com/sgpu"])
def test_a_class_that_takes_a_managed_resource_is_named_once(resource: str) -> None:
    env = ClassesEnv()
    env.put("gpu.nvidia.com", resource)
    ((about, message),) = env.new_events()
    assert about == "DeviceClass gpu.nvidia.com"
    assert message.startswith(f"takes {resource}, which pods request by limits. ")
    assert env.new_events() == []
    env.put("gpu.nvidia.com", None)
    assert env.new_events() == []


def test_other_classes_are_nobodys_trouble() -> None:
    env = ClassesEnv()
    for name, resource in {
        "gpu.nvidia.com": None,
        "nic.example.com": "example.com/nic",
        "mig": "nvidia.com/mig-1g",
    }.items():
        env.put(name, resource)
    assert env.new_events() == []


def test_classes_are_watched_whether_claims_are_charged_or_not() -> None:
    assert not VENDORS.drivers
    assert Kind.DEVICE_CLASSES in watched_kinds(VENDORS)
    assert Kind.DEVICE_CLASSES not in watched_kinds(VENDORS, charges=False)
