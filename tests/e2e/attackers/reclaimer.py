"""A tenant that has others' pods evicted for its own, and doesn't keep these."""

from __future__ import annotations

import itertools
import math
import random
import time

from builders import JSON

from ..objects import GPU, accelerator_quota, pod
from .actions import Actor, Weighted
from .client import Client

LENT = 4
"""Cards of the quota that both teams share; the borrower's Deployment wants them all."""
NOMINAL = 2
PATIENCE = 5.0
"""Seconds that a pod waits for others to be evicted."""


class Reclaimer(Actor):
    """One client of the tenant in `space`, whose team has lent its cards to that of another namespace."""

    def __init__(self, client: Client, dice: random.Random, space: str) -> None:
        super().__init__(dice, pause=0.2)
        self.client = client
        self.bound = 0
        """Its pods that took the place of others'."""
        self._space = space
        self._pods = f"/api/v1/namespaces/{space}/pods"
        self._names = (f"back-{serial:04}" for serial in itertools.count())

    def actions(self) -> Weighted:
        return [(4, self.take_back_and_delete), (1, self.take_back_and_leave)]

    def take_back_and_delete(self) -> int:
        """A pod within its nominal, which goes as soon as it is bound, or when nobody is evicted for it."""
        name = next(self._names)
        code = self._take_back(name)
        self.client("DELETE", f"{self._pods}/{name}", {"gracePeriodSeconds": 0})
        return code

    def take_back_and_leave(self) -> int:
        """As many as its nominal has, and then none at all."""
        codes = [self._take_back(next(self._names)) for _ in range(NOMINAL)]
        self.client("DELETE", self._pods, {"gracePeriodSeconds": 0})
        return codes[-1]

    def _take_back(self, name: str) -> int:
        code, _ = self.client("POST", self._pods, pod(self._space, name, gpu=1, gpumem=1))
        deadline = time.monotonic() + PATIENCE
        while code == 201 and time.monotonic() < deadline:
            if "nodeName" in self.client("GET", f"{self._pods}/{name}")[1].get("spec", {}):
                self.bound += 1
                break
            time.sleep(0.1)
        return code


def most_evicted(seconds: float) -> int:
    """Pods that may be evicted for the tenant's in so long (docs/queues.md#lending).

    The first time is free, the second costs a minute, each further one twice as long; each is of its nominal at most.
    """
    return NOMINAL * (2 + int(math.log2(1 + seconds / 60)))


def lending_quotas(name: str, lender: str, borrower: str) -> list[JSON]:
    """What the teams of two namespaces share, of which one's nominal is its own; `name` is the shared quota's."""
    of = {space: {"matchLabels": {"kubernetes.io/metadata.name": space}} for space in (lender, borrower)}
    both = {
        "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": [lender, borrower]}]
    }
    hard, own = {"gpu": LENT}, {"nominal": {GPU: NOMINAL}, "reclaimMinRuntime": "1s"}
    return [
        accelerator_quota(name, both, hard, enforcement="queue"),
        accelerator_quota(f"{name}-lender", of[lender], hard, reclaim="on", **own),
        accelerator_quota(f"{name}-borrower", of[borrower], hard, enforcement="queue", **own),
    ]


def borrowers(space: str) -> JSON:
    """A Deployment of all the cards that there are."""
    template = pod(space, "lent", gpu=1, gpumem=1)
    labels = {"app": "lent"}
    spec = {**template["spec"], "terminationGracePeriodSeconds": 1}
    spec.pop("restartPolicy", None)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "lent", "namespace": space},
        "spec": {
            "replicas": LENT,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
