"""The manifests' own service accounts: with them everything works, and every right that one has is used.

That of the role `usage` is in test_used.py, where the role runs.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import SYSTEM, Kubectl, eventually
from .kubelet import Kubelets
from .objects import (
    GPU,
    JSON,
    MEM,
    accelerator_quota,
    add_node,
    add_ready_node,
    define_devices,
    gpu_node,
    namespace,
    pod,
    quota,
    remove_devices,
)
from .roles import CONTROLLER, SCHEDULER, WEBHOOK, Roles, running_roles
from .scheduling import scheduler_account
from .webhooks import post_review

Right = tuple[str, str, str]
"""API group, resource with subresource, verb."""

MAY_I: Right = ("authorization.k8s.io", "selfsubjectaccessreviews", "create")
"""What every account may: to ask what it may."""


@pytest.fixture(scope="module")
def before(plane: ControlPlane) -> int:
    """How long the audit log is before the program starts: what earlier tests did with its accounts is theirs."""
    return plane.audit_log.stat().st_size


@pytest.fixture(scope="module")
def program(before: int, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    """All that is deployed, on a cluster that has nothing of an earlier one's: what it keeps, it has to create."""
    define_devices(Kubectl(plane.kubeconfig))
    with running_roles(plane, tmp_path_factory.mktemp("program"), CONTROLLER, WEBHOOK, SCHEDULER) as roles:
        yield roles
    remove_devices(Kubectl(plane.kubeconfig))


def granted(kubectl: Kubectl, cluster_roles: tuple[str, ...], roles: tuple[str, ...] = ()) -> set[Right]:
    found = [kubectl.get("clusterrole", name) for name in cluster_roles]
    found += [kubectl.get("role", name, "-n", SYSTEM) for name in roles]
    return {
        (group, resource, verb)
        for role in found
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def bound(kubectl: Kubectl, account: str) -> set[tuple[str, str]]:
    """Every role that is bound to one of our accounts, by kind and name."""
    bindings = kubectl.get("clusterrolebindings")["items"] + kubectl.get("rolebindings", "-A")["items"]
    subject = {"kind": "ServiceAccount", "name": account, "namespace": SYSTEM}
    return {(b["roleRef"]["kind"], b["roleRef"]["name"]) for b in bindings if subject in b.get("subjects", ())}


def audited(plane: ControlPlane, since: int, account: str) -> list[JSON]:
    """What was asked of the API server as one of our accounts, but for the API's own description."""
    lines = plane.audit_log.read_bytes()[since:].decode().splitlines()
    # the first line and the last may be written just now
    entries = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    user = f"system:serviceaccount:{SYSTEM}:{account}"
    return [entry for entry in entries if entry["user"]["username"] == user and "objectRef" in entry]


def right(entry: JSON) -> Right:
    about = entry["objectRef"]
    sub = about.get("subresource")
    return about.get("apiGroup", ""), about["resource"] + (f"/{sub}" if sub else ""), entry["verb"]


def of_kube_scheduler(entry: JSON) -> bool:
    return str(entry["userAgent"]).startswith("kube-scheduler/")


def ask_about_an_unknown_namespace(program: Roles) -> None:
    """A review and a filter request for a pod whose namespace no cache knows: the program looks for itself."""
    stranger = pod("none-such", "p", gpu=1)
    assert post_review(program.installed, "/mutate", stranger)["status"]["code"] == 503
    stranger["metadata"]["uid"] = "u"
    refusal = ask_extender(program, "filter", {"Pod": stranger, "NodeNames": ["cards"]})
    assert "namespace none-such isn't known yet" in refusal


def ask_extender(program: Roles, verb: str, asked: JSON) -> str:
    """The error that it answers."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{program.extender}/{verb}", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(json.load(answer)["Error"])


def events(kubectl: Kubectl, space: str, reason: str) -> list[int]:
    """How often each event with a reason was seen."""
    found = kubectl.get("events", "-n", space, "--field-selector", f"reason={reason}")
    return [item["count"] for item in found["items"]]


@pytest.fixture
def kubelets(program: Roles) -> Iterator[Kubelets]:
    """What allocates, and releases the locks of nodes."""
    scheduler_account(program.kubectl)
    running = Kubelets(program.installed.login("hami-device-plugin"))
    yield running
    running.close()


def bind_to_an_unknown_node(program: Roles, space: str, name: str) -> None:
    """A bind request for a node that no cache knows: the program looks for itself."""
    uid = program.kubectl.get("pod", name, "-n", space)["metadata"]["uid"]
    binding = {"PodName": name, "PodNamespace": space, "PodUID": uid, "Node": "none-such"}
    assert ask_extender(program, "bind", binding) == 'node "none-such" not found'


def place_beside_admissions(kubectl: Kubectl, met: Callable[[], bool]) -> None:
    """Bursts of pods that cost more where they land, until a placement meets an admission on quotas of both kinds."""
    space = namespace(kubectl)
    kubectl.apply(quota(space, mem=9000))
    for burst in range(30):
        names = [f"p{burst}-{number}" for number in range(8)]
        kubectl.apply(*(pod(space, name, gpu=1, gpumem_percentage=1) for name in names))
        eventually(
            lambda: [each for each in kubectl.get("pods", "-n", space)["items"] if "nodeName" not in each["spec"]], []
        )
        kubectl("delete", "pods", *names, "-n", space, "--grace-period=0", "--force")
        if met():
            return


def work(program: Roles, met: Callable[[], bool]) -> None:
    """Have every Deployment do all that it ever does; `met` is whether two processes have met on quotas."""
    kubectl = program.kubectl
    # what waits since earlier tests would take the node's cards
    kubectl.delete_all("jobs", "deployments", "pods")
    space = namespace(kubectl)
    add_node(kubectl, gpu_node("silent", 2048))  # its plugin offers nothing, so the handshake asks it
    eventually(lambda: "hami.io/node-handshake" in kubectl.get("node", "silent")["metadata"]["annotations"])
    add_ready_node(kubectl, gpu_node("cards", 4096), gpu=10)
    kubectl.apply(quota(space, mem=20000), accelerator_quota("rights", {}, hard={MEM: 1_000_000}))
    # once both configurations trust the Secret's authority, reviews reach us
    asked = pod(space, "p", gpu=1, gpumem=3000)
    eventually(lambda: kubectl.run("apply", "-f", "-", stdin=json.dumps(asked)).returncode, 0)
    eventually(lambda: kubectl.get("pod", "p", "-n", space)["spec"].get("nodeName"), "cards")
    place_beside_admissions(kubectl, met)
    # a pod that the quota refuses, which is never said from a cache
    assert "exceeded quota" in kubectl.refused(pod(space, "large", gpu=1, gpumem=20000))
    assert "exceeded quota" in kubectl.refused(pod(namespace(kubectl), "large", gpu=1, gpumem=1_000_001))
    # a pod whose name is taken
    again = json.dumps(pod(space, "p", gpu=1, gpumem=3000))
    assert "already exists" in kubectl.run("create", "-f", "-", stdin=again).stderr
    # a pod that costs more where it is placed than at admission
    kubectl.apply(pod(space, "share", gpu=1, gpumem_percentage=10))
    eventually(lambda: kubectl.get("pod", "share", "-n", space)["spec"].get("nodeName"), "cards")
    # a pod that is refused, and tried again with the same answer; then one that is placed once devices are freed
    kubectl.apply(pod(space, "q", gpu=1, gpumem=3000))
    eventually(lambda: max(events(kubectl, space, "FilteringFailed"), default=0) > 0)
    kubectl("delete", "pod", "p", "-n", space)
    eventually(lambda: kubectl.get("pod", "q", "-n", space)["spec"].get("nodeName"), "cards")
    # a pod that others are evicted for
    meta = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "rights-high"}}
    kubectl.apply({**meta, "value": 1000})
    urgent = pod(space, "urgent", gpu=1, gpumem=3500)
    urgent["spec"]["priorityClassName"] = "rights-high"
    kubectl.apply(urgent)
    eventually(lambda: kubectl.get("pod", "urgent", "-n", space)["spec"].get("nodeName"), "cards")
    # one that waits, and that somebody binds to a node that isn't there
    kubectl.apply(pod(space, "waits", gpu=1, gpumem=3000))
    bind_to_an_unknown_node(program, space, "waits")
    kubectl("delete", "pod", "waits", "-n", space)
    # pods that wait for quota: one is released, one gets its condition
    other = namespace(kubectl)
    queueing = quota(other, gpu=1)
    queueing["metadata"]["annotations"] = {"hami.io/quota-enforcement": "queue"}
    kubectl.apply(queueing)
    time.sleep(3)  # the watch of namespaces is silent by then, so their labels are read
    kubectl.apply(pod(other, "first", gpu=1, gpumem=1))
    eventually(lambda: kubectl.get("pod", "first", "-n", other)["spec"].get("schedulingGates"), None)
    kubectl.apply(pod(other, "second", gpu=1, gpumem=1))
    condition = "hami.io/QuotaReserved"
    eventually(lambda: condition in kubectl("get", "pod", "second", "-n", other, "-o", "yaml"))
    kubectl.delete_all("pods", namespace=other)
    # the same event twice is counted, not repeated
    for hard in (3000, 5000, 3000):
        kubectl.apply(quota(space, mem=hard))
        time.sleep(1.5)
    eventually(lambda: events(kubectl, space, "QuotaExceeded"), [2])
    # one that is owed what another holds, which is evicted for it
    kubectl("label", "namespace", other, space, "rights=lent")
    for name in (other, space):
        own = {"matchLabels": {"kubernetes.io/metadata.name": name}}
        nominal = {"nominal": {GPU: int(name == other)}, "reclaim": "on", "reclaimMinRuntime": "0s"}
        kubectl.apply(accelerator_quota(name, own, {GPU: 9}, **nominal))
    kubectl.apply(accelerator_quota("lent", {"matchLabels": {"rights": "lent"}}, {GPU: 1}, enforcement="queue"))
    kubectl.apply(pod(other, "owed", gpu=1, gpumem=1))
    eventually(lambda: bool(events(kubectl, space, "QuotaReclaimed")), seconds=60)
    kubectl.delete_all("pods", namespace=other)
    kubectl("delete", "aq", "lent", other, space)
    # what is spoilt in the Secret is written anew
    secret = "secret", "hami-webhook-tls", "-n", SYSTEM
    kubectl("patch", *secret, "--type=merge", "-p", json.dumps({"data": {"tls.key": "eA=="}}))
    eventually(lambda: kubectl.get(*secret)["data"]["tls.key"] != "eA==")
    ask_about_an_unknown_namespace(program)
    kubectl("delete", "node", "silent", "cards")
    kubectl("delete", "aq", "rights")


ROLES = {
    WEBHOOK: (("hami-webhook",), ()),
    CONTROLLER: (
        ("hami-webhook-controller", "hami-webhook-configurations"),
        ("hami-webhook-controller", "hami-webhook-certificates"),
    ),
    SCHEDULER: (("hami-scheduler",), ()),
}
"""The ClusterRoles and the Roles that our own container of each Deployment needs; kube-scheduler needs others."""


def test_every_verb_used_is_granted_and_every_verb_granted_is_used(
    before: int, program: Roles, kubelets: Kubelets, plane: ControlPlane
) -> None:
    kubectl = program.kubectl
    reads = {("", "resourcequotas", "get"), ("hami.io", "acceleratorquotas", "get")}
    work(program, lambda: reads <= set(map(right, audited(plane, before, SCHEDULER))))
    assert kubelets.faults == []
    for account, roles in ROLES.items():
        rights = granted(kubectl, *roles)

        def entries(account: str = account) -> list[JSON]:
            return [entry for entry in audited(plane, before, account) if not of_kube_scheduler(entry)]

        eventually(lambda: rights - set(map(right, entries())), set())  # noqa: B023  called at once
        assert set(map(right, entries())) - rights == {MAY_I}, account
        # a 403 with the right granted is something else, such as a namespace that is being deleted
        assert [e for e in entries() if e["annotations"]["authorization.k8s.io/decision"] != "allow"] == []


def test_kube_scheduler_has_its_lease(before: int, program: Roles, plane: ControlPlane) -> None:
    """As rendered, with its own account: leader, and refused nothing."""
    holder = "lease", "hami-scheduler", "-n", SYSTEM
    eventually(lambda: program.kubectl.run("get", *holder).returncode, 0)
    assert program.kubectl.get(*holder)["spec"]["holderIdentity"]
    verbs = {("coordination.k8s.io", "leases", verb) for verb in ("get", "create", "update")}
    role = granted(program.kubectl, (), ("hami-scheduler",))
    assert role == verbs

    def used() -> set[Right]:
        return {right(entry) for entry in audited(plane, before, SCHEDULER) if of_kube_scheduler(entry)}

    eventually(lambda: verbs <= used())
    refused = [
        entry
        for entry in audited(plane, before, SCHEDULER)
        if of_kube_scheduler(entry) and entry["annotations"]["authorization.k8s.io/decision"] != "allow"
    ]
    assert refused == []


def test_no_account_has_another_role(program: Roles) -> None:
    def of_ours(account: str) -> set[tuple[str, str]]:
        return bound(program.kubectl, account)

    assert of_ours(WEBHOOK) == {("ClusterRole", "hami-webhook")}
    assert of_ours(CONTROLLER) == {
        ("ClusterRole", "hami-webhook-controller"),
        ("ClusterRole", "hami-webhook-configurations"),
        ("Role", "hami-webhook-controller"),
        ("Role", "hami-webhook-certificates"),
    }
    assert of_ours(SCHEDULER) == {
        ("ClusterRole", "hami-scheduler"),
        ("Role", "hami-scheduler"),
        ("ClusterRole", "system:kube-scheduler"),
        ("ClusterRole", "system:volume-scheduler"),
        ("Role", "extension-apiserver-authentication-reader"),
    }
