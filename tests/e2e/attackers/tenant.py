"""A tenant that tries whatever its rights allow in its namespaces."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping, Sequence

from ..objects import JSON, pod
from .actions import Actor, Weighted
from .client import Client

ALLOCATED = "hami.io/vgpu-devices-allocated"
RESERVATION = "hami.io/quota-reservation"
AMOUNTS: Sequence[Mapping[str, int]] = (
    {"gpu": 1, "gpumem": 2000},
    {"gpu": 2, "gpumem": 1500},
    {"gpu": 1, "gpumem": 9000},
    {"gpu": 1, "gpumem_percentage": 50},
    {"gpu": 2, "gpumem_percentage": 30},
)
OTHER_SCHEDULERS = ("default-scheduler", "volcano", "koord-scheduler", "my-own", "none")
GATE = {"schedulingGates": [{"name": "example.com/wait"}]}
PAUSE = 0.1
"""Seconds between actions: how much the machine can do isn't what is tested."""
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


class Tenant(Actor):
    """One client of the tenant.

    `space` is where it has a ResourceQuota; `closed` allows no pods (`pods: 0`), and `wide` has a quota above several
    namespaces only, in which it can have a great many waiting pods. `cards` are UUIDs to ask for.
    """

    def __init__(
        self,
        client: Client,
        dice: random.Random,
        number: int,
        *,
        space: str,
        closed: str,
        wide: str,
        nodes: Sequence[str],
        cards: Sequence[str],
        priorities: Sequence[str],
    ) -> None:
        super().__init__(dice, PAUSE)
        self.client = client
        self.space, self.closed, self.wide = space, closed, wide
        self.nodes, self.cards, self.priorities = nodes, cards, priorities
        self.names = (f"a{number}-{serial:04}" for serial in itertools.count())
        self.secrets = ["", "none-such"]
        self.pods = _pods(space)

    def actions(self) -> Weighted:
        return [
            (30, self.create),
            (8, self.recreate),
            (5, self.create_existing),
            (6, self.create_where_no_pods_may_be),
            (8, self.create_many_waiting),
            (2, self.ask_for_linked_cards),
            (8, self.annotate),
            (10, self.choose_other_cards),
            (8, self.open_gate),
            (5, self.bind),
            (6, self.forge_status),
            (3, self.resize),
            (5, self.add_ephemeral_container),
            (12, self.delete),
            (4, self.delete_when_bound),
            (5, self.read),
        ]

    def read(self) -> int:
        """Learn every id and secret that there is to see."""
        code, quotas = self.client("GET", f"/api/v1/namespaces/{self.space}/resourcequotas")
        for item in quotas["items"]:
            ledger = (item["metadata"].get("annotations") or {}).get("hami.io/quota-ledger", "{}")
            self.secrets += json.loads(ledger)
        for item in self.existing():
            notes = item["metadata"].get("annotations") or {}
            self.secrets += [item["metadata"]["uid"], *filter(None, [notes.get(RESERVATION)])]
        self.secrets = self.secrets[-30:]
        return code

    def existing(self) -> list[JSON]:
        found: list[JSON] = self.client("GET", self.pods)[1].get("items", [])
        return found

    def victim(self, *, waiting: bool = False) -> str:
        """A pod that exists, one that runs (or waits) if there is one, or a name of none."""
        found = self.existing()
        wanted = [item for item in found if ("nodeName" not in item["spec"]) == waiting]
        choice = self.dice.choice(wanted or found) if found else {"metadata": {"name": "none-such"}}
        name: str = choice["metadata"]["name"]
        return name

    def manifest(self, name: str) -> JSON:
        made = pod(self.space, name, **self.dice.choice(AMOUNTS))
        notes = made["metadata"]["annotations"] = {}
        spec = made["spec"]
        if self.dice.random() < 0.4:
            self.read()
            notes[RESERVATION] = self.dice.choice(self.secrets[-8:])
        if self.dice.random() < 0.1:
            notes |= self.forged()
        if self.dice.random() < 0.3:
            notes |= self.chosen()
        if self.dice.random() < 0.25:
            spec |= GATE
        if self.dice.random() < 0.15:
            spec["schedulerName"] = self.dice.choice(OTHER_SCHEDULERS)
        if self.dice.random() < 0.3:
            spec["priorityClassName"] = self.dice.choice(self.priorities)
        if self.dice.random() < 0.1:
            spec["resourceClaims"] = [{"name": "claim", "resourceClaimName": "none-such"}]
            spec["containers"][0]["resources"]["claims"] = [{"name": "claim"}]
        if self.dice.random() < 0.1:
            spec["terminationGracePeriodSeconds"] = 3600
        if self.dice.random() < 0.05:
            spec["nodeName"] = self.dice.choice(self.nodes)
        return made

    def forged(self) -> dict[str, str]:
        """An annotation that makes a pod look cheaper, or placed, or somebody else's."""
        node = self.dice.choice(self.nodes)
        return self.dice.choice(
            [
                {ALLOCATED: f"{node}-0,NVIDIA,1,1:;"},
                {"hami.io/vgpu-node": node, "hami.io/vgpu-time": "1", ALLOCATED: f"{node}-0,NVIDIA,1,1:;"},
                {"hami.io/vgpu-node": node},
                {"hami.io/bind-phase": "success"},
                {"hami.io/quota-ledger": "{}"},
                {"volcano.sh/vgpu-ids-new": f"{node}-0,NVIDIA,1,1:;", "volcano.sh/vgpu-node": node},
            ]
        )

    def chosen(self) -> dict[str, str]:
        """Which cards a pod may get, in any of the ways there are to say it."""
        uuids = ",".join(self.dice.sample(self.cards, self.dice.randint(1, 2)))
        return self.dice.choice(
            [
                {"nvidia.com/use-gputype": self.dice.choice(["A10", "H100", "A10,H100", ",", "h100", "none-such"])},
                {"nvidia.com/nouse-gputype": self.dice.choice(["A10", "H100", ","])},
                {"nvidia.com/use-gpuuuid": self.dice.choice([uuids, uuids, ",", "none-such"])},
                {"nvidia.com/nouse-gpuuuid": uuids},
                {"hami.io/gpu-scheduler-policy": self.dice.choice(["binpack", "spread", "topology-aware", "x"])},
                {"hami.io/node-scheduler-policy": self.dice.choice(["binpack", "spread", ""])},
                {"nvidia.com/vgpu-mode": self.dice.choice(["hami-core", "mig", "mps", "x"])},
                {"nvidia.com/numa-bind": "true"},
            ]
        )

    def create(self) -> int:
        dry = "?dryRun=All" if self.dice.random() < 0.1 else ""
        code, answer = self.client("POST", self.pods + dry, self.manifest(next(self.names)))
        notes = (answer.get("metadata") or {}).get("annotations") or {}
        self.secrets += filter(None, [notes.get(RESERVATION)])
        return code

    def recreate(self) -> int:
        """The same name again, right after it went."""
        name = self.victim()
        self.client("DELETE", f"{self.pods}/{name}", {"gracePeriodSeconds": 0})
        return self.client("POST", self.pods, self.manifest(name))[0]

    def create_existing(self) -> int:
        """A name that exists: it is reviewed, and charged, before it is refused."""
        return self.client("POST", self.pods, self.manifest(self.victim()))[0]

    def create_where_no_pods_may_be(self) -> int:
        """As `create_existing`, in a namespace whose own quota has no room for any pod."""
        return self.client("POST", _pods(self.closed), pod(self.closed, next(self.names), gpu=4, gpumem=4000))[0]

    def create_many_waiting(self) -> int:
        """Pods of a percentage, which stay in the ledger for as long as they wait."""
        for _ in range(5):
            made = pod(self.wide, next(self.names), gpu=1, gpumem_percentage=1)
            made["spec"] |= GATE
            code, _ = self.client("POST", _pods(self.wide), made)
        return code

    def ask_for_linked_cards(self) -> int:
        """Half of the cards of the largest node there is, in the way that is hardest to choose."""
        made = pod(self.wide, next(self.names), gpu=24, gpumem=100)
        made["metadata"]["annotations"] = {"hami.io/gpu-scheduler-policy": "topology-aware"}
        return self.client("POST", _pods(self.wide), made)[0]

    def annotate(self) -> int:
        notes: dict[str, str | None] = {**self.forged()}
        if self.dice.random() < 0.5:
            notes = {RESERVATION: self.dice.choice([None, *self.secrets])}
        elif self.dice.random() < 0.3:
            notes = dict.fromkeys(notes)
        return self.merge(self.victim(), "", {"metadata": {"annotations": notes}})

    def choose_other_cards(self) -> int:
        """Give a waiting pod other cards than it was charged for."""
        notes: dict[str, str | None] = {**self.chosen(), **(self.chosen() if self.dice.random() < 0.3 else {})}
        if self.dice.random() < 0.2:
            notes = dict.fromkeys(notes)
        return self.merge(self.victim(waiting=True), "", {"metadata": {"annotations": notes}})

    def merge(self, name: str, subresource: str, patch: JSON) -> int:
        return self.client("PATCH", f"{self.pods}/{name}{subresource}", patch, MERGE)[0]

    def open_gate(self) -> int:
        return self.merge(self.victim(waiting=True), "", {"spec": {"schedulingGates": None}})

    def bind(self) -> int:
        name = self.victim(waiting=True)
        meta = {"name": name, "annotations": self.forged() if self.dice.random() < 0.7 else {}}
        target = {"apiVersion": "v1", "kind": "Node", "name": self.dice.choice(self.nodes)}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        place = self.dice.choice([f"{self.pods}/{name}/binding", f"/api/v1/namespaces/{self.space}/bindings"])
        return self.client("POST", place, binding)[0]

    def forge_status(self) -> int:
        patch = {"metadata": {"annotations": self.forged()}, "status": {"message": "x"}}
        if self.dice.random() < 0.2:
            patch["status"] = {"nominatedNodeName": self.dice.choice(self.nodes)}
        return self.merge(self.victim(), "/status", patch)

    def resize(self) -> int:
        amounts = {"nvidia.com/gpumem": "1", "cpu": "100m"}
        patch = {"spec": {"containers": [{"name": "main", "resources": {"limits": amounts, "requests": amounts}}]}}
        return self.client("PATCH", f"{self.pods}/{self.victim()}/resize", patch, STRATEGIC)[0]

    def add_ephemeral_container(self) -> int:
        container: JSON = {"name": f"debug-{self.dice.randrange(10**6)}", "image": "registry.invalid/none"}
        more: JSON = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
        container |= more if self.dice.random() < 0.5 else {"securityContext": {"privileged": True}}
        patch = {"spec": {"ephemeralContainers": [container]}}
        return self.client("PATCH", f"{self.pods}/{self.victim()}/ephemeralcontainers", patch, STRATEGIC)[0]

    def delete(self) -> int:
        options = {"gracePeriodSeconds": 0} if self.dice.random() < 0.5 else {}
        return self.client("DELETE", f"{self.pods}/{self.victim()}", options)[0]

    def delete_when_bound(self) -> int:
        """A pod that goes while its node's lock is its own."""
        name = next(self.names)
        code, _ = self.client("POST", self.pods, pod(self.space, name, gpu=1, gpumem=500))
        for _ in range(20 if code == 201 else 0):
            if "nodeName" in self.client("GET", f"{self.pods}/{name}")[1].get("spec", {}):
                break
        self.client("DELETE", f"{self.pods}/{name}", {"gracePeriodSeconds": 0})
        return code


def _pods(space: str) -> str:
    return f"/api/v1/namespaces/{space}/pods"
