"""Templates of new pods that no watch has shown yet are read, and a flood of them holds no other namespace up."""

from __future__ import annotations

import asyncio
from collections import Counter

from hami_webhook.cluster.api import JSON, Kind, NotFound
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.kube.objects import Pod, PodResourceClaim
from hami_webhook.quota.claims import TemplateReader


class SlowCluster(MemoryCluster):
    """One that answers when it is `open`, and has no templates."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.open = asyncio.Event()
        self.asked = Counter[str]()

    async def get(self, kind: Kind, name: str, namespace: str = "") -> JSON:
        self.asked[namespace] += 1
        await self.open.wait()
        raise NotFound(name)


def naming(namespace: str, templates: int) -> Pod:
    claims = tuple(PodResourceClaim(f"c{number}", template=f"t{number}") for number in range(templates))
    return Pod(namespace, "p", "", {}, {}, (), resource_claims=claims)


async def test_a_flood_of_pods_that_name_very_many_templates_has_one_read_at_a_time() -> None:
    cluster = SlowCluster()
    reader = TemplateReader(cluster, ClaimCache((), frozenset()), seconds=60)
    pods = [*(naming("flood", 1000) for _ in range(50)), naming("ordinary", 1)]
    reading = [asyncio.create_task(reader.of(pod)) for pod in pods]
    await asyncio.sleep(0)
    assert cluster.asked == {"flood": 1, "ordinary": 1}
    cluster.open.set()
    assert await asyncio.gather(*reading) == [{}] * len(pods)
    assert cluster.asked == {"flood": 50 * 8, "ordinary": 1}


async def test_a_review_does_not_wait_for_templates_that_are_slow_to_come() -> None:
    reader = TemplateReader(SlowCluster(), ClaimCache((), frozenset()), seconds=0)
    assert await asyncio.gather(*(reader.of(naming("flood", 1)) for _ in range(3))) == [{}] * 3
