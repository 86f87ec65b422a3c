"""Pods that other schedulers place, through the whole gate: what is in order stays, and none becomes ours
(docs/spec/volcano.md#5, docs/spec/koordinator.md#5, #14).
"""

from __future__ import annotations

from typing import Any

import pytest
from builders import MEM, container
from tables import in_one_test

from hami_webhook.device_config import builtin_device_config, enabled_vendors

from .reviews import JSON, SCHEDULER, FakeServices, cpu, mutate, patched, pod, validate

KNOWN = enabled_vendors(builtin_device_config().config)
ISOLATED = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}


def vgpu(number: int = 1, memory: int = 3000, **more: Any) -> JSON:
    return container(limits={"volcano.sh/vgpu-number": str(number), "volcano.sh/vgpu-memory": str(memory)}, **more)


def shared(**amounts: str) -> JSON:
    written = {f"koordinator.sh/{name.replace('_', '-')}": amount for name, amount in amounts.items()}
    return container(
        limits={**written, "koordinator.sh/gpu.shared": "1"}, requests={**written, "koordinator.sh/gpu.shared": "1"}
    )


RATIO = shared(gpu_core="50", gpu_memory_ratio="50")
IN_ORDER = {
    "volcano": pod("p", vgpu(), schedulerName="volcano"),
    "volcano, two containers": pod("p", vgpu(2), cpu("side"), schedulerName="volcano"),
    "volcano, its keys": pod("p", vgpu(), schedulerName="volcano",
                             annotations={"volcano.sh/vgpu-mode": "mig", "volcano.sh/vgpu-use-gpuuuid": "a,b"}),
    "volcano, HAMi's keys": pod("p", vgpu(), schedulerName="volcano",
                                annotations={"hami.io/gpu-scheduler-policy": "binpack"}),
    "volcano, privileged": pod("p", vgpu(securityContext={"privileged": True}), schedulerName="volcano"),
    "volcano, a scheduler of one's own": pod("p", vgpu(), schedulerName="mine"),
    "koordinator's seed": pod("p", RATIO, schedulerName="koord-scheduler", labels=ISOLATED),
    "koordinator, memory": pod("p", shared(gpu_memory="8Gi"), schedulerName="koord-scheduler", labels=ISOLATED),
    "koordinator, two containers": pod("p", RATIO, cpu("side"), schedulerName="koord-scheduler", labels=ISOLATED),
    "koordinator, a scheduler of one's own": pod("p", RATIO, schedulerName="mine", labels=ISOLATED),
}  # fmt: skip


@in_one_test("name", IN_ORDER)
def test_a_pod_in_order_goes_through_as_it_is_and_is_charged(name: str) -> None:
    around = FakeServices()
    written = IN_ORDER[name]
    assert list(mutate(written, known=KNOWN, services=around).patch) == []
    assert around.charged == []
    stored = {**written, "metadata": {**written["metadata"], "uid": "u1"}}
    assert list(validate(stored, known=KNOWN, services=around).patch) == []
    assert around.charged == [("p", "u1")]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (pod("p", vgpu()), "volcano"),
        (pod("p", vgpu(), schedulerName="default-scheduler"), "volcano"),
        (pod("p", RATIO), "koord-scheduler"),
        (pod("p", RATIO, schedulerName="default-scheduler"), "koord-scheduler"),
    ],
)
def test_only_the_schedulers_name_is_put_in(written: JSON, name: str) -> None:
    after = patched(written, mutate(written, known=KNOWN))
    assert after == {**written, "spec": {**written["spec"], "schedulerName": name}}
    assert list(mutate(after, known=KNOWN).patch) == []


@pytest.mark.parametrize("ours", [{}, {"nvidia.com/gpu": "0"}])
def test_a_pod_goes_to_us_only_for_something_of_ours(ours: JSON) -> None:
    after = patched(pod("p", vgpu(), container("b", ours)), mutate(pod("p", vgpu(), container("b", ours)), known=KNOWN))
    assert after["spec"].get("schedulerName") != SCHEDULER
    both = pod("p", vgpu(), container("b", {"nvidia.com/gpu": "1", MEM: "500"}))
    assert patched(both, mutate(both, known=KNOWN))["spec"]["schedulerName"] == SCHEDULER
