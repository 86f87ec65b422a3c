"""The cards that vendors read of a node: of what plugins register, and of capacity (docs/spec/node-registration.md#2).

Texts that can't be read are in `test_codecs.py`, and for every vendor in `test_conformance.py`.
"""

from __future__ import annotations

import pytest
from builders import read_node
from tables import in_one_test

from hami_webhook.devices.capacity_devices import split
from hami_webhook.devices.model import RegistrationError
from hami_webhook.devices.registration import MOST_CARDS

from .fit_env import CHART, JSON, registered
from .test_conformance import OLD_ILUVATAR


def parts(cores: object, memory: object) -> list[tuple[str, int]]:
    capacity = {"a.b/core": cores, "a.b/memory": memory}
    found = split(
        "X", read_node(capacity=capacity), "x", cores="a.b/core", memory="a.b/memory", unit=256, card_cores=100
    )
    return [(device.uuid, device.memory) for device in found]


@pytest.mark.parametrize(
    ("cores", "memory", "cards"),
    [
        (0, 5, []),
        ("1500m", 5, []),
        (-100, 5, []),
        (1, 1, [("n1-x-0", 25600)]),
        (200, 0, [("n1-x-0", 0), ("n1-x-1", 0)]),
        (200, "2.5", [("n1-x-0", 0), ("n1-x-1", 0)]),
        (300, 1000, [("n1-x-0", 85333), ("n1-x-1", 85333), ("n1-x-2", 85333)]),
    ],
)
def test_every_card_has_its_share_and_the_last_may_be_incomplete(
    cores: object, memory: object, cards: list[tuple[str, int]]
) -> None:
    assert parts(cores, memory) == cards


def test_as_many_cards_as_no_node_can_have_are_refused_before_they_are_made() -> None:
    assert len(parts(MOST_CARDS * 100, 1)) == MOST_CARDS
    for cores, memory in ((MOST_CARDS * 100 + 1, 1), ("1e18", 1), (100, 2**31)):
        with pytest.raises(RegistrationError, match="can't be"):
            parts(cores, memory)


MLU = "cambricon.com/mlu.smlu."
ILUVATAR, MTHREADS, NEURON, GCU = "iluvatar.ai/vcuda-", "mthreads.com/sgpu-", "aws.amazon.com/neuron", "enflame.com/"


def sums(prefix: str, cores: object, memory: object) -> JSON:
    return {f"{prefix}core": cores, f"{prefix}memory": memory}


def neurons(devices: object, cores: object) -> JSON:
    return {NEURON: devices, f"{NEURON}core": cores}


@in_one_test(
    ("key", "capacity", "name", "memories", "slots", "cores"),
    [
        ("MLU", sums(f"{MLU}v", "800", "728"), "cambricon-mlu", [23296] * 8, 100, 100),
        ("MLU", sums(f"{MLU}v", 250, 250), "cambricon-mlu", [25600] * 3, 100, 100),
        ("MLU", sums(f"{MLU}v", 200, None), "cambricon-mlu", [0, 0], 100, 100),
        ("MLU", sums(f"{MLU}v", "2k", "1k"), "cambricon-mlu", [12800] * 20, 100, 100),
        ("MLU", sums(f"{MLU}v", None, 100), "", [], 0, 0),
        ("Iluvatar", sums(ILUVATAR, 250, 257), "iluvatar", [26316] * 3, 100, 100),
        ("Mthreads", sums(MTHREADS, 128, 768), "mthreads", [49152] * 8, 100, 16),
        ("Mthreads", sums(MTHREADS, 17, 5), "mthreads", [2409] * 2, 100, 16),
        ("Metax-GPU", {"metax-tech.com/gpu": 2}, "metax", [65536] * 2, 1, 100),
        ("GCU", {f"{GCU}gcu": 2}, "GCU", [100] * 2, 1, 100),
        ("GCU", {f"{GCU}gcu": "1500m"}, "", [], 0, 0),
        ("Enflame", {f"{GCU}gcu-count": 2, f"{GCU}shared-gcu": 8}, "enflame", [100] * 2, 100, 100),
        ("AWSNeuron", neurons(16, 64), "AWSNeuron", [0] * 16, 4, 4),
        ("AWSNeuron", neurons(2, 62), "AWSNeuron", [0] * 2, 31, 31),
        ("AWSNeuron", neurons(3, 3), "AWSNeuron", [0] * 3, 1, 1),
        *(("AWSNeuron", each, "", [], 0, 0) for each in (
            neurons(2, None), neurons(None, 4), neurons(-1, 4), neurons("1500m", 4), neurons(2, "x"),
        )),
    ],
)  # fmt: skip
def test_the_cards_that_vendors_make_of_capacity(
    key: str, capacity: JSON, name: str, memories: list[int], slots: int, cores: int
) -> None:
    """Each with its share of the memory, in MiB (percent of Enflame's)."""
    vendor = OLD_ILUVATAR[key] if key == "Iluvatar" else CHART[key]
    given = {resource: amount for resource, amount in capacity.items() if amount is not None}
    found = vendor.inventory(read_node("n1", capacity=given))
    devices = found.devices if found else ()
    assert [(d.uuid, d.index, d.memory) for d in devices] == [
        (f"n1-{name}-{index}", index, memory) for index, memory in enumerate(memories)
    ]
    assert {(d.vendor, d.type, d.slots, d.cores, d.numa, d.healthy) for d in devices} <= {
        (key, key, slots, cores, 0, True)
    }


AMD, BIREN, VASTAI = (f"hami.io/node-{name}-register" for name in ("amd", "biren", "va"))
DCU, BI_V150 = "hami.io/node-dcu-register", "hami.io/node-BI-V150-register"
ONE_DIE = '"count":1,"devmem":16384,"type":"Vastai","health":true,"custominfo":{"DeviceStrategy":"die","AIC":"1"}'


@in_one_test(
    ("key", "register", "text", "cards"),
    [
        (
            "AMD", AMD,
            '[{"id":"8eff74b5","index":0,"count":10,"devmem":196288,"devcore":304,"type":"AMD Instinct MI300X VF",'
            '"numa":0,"health":true,"devicevendor":"amd","custominfo":{"pciBDF":"0000:83:00.0"}}]',
            [("8eff74b5", 0, 10, 196288, 304, "AMD Instinct MI300X VF", True)],
        ),
        # the first card has no index, other keys are ignored, compute is 100
        (
            "Biren", BIREN,
            '[{"id":"GPU-a1","count":1,"devmem":65024,"type":"Biren","health":true,"devicepairscore":{"x":1}},'
            '{"id":"GPU-a2","index":1,"count":1,"devmem":65024,"type":"Biren166M","health":true,"devcore":7}]',
            [("GPU-a1", 0, 1, 65024, 100, "Biren", True), ("GPU-a2", 1, 1, 65024, 100, "Biren166M", True)],
        ),
        (
            "Vastai", VASTAI, '[{"id":"7-0","count":1,"devmem":32768,"type":"Vastai","health":true}]',
            [("7-0", 0, 1, 32768, 100, "Vastai", True)],
        ),
        (
            "Vastai", VASTAI, f'[{{"id":"d0",{ONE_DIE}}},{{"id":"d1","index":1,{ONE_DIE}}}]',
            [("d0", 0, 1, 16384, 100, "Vastai", True), ("d1", 1, 1, 16384, 100, "Vastai", True)],
        ),
        (
            "DCU", DCU, "DCU-TP,4,65520,100,DCU-K100_AI,0,true,0,hami:DCU-TQ,4,65520,100,DCU-K100_AI,0,false,1,hami:",
            [("DCU-TP", 0, 4, 65520, 100, "DCU-K100_AI", True), ("DCU-TQ", 1, 4, 65520, 100, "DCU-K100_AI", False)],
        ),
        ("DCU", DCU, "DCU-0,30,32752,100,DCU-Z100L,0,true:", [("DCU-0", 0, 30, 32752, 100, "DCU-Z100L", True)]),
        # both forms in one text; whatever the type says, the cards are the chip's
        (
            "BI-V150", BI_V150, "a,10,8192,100,MR-V100,0,true,3,hami-core:b,10,8192,100,x,0,false:",
            [("a", 3, 10, 8192, 100, "MR-V100", True), ("b", 1, 10, 8192, 100, "x", False)],
        ),
        (
            "BI-V150", BI_V150,
            '[{"id":"a","index":4,"count":2,"devmem":5,"devcore":100,"type":"BI-V150S","health":true}]',
            [("a", 4, 2, 5, 100, "BI-V150S", True)],
        ),
    ],
)  # fmt: skip
def test_the_cards_that_plugins_register(key: str, register: str, text: str, cards: list[tuple[object, ...]]) -> None:
    """The literal samples of the vendors' pages, and what is special in them."""
    found = registered(CHART[key], read_node(**{register: text}))
    assert [(d.uuid, d.index, d.slots, d.memory, d.cores, d.type, d.healthy) for d in found.devices] == cards
    assert {(d.vendor, d.numa) for d in found.devices} == {(key, 0)}
