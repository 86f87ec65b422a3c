"""The kinds of cards with their names, and how containers' amounts add up (docs/spec/quota.md#2, #3.5 and #5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
FACTORS = {family.limits[1]: family.factor for family in FAMILIES if family.memory}


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


def containers(manifest: JSON) -> list[tuple[str, JSON]]:
    """Init containers, then app containers, each with its kind."""
    spec = manifest["spec"]
    inits = [("sidecar" if c.get("restartPolicy") == "Always" else "init", c) for c in spec.get("initContainers", [])]
    return [*inits, *(("app", c) for c in spec["containers"])]


def limit(box: JSON, name: str, default: Any = None) -> Any:
    """What a container has in its limits."""
    return box.get("resources", {}).get("limits", {}).get(name, default)


def effective(rows: Sequence[tuple[str, int]]) -> int:
    """E: apps with sidecars, or an init container with the sidecars before it, whatever is more."""
    beside = sum(amount for kind, amount in rows if kind == "sidecar")
    peaks = [
        amount + sum(a for k, a in rows[:i] if k == "sidecar")
        for i, (kind, amount) in enumerate(rows)
        if kind == "init"
    ]
    return max([sum(amount for kind, amount in rows if kind == "app") + beside, *peaks])


def effective_mask(rows: Sequence[tuple[str, int]]) -> int:
    """E of cores that are told apart: those two containers share count once."""

    def joined(masks: Iterable[int]) -> int:
        whole = 0
        for mask in masks:
            whole |= mask
        return whole

    peaks = [
        (mask | joined(m for k, m in rows[:i] if k == "sidecar")).bit_count()
        for i, (kind, mask) in enumerate(rows)
        if kind == "init"
    ]
    return max([joined(mask for kind, mask in rows if kind != "init").bit_count(), *peaks])


Charge = dict[str, int]
"""Amounts by managed key: cards, MiB, cores; `in_units` turns the MiB into units."""


def amounts(family: Family, slots: int, memory: int, cores: int) -> Charge:
    count, of_memory, of_cores = family.limits
    found = {count: slots, of_memory: memory, of_cores: memory if family.name == "Enflame-shared" else cores}
    return {key: amount for key, amount in found.items() if key and amount}


def in_units(charge: Charge) -> Charge:
    """As people are told: memory in the resource's units, rounded up once per pod."""
    return {key: -(-amount // FACTORS.get(key, 1)) for key, amount in charge.items()}
