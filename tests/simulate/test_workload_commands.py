"""Workloads through the commands: their namespace, what strict says, Kubeflow's Profiles, kinds of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from .files import Simulate, kubeconfig, listed, pod, quota
from .test_workloads import FILE
from .workload_objects import RAY, RAY_PODS, template

REFUSED = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": template(2)}}
FULL = quota(gpu="1")
"""Of team-a."""


@pytest.mark.parametrize("by", ["-n", "--kubeconfig", "KUBECONFIG", ""])
def test_a_workload_is_judged_in_the_namespace_where_kubectl_would_create_it(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    flags = {"-n": ["-n", "team-a"], "--kubeconfig": ["--kubeconfig", kubeconfig(tmp_path, "team-a")]}.get(by, [])
    if by == "KUBECONFIG":
        monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, "team-a"))
    run = simulate([FULL], REFUSED, flags=flags)
    (found,) = run.pods
    assert (found["namespace"], found["allowed"]) == (("team-a", False) if by else ("default", True))
    said = "objects without a namespace are taken to be in team-a, that of the context; -n names another"
    assert run.err == (f"hami-webhook: warning: {said}\n" if "KUBECONFIG" in by.upper() and by else "")
    files = ["--cluster", simulate.file("c.json", FULL), "-f", simulate.file("d.json", REFUSED)]
    explained = simulate.main("explain", *files, *flags, "-o", "json")
    assert explained.result["verdict"].startswith("is denied at admission (403)") == bool(by)


def test_n_and_another_namespace_in_the_file_contradict_each_other(simulate: Simulate) -> None:
    run = simulate([], {**REFUSED, "metadata": {"name": "d", "namespace": "b"}}, flags=["-n", "team-a"])
    assert run.status == 2
    assert run.err.endswith("Deployment 'd' is in namespace b, not in team-a as -n says\n")


def test_a_cluster_of_the_same_files_has_no_pods_of_other_kinds(simulate: Simulate) -> None:
    """Without --cluster: a bound pod is the cluster's, a RayCluster's pods are new, and a Service is named."""
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    ray = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "ray"}, "spec": RAY}
    bound = pod("bound", gpu=1, nodeName="n1")
    path = simulate.file("all.json", listed(service, bound, ray))
    run = simulate.main("simulate", path, "-o", "json")
    assert [each["name"] for each in run.pods] == [name.replace("w-", "ray-", 1) for name in RAY_PODS]
    assert run.err == "hami-webhook: warning: skipped 1 of kind Service: no pod template in s\n"


PROFILE = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "Profile",
    "metadata": {"name": "team-a"},
    "spec": {"resourceQuotaSpec": {"hard": {"limits.nvidia.com/gpu": "1", "limits.nvidia.com/gpumem": "16Gi"}}},
}


def test_the_quota_of_a_kubeflow_profile_counts_and_is_checked(simulate: Simulate) -> None:
    run = simulate([PROFILE], REFUSED, flags=["-n", "team-a"])
    assert [(each["allowed"], each["message"].partition(":")[0]) for each in run.pods] == [
        (False, "exceeding resource quota")
    ]
    checked = simulate.main("quota", "check", simulate.file("p.json", PROFILE), "-o", "json")
    assert checked.status == 1
    (found,) = checked.result["quotas"]
    assert (found["namespace"], found["name"]) == ("team-a", "kf-resource-quota")
    assert [each["key"] for each in found["misread"]] == ["limits.nvidia.com/gpumem"]


def test_a_dump_with_the_profiles_own_quota_counts_it_once(simulate: Simulate) -> None:
    own = quota(gpu="5", name="kf-resource-quota")
    (found,) = simulate([PROFILE, own], REFUSED, flags=["-n", "team-a"]).result["quotas"]
    assert found["hard"] == {"limits.nvidia.com/gpu": 5}


def test_a_file_of_kinds_is_used_by_the_commands(simulate: Simulate) -> None:
    workloads = simulate.file("kinds.yaml", FILE)
    training = {
        "apiVersion": "example.com/v1",
        "kind": "Training",
        "metadata": {"name": "t"},
        "spec": {"workers": [{"name": "a", "template": template(2)}]},
    }
    run = simulate([FULL], training, flags=["--workloads", workloads, "-n", "team-a"])
    assert [(each["name"], each["allowed"]) for each in run.pods] == [("t-a-0", False)]
    files = ["--cluster", simulate.file("c.json", FULL), "-f", simulate.file("t.json", training)]
    explained = simulate.main("explain", *files, "--workloads", workloads, "-n", "team-a", "-o", "json")
    assert explained.result["verdict"].startswith("is denied at admission (403)")
    wrong = simulate([FULL], training, flags=["--workloads", simulate.file("wrong.yaml", "workloads: 3")])
    assert (wrong.status, wrong.err.count("\n")) == (2, 1)


def test_a_kubeconfig_that_cant_be_used_stands_in_nobodys_way(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on files needs no cluster; one that a flag names was meant."""
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    run = simulate([FULL], REFUSED)
    assert [each["namespace"] for each in run.pods] == ["default"]
    assert run.err.endswith("; objects without a namespace are taken to be in default\n")
    assert simulate([FULL], REFUSED, flags=["--kubeconfig", "/nonexistent"]).status == 2
