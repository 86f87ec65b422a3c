"""Cards that a device plugin registers and a driver publishes for claims: Fit knows what claims hold of them."""

from __future__ import annotations

from typing import Any

import pytest
from admission.clusters import NOW, core_on
from builders import card, node, pod
from dra.objects import HAMI, resource_slice, share
from quota.objects import claiming_vendors
from scheduling.placer_env import view_of

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.devices.pod_fit import fit_pod, read_pod_request
from hami_webhook.kube.objects import Pod
from hami_webhook.state.node_snapshot import NodeSnapshot

CARD = "GPU-0"


@pytest.fixture
def core() -> Core:
    """One node with a card of 40 GiB that two managers offer."""
    core = core_on(None, vendors=claiming_vendors())
    core.caches.put(Kind.NODES, node("n1", card(CARD, 40960)))
    core.caches.put(Kind.RESOURCE_SLICES, resource_slice("n1", share(CARD)))
    return core


def claim(memory: str, cores: str = "10", device: str = CARD) -> JSON:
    given: JSON = {"request": "r", "driver": HAMI, "pool": "n1", "device": device}
    given["consumedCapacity"] = {"memory": memory, "cores": cores}
    status = {"allocation": {"devices": {"results": [given]}}}
    return {"metadata": {"name": "c", "namespace": "team-b", "uid": "c"}, "status": status}


def used(core: Core) -> tuple[int, int, int]:
    view = view_of(core.state, "n1")
    found = view.used("NVIDIA", CARD)
    return found.slots, found.memory, found.cores


def fits(core: Core, memory: int) -> bool:
    view = view_of(core.state, "n1")
    raw = pod("p", namespace="team-a", uid="p", gpu=1, mem=memory)
    request = read_pod_request(Pod.from_object(raw), core.vendors, "")
    assert request is not None
    return hasattr(fit_pod(view, request, core.vendors, None), "claims")


def placed(memory: int, **more: Any) -> JSON:
    notes = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": f"{CARD},NVIDIA,{memory},10:;"}
    notes["hami.io/vgpu-time"] = str(int(NOW))
    return pod("q", namespace="team-a", uid="q", gpu=1, mem=memory, annotations=notes, nodeName="n1", **more)


def test_what_a_claim_holds_is_taken_and_free_again_when_it_goes(core: Core) -> None:
    assert (used(core), fits(core, 40960)) == ((0, 0, 0), True)
    core.caches.put(Kind.RESOURCE_CLAIMS, claim("30000Mi"))
    core.caches.put(Kind.PODS, placed(1000))
    assert used(core) == (2, 31000, 20)
    assert (fits(core, 9960), fits(core, 9961)) == (True, False)
    core.caches.put(Kind.RESOURCE_CLAIMS, claim("20000Mi"))
    assert used(core) == (2, 21000, 20)
    core.caches.drop(Kind.RESOURCE_CLAIMS, claim("20000Mi"))
    assert used(core) == (1, 1000, 10)


def test_a_card_is_the_same_as_soon_as_its_slice_is_there_and_as_long(core: Core) -> None:
    written = resource_slice("n1", share(CARD))
    core.caches.drop(Kind.RESOURCE_SLICES, written)
    core.caches.put(Kind.RESOURCE_CLAIMS, claim("30000Mi"))
    assert used(core) == (0, 0, 0)
    core.caches.put(Kind.RESOURCE_SLICES, written)
    assert used(core) == (1, 30000, 10)


def test_a_card_of_another_uuid_is_another_card(core: Core) -> None:
    core.caches.put(Kind.RESOURCE_SLICES, resource_slice("n1", share(CARD), share("GPU-9")))
    core.caches.put(Kind.RESOURCE_CLAIMS, claim("30000Mi", device="GPU-9"))
    view = view_of(core.state, "n1")
    assert view.usage == {}


def test_an_eviction_frees_no_share_of_a_claim(core: Core) -> None:
    core.caches.put(Kind.RESOURCE_CLAIMS, claim("30000Mi"))
    core.caches.put(Kind.PODS, placed(1000))
    view = view_of(core.state, "n1")
    snapshot = NodeSnapshot(view, core.state.allocations("n1"), {})
    assert [each.pod.name for each in snapshot.allocations] == ["q"]
    assert snapshot.without(["q"], core.vendors).used("NVIDIA", CARD).memory == 30000
