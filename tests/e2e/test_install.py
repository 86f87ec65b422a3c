"""What the overlays give on a real API server without nodes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import ROOT, Kubectl


@pytest.mark.parametrize("overlay", ["default", "cert-manager", "drop-in", "dev"])
def test_the_overlay_is_accepted(plane: ControlPlane, overlay: str) -> None:
    kubectl = Kubectl(plane.kubeconfig)
    rendered = kubectl("kustomize", str(ROOT / "manifests" / "overlays" / overlay))
    rendered = rendered.replace("DEV_SERVER", "127.0.0.1:9443").replace("CA_BUNDLE", "")
    # cert-manager's own kinds aren't known here
    known = [part for part in rendered.split("\n---\n") if "apiVersion: cert-manager.io" not in part]
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "hami-system"}})
    message = kubectl("apply", "--dry-run=server", "-f", "-", stdin="\n---\n".join(known))
    assert len(message.splitlines()) == len(known)


def test_make_deploy_applies_and_says_what_is_wrong(plane: ControlPlane, tmp_path: Path) -> None:
    """There are no nodes to run the replicas on, so the rollout can't end; everything before it can."""
    kubectl = Kubectl(plane.kubeconfig)
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "KUBECONFIG": str(plane.kubeconfig),
        "TIMEOUT": "2s",
        "HOME": str(tmp_path),
    }

    def deploy(verb: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "hack" / "deploy", verb],
            env=environment | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    try:
        done = deploy("up", IMAGE="registry.example/hami-webhook:1")
        assert done.returncode == 1
        assert "the replicas aren't ready" in done.stderr
        deployment = kubectl.get("deployment", "hami-webhook", "-n", "hami-system")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"] == "registry.example/hami-webhook:1"
        scheduler = kubectl.get("deployment", "hami-scheduler", "-n", "hami-system")
        images = [each["image"] for each in scheduler["spec"]["template"]["spec"]["containers"]]
        assert images == ["registry.k8s.io/kube-scheduler:v1.36.3", "registry.example/hami-webhook:1"]
        # the restricted standard is enforced in the namespace, and refuses no pod of ours
        pods = kubectl.get("pods", "-n", "hami-system", "-l", "app.kubernetes.io/name=hami-webhook")
        assert len(pods["items"]) == 6
        # the API server's addresses as a value
        assert deploy("up", API_SERVER_CIDRS="10.0.0.1/8").stderr.startswith("deploy: API_SERVER_CIDRS must be")
        assert "the replicas aren't ready" in deploy("up", API_SERVER_CIDRS="10.0.0.1/32,10.0.0.2").stderr
        _, reviews = kubectl.get("networkpolicy", "hami-webhook", "-n", "hami-system")["spec"]["ingress"]
        assert reviews["from"] == [{"ipBlock": {"cidr": f"10.0.0.{host}/32"}} for host in (1, 2)]
    finally:
        assert deploy("down").returncode == 0
    left = kubectl.run("get", "validatingwebhookconfiguration", "hami-webhook-admission")
    assert "NotFound" in left.stderr
    assert "OVERLAY must be one of" in deploy("up", OVERLAY="none").stderr
