"""Upgrade from the version before, and rollback to it, by helm under a stream of pods."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import pytest
from helm_program import CHART, Helm

from hami_webhook.cluster.api import AlreadyExists, ClusterError, Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster

from .deployment import Kubectl, eventually
from .helm import installed
from .installation import Cluster, add_card_node, card_pod, check_replicas, device_plugins, system_pods
from .objects import GPU, JSON, MEM, accelerator_quota, add_node, gpu_node, namespace, pod, quota
from .releases import previous
from .revisions import Revisions

AMPLE, TIGHT = 1000, 8
"""The cards that the two namespaces may have."""
NODES = ("cards-1", "cards-2", "cards-3")
CARD, SMALL_CARD = 24576, 16384
"""MiB of a card of these nodes, and of a node that comes after the upgrade and goes before the rollback."""
PACE = 0.4
"""Seconds between two pods of a namespace."""
KEPT = 40
"""The pods that run at a time in the ample namespace: the oldest is deleted for a new one."""
MORE = 25
"""Pods that must have been created after a change before the next one."""

EXCEEDED = "exceeded quota: gpu-quota"

WITHOUT_EVENTS = f"""\
#!{sys.executable}
# The objects on standard input, without the controller's right to write events.
import sys, yaml
objects = [each for each in yaml.safe_load_all(sys.stdin) if each]
for each in objects:
    if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", "hami-webhook-controller"):
        each["rules"] = [rule for rule in each["rules"] if rule["resources"] != ["events"]]
yaml.safe_dump_all(objects, sys.stdout)
"""


@dataclass
class Stream:
    """Pods that are created one after the other in a namespace while the block runs, each tried again once."""

    login: Path
    space: str
    keep: int
    """How many pods stay: where there are more, the oldest is deleted..."""
    every: int
    """...after so many tries to create one."""
    names: list[str] = field(default_factory=list)
    """The pods that there are, the oldest first."""
    created: int = 0
    over_quota: int = 0
    """How many were refused as the quota says."""
    retried: list[str] = field(default_factory=list)
    """Why others were refused at first."""
    lost: list[str] = field(default_factory=list)
    """Why they were refused again."""
    longest: float = 0.0
    """The most seconds that a request took."""

    def __enter__(self) -> Stream:
        self._ending = threading.Event()
        executor = ThreadPoolExecutor(1)
        self._running = executor.submit(lambda: asyncio.run(self._run()))
        executor.shutdown(wait=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.set()
        self._running.result(60)

    def wait(self, more: int) -> None:
        """Wait until so many more pods were created."""
        wanted = self.created + more
        eventually(lambda: self.created >= wanted)

    async def _run(self) -> None:
        async with KubernetesCluster(await connect(str(self.login))) as cluster:
            number = 0
            while not self._ending.is_set():
                number += 1
                await self._create(cluster, f"p{number:04d}")
                if len(self.names) > self.keep and number % self.every == 0:
                    path = f"/api/v1/namespaces/{self.space}/pods/{self.names.pop(0)}"
                    await cluster.call("DELETE", path, {"gracePeriodSeconds": 0})
                await asyncio.sleep(PACE)
        await asyncio.sleep(0.25)  # TLS connections end in the background

    async def _create(self, cluster: KubernetesCluster, name: str) -> None:
        refusal = await self._try(cluster, name)
        if refusal and EXCEEDED not in refusal:
            self.retried.append(refusal)
            await asyncio.sleep(1)
            refusal = await self._try(cluster, name)
        if not refusal:
            self.names.append(name)
            self.created += 1
        elif EXCEEDED in refusal:
            self.over_quota += 1
        else:
            self.lost.append(refusal)

    async def _try(self, cluster: KubernetesCluster, name: str) -> str:
        """Create a pod; what the refusal said, or ""."""
        began = time.monotonic()
        try:
            await cluster.create(Kind.PODS, card_pod(self.space, name, 100))
        except AlreadyExists:
            pass  # the first try took effect, only its answer was lost
        except ClusterError as error:
            return str(error)
        finally:
            self.longest = max(self.longest, time.monotonic() - began)
        return ""


@dataclass(frozen=True)
class WaitingPods:
    """Pods for a part of whatever card they will get, and more CPU than a node has: the cards decide what they cost."""

    kubectl: Kubectl
    space: str

    def add(self, name: str, percent: int) -> None:
        found = pod(self.space, name, gpu=1, gpumem_percentage=percent)
        found["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "64"}
        self.kubectl.apply(found)

    def cost(self, mebibytes: int) -> None:
        """Wait until they cost their quota so much."""
        eventually(lambda: self.kubectl.used(self.space)["gpumem"], str(mebibytes))

    def floor_entries(self) -> int:
        return sum(entry["s"] == "floor" for entry in self.kubectl.ledger(self.space).values())


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[None]:
    for name in NODES:
        add_card_node(cluster.kubectl, name, *[CARD] * 4)
    yield
    cluster.kubectl("delete", "node", *NODES)


@pytest.fixture
def without_events(tmp_path: Path) -> Path:
    path = tmp_path / "without-events"
    path.write_text(WITHOUT_EVENTS)
    path.chmod(0o755)
    return path


def names(kubectl: Kubectl, space: str) -> list[str]:
    return sorted(item["metadata"]["name"] for item in kubectl.get("pods", "-n", space)["items"])


def placed(kubectl: Kubectl, space: str) -> set[bool]:
    return {"nodeName" in item["spec"] for item in kubectl.get("pods", "-n", space)["items"]}


def images(kubectl: Kubectl) -> set[str]:
    """Tags of our image that run."""
    pods = system_pods(kubectl)
    found = {container["image"] for pod in pods for container in pod["spec"]["containers"]}
    return {image.partition(":")[2] for image in found if image.startswith("hami-webhook:")}


def test_upgrade_and_rollback_under_a_stream_of_pods(
    cluster: Cluster, nodes: None, without_events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the version before, the chart is taken, and its program; it had a right less than today's.

    What pods that wait were charged holds across both: by entries of single pods in 0.2.0, by floor entries since.
    """
    kubectl = cluster.kubectl
    helm = Helm(cluster.folder, cluster.plane.kubeconfig)
    version = previous()
    old = version.extract(cluster.plane.versions / "previous")
    took: dict[str, float] = {}

    def timed(verb: str, *arguments: str | Path) -> None:
        began = time.monotonic()
        helm(*helm.on_release(verb, *arguments))
        took[verb] = time.monotonic() - began
        eventually(lambda: images(kubectl), {"previous" if verb == "rollback" else "current"})

    spaces = []
    for cards in (AMPLE, TIGHT):
        spaces.append(namespace(kubectl))
        kubectl.apply(quota(spaces[-1], gpu=cards))
    waiting = WaitingPods(kubectl, namespace(kubectl))
    kubectl.apply(quota(waiting.space, gpu=AMPLE, mem=AMPLE * CARD))
    # 0.2.0 has no floor entries and no AcceleratorQuotas
    knows_both = version.title != "release: 0.2.0"
    arguments = "--set", "image.tag=previous", "--post-renderer", without_events
    with (
        installed(cluster, helm, *arguments, chart=old),
        device_plugins(cluster) as plugins,
        Revisions(cluster.plane, spaces[1]) as revisions,
    ):
        began = time.monotonic()
        waiting.add("before", 50)
        waiting.cost(CARD // 2)
        with (
            Stream(kubectl.kubeconfig, spaces[0], keep=KEPT, every=1) as ample,
            Stream(kubectl.kubeconfig, spaces[1], keep=0, every=4) as tight,
        ):
            ample.wait(MORE)
            timed("upgrade", CHART, "--set", "image.tag=current")
            add_small_node(kubectl)
            for name in ("after-1", "after-2"):
                waiting.add(name, 25)
            waiting.cost(CARD // 2 + 2 * SMALL_CARD // 4)
            selector = of_namespaces(spaces[0], waiting.space)
            kubectl.apply(accelerator_quota("upgraded", selector, hard={GPU: AMPLE, MEM: AMPLE * CARD}))
            above = SMALL_CARD // 2 + 2 * SMALL_CARD // 4  # the first of them is new to this quota
            eventually(lambda: used_above(kubectl, waiting.space).get(MEM), str(above))
            kubectl("delete", "node", "small")
            ample.wait(MORE)
            eventually(lambda: int(used_above(kubectl, spaces[0])[GPU]) >= MORE)
            waiting.cost(CARD // 2 + 2 * SMALL_CARD // 4)
            assert used_above(kubectl, waiting.space)[MEM] == str(above)
            assert waiting.floor_entries() == 1 + knows_both
            if not knows_both:
                kubectl("delete", "aq", "upgraded")  # else pods that nobody may charge to it are refused
            timed("rollback", "1")
            assert (kubectl("get", "aq") == "") != knows_both  # helm leaves their definition
            waiting.cost(CARD // 2 + 2 * (SMALL_CARD if knows_both else CARD) // 4)
            assert waiting.floor_entries() == 2 * knows_both
            ample.wait(MORE)
        lasted = time.monotonic() - began
        for stream in (ample, tight):
            assert stream.lost == []
        assert ample.over_quota == 0
        assert names(kubectl, spaces[0]) == sorted(ample.names)
        if knows_both:
            eventually(lambda: used_above(kubectl, spaces[0])[GPU], str(len(ample.names)))
            assert used_above(kubectl, waiting.space)[MEM] == str(above)
            kubectl("delete", "aq", "upgraded")
        # what deletions freed can be had, and not a card more
        eventually(lambda: fill(kubectl, spaces[1]), TIGHT)
        for space, cards in ((spaces[0], len(ample.names)), (spaces[1], TIGHT)):
            eventually(lambda: placed(kubectl, space), {True})  # noqa: B023  called at once
            found = lambda: (kubectl.used(space), kubectl.ledger(space))  # noqa: B023, E731  as above
            eventually(found, ({"gpu": str(cards)}, {}))
        # a call of a device plugin may fail once, as a pod's creation may; a card must never have too much on it
        assert [fault for fault in plugins.faults if fault.startswith(("card ", "no allocation"))] == []
        check_replicas(cluster)
        for space in spaces:
            kubectl.delete_all("pods", namespace=space)
        kubectl("delete", "namespace", *spaces, waiting.space)
    assert max(len(pods) for _, pods, _ in revisions.replay()) == TIGHT
    retried = ample.retried + tight.retried
    with capsys.disabled():
        print(
            f"\nfrom {version.title!r} and back, {lasted:.0f} s: upgrade {took['upgrade']:.0f} s, rollback "
            f"{took['rollback']:.0f} s; {ample.created + tight.created} pods created, {len(retried)} of them at the "
            f"second try, {tight.over_quota} refused by the quota; slowest request "
            f"{max(ample.longest, tight.longest):.2f} s"
        )
        for reason in sorted(set(retried)):
            print(f"  {retried.count(reason)} refused at first: {reason}")


def add_small_node(kubectl: Kubectl) -> None:
    """A node that decides what parts of a card cost while they wait, and gets no pod itself."""
    node = gpu_node("small", SMALL_CARD)
    node["spec"] = {"unschedulable": True}
    add_node(kubectl, node, gpu=10)


def of_namespaces(*spaces: str) -> JSON:
    """A selector of these namespaces."""
    return {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": [*spaces]}]}


def used_above(kubectl: Kubectl, space: str) -> JSON:
    """What a namespace uses of the quota of after the upgrade."""
    status = kubectl.get("aq", "upgraded").get("status") or {}
    found: dict[str, JSON] = {each["name"]: each["used"] for each in status.get("namespaces", ())}
    return found.get(space, {})


def fill(kubectl: Kubectl, space: str) -> int:
    """Try one more pod; how many there are."""
    kubectl.run("create", "-f", "-", stdin=json.dumps(card_pod(space, f"late-{uuid.uuid4().hex[:8]}", 100)))
    return len(names(kubectl, space))
