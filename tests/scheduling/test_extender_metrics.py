"""What the extender counts of what it answered (docs/metrics.md)."""

from __future__ import annotations

import pytest
from builders import card, node, pod

from hami_webhook.devices.reasons import Rejection
from hami_webhook.scheduling.extender_metrics import ExtenderMetrics

from .extender_env import MODES, ExtenderEnv

PREFIX = "hami_webhook_"


@pytest.mark.parametrize("mode", MODES)
async def test_a_pod_is_counted_from_filter_to_binding(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(node("n", card("d", 8000)), pod("p", gpu=1, mem=1000))
    await env.filter("p", "n")
    env.now += 7
    assert await env.bind("p", "n") == ""
    value = env.registry.get_sample_value
    assert value(f"{PREFIX}extender_filtered_total") == 1
    assert value(f"{PREFIX}extender_bound_total") == 1
    created = env.read("p").created
    assert created is not None
    assert value(f"{PREFIX}pod_binding_seconds_sum") == env.now - created
    assert value(f"{PREFIX}node_lock_wait_seconds_count") == 1
    env.hear("p")
    assert await env.bind("p", "n") == "", "kube-scheduler asks again"
    assert value(f"{PREFIX}pod_binding_seconds_count") == 1


async def test_a_refused_pod_is_counted_once_for_each_reason() -> None:
    env = ExtenderEnv("cooperative")
    await env.add(node("small", card("a", 8000), card("b", 8000)), node("sick", card("c", 8000, health=False)))
    await env.add(pod("p", gpu=1, mem=99999))
    await env.filter("p", "small", "sick")
    value = env.registry.get_sample_value
    assert value(f"{PREFIX}extender_refused_total") == 1
    assert value(f"{PREFIX}extender_refusals_total", {"reason": "CardInsufficientMemory"}) == 1
    assert value(f"{PREFIX}extender_refusals_total", {"reason": "CardNotHealth"}) == 1


def test_sentences_are_counted_as_one_reason() -> None:
    """They name what a pod wrote: each would be a series of its own."""
    metrics = ExtenderMetrics()
    metrics.refuse([Rejection(bare="no card named x"), Rejection(bare="no card named y")])
    (family,) = metrics.refusals.collect()
    assert {sample.labels["reason"]: sample.value for sample in family.samples if sample.name.endswith("_total")} == {
        "other": 1
    }
