"""Pods whose images this machine doesn't have: they come to Running and end, and nothing runs for them.

Their containers end as they would if all they did were to sleep: after the seconds of a command `sleep SECONDS`, else
after `ENDING_SECONDS` if the pod is one that ends (restartPolicy Never or OnFailure), else when the pod is deleted.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable

from . import network
from .client import FAILURES, JSON, ApiError
from .containers import Node, now
from .device_plugin import DevicePlugin

_log = logging.getLogger(__name__)

ENDING_SECONDS = 10.0
OVER = ("Succeeded", "Failed")
"""The phases of pods whose containers have ended."""
_RETRY_SECONDS = 1.0
_SLEEP = re.compile(r"\bsleep\s+(\d+(?:\.\d+)?)\b")


class SimulatedPod:
    """One pod, in the place of a `PodWorker`. `run` returns once it is gone from the API server, too."""

    def __init__(self, node: Node, plugin: DevicePlugin, pod: JSON) -> None:
        self._client = node.client
        self._plugin = plugin
        self._pod = pod
        meta = pod["metadata"]
        self._path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self._deleted = asyncio.Event()
        self._gone = False
        self._began = now()
        self._address = f"198.19.{random.randrange(1, 255)}.{random.randrange(1, 255)}"

    def update(self, pod: JSON) -> None:
        self._pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._deleted.set()

    def vanish(self) -> None:
        self._gone = True
        self._deleted.set()

    async def run(self) -> None:
        life = asyncio.create_task(self._live())
        await self._deleted.wait()
        life.cancel()
        (ended,) = await asyncio.gather(life, return_exceptions=True)
        if isinstance(ended, Exception):
            _log.error("%s: %s", self._path, ended, exc_info=ended)
        if not self._gone and self._pod["status"].get("phase") not in OVER:
            await self._report(self._status("Failed"))  # the Job controller keeps a pod until its containers have ended
        while not self._gone:
            uid = {"uid": self._pod["metadata"]["uid"]}
            if await self._done(self._client.delete(self._path, {"gracePeriodSeconds": 0, "preconditions": uid})):
                return

    async def _live(self) -> None:
        if self._pod["status"].get("phase") in OVER:
            return
        while not await self._done(self._plugin.allocate(self._pod)):
            pass
        await self._report(self._status("Running"))
        seconds = run_seconds(self._pod["spec"])
        if seconds is not None:
            await asyncio.sleep(seconds)
            await self._report(self._status("Succeeded"))

    async def _report(self, status: JSON) -> None:
        body = {"metadata": {"uid": self._pod["metadata"]["uid"]}, "status": status}
        while not self._gone and not await self._done(self._client.patch(f"{self._path}/status", body)):
            pass

    async def _done(self, request: Awaitable[object]) -> bool:
        """Whether there is no need to try a request again: it was answered, or the pod is gone.

        A conflict is a change just then, or a pod of the same name, and `vanish` tells of that.
        """
        try:
            await request
        except FAILURES as error:
            if isinstance(error, ApiError) and error.code == 404:
                return True
            _log.warning("%s: %s", self._path, error)
            await asyncio.sleep(_RETRY_SECONDS)
            return False
        return True

    def _status(self, phase: str) -> JSON:
        running = phase == "Running"
        spec = self._pod["spec"]
        code, reason = (143, "Error") if phase == "Failed" else (0, "Completed")  # 143: ended by SIGTERM
        ended = {"exitCode": code, "reason": reason, "startedAt": self._began, "finishedAt": now()}
        going: JSON = {"running": {"startedAt": self._began}}

        def of(container: JSON, over: bool) -> JSON:
            return {
                "name": container["name"],
                "image": container["image"],
                "imageID": container["image"],
                "containerID": f"simulated://{self._pod['metadata']['uid']}/{container['name']}",
                "ready": not over or running,
                "started": not over,
                "restartCount": 0,
                "state": {"terminated": ended} if over else going,
            }

        inits = [
            of(each, not running or each.get("restartPolicy") != "Always") for each in spec.get("initContainers") or []
        ]
        own = {"PodReadyToStartContainers": running, "Initialized": True, "ContainersReady": running, "Ready": running}
        conditions = [{"type": kind, "status": str(value), "lastTransitionTime": now()} for kind, value in own.items()]
        others = [each for each in self._pod["status"].get("conditions") or [] if each["type"] not in own]
        return {
            "phase": phase,
            "conditions": [*conditions, *others],
            **({"initContainerStatuses": inits} if inits else {}),
            "containerStatuses": [of(each, not running) for each in spec["containers"]],
            "startTime": self._began,
            "hostIP": network.HOST,
            "hostIPs": [{"ip": network.HOST}],
            "podIP": self._address,
            "podIPs": [{"ip": self._address}],
        }


def run_seconds(spec: JSON) -> float | None:
    """How long the containers of a pod run; None if for ever."""
    if spec.get("restartPolicy", "Always") == "Always":
        return None
    commands = (" ".join([*(each.get("command") or ()), *(each.get("args") or ())]) for each in spec["containers"])
    found = [float(sleep[1]) for command in commands if (sleep := _SLEEP.search(command))]
    return max(found, default=ENDING_SECONDS)
