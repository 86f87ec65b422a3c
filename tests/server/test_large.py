"""What a review of ten thousand containers does to the reviews of others, over real HTTPS."""

from __future__ import annotations

import asyncio
import time

from admission.reviews import GPU, MEM, body, gpu, pod, review
from admission.scene import town

from .serving import AS_JSON, scenario, served


@scenario
async def test_reviews_of_ten_thousand_containers_hold_up_others_no_longer_than_one_of_them_takes(tmp_path):
    large = body(review(pod(*(gpu(f"c{number}") for number in range(10_000)), uid="large")))
    small = body(review(pod(gpu(), uid="small")))
    async with served(tmp_path, await town({GPU: 10**9, MEM: 10**9})) as front:

        async def answered(content):
            began = time.monotonic()
            answer = await front.client.post("/mutate", content=content, headers=AS_JSON)
            assert answer.json()["response"]["allowed"]
            return time.monotonic() - began

        alone = await answered(large)
        crowd = [asyncio.create_task(answered(large)) for _ in range(5)]
        small_ones = []
        while not all(task.done() for task in crowd):
            small_ones.append(await answered(small))
            await asyncio.sleep(0)
        await asyncio.gather(*crowd)
        assert len(small_ones) > 10
        assert sorted(small_ones)[-3] < 2 * alone + 0.1
