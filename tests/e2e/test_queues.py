"""Pods that wait for quota on a real API server: all run in the end, in their order, and hard holds at any revision."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hack.devcluster.plane import ControlPlane
from hami_webhook.cluster.api import Conflict, Kind, NotFound
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.kube.objects import format_time
from hami_webhook.quota.ledger import decode

from .deployment import SYSTEM, Deployment, Kubectl, deployed, eventually
from .objects import accelerator_quota, add_node, gpu_node, namespace, pod, quota
from .revisions import Revisions
from .scheduling import scheduler_account
from .tenants import tenant
from .test_accelerator_quotas import KIND, define
from .test_bursts import create_all

JSON = dict[str, Any]
REPLICAS = [f"hami-webhook-{number}" for number in range(3)]
FLOOD = int(os.environ.get("HAMI_QUEUE_FLOOD", "200"))
"""Pods of one team that wait, while another's come and go."""
TEAMS, PODS, OWN, SHARED, KILLS = 5, 100, 20, 70, 10
"""Teams, the pods of each, the cards that each may use, those that all may use together, and how often the leader is
killed."""
GATE, KEY = "hami.io/quota", "limits.nvidia.com/gpu"


@pytest.fixture(scope="module")
def program(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    define(Kubectl(plane.kubeconfig))
    with deployed(plane, tmp_path_factory.mktemp("program"), *REPLICAS) as deployment:
        scheduler_account(deployment.kubectl)
        add_node(deployment.kubectl, gpu_node("card-24g", 24576), gpu=10)
        yield deployment
        deployment.kubectl("delete", "node", "card-24g")
        deployment.kubectl("delete", "crd", KIND)


def queueing(space: str, order: str = "best-effort", **hard: Any) -> JSON:
    made = quota(space, **hard)
    made["metadata"]["annotations"] = {"hami.io/quota-enforcement": "queue", "hami.io/quota-queue-order": order}
    return made


def gated(kubectl: Kubectl, space: str) -> list[str]:
    """The names of the pods that have the gate."""
    pods = kubectl.get("pods", "-n", space)["items"]
    return [each["metadata"]["name"] for each in pods if {"name": GATE} in each["spec"].get("schedulingGates", [])]


def free(kubectl: Kubectl, space: str) -> list[str]:
    """The names of the pods that have no gate."""
    pods = kubectl.get("pods", "-n", space)["items"]
    return [each["metadata"]["name"] for each in pods if not each["spec"].get("schedulingGates")]


def reserved(kubectl: Kubectl, space: str, name: str) -> str:
    """The status of the pod's condition; empty while it has none."""
    conditions = kubectl.get("pod", name, "-n", space)["status"].get("conditions", [])
    return next((each["status"] for each in conditions if each["type"] == "hami.io/QuotaReserved"), "")


class Ending:
    """Ends pods that lost their gate, as a kubelet does when they are done, until the block ends.

    `is_due` says of a pod, among all of its namespace, whether it is done.
    """

    def __init__(
        self, login: Path, spaces: list[str], *, is_due: Callable[[list[JSON], JSON], bool] = lambda pods, pod: True
    ) -> None:
        self._login = login
        self._spaces = spaces
        self._is_due = is_due
        self.ended = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Ending:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()

    def has_ended(self, pods: int) -> bool:
        return self.ended >= pods

    async def _run(self) -> None:
        async with KubernetesCluster(await connect(str(self._login))) as cluster:
            while not self._stop.is_set():
                listings = await asyncio.gather(*(cluster.list(Kind.PODS, space) for space in self._spaces))
                due = [
                    each["metadata"]
                    for listing in listings
                    for each in listing.items
                    if not each["spec"].get("schedulingGates") and each.get("status", {}).get("phase") != "Succeeded"
                    if self._is_due(list(listing.items), each)
                ]
                for meta in due:
                    with suppress(Conflict, NotFound):
                        await cluster.patch_status(
                            Kind.PODS, meta["name"], {"status": {"phase": "Succeeded"}}, meta["namespace"]
                        )
                        self.ended += 1
                await asyncio.sleep(0.2)


def test_500_pods_of_five_teams_all_run_in_their_order_while_leaders_are_killed(
    program: Deployment, plane: ControlPlane
) -> None:
    kubectl = program.kubectl
    spaces = sorted(namespace(kubectl) for _ in range(TEAMS))
    for space in spaces:
        kubectl("label", "namespace", space, "queue=shared")
        kubectl.apply(queueing(space, gpu=OWN))
    kubectl.apply(
        accelerator_quota("queue", {"matchLabels": {"queue": "shared"}}, {"gpu": SHARED}, enforcement="queue")
    )
    with Revisions(plane) as revisions:
        pods = [pod(space, f"p{number:03}", gpu=1, gpumem=1) for number in range(PODS) for space in spaces]
        assert asyncio.run(create_all(kubectl.kubeconfig, pods)) == []
        eventually(lambda: sum(len(free(kubectl, space)) for space in spaces), SHARED)
        # in the quotas of the teams and in that of all: the leader knows of each of them
        eventually(lambda: queued(program), 2.0 * (TEAMS * PODS - SHARED))
        all_known = revision(kubectl)
        with Ending(program.login("hami-device-plugin"), spaces) as ending:
            for kill in range(1, KILLS + 1):
                share = kill * TEAMS * PODS // (KILLS + 2)
                eventually(partial(ending.has_ended, share))
                leader = program.leader()
                assert leader is not None
                program.stop(leader, signal.SIGKILL)
                kubectl("delete", "lease", "hami-scheduler-controller", "-n", SYSTEM)  # it would last for 15 s
                program.start(leader)
                eventually(lambda: program.leader() is not None)
            eventually(lambda: ending.ended, TEAMS * PODS, seconds=180)
        eventually(lambda: [kubectl.used(space) for space in spaces], [{"gpu": "0"}] * TEAMS)
    assert_held(revisions, {(space, "gpu-quota"): OWN for space in spaces} | {("", "queue"): SHARED})
    for space in spaces:
        assert_in_order(revisions, space, all_known)
    kubectl("delete", "acceleratorquota", "queue")


def assert_held(revisions: Revisions, limits: dict[tuple[str, str], int]) -> None:
    """No revision has more used than hard, nor pods that run without being in used."""
    seen = 0
    for _, objects in revisions.objects():
        quotas = {
            (each["metadata"].get("namespace", ""), each["metadata"]["name"]): (each.get("status") or {}).get("used")
            for each in [*objects["resourcequotas"], *objects["acceleratorquotas"]]
        }
        used = {key: int((quotas[key] or {}).get(KEY, 0)) for key in limits if key in quotas}
        running: dict[str, int] = {}
        for each in objects["pods"]:
            if not each["spec"].get("schedulingGates") and each["status"].get("phase") != "Succeeded":
                space = each["metadata"]["namespace"]
                running[space] = running.get(space, 0) + 1
        for (space, name), limit in limits.items():
            if (space, name) in used:
                seen = max(seen, used[space, name])
                live = running.get(space, 0) if space else sum(running.get(each, 0) for each, _ in limits)
                assert live <= used[space, name] <= limit, (space, name)
    assert seen == max(limits.values())


def revision(kubectl: Kubectl) -> int:
    """etcd's revision now."""
    listing = json.loads(kubectl("get", "--raw", "/api/v1/namespaces?limit=1"))
    return int(listing["metadata"]["resourceVersion"])


def queued(program: Deployment) -> float:
    """How many pods the leader says that wait, over all quotas."""
    leader = program.leader()
    return -1.0 if leader is None else program.metric(leader, "hami_webhook_quota_queued_pods")


def assert_in_order(revisions: Revisions, space: str, all_known: int) -> None:
    """Pods that cost the same were charged in the order of their age, then UID, once all were known.

    Or one was charged with another, or before it, and lost that again, as a second quota had no room for both.
    """
    turns: dict[str, tuple[str, str]] = {}
    charged: dict[str, int] = {}
    """By UID the revision in which the charge appeared that led to the release."""
    first: dict[str, int] = {}
    """That in which any charge appeared."""
    released: set[str] = set()
    before: set[str] = set()
    for at, kind, _, item in revisions.changes():
        meta = item["metadata"]
        if meta.get("namespace") != space:
            continue
        if kind == "pods":
            turns[meta["uid"]] = (meta["creationTimestamp"], meta["uid"])
            if not item["spec"].get("schedulingGates"):
                released.add(meta["uid"])
        elif kind == "resourcequotas":
            ledger = set(decode((meta.get("annotations") or {}).get("hami.io/quota-ledger")))
            first = dict.fromkeys(ledger, at) | first
            charged |= dict.fromkeys(ledger - before - released, at)
            before = ledger
    assert released == turns.keys() == charged.keys()
    waited = sorted((uid for uid in turns if charged[uid] > all_known), key=lambda uid: charged[uid])
    assert len(waited) > PODS // 2
    for earlier, later in pairwise(waited):
        assert charged[earlier] == charged[later] or turns[earlier] < turns[later] or first[later] <= first[earlier]


def test_a_tenant_neither_removes_the_gate_nor_skips_it(
    program: Deployment, plane: ControlPlane, tmp_path: Path
) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(queueing(space, gpu=1))
    user = tenant(kubectl, plane, tmp_path, space, "admin")
    user.apply(pod(space, "first", gpu=1, gpumem=1))
    eventually(lambda: free(kubectl, space), ["first"])
    user.apply(pod(space, "second", gpu=1, gpumem=1))
    assert gated(kubectl, space) == ["second"]
    eventually(lambda: reserved(kubectl, space, "second"), "False")
    for patch in ('{"spec": {"schedulingGates": null}}', '{"spec": {"schedulingGates": []}}'):
        done = user.run("patch", "pod", "second", "-n", space, "--type=merge", "-p", patch)
        assert f"scheduling gate {GATE} is removed by the controller only" in done.stderr
    assert "exceeded quota: gpu-quota" in user.refused(pod(space, "large", gpu=2, gpumem=1))
    skipping = pod(space, "skips", gpu=1, gpumem=1)
    skipping["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    assert f"this one has no scheduling gate {GATE}" in user.refused(skipping)
    # what others hold it for is waited for, and nobody else waits
    parked = pod(space, "parked", gpu=1, gpumem=1)
    parked["spec"]["schedulingGates"] = [{"name": "example.com/mine"}]
    user.apply(parked)
    user("delete", "pod", "first", "-n", space, "--grace-period=0", "--force")
    eventually(lambda: free(kubectl, space), ["second"])
    assert kubectl.used(space) == {"gpu": "1"}
    eventually(lambda: reserved(kubectl, space, "second"), "True")
    # an ordinary update of a pod that waits reaches nobody
    user("label", "pod", "parked", "-n", space, "a=b")
    user("delete", "pods", "--all", "-n", space, "--grace-period=0", "--force")
    eventually(lambda: kubectl.used(space), {"gpu": "0"})


def test_a_flood_of_one_team_keeps_no_other_waiting(program: Deployment) -> None:
    """The seconds are printed, and what the flood adds to them; with 10,000 pods that is to be 0.5 at most."""
    kubectl = program.kubectl
    flooding, other = namespace(kubectl), namespace(kubectl)
    kubectl.apply(queueing(flooding, gpu=1), queueing(other, gpu=100))
    eventually(lambda: kubectl.used(other), {"gpu": "0"})
    alone = released(kubectl, other, "alone")
    flood = [pod(flooding, f"p{number:05}", gpu=1, gpumem=1) for number in range(FLOOD)]
    assert asyncio.run(create_all(kubectl.kubeconfig, flood)) == []
    eventually(lambda: queued(program), FLOOD - 1.0)
    beside = released(kubectl, other, "beside")
    assert queued(program) == FLOOD - 1
    print(f"from creation to release: {alone:.3f} s alone, {beside:.3f} s beside {FLOOD} pods that wait")
    kubectl("delete", "namespace", flooding, "--wait=false")


def released(kubectl: Kubectl, space: str, name: str) -> float:
    """The median of seconds from a pod's creation to the end of its gate, of ten that come one after the other."""
    return statistics.median(each_released(kubectl, space, name))


def each_released(kubectl: Kubectl, space: str, name: str) -> list[float]:
    """The seconds of each of these pods."""

    async def each() -> list[float]:
        seconds = []
        async with KubernetesCluster(await connect(str(kubectl.kubeconfig))) as cluster:
            for number in range(10):
                made = await cluster.create(Kind.PODS, pod(space, f"{name}{number}", gpu=1, gpumem=1))
                began = time.monotonic()
                assert made["spec"]["schedulingGates"]
                async with asyncio.timeout(60):
                    while made["spec"].get("schedulingGates"):
                        made = await cluster.get(Kind.PODS, made["metadata"]["name"], space)
                seconds.append(time.monotonic() - began)
        return seconds

    return asyncio.run(each())


def test_quotas_that_do_not_queue_gate_nobody(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    made = quota(space, gpu=1)
    kubectl.apply(made)
    kubectl.apply(pod(space, "charged", gpu=1, gpumem=1))
    assert gated(kubectl, space) == []
    made["metadata"]["annotations"] = {"hami.io/quota-enforcement": "Queue", "hami.io/quota-queue-overtaking": "soon"}
    told = kubectl.run("apply", "-f", "-", stdin=json.dumps(made)).stderr
    assert "hami.io/quota-enforcement: Queue isn't known, so the quota is enforced" in told
    assert "hami.io/quota-queue-overtaking: soon can't be read, so it is 10m" in told
    assert "exceeded quota" in kubectl.refused(pod(space, "over", gpu=1, gpumem=1))


def test_a_replica_that_is_made_anew_does_not_lose_its_room_to_a_younger_one(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(queueing(space, gpu=2), stateful_set(space, 2))
    eventually(lambda: sorted(free(kubectl, space)), ["set-0", "set-1"])
    youngest = max(each["metadata"]["creationTimestamp"] for each in kubectl.get("pods", "-n", space)["items"])
    eventually(lambda: format_time(time.time()) > youngest)  # ages are whole seconds
    kubectl("scale", "statefulset", "set", "-n", space, "--replicas=3")
    eventually(lambda: gated(kubectl, space), ["set-2"])
    for number in (0, 0, 1):
        name = f"set-{number}"
        uid = kubectl.get("pod", name, "-n", space)["metadata"]["uid"]
        kubectl("delete", "pod", name, "-n", space, "--grace-period=0", "--force")

        def is_back(name: str = name, uid: str = uid) -> bool:
            pods = {each["metadata"]["name"]: each for each in kubectl.get("pods", "-n", space)["items"]}
            return name in free(kubectl, space) and pods[name]["metadata"]["uid"] != uid

        eventually(is_back)
        assert gated(kubectl, space) == ["set-2"]
        eventually(lambda: kubectl.used(space), {"gpu": "2"})
    kubectl("delete", "statefulset", "set", "-n", space)


def stateful_set(space: str, replicas: int) -> JSON:
    made = {"metadata": {"labels": {"app": "set"}}, "spec": pod(space, "p", gpu=1, gpumem=1)["spec"]}
    spec = {
        "replicas": replicas,
        "serviceName": "set",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": "set"}},
        "template": made,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "set", "namespace": space},
        "spec": spec,
    }


def of_different_shapes(space: str, pods: int, group: str = "") -> list[JSON]:
    """Pods of which no two request the same, and whose charges depend on the cards; of one group if it is named."""
    made = []
    for number in range(pods):
        shape = {"gpumem_percentage": 1 + number % 64, "gpucores": 1 + number // 64}
        each = pod(space, f"shape{number:03}", gpu=1, **shape)
        if group:
            each["metadata"]["labels"] = {"hami.io/pod-group": group, "hami.io/pod-group-size": str(pods)}
        made.append(each)
    return made


@pytest.mark.parametrize(
    ("own", "group", "pods", "told"),
    [
        ("enforce", "gang", 256, True),
        ("enforce", "", 253, True),
        ("observe", "gang", 256, True),
        ("", "gang", 256, False),  # what all namespaces share has room for one namespace's shapes
    ],
)
def test_pods_whose_charge_is_refused_for_another_reason_than_room_hold_up_nobody(
    program: Deployment, own: str, group: str, pods: int, told: bool
) -> None:
    """One team's pods all differ, more than the ledger of its own quota remembers, before another team's pods."""
    kubectl = program.kubectl
    attacker, other = namespace(kubectl), namespace(kubectl)
    for space in (attacker, other):
        kubectl("label", "namespace", space, f"shapes={attacker}")
    shared = accelerator_quota(
        attacker,
        {"matchLabels": {"shapes": attacker}},
        {"gpu": 1000, "mem": 100_000_000},
        enforcement="queue",
        queue={"order": "strict"},
    )
    kubectl.apply(shared)
    # a gang that the cards can't hold is refused, but where nodes may be added
    add_node(kubectl, {**gpu_node("added", 24576), "spec": {"providerID": "e2e://added"}}, gpu=10)
    if own:
        made = quota(attacker, gpu=1000, mem=100_000_000, cores=100_000)
        made["metadata"]["annotations"] = {"hami.io/quota-enforcement": own}
        kubectl.apply(made)
    eventually(lambda: "used" in kubectl.get("acceleratorquota", attacker).get("status", {}))
    assert asyncio.run(create_all(kubectl.kubeconfig, of_different_shapes(attacker, pods, group))) == []
    beside = released(kubectl, other, "beside")
    print(f"{beside:.3f} s from creation to release beside pods of {pods} shapes")
    assert beside < 10  # a pod that is held up waits for as long as the others are there
    if told:
        stuck = gated(kubectl, attacker)
        assert len(stuck) == (pods if group else 3)
        eventually(lambda: any("remembers no further one" in why(kubectl, attacker, name) for name in stuck))
    else:
        eventually(lambda: gated(kubectl, attacker), [])
    kubectl("delete", "acceleratorquota", attacker)
    kubectl("delete", "node", "added")
    kubectl("delete", "namespace", attacker, other, "--wait=false")


def why(kubectl: Kubectl, space: str, name: str) -> str:
    """What the pod's condition says; empty while it has none."""
    conditions = kubectl.get("pod", name, "-n", space)["status"].get("conditions", [])
    return next((each["message"] for each in conditions if each["type"] == "hami.io/QuotaReserved"), "")


def test_a_team_whose_own_quota_is_full_closes_no_strict_quota_to_others(program: Deployment) -> None:
    kubectl = program.kubectl
    full, other = namespace(kubectl), namespace(kubectl)
    for space in (full, other):
        kubectl("label", "namespace", space, f"strict={full}")
    kubectl.apply(queueing(full, gpu=1))
    shared = {"matchLabels": {"strict": full}}
    kubectl.apply(accelerator_quota(full, shared, {"gpu": 3}, enforcement="queue", queue={"order": "strict"}))
    eventually(lambda: "used" in kubectl.get("acceleratorquota", full).get("status", {}))
    kubectl.apply(pod(full, "runs", gpu=1, gpumem=1))
    eventually(lambda: free(kubectl, full), ["runs"])
    kubectl.apply(pod(full, "waits", gpu=1, gpumem=1))
    eventually(lambda: reserved(kubectl, full, "waits"), "False")
    kubectl.apply(pod(other, "a", gpu=1, gpumem=1))
    eventually(lambda: free(kubectl, other), ["a"])
    # an ordinary day: among those whose own quotas have room, nobody passes anybody
    kubectl.apply(pod(other, "large", gpu=2, gpumem=1))
    eventually(lambda: reserved(kubectl, other, "large"), "False")
    kubectl.apply(pod(other, "small", gpu=1, gpumem=1))
    eventually(lambda: reserved(kubectl, other, "small"), "False")
    assert gated(kubectl, other) == ["large", "small"]
    kubectl("delete", "acceleratorquota", full)
    kubectl("delete", "namespace", full, other, "--wait=false")


class Relabelling:
    """Labels pods again and again through some clients, until the block ends."""

    def __init__(self, login: Path, space: str, names: list[str], clients: int = 4) -> None:
        self._login = login
        self._space = space
        self._names = names
        self._clients = clients
        self.patches = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Relabelling:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        async with KubernetesCluster(await connect(str(self._login))) as cluster:

            async def client(number: int) -> None:
                while not self._stop.is_set():
                    for name in self._names[number :: self._clients]:
                        patch = {"metadata": {"labels": {"n": str(self.patches)}}}
                        with suppress(NotFound):
                            await cluster.patch(Kind.PODS, name, patch, self._space)
                            self.patches += 1
                        if self._stop.is_set():
                            return

            await asyncio.gather(*(client(number) for number in range(self._clients)))


RELABELLED = 300
"""Pods that wait and are labelled all the time."""


def test_pods_that_are_relabelled_all_the_time_keep_no_other_waiting(program: Deployment) -> None:
    kubectl = program.kubectl
    relabelling, other = namespace(kubectl), namespace(kubectl)
    kubectl.apply(queueing(relabelling, gpu=1), queueing(other, gpu=100))
    eventually(lambda: kubectl.used(other), {"gpu": "0"})
    waiting = [pod(relabelling, f"p{number:03}", gpu=1, gpumem=1) for number in range(RELABELLED)]
    assert asyncio.run(create_all(kubectl.kubeconfig, waiting)) == []
    eventually(lambda: queued(program), RELABELLED - 1.0)
    alone = each_released(kubectl, other, "alone")
    with Relabelling(kubectl.kubeconfig, relabelling, gated(kubectl, relabelling)) as storm:
        beside = each_released(kubectl, other, "beside")
    print(f"from creation to release: {max(alone):.3f} s at most, {max(beside):.3f} s beside {storm.patches} patches")
    # those that are released are relabelled, too: their gate goes all the same
    mine = [f"own{number}" for number in range(10)]
    with Relabelling(kubectl.kubeconfig, other, mine) as storm:
        own = each_released(kubectl, other, "own")
    print(f"{max(own):.3f} s at most for pods that are relabelled themselves")
    assert max(*beside, *own) < max(alone) + 1
    kubectl("delete", "namespace", relabelling, other, "--wait=false")


def test_pods_that_another_gate_hides_pass_none_that_waited_in_the_open(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(queueing(space, gpu=1))
    kubectl.apply(pod(space, "runs", gpu=1, gpumem=1))
    eventually(lambda: free(kubectl, space), ["runs"])
    hidden = [pod(space, f"hidden{number}", gpu=1, gpumem=1) for number in range(3)]
    for each in hidden:
        each["spec"]["schedulingGates"] = [{"name": "x.io/hold"}]
    kubectl.apply(*hidden)
    older = time.time()
    eventually(lambda: time.time() > older + 1)  # creation is known by the second
    kubectl.apply(pod(space, "open", gpu=1, gpumem=1))
    opening = time.time()
    eventually(lambda: time.time() > opening + 1)
    for number in range(3):
        gates = json.dumps({"spec": {"schedulingGates": [{"name": GATE}]}})
        kubectl("patch", "pod", f"hidden{number}", "-n", space, "--type=merge", "-p", gates)
    eventually(lambda: all(why(kubectl, space, f"hidden{number}") for number in range(3)))
    kubectl("delete", "pod", "runs", "-n", space, "--grace-period=0", "--force")
    eventually(lambda: free(kubectl, space), ["open"])
    kubectl("delete", "namespace", space, "--wait=false")


@pytest.mark.parametrize("enforcement", ["enforce", "queue"])
def test_a_rollout_that_can_not_end_says_why_and_ends_with_what_is_said(program: Deployment, enforcement: str) -> None:
    """As by default with one replica: at most one more, and none less."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    made = queueing(space, gpu=1)
    made["metadata"]["annotations"]["hami.io/quota-enforcement"] = enforcement
    kubectl.apply(made, deployment_of(space))
    eventually(lambda: len(free(kubectl, space)), 1)
    (first,) = free(kubectl, space)
    template = {"metadata": {"annotations": {"version": "2"}}}
    kubectl(
        "patch", "deployment", "web", "-n", space, "--type=merge", "-p", json.dumps({"spec": {"template": template}})
    )
    said = "pods of another version of Deployment web hold quota, for ever if its maxUnavailable is 0"
    eventually(lambda: any(said in each["message"] for each in kubectl.get("events", "-n", space)["items"]))
    assert free(kubectl, space) == [first]
    strategy = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    kubectl(
        "patch", "deployment", "web", "-n", space, "--type=merge", "-p", json.dumps({"spec": {"strategy": strategy}})
    )
    eventually(lambda: len(free(kubectl, space)) == 1 and free(kubectl, space) != [first])
    kubectl("delete", "deployment", "web", "-n", space)


def deployment_of(space: str) -> JSON:
    made = {"metadata": {"labels": {"app": "web"}}, "spec": pod(space, "p", gpu=1, gpumem=1)["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": made}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": space},
        "spec": spec,
    }


TWENTY, CARDS = 20, 5
"""Jobs, or pods of one, and the cards that their quota has."""


def jobs(space: str) -> list[JSON]:
    return [job(space, f"job-{number}") for number in range(TWENTY)]


def indexed_job(space: str) -> list[JSON]:
    return [job(space, "indexed", parallelism=TWENTY, completions=TWENTY, completionMode="Indexed")]


def cron_job(space: str) -> list[JSON]:
    template = job(space, "cron", parallelism=TWENTY, completions=TWENTY)["spec"]
    spec = {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": template}}
    return [
        {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "cron", "namespace": space}, "spec": spec}
    ]


def job(space: str, name: str, **spec: Any) -> JSON:
    """A Job that a single failed pod would end."""
    made = {"spec": {**pod(space, "p", gpu=1, gpumem=1)["spec"], "restartPolicy": "Never"}}
    meta = {"name": name, "namespace": space}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {"backoffLimit": 0, "template": made, **spec},
    }


@pytest.mark.parametrize("enforcement", ["enforce", "queue"])
def test_twenty_jobs_on_five_cards_all_end_and_none_fails(program: Deployment, enforcement: str) -> None:
    kubectl = program.kubectl
    kinds: list[Callable[[str], list[JSON]]] = [jobs, indexed_job, cron_job]
    spaces = {namespace(kubectl): kind for kind in kinds}
    for space in spaces:
        made = queueing(space, gpu=CARDS)
        made["metadata"]["annotations"]["hami.io/quota-enforcement"] = enforcement
        kubectl.apply(made)
        eventually(partial(kubectl.used, space), {"gpu": "0"})
    for space, kind in spaces.items():
        kubectl.apply(*kind(space))
        if kind is cron_job:  # as if it were due now, and for the last time
            past = format_time(time.time() - 90)
            patch = json.dumps({"status": {"lastScheduleTime": past}})
            kubectl("patch", "cronjob", "cron", "-n", space, "--subresource=status", "--type=merge", "-p", patch)
            eventually(partial(count_of_jobs, kubectl, space), 1)
            kubectl("patch", "cronjob", "cron", "-n", space, "--type=merge", "-p", '{"spec": {"suspend": true}}')
    with Ending(program.login("hami-device-plugin"), list(spaces)):
        for space in spaces:
            eventually(partial(succeeded, kubectl, space), TWENTY, seconds=240)


def count_of_jobs(kubectl: Kubectl, space: str) -> int:
    return len(kubectl.get("jobs", "-n", space)["items"])


def succeeded(kubectl: Kubectl, space: str) -> int:
    """How many pods of the namespace's jobs have; fails if one is counted as failed."""
    found = [each["status"] for each in kubectl.get("jobs", "-n", space)["items"]]
    assert not any(status.get("failed") for status in found)
    return sum(status.get("succeeded", 0) for status in found)
