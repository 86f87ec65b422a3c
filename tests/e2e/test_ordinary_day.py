"""Users who do nothing wrong, for a while, on what `make deploy` installs: nothing is refused, stuck or alerted.

They share nodes and quotas, half of which let pods wait. Meanwhile an administrator drains nodes, edits quotas, and
rolls out a new version of the program. Afterwards no quota shows anything used, and no ledger or gate is left.

`HAMI_DAY_USERS=200` is the number of users, `HAMI_DAY_SECONDS=600` how long they begin something new, at least.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from hack.devcluster import boards, nodes
from hack.devcluster.card_nodes import READY
from hack.devcluster.device_plugin import rights
from hack.devcluster.plane import ControlPlane
from hack.devcluster.sandbox import missing

from .attackers.client import Client
from .deployment import ROOT, SYSTEM, Kubectl, eventually
from .installation import Cluster, check_rollout, installed
from .objects import GPU, JSON, accelerator_quota, namespace, quota
from .ordinary_users import MERGE, Day, User
from .prometheus import Prometheus, scraping
from .tenants import tenant

USERS = int(os.environ.get("HAMI_DAY_USERS", "8"))
SECONDS = float(os.environ.get("HAMI_DAY_SECONDS", "20"))
SEED = 20261128
USERS_OF_A_NODE = 20
"""Each has up to three pods, and a node 80 slots; one node more than they need may be drained."""
ENOUGH, FEW, TEAM, TOGETHER = 8, 3, 10, 10
"""Cards of the quota of a user who doesn't wait for any, and of one who does; users of a team, half of whom wait, and
the cards of the quota that these share.
"""
MINUTES = 120
"""Seconds from which on a day is long enough for CronJobs, which run once a minute."""
PAUSE = 10.0 if USERS > 50 else 1.0
"""Seconds between two pieces of work of a user: how much the machine can do isn't what is tested."""
DEPLOYMENTS = ("hami-webhook", "hami-webhook-controller", "hami-scheduler")
WORK = {"serve", "run_a_job", "run_a_gang", "drain", "edit_a_quota", "roll_out"}
"""What a day has at least once of each, so that one on a busy machine is longer."""


@contextlib.contextmanager
def card_nodes(plane: ControlPlane, kubectl: Kubectl, names: list[str]) -> Iterator[None]:
    """Nodes as `hack/dev-cluster add-node` adds them, until the block ends."""
    assert not missing(), missing()
    paths = dict(rights())
    for path, right in paths.items():
        kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(right))
    command = nodes.command(plane.folder, plane.server, plane.programs, boards.find("nvidia", None, None), names)
    with (
        (plane.folder / "card-nodes.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT) as process,
    ):
        try:
            ready = "nodes", "-l", f"{READY}=true"
            eventually(lambda: {each["metadata"]["name"] for each in kubectl.get(*ready)["items"]}, set(names))
            kubectl("taint", "nodes", *names, "cards:NoSchedule")  # the program's own pods stay where they are
            yield
        finally:
            kubectl("delete", "nodes", *names, "--ignore-not-found")
            process.terminate()
            for path, right in paths.items():
                kubectl("delete", "--raw", f"{path}/{right['metadata']['name']}")


@dataclass(frozen=True)
class Town:
    """Where the users live: a cluster with nodes of cards, and a namespace and a login of each user."""

    cluster: Cluster
    cards: list[str]
    logins: dict[str, Path]

    def client(self, login: Path | None = None) -> Client:
        """That of a user, or the administrator's."""
        folder = self.cluster.plane.folder
        return Client(self.cluster.plane, login, None if login else (folder / "admin.crt", folder / "admin.key"))


@pytest.fixture(scope="module")
def town(plane_with_node: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """All of it is there before the program is."""
    kubectl, folder = Kubectl(plane_with_node.kubeconfig), tmp_path_factory.mktemp("day")
    cards = [f"cards-{number}" for number in range(USERS // USERS_OF_A_NODE + 2)]
    spaces = [namespace(kubectl) for _ in range(USERS)]
    logins = {space: tenant(kubectl, plane_with_node, folder, space).kubeconfig for space in spaces}
    with card_nodes(plane_with_node, kubectl, cards):
        yield Town(Cluster(plane_with_node, kubectl, folder), cards, logins)


@pytest.fixture(scope="module")
def prometheus(town: Town) -> Iterator[Prometheus]:
    with installed(town.cluster, "default") as output:
        check_rollout(town.cluster, output)
        with scraping(town.cluster) as found:
            yield found


def limit(kubectl: Kubectl, spaces: list[str]) -> None:
    """Give each namespace a quota, and those of a team that wait one together.

    One half is refused beyond its quota, and has room for all that a user does; the other waits for room.
    """
    for number, space in enumerate(spaces):
        waits = number % 2
        own = quota(space, gpu=FEW if waits else ENOUGH)
        own["metadata"]["annotations"] = {"hami.io/quota-enforcement": "queue"} if waits else {}
        kubectl("label", "namespace", space, f"team={f'team-{number // TEAM}' if waits else 'none'}")
        kubectl.apply(own)
    for number in range((USERS + TEAM - 1) // TEAM):
        team = {"matchLabels": {"team": f"team-{number}"}}
        kubectl.apply(accelerator_quota(f"team-{number}", team, {GPU: TOGETHER}, enforcement="queue"))


class Administrator:
    """Drains nodes, edits quotas and restarts our Deployments in turn, until the day is over."""

    def __init__(self, day: Day, prometheus: Prometheus, client: Client, spaces: list[str], cards: list[str]) -> None:
        self._day = day
        self._prometheus = prometheus
        self._client = client
        self._spaces = spaces
        self._cards = cards
        self._dice = random.Random(f"{SEED}/administrator")

    def run(self) -> None:
        for number in itertools.count():
            self.drain(self._cards[number % len(self._cards)])
            self.edit_a_quota(self._dice.choice(self._spaces))
            self.roll_out(DEPLOYMENTS[number % len(DEPLOYMENTS)])
            if number >= len(DEPLOYMENTS) - 1 and self._day.over.wait(self._day.look):
                return

    def drain(self, node: str) -> None:
        """What `kubectl drain` does, and `kubectl uncordon` afterwards."""
        self._change(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        on_it = f"/api/v1/pods?fieldSelector=spec.nodeName={node}"
        end = time.monotonic() + self._day.patience
        while (pods := self._client("GET", on_it)[1]["items"]) and time.monotonic() < end:
            for meta in (each["metadata"] for each in pods):
                eviction = {"name": meta["name"], "namespace": meta["namespace"]}
                body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": eviction}
                self._client("POST", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/eviction", body)
            time.sleep(self._day.look)
        self._day.stuck += [f"{node} isn't drained: {len(pods)} pods"] if pods else []
        self._change(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})
        self._day.done["drain"] += 1

    def edit_a_quota(self, space: str) -> None:
        path = f"/api/v1/namespaces/{space}/resourcequotas/gpu-quota"
        before = self._client("GET", path)[1]["spec"]["hard"]
        for amount in (str(int(before[GPU]) + 1), before[GPU]):
            self._change(path, {"spec": {"hard": {GPU: amount}}})
        self._day.done["edit_a_quota"] += 1

    def roll_out(self, deployment: str) -> None:
        kubectl = self._prometheus.kubectl
        kubectl("rollout", "restart", f"deployment/{deployment}", "-n", SYSTEM)
        kubectl("rollout", "status", f"deployment/{deployment}", "-n", SYSTEM, "--timeout=180s")
        self._prometheus.discover()
        self._day.done["roll_out"] += 1

    def _change(self, path: str, patch: JSON) -> None:
        code, answer = self._client("PATCH", path, patch, MERGE)
        self._day.refused += [] if code == 200 else [f"{path}: {code} {answer.get('message')}"]


def refusals_in_events(kubectl: Kubectl, spaces: list[str]) -> list[str]:
    """What controllers of workloads were refused in these namespaces."""
    failed = kubectl.get("events", "-A", "--field-selector", "reason=FailedCreate")["items"]
    return [each["message"] for each in failed if _space(each) in spaces]


def left_of(kubectl: Kubectl, spaces: list[str]) -> list[str]:
    """Quotas that show something as used or remember a charge, and pods that are there."""
    items = [item for item in kubectl.get("quota", "-A")["items"] if item["metadata"]["namespace"] in spaces]
    items += kubectl.get("aq")["items"]
    found = [item["metadata"]["name"] for item in kubectl.get("pods", "-A")["items"] if _space(item) in spaces]
    for item in items:
        ledger = (item["metadata"].get("annotations") or {}).get("hami.io/quota-ledger", "{}")
        used = (item.get("status") or {}).get("used") or {}
        if json.loads(ledger) or used.get(GPU) != "0" or (item.get("status") or {}).get("ledger"):
            found.append(f"{_space(item)}/{item['metadata']['name']}: {used} {ledger}")
    return found


def _space(item: JSON) -> str:
    return str(item["metadata"].get("namespace", ""))


def test_nothing_is_refused_stuck_or_alerted_and_nothing_is_left(
    town: Town, prometheus: Prometheus, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl, spaces = prometheus.kubectl, list(town.logins)
    limit(kubectl, spaces)
    day = Day(look=max(0.3, USERS / 40), patience=300)
    admin = Administrator(day, prometheus, town.client(), spaces, town.cards)
    users = [
        User(day, town.client(login), space, random.Random(f"{SEED}/{number}"), PAUSE, cron=SECONDS > MINUTES)
        for number, (space, login) in enumerate(town.logins.items())
    ]
    since = time.time()
    with ThreadPoolExecutor(len(users) + 1) as threads:
        work = [threads.submit(admin.run), *(threads.submit(each.run) for each in users)]
        day.over.wait(SECONDS)
        try:
            eventually(lambda: WORK - day.done.keys(), set(), day.patience)
        finally:
            day.over.set()
        for each in work:
            each.result()
    firing = sorted(name for name, state in prometheus.alerts(since) if state == "firing")
    findings = [*day.refused, *refusals_in_events(kubectl, spaces), *day.stuck, *firing]
    with capsys.disabled():
        print(f"\n{USERS} users, {time.time() - since:.0f} s, {dict(day.done)}")
        print(f"  slowest, in seconds: { ({name: round(seconds, 1) for name, seconds in day.slowest.items()}) }")
        print("\n".join(f"  finding: {finding}" for finding in findings) or "  no findings")
    assert findings == []
    eventually(lambda: left_of(kubectl, spaces), [])
    for space in spaces:
        kubectl.delete_all("resourcequotas", namespace=space)
    kubectl.delete_all("acceleratorquotas")
