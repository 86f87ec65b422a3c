"""Preemption by devices with a stock kube-scheduler: who goes, who doesn't, and how soon the preemptor is bound."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from devices.cards import A100_PROFILES

from hack.devcluster.plane import ControlPlane

from .api_client import api_client
from .deployment import ROOT, Deployment, Kubectl, eventually
from .hamischeduler import HamiScheduler, scheduling
from .kubelet import Kubelets
from .objects import JSON, add_ready_node, namespace
from .revisions import Revisions
from .scheduling import messages, scheduler_account
from .tenants import tenant

USE = "nvidia.com/use-gpuuuid"
REGISTER = "hami.io/node-nvidia-register"
FLAGS = ("--preemption=on",)
LOW, MIDDLE, HIGH, NEVER = "e2e-low", "e2e-middle", "e2e-high", "e2e-never"


@pytest.fixture(scope="module")
def program(one_replica: Deployment) -> Deployment:
    scheduler_account(one_replica.kubectl)
    for name, value in ((LOW, 10), (MIDDLE, 100), (HIGH, 1000), (NEVER, 2000)):
        rest = {"preemptionPolicy": "Never"} if name == NEVER else {}
        meta = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        one_replica.kubectl.apply({**meta, "value": value, **rest})
    return one_replica


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


in_one_mode = pytest.mark.parametrize("scheduler", ["cooperative"], indirect=True)
"""Of a test of who is evicted: both modes look for victims alike, and differ in what they hold for who comes then."""


@dataclass
class PreemptionEnv:
    """A namespace and a node that only its pods may use."""

    kubectl: Kubectl
    space: str
    nodes: list[str] = field(default_factory=list)

    def add_node(self, annotations: JSON, **allocatable: int) -> str:
        name = f"n{len(self.nodes)}-{self.space}"
        self.nodes.append(name)
        meta = {"name": name, "labels": {"of": self.space}, "annotations": annotations}
        add_ready_node(self.kubectl, {"apiVersion": "v1", "kind": "Node", "metadata": meta}, **allocatable)
        return name

    def pod(self, name: str, priority: str, limits: JSON, on: JSON | None = None, **annotations: Any) -> JSON:
        container: JSON = {"name": "main", "image": "registry.invalid/none"}
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

    def fill(self, limits: JSON, count: int, **annotations: Any) -> None:
        self.kubectl.apply(*(self.pod(f"low{number}", LOW, limits, **annotations) for number in range(count)))
        eventually(lambda: len(self.bound()), count)

    def victims(self) -> list[str]:
        """Who was evicted, by the events."""
        events = self.kubectl.get("events", "-n", self.space, "--field-selector", "reason=Preempted")["items"]
        return sorted(each["involvedObject"]["name"] for each in events)

    def evicted_by(self) -> set[str]:
        """Who reported that pods were evicted."""
        events = self.kubectl.get("events", "-n", self.space, "--field-selector", "reason=Preempted")["items"]
        return {each["reportingComponent"] for each in events}

    def events(self) -> str:
        return messages(self.kubectl, self.space)


@pytest.fixture
def env(program: Deployment, scheduler: HamiScheduler) -> Iterator[PreemptionEnv]:
    found = PreemptionEnv(program.kubectl, namespace(program.kubectl))
    yield found
    assert "expected at least one victim" not in found.events(), "kube-scheduler looked where it can find nobody"
    program.kubectl.delete_all("pods", namespace=found.space)
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


IN_MODES = {f"{case.name}-cooperative": ("cooperative", case) for case in CASES}
IN_MODES |= {f"{case.name}-single": ("single", case) for case in CASES if case.name in ("memory", "a whole card")}


@pytest.mark.parametrize(("scheduler", "case"), IN_MODES.values(), ids=IN_MODES, indirect=["scheduler"])
def test_a_pod_of_high_priority_wins_devices(env: PreemptionEnv, kubelets: Kubelets, case: Case) -> None:
    node = env.add_node(case.registered(env.space), **case.allocatable)
    env.fill(case.low, case.count, **case.annotations)
    env.kubectl.apply(env.pod("high", HIGH, case.high, **case.annotations))
    eventually(lambda: env.bound().get("high"), node)
    eventually(lambda: len(env.victims()), case.victims)
    eventually(lambda: f"{env.space}/high" in kubelets.bound)
    ended = max(kubelets.ended[f"{env.space}/{name}"] for name in env.victims())
    # kube-scheduler by itself would try again after five minutes
    assert kubelets.bound[f"{env.space}/high"] - ended < 60, "seconds by one watch, from the last victim's end"
    assert len(env.bound()) == case.count - case.victims + 1, "the smallest set went, and nobody else"
    eventually(lambda: f"evicted {case.victims} pod" in env.events() or env.events())


@in_one_mode
def test_victims_for_cpu_are_completed_by_those_for_devices(env: PreemptionEnv) -> None:
    """kube-scheduler finds that `busy` has to go for CPU, and asks; `training` has to go for its card."""
    node = env.add_node(cards(env.space, 2), **{**GPUS, "cpu": 4})
    there = [
        env.pod("busy", LOW, {"cpu": 3}),
        env.pod("training", LOW, nvidia()),
        env.pod("idle", LOW, {"cpu": "100m"}),
        env.pod("serving", HIGH, nvidia()),
    ]
    env.kubectl.apply(*there)
    eventually(lambda: len(env.bound()), len(there))
    env.kubectl.apply(env.pod("high", HIGH, {**nvidia(), "cpu": 2}))
    eventually(lambda: env.bound().get("high"), node)
    assert set(env.bound()) == {"idle", "serving", "high"}
    eventually(env.victims, ["busy", "training"])
    eventually(env.evicted_by, {"hami-scheduler"})  # kube-scheduler itself, once it had asked


@in_one_mode
def test_room_in_a_quota_is_made_only_where_it_says_so(env: PreemptionEnv, plane: ControlPlane) -> None:
    """`high` was charged for the smaller card's 8000 MiB, which isn't free; the larger one costs 16000."""
    smaller, larger = cards(f"small-{env.space}", 1, devmem=8000), cards(env.space, 2, devmem=16000)
    node = env.add_node({REGISTER: json.dumps(json.loads(smaller[REGISTER]) + json.loads(larger[REGISTER]))}, **GPUS)
    key = "limits.nvidia.com/gpumem"
    meta = {"name": "quota", "namespace": env.space}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": {key: "28000"}}}
    env.kubectl.apply(quota)

    def used() -> str:
        found: JSON = env.kubectl.get("resourcequota", "quota", "-n", env.space)
        amount: str = found.get("status", {}).get("used", {}).get(key, "")
        return amount

    small: JSON = {USE: f"small-{env.space}-0"}
    large: JSON = {USE: f"{env.space}-0"}
    with Revisions(plane, env.space) as revisions:
        env.kubectl.apply(
            env.pod("serving", HIGH, nvidia(gpumem=8000), **small),
            env.pod("training", LOW, nvidia(gpumem=8000), **large),
        )
        eventually(lambda: len(env.bound()), 2)
        env.kubectl.apply(env.pod("high", HIGH, {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 100}))
        eventually(lambda: "pod/high" in _refused(env))
        assert (used(), env.victims()) == ("24k", [])
        env.kubectl("annotate", "resourcequota", "quota", "-n", env.space, "hami.io/quota-preemption=true")
        eventually(lambda: env.bound().get("high"), node)
        eventually(used, "24k")
    eventually(env.victims, ["training"])
    amounts = [
        float(each["status"]["used"][key].replace("k", "e3"))
        for _, _, quotas in revisions.replay()
        for each in quotas
        if key in each.get("status", {}).get("used", {})
    ]
    assert max(amounts) <= 28000


def test_20_preemptors_at_once_on_5_nodes(env: PreemptionEnv, kubelets: Kubelets) -> None:
    for number in range(5):
        env.add_node(cards(f"{number}-{env.space}", 8), **GPUS)
    env.fill(nvidia(), 40)
    env.kubectl.apply(*(env.pod(f"high{number}", HIGH, nvidia()) for number in range(20)))
    eventually(lambda: sum(name.startswith("high") for name in env.bound()), 20)
    eventually(lambda: len(env.victims()), 20)
    assert len(env.bound()) == 40, "as many went as came"
    assert [fault for fault in kubelets.faults if fault.startswith(("card ", "no allocation"))] == []


def test_the_extender_is_killed_while_victims_end(env: PreemptionEnv, scheduler: HamiScheduler) -> None:
    env.add_node(cards(env.space, 4), **GPUS)
    env.fill(nvidia(gpumem=8000), 12)
    env.kubectl.apply(env.pod("high", HIGH, nvidia(4)))
    eventually(lambda: len(env.victims()) > 0)
    scheduler.kill_extender()
    scheduler.start_extender()
    eventually(lambda: "high" in env.bound())
    assert set(env.bound()) == {"high"}


def names_other_cards(env: PreemptionEnv, uuids: list[str], seconds: float) -> None:
    """A pod that isn't bound, and names another card every two seconds."""
    first: JSON = {USE: uuids[0]}
    env.kubectl.apply(env.pod("high", HIGH, nvidia(), **first))
    user = api_client(env.kubectl.kubeconfig)  # on a busy machine kubectl takes longer than a victim has to end
    deadline = time.monotonic() + seconds
    for uuid in itertools.cycle(uuids):
        if time.monotonic() > deadline:
            break
        user.merge({"metadata": {"annotations": {USE: uuid}}}, "pods", "high", env.space)
        time.sleep(2)
    assert "high" not in env.bound()


def comes_and_goes(env: PreemptionEnv, uuids: list[str], seconds: float) -> None:
    """Pods that are deleted as soon as somebody was evicted for them, or after three seconds."""
    deadline = time.monotonic() + seconds
    for number, uuid in enumerate(itertools.cycle(uuids)):
        if time.monotonic() > deadline:
            break
        before, began = len(env.victims()), time.monotonic()
        named: JSON = {USE: uuid}
        env.kubectl.apply(env.pod(f"high{number}", HIGH, nvidia(), **named))
        while len(env.victims()) == before and time.monotonic() - began < 3:
            time.sleep(0.05)
        env.kubectl("delete", "pod", f"high{number}", "-n", env.space, "--force", "--grace-period=0")


@in_one_mode
@pytest.mark.parametrize(
    ("attack", "grace", "most"),
    [(names_other_cards, 4, 2), (comes_and_goes, 1, 3)],
    ids=["another card", "created and deleted"],
)
def test_pods_that_do_not_use_it_have_few_others_evicted(
    env: PreemptionEnv, attack: Callable[[PreemptionEnv, list[str], float], None], grace: int, most: int
) -> None:
    count, seconds = 12, 22
    node = env.add_node(cards(env.space, count), **GPUS)
    low = [env.pod(f"low{number}", LOW, nvidia()) for number in range(count)]
    for each in low:
        each["spec"]["terminationGracePeriodSeconds"] = grace
    env.kubectl.apply(*low)
    eventually(lambda: set(env.bound().values()), {node})
    eventually(lambda: len(env.bound()), count)
    attack(env, [f"{env.space}-{number}" for number in range(count)], seconds)
    evicted = len(env.victims())
    print(f"\n{attack.__name__}, grace of {grace} s: {evicted} evicted in {seconds} s")
    assert 1 <= evicted <= most
    if attack is comes_and_goes:  # the other one may use the card that it named last
        eventually(lambda: "preemption evicts nobody now: pods of namespace" in env.events())


@in_one_mode
def test_the_quota_of_the_documents_keeps_high_priorities_from_tenants(
    env: PreemptionEnv, plane: ControlPlane, program: Deployment
) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "preemption.md").read_text(), re.DOTALL)
    documents = {each["kind"]: each for each in yaml.safe_load_all(block)}
    assert set(documents) == {"PriorityClass", "ResourceQuota"}
    documents["ResourceQuota"]["metadata"]["namespace"] = env.space
    env.kubectl.apply(*documents.values())
    eventually(
        lambda: env.kubectl.get("resourcequota", "-n", env.space)["items"][0]["status"].get("hard"), {"pods": "0"}
    )
    node = env.add_node(cards(env.space, 1), **GPUS)
    env.fill(nvidia(), 1)
    user = tenant(env.kubectl, plane, program.folder, env.space)
    for name in ("high", "system-cluster-critical", "system-node-critical"):
        assert "exceeded quota: no-high-priority" in user.refused(env.pod("p", name, nvidia()))
    quota = ("resourcequota", "no-high-priority", "-n", env.space)
    assert "forbidden" in user.run("delete", *quota).stderr
    assert "forbidden" in user.run("patch", *quota, "--type=merge", "-p", '{"spec":{"hard":{"pods":"9"}}}').stderr
    user.apply(env.pod("p", LOW, nvidia()))
    eventually(lambda: "pod/p" in _refused(env))
    assert (env.bound(), env.victims()) == ({"low0": node}, [])


def _refused(env: PreemptionEnv) -> set[str]:
    events = env.kubectl.get("events", "-n", env.space, "--field-selector", "reason=FilteringFailed")["items"]
    return {f"pod/{each['involvedObject']['name']}" for each in events}
