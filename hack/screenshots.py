"""Writes docs/images: every page of `kubectl hami ui`, of a cluster made up here, in the system's Chromium.

`python -m hack.screenshots`; it asks no cluster, and the same pages come of it each time.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Page, async_playwright

from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.connect import ContextNames
from hami_webhook.cluster.loading import Bundle, LoadedObject, load_objects
from hami_webhook.doctor import NAMESPACE
from hami_webhook.doctor.checks import CHECKS, CheckResult, Diagnosis
from hami_webhook.doctor.facts import Finding
from hami_webhook.doctor.installation import assumed
from hami_webhook.kubectl.live import LiveCluster, read_with
from hami_webhook.kubectl.report import PodUse
from hami_webhook.kubectl.ui.access import TokenHolders
from hami_webhook.kubectl.ui.metrics import Alert, Key, Metrics, Points
from hami_webhook.kubectl.ui.pages import Pages
from hami_webhook.kubectl.ui.readings import Readings
from hami_webhook.kubectl.ui.server import listening, server
from hami_webhook.simulate.results import Pods
from hami_webhook.usage.figures import Measured, MeasuredCard, MeasuredContainer, MeasuredDevice, MeasuredPod

JSON = dict[str, Any]

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
EXAMPLES = ROOT / "manifests" / "examples"
NOW = 1_767_225_600.0
A100, A10 = "NVIDIA A100-SXM4-40GB", "NVIDIA A10"
TEAMS = {"vision": (64, 1_200_000), "speech": (18, 220_000)}
"""Each team's quota: cards, and MiB."""
VENDORS = ("ascend", "cambricon", "hygon", "kunlun", "metax", "mthreads")
"""Whose example nodes are in the fleet as well."""
WAITING = ("vision", "train-large-0")
WHY = (
    "0/24 nodes are available: 1 CardInsufficientMemory, 1 CardNotHealth, 10 NodeInsufficientDevice, 12 no NVIDIA cards"
)
IDLE = "serve-3"
CARD = ("a100-0", "a100-0-0")
ALERTS = (
    Alert("HamiQuotaNearlyFull", "info", "key=limits.nvidia.com/gpumem, namespace=vision, quota=gpu-quota"),
    Alert("HamiNodeLockStuck", "warning", "node=a10-7"),
)
MANIFEST = """\
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: speech}
spec:
  schedulerName: hami-scheduler
  containers:
  - name: main
    image: train
    resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 20000}}
"""


def node(name: str, pool: str, model: str, memory: int, cards: int, broken: int = -1) -> JSON:
    """A node whose cards are linked in groups of four; one of them may be unhealthy."""
    uuids = [f"{name}-{index}" for index in range(cards)]
    registered = [
        {"id": uuid, "index": index, "count": 10, "devmem": memory, "devcore": 100, "type": model,
         "mode": "hami-core", "health": index != broken}
        for index, uuid in enumerate(uuids)
    ]  # fmt: skip
    scores = [
        {"uuid": uuid, "score": {peer: 200 if x // 4 == y // 4 else 10 for y, peer in enumerate(uuids) if y != x}}
        for x, uuid in enumerate(uuids)
    ]
    notes = {"hami.io/node-nvidia-register": json.dumps(registered), "hami.io/node-nvidia-score": json.dumps(scores)}
    amounts = {"nvidia.com/gpu": str(10 * cards)}
    meta = {"name": name, "labels": {"pool": pool}, "annotations": notes}
    return {"metadata": meta, "status": {"allocatable": amounts, "capacity": amounts}}


def quota(team: str, cards: int, memory: int) -> JSON:
    hard = {"limits.nvidia.com/gpu": str(cards), "limits.nvidia.com/gpumem": str(memory)}
    return {"metadata": {"name": "gpu-quota", "namespace": team}, "spec": {"hard": hard}}


def pods() -> Iterator[JSON]:
    """New pods in the order in which they come; the last ones find no room."""
    for number in range(18):
        yield pod("vision", f"train-{number}", 1 + number % 3, 12_000 + 4_000 * (number % 4))
        yield pod("speech", f"serve-{number}", 1, 9_000)
    yield pod("vision", "train-linked", 4, 16_000)
    yield pod("vision", "train-whole", 8, 20_000)
    yield pod(*WAITING, 8, 30_000)


def pod(team: str, name: str, cards: int, memory: int) -> JSON:
    limits = {"nvidia.com/gpu": cards, "nvidia.com/gpumem": memory, "nvidia.com/gpucores": 20}
    spec = {
        "schedulerName": "hami-scheduler",
        "containers": [{"name": "main", "image": "train", "resources": {"limits": limits}}],
    }
    notes = {"hami.io/gpu-scheduler-policy": "topology-aware"}
    return {"metadata": {"name": name, "namespace": team, "annotations": notes}, "spec": spec}


class MadeUp(Metrics):
    """What a Prometheus server would say of the cluster that is made up."""

    def __init__(self) -> None:
        super().__init__("http://prometheus.example")
        self.alerts = ALERTS
        self.history = {
            ("cards wait",): [(NOW + 30 * step, 0 if step < 38 else 8) for step in range(40)],
            ("refusals", "exceeded quota"): [(NOW + 30 * step, (step % 5) / 2) for step in range(40)],
        }

    def ask(self) -> None:
        """Nobody is asked."""

    async def last_hour_of_card(self, uuid: str) -> dict[str, Points]:
        return {}

    async def last_hour_of_pod(self, namespace: str, name: str) -> dict[str, Points]:
        return {}

    def measure(self, cluster: LiveCluster) -> None:
        """Every card of NVIDIA is used to two thirds of what is promised of it, and one pod not at all."""
        found = cluster.overview
        cards = [card for card in found.cards() if card.vendor == "NVIDIA"]
        used: dict[Key, int] = {}
        for card in cards:
            used["used", card.model] = used.get(("used", card.model), 0) + card.used_memory * 2 // 3
        self.history = {**self.history} | {
            key: [*self.history.get(key, ()), (cluster.now, float(amount))] for key, amount in used.items()
        }
        self.measured = Measured(
            {(pod.namespace, pod.name): _measured_pod(pod, cluster.now) for pod in found.pods() if pod.node},
            {
                (card.node, card.uuid): MeasuredCard(
                    card.uuid,
                    card.model,
                    card.used_memory * 2 // 3,
                    card.used_cores * 3 // 2,
                    34.0 + card.used_cores,
                    55.0 + 4 * card.used_cores,
                )
                for card in cards
            },
        )


def _measured_pod(pod: PodUse, now: float) -> MeasuredPod:
    memory = pod.amounts["limits.nvidia.com/gpumem"] // len(pod.cards)
    idle = pod.name == IDLE
    devices = [MeasuredDevice(uuid, 0 if idle else memory * 2 // 3, memory, 0 if idle else 30) for uuid in pod.cards]
    return MeasuredPod(pod.namespace, pod.name, [MeasuredContainer("main", devices, now - 900 if idle else now)])


async def read() -> Readings:
    """Readings of the cluster half a minute apart, in each of which a pod has come."""
    bundle = Bundle()
    bundle.namespaces.extend(loaded("Namespace", {"metadata": {"name": team}}) for team in TEAMS)
    bundle.quotas.extend(loaded("ResourceQuota", quota(team, *hard)) for team, hard in TEAMS.items())
    nodes = [node(f"a100-{index}", "training", A100, 40960, 8, broken=5 if index == 1 else -1) for index in range(2)]
    nodes += [node(f"a10-{index}", "serving", A10, 24576, 4) for index in range(10)]
    bundle.nodes.extend(loaded("Node", each) for each in nodes)
    for vendor in VENDORS:
        objects = load_objects((EXAMPLES / f"{vendor}.yaml").read_text(), vendor)
        bundle.nodes.extend(each for each in objects if each.kind == "Node")
    effective = assumed(NAMESPACE)
    simulation = await effective.simulation(bundle, NOW)
    now = NOW

    metrics = MadeUp()

    async def reading() -> LiveCluster:
        found = await read_with(simulation.cluster, effective, "vision", now)
        metrics.measure(found)
        return found

    readings = Readings(reading, await reading(), ContextNames("vision", "production", "ann"), metrics)
    for manifest in pods():
        await simulation.run(Pods([manifest]))
        now += 30
        await readings.refresh()
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": WHY}
    await simulation.cluster.patch_status(Kind.PODS, WAITING[1], {"status": {"conditions": [unscheduled]}}, WAITING[0])
    await readings.refresh()
    return readings


def loaded(kind: str, obj: JSON) -> LoadedObject:
    return LoadedObject({"apiVersion": "v1", "kind": kind, **obj}, __file__, 0)


async def diagnosis() -> Diagnosis:
    """All is well but for one replica."""
    fault = Finding("Deployment hami-webhook", "1 of 2 replicas are ready", "kubectl describe its pods")
    found = {"deployments": [fault]}
    return Diagnosis([CheckResult(check.name, check.what, found.get(check.name, ())) for check in CHECKS])


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    """The address, with its token, of the pages of the cluster that is made up here."""
    with listening(0) as listener:
        port = listener.getsockname()[1]
        token = secrets.token_urlsafe()
        serving = server(Pages(await read(), diagnosis, TokenHolders(token, port)))
        task = asyncio.create_task(serving.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{port}/#{token}"
        finally:
            serving.should_exit = True
            await task


async def main() -> None:
    chromium = shutil.which("chromium-headless-shell")
    if chromium is None:
        sys.exit("screenshots: chromium-headless-shell is needed (Debian: the package of this name)")
    IMAGES.mkdir(exist_ok=True)
    async with served() as address, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium)
        page = await browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
        await page.goto(address)
        await page.wait_for_url("**/overview")
        pages = address.partition("/#")[0]
        for name in ("overview", "cluster", "teams", "pods", "doctor"):
            await take(page, name, f"{pages}/{name}")
        await take(page, "pod", f"{pages}/pods/{'/'.join(WAITING)}")
        await take(page, "card", f"{pages}/cards/{'/'.join(CARD)}")
        await page.goto(f"{pages}/what-if")
        await page.get_by_role("textbox").fill(MANIFEST)
        await page.get_by_role("spinbutton").fill("3")
        await page.get_by_role("button", name="Try").click()
        await page.get_by_role("region", name="Pods").scroll_into_view_if_needed()
        await take(page, "what-if")
        await page.emulate_media(color_scheme="dark")
        await page.set_viewport_size({"width": 390, "height": 844})
        await take(page, "phone", f"{pages}/overview")
        for name in ("cluster", "teams"):
            await take(page, f"phone-{name}", f"{pages}/{name}")
        await browser.close()


async def take(page: Page, name: str, address: str = "") -> None:
    if address:
        await page.goto(address)
    await page.screenshot(path=IMAGES / f"{name}.png", animations="disabled", full_page=name == "overview")


if __name__ == "__main__":
    asyncio.run(main())
