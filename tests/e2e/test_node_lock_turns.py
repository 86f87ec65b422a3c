"""A tenant deletes its pods as soon as they are bound: the node's lock is nobody's for longer than half a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from hack.devcluster.plane import ControlPlane

from .attackers.client import Client
from .deployment import Deployment, eventually
from .hamischeduler import HamiScheduler
from .kubelet import Kubelets
from .objects import namespace, pod, quota
from .scheduling import scheduler_account
from .tenants import tenant
from .test_placement import node_with_cards

QUOTA = 4
PODS = 20


@pytest.fixture(scope="module")
def program(one_replica: Deployment) -> Deployment:
    scheduler_account(one_replica.kubectl)
    node_with_cards(one_replica.kubectl, "turns", "node", 8)
    return one_replica


class Deleter:
    """A tenant that has as many pods as its quota allows, and deletes each as soon as it is bound, until `stop`."""

    def __init__(self, client: Client, space: str, *, names: list[str] | None, grace: int) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{space}/pods"
        self._space = space
        self._names = names
        self._options = {"gracePeriodSeconds": grace}
        self._numbers = count()
        self.deleted: set[str] = set()
        """The UIDs of pods that were deleted when they were bound."""
        self.stop = threading.Event()

    def __call__(self) -> None:
        while not self.stop.is_set():
            _, listing = self._client("GET", self._path)
            there = listing["items"]
            for each in there:
                meta = each["metadata"]
                if each["spec"].get("nodeName") and meta["uid"] not in self.deleted:
                    self.deleted.add(meta["uid"])
                    self._client("DELETE", f"{self._path}/{meta['name']}", self._options)
            free = QUOTA - len(there)
            names = self._names or [f"p{next(self._numbers)}" for _ in range(free)]
            taken = {each["metadata"]["name"] for each in there}
            for name in [name for name in names if name not in taken][:free]:
                self._client("POST", self._path, pod(self._space, name, gpu=1, gpumem=100))


@contextmanager
def deleting(deleter: Deleter) -> Iterator[None]:
    thread = threading.Thread(target=deleter, daemon=True)
    thread.start()
    try:
        eventually(lambda: len(deleter.deleted) > QUOTA)
        yield
    finally:
        deleter.stop.set()
        thread.join(60)


def seconds_to_bind(client: Client, space: str, kubelets: Kubelets) -> list[float]:
    """From creation to bind, sorted, of pods that another tenant makes one after the other."""
    found = []
    for number in range(PODS):
        began = time.monotonic()
        name = f"p{number}"
        assert client("POST", f"/api/v1/namespaces/{space}/pods", pod(space, name, gpu=1, gpumem=100))[0] == 201
        while f"{space}/{name}" not in kubelets.bound:
            assert time.monotonic() - began < 300
            time.sleep(0.005)
        found.append(kubelets.bound[f"{space}/{name}"] - began)
    return sorted(found)


@pytest.mark.parametrize("kind", ["nobody deletes", "new names", "the same names, by force"])
def test_who_deletes_pods_when_they_are_bound_holds_up_nobody_else(
    plane: ControlPlane, program: Deployment, scheduler: HamiScheduler, kubelets: Kubelets, kind: str
) -> None:
    kubectl = program.kubectl
    theirs, others = namespace(kubectl), namespace(kubectl)
    kubectl.apply(quota(theirs, gpu=QUOTA))
    clients = [Client(plane, tenant(kubectl, plane, program.folder, each).kubeconfig) for each in (theirs, others)]
    names = ["a", "b", "c", "d"] if kind == "the same names, by force" else None
    deleter = Deleter(clients[0], theirs, names=names, grace=0 if names else 30)
    if kind == "nobody deletes":
        seconds = seconds_to_bind(clients[1], others, kubelets)
    else:
        with deleting(deleter):
            seconds = seconds_to_bind(clients[1], others, kubelets)
    half, most = seconds[PODS // 2], seconds[PODS * 95 // 100]
    print(f"\n{kind}: p50 {half:.2f} s, p95 {most:.2f} s, {len(deleter.deleted)} deleted")
    kubectl.delete_all("pods", namespace=others)
    # a lock that is kept lasts five minutes
    assert half < 10
    assert most < 20
    assert [fault for fault in kubelets.faults if fault.startswith(("card ", "no allocation"))] == []
