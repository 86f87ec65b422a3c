"""Priority feedback: containers wait while others of a higher priority compute on the same card.

Source: docs/spec/hami-core.md#5. HAMi-core counts what a container computes in its region's recent_kernel, and waits
while that is -1; whether it limits the container's cores is the utilization_switch. One process of a node writes both.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hami_webhook.loops import Sleep, repeat
from hami_webhook.node.node_pods import NodePod, NodePods
from hami_webhook.node.region import BadRegion, Region
from hami_webhook.node.region_files import ContainerKey, FolderError, RegionFolder

logger = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two steps: HAMi-core counts on it."""
MIG_LOCK = Path("/tmp/hami/hami-mig-apply.lock")  # noqa: S108  HAMi's device plugin makes it there
"""It is there while HAMi's device plugin changes MIG instances."""
BLOCKED = -1
"""recent_kernel of a container that has to wait."""


class Competitor(NamedTuple):
    """A container and its region; `priority` is what it may have, 0 is the highest, `allocated` its pod's cards."""

    region: Region
    priority: int
    allocated: frozenset[str]


Fields = Mapping[str, int]
"""Fields of a region to be written, by their names."""


def feedback(containers: Mapping[ContainerKey, Competitor]) -> dict[ContainerKey, Fields]:
    """What is written into the regions of a node's containers, every 5 seconds; nothing where all is right already."""
    counted = {key: max(each.region.recent_kernel - 1, 0) for key, each in containers.items()}
    active: dict[str, Counter[int]] = {}
    for key, each in containers.items():
        for uuid in _cards(each) if counted[key] > 0 else ():
            active.setdefault(uuid, Counter())[each.priority] += 1
    return {key: fields for key, each in containers.items() if (fields := _fields(each, counted[key], active))}


def _fields(container: Competitor, counted: int, active: Mapping[str, Counter[int]]) -> Fields:
    cards = [active[uuid] for uuid in _cards(container) if uuid in active]
    is_behind = any(priority < container.priority for priorities in cards for priority in priorities)
    has_equals = any(priorities[container.priority] > 1 for priorities in cards)
    due = {
        "recent_kernel": BLOCKED if is_behind else counted,
        "utilization_switch": int(is_behind or has_equals),
    }
    return {name: value for name, value in due.items() if value != getattr(container.region, name)}


def _cards(container: Competitor) -> frozenset[str]:
    """The cards that it computes on: the region is in the container's hand, so none that its pod wasn't allocated."""
    return container.allocated.intersection(device.uuid for device in container.region.devices)


class PriorityFeedback:
    """Does it for a node: every 5 seconds, unless another process does, and not while MIG is changed."""

    def __init__(self, pods: NodePods, folder: RegionFolder, *, mig_lock: Path = MIG_LOCK) -> None:
        self._pods = pods
        self._folder = folder
        self._mig_lock = mig_lock
        self._lock: int | None = None
        self._said = ""

    async def run(self, sleep: Sleep = asyncio.sleep) -> None:
        """A step every 5 seconds, until cancelled."""
        try:
            await repeat(self.step, EVERY, sleep)
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    async def step(self) -> None:
        """Read all regions, and write what has to change."""
        why = self._why_not()
        if not why and not self._mig_lock.exists():
            why = await asyncio.to_thread(self._apply, dict(self._pods.containers()))
        if why != self._said:
            self._said = why
            logger.warning("%s", f"no priority feedback: {why}" if why else "priority feedback is given")

    def _why_not(self) -> str:
        """Why this process doesn't do it; empty if it does."""
        if self._pods.hamis_monitor:
            return f"HAMi's own monitor does it, in the pod {self._pods.hamis_monitor}"
        if self._lock is None:
            try:
                self._lock = os.open(self._folder.path, os.O_RDONLY | os.O_DIRECTORY)
            except OSError as error:
                return f"{self._folder.path}: {error.strerror}"
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(self._lock)
                self._lock = None
                return f"another process on this node does it: it holds the lock on {self._folder.path}"
        return ""

    def _apply(self, pods: Mapping[ContainerKey, NodePod]) -> str:
        """Do it for these containers of pods; why regions can't be written, empty if they can."""
        try:
            regions = self._folder.read(pods)
        except FolderError as error:
            return str(error)
        containers = {
            key: Competitor(
                region, allowed_priority(region.priority, pods[key].priorities.get(key.container)), pods[key].cards
            )
            for key, region in regions.items()
            if isinstance(region, Region)
        }
        problem = ""
        for key, fields in feedback(containers).items():
            try:
                self._folder.write(key, fields)
            except FolderError as error:
                return str(error)
            except FileNotFoundError:
                continue  # the container is gone
            except (BadRegion, OSError) as error:
                problem = f"the region of the container {key.container} can't be written: {error}"
        return problem


def allowed_priority(written: int, declared: int | None) -> int:
    """The priority of a container whose region says one: none above what its pod declares, 1 if that declares none.

    The region is in the container's hand, and what its pod declares has been through admission.
    """
    return max(written, 1 if declared is None else declared)
