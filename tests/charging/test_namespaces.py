"""Namespaces as reviews and charges see them: when one is read again, and what is said of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from hami_webhook.charging.namespaces import LiveNamespaces
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.kube.objects import Namespace


@dataclass
class Cache:
    namespaces: dict[str, Namespace] = field(default_factory=dict)
    namespaces_silence: float = 60.0

    def set_namespace(self, namespace: Namespace) -> None:
        self.namespaces[namespace.name] = namespace


class Counting(MemoryCluster):
    reads = 0

    async def get(self, kind: Kind, name: str, namespace: str = "") -> dict[str, object]:
        self.reads += 1
        return await super().get(kind, name, namespace)


@pytest.mark.parametrize(
    ("silence", "since", "reads"), [(60, 1.99, 0), (60, 2, 1), (2, 60, 0), (2.01, 60, 1), (0, 0, 0)]
)
async def test_labels_are_read_again_two_seconds_after_they_were_read_or_shown(
    silence: float, since: float, reads: int
) -> None:
    cluster, cache, now = Counting(clock=lambda: 0.0), Cache(), 100.0
    await cluster.ensure_namespace("team")
    live = LiveNamespaces(cluster, cache, clock=lambda: now)
    assert await live.refresh("team")
    cluster.reads, cache.namespaces_silence = 0, silence
    now += since
    assert not await live.refresh("team")
    assert cluster.reads == reads


async def test_annotations_that_mean_nothing_on_a_namespace_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    live = LiveNamespaces(MemoryCluster(clock=lambda: 0.0), Cache(), clock=lambda: 0.0)
    for namespace, keys in (("a", ("x", "y")), ("a", ("x", "y")), ("b", ("x",)), ("a", ("x", "y"))):
        await live.report_ignored(namespace, keys)
    assert [(vars(record)["namespace"], vars(record)["reason"]) for record in caplog.records] == [
        ("a", "scheduler-owned annotations mean nothing on a Namespace: x, y"),
        ("b", "scheduler-owned annotations mean nothing on a Namespace: x"),
    ]
