"""`make deploy` as users do it: what the overlays render is what runs, by a kubelet, and nothing is the test's own."""

from __future__ import annotations

import json

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
    quota_of_a_tenant,
    renamed,
    system_pods,
    wait_for_names,
)
from .objects import JSON, namespace
from .tenants import tenant


def test_a_pod_of_a_tenant_is_admitted_charged_placed_and_debited(cluster: Cluster, card_node: str) -> None:
    """With the default overlay as it is, and then with resources of other names."""
    kubectl = cluster.kubectl
    space, user = quota_of_a_tenant(cluster)
    renamed_space, renamed_user = quota_of_a_tenant(cluster, renamed)
    with installed(cluster, "default") as output:
        check_rollout(cluster, output)
        check_a_pods_life(cluster, user, space, card_node)
        check_replicas(cluster)
        check_another_configuration_replaces_the_pods(cluster, renamed_space, renamed_user)
        # the node has no such capacity: kube-scheduler leaves these names to the extender
        check_a_pods_life(cluster, renamed_user, renamed_space, card_node, of="hami.io")
        check_conditions_come_back(kubectl)
        check_replicas(cluster)
        check_a_broken_configuration_is_said(cluster)
    # nothing is refused because what would answer is gone
    user.apply(card_pod(space, "p", 5000))


def test_the_certificate_comes_from_cert_manager(cluster: Cluster, card_node: str) -> None:
    space, user = quota_of_a_tenant(cluster)
    define_cert_manager(cluster.kubectl)
    with installed(cluster, "cert-manager", lambda: act_as_cert_manager(cluster.kubectl)) as output:
        check_rollout(cluster, output)
        check_a_pods_life(cluster, user, space, card_node)
        check_replicas(cluster)


def test_drop_in_charges_for_what_hami_places(cluster: Cluster, card_node: str) -> None:
    space, user = quota_of_a_tenant(cluster)
    with installed(cluster, "drop-in") as output:
        check_rollout(cluster, output)
        check_a_pod_that_hami_places(cluster, user, space, card_node)
        check_replicas(cluster)


def check_another_configuration_replaces_the_pods(cluster: Cluster, space: str, user: Kubectl) -> None:
    path = cluster.folder / "device-config.yaml"
    path.write_text(RENAMED)
    before = names_of_pods(cluster.kubectl)
    cluster.deploy("up", CONFIG=str(path))
    eventually(lambda: before & names_of_pods(cluster.kubectl), set(), seconds=180)
    check_replicas(cluster)
    wait_for_names(user, space, renamed)


def names_of_pods(kubectl: Kubectl) -> set[str]:
    return {item["metadata"]["name"] for item in system_pods(kubectl)}


def check_conditions_come_back(kubectl: Kubectl) -> None:
    """A condition that somebody edits is put right by the controller, which says so."""
    kind = "validatingwebhookconfiguration"

    def conditions() -> list[JSON]:
        hooks = kubectl.get(kind, "hami-webhook-admission")["webhooks"]
        return [hook["matchConditions"] for hook in hooks]

    def said() -> int:
        reason = "--field-selector", "reason=WebhookConditionsMended"
        return sum(item["count"] for item in kubectl.get("events", "-A", *reason)["items"])

    before, said_before = conditions(), said()
    edit = [{"op": "replace", "path": "/webhooks/0/matchConditions/0/expression", "value": "false"}]
    kubectl("patch", kind, "hami-webhook-admission", "--type=json", "-p", json.dumps(edit))
    eventually(conditions, before)
    eventually(lambda: said() > said_before)


def check_a_broken_configuration_is_said(cluster: Cluster) -> None:
    """By each process, with the line: what `make deploy` refuses may come by `kubectl edit` or by a GitOps tool."""
    kubectl = cluster.kubectl
    text = {"data": {"device-config.yaml": "nvidia:\n  resourceCountName: gpu\n"}}
    for item in kubectl.get("configmaps", "-n", SYSTEM)["items"]:
        name = item["metadata"]["name"]
        if name.startswith("hami-device-config-"):
            kubectl("patch", "configmap", name, "-n", SYSTEM, "--type=merge", "-p", json.dumps(text))
    for component in ("webhook", "controller", "hami-scheduler"):
        labels = f"app.kubernetes.io/component={component}"
        kubectl("delete", "pods", "-n", SYSTEM, "-l", labels, "--wait=false")
    said = "device-config.yaml:2: nvidia.resourceCountName: must be a resource name"
    wanted = {"webhook.log", "controller.log", "configure.log"}
    logs = cluster.plane.folder / "pods"
    eventually(
        lambda: {log.name for log in logs.glob(f"{SYSTEM}_*/*.log") if said in log.read_text()}, wanted, seconds=180
    )


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
