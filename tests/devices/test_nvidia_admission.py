"""NVIDIA's admission steps (docs/spec/nvidia.md#5) and the extraction of requests (section 6), as tables."""

from __future__ import annotations

from typing import Any

import jsonpatch
import pytest
from builders import MEM, PERCENT, PRIORITY
from tables import in_one_test

from hami_webhook.devices.device_lister import NO_DEVICES
from hami_webhook.devices.model import BadRequest, FixedMemory, Request, ShareOfCard
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.quantity import parse_whole

from .cards import JSON, RESOURCES, admitted, container, extracted, nvidia, raw_pod

SHORT = {name: short for short, name in RESOURCES.items()}


def limits_after(section: JSON | None = None, **amounts: Any) -> dict[str, int | None]:
    """The container's limits after admission, under their short names, as integers."""
    result, _ = admitted(raw_pod(container(**amounts)), **(section or {}))
    return {SHORT[name]: parse_whole(value) for name, value in result.containers[0].limits.items()}


def env_after(env: list[JSON] | None = None, section: JSON | None = None, **amounts: Any) -> list[JSON]:
    """The container's env after the patch is applied."""
    raw = raw_pod(container(**amounts) | ({} if env is None else {"env": env}))
    _, draft = admitted(raw, **(section or {}))
    found: list[JSON] = jsonpatch.apply_patch(raw, draft.operations())["spec"]["containers"][0].get("env", [])
    return found


def refusal(section: JSON | None = None, **amounts: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        admitted(raw_pod(container(**amounts)), **(section or {}))
    return str(caught.value)


# steps 1 and 2


@pytest.mark.parametrize(("value", "whole"), [(0, 0), (1, 1), (100, 100), ("50", 50), ("99000m", 99)])
def test_step_1_a_whole_percentage_from_0_to_100_is_accepted(value: object, whole: int) -> None:
    assert limits_after(gpu=1, cores=1, percent=value)["percent"] == whole


def test_step_1_comes_before_step_2() -> None:
    assert refusal(gpu="x", mem="x", percent=101) == (
        f"invalid {PERCENT} value 101 in container main: must be an integer between 0 and 100"
    )


@pytest.mark.parametrize(("factor", "most"), [(0, 2147483647), (1, 2147483647), (2, 1073741823), (1024, 2097151)])
def test_step_2_memory_is_bounded_by_what_the_factor_leaves_of_32_bits(factor: int, most: int) -> None:
    section = {"memory_factor": factor}
    assert limits_after(section, gpu=1, mem=most)["mem"] == most
    refused = refusal(section, gpu=1, mem=most + 1)
    assert refused.startswith(f"invalid {MEM} value {most + 1} in container main: must be an integer number of ")
    assert refused.endswith(f"between 0 and {most}")


def test_a_long_value_is_cut_in_the_message() -> None:
    assert "value " + "9" * 37 + "... in container main" in refusal(mem="9" * 60)


# step 3


@pytest.mark.parametrize(
    ("amounts", "value"),
    [
        ({"priority": 1}, ["1"]),
        ({"gpu": 1, "priority": "0"}, ["0"]),
        ({"gpu": 1, "priority": "1k"}, ["1000"]),
        ({"gpu": 1, "priority": None}, []),
        ({"gpu": 1, "requests": {"priority": 1}}, []),
    ],
)
def test_step_3_the_priority_becomes_an_environment_variable(amounts: JSON, value: list[str]) -> None:
    assert env_after(**amounts) == [{"name": "CUDA_TASK_PRIORITY", "value": each} for each in value]


# steps 4 and 5: each row is (section, amounts) and the limits after admission


@in_one_test(
    ("section", "amounts", "limits"),
    [
        # step 4: the default count
        ({}, {"mem": 3000}, {"mem": 3000, "gpu": 1}),
        ({}, {"cores": 30}, {"cores": 30, "gpu": 1}),
        ({}, {"percent": 50}, {"percent": 50, "gpu": 1}),
        ({"default_gpu_num": 3}, {"mem": 3000}, {"mem": 3000, "gpu": 3}),
        ({"default_gpu_num": 0}, {"mem": 3000}, {"mem": 3000}),
        ({}, {"priority": 1}, {"priority": 1}),
        ({}, {"requests": {"mem": 3000}}, {}),
        ({}, {"mem": 3000, "requests": {"gpu": 1}}, {"mem": 3000, "gpu": 1}),
        ({}, {"mem": 3000, "requests": {"gpu": 2}}, {"mem": 3000, "gpu": 2}),
        ({"default_gpu_num": 0}, {"mem": 3000, "requests": {"gpu": 2}}, {"mem": 3000, "gpu": 2}),
        ({}, {"mem": 3000, "requests": {"gpu": 0}}, {"mem": 3000}),
        ({}, {"mem": 3000, "gpu": 0}, {"mem": 3000, "gpu": 0}),
        # step 5: exclusive cores
        ({}, {"gpu": 2}, {"gpu": 2, "cores": 100}),
        ({}, {"gpu": 1, "percent": 100}, {"gpu": 1, "percent": 100, "cores": 100}),
        ({}, {"percent": 100}, {"gpu": 1, "percent": 100, "cores": 100}),
        ({}, {"gpu": 1, "percent": 100, "mem": 5}, {"gpu": 1, "percent": 100, "mem": 5, "cores": 100}),
        ({}, {"gpu": 1, "percent": 99}, {"gpu": 1, "percent": 99}),
        ({}, {"gpu": 1, "percent": 0}, {"gpu": 1, "percent": 0}),
        ({}, {"gpu": 1, "mem": 0}, {"gpu": 1, "mem": 0}),
        ({}, {"gpu": 1, "mem": 40960}, {"gpu": 1, "mem": 40960}),
        ({}, {"gpu": 1, "cores": 0}, {"gpu": 1, "cores": 0}),
        ({}, {"gpu": 1, "requests": {"cores": 10}}, {"gpu": 1}),
        ({}, {"gpu": 1, "requests": {"mem": 10}}, {"gpu": 1}),
        ({}, {"requests": {"gpu": 1}}, {"gpu": 1, "cores": 100}),
        ({}, {"gpu": 0}, {"gpu": 0}),
        ({}, {"gpu": 0, "requests": {"gpu": 1}}, {"gpu": 0}),
        ({"default_memory": 4000}, {"gpu": 1}, {"gpu": 1}),
        ({"default_memory": 4000}, {"gpu": 1, "percent": 100}, {"gpu": 1, "percent": 100, "cores": 100}),
        ({"default_cores": 40}, {"gpu": 1}, {"gpu": 1, "cores": 100}),
        ({"resource_core_name": ""}, {"gpu": 1}, {"gpu": 1}),
        ({"resource_memory_name": ""}, {"gpu": 1, "mem": 5}, {"gpu": 1, "mem": 5, "cores": 100}),
        ({"resource_memory_percentage_name": ""}, {"gpu": 1, "percent": 5}, {"gpu": 1, "percent": 5, "cores": 100}),
        ({"resource_count_name": ""}, {"mem": 5}, {"mem": 5}),
        ({"default_gpu_num": 2, "default_memory": 512, "memory_factor": 8}, {"percent": 1}, {"percent": 1, "gpu": 2}),
    ],
)
def test_steps_4_and_5_default_count_and_exclusive_cores(section: JSON, amounts: JSON, limits: JSON) -> None:
    assert limits_after(section, **amounts) == limits


def test_step_5_says_in_the_log_why_cores_were_added_to_limits_only() -> None:
    _, draft = admitted(raw_pod(container(gpu=1, requests={"gpu": 1})))
    assert [each["path"] for each in draft.operations()] == ["/spec/containers/0/resources/limits/nvidia.com~1gpucores"]
    assert draft.messages == ["container main: nvidia.com/gpucores set to 100, because it requests whole cards"]


# steps 6 to 8


@pytest.mark.parametrize(
    ("amounts", "own", "expected"),
    [
        ({"gpu": 1}, {}, "nvidia"),
        ({"requests": {"gpu": 1}}, {}, "nvidia"),
        ({"mem": 5}, {}, "nvidia"),
        ({"gpu": 1}, {"runtimeClassName": "mine"}, "mine"),
        ({"gpu": 0}, {}, ""),
        ({"priority": 1}, {}, ""),
    ],
)
def test_step_6_the_runtime_class_is_set_where_cards_are_asked_for_and_none_is_named(
    amounts: JSON, own: JSON, expected: str
) -> None:
    _, draft = admitted(raw_pod(container(**amounts), **own), runtime_class_name="nvidia")
    assert draft.runtime_class_name == expected
    _, unset = admitted(raw_pod(container(gpu=1)))
    assert unset.runtime_class_name == ""


@pytest.mark.parametrize(
    ("policy", "amounts", "expected"),
    [
        ("force", {"gpu": 1, "cores": 5}, ["force"]),
        ("disable", {"requests": {"gpu": 1}}, ["disable"]),
        ("default", {"gpu": 1}, []),
        ("", {"gpu": 1}, []),
        ("force", {"gpu": 0}, []),
        ("force", {"priority": None}, []),
    ],
)
def test_step_7_the_core_policy_goes_to_containers_with_cards(policy: str, amounts: JSON, expected: list[str]) -> None:
    env = env_after(section={"gpu_core_policy": policy}, **amounts)
    assert [item["value"] for item in env if item["name"] == "GPU_CORE_UTILIZATION_POLICY"] == expected


@pytest.mark.parametrize(
    ("overwrite", "amounts", "expected"),
    [(True, {}, ["none"]), (True, {"gpu": 0}, ["none"]), (True, {"gpu": 1}, []), (False, {}, [])],
)
def test_step_8_gpus_are_hidden_from_containers_that_ask_for_none(
    overwrite: bool, amounts: JSON, expected: list[str]
) -> None:
    vendor = nvidia(overwrite_env=overwrite)
    env = env_after(section={"overwrite_env": overwrite}, **amounts)
    assert [item["value"] for item in env if item["name"] == "NVIDIA_VISIBLE_DEVICES"] == expected
    assert vendor.touches_every_container is overwrite


def test_an_existing_variable_is_replaced_in_place_and_a_new_one_goes_to_the_end() -> None:
    env: list[JSON] = [
        {"name": "CUDA_TASK_PRIORITY", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "OTHER", "value": "x"},
    ]
    after = env_after(env, {"gpu_core_policy": "force"}, gpu=1, mem=5, priority=1)
    assert after == [
        {"name": "CUDA_TASK_PRIORITY", "value": "1"},
        {"name": "OTHER", "value": "x"},
        {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"},
    ]


def test_admit_says_whether_the_container_gets_cards() -> None:
    vendor, draft = nvidia(), PodDraft(raw_pod(container("a", gpu=1), container("b", mem=1), container("c", gpu=0)))
    assert [vendor.admit(item, draft, NO_DEVICES) for item in draft.containers] == [True, True, False]


# section 6

SHARE = ShareOfCard(100)


@in_one_test(
    ("section", "amounts", "expected"),
    [
        ({}, {}, None),
        ({}, {"gpu": 0, "mem": 5}, None),
        ({}, {"mem": 5, "cores": 5}, None),
        ({"resource_count_name": ""}, {"gpu": 3}, None),
        ({}, {"gpu": 1}, (1, SHARE, 0)),
        ({}, {"gpu": 1, "mem": 7, "requests": {"gpu": 9, "mem": 9}}, (1, FixedMemory(7), 0)),
        ({}, {"gpu": 1, "mem": 0, "requests": {"mem": 9}}, (1, SHARE, 0)),
        ({}, {"gpu": 1, "percent": 50}, (1, ShareOfCard(50), 0)),
        ({}, {"gpu": 1, "percent": 1}, (1, ShareOfCard(1), 0)),
        ({}, {"gpu": 1, "percent": 101}, (1, SHARE, 0)),
        ({}, {"gpu": 1, "percent": 250}, (1, SHARE, 0)),
        ({}, {"gpu": 1, "percent": 0}, (1, SHARE, 0)),
        ({}, {"gpu": 1, "percent": -5}, (1, SHARE, 0)),
        ({}, {"gpu": 1, "percent": "1500m"}, (1, SHARE, 0)),
        ({}, {"gpu": 1, "percent": 50, "mem": 7}, (1, FixedMemory(7), 0)),
        ({}, {"gpu": 1, "percent": 50, "mem": 0}, (1, ShareOfCard(50), 0)),
        ({"default_memory": 512}, {"gpu": 1}, (1, FixedMemory(512), 0)),
        ({"default_memory": 512, "memory_factor": 4}, {"gpu": 1}, (1, FixedMemory(512), 0)),
        ({"default_memory": 512}, {"gpu": 1, "percent": 0}, (1, FixedMemory(512), 0)),
        ({"default_memory": 512}, {"gpu": 1, "percent": 101}, (1, SHARE, 0)),
        ({"default_memory": 512}, {"gpu": 1, "percent": 20}, (1, ShareOfCard(20), 0)),
        ({"memory_factor": 4}, {"gpu": 1, "mem": 7}, (1, FixedMemory(28), 0)),
        ({"memory_factor": 0}, {"gpu": 1, "mem": 7}, (1, FixedMemory(7), 0)),
        ({}, {"gpu": 1, "cores": 250}, (1, SHARE, 100)),
        ({"default_cores": 40}, {"gpu": 1}, (1, SHARE, 40)),
        ({"default_cores": 40}, {"gpu": 1, "cores": 0}, (1, SHARE, 0)),
        ({"resource_memory_name": "", "resource_core_name": ""}, {"gpu": 1, "mem": 7, "cores": 7}, (1, SHARE, 0)),
        ({"resource_count_name": "hami.io/gpu"}, {"gpu": 1}, None),
    ],
)
def test_section_6_what_a_container_asks(section: JSON, amounts: JSON, expected: tuple[Any, ...] | None) -> None:
    assert extracted(section, **amounts) == (None if expected is None else Request(*expected))


def test_a_percentage_and_a_priority_are_its_resources_but_no_quota_counts_them() -> None:
    vendor = nvidia(resource_count_name="hami.io/gpu", resource_core_name="", memory_factor=8)
    assert vendor.resource_names == ("hami.io/gpu", MEM, PERCENT, PRIORITY)
    assert [(key.name, key.factor) for key in vendor.quota_keys()] == [("limits.hami.io/gpu", 1), (f"limits.{MEM}", 8)]


# what is legal but hardly meant


@pytest.mark.parametrize(
    ("amounts", "warning"),
    [
        (
            {"gpu": 1, "mem": 1000, "percent": 50},
            "container main: nvidia.com/gpumem-percentage is ignored, because nvidia.com/gpumem is given too",
        ),
        ({"gpu": 1, "cores": 150}, "container main: nvidia.com/gpucores 150 counts as 100, all of a card"),
        ({"gpu": 1, "priority": 3}, "container main: nvidia.com/priority knows only 0 (high) and 1 (low)"),
        ({"gpu": 2, "mem": 2000, "cores": 100, "priority": 1}, None),
    ],
)
def test_what_is_legal_but_hardly_meant_is_a_warning(amounts: JSON, warning: str | None) -> None:
    _, draft = admitted(raw_pod(container(**amounts)))
    assert draft.warnings == ([] if warning is None else [warning])
