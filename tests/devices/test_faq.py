"""What HAMi's FAQ says is supported, row by row and sentence by sentence, taken through admission and Fit.

Where the FAQ and a vendor's page disagree the page holds, and a row says so in `instead`. Not in the tables: what
happens inside a container or at run time (logs, pausing tasks, runtimes), KubeVirt and Kata, which nobody schedules
differently, and Volcano's queues.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from builders import read_node
from tables import in_one_test

from hami_webhook.kube.objects import Node

from .fit_env import CHART, JSON, FitEnv, Names, Placed, configured, pod

OLD_ILUVATAR = configured(
    "iluvatar: {resourceCountName: iluvatar.ai/vgpu, resourceMemoryName: iluvatar.ai/vcuda-memory, "
    "resourceCoreName: iluvatar.ai/vcuda-core}"
)
GPU = Names("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores")
DCU = Names("hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores")
MLU = Names("cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore")
MT = Names("mthreads.com/vgpu", "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core")
SGPU = Names("metax-tech.com/sgpu", "metax-tech.com/vmemory", "metax-tech.com/vcore")
OLD = Names("iluvatar.ai/vgpu", "iluvatar.ai/vcuda-memory", "iluvatar.ai/vcuda-core")
WHOLE = "metax-tech.com/gpu"
SOFT = {"huawei.com/vnpu-mode": "hami-core"}


def npu(chip: str) -> Names:
    return Names(f"huawei.com/{chip}", f"huawei.com/{chip}-memory", f"huawei.com/{chip}-core")


def corex(chip: str) -> Names:
    return Names(f"iluvatar.ai/{chip}-vgpu", f"iluvatar.ai/{chip}.vMem", f"iluvatar.ai/{chip}.vCore")


def listed(
    key: str, memory: int, model: str, cards: int = 2, *, cores: int = 100, name: str = "n1", **notes: Any
) -> Node:
    """A node that lists cards `c0`, `c1`, … in an annotation, as JSON."""
    records = [
        {"id": f"c{i}", "index": i, "count": 10, "devmem": memory, "devcore": cores, "type": model, "health": True}
        for i in range(cards)
    ]
    return read_node(name, **{key: json.dumps(records), **notes})


def nvidia(model: str, cards: int = 2, **more: Any) -> Node:
    return listed("hami.io/node-nvidia-register", 24576, model, cards, **more)


def ascend(chip: str, memory: int, *, soft: bool = False) -> Node:
    notes: JSON = {"hami-vnpu-core": "true"} if soft else {}
    return listed(f"hami.io/node-register-{chip}", memory, chip, cores=100 if soft else 20, **notes)


def hygon(model: str) -> Node:
    return read_node(
        "n1", **{"hami.io/node-dcu-register": "".join(f"c{i},4,65520,100,{model},0,true:" for i in (0, 1))}
    )


def cambricon(model: str) -> Node:
    return read_node("n1", labels={"Model": model}, capacity={MLU.cores: 200, MLU.memory: 182})


def mthreads() -> Node:
    return read_node("n1", capacity={MT.cores: 32, MT.memory: 192})


def old_iluvatar() -> Node:
    return read_node("n1", capacity={OLD.cores: 200, OLD.memory: 256})


def metax() -> Node:
    return read_node("n1", capacity={WHOLE: 2})


def sgpu() -> Node:
    cards = [
        {"uuid": f"c{i}", "totalDevCount": 16, "totalCompute": 100, "totalVRam": 65536, "healthy": True}
        for i in range(2)
    ]
    return read_node("n1", **{"metax-tech.com/node-gpu-devices": json.dumps(cards)})


def expected_share(vendor: str, placed: Placed | Mapping[str, str], where: FitEnv) -> list[tuple[int, int]]:
    """MiB and cores of every entry that placement wrote."""
    assert isinstance(placed, Placed), placed
    entries = [entry for entry in placed.annotations[where.vendors[vendor].keys.allocated].split(":") if entry != ";"]
    return [(int(memory), int(cores)) for _, _, memory, cores in (entry.split(",") for entry in entries)]


@dataclass(frozen=True)
class Row:
    """A vendor of the FAQ's table: what a node with its cards makes of the least a pod may ask, and of two cards.

    `least`: count, memory and cores in the resources' units; `finest`: what is booked for them, MiB and cores.
    `two`: what is asked of two cards; `of_two`: what is booked of each, or the refusal's words. `alone`: then nobody
    else gets on those cards. That finer amounts are refused is in the conformance suite.
    """

    vendor: str
    models: Sequence[str]
    node: Node
    names: Names
    least: Sequence[object]
    finest: tuple[int, int]
    two: Sequence[object]
    of_two: tuple[int, int] | str
    alone: bool = True
    notes: Mapping[str, str] = field(default_factory=dict)
    instead: str = ""


ROWS = [
    *(
        Row("NVIDIA", [model], nvidia(model), GPU, (1, 1, 1), (1, 1), (2, 2000, 30), (2000, 30), False)
        for model in ("NVIDIA A100-SXM4-40GB", "NVIDIA-Tesla V100-PCIE-32GB", "NVIDIA GeForce RTX 4090", "NVIDIA-L40S")
    ),
    # Ascend: the templates decide what is finest; core needs soft mode, and so do several slices.
    *(
        Row(
            chip, [chip], ascend(chip, memory), npu(chip), (1, 1), (least, 0), (2, least),
            "vNPU not supported for multiple devices",
            instead="ascend 5: several slices are refused, where the FAQ would silently give whole cards",
        )
        for chip, memory, least in (
            ("Ascend910A", 32768, 2184), ("Ascend910B2", 65536, 8192), ("Ascend910B3", 65536, 16384),
            ("Ascend310P", 21527, 3072),
        )
    ),
    *(
        Row(chip, [chip], ascend(chip, memory), npu(chip), (1,), (memory, 0), (2,), (memory, 0))
        for chip, memory in (
            ("Ascend910A", 32768), ("Ascend910B2", 65536), ("Ascend910B3", 65536), ("Ascend310P", 21527),
        )
    ),
    Row(
        "Ascend910B3", ["Ascend910B3"], ascend("Ascend910B3", 65536, soft=True), npu("Ascend910B3"),
        (1, 1, 1), (1, 1), (2, 8000, 20), (8000, 20), False, SOFT,
        "ascend 1 and 4: soft mode splits to the MiB and the percent, several cards too",
    ),
    *(
        Row("DCU", [model], hygon(model), DCU, (1, 1, 1), (1, 1), (2, 2000, 30), (65520, 100))
        for model in ("DCU-Z100", "DCU-Z100L", "DCU-K100_AI")
    ),
    *(
        Row("MLU", [model], cambricon(model), MLU, (1, 1, 1), (256, 1), (2, 20, 10), (23296, 100))
        for model in ("MLU370-X8", "MLU590")
    ),
    *(
        Row(
            chip, [chip], listed(f"hami.io/node-{chip}-register", 32768, chip), corex(chip),
            (1, 1, 1), (256, 1), (2, 64, 30), (32768, 100),
        )
        for chip in ("MR-V100", "MR-V50", "BI-V150", "BI-V100")
    ),
    Row("Iluvatar", ["all"], old_iluvatar(), OLD, (1, 1, 1), (256, 1), (2, 64, 30), (32768, 100)),
    Row(
        "Mthreads", ["MTT S4000"], mthreads(), MT, (1, 2, 1), (1024, 1), (2, 2, 1), (49152, 16),
        instead="mthreads 2: memory is counted in 512 MiB, but the smallest slice is two units",
    ),
    Row("Metax-GPU", ["MXC500"], metax(), Names(WHOLE, "", ""), (1,), (65536, 100), (2,), (65536, 100)),
    Row(
        "Metax-SGPU", ["MXC500"], sgpu(), SGPU, (1, "1Mi", 1), (1, 1), (2, 4, 30), (4096, 30), False,
        instead="metax 1: shared cards came after the FAQ, which knows whole ones only",
    ),
]  # fmt: skip


def env(row: Row) -> FitEnv:
    return FitEnv([row.node], OLD_ILUVATAR if row.vendor == "Iluvatar" else CHART)


@in_one_test("row", ROWS)
def test_the_finest_share_there_is_can_be_had_and_is_what_is_booked(row: Row) -> None:
    where = env(row)
    incoming = row.names.pod("p", *row.least, notes=row.notes)
    assert expected_share(row.vendor, where.place(incoming), where) == [row.finest]


@in_one_test("row", ROWS)
def test_several_cards_are_split_or_given_whole_as_the_vendor_can(row: Row) -> None:
    where = env(row)
    incoming = row.names.pod("p", *row.two, notes=row.notes)
    if isinstance(row.of_two, str):
        assert row.of_two in where.admit(incoming).message
        return
    placed = where.place(incoming)
    assert expected_share(row.vendor, placed, where) == [row.of_two] * 2
    another = where.place(row.names.pod("next", *row.least, notes=row.notes))
    if row.alone:
        assert isinstance(another, dict), "a card given whole is shared"
    else:
        assert isinstance(another, Placed)


SMALL = GPU.pod("p", 1, 1000, 5)


def test_slots_are_no_cards_two_are_two_physical_ones() -> None:
    assert FitEnv([nvidia("NVIDIA A10", 1)]).place(GPU.pod("p", 2, 1000)) == {"n1": "NodeInsufficientDevice"}
    where = FitEnv([nvidia("NVIDIA A10", 2)])
    placed = where.placed(GPU.pod("p", 2, 1000))
    uuids = [entry.split(",")[0] for entry in placed.annotations["hami.io/vgpu-devices-allocated"].split(":")[:2]]
    assert sorted(uuids) == ["c0", "c1"]  # the cards' own ids, which the containers see


@pytest.mark.parametrize("level", [0, 1])
def test_a_priority_is_for_run_time_and_moves_no_pod(level: int) -> None:
    where = FitEnv([nvidia("NVIDIA A10", 2)])
    with_priority = pod(**GPU.limits(1, 1000, 5), **{"nvidia.com/priority": level})
    assert where.placed(with_priority, keep=False) == where.placed(SMALL, keep=False)


def test_a_pod_is_on_one_node_and_a_job_on_many() -> None:
    """Two nodes of two cards: three cards exist, but on no node; four pods of one card get all four cards."""
    where = FitEnv([nvidia("NVIDIA A10"), nvidia("NVIDIA A10", name="n2")])
    assert where.place(GPU.pod("p", 3, 1000)) == {"n1": "NodeInsufficientDevice", "n2": "NodeInsufficientDevice"}
    for number in range(2):
        assert isinstance(where.place(GPU.pod(f"rank-{number}", 2, 24576)), Placed)
    assert {other.node_name for other in where.state.pods()} == {"n1", "n2"}


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        ({}, "node unregistered"),  # NVIDIA's own plugin offers the same resource, and lists no cards
        ({"volcano.sh/node-vgpu-register": "GPU-1,10,24576,NVIDIA A10,true,hami-core:"}, "node unregistered"),
    ],
    ids=["official", "volcano"],
)
def test_another_plugins_node_takes_none_of_our_pods(annotations: Mapping[str, str], why: str) -> None:
    assert FitEnv([read_node("n1", capacity={GPU.count: 10}, **annotations)]).place(SMALL) == {"n1": why}


def test_beside_volcanos_plugin_only_our_own_list_counts() -> None:
    """The two may be on one node, though that isn't advised; what Volcano's lists adds no card."""
    theirs = {"volcano.sh/node-vgpu-register": "GPU-1,10,24576,NVIDIA A10,true,hami-core:"}
    where = FitEnv([nvidia("NVIDIA A10", 1, **theirs)])
    assert where.place(GPU.pod("p", 2, 1000)) == {"n1": "NodeInsufficientDevice"}
    assert isinstance(where.place(SMALL), Placed)


L40S = (
    "GPU-fc28df76-54d2-c387-e52e-5f0a9495968c,10,49140,100,NVIDIA-NVIDIA L40S,0,true:"
    "GPU-b97db201-0442-8531-56d4-367e0c7d6edd,10,49140,100,NVIDIA-NVIDIA L40S,0,true:"
)


def test_a_node_that_offers_cards_only_has_its_memory_in_the_annotation() -> None:
    """The sample of the FAQ, in the form of HAMi 2.7; nvidia.com/gpumem and gpucores are on no node."""
    where = FitEnv([read_node("n1", capacity={GPU.count: 20}, **{"hami.io/node-nvidia-register": L40S})])
    assert isinstance(where.place(GPU.pod("p", 2, 49140)), Placed)
    assert where.place(GPU.pod("q", 1, 1)) == {"n1": "2/2 CardInsufficientMemory"}
