"""What a review costs in calls of our own functions, beside what the shared stack does for any request."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from admission.clusters import Recorder, core_on, quota_cluster
from admission.reviews import JSON, body, cpu, pod, review
from builders import PERCENT, container

from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.watches import NoWatches
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.server.app import application, review_routes
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.request_metrics import new_registry

from .counting import counted_calls

ALL = enabled_vendors(builtin_device_config().config)
KINDS: dict[str, tuple[str, JSON, int]] = {
    "nothing managed": ("/mutate", cpu(), 24),
    "plain GPU": ("/mutate", container(gpu=1, mem=3000), 105),
    "percentage": ("/mutate", container(limits={"nvidia.com/gpu": 1, PERCENT: 50}), 130),
    "plain GPU, all at once": ("/webhook", container(gpu=1, mem=3000), 120),
}
"""Paths with reviews, and how many calls they may take."""

OF_THE_FIRST = 40
"""More calls for the first pod of a workload: what its amounts mean is worked out once."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_review_takes_few_calls_and_asks_the_cluster_nothing(kind: str) -> None:
    path, incoming, most = KINDS[kind]

    async def story() -> tuple[int, int]:
        cluster = Recorder(await quota_cluster())
        core = core_on(cluster, vendors=ALL, watches=NoWatches(tuple(Kind)))
        core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "team-a"}})
        doors = application(review_routes(core.admission, ListenerLimits(), registry=new_registry()))
        scope: dict[str, Any] = {
            "type": "http",
            "client": ("127.0.0.1", 1),
            "method": "POST",
            "path": path,
            "query_string": b"timeout=10s",
        }
        scope["headers"] = [(b"content-type", b"application/json")]

        async def answered(name: str) -> tuple[JSON, int]:
            sent: list[Any] = []
            message = {"type": "http.request", "body": body(review(pod(name, incoming)))}

            async def receive() -> Any:
                return message

            async def send(part: Any) -> None:
                sent.append(part)

            with counted_calls() as counts:
                await doors(dict(scope), receive, send)
            answer: JSON = orjson.loads(sent[-1]["body"])
            return answer["response"], sum(counts.values())

        response, costs = await answered("a")
        assert response["allowed"]
        assert ("patch" in response) is (kind != "nothing managed")
        again, less = await answered("b")
        assert again == response
        assert cluster.calls == []
        return costs, less

    asyncio.run(story())  # for what is worked out once in a process
    costs, again = asyncio.run(story())
    assert again <= most
    assert costs <= most + OF_THE_FIRST
