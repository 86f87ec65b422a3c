"""What a review of thousands of containers does to the reviews of others, over real HTTPS."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from admission.clusters import quota_cluster
from admission.reviews import body, pod, review
from builders import GPU, MEM, container

from .serving import AS_JSON, served


async def test_between_two_large_reviews_others_are_answered(tmp_path: Path) -> None:
    large = body(review(pod("p", *(container(f"c{number}", gpu=1, mem=3000) for number in range(3_000)), uid="large")))
    small = body(review(pod(gpu=1, mem=3000, uid="small")))
    async with served(tmp_path, await quota_cluster({GPU: 10**9, MEM: 10**9})) as webhook:
        answers = []

        async def send(name: str, content: bytes) -> None:
            answer = await webhook.client.post("/mutate", content=content, headers=AS_JSON)
            assert answer.json()["response"]["allowed"]
            answers.append(name)

        crowd = [asyncio.create_task(send("large", large)) for _ in range(4)]
        while not all(task.done() for task in crowd):
            await send("small", small)
        await asyncio.gather(*crowd)
    assert answers.count("large") == 4
    assert ("large", "large") not in itertools.pairwise(answers)
