"""`simulate`, `explain` and `test` on files with ResourceClaims (docs/dra.md), which nobody allocates there."""

from __future__ import annotations

import pytest
from dra.objects import CLASSES, HAMI, exactly, resource_slice, share

from hami_webhook.config.load import builtin_text

from .files import GPU, JSON, MEM, Simulate, listed, pod, quota

API = "resource.k8s.io/v1"


def cluster() -> list[JSON]:
    """A node with a card for claims, classes, templates, a claim by hand, and a quota."""
    classes = [
        {
            "apiVersion": API,
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": each}} for each in expressions]},
        }
        for name, expressions in CLASSES.items()
    ]
    return [
        *classes,
        {"apiVersion": API, "kind": "ResourceSlice", **resource_slice("n1", share("GPU-0"))},
        of_claims("ResourceClaimTemplate", "ten", {"spec": devices("10000Mi")}),
        of_claims("ResourceClaim", "shared", devices("1Gi")),
        quota(gpu="9", mem="20000"),
    ]


def devices(memory: str) -> JSON:
    return {"devices": {"requests": [{"name": "r", "exactly": exactly(HAMI, memory=memory, cores="10")}]}}


def of_claims(kind: str, name: str, spec: JSON) -> JSON:
    meta = {"name": name, "namespace": "team-a", "uid": f"uid-{name}"}
    return {"apiVersion": API, "kind": kind, "metadata": meta, "spec": spec}


def claiming(name: str) -> JSON:
    found = pod(name)
    found["spec"]["resourceClaims"] = [{"name": "cards", "resourceClaimTemplateName": "ten"}]
    return found


@pytest.fixture
def config(simulate: Simulate) -> str:
    return simulate.file("config.yaml", builtin_text().replace("dra:\n  enabled: false", "dra:\n  enabled: true"))


def test_pods_with_claims_are_charged_and_refused(simulate: Simulate, config: str) -> None:
    run = simulate(cluster(), claiming("a"), claiming("b"), flags=("--config", config))
    assert run.err == ""
    assert (run.pod("a")["allowed"], run.pod("a")["debits"], run.pod("a")["placement"]) == (
        True,
        {GPU: 1, "limits.nvidia.com/gpucores": 10, MEM: 10000},
        None,
    )
    assert not run.pod("b")["allowed"]
    assert "exceeded quota: gpu-quota, requested: limits.nvidia.com/gpumem=10000" in run.pod("b")["message"]
    assert run.used == {GPU: 2, MEM: 11024}


def test_where_claims_are_not_charged_a_warning_says_so(simulate: Simulate) -> None:
    run = simulate(cluster(), claiming("a"), claiming("b"))
    assert "resourceclaim team-a/shared: costs nothing, as the device configuration doesn't enable dra" in run.err
    assert run.used == {GPU: 0, MEM: 0}


def test_slices_that_disagree_are_named(simulate: Simulate, config: str) -> None:
    twice = {"apiVersion": API, "kind": "ResourceSlice", **resource_slice("n1", share("GPU-0"), name="other")}
    run = simulate([*cluster(), twice], claiming("a"), flags=("--config", config))
    assert "resourceslice other: device GPU-0 of pool n1 is in another slice too" in run.err


def test_a_pod_that_is_not_there_yet_is_explained(simulate: Simulate, config: str) -> None:
    files = simulate.file("cluster.json", listed(*cluster()))
    manifest = simulate.file("pod.json", claiming("a"))
    run = simulate.main("explain", "--cluster", files, "--config", config, "-f", manifest, "-o", "json")
    assert run.result["verdict"] == "isn't placed and waits for its claims"
    assert f"request r asks for 1 of class {HAMI}: 1 of 1 would do" in run.result["notes"]
    costs = {each["key"]: each["costs"] for each in run.result["quotas"]}
    assert costs == {GPU: 1, MEM: 10000}
