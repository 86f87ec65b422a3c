"""Tenants, a node and a stranger that try whatever they can, at random, against three webhooks and their controller.

At every revision of etcd the pods that there are, priced by these files alone, are within the quotas and within what
those show as used, and no card of an honest node has more on it than it has. An ordinary tenant beside them is never
refused, waits less than a second for each creation, and all its pods are bound.

`HAMI_ATTACKS=10000` is the number of actions, `HAMI_ATTACKS_SEED` what they are drawn from; what an API server and
several processes do next isn't in our hands, so that a seed doesn't give the same run again.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from probes import GIVEN_UP, failed_in_a_row

from hack.devcluster.plane import ControlPlane

from .attackers.actions import Actor, Budget
from .attackers.client import Client
from .attackers.limits import Audit, Limit
from .attackers.neighbour import LIFELESS, Neighbour
from .attackers.node import LyingNode
from .attackers.queue_tenant import QueueTenant
from .attackers.reclaimer import LENT, Reclaimer, borrowers, lending_quotas, most_evicted
from .attackers.stranger import Stranger
from .attackers.tenant import Tenant
from .claims import NODE as CLAIMS_NODE
from .claims import charging_claims
from .deployment import Deployment, Kubectl, eventually
from .hamischeduler import scheduling
from .kubelet import Kubelets
from .objects import GPU, JSON, MEM, accelerator_quota, add_ready_node, gpu_node, namespace, quota
from .revisions import Revisions
from .tenants import tenant
from .webhooks import slow_webhook

ACTIONS = int(os.environ.get("HAMI_ATTACKS", "600"))
SEED = int(os.environ.get("HAMI_ATTACKS_SEED", "20261122"))
TENANTS = 4
SLOW = 1.0 if ACTIONS > 600 else 5.0
"""Seconds. The short run has other tests beside it on the same processors, the long one the machine for itself."""
SMALL, LARGE = 16384, 24576
HARD = {GPU: 8, MEM: 50000}
NEIGHBOURS: JSON = {GPU: 20, MEM: 30000}
LINE: JSON = {GPU: 6, MEM: 30000}
NODES_CACHED = 'hami_webhook_cache_objects{kind="nodes"}'
PRIORITIES = {"attack-low": 10, "attack-high": 100, "neighbour": 1000}


@pytest.fixture(scope="module")
def program(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with charging_claims(plane, tmp_path_factory.mktemp("program"), first=("hami-webhook-0", "webhook")) as deployment:
        for name in ("hami-webhook-1", "hami-webhook-2"):
            deployment.start(name, roles="webhook")
        deployment.start("hami-webhook-controller-0", roles="controller")
        yield deployment


@dataclass(frozen=True)
class Arena:
    """The namespaces with their quotas, and two honest nodes.

    In `line` and `waiter` pods wait: for a quota of each, and for one of both, with room for all that these allow. In
    `borrower` a Deployment has what the tenant's team in `lender` lent it.
    """

    kubectl: Kubectl
    space: str
    closed: str
    wide: str
    neighbour: str
    line: str
    waiter: str
    lender: str
    borrower: str
    small: str
    large: str

    @property
    def cards(self) -> dict[tuple[str, str], tuple[int, int, int]]:
        """Slots, MiB and cores of each card."""
        sizes = {self.small: SMALL, self.large: LARGE}
        return {(node, f"{node}-{index}"): (10, size, 100) for node, size in sizes.items() for index in (0, 1)}

    @property
    def limits(self) -> list[Limit]:
        own, every = frozenset([self.space]), frozenset([self.space, self.closed, self.neighbour])
        together = {key: HARD[key] + NEIGHBOURS[key] for key in HARD}
        h100 = frozenset(card for card in self.cards if card[0] == self.large)
        return [
            Limit("resourcequotas", f"gpu-quota-{self.space}", own, HARD),
            Limit("resourcequotas", f"h100-{self.space}", own, {GPU: 2}, "H100", h100),
            Limit("acceleratorquotas", f"together-{self.space}", every, together),
            Limit("resourcequotas", f"gpu-quota-{self.line}", frozenset([self.line]), LINE),
            Limit("acceleratorquotas", f"lent-{self.space}", frozenset([self.lender, self.borrower]), {GPU: LENT}),
        ]


def arena(program: Deployment) -> Arena:
    kubectl = program.kubectl
    space, closed, wide, neighbour, line, waiter, lender, borrower = (namespace(kubectl) for _ in range(8))
    cached = {name: program.metric(name, NODES_CACHED) for name in program.replicas}
    small = honest_node(kubectl, f"small-{space}", SMALL, "NVIDIA A10")
    large = honest_node(kubectl, f"large-{space}", LARGE, "NVIDIA H100")
    made = Arena(kubectl, space, closed, wide, neighbour, line, waiter, lender, borrower, small, large)
    # where no card is known yet, a percentage costs one unit
    eventually(
        lambda: {n: program.metric(n, NODES_CACHED) - before for n, before in cached.items()},
        dict.fromkeys(cached, 2.0),
    )
    for name, value in PRIORITIES.items():
        kubectl.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
        )
    for space in (made.space, made.closed, made.neighbour):
        kubectl("label", "namespace", space, f"together={made.space}", f"all={made.space}")
    kubectl("label", "namespace", made.wide, f"all={made.space}")
    own, h100, together, own_line, lent = made.limits
    selected = quota(made.space, h100.name, **h100.hard)
    selected["metadata"]["annotations"] = {"hami.io/quota-device-types": h100.device_type}
    kubectl.apply(
        quota(made.space, own.name, **own.hard),
        selected,
        quota(made.neighbour, **NEIGHBOURS),
        quota(made.closed, "no-pods", pods=0),
        accelerator_quota(together.name, {"matchLabels": {"together": made.space}}, dict(together.hard)),
        accelerator_quota(f"all-{made.space}", {"matchLabels": {"all": made.space}}, {GPU: 1_000_000}),
    )
    for name, hard in ((own_line.name, own_line.hard), (f"gpu-quota-{made.waiter}", LINE)):
        space = made.line if name == own_line.name else made.waiter
        kubectl("label", "namespace", space, f"line={made.space}")
        waiting = quota(space, name, **hard)
        waiting["metadata"]["annotations"] = {
            "hami.io/quota-enforcement": "queue",
            "hami.io/quota-queue-order": "strict",
        }
        kubectl.apply(waiting)
    shared = {key: 2 * amount for key, amount in LINE.items()}
    both = {"matchLabels": {"line": made.space}}
    kubectl.apply(accelerator_quota(f"line-{made.space}", both, shared, enforcement="queue"))
    kubectl.apply(*lending_quotas(lent.name, made.lender, made.borrower), borrowers(made.borrower))
    # until its status is written the API server takes pods there
    eventually(lambda: kubectl.get("quota", "no-pods", "-n", made.closed).get("status", {}).get("used"), {"pods": "0"})
    return made


def honest_node(kubectl: Kubectl, name: str, memory: int, model: str) -> str:
    """A node with two cards that kube-scheduler may use."""
    node = gpu_node(name, memory, memory)
    notes = node["metadata"]["annotations"]
    notes["hami.io/node-nvidia-register"] = notes["hami.io/node-nvidia-register"].replace("NVIDIA A10", model)
    add_ready_node(kubectl, node, gpu=20)
    return name


def untaint(kubectl: Kubectl, name: str) -> None:
    """Let pods onto a node, as the node controller does for one that is ready; it may be gone already."""
    kubectl.run("patch", "node", name, "--type=merge", "-p", '{"spec":{"taints":null}}')


def grant_subresources(kubectl: Kubectl, space: str, home: str) -> None:
    """What an operator may give a tenant's own controllers; the account is in `home`."""
    rules = [
        {"apiGroups": [""], "resources": ["pods/binding", "bindings"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods/status", "pods/resize"], "verbs": ["patch", "update"]},
        {"apiGroups": [""], "resources": ["pods/ephemeralcontainers"], "verbs": ["patch", "update"]},
    ]
    rbac, meta = "rbac.authorization.k8s.io", {"name": "subresources", "namespace": space}
    kubectl.apply(
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "subresources"},
            "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": home}],
        },
    )


def login_of_tenant(kubectl: Kubectl, plane: ControlPlane, folder: Path, found: Arena) -> Path:
    """One service account with the rights of a tenant in all three of its namespaces."""
    login = tenant(kubectl, plane, folder, found.space).kubeconfig
    for space in (found.space, found.line):
        grant_subresources(kubectl, space, found.space)
    for space in (found.closed, found.wide, found.line, found.lender):
        kubectl(
            *("create", "rolebinding", "tenant-edit", "-n", space, "--clusterrole", "edit"),
            *("--serviceaccount", f"{found.space}:tenant"),
        )
    return login


def without_what_never_matters(item: JSON) -> JSON:
    """An object without its managed fields and a long ledger, so that a long run fits into memory."""
    meta = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    notes = meta.get("annotations") or {}
    notes = {key: text for key, text in notes.items() if key != "hami.io/quota-ledger" or len(text) < 2000}
    status = {key: value for key, value in (item.get("status") or {}).items() if key != "ledger"}
    return {**item, "metadata": {**meta, "annotations": notes}, "status": status}


def charges_of(program: Deployment, name: str) -> str:
    """How many charges a replica made, and how many took longer than half a second and a second."""
    charge = "hami_webhook_quota_charge_seconds"
    whole, half, second = (
        program.metric(name, metric)
        for metric in (f"{charge}_count", f'{charge}_bucket{{le="0.5"}}', f'{charge}_bucket{{le="1.0"}}')
    )
    lost = program.metric(name, "hami_webhook_quota_conflicts_total")
    return f"{whole:.0f}, {whole - half:.0f} > 0.5 s, {whole - second:.0f} > 1 s, {lost:.0f} conflicts"


def lent_pods(kubectl: Kubectl, space: str) -> int:
    """How many pods of the borrower run."""
    return sum(each["status"].get("phase") == "Running" for each in kubectl.get("pods", "-n", space)["items"])


def delete_all_pods(admin: Client, space: str) -> None:
    path = f"/api/v1/namespaces/{space}/pods"

    def left() -> int:
        admin("DELETE", path, {"gracePeriodSeconds": 0})
        return len(admin("GET", f"{path}?limit=500")[1].get("items", [None]))

    eventually(left, 0, seconds=300)


def test_random_actions_pass_no_limit_and_disturb_no_other_tenant(
    program: Deployment, plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl, found = program.kubectl, arena(program)
    login = login_of_tenant(kubectl, plane, tmp_path, found)
    others = tenant(kubectl, plane, tmp_path, found.neighbour).kubeconfig
    waiters = tenant(kubectl, plane, tmp_path, found.waiter).kubeconfig
    liar = f"liar-{found.space}"
    small_cards = [uuid for node, uuid in found.cards if node == found.small]
    tenants = [
        Tenant(
            Client(plane, login),
            random.Random(f"{SEED}/{number}"),
            number,
            space=found.space,
            closed=found.closed,
            wide=found.wide,
            nodes=[found.small, found.large, liar],
            cards=[uuid for _, uuid in found.cards],
            priorities=["attack-low", "attack-high"],
        )
        for number in range(TENANTS)
    ]
    queue_tenants = [
        QueueTenant(Client(plane, login), random.Random(f"{SEED}/queue/{number}"), line=found.line, space=found.space)
        for number in range(2)
    ]
    reclaimer = Reclaimer(Client(plane, login), random.Random(f"{SEED}/reclaimer"), found.lender)
    node = LyingNode(
        plane, random.Random(f"{SEED}/node"), liar, small_cards, lambda name: untaint(kubectl, name), CLAIMS_NODE
    )
    kubelets = Kubelets(program.login("hami-device-plugin"), audited=[found.small, found.large])
    admin = Client(plane, pair=(plane.folder / "admin.crt", plane.folder / "admin.key"))

    def was_a_fight() -> bool:
        """Pods were made, refused, refused by the quota, placed, and evicted; how soon depends on the machine."""
        created = Counter({code: sum(each.answers["create", code] for each in tenants) for code in (201, 403)})
        overruns = sum(each.client.overruns for each in tenants)
        return min(created[201], created[403], overruns) > 20 and len(kubelets.allocated) > 2 and reclaimer.bound > 0

    audit = Audit(found.limits, found.cards)
    with ExitStack() as stack:
        stack.callback(kubelets.close)
        made = (f"{name}-{found.space}" for name in ("together", "all", "line", "lent"))
        lent = f"lent-{found.space}"
        stack.callback(kubectl, "delete", "aq", *made, f"{lent}-lender", f"{lent}-borrower")
        stack.callback(kubectl, "delete", "resourceclaims", "--all", "-n", found.space)
        stack.callback(kubectl, "delete", "nodes", found.small, found.large, liar, "--ignore-not-found")
        account = program.login("hami-scheduler")
        flags = ("--preemption=on", *program.flags)
        scheduler = stack.enter_context(scheduling(plane, tmp_path, account, "cooperative", flags))
        health = f"http://127.0.0.1:{scheduler.port}/healthz"
        neighbour = Neighbour(found.neighbour, lambda: Client(plane, others), "neighbour", health)
        waiter = Neighbour(found.waiter, lambda: Client(plane, waiters), "neighbour", health)
        stack.enter_context(
            slow_webhook(program, found.space, lambda name: time.sleep(random.Random(name).random() * 0.2))
        )
        revisions = stack.enter_context(Revisions(plane, keep=without_what_never_matters, claims=True))
        ports = [*program.ports.values(), scheduler.metrics, scheduler.port]
        stranger = stack.enter_context(Stranger(random.Random(f"{SEED}/stranger"), program.balancer.port, ports))
        actors: list[Actor] = [*tenants, *queue_tenants, reclaimer, node, stranger]
        with neighbour, waiter, ThreadPoolExecutor(len(actors)) as threads:
            neighbour.see_quiet(15)
            waiter.see_quiet(15)
            eventually(lambda: lent_pods(kubectl, found.borrower), LENT)
            node.join()
            budget = Budget(ACTIONS, was_a_fight, patience=300 + ACTIONS / 5)
            list(threads.map(lambda actor: actor.run(budget), actors))
        seconds = time.monotonic() - neighbour.quiet
        charges = {name: charges_of(program, name) for name in program.replicas if "controller" not in name}
        reclaimed = kubectl.get("events", "-n", found.borrower, "--field-selector", "reason=QuotaReclaimed")["items"]
        kubectl("delete", "deployment", "lent", "-n", found.borrower)
        own_spaces = (found.space, found.closed, found.wide, found.line, found.lender)
        for space in (*own_spaces, found.neighbour, found.waiter, found.borrower):
            delete_all_pods(admin, space)
        kubectl("delete", "resourceclaims", "--all", "-n", found.space)
        own = found.limits[0]
        zero = {key.removeprefix("limits.nvidia.com/"): "0" for key in own.hard}
        eventually(
            lambda: (kubectl.used(found.space, own.name), kubectl.ledger(found.space, own.name)), (zero, {}), 120
        )
        last = int(kubectl.get("quota", own.name, "-n", found.space)["metadata"]["resourceVersion"])
        eventually(lambda: revisions.newest("resourcequotas") >= last)
        audit.run(revisions.changes())
    findings = [f"{text} ({audit.repeated[what]} revisions)" for what, text in audit.findings.items()]
    findings += sorted({fault for fault in kubelets.faults if fault.startswith("card ")})
    evicted = len(reclaimed)
    if evicted > most_evicted(seconds):
        findings.append(f"{evicted} pods were evicted for a team that keeps none of its own")
    clients = [each.client for each in tenants] + [each.client for each in queue_tenants] + [reclaimer.client]
    findings += sorted({failure for client in clients for failure in client.failures})
    for each in (neighbour, waiter):
        refusals = Counter(each.refusals).items()
        findings += [f"{each.space} refused {times} times: {why}" for why, times in refusals]
        for what, times in (("creations", each.creations), ("releases", each.releases)):
            slow = each.slow(SLOW, times)
            findings += [f"{len(slow)} {what} of {each.space} were slow: {slow[:10]}"] if slow else []
        findings += [f"{each.space}'s pod never bound: {path}" for path in each.unbound]
    lifeless = failed_in_a_row(neighbour.lives, LIFELESS)
    findings += [f"the extender didn't answer {lifeless} probes in a row"] if lifeless >= GIVEN_UP else []
    with capsys.disabled():
        print(f"\n{budget.done} actions in {seconds:.0f} s, seed {SEED}, {audit.seen} revisions")
        for actor in (
            sum((each.answers for each in tenants), Counter[tuple[str, int]]()),
            sum((each.answers for each in queue_tenants), Counter[tuple[str, int]]()),
            reclaimer.answers,
            node.answers,
            stranger.answers,
        ):
            print("  " + ", ".join(f"{name} {code}: {times}" for (name, code), times in sorted(actor.items())))
        print(f"  {neighbour.summary()}\n  {waiter.summary()}")
        print(f"  charges: {charges}\n  evicted: {evicted} of at most {most_evicted(seconds)}")
        print(f"  most held: {dict(audit.most)}")
        print("\n".join(f"  finding: {finding}" for finding in findings) or "  no findings")
    before = "\n".join("\n    ".join((f"before {what}:", *lines)) for what, lines in audit.before.items())
    assert findings == [], f"{findings}\n{before}"
    assert was_a_fight()
    assert evicted > 0
    assert audit.most[own.name, GPU] > 2
    assert audit.seen > 100
    assert len(neighbour.waits) > 5
    assert len(waiter.releases) > 5
