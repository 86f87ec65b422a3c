"""The dev cluster's kubelet: what a pod says is what runs, on a node of this machine."""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from hack.devcluster import logs
from hack.devcluster.plane import ControlPlane

from .conftest import started
from .deployment import Kubectl, eventually
from .objects import JSON, namespace
from .test_ordinary_day import card_nodes

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
FILES = ["python", "-m", "http.server", "8000", "--directory", "/"]
"""Serves every file that the container sees."""


@pytest.fixture(scope="module")
def kubectl(plane_with_node: ControlPlane) -> Kubectl:
    return Kubectl(plane_with_node.kubeconfig)


def node_pod(space: str, name: str, command: list[str] = FILES, spec: JSON | None = None, **container: object) -> JSON:
    """A pod with one container of our image."""
    main = {"name": "main", "image": "registry.example/hami-webhook:1", "command": command, **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": space, "labels": {"app": name}},
        "spec": {"containers": [main], "terminationGracePeriodSeconds": 1, **(spec or {})},
    }


def status(kubectl: Kubectl, space: str, name: str) -> JSON:
    found: JSON = kubectl.get("pod", name, "-n", space)["status"]
    return found


def container(kubectl: Kubectl, space: str, name: str) -> JSON:
    found: JSON = (status(kubectl, space, name).get("containerStatuses") or [{"state": {}}])[0]
    return found


def waiting(kubectl: Kubectl, space: str, name: str) -> Callable[[], str | None]:
    return lambda: container(kubectl, space, name)["state"].get("waiting", {}).get("reason")


def ready(kubectl: Kubectl, space: str, name: str) -> str:
    """The address of a pod, once it is ready."""
    kubectl("wait", f"pod/{name}", "-n", space, "--for=condition=Ready", "--timeout=120s")
    return str(status(kubectl, space, name)["podIP"])


def fetch(address: str, path: str) -> str | None:
    """A file of a pod that serves its files; None while there is none, or nobody serves it."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}:8000{path}", timeout=5) as answer:
        return str(answer.read().decode())
    return None


def config(space: str, **data: str) -> JSON:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config", "namespace": space}, "data": data}


def log(kubectl: Kubectl, space: str, name: str) -> str:
    return kubectl("logs", name, "-n", space)


PROBE = {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1}
MOUNT = [{"name": "config", "mountPath": "/etc/config"}]
VOLUME: JSON = {"volumes": [{"name": "config", "configMap": {"name": "config"}}]}


def test_files_and_processes_have_the_owners_and_modes_of_the_pod(kubectl: Kubectl) -> None:
    space = namespace(kubectl)
    kubectl("create", "secret", "generic", "secret", "-n", space, "--from-literal=key=k")
    names = ["/secret/key", f"{ACCOUNT}/token", f"{ACCOUNT}/ca.crt", "/empty", "/memory"]
    program = f"""
import json, os
modes = {{name: (oct(os.stat(name).st_mode & 0o7777), os.stat(name).st_gid) for name in {names}}}
links = os.readlink("/secret/key"), os.readlink("/secret/..data").startswith("..2")
size = os.statvfs("/memory").f_blocks * os.statvfs("/memory").f_frsize
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
try:
    open("/written", "w")
    writable = True
except OSError as error:
    writable = error.strerror
print(json.dumps([modes, links, size, os.getuid(), os.getgroups(), status["CapBnd"], status["NoNewPrivs"], writable]))
"""
    volumes = [
        {"name": "secret", "secret": {"secretName": "secret", "defaultMode": 0o400}},
        {"name": "empty", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    kubectl.apply(
        node_pod(
            space,
            "p",
            ["python", "-c", program],
            {
                "restartPolicy": "Never",
                "volumes": volumes,
                "securityContext": {"runAsUser": 1234, "runAsGroup": 1234, "fsGroup": 5678},
            },
            volumeMounts=[{"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes],
            securityContext={
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        )
    )
    eventually(lambda: status(kubectl, space, "p")["phase"] in ("Succeeded", "Failed"))
    modes, links, size, user, groups, capabilities, no_new, writable = json.loads(log(kubectl, space, "p"))
    assert modes == {
        "/secret/key": ["0o440", 5678],
        f"{ACCOUNT}/token": ["0o640", 5678],
        f"{ACCOUNT}/ca.crt": ["0o644", 5678],
        "/empty": ["0o2777", 5678],
        "/memory": ["0o2777", 5678],
    }
    assert links == ["..data/key", True]
    assert size == 1 << 20
    assert (user, groups) == (1234, [5678])
    assert (int(capabilities, 16), no_new) == (0, "1")
    assert writable == "Read-only file system"


def test_kubectl_logs_shows_what_containers_wrote_on_any_node(kubectl: Kubectl, plane_with_node: ControlPlane) -> None:
    space, name = namespace(kubectl), f"cards-{uuid.uuid4().hex[:6]}"
    count = "import time; print(*range(5), sep='\\n', flush=True); time.sleep(3); print('end')"
    with card_nodes(plane_with_node, kubectl, [name]):
        once = {"nodeName": name, "restartPolicy": "Never"}
        kubectl.apply(node_pod(space, "ours", ["python", "-c", count], once))
        kubectl.apply(node_pod(space, "theirs", ["sleep", "600"], once, image="registry.example/training:1"))
        for pod in ("ours", "theirs"):
            eventually(lambda: status(kubectl, space, pod)["phase"], "Running")  # noqa: B023  called at once
        assert kubectl("logs", "-f", "ours", "-n", space).split() == ["0", "1", "2", "3", "4", "end"]
        assert kubectl("logs", "--tail=2", "ours", "-n", space).split() == ["4", "end"]
        assert "runs nothing for this container" in log(kubectl, space, "theirs")
        port = kubectl.get("node", name)["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        url = f"https://{logs.ADDRESS}:{port}/containerLogs/{space}/ours/main"
        folder = plane_with_node.folder
        stranger = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        stranger.load_cert_chain(folder / "admin.crt", folder / "admin.key")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(url, context=stranger)


def test_probes_say_what_is_ready_and_what_is_restarted(kubectl: Kubectl) -> None:
    space = namespace(kubectl)
    kubectl.apply(config(space, ready="", live=""))
    probes: JSON = {
        f"{kind}Probe": {"httpGet": {"path": f"/etc/config/{path}", "port": "http"}, "periodSeconds": 1, **more}
        for kind, path, more in (
            ("startup", "live", {"failureThreshold": 60}),
            ("readiness", "ready", {"failureThreshold": 2}),
            ("liveness", "live", {"failureThreshold": 2, "initialDelaySeconds": 1}),
        )
    }
    ports = [{"name": "http", "containerPort": 8000}]
    kubectl.apply(node_pod(space, "p", volumeMounts=MOUNT, spec=VOLUME, ports=ports, **probes))
    ready(kubectl, space, "p")
    kubectl.apply(config(space, live=""))
    kubectl("wait", "pod/p", "-n", space, "--for=condition=Ready=false", "--timeout=120s")
    assert container(kubectl, space, "p")["restartCount"] == 0
    kubectl.apply(config(space, ready=""))
    eventually(lambda: container(kubectl, space, "p")["restartCount"], 1)
    # it ignores SIGTERM, as a first process without a handler does
    assert container(kubectl, space, "p")["lastState"]["terminated"]["exitCode"] == 137
    # the startup probe fails now, and holds the others back
    eventually(lambda: list(container(kubectl, space, "p")["state"]), ["running"])
    assert not container(kubectl, space, "p")["started"]
    kubectl.apply(config(space, ready="", live=""))
    ready(kubectl, space, "p")


def test_how_a_pod_ends(kubectl: Kubectl) -> None:
    space = namespace(kubectl)
    never = {"restartPolicy": "Never"}
    kubectl.apply(
        node_pod(space, "good", ["python", "-c", ""], never),
        node_pod(space, "bad", ["python", "-c", "raise SystemExit(3)"], never),
        node_pod(space, "again", ["python", "-c", "raise SystemExit(3)"]),
    )
    eventually(lambda: [status(kubectl, space, name)["phase"] for name in ("good", "bad")], ["Succeeded", "Failed"])
    assert container(kubectl, space, "bad")["state"]["terminated"]["exitCode"] == 3
    eventually(waiting(kubectl, space, "again"), "CrashLoopBackOff")
    eventually(lambda: container(kubectl, space, "again")["restartCount"] >= 2)
    assert container(kubectl, space, "again")["lastState"]["terminated"]["exitCode"] == 3
    # one that ignores SIGTERM
    kubectl.apply(
        node_pod(space, "ignoring", ["sh", "-c", "trap '' TERM; exec python -m http.server 8000"], readinessProbe=PROBE)
    )
    address = ready(kubectl, space, "ignoring")
    kubectl("delete", "pods", "--all", "-n", space, "--timeout=120s")
    eventually(lambda: address in subprocess.check_output(["ip", "route"], text=True), False)


SECRET = {"secretKeyRef": {"name": "none", "key": "k"}}
REFUSED: dict[str, tuple[JSON, str, str]] = {
    "image": (
        {"image": "nginx"},
        "ErrImagePull",
        "image nginx: the dev cluster has only hami-webhook, hami-webhook-root, ",
    ),
    "hook": ({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}, "CreateContainerConfigError", "doesn't support"),
    "probe": (
        {"livenessProbe": {"exec": {"command": ["true"]}}},
        "CreateContainerConfigError",
        "a livenessProbe without",
    ),
    "variable": (
        {"env": [{"name": "A", "valueFrom": SECRET}]},
        "CreateContainerConfigError",
        'secrets "none" not found',
    ),
    "root": ({"securityContext": {"runAsUser": 0, "runAsNonRoot": True}}, "CreateContainerConfigError", "runAsNonRoot"),
}


def test_what_cannot_run_says_why(kubectl: Kubectl) -> None:
    space = namespace(kubectl)
    kubectl.apply(*(node_pod(space, name, **made) for name, (made, _, _) in REFUSED.items()))
    for name, (_, reason, message) in REFUSED.items():
        eventually(waiting(kubectl, space, name), reason)
        assert message in container(kubectl, space, name)["state"]["waiting"]["message"]


def test_a_kubelet_that_is_killed_leaves_nothing() -> None:
    mark = uuid.uuid4().hex

    def running() -> int:
        """How many processes the mark is an argument of."""
        commands = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                commands.append(path.read_bytes())
        return sum(mark.encode() in command for command in commands)

    def linked(uid: str) -> bool:
        return f"hami{uid.replace('-', '')[:10]}" in subprocess.check_output(["ip", "link"], text=True)

    with started("kubelet") as plane:
        kubectl = Kubectl(plane.kubeconfig)
        space = namespace(kubectl)
        volumes = {"volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}]}
        mounts = [{"name": "memory", "mountPath": "/memory"}]
        # with a process that the container's own has started
        command = ["sh", "-c", "python -m http.server 8000 --directory $0 & wait", f"/{mark}"]
        kubectl.apply(node_pod(space, "p", command, volumes, volumeMounts=mounts))
        eventually(running, 2)
        uid = kubectl.get("pod", "p", "-n", space)["metadata"]["uid"]
        assert linked(uid)
        plane.running["kubelet"].kill()
        eventually(running, 0)
        eventually(lambda: linked(uid), False)
        assert str(plane.folder) not in Path("/proc/mounts").read_text()
