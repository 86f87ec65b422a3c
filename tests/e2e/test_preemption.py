"""Preemption by devices with a stock kube-scheduler: who goes, who doesn't, and how soon the preemptor is bound."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from devices.cards import A100_PROFILES

from hack.devcluster.plane import ControlPlane

from .deployment import Deployment, Kubectl, deployed, eventually
from .hamischeduler import HamiScheduler, scheduling
from .kubelet import Kubelets
from .objects import JSON, namespace
from .revisions import Revisions
from .scheduling import scheduler_account

DEVICES = ("--enable-ascend", "--enable-iluvatar")
REGISTER = "hami.io/node-nvidia-register"
FLAGS = ("--preemption=on", *DEVICES)
LOW, MIDDLE, HIGH, NEVER = "e2e-low", "e2e-middle", "e2e-high", "e2e-never"


@pytest.fixture(scope="module")
def program(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(plane, tmp_path_factory.mktemp("program"), "hami-webhook-0", flags=DEVICES) as deployment:
        scheduler_account(deployment.kubectl)
        for name, value in ((LOW, 10), (MIDDLE, 100), (HIGH, 1000), (NEVER, 2000)):
            rest = {"preemptionPolicy": "Never"} if name == NEVER else {}
            meta = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            deployment.kubectl.apply({**meta, "value": value, **rest})
        yield deployment


@pytest.fixture(scope="module", params=["cooperative", "single"])
def scheduler(
    request: pytest.FixtureRequest,
    plane: ControlPlane,
    program: Deployment,
    kubelets: Kubelets,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[HamiScheduler]:
    folder = tmp_path_factory.mktemp("scheduler")
    with scheduling(plane, folder, program.login("hami-scheduler"), request.param, FLAGS) as both:
        yield both


@dataclass
class Scene:
    """A namespace and a node that only its pods may use."""

    kubectl: Kubectl
    space: str
    nodes: list[str] = field(default_factory=list)

    def add_node(self, annotations: JSON, **allocatable: int) -> str:
        name = f"n{len(self.nodes)}-{self.space}"
        self.nodes.append(name)
        meta = {"name": name, "labels": {"of": self.space}, "annotations": annotations}
        self.kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": meta})
        amounts = {key: str(value) for key, value in {"pods": 100, "cpu": 64, **allocatable}.items()}
        status = {"status": {"capacity": amounts, "allocatable": amounts}}
        self.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
        self.kubectl("patch", "node", name, "--type=merge", "-p", '{"spec":{"taints":null}}')
        return name

    def pod(self, name: str, priority: str, limits: JSON, on: JSON | None = None, **annotations: str) -> JSON:
        container = {"name": "main", "image": "registry.invalid/none"}
        container |= {"resources": {"limits": {key: str(amount) for key, amount in limits.items()}}}
        meta = {"name": name, "namespace": self.space, "labels": {"app": name}, "annotations": annotations}
        spec = {
            "priorityClassName": priority,
            "nodeSelector": {"of": self.space, **(on or {})},
            "containers": [container],
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    def bound(self) -> dict[str, str]:
        """The node of every pod that has one and isn't under deletion."""
        pods = self.kubectl.get("pods", "-n", self.space)["items"]
        return {
            each["metadata"]["name"]: each["spec"]["nodeName"]
            for each in pods
            if each["spec"].get("nodeName") and "deletionTimestamp" not in each["metadata"]
        }

    def fill(self, limits: JSON, count: int, **annotations: str) -> None:
        self.kubectl.apply(*(self.pod(f"low{number}", LOW, limits, **annotations) for number in range(count)))
        eventually(lambda: len(self.bound()), count, seconds=60)

    def victims(self) -> list[str]:
        """Who was evicted, by the events."""
        events = self.kubectl.get("events", "-n", self.space, "--field-selector", "reason=Preempted")["items"]
        return sorted(each["involvedObject"]["name"] for each in events)

    def evicted_by(self) -> set[str]:
        """Who reported that pods were evicted."""
        events = self.kubectl.get("events", "-n", self.space, "--field-selector", "reason=Preempted")["items"]
        return {each["reportingComponent"] for each in events}

    def events(self) -> str:
        return "\n".join(each["message"] for each in self.kubectl.get("events", "-n", self.space)["items"])


@pytest.fixture
def scene(program: Deployment, scheduler: HamiScheduler) -> Iterator[Scene]:
    found = Scene(program.kubectl, namespace(program.kubectl))
    yield found
    program.kubectl("delete", "pods", "-n", found.space, "--all", "--grace-period=0", "--force", "--wait=false")
    for name in found.nodes:
        program.kubectl("delete", "node", name)


def cards(space: str, number: int, **fields: object) -> JSON:
    fixed = {"count": 4, "devmem": 24576, "devcore": 100, "type": "NVIDIA A10", "mode": "hami-core", "health": True}
    made = [{"id": f"{space}-{index}", "index": index, **fixed, **fields} for index in range(number)]
    return {REGISTER: json.dumps(made)}


def npus(space: str) -> JSON:
    npu = {"id": f"{space}-0", "count": 4, "devmem": 65536, "devcore": 20, "type": "Ascend910B3", "health": True}
    return {"hami.io/node-register-Ascend910B3": json.dumps([npu])}


def nvidia(gpu: int = 1, **more: int) -> JSON:
    return {"nvidia.com/gpu": gpu, **{f"nvidia.com/{key}": amount for key, amount in more.items()}}


def npu(memory: int) -> JSON:
    return {"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": memory}


@dataclass(frozen=True)
class Case:
    """A node full of `count` pods that ask for `low` each; so many have to go for one that asks for `high`."""

    name: str
    allocatable: JSON
    low: JSON
    count: int
    high: JSON
    victims: int
    cards: int = 1
    fields: JSON = field(default_factory=dict)
    annotations: JSON = field(default_factory=dict)

    def registered(self, space: str) -> JSON:
        if "huawei.com/Ascend910B3" in self.allocatable:
            return npus(space)
        return {} if "kunlunxin.com/xpu" in self.allocatable else cards(space, self.cards, **self.fields)


GPUS = {"nvidia.com/gpu": 40}
NPUS, KUNLUN = {"huawei.com/Ascend910B3": 4}, {"kunlunxin.com/xpu": 8}
MIG = {"nvidia.com/vgpu-mode": "mig"}
CASES = (
    Case("memory", GPUS, nvidia(gpumem=12000), 2, nvidia(gpumem=10000), 1),
    Case("cores", GPUS, nvidia(gpumem=100, gpucores=50), 2, nvidia(gpumem=100, gpucores=40), 1),
    Case("slots", GPUS, nvidia(gpumem=100), 4, nvidia(gpumem=100), 1),
    Case("a whole card", GPUS, nvidia(gpumem=8000), 3, nvidia(), 3),
    Case(
        *("two linked cards", GPUS, nvidia(), 4, nvidia(2), 2, 4),
        annotations={"hami.io/gpu-scheduler-policy": "topology-aware"},
    ),
    Case(
        *("a MIG profile", GPUS, nvidia(gpumem=20000), 2, nvidia(gpumem=18000), 1, 1),
        fields={"count": 7, "devmem": 40960, "mode": "mig", "type": "NVIDIA A100", "migProfiles": A100_PROFILES},
        annotations=MIG,
    ),
    Case("a template", NPUS, npu(16384), 4, npu(32768), 2),
    Case("a wing", KUNLUN, {"kunlunxin.com/xpu": 1}, 8, {"kunlunxin.com/xpu": 2}, 2),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_pod_of_high_priority_wins_devices(scene: Scene, kubelets: Kubelets, case: Case) -> None:
    node = scene.add_node(case.registered(scene.space), **case.allocatable)
    scene.fill(case.low, case.count, **case.annotations)
    scene.kubectl.apply(scene.pod("high", HIGH, case.high, **case.annotations))
    eventually(lambda: scene.bound().get("high"), node)
    eventually(lambda: len(scene.victims()), case.victims)
    eventually(lambda: f"{scene.space}/high" in kubelets.bound)
    ended = max(kubelets.ended[f"{scene.space}/{name}"] for name in scene.victims())
    assert kubelets.bound[f"{scene.space}/high"] - ended < 5, "seconds by one watch, from the last victim's end"
    assert len(scene.bound()) == case.count - case.victims + 1, "the smallest set went, and nobody else"
    assert f"evicted {case.victims} pod" in scene.events()


def test_nobody_is_evicted(scene: Scene) -> None:
    full = scene.add_node(cards(scene.space, 1), **GPUS)
    scene.fill(nvidia(), 1)
    waiting = [
        scene.pod("same", LOW, nvidia(gpumem=100)),
        scene.pod("never", NEVER, nvidia(gpumem=100)),
        scene.pod("vain", HIGH, nvidia(gpumem=50000)),
    ]
    scene.kubectl.apply(*waiting)
    eventually(lambda: all(f"pod/{each['metadata']['name']}" in _refused(scene) for each in waiting))
    assert (scene.bound(), scene.victims()) == ({"low0": full}, [])
    free = scene.add_node(cards(f"free-{scene.space}", 1), **GPUS)
    scene.kubectl.apply(scene.pod("high", HIGH, nvidia(gpumem=20000)))
    eventually(lambda: scene.bound().get("high"), free)
    assert scene.victims() == []


def test_who_is_ending_already_is_waited_for(scene: Scene) -> None:
    """A finalizer keeps it there."""
    node = scene.add_node(cards(scene.space, 2), **GPUS)
    scene.fill(nvidia(), 2)

    def finalizers(*names: str) -> None:
        patch = json.dumps({"metadata": {"finalizers": names}})
        scene.kubectl("patch", "pod", "low0", "-n", scene.space, "--type=merge", "-p", patch)

    finalizers("example.com/kept")
    scene.kubectl("delete", "pod", "low0", "-n", scene.space, "--wait=false")
    eventually(scene.bound, {"low1": node})
    scene.kubectl.apply(scene.pod("high", HIGH, nvidia()))
    eventually(lambda: "pod/high" in _refused(scene))
    finalizers()
    eventually(lambda: scene.bound().get("high"), node)
    assert (set(scene.bound()), scene.victims()) == ({"low1", "high"}, [])


def test_a_dry_run_evicts_nobody(scene: Scene, scheduler: HamiScheduler) -> None:
    node = scene.add_node(cards(scene.space, 1), **GPUS)
    scene.fill(nvidia(), 1)
    scheduler.kill_extender()
    scheduler.flags = ("--preemption=dry-run", *DEVICES)
    scheduler.start_extender()
    try:
        scene.kubectl.apply(scene.pod("high", HIGH, nvidia()))
        eventually(lambda: f"would evict 1 pod from node {node}: {scene.space}/low0" in scene.events())
        assert (scene.bound(), scene.victims()) == ({"low0": node}, [])
    finally:
        scheduler.kill_extender()
        scheduler.flags = FLAGS
        scheduler.start_extender()


def test_a_budget_holds_where_another_choice_exists(scene: Scene) -> None:
    scene.add_node(cards(scene.space, 2), **GPUS)
    scene.fill(nvidia(), 2)
    for name in ("low0", "low1"):
        scene.kubectl(
            "wait", f"pod/{name}", "-n", scene.space, "--for=jsonpath={.status.phase}=Running", "--timeout=20s"
        )
    meta = {"name": "pdb", "namespace": scene.space}
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "low1"}}}
    scene.kubectl.apply({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": spec})
    time.sleep(2)  # until the extender's informer has it
    scene.kubectl.apply(scene.pod("high", HIGH, nvidia()))
    eventually(lambda: "high" in scene.bound())
    assert scene.victims() == ["low0"], "though low1 is the younger one"


def test_victims_for_cpu_are_completed_by_those_for_devices(scene: Scene) -> None:
    """kube-scheduler finds that `busy` has to go for CPU, and asks; `training` has to go for its card."""
    node = scene.add_node(cards(scene.space, 2), **{**GPUS, "cpu": 4})
    there = [
        scene.pod("busy", LOW, {"cpu": 3}),
        scene.pod("training", LOW, nvidia()),
        scene.pod("idle", LOW, {"cpu": "100m"}),
        scene.pod("serving", HIGH, nvidia()),
    ]
    scene.kubectl.apply(*there)
    eventually(lambda: len(scene.bound()), len(there))
    scene.kubectl.apply(scene.pod("high", HIGH, {**nvidia(), "cpu": 2}))
    eventually(lambda: scene.bound().get("high"), node)
    assert set(scene.bound()) == {"idle", "serving", "high"}
    eventually(scene.victims, ["busy", "training"])
    assert scene.evicted_by() == {"hami-scheduler"}, "kube-scheduler itself, once it had asked"


def test_nodes_where_devices_would_still_be_lacking_are_left_out(scene: Scene) -> None:
    """kube-scheduler by itself would evict `cheap`, whose priority is the lowest; but that node's card stays taken."""
    nodes = [scene.add_node(cards(f"{each}-{scene.space}", 1), **{**GPUS, "cpu": 4}) for each in ("a", "b")]
    first, second = ({"kubernetes.io/hostname": name} for name in nodes)
    for name in nodes:
        scene.kubectl("label", "node", name, f"kubernetes.io/hostname={name}")
    there = [
        scene.pod("cheap", LOW, {"cpu": 3}, on=first),
        scene.pod("serving", HIGH, nvidia(), on=first),
        scene.pod("dear", MIDDLE, {"cpu": 3}, on=second),
    ]
    scene.kubectl.apply(*there)
    eventually(lambda: len(scene.bound()), len(there))
    scene.kubectl.apply(scene.pod("high", HIGH, {**nvidia(), "cpu": 2}))
    eventually(lambda: scene.bound().get("high"), nodes[1])
    assert set(scene.bound()) == {"cheap", "serving", "high"}
    eventually(scene.victims, ["dear"])


def test_room_in_a_quota_is_made_only_where_it_says_so(scene: Scene, plane: ControlPlane) -> None:
    """`high` was charged for the smaller card's 8000 MiB, which isn't free; the larger one costs 16000."""
    smaller, larger = cards(f"small-{scene.space}", 1, devmem=8000), cards(scene.space, 2, devmem=16000)
    node = scene.add_node({REGISTER: json.dumps(json.loads(smaller[REGISTER]) + json.loads(larger[REGISTER]))}, **GPUS)
    key = "limits.nvidia.com/gpumem"
    meta = {"name": "quota", "namespace": scene.space}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": {key: "28000"}}}
    scene.kubectl.apply(quota)

    def used() -> str:
        found: JSON = scene.kubectl.get("resourcequota", "quota", "-n", scene.space)
        amount: str = found.get("status", {}).get("used", {}).get(key, "")
        return amount

    small = {"nvidia.com/use-gpuuuid": f"small-{scene.space}-0"}
    large = {"nvidia.com/use-gpuuuid": f"{scene.space}-0"}
    with Revisions(plane, scene.space) as revisions:
        scene.kubectl.apply(
            scene.pod("serving", HIGH, nvidia(gpumem=8000), **small),
            scene.pod("training", LOW, nvidia(gpumem=8000), **large),
        )
        eventually(lambda: len(scene.bound()), 2)
        scene.kubectl.apply(scene.pod("high", HIGH, {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 100}))
        eventually(lambda: "pod/high" in _refused(scene))
        assert (used(), scene.victims()) == ("24k", [])
        scene.kubectl("annotate", "resourcequota", "quota", "-n", scene.space, "hami.io/quota-preemption=true")
        eventually(lambda: scene.bound().get("high"), node, seconds=60)
        eventually(used, "24k")
    assert scene.victims() == ["training"]
    amounts = [
        float(each["status"]["used"][key].replace("k", "e3"))
        for _, _, quotas in revisions.replay()
        for each in quotas
        if key in each.get("status", {}).get("used", {})
    ]
    assert max(amounts) <= 28000


def test_20_preemptors_at_once_on_5_nodes(scene: Scene, kubelets: Kubelets) -> None:
    for number in range(5):
        scene.add_node(cards(f"{number}-{scene.space}", 8), **GPUS)
    scene.fill(nvidia(), 40)
    scene.kubectl.apply(*(scene.pod(f"high{number}", HIGH, nvidia()) for number in range(20)))
    eventually(lambda: sum(name.startswith("high") for name in scene.bound()), 20, seconds=90)
    eventually(lambda: len(scene.victims()), 20)
    assert len(scene.bound()) == 40, "as many went as came"
    assert [fault for fault in kubelets.faults if fault.startswith(("card ", "no allocation"))] == []


def test_the_extender_is_killed_while_victims_end(scene: Scene, scheduler: HamiScheduler) -> None:
    scene.add_node(cards(scene.space, 4), **GPUS)
    scene.fill(nvidia(gpumem=8000), 12)
    scene.kubectl.apply(scene.pod("high", HIGH, nvidia(4)))
    eventually(lambda: len(scene.victims()) > 0)
    scheduler.kill_extender()
    scheduler.start_extender()
    eventually(lambda: "high" in scene.bound(), seconds=60)
    assert set(scene.bound()) == {"high"}


def _refused(scene: Scene) -> set[str]:
    events = scene.kubectl.get("events", "-n", scene.space, "--field-selector", "reason=FilteringFailed")["items"]
    return {f"pod/{each['involvedObject']['name']}" for each in events}
