"""The manifest's own service account: with it everything works, and every right it has is used."""

from __future__ import annotations

import json
import ssl
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import SYSTEM, Deployment, Kubectl, deployed, eventually
from .objects import JSON, add_node, define_devices, gpu_node, namespace, pod, quota

ACCOUNT = f"system:serviceaccount:{SYSTEM}:hami-webhook"
Right = tuple[str, str, str]
"""API group, resource with subresource, verb."""

MAY_I: Right = ("authorization.k8s.io", "selfsubjectaccessreviews", "create")
"""What every account may: to ask what it may."""


@pytest.fixture
def program(plane: ControlPlane, tmp_path: Path) -> Iterator[Deployment]:
    """Our program on a cluster that has nothing of an earlier one's: what it keeps, it has to create."""
    kubectl = Kubectl(plane.kubeconfig)
    define_devices(kubectl)
    kubectl("delete", "--ignore-not-found", "-n", SYSTEM, "lease/hami-scheduler-controller", "secret/hami-webhook-tls")
    with deployed(plane, tmp_path, "hami-webhook-0", flags=("--certificate-secret", "hami-webhook-tls")) as deployment:
        yield deployment


def granted(program: Deployment) -> set[Right]:
    roles = [
        program.kubectl.get("clusterrole", "hami-webhook"),
        program.kubectl.get("role", "hami-webhook", "-n", SYSTEM),
    ]
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.fixture
def before(plane: ControlPlane) -> int:
    """How long the audit log is before the program starts: what earlier tests did with its account is theirs."""
    return plane.audit_log.stat().st_size


def audited(plane: ControlPlane, since: int) -> list[JSON]:
    lines = plane.audit_log.read_bytes()[since:].decode().splitlines()
    entries = [json.loads(line) for line in lines if line.endswith("}")]
    return [entry for entry in entries if entry["user"]["username"] == ACCOUNT]


def right(entry: JSON) -> Right:
    about = entry["objectRef"]
    sub = about.get("subresource")
    return about.get("apiGroup", ""), about["resource"] + (f"/{sub}" if sub else ""), entry["verb"]


def ask_about_an_unknown_namespace(program: Deployment) -> None:
    """A review of a pod whose namespace no cache knows: the program looks for itself."""
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "operation": "CREATE",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "namespace": "none-such",
            "object": pod("none-such", "p", gpu=1),
        },
    }
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = f"https://127.0.0.1:{program.balancer.port}/mutate"
    request = urllib.request.Request(url, json.dumps(review).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:
        assert json.load(answer)["response"]["status"]["code"] == 503


def test_every_verb_used_is_granted_and_every_verb_granted_is_used(
    before: int, program: Deployment, plane: ControlPlane
) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    add_node(kubectl, gpu_node("silent", 24576))  # its plugin offers nothing, so the handshake asks it
    eventually(lambda: "hami.io/node-handshake" in kubectl.get("node", "silent")["metadata"]["annotations"])
    kubectl.apply(quota(space, mem=5000))
    # once both configurations trust the Secret's authority, reviews reach us
    asked = pod(space, "p", gpu=1, gpumem=4000)
    eventually(lambda: kubectl.run("apply", "-f", "-", stdin=json.dumps(asked)).returncode, 0)
    # the same event twice is counted, not repeated
    for hard in (3000, 5000, 3000):
        kubectl.apply(quota(space, mem=hard))
        time.sleep(1.5)
    events = "events", "-n", space, "--field-selector", "reason=QuotaExceeded"
    eventually(lambda: [item["count"] for item in kubectl.get(*events)["items"]], [2])
    ask_about_an_unknown_namespace(program)
    kubectl("delete", "node", "silent")

    eventually(lambda: granted(program) - {right(entry) for entry in audited(plane, before)}, set(), seconds=20)
    entries = audited(plane, before)
    assert {right(entry) for entry in entries} - granted(program) == {MAY_I}
    # a 403 with the right granted is something else, such as a namespace that is being deleted
    assert [e for e in entries if e["annotations"]["authorization.k8s.io/decision"] != "allow"] == []
