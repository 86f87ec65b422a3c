"""Quotas above namespaces, on the real API server: what kubectl says of them, and that they hold."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from hack.devcluster.plane import ControlPlane

from .api_client import ApiClient, api_client
from .deployment import ROOT, Deployment, Kubectl, eventually
from .objects import GPU, JSON, MEM, accelerator_quota, namespace, pod, quota
from .revisions import Revisions
from .test_bursts import create_all

DEFINITION = ROOT / "manifests" / "base" / "acceleratorquotas.yaml"
KIND = "acceleratorquotas.hami.io"
REPLICAS = [f"hami-webhook-{number}" for number in range(3)]
NAMESPACES, PODS, CLIENTS = 50, 300, 50
LIMIT, HALF, OWN = 200, 90, 3
"""The cards of all namespaces together, of every second one of them, and of each that has a quota of its own."""
EVERY = 10
"""The first of so many namespaces has a quota of its own."""


@pytest.fixture
def program(three_replicas: Deployment) -> Deployment:
    """All replicas; those that the test before this one killed are started again."""
    three_replicas.start_missing(*REPLICAS)
    return three_replicas


@pytest.fixture(scope="module")
def client(three_replicas: Deployment) -> ApiClient:
    """For the many objects that the API server checks by itself: each start of kubectl would take longer."""
    return api_client(three_replicas.kubectl.kubeconfig)


def define(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(DEFINITION))
    kubectl("wait", f"crd/{KIND}", "--for=condition=Established", "--timeout=120s")


def labelled(**labels: str) -> JSON:
    return {"matchLabels": labels}


def of_team(name: str, team: str, **spec: Any) -> JSON:
    return accelerator_quota(name, labelled(team=team), **spec)


def status(kubectl: Kubectl, name: str) -> JSON:
    found: JSON = kubectl.get("aq", name).get("status") or {}
    return found


AMOUNT = 'must be a whole amount such as 4, "20000" or 20k; spec.hard alone may have percents'
WHOLE = 'each must be a whole amount such as 4, "20000" or 20k, or a percent of the healthy cards'
ONE_TYPE = "must be words of one card type, such as H100, without commas; write several types as several items"
SUBJECTS = "name the subjects: either user: true, or a label of pods"
KEYS = "keys must be limits. and the name of a vendor's resource, such as limits.nvidia.com/gpu or"
AT_MOST_HARD = "nominal is a part of hard, so it must be at most hard for each key"
HOURS = "each must be an amount times hours, such as 500h or 90m, and not negative"
PERIOD = "must be Month, Week, or a duration of 1s to 8784h, such as 720h"
REFUSED: list[tuple[JSON, str]] = [
    ({"hard": {GPU: "-1"}}, WHOLE),
    ({"hard": {GPU: -1}}, f"spec.hard.{GPU} in body should be greater than or equal to 0"),
    ({"hard": {MEM: "1500m"}}, WHOLE),
    ({"hard": {MEM: "9" * 33}}, "may not be more than 32 bytes"),
    ({"hard": {MEM: 1.5}}, "must be of type integer,string"),
    ({"hard": {"nvidia.com/gpu": 4}}, KEYS),
    ({"hard": {"requests.nvidia.com/gpu": 4}}, KEYS),
    ({"hard": {"limits.cpu": 4}}, KEYS),
    ({"hard": {}}, "spec.hard in body should have at least 1 properties"),
    ({"hard": None}, "spec.hard: Required value"),
    ({"namespaceSelector": None}, "spec.namespaceSelector: Required value"),
    (
        {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "In"}]}},
        "operators In and NotIn take values, Exists and DoesNotExist take none",
    ),
    (
        {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists", "values": ["a"]}]}},
        "operators In and NotIn take values, Exists and DoesNotExist take none",
    ),
    (
        {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Equals", "values": ["a"]}]}},
        'supported values: "In", "NotIn", "Exists", "DoesNotExist"',
    ),
    ({"deviceTypes": ["A100,H100"]}, ONE_TYPE),
    ({"deviceTypes": ["A100", " "]}, ONE_TYPE),
    ({"deviceTypes": ["A100", "A100"]}, "spec.deviceTypes[1]: Duplicate value"),
    ({"nodeSelector": {"pool,zone": "a"}}, "must be labels of nodes, such as pool: train"),
    ({"nodeSelector": {"pool": "train=1"}}, "must be labels of nodes, such as pool: train"),
    ({"enforcement": "off"}, 'supported values: "enforce", "observe"'),
    ({"borrow": 4}, 'unknown field "spec.borrow"'),
    ({"nominal": {GPU: 5}}, AT_MOST_HARD),
    ({"hard": {GPU: 4, MEM: "16k"}, "nominal": {GPU: 1, MEM: 16001}}, AT_MOST_HARD),
    ({"nominal": {MEM: 1}}, "nominal may only have keys of hard; limit the key in hard too, or remove it"),
    ({"nominal": {GPU: "a few"}}, AMOUNT),
    ({"nominal": {GPU: 4}, "reclaim": "always"}, 'supported values: "off", "dry-run", "on"'),
    ({"reclaim": "on"}, "reclaim has no effect without nominal or windows; set nominal to the team's own amounts"),
    ({"nominal": {GPU: 4}, "reclaimMinRuntime": "721h"}, "must be at most 720h"),
    ({"budget": {"amounts": {GPU: "-1h"}, "period": "Month"}}, HOURS),
    ({"budget": {"amounts": {GPU: "500"}, "period": "Month"}}, HOURS),
    ({"budget": {"amounts": {GPU: 500}, "period": "Month"}}, "must be of type string"),
    ({"budget": {"amounts": {MEM: "1h"}, "period": "Month"}}, "amounts of a budget may only have keys of hard"),
    ({"budget": {"amounts": {GPU: "1h"}}}, "spec.budget.period: Required value"),
    ({"budget": {"amounts": {GPU: "1h"}, "period": "Day"}}, PERIOD),
    ({"budget": {"amounts": {GPU: "1h"}, "period": "-1h"}}, PERIOD),
    ({"budget": {"amounts": {GPU: "1h"}, "period": "0s"}}, PERIOD),
    ({"budget": {"amounts": {GPU: "1h"}, "period": "99999h"}}, PERIOD),
    ({"budget": {"amounts": {GPU: "1h"}, "period": "Week", "timeZone": "Europe/Berlim"}}, "unknown time zone"),
    ({"budget": {"amounts": {GPU: "1h"}, "period": "Week", "timeZone": ""}}, "must be the name of a time zone"),
    ({"budget": {"amounts": {GPU: "1h"}, "period": "Week", "timeZone": "Local"}}, "must be the name of a time zone"),
    ({"budget": {"amounts": {GPU: "1h"}, "period": "Week", "then": "Queue"}}, "Queue has no effect, as the quota"),
    ({"budget": {"amounts": {GPU: "1h"}, "period": "Week", "then": "LowestPriority"}}, '"Refuse", "Queue"'),
    ({"per": {"hard": {GPU: 1}}}, SUBJECTS),
    (
        {"per": {"user": True, "label": "a", "hard": {GPU: 1}}},
        "name the subjects: either user: true, or a label of pods",
    ),
    ({"per": {"user": False, "hard": {GPU: 1}}}, SUBJECTS),
    ({"per": {"user": True}}, "spec.per.hard: Required value"),
    ({"per": {"user": True, "hard": {MEM: 1}}}, "per.hard, per.overrides and per.groups may only have keys of hard"),
    (
        {"per": {"user": True, "hard": {GPU: 1}, "overrides": [{"subject": "a", "hard": {MEM: 1}}]}},
        "per.hard, per.overrides and per.groups may only have keys of hard",
    ),
    ({"per": {"label": "a'b", "hard": {GPU: 1}}}, "spec.per.label in body should match"),
    (
        {"per": {"user": True, "hard": {GPU: 1}, "overrides": [{"subject": "a", "hard": {GPU: 1}}] * 2}},
        "spec.per.overrides[1]: Duplicate value",
    ),
    (
        {"per": {"user": True, "hard": {GPU: 1}, "groups": [{"group": "a", "hard": {MEM: 1}}]}},
        "per.hard, per.overrides and per.groups may only have keys of hard",
    ),
    (
        {"per": {"label": "a", "hard": {GPU: 1}, "groups": [{"group": "a", "hard": {GPU: 1}}]}},
        "groups have limits with user true only",
    ),
    ({"podSelector": {"matchLabels": {"a'b": "c"}}}, "must be labels of pods, such as team: vision"),
    ({"maxRuntime": "half a day"}, "spec.maxRuntime in body should match"),
    ({"maxRuntime": "-1h"}, "spec.maxRuntime in body should match"),
    ({"maxRuntime": "721h"}, 'spec.maxRuntime: Invalid value: "721h": must be 1s to 720h'),
    ({"defaultRuntime": "0s"}, 'spec.defaultRuntime: Invalid value: "0s": must be 1s to 720h'),
    ({"maxRuntime": "1h", "defaultRuntime": "61m"}, "defaultRuntime must be at most maxRuntime"),
    ({"maxRuntime": "1h", "longerRuntime": "later"}, 'supported values: "refuse", "cut"'),
    ({"idleAfter": "-1h"}, "spec.idleAfter in body should match"),
    ({"idleAfter": "0s"}, 'spec.idleAfter: Invalid value: "0s": must be 1s to 720h'),
    ({"idleAfter": "2h", "idle": "Kill"}, 'supported values: "Warn", "Evict"'),
    ({"idle": "Evict"}, "idle has no effect without idleAfter; set idleAfter too, or remove it"),
    ({"longerRuntime": "cut"}, "longerRuntime has no effect without maxRuntime; set maxRuntime too, or remove it"),
]
ACCEPTED: list[JSON] = [
    {},
    {"hard": {GPU: 0, MEM: "0"}},
    {"hard": {GPU: 4, MEM: "80000", "limits.nvidia.com/gpucores": "2k", "limits.huawei.com/Ascend910B-memory": "4Gi"}},
    {"namespaceSelector": labelled(team="a")},
    {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a", "b"]}]}},
    {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}},
    {"deviceTypes": ["A100", "NVIDIA H100 80GB"], "nodeSelector": {"pool": "train", "example.com/zone": ""}},
    {"enforcement": "observe"},
    {"per": {"user": True, "hard": {GPU: "4"}, "overrides": [{"subject": "böb 張", "hard": {GPU: 0}}]}},
    {"per": {"user": True, "hard": {GPU: "4"}, "groups": [{"group": "CN=böb,OU=x", "hard": {GPU: 0}}]}},
    {"per": {"label": "team.example.com/project", "hard": {GPU: 1}}, "podSelector": labelled(tier="batch")},
    {"podSelector": {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}},
    {"maxRuntime": "12h", "defaultRuntime": "720m", "longerRuntime": "cut"},
    {"defaultRuntime": "1h"},
    {"idleAfter": "90m"},
    {"idleAfter": "2h", "idle": "Evict"},
    {"hard": {GPU: 4, MEM: "16Ki"}, "nominal": {GPU: "4", MEM: "16k"}, "reclaim": "on", "reclaimMinRuntime": "90s"},
    {"budget": {"amounts": {GPU: "500h"}, "period": "Month", "timeZone": "America/Argentina/Buenos_Aires"}},
    {"budget": {"amounts": {GPU: "1h30m0.5s"}, "period": "720h", "then": "Queue"}, "enforcement": "queue"},
]


@pytest.mark.parametrize(("spec", "reason"), REFUSED, ids=[json.dumps(spec) for spec, _ in REFUSED])
def test_a_wrong_quota_is_refused_with_what_would_be_right(client: ApiClient, spec: JSON, reason: str) -> None:
    wrong = accelerator_quota("wrong", {}, hard={GPU: 4})
    wrong["spec"] = {key: value for key, value in (wrong["spec"] | spec).items() if value is not None}
    with pytest.raises(AssertionError, match=re.escape(reason)):
        client.create(wrong)


@pytest.mark.parametrize("spec", ACCEPTED, ids=map(json.dumps, ACCEPTED))
def test_a_right_quota_is_taken(client: ApiClient, spec: JSON) -> None:
    right = accelerator_quota("right", {"matchLabels": {"nobody": "has"}}, hard={GPU: 4})
    right["spec"] |= spec
    made = client.create(right, dry_run=True)
    default = {"enforcement": "enforce", "reclaim": "off", "reclaimMinRuntime": "10m"}
    written = right["spec"]
    if "budget" in written:
        written["budget"] = {"then": "Refuse", "timeZone": "UTC", **written["budget"]}
    assert made["spec"] == {**default, **written}


def test_kubectl_shows_what_is_used_and_by_whom(program: Deployment) -> None:
    kubectl, team = program.kubectl, uuid.uuid4().hex[:8]
    spaces = [labelled_namespace(kubectl, team) for _ in range(2)]
    kubectl.apply(of_team(team, team, hard={GPU: 4, MEM: "8000"}))
    for number, space in enumerate((*spaces, spaces[0])):
        kubectl.apply(pod(space, f"p{number}", gpu=1, gpumem=1000))
    refused = kubectl.refused(pod(spaces[1], "large", gpu=1, gpumem=6000))
    amounts = (
        f"requested: {MEM}=6000, used: {MEM}=3000, limited: {MEM}=8000"
        " (memory: 5.9Gi requested, 2.9Gi used, 7.8Gi limited)"
    )
    assert f"exceeded quota: AcceleratorQuota {team}, {amounts}" in refused
    uses = {spaces[0]: {GPU: "2", MEM: "2000"}, spaces[1]: {GPU: "1", MEM: "1000"}}
    eventually(lambda: {each["name"]: each["used"] for each in status(kubectl, team).get("namespaces", ())}, uses)
    assert {each["name"]: each["waiting"] for each in status(kubectl, team)["namespaces"]} == uses
    header, line = kubectl("get", "aq", team).splitlines()
    names = ("NAME", "ENFORCEMENT", "EXCEEDED", "GPU USED", "GPU HARD", "GPUMEM USED", "GPUMEM HARD")
    shown = [line[header.index(each) :].split()[0] for each in names]
    assert shown == [team, "enforce", "False", "3", "4", "3000", "8000"]
    described = " ".join(kubectl("describe", "aq", team).split())
    for words in (f"Used: {GPU}: 3 {MEM}: 3000", "Reason: WithinHard", f"Name: {spaces[0]}"):
        assert words in described
    kubectl("delete", "aq", team)
    kubectl("delete", "namespace", *spaces, "--wait=false")


def labelled_namespace(kubectl: Kubectl, team: str) -> str:
    space = namespace(kubectl)
    kubectl("label", "namespace", space, f"team={team}")
    return space


class Team:
    """Many namespaces under one quota, every second of them under another one too, and some with one of their own."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl, self.name = kubectl, f"team-{uuid.uuid4().hex[:8]}"
        self.spaces = [f"{self.name}-{number:02d}" for number in range(NAMESPACES)]
        self.half = set(self.spaces[::2])
        self.own = self.spaces[::EVERY]
        kubectl.apply(
            of_team(self.name, self.name, hard={GPU: LIMIT, MEM: 100 * LIMIT}),
            accelerator_quota(f"{self.name}-half", labelled(team=self.name, half="yes"), hard={GPU: HALF}),
            *(self._namespace(space) for space in self.spaces),
        )
        kubectl.apply(*(quota(space, gpu=OWN) for space in self.own))
        eventually(self._accounts, set(self.spaces))
        eventually(lambda: [status(kubectl, name).get("used", {}).get(GPU) for name in self.quotas], ["0", "0"])
        eventually(lambda: {kubectl.used(space).get("gpu") for space in self.own}, {"0"})

    @property
    def quotas(self) -> dict[str, tuple[int, set[str]]]:
        """The limit of each quota above namespaces, and which it selects."""
        return {self.name: (LIMIT, set(self.spaces)), f"{self.name}-half": (HALF, self.half)}

    def pods(self) -> list[JSON]:
        return [pod(self.spaces[number % NAMESPACES], f"p{number:03d}", gpu=1, gpumem=100) for number in range(PODS)]

    def existing(self) -> Counter[str]:
        """The pods of each namespace."""
        items = self.kubectl.get("pods", "-A")["items"]
        return Counter(
            item["metadata"]["namespace"] for item in items if item["metadata"]["namespace"] in set(self.spaces)
        )

    def missing(self) -> list[JSON]:
        there = {
            (item["metadata"]["namespace"], item["metadata"]["name"])
            for item in self.kubectl.get("pods", "-A")["items"]
        }
        return [item for item in self.pods() if (item["metadata"]["namespace"], item["metadata"]["name"]) not in there]

    def check_quiet(self) -> None:
        """Used is what exists, and nothing is remembered, within two minutes."""
        count = self.existing()
        for name, (_, selected) in self.quotas.items():
            held = sum(count[space] for space in selected)
            eventually(lambda: self._accounted(name), (str(held), {}))  # noqa: B023  called at once
            uses = {each["name"]: each["used"].get(GPU) for each in status(self.kubectl, name)["namespaces"]}
            assert uses == {space: str(count[space]) for space in selected if count[space]}
        for space in self.own:
            wanted: tuple[JSON, JSON] = {"gpu": str(count[space])}, {}
            eventually(lambda: (self.kubectl.used(space), self.kubectl.ledger(space)), wanted)  # noqa: B023

    def check_every_revision(self, revisions: Revisions) -> Counter[str]:
        """No revision of etcd had more pods than a quota of either kind allows; the most under each."""
        most = Counter[str]()
        for revision, objects in revisions.objects():
            count = Counter(item["metadata"]["namespace"] for item in objects["pods"])
            used = {
                item["metadata"]["name"]: int((item.get("status") or {}).get("used", {}).get(GPU, 0))
                for item in objects["acceleratorquotas"]
            }
            for name, (limit, selected) in self.quotas.items():
                held = sum(count[space] for space in selected)
                assert held <= min(limit, used.get(name, limit)), (revision, name, held, used)
                most[name] = max(most[name], held)
            assert all(count[space] <= OWN for space in self.own), (revision, count)
        return most

    def delete(self) -> None:
        self.kubectl("delete", "aq", *self.quotas)
        self.kubectl("delete", "namespace", *self.spaces, "--wait=false")

    def _namespace(self, name: str) -> JSON:
        labels = {"team": self.name} | ({"half": "yes"} if name in self.half else {})
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}

    def _accounts(self) -> set[str]:
        """The namespaces that are ready for pods."""
        items = self.kubectl.get("serviceaccounts", "-A", "--field-selector=metadata.name=default")["items"]
        return {item["metadata"]["namespace"] for item in items} & set(self.spaces)

    def _accounted(self, name: str) -> tuple[str | None, JSON]:
        found = status(self.kubectl, name)
        return found.get("used", {}).get(GPU), json.loads(found.get("ledger") or "{}")


@pytest.fixture
def team(program: Deployment) -> Iterator[Team]:
    made = Team(program.kubectl)
    yield made
    made.delete()


def written(revisions: Revisions) -> int:
    """How often somebody wrote the status or the ledger of a quota."""
    versions = revisions.versions("resourcequotas", "acceleratorquotas").values()
    return sum(shown(before) != shown(after) for found in versions for before, after in pairwise(found))


def shown(item: JSON) -> tuple[JSON, str]:
    return item.get("status") or {}, (item["metadata"].get("annotations") or {}).get("hami.io/quota-ledger", "")


def test_300_pods_of_50_namespaces_cost_few_writes(
    program: Deployment, plane: ControlPlane, team: Team, capsys: pytest.CaptureFixture[str]
) -> None:
    retried: list[str] = []

    def create(pods: list[JSON]) -> list[str]:
        """Why some weren't admitted, other than that a quota is used up."""
        refusals = asyncio.run(create_all(program.kubectl.kubeconfig, pods, clients=CLIENTS))
        others = [text for text in refusals if "exceeded quota" not in text]
        retried.extend(others)
        return others

    with Revisions(plane) as revisions:
        create(team.pods())
        # as controllers do: a charge that was taken out again, as the other quota refused it or it came too late, may
        # have kept somebody out
        eventually(lambda: create(team.missing()), [])
        team.check_quiet()
    assert [text for text in retried if not text.endswith("try again")] == []
    most = team.check_every_revision(revisions)
    assert most[team.name] == LIMIT
    writes = written(revisions)
    with capsys.disabled():
        print(
            f"\n{PODS} pods, {LIMIT} of them admitted, {len(retried)} tried again: {writes / PODS:.2f} writes for each"
        )
    assert writes < 0.3 * PODS


def test_it_holds_while_replicas_are_killed_and_others_write(
    program: Deployment, plane: ControlPlane, team: Team
) -> None:
    kubectl = program.kubectl
    eventually(lambda: program.leader() is not None)
    ending = threading.Event()

    def disturb() -> None:
        """Somebody writes to quotas of both kinds all the time, so that charges conflict."""
        number = 0
        while not ending.wait(0.05):
            number += 1
            kubectl("annotate", "--overwrite", "aq", team.name, f"touched={number}")
            kubectl("annotate", "--overwrite", "quota", "gpu-quota", "-n", team.own[0], f"touched={number}")

    async def kill() -> None:
        for leading in (False, True):
            await asyncio.sleep(0.5)
            leader = program.leader()
            name = next(name for name in program.replicas if (name == leader) == leading or leader is None)
            program.stop(name, signal.SIGKILL)

    with Revisions(plane) as revisions, ThreadPoolExecutor() as background:
        disturbing = background.submit(disturb)
        try:
            asyncio.run(create_all(kubectl.kubeconfig, team.pods(), kill, clients=8))
            # what a call that broke was charged is believed until its TTL has passed; then all can be had
            program.start_missing(*REPLICAS)
            eventually(lambda: program.leader() is not None)
            asyncio.run(create_all(kubectl.kubeconfig, team.missing(), clients=8))
        finally:
            ending.set()
        disturbing.result()
        team.check_quiet()
        refusals = asyncio.run(create_all(kubectl.kubeconfig, team.missing(), clients=8))
        team.check_quiet()
    assert [text for text in refusals if "exceeded quota" not in text] == []
    most = team.check_every_revision(revisions)
    assert most[team.name] == LIMIT


def test_namespaces_enter_and_leave(program: Deployment) -> None:
    kubectl, team = program.kubectl, uuid.uuid4().hex[:8]
    space, other = labelled_namespace(kubectl, team), namespace(kubectl)
    kubectl.apply(of_team(team, team, hard={GPU: 3}))
    kubectl.apply(pod(space, "p", gpu=1, gpumem=100), *(pod(other, f"p{n}", gpu=1, gpumem=100) for n in range(2)))

    def used() -> str | None:
        found: str | None = status(kubectl, team).get("used", {}).get(GPU)
        return found

    eventually(used, "1")
    kubectl("label", "namespace", other, f"team={team}")
    eventually(used, "3")
    assert f"used: {GPU}=3, limited: {GPU}=3" in kubectl.refused(pod(space, "q", gpu=1, gpumem=100))
    kubectl("label", "namespace", other, "team-")
    eventually(used, "1")
    kubectl.apply(pod(space, "q", gpu=1, gpumem=100))
    kubectl("delete", "aq", team)
    kubectl("delete", "namespace", space, other, "--wait=false")


def test_the_definition_goes_and_comes_back(program: Deployment) -> None:
    kubectl, team = program.kubectl, uuid.uuid4().hex[:8]
    space = labelled_namespace(kubectl, team)
    limited = of_team(team, team, hard={GPU: 1})
    kubectl.apply(limited)
    kubectl.apply(pod(space, "p0", gpu=1, gpumem=100))
    assert "exceeded" in kubectl.refused(pod(space, "p1", gpu=1, gpumem=100))
    lines = {name: len(complaints(program, name)) for name in program.replicas}
    kubectl("delete", "crd", KIND)

    def taken(name: str) -> bool:
        return kubectl.run("create", "-f", "-", stdin=json.dumps(pod(space, name, gpu=1, gpumem=100))).returncode == 0

    eventually(lambda: taken("p1"))
    for number in range(2, 20):  # more than one turn of the Service: every replica is asked
        kubectl.apply(pod(space, f"p{number}", gpu=1, gpumem=100))
    define(kubectl)
    kubectl.apply(limited)
    eventually(lambda: status(kubectl, team).get("used"), {GPU: "20"})

    def refused() -> bool:
        dry = json.dumps(pod(space, "more", gpu=1, gpumem=100))
        return kubectl.run("create", "--dry-run=server", "-f", "-", stdin=dry).returncode != 0

    eventually(lambda: [refused() for _ in range(9)], [True] * 9)
    assert {name: complaints(program, name)[count:] for name, count in lines.items()} == {name: [] for name in lines}
    kubectl("delete", "aq", team)
    kubectl("delete", "namespace", space, "--wait=false")


def complaints(program: Deployment, name: str) -> list[str]:
    """The warnings and errors of a replica, but for what the API server says as a definition comes back."""
    log = (program.folder / f"{name}.log").read_text(errors="replace").splitlines()
    found = [line for line in log if re.search(r" (WARNING|ERROR|CRITICAL) |^Traceback", line)]
    return [line for line in found if not line.endswith("storage is (re)initializing")]
