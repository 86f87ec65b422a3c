"""What pods really use, on a real API server: measured on their node, passed on by aggregation, seen as RBAC says."""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from builders import card, node
from node.machines import DGX_A100, Card, compile_library, environment
from node.regions import region

from hack.devcluster.identities import kubeconfig
from hack.devcluster.plane import ControlPlane, free_ports
from hami_webhook.node.region import V1_2

from .deployment import JSON, ROOT, SYSTEM, Kubectl, eventually
from .tenants import tenant

COMPONENTS = ROOT / "manifests" / "components"
API = "/apis/usage.hami.io/v1alpha1"
API_SERVICE = "v1alpha1.usage.hami.io"
ADDRESS = f"198.19.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
"""Of this run, on the loopback device: the API server takes no endpoints of 127.0.0.0/8."""
MIB = 1 << 20
GPU = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}
PODS = {"used-a/busy": "GPU-0", "used-a/never": "GPU-1", "used-b/forgotten": "GPU-0"}


@dataclass
class Measured:
    """The cluster with a node that is measured, and the process that serves the API."""

    plane: ControlPlane
    kubectl: Kubectl
    folder: Path
    port: int
    usage: subprocess.Popen[bytes]

    def use(self, pod: str, memory: int, idle: float) -> None:
        """A pod's container uses so many MiB of its card, and computed so many seconds ago."""
        content = region(V1_2, uuids=(PODS[pod].encode(),), slots=[{0: (0, 0, memory * MIB, 0, memory * MIB)}])
        assert V1_2.last_kernel_time is not None
        struct.pack_into("<q", content, V1_2.last_kernel_time, int(time.time() - idle))
        space, _, name = pod.partition("/")
        uid = self.kubectl.get("pod", name, "-n", space)["metadata"]["uid"]
        folder = self.folder / "containers" / f"{uid}_main"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "new").write_bytes(content)
        (folder / "new").rename(folder / "a.cache")

    def hami(self, login: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "import sys; from hami_webhook.kubectl.main import main; sys.exit(main())"]
        known = {**os.environ, "KUBECONFIG": str(login)}
        return subprocess.run([*command, *arguments], env=known, cwd=ROOT, text=True, capture_output=True, check=False)


@contextmanager
def running(folder: Path, name: str, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "hami_webhook", "serve", *arguments]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **variables}, stderr=log, cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def measured(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("used")
    kubectl = Kubectl(plane.kubeconfig)
    files = [
        COMPONENTS / path
        for path in ("node/rbac.yaml", "monitor/rbac.yaml", "usage/rbac.yaml", "usage/apiservice.yaml")
    ]
    api, metrics, probes = free_ports(3)
    machine = environment(
        folder,
        replace(
            DGX_A100, gpus=2, cards=(Card(memory=5000 * MIB, utilisation=30), Card(memory=500 * MIB, utilisation=0))
        ),
    )
    compile_library(folder)
    with ExitStack() as stack:
        subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"], check=True)
        stack.callback(subprocess.run, ["ip", "address", "del", f"{ADDRESS}/32", "dev", "lo"], check=True)
        kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
        for path in files:
            kubectl("apply", "-f", str(path))
            stack.callback(kubectl, "delete", "--wait=false", "-f", str(path))
        kubectl.apply({"apiVersion": "v1", "kind": "Node", **node("gpu-used", card("GPU-0"), card("GPU-1"))})
        stack.callback(kubectl, "delete", "node", "gpu-used")
        for space in ("used-a", "used-b"):
            kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
            stack.callback(kubectl, "delete", "namespace", space, "--wait=false")
        kubectl.apply(*(held(pod) for pod in PODS), *served_at(api))
        kubectl.apply(monitor(metrics))
        status = json.dumps({"status": {"podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}], "phase": "Running"}})
        kubectl("patch", "pod", "monitor", "-n", SYSTEM, "--subresource=status", "--type=merge", "-p", status)
        own = {"POD_NAMESPACE": SYSTEM, "HAMI_WEBHOOK_SERVICE": "hami-webhook-usage"}
        at: dict[str, tuple[str, ...]] = {"node": ("--roles=node", f"--metrics-bind-address={ADDRESS}:{metrics}")}
        at["usage"] = ("--roles=usage", f"--http_bind={ADDRESS}:{api}", f"--metrics-bind-address={ADDRESS}:{probes}")
        processes = []
        for name, flags in at.items():
            login = folder / f"{name}-login"
            token = kubectl("create", "token", f"hami-webhook-{name}", "-n", SYSTEM).strip()
            login.write_text(
                json.dumps(kubeconfig(plane.server, plane.authority.certificate.read_bytes(), {"token": token}))
            )
            known = {**machine, "NODE_NAME": "gpu-used", "HOOK_PATH": str(folder), **own, "KUBECONFIG": str(login)}
            processes.append(stack.enter_context(running(folder, name, *flags, **known)))
        eventually(lambda: available(kubectl), seconds=120)
        yield Measured(plane, kubectl, folder, api, processes[-1])


def held(pod: str) -> JSON:
    """A pod that holds a card."""
    space, _, name = pod.partition("/")
    notes = {"hami.io/vgpu-node": "gpu-used", "hami.io/vgpu-devices-allocated": f"{PODS[pod]},NVIDIA,4000,10:;"}
    container = {"name": "main", "image": "i", "resources": {"limits": GPU}}
    meta = {"name": name, "namespace": space, "annotations": notes}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"nodeName": "gpu-used", "containers": [container]},
    }


def monitor(port: int) -> JSON:
    """The pod of the DaemonSet on the node."""
    container = {"name": "node", "image": "i", "ports": [{"name": "metrics", "containerPort": port}]}
    meta = {"name": "monitor", "namespace": SYSTEM, "labels": {"app.kubernetes.io/component": "node"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"nodeName": "gpu-used", "containers": [container]},
    }


def served_at(port: int) -> list[JSON]:
    """The Service of the manifests, with what runs here behind it."""
    documents = yaml.safe_load_all((COMPONENTS / "usage" / "deployment.yaml").read_text())
    (service,) = (each for each in documents if each["kind"] == "Service")
    del service["spec"]["selector"]
    labels = {"kubernetes.io/service-name": "hami-webhook-usage"}
    meta = {"name": "hami-webhook-usage", "namespace": SYSTEM, "labels": labels}
    slice_ = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta, "addressType": "IPv4"}
    ports = [{"name": "https", "port": port, "protocol": "TCP"}]
    return [service, {**slice_, "endpoints": [{"addresses": [ADDRESS], "conditions": {"ready": True}}], "ports": ports}]


def available(kubectl: Kubectl) -> bool:
    conditions = kubectl.get("apiservice", API_SERVICE).get("status", {}).get("conditions", [])
    return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)


def shown(kubectl: Kubectl, path: str) -> JSON:
    """What a part of the API has, by name; nothing if it doesn't answer, or may not be read."""
    done = kubectl.run("get", "--raw", f"{API}/{path}")
    return {} if done.returncode else {each["metadata"]["name"]: each for each in json.loads(done.stdout)["items"]}


def memory_of(usage: JSON) -> int:
    devices = [device for each in usage.get("containers", ()) for device in each["devices"]]
    return int(sum(device["memoryBytes"] for device in devices)) // MIB


def test_it_is_seen_who_holds_cards_and_does_not_use_them(measured: Measured) -> None:
    measured.use("used-a/busy", 1000, idle=0)
    measured.use("used-b/forgotten", 3000, idle=7200)
    admin = measured.plane.kubeconfig

    def found(idle_for: str) -> dict[str, tuple[list[str], JSON]]:
        run = measured.hami(admin, "idle", "-A", "--idle-for", idle_for, "-o", "json")
        assert run.returncode == 0, run.stderr
        teams = json.loads(run.stdout)
        return {team["namespace"]: ([pod["name"] for pod in team["idle"]], team["frees"]) for team in teams}

    frees = {f"limits.nvidia.com/{key}": n for key, n in (("gpu", 1), ("gpucores", 10), ("gpumem", 4000))}
    eventually(lambda: found("1h").get("used-b"), (["forgotten"], frees), seconds=90)
    # it was placed when it was created, and has no region
    eventually(lambda: "never" in found("1s")["used-a"][0], seconds=90)
    measured.use("used-a/busy", 2500, idle=0)  # it grows
    eventually(lambda: memory_of(shown(measured.kubectl, "pods").get("busy", {})), 2500, seconds=90)

    def cards() -> list[str]:
        return [each["uuid"] for each in shown(measured.kubectl, "nodes").get("gpu-used", {}).get("cards", ())]

    eventually(cards, ["GPU-0", "GPU-1"], seconds=90)


def test_a_tenant_sees_the_use_of_its_own_pods_alone(measured: Measured, tmp_path: Path) -> None:
    as_tenant = tenant(measured.kubectl, measured.plane, tmp_path, "used-a", role="view", name="viewer")
    # the role view takes a moment to grow
    eventually(lambda: sorted(shown(as_tenant, "namespaces/used-a/pods")), ["busy", "never"], seconds=90)
    names = ["podusage.usage.hami.io/busy", "podusage.usage.hami.io/never"]
    eventually(lambda: as_tenant("get", "pods.usage.hami.io", "-n", "used-a", "-o", "name").split(), names, seconds=90)
    for other in (
        f"{API}/namespaces/used-b/pods",
        f"{API}/namespaces/used-b/pods/forgotten",
        f"{API}/pods",
        f"{API}/nodes",
    ):
        assert "forbidden" in as_tenant.run("get", "--raw", other).stderr
    run = measured.hami(as_tenant.kubeconfig, "pods", "-n", "used-a", "-o", "wide")
    assert (run.returncode, "forgotten" in run.stdout) == (0, False)
    assert "USED MEMORY" in run.stdout


@pytest.mark.parametrize("identity", ["nobody", "a user's", "another of the front proxy's authority"])
def test_who_is_not_the_api_server_gets_no_answer(measured: Measured, identity: str) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if identity == "a user's":
        context.load_cert_chain(*measured.plane.authority.client("front-proxy-client-2", "front-proxy-client"))
    elif identity != "nobody":
        context.load_cert_chain(*measured.plane.front_proxy.client("other", "other"))
    answer = b""
    try:
        with socket.create_connection((ADDRESS, measured.port), 10) as plain, context.wrap_socket(plain) as connection:
            connection.sendall(f"GET {API}/pods HTTP/1.1\r\nHost: x\r\nX-Remote-User: admin\r\n\r\n".encode())
            answer = connection.recv(1)
    except (ssl.SSLError, ConnectionError):
        pass
    assert answer == b""


def test_its_account_may_do_nothing_else(measured: Measured) -> None:
    own = Kubectl(measured.folder / "usage-login")
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


def test_without_it_all_else_works_and_a_line_says_so(measured: Measured) -> None:
    """The last of the module: it ends the process."""
    measured.usage.terminate()
    assert measured.usage.wait(20) == 0
    run = measured.hami(measured.plane.kubeconfig, "pods", "-n", "used-a")
    assert (run.returncode, "busy" in run.stdout) == (0, True)
    lines = [line for line in run.stderr.splitlines() if "usage.hami.io" in line]
    assert len(lines) == 1
