"""What pods really use, on a real API server: the node's monitor runs as the pod of the DaemonSet of our manifests, and
what it says is seen in tables, on pages, in a real Prometheus and through the API, as RBAC says.

Containers use their cards by a program that writes shared regions as HAMi-core does; of the cards a stand-in for NVML
tells, which comes into the pod as NVIDIA's runtime would bring it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import builders
import pytest
from chromium import CHROMIUM
from node.machines import DGX_A100, Card, compile_library, set_health
from node.regions import Container, compile_program
from playwright.sync_api import expect, sync_playwright

from hack.devcluster.plane import NODE, ControlPlane
from hack.devcluster.pods import HOST_ROOT
from hami_webhook.node.region import V1_2
from hami_webhook.report import read_hours

from .deployment import JSON, ROOT, SYSTEM, Kubectl, eventually
from .installation import Cluster, check_rollout, device_plugins, installed
from .objects import namespace
from .objects import pod as asking
from .prometheus import Prometheus, scraping, shortened
from .tenants import tenant, token_of
from .test_monitoring import active, check_data, panel_queries
from .test_rights import MAY_I, audited, granted, right
from .test_ui import UPDATED, entered, ui

API = "/apis/usage.hami.io/v1alpha1"
ALERTS = ("HamiCardsHeldIdle", "HamiContainerAboveLimit", "HamiCardUnhealthy")
CARD_SECONDS = "hami_webhook_showback_used_card_seconds_total"
MEMORY_SECONDS = "hami_webhook_showback_used_memory_mib_seconds_total"
API_SERVICE = "v1alpha1.usage.hami.io"
MIB = 1 << 20
SPACES = ("used-a", "used-b")
PODS = {
    "used-a/busy": "GPU-0",
    "used-a/never": "GPU-1",
    "used-b/notebook": "GPU-0",
    "used-b/forgotten": "GPU-0",
}
"""Who has which card."""
REASONS = "jsonpath={.items[*].reason}"
GIVEN = 4000
"""MiB that each of them was given."""
RUNTIME = """
- target: {kind: DaemonSet, name: hami-webhook-node}
  patch: |-
    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: LD_LIBRARY_PATH, value: /nvidia}}
    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: FAKE_NVML, value: /nvidia/machine}}
    - {op: add, path: /spec/template/spec/containers/0/volumeMounts/-,
       value: {name: nvidia, mountPath: /nvidia, readOnly: true}}
    - {op: add, path: /spec/template/spec/volumes/-,
       value: {name: nvidia, hostPath: {path: /nvidia, type: DirectoryOrCreate}}}
"""
"""What NVIDIA's runtime does: it brings NVML into the container."""


@dataclass
class Measured:
    """The cluster with a node that is monitored, and a viewer of used-a. `host` stands for the node's own root."""

    cluster: Cluster
    viewer: Kubectl
    host: Path
    since: int
    """How long the audit log was before the program was installed."""
    program: Path
    running: ExitStack
    containers: dict[str, Container] = field(default_factory=dict)

    @property
    def kubectl(self) -> Kubectl:
        return self.cluster.kubectl

    def use(self, pod: str, memory: int, *, sm: int = 0, idle: float = 0) -> None:
        """A pod's container uses so many MiB of its card, computes on so many percent, and last did so long ago."""
        is_known = pod in self.containers
        container = self.containers[pod] if is_known else self._begin(pod)
        container.tell(f"kernel {int(time.time() - idle)}")
        container.use(0, 0, context=0, module=0, data=memory * MIB, total=memory * MIB, sm=sm)
        if not is_known:
            # the monitor sees nothing of it before it is complete
            container.region.rename(container.region.with_suffix(".cache"))

    def _begin(self, pod: str) -> Container:
        """It uses CUDA for the first time."""
        space, _, name = pod.partition("/")
        found = self.kubectl.get("pod", name, "-n", space)
        folder = f"{found['metadata']['uid']}_{found['spec']['containers'][0]['name']}"
        region = self.host / "usr/local/vgpu/containers" / folder / "a.new"
        made = self.running.enter_context(Container(self.program, region, V1_2))
        made.tell(f"uuid 0 {PODS[pod]}", f"limit 0 {GIVEN * MIB}")
        self.containers[pod] = made
        return made

    def set_card(self, memory: int) -> None:
        """So many MiB of GPU-0 are used, as NVML says."""
        cards = (
            Card(memory * MIB, utilisation=30, temperature=61, milliwatts=250_000),
            Card(500 * MIB, utilisation=0),
        )
        written = self.host / "nvidia" / "new"
        written.write_text(replace(DGX_A100, gpus=2, cards=cards).text())
        written.rename(written.with_name("machine"))


def overlay(folder: Path) -> str:
    """The default overlay with the components that a user turns on, as `hack/deploy` finds it."""
    manifests = ROOT / "manifests"
    base, *components = (
        os.path.relpath(manifests / path, folder.resolve())
        for path in ("overlays/default", "components/node", "components/monitor", "components/usage")
    )
    text = f"resources: [{base}]\ncomponents: {json.dumps(components)}\npatches:{RUNTIME}"
    (folder / "kustomization.yaml").write_text(text)
    return os.path.relpath(folder, manifests / "overlays")


def held(pod: str) -> JSON:
    """A pod that asks for a part of its card, and runs until it is ended."""
    space, _, name = pod.partition("/")
    found = asking(space, name, gpu=1, gpumem=GIVEN, gpucores=10)
    found["metadata"]["annotations"] = {"nvidia.com/use-gpuuuid": PODS[pod]}
    found["spec"]["containers"][0] |= {"image": "hami-webhook", "command": ["sleep", "infinity"]}
    return found


@contextmanager
def gpus(kubectl: Kubectl) -> Iterator[None]:
    """The node of the kubelet has two cards, which its device plugin registered."""
    node = builders.node(NODE, builders.card("GPU-0"), builders.card("GPU-1"))
    capacity = {"nvidia.com/gpu": "20"}
    meta = {"labels": {"gpu": "on"}, "annotations": node["metadata"]["annotations"]}

    def patch(meta: JSON, capacity: JSON) -> None:
        kubectl("patch", "node", NODE, "--type=merge", "-p", json.dumps({"metadata": meta}))
        status = json.dumps({"status": {"capacity": capacity, "allocatable": capacity}})
        kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", status)

    patch(meta, capacity)
    yield
    noted = kubectl.get("node", NODE)["metadata"]["annotations"]
    ours = {key: None for key in noted if key.startswith(("hami.io/", "nvidia.com/"))}
    patch({"labels": {"gpu": None}, "annotations": ours}, dict.fromkeys(capacity))


@pytest.fixture(scope="module")
def measured(plane_with_node: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("used")
    (folder / "overlay").mkdir()
    kubectl = Kubectl(plane_with_node.kubeconfig)
    cluster = Cluster(plane_with_node, kubectl, folder)
    host = plane_with_node.folder / "pods" / HOST_ROOT
    (host / "nvidia").mkdir(parents=True)
    compile_library(host / "nvidia")
    for space in SPACES:
        kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
    viewer = tenant(kubectl, plane_with_node, folder, "used-a", role="view", name="viewer")
    since = plane_with_node.audit_log.stat().st_size
    with (
        ExitStack() as containers,
        gpus(kubectl),
        installed(cluster, overlay(folder / "overlay")) as output,
        device_plugins(cluster),
    ):
        found = Measured(cluster, viewer, host, since, compile_program(folder), containers)
        found.set_card(5000)
        check_rollout(cluster, output)
        kubectl.apply(*map(held, PODS))
        for each in PODS:
            space, _, name = each.partition("/")
            kubectl("wait", f"pod/{name}", "-n", space, "--for=jsonpath={.status.phase}=Running", "--timeout=120s")
        kubectl("rollout", "status", "daemonset/hami-webhook-node", "-n", SYSTEM, "--timeout=120s")
        eventually(lambda: available(kubectl))
        yield found
        for space in SPACES:
            kubectl.delete_all("pods", namespace=space)
    kubectl("delete", "namespaces", *SPACES, "--wait=false")


@pytest.fixture(scope="module")
def prometheus(measured: Measured) -> Iterator[Prometheus]:
    """One that scrapes what is installed, and has the alerts about use; what lasts for minutes, for seconds there."""
    with scraping(measured.cluster, shortened(*ALERTS, by=60)) as found:
        measured.use("used-a/busy", 1000, sm=30)
        measured.use("used-b/notebook", 2000, sm=10)
        eventually(lambda: set(found.targets().values()), {"up"})
        yield found


def available(kubectl: Kubectl) -> bool:
    conditions = kubectl.get("apiservice", API_SERVICE).get("status", {}).get("conditions", [])
    return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)


def shown(kubectl: Kubectl, path: str) -> JSON:
    """What a part of the API has, by name; nothing if it doesn't answer, or may not be read."""
    done = kubectl.run("get", "--raw", f"{API}/{path}")
    return {} if done.returncode else {each["metadata"]["name"]: each for each in json.loads(done.stdout)["items"]}


def idle_quota(after: str) -> JSON:
    """Pods of used-a are evicted that compute nothing for so long."""
    spec = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "used-a"}},
        "hard": {"limits.nvidia.com/gpu": 8},
        "idleAfter": after,
        "idle": "Evict",
    }
    return {"apiVersion": "hami.io/v1alpha1", "kind": "AcceleratorQuota", "metadata": {"name": "idle"}, "spec": spec}


def memory_of(usage: JSON) -> int:
    devices = [device for each in usage.get("containers", ()) for device in each["devices"]]
    return int(sum(device["memoryBytes"] for device in devices)) // MIB


def test_alerts_are_silent_on_an_ordinary_day_and_each_fires_at_its_fault(
    measured: Measured, prometheus: Prometheus
) -> None:
    eventually(lambda: prometheus.value("count(hami_webhook_container_idle_seconds)"), 2)
    assert active(prometheus) == set()
    since = time.time()

    def firing() -> dict[str, str]:
        found = prometheus.query('ALERTS{alertstate="firing"}')
        return {each.labels["alertname"]: each.labels.get("pod") or each.labels["device_uuid"] for each in found}

    wanted = {"HamiCardsHeldIdle": "forgotten"}
    measured.use("used-b/forgotten", 3000, idle=7200)
    eventually(firing, wanted)
    measured.use("used-a/busy", GIVEN + 1, sm=30)
    eventually(firing, wanted | {"HamiContainerAboveLimit": "busy"})
    measured.use("used-a/busy", GIVEN, sm=30)
    eventually(firing, wanted)
    set_health(measured.host / "nvidia", "0 0 0 -1", "0 1 0 -1")
    eventually(firing, wanted | {"HamiCardUnhealthy": "GPU-1"})
    assert {name for name, _ in prometheus.alerts(since)} == set(ALERTS)


@pytest.mark.usefixtures("measured")
def test_every_query_about_use_has_data(prometheus: Prometheus) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    documented = re.findall(r"^```\n([^`]*\bhami_[^`]*)^```", page, re.MULTILINE)
    queries = panel_queries(of_monitor=True) | {text: text for text in documented}
    assert len(queries) > len(documented) > 0
    check_data(prometheus, queries)


def test_showback_counts_what_was_used(measured: Measured, prometheus: Prometheus) -> None:
    """The report's hours against sums by this test's own clock: of a card that computes, then only keeps memory."""
    began, before = time.time(), hours(prometheus)
    measured.use("used-a/busy", 1000, sm=30)
    cards = prometheus.value(f"{CARD_SECONDS}{{namespace='used-a'}}") or 0.0
    eventually(lambda: (prometheus.value(f"{CARD_SECONDS}{{namespace='used-a'}}") or 0.0) > cards + 20)
    measured.use("used-a/busy", 3000)
    stopped = time.time()
    memory = prometheus.value(f"{MEMORY_SECONDS}{{namespace='used-a'}}") or 0.0
    wanted = memory + 20 * 3000
    eventually(lambda: (prometheus.value(f"{MEMORY_SECONDS}{{namespace='used-a'}}") or 0.0) > wanted)
    ended, after = time.time(), hours(prometheus)
    scrapes = prometheus.values("max(timestamp(hami_webhook_monitored_containers))", began)
    late = max(later - earlier for earlier, later in pairwise(sorted({began, ended, *scrapes.values()})))
    used = [3600 * (now - then) for now, then in zip(after, before, strict=True)]
    computed, kept = stopped - began, ended - stopped
    # what happens between two scrapes is seen at the second: three changes
    assert used[0] == pytest.approx(computed, abs=3 * late)
    assert used[1] == pytest.approx((computed * 1000 + kept * 3000) / 1024, abs=3 * late * GIVEN / 1024)


def hours(prometheus: Prometheus) -> tuple[float, float]:
    """Of cards and of GiB that used-a really used, as the report has them."""
    rows = [row.amounts[-2:] for row in read_hours(prometheus.url, "1h").rows if row.labels[0] == "used-a"]
    return sum(row[0] for row in rows), sum(row[1] for row in rows)


@pytest.mark.usefixtures("plugin")
def test_the_page_of_a_card_follows_what_is_used_within_ten_seconds(measured: Measured) -> None:
    faults: list[str] = []
    with ui(measured.kubectl, "default") as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = entered(browser, address, f"/cards/{NODE}/GPU-0", faults)
        bar = page.get_by_label("memory used of GPU-0")
        expect(bar).to_have_attribute("value", "5000", timeout=UPDATED)
        expect(page.locator("main")).to_contain_text("61 °C 250 W")
        moved = []
        for memory in (9000, 14000, 21000):
            measured.set_card(memory)
            written = time.time()
            expect(bar).to_have_attribute("value", str(memory), timeout=UPDATED)
            moved.append(time.time() - written)
        browser.close()
    # a machine that is busy with something else may delay some of them
    assert min(moved) < 10, moved
    assert faults == []


def test_it_is_seen_who_holds_cards_and_does_not_use_them(measured: Measured) -> None:
    measured.use("used-a/busy", 1000, sm=30)
    measured.use("used-b/notebook", 2000, sm=10)
    measured.use("used-b/forgotten", 3000, idle=7200)

    def found(idle_for: str) -> dict[str, tuple[list[str], JSON]]:
        run = measured.kubectl.hami("idle", "-A", "--idle-for", idle_for, "-o", "json")
        assert run.returncode == 0, run.stderr
        teams = json.loads(run.stdout)
        return {team["namespace"]: ([pod["name"] for pod in team["idle"]], team["frees"]) for team in teams}

    frees = {f"limits.nvidia.com/{key}": n for key, n in (("gpu", 1), ("gpucores", 10), ("gpumem", 4000))}
    eventually(lambda: found("1h").get("used-b"), (["forgotten"], frees))
    # it was placed when it was created, and has no region
    eventually(lambda: "never" in found("1s")["used-a"][0])
    measured.use("used-a/busy", 2500, sm=30)  # it grows
    eventually(lambda: memory_of(shown(measured.kubectl, "pods").get("busy", {})), 2500)

    def cards() -> list[str]:
        return [each["uuid"] for each in shown(measured.kubectl, "nodes").get(NODE, {}).get("cards", ())]

    eventually(cards, ["GPU-0", "GPU-1"])


def test_a_tenant_sees_the_use_of_its_own_pods_alone(measured: Measured) -> None:
    as_tenant = measured.viewer
    # the role view takes a moment to grow
    eventually(lambda: sorted(shown(as_tenant, "namespaces/used-a/pods")), ["busy", "never"])
    names = ["podusage.usage.hami.io/busy", "podusage.usage.hami.io/never"]
    eventually(lambda: as_tenant("get", "pods.usage.hami.io", "-n", "used-a", "-o", "name").split(), names)
    for other in (
        f"{API}/namespaces/used-b/pods",
        f"{API}/namespaces/used-b/pods/forgotten",
        f"{API}/pods",
        f"{API}/nodes",
    ):
        assert "forbidden" in as_tenant.run("get", "--raw", other).stderr
    run = as_tenant.hami("pods", "-n", "used-a", "-o", "wide")
    assert (run.returncode, "forgotten" in run.stdout) == (0, False)
    assert "USED MEMORY" in run.stdout


@pytest.mark.parametrize("identity", ["nobody", "a user's", "another of the front proxy's authority"])
def test_who_is_not_the_api_server_gets_no_answer(measured: Measured, identity: str) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if identity == "a user's":
        context.load_cert_chain(*measured.cluster.plane.authority.client("front-proxy-client-2", "front-proxy-client"))
    elif identity != "nobody":
        context.load_cert_chain(*measured.cluster.plane.front_proxy.client("other", "other"))
    answer = b""
    (usage,) = measured.kubectl.get("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=usage")["items"]
    try:
        with (
            socket.create_connection((usage["status"]["podIP"], 8443), 10) as plain,
            context.wrap_socket(plain) as connection,
        ):
            connection.sendall(f"GET {API}/pods HTTP/1.1\r\nHost: x\r\nX-Remote-User: admin\r\n\r\n".encode())
            answer = connection.recv(1)
    except (ssl.SSLError, ConnectionError):
        pass
    assert answer == b""


def test_its_account_may_do_nothing_else(measured: Measured, tmp_path: Path) -> None:
    own = token_of(measured.kubectl, measured.cluster.plane, tmp_path, SYSTEM, "hami-webhook-usage")
    own("get", "apiservice", API_SERVICE)
    for forbidden in (
        ("get", "secrets", "-A"),
        ("delete", "pod", "busy", "-n", "used-a"),
        ("get", "nodes"),
        ("delete", "apiservice", API_SERVICE),
        ("label", "apiservice", "v1.apps", "a=b"),
        ("get", "configmaps", "-n", "kube-system"),
    ):
        assert "forbidden" in own.run(*forbidden).stderr.lower(), forbidden


def test_every_right_of_its_account_is_used_and_no_other_asked_for(measured: Measured) -> None:
    asked = audited(measured.cluster.plane, measured.since, "hami-webhook-usage")
    used = {right(entry) for entry in asked if "kubectl" not in entry["userAgent"]} - {MAY_I}
    by_kubernetes_own_role = {("", "configmaps", "get")}
    assert used == granted(measured.kubectl, ("hami-webhook-usage",)) | by_kubernetes_own_role


def test_a_pod_that_computes_nothing_is_evicted_though_it_writes_that_it_does(measured: Measured) -> None:
    """`never` writes so into its region, on a card that its driver sees idle. `busy` computes, and stays."""
    kubectl = measured.kubectl
    measured.use("used-a/busy", 1000, sm=30)
    measured.use("used-a/never", 1000, sm=50)
    kubectl.apply(idle_quota("20s"))
    kubectl("wait", "pod/never", "-n", "used-a", "--for=delete", "--timeout=300s")
    reasons = ("get", "events", "-n", "used-a", "--field-selector", "involvedObject.name=never", "-o", REASONS)
    eventually(lambda: {"QuotaIdle", "QuotaIdleEvicted"} <= {*kubectl(*reasons).split()})
    conditions = kubectl.get("pod", "busy", "-n", "used-a")["status"]["conditions"]
    assert "hami.io/QuotaIdle" not in {each["type"] for each in conditions}
    kubectl("delete", "acceleratorquota", "idle")


def test_without_it_all_else_works_and_a_line_says_so(measured: Measured) -> None:
    """The last of the module: it ends the process, and takes the API away."""
    kubectl = measured.kubectl
    kubectl("scale", "deployment/hami-webhook-usage", "-n", SYSTEM, "--replicas=0")
    eventually(lambda: available(kubectl), False)
    run = kubectl.hami("pods", "-n", "used-a")
    assert (run.returncode, "busy" in run.stdout) == (0, True)
    lines = [line for line in run.stderr.splitlines() if "usage.hami.io" in line]
    assert len(lines) == 1
    # namespaces aren't deleted to the end, as docs/used.md says, until the APIService is taken away
    space = namespace(kubectl)
    kubectl("delete", "namespace", space, "--wait=false")
    kubectl("wait", f"namespace/{space}", "--for=condition=NamespaceDeletionDiscoveryFailure", "--timeout=120s")
    assert "usage.hami.io" in json.dumps(kubectl.get("namespace", space)["status"])
    kubectl("delete", "apiservice", API_SERVICE)
    kubectl("wait", f"namespace/{space}", "--for=delete", "--timeout=120s")
