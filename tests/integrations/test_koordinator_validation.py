"""What Koordinator's pods must not ask: the refusals of the koordinator page's section 5.4."""

from __future__ import annotations

import pytest
from builders import container

from hami_webhook.devices.model import BadRequest
from hami_webhook.kube.objects import Pod

from .koords import ALLOCATED, JSON, NPU, a10s, box, configured, pod_with_limits, refused, seed_pod

# Per container

BAD = [
    ({"shared": "1.5", "ratio": 50}, "invalid koordinator.sh/gpu.shared value 1.5 in container main"),
    ({"shared": -1, "ratio": 50}, "invalid koordinator.sh/gpu.shared value -1 in container main"),
    ({"shared": 2147483648, "ratio": 50}, "invalid koordinator.sh/gpu.shared value 2147483648 in container main"),
    ({"core": "x", "ratio": 50}, "invalid koordinator.sh/gpu-core value x in container main"),
    ({"memory": "1500m"}, "invalid koordinator.sh/gpu-memory value 1500m in container main"),
    ({"ratio": "-5"}, "invalid koordinator.sh/gpu-memory-ratio value -5 in container main"),
    ({"shared": 1}, "needs koordinator.sh/gpu-memory or koordinator.sh/gpu-memory-ratio"),
    ({"core": 50}, "needs koordinator.sh/gpu-memory or koordinator.sh/gpu-memory-ratio"),
    ({"memory": "1Gi", "ratio": 10}, "mutually exclusive"),
    ({"shared": 2, "core": 51, "memory": 4}, "koordinator.sh/gpu-core 51 in container main is not a multiple"),
    ({"shared": 2, "ratio": 51}, "koordinator.sh/gpu-memory-ratio 51 in container main is not a multiple"),
    ({"shared": 2, "core": 202, "memory": 4}, "exceeds 100 per GPU"),
    ({"shared": 3, "ratio": 303}, "exceeds 100 per GPU"),
    ({"ratio": 150}, "exceeds 100 per GPU"),
]


@pytest.mark.parametrize(("amounts", "text"), BAD)
def test_5_4_what_a_container_must_not_ask(amounts: JSON, text: str) -> None:
    assert text in refused(pod_with_limits(**amounts))
    side = box("side", memory=1) if "memory" in amounts else box("side", ratio=10)
    assert text in refused(pod_with_limits("p", side, box(**amounts)))


@pytest.mark.parametrize(("amounts", "text"), BAD[:-1])
def test_5_4_holds_for_init_containers_too(amounts: JSON, text: str) -> None:
    init = box("main", **amounts)
    assert text in refused(pod_with_limits("p", box("app", ratio=50), init=[init]))


@pytest.mark.parametrize("amounts", [{"shared": 2147483647, "memory": 2**40}, {"shared": 2, "core": 200, "ratio": 200}])
def test_5_4_the_most_there_may_be(amounts: JSON) -> None:
    assert not a10s().admit(pod_with_limits(**amounts)).message


def test_5_4_a_pod_that_no_mutation_saw_is_checked_as_it_is() -> None:
    """Say, because a label keeps the mutating webhook away."""
    koords = a10s()
    for amounts, text in (({"gpu": 50}, "invalid resource device requests"), ({"core": 50}, "needs koordinator.sh")):
        with pytest.raises(BadRequest, match=text):
            koords.scheduler.check(Pod.from_object(pod_with_limits(**amounts)), koords.state)
    with pytest.raises(BadRequest, match=ALLOCATED):
        koords.scheduler.check(Pod.from_object(seed_pod(notes={ALLOCATED: "{}"})), koords.state)


# The pod as a whole

MIXED = "invalid resource device requests"


@pytest.mark.parametrize(
    ("containers", "init"),
    [
        ([{"shared": 1, "memory": "1Gi"}], []),
        ([{"shared": 1, "core": 5, "memory": "1Gi"}, {"shared": 2, "memory": "1Gi", "core": 10}], []),
        ([{"ratio": 10}, {"ratio": 20}], []),
        ([{"shared": 1, "memory": "8Gi", **NPU}], []),
        ([{"shared": 1, "memory": "8Gi", "huawei.com/npu-dvpp": 100, **NPU}], []),
        ([{"ratio": 100, "huawei.com/npu-core": 100}], []),
        ([{"ratio": 50}], [{"ratio": 50}]),
        ([{}], [{"ratio": 200}]),
        ([{}], [{"core": 50, "memory": 1}]),
    ],
)
def test_5_4_names_that_go_together(containers: list[JSON], init: list[JSON]) -> None:
    made = [box(f"c{index}", **amounts) for index, amounts in enumerate(containers)]
    done = a10s().admit(pod_with_limits("p", *made, init=[box("init", **amounts) for amounts in init]))
    assert not done.message


@pytest.mark.parametrize(
    ("containers", "init", "text"),
    [
        ([{"ratio": 10}, {"memory": 10}], [], "koordinator.sh/gpu-memory, koordinator.sh/gpu-memory-ratio can't"),
        ([{"ratio": 10}], [{"memory": 10}], MIXED),
        ([{"ratio": 10}], [{"gpu": 10}], "koordinator.sh/gpu can't"),
        ([{"ratio": 10, "amd.com/gpu": 1}], [], "amd.com/gpu"),
        ([{"ratio": 10}, {"dcu.com/gpu": 1}], [], "dcu.com/gpu"),
        ([{"ratio": 10}, {"nvidia.com/gpu": 1}], [], "nvidia.com/gpu"),
        ([{"ratio": 10}, {"nvidia.com/mig-1g.5gb": 1}], [], "nvidia.com/mig-1g.5gb"),
        ([{"ratio": 10}, {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1}], [], "nvidia.com/gpu, nvidia.com/gpumem"),
        ([{"shared": 1, "memory": 1, "huawei.com/npu-core": 1}], [], MIXED),
        ([{"shared": 1, "core": 1, "memory": 1, **NPU}], [], MIXED),
        ([{"shared": 2, "memory": 2, **NPU}], [], "at most 1"),
        ([{"shared": 1, "memory": 1, **NPU}, {"shared": 1, "memory": 1, **NPU}], [], "at most 1"),
        ([{"shared": 1, "memory": 1, "huawei.com/npu-dvpp": 101, **NPU}], [], "at most 100"),
        ([{"shared": 1, "core": 30, "ratio": 3}, {"shared": 2, "core": 20, "ratio": 6}], [],
         "koordinator.sh/gpu-core 50 of the whole pod is not a multiple of koordinator.sh/gpu.shared 3"),
        ([{"shared": 1, "core": 60, "ratio": 60}], [{"core": 120, "ratio": 60}], "exceeds 100 per GPU"),
        ([{}], [{"ratio": 150}], "must be at most 100, or a multiple of 100"),
    ],
)  # fmt: skip
def test_5_4_what_the_pod_as_a_whole_must_not_ask(containers: list[JSON], init: list[JSON], text: str) -> None:
    made = [box(f"c{index}", **amounts) for index, amounts in enumerate(containers)]
    found = refused(pod_with_limits("p", *made, init=[box("init", **amounts) for amounts in init]))
    assert found.startswith(MIXED)
    assert text in found


def test_5_4_other_managers_of_nvidia_cards_pass_where_that_is_wanted() -> None:
    koords = a10s(vendors=configured(mixed_name_sets="warn"))
    made = [container("a", **{"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}), box("b", ratio=50)]
    assert not koords.admit(pod_with_limits("p", *made)).message
    assert MIXED in koords.admit(pod_with_limits("p", *made, box("c", memory=1))).message
