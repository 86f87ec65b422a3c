"""The kinds of cards with their names (docs/spec/quota.md#2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

JSON = dict[str, Any]
GIB, MIB = 2**30, 2**20
"""Bytes."""


@dataclass(frozen=True)
class Family:
    """A kind of cards with its names: on the wire, in the JSON result, in quotas; `factor` is MiB a unit of memory."""

    name: str
    annotation: str
    count: str
    memory: str = ""
    cores: str = ""
    factor: int = 1
    known_as: str = ""

    @property
    def limits(self) -> tuple[str, str, str]:
        """The managed keys of cards, memory and cores; empty where there is none."""
        count, memory, cores = (f"limits.{name}" if name else "" for name in (self.count, self.memory, self.cores))
        return count, memory, cores

    @property
    def keys(self) -> list[str]:
        return [key for key in self.limits if key]


ASCEND = ("Ascend910A", "Ascend910B2", "Ascend910B3", "Ascend910B4", "Ascend910B4-1", "Ascend910C", "Ascend310P")
COREX = ("MR-V100", "MR-V50", "BI-V150", "BI-V100")
FAMILIES = (
    Family("NVIDIA", "hami.io/vgpu-devices-allocated", "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"),
    *(
        Family(c, f"hami.io/{c}-devices-allocated", f"huawei.com/{c}", f"huawei.com/{c}-memory", f"huawei.com/{c}-core")
        for c in ASCEND
    ),
    Family("DCU", "hami.io/dcu-devices-allocated", "hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"),
    Family("HCU", "hami.io/hcu-devices-allocated", "hygon.com/hcunum", "hygon.com/hcumem", "hygon.com/hcucores"),
    Family(
        "MLU", "hami.io/cambricon-mlu-devices-allocated", "cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory",
        "cambricon.com/mlu.smlu.vcore", 256,
    ),
    *(
        Family(
            c, f"hami.io/{c}-devices-allocated", f"iluvatar.ai/{c}-vgpu", f"iluvatar.ai/{c}.vMem",
            f"iluvatar.ai/{c}.vCore", 256,
        )
        for c in COREX
    ),
    Family(
        "Iluvatar", "hami.io/iluvatar-vgpu-devices-allocated", "iluvatar.ai/vgpu", "iluvatar.ai/vcuda-memory",
        "iluvatar.ai/vcuda-core", 256,
    ),
    Family(
        "Mthreads", "hami.io/mthreads-vgpu-devices-allocated", "mthreads.com/vgpu", "mthreads.com/sgpu-memory",
        "mthreads.com/sgpu-core", 512,
    ),
    Family("Metax-GPU", "hami.io/metax-gpu-devices-allocated", "metax-tech.com/gpu"),
    Family(
        "Metax-SGPU", "hami.io/metax-sgpu-devices-allocated", "metax-tech.com/sgpu", "metax-tech.com/vmemory",
        "metax-tech.com/vcore", 1024,
    ),
    Family("kunlun", "hami.io/kunlun-allocated", "kunlunxin.com/xpu"),
    Family("XPU", "hami.io/xpu-devices-allocated", "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"),
    Family("GCU", "hami.io/enflame-gcu-devices-allocated", "enflame.com/gcu"),
    Family(
        "Enflame-DRS", "hami.io/enflame-vgpu-devices-allocated", "enflame.com/drs-gcu", "enflame.com/gcu-memory",
        "enflame.com/gcu-core", known_as="Enflame",
    ),
    # a shared card's percent stand in the memory field of its entries
    Family(
        "Enflame-shared", "hami.io/enflame-vgpu-devices-allocated", "enflame.com/vgcu", "",
        "enflame.com/vgcu-percentage", known_as="Enflame",
    ),
    Family(
        "AWSNeuron", "hami.io/aws-neuron-devices-allocated", "aws.amazon.com/neuron", "", "aws.amazon.com/neuroncore"
    ),
    Family("AMD", "hami.io/amd-devices-allocated", "amd.com/gpu", "amd.com/gpumem", "amd.com/gpucores"),
    Family("Biren", "hami.io/Biren-devices-allocated", "birentech.com/gpu"),
    Family("Vastai", "hami.io/Vastai-devices-allocated", "vastaitech.com/va"),
)  # fmt: skip
MANAGED = frozenset(key for family in FAMILIES for key in family.keys)
"""The keys of the vendors whose cards we place."""


@dataclass(frozen=True)
class Card:
    """A card as its node registers it: MiB (or percent), cores in the vendor's own unit."""

    family: str
    uuid: str
    node: str
    memory: int
    cores: int
    slots: int
    model: str = ""
    mode: str = ""
    healthy: bool = True


TEMPLATES: Mapping[str, tuple[int, int, tuple[int, ...]]] = {
    "Ascend910A": (32768, 32768, (2184, 4369, 8738, 17476)),
    "Ascend910B2": (65536, 65536, (8192, 16384, 32768)),
    "Ascend910B3": (65536, 65536, (16384, 32768)),
    "Ascend910B4": (32768, 32768, (8192, 16384)),
    "Ascend910B4-1": (65536, 65536, (16384, 32768)),
    "Ascend910C": (65536, 65536, (16384, 32768)),
    "Ascend310P": (21527, 24576, (3072, 6144, 12288)),
}
"""MiB a whole card gives, MiB it has, and the slices there are; as the ascend page's table (2)."""
