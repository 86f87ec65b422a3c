"""Reviews that somebody else than the API server posts, with the setup of docs/api-server-authentication.md."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.devcluster.plane import ControlPlane, assets
from hami_webhook.config import SETTINGS

from .deployment import ROOT, SYSTEM, Balancer, Deployment, Kubectl, deployed, eventually
from .objects import namespace, pod, quota

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


def review(space: str) -> dict[str, Any]:
    """A review of a pod that doesn't exist, which would take the whole quota of its namespace."""
    made = pod(space, "ghost", gpu=10)
    made["metadata"]["uid"] = "0d5a7b0e-0000-4000-8000-000000000001"
    request = {
        "uid": "0d5a7b0e-0000-4000-8000-000000000002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": space,
        "name": "ghost",
        "operation": "CREATE",
        "userInfo": {"username": "system:admin", "groups": ["system:masters"]},
        "object": made,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def post(program: Deployment, path: str, space: str, source: str = "127.0.0.1") -> tuple[int, str]:
    """Post a review to a replica by hand, without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    (port,) = program.balancer.backends
    connection = HTTPSConnection("127.0.0.1", port, timeout=20, context=context, source_address=(source, 0))
    try:
        connection.request("POST", path, json.dumps(review(space)), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_with_client_certificates_the_api_server_s_reviews_pass_and_no_others(certified: Deployment) -> None:
    kubectl = certified.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=10))
    for path in ("/mutate", "/validate", "/webhook"):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            post(certified, path, space)
    kubectl.apply(pod(space, "p", gpu=1, gpumem=100))
    assert kubectl.get("pod", "p", "-n", space)["spec"]["schedulerName"] == "hami-scheduler"
    assert kubectl.used(space) == {"gpu": "1"}
    assert "exceeded quota" in kubectl.refused(pod(space, "q", gpu=10, gpumem=100))
    assert certified.metric("hami-webhook-0", "hami_webhook_tls_failed_handshakes_total") >= 3
    assert certified.ready("hami-webhook-0"), "probes need no certificate"


def test_with_source_addresses_reviews_from_elsewhere_are_refused(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    flags = ("--api-server-cidrs", "127.0.0.1/32")
    with deployed(plane, tmp_path_factory.mktemp("program"), "hami-webhook-0", flags=flags) as program:
        space = namespace(program.kubectl)
        program.kubectl.apply(quota(space, gpu=10))
        eventually(lambda: program.kubectl.used(space), {"gpu": "0"})
        for path in ("/mutate", "/validate", "/webhook"):
            status, text = post(program, path, space, source="127.0.0.2")
            assert (status, text) == (
                403,
                "reviews are accepted from --api-server-cidrs only, and 127.0.0.2 isn't in them\n",
            )
        assert (program.kubectl.used(space), program.kubectl.ledger(space)) == ({"gpu": "0"}, {})
        program.kubectl.apply(pod(space, "p", gpu=10, gpumem=100))
        assert program.kubectl.used(space) == {"gpu": "10"}


def test_an_api_server_that_was_left_out_shows_why_pods_are_refused(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    flags = ("--api-server-cidrs", "127.0.0.2/32")
    with deployed(plane, tmp_path_factory.mktemp("program"), "hami-webhook-0", flags=flags) as program:
        refused = program.kubectl.refused(pod(namespace(program.kubectl), "p", gpu=1))
        assert "reviews are accepted from --api-server-cidrs only, and 127.0.0.1 isn't in them" in refused


def test_the_page_names_what_there_is() -> None:
    """The patch of the Deployment fits ours, and its variable is that of the flag."""
    patch = yaml.safe_load(block("yaml", "HAMI_CLIENT_CA_FILE"))["spec"]["template"]["spec"]
    (container,) = patch["containers"]
    (variable,) = container["env"]
    assert [setting.env for setting in SETTINGS if setting.name == "client_ca_file"] == [variable["name"]]
    (mount,) = container["volumeMounts"]
    assert variable["value"] == f"{mount['mountPath']}/ca.crt"
    (volume,) = patch["volumes"]
    secret = block("sh", "create secret")
    assert mount["name"] == volume["name"]
    assert f"secret generic {volume['secret']['secretName']} -n {SYSTEM} --from-file=ca.crt=" in secret
    manifest = ROOT / "manifests" / "replicas" / "deployment.yaml"
    ours = next(each for each in yaml.safe_load_all(manifest.read_text()) if each["kind"] == "Deployment")
    assert ours["metadata"]["name"] == "hami-webhook"
    assert container["name"] in [each["name"] for each in ours["spec"]["template"]["spec"]["containers"]]
