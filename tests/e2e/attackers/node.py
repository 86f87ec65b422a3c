"""A node that lies, with its own kubelet's credentials and what NodeRestriction leaves to them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

from builders import card
from dra.objects import resource_slice, share

from hack.devcluster.plane import ControlPlane

from .actions import Actor, Weighted
from .client import JSON, Client

REGISTER, SCORES, HANDSHAKE = "hami.io/node-nvidia-register", "hami.io/node-nvidia-score", "hami.io/node-handshake"
OTHER_REGISTERS = ("hami.io/node-register-Ascend910B3", "hami.io/node-dcu-register", "volcano.sh/node-vgpu-register")
LOCK = "hami.io/mutex.lock"
MERGE = "application/merge-patch+json"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
DEEP = "[" * 1015 + "]" * 1015
LONG = "x" * 200_000


class LyingNode(Actor):
    """A node called `name`. `others` are cards of honest nodes; `untaint` does what the cluster's administrators do
    for a node that joined: NodeRestriction lets no node take its own taints away. `pool` is another node's pool of
    devices.
    """

    def __init__(
        self,
        plane: ControlPlane,
        dice: random.Random,
        name: str,
        others: Sequence[str],
        untaint: Callable[[str], object],
        pool: str,
    ) -> None:
        super().__init__(dice, pause=0.2)
        self.name = name
        self._client = Client(plane, pair=plane.authority.client(name, f"system:node:{name}", "system:nodes"))
        self._others = others
        self._untaint = untaint
        self._pool = pool
        self._path = f"/api/v1/nodes/{name}"

    def actions(self) -> Weighted:
        return [
            (20, self.register_cards),
            (15, self.register_lies),
            (15, self.write_scores),
            (10, self.write_lock),
            (10, self.write_handshake),
            (10, self.report),
            (8, self.end_pod),
            (8, self.write_other_nodes),
            (10, self.publish_devices),
            (5, self.withdraw_devices),
        ]

    def join(self) -> int:
        """Register the Node, as a kubelet does when it starts."""
        code, _ = self._client("POST", "/api/v1/nodes", {"kind": "Node", "metadata": {"name": self.name}})
        self.report()
        self.register_cards()
        self._untaint(self.name)
        return code

    def _annotate(self, notes: JSON) -> int:
        return self._client("PATCH", self._path, {"metadata": {"annotations": notes}}, MERGE)[0]

    def _cards(self, count: int) -> list[JSON]:
        models = ["NVIDIA A10", "NVIDIA H100", "NVIDIA T4"]
        return [
            {"index": index, **card(f"{self.name}-{index}", self.dice.choice([1000, 16384, 81920]))}
            | {"type": self.dice.choice(models), "count": self.dice.choice([1, 10])}
            for index in range(count)
        ]

    def register_cards(self) -> int:
        """Cards that can be used, other ones each time."""
        return self._annotate({REGISTER: json.dumps(self._cards(self.dice.choice([1, 2, 8, 48])))})

    def register_lies(self) -> int:
        cards = self._cards(2)
        false: list[JSON] = [
            {"devmem": -1},
            {"devmem": 2**31 - 1, "count": 2**31 - 1, "devcore": 2**31 - 1},
            {"devmem": 10**30},
            {"devmem": "much"},
            {"count": 0},
            {"id": cards[0]["id"]},
            {"id": self.dice.choice(self._others)},
            {"id": ""},
            {"type": ""},
            {"numa": -(2**31)},
            {"mode": "mig"},
        ]
        cards[1] |= self.dice.choice(false)
        text = json.dumps(cards)
        lies = ["", "null", "{", "[]", f'[{{"id":{DEEP}}}]', LONG, f'[{{"id":"{LONG}"}}]', "a,b,c:", text, text, text]
        key = self.dice.choice([REGISTER, REGISTER, REGISTER, *OTHER_REGISTERS])
        return self._annotate({key: self.dice.choice(lies)})

    def write_scores(self) -> int:
        """Pair scores, of many cards and at random, so that the best set is hard to find."""
        count = self.dice.choice([2, 24, 48])
        uuids = [f"{self.name}-{index}" for index in range(count)]
        scores = [
            {"uuid": uuid, "score": {peer: self.dice.randrange(200) for peer in uuids if peer != uuid}}
            for uuid in uuids
        ]
        many = [{"index": index, **card(uuid, 16384)} for index, uuid in enumerate(uuids)]
        lies = ["[", "{}", f'[{{"uuid":"a","score":{{"b":{DEEP}}}}}]', '[{"uuid":"a","score":{"a":1e400}}]']
        text = self.dice.choice([json.dumps(scores)] * 3 + lies)
        return self._annotate({REGISTER: json.dumps(many), SCORES: text})

    def write_lock(self) -> int:
        values = [
            "x",
            "9999-12-31T23:59:59Z,a,b",
            "0001-01-01T00:00:00Z",
            LONG,
            "",
            "2026-01-01T00:00:00Z,kube-system,x",
        ]
        return self._annotate({LOCK: self.dice.choice([None, *values])})

    def write_handshake(self) -> int:
        values = ["Requesting_9999-12-31 23:59:59", "Requesting_x", "Deleted_2026.01.01 00:00:00", "Reported", LONG]
        return self._annotate({HANDSHAKE: self.dice.choice([None, None, *values])})

    def report(self) -> int:
        """The node's status: ready, with room for anything, or with amounts that mean nothing."""
        amounts = {"pods": "500", "cpu": "64", "memory": "256Gi", "nvidia.com/gpu": "480"}
        if self.dice.random() < 0.2:
            amounts["nvidia.com/gpu"] = self.dice.choice(["0", "9223372036854775807", "1"])
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
        return self._client("PATCH", f"{self._path}/status", status, MERGE)[0]

    def end_pod(self) -> int:
        """Say that a pod which was bound here has failed."""
        _, found = self._client("GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}")
        here = found.get("items") or []
        if not here:
            return 404
        meta = self.dice.choice(here)["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        return self._client("PATCH", path, {"status": {"phase": "Failed"}}, MERGE)[0]

    def write_other_nodes(self) -> int:
        """What NodeRestriction refuses: another node's annotations, and its own taints."""
        if self.dice.random() < 0.5:
            path = f"/api/v1/nodes/{self._others[0].rpartition('-')[0]}"
            return self._client("PATCH", path, {"metadata": {"annotations": {REGISTER: "[]"}}}, MERGE)[0]
        taint = {"key": "example.com/mine", "effect": "NoExecute"}
        return self._client("PATCH", self._path, {"spec": {"taints": [taint]}}, MERGE)[0]

    def publish_devices(self) -> int:
        """A slice of its own pool or of another node's, new or in the place of one of before."""
        pool = self.dice.choice([self.name, self._pool])
        names = [f"d{number}" for number in range(self.dice.choice([1, 2, 128]))] + ["a0", "a1"]
        devices = [share(each, self.dice.choice(["4Mi", "80Gi"])) for each in names[-128:]]
        generation = self.dice.choice([1, 1, 2, 10**9])
        made = resource_slice(self.name, *devices, generation=generation, name=self._slice())
        made["spec"]["pool"] |= {"name": pool, "resourceSliceCount": self.dice.choice([1, 1, 2])}
        code, _ = self._client("POST", SLICES, {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **made})
        if code == 409:
            patch = {"spec": {"devices": devices}}
            code, _ = self._client("PATCH", f"{SLICES}/{made['metadata']['name']}", patch, MERGE)
        return code

    def withdraw_devices(self) -> int:
        return self._client("DELETE", f"{SLICES}/{self._slice()}")[0]

    def _slice(self) -> str:
        """The name of one of its slices, which all sort before those of others."""
        return f"a-{self.name}-{self.dice.randrange(4)}"
