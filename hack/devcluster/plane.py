"""Starting and stopping etcd, kube-apiserver, kube-controller-manager and kube-scheduler."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from . import logs
from .identities import Authority
from .sandbox import missing

BUILD = Path(__file__).parents[1] / "controlplane" / "build.sh"
READY_SECONDS = 90.0
NODE = "dev-node"
_PORTS = range(15_000, 30_000)
"""Outgoing connections are given ports above these: one could have a port between its choice and its server's start."""
PROXY_NAME = "front-proxy-client"
"""The name that the API server has where it passes requests on to who serves a part of its API."""
_GATES = ("DRAConsumableCapacity", "DRAExtendedResource")
"""Feature gates of claims for shares of devices and for extended resources; off by default before Kubernetes 1.36."""
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class ControlPlaneError(Exception):
    """The control plane can't be had or doesn't come up; the text says why."""


def assets(*, build: bool) -> Path | None:
    """The folder with the programs, built first if `build`; None if they aren't there."""
    done = subprocess.run([BUILD] if build else [BUILD, "--where"], stdout=subprocess.PIPE, text=True, check=False)
    return Path(done.stdout.strip()) if done.returncode == 0 else None


@dataclass
class ControlPlane:
    """A control plane in a folder of its own. `start` returns once it is ready; `stop` ends it and keeps the folder.

    `bound`: the programs die with this process, however it ends; else they outlive it.
    """

    programs: Path
    folder: Path
    bound: bool = True
    resync: str = "15s"
    """How often kube-controller-manager recalculates every quota."""
    managers: Sequence[str] = ("kube-controller-manager", "kube-scheduler")
    """What runs with the API server; "kubelet" is possible too, on a node called `NODE`."""
    api_server_flags: Sequence[str] = ()
    """More flags of kube-apiserver."""
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def prepare(self) -> None:
        """Make the folder, the ports, the certificates and the kubeconfigs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self.etcd_port, self.peer_port, self.port, *self._others = free_ports(5)
        self.server = f"https://127.0.0.1:{self.port}"
        self.authority = Authority(self.folder)
        names = ("127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.0.0.1")
        self.serving = self.authority.serving("apiserver", names)
        self.kubelet_client = self.authority.client(logs.API_SERVER, logs.API_SERVER)
        self.account_key = self.authority.service_account_key()
        front_proxy = self.folder / "front-proxy"
        front_proxy.mkdir(exist_ok=True)
        self.front_proxy = Authority(front_proxy)
        self.proxy_client = self.front_proxy.client(PROXY_NAME, PROXY_NAME)
        config = self.authority.kubeconfig
        self.kubeconfig = config("admin", self.server, "dev-admin", "system:masters")
        self.manager_config = config("controller-manager", self.server, "system:kube-controller-manager")
        self.scheduler_kubeconfig = config("scheduler", self.server, "system:kube-scheduler")
        (self.folder / "audit-policy.json").write_text(json.dumps(_AUDIT_POLICY))

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    @property
    def versions(self) -> Path:
        """Where the kubelet looks for source trees of other versions of our program, each named as its image's tag."""
        return self.folder / "versions"

    @cached_property
    def feature_gates(self) -> tuple[str, ...]:
        """The flag of kube-apiserver, kube-controller-manager and kube-scheduler; none where all is on by default."""
        command = (self.programs / "kube-apiserver", "--help")
        known = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        off = [gate for gate in _GATES if re.search(rf"\b{gate}=.*default=false", known)]
        return (f"--feature-gates={','.join(f'{gate}=true' for gate in off)}",) if off else ()

    @cached_property
    def scheduler_minor(self) -> int:
        """The minor version of kube-scheduler, which may be ahead of the API server's."""
        command = (self.programs / "kube-scheduler", "--version")
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return int(told.split("v1.")[1].split(".")[0])

    def start(self) -> None:
        """Start everything and wait until it is ready. Raises `ControlPlaneError` with the end of the log at fault."""
        self.prepare()
        try:
            self.start_etcd()
            self.start_api_server()
            self.start_managers()
        except BaseException:
            self.stop()
            raise

    def start_etcd(self) -> None:
        url, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.peer_port}"
        self._run(
            "etcd",
            *("--data-dir", str(self.folder / "etcd"), "--name", "dev", "--unsafe-no-fsync"),
            *("--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer),
            *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"dev={peer}", "--log-level", "warn"),
        )
        self._wait("etcd", f"{url}/health")

    def start_api_server(self) -> None:
        private, public = self.account_key
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--tls-cert-file={self.serving[0]}",
            f"--tls-private-key-file={self.serving[1]}",
            f"--client-ca-file={self.authority.certificate}",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={private}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/24",
            # without kube-proxy a Service's own address leads nowhere: webhooks are called at their pods'
            "--enable-aggregator-routing=true",
            f"--requestheader-client-ca-file={self.front_proxy.certificate}",
            f"--requestheader-allowed-names={PROXY_NAME}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={self.proxy_client[0]}",
            f"--proxy-client-key-file={self.proxy_client[1]}",
            f"--kubelet-certificate-authority={self.authority.certificate}",
            f"--kubelet-client-certificate={self.kubelet_client[0]}",
            f"--kubelet-client-key={self.kubelet_client[1]}",
            "--kubelet-preferred-address-types=ExternalIP",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction,ResourceQuota,LimitRanger",
            f"--audit-policy-file={self.folder / 'audit-policy.json'}",
            f"--audit-log-path={self.audit_log}",
            "--endpoint-reconciler-type=none",
            "--watch-cache=true",
            "--allow-privileged=true",
            "--profiling=false",
            "--shutdown-delay-duration=0s",
            *self.feature_gates,
            *self.api_server_flags,
        )
        self._wait("kube-apiserver", f"{self.server}/readyz")

    def start_managers(self) -> None:
        manager_port, scheduler_port = self._others
        if "kube-controller-manager" in self.managers:
            self._start_controller_manager(manager_port)
        if "kube-scheduler" in self.managers:
            self._start_scheduler(scheduler_port)
        if "kubelet" in self.managers and "kubelet" not in self.running:
            self._start_kubelet()

    def _start_controller_manager(self, port: int) -> None:
        self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.manager_config}",
            f"--authentication-kubeconfig={self.manager_config}",
            f"--authorization-kubeconfig={self.manager_config}",
            f"--service-account-private-key-file={self.account_key[0]}",
            f"--root-ca-file={self.authority.certificate}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            # nodes are objects without a kubelet here: nobody renews their leases
            "--controllers=*,-node-lifecycle-controller,-node-ipam-controller",
            f"--resource-quota-sync-period={self.resync}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.folder / 'manager'}",
            *self.feature_gates,
        )
        self._wait("kube-controller-manager", f"https://127.0.0.1:{port}/healthz", trusted=False)

    def _start_scheduler(self, port: int) -> None:
        own = (f"--kubeconfig={self.scheduler_kubeconfig}", "--leader-elect=false")
        self._start("kube-scheduler", self.scheduler_command(self.folder / "scheduler", port, *own), self.folder)
        self._wait("kube-scheduler", f"https://127.0.0.1:{port}/healthz", trusted=False)

    def scheduler_command(
        self, certificates: Path, port: int, *more: str, login: Path | None = None
    ) -> list[str | Path]:
        """What starts a kube-scheduler that serves at a port of loopback, and `more` of its flags."""
        login = login or self.scheduler_kubeconfig
        logins = (f"--{what}-kubeconfig={login}" for what in ("authentication", "authorization"))
        serving = ("--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={certificates}")
        return [self.programs / "kube-scheduler", *logins, *serving, *self.feature_gates, *more]

    def _start_kubelet(self) -> None:
        lacking = missing()
        if lacking:
            raise ControlPlaneError(lacking)
        self.authority.client("kubelet", f"system:node:{NODE}", "system:nodes")
        module = (sys.executable, "-m", "hack.devcluster.kubelet", "--server", self.server, "--node", NODE)
        folders = {"credentials": self.folder, "folder": self.folder / "pods"}
        folders |= {"programs": self.programs, "versions": self.versions}
        paths = [f"--{name}={path}" for name, path in folders.items()]
        # in a mount namespace of its own, so that no volume outlives it
        command = ("unshare", "--mount", "--propagation", "private", *module, *paths)
        self._start("kubelet", command, Path(__file__).parents[2])
        self._wait("kubelet", f"{self.server}/api/v1/nodes/{NODE}")

    def restart_api_server(self) -> None:
        """Kill kube-apiserver and start it again on the same port.

        The managers are started anew too: left alone they wait ever longer before they look for it again.
        """
        for program in ("kube-scheduler", "kube-controller-manager", "kube-apiserver"):
            self.end(program, signal.SIGKILL)
        self.start_api_server()
        self.start_managers()

    def end(self, program: str, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """End one program and wait for it."""
        process = self.running.pop(program, None)
        if process is None:
            return
        process.send_signal(with_signal)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """End everything, last started first."""
        for program in reversed(list(self.running)):
            # nothing here is worth a graceful end, and kube-apiserver takes its time for one
            self.end(program, signal.SIGKILL)

    def remove(self) -> None:
        """Stop, and delete the folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        self._start(program, (self.programs / program, *arguments), self.folder)

    def _start(self, program: str, command: Sequence[str | Path], folder: Path) -> None:
        with (self.folder / f"{program}.log").open("ab") as log:
            self.running[program] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=not self.bound,
                preexec_fn=_die_with_parent if self.bound else None,  # noqa: PLW1509  it makes one system call only
            )

    def _wait(self, program: str, url: str, *, trusted: bool = True) -> None:
        """Wait until the URL answers 200; `trusted`: with a certificate of our authority, and we with the admin's."""
        context = None
        if url.startswith("https"):
            context = ssl.create_default_context(cafile=str(self.authority.certificate))
            context.load_cert_chain(self.folder / "admin.crt", self.folder / "admin.key")
            if not trusted:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        deadline = time.monotonic() + READY_SECONDS
        while True:
            code = self.running[program].poll()
            if code is not None:
                raise ControlPlaneError(f"{program} ended with status {code}:\n{self._log_end(program)}")
            try:
                with urllib.request.urlopen(url, timeout=5, context=context) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"{program} isn't ready:\n{self._log_end(program)}")
            time.sleep(0.1)

    def _log_end(self, program: str) -> str:
        return "\n".join((self.folder / f"{program}.log").read_text(errors="replace").splitlines()[-15:])


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now, and that no outgoing connection is given meanwhile."""
    with contextlib.ExitStack() as opened:
        found: list[int] = []
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            tried = opened.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                tried.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                break
        return found


def _die_with_parent() -> None:
    """In the child: have the kernel end it when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(1)
