"""Regions of claims: whose they are, and what a pod can't make its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hami_webhook.cluster.api import JSON, Kind, NotFound
from hami_webhook.cluster.informer import Replaced
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.node.claim_regions import ClaimRegions
from hami_webhook.node.node_pods import NodePods
from hami_webhook.node.region import Region

from .monitored import MonitoredNode, pod
from .regions import region


class Claims(MemoryCluster):
    """A cluster that has claims, by name, and counts how often it was asked for each."""

    def __init__(self, **claims: JSON) -> None:
        super().__init__(lambda: 0.0)
        self.claims = claims
        self.asked: Counter[str] = Counter()

    async def get(self, kind: Kind, name: str, namespace: str = "") -> JSON:
        assert (kind, namespace) == (Kind.RESOURCE_CLAIMS, "team-a")
        self.asked[name] += 1
        if name not in self.claims:
            raise NotFound(name)
        return self.claims[name]


def claim(uid: str, *pods: str) -> JSON:
    reserved = [{"resource": "pods", "name": each, "uid": f"uid-{each}"} for each in pods]
    return {"metadata": {"uid": uid}, "status": {"reservedFor": reserved}}


def claiming(name: str, *claims: str, generated: bool = False, container: str = "main", **more: Any) -> JSON:
    """A pod whose container has devices by these claims, made for it or made before."""
    made = pod(name, "sidecar", container, **more)
    made["spec"]["containers"][1]["resources"] = {"claims": [{"name": f"r-{each}"} for each in claims]}
    named = [{"name": f"r-{each}", "resourceClaimName": each} for each in claims]
    made["spec"]["resourceClaims"] = [{"name": each["name"]} if generated else each for each in named]
    made["status"]["resourceClaimStatuses"] = named if generated else []
    return made


class Node:
    """A node with claims' regions in a folder."""

    def __init__(self, folder: Path, claims: Claims) -> None:
        self.folder = folder
        self.now = 100.0
        self.pods = NodePods(())
        self.regions = ClaimRegions(claims, self.pods, str(folder), lambda: self.now)

    def region(self, uid: str, used: int = 1) -> None:
        (self.folder / uid).mkdir(parents=True)
        (self.folder / uid / "1.cache").write_bytes(region(slots=[{0: (0, 0, 0, 0, used)}]))

    async def used(self, *pods: JSON) -> dict[str, int | None]:
        """What containers use, None where it can't be read."""
        self.pods.handle(Replaced(iter(pods)))
        await self.regions.step()
        found = self.regions.read(self.regions.owners())
        return {
            f"{key.pod_uid}/{key.container}": each.devices[0].total if isinstance(each, Region) else None
            for key, each in found.items()
        }


@pytest.mark.parametrize("generated", [False, True])
async def test_a_claims_region_is_that_of_the_container_that_has_the_claim(tmp_path: Path, generated: bool) -> None:
    claims = Claims(c=claim("claim-1", "p"))
    node = Node(tmp_path, claims)
    node.region("claim-1", used=7)
    assert await node.used(claiming("p", "c", generated=generated)) == {"uid-p/main": 7}
    await node.regions.step()
    assert claims.asked == {"c": 1}
    assert await node.used() == {}


async def test_a_claim_that_several_share_counts_once(tmp_path: Path) -> None:
    node = Node(tmp_path, Claims(c=claim("claim-1", "p", "q")))
    node.region("claim-1")
    assert await node.used(claiming("p", "c"), claiming("q", "c")) == {"uid-p/main": 1}


async def test_a_container_with_two_claims_has_the_region_that_there_is(tmp_path: Path) -> None:
    node = Node(tmp_path, Claims(c=claim("claim-1", "p"), d=claim("claim-2", "p")))
    node.region("claim-2")
    assert await node.used(claiming("p", "c", "d")) == {"uid-p/main": 1}


async def test_a_container_that_ended_uses_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, Claims(c=claim("claim-1", "p")))
    node.region("claim-1")
    ended = [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]
    assert await node.used(claiming("p", "c", statuses=ended)) == {}


@pytest.mark.parametrize(
    "claims",
    [
        Claims(c=claim("claim-1", "another")),
        Claims(c={"metadata": {"uid": "claim-1"}}),
        Claims(c=claim("../claim-1", "p")),
        Claims(c=claim("..", "p")),
        Claims(c={"metadata": {"uid": 5}}),
    ],
    ids=["another pod's", "reserved for none", "a path", "the folder above", "no claim"],
)
async def test_a_pod_gets_no_claims_region_that_is_not_reserved_for_it(tmp_path: Path, claims: Claims) -> None:
    """A tenant writes a pod that names a claim of another pod, and whose containers use it."""
    node = Node(tmp_path / "claims", claims)
    node.region("claim-1")
    assert await node.used(claiming("p", "c")) == {}


async def test_a_region_that_lies_costs_its_own_container_only(tmp_path: Path) -> None:
    node = Node(tmp_path, Claims(c=claim("claim-1", "p"), d=claim("claim-2", "q")))
    node.region("claim-1", used=3)
    (tmp_path / "claim-2").mkdir()
    (tmp_path / "claim-2" / "1.cache").symlink_to("/etc/shadow")
    assert await node.used(claiming("p", "c"), claiming("q", "d")) == {"uid-p/main": 3, "uid-q/main": None}


async def test_a_claim_that_cannot_be_read_is_asked_for_again_after_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    claims = Claims()
    node = Node(tmp_path, claims)
    node.region("claim-1")
    assert await node.used(claiming("p", "c")) == {}
    claims.claims["c"] = claim("claim-1", "p")
    assert await node.used(claiming("p", "c")) == {}
    node.now += 60
    assert await node.used(claiming("p", "c")) == {"uid-p/main": 1}
    assert claims.asked == {"c": 2}
    assert [record.message for record in caplog.records] == ["the use of pods with claims isn't known: team-a/c: c"]


async def test_without_the_drivers_folder_nobody_is_asked(tmp_path: Path) -> None:
    claims = Claims(c=claim("claim-1", "p"))
    assert await Node(tmp_path / "claims", claims).used(claiming("p", "c")) == {}
    assert not claims.asked


async def test_the_monitor_shows_containers_of_both_kinds(tmp_path: Path) -> None:
    """A container with a region of its own, as HAMi's newer drivers make it, has that one."""
    node = MonitoredNode(tmp_path / "containers", Claims(c=claim("claim-1", "p"), d=claim("claim-2", "q")))
    assert node.claims is not None
    node.put(claiming("p", "c"), claiming("q", "d"), pod("r", "main"))
    node.region("r", "main", region())
    node.region("q", "main", region(slots=[{0: (0, 0, 0, 0, 5)}]))
    for uid in ("claim-1", "claim-2"):
        (tmp_path / "claims" / uid).mkdir(parents=True)
        (tmp_path / "claims" / uid / "1.cache").write_bytes(region(slots=[{0: (0, 0, 0, 0, 9)}]))
    await node.claims.step()
    seen = (await node.monitor.look()).containers
    assert {(each.pod.name, each.container): each.region.devices[0].total for each in seen} == {
        ("p", "main"): 9,
        ("q", "main"): 5,
        ("r", "main"): 0,
    }
