"""What containers ask, vendor by vendor, and so what a pod costs that has no place: from its manifest alone.

The vendors' pages on admission and requests (5 and 6; AMD A5 and A6), read without the program: a pod is as its user
wrote it, so what admission makes of it is here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .families import ASCEND, COREX, FAMILIES, JSON, Card, Charge, Family, amounts, containers, effective, limit

NEURON_CORES = (2, 4)
"""Cores of a device on the fleet's Neuron nodes."""
SHARED_SLICES = 4
"""Slices of a shared Enflame card on all the fleet's nodes."""
DRS_PROFILES = ((1, 6), (3, 20), (6, 40))
"""Slices and GB."""
MIG_MEMORY = (5120, 10240, 20480)
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

Size = Callable[[Card], int]
"""MiB on a card."""


@dataclass(frozen=True)
class Want:
    """What a container asks: devices, slots and cores of each; MiB of each, or how many a card decides."""

    count: int
    memory: int | Size = 0
    cores: int = 0
    slots: int = 1


def waiting(manifest: JSON, cards: Sequence[Card], nodes: Mapping[str, JSON]) -> Charge:
    """What a pod costs that has no place: what it declares, else what the smallest card would give that it may have."""
    found: Charge = {}
    boxes = containers(manifest)
    for family in FAMILIES:
        wants = [(kind, want(family, box, manifest)) for kind, box in boxes]
        if not any(one for _, one in wants):
            continue
        may = [card for card in cards if eligible(family, card, manifest, nodes)]
        slots, memory, cores = [], [], []
        for kind, one in wants:
            each = one or Want(0)
            size = each.memory if isinstance(each.memory, int) else min(map(each.memory, may), default=family.factor)
            slots.append((kind, each.count * each.slots))
            memory.append((kind, each.count * size))
            cores.append((kind, each.count * each.cores))
        found |= amounts(family, effective(slots), effective(memory), effective(cores))
    return found


LISTS = {
    "NVIDIA": (
        "nvidia.com/use-gpuuuid",
        "nvidia.com/nouse-gpuuuid",
        "nvidia.com/use-gputype",
        "nvidia.com/nouse-gputype",
    ),
    "DCU": ("hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid", "hygon.com/use-dcutype", "hygon.com/nouse-dcutype"),
    "HCU": ("hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid", "hygon.com/use-hcutype", "hygon.com/nouse-hcutype"),
    "MLU": (
        "cambricon.com/use-gpuuuid",
        "cambricon.com/nouse-gpuuuid",
        "cambricon.com/use-mlutype",
        "cambricon.com/nouse-mlutype",
    ),
    "AMD": ("amd.com/use-gpu-uuid", "amd.com/nouse-gpu-uuid", "amd.com/use-gputype", "amd.com/nouse-gputype"),
    **{name: (f"hami.io/use-{name}-uuid", f"hami.io/no-use-{name}-uuid", "", "") for name in (*ASCEND, *COREX)},
    "Iluvatar": ("iluvatar.ai/use-gpuuuid", "iluvatar.ai/nouse-gpuuuid", "", ""),
    "Mthreads": ("mthreads.ai/use-gpuuuid", "mthreads.ai/nouse-gpuuuid", "", ""),
    "Metax-SGPU": ("metax-tech.com/use-gpuuuid", "metax-tech.com/nouse-gpuuuid", "", ""),
    "XPU": ("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid", "", ""),
    "kunlun": ("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid", "", ""),
    "Enflame-shared": ("enflame.com/use-gpuuuid", "enflame.com/nouse-gpuuuid", "", ""),
    "Enflame-DRS": ("enflame.com/use-gpuuuid", "enflame.com/nouse-gpuuuid", "", ""),
    "AWSNeuron": ("aws.amazon.com/use-neuron-uuid", "aws.amazon.com/nouse-neuron-uuid", "", ""),
    "Biren": ("birentech.com/use-gpuuuid", "birentech.com/nouse-gpuuuid", "", ""),
    "Vastai": ("vastaitech.com/use-gpuuuid", "vastaitech.com/nouse-gpuuuid", "", ""),
}
"""Annotations that allow and deny UUIDs, and models."""


def eligible(family: Family, card: Card, manifest: JSON, nodes: Mapping[str, JSON]) -> bool:
    """Whether lists and node selector leave the card to the pod, however full it is."""
    notes = manifest["metadata"].get("annotations", {})
    selector = manifest["spec"].get("nodeSelector", {})
    if card.family != family.name or not selector.items() <= nodes[card.node]["metadata"]["labels"].items():
        return False
    use, nouse, use_type, nouse_type = (
        [item.strip().lower() for item in notes.get(key, "").split(",") if item.strip()]
        for key in LISTS.get(family.name, ("",) * 4)
    )
    uuid, model = card.uuid.lower(), card.model.lower()
    return (
        (not use or uuid in use)
        and uuid not in nouse
        and (not use_type or any(word in model for word in use_type))
        and not any(word in model for word in nouse_type)
    )


# what containers ask, vendor by vendor


def _number(box: JSON, name: str) -> int | None:
    written = limit(box, name) if name else None
    return None if written is None else int(written)


def want(family: Family, box: JSON, manifest: JSON) -> Want | None:
    """What the container asks of the family after admission; None for nothing."""
    if family.name in ASCEND:
        return _ascend(family, box, manifest)
    special = _SPECIAL.get(family.name)
    return special(family, box, manifest) if special else _usual(family, box)


def whole(card: Card) -> int:
    return card.memory


def part(percent: int) -> Size:
    return lambda card: card.memory * percent // 100


def _usual(family: Family, box: JSON) -> Want | None:
    """Hygon, Cambricon, Iluvatar: a slice of one card, or whole cards. Vendors that only count fall out of it."""
    count = _number(box, family.count)
    if not count:
        return None
    if not family.memory:
        return Want(count)
    units, cores = _number(box, family.memory) or 0, _number(box, family.cores)
    default = 100 if family.name in ("DCU", "HCU", "MLU") else 0
    share = 100 if count > 1 else min(100, default if cores is None else cores)
    return Want(count, units * family.factor or whole, share)


def _nvidia(family: Family, box: JSON, manifest: JSON) -> Want | None:
    count, memory, cores = (_number(box, name) for name in (family.count, family.memory, family.cores))
    percent = _number(box, "nvidia.com/gpumem-percentage")
    if count is None and (memory, cores, percent) != (None, None, None):
        count = 1
    if not count:
        return None
    if cores is None and (percent == 100 if percent is not None else memory is None):
        cores = 100
    share = percent or 100

    def on(card: Card) -> int:
        """A MIG card gives the smallest instance that is large enough."""
        if card.mode != "mig":
            return card.memory * share // 100
        needed = min(card.memory * share // 100, MIG_MEMORY[-1]) if share == 100 else card.memory * share // 100
        return min((size for size in MIG_MEMORY if size >= needed), default=needed)

    return Want(count, memory or on, min(100, cores or 0))


def _ascend(family: Family, box: JSON, manifest: JSON) -> Want | None:
    count, memory = _number(box, family.count), _number(box, family.memory)
    if not count:
        return None
    if family.name == "Ascend910C" and count == 1:
        count = 2
    card, _, slices = TEMPLATES[family.name]
    if memory is None:
        memory = card
    elif manifest["metadata"].get("annotations", {}).get("huawei.com/vnpu-mode") != "hami-core":
        memory = next((size for size in slices if size >= memory), card)
    return Want(count, memory, min(100, _number(box, family.cores) or 0))


def _mthreads(family: Family, box: JSON, manifest: JSON) -> Want | None:
    count, units = _number(box, family.count), _number(box, family.memory)
    if not count:
        return None
    if count > 1 or units is None:
        return Want(count, 96 * 512, 16)
    return Want(1, units * 512, _number(box, family.cores) or 0)


def _sgpu(family: Family, box: JSON, manifest: JSON) -> Want | None:
    count, written, cores = _number(box, family.count), limit(box, family.memory), _number(box, family.cores)
    if not count:
        return None
    online = manifest["metadata"].get("annotations", {}).get("metax-tech.com/sgpu-app-class") == "online"
    memory: int | Size = whole
    if written is not None and str(written) != "0":
        text = str(written)
        scale = next((size for unit, size in (("Mi", 1), ("Gi", 1024)) if text.endswith(unit)), None)
        memory = int(float(text[:-2]) * scale) if scale else int(text) * 1024
    return Want(count, memory, 0 if online else 100 if cores is None else cores)


def _vxpu(family: Family, box: JSON, manifest: JSON) -> Want | None:
    count, memory = _number(box, family.count), _number(box, family.memory)
    if not count:
        return None
    return Want(count, 98304 if memory is None else next((s for s in (24576, 49152) if memory <= s), 98304))


def _shared(family: Family, box: JSON, manifest: JSON) -> Want | None:
    """Percent of a card, rounded up to its slices; in the place of memory, where it is written."""
    count, percent = _number(box, family.count), _number(box, family.cores)
    if not count:
        return None
    asked = 100 if count > 1 or percent is None else max(1, percent)
    return Want(count, -(-asked * SHARED_SLICES // 100) * 100 // SHARED_SLICES)


def _drs(family: Family, box: JSON, manifest: JSON) -> Want | None:
    """The profile that serves it. Slices that are none's cost their count and, as no card is eligible, a unit."""
    slices, written, cores = _number(box, family.count), limit(box, family.memory), _number(box, family.cores)
    if slices is None and written is None and cores is None:
        return None
    if slices is not None:
        fitting = [profile for profile in DRS_PROFILES if profile[0] == slices]
    else:
        text = "0" if written is None else str(written)
        gigabytes = int(text[:-2]) if text.endswith("Gi") else int(text)
        if not text.endswith("Gi") and gigabytes > 80:
            gigabytes = -(-gigabytes // 1024)
        fitting = [p for p in DRS_PROFILES if p[1] >= gigabytes and _percent(p[0]) >= (cores or 0)]
    if not fitting:
        return Want(1, 1, 0, slices or 1)
    size, gigabytes = fitting[0]
    return Want(1, gigabytes * 1024, _percent(size), size)


def _percent(slices: int) -> int:
    return -(-slices * 100 // 6)


def _neuron(family: Family, box: JSON, manifest: JSON) -> Want | None:
    """Cores of a device aren't known before the node: the least."""
    devices, cores = _number(box, family.count), _number(box, family.cores)
    if devices:
        return Want(devices, 0, min(NEURON_CORES))
    if not cores:
        return None
    each = min(1 if cores <= c else cores // c for c in NEURON_CORES if cores <= c or cores % c == 0)
    return Want(1, 0, cores, each)


def _amd(family: Family, box: JSON, manifest: JSON) -> Want | None:
    count, memory, cores = (_number(box, name) for name in (family.count, family.memory, family.cores))
    percent = _number(box, "amd.com/gpumem-percentage")
    if not count:
        return None
    return Want(count, memory or part(percent or 100), 100 if cores is None else cores)


_SPECIAL: Mapping[str, Callable[[Family, JSON, JSON], Want | None]] = {
    "NVIDIA": _nvidia, "Mthreads": _mthreads, "Metax-SGPU": _sgpu, "XPU": _vxpu, "Enflame-shared": _shared,
    "Enflame-DRS": _drs, "AWSNeuron": _neuron, "AMD": _amd,
}  # fmt: skip
