"""Match conditions follow from the device configuration, whatever it names."""

from __future__ import annotations

import re

import pytest

from hami_webhook.controller.match_conditions import match_conditions
from hami_webhook.device_config import builtin_device_config, enabled_vendors, load_device_config
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.reserved_annotations import PLACEMENT_KEYS, is_scheduler_owned
from hami_webhook.policy.rules import GENERAL_CHOICES

RENAMED = """\
nvidia:
  resourceCountName: hami.io/gpu
  resourceMemoryName: hami.io/gpumem
iluvatars:
- {chipName: MR-V100, commonWord: Tian, resourceCountName: iluvatar.ai/tian}
vnpus:
  configs:
  - {chipName: 910A, commonWord: NPU-9.1, resourceName: acme.com/npu, memoryAllocatable: 32768}
"""
CONFIGURATIONS = {
    "built-in": enabled_vendors(builtin_device_config().config),
    "renamed": enabled_vendors(load_device_config(RENAMED, "renamed").config),
}
OTHERS = (
    *("huawei.com/AscendReal", "huawei.com/Ascend910", "predicate-time", "AWS_NEURON_IDS", "NEURON_ALLOC_TIME"),
    *("mthreads.com/gpu-index", "enflame.com/gcu-assigned", "CAMBRICON_DSMLU_ASSIGNED"),
    *("metax-tech.com/gpu-devices-allocated", "BAIDU_COM_DEVICE_IDX"),
)
"""What plugins of other vendors write."""
BY_RESOURCE = ("mutate", "validate", "amounts", "policy", "names")
BY_ANNOTATION = ("validate", "guard", "bindings")


def expression(vendors: Vendors, webhook: str) -> str:
    """The last condition of a webhook."""
    return list(match_conditions(vendors)[f"{webhook}.webhook.hami.io"].values())[-1]


def looks_at(vendors: Vendors, webhook: str, key: str) -> bool:
    """Whether an annotation makes the API server call a webhook."""
    literals = [each for each in matched(vendors, webhook) if "gpu-fraction" not in each]
    return any(re.search(each, key) for each in literals)


def matched(vendors: Vendors, webhook: str) -> list[str]:
    """The regular expressions of annotations that a webhook is called for."""
    literals = re.findall(r"k\.matches\('(.+?)'\)", expression(vendors, webhook))
    return [literal.replace("\\\\", "\\") for literal in literals]


@pytest.fixture(params=list(CONFIGURATIONS.values()), ids=list(CONFIGURATIONS))
def vendors(request: pytest.FixtureRequest) -> Vendors:
    found: Vendors = request.param
    return found


@pytest.mark.parametrize("webhook", BY_RESOURCE)
def test_every_managed_resource_is_named(vendors: Vendors, webhook: str) -> None:
    listed = re.findall(r"'([^'^]+/[^'^]+)'", expression(vendors, webhook).partition("metadata")[0])
    assert sorted(listed) == sorted(vendors.resource_names)


@pytest.mark.parametrize("webhook", BY_ANNOTATION)
def test_every_annotation_that_only_schedulers_write_is_seen(vendors: Vendors, webhook: str) -> None:
    keys = {key for vendor in vendors.values() for key in (*vendor.keys.owned, *vendor.reserved.all_keys)}
    if webhook == "validate":  # pods with cards are reviewed anyway
        keys = {key for key in keys if key.startswith("hami.io/")}
    assert keys
    keys |= {*PLACEMENT_KEYS, *vendors.foreign_annotations}
    assert [key for key in keys if not looks_at(vendors, webhook, key)] == []


def test_without_their_vendor_other_projects_keep_their_words() -> None:
    nvidia = enabled_vendors(load_device_config("nvidia: {resourceCountName: nvidia.com/gpu}\n", "nvidia").config)
    for webhook in BY_ANNOTATION:
        assert [key for key in OTHERS if looks_at(nvidia, webhook, key)] == []
    ours = [key for key in OTHERS if looks_at(CONFIGURATIONS["built-in"], "guard", key)]
    assert ours == [key for key in OTHERS if key not in ("huawei.com/AscendReal", "huawei.com/Ascend910")]


def test_pods_without_cards_are_not_guarded_for_the_words_of_vendors() -> None:
    guard = expression(CONFIGURATIONS["built-in"], "guard")
    everywhere, _, of_vendors = guard.partition("\n|| ([object.metadata")
    assert "|predicate-time" not in everywhere
    assert "|predicate-time" in of_vendors
    assert "\n&& (object.spec.containers" in of_vendors


def test_a_renamed_chip_has_keys_that_only_its_configuration_knows() -> None:
    key = "huawei.com/NPU-9.1"
    assert not is_scheduler_owned(key)
    assert [looks_at(vendors, "guard", key) for vendors in CONFIGURATIONS.values()] == [False, True]
    assert not looks_at(CONFIGURATIONS["renamed"], "guard", "huawei.com/NPU-9x1")


@pytest.mark.parametrize(
    "key",
    [
        "hami.io/gpu-scheduler-policy",
        "nvidia.com/use-gpuuuid",
        "hami.io/use-xpu-uuid",
        "team",
        "hami.io/quota-reservation",
        "volcano-sh/vgpu-node",
        "volcano.sh/vgpu-mode",
        "scheduling.koordinator.sh/gpu",
        "x-predicate-time",
        "predicate-time-x",
    ],
)
def test_what_users_write_is_left_alone(vendors: Vendors, key: str) -> None:
    assert not looks_at(vendors, "guard", key)


def test_policy_sees_every_annotation_that_it_governs(vendors: Vendors) -> None:
    conditions = match_conditions(vendors)["policy.webhook.hami.io"]
    listed = re.findall(r"'([^']+)'", conditions["changes-which-cards-it-may-get"])
    keys = [key for vendor in vendors.governed.values() for key in (*vendor.keys.choices, *vendor.keys.lists)]
    assert sorted(listed) == sorted({*GENERAL_CHOICES, *keys})


@pytest.mark.parametrize("webhook", ["mutate", "validate", "guard", "names"])
def test_what_pods_ask_another_scheduler_for_by_annotation_is_seen_for_pods_of_that_scheduler_alone(
    webhook: str,
) -> None:
    """Pods of all others that are called so by somebody else cost no review."""
    vendors = CONFIGURATIONS["built-in"]
    (kai,) = [each for each in matched(vendors, webhook) if "gpu-fraction" in each]
    asks = ["gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"]
    asks += [f"nvidia.com/container.{name}.gpu-memory.request" for name in ("main", "a.b")]
    others = ["gpu-fraction-container-name", "gpu-memory-x", "x-gpu-memory", "nvidia.com/gpu-memory.request", "team"]
    assert [key for key in (*asks, *others) if re.search(kai, key)] == asks
    before = expression(vendors, webhook).partition(kai.replace("\\", "\\\\"))[0]
    assert before.rpartition("\n|| (")[2].startswith(
        "object.spec.?schedulerName.orValue('') in [\n  'kai-scheduler'] && "
    )


def test_without_kai_nothing_of_it_is_in_a_condition() -> None:
    assert "schedulerName" not in str(match_conditions(CONFIGURATIONS["renamed"]))
