"""What pods cost, reckoned from the chapters without the program: from what they ask, and from what is written on them.

Quota chapter 5 and every vendor's chapters on admission, request and quota (5, 6 and 10; AMD A5, A6 and A9). Memory is
MiB until the end. A pod is its manifest as the user wrote it, so admission's rules are here too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

JSON = dict[str, Any]
NEURON_CORES = (2, 4)
"""Cores of a device on the fleet's Neuron nodes."""
SHARED_SLICES = 4
"""Slices of a shared Enflame card on all the fleet's nodes."""
DRS_PROFILES = ((1, 6), (3, 20), (6, 40))
"""Slices and GB."""
MIG_MEMORY = (5120, 10240, 20480)
GIB, MIB = 2**30, 2**20


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
FACTORS = {family.limits[1]: family.factor for family in FAMILIES if family.memory}


# containers


def containers(manifest: JSON) -> list[tuple[str, JSON]]:
    """Init containers, then app containers, each with its kind."""
    spec = manifest["spec"]
    inits = [("sidecar" if c.get("restartPolicy") == "Always" else "init", c) for c in spec.get("initContainers", [])]
    return [*inits, *(("app", c) for c in spec["containers"])]


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


# what is written on a pod


@dataclass(frozen=True)
class Entry:
    """A device of a container, as an allocation has it."""

    uuid: str
    memory: int
    cores: int


def entries(family: Family, annotations: Mapping[str, str]) -> list[list[Entry]]:
    """The allocation, container by container; of Enflame's two kinds, which share a key, the family's."""
    rows = []
    for row in annotations.get(family.annotation, "").split(";")[:-1]:
        found = [Entry(u, int(m), int(c)) for u, m, c in re.findall(r"([^,;]+?),[^,;]*,(\d+),(\d+)(?::|$)", row)]
        if family.known_as:
            found = [entry for entry in found if ("-enflame-drs-" in entry.uuid) == (family.name == "Enflame-DRS")]
        rows.append(found)
    return rows if any(rows) else []


@dataclass(frozen=True)
class Held:
    """What a pod holds of one card at its peak: as the card is filled, and `counted` as quota counts cores."""

    slots: int
    memory: int
    cores: int
    counted: int


def held(family: Family, manifest: JSON, annotations: Mapping[str, str]) -> dict[str, Held]:
    """What a placed pod holds, card by card."""
    boxes = containers(manifest)
    rows = entries(family, annotations)
    uuids = list(dict.fromkeys(entry.uuid for row in rows for entry in row))
    assert not rows or len(rows) == len(boxes)
    found = {}
    for uuid in uuids:
        slots, memory, cores, counted = [], [], [], []
        for (kind, box), row in zip(boxes, rows, strict=True):
            mine = [entry for entry in row if entry.uuid == uuid]
            sizes = [_slots(family, entry) for entry in mine]
            slots.append((kind, max(sizes, default=0) if kind == "init" else sum(sizes)))
            memory.append((kind, sum(entry.memory for entry in mine)))
            cores.append((kind, sum(entry.cores for entry in mine)))
            percent = int(_limit(box, "amd.com/gpucores", 100))
            counted.append((kind, percent * len(mine) if family.name == "AMD" else cores[-1][1]))
        peak = effective_mask(cores) if family.name == "AWSNeuron" else effective(counted)
        found[uuid] = Held(effective(slots), effective(memory), effective(cores), peak)
    return found


def _slots(family: Family, entry: Entry) -> int:
    """Slices of a DRS partition, by its percent of a card of six; else an entry is one slot."""
    return max(1, entry.cores * 6 // 100) if family.name == "Enflame-DRS" else 1


# what a charge is


Charge = dict[str, int]
"""Amounts by managed key: cards, MiB, cores; `in_units` turns the MiB into units."""


def amounts(family: Family, slots: int, memory: int, cores: int) -> Charge:
    count, of_memory, of_cores = family.limits
    found = {count: slots, of_memory: memory, of_cores: memory if family.name == "Enflame-shared" else cores}
    return {key: amount for key, amount in found.items() if key and amount}


def in_units(charge: Charge) -> Charge:
    """As people are told: memory in the resource's units, rounded up once per pod."""
    return {key: -(-amount // FACTORS.get(key, 1)) for key, amount in charge.items()}


def placed(manifest: JSON, annotations: Mapping[str, str]) -> Charge:
    """What a pod costs by its allocation: of every card its peak, summed."""
    found: Charge = {}
    for family in FAMILIES:
        cards = held(family, manifest, annotations).values()
        memory = sum(card.memory for card in cards)
        found |= amounts(family, sum(card.slots for card in cards), memory, sum(card.counted for card in cards))
    return found


class Registered(Protocol):
    """What of a card decides its size and who may have it."""

    @property
    def family(self) -> str: ...
    @property
    def uuid(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def memory(self) -> int: ...
    @property
    def model(self) -> str: ...
    @property
    def mode(self) -> str: ...


Size = Callable[[Registered], int]
"""MiB on a card."""


@dataclass(frozen=True)
class Want:
    """What a container asks: devices, slots and cores of each; MiB of each, or how many a card decides."""

    count: int
    memory: int | Size = 0
    cores: int = 0
    slots: int = 1
    cards: int | None = None
    """Devices where they aren't what quota counts."""


def waiting(manifest: JSON, cards: Sequence[Registered], nodes: Mapping[str, JSON]) -> Charge:
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


def eligible(family: Family, card: Registered, manifest: JSON, nodes: Mapping[str, JSON]) -> bool:
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


def _limit(box: JSON, name: str, default: Any = None) -> Any:
    return box.get("resources", {}).get("limits", {}).get(name, default)


def _number(box: JSON, name: str) -> int | None:
    written = _limit(box, name) if name else None
    return None if written is None else int(written)


def want(family: Family, box: JSON, manifest: JSON) -> Want | None:
    """What the container asks of the family after admission; None for nothing."""
    if family.name in ASCEND:
        return _ascend(family, box, manifest)
    special = _SPECIAL.get(family.name)
    return special(family, box, manifest) if special else _usual(family, box)


def whole(card: Registered) -> int:
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
    default = 100 if family.name in ("DCU", "MLU") else 0
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

    def on(card: Registered) -> int:
        """A MIG card gives the smallest instance that is large enough."""
        if card.mode != "mig":
            return card.memory * share // 100
        needed = min(card.memory * share // 100, MIG_MEMORY[-1]) if share == 100 else card.memory * share // 100
        return min((size for size in MIG_MEMORY if size >= needed), default=needed)

    return Want(count, memory or on, min(100, cores or 0))


TEMPLATES: Mapping[str, tuple[int, int, tuple[int, ...]]] = {
    "Ascend910A": (32768, 32768, (2184, 4369, 8738, 17476)),
    "Ascend910B2": (65536, 65536, (8192, 16384, 32768)),
    "Ascend910B3": (65536, 65536, (16384, 32768)),
    "Ascend910B4": (32768, 32768, (8192, 16384)),
    "Ascend910B4-1": (65536, 65536, (16384, 32768)),
    "Ascend910C": (65536, 65536, (16384, 32768)),
    "Ascend310P": (21527, 24576, (3072, 6144, 12288)),
}
"""MiB a whole card gives, MiB it has, and the slices there are; as the ascend chapter's table (2)."""


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
    count, written, cores = _number(box, family.count), _limit(box, family.memory), _number(box, family.cores)
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
    slices, written, cores = _number(box, family.count), _limit(box, family.memory), _number(box, family.cores)
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


# quotas


class Books:
    """Quotas and what they hold; `class_of` is the priority class whose pods alone one counts."""

    def __init__(self, quotas: Iterable[JSON]) -> None:
        self.hard: dict[tuple[str, str], dict[str, int]] = {}
        self.in_bytes: set[tuple[str, str, str]] = set()
        self.class_of: dict[tuple[str, str], str] = {}
        for made in quotas:
            where = made["metadata"]["namespace"], made["metadata"]["name"]
            self.hard[where] = {}
            for key, written in made["spec"]["hard"].items():
                if key not in MANAGED:
                    continue
                if written.endswith("Gi"):
                    self.in_bytes.add((*where, key))
                self.hard[where][key] = int(written[:-2]) * GIB if written.endswith("Gi") else int(written)
            terms = made["spec"].get("scopeSelector", {}).get("matchExpressions", [])
            if terms:
                self.class_of[where] = terms[0]["values"][0]
        self.used: dict[tuple[str, str], dict[str, int]] = {w: defaultdict(int) for w in self.hard}

    def matching(self, namespace: str, manifest: JSON) -> list[tuple[str, str]]:
        priority = manifest["spec"].get("priorityClassName")
        return sorted(w for w in self.hard if w[0] == namespace and self.class_of.get(w, priority) == priority)

    def counted(self, where: tuple[str, str], charge: Charge) -> Charge:
        """The charge in this quota's own terms: its keys only, memory in units or in bytes."""
        units = in_units(charge)
        return {
            key: charge[key] * MIB if (*where, key) in self.in_bytes else units[key]
            for key in charge
            if key in self.hard[where]
        }

    def over(self, where: tuple[str, str], charge: Charge, before: Charge | None = None) -> list[str]:
        """The keys that the charge, which takes the place of `before`, would push over their hard."""
        old, new = self.counted(where, before or {}), self.counted(where, charge)
        return sorted(
            key
            for key, amount in new.items()
            if amount > old.get(key, 0) and self.used[where][key] - old.get(key, 0) + amount > self.hard[where][key]
        )

    def add(self, namespace: str, manifest: JSON, charge: Charge) -> None:
        for where in self.matching(namespace, manifest):
            for key, amount in self.counted(where, charge).items():
                self.used[where][key] += amount
