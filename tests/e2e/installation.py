"""The program installed on a cluster with a kubelet, by whatever installs it: what is there, and whether it works."""

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

from hack.devcluster.plane import NODE, ControlPlane
from hami_webhook import pki

from .api_client import api_client
from .deployment import ROOT, SYSTEM, Kubectl, bound_role, eventually, service_account
from .kubelet import Kubelets
from .objects import JSON, add_ready_node, gpu_node, namespace, pod, quota
from .scheduling import bind
from .tenants import tenant

ALLOCATED = "hami.io/vgpu-devices-allocated"
DEFINITIONS = ("Certificate", "Issuer")
"""The kinds of cert-manager that its overlay uses."""
RENAMED = """\
nvidia:
  resourceCountName: hami.io/gpu
  resourceMemoryName: hami.io/gpumem
  resourceMemoryPercentageName: hami.io/gpumem-percentage
  resourceCoreName: hami.io/gpucores
  defaultGPUNum: 1
"""


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
                output, _ = process.communicate(timeout=600)
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
            timeout=300,
            check=False,
        )
        assert done.returncode == 1, done.stdout
        assert self.objects() == before
        return done.stderr

    def logs(self) -> str:
        """The end of every container's log, and of the kubelet's."""
        logs = [self.plane.folder / "kubelet.log", *sorted((self.plane.folder / "pods").glob(f"{SYSTEM}_*/*.log"))]
        return "\n".join(f"{log.parent.name}/{log.name}:\n{log.read_text()[-1500:]}" for log in logs)

    def objects(self) -> set[tuple[str, str, str]]:
        """Kind, namespace and name of everything that the API server stores, but events, and what controllers make."""
        return {each for each in api_client(self.kubectl.kubeconfig).everything() if not _is_of_controllers(*each)}


def _is_of_controllers(kind: str, namespace: str, name: str) -> bool:
    """Whether kube-controller-manager makes an object, in its first seconds or for each namespace."""
    if kind == "ServiceAccount":
        return name == "default" or namespace == "kube-system"
    return (kind, name) == ("ConfigMap", "kube-root-ca.crt")


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
    eventually(lambda: cluster.objects() - before, set())


def check_rollout(cluster: Cluster, output: str) -> None:
    """`make deploy` waited for every Deployment, and they run."""
    deployments = cluster.kubectl.get("deployments", "-n", SYSTEM)["items"]
    names = [f'deployment "{item["metadata"]["name"]}" successfully rolled out' for item in deployments]
    assert names
    assert [name for name in names if name not in output] == []
    check_replicas(cluster)


@contextlib.contextmanager
def device_plugins(cluster: Cluster) -> Iterator[Kubelets]:
    """HAMi's device plugins, for nodes that are objects only, as an account that may do everything."""
    name = "hami-device-plugin"
    binding = bound_role("e2e-device-plugin", "cluster-admin", name, SYSTEM)
    cluster.kubectl.apply(service_account(name, SYSTEM), binding)
    plugins = Kubelets(tenant(cluster.kubectl, cluster.plane, cluster.folder, SYSTEM, name=name).kubeconfig)
    try:
        yield plugins
    finally:
        plugins.close()
        cluster.kubectl("delete", "clusterrolebinding", "e2e-device-plugin")


def card_pod(space: str, name: str, memory: int) -> JSON:
    found = pod(space, name, gpu=1, gpumem=memory)
    found["spec"]["tolerations"] = [{"key": "cards", "operator": "Exists"}]
    return found


def renamed(found: JSON) -> JSON:
    """An object with the resources of `RENAMED` instead of NVIDIA's."""
    changed: JSON = json.loads(json.dumps(found).replace("nvidia.com/", "hami.io/"))
    return changed


def quota_of_a_tenant(cluster: Cluster, changed: Callable[[JSON], JSON] = lambda found: found) -> tuple[str, Kubectl]:
    """A namespace with a quota of 2 cards and 6000 MiB, and who may create pods there."""
    space = namespace(cluster.kubectl)
    cluster.kubectl.apply(changed(quota(space, gpu=2, mem=6000)))
    return space, tenant(cluster.kubectl, cluster.plane, cluster.folder, space)


def wait_for_names(user: Kubectl, space: str, changed: Callable[[JSON], JSON] = lambda found: found) -> None:
    """Wait until both webhooks are asked for the resources that `changed` gives, in a namespace of `quota_of_a_tenant`.

    The controller of before may have put its webhooks' conditions back until it ended.
    """

    def answered(memory: int) -> str:
        """The scheduler that a pod gets, or why it is refused. Nothing is created, and nothing charged."""
        asked = json.dumps(changed(card_pod(space, "p", memory)))
        scheduler = "jsonpath={.spec.schedulerName}"
        done = user.run("create", "--dry-run=server", "-o", scheduler, "-f", "-", stdin=asked)
        return done.stdout or done.stderr

    eventually(lambda: answered(2000), "hami-scheduler", seconds=180)
    eventually(lambda: "exceeded quota: gpu-quota" in answered(7000), seconds=180)


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
        kubectl("wait", f"crd/{name}", "--for=condition=Established", "--timeout=120s")


def act_as_cert_manager(kubectl: Kubectl) -> None:
    """What cert-manager does about the overlay's Certificate and its annotations, once they are there."""
    kubectl("wait", "certificate/hami-webhook", "-n", SYSTEM, "--for=create", "--timeout=120s")
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
        # kubectl applies them last
        eventually(lambda: len(kubectl.get(kind)["items"]), 1)  # noqa: B023  called at once
        (found,) = kubectl.get(kind)["items"]
        assert found["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == f"{SYSTEM}/hami-webhook"
        # not `kubectl replace`, which would keep the version for the next `kubectl apply` to take out
        paths = (f"/webhooks/{index}/clientConfig/caBundle" for index in range(len(found["webhooks"])))
        patch = [{"op": "add", "path": path, "value": data["ca.crt"]} for path in paths]
        kubectl("patch", kind, found["metadata"]["name"], "--type=json", "-p", json.dumps(patch))


def system_pods(kubectl: Kubectl) -> list[JSON]:
    found: list[JSON] = kubectl.get("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/part-of=hami-webhook")["items"]
    return found


def check_replicas(cluster: Cluster) -> None:
    """Every pod of ours runs on the node and is ready soon, and no container had to be restarted."""

    def states() -> dict[str, dict[str, tuple[bool, int]]]:
        return {
            item["metadata"]["name"]: {
                each["name"]: (each["ready"], each["restartCount"]) for each in item["status"]["containerStatuses"]
            }
            for item in system_pods(cluster.kubectl)
        }

    # nobody waits for a DaemonSet's pods
    with contextlib.suppress(AssertionError):
        eventually(lambda: {state for each in states().values() for state in each.values()}, {(True, 0)})
    for name, found in states().items():
        assert set(found.values()) == {(True, 0)}, (name, found, cluster.logs())
    assert {item["spec"]["nodeName"] for item in system_pods(cluster.kubectl)} == {NODE}


def leader(kubectl: Kubectl, lease: str) -> str:
    """The pod that has a lease; "" if none has."""
    held = [each["spec"] for each in kubectl.get("leases", "-n", SYSTEM)["items"] if each["metadata"]["name"] == lease]
    found = held[0].get("holderIdentity") or "" if held else ""
    names = [item["metadata"]["name"] for item in system_pods(kubectl)]
    return next((name for name in names if found.startswith(f"{name}_")), "")


def used(kubectl: Kubectl, space: str) -> JSON:
    found: JSON = kubectl.get("resourcequota", "gpu-quota", "-n", space)["status"].get("used") or {}
    return found


def add_card_node(kubectl: Kubectl, name: str, *memories: int) -> None:
    """A node with cards of these sizes in MiB, which kube-scheduler may use for pods that `card_pod` makes."""
    # nothing but pods that request cards: the kubelet of this node is a device plugin
    taint = {"key": "cards", "effect": "NoSchedule"}
    add_ready_node(kubectl, gpu_node(name, *memories), taint, gpu=10 * len(memories), cpu=1)


def check_a_pods_life(cluster: Cluster, user: Kubectl, space: str, node: str, of: str = "nvidia.com") -> None:
    """A pod is admitted, charged, placed by the installed kube-scheduler and debited, and one too many is refused.

    In `space` is a quota of 6000 MiB, and `of` is the domain of the resources.
    """

    def asked(name: str, memory: int) -> JSON:
        found = card_pod(space, name, memory)
        return found if of == "nvidia.com" else renamed(found)

    def amounts(gpu: str, memory: str) -> JSON:
        return {f"limits.{of}/gpu": gpu, f"limits.{of}/gpumem": memory}

    # a rollout doesn't show it: a kube-scheduler that doesn't get its lease lives, and schedules nothing
    eventually(lambda: leader(cluster.kubectl, "hami-scheduler").startswith("hami-scheduler-"))
    with device_plugins(cluster):
        user.apply(asked("p", 2000))
        assert used(user, space) == amounts("1", "2k")
        refused = user.refused(asked("q", 5000))
        assert f"exceeded quota: gpu-quota, requested: limits.{of}/gpumem=5000, used: " in refused
        eventually(lambda: user.get("pod", "p", "-n", space)["spec"].get("nodeName"), node)
        eventually(lambda: user.get("pod", "p", "-n", space)["status"]["phase"], "Running")
        notes = user.get("pod", "p", "-n", space)["metadata"]["annotations"]
        assert notes[ALLOCATED] == f"{node}-0,NVIDIA,2000,0:;"
        assert used(user, space) == amounts("1", "2k")
        user("delete", "pod", "p", "-n", space)
        eventually(lambda: used(user, space), amounts("0", "0"))


def check_a_pod_that_hami_places(cluster: Cluster, user: Kubectl, space: str, node: str) -> None:
    """A pod is charged as it asks, then as HAMi's scheduler places it. In `space` is a quota of 6000 MiB."""
    kubectl = cluster.kubectl
    small, large = card_pod(space, "p", 2000), card_pod(space, "q", 5000)
    for each in (small, large):
        each["spec"]["schedulerName"] = "hami-scheduler"  # as HAMi's webhook, which isn't here, writes
    user.apply(small)
    assert kubectl.used(space) == {"gpu": "1", "gpumem": "2k"}
    assert "exceeded quota: gpu-quota" in user.refused(large)
    # what HAMi's scheduler writes, with the account of HAMi's chart, counts; what a tenant writes doesn't
    allocation = f"{ALLOCATED}={node}-0,NVIDIA,3000,0:;"
    forged = user.run("annotate", "pod", "p", "-n", space, allocation)
    assert "is written by the scheduler and device plugins only" in forged.stderr
    hami = "--as=system:serviceaccount:kube-system:hami-scheduler", "--as-group=system:masters"
    kubectl("annotate", "pod", "p", "-n", space, f"hami.io/vgpu-node={node}", allocation, *hami)
    assert bind(kubectl, space, "p", node) == ""
    eventually(lambda: kubectl.used(space), {"gpu": "1", "gpumem": "3k"})
    user("delete", "pod", "p", "-n", space, "--grace-period=0", "--force")
    eventually(lambda: kubectl.used(space), {"gpu": "0", "gpumem": "0"})
