"""Pods of every kind, seeded: every resource of every vendor."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import gpu_shares, vgpus
from .families import ASCEND, COREX, FAMILIES, GIB, JSON, TEMPLATES
from .fleet import NAMESPACES

FAMILY = {family.name: family for family in FAMILIES}
POLICY = "hami.io/gpu-scheduler-policy"
CLASS = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "gold"}, "value": 1000}


@dataclass(frozen=True)
class Arriving:
    """A pod before it has a name."""

    apps: list[JSON]
    inits: list[JSON] = field(default_factory=list)
    notes: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)


def box(name: str = "main", /, *, sidecar: bool = False, **limits: object) -> JSON:
    made: JSON = {
        "name": name,
        "image": "example.com/x:1",
        "resources": {"limits": {k: str(v) for k, v in limits.items()}},
    }
    return {**made, "restartPolicy": "Always"} if sidecar else made


def of(family: str, count: object = None, memory: object = None, cores: object = None) -> JSON:
    """Limits by what they are."""
    one = FAMILY[family]
    named = {one.count: count, one.memory: memory, one.cores: cores}
    return {name: amount for name, amount in named.items() if amount is not None}


def alone(limits: JSON, notes: Mapping[str, str] | None = None, **spec: Any) -> Arriving:
    return Arriving([box(**limits)], notes=notes or {}, spec=spec)


def _nvidia(pick: random.Random) -> Iterator[Arriving]:
    def gpu(*amounts: object, percent: object = None, **more: object) -> JSON:
        share = {} if percent is None else {"nvidia.com/gpumem-percentage": percent}
        return {**of("NVIDIA", *amounts), **share, **more}

    def small() -> JSON:
        return gpu(1, pick.randrange(200, 9000), pick.choice((0, 5, 30)))

    yield alone(small())
    yield alone(gpu(1, pick.randrange(200, 9000)))
    yield alone(gpu(1, percent=pick.choice((5, 25, 50))))
    yield alone(gpu(2, percent=pick.choice((10, 50)), cores=None) | {"nvidia.com/gpucores": 30})
    yield alone(gpu(1))
    yield alone(gpu(1, percent=100))
    yield alone(gpu(None, 3000))
    yield alone(gpu(None, None, 20))
    yield alone(gpu(pick.choice((2, 4)), 5000, 20), {POLICY: "topology-aware"})
    yield alone(small(), {POLICY: "binpack", "hami.io/node-scheduler-policy": "spread"})
    yield alone(small(), {POLICY: "mutex"})
    yield alone(gpu(2, 1000, 10), {"nvidia.com/numa-bind": "true"})
    yield alone(small(), {"nvidia.com/use-gputype": pick.choice(("T4", "l40s, A100", "A10"))})
    yield alone(gpu(1, percent=50), {"nvidia.com/nouse-gputype": "T4,A10"})
    yield alone(gpu(1, percent=25), {"nvidia.com/use-gpuuuid": "nvidia-a100-c1,nvidia-a10-1-c2 , gone"})
    yield alone(small(), {"nvidia.com/nouse-gpuuuid": "nvidia-mps-c0,nvidia-mps-c1", "nvidia.com/vgpu-mode": "mps"})
    yield alone(gpu(pick.choice((1, 2)), 9000), {"nvidia.com/vgpu-mode": "mig"})
    yield alone(gpu(1, percent=50), {"nvidia.com/vgpu-mode": "mig"})
    yield alone(small(), {"hami.io/device-scoring-weights": "slot=1,core=0,memory=5"})
    yield alone({**small(), "nvidia.com/priority": pick.choice((0, 1))})
    yield alone(small(), nodeSelector={"pool": "nvidia"}, priorityClassName="gold")
    yield alone(small(), schedulerName="some-other-scheduler")
    yield alone(gpu(1, percent=pick.choice((10, 60))), schedulerName="some-other-scheduler")
    yield Arriving(
        [box("a", **small()), box("log", cpu="1"), box("b", **gpu(1, 1000, 5))],
        [box("load", **gpu(2, 6000)), box("side", sidecar=True, **gpu(1, 300))],
    )
    yield Arriving(
        [box("a", **gpu(1, percent=20))], [box("side", sidecar=True, **gpu(1, 300)), box("load", **gpu(1, 8000))]
    )
    yield Arriving([box("gpu", **small()), box("dcu", **of("DCU", 1, 2000, 20))])
    # several instances of one card for an init container; two that fill a card but for a few MiB
    yield Arriving([box("a", **small())], [box("load", **gpu(2, 4000))], {"nvidia.com/vgpu-mode": "mig"})
    yield alone(gpu(1, 12288), {"nvidia.com/use-gpuuuid": "nvidia-a10-2-c0"})
    yield alone(gpu(1, 12300), {"nvidia.com/use-gpuuuid": "nvidia-a10-2-c0"})
    yield alone(small(), {"nvidia.com/use-gputype": "H100"})
    yield alone(gpu(9, 100))
    yield Arriving([box(cpu="2", memory="1Gi")])


def _ascend(pick: random.Random) -> Iterator[Arriving]:
    for chip in ASCEND:
        whole, _, slices = TEMPLATES[chip]
        yield alone(of(chip, 1, pick.choice((1, slices[0], slices[-1] - 5, whole))))
    chip = pick.choice(ASCEND)
    b3 = "Ascend910B3"
    yield alone(of(chip, 2))
    yield alone(of("Ascend310P", 2, 20000))
    yield alone(of("Ascend910C", pick.choice((1, 2, 4)), pick.choice((None, None, 65536))))
    for one in ASCEND:
        soft = of(one, pick.choice((1, 2)), pick.randrange(1000, 12000), pick.choice((10, 15)))
        yield alone(soft, {"huawei.com/vnpu-mode": "hami-core"})
    yield alone(of(b3, 1), {f"hami.io/use-{b3}-uuid": "ascend-ascend910b3-c2, ascend-soft-Ascend910B3-1"})
    yield alone(of(b3, 1, 16384), {f"hami.io/no-use-{b3}-uuid": "ascend-ascend910b3-c3", POLICY: "binpack"})
    yield Arriving([box("a", **of(b3, 1, 16384)), box("side")], [box("init", **of(b3, 1, 30000))])


def _slices(pick: random.Random) -> Iterator[Arriving]:
    """Hygon, Cambricon, Iluvatar, Moore Threads: a slice of a card, or whole cards."""
    yield alone(of("DCU", 1, pick.randrange(1000, 16000), pick.choice((10, 25))))
    yield alone(of("DCU", 1))
    yield alone(of("DCU", 1, pick.randrange(1000, 30000)))
    yield alone(of("DCU", 1, None, pick.choice((0, 30))), {"hygon.com/use-dcutype": "z100"})
    yield alone(of("DCU", 2, pick.choice((None, 2000))))
    yield alone(of("DCU", 1, 2000, 5), {"hygon.com/use-gpuuuid": "hygon-k100-c1"})
    yield alone(of("HCU", 1, pick.randrange(1000, 16000), pick.choice((10, 25))))
    yield alone(of("HCU", 1, None, pick.choice((0, 30))), {"hygon.com/use-hcutype": "k100"})
    yield alone(of("HCU", 2, pick.choice((None, 2000))))
    yield alone(of("MLU", 1, pick.randrange(4, 60), pick.choice((10, 25))))
    yield alone(of("MLU", pick.choice((1, 2)), None, None))
    yield alone(of("MLU", 1, 20, 10), {"cambricon.com/use-mlutype": "mlu590", POLICY: "binpack"})
    yield alone(of("MLU", 1, 0, 20), {"cambricon.com/nouse-gpuuuid": "cambricon-370-cambricon-mlu-0"})
    chip = pick.choice(COREX)
    for one in (*COREX, "Iluvatar"):
        yield alone(of(one, 1, pick.randrange(4, 40), pick.choice((None, 10, 150))))
        yield alone(of(one, 1, 4, 10))
    yield alone(of(chip, 1))
    yield alone(of(chip, 2, pick.choice((None, 16)), 30))
    yield alone(of("Iluvatar", pick.choice((1, 2))))
    yield Arriving([box("main", **of(chip, 1, 16, 20))], [box("prep", **of(chip, 1, 32, 50))])
    yield alone(of("Iluvatar", 1, 8, 5), {"iluvatar.ai/nouse-gpuuuid": "iluvatar-old-iluvatar-2"})
    yield alone(of("Mthreads", 1, pick.choice((2, 4, 8, 16, 32)), pick.choice((None, 2, 4))))
    yield alone(of("Mthreads", pick.choice((1, 2)), None, pick.choice((None, 1))))
    yield Arriving([box("a", **of("Mthreads", 1, 8, 2)), box("b", **of("Mthreads", 1, 4, 2))])
    yield alone(of("Mthreads", 1), {"mthreads.ai/use-gpuuuid": "mthreads-small-mthreads-0,mthreads-small-mthreads-1"})


def _metax(pick: random.Random) -> Iterator[Arriving]:
    def sgpu(*amounts: object) -> JSON:
        return of("Metax-SGPU", *amounts)

    prefix = "metax-tech.com/sgpu-"
    yield alone(of("Metax-GPU", pick.choice((1, 2))))
    yield alone(sgpu(1, pick.choice((4, "1536Mi", "8Gi")), pick.choice((10, 30))))
    yield alone(sgpu(2, pick.choice((2, "2048Mi")), 20), {f"{prefix}qos-policy": "fixed-share"})
    yield alone(sgpu(1, None, pick.choice((None, 40))), {f"{prefix}topology-aware": "true"})
    yield alone(sgpu(1, 4, 60), {f"{prefix}app-class": pick.choice(("online", "offline"))})
    yield alone(sgpu(1, "1500Mi", 5), {"metax-tech.com/nouse-gpuuuid": "metax-64-c3", POLICY: "binpack"})
    yield Arriving([box("a", **sgpu(1, 2, 10)), box("b", **sgpu(1, 3, 10))])


def _enflame(pick: random.Random) -> Iterator[Arriving]:
    def drs(*amounts: object) -> JSON:
        return of("Enflame-DRS", *amounts)

    def shared(count: object, percent: object = None) -> JSON:
        return of("Enflame-shared", count, None, percent)

    yield alone(of("GCU", pick.choice((1, 2))))
    yield alone(shared(1, pick.choice((0, 15, 26, 50))))
    yield alone(shared(pick.choice((1, 2)), None))
    yield alone(shared(1, 25), {"enflame.com/use-gpuuuid": "enflame-shared-enflame-0,enflame-both-enflame-1"})
    yield alone(drs(pick.choice((1, 3))))
    yield alone(drs(None, pick.choice((6144, 6145, 20, "6Gi"))))
    yield alone(drs(None, None, pick.choice((10, 40))))
    yield alone(drs(2))
    yield Arriving([box("a", **drs(1)), box("b", **drs(None, 6144, 10))])


def _others(pick: random.Random) -> Iterator[Arriving]:
    """Kunlunxin, AWS, AMD, Biren, VastAI."""
    yield alone(of("kunlun", pick.choice((1, 2))))
    yield alone(of("kunlun", 8), {"hami.io/no-use-xpu-uuid": "kunlun-whole-kunlun-0"})
    yield alone(of("XPU", pick.choice((1, 2)), pick.choice((20480, 24576))))
    yield alone(of("XPU", 1, pick.choice((30000, 49152, None))))
    yield alone(of("XPU", 8, 49152), {"hami.io/no-use-xpu-uuid": "kunlun-vxpu-c0"})
    yield alone(of("AWSNeuron", pick.choice((1, 1, 3, 4))))
    yield alone(of("AWSNeuron", None, None, pick.choice((1, 2, 3, 4))))
    yield Arriving([box("a", **of("AWSNeuron", None, None, 1)), box("b", **of("AWSNeuron", None, None, 1))])
    yield alone(of("AWSNeuron", 1), {"aws.amazon.com/use-neuron-uuid": "aws-trn1-AWSNeuron-3", POLICY: "mutex"})
    yield alone(of("AMD", 1, pick.randrange(1000, 40000), pick.choice((1, 10, 33))))
    yield alone(of("AMD", pick.choice((1, 2)), None, pick.choice((None, 25))))
    yield alone(
        {**of("AMD", 1, None, 5), "amd.com/gpumem-percentage": pick.choice((5, 30))}, {"amd.com/use-gputype": "mi300x"}
    )
    yield Arriving([box("side"), box("main", **of("AMD", 1, 4000, 7))], [box("init", **of("AMD", 1, 9000, 50))])
    yield alone(of("Biren", pick.choice((1, 2))))
    yield alone(of("Biren", 1), {"birentech.com/use-gpuuuid": "biren-1-c0"})
    yield alone(of("Vastai", pick.choice((1, 2))))
    yield Arriving([box("va", **of("Vastai", 1)), box("biren", **of("Biren", 1))])


def _volcano(pick: random.Random) -> Iterator[Arriving]:
    use, nouse = "volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid"
    mig, use_type, group = {vgpus.MODE: "mig"}, "nvidia.com/use-gputype", "scheduling.k8s.io/group-name"

    def vgpu(number: object = None, memory: object = None, cores: object = None, percent: object = None) -> JSON:
        names = (vgpus.NUMBER, vgpus.MEMORY, vgpus.CORES, vgpus.PERCENTAGE)
        return {n: a for n, a in zip(names, (number, memory, cores, percent), strict=True) if a is not None}

    def small() -> JSON:
        return vgpu(1, pick.randrange(50, 2000), pick.choice((None, 0, 5, 30)))

    yield alone(small())
    yield alone(vgpu(pick.choice((2, 3)), pick.randrange(50, 1500), pick.choice((None, 10))))
    yield alone(vgpu(None, pick.randrange(50, 1500)))
    yield alone(vgpu(None, None, pick.choice((10, 40))))
    yield alone(vgpu(1))
    yield alone(vgpu(1, 500, 100))
    yield alone(vgpu(1, None, None, pick.choice((10, 25, 50))))
    yield alone(vgpu(2, None, 5, pick.choice((10, 40))), {use_type: pick.choice(("t4", "a30", "A30,T4"))})
    yield alone(vgpu(None, 1000, None, 20), {use_type: "Tesla T4"})
    yield alone(vgpu(1, 0, 10, 0), {"nvidia.com/nouse-gputype": "A100, A30"})
    yield alone(small(), {use_type: "A30", "nvidia.com/nouse-gputype": "A30"})
    for size in (1000, 2000, 4500, 9000):
        yield alone(vgpu(1, size - pick.randrange(0, 900)), mig)
    yield alone(vgpu(2, 1200, 20), mig)
    yield alone(vgpu(1), mig | {use_type: pick.choice(("PCIE-40GB", "A30", "A100-SXM4-80GB"))})
    yield alone(vgpu(1, None, None, pick.choice((10, 30))), mig | {use_type: "PCIE-40GB"})
    yield Arriving([box("a", **vgpu(1, 1300)), box("b"), box("c", **vgpu(1, 1200))], notes=mig)
    yield alone(small(), {vgpus.MODE: " HAMi-Core "})
    yield alone(small(), {vgpus.MODE: "mps"})
    yield alone(vgpu(2, 300), {use: "volcano-t4-c1, volcano-a30-c0,volcano-t4-c2,,gone"})
    yield alone(small(), {use: "volcano-t4-c1,volcano-t4-c2", nouse: "volcano-t4-c2"})
    yield alone(small(), {nouse: ",".join(f"volcano-t4-c{i}" for i in range(4)), use: " , "})
    for _ in range(3):
        yield alone(small(), {group: pick.choice("xy"), "volcano.sh/vgpu-podgroup-policy": "spread"})
    yield Arriving([box("a", **small()), box("b", **vgpu(2, 200))], [box("init"), box("side", sidecar=True, cpu=1)])
    yield alone({**small(), "nvidia.com/priority": pick.choice((0, 1))})
    yield alone(small(), {vgpus.IDS: "volcano-t4-c0,NVIDIA,9999,0:", "volcano.sh/vgpu-node": "volcano-t4"})
    yield alone(vgpu(0, 500, 20))
    yield alone(vgpu(1, 20_000))
    yield alone(vgpu(5, 100))
    yield alone(small(), nodeSelector={"pool": "nvidia"})
    yield alone(small(), schedulerName=pick.choice(("default-scheduler", "volcano")))
    yield alone(vgpu(1, None, None, 30), schedulerName="some-other-scheduler")
    yield Arriving([box("ours", **of("NVIDIA", 1, 500, 5)), box("theirs", **small())])


def _koordinator(pick: random.Random) -> Iterator[Arriving]:
    lib = {gpu_shares.ISOLATION: "HAMi-core"}

    def share(shared: object = None, core: object = None, memory: object = None, ratio: object = None) -> JSON:
        amounts = zip(gpu_shares.NAMES, (shared, core, memory, ratio), strict=False)
        return {name: amount for name, amount in amounts if amount is not None}

    def one(limits: JSON, labels: Mapping[str, str] | None = None, /, **notes: JSON) -> Arriving:
        named = {f"{gpu_shares.OWN}/{key.replace('_', '-')}": json.dumps(value) for key, value in notes.items()}
        return Arriving([box(**limits)], notes=named, labels=lib if labels is None else labels)

    def small() -> JSON:
        return share(1, pick.choice((None, 10, 50)), None, pick.choice((7, 29, 50)))

    yield one(small())
    yield one(small(), {gpu_shares.ISOLATION: pick.choice(("hami-core", "HAMI-Core"))})
    yield one(small(), {})
    yield one(small(), {gpu_shares.ISOLATION: "something-else"})
    yield one(share(2, 100, None, pick.choice((60, 100))))
    yield one(share(None, None, None, pick.choice((30, 57, 200))))
    yield one(share(1, pick.choice((None, 20)), pick.choice(("8Gi", "5000Mi", 7_000_000_000, "3G"))))
    yield one(share(3, 30, 8 * GIB + 1), {})
    yield one(share(None, 200, "64Gi"), {})
    yield one(share(None, 40, "4Gi"))
    yield one(share(None, 100, None, 200), {})
    for percent in (50, 100, 200, 400):
        yield one({gpu_shares.GPU: percent})
    yield one({gpu_shares.GPU: 50, gpu_shares.CORE: 10})
    yield one({"kubernetes.io/gpu": pick.choice((25, 100))}, {})
    yield one({"kubernetes.io/gpu-core": 30, "kubernetes.io/gpu-memory-ratio": 40, "koordinator.sh/gpu-shared": 2})
    yield one({"kubernetes.io/gpu-memory": "6Gi", "kubernetes.io/gpu-memory-ratio": 0, gpu_shares.MEMORY: "2Gi"})
    yield one({**small(), gpu_shares.GPU: 0, gpu_shares.MEMORY: 0})
    yield one(share(0))
    yield Arriving([box("a", **share(1, 20, None, 30)), box("b"), box("c", **share(1, 20, None, 30))], labels=lib)
    yield Arriving([box("a", **share(None, None, None, 20)), box("b", **share(2, None, None, 70))])
    yield Arriving([box("a", **share(1, 30, "2Gi"))], [box("load", **share(1, 10, "9Gi"))], labels=lib)
    yield Arriving([box("a", **share(1, None, None, 20))], [box("side", sidecar=True, **share(1, 10, None, 30))])
    limits = share(1, 10, "3Gi")
    yield Arriving([{**box(**limits), "resources": {"limits": limits, "requests": limits}}])
    yield Arriving([{**box(), "resources": {"limits": share(1, None, "1Gi"), "requests": share(1, None, "1Gi")}}])
    yield one(small(), {}, device_allocate_hint={"gpu": {"selector": {"matchLabels": {"link": "l1"}}}})
    for scope in ("NUMANode", "PCIe"):
        count = pick.choice((100, 200, 300))
        yield one({gpu_shares.GPU: count}, {}, device_allocate_hint={"gpu": {"requiredTopologyScope": scope}})
    yield one(share(2, None, None, 60), {}, device_allocate_hint={"gpu": {"requiredTopologyScope": "NUMANode"}})
    yield one({gpu_shares.GPU: pick.choice((200, 300))}, {}, gpu_partition_spec={"allocatePolicy": "Restricted"})
    yield one({gpu_shares.GPU: 200}, {}, gpu_partition_spec={"ringBusBandwidth": "400Gi"})
    yield one(small(), device_allocated={"gpu": [{"minor": 0, "resources": {gpu_shares.CORE: "1"}}]})
    yield one(small(), {**lib, "scheduling.koordinator.sh/scheduler-name": "koord-scheduler"})
    yield one(share(9, None, None, 9), {})
    yield one(share(2, 20, "170Gi"), {})
    for limits in (share(2, 20, "3Gi"), share(1, None, None, 11)):
        yield Arriving([box(**limits)], spec={"schedulerName": "some-other-scheduler"})
    yield Arriving([box(**small())], spec={"nodeSelector": {"pool": "koord"}})
    yield Arriving([box(**{**small(), "nvidia.com/priority": 1})], labels=lib)
    yield Arriving([box(**small())], spec={"schedulerName": "default-scheduler"})
    theirs: JSON = {vgpus.NUMBER: 1, vgpus.MEMORY: 200}
    yield Arriving([box("one", **small()), box("two", **theirs)], labels=lib)


OURS = (_nvidia, _ascend, _slices, _metax, _enflame, _others)
OTHERS = (_volcano, _koordinator)


def the_crowd(ours: int, others: int, seed: int = 20260908) -> list[JSON]:
    """So many pods for us and for other schedulers, in between each other."""
    made = [*_drawn("pod", OURS, ours, random.Random(seed)), *_drawn("other", OTHERS, others, random.Random(seed))]
    turns = random.Random(seed).sample(range(ours + others), ours + others)
    turns = sorted(turns[:ours]) + sorted(turns[ours:])
    return [pod for _, pod in sorted(zip(turns, made, strict=True), key=lambda pair: pair[0])]


def _drawn(
    name: str, kinds: Sequence[Callable[[random.Random], Iterator[Arriving]]], number: int, pick: random.Random
) -> list[JSON]:
    """So many pods; every kind comes before one comes again."""
    made: list[JSON] = []
    while len(made) < number:
        around = [one for kind in kinds for one in kind(pick)]
        pick.shuffle(around)
        for one in around[: number - len(made)]:
            meta: JSON = {"name": f"{name}-{len(made):03}", "namespace": pick.choice(("tight",) * 5 + NAMESPACES)}
            meta |= {"labels": dict(one.labels)} if one.labels else {}
            meta |= {"annotations": dict(one.notes)} if one.notes else {}
            spec = {"containers": one.apps, **({"initContainers": one.inits} if one.inits else {}), **one.spec}
            made.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    return made
