"""Objects that somebody spoilt: the process stays up, heals what is its own, says so once, and goes on."""

from __future__ import annotations

import base64
import functools
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from hack.devcluster.plane import ControlPlane
from hami_webhook import pki

from .deployment import SYSTEM, Deployment, Kubectl, deployed, eventually
from .objects import JSON, MEM, add_node, gpu_node, pod, quota

NAME = "hami-webhook-0"
SECRET = ("secret", "hami-webhook-tls", "-n", SYSTEM)
LEASE = ("lease", "hami-scheduler-controller", "-n", SYSTEM)
SINCE = "hami.io/next-ca-trusted-since"


@pytest.fixture(scope="module")
def program(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    Kubectl(plane.kubeconfig)("delete", "--ignore-not-found", "-n", SYSTEM, "/".join(SECRET[:2]), "/".join(LEASE[:2]))
    flags = ("--certificate-secret", "hami-webhook-tls", "--quota-resync", "5s")
    with deployed(plane, tmp_path_factory.mktemp("program"), NAME, flags=flags) as deployment:
        eventually(lambda: deployment.kubectl.run("get", *SECRET).returncode, 0)
        yield deployment
        # it is the process that was started, and no loop of it ever failed
        assert deployment.ready(NAME)
        assert deployment.metric(NAME, "hami_webhook_loop_failures_total") == 0


@pytest.fixture
def space(program: Deployment) -> str:
    """A namespace that is none of the webhooks' business: whatever is written there, the controller reads."""
    name = f"spoilt-{os.urandom(4).hex()}"
    meta = {"name": name, "labels": {"hami.io/webhook": "ignore"}}
    program.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    program.kubectl("wait", "serviceaccount/default", "-n", name, "--for=create", "--timeout=120s")
    return name


def data(kubectl: Kubectl) -> dict[str, bytes]:
    return {name: base64.b64decode(text) for name, text in kubectl.get(*SECRET)["data"].items()}


def write(kubectl: Kubectl, what: tuple[str, ...], patch: JSON) -> None:
    kubectl("patch", *what, "--type=merge", "-p", json.dumps(patch))


def spoil(kubectl: Kubectl, *, notes: JSON | None = None, **files: bytes | None) -> None:
    """Change the Secret; `ca_crt` stands for `ca.crt`."""
    encoded = {
        name.replace("_", "."): None if value is None else base64.b64encode(value).decode()
        for name, value in files.items()
    }
    write(kubectl, SECRET, {"data": encoded, "metadata": {"annotations": notes or {}}})


def fault(kubectl: Kubectl) -> str:
    """Why the Secret can't be used, empty if it can."""
    found = data(kubectl)
    try:
        pki.check_authority(pki.KeyPair(found.get("ca.crt", b""), found.get("ca.key", b"")), datetime.now(UTC))
        pair = pki.KeyPair(found.get("tls.crt", b""), found.get("tls.key", b""))
        pki.check_serving(pair, found.get("ca.crt", b""), "hami-webhook", SYSTEM)
    except pki.PkiError as error:
        return str(error)
    return ""


def events(kubectl: Kubectl, reason: str) -> list[tuple[str, int]]:
    found = kubectl.get("events", "-n", SYSTEM, "--field-selector", f"reason={reason}")["items"]
    return [(item["message"], item["count"]) for item in found]


def test_a_bad_annotation_on_the_secret(program: Deployment) -> None:
    """It is read while an authority is announced; it ended one leader after the other."""
    kubectl = program.kubectl
    new = pki.authority(now=datetime.now(UTC))
    before = data(kubectl)["ca.crt"]
    spoil(kubectl, notes={SINCE: "garbage"}, next_crt=new.certificate, next_key=new.key)
    message = f"annotation {SINCE}: 'garbage' must be seconds since 1970, in the past"
    eventually(lambda: (message, 1) in events(kubectl, "CertificateUnusable"))
    # and the announced authority is put into force all the same
    eventually(lambda: data(kubectl)["ca.crt"], new.certificate)
    assert fault(kubectl) == ""
    assert data(kubectl)["old.crt"] == before
    assert program.metric(NAME, "hami_webhook_problems_total") >= 1


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ({"tls_key": b"garbage"}, "the serving key is not a readable, unencrypted PEM private key"),
        ({"tls_crt": b"", "tls_key": b""}, "the text holds no readable PEM certificate"),
    ],
    ids=["key", "pair"],
)
def test_a_spoilt_serving_pair(program: Deployment, spoilt: dict[str, Any], message: str) -> None:
    kubectl = program.kubectl
    authority = data(kubectl)["ca.crt"]
    spoil(kubectl, **spoilt)
    eventually(lambda: (f"tls.crt and tls.key: {message}", 1) in events(kubectl, "CertificateUnusable"))
    eventually(lambda: fault(kubectl), "")
    assert data(kubectl)["ca.crt"] == authority


def test_a_lost_authority_key(program: Deployment) -> None:
    """What it signed goes on being served and trusted, until the next authority is trusted too."""
    kubectl = program.kubectl
    before = data(kubectl)
    spoil(kubectl, ca_key=None)
    eventually(lambda: "next.crt" in data(kubectl))
    assert data(kubectl)["tls.crt"] == before["tls.crt"]
    eventually(lambda: fault(kubectl), "")
    after = data(kubectl)
    assert after["ca.crt"] != before["ca.crt"]
    assert before["ca.crt"] in after["old.crt"]
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        for hook in kubectl.get(kind, "hami-webhook-admission")["webhooks"]:
            bundle = base64.b64decode(hook["clientConfig"]["caBundle"])
            assert before["ca.crt"] in bundle
            assert after["ca.crt"] in bundle


def test_garbage_in_the_lease(program: Deployment) -> None:
    kubectl = program.kubectl
    holder = kubectl.get(*LEASE)["spec"]["holderIdentity"]
    most = 2_147_483_647
    spec = {"holderIdentity": "nobody", "leaseDurationSeconds": most, "leaseTransitions": most}
    times = {"acquireTime": "9999-12-31T23:59:59.000000Z", "renewTime": "9999-12-31T23:59:59.000000Z"}
    write(kubectl, LEASE, {"spec": spec | times})

    def lease() -> tuple[str, int, int]:
        found = kubectl.get(*LEASE)["spec"]
        return found["holderIdentity"], found["leaseDurationSeconds"], found["leaseTransitions"]

    eventually(lease, (holder, 15, 1))
    message = (
        "leaseDurationSeconds must be a whole number from 1 to 30; "
        "leaseTransitions must be a whole number from 0 to 2147483646"
    )
    eventually(lambda: (message, 1) in events(kubectl, "LeaseUnusable"))
    assert program.leader() == NAME


def test_junk_in_ledgers_nodes_and_pods(program: Deployment, space: str) -> None:
    kubectl = program.kubectl
    digits = "9" * 400
    node = gpu_node("junk", 24576)
    node["metadata"]["annotations"] |= {
        "hami.io/node-handshake": "Requesting_9999-12-31 23:59:59",
        "hami.io/node-dcu-register": f"GPU-a,10,{digits},100,X,0,true:",
        "volcano.sh/node-vgpu-register": f"GPU-a,10,{digits},100,NVIDIA-T4,0,true,0,hami-core:",
        "hami.io/mutex.lock": "TIME,,",
    }
    kubectl.apply(node)
    add_node(kubectl, gpu_node("memoryless", 24576, 0), gpu=20)
    absurd = pod(space, "absurd", gpu=1, gpumem=1000)
    absurd["metadata"]["annotations"] = {
        "hami.io/vgpu-node": "junk",
        "hami.io/vgpu-time": digits,
        "hami.io/bind-time": digits,
        "hami.io/vgpu-devices-allocated": f"junk-0,NVIDIA,{digits},{digits}:;",
        "hami.io/quota-reservation": digits,
    }
    absurd["spec"] |= {
        "activeDeadlineSeconds": 2_147_483_647,
        "terminationGracePeriodSeconds": 9_223_372_036_854_775_807,
    }
    kubectl.apply(absurd, pod(space, "plain", gpu=1, gpumem=1000))
    junk = {
        "x": {"s": "admitted", "t": 253402300799, "c": {MEM: 5000}},
        "y": 1,
        "z": {"s": "placing", "t": "x", "c": []},
    }
    for name, ledger in {"garbage": "{{{", "future": json.dumps(junk), "deep": "[" * 5000}.items():
        kubectl.apply(quota(space, name, gpu=10, mem=9000))
        notes = {"metadata": {"annotations": {"hami.io/quota-ledger": ledger}}}
        write(kubectl, ("resourcequota", name, "-n", space), notes)
    kubectl.apply(quota(space, "absurd", gpu="9223372036854775807", mem="9E"))
    # `absurd` is counted by what it asks, as what it says of itself can't be read
    for name in ("garbage", "future", "deep"):
        eventually(functools.partial(kubectl.used, space, name), {"gpu": "2", "gpumem": "2k"})
    kubectl("delete", "pod", "plain", "-n", space, "--grace-period=0", "--force")
    for name in ("garbage", "future", "deep"):
        eventually(functools.partial(kubectl.used, space, name), {"gpu": "1", "gpumem": "1k"})
    eventually(lambda: "1 of 2 NVIDIA cards are registered without memory" in said_of_nodes(kubectl))
    kubectl("delete", "node", "junk", "memoryless")


def said_of_nodes(kubectl: Kubectl) -> str:
    return str([each["message"] for each in kubectl.get("events", "-n", "default")["items"]])
