"""An ordinary tenant that makes and deletes ordinary pods all the while, and how long that takes."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..objects import pod
from .client import Client

STALL = 0.5
"""Seconds that a request takes which costs the API server nothing, when the whole machine stands still."""
LIFELESS = 1.0
"""Seconds after which a probe fails, as in the manifests."""
PAUSE = 0.5
"""Seconds between two pods. A charge goes with a recompute some seconds after its pod: who makes pods more quickly than
its quota has room for such charges is refused for that.
"""


@dataclass
class Neighbour:
    """One thread makes pods and deletes them once they are bound, one measures requests that do nothing.

    `health` is the address at which the extender says that it lives.
    """

    space: str
    client: Callable[[], Client]
    priority: str
    health: str
    refusals: list[str] = field(default_factory=list)
    creations: list[tuple[float, float]] = field(default_factory=list)
    """When each began (monotonic), and the seconds it took."""
    waits: list[float] = field(default_factory=list)
    """Seconds from each pod's creation until it was bound."""
    releases: list[tuple[float, float]] = field(default_factory=list)
    """When each pod was created (monotonic), and the seconds until it had no scheduling gate."""
    unbound: list[str] = field(default_factory=list)
    """Pods that waited for `patience` seconds without being bound, with what kube-scheduler says of them."""
    stalls: list[tuple[float, float]] = field(default_factory=list)
    """When requests that do nothing took longer than `STALL`, from and to."""
    lives: list[float] = field(default_factory=list)
    """Seconds until the extender said that it lives, at most `LIFELESS`."""
    patience: float = 60.0
    quiet: float = 0.0
    """When the attack began (monotonic): creations before show how fast the machine is without it."""

    def see_quiet(self, creations: int) -> None:
        """Wait until so many pods were created; from now on there are attackers."""
        deadline = time.monotonic() + self.patience
        while len(self.creations) < creations and time.monotonic() < deadline:
            time.sleep(0.1)
        self.quiet = time.monotonic()

    def __enter__(self) -> Neighbour:
        self._end = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._live, self._probe)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(self.patience + 30)

    def _live(self) -> None:
        client, pods = self.client(), f"/api/v1/namespaces/{self.space}/pods"
        for serial in itertools.count():
            if self._end.is_set():
                return
            made = pod(self.space, f"n-{serial:05}", gpu=1, gpumem=1000)
            made["spec"]["priorityClassName"] = self.priority
            began = time.monotonic()
            code, answer = client("POST", pods, made)
            self.creations.append((began, time.monotonic() - began))
            if code != 201:
                self.refusals.append(f"{code}: {answer.get('message')}")
                self._end.wait(0.5)
                continue
            self._see_bound(client, f"{pods}/{made['metadata']['name']}", bool(answer["spec"].get("schedulingGates")))
            client("DELETE", f"{pods}/{made['metadata']['name']}", {"gracePeriodSeconds": 0})
            self._end.wait(PAUSE)

    def _see_bound(self, client: Client, path: str, gated: bool) -> None:
        began, found = time.monotonic(), dict[str, Any]()
        while time.monotonic() < began + self.patience:
            code, found = client("GET", path)
            if gated and code == 200 and not found["spec"].get("schedulingGates"):
                gated = False
                self.releases.append((began, time.monotonic() - began))
            if "nodeName" in found.get("spec", {}):
                self.waits.append(time.monotonic() - began)
                return
            self._end.wait(0.05) if not self._end.is_set() else time.sleep(0.05)
        conditions = found.get("status", {}).get("conditions") or [{}]
        self.unbound.append(f"{path}: {conditions[0].get('message')}")

    def _probe(self) -> None:
        client = self.client()
        nothing = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "nothing"}}
        while not self._end.wait(0.1):
            began = time.monotonic()
            client("POST", f"/api/v1/namespaces/{self.space}/configmaps?dryRun=All", nothing)
            if time.monotonic() - began > STALL:
                self.stalls.append((began, time.monotonic()))
            began = time.monotonic()
            with contextlib.suppress(OSError), urllib.request.urlopen(self.health, timeout=LIFELESS):
                pass
            self.lives.append(time.monotonic() - began)

    def slow(self, seconds: float, times: list[tuple[float, float]]) -> list[float]:
        """How long those of its creations or releases took that took longer, slowest first.

        On a busy machine longer is three times the slowest one without attackers; and what took long while the whole
        machine stood still isn't among them.
        """
        most = max([seconds, *(3 * took for began, took in times if began < self.quiet)])
        slow = [
            took
            for began, took in times
            if took > most and not any(start < began + took and began < end for start, end in self.stalls)
        ]
        return [round(took, 2) for took in sorted(slow, reverse=True)]

    def summary(self) -> str:
        """Numbers for a person."""
        quiet = sorted(took for began, took in self.creations if began < self.quiet)
        times, waits = sorted(took for began, took in self.creations if began >= self.quiet), sorted(self.waits)
        released = sorted(took for began, took in self.releases if began >= self.quiet)
        queued = f"released after p50 {_at(released, 0.5):.2f} s, p100 {_at(released, 1):.2f} s; " if released else ""
        return (
            f"{self.space} without attackers: {len(quiet)} creations, p50 {_at(quiet, 0.5):.3f} s, p100 "
            f"{_at(quiet, 1):.3f} s; with them: {len(times)} creations, {len(self.refusals)} refused, p50 "
            f"{_at(times, 0.5):.3f} s, p99 {_at(times, 0.99):.3f} s, p100 {_at(times, 1):.3f} s; {queued}"
            f"{len(waits)} bound, p50 {_at(waits, 0.5):.2f} s, p100 {_at(waits, 1):.2f} s, {len(self.unbound)} never; "
            f"the extender's health p100 {_at(sorted(self.lives), 1):.2f} s; the machine stood still "
            f"{len(self.stalls)} times"
        )


def _at(times: list[float], share: float) -> float:
    return times[min(len(times) - 1, int(share * len(times)))] if times else 0.0
