"""`make deploy` as users do it: what the overlays render is what runs, by a kubelet, and nothing is the test's own."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hack.devcluster.plane import NODE, ControlPlane
from hami_webhook import pki

from .deployment import ROOT, SYSTEM, Kubectl, eventually
from .kubelet import Kubelets
from .objects import JSON, add_node, gpu_node, namespace, pod, quota
from .tenants import tenant

ALLOCATED = "hami.io/vgpu-devices-allocated"
DEFINITIONS = ("Certificate", "Issuer")
"""The kinds of cert-manager that its overlay uses."""


@dataclass
class Cluster:
    """A control plane with a node, as `hack/dev-cluster up` starts it."""

    plane: ControlPlane
    kubectl: Kubectl
    folder: Path
    """For what the test writes."""

    def deploy(self, verb: str, meanwhile: Callable[[], None] = lambda: None, **variables: str) -> str:
        """`hack/deploy` with its variables, with something else done while it waits; what it printed."""
        with subprocess.Popen(
            [ROOT / "hack" / "deploy", verb],
            env=self.environment(self.kubectl) | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                meanwhile()
                output, _ = process.communicate(timeout=240)
            except BaseException:
                process.kill()
                raise
        assert process.returncode == 0, output + self.logs()
        return output

    def environment(self, user: Kubectl) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), "KUBECONFIG": str(user.kubeconfig)}

    def refused(self, user: Kubectl, **variables: str) -> str:
        """What `hack/deploy up` says that installs nothing."""
        before = self.objects()
        done = subprocess.run(
            [ROOT / "hack" / "deploy", "up"],
            env=self.environment(user) | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1, done.stdout
        assert self.objects() == before
        return done.stderr

    def logs(self) -> str:
        """The end of every container's log, and of the kubelet's."""
        logs = [self.plane.folder / "kubelet.log", *sorted((self.plane.folder / "pods").glob(f"{SYSTEM}_*/*.log"))]
        return "\n".join(f"{log.parent.name}/{log.name}:\n{log.read_text()[-1500:]}" for log in logs)

    def objects(self) -> set[tuple[str, ...]]:
        """Kind, namespace and name of everything that the API server stores, but events."""
        kinds = set(self.kubectl("api-resources", "--verbs=list", "-o", "name").split())
        kinds -= {"componentstatuses", "events", "events.events.k8s.io"}
        columns = "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name"
        lines = self.kubectl("get", ",".join(sorted(kinds)), "-A", "--no-headers", "-o", columns).splitlines()
        return {tuple(line.split()) for line in lines}


@pytest.fixture
def cluster(plane_with_node: ControlPlane, tmp_path: Path) -> Cluster:
    return Cluster(plane_with_node, Kubectl(plane_with_node.kubeconfig), tmp_path)


@contextlib.contextmanager
def installed(
    cluster: Cluster, overlay: str, meanwhile: Callable[[], None] = lambda: None, **variables: str
) -> Iterator[str]:
    """`make deploy`, and `make undeploy` at the end of the block, which must leave nothing; what the first printed."""
    before = cluster.objects()
    try:
        yield cluster.deploy("up", meanwhile, OVERLAY=overlay, **variables)
    finally:
        cluster.deploy("down", OVERLAY=overlay)
    eventually(lambda: cluster.objects() - before, set(), seconds=30)


@contextlib.contextmanager
def device_plugins(cluster: Cluster) -> Iterator[None]:
    """HAMi's device plugins, for nodes that are objects only, as an account that may do everything."""
    account = {"name": "hami-device-plugin", "namespace": SYSTEM}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "e2e-device-plugin"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", **account}],
    }
    cluster.kubectl.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}, binding)
    plugins = Kubelets(tenant(cluster.kubectl, cluster.plane, cluster.folder, SYSTEM, name=account["name"]).kubeconfig)
    try:
        yield
    finally:
        plugins.close()
        cluster.kubectl("delete", "clusterrolebinding", "e2e-device-plugin")


@pytest.fixture
def card_node(cluster: Cluster) -> Iterator[str]:
    """A node with one card, which kube-scheduler may use."""
    kubectl = cluster.kubectl
    add_node(kubectl, gpu_node("gpu-1", 24576), gpu=10)
    amounts = {"pods": "100", "cpu": "1"}
    status = {"status": {"capacity": amounts, "allocatable": amounts}}
    kubectl("patch", "node", "gpu-1", "--subresource=status", "--type=merge", "-p", json.dumps(status))
    # nothing but pods that request cards: the kubelet of this node is a device plugin
    taints = {"spec": {"taints": [{"key": "cards", "effect": "NoSchedule"}]}}
    kubectl("patch", "node", "gpu-1", "--type=merge", "-p", json.dumps(taints))
    yield "gpu-1"
    kubectl("delete", "node", "gpu-1")


def card_pod(space: str, name: str, memory: int) -> JSON:
    found = pod(space, name, gpu=1, gpumem=memory)
    found["spec"]["tolerations"] = [{"key": "cards", "operator": "Exists"}]
    return found


def define_cert_manager(kubectl: Kubectl) -> None:
    """The kinds of cert-manager, which nobody acts on."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for kind in DEFINITIONS:
        names = {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower()}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        name = f"{names['plural']}.cert-manager.io"
        kubectl.apply(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": name},
                "spec": {"group": "cert-manager.io", "scope": "Namespaced", "names": names, "versions": [version]},
            }
        )
        kubectl("wait", f"crd/{name}", "--for=condition=Established", "--timeout=30s")


def act_as_cert_manager(kubectl: Kubectl) -> None:
    """What cert-manager does about the overlay's Certificate and its annotations, once they are there."""
    eventually(lambda: kubectl.run("get", "certificate", "hami-webhook", "-n", SYSTEM).returncode, 0)
    spec = kubectl.get("certificate", "hami-webhook", "-n", SYSTEM)["spec"]
    replicas = "pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=webhook"
    # kubelet doesn't start a container without its Secret
    eventually(lambda: [item["status"]["phase"] for item in kubectl.get(*replicas)["items"]], ["Pending"] * 2)
    now = datetime.now(UTC)
    authority = pki.authority(now=now)
    leaf = pki.issue(authority, "hami-webhook", SYSTEM, now=now)
    files = {"ca.crt": authority.certificate, "tls.crt": leaf.certificate, "tls.key": leaf.key}
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    secret = {"metadata": {"name": spec["secretName"], "namespace": SYSTEM}, "type": "kubernetes.io/tls", "data": data}
    kubectl.apply({"apiVersion": "v1", "kind": "Secret", **secret})
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        (found,) = kubectl.get(kind)["items"]
        assert found["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == f"{SYSTEM}/hami-webhook"
        for webhook in found["webhooks"]:
            webhook["clientConfig"]["caBundle"] = data["ca.crt"]
        kubectl("replace", "-f", "-", stdin=json.dumps(found))


def system_pods(kubectl: Kubectl) -> list[JSON]:
    found: list[JSON] = kubectl.get("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/part-of=hami-webhook")["items"]
    return found


def check_replicas(cluster: Cluster) -> None:
    """Every pod of ours runs on the node and is ready, and no container had to be restarted."""
    for item in system_pods(cluster.kubectl):
        assert item["spec"]["nodeName"] == NODE
        states = {each["name"]: (each["ready"], each["restartCount"]) for each in item["status"]["containerStatuses"]}
        assert set(states.values()) == {(True, 0)}, (item["metadata"]["name"], states, cluster.logs())


def check_rollout(cluster: Cluster, output: str) -> None:
    """`make deploy` waited for every Deployment, and they run."""
    deployments = cluster.kubectl.get("deployments", "-n", SYSTEM)["items"]
    names = [f'deployment "{item["metadata"]["name"]}" successfully rolled out' for item in deployments]
    assert names
    assert [name for name in names if name not in output] == []
    check_replicas(cluster)


def leader(kubectl: Kubectl, lease: str) -> str:
    """The pod that has a lease; "" if none has."""
    found = kubectl.run("get", "lease", lease, "-n", SYSTEM, "-o", "jsonpath={.spec.holderIdentity}").stdout
    names = [item["metadata"]["name"] for item in system_pods(kubectl)]
    return next((name for name in names if found.startswith(f"{name}_")), "")


@pytest.mark.parametrize("overlay", ["default", "cert-manager"])
def test_a_pod_of_a_tenant_is_admitted_charged_placed_and_debited(
    cluster: Cluster, card_node: str, overlay: str
) -> None:
    kubectl = cluster.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=2, mem=6000))
    user = tenant(kubectl, cluster.plane, cluster.folder, space)
    if overlay == "cert-manager":
        define_cert_manager(kubectl)
        installation = installed(cluster, overlay, lambda: act_as_cert_manager(kubectl))
    else:
        installation = installed(cluster, overlay)
    with installation as output:
        check_rollout(cluster, output)
        # a rollout doesn't show it: a kube-scheduler that doesn't get its lease lives, and schedules nothing
        eventually(lambda: leader(kubectl, "hami-scheduler").startswith("hami-scheduler-"), seconds=60)
        with device_plugins(cluster):
            user.apply(card_pod(space, "p", 2000))
            assert kubectl.used(space) == {"gpu": "1", "gpumem": "2k"}
            refused = user.refused(card_pod(space, "q", 5000))
            assert "exceeded quota: gpu-quota, requested: limits.nvidia.com/gpumem=5000, used: " in refused
            eventually(lambda: user.get("pod", "p", "-n", space)["spec"].get("nodeName"), card_node, seconds=60)
            eventually(lambda: user.get("pod", "p", "-n", space)["status"]["phase"], "Running")
            notes = user.get("pod", "p", "-n", space)["metadata"]["annotations"]
            assert notes[ALLOCATED] == f"{card_node}-0,NVIDIA,2000,0:;"
            assert kubectl.used(space) == {"gpu": "1", "gpumem": "2k"}
            user("delete", "pod", "p", "-n", space)
            eventually(lambda: kubectl.used(space), {"gpu": "0", "gpumem": "0"})
        check_replicas(cluster)
    # nothing is refused because what would answer is gone
    user.apply(card_pod(space, "p", 5000))


def test_drop_in_charges_for_what_hami_places(cluster: Cluster, card_node: str) -> None:
    kubectl = cluster.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=2, mem=6000))
    user = tenant(kubectl, cluster.plane, cluster.folder, space)
    with installed(cluster, "drop-in") as output:
        check_rollout(cluster, output)
        user.apply(card_pod(space, "p", 2000))
        assert kubectl.used(space) == {"gpu": "1", "gpumem": "2k"}
        assert "exceeded quota: gpu-quota" in user.refused(card_pod(space, "q", 5000))
        # what HAMi's scheduler writes, with the account of HAMi's chart, counts; what a tenant writes doesn't
        allocation = f"{ALLOCATED}={card_node}-0,NVIDIA,3000,0:;"
        forged = user.run("annotate", "pod", "p", "-n", space, allocation)
        assert "is written by the scheduler and device plugins only" in forged.stderr
        hami = "--as=system:serviceaccount:kube-system:hami-scheduler", "--as-group=system:masters"
        kubectl("annotate", "pod", "p", "-n", space, f"hami.io/vgpu-node={card_node}", allocation, *hami)
        bind(kubectl, space, "p", card_node)
        eventually(lambda: kubectl.used(space), {"gpu": "1", "gpumem": "3k"})
        user("delete", "pod", "p", "-n", space, "--grace-period=0", "--force")
        eventually(lambda: kubectl.used(space), {"gpu": "0", "gpumem": "0"})
        check_replicas(cluster)


def bind(kubectl: Kubectl, space: str, name: str, node: str) -> None:
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": space}, "target": target}
    kubectl("create", "--raw", f"/api/v1/namespaces/{space}/pods/{name}/binding", "-f", "-", stdin=json.dumps(binding))


RENAMED = """\
nvidia:
  resourceCountName: hami.io/gpu
  resourceMemoryName: hami.io/gpumem
  resourceMemoryPercentageName: hami.io/gpumem-percentage
  resourceCoreName: hami.io/gpucores
  defaultGPUNum: 1
"""


def renamed(found: JSON) -> JSON:
    """An object with the resources of `RENAMED` instead of NVIDIA's."""
    changed: JSON = json.loads(json.dumps(found).replace("nvidia.com/", "hami.io/"))
    return changed


def used(kubectl: Kubectl, space: str) -> JSON:
    found: JSON = kubectl.get("resourcequota", "gpu-quota", "-n", space)["status"].get("used") or {}
    return found


def test_resources_of_other_names_take_one_file(cluster: Cluster, card_node: str) -> None:
    kubectl = cluster.kubectl
    space = namespace(kubectl)
    kubectl.apply(renamed(quota(space, gpu=2, mem=6000)))
    user = tenant(kubectl, cluster.plane, cluster.folder, space)
    path = cluster.folder / "device-config.yaml"
    path.write_text(RENAMED)
    with installed(cluster, "default", CONFIG=str(path)) as output, device_plugins(cluster):
        check_rollout(cluster, output)
        user.apply(renamed(card_pod(space, "p", 2000)))
        assert used(kubectl, space) == {"limits.hami.io/gpu": "1", "limits.hami.io/gpumem": "2k"}
        refused = user.refused(renamed(card_pod(space, "q", 5000)))
        assert "exceeded quota: gpu-quota, requested: limits.hami.io/gpumem=5000, used: " in refused
        # the node has no such capacity: kube-scheduler leaves these names to the extender
        eventually(lambda: user.get("pod", "p", "-n", space)["spec"].get("nodeName"), card_node, seconds=60)
        notes = user.get("pod", "p", "-n", space)["metadata"]["annotations"]
        assert notes[ALLOCATED] == f"{card_node}-0,NVIDIA,2000,0:;"
        user("delete", "pod", "p", "-n", space)
        eventually(lambda: used(kubectl, space), {"limits.hami.io/gpu": "0", "limits.hami.io/gpumem": "0"})
        check_conditions_come_back(kubectl)
        check_replicas(cluster)


def check_conditions_come_back(kubectl: Kubectl) -> None:
    """A condition that somebody edits is put right by the controller, which says so."""
    kind = "validatingwebhookconfiguration"

    def conditions() -> list[JSON]:
        hooks = kubectl.get(kind, "hami-webhook-admission")["webhooks"]
        return [hook["matchConditions"] for hook in hooks]

    before = conditions()
    edit = [{"op": "replace", "path": "/webhooks/0/matchConditions/0/expression", "value": "false"}]
    kubectl("patch", kind, "hami-webhook-admission", "--type=json", "-p", json.dumps(edit))
    eventually(conditions, before)
    reason = "get", "events", "-A", "--field-selector", "reason=WebhookConditionsMended", "-o", "name"
    eventually(lambda: kubectl(*reason) != "")


def test_another_device_configuration_replaces_the_pods(cluster: Cluster) -> None:
    kubectl = cluster.kubectl
    space = namespace(kubectl)
    kubectl.apply(renamed(quota(space, gpu=2, mem=6000)))
    user = tenant(kubectl, cluster.plane, cluster.folder, space)
    path = cluster.folder / "device-config.yaml"
    path.write_text(RENAMED)
    with installed(cluster, "default"):
        before = {item["metadata"]["name"] for item in system_pods(kubectl)}
        cluster.deploy("up", CONFIG=str(path))
        eventually(lambda: before & {item["metadata"]["name"] for item in system_pods(kubectl)}, set(), seconds=90)
        check_replicas(cluster)
        # the controller of before may have put its conditions back until it ended
        eventually(lambda: charged(user, space), "1", seconds=60)


def charged(user: Kubectl, space: str) -> str | None:
    """What the quota counts of a new pod, which is the only one and doesn't stay."""
    user.apply(renamed(card_pod(space, "p", 2000)))
    found = used(user, space).get("limits.hami.io/gpu")
    user("delete", "pod", "p", "-n", space, "--grace-period=0", "--force")
    return found


def test_what_cannot_be_installed_is_refused_before_anything_is_applied(cluster: Cluster) -> None:
    kubectl = cluster.kubectl
    broken = cluster.folder / "device-config.yaml"
    broken.write_text("nvidia:\n  resourceCountName: gpu\n")
    refused = cluster.refused(kubectl, CONFIG=str(broken))
    assert f"{broken}:2: nvidia.resourceCountName: must be a resource name" in refused
    for kind in DEFINITIONS:
        kubectl("delete", "--ignore-not-found", "crd", f"{kind.lower()}s.cert-manager.io")
    kinds = "api-resources", "--api-group=cert-manager.io", "-o", "name"
    eventually(lambda: kubectl(*kinds), "")
    assert "needs cert-manager, which this cluster doesn't have" in cluster.refused(kubectl, OVERLAY="cert-manager")
    user = tenant(kubectl, cluster.plane, cluster.folder, namespace(kubectl))
    assert "may not create: namespaces clusterroles clusterrolebindings" in cluster.refused(user)
    nobody = Kubectl(cluster.folder / "none")
    nobody.kubeconfig.write_text(
        cluster.plane.kubeconfig.read_text().replace(cluster.plane.server, "https://127.0.0.1:9")
    )
    assert "the cluster of the current kubeconfig doesn't answer" in cluster.refused(nobody)


def test_a_process_with_a_broken_device_configuration_says_the_line(cluster: Cluster) -> None:
    """What `make deploy` refuses may come another way: `kubectl edit`, a GitOps tool."""
    kubectl = cluster.kubectl
    with installed(cluster, "default"):
        (held,) = [
            item
            for item in kubectl.get("configmaps", "-n", SYSTEM)["items"]
            if item["metadata"]["name"].startswith("hami-device-config-")
        ]
        text = {"data": {"device-config.yaml": "nvidia:\n  resourceCountName: gpu\n"}}
        kubectl("patch", "configmap", held["metadata"]["name"], "-n", SYSTEM, "--type=merge", "-p", json.dumps(text))
        for component in ("webhook", "controller", "hami-scheduler"):
            labels = f"app.kubernetes.io/component={component}"
            kubectl("delete", "pods", "-n", SYSTEM, "-l", labels, "--wait=false")
        said = "device-config.yaml:2: nvidia.resourceCountName: must be a resource name"
        wanted = {"webhook.log", "controller.log", "configure.log"}
        folder = cluster.plane.folder / "pods"
        eventually(
            lambda: {log.name for log in folder.glob(f"{SYSTEM}_*/*.log") if said in log.read_text()},
            wanted,
            seconds=60,
        )
