"""The life of one container: started, probed, restarted, ended, and what its status says meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp

from . import network, sandbox
from .client import FAILURES, JSON, Client
from .environment import environment
from .network import PodNetwork
from .sandbox import Image, Mount
from .volumes import ConfigurationError, unsupported

_log = logging.getLogger(__name__)

_BACKOFF = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Seconds before each restart in a row; kubelet's own steps with the gate KubeletCrashLoopBackOffMax."""
_FORGOTTEN = 600.0
"""Seconds that a container has to run for its earlier restarts not to count."""
_RETRY_SECONDS = 1.0
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@dataclass(frozen=True)
class Node:
    """What all pods of a node share. `api_server` is where the machine reaches it, `service` where pods do."""

    name: str
    client: Client
    folder: Path
    images: dict[str, Image]
    api_server: tuple[str, int]
    service: tuple[str, int]
    prober: aiohttp.ClientSession


class Container:
    """One container of a pod: it is started, probed and restarted in `run`. `changed` is called with each new state.

    An init container is restarted until it succeeds, and is ready then.
    """

    def __init__(
        self, node: Node, pod: JSON, spec: JSON, folder: Path, changed: Callable[[], None], init: bool = False
    ) -> None:
        self.spec = spec
        self._init = init
        self._node = node
        self._pod = pod
        self._folder = folder
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._ending = self._killed = False
        self._restarts = 0
        self._started = self._ready = False
        self._title = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}/{spec['name']}"
        self._state: JSON = {"waiting": {"reason": "ContainerCreating"}}
        self._last: JSON = {}

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return "terminated" in self._state

    @property
    def ran(self) -> bool:
        return "waiting" not in self._state or bool(self._last)

    @property
    def exit_code(self) -> int:
        return int(self._state["terminated"]["exitCode"])

    @property
    def succeeded(self) -> bool:
        return self.over and self.exit_code == 0

    @property
    def status(self) -> JSON:
        name, image, uid = self.spec["name"], self.spec["image"], self._pod["metadata"]["uid"]
        return {
            "name": name,
            "image": image,
            "imageID": image,
            "containerID": f"dev://{uid}/{name}/{self._restarts}",
            "ready": self._ready,
            "started": self._started,
            "restartCount": self._restarts,
            "state": self._state,
            "lastState": self._last,
        }

    def wait(self, reason: str, message: str = "") -> None:
        self._set({"waiting": {"reason": reason, **({"message": message} if message else {})}})

    async def run(self, mounts: list[Mount], pod_network: PodNetwork) -> None:
        """Run it, again and again as its pod's restart policy says, until it is stopped."""
        failures = 0
        while not self._ending:
            try:
                process = await self._start(mounts, pod_network)
            except ConfigurationError as error:
                self.wait(error.reason, str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            except FAILURES as error:
                self.wait("CreateContainerError", str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            began = now()
            self._set({"running": {"startedAt": began}})
            clock = asyncio.get_running_loop().time
            since = clock()
            async with _background(self._probe(process, pod_network.address)):
                code = await process.wait()
            failures = 1 if clock() - since > _FORGOTTEN else failures + 1
            self._started, self._ready = False, self._init and code == 0
            # of a SIGKILL, unshare only says that it failed
            code = 128 + signal.SIGKILL if self._killed else code if code >= 0 else 128 - code
            self._killed = False
            _log.info("%s ended with status %d", self._title, code)
            reason = "Error" if code else "Completed"
            ended = {"exitCode": code, "reason": reason, "startedAt": began, "finishedAt": now()}
            self._set({"terminated": ended})
            policy = self._pod["spec"].get("restartPolicy", "Always")
            if self._init and policy == "Always":
                policy = "OnFailure"
            if policy == "Never" or (policy == "OnFailure" and code == 0) or self._ending:
                return
            self._last = self._state
            delay = _BACKOFF[min(failures, len(_BACKOFF)) - 1]
            if delay:
                self.wait("CrashLoopBackOff", f"back-off {delay:g}s restarting failed container {self.spec['name']}")
            await asyncio.sleep(delay)
            self._restarts += 1

    async def stop(self, grace: float) -> None:
        """End it: SIGTERM, and SIGKILL after `grace` seconds."""
        self._ending = True
        if self._process is None or self._process.returncode is not None:
            return
        await self._end(self._process, grace)

    def kill(self) -> None:
        self._ending = self._killed = True
        if self._process is not None:
            sandbox.kill(self._process, signal.SIGKILL)

    async def _end(self, process: asyncio.subprocess.Process, grace: float) -> None:
        _log.info("%s is ended, with %g s of grace", self._title, grace)
        sandbox.kill(process, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), grace)
        except TimeoutError:
            self._killed = True
            sandbox.kill(process, signal.SIGKILL)
            await process.wait()

    async def _start(self, mounts: list[Mount], pod_network: PodNetwork) -> asyncio.subprocess.Process:
        spec, name = self.spec, self.spec["name"]
        for kind in _PROBES:
            if kind in spec and "httpGet" not in spec[kind]:
                raise unsupported(f"a {kind} without httpGet")
        if spec.get("lifecycle"):
            raise unsupported("the field lifecycle")
        image = sandbox.find_image(self._node.images, spec["image"])
        identity = sandbox.Identity.of(self._pod, spec, image)
        addresses = pod_network.address, network.HOST
        variables = await environment(self._node.client, self._pod, spec, image.environment, addresses)
        script = sandbox.script(
            self._folder / "root", self._pod, spec, image, identity, variables, mounts, pod_network.address
        )
        path = self._folder / f"{name}.sh"
        path.write_text(script)
        self._process = await sandbox.start(path, pod_network.path, self._folder / f"{name}.log")
        return self._process

    def _set(self, state: JSON) -> None:
        self._state = state
        self._changed()

    async def _probe(self, process: asyncio.subprocess.Process, address: str) -> None:
        """Run the probes of a container that was started; a startup probe holds back the others."""
        startup, readiness, liveness = (self.spec.get(kind) for kind in _PROBES)
        if startup and not await self._passes(startup, address):
            _log.info("%s: the startup probe failed for good", self._title)
            await self._end(process, self._pod["spec"].get("terminationGracePeriodSeconds", 30))
            return
        self._started, self._ready = True, not readiness and not self._init
        self._changed()
        async with asyncio.TaskGroup() as group:
            if readiness:
                group.create_task(self._watch_readiness(readiness, address))
            if liveness:
                group.create_task(self._watch_liveness(liveness, process, address))

    async def _passes(self, probe: JSON, address: str) -> bool:
        """Whether a startup probe succeeds before it failed for good."""
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        for _ in range(probe["failureThreshold"]):
            if await self._ask(probe, address):
                return True
            await asyncio.sleep(probe["periodSeconds"])
        return False

    async def _watch_readiness(self, probe: JSON, address: str) -> None:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        in_a_row = 0
        while True:
            passed = await self._ask(probe, address)
            in_a_row = 0 if passed == self._ready else in_a_row + 1
            if in_a_row >= probe["successThreshold" if passed else "failureThreshold"]:
                self._ready = passed
                self._changed()
            await asyncio.sleep(probe["periodSeconds"])

    async def _watch_liveness(self, probe: JSON, process: asyncio.subprocess.Process, address: str) -> None:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        failed = 0
        while failed < probe["failureThreshold"]:
            failed = 0 if await self._ask(probe, address) else failed + 1
            await asyncio.sleep(probe["periodSeconds"])
        _log.info("%s: the liveness probe failed %d times in a row", self._title, failed)
        await self._end(process, self._pod["spec"].get("terminationGracePeriodSeconds", 30))

    async def _ask(self, probe: JSON, address: str) -> bool:
        request = probe["httpGet"]
        port = request["port"]
        if isinstance(port, str):
            port = next(each["containerPort"] for each in self.spec["ports"] if each.get("name") == port)
        url = f"{request.get('scheme', 'HTTP').lower()}://{request.get('host') or address}:{port}{request['path']}"
        headers = {each["name"]: each["value"] for each in request.get("httpHeaders") or []}
        timeout = aiohttp.ClientTimeout(total=probe["timeoutSeconds"])
        try:
            async with self._node.prober.get(url, headers=headers, timeout=timeout, allow_redirects=False) as answer:
                return 200 <= answer.status < 400
        except FAILURES:
            return False


@contextlib.asynccontextmanager
async def _background(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run something for the length of a block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def now() -> str:
    """The time as the API has it."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
