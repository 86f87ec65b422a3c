"""The program deployed as the manifests say, against the real API server: replicas as processes, behind one address."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import WeakSet

import yaml

from hack.devcluster.identities import kubeconfig
from hack.devcluster.plane import ControlPlane, free_ports
from hami_webhook import pki
from hami_webhook.cluster.version import minor_version
from hami_webhook.config import SECTION_SWITCHES

from .api_client import api_client

ROOT = Path(__file__).parents[2]
JSON = dict[str, Any]
SYSTEM = "hami-system"
BOTH_ROLES = "webhook,controller"
BOTH = "hami-webhook-both"
"""An account for processes that are webhook and controller in one, with the rights of both Deployments."""
SWITCHES = tuple(f"--{switch.replace('_', '-')}" for switch in SECTION_SWITCHES.values())
"""As the manifests have them, whose match conditions name every section's resources."""
TOKEN_SECONDS = 4 * 3600
"""How long a service account's token holds: longer than the tests take."""


def eventually(what: Callable[[], Any], wanted: Any = True, seconds: float = 120.0) -> None:
    """Wait until `what()` is `wanted`; fails with what it was last, after a time that is long on a busy machine too."""
    deadline = time.monotonic() + seconds
    while (found := what()) != wanted:
        assert time.monotonic() < deadline, f"after {seconds:g} s still {found!r}, not {wanted!r}"
        time.sleep(0.1)


@dataclass(frozen=True)
class Kubectl:
    """kubectl, as a user runs it."""

    kubeconfig: Path

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(
            ["kubectl", *arguments],
            input=stdin,
            text=True,
            capture_output=True,
            env=environment,
            timeout=300,
            check=False,
        )

    def hami(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """`kubectl hami`, without kubectl."""
        main = "import sys; from hami_webhook.kubectl.main import main; sys.exit(main())"
        known = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        command = [sys.executable, "-c", main, *arguments]
        return subprocess.run(command, input=stdin, env=known, cwd=ROOT, text=True, capture_output=True, check=False)

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """What it prints; fails where it does."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *objects: JSON) -> None:
        """Apply the objects; from the first that can't simply be created, kubectl does it, and says why if it fails.

        It doesn't for what is there already as it is applied.
        """
        client = api_client(self.kubeconfig)
        for number, obj in enumerate(objects):
            try:
                client.create(obj)
            except (LookupError, AssertionError) as error:
                if isinstance(error, AssertionError) and client.is_applied(obj):
                    continue
                left = {"apiVersion": "v1", "kind": "List", "items": list(objects[number:])}
                self("apply", "-f", "-", stdin=json.dumps(left))
                return

    def refused(self, *objects: JSON) -> str:
        """What a user reads who may not create the objects."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        done = self.run("create", "-f", "-", stdin=json.dumps(listed))
        assert done.returncode != 0, done.stdout
        return done.stderr.strip()

    def get(self, *arguments: str) -> JSON:
        """What `kubectl get -o json` prints; of one kind without starting it."""
        try:
            return api_client(self.kubeconfig).get(*arguments)
        except LookupError:
            found: JSON = json.loads(self("get", *arguments, "-o", "json"))
            return found

    def delete_all(self, *kinds: str, namespace: str | None = None) -> None:
        """What `kubectl delete --all --grace-period=0 --force` does in a namespace, or in all, without starting it."""
        for kind in kinds:
            api_client(self.kubeconfig).delete_all(kind, namespace)

    def used(self, namespace: str, name: str = "gpu-quota") -> dict[str, str]:
        status = self.get("resourcequota", name, "-n", namespace).get("status") or {}
        return {key.removeprefix("limits.nvidia.com/"): value for key, value in (status.get("used") or {}).items()}

    def ledger(self, namespace: str, name: str = "gpu-quota") -> JSON:
        notes = self.get("resourcequota", name, "-n", namespace)["metadata"].get("annotations") or {}
        found: JSON = json.loads(notes.get("hami.io/quota-ledger", "{}"))
        return found


def allocates_several(kubectl: Kubectl) -> bool:
    """Whether kube-scheduler can allocate several shared devices to a request.

    That of 1.34.4 takes a device's number in the request for its place in the slice: where there is none it panics, and
    the first device of a request has to have room in the first one of the slice, too.
    """
    return version(kubectl) > (1, 34)


def takes_names_of_classes(kubectl: Kubectl) -> bool:
    """Whether `deviceclass.resource.kubernetes.io/CLASS` gets a device.

    For kube-scheduler 1.34.4 it is no extended resource, being in the domain of Kubernetes: pods are bound without one.
    """
    return version(kubectl) > (1, 34)


def version(kubectl: Kubectl) -> tuple[int, int]:
    """The first two numbers of the API server's version, which kube-scheduler's is too."""
    found = minor_version(json.loads(kubectl("get", "--raw", "/version"))["gitVersion"])
    assert found is not None
    return found


class Balancer:
    """Passes TCP connections on to backends in turn, skipping those that don't answer: a Service, in effect."""

    def __init__(self) -> None:
        self.backends: list[int] = []
        (self.port,) = free_ports(1)
        self._turn = 0
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._transports = WeakSet[asyncio.WriteTransport]()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(60)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)

        async def start() -> None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self._started.set()

        self._loop.run_until_complete(start())
        self._loop.run_forever()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._transports.add(writer.transport)
        task = self._loop.create_task(self._pass_on(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        backends = list(self.backends)
        for _ in backends:
            self._turn += 1
            port = backends[self._turn % len(backends)]
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", port)
                self._transports.add(back.transport)
                try:
                    await asyncio.gather(_pump(reader, back), _pump(there, writer))
                finally:
                    back.close()
                    writer.close()
                return
        writer.close()

    def break_connections(self) -> None:
        """Cut every connection there is."""

        async def cut() -> None:
            for task in list(self._connections):
                task.cancel()

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result(60)

    def close(self) -> None:
        async def end() -> None:
            while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
                for task in self._connections:
                    task.cancel()
                await asyncio.wait(tasks)
            self._server.close()  # with no connection half accepted, whose socket asyncio would leave open
            for transport in list(self._transports):
                transport.abort()
            await asyncio.sleep(0)  # in which their sockets are closed

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    with contextlib.suppress(OSError):
        target.close()


def service_account(name: str, namespace: str) -> JSON:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}


def bound_role(name: str, role: str, account: str, of: str, *, space: str = "", kind: str = "ClusterRole") -> JSON:
    """The binding of a role to an account of a namespace: in the namespace `space`, or in all."""
    api = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{api}/v1",
        "kind": "RoleBinding" if space else "ClusterRoleBinding",
        "metadata": {"name": name} | ({"namespace": space} if space else {}),
        "roleRef": {"apiGroup": api, "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": of}],
    }


def both_roles() -> list[JSON]:
    """The account, bound to what the manifests grant to the webhook and to the controller."""
    cluster = ("hami-webhook", "hami-webhook-controller", "hami-webhook-configurations")
    local = ("hami-webhook-controller", "hami-webhook-certificates")
    return [
        service_account(BOTH, SYSTEM),
        *(bound_role(f"e2e-{name}", name, BOTH, SYSTEM) for name in cluster),
        *(bound_role(f"e2e-{name}", name, BOTH, SYSTEM, space=SYSTEM, kind="Role") for name in local),
    ]


@functools.cache
def dev_overlay(kubectl: Kubectl) -> str:
    return kubectl("kustomize", str(ROOT / "manifests" / "overlays" / "dev"))


@dataclass
class Deployment:
    """Replicas behind one address, and both webhook configurations naming it."""

    plane: ControlPlane
    folder: Path
    kubectl: Kubectl
    flags: tuple[str, ...] = ()
    account: str = BOTH
    through: Callable[[Path], Path] = lambda login: login
    """The kubeconfig that the replicas use, made from that of their account."""
    first: str = ""
    """Python that each replica runs before the program."""
    balancer: Balancer = field(default_factory=Balancer)
    replicas: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    """Where replicas answer probes."""
    backends: dict[str, int] = field(default_factory=dict)
    """Where they answer the webhooks."""

    def __post_init__(self) -> None:
        self.ca = pki.authority(now=datetime.now(UTC))

    def install(self) -> None:
        """Apply the dev overlay, with the address of the balancer and our authority in it."""
        (self.folder / "certs").mkdir(parents=True, exist_ok=True)
        rendered = dev_overlay(self.kubectl).replace("DEV_SERVER", f"127.0.0.1:{self.balancer.port}")
        rendered = rendered.replace("CA_BUNDLE", base64.b64encode(self.ca.certificate).decode())
        self.kubectl.apply(*yaml.safe_load_all(rendered), *both_roles())

    def uninstall(self) -> None:
        for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            api_client(self.kubectl.kubeconfig).delete_all(kind, fields="metadata.name=hami-webhook-admission")

    def login(self, account: str) -> Path:
        """A kubeconfig of a service account of our namespace."""
        path = self.folder / f"{account}.kubeconfig"
        token = api_client(self.kubectl.kubeconfig).token(account, SYSTEM, TOKEN_SECONDS)
        ca = self.plane.authority.certificate.read_bytes()
        path.write_text(json.dumps(kubeconfig(self.plane.server, ca, {"token": token})))
        return path

    def start(self, name: str, *flags: str, roles: str = BOTH_ROLES, ahead: float = 0.0) -> None:
        """Start a replica, whose machine's clock is so many seconds ahead, and wait until it is ready."""
        port, metrics = free_ports(2)
        folder = self.folder / name
        pki.write(
            folder, pki.Pair(self.ca, pki.issue(self.ca, "hami-webhook", SYSTEM, now=datetime.now(UTC))), force=True
        )
        environment = {**os.environ, "POD_NAME": name, "POD_NAMESPACE": SYSTEM}
        if ahead or self.first:
            clock = f"import time\nreal = time.time\ntime.time = lambda: real() + {ahead}\n" if ahead else ""
            (folder / "sitecustomize.py").write_text(clock + self.first)
            environment["PYTHONPATH"] = str(folder)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.replicas[name] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "hami_webhook", "serve", "--roles", roles),
                    *("--kubeconfig", str(self.through(self.login(self.account)))),
                    *("--http_bind", f"127.0.0.1:{port}", "--metrics-bind-address", f"127.0.0.1:{metrics}"),
                    *("--cert_file", str(folder / "tls.crt"), "--key_file", str(folder / "tls.key")),
                    *("--scheduler-name", "hami-scheduler", "--leader-elect", "--shutdown-grace", "1s"),
                    *(
                        "--own-service-accounts",
                        "hami-webhook,hami-scheduler",
                        "--controller-service-accounts",
                        self.account,
                        "--kube-qps",
                        "50",
                        "--kube-burst",
                        "100",
                    ),
                    *("-v", "1", *SWITCHES, *self.flags, *flags),
                ],
                env=environment,
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )
        self.ports[name] = metrics
        eventually(lambda: self.ready(name))
        if "webhook" in roles:
            self.backends[name] = port
            self.balancer.backends.append(port)

    def start_missing(self, *names: str) -> None:
        """Start those of these replicas that were stopped, or have ended."""
        for name in names:
            if name in self.replicas and self.replicas[name].poll() is not None:
                self.stop(name)
            if name not in self.replicas:
                self.start(name)

    def ready(self, name: str) -> bool:
        code = self.replicas[name].poll()
        assert code is None, f"{name} ended with {code}:\n{self.log(name)}"
        with contextlib.suppress(OSError), urllib.request.urlopen(self._url(name, "readyz"), timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def readiness(self, name: str) -> str:
        """What a replica that is ready says besides."""
        with urllib.request.urlopen(self._url(name, "readyz"), timeout=5) as answer:
            return str(answer.read().decode())

    def metrics(self, name: str) -> str:
        """All metrics of a replica, as Prometheus reads them."""
        with urllib.request.urlopen(self._url(name, "metrics"), timeout=5) as answer:
            return str(answer.read().decode())

    def metric(self, name: str, metric: str) -> float:
        lines = self.metrics(name).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{metric} ", metric + "{")))

    def leader(self) -> str | None:
        alive = [name for name, process in self.replicas.items() if process.poll() is None]
        return next((name for name in alive if self.metric(name, "hami_webhook_leader") == 1), None)

    def log(self, name: str) -> str:
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-20:])

    def stop(self, name: str, with_signal: signal.Signals = signal.SIGTERM) -> None:
        process = self.replicas.pop(name)
        process.send_signal(with_signal)
        process.wait(120)
        with contextlib.suppress(KeyError, ValueError):
            self.balancer.backends.remove(self.backends.pop(name))

    def close(self) -> None:
        # pods that still wait would take the cards of the next deployment's tests, and nodes change its percentages
        self.kubectl.delete_all("jobs", "deployments", "pods", "nodes")
        for name in list(self.replicas):
            self.stop(name, signal.SIGKILL)
        self.kubectl.delete_all("leases", namespace=SYSTEM)  # who comes next doesn't wait until they expire
        self.uninstall()
        self.balancer.close()

    def _url(self, name: str, path: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}/{path}"


@contextlib.contextmanager
def deployed(
    plane: ControlPlane,
    folder: Path,
    *names: str,
    flags: tuple[str, ...] = (),
    roles: str = BOTH_ROLES,
    through: Callable[[Path], Path] = lambda login: login,
    first: str = "",
) -> Iterator[Deployment]:
    """The program with these replicas, until the block ends."""
    deployment = Deployment(plane, folder, Kubectl(plane.kubeconfig), flags, through=through, first=first)
    deployment.install()
    try:
        for name in names:
            deployment.start(name, roles=roles)
        yield deployment
    finally:
        deployment.close()
