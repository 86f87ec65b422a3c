"""The Helm chart as users install it: what it renders is what runs, by a kubelet, and nothing is the test's own."""

from __future__ import annotations

import json

import pytest
from helm_program import CHART, RELEASE, Helm

from .deployment import SYSTEM, Kubectl, eventually
from .helm import OF_A_NAMESPACE, installed
from .installation import (
    DEFINITIONS,
    RENAMED,
    Cluster,
    act_as_cert_manager,
    card_pod,
    check_a_pod_that_hami_places,
    check_a_pods_life,
    check_replicas,
    define_cert_manager,
    quota_of_a_tenant,
    renamed,
    wait_for_names,
)


@pytest.fixture
def helm(cluster: Cluster) -> Helm:
    return Helm(cluster.folder, cluster.plane.kubeconfig)


def bundles(kubectl: Kubectl) -> set[str]:
    """The authorities that the webhooks trust."""
    kinds = "mutatingwebhookconfiguration", "validatingwebhookconfiguration"
    found = [hook for kind in kinds for hook in kubectl.get(kind, "hami-webhook-admission")["webhooks"]]
    return {hook["clientConfig"].get("caBundle", "") for hook in found}


def replicas(kubectl: Kubectl) -> dict[str, int]:
    """How many pods of each Deployment are ready."""
    items = kubectl.get("deployments", "-n", SYSTEM)["items"]
    return {item["metadata"]["name"]: item["status"].get("readyReplicas", 0) for item in items}


def check_failing_test(kubectl: Kubectl, helm: Helm) -> None:
    """`helm test` says why it fails, and leaves no pod that `helm uninstall` wouldn't take away."""
    kubectl("scale", "deployment/hami-webhook", "-n", SYSTEM, "--replicas=0")
    replicas = "pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=webhook"
    kubectl("wait", *replicas, "--for=delete", "--timeout=120s")
    said = helm.refused("test", RELEASE, "--namespace", SYSTEM, "--timeout=120s")
    assert "pod hami-webhook-test failed" in said
    assert kubectl("get", "pods", "-n", SYSTEM, "--ignore-not-found", "hami-webhook-test", "-o", "name") == ""


def test_install_test_upgrade_roll_back_uninstall(cluster: Cluster, helm: Helm, card_node: str) -> None:
    """The upgrade changes the number of replicas, and the names of the resources by the device configuration."""
    kubectl = cluster.kubectl
    space, user = quota_of_a_tenant(cluster)
    renamed_space, renamed_user = quota_of_a_tenant(cluster, renamed)
    file = cluster.folder / "device-config.yaml"
    file.write_text(RENAMED)
    with installed(cluster, helm):
        check_replicas(cluster)
        check_a_pods_life(cluster, user, space, card_node)
        assert "Phase:          Succeeded" in helm("test", RELEASE, "--namespace", SYSTEM, "--timeout=120s")
        check_failing_test(kubectl, helm)
        trusted = bundles(kubectl)
        assert len(trusted) == 1
        changed = "--set", "webhook.replicas=3,controller.replicas=1", "--set-file", f"deviceConfig={file}"
        helm(*helm.on_release("upgrade", CHART, *changed))
        assert replicas(kubectl) == {"hami-webhook": 3, "hami-webhook-controller": 1, "hami-scheduler": 2}
        assert bundles(kubectl) == trusted
        wait_for_names(renamed_user, renamed_space, renamed)
        # as its device plugin, which would be asked else whether it is there, and be taken for gone after a minute
        cards = {"hami.io/gpu": "10"}
        offered = json.dumps({"status": {"capacity": cards, "allocatable": cards}})
        kubectl("patch", "node", card_node, "--subresource=status", "--type=merge", "-p", offered)
        check_a_pods_life(cluster, renamed_user, renamed_space, card_node, of="hami.io")
        # a device configuration that can't be used: what runs goes on
        broken = {"deviceConfig": "nvidia: {resourceCountName: nvidia.com/gpu, defaultMemory: much}"}
        failed = helm.refused(*helm.on_release("upgrade", CHART, "-f", helm.values("broken", broken), timeout="15s"))
        assert "timed out waiting for the condition" in failed or "context deadline exceeded" in failed
        check_a_pods_life(cluster, renamed_user, renamed_space, card_node, of="hami.io")
        helm(*helm.on_release("rollback", "1"))
        assert replicas(kubectl) == {"hami-webhook": 2, "hami-webhook-controller": 2, "hami-scheduler": 2}
        assert bundles(kubectl) == trusted
        wait_for_names(user, space)
        check_a_pods_life(cluster, user, space, card_node)
    # nothing is refused because what would answer is gone
    user.apply(card_pod(space, "p", 5000))


def test_with_cert_manager(cluster: Cluster, helm: Helm, card_node: str) -> None:
    kubectl = cluster.kubectl
    space, user = quota_of_a_tenant(cluster)
    define_cert_manager(kubectl)
    arguments = ("--set", "scheduler.certManager.enabled=true")
    with installed(cluster, helm, *arguments, meanwhile=lambda: act_as_cert_manager(kubectl)):
        check_replicas(cluster)
        check_a_pods_life(cluster, user, space, card_node)


def test_without_cert_manager_nothing_is_installed(cluster: Cluster, helm: Helm) -> None:
    # other tests may have defined its kinds
    kinds = [f"{kind.lower()}s.cert-manager.io" for kind in DEFINITIONS]
    cluster.kubectl("delete", "crd", "--ignore-not-found", *kinds)
    eventually(lambda: cluster.kubectl("api-resources", "--api-group=cert-manager.io", "-o", "name"), "")
    before = cluster.objects()
    arguments = helm.on_release("install", CHART, "--create-namespace", "--set", "scheduler.certManager.enabled=true")
    assert "install cert-manager first" in helm.refused(*arguments)
    assert cluster.objects() - before <= OF_A_NAMESPACE
    cluster.kubectl("delete", "namespace", SYSTEM, "--ignore-not-found")


def test_beside_hami(cluster: Cluster, helm: Helm, card_node: str) -> None:
    space, user = quota_of_a_tenant(cluster)
    with installed(cluster, helm, "--set", "dropIn.enabled=true"):
        check_replicas(cluster)
        check_a_pod_that_hami_places(cluster, user, space, card_node)


def test_a_section_that_the_program_ignores_is_named_in_the_notes(helm: Helm) -> None:
    values = helm.values("values", {"deviceConfig": {"nvida": {}, "nvidia": {}, "other": {}}})
    notes = helm("install", "hami-webhook", CHART, "--dry-run=server", "-f", values)
    assert "deviceConfig.nvida: no such section, ignored; did you mean nvidia?\n" in notes
    assert "deviceConfig.other: no such section, ignored\n" in notes
    assert "deviceConfig.nvidia:" not in notes
