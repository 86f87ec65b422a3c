"""From filter to bound pod: a real kube-scheduler, our extender, and a kubelet with a device plugin on every node."""

from __future__ import annotations

import functools
import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import builders
import pytest
from builders import SCORES
from probes import GIVEN_UP, Probes, failed_in_a_row

from hack.bench.ui import ui
from hack.devcluster.plane import ControlPlane
from hami_webhook.devices.pod_preferences import GPU_POLICY

from .deployment import Deployment, Kubectl, eventually
from .hamischeduler import HamiScheduler, scheduling
from .kubelet import Kubelets
from .objects import JSON, add_ready_node, gpu_node, job, namespace, pod, quota
from .scheduling import messages, set_phase

ALLOCATED = "hami.io/vgpu-devices-allocated"
METAX = "metax-tech.com/gpu"


@pytest.fixture(scope="module", params=["cooperative", "single"])
def both(
    request: pytest.FixtureRequest, plane: ControlPlane, program: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HamiScheduler]:
    """kube-scheduler and the extender, which a test that kills one starts again."""
    folder = tmp_path_factory.mktemp("scheduler")
    with scheduling(plane, folder, program.login("hami-scheduler"), request.param) as both:
        yield both


in_one_mode = pytest.mark.parametrize("both", ["cooperative"], indirect=True)
"""Of a test in which no node takes the pod, or only binding counts: both modes run the same code there."""


@pytest.fixture
def scheduler(program: Deployment, kubelets: Kubelets, both: HamiScheduler) -> Iterator[HamiScheduler]:
    kubelets.faults.clear()
    yield both
    assert [fault for fault in kubelets.faults if fault.startswith(("card ", "no allocation"))] == []
    # what still waits would take the next test's cards
    program.kubectl.delete_all("jobs", "pods", "nodes")


def node_with_cards(kubectl: Kubectl, space: str, name: str, count: int, memory: int = 24576) -> str:
    """A node that kube-scheduler may use, with room for pods and no taint of a missing kubelet; its full name.

    Names are never used twice: pods of earlier tests may still hold the cards of earlier nodes.
    """
    (found,) = nodes_with_cards(kubectl, space, [name], count, memory)
    return found


def nodes_with_cards(kubectl: Kubectl, space: str, names: Sequence[str], count: int, memory: int) -> list[str]:
    """Several equal ones; their full names."""
    found = [f"{name}-{space}" for name in names]
    for name in found:
        add_ready_node(kubectl, gpu_node(name, *[memory] * count), gpu=10 * count)
    return found


def pods_of(kubectl: Kubectl, space: str) -> list[JSON]:
    found: list[JSON] = kubectl.get("pods", "-n", space)["items"]
    return found


def running(kubectl: Kubectl, space: str) -> int:
    return sum(item["status"]["phase"] == "Running" for item in pods_of(kubectl, space))


def bound(kubectl: Kubectl, space: str) -> int:
    return sum(bool(item["spec"].get("nodeName")) for item in pods_of(kubectl, space))


def check_cards(kubectl: Kubectl, slots: int = 10, memory: int = 24576, cores: int = 100) -> None:
    """No card of any node is over its slots, memory or cores, by the annotations of the pods."""
    taken: dict[str, list[int]] = {}
    for item in kubectl.get("pods", "-A")["items"]:
        for part in item["metadata"].get("annotations", {}).get(ALLOCATED, "").replace(";", "").split(":"):
            if part:
                uuid, _, held, share = part.split(",")
                sums = taken.setdefault(uuid, [0, 0, 0])
                sums[0] += 1
                sums[1] += int(held)
                sums[2] += int(share)
    over = {uuid: sums for uuid, sums in taken.items() if sums[0] > slots or sums[1] > memory or sums[2] > cores}
    assert over == {}


def test_200_pods_over_20_nodes(program: Deployment, scheduler: HamiScheduler) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    for number in range(20):
        node_with_cards(kubectl, space, f"n{number}", 2)
    started = time.monotonic()
    kubectl.apply(job(space, "train", 200, gpu=1, gpumem=4000, gpucores=15))
    eventually(lambda: running(kubectl, space), 200, seconds=300)
    check_cards(kubectl)
    print(f"{scheduler.mode}: 200 pods over 20 nodes in {time.monotonic() - started:.1f} s")


@in_one_mode
def test_a_queue_for_one_node_holds_up_nobody_elsewhere(
    program: Deployment, scheduler: HamiScheduler, kubelets: Kubelets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four small jobs are done before the large one that came first, whose node's plugin is slow."""
    kubectl = program.kubectl
    spaces = [namespace(kubectl) for _ in range(5)]
    for space in spaces:
        kubectl("label", "node", node_with_cards(kubectl, space, "own", 8), f"of={space}")
    monkeypatch.setattr(kubelets, "slow", 0.2)

    def start(space: str, count: int) -> None:
        made = job(space, "train", count, gpu=1, gpumem=4000, gpucores=15)
        made["spec"]["template"]["spec"]["nodeSelector"] = {"of": space}
        kubectl.apply(made)

    large, *small = spaces
    start(large, 40)
    eventually(lambda: bound(kubectl, large) > 0)
    for space in small:
        start(space, 5)
    eventually(lambda: [running(kubectl, space) for space in small], [5] * 4)
    assert running(kubectl, large) < 40
    eventually(lambda: running(kubectl, large), 40)


@in_one_mode
def test_pods_that_fit_nowhere_do_not_hold_up_others(program: Deployment, scheduler: HamiScheduler) -> None:
    """They are tried again whenever something is freed; 20 pods that come one after another are placed all the same."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    node_with_cards(kubectl, space, "one", 1)
    kubectl.apply(*(pod(space, f"never-{number}", gpu=1, gpumem=24577) for number in range(40)))
    eventually(lambda: len(pods_of(kubectl, space)), 40)
    for number in range(20):
        kubectl.apply(pod(space, f"new-{number}", gpu=1, gpumem=20000))
        eventually(lambda: running(kubectl, space), 1)
        kubectl("delete", "pod", f"new-{number}", "-n", space)


@in_one_mode
def test_a_refused_pod_is_bound_soon_after_something_is_freed(program: Deployment, scheduler: HamiScheduler) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    one = node_with_cards(kubectl, space, "one", 1)
    kubectl.apply(quota(space, mem=40000))
    kubectl.apply(pod(space, "first", gpu=1, gpumem=20000))
    eventually(lambda: running(kubectl, space), 1)
    kubectl.apply(pod(space, "second", gpu=1, gpumem=20000))
    eventually(lambda: f"1 nodes CardInsufficientMemory({one})" in messages(kubectl, space))
    time.sleep(4)  # kube-scheduler's own retries are over
    deleted = time.monotonic()
    kubectl("delete", "pod", "first", "-n", space, "--wait=false")
    eventually(lambda: running(kubectl, space), 1)
    print(f"{scheduler.mode}: bound {time.monotonic() - deleted:.1f} s after the deletion")
    assert "no available node, 1 nodes do not meet" in kubectl("describe", "pod", "second", "-n", space)


@in_one_mode
def test_the_largest_request_of_the_overview_is_bound_and_one_mebibyte_more_waits(
    program: Deployment, scheduler: HamiScheduler
) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=6, mem=10**6))
    linked_in_fours(kubectl, node_with_cards(kubectl, space, "eight", 8))
    for number, (cards, memory) in enumerate(((3, 9000), (2, 5000))):
        kubectl.apply(pod(space, f"holds-{number}", gpu=cards, gpumem=memory, gpucores=30))
        eventually(lambda: bound(kubectl, space), number + 1)
    node_with_cards(kubectl, space, "free", 4)
    kubectl("cordon", node_with_cards(kubectl, space, "closed", 8, 81920))
    eventually(lambda: bool(kubectl.used(space)))
    with ui(kubectl.kubeconfig) as (_, client):
        counts = ["1", "2", "2-linked", "4", "4-linked", "8"]
        eventually(lambda: [*largest_requests(client.get("/overview").text)], counts)
        largest = largest_requests(client.get("/overview").text)
        kubectl("delete", "resourcequota", "--all", "-n", space)
        assert largest["8"] < largest["4-linked"] <= largest["4"] == largest["1"] == 24576

        def asking(name: str, count: str, memory: int) -> JSON:
            found = pod(space, f"{name}-{count}", gpu=int(count[0]), gpumem=memory)
            if "linked" in count:
                found["metadata"]["annotations"] = {"nvidia.com/require-nvlink": "true"}
            return found

        asked = {f"more-{count}": asking("more", count, most + 1) for count, most in largest.items()}
        kubectl.apply(*asked.values())
        eventually(lambda: unscheduled(kubectl, space).keys(), asked.keys())
        for count, most in largest.items():
            kubectl.apply(asking("most", count, most))
            eventually(lambda: bound(kubectl, space), 3)
            kubectl("delete", "pod", f"most-{count}", "-n", space, "--grace-period=0", "--force")
        eventually(lambda: missing_reasons(kubectl, space, client.get("/overview").text), (len(asked), []))


def missing_reasons(kubectl: Kubectl, space: str, page: str) -> tuple[int, list[str]]:
    """How many pods were found no node for, and of which of them a page doesn't say why."""
    why = unscheduled(kubectl, space)
    return len(why), [name for name, text in why.items() if escape(text) not in page]


def linked_in_fours(kubectl: Kubectl, node: str) -> None:
    """NVLink joins the first four cards of a node, and the next four, as its device plugin says."""
    uuids = [f"{node}-{index}" for index in range(8)]
    scores = [
        {"uuid": x, "score": {y: 200 if i // 4 == j // 4 else 10 for j, y in enumerate(uuids) if i != j}}
        for i, x in enumerate(uuids)
    ]
    kubectl("annotate", "node", node, f"{SCORES}={json.dumps(scores)}")


def largest_requests(page: str) -> dict[str, int]:
    """The MiB of each card that the Overview says still fit, by the number of cards, and whether links join them."""
    row = page[page.index("NVIDIA A10</a>") :].partition("</tr>")[0]
    cells = zip((1, 2, 4, 8), row.split("<td")[-4:], strict=True)
    found = {(count, tag): mib for count, cell in cells for tag, mib in re.findall(r'<(\w+) title="(\d+) MiB', cell)}
    return {f"{count}{'-linked' if tag == 'small' else ''}": int(mib) for (count, tag), mib in found.items()}


def unscheduled(kubectl: Kubectl, space: str) -> dict[str, str]:
    """What kube-scheduler says of each pod that it found no node for, before what it says of evicting others."""
    return {
        item["metadata"]["name"]: condition["message"].partition(" preemption: ")[0]
        for item in pods_of(kubectl, space)
        for condition in item["status"].get("conditions", ())
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable"
    }


def test_of_two_schedulers_that_race_for_the_last_card_one_pod_gets_it(
    program: Deployment, scheduler: HamiScheduler, plane: ControlPlane, tmp_path: Path
) -> None:
    """Both serve the same pods, neither knows of the other; the auditor looks at every change."""
    kubectl = program.kubectl
    with scheduling(plane, tmp_path / "second", program.login("hami-scheduler"), scheduler.mode):
        node_with_cards(kubectl, namespace(kubectl), "last", 1)
        for _ in range(3):
            space = namespace(kubectl)
            kubectl.apply(*(pod(space, f"p{number}", gpu=1, gpumem=24576) for number in range(6)))
            eventually(functools.partial(running, kubectl, space), 1)
            time.sleep(2)
            assert running(kubectl, space) == 1
            kubectl.delete_all("pods", namespace=space)
            check_cards(kubectl)


def test_a_burst_outlives_the_death_of_the_extender_and_of_kube_scheduler(
    program: Deployment, scheduler: HamiScheduler
) -> None:
    """Nothing is bound without its allocation, by the auditor, nothing allocated twice, and the quota is exact."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    for number in range(4):
        node_with_cards(kubectl, space, f"n{number}", 2)
    kubectl.apply(quota(space, gpu=60, mem=60 * 3000))
    kubectl.apply(job(space, "train", 60, gpu=1, gpumem=3000, gpucores=10))
    for number, already in enumerate((5, 15, 25, 35)):
        eventually(lambda: bound(kubectl, space) >= already)  # noqa: B023  called at once
        scheduler.kill_extender()
        if number % 2:
            scheduler.kill_scheduler()
            scheduler.start_scheduler()
        scheduler.start_extender()
    eventually(lambda: running(kubectl, space), 60)
    check_cards(kubectl)
    for item in pods_of(kubectl, space):
        meta = item["metadata"]
        assert meta["annotations"]["hami.io/vgpu-node"] == meta["labels"]["hami.io/vgpu-node"]
        assert meta["annotations"]["hami.io/vgpu-node"] == item["spec"]["nodeName"]
        assert meta["annotations"][ALLOCATED]
    expected: tuple[JSON, JSON] = ({"gpu": "60", "gpumem": "180k"}, {})
    eventually(lambda: (kubectl.used(space), kubectl.ledger(space)), expected)


def test_of_two_nodes_that_fit_the_preferred_one_wins_in_cooperative_mode(
    program: Deployment, scheduler: HamiScheduler
) -> None:
    """In single mode the extender decides, as HAMi does: of equal scores the name that comes first."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    first = node_with_cards(kubectl, space, "a", 1)
    fast = node_with_cards(kubectl, space, "b", 1)
    kubectl("label", "node", fast, "disk=fast")
    wanted = pod(space, "p", gpu=1, gpumem=1000)
    term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]}
    wanted["spec"]["affinity"] = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}
    }
    kubectl.apply(wanted)
    eventually(lambda: running(kubectl, space), 1)
    chosen = pods_of(kubectl, space)[0]["spec"]["nodeName"]
    assert chosen == (fast if scheduler.mode == "cooperative" else first)


def test_a_node_and_a_pod_that_mean_harm_hold_up_nobody(program: Deployment, scheduler: HamiScheduler) -> None:
    """A node scores the pairs of its 48 cards at random, and a tenant's pods ask for the 24 best linked of them."""
    kubectl = program.kubectl
    space, tenant = namespace(kubectl), namespace(kubectl)
    hostile = node_with_cards(kubectl, tenant, "hostile", 48)
    chance, uuids = random.Random(1), [f"{hostile}-{number}" for number in range(48)]
    scores = [{"uuid": x, "score": {y: chance.randrange(1860) for y in uuids if x != y}} for x in uuids]
    patch = json.dumps({"metadata": {"annotations": {SCORES: json.dumps(scores)}}})
    own_rights = (f"--as=system:node:{hostile}", "--as-group=system:nodes")
    kubectl("patch", "node", hostile, "--type=merge", "-p", patch, *own_rights)
    kubectl("label", "node", node_with_cards(kubectl, space, "own", 8), f"of={space}")
    harm = [pod(tenant, f"harm-{number}", gpu=24, gpumem=1000 + number) for number in range(5)]
    train = job(space, "train", 20, gpu=1, gpumem=4000, gpucores=15)
    train["spec"]["template"]["spec"]["nodeSelector"] = {"of": space}
    started = time.monotonic()
    with Probes(scheduler.port, 1.0) as probes:
        kubectl.apply(
            *(
                {**each, "metadata": {**each["metadata"], "annotations": {GPU_POLICY: "topology-aware"}}}
                for each in harm
            )
        )
        kubectl.apply(train)
        eventually(lambda: bound(kubectl, space), 20)
        last = time.monotonic() - started
        eventually(lambda: bound(kubectl, tenant), len(harm))
    failed = sum(seconds == float("inf") for seconds in probes.seconds)
    print(
        f"{scheduler.mode}: {failed} of {len(probes.seconds)} probes failed, the slowest took "
        f"{max(probes.seconds):.3f} s; the last of 20 pods of others was bound after {last:.1f} s"
    )
    assert failed_in_a_row(probes.seconds, float("inf")) < GIVEN_UP
    check_cards(kubectl)


@in_one_mode
def test_cards_that_a_pod_of_another_scheduler_holds_are_given_to_nobody(
    program: Deployment, scheduler: HamiScheduler
) -> None:
    """It was bound past our reviews, and says nothing of cards; when it ends, they are free.

    A pod for a slice of the mixed strategy, and one that kubelet would refuse, take nothing.
    """
    kubectl = program.kubectl
    space, others = namespace(kubectl), namespace(kubectl)
    kubectl("label", "namespace", others, "hami.io/webhook=ignore")
    name = f"metax-{space}"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    add_ready_node(kubectl, node, **{METAX: 8, "nvidia.com/mig-1g.5gb": 8})
    for each, resource, count in (("holds", METAX, 8), ("slice", "nvidia.com/mig-1g.5gb", 1), ("huge", METAX, 10**9)):
        kubectl.apply(
            builders.pod(each, builders.container(limits={resource: str(count)}), namespace=others, nodeName=name)
        )
    set_phase(kubectl, others, "holds", "Running")
    kubectl.apply(builders.pod("ours", builders.container(limits={METAX: "1"}), namespace=space))
    eventually(lambda: f"theirs can't be read: {others}/holds" in messages(kubectl, space))
    assert "8 of 8 Metax-GPU cards count as held by pods whose cards aren't known" in messages(kubectl, space)
    assert bound(kubectl, space) == 0
    set_phase(kubectl, others, "holds", "Failed")
    eventually(lambda: bound(kubectl, space), 1)
