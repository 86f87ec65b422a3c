"""Models of cards that a node of the dev cluster may have, and how their device plugins register them.

The forms are those of docs/spec/node-registration.md; resource names are those of HAMi's chart.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .client import JSON

MOST_CARDS = 64
"""Of one node. HAMi reads registrations of up to 256."""


class NoSuchBoard(Exception):
    """The text says what there is instead."""


@dataclass(frozen=True)
class Model:
    """A card: `type` is what the device plugin registers, `memory` MiB, `slots` how many containers may share it."""

    type: str
    memory: int = 0
    slots: int = 1
    cores: int = 100
    cards: int = 8
    """How many a machine has."""
    linked: bool = False
    """Whether NVLink joins all cards of a machine."""


@dataclass(frozen=True)
class Offer:
    """What a node has by its device plugin: what that registers, and what kubelet reports for it."""

    capacity: dict[str, int]
    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    handshake: str = ""
    """The annotation by which the plugin says that it is alive; "" where it has none, or never answers."""


@dataclass(frozen=True)
class Board:
    """`cards` cards of a model of a vendor."""

    vendor: str
    name: str
    model: Model
    cards: int

    def offer(self, node: str) -> Offer:
        """What a node of this name registers."""
        return _OFFERS[self.vendor](node, self.model, self.cards)


def find(vendor: str, model: str | None, cards: int | None) -> Board:
    """What the command line names; without a model and a number of cards, what is usual. Raises `NoSuchBoard`."""
    models = MODELS[vendor]
    names = {name.lower(): name for name in models}
    name = next(iter(models)) if model is None else names.get(model.lower().removeprefix("nvidia "), "")
    if not name:
        given = str(model).lower()
        near = [each for each in names if given and each.startswith(given)] or difflib.get_close_matches(
            given, names, 1
        )
        meant = f"; did you mean {names[near[0]]}?" if near else "."
        raise NoSuchBoard(f"{vendor} has no model {model} here{meant} There are: {', '.join(models)}")
    found = models[name]
    number = found.cards if cards is None else cards
    if not 1 <= number <= MOST_CARDS:
        raise NoSuchBoard(f"--cards must be 1 to {MOST_CARDS}, not {number}")
    if vendor == "awsneuron" and number != found.cards:
        raise NoSuchBoard(f"an instance {name} has {found.cards} devices, not {number}: leave --cards out")
    return Board(vendor, name, found, number)


def _cards(node: str, model: Model, cards: int, **more: object) -> list[JSON]:
    """Cards in HAMi's JSON."""
    return [
        {
            "id": f"{node}-{index}",
            "index": index,
            "count": model.slots,
            "devmem": model.memory,
            "devcore": model.cores,
            "type": model.type,
            "numa": _numa(index, cards),
            "health": True,
            **more,
        }
        for index in range(cards)
    ]


def _numa(index: int, cards: int) -> int:
    return int(cards > 1 and index >= cards / 2)


def _colons(node: str, model: Model, cards: int, *more: str) -> str:
    """Cards in HAMi's older form, each ended by a colon; `more` are fields after the seven that all have."""
    fields = (
        (f"{node}-{index}", model.slots, model.memory, model.cores, model.type, _numa(index, cards), "true")
        for index in range(cards)
    )
    return "".join(",".join(map(str, (*each, *more))) + ":" for each in fields)


def _nvidia(node: str, model: Model, cards: int) -> Offer:
    registered = _cards(node, model, cards, mode="hami-core")
    annotations = {"hami.io/node-nvidia-register": json.dumps(registered)}
    if model.linked and cards > 1:
        ids = [card["id"] for card in registered]
        scores = [{"uuid": one, "score": {other: 200 for other in ids if other != one}} for one in ids]
        annotations["hami.io/node-nvidia-score"] = json.dumps(scores)
    # the plugin of HAMi 2.10 answers no handshake
    return Offer({"nvidia.com/gpu": cards * model.slots}, annotations)


def _json(suffix: str, resource: str, handshake: str = "", **more: object) -> Callable[[str, Model, int], Offer]:
    def offer(node: str, model: Model, cards: int) -> Offer:
        listed = json.dumps(_cards(node, model, cards, **more))
        named = {"type": model.type}
        key, answered = (f"hami.io/node-{text.format(**named)}" if text else "" for text in (suffix, handshake))
        return Offer({resource.format(**named): cards * model.slots}, {key: listed}, handshake=answered)

    return offer


def _hygon(node: str, model: Model, cards: int) -> Offer:
    listed = {"hami.io/node-dcu-register": _colons(node, model, cards, "0", "hami")}
    return Offer({"hygon.com/dcunum": cards * model.slots}, listed, handshake="hami.io/node-handshake-dcu")


def _iluvatar(node: str, model: Model, cards: int) -> Offer:
    listed = {f"hami.io/node-{model.type}-register": _colons(node, model, cards)}
    handshake = f"hami.io/node-handshake-{model.type}"
    return Offer({f"iluvatar.ai/{model.type}-vgpu": cards * model.slots}, listed, handshake=handshake)


def _metax(node: str, model: Model, cards: int) -> Offer:
    listed = [
        {
            "uuid": f"{node}-{index}",
            "model": model.type,
            "totalDevCount": model.slots,
            "totalCompute": model.cores,
            "totalVRam": model.memory,
            "numa": _numa(index, cards),
            "healthy": True,
            "linkZone": 1,
        }
        for index in range(cards)
    ]
    return Offer({"metax-tech.com/sgpu": cards * model.slots}, {"metax-tech.com/node-gpu-devices": json.dumps(listed)})


def _awsneuron(node: str, model: Model, cards: int) -> Offer:
    capacity = {"aws.amazon.com/neuron": cards, "aws.amazon.com/neuroncore": cards * model.cores}
    return Offer(capacity, labels={"node.kubernetes.io/instance-type": model.type})


def _cambricon(node: str, model: Model, cards: int) -> Offer:
    capacity = {
        "cambricon.com/vmlu": cards * model.slots,
        "cambricon.com/mlu.smlu.vcore": cards * model.cores,
        "cambricon.com/mlu.smlu.vmemory": cards * model.memory // 256,
    }
    return Offer(capacity, labels={"Model": model.type})


def _enflame(node: str, model: Model, cards: int) -> Offer:
    slices = json.dumps({str(index): model.slots for index in range(cards)})
    capacity = {"enflame.com/gcu-count": cards, "enflame.com/shared-gcu": cards * model.slots}
    labels = {"enflame.com/gcushare": "true"}
    return Offer(capacity, {"enflame.com/gcu-shared-capacity": slices}, labels)


def _mthreads(node: str, model: Model, cards: int) -> Offer:
    return Offer(
        {
            "mthreads.com/vgpu": cards * model.slots,
            "mthreads.com/sgpu-core": cards * model.cores,
            "mthreads.com/sgpu-memory": cards * model.memory // 512,
        }
    )


_OFFERS: Mapping[str, Callable[[str, Model, int], Offer]] = {
    "nvidia": _nvidia,
    "amd": _json("amd-register", "amd.com/gpu"),
    "ascend": _json("register-{type}", "huawei.com/{type}", "handshake-{type}", custominfo={"NetworkID": 0}),
    "awsneuron": _awsneuron,
    "biren": _json("biren-register", "birentech.com/gpu", "handshake-biren"),
    "cambricon": _cambricon,
    "enflame": _enflame,
    "hygon": _hygon,
    "iluvatar": _iluvatar,
    "kunlun": _json("register-xpu", "kunlunxin.com/vxpu", "handshake-xpu"),
    "metax": _metax,
    "mthreads": _mthreads,
    "vastai": _json("va-register", "vastaitech.com/va", "handshake-va"),
}


def _nvidia_model(name: str, memory: int, linked: bool = False) -> Model:
    return Model(f"NVIDIA {name}", memory, 10, linked=linked)


MODELS: Mapping[str, Mapping[str, Model]] = {
    "nvidia": {
        "A100-SXM4-40GB": _nvidia_model("A100-SXM4-40GB", 40960, linked=True),
        "A100-SXM4-80GB": _nvidia_model("A100-SXM4-80GB", 81920, linked=True),
        "H100 80GB HBM3": _nvidia_model("H100 80GB HBM3", 81559, linked=True),
        "H200": _nvidia_model("H200", 143771, linked=True),
        "A10": _nvidia_model("A10", 24576),
        "L40S": _nvidia_model("L40S", 49140),
        "L4": _nvidia_model("L4", 23034),
        "T4": Model("Tesla T4", 15360, 10),
        "V100-SXM2-32GB": Model("Tesla V100-SXM2-32GB", 32768, 10, linked=True),
    },
    "amd": {"MI300X": Model("AMD Instinct MI300X VF", 196288, 10, cores=304)},
    "ascend": {
        "910B3": Model("Ascend910B3", 65536, 4, cores=20),
        "910A": Model("Ascend910A", 32768, 16, cores=30),
        "910B2": Model("Ascend910B2", 65536, 8, cores=24),
        "910B4": Model("Ascend910B4", 32768, 4, cores=20),
        "910B4-1": Model("Ascend910B4-1", 65536, 4, cores=20),
        "910C": Model("Ascend910C", 65536, 4, cores=20),
        "310P": Model("Ascend310P", 21527, 7, cores=8),
    },
    "awsneuron": {
        "trn1.32xlarge": Model("trn1.32xlarge", cores=2, cards=16),
        "inf2.24xlarge": Model("inf2.24xlarge", cores=2, cards=6),
        "inf1.xlarge": Model("inf1.xlarge", cores=4, cards=1),
    },
    "biren": {"BR106": Model("Biren", 65024)},
    "cambricon": {"MLU370-X4": Model("MLU370-X4", 23296, 100)},
    "enflame": {"S60": Model("S60", slots=6)},
    "hygon": {"K100_AI": Model("DCU-K100_AI", 65520, 4), "Z100L": Model("DCU-Z100L", 32752, 30)},
    "iluvatar": {
        "BI-V150": Model("BI-V150", 32768, 100),
        "BI-V100": Model("BI-V100", 32768, 100),
        "MR-V100": Model("MR-V100", 32768, 100),
        "MR-V50": Model("MR-V50", 16384, 100),
    },
    "kunlun": {"P800": Model("XPU", 98304, 4)},
    "metax": {"MXC500": Model("MXC500", 65536, 16)},
    "mthreads": {"S4000": Model("S4000", 49152, 100, cores=16)},
    "vastai": {"VA16": Model("Vastai", 32768)},
}
"""By vendor; the first of each is what a node gets that names none."""
