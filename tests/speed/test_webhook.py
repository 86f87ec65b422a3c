"""What a review costs in calls of our own functions, beside what the shared stack does for any request."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from admission.reviews import JSON, PERCENT, body, container, cpu, gpu, pod, review
from admission.scene import Recorder, core_on, town

from hami_webhook.admission.review import allowed, parse_review
from hami_webhook.cluster.api import Kind
from hami_webhook.config import builtin_device_config
from hami_webhook.devices.registry import Vendors

from .counting import counted_calls

ALL = Vendors.from_config(builtin_device_config().config)
KINDS: dict[str, tuple[JSON, int]] = {
    "nothing managed": (cpu(), 40),
    "plain GPU": (gpu(), 230),
    "percentage": (container(limits={"nvidia.com/gpu": 1, PERCENT: 50}), 230),
}
"""Reviews, and how many calls they may take."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_review_takes_few_calls_and_asks_the_cluster_nothing(kind: str) -> None:
    asking, most = KINDS[kind]

    async def story() -> int:
        cluster = Recorder(await town())
        core = core_on(cluster, vendors=ALL)
        core.caches.put(Kind.NAMESPACES, {"metadata": {"name": "team-a"}})
        written = body(review(pod(asking)))

        async def answered() -> JSON:
            asked = parse_review(written, "application/json")
            answer: JSON = orjson.loads(allowed(asked.api_version, asked.uid, await core.gate.mutate(asked)))
            return answer["response"]

        response = await answered()
        assert response["allowed"]
        assert ("patch" in response) is (kind != "nothing managed")
        with counted_calls() as counts:
            await answered()
        assert cluster.calls == []
        return sum(counts.values())

    assert asyncio.run(story()) <= most
