"""The regions of containers whose devices came by ResourceClaims (docs/spec/hami-core.md#1).

HAMi's driver keeps one region for a claim, also where several containers share it, in a folder that is named after
the claim's UID. Whose it is says the API server: the claim that a pod names has to be reserved for the pod.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from hami_webhook.cluster.api import Cluster, ClusterError, Kind
from hami_webhook.kube import claims_wire, wire
from hami_webhook.loops import News
from hami_webhook.node.node_pods import NodePod, NodePods
from hami_webhook.node.region import BadRegion, Region
from hami_webhook.node.region_files import ContainerKey, RegionFolder

logger = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two looks for claims that aren't known yet."""
_AGAIN = 60.0
"""Seconds after which a claim that couldn't be read is asked for again."""
_AT_ONCE = 100
"""Claims that are asked for in a step."""
_MOST_BYTES = 64 << 20
"""Of all claims' regions together, beside those of containers."""
_UID = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)


class ClaimKey(NamedTuple):
    """A claim: what its folder is called after."""

    uid: str

    @property
    def folder(self) -> str:
        return self.uid


ClaimOwners = dict[ClaimKey, tuple[ContainerKey, NodePod]]
"""The container that a claim's region is counted for, and its pod."""


class _Use(NamedTuple):
    """A pod's use of a claim of its namespace."""

    namespace: str
    claim: str
    pod_uid: str


class _Answer(NamedTuple):
    """The claim's UID, empty where it isn't to be had, or isn't the pod's; asked for at `at` (Unix seconds)."""

    uid: str
    at: float


class _Consumer(wire.Wire, frozen=True):
    uid: str | None = None


class _Status(claims_wire.ClaimStatus, frozen=True):
    reserved_for: tuple[_Consumer, ...] | None = None


class _Claim(claims_wire.ResourceClaim, frozen=True):
    """A claim as the monitor reads it."""

    status: _Status | None = None


class ClaimRegions:
    """Follows which claims the node's pods have, and reads their regions in the folder at `path`.

    `clock` gives Unix seconds.
    """

    def __init__(self, cluster: Cluster, pods: NodePods, path: str, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._pods = pods
        self._folder = RegionFolder(path, most_bytes=_MOST_BYTES)
        self._clock = clock
        self._known: dict[_Use, _Answer] = {}
        self._news = News(logger)

    async def step(self) -> None:
        """Ask for the claims of pods that came, and forget those of pods that are gone."""
        if not self._has_folder():
            return  # whatever claims there are, none is for HAMi's driver
        now, wanted = self._clock(), {use for use, _, _ in self._uses()}
        self._known = {
            use: answer
            for use, answer in self._known.items()
            if use in wanted and (answer.uid or 0 <= now - answer.at < _AGAIN)
        }
        for use in islice(sorted(wanted - self._known.keys()), _AT_ONCE):
            self._known[use] = _Answer(await self._asked(use), now)

    def owners(self) -> ClaimOwners:
        """Who each claim's region is counted for: of those that share it, the first container of the first pod."""
        found: ClaimOwners = {}
        for use, container, pod in self._uses():
            if uid := self._known.get(use, _Answer("", 0.0)).uid:
                found.setdefault(ClaimKey(uid), (ContainerKey(pod.uid, container), pod))
        return found

    def read(self, owners: ClaimOwners) -> dict[ContainerKey, Region | BadRegion]:
        """The regions of these claims. Raises `FolderError`."""
        regions = self._folder.read(owners) if owners else {}
        found: dict[ContainerKey, Region | BadRegion] = {}
        for claim, (container, _) in owners.items():
            if claim in regions:
                found.setdefault(container, regions[claim])
        return found

    def _has_folder(self) -> bool:
        return os.path.isdir(self._folder.path)

    def _uses(self) -> Iterator[tuple[_Use, str, NodePod]]:
        for pod in self._pods.pods:
            for container, claim in pod.claims:
                yield _Use(pod.namespace, claim, pod.uid), container, pod

    async def _asked(self, use: _Use) -> str:
        """The UID of a claim, empty where it can't be read or isn't reserved for the pod."""
        try:
            found = await self._cluster.get(Kind.RESOURCE_CLAIMS, use.claim, use.namespace)
            claim = wire.convert(found, _Claim, "resourceclaim")
        except (ClusterError, wire.MalformedObject) as error:
            self._news.say(f"the use of pods with claims isn't known: {use.namespace}/{use.claim}: {error}")
            return ""
        uid = (claim.metadata.uid if claim.metadata is not None else None) or ""
        reserved_for = (claim.status.reserved_for if claim.status is not None else None) or ()
        is_own = any(each.uid == use.pod_uid for each in reserved_for)
        return uid if is_own and _UID.fullmatch(uid) else ""
