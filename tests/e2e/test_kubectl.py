"""`kubectl hami` as kubectl finds it: with few rights, and `doctor` on an installation with one fault at a time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hami_webhook import pki
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kept_fields import decode_kept
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.doctor.checks import Diagnosis, diagnose
from hami_webhook.doctor.facts import Facts

from .apiproxy import ApiProxy
from .deployment import SYSTEM, Kubectl, eventually
from .installation import (
    Cluster,
    act_as_cert_manager,
    card_pod,
    define_cert_manager,
    quota_of_a_tenant,
    wait_for_names,
)
from .objects import GPU, JSON, MEM, namespace, quota, replicated
from .tenants import tenant

CONFIGURATION = "hami-webhook-admission"


def hami(user: Kubectl, *arguments: str) -> subprocess.CompletedProcess[str]:
    return user.run("hami", *arguments)


@pytest.mark.usefixtures("plugin")
def test_a_tenant_with_view_in_one_namespace_sees_it_and_reads_what_is_left_out(
    cluster: Cluster, card_node: str
) -> None:
    kubectl = cluster.kubectl
    space, other = namespace(kubectl), namespace(kubectl)
    for each in (space, other):
        kubectl.apply(quota(each, gpu=2, mem=6000), card_pod(each, f"pod-{each}", 2000))
    user = tenant(kubectl, cluster.plane, cluster.folder, space, role="view")
    for verb, shown, lacking in (
        (("quota",), "gpu-quota", "AcceleratorQuotas aren't shown"),
        (("pods",), f"pod-{space}", ""),
        (("pods", "-A"), f"pod-{space}", f"only those of {space} are shown"),
        (("explain", "pod", f"pod-{space}"), "which nodes it fits on can't be seen", "the answer uses only"),
        (("explain", "quota", "gpu-quota"), f"pod-{space}", "models of cards and what still fits aren't known"),
        (("doctor",), "checks can't see everything with your rights; 0 faults in the rest\nNot seen: ", ""),
    ):
        done = hami(user, *verb, "-n", space)
        assert (done.returncode, shown in done.stdout) == (0, True), (verb, done.stdout, done.stderr)
        assert other not in done.stdout
        assert (lacking in done.stderr, done.stderr.count("\n")) == (True, int(bool(lacking))), (verb, done.stderr)
    for forbidden in (("nodes",), ("cards",), ("explain", "node", card_node)):
        done = hami(user, *forbidden, "-n", space)
        assert (done.returncode, done.stdout) == (1, "")
        assert "nodes can't be listed with your rights" in done.stderr
    for elsewhere in (("quota",), ("pods",), ("explain", "pod", f"pod-{other}")):
        done = hami(user, *elsewhere, "-n", other)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"can't be listed in namespace {other} with your rights" in done.stderr
    assert "no right to list nodes" in hami(user, "pods", "-n", space, "-v").stderr
    kubectl.apply(failed_scheduling(space, f"pod-{space}"))
    for program in (("kubectl", "hami", "explain", "pod"), (str(HAMI_WEBHOOK), "explain")):
        line = [*program, "-n", space, f"pod-{space}", "--kubeconfig", str(user.kubeconfig)]
        told = subprocess.run(line, capture_output=True, text=True, check=True)
        assert re.search(r"FailedScheduling of hami-scheduler, [\dms]+ ago: 0/9 nodes are available", told.stdout)
    (found,) = json.loads(hami(user, "quota", "-n", space, "-o", "json").stdout)
    assert {key["key"]: key["waiting"] for key in found["keys"]} == {GPU: 1, MEM: 2000}
    assert card_node in hami(kubectl, "cards").stdout
    assert f"pod-{other}" in hami(kubectl, "pods", "-A").stdout
    completed = kubectl("__complete", "hami", "explain", "")
    assert kubectl("__complete", "hami", "explain", "pod", "-n", space, "pod-").splitlines()[0] == f"pod-{space}"
    assert completed.splitlines()[:3] == [line.strip() for line in COMPLETED.strip().splitlines()]


def check_first_lines(cluster: Cluster) -> None:
    """What is read first of refused replicas, and of a pod in a queue.

    A real ReplicaSet's controller is refused, and a tenant reads its events.
    """
    kubectl = cluster.kubectl
    space, user = quota_of_a_tenant(cluster)
    wait_for_names(user, space)
    kubectl.apply(replicated(space, "serve", card_pod(space, "serve", 1000)["spec"], replicas=4))

    def first_line(*what: str) -> str:
        return next(iter(hami(user, *what, "-n", space).stdout.splitlines()), "")

    def refused() -> str:
        return re.sub(", (next try in|last try) .+", "", first_line("explain", "deployment", "serve"))

    eventually(refused, "2 replicas of serve refused by gpu-quota")
    assert f"{space}: 2 replicas of serve refused by gpu-quota, " in hami(user, "quota", "-n", space).stdout
    kubectl("annotate", "quota", "gpu-quota", "-n", space, "hami.io/quota-enforcement=queue")
    kubectl("scale", "deployment", "serve", "-n", space, "--replicas=1")
    waiting = card_pod(space, "train", 1000)
    waiting["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "2"
    line = "Waits for quota gpu-quota: needs 2 nvidia.com/gpu, 1 free of 2; first in line"

    def asked() -> str:
        kubectl.run("create", "-f", "-", stdin=json.dumps(waiting))  # once the replicas see that it queues
        return first_line("explain", "pod", "train")

    eventually(asked, line)
    kubectl("delete", "deployment", "serve", "-n", space, "--wait=false")

    def left() -> list[JSON]:
        kubectl.run("delete", "pods", "--all", "-n", space, "--force", "--grace-period=0")
        found: list[JSON] = kubectl.get("pods", "-n", space)["items"]
        return found

    eventually(left, [])


HAMI_WEBHOOK = Path(sys.executable).parent / "hami-webhook"


def failed_scheduling(space: str, name: str) -> JSON:
    """What kube-scheduler records of a pod that it finds no node for."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.1", "namespace": space},
        "involvedObject": {"kind": "Pod", "name": name, "namespace": space},
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": "0/9 nodes are available",
        "source": {"component": "hami-scheduler"},
        "lastTimestamp": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }


COMPLETED = """
pod\twhy a pod got its node and cards, or none, and the changes that would help
quota\tthe charges that make up a quota's used, pod by pod
node\tthe cards that a node registers, and its faults
"""


class Faults:
    """Makes faults in an installation, each until its block ends."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._kubectl = cluster.kubectl
        self.node = node

    @contextmanager
    def changed(self, change: Callable[[JSON], None], kind: str, name: str, space: str = "") -> Iterator[None]:
        """An object is another one for a while."""
        where = ("-n", space) if space else ()
        before = self._kubectl.get(kind, name, *where)
        after = json.loads(json.dumps(before))
        change(after)
        self._replace(after)
        try:
            yield
        finally:
            self._replace(before)

    @contextmanager
    def without(self, kind: str, name: str) -> Iterator[None]:
        """A cluster-wide object isn't there for a while."""
        before = self._kubectl.get(kind, name)
        self._kubectl("delete", kind, name)
        try:
            yield
        finally:
            del before["metadata"]["resourceVersion"], before["metadata"]["uid"]
            self._kubectl("create", "-f", "-", stdin=json.dumps(before))

    @contextmanager
    def scaled(self, name: str) -> Iterator[None]:
        """A Deployment has no replicas for a while."""
        self._kubectl("scale", "deployment", name, "-n", SYSTEM, "--replicas=0")
        try:
            yield
        finally:
            self._kubectl("scale", "deployment", name, "-n", SYSTEM, "--replicas=2")
            self._kubectl("rollout", "status", "deployment", name, "-n", SYSTEM, "--timeout=120s")

    @contextmanager
    def node_annotated(self, key: str, text: str) -> Iterator[None]:
        """The node of cards has an annotation for a while."""
        notes = self._kubectl.get("node", self.node)["metadata"]["annotations"]
        self._kubectl("annotate", "node", self.node, "--overwrite", f"{key}={text}")
        try:
            yield
        finally:
            back = f"{key}={notes[key]}" if key in notes else f"{key}-"
            self._kubectl("annotate", "node", self.node, "--overwrite", back)

    @contextmanager
    def silent_plugin(self) -> Iterator[None]:
        """kubelet offers no card, and nobody answers the handshake, for a while."""
        asked = f"Requesting_{datetime.now(UTC) - timedelta(minutes=5):%Y-%m-%d %H:%M:%S}"
        with self.node_annotated("hami.io/node-handshake", asked):
            self._offer(0)
            try:
                yield
            finally:
                self._offer(10)

    def _offer(self, number: int) -> None:
        amounts = {"nvidia.com/gpu": str(number)}
        patch = json.dumps({"status": {"allocatable": amounts, "capacity": amounts}})
        self._kubectl("patch", "node", self.node, "--subresource=status", "--type=merge", "-p", patch)

    def _replace(self, obj: JSON) -> None:
        obj["metadata"].pop("resourceVersion", None)
        self._kubectl("replace", "-f", "-", stdin=json.dumps(obj))


def diagnosis(cluster: Cluster, space: str) -> Diagnosis:
    async def diagnosed() -> Diagnosis:
        async with KubernetesCluster(await connect(str(cluster.kubectl.kubeconfig)), decode=decode_kept) as api:
            return await diagnose(await Facts.read(api, SYSTEM, space))

    return asyncio.run(diagnosed())


def faults(cluster: Cluster, space: str) -> dict[str, list[str]]:
    """By check the subjects and faults that `doctor` names."""
    return faults_in(diagnosis(cluster, space))


def faults_in(found: Diagnosis) -> dict[str, list[str]]:
    return {
        result.check: [f"{finding.subject}: {finding.fault}" for finding in result.findings]
        for result in found.results
        if result.findings
    }


def slow_diagnoses(cluster: Cluster, space: str) -> list[dict[str, list[str]]]:
    """What 20 doctors at once find through a proxy that takes half a second for each request."""

    async def diagnosed(kubeconfig: Path) -> Diagnosis:
        async with KubernetesCluster(await connect(str(kubeconfig)), decode=decode_kept) as api:
            return await diagnose(await Facts.read(api, SYSTEM, space))

    async def all_of_them(kubeconfig: Path) -> list[Diagnosis]:
        return await asyncio.gather(*(diagnosed(kubeconfig) for _ in range(20)))

    with ApiProxy(cluster.plane) as proxy:
        proxy.delay = 0.5
        kubeconfig = proxy.login(cluster.kubectl.kubeconfig, cluster.folder / "slow.kubeconfig")
        return [faults_in(each) for each in asyncio.run(all_of_them(kubeconfig))]


@pytest.mark.usefixtures("plugin")
def test_doctor_finds_nothing_in_a_healthy_installation_and_names_each_fault(cluster: Cluster, card_node: str) -> None:
    kubectl = cluster.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=20, mem=30_000))
    define_cert_manager(kubectl)
    try:
        # cert-manager's stand-in puts nothing right, so that faults of certificates stay
        cluster.deploy("up", lambda: act_as_cert_manager(kubectl), OVERLAY="cert-manager")
        eventually(lambda: faults(cluster, space), {})
        (open_to_all,) = (result for result in diagnosis(cluster, space).results if result.check == "review-sources")
        line, _ = open_to_all.advice[0].remedy.splitlines()
        assert [faults(cluster, space) for _ in range(20)] == [{}] * 20
        assert slow_diagnoses(cluster, space) == [{}] * 20
        check_first_lines(cluster)
        name, _, networks = line.removeprefix("make deploy ").partition("=")
        remedy: dict[str, Any] = {name: networks}
        cluster.deploy("up", OVERLAY="cert-manager", **remedy)
        eventually(lambda: faults(cluster, space), {})
        done = hami(kubectl, "doctor", "-n", space, "-o", "json")
        assert (done.returncode, json.loads(done.stdout)["healthy"], done.stderr) == (0, True, ""), done.stdout
        assert re.fullmatch(r"\d+ checks, 0 faults\n", hami(kubectl, "doctor", "-n", space).stdout)
        made = 0
        for check, fault in made_one_by_one(cluster, Faults(cluster, card_node)):
            with fault:
                eventually(lambda: set(faults(cluster, space)), {check})
            made += 1
        eventually(lambda: faults(cluster, space), {})
        assert made == 9
    finally:
        cluster.deploy("down", OVERLAY="cert-manager")


def made_one_by_one(cluster: Cluster, make: Faults) -> Iterator[tuple[str, contextlib.AbstractContextManager[None]]]:
    """The checks that are to name faults, and the faults: one for each way of seeing them on a real API server.

    Every fault that a check knows is in tests/kubectl.
    """
    kubectl = cluster.kubectl
    mutating, validating = "mutatingwebhookconfiguration", "validatingwebhookconfiguration"
    maps = [item["metadata"]["name"] for item in kubectl.get("configmaps", "-n", SYSTEM)["items"]]
    (devices,) = (name for name in maps if name.startswith("hami-device-config"))
    (scheduler,) = (name for name in maps if name.startswith("hami-scheduler-config"))
    authority = pki.authority(now=datetime.now(UTC))

    def distrust(found: JSON) -> None:
        for hook in found["webhooks"]:
            hook["clientConfig"]["caBundle"] = base64.b64encode(authority.certificate).decode()

    def rewritten(before: str, after: str) -> Callable[[JSON], None]:
        def rewrite(found: JSON) -> None:
            for file, text in found["data"].items():
                assert before in text
                found["data"][file] = text.replace(before, after)

        return rewrite

    def closed(found: JSON) -> None:
        found["spec"]["ingress"] = []

    conditions = rewritten("nvidia.com/gpucores", "acme.com/cores")
    yield "webhook-configurations", make.without(mutating, CONFIGURATION)
    yield "ca-bundle", make.changed(distrust, validating, CONFIGURATION)
    yield "network-policy", make.changed(closed, "networkpolicy", "hami-webhook", SYSTEM)
    yield "match-conditions", make.changed(conditions, "configmap", devices, SYSTEM)
    yield "rights", make.without("clusterrolebinding", "hami-webhook-configurations")
    yield "scheduler", make.changed(rewritten(":8081", ":9999"), "configmap", scheduler, SYSTEM)
    yield "handshakes", make.silent_plugin()
    yield "quota-definition", make.without("crd", "acceleratorquotas.hami.io")
    yield "deployments", make.scaled("hami-webhook")
