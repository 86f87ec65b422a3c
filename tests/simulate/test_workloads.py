"""Pod templates in objects of many kinds: the table, a file that extends it, and what has none (docs/spec/cli.md)."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tables import in_one_test

from hami_webhook.cluster.loading import LoadedObject, LoadError, load_objects
from hami_webhook.config import ConfigError
from hami_webhook.simulate.manifests import ReadingRules, pods_of
from hami_webhook.simulate.workload_file import parse_workload_table
from hami_webhook.simulate.workload_kinds import BUILTIN, KINDS, WorkloadTable
from hami_webhook.simulate.workloads import pods_of_workload
from simulate.files import JSON
from simulate.workload_objects import ARGO, OBJECTS, VOLCANO, gpus, template


def loaded(api_version: str, kind: str, spec: Any = None, **meta: Any) -> LoadedObject:
    obj = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "w", **meta}, "spec": spec}
    (found,) = load_objects(json.dumps(obj), "f")
    return found


def expand_workload(workload: LoadedObject, table: WorkloadTable = BUILTIN) -> list[JSON]:
    kind = table.kind(workload.object["apiVersion"], workload.kind)
    assert kind is not None
    return pods_of_workload(workload, kind) or []


def api_of(kind: str) -> str:
    return "batch/v1" if kind.endswith("Job") else "apps/v1"


TEMPLATE = {
    "metadata": {"labels": {"app": "a"}, "annotations": {"n": "1"}, "name": "ignored"},
    "spec": {"containers": [{"name": "main"}]},
}


@pytest.mark.parametrize(
    ("kind", "spec", "count"),
    [
        ("Deployment", {"replicas": 3}, 3),
        ("Deployment", {}, 1),
        ("Deployment", {"replicas": None}, 1),
        ("StatefulSet", {"replicas": 0}, 0),
        ("ReplicaSet", {"replicas": 2, "parallelism": 5}, 2),
        ("DaemonSet", {"replicas": 5}, 1),
        ("Job", {"parallelism": 4, "replicas": 9}, 4),
        ("Job", {}, 1),
    ],
)
def test_a_workload_is_its_replicas(kind: str, spec: JSON, count: int) -> None:
    pods = expand_workload(loaded(api_of(kind), kind, {**spec, "template": TEMPLATE}, namespace="team"))
    assert [pod["metadata"]["name"] for pod in pods] == [f"w-{index}" for index in range(count)]


def test_a_cron_job_is_the_pods_of_one_job() -> None:
    spec = {"jobTemplate": {"spec": {"parallelism": 2, "template": TEMPLATE}}}
    assert len(expand_workload(loaded("batch/v1", "CronJob", spec))) == 2


def test_a_pod_of_a_workload() -> None:
    workload = loaded("apps/v1", "Deployment", {"template": TEMPLATE}, uid="u", labels={"not": "kept"})
    (pod,) = expand_workload(workload)
    assert pod == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "w-0",
            "labels": {"app": "a"},
            "annotations": {"n": "1"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "name": "w",
                    "uid": "u",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {"containers": [{"name": "main"}]},
    }


@in_one_test(
    ("kind", "spec", "problem"),
    [
        ("Deployment", None, "spec is missing"),
        ("Deployment", [], "spec must be an object, not a list"),
        ("Deployment", {}, "spec.template is missing"),
        ("Deployment", {"template": {}}, "spec.template.spec is missing"),
        (
            "Deployment",
            {"template": {"metadata": 1, "spec": {}}},
            "spec.template.metadata must be an object, not the number 1",
        ),
        ("Deployment", {"replicas": -1}, "spec.replicas must be a whole number ≥ 0, not the number -1"),
        ("Deployment", {"replicas": "3"}, "spec.replicas must be a whole number ≥ 0, not the string '3'"),
        ("Deployment", {"replicas": 1.5}, "spec.replicas must be a whole number ≥ 0, not the number 1.5"),
        ("Deployment", {"replicas": True}, "spec.replicas must be a whole number ≥ 0, not the boolean true"),
        ("Deployment", {"replicas": 10**9}, "spec.replicas must be at most 100000, not 1000000000"),
        ("Job", {"parallelism": -1}, "spec.parallelism must be a whole number ≥ 0, not the number -1"),
        ("CronJob", {}, "spec.jobTemplate is missing"),
        ("CronJob", {"jobTemplate": {}}, "spec.jobTemplate.spec is missing"),
        ("CronJob", {"jobTemplate": {"spec": {}}}, "spec.jobTemplate.spec.template is missing"),
    ],
)
def test_unusable_workloads(kind: str, spec: Any, problem: str) -> None:
    with pytest.raises(LoadError) as caught:
        expand_workload(loaded(api_of(kind), kind, spec))
    assert str(caught.value) == f"f:1: {kind} 'w': {problem}"


# Kinds of other projects


@pytest.mark.parametrize(("api", "kind", "spec", "pods"), OBJECTS)
def test_the_pods_of_other_projects_kinds(api: str, kind: str, spec: JSON, pods: dict[str, int]) -> None:
    made = expand_workload(loaded(api, kind, spec, namespace="team"))
    found = {
        each["metadata"]["name"]: sum(
            container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0)
            for container in each["spec"]["containers"]
        )
        for each in made
    }
    assert found == pods
    assert all(container["name"] for each in made for container in each["spec"]["containers"])
    assert {each["metadata"]["namespace"] for each in made} == {"team"}


def test_what_an_object_says_for_all_of_its_pods() -> None:
    made = expand_workload(loaded("argoproj.io/v1alpha1", "Workflow", ARGO))
    assert {(each["spec"]["schedulerName"], *each["spec"]["nodeSelector"]) for each in made} == {
        ("hami-scheduler", "pool")
    }


@pytest.mark.parametrize(("spec", "name"), [({}, "volcano"), ({"schedulerName": "mine"}, "mine")])
def test_pods_of_a_volcano_job_have_its_scheduler(spec: JSON, name: str) -> None:
    made = expand_workload(loaded("batch.volcano.sh/v1alpha1", "Job", {**VOLCANO, **spec}))
    assert {each["spec"]["schedulerName"] for each in made} == {name}


def test_labels_and_annotations_of_pods_are_where_the_kind_has_them() -> None:
    predictor = {"labels": {"a": "b"}, "annotations": {"nvidia.com/use-gputype": "A100"}, "model": gpus(1)}
    (pod_of_model,) = expand_workload(
        loaded("serving.kserve.io/v1beta1", "InferenceService", {"predictor": predictor}, labels={"not": "kept"})
    )
    meta = pod_of_model["metadata"]
    assert (meta["labels"], meta["annotations"]) == ({"a": "b"}, {"nvidia.com/use-gputype": "A100"})


@in_one_test(
    ("api", "kind", "spec", "problem"),
    [
        (
            "ray.io/v1",
            "RayCluster",
            {"workerGroupSpecs": {}},
            "spec.workerGroupSpecs must be a list, not an object",
        ),
        (
            "ray.io/v1",
            "RayCluster",
            {"workerGroupSpecs": [{"replicas": "2"}]},
            "spec.workerGroupSpecs[0].replicas must be a whole number ≥ 0, not the string '2'",
        ),
        (
            "kubeflow.org/v1",
            "PyTorchJob",
            {"pytorchReplicaSpecs": {"Worker": 3}},
            "spec.pytorchReplicaSpecs.Worker must be an object, not the number 3",
        ),
        (
            "kubeflow.org/v1",
            "TFJob",
            {"tfReplicaSpecs": {"Worker": {"template": {}}}},
            "spec.tfReplicaSpecs.Worker.template.spec is missing",
        ),
        (
            "ray.io/v1",
            "RayCluster",
            {"workerGroupSpecs": [{"replicas": 1000, "numOfHosts": 1000, "template": template(1)}]},
            "makes more than 100000 pods",
        ),
    ],
)
def test_unusable_objects_of_other_projects(api: str, kind: str, spec: JSON, problem: str) -> None:
    with pytest.raises(LoadError) as caught:
        expand_workload(loaded(api, kind, spec))
    assert str(caught.value) == f"f:1: {kind} 'w': {problem}"


# What has no pods


def sentences(*objects: LoadedObject, table: WorkloadTable = BUILTIN) -> list[str]:
    pods, found = pods_of([objects], ReadingRules(table))
    assert not pods.manifests
    return found


@in_one_test(
    ("api", "kind", "spec", "sentence"),
    [
        ("v1", "Service", {}, "skipped 1 of kind Service: no pod template in w"),
        (
            "example.com/v1",
            "Training",
            {"worker": {"template": template(1)}},
            "skipped 1 of kind Training: no pod template in w; spec.worker.template.spec looks like one, and a file "
            "for --workloads can name it",
        ),
        (
            "trainer.kubeflow.org/v1alpha1",
            "TrainJob",
            {"trainer": {"numNodes": 2}},
            "skipped 1 of kind TrainJob: no pod template in w",
        ),
        (
            "argoproj.io/v1alpha1",
            "Workflow",
            {"workflowTemplateRef": {"name": "t"}},
            "skipped 1 of kind Workflow: no pod template in w",
        ),
        (
            "kubevirt.io/v1",
            "VirtualMachine",
            {"template": {"spec": {"domain": {"devices": {"gpus": [{"deviceName": "nvidia.com/gpu"}]}}}}},
            "f:1: VirtualMachine 'w' is not served: shared cards are mounted into the container, and a virtual machine "
            "in it doesn't see them",
        ),
    ],
)
def test_an_object_without_a_template_is_named(api: str, kind: str, spec: JSON, sentence: str) -> None:
    assert sentences(loaded(api, kind, spec)) == [sentence]


def test_no_pods_now_is_no_matter() -> None:
    assert sentences(loaded("apps/v1", "Deployment", {"replicas": 0, "template": template(1)})) == []


# The file


FILE = """
workloads:
- apiGroup: example.com
  kind: Training
  pods:
  - at: spec.workers[]
    replicas: [replicas, hosts]
  - {at: spec.roles.*, template: pod, replicas: [count]}
  - {at: spec.inline, podSpec: true}
  - {at: spec.notebook, containers: [image]}
- {apiGroup: apps, kind: Deployment, notServed: we have others}
"""


def test_a_file_names_more_kinds_and_replaces_known_ones() -> None:
    table = parse_workload_table(FILE, "f.yaml")
    spec = {
        "workers": [{"name": "a", "replicas": 2, "hosts": 2, "template": template(1)}],
        "roles": {"Leader": {"pod": template(2)}},
        "inline": {"containers": [{"name": "c", **gpus(3)}], "other": 1},
        "notebook": {"image": {"image": "jupyter", **gpus(4)}},
    }
    made = expand_workload(loaded("example.com/v1", "Training", spec), table)
    names = [each["metadata"]["name"] for each in made]
    assert names == ["w-a-0", "w-a-1", "w-a-2", "w-a-3", "w-leader-0", "w-0", "w-1"]
    assert made[5]["spec"] == template(3)["spec"]
    assert made[6]["spec"]["containers"] == [{"name": "main", "image": "jupyter", **gpus(4)}]
    assert sentences(loaded("apps/v1", "Deployment", {"template": template(1)}), table=table) == [
        "f:1: Deployment 'w' is not served: we have others"
    ]


@in_one_test(
    ("text", "fault"),
    [
        ("", "f:1: workloads: is required, but missing"),
        ("workloads: [{apiGroup: a, kind: B}]", "f:1: workloads[0]: must have pods, or notServed with the reason"),
        (
            "workloads: [{apiGroup: a, kind: B, pods: [{at: 'spec.a b'}]}]",
            "f:1: workloads[0].pods[0].at: must be a path such as spec, spec.workers[] or spec.replicaSpecs.*, found "
            'the text "spec.a b"',
        ),
        (
            "workloads: [{apiGroup: a, kind: B, pods: [{replica: [a]}]}]",
            "f:1: workloads[0].pods[0].replica: is an unknown key (did you mean replicas?); known are at, template, "
            "podSpec, containers, replicas",
        ),
        (
            "workloads: [{apiGroup: a, kind: b, pods: [{}]}]",
            'f:1: workloads[0].kind: must be a kind such as RayCluster, found the text "b"',
        ),
    ],
)
def test_faults_of_the_file(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_workload_table(text, "f")
    assert str(caught.value) == fault


def test_a_hostile_object_or_file_costs_little() -> None:
    """A tenant's repository: paths that branch at every step, and an object of many values."""
    path = "spec[]" + ".*" * 50
    table = parse_workload_table(f"workloads: [{{apiGroup: a, kind: Deep, pods: [{{at: '{path}'}}]}}]", "f")
    wide = loaded("b/v1", "Wide", {"items": [[{"a": {}}] * 100] * 1000})
    began = time.process_time()
    with pytest.raises(LoadError, match="spec must be a list, not an object"):
        expand_workload(loaded("a/v1", "Deep", {"a": 1}), table)
    assert sentences(wide) == ["skipped 1 of kind Wide: no pod template in w"]
    with pytest.raises(ConfigError):
        parse_workload_table(f"workloads: [{{apiGroup: a, kind: B, pods: [{{at: {'s.' * 1000}s}}]}}]", "f")
    assert time.process_time() - began < 1


def test_every_row_has_pods_or_a_reason() -> None:
    assert all(row.sources or row.not_served for row in KINDS.values())
    assert len(KINDS) > 25
