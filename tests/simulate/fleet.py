"""Nodes with every kind of card there is, and namespaces with quotas of every managed key, for the test of the fleet.

Cards are kept beside the nodes as plain facts, so that the test can reckon without the program.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hami_webhook.config import load

from . import gpu_shares, vgpus
from .families import FAMILIES, JSON, TEMPLATES, Card
from .files import PROFILES

SLOTS = {"Ascend910A": 15, "Ascend910B2": 8, "Ascend310P": 7}
CHIPS = ("MR-V100", "MR-V50", "BI-V150", "BI-V100")
DRS_TABLE = {"1g.6gb": "0", "3g.20gb": "1", "6g.40gb": "2"}


@dataclass
class DeviceLister:
    """Nodes and their cards, while they are being made."""

    nodes: list[JSON] = field(default_factory=list)
    cards: list[Card] = field(default_factory=list)
    vgpus: list[Card] = field(default_factory=list)
    devices: list[JSON] = field(default_factory=list)

    def node(self, name: str, notes: JSON | None = None, capacity: JSON | None = None, **labels: str) -> None:
        amounts = {key: str(value) for key, value in (capacity or {}).items()}
        self.nodes.append(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "labels": {"pool": name.partition("-")[0], **labels},
                    "annotations": notes or {},
                },
                "status": {"capacity": amounts, "allocatable": amounts},
            }
        )

    def have(self, cards: Iterable[Card]) -> list[Card]:
        made = list(cards)
        self.cards += made
        return made

    def listed(
        self, family: str, name: str, count: int, *, kind: str = "", extra: Sequence[JSON] = (), **facts: Any
    ) -> list[JSON]:
        """The JSON records of `count` cards that are alike; `extra` has what single ones add."""
        cards = self.have(Card(family, f"{name}-{kind or 'c'}{i}", name, **facts) for i in range(count))
        records = []
        for index, card in enumerate(cards):
            record = {
                "id": card.uuid,
                "index": index,
                "count": card.slots,
                "devmem": card.memory,
                "devcore": card.cores,
            }
            record |= {"type": card.model, "mode": card.mode, "health": card.healthy}
            records.append({**record, **(extra[index] if extra else {})})
        return records

    def text(self, value: Any) -> str:
        return json.dumps(value)

    def derived(self, family: str, name: str, word: str, count: int, memory: int, cores: int, slots: int = 100) -> None:
        self.have(Card(family, f"{name}-{word}-{i}", name, memory, cores, slots, model=family) for i in range(count))


def _nvidia(fleet: DeviceLister) -> None:
    key = "hami.io/node-nvidia-register"

    def registered(name: str, count: int, memory: int, model: str, mode: str = "hami-core", **extra: Any) -> JSON:
        more = [{"numa": i * 2 // count, **extra} for i in range(count)]
        facts: JSON = {
            "memory": memory,
            "cores": 100,
            "slots": 7 if mode == "mig" else 10,
            "model": model,
            "mode": mode,
        }
        return {key: fleet.text(fleet.listed("NVIDIA", name, count, extra=more, **facts))}

    for number in (1, 2):
        name = f"nvidia-a10-{number}"
        fleet.node(name, registered(name, 4, 24576, "NVIDIA A10"), {"nvidia.com/gpu": 40})
    notes = registered("nvidia-a100", 8, 40960, "NVIDIA A100-SXM4-40GB")
    uuids = [f"nvidia-a100-c{i}" for i in range(8)]
    scores = [
        {"uuid": x, "score": {y: 200 if i // 4 == j // 4 else 10 for j, y in enumerate(uuids) if i != j}}
        for i, x in enumerate(uuids)
    ]
    fleet.node("nvidia-a100", {**notes, "hami.io/node-nvidia-score": fleet.text(scores)}, {"nvidia.com/gpu": 80})
    fleet.node("nvidia-mps", registered("nvidia-mps", 2, 16384, "NVIDIA T4", "mps"), {"nvidia.com/gpu": 20})
    mig = registered("nvidia-mig", 4, 40960, "NVIDIA A100-SXM4-40GB", "mig", migProfiles=PROFILES)
    fleet.node("nvidia-mig", mig, {"nvidia.com/gpu": 28})
    cards = fleet.have(
        Card("NVIDIA", f"nvidia-old-c{i}", "nvidia-old", 49140, 100, 10, "NVIDIA-NVIDIA L40S", "hami-core")
        for i in range(2)
    )
    old = "".join(f"{c.uuid},{c.slots},{c.memory},{c.cores},{c.model},0,true:" for c in cards)
    fleet.node("nvidia-old", {key: old}, {"nvidia.com/gpu": 20})


def _ascend(fleet: DeviceLister) -> None:
    for chip, (memory, _, _) in TEMPLATES.items():
        name, count = f"ascend-{chip.lower()}", 8 if chip == "Ascend910C" else 4
        extra = [{"custominfo": {"NetworkID": i // 4}} for i in range(count)] if chip.startswith("Ascend910") else ()
        facts: JSON = {"memory": memory, "cores": 20, "slots": SLOTS.get(chip, 4), "model": chip}
        records = fleet.listed(chip, name, count, extra=extra, **facts)
        fleet.node(name, {f"hami.io/node-register-{chip}": fleet.text(records)}, {f"huawei.com/{chip}": 4 * count})
    soft = {"hami-vnpu-core": "true"}
    for chip, (memory, _, _) in TEMPLATES.items():
        facts = {"memory": memory, "cores": 100, "slots": SLOTS.get(chip, 4), "model": chip}
        soft[f"hami.io/node-register-{chip}"] = fleet.text(
            fleet.listed(chip, "ascend-soft", 2, kind=f"{chip}-", **facts)
        )
    fleet.node("ascend-soft", soft, {f"huawei.com/{chip}": 8 for chip in TEMPLATES})


def _colons(fleet: DeviceLister) -> None:
    """Vendors that list their cards in the colon form."""

    def colons(family: str, name: str, count: int, tail: str = "", **facts: Any) -> str:
        cards = fleet.have(Card(family, f"{name}-c{i}", name, cores=100, **facts) for i in range(count))
        return "".join(
            f"{c.uuid},{c.slots},{c.memory},{c.cores},{c.model},0,true{tail.format(i)}:" for i, c in enumerate(cards)
        )

    text = colons("DCU", "hygon-k100", 4, ",{},hami", memory=65520, slots=4, model="DCU-K100_AI")
    fleet.node("hygon-k100", {"hami.io/node-dcu-register": text}, {"hygon.com/dcunum": 16})
    text = colons("DCU", "hygon-z100", 3, memory=32752, slots=30, model="DCU-Z100L")
    fleet.node("hygon-z100", {"hami.io/node-dcu-register": text}, {"hygon.com/dcunum": 90})
    text = colons("HCU", "hygon-hcu", 2, ",{},hami", memory=65520, slots=4, model="HCU-K100_AI")
    fleet.node("hygon-hcu", {"hami.io/node-hcu-register": text}, {"hygon.com/hcunum": 8})
    for chip, memory in zip(CHIPS, (32768, 16384, 32768, 32768), strict=True):
        name = f"iluvatar-{chip.lower()}"
        text = colons(chip, name, 3, memory=memory, slots=100, model=chip)
        fleet.node(name, {f"hami.io/node-{chip}-register": text}, {f"iluvatar.ai/{chip}-vgpu": 300})


def _derived(fleet: DeviceLister) -> None:
    """Vendors whose plugins report sums."""
    for name, model, units in (("cambricon-370", "MLU370-X8", 364), ("cambricon-590", "MLU590", 1280)):
        capacity = {"cambricon.com/mlu.smlu.vcore": 400, "cambricon.com/mlu.smlu.vmemory": units}
        fleet.node(name, None, capacity, Model=model)
        fleet.have(Card("MLU", f"{name}-cambricon-mlu-{i}", name, units * 64, 100, 100, model) for i in range(4))
    fleet.node("iluvatar-old", None, {"iluvatar.ai/vcuda-core": 300, "iluvatar.ai/vcuda-memory": 384})
    fleet.derived("Iluvatar", "iluvatar-old", "iluvatar", 3, 32768, 100)
    for name, count, units in (("mthreads-s4000", 4, 96), ("mthreads-small", 2, 64)):
        fleet.node(name, None, {"mthreads.com/sgpu-core": 16 * count, "mthreads.com/sgpu-memory": units * count})
        fleet.derived("Mthreads", name, "mthreads", count, units * 512, 16)
    losses = {
        "metax-tech.com/gpu.topology.losses": '{"1":150,"2":80}',
        "metax-tech.com/gpu.topology.scores": '{"2":110}',
    }
    fleet.node("metax-whole", losses, {"metax-tech.com/gpu": 6})
    fleet.derived("Metax-GPU", "metax-whole", "metax", 6, 65536, 100, slots=1)
    fleet.node("kunlun-whole", None, {"kunlunxin.com/xpu": 8})
    fleet.derived("kunlun", "kunlun-whole", "kunlun", 8, 98304, 100)
    fleet.node("enflame-whole", None, {"enflame.com/gcu": 4})
    fleet.derived("GCU", "enflame-whole", "GCU", 4, 100, 100, slots=1)
    for name, kind, count, cores in (
        ("trn1", "trn1.32xlarge", 16, 2),
        ("inf2", "inf2.24xlarge", 6, 2),
        ("inf1", "inf1.6xlarge", 4, 4),
    ):
        capacity = {"aws.amazon.com/neuron": count, "aws.amazon.com/neuroncore": count * cores}
        fleet.node(f"aws-{name}", None, capacity, **{"node.kubernetes.io/instance-type": kind})
        fleet.derived("AWSNeuron", f"aws-{name}", "AWSNeuron", count, 0, cores, slots=cores)


def _others(fleet: DeviceLister) -> None:
    for name, memory in (("metax-64", 65536), ("metax-32", 32768)):
        cards = fleet.have(Card("Metax-SGPU", f"{name}-c{i}", name, memory, 100, 16) for i in range(4))
        message = [
            {
                "uuid": c.uuid,
                "totalDevCount": 16,
                "totalCompute": 100,
                "totalVRam": memory,
                "healthy": True,
                "linkZone": i // 2,
            }
            for i, c in enumerate(cards)
        ]
        fleet.node(name, {"metax-tech.com/node-gpu-devices": fleet.text(message)}, {"metax-tech.com/sgpu": 64})
    cut = {"enflame-shared": (4, 0), "enflame-drs": (0, 3), "enflame-both": (2, 2)}
    for name, (shared, drs) in cut.items():
        capacity = {"enflame.com/gcu-count": shared, "enflame.com/shared-gcu": 4 * shared} if shared else {}
        devices = [{"index": str(i), "minor": str(i), "capacity": 6} for i in range(drs)]
        table = fleet.text({"devices": devices, "profiles": DRS_TABLE})
        fleet.node(name, {"enflame.com/gcu-drs-capacity": table} if drs else {}, capacity)
        fleet.derived("Enflame-shared", name, "enflame", shared, 100, 100)
        fleet.derived("Enflame-DRS", name, "enflame-drs", drs, 40960, 100, slots=6)
    xpus = fleet.listed("XPU", "kunlun-vxpu", 8, memory=98304, cores=100, slots=4, model="XPU")
    fleet.node("kunlun-vxpu", {"hami.io/node-register-xpu": fleet.text(xpus)}, {"kunlunxin.com/vxpu": 32})
    for name, model, memory, units in (
        ("amd-mi300", "AMD Instinct MI300X VF", 196288, 304),
        ("amd-mi210", "AMD Instinct MI210", 65536, 104),
    ):
        records = fleet.listed("AMD", name, 2, memory=memory, cores=units, slots=10, model=model)
        fleet.node(name, {"hami.io/node-amd-register": fleet.text(records)}, {"amd.com/gpu": 20})
    records = fleet.listed("Biren", "biren-1", 4, memory=65024, cores=100, slots=1, model="Biren")
    fleet.node("biren-1", {"hami.io/node-biren-register": fleet.text(records)}, {"birentech.com/gpu": 4})
    dies = [{"custominfo": {"DeviceStrategy": "die", "AIC": str(i // 2)}} for i in range(4)]
    records = fleet.listed("Vastai", "vastai-dies", 4, extra=dies, memory=16384, cores=100, slots=1, model="Vastai")
    fleet.node("vastai-dies", {"hami.io/node-va-register": fleet.text(records)}, {"vastaitech.com/va": 4})
    records = fleet.listed("Vastai", "vastai-cards", 2, memory=32768, cores=100, slots=1, model="Vastai")
    fleet.node("vastai-cards", {"hami.io/node-va-register": fleet.text(records)}, {"vastaitech.com/va": 2})


def _mixed(fleet: DeviceLister) -> None:
    """Two vendors on one node, a broken card, a card that is taken out of service, and no card at all."""
    gpus = fleet.listed(
        "NVIDIA", "mixed-1", 2, kind="gpu", memory=24576, cores=100, slots=10, model="NVIDIA A10", mode="hami-core"
    )
    dcus = fleet.listed("DCU", "mixed-1", 2, kind="dcu", memory=65520, cores=100, slots=4, model="DCU-K100_AI")
    notes = {"hami.io/node-nvidia-register": fleet.text(gpus), "hami.io/node-dcu-register": fleet.text(dcus)}
    fleet.node("mixed-1", notes, {"nvidia.com/gpu": 20, "hygon.com/dcunum": 8})
    fine, broken = (
        fleet.listed(
            "NVIDIA",
            "mixed-2",
            count,
            kind=kind,
            memory=24576,
            cores=100,
            slots=10,
            model="NVIDIA A10",
            mode="hami-core",
            healthy=healthy,
        )
        for count, kind, healthy in ((2, "fine", True), (1, "broken", False))
    )
    notes = {"hami.io/node-nvidia-register": fleet.text([*fine, *broken]), "hami.io/device-cordon": fine[0]["id"]}
    fleet.node("mixed-2", notes, {"nvidia.com/gpu": 20})
    fleet.node("plain-1")


def _foreign(fleet: DeviceLister) -> None:
    """Nodes of Volcano's and of Koordinator's."""
    for name, cards, notes, capacity in vgpus.nodes():
        fleet.node(name, notes, capacity)
        fleet.vgpus += cards
    for name, gpus, labels, device in gpu_shares.nodes():
        healthy = [gpu for gpu in gpus if gpu.healthy]
        sums = (100 * len(healthy), sum(gpu.memory for gpu in healthy), 100 * len(healthy))
        fleet.node(name, None, dict(zip(gpu_shares.NAMES[1:], sums, strict=False)), **labels)
        fleet.devices += [device] if device else []


def the_fleet() -> DeviceLister:
    """Every node, the same each time."""
    fleet = DeviceLister()
    for build in (_nvidia, _ascend, _colons, _derived, _others, _mixed, _foreign):
        build(fleet)
    return fleet


TIGHT: Mapping[str, tuple[int, int, int]] = {
    "NVIDIA": (24, 70_000, 400),
    **{chip: (4, 2 * sizes[0], 25) for chip, sizes in TEMPLATES.items()},
    "DCU": (6, 110_000, 400), "HCU": (4, 80_000, 300), "MLU": (5, 260, 300), "Iluvatar": (4, 200, 150),
    **dict.fromkeys(CHIPS, (3, 150, 160)),
    "Mthreads": (5, 230, 40), "Metax-SGPU": (6, 90, 300), "Metax-GPU": (2, 0, 0), "XPU": (6, 250_000, 0),
    "kunlun": (3, 0, 0), "GCU": (2, 0, 0), "Enflame-DRS": (7, 45_000, 120), "Enflame-shared": (3, 0, 150),
    "AWSNeuron": (6, 0, 11), "AMD": (4, 150_000, 130), "Biren": (2, 0, 0), "Vastai": (2, 0, 0),
}  # fmt: skip
"""What one namespace may have of each: cards, memory and cores in the quota's units."""
THEIRS: Mapping[str, Mapping[str, object]] = {
    "of-volcano": dict(zip(vgpus.KEYS, (26, 40_000, 300), strict=True)),
    "of-koordinator": dict(zip(gpu_shares.KEYS, (40, 1000, "500Gi", 1800, 2000), strict=True)),
}
"""And of what other schedulers give: Volcano's in blocks, Koordinator's in bytes."""
BYTES = {
    "limits.metax-tech.com/vmemory": "700Gi",
    "limits.enflame.com/gcu-memory": "150Gi",
    gpu_shares.BYTES: "300Gi",
}
NAMESPACES = ("tight", "wide", "bytes", "gold", "free")


def quota(namespace: str, name: str, hard: Mapping[str, object], **spec: Any) -> JSON:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hard": {key: str(value) for key, value in hard.items()}, **spec},
    }


def the_quotas() -> list[JSON]:
    """`tight` and `wide` as they say; `bytes` has two keys in bytes; `gold` one for a class only; `free` nothing."""
    wide = {key: 10**7 for family in FAMILIES for key in family.keys}
    wide |= dict.fromkeys((*vgpus.KEYS, *gpu_shares.KEYS), 10**13)
    tight = [
        quota("tight", f"of-{family.name.lower()}", dict(zip_named(family.limits, TIGHT[family.name])))
        for family in FAMILIES
    ]
    gold = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["gold"]}]}
    return [
        *tight,
        *(quota("tight", name, hard) for name, hard in THEIRS.items()),
        quota("wide", "everything", wide),
        quota("wide", "second", {"limits.nvidia.com/gpu": 45, "limits.nvidia.com/gpumem": 400_000, "pods": 1000}),
        quota("bytes", "everything", {**wide, **BYTES}),
        quota("gold", "of-the-class", {"limits.nvidia.com/gpumem": 9000}, scopeSelector=gold),
        quota("gold", "everything", wide),
    ]


def zip_named(names: Sequence[str], amounts: Sequence[int]) -> Iterable[tuple[str, int]]:
    """Names with amounts, where there is a name."""
    return ((name, amount) for name, amount in zip(names, amounts, strict=True) if name)


MODELLED = (
    *("nvidia", "metax", "hygon", "cambricon", "mthreads", "iluvatars", "enflame", "kunlun", "awsneuron", "amd"),
    *("vastai", "biren", "vnpus", "volcano", "koordinator"),
)
"""The sections whose vendors the fleet has; the conformance suite has every vendor."""


def the_config() -> str:
    """The built-in file with what it leaves out: the old Iluvatar family, AMD's percentage, blocks of some MiB."""
    built_in = yaml.safe_load(Path(load.__file__).with_name(load.FILE_NAME).read_text(encoding="utf-8"))
    written = {section: built_in[section] for section in MODELLED}
    written["iluvatar"] = {
        "resourceCountName": "iluvatar.ai/vgpu",
        "resourceMemoryName": "iluvatar.ai/vcuda-memory",
        "resourceCoreName": "iluvatar.ai/vcuda-core",
    }
    written["volcano"]["gpuMemoryFactor"] = vgpus.BLOCK
    written["amd"]["resourceMemoryPercentageName"] = "amd.com/gpumem-percentage"
    return yaml.safe_dump(written, sort_keys=False)
