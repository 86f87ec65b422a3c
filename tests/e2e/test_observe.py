"""Quotas that only observe, as an administrator tries them before they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import Deployment, eventually
from .objects import GPU, JSON, MEM, namespace, pod, quota
from .queueing import add_ten_cards
from .tenants import tenant

ENFORCEMENT = "hami.io/quota-enforcement"
SAID = "Warning: quota is observed, not enforced: exceeding resource quota: exceeded quota: gpu-quota, requested: "
REPLICAS = ("hami-webhook-0", "hami-webhook-1")


@pytest.fixture(scope="module")
def program(two_replicas: Deployment) -> Deployment:
    add_ten_cards(two_replicas.kubectl)
    return two_replicas


def observing(space: str, **hard: Any) -> JSON:
    made = quota(space, **hard)
    made["metadata"]["annotations"] = {ENFORCEMENT: "observe"}
    return made


def counted(program: Deployment, space: str) -> float:
    """The metric of the namespace's quota, over all replicas."""
    line = f'hami_webhook_quota_observed_total{{namespace="{space}",quota="gpu-quota"}} '
    lines = [each for replica in REPLICAS for each in program.metrics(replica).splitlines()]
    return sum(float(each.removeprefix(line)) for each in lines if each.startswith(line))


def message(program: Deployment, space: str) -> int:
    """The number in events about the namespace's quota."""
    found = program.kubectl.get("events", "-n", space, "--field-selector", "reason=QuotaObserved")["items"]
    return sum(item["count"] for item in found)


def test_fifty_pods_pass_with_fifty_warnings_and_the_next_is_refused_once_it_is_enforced(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(observing(space, gpu=2))
    pods = {"apiVersion": "v1", "kind": "List", "items": [pod(space, f"p{n:02}", gpu=1, gpumem=1) for n in range(52)]}
    done = kubectl.run("create", "-f", "-", stdin=json.dumps(pods))
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if line]
    assert warnings == [f"{SAID}{GPU}=1, used: {GPU}={used}, limited: {GPU}=2" for used in range(2, 52)]
    eventually(lambda: kubectl.used(space), {"gpu": "52"})
    kubectl("annotate", "quota", "gpu-quota", "-n", space, "--overwrite", f"{ENFORCEMENT}=enforce")
    refused = kubectl.refused(pod(space, "next", gpu=1, gpumem=1))
    assert f"exceeded quota: gpu-quota, requested: {GPU}=1, used: {GPU}=52, limited: {GPU}=2" in refused
    eventually(lambda: message(program, space), 50)
    eventually(lambda: counted(program, space), 50.0)
    kubectl.delete_all("pods", namespace=space)
    eventually(lambda: kubectl.used(space), {"gpu": "0"})
    kubectl.apply(pod(space, "next", gpu=1, gpumem=1))


def test_tenants_do_not_decide(program: Deployment, plane: ControlPlane, tmp_path: Path) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, mem=3000))
    for role in ("edit", "admin"):
        user = tenant(kubectl, plane, tmp_path, space, role, f"tenant-{role}")
        done = user.run("annotate", "quota", "gpu-quota", "-n", space, f"{ENFORCEMENT}=observe")
        assert "forbidden" in done.stderr.lower(), done
    assert f"requested: {MEM}=4000" in kubectl.refused(pod(space, "p", gpu=2, gpumem=2000))
