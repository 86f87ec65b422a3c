"""A real API server for the benchmarks, our replicas beside it, and what they wrote, from its audit log."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import yaml

from hack.bench.figures import show_progress
from hack.bench.objects import JSON, SCHEDULER
from hack.devcluster.identities import kubeconfig
from hack.devcluster.plane import ControlPlane, assets, free_ports
from hami_webhook import pki
from hami_webhook.cluster.api import AlreadyExists, Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster

_MANIFESTS = Path(__file__).parents[2] / "manifests"
WEBHOOKS = _MANIFESTS / "base" / "webhooks.yaml"
CLAIM_WEBHOOKS = _MANIFESTS / "components" / "claims" / "webhooks.yaml"
USER = "hami-webhook-bench"
_TOKEN = secrets.token_hex()
"""Of the replicas. Client certificates, which pods don't have, are verified anew with every request.

That took an eighth of the API server's time in a burst.
"""
SHARD = "bench-shard"
"""The label that says which replica is asked about a pod: there is no Service to spread them here."""

_WRITES = ("create", "update", "patch", "delete")
_READY_SECONDS = 120.0


@contextlib.contextmanager
def api_server(benchmark: str, managers: Sequence[str] = ()) -> Iterator[ControlPlane]:
    """An API server, with no controllers but these. Ends the program where it isn't built."""
    programs = assets(build=False)
    if programs is None:
        raise SystemExit(f"{benchmark}: the control plane isn't built; make controlplane does it")
    with tempfile.TemporaryDirectory(prefix="hami-webhook-bench-") as folder:
        tokens = Path(folder) / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f'{_TOKEN},{USER},{USER},"system:masters"\n')
        flags = (f"--token-auth-file={tokens}",)
        plane = ControlPlane(programs, Path(folder), managers=managers, api_server_flags=flags)
        plane.start()
        try:
            yield plane
        finally:
            plane.stop()


async def make_namespace(cluster: KubernetesCluster, name: str) -> None:
    """A namespace in which pods can be created."""
    with contextlib.suppress(AlreadyExists):
        await cluster.create(Kind.NAMESPACES, {"metadata": {"name": name}})
    with contextlib.suppress(AlreadyExists):
        await cluster.call("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})


async def create_all(login: Path, objects: Sequence[tuple[Kind, JSON]], clients: int, progress_every: int = 0) -> float:
    """Create objects, so many at a time, over kept connections; the seconds it took. What fails ends the program."""
    waiting = list(reversed(objects))
    async with KubernetesCluster(await connect(str(login))) as cluster:

        async def client() -> None:
            while waiting:
                await cluster.create(*waiting.pop())
                if progress_every and waiting and len(waiting) % progress_every == 0:
                    show_progress(f"{len(objects) - len(waiting)} of {len(objects)} objects created")

        started = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(clients):
                tasks.create_task(client())
        return time.perf_counter() - started


@dataclass
class Replicas:
    """Replicas of the program on an API server, asked about the pods of their shard each.

    `flags` are more arguments of `serve`; with `claims` they are asked about ResourceClaims too.
    """

    plane: ControlPlane
    count: int
    flags: Sequence[str] = ()
    claims: bool = False
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Replicas:
        self.login = self.plane.folder / f"{USER}.kubeconfig"
        authority = self.plane.authority.certificate.read_bytes()
        self.login.write_text(json.dumps(kubeconfig(self.plane.server, authority, {"token": _TOKEN})))
        asyncio.run(self._prepare())
        folder = self.plane.folder / "replicas"
        pair = pki.generate("hami-webhook", "hami-system", now=datetime.now(UTC), extra_names=("127.0.0.1",))
        pki.write(folder, pair, force=True)
        try:
            ports = [self._start(folder, number) for number in range(self.count)]
            asyncio.run(self._install(pair.ca.certificate, ports))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            asyncio.run(self._uninstall())
        for process in self.running:
            process.kill()
            process.wait()

    async def _prepare(self) -> None:
        async with KubernetesCluster(await connect(str(self.plane.kubeconfig))) as cluster:
            await make_namespace(cluster, "hami-system")  # where the lease is

    def _start(self, folder: Path, number: int) -> int:
        port, metrics = free_ports(2)
        with (folder / f"{number}.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "hami_webhook", "serve", "--roles", "webhook,controller"),
                    *("--kubeconfig", str(self.login), "--http_bind", f"127.0.0.1:{port}"),
                    *("--metrics-bind-address", f"127.0.0.1:{metrics}", "--scheduler-name", SCHEDULER),
                    *(
                        "--cert_file",
                        str(folder / pki.SERVING_CERTIFICATE),
                        "--key_file",
                        str(folder / pki.SERVING_KEY),
                    ),
                    *("--kube-qps", "200", "--kube-burst", "400"),  # as in the manifests
                    *(["--leader-elect"] if self.count > 1 else []),
                    *self.flags,
                ],
                env={**os.environ, "POD_NAMESPACE": "hami-system", "POD_NAME": f"hami-webhook-{number}"},
                stdout=log,
                stderr=log,
            )
        self.running.append(process)
        wait_ready(process, metrics)
        return port

    async def _install(self, authority: bytes, ports: Sequence[int]) -> None:
        async with KubernetesCluster(await connect(str(self.plane.kubeconfig))) as cluster:
            for configuration in self.configurations(authority, ports):
                kind = Kind.MUTATING_WEBHOOKS if configuration["kind"].startswith("M") else Kind.VALIDATING_WEBHOOKS
                await cluster.create(kind, configuration)
        await asyncio.sleep(2)  # the API server learns of them by a watch

    def configurations(self, authority: bytes, ports: Sequence[int]) -> Iterator[JSON]:
        """What has the API server ask the replicas."""
        return _configurations(authority, ports, claims=self.claims)

    async def _uninstall(self) -> None:
        async with KubernetesCluster(await connect(str(self.plane.kubeconfig))) as cluster:
            for kind in (Kind.MUTATING_WEBHOOKS, Kind.VALIDATING_WEBHOOKS):
                path = f"/apis/admissionregistration.k8s.io/v1/{kind.value}"
                for item in (await cluster.call("GET", path))["items"]:
                    await cluster.call("DELETE", f"{path}/{item['metadata']['name']}")
        await asyncio.sleep(1)


@dataclass
class YesSayers(Replicas):
    """Processes that answer as replicas would, without a thought (`hack.bench.yes`), with `writes` for each review."""

    writes: float = 0.0

    def _start(self, folder: Path, number: int) -> int:
        (port,) = free_ports(1)
        files = folder / pki.SERVING_CERTIFICATE, folder / pki.SERVING_KEY
        login = [self.login, self.writes] if self.writes else []
        process = subprocess.Popen([sys.executable, "-m", "hack.bench.yes", str(port), *map(str, [*files, *login])])
        self.running.append(process)
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return port
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the webhook that only says yes ended, or isn't ready in time")
            time.sleep(0.02)


def _configurations(authority: bytes, ports: Sequence[int], *, claims: bool) -> Iterator[JSON]:
    """The configurations of the manifests, once for each replica."""
    added = [each["value"] for each in yaml.safe_load(CLAIM_WEBHOOKS.read_text())] if claims else []
    for port, shard in ((port, str(number)) for number, port in enumerate(ports)):
        for document in yaml.safe_load_all(WEBHOOKS.read_text()):
            document["metadata"]["name"] += f"-{shard}"
            if document["kind"].startswith("V"):
                document["webhooks"] += copy.deepcopy(added)
            for webhook in document["webhooks"]:
                url = f"https://127.0.0.1:{port}{webhook['clientConfig']['service']['path']}"
                bundle = base64.b64encode(authority).decode()
                webhook["clientConfig"] = {"url": url, "caBundle": bundle}
                webhook["objectSelector"] = {"matchLabels": {SHARD: shard}}
            yield document


def wait_ready(process: subprocess.Popen[bytes], metrics: int) -> None:
    """Wait until a replica is ready. Ends the program where it never is."""
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/readyz", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the program ended, or isn't ready in time") from None
            time.sleep(0.02)


def scraped(metrics: int) -> str:
    """The metrics of a program that runs."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics") as answer:
        text: str = answer.read().decode()
        return text


def writes(plane: ControlPlane) -> int:
    """How many writes our replicas sent so far, leases aside, refused ones included."""
    count = 0
    for line in plane.audit_log.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the last line may be half written
            event = json.loads(line)
            ours = event["user"]["username"] == USER and event["verb"] in _WRITES
            count += ours and event.get("objectRef", {}).get("resource") != "leases"
    return count


def binding_times(log: Path, start: int, space: str) -> tuple[dict[str, float], dict[str, float], Counter[str]]:
    """When pods were created and bound (Unix seconds), and the calls of our account, as logged since `start`."""
    created: dict[str, float] = {}
    bound: dict[str, float] = {}
    calls: Counter[str] = Counter()
    with log.open("rb") as lines:
        lines.seek(start)
        for line in lines:
            try:
                event = json.loads(line)
            except json.JSONDecodeError:  # the last one may be half written
                continue
            about, verb = event.get("objectRef", {}), event["verb"]
            resource = about.get("resource", "")
            if event["user"]["username"] == USER and verb != "watch":
                calls[f"{verb} {resource}{'/' + about['subresource'] if about.get('subresource') else ''}"] += 1
            if resource != "pods" or about.get("namespace") != space or verb != "create":
                continue
            if event.get("responseStatus", {}).get("code") == 201:
                at = datetime.fromisoformat(event["stageTimestamp"]).timestamp()
                (bound if about.get("subresource") == "binding" else created)[about.get("name", "")] = at
    return created, bound, calls
