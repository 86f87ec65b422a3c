"""A service account that may not write quotas' status, as HAMi's chart has it: the quota holds all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import SYSTEM, Deployment, Kubectl, eventually
from .objects import JSON, namespace, pod, quota

READER = "hami-webhook-reader"


@pytest.fixture
def program(plane: ControlPlane, tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(plane, tmp_path, Kubectl(plane.kubeconfig), account=READER)
    deployment.install()
    try:
        deployment.kubectl.apply(*reader(deployment.kubectl))
        deployment.start("hami-webhook-0")
        yield deployment
    finally:
        deployment.close()


def reader(kubectl: Kubectl) -> list[JSON]:
    """The rights of webhook and controller but for that one."""
    roles = [kubectl.get("clusterrole", name)["rules"] for name in ("hami-webhook", "hami-webhook-controller")]
    granted = [rule for rules in roles for rule in rules]
    rules = [rule for rule in granted if "resourcequotas/status" not in rule["resources"]]
    assert len(rules) == len(granted) - 2
    api = "rbac.authorization.k8s.io"
    subjects = [{"kind": "ServiceAccount", "name": READER, "namespace": SYSTEM}]
    meta, api_version = {"name": READER}, f"{api}/v1"
    bound = {"apiGroup": api, "kind": "ClusterRole", "name": READER}
    local = {"apiGroup": api, "kind": "Role", "name": "hami-webhook-controller"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**meta, "namespace": SYSTEM}},
        {"apiVersion": api_version, "kind": "ClusterRole", "metadata": meta, "rules": rules},
        {
            "apiVersion": api_version,
            "kind": "ClusterRoleBinding",
            "metadata": meta,
            "roleRef": bound,
            "subjects": subjects,
        },
        {
            "apiVersion": api_version,
            "kind": "RoleBinding",
            "metadata": {**meta, "namespace": SYSTEM},
            "roleRef": local,
            "subjects": subjects,
        },
    ]


def test_quota_holds_without_the_right_to_write_it(program: Deployment) -> None:
    kubectl, name = program.kubectl, "hami-webhook-0"
    assert "no right to patch resourcequotas/status" in program.log(name)
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=2))
    kubectl.apply(*(pod(space, f"p{number}", gpu=1, gpumem=100) for number in range(2)))
    late = pod(space, "p2", gpu=1, gpumem=100)
    message = kubectl.refused(late)
    assert "exceeded quota: gpu-quota, requested: limits.nvidia.com/gpu=1, used: limits.nvidia.com/gpu=2" in message
    labels = f'key="limits.nvidia.com/gpu",namespace="{space}",quota="gpu-quota"'
    assert program.metric(name, f"hami_webhook_quota_used{{{labels}}}") == 2
    kubectl("delete", "pod", "p0", "-n", space, "--grace-period=0", "--force")
    eventually(lambda: kubectl.run("create", "-f", "-", stdin=json.dumps(late)).returncode, 0)
    assert kubectl.used(space) == {}
    assert kubectl.ledger(space) == {}
