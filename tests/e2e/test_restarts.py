"""A process of ours is killed and started again at once, as kubelet does: nothing is lost, and nothing placed twice."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hack.devcluster.plane import ControlPlane
from hami_webhook.kube.objects import format_time

from .deployment import Deployment, eventually
from .hamischeduler import HamiScheduler
from .kubelet import Kubelets
from .objects import namespace, pod, quota
from .revisions import Revisions
from .scheduling import messages
from .test_bursts import create_all
from .test_placement import ALLOCATED, node_with_cards, nodes_with_cards

PODS, NODES, CARDS, SLOTS, MEMORY = 150, 9, 2, 10, 24576
EACH = 1000
BROKEN_OFF = 20
"""More pods than are charged and not stored when the webhook is killed: their charges count until their TTL."""
WEBHOOK = "hami-webhook-0"


@pytest.fixture
def nodes(program: Deployment) -> Iterator[None]:
    """Room for a burst and some pods more."""
    space = namespace(program.kubectl)
    names = nodes_with_cards(program.kubectl, space, [f"n{number}" for number in range(NODES)], CARDS, MEMORY)
    yield
    program.kubectl("delete", "nodes", *names)


class Burst:
    """Pods of a namespace of their own, whose quota is for hardly more."""

    def __init__(self, program: Deployment, kubelets: Kubelets) -> None:
        self._program = program
        self._kubelets = kubelets
        self.space = namespace(program.kubectl)
        self._pods = [pod(self.space, f"p{number:03d}", gpu=1, gpumem=EACH) for number in range(PODS)]
        most = PODS + BROKEN_OFF
        program.kubectl.apply(quota(self.space, gpu=most, mem=most * EACH))

    def bound(self) -> int:
        return sum(place.startswith(f"{self.space}/") for place in list(self._kubelets.bound))

    def create(self) -> None:
        """Create the pods; who is refused for now is tried again, as a Job's controller does."""
        missing = self._pods
        while missing:
            refusals = asyncio.run(create_all(self._program.kubectl.kubeconfig, missing))
            assert [text for text in refusals if "exceeded quota" in text] == []
            found = self._program.kubectl.get("pods", "-n", self.space)["items"] if refusals else self._pods
            there = {item["metadata"]["name"] for item in found}
            missing = [each for each in self._pods if each["metadata"]["name"] not in there]

    def finish(self, revisions: Revisions) -> None:
        """Wait until all are bound and the quota is exact."""
        kubectl, space = self._program.kubectl, self.space
        eventually(self.bound, PODS, seconds=180)
        used = {"gpu": str(PODS), "gpumem": f"{PODS * EACH // 1000}k"}
        eventually(lambda: (kubectl.used(space), kubectl.ledger(space)), (used, {}))
        assert "exceeded quota" in kubectl.refused(pod(space, "more", gpu=BROKEN_OFF + 1, gpumem=EACH))
        last = int(kubectl.get("quota", "gpu-quota", "-n", space)["metadata"]["resourceVersion"])
        eventually(lambda: revisions.newest("resourcequotas") >= last)
        assert [fault for fault in self._kubelets.faults if fault.startswith(("card ", "no allocation"))] == []

    def delete(self) -> None:
        kubectl = self._program.kubectl
        kubectl.delete_all("pods", namespace=self.space)
        eventually(lambda: kubectl.get("pods", "-n", self.space)["items"], [])


def check(revisions: Revisions) -> None:
    """At every revision no card is over, and every bound pod has the allocation that it was bound with."""
    bound_with: dict[str, tuple[str, str]] = {}
    for revision, pods, _ in revisions.replay():
        slots, memory = Counter[str](), Counter[str]()
        for item in pods:
            if not item["spec"].get("nodeName"):
                continue
            allocation = item["metadata"]["annotations"][ALLOCATED]
            place = item["spec"]["nodeName"], allocation
            assert bound_with.setdefault(item["metadata"]["uid"], place) == place, revision
            for part in filter(None, allocation.replace(";", "").split(":")):
                uuid, _, taken, _ = part.split(",")
                slots[uuid] += 1
                memory[uuid] += int(taken)
        assert max(slots.values(), default=0) <= SLOTS, revision
        assert max(memory.values(), default=0) <= MEMORY, revision
    assert len(bound_with) == PODS


@pytest.mark.parametrize("victim", ["extender", "webhook"])
def test_a_burst_outlives_a_restart(
    program: Deployment, scheduler: HamiScheduler, plane: ControlPlane, kubelets: Kubelets, nodes: None, victim: str
) -> None:
    burst = Burst(program, kubelets)

    def restart() -> None:
        eventually(lambda: burst.bound() >= PODS // 5)
        if victim == "extender":
            scheduler.kill_extender()
            scheduler.start_extender()
        else:
            program.stop(WEBHOOK, signal.SIGKILL)
            program.balancer.backends.clear()
            program.start(WEBHOOK)

    kubelets.faults.clear()
    with Revisions(plane, burst.space) as revisions, ThreadPoolExecutor(1) as other:
        restarting = other.submit(restart)
        burst.create()
        restarting.result()
        burst.finish(revisions)
    check(revisions)
    burst.delete()


@pytest.mark.parametrize("when", ["while it is down", "after its start"])
def test_who_was_refused_before_a_restart_is_tried_again(
    program: Deployment, scheduler: HamiScheduler, kubelets: Kubelets, when: str
) -> None:
    """kube-scheduler doesn't watch quotas: without the extender it would try the pod again after five minutes."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    large = node_with_cards(kubectl, space, "large", 1, memory=40000)
    small = node_with_cards(kubectl, space, "small", 1, memory=10000)
    kubectl("cordon", small)
    kubectl.apply(quota(space, mem=15000))
    kubectl.apply(pod(space, "half", gpu=1, gpumem_percentage=50))

    def place() -> str:
        node: str = kubectl.get("pod", "half", "-n", space)["spec"].get("nodeName", "")
        return node

    try:
        eventually(lambda: f"ResourceQuotaNotFit({large})" in messages(kubectl, space))
        time.sleep(4)  # kube-scheduler's own retries are over
        scheduler.kill_extender()
        if when == "while it is down":
            kubectl.apply(quota(space, mem=25000))
        scheduler.start_extender()
        if when == "after its start":
            time.sleep(4)  # and those that a start brings
            assert place() == ""
            kubectl.apply(quota(space, mem=25000))
        eventually(place, large)
        eventually(lambda: kubectl.used(space), {"gpumem": "20k"})
    finally:
        kubectl.delete_all("pods", namespace=space)
        kubectl("delete", "nodes", large, small)


def test_a_lock_of_a_pod_that_no_node_takes_any_more_keeps_others_out_no_longer(
    program: Deployment, scheduler: HamiScheduler, kubelets: Kubelets
) -> None:
    """What is left if the extender is killed between the lock and the Binding, and the pod can't come again."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    one = node_with_cards(kubectl, space, "one", 1)
    scheduler.kill_extender()
    waits = pod(space, "waits", gpu=1, gpumem=1000)
    waits["spec"]["nodeSelector"] = {"is": "gone"}
    kubectl.apply(waits)
    kubectl("annotate", "node", one, f"hami.io/mutex.lock={format_time(time.time())},{space},waits")
    # by which a bind of another process is over in 26 s
    scheduler.flags = ("--kube-timeout", "5", "--node-lock-retry-timeout", "1s")
    scheduler.start_extender()
    scheduler.flags = ()
    started = time.monotonic()
    kubectl.apply(pod(space, "next", gpu=1, gpumem=1000))
    try:
        eventually(lambda: kubectl.get("pod", "next", "-n", space)["spec"].get("nodeName"), one)
        print(f"bound {time.monotonic() - started:.0f} s after the start; the lock expires after 300 s")
    finally:
        kubectl.delete_all("pods", namespace=space)
        kubectl("delete", "node", one)
