"""A tenant in a queue that others share: gangs of all shapes, foreign gates, changes while it waits, and claims."""

from __future__ import annotations

import itertools
import random

from builders import JSON
from dra.objects import HAMI, exactly

from ..objects import pod
from .actions import Actor, Weighted
from .client import Client

MERGE = "application/merge-patch+json"
GATE = "hami.io/quota"
HOLD = {"schedulingGates": [{"name": "example.com/hold"}]}
PAUSE = 0.1
MOST_GANG = 8
STORM = 30
"""Changes of one pod in a storm of conflicts."""
CLAIM_NAMES = 3
"""Names of claims: few, so that many are made in vain."""
MOST_EXPRESSIONS = 32
SLOW = "".join(f"[{','.join(['1'] * 16)}].all(a{level}, " for level in range(2)) + "true" + ")" * 2
"""An expression that walks 16 elements in each of two nested lists: the API server refuses dearer ones."""


class QueueTenant(Actor):
    """One client of the tenant in `line`, whose pods wait for quota, and in `space`, where it may make claims."""

    def __init__(self, client: Client, dice: random.Random, *, line: str, space: str) -> None:
        super().__init__(dice, PAUSE)
        self.client = client
        self._line = line
        self._pods = f"/api/v1/namespaces/{line}/pods"
        self._api = f"/apis/resource.k8s.io/v1/namespaces/{space}"
        self._space = space
        self._names = (f"q-{serial:04}" for serial in itertools.count())

    def actions(self) -> Weighted:
        return [
            (6, self.create_gang),
            (6, self.hide_behind_gate),
            (6, self.open_gates),
            (10, self.relabel_waiting),
            (4, self.storm),
            (8, self.create_claim),
            (3, self.select_slowly),
            (3, self.ask_in_both_ways),
            (6, self.delete_claim),
            (8, self.end),
            (10, self.delete),
        ]

    def _existing(self) -> list[JSON]:
        found: list[JSON] = self.client("GET", self._pods)[1].get("items", [])
        return found

    def _merge(self, name: str, patch: JSON, subresource: str = "") -> int:
        return self.client("PATCH", f"{self._pods}/{name}{subresource}", patch, MERGE)[0]

    def _shaped(self, name: str) -> JSON:
        shape = {"gpumem_percentage": self.dice.randint(1, 100), "gpucores": self.dice.randint(0, 100)}
        return pod(self._line, name, gpu=self.dice.choice([1, 1, 1, 2]), **shape)

    def create_gang(self) -> int:
        """Members of which no two are alike; sometimes one is missing, or one more than there should be."""
        group, size = next(self._names), self.dice.randint(2, MOST_GANG)
        code = 0
        for number in range(size + self.dice.choice([-1, 0, 0, 1])):
            made = self._shaped(f"{group}-{number}")
            made["metadata"]["labels"] = {"hami.io/pod-group": group, "hami.io/pod-group-size": str(size)}
            code, _ = self.client("POST", self._pods, made)
        return code

    def hide_behind_gate(self) -> int:
        made = self._shaped(next(self._names))
        made["spec"] |= HOLD
        return self.client("POST", self._pods, made)[0]

    def open_gates(self) -> int:
        """Take all gates away, or only those of others, of some pods at once."""
        code = 404
        for item in self._sample(self._existing()):
            gates = item["spec"].get("schedulingGates", [])
            left = [each for each in gates if each["name"] == GATE] if self.dice.random() < 0.5 else None
            code = self._merge(item["metadata"]["name"], {"spec": {"schedulingGates": left}})
        return code

    def relabel_waiting(self) -> int:
        code = 404
        for item in self._sample([each for each in self._existing() if each["spec"].get("schedulingGates")]):
            labels = {"turn": str(self.dice.randrange(10**6))}
            code = self._merge(item["metadata"]["name"], {"metadata": {"labels": labels}})
        return code

    def storm(self) -> int:
        """Change the pod that waits for longest, again and again: its release meets conflicts."""
        waiting = [each for each in self._existing() if each["spec"].get("schedulingGates")]
        code = 404
        for number in range(STORM if waiting else 0):
            name = min(waiting, key=lambda each: each["metadata"]["creationTimestamp"])["metadata"]["name"]
            code = self._merge(name, {"metadata": {"annotations": {"storm": str(number)}}})
        return code

    def _sample(self, items: list[JSON]) -> list[JSON]:
        return self.dice.sample(items, min(len(items), 8))

    def end(self) -> int:
        """Say that a pod has failed, so that a gang lacks a member."""
        items = self._existing()
        name = self.dice.choice(items)["metadata"]["name"] if items else "none-such"
        return self._merge(name, {"status": {"phase": self.dice.choice(["Failed", "Succeeded"])}}, "/status")

    def delete(self) -> int:
        code = 404
        for item in self._sample(self._existing()):
            path = f"{self._pods}/{item['metadata']['name']}"
            code, _ = self.client("DELETE", path, {"gracePeriodSeconds": 0})
        return code

    def _claim(self, name: str, *expressions: str) -> int:
        request = exactly(HAMI, memory=f"{self.dice.choice([100, 2000, 9000])}Mi", count=self.dice.choice([1, 2]))
        if expressions:
            request["selectors"] = [{"cel": {"expression": each}} for each in expressions]
        spec = {"devices": {"requests": [{"name": "r0", "exactly": request}]}}
        made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
        return self.client("POST", f"{self._api}/resourceclaims", made)[0]

    def _claim_name(self) -> str:
        return f"claim-{self.dice.randrange(CLAIM_NAMES)}"

    def create_claim(self) -> int:
        return self._claim(self._claim_name())

    def select_slowly(self) -> int:
        """With as many expressions as a request may have, each of which takes long and is like no other."""
        numbers = (self.dice.randrange(10**6) for _ in range(MOST_EXPRESSIONS))
        return self._claim(self._claim_name(), *(f"{SLOW} && {number} >= 0" for number in numbers))

    def ask_in_both_ways(self) -> int:
        """A pod of one claim by name that asks for a card by limits too."""
        made = pod(self._space, next(self._names), gpu=1, gpumem=100)
        made["spec"]["resourceClaims"] = [{"name": "claim", "resourceClaimName": self._claim_name()}]
        made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "claim"}]
        return self.client("POST", f"/api/v1/namespaces/{self._space}/pods", made)[0]

    def delete_claim(self) -> int:
        return self.client("DELETE", f"{self._api}/resourceclaims/{self._claim_name()}")[0]
