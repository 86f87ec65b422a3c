"""Events about annotations on Namespaces that mean nothing there."""

from __future__ import annotations

from replicas import events_of

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.namespaces import NamespaceAnnotations
from hami_webhook.core_options import Options
from hami_webhook.device_config import builtin_device_config, enabled_vendors

NOW = 1_767_225_600.0
VENDORS = enabled_vendors(builtin_device_config().config)


async def test_scheduler_owned_annotations_are_one_event_until_they_change() -> None:
    cluster = MemoryCluster(lambda: NOW)
    core = Core(cluster, VENDORS, Options(), clock=lambda: NOW)
    checks = NamespaceAnnotations(core.view, events_of(core))

    async def messages() -> list[tuple[str, str, int]]:
        await checks.audit()
        return [(event.note.name, event.note.message, event.count) for event in cluster.events]

    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "fine", "annotations": {"team": "a"}}})
    assert await messages() == []
    owned = {"hami.io/vgpu-node": "x", "hami.io/bind-phase": "y", "team": "a"}
    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "team-a", "annotations": owned}})
    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "team-b", "annotations": {"predicate-time": "1"}}})
    text = "scheduler-owned annotations mean nothing on a Namespace: "
    expected = [
        ("team-a", text + "hami.io/bind-phase, hami.io/vgpu-node", 1),
        ("team-b", text + "predicate-time", 1),
    ]
    assert await messages() == expected
    assert await messages() == expected
    assert {(event.note.kind, event.note.type, event.note.reason) for event in cluster.events} == {
        ("Namespace", "Warning", "PolicyIgnored")
    }
    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "team-b"}})
    assert await messages() == expected
    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "team-b", "annotations": {"predicate-time": "1"}}})
    assert await messages() == [expected[0], (*expected[1][:2], 2)]
    assert core.problems == {"PolicyIgnored": 3}
