"""`make deploy` as users do it: what the overlays render is what runs, by a kubelet, and nothing is the test's own."""

from __future__ import annotations

import json

import pytest

from .deployment import SYSTEM, Kubectl, eventually
from .installation import (
    DEFINITIONS,
    RENAMED,
    Cluster,
    act_as_cert_manager,
    card_pod,
    check_a_pod_that_hami_places,
    check_a_pods_life,
    check_replicas,
    check_rollout,
    define_cert_manager,
    installed,
    renamed,
    system_pods,
    used,
)
from .objects import JSON, namespace, quota
from .tenants import tenant


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
        check_a_pods_life(cluster, user, space, card_node)
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
        check_a_pod_that_hami_places(cluster, user, space, card_node)
        check_replicas(cluster)


def test_resources_of_other_names_take_one_file(cluster: Cluster, card_node: str) -> None:
    kubectl = cluster.kubectl
    space = namespace(kubectl)
    kubectl.apply(renamed(quota(space, gpu=2, mem=6000)))
    user = tenant(kubectl, cluster.plane, cluster.folder, space)
    path = cluster.folder / "device-config.yaml"
    path.write_text(RENAMED)
    with installed(cluster, "default", CONFIG=str(path)) as output:
        check_rollout(cluster, output)
        # the node has no such capacity: kube-scheduler leaves these names to the extender
        check_a_pods_life(cluster, user, space, card_node, of="hami.io")
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
    assert "may not create: namespaces customresourcedefinitions clusterroles clusterrolebindings" in cluster.refused(
        user
    )
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
