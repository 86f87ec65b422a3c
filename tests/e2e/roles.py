"""The rendered Deployments as processes: each container's own arguments, environment and service account.

Only addresses and folders are the test's own. What kubelet would mount is written where the arguments then point.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hack.devcluster.plane import ControlPlane, free_ports

from .deployment import JSON, ROOT, SYSTEM, Deployment, Kubectl, eventually

WEBHOOK, CONTROLLER, SCHEDULER = "hami-webhook", "hami-webhook-controller", "hami-scheduler"
_RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ConfigMap")


@dataclass
class Roles:
    """What the overlay `default` deploys, against a real API server. The webhooks call the address of `installed`."""

    plane: ControlPlane
    folder: Path
    kubectl: Kubectl
    installed: Deployment
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    """Where each Deployment answers probes."""
    extender: int = 0

    def __post_init__(self) -> None:
        rendered = self.kubectl("kustomize", str(ROOT / "manifests" / "overlays" / "default"))
        self.objects: list[JSON] = list(yaml.safe_load_all(rendered))
        self.installed.install()
        self.kubectl.apply(*(found for found in self.objects if found["kind"] in _RIGHTS))

    def pod_of(self, deployment: str) -> JSON:
        """The pod that a Deployment makes."""
        (found,) = [
            obj["spec"]["template"]["spec"]
            for obj in self.objects
            if (obj["kind"], obj["metadata"]["name"]) == ("Deployment", deployment)
        ]
        assert isinstance(found, dict)
        return found

    def start(self, deployment: str) -> None:
        """Start our container of a Deployment, and wait until it is ready."""
        spec = self.pod_of(deployment)
        (container,) = [each for each in spec["containers"] if "hami-webhook" in each["image"]]
        folder = self.folder / deployment
        folder.mkdir(parents=True, exist_ok=True)
        addresses = ("--http_bind", "--metrics-bind-address", "--extender-bind-address")
        ports = dict(zip(addresses, free_ports(3), strict=True))
        arguments = []
        for argument in _located(container["args"], container, folder):
            flag, _, _ = argument.partition("=")
            arguments.append(f"{flag}=127.0.0.1:{ports[flag]}" if flag in ports else argument)
        self._mount(spec, container, folder)
        environment = {**os.environ, "POD_NAME": f"{deployment}-0", "POD_NAMESPACE": SYSTEM}
        environment |= {each["name"]: each["value"] for each in container["env"] if "value" in each}
        login = str(self.installed.login(deployment))
        self._run(deployment, [sys.executable, "-m", "hami_webhook", *arguments, "--kubeconfig", login], environment)
        self.ports[deployment], self.extender = ports["--metrics-bind-address"], ports["--extender-bind-address"]
        eventually(lambda: self.ready(deployment))
        if deployment == WEBHOOK:
            self.installed.balancer.backends = [ports["--http_bind"]]
        if deployment == SCHEDULER:
            self._start_kube_scheduler(spec, login)

    def _mount(self, spec: JSON, container: JSON, folder: Path) -> None:
        """Write the files of a container's volumes into folders; a Secret is waited for, as kubelet does."""
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in container["volumeMounts"]:
            volume, files = volumes[mount["name"]], folder / mount["name"]
            files.mkdir(exist_ok=True)
            if "configMap" in volume:
                found = self.kubectl.get("configmap", volume["configMap"]["name"], "-n", SYSTEM)
                for name, text in found["data"].items():
                    (files / name).write_text(text)
            elif "secret" in volume:
                secret = "secret", volume["secret"]["secretName"], "-n", SYSTEM
                self.kubectl("wait", "/".join(secret[:2]), *secret[2:], "--for=create", "--timeout=120s")
                data = self.kubectl.get(*secret)["data"]
                for item in volume["secret"]["items"]:
                    (files / item["path"]).write_bytes(base64.b64decode(data[item["key"]]))

    def _start_kube_scheduler(self, spec: JSON, login: str) -> None:
        """The other container of the pod, with the configuration of its init container, and leader election."""
        (init,) = spec["initContainers"]
        folder = self.folder / SCHEDULER
        self._mount(spec, init, folder)
        subprocess.run(
            [sys.executable, "-m", "hami_webhook", *_located(init["args"], init, folder)], cwd=ROOT, check=True
        )
        (container,) = [each for each in spec["containers"] if each["name"] == "kube-scheduler"]
        (configuration,) = [word for word in _located(container["command"], container, folder) if "--config=" in word]
        document = yaml.safe_load(Path(configuration.removeprefix("--config=")).read_text())
        document["clientConnection"] = {"kubeconfig": login}
        document["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{self.extender}"
        path = self.folder / "kube-scheduler.yaml"
        path.write_text(yaml.safe_dump(document))
        (port,) = free_ports(1)
        own = self.folder / "kube-scheduler"
        command = self.plane.scheduler_command(own, port, f"--config={path}", login=Path(login))
        self._run("kube-scheduler", command, dict(os.environ))

    def _run(self, name: str, command: list[Any], environment: dict[str, str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=ROOT)

    def ready(self, deployment: str) -> bool:
        self.check_alive(deployment)
        with suppress(OSError), urllib.request.urlopen(self._url(deployment, "readyz"), timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def check_alive(self, name: str) -> None:
        code = self.processes[name].poll()
        assert code is None, f"{name} ended with {code}:\n{self.log(name)[-3000:]}"

    def metrics(self, deployment: str) -> list[str]:
        with urllib.request.urlopen(self._url(deployment, "metrics"), timeout=5) as answer:
            text: str = answer.read().decode()
        return text.splitlines()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _url(self, deployment: str, path: str) -> str:
        return f"http://127.0.0.1:{self.ports[deployment]}/{path}"

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(120)
        self.installed.uninstall()
        self.installed.balancer.close()


def _located(words: list[str], container: JSON, folder: Path) -> list[str]:
    """A command line with what the container mounts where `_mount` puts it."""
    for mount in container["volumeMounts"]:
        words = [word.replace(f"={mount['mountPath']}/", f"={folder / mount['name']}/") for word in words]
    return words


@contextmanager
def running_roles(plane: ControlPlane, folder: Path, *deployments: str) -> Iterator[Roles]:
    """These Deployments, one replica each, on a cluster that has no Lease and no Secret of an earlier one."""
    kubectl = Kubectl(plane.kubeconfig)
    kubectl("delete", "--ignore-not-found", "-n", SYSTEM, "lease/hami-scheduler-controller", "lease/hami-scheduler")
    kubectl("delete", "--ignore-not-found", "-n", SYSTEM, "secret/hami-webhook-tls")
    roles = Roles(plane, folder, kubectl, Deployment(plane, folder, kubectl))
    try:
        for deployment in deployments:
            roles.start(deployment)
        yield roles
    finally:
        roles.close()
