"""A tenant that tries whatever its rights allow, at random, against three replicas.

At every revision of etcd the pods that there are, priced by this file alone, are within the quota and within what it
shows as used.
"""

from __future__ import annotations

import itertools
import json
import random
import ssl
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import Deployment, Kubectl, deployed, eventually
from .hamischeduler import scheduling
from .kubelet import Kubelets
from .objects import namespace, pod, quota
from .revisions import Revisions
from .scheduling import scheduler_account
from .tenants import tenant
from .test_placement import node_with_cards
from .webhooks import slow_webhook

JSON = dict[str, Any]
CLIENTS, ACTIONS = 4, 150
SMALL, LARGE = 16384, 24576
HARD = {"limits.nvidia.com/gpu": 8, "limits.nvidia.com/gpumem": 50000}
ALLOCATED = "hami.io/vgpu-devices-allocated"
RESERVATION = "hami.io/quota-reservation"
NODES_CACHED = 'hami_webhook_cache_objects{kind="nodes"}'


@pytest.fixture(scope="module")
def program(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    names = ("hami-webhook-0", "hami-webhook-1", "hami-webhook-2")
    with deployed(plane, tmp_path_factory.mktemp("program"), *names) as deployment:
        scheduler_account(deployment.kubectl)
        yield deployment


class Client:
    """A tenant's connection to the API server."""

    def __init__(self, login: Path, plane: ControlPlane) -> None:
        self._server = plane.server
        self._token = json.loads(login.read_text())["users"][0]["user"]["token"]
        self._context = ssl.create_default_context(cafile=str(plane.authority.certificate))
        self.faults: list[str] = []
        """Answers that say that a review raised what nobody expected."""
        self.overruns = 0
        """Requests refused by the quota."""

    def __call__(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, JSON]:
        """The status code and the object."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._server + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._context) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            status = json.load(error)
            self.faults += [text for text in [status.get("message", "")] if "failed to judge" in text]
            self.overruns += "exceeded quota" in status.get("message", "")
            return error.code, status


class Attacker:
    """One of the tenant's clients: what it does follows from `dice` and from what it sees."""

    def __init__(self, client: Client, space: str, dice: random.Random, number: int, nodes: list[str]) -> None:
        self.client = client
        self.space = space
        self.dice = dice
        self.nodes = nodes
        self.names = (f"a{number}-{serial:03}" for serial in itertools.count())
        self.secrets = ["", "none-such"]
        self.answers: Counter[tuple[str, int]] = Counter()
        self.pods = f"/api/v1/namespaces/{space}/pods"

    def run(self, actions: int, enough: Callable[[], bool]) -> None:
        """At least so many actions, and more until it was enough of a fight, for five minutes at most."""
        doing: list[tuple[int, Callable[[], int]]] = [
            (32, self.create),
            (10, self.recreate),
            (10, self.annotate),
            (8, self.open_gate),
            (6, self.bind),
            (8, self.forge_status),
            (4, self.resize),
            (3, self.add_ephemeral_container),
            (14, self.delete),
            (5, self.read),
        ]
        deadline = time.monotonic() + 300
        while sum(self.answers.values()) < actions or not (enough() or time.monotonic() > deadline):
            act = self.dice.choices([each for _, each in doing], [weight for weight, _ in doing])[0]
            code = act()
            self.answers[act.__name__, code] += 1

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
        found: list[JSON] = self.client("GET", self.pods)[1]["items"]
        return found

    def victim(self) -> str:
        """A pod that exists, one that runs if there is one, or a name of none."""
        found = self.existing()
        running = [item for item in found if "nodeName" in item["spec"]]
        choice = self.dice.choice(running or found) if found else {"metadata": {"name": "none-such"}}
        name: str = choice["metadata"]["name"]
        return name

    def manifest(self, name: str) -> JSON:
        sorts: list[dict[str, int]] = [
            {"gpu": 1, "gpumem": 2000},
            {"gpu": 2, "gpumem": 1500},
            {"gpu": 1, "gpumem": 9000},
            {"gpu": 1, "gpumem_percentage": 50},
            {"gpu": 2, "gpumem_percentage": 30},
        ]
        made = pod(self.space, name, **self.dice.choice(sorts))
        made["metadata"]["annotations"] = {}
        if self.dice.random() < 0.5:
            self.read()
            made["metadata"]["annotations"][RESERVATION] = self.dice.choice(self.secrets[-8:])
        if self.dice.random() < 0.1:
            made["metadata"]["annotations"] |= self.forged()
        if self.dice.random() < 0.2:
            made["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
        if self.dice.random() < 0.15:
            made["spec"]["schedulerName"] = self.dice.choice(["default-scheduler", "volcano", "my-own"])
        if self.dice.random() < 0.05:
            made["spec"]["nodeName"] = self.dice.choice(self.nodes)
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
                {"nvidia.com/use-gpuuuid": f"{node}-0"},
            ]
        )

    def create(self) -> int:
        dry = "?dryRun=All" if self.dice.random() < 0.1 else ""
        code, answer = self.client("POST", self.pods + dry, self.manifest(next(self.names)))
        self.secrets += filter(None, [(answer["metadata"].get("annotations") or {}).get(RESERVATION)])
        return code

    def recreate(self) -> int:
        """The same name again, right after it went."""
        name = self.victim()
        self.client("DELETE", f"{self.pods}/{name}", {"gracePeriodSeconds": 0})
        return self.client("POST", self.pods, self.manifest(name))[0]

    def annotate(self) -> int:
        notes: dict[str, str | None] = {**self.forged()}
        if self.dice.random() < 0.5:
            notes = {RESERVATION: self.dice.choice([None, *self.secrets])}
        elif self.dice.random() < 0.3:
            notes = dict.fromkeys(notes)
        return self.merge("", {"metadata": {"annotations": notes}})

    def merge(self, subresource: str, patch: JSON) -> int:
        path = f"{self.pods}/{self.victim()}{subresource}"
        return self.client("PATCH", path, patch, "application/merge-patch+json")[0]

    def open_gate(self) -> int:
        return self.merge("", {"spec": {"schedulingGates": None}})

    def bind(self) -> int:
        name = self.victim()
        meta = {"name": name, "annotations": self.forged() if self.dice.random() < 0.7 else {}}
        target = {"apiVersion": "v1", "kind": "Node", "name": self.dice.choice(self.nodes)}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        place = self.dice.choice([f"{self.pods}/{name}/binding", f"/api/v1/namespaces/{self.space}/bindings"])
        return self.client("POST", place, binding)[0]

    def forge_status(self) -> int:
        return self.merge("/status", {"metadata": {"annotations": self.forged()}, "status": {"message": "x"}})

    def resize(self) -> int:
        amounts = {"nvidia.com/gpumem": "1", "cpu": "100m"}
        resources = {"limits": amounts, "requests": amounts}
        path = f"{self.pods}/{self.victim()}/resize"
        patch = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
        return self.client("PATCH", path, patch, "application/strategic-merge-patch+json")[0]

    def add_ephemeral_container(self) -> int:
        name = f"debug-{self.dice.randrange(10**6)}"
        container = {"name": name, "image": "registry.invalid/none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        path = f"{self.pods}/{self.victim()}/ephemeralcontainers"
        patch = {"spec": {"ephemeralContainers": [container]}}
        return self.client("PATCH", path, patch, "application/strategic-merge-patch+json")[0]

    def delete(self) -> int:
        options = {"gracePeriodSeconds": 0} if self.dice.random() < 0.5 else {}
        return self.client("DELETE", f"{self.pods}/{self.victim()}", options)[0]


def cost(item: JSON, now: JSON) -> dict[str, int]:
    """What a pod holds, or will hold at least: slots and MiB. `now` is the pod as it is, `item` as it was bound."""
    if now["status"].get("phase") in ("Succeeded", "Failed"):
        return {"limits.nvidia.com/gpu": 0, "limits.nvidia.com/gpumem": 0}
    limits = {key.removeprefix("nvidia.com/"): int(text) for key, text in asked(item).items()}
    slots = limits["gpu"]
    memory = slots * limits["gpumem"] if "gpumem" in limits else slots * (SMALL * limits["gpumem-percentage"] // 100)
    notes = item["metadata"].get("annotations") or {}
    if item["spec"].get("nodeName") and notes.get(ALLOCATED):
        cards = [part.split(",") for part in notes[ALLOCATED].replace(";", "").split(":") if part]
        slots, memory = len(cards), sum(int(card[2]) for card in cards)
    return {"limits.nvidia.com/gpu": slots, "limits.nvidia.com/gpumem": memory}


def asked(item: JSON) -> dict[str, str]:
    limits = item["spec"]["containers"][0]["resources"]["limits"]
    units = {"k": "000"}
    return {
        key: text[:-1] + units[text[-1]] if text[-1] in units else text
        for key, text in limits.items()
        if key in ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage")
    }


def used(item: JSON, key: str) -> int:
    text = (item.get("status", {}).get("used") or {}).get(key, "0")
    return int(text[:-1]) * 1000 if text.endswith("k") else int(text)


def report(pods: list[JSON], quotas: list[JSON]) -> str:
    """The objects without what never matters, to find out from what went wrong."""
    objects = [item | {"metadata": item["metadata"] | {"managedFields": None}} for item in (*quotas, *pods)]
    return "\n".join(json.dumps(item, sort_keys=True) for item in objects)


def pods_created(attackers: list[Attacker], code: int) -> int:
    return sum(attacker.answers["create", code] for attacker in attackers)


def grant_subresources(kubectl: Kubectl, space: str) -> None:
    """What an operator may give a tenant's own controllers."""
    rules = [
        {"apiGroups": [""], "resources": ["pods/binding", "bindings"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods/status", "pods/resize"], "verbs": ["patch", "update"]},
        {"apiGroups": [""], "resources": ["pods/ephemeralcontainers"], "verbs": ["patch", "update"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    kubectl.apply(
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "Role",
            "metadata": {"name": "subresources", "namespace": space},
            "rules": rules,
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "subresources", "namespace": space},
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "subresources"},
            "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": space}],
        },
    )


@pytest.mark.parametrize("seed", [20261122])
def test_600_random_actions_never_get_more_than_the_quota(
    program: Deployment, plane: ControlPlane, tmp_path: Path, seed: int
) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    cached = {name: program.metric(name, NODES_CACHED) for name in program.replicas}
    nodes = [
        node_with_cards(kubectl, space, "small", 2, SMALL),
        node_with_cards(kubectl, space, "large", 2, LARGE),
    ]
    # where no card is known yet, a percentage costs one unit
    eventually(
        lambda: {n: program.metric(n, NODES_CACHED) - before for n, before in cached.items()},
        dict.fromkeys(cached, 2.0),
    )
    kubectl.apply(quota(space, **HARD))
    login = tenant(kubectl, plane, tmp_path, space).kubeconfig
    grant_subresources(kubectl, space)
    attackers = [
        Attacker(Client(login, plane), space, random.Random(f"{seed}/{number}"), number, nodes)
        for number in range(CLIENTS)
    ]
    kubelets = Kubelets(program.login("hami-device-plugin"))

    def was_a_fight() -> bool:
        """Pods were made, refused, refused by the quota, and placed; how soon depends on the machine."""
        made, refused = pods_created(attackers, 201), pods_created(attackers, 403)
        overruns = sum(attacker.client.overruns for attacker in attackers)
        return min(made, refused, overruns) > 20 and len(kubelets.allocated) > 2

    try:
        with (
            scheduling(plane, tmp_path, program.login("hami-scheduler"), "cooperative"),
            slow_webhook(program, space, lambda name: time.sleep(random.Random(name).random() * 0.2)),
            Revisions(plane, space) as revisions,
        ):
            with ThreadPoolExecutor(CLIENTS) as clients:
                list(clients.map(lambda attacker: attacker.run(ACTIONS, was_a_fight), attackers))
            kubectl("delete", "pods", "-n", space, "--all", "--grace-period=0", "--force")
            zero = {key.removeprefix("limits.nvidia.com/"): "0" for key in HARD}
            eventually(lambda: (kubectl.used(space), kubectl.ledger(space)), (zero, {}), seconds=120)
            last = int(kubectl.get("quota", "gpu-quota", "-n", space)["metadata"]["resourceVersion"])
            eventually(lambda: revisions.newest("resourcequotas") >= last)
    finally:
        kubelets.close()
        kubectl("delete", "nodes", *nodes)
    seen, most, bound = 0, Counter[str](), dict[str, JSON]()
    for revision, pods, quotas in revisions.replay():
        seen += 1
        # an allocation is what it was when the pod was bound, whatever is written on the pod later
        bound |= {item["metadata"]["uid"]: item for item in pods if "nodeName" in item["spec"]} | bound
        for key, hard in HARD.items():
            held = sum(cost(bound.get(item["metadata"]["uid"], item), item)[key] for item in pods)
            most[key] = max(most[key], held)
            if held > hard or any(held > used(item, key) for item in quotas):
                pytest.fail(f"revision {revision}: pods hold {held} of {key}\n{report(pods, quotas)}")
    assert [fault for fault in kubelets.faults if fault.startswith("card ")] == []
    assert [fault for attacker in attackers for fault in attacker.client.faults] == []
    assert was_a_fight()
    assert most["limits.nvidia.com/gpu"] > 2
    assert seen > 100
