"""Scheduler-owned annotations: every key of the table in docs/spec/node-registration.md#4, and no other."""

import pytest

from hami_webhook.devices.reserved_annotations import OWNED_LABELS, is_scheduler_owned, owned_in

OWNED = {
    "NVIDIA": ["hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-devices-allocated", "hami.io/vgpu-mig-allocations"],
    "Metax-GPU": ["hami.io/metax-gpu-devices-to-allocate", "hami.io/metax-gpu-devices-allocated"],
    "Metax-SGPU": [
        "hami.io/metax-sgpu-devices-to-allocate",
        "hami.io/metax-sgpu-devices-allocated",
        "metax-tech.com/gpu-devices-allocated",
        "metax-tech.com/predicate-time",
    ],
    "kunlun": ["hami.io/kunlun-allocated", "BAIDU_COM_DEVICE_IDX"],
    "XPU": ["hami.io/xpu-devices-to-allocate", "hami.io/xpu-devices-allocated"],
    "AWSNeuron": [
        "hami.io/aws-neuron-devices-allocated",
        "AWS_NEURON_IDS",
        "NEURON_ALLOC_TIME",
        "NEURON_ALLOCATED",
        "NEURON_RESOURCE_TYPE",
        "aws.amazon.com/predicate-node",
    ],
    "GCU": ["hami.io/enflame-gcu-devices-to-allocate", "hami.io/enflame-gcu-devices-allocated"],
    "Enflame": [
        "hami.io/enflame-vgpu-devices-allocated",
        "enflame.com/gcu-assigned",
        "enflame.com/gcu-assigned-time",
        "enflame.com/gcu-assigned-id",
        "enflame.com/gcu-assigned-index",
        "enflame.com/gcu-assigned-minor",
        "enflame.com/gcu-request-size",
        "assigned-containers",
    ],
    "Ascend": [
        "hami.io/Ascend910B3-devices-to-allocate",
        "hami.io/Ascend910B3-devices-allocated",
        "hami.io/Ascend310P-devices-to-allocate",
        "hami.io/Ascend310P-devices-allocated",
        "huawei.com/Ascend910A",
        "huawei.com/Ascend910B3",
        "huawei.com/Ascend910B4-1",
        "huawei.com/Ascend910C",
        "huawei.com/Ascend310P",
        "predicate-time",
    ],
    "DCU": ["hami.io/dcu-devices-to-allocate", "hami.io/dcu-devices-allocated"],
    "MLU": [
        "hami.io/cambricon-mlu-devices-to-allocate",
        "hami.io/cambricon-mlu-devices-allocated",
        "CAMBRICON_DSMLU_ASSIGNED",
        "CAMBRICON_DSMLU_ASSIGHED",
        "CAMBRICON_DSMLU_PROFILE",
        "CAMBRICON_DSMLU_PROFILE_INSTANCE",
    ],
    "Iluvatar chips": [
        "hami.io/MR-V100-devices-to-allocate",
        "hami.io/MR-V100-devices-allocated",
        "hami.io/BI-V150-devices-to-allocate",
        "hami.io/BI-V150-devices-allocated",
    ],
    "Iluvatar": [
        "hami.io/iluvatar-vgpu-devices-to-allocate",
        "hami.io/iluvatar-vgpu-devices-allocated",
        "iluvatar.ai/gpu-assigned",
        "iluvatar.ai/predicate-time",
        "iluvatar.ai/predicate-gpu-idx-0",
        "iluvatar.ai/predicate-gpu-idx-12",
    ],
    "Mthreads": [
        "hami.io/mthreads-vgpu-devices-to-allocate",
        "hami.io/mthreads-vgpu-devices-allocated",
        "mthreads.com/gpu-index",
        "mthreads.com/predicate-node",
        "mthreads.com/predicate-time",
    ],
    "AMD": ["hami.io/amd-devices-to-allocate", "hami.io/amd-devices-allocated", "hami.io/amd-cu-allocated"],
    "Biren": ["hami.io/Biren-devices-to-allocate", "hami.io/Biren-devices-allocated"],
    "Vastai": ["hami.io/Vastai-devices-to-allocate", "hami.io/Vastai-devices-allocated"],
    "all": ["hami.io/vgpu-node", "hami.io/vgpu-time", "hami.io/bind-phase", "hami.io/bind-time"],
}

USERS = [
    # section 7: what selects devices
    "nvidia.com/use-gpuuuid",
    "nvidia.com/nouse-gpuuuid",
    "nvidia.com/use-gputype",
    "nvidia.com/nouse-gputype",
    "metax-tech.com/use-gpuuuid",
    "metax-tech.com/nouse-gpuuuid",
    "hami.io/use-xpu-uuid",
    "hami.io/no-use-xpu-uuid",
    "baidu.com/use-gpuuuid",
    "baidu.com/nouse-gpuuuid",
    "aws.amazon.com/use-neuron-uuid",
    "aws.amazon.com/nouse-neuron-uuid",
    "enflame.com/use-gpuuuid",
    "enflame.com/nouse-gpuuuid",
    "hami.io/use-Ascend910B3-uuid",
    "hami.io/no-use-Ascend910B3-uuid",
    "hami.io/use-MR-V100-uuid",
    "hami.io/no-use-MR-V100-uuid",
    "hygon.com/use-gpuuuid",
    "hygon.com/nouse-gpuuuid",
    "hygon.com/use-dcutype",
    "hygon.com/nouse-dcutype",
    "cambricon.com/use-gpuuuid",
    "cambricon.com/nouse-gpuuuid",
    "cambricon.com/use-mlutype",
    "cambricon.com/nouse-mlutype",
    "iluvatar.ai/use-gpuuuid",
    "iluvatar.ai/nouse-gpuuuid",
    "mthreads.ai/use-gpuuuid",
    "mthreads.ai/nouse-gpuuuid",
    "amd.com/use-gpu-uuid",
    "amd.com/nouse-gpu-uuid",
    "amd.com/use-gputype",
    "amd.com/nouse-gputype",
    "birentech.com/use-gpuuuid",
    "birentech.com/nouse-gpuuuid",
    "vastaitech.com/use-gpuuuid",
    "vastaitech.com/nouse-gpuuuid",
    # choices
    "hami.io/gpu-scheduler-policy",
    "hami.io/node-scheduler-policy",
    "hami.io/device-scoring-weights",
    "nvidia.com/vgpu-mode",
    "nvidia.com/numa-bind",
    "metax-tech.com/sgpu-qos-policy",
    "huawei.com/vnpu-mode",
    "volcano.sh/vgpu-mode",
    # admission's and the quota's own
    "mthreads.com/request-gpu-num",
    "hami.io/quota-reservation",
    # near misses: keys are exact
    "",
    "hami.io/",
    "hami.io/-devices-allocated",
    "hami.io/vgpu-devices-allocated-too",
    "hami.io/vgpu-node/",
    "hami.io/vgpu-nodes",
    "HAMI.IO/vgpu-node",
    "Predicate-time",
    "example.com/predicate-time",
    "example.com/vgpu-devices-allocated",
    "x.hami.io/vgpu-devices-allocated",
    "huawei.com/ascend910b3",
    "iluvatar.ai/predicate-gpu-idx-",
    "iluvatar.ai/predicate-gpu-idx-x",
    "enflame.com/gcu-assigned-by",
]


@pytest.mark.parametrize("key", [key for keys in OWNED.values() for key in keys])
def test_every_key_of_the_table_is_scheduler_owned(key: str) -> None:
    assert is_scheduler_owned(key)


@pytest.mark.parametrize("key", USERS)
def test_no_other_key_is(key: str) -> None:
    assert not is_scheduler_owned(key)


def test_owned_keys_among_annotations_are_sorted() -> None:
    annotations = {"predicate-time": "1", "nvidia.com/use-gpuuuid": "GPU-a", "hami.io/vgpu-node": "n1", "a": "b"}
    assert owned_in(annotations) == ["hami.io/vgpu-node", "predicate-time"]
    assert owned_in({}) == []


def test_the_label_is_owned_too() -> None:
    assert frozenset({"hami.io/vgpu-node"}) == OWNED_LABELS
