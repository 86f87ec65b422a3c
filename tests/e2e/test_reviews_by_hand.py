"""Reviews that somebody else than the API server posts, with the setup of docs/api-server-authentication.md.

Who is let in by its address is in tests/server/test_app.py.
"""

from __future__ import annotations

import re
import ssl
import subprocess
import tempfile
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane, assets

from .deployment import ROOT, Balancer, Deployment, Kubectl
from .objects import namespace, pod, quota
from .webhooks import post_review

PAGE = (ROOT / "docs" / "api-server-authentication.md").read_text()
FOLDER, HOST = "/etc/kubernetes/admission", "hami-webhook.hami-system.svc"


def block(language: str, beginning: str) -> str:
    """The one code block of the page that contains a text."""
    (found,) = (text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if beginning in text)
    return str(found)


@pytest.fixture(scope="module")
def certified() -> Iterator[Deployment]:
    """A control plane and a webhook, both set up as the page says, with other paths and the address of the webhook."""
    programs = assets(build=False)
    assert programs is not None
    balancer = Balancer()
    with tempfile.TemporaryDirectory(prefix="hami-webhook-e2e-") as name:
        folder = Path(name) / "admission"
        folder.mkdir()
        subprocess.run(["sh", "-e"], input=block("sh", "openssl req"), cwd=folder, text=True, check=True)
        for file, kind in (("configuration.yaml", "AdmissionConfiguration"), ("webhooks.kubeconfig", "Config")):
            text = block("yaml", f"kind: {kind}\n").replace(FOLDER, str(folder))
            (folder / file).write_text(text.replace(HOST, f"127.0.0.1:{balancer.port}"))
        flag = block("text", "--admission-control").strip().replace(FOLDER, str(folder))
        plane = ControlPlane(programs, Path(name) / "plane", api_server_flags=(flag,))
        plane.start()
        deployment = Deployment(plane, Path(name) / "program", Kubectl(plane.kubeconfig), balancer=balancer)
        try:
            deployment.install()
            deployment.start("hami-webhook-0", "--client-ca-file", str(folder / "clients-ca.crt"))
            yield deployment
        finally:
            deployment.close()
            plane.stop()


def test_with_client_certificates_the_api_server_s_reviews_pass_and_no_others(certified: Deployment) -> None:
    kubectl = certified.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=10))
    ghost = pod(space, "ghost", gpu=10)
    for path in ("/mutate", "/validate", "/webhook"):
        with pytest.raises((ssl.SSLError, ConnectionError, urllib.error.URLError)):
            post_review(certified, path, ghost)
    kubectl.apply(pod(space, "p", gpu=1, gpumem=100))
    assert kubectl.get("pod", "p", "-n", space)["spec"]["schedulerName"] == "hami-scheduler"
    assert kubectl.used(space) == {"gpu": "1"}
    assert "exceeded quota" in kubectl.refused(pod(space, "q", gpu=10, gpumem=100))
    assert certified.metric("hami-webhook-0", "hami_webhook_tls_failed_handshakes_total") >= 3
    assert certified.ready("hami-webhook-0"), "probes need no certificate"
