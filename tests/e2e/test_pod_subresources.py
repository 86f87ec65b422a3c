"""Every request of the API that can write annotations or labels of a pod is reviewed, also those of subresources."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from .deployment import Deployment, Kubectl, eventually, version
from .objects import JSON, add_node, gpu_node, namespace, pod, quota
from .scheduling import scheduler_account
from .tenants import tenant

CARRIERS = {"pods/status", "pods/binding", "bindings"}
"""The subresources of pods, and the legacy resource, whose requests change metadata of a pod."""

OTHERS = {
    *("pods/attach", "pods/exec", "pods/log", "pods/portforward", "pods/proxy"),
    *("pods/ephemeralcontainers", "pods/eviction", "pods/resize"),
}
"""Those whose requests don't."""

FORGED = "hami.io/vgpu-devices-allocated"
ALLOCATION = {"hami.io/vgpu-node": "cards", "hami.io/vgpu-time": "1", FORGED: "cards-0,NVIDIA,1,0:;"}
RESERVATION = "hami.io/quota-reservation"
FOREIGN = ("volcano.sh/vgpu-ids-new", "scheduling.koordinator.sh/device-allocated")
MIRROR = ("kubernetes.io/config.mirror", "kubernetes.io/config.hash", "kubernetes.io/config.source")
RBAC = "rbac.authorization.k8s.io"


@pytest.fixture(scope="module")
def program(one_replica: Deployment) -> Deployment:
    scheduler_account(one_replica.kubectl)
    add_node(one_replica.kubectl, gpu_node("cards", 24576), gpu=10)
    controllers = {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["*"]}
    binders = {"apiGroups": [""], "resources": ["pods/binding", "bindings"], "verbs": ["create"]}
    one_replica.kubectl.apply(
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "e2e-pod-controller"},
            "rules": [controllers, binders],
        }
    )
    return one_replica


@pytest.fixture
def space(program: Deployment) -> str:
    return namespace(program.kubectl)


@pytest.fixture
def controller(program: Deployment, space: str) -> Kubectl:
    """A tenant with the rights that an operator gives its own controllers of pods."""
    return tenant(program.kubectl, program.plane, program.folder, space, role="e2e-pod-controller", name="controller")


def send(kubectl: Kubectl, verb: str, path: str, obj: JSON) -> subprocess.CompletedProcess[str]:
    return kubectl.run(verb, "--raw", path, "-f", "-", stdin=json.dumps(obj))


def requests(
    kubectl: Kubectl, space: str, name: str, resource: str, kind: JSON, verbs: list[str], meta: JSON
) -> Iterator[subprocess.CompletedProcess[str]]:
    """Every request that can bring an object of the subresource's kind: with this metadata, on an existing pod."""
    path = f"/api/v1/namespaces/{space}/" + resource.replace("pods/", f"pods/{name}/")
    if "update" in verbs and kind["kind"] == "Pod":
        stored = kubectl.get("pod", name, "-n", space)
        del stored["metadata"]["resourceVersion"]  # kube-scheduler may write a condition meanwhile
        for field, values in meta.items():
            stored["metadata"][field] = {**stored["metadata"].get(field, {}), **values}
        yield send(kubectl, "replace", path, stored)
    if "create" in verbs:
        target = {"apiVersion": "v1", "kind": "Node", "name": "cards"}
        more = {"target": target} if kind["kind"] == "Binding" else {}
        yield send(kubectl, "create", path, {**kind, "metadata": {"name": name, "namespace": space, **meta}, **more})


def of_pods(kubectl: Kubectl) -> dict[str, tuple[JSON, list[str]]]:
    """Kind and verbs of pods' subresources and of bindings, as the API server lists them."""
    found: JSON = json.loads(kubectl("get", "--raw", "/api/v1"))
    versions = {
        item["name"]: "/".join(filter(None, (item.get("group"), item.get("version")))) or "v1"
        for item in found["resources"]
    }
    return {
        item["name"]: ({"apiVersion": versions[item["name"]], "kind": item["kind"]}, item["verbs"])
        for item in found["resources"]
        if item["name"].startswith("pods/") or item["kind"] == "Binding"
    }


def test_the_subresources_that_can_carry_metadata_are_those_that_are_reviewed(program: Deployment) -> None:
    """Tried as an administrator, in a namespace that isn't guarded. One that is new here needs a look, and a rule."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    kubectl("label", "namespace", space, "hami.io/webhook=ignore")
    resources = of_pods(kubectl)
    assert resources.keys() == CARRIERS | OTHERS
    carriers = set()
    answers = {}
    for number, (resource, (kind, verbs)) in enumerate(sorted(resources.items())):
        name = f"p{number}"
        kubectl.apply(pod(space, name))
        sent = requests(
            kubectl, space, name, resource, kind, verbs, {"annotations": ALLOCATION, "labels": {"by": "me"}}
        )
        answers[resource] = [each.stdout + each.stderr for each in sent]
        found = json.loads(kubectl("get", "pod", name, "-n", space, "--ignore-not-found", "-o", "json") or "{}")
        meta = found.get("metadata", {})
        if FORGED in meta.get("annotations", {}) or "by" in meta.get("labels", {}):
            carriers.add(resource)
    assert carriers == CARRIERS, answers


@pytest.mark.parametrize("resource", sorted(CARRIERS))
def test_no_subresource_writes_a_forged_allocation(
    program: Deployment, space: str, controller: Kubectl, resource: str
) -> None:
    kubectl = program.kubectl
    kubectl.apply(pod(space, "p", gpu=1, gpumem=1000))
    before = kubectl.get("pod", "p", "-n", space)
    kind, verbs = of_pods(kubectl)[resource]
    annotations = {**ALLOCATION, **dict.fromkeys(FOREIGN, "x"), RESERVATION: "x"}
    forgeries = [{"annotations": {key: value}} for key, value in annotations.items()]
    for meta in (*forgeries, {"labels": {"hami.io/vgpu-node": "cards"}}):
        sent = list(requests(controller, space, "p", resource, kind, verbs, meta))
        assert len(sent) == 1
        assert sent[0].returncode != 0, sent[0].stdout
        (key,) = next(iter(meta.values()))
        reason = (
            "when the pod is created only" if (key, resource) == (RESERVATION, "pods/status") else "by the scheduler"
        )
        assert f"{key} is written {reason}" in sent[0].stderr
        assert f"system:serviceaccount:{space}:controller may not" in sent[0].stderr
    assert kubectl.get("pod", "p", "-n", space)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def merges_labels(kubectl: Kubectl) -> bool:
    """Whether the API server merges a Binding's labels into the pod: since 1.35."""
    return version(kubectl) >= (1, 35)


def test_everything_else_goes_through(program: Deployment, space: str, controller: Kubectl) -> None:
    kubectl = program.kubectl
    kubectl.apply(pod(space, "p", gpu=1, gpumem=1000), pod(space, "q"))
    patch = {"metadata": {"annotations": {"team": "a"}}, "status": {"message": "waits"}}
    controller("patch", "pod", "p", "-n", space, "--subresource=status", "--type=merge", "-p", json.dumps(patch))
    for name, resource in (("p", "pods/binding"), ("q", "bindings")):
        kind, verbs = of_pods(kubectl)[resource]
        meta = {"annotations": {"seen": "1"}, "labels": {"team": "a"}}
        (done,) = requests(controller, space, name, resource, kind, verbs, meta)
        assert done.returncode == 0, done.stderr
        stored = kubectl.get("pod", name, "-n", space)
        assert stored["spec"]["nodeName"] == "cards"
        assert stored["metadata"]["annotations"]["seen"] == "1"
        assert stored["metadata"].get("labels", {}).get("team") == ("a" if merges_labels(kubectl) else None)


def test_our_scheduler_may_bring_an_allocation_with_its_binding(program: Deployment, space: str) -> None:
    kubectl = program.kubectl
    kubectl.apply(pod(space, "p", gpu=1, gpumem=1000))
    scheduler = Kubectl(program.login("hami-scheduler"))
    kind, verbs = of_pods(kubectl)["pods/binding"]
    meta = {"annotations": ALLOCATION, "labels": {"hami.io/vgpu-node": "cards"}}
    (done,) = requests(scheduler, space, "p", "pods/binding", kind, verbs, meta)
    assert done.returncode == 0, done.stderr
    assert kubectl.get("pod", "p", "-n", space)["metadata"]["annotations"].items() >= ALLOCATION.items()


def test_no_privileged_ephemeral_container_comes_beside_cards(program: Deployment, space: str) -> None:
    """As `kubectl debug` adds them: in a pod with cards one without privileges, in another pod any."""
    kubectl = program.kubectl
    kubectl.apply(pod(space, "cards", gpu=1, gpumem=1000), pod(space, "plain"))

    def debug(name: str, profile: str) -> subprocess.CompletedProcess[str]:
        how = ("--image=registry.invalid/none", f"--profile={profile}", f"--container={profile}", "--attach=false")
        return kubectl.run("debug", name, "-n", space, *how)

    refused = debug("cards", "sysadmin")
    assert refused.returncode != 0
    assert "ephemeral container sysadmin is privileged" in refused.stderr
    for name, profile in (("cards", "general"), ("plain", "sysadmin")):
        done = debug(name, profile)
        assert done.returncode == 0, done.stderr
    spec = kubectl.get("pod", "cards", "-n", space)["spec"]
    assert [each["name"] for each in spec["ephemeralContainers"]] == ["general"]


def test_a_mirror_pod_is_taken_from_its_own_node_only(program: Deployment, space: str, controller: Kubectl) -> None:
    """What a kubelet shows of a static pod with cards is counted, above hard too; the annotation alone helps nobody."""
    kubectl, plane = program.kubectl, program.plane
    login = plane.authority.kubeconfig("node-cards", plane.server, "system:node:cards", "system:nodes")
    node = kubectl.get("node", "cards")
    owner = {"apiVersion": "v1", "kind": "Node", "name": "cards", "uid": node["metadata"]["uid"], "controller": True}
    kubectl.apply(quota(space, mem=500))
    eventually(lambda: kubectl.used(space), {"gpumem": "0"})

    def mirror(name: str) -> JSON:
        made = pod(space, name, gpu=1, gpumem=1000)
        made["metadata"]["annotations"] = dict.fromkeys(MIRROR, "hash")
        made["metadata"]["ownerReferences"] = [owner]
        made["spec"] |= {"nodeName": "cards", "automountServiceAccountToken": False, "enableServiceLinks": False}
        return made

    assert "pod has node assigned" in controller.refused(mirror("forged"))
    Kubectl(login)("create", "-f", "-", stdin=json.dumps(mirror("static")))
    eventually(lambda: kubectl.used(space), {"gpumem": "1k"})
    assert "exceeded quota: gpu-quota" in kubectl.refused(pod(space, "p", gpu=1, gpumem=1))
