"""Names that are nearly right, and those of others in the same domains (docs/spec/core.md#5)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import pytest

from hami_webhook.admission.misspelt import MOST, NameSuggester
from hami_webhook.device_config import builtin_device_config, enabled_vendors, load_device_config
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.reserved_annotations import is_scheduler_owned

from .reviews import VENDORS

RENAMED = enabled_vendors(load_device_config("nvidia: {resourceCountName: acme.com/card}", "renamed").config)


def misspelt(named: Iterable[str], annotations: Mapping[str, str], vendors: Vendors) -> list[str]:
    return NameSuggester(vendors).misspelt(frozenset(named), annotations)


def meant(text: str) -> str:
    return text.partition("did you mean ")[2].removesuffix("?")


@pytest.mark.parametrize(
    ("written", "right"),
    [
        ("nvidia.com/gpumemory", "nvidia.com/gpumem"),
        ("nvidia.com/gpu-mem", "nvidia.com/gpumem"),
        ("nvidia.com/gpucore", "nvidia.com/gpucores"),
        ("nvidia.com/gpus", "nvidia.com/gpu"),
        ("nvidia.com/GPU", "nvidia.com/gpu"),
        ("nvidia.com/gpumem-percent", "nvidia.com/gpumem-percentage"),
        ("hami.io/gpu", "nvidia.com/gpu"),
        ("hami.io/gpumem", "nvidia.com/gpumem"),
    ],
)
def test_a_resource_that_is_nearly_right_is_told_of(written: str, right: str) -> None:
    assert [meant(text) for text in misspelt([written, "cpu"], {}, VENDORS)] == [right]


def test_in_our_own_domain_all_that_are_as_near_are_told() -> None:
    (text,) = misspelt(["hami.io/gpu"], {}, enabled_vendors(builtin_device_config().config))
    assert meant(text) == "amd.com/gpu or birentech.com/gpu or metax-tech.com/gpu or nvidia.com/gpu"


def test_a_name_is_right_by_the_device_configuration() -> None:
    assert [meant(text) for text in misspelt(["acme.com/cards"], {}, RENAMED)] == ["acme.com/card"]
    assert misspelt(["acme.com/card", "nvidia.com/gpu"], {}, RENAMED) == []


@pytest.mark.parametrize(
    ("written", "right"),
    [
        ("nvidia.com/use-gpu-uuid", "nvidia.com/use-gpuuuid"),
        ("nvidia.com/use-gputypes", "nvidia.com/use-gputype"),
        ("nvidia.com/no-use-gpuuuid", "nvidia.com/nouse-gpuuuid"),
        ("hami.io/gpu-schedule-policy", "hami.io/gpu-scheduler-policy"),
        ("hami.io/node-scheduling-policy", "hami.io/node-scheduler-policy"),
        ("hami.io/device-scoring-weight", "hami.io/device-scoring-weights"),
    ],
)
def test_an_annotation_that_is_nearly_right_is_told_of(written: str, right: str) -> None:
    assert [meant(text) for text in misspelt([], {written: "x"}, VENDORS)] == [right]


@pytest.mark.parametrize("vendors", [VENDORS, enabled_vendors(builtin_device_config().config)])
def test_right_names_and_those_of_others_are_no_matter(vendors: Vendors) -> None:
    named = {
        *("cpu", "memory", "example.com/gpu", "rdma/hca", "intel.com/gpu"),
        *("nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb", "nvidia.com/gpu.shared", "nvidia.com/GA102GL_A10"),
        *("huawei.com/Ascend910", "huawei.com/Ascend310P", "huawei.com/Ascend910-16c", "huawei.com/Ascend310P-4c.3cpu"),
        *("huawei.com/npu-core", "koordinator.sh/rdma", "koordinator.sh/gpu-core", "volcano.sh/vgpu-number"),
        *vendors.resource_names,
    }
    annotations = {
        *("nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.product", "nvidia.com/mig.config"),
        *("hami.io/vgpu-node", "hami.io/vgpu-devices-allocated", "hami.io/nominated-node", "hami.io/quota-reservation"),
        *("hami.io/report-review-source", "volcano.sh/queue-name", "scheduling.koordinator.sh/gpu-partition-spec"),
        *(key for vendor in vendors.values() for key in (*vendor.keys.lists, *vendor.keys.choices, *vendor.keys.owned)),
    }
    assert misspelt(named, dict.fromkeys(annotations, ""), vendors) == []


def test_what_is_told_and_what_it_costs_is_bounded() -> None:
    names = [f"nvidia.com/gpumem{'x' * (number % 3)}{number}" for number in range(10_000)]
    annotations = dict.fromkeys((f"nvidia.com/use-gpuuui{number}" for number in range(10_000)), "")
    long = {f"hami.io/{'gpu-scheduler-policy' * 12}": ""}
    began = time.process_time()
    told = misspelt(names, annotations | long, VENDORS)
    assert time.process_time() - began < 0.5
    assert len(told) == MOST
    assert max(map(len, told)) <= 256


# Names in the wrong place


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpumem", "nvidia.com/gpu", "nvidia.com/gpucores", "nvidia.com/gpumem-percentage"]
)
def test_a_resource_as_an_annotation_is_told_where_it_belongs(name: str) -> None:
    assert misspelt([], {name: "3000"}, VENDORS) == [
        f"annotation {name} means nothing: it's a resource, and belongs into resources.limits of a container"
    ]


@pytest.mark.parametrize(
    "name",
    ["nvidia.com/use-gputype", "nvidia.com/nouse-gpuuuid", "hami.io/gpu-scheduler-policy", "nvidia.com/vgpu-mode"],
)
def test_an_annotation_as_a_resource_is_told_where_it_belongs(name: str) -> None:
    assert misspelt([name], {}, VENDORS) == [
        f"{name} is an annotation, and no resource: it belongs into metadata.annotations of the pod"
    ]


def test_a_chips_memory_is_no_annotation_of_the_scheduler() -> None:
    """Its plugin reads an annotation that is called as the chip's count: that stays the scheduler's."""
    vendors = enabled_vendors(builtin_device_config().config)
    for name in ("huawei.com/Ascend910B3-memory", "huawei.com/Ascend910B4-1-memory", "huawei.com/Ascend910B3-core"):
        assert not is_scheduler_owned(name)
    for name in ("huawei.com/Ascend910B3", "huawei.com/Ascend910B4-1", "huawei.com/Ascend910-memory-bank"):
        assert is_scheduler_owned(name)
    (text,) = misspelt([], {"huawei.com/Ascend910B3-memory": "1", "huawei.com/Ascend910B3": "1"}, vendors)
    assert text.startswith("annotation huawei.com/Ascend910B3-memory means nothing")


def test_every_enabled_resource_as_an_annotation_costs_five_sentences() -> None:
    vendors = enabled_vendors(builtin_device_config().config)
    assert len(misspelt([], dict.fromkeys(vendors.resource_names, "1"), vendors)) == MOST
