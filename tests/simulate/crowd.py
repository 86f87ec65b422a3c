"""Pods of every kind, seeded: every resource of every vendor, and every sort of refusal."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .families import ASCEND, COREX, FAMILIES, JSON
from .fleet import NAMESPACES
from .wants import TEMPLATES

FAMILY = {family.name: family for family in FAMILIES}
POLICY = "hami.io/gpu-scheduler-policy"
CLASS = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "gold"}, "value": 1000}


@dataclass(frozen=True)
class Arriving:
    """A pod before it has a name; `refused` are words of the sentence that refuses it, whatever quotas hold."""

    apps: list[JSON]
    inits: list[JSON] = field(default_factory=list)
    notes: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""


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


def alone(limits: JSON, notes: Mapping[str, str] | None = None, refused: str = "", **spec: Any) -> Arriving:
    return Arriving([box(**limits)], notes=notes or {}, spec=spec, refused=refused)


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
    yield alone(gpu(pick.choice((-1, "1500m")), 10), refused="nvidia.com/gpu")
    yield alone(gpu(1, "16Gi"), refused="nvidia.com/gpumem")
    yield alone(gpu(1, percent=101), refused="invalid nvidia.com/gpumem-percentage value 101")
    yield Arriving([{**box(**small()), "securityContext": {"privileged": True}}], refused="is privileged")
    yield alone(small(), nodeName="nvidia-a10-1", refused="pod has node assigned")
    yield alone(small(), {"hami.io/vgpu-devices-allocated": "x,NVIDIA,1,1:;"}, refused="written by the scheduler only")


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
    yield alone(of("Ascend910C", 3), refused="Ascend910C device request must be 1 or 2*n, got 3")
    yield alone(of(chip, 1, 70000), refused=f"huawei.com/{chip}-memory 70000 is invalid")
    yield alone(of(b3, 2, 16384), refused="vNPU not supported for multiple devices")
    yield alone(of(b3, 1, None, 20), refused="only supported in hami-core")


def _slices(pick: random.Random) -> Iterator[Arriving]:
    """Hygon, Cambricon, Iluvatar, Moore Threads: a slice of a card, or whole cards."""
    yield alone(of("DCU", 1, pick.randrange(1000, 16000), pick.choice((10, 25))))
    yield alone(of("DCU", 1))
    yield alone(of("DCU", 1, pick.randrange(1000, 30000)))
    yield alone(of("DCU", 1, None, pick.choice((0, 30))), {"hygon.com/use-dcutype": "z100"})
    yield alone(of("DCU", 2, pick.choice((None, 2000))))
    yield alone(of("DCU", 1, 2000, 5), {"hygon.com/use-gpuuuid": "hygon-k100-c1"})
    yield alone(of("DCU", 1, "16Gi", 5), refused="hygon.com/dcumem")
    yield alone(of("MLU", 1, pick.randrange(4, 60), pick.choice((10, 25))))
    yield alone(of("MLU", pick.choice((1, 2)), None, None))
    yield alone(of("MLU", 1, 20, 10), {"cambricon.com/use-mlutype": "mlu590", POLICY: "binpack"})
    yield alone(of("MLU", 1, 0, 20), {"cambricon.com/nouse-gpuuuid": "cambricon-370-cambricon-mlu-0"})
    yield alone(of("MLU", 1, "16Gi", 10), refused="cambricon.com/mlu.smlu.vmemory")
    chip = pick.choice(COREX)
    for one in (*COREX, "Iluvatar"):
        yield alone(of(one, 1, pick.randrange(4, 40), pick.choice((None, 10, 150))))
    yield alone(of(chip, 1))
    yield alone(of(chip, 2, pick.choice((None, 16)), 30))
    yield alone(of("Iluvatar", pick.choice((1, 2))))
    yield Arriving([box("main", **of(chip, 1, 16, 20))], [box("prep", **of(chip, 1, 32, 50))])
    yield alone(of("Iluvatar", 1, 8, 5), {"iluvatar.ai/nouse-gpuuuid": "iluvatar-old-iluvatar-2"})
    yield alone(of(chip, 1, "16Gi"), refused=f"iluvatar.ai/{chip}.vMem")
    yield alone(of("Mthreads", 1, pick.choice((2, 4, 8, 16, 32)), pick.choice((None, 2, 4))))
    yield alone(of("Mthreads", pick.choice((1, 2)), None, pick.choice((None, 1))))
    yield Arriving([box("a", **of("Mthreads", 1, 8, 2)), box("b", **of("Mthreads", 1, 4, 2))])
    yield alone(of("Mthreads", 1), {"mthreads.ai/use-gpuuuid": "mthreads-small-mthreads-0,mthreads-small-mthreads-1"})
    yield alone(of("Mthreads", 1, 3), refused="sGPU memory request value is invalid")
    yield alone(of("Mthreads", 0), refused="mthreads.com/vgpu must be greater than 0")


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
    yield alone(sgpu(1, 4, 10), {f"{prefix}qos-policy": "best"}, "must be set one of [best-effort")
    yield alone(sgpu(2, 4, 10), {f"{prefix}app-class": "online"}, "app-class pod must request single device")
    yield alone(sgpu(1, "512Ki", 10), refused="metax-tech.com/vmemory")


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
    yield Arriving([box("a", **shared(1, 25)), box("b", **drs(1))], refused="all shared or all DRS")
    yield alone(drs(0), refused="enflame.com/drs-gcu must be greater than 0")
    yield alone(drs(None, None, 101), refused="enflame.com/gcu-core must be in range (0,100]")
    yield alone(shared(1, 101), refused="enflame.com/vgcu-percentage")


def _others(pick: random.Random) -> Iterator[Arriving]:
    """Kunlunxin, AWS, AMD, Biren, VastAI."""
    yield alone(of("kunlun", pick.choice((1, 2))))
    yield alone(of("kunlun", 3))
    yield alone(of("XPU", pick.choice((1, 2)), pick.choice((20480, 24576))))
    yield alone(of("XPU", 1, pick.choice((30000, 49152, None))))
    yield alone(of("XPU", 7, 24576), {"hami.io/no-use-xpu-uuid": "kunlun-vxpu-c0"})
    yield alone(of("XPU", 1, -1), refused="kunlunxin.com/vxpu-memory")
    yield alone(of("AWSNeuron", pick.choice((1, 1, 3, 4))))
    yield alone(of("AWSNeuron", None, None, pick.choice((1, 2, 3, 4))))
    yield Arriving([box("a", **of("AWSNeuron", None, None, 1)), box("b", **of("AWSNeuron", None, None, 1))])
    yield alone(of("AWSNeuron", 1), {"aws.amazon.com/use-neuron-uuid": "aws-trn1-AWSNeuron-3", POLICY: "mutex"})
    yield alone(of("AWSNeuron", None, None, 5), refused="must be 1 or a multiple of 2, got 5")
    yield alone(of("AMD", 1, pick.randrange(1000, 40000), pick.choice((1, 10, 33))))
    yield alone(of("AMD", pick.choice((1, 2)), None, pick.choice((None, 25))))
    yield alone(
        {**of("AMD", 1, None, 5), "amd.com/gpumem-percentage": pick.choice((5, 30))}, {"amd.com/use-gputype": "mi300x"}
    )
    yield Arriving([box("side"), box("main", **of("AMD", 1, 4000, 7))], [box("init", **of("AMD", 1, 9000, 50))])
    yield alone(of("AMD", 1, None, 101), refused="amd.com/gpucores must be an integer percentage between 1 and 100")
    yield alone(of("Biren", pick.choice((1, 2))))
    yield alone(of("Biren", 1), {"birentech.com/use-gpuuuid": "biren-1-c0"})
    yield alone(of("Biren", "1500m"), refused="birentech.com/gpu")
    yield alone(of("Vastai", pick.choice((1, 2))))
    yield Arriving([box("va", **of("Vastai", 1)), box("biren", **of("Biren", 1))])


def the_crowd(number: int, seed: int = 20260905) -> tuple[list[JSON], dict[str, str]]:
    """So many pods, and the words by which some are refused, by name. Every kind comes before one comes again; what is
    refused anyway comes once.
    """
    pick = random.Random(seed)
    made: list[JSON] = []
    refused: dict[str, str] = {}
    while len(made) < number:
        around = [one for kind in (_nvidia, _ascend, _slices, _metax, _enflame, _others) for one in kind(pick)]
        around = [one for one in around if not (made and one.refused)]
        pick.shuffle(around)
        for one in around[: number - len(made)]:
            name = f"pod-{len(made):03}"
            meta: JSON = {"name": name, "namespace": pick.choice(("tight",) * 5 + NAMESPACES)}
            if one.notes:
                meta["annotations"] = dict(one.notes)
            spec = {"containers": one.apps, **({"initContainers": one.inits} if one.inits else {}), **one.spec}
            made.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
            if one.refused:
                refused[name] = one.refused
    return made, refused
