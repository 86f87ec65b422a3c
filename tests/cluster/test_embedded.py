"""A cluster filled with objects that were read."""

from __future__ import annotations

import pytest

from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.cluster.embedded import fill
from hami_webhook.cluster.loading import Bundle, LoadedObject, LoadError
from hami_webhook.cluster.memory import MemoryCluster

INVALID = {"a": 1}
"""Annotations that an API server stores for nobody."""


def node(**meta: object) -> JSON:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1", "annotations": INVALID, **meta}}


async def filled(obj: JSON, *, stored: bool) -> JSON | None:
    cluster = MemoryCluster(lambda: 0.0)
    await fill(cluster, Bundle(nodes=[LoadedObject(obj, "file", 0)]), stored=stored)
    return cluster.peek(Kind.NODES, "node-1")


async def test_what_an_api_server_has_stored_is_taken_as_it_is() -> None:
    obj = node(resourceVersion="7")
    assert await filled(obj, stored=True) == obj


@pytest.mark.parametrize(("obj", "stored"), [(node(resourceVersion="7"), False), (node(), True)])
async def test_all_else_is_checked(obj: JSON, stored: bool) -> None:
    with pytest.raises(LoadError, match=r"metadata\.annotations"):
        await filled(obj, stored=stored)
