"""Objects of many kinds, with the pods that are made of each and the cards that each of them asks for."""

from __future__ import annotations

from typing import Any

JSON = dict[str, Any]


def template(gpus: int, **spec: Any) -> JSON:
    """A pod template that asks for so many cards."""
    return {"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus}}}], **spec}}


def gpus(gpus: int) -> JSON:
    return {"resources": {"limits": {"nvidia.com/gpu": gpus}}}


def replicas(number: int, gpus: int) -> JSON:
    return {"replicas": number, "template": template(gpus)}


RAY = {
    "headGroupSpec": {"template": template(0)},
    "workerGroupSpecs": [
        {"groupName": "Small_GPU", "replicas": 2, "template": template(1)},
        {"groupName": "many-hosts", "replicas": 1, "numOfHosts": 2, "template": template(4)},
        {"groupName": "autoscaled", "minReplicas": 0, "template": template(8)},
    ],
}
RAY_PODS = {"w-head-0": 0, "w-small-gpu-0": 1, "w-small-gpu-1": 1, "w-many-hosts-0": 4, "w-many-hosts-1": 4}
ARGO = {
    "schedulerName": "hami-scheduler",
    "nodeSelector": {"pool": "a"},
    "templates": [
        {"name": "main", "dag": {"tasks": []}},
        {"name": "train", "container": gpus(1)},
        {"name": "score", "script": gpus(2)},
        {"name": "both", "containerSet": {"containers": [{"name": "a", **gpus(3)}]}},
    ],
}
ARGO_PODS = {"w-train-0": 1, "w-score-0": 2, "w-both-0": 3}
SPARK = {
    "driver": {"cores": 1, "labels": {"app": "a"}},
    "executor": {"instances": 2, "gpu": {"name": "nvidia.com/gpu", "quantity": 1}},
}
SPARK_PODS = {"w-driver-0": 0, "w-executor-0": 1, "w-executor-1": 1}
LEADER = {"leaderTemplate": template(1), "workerTemplate": template(2), "size": 3}
VOLCANO = {"tasks": [{"name": "ps", **replicas(1, 0)}, {"name": "worker", **replicas(2, 1)}]}

OBJECTS: list[tuple[str, str, JSON, dict[str, int]]] = [
    ("ray.io/v1", "RayCluster", RAY, RAY_PODS),
    (
        "ray.io/v1",
        "RayJob",
        {"rayClusterSpec": RAY, "submitterPodTemplate": template(0)},
        {**RAY_PODS, "w-submitter-0": 0},
    ),
    ("ray.io/v1", "RayService", {"rayClusterConfig": RAY}, RAY_PODS),
    (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        {"replicas": 2, "leaderWorkerTemplate": LEADER},
        {"w-leader-0": 1, "w-leader-1": 1, **{f"w-worker-{n}": 2 for n in range(4)}},
    ),
    (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        {"leaderWorkerTemplate": {"workerTemplate": template(2)}},
        {"w-leader-0": 2},
    ),
    (
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        {
            "replicatedJobs": [
                {"name": "a", "replicas": 2, "template": {"spec": {"parallelism": 2, "template": template(1)}}},
                {"name": "b", "template": {"spec": {"template": template(0)}}},
            ]
        },
        {**{f"w-a-{n}": 1 for n in range(4)}, "w-b-0": 0},
    ),
    *(
        (
            f"kubeflow.org/{'v2beta1' if kind == 'MPIJob' else 'v1'}",
            kind,
            {field: {first: replicas(1, 0), "Worker": replicas(2, 1)}},
            {f"w-{first.lower()}-0": 0, "w-worker-0": 1, "w-worker-1": 1},
        )
        for kind, field, first in (
            ("PyTorchJob", "pytorchReplicaSpecs", "Master"),
            ("TFJob", "tfReplicaSpecs", "PS"),
            ("XGBoostJob", "xgbReplicaSpecs", "Master"),
            ("PaddleJob", "paddleReplicaSpecs", "Master"),
            ("JAXJob", "jaxReplicaSpecs", "Other"),
            ("MPIJob", "mpiReplicaSpecs", "Launcher"),
        )
    ),
    (
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        {"trainer": {"numNodes": 2, "resourcesPerNode": gpus(4)["resources"]}},
        {"w-node-0": 4, "w-node-1": 4},
    ),
    ("kubeflow.org/v1", "Notebook", {"template": template(1)}, {"w-0": 1}),
    ("batch.volcano.sh/v1alpha1", "Job", VOLCANO, {"w-ps-0": 0, "w-worker-0": 1, "w-worker-1": 1}),
    (
        "serving.kserve.io/v1beta1",
        "InferenceService",
        {
            "predictor": {
                "minReplicas": 2,
                "model": gpus(1),
                "workerSpec": {"pipelineParallelSize": 2, **template(1)["spec"]},
            },
            "transformer": {"containers": [gpus(0)]},
        },
        {"w-predictor-0": 1, "w-predictor-1": 1, "w-transformer-0": 0, "w-worker-0": 1},
    ),
    (
        "serving.knative.dev/v1",
        "Service",
        {"template": {"spec": {"containers": [gpus(1)]}}},
        {"w-0": 1},
    ),
    *(("argoproj.io/v1alpha1", kind, ARGO, ARGO_PODS) for kind in ("Workflow", "WorkflowTemplate")),
    ("argoproj.io/v1alpha1", "CronWorkflow", {"workflowSpec": ARGO}, ARGO_PODS),
    ("sparkoperator.k8s.io/v1beta2", "SparkApplication", SPARK, SPARK_PODS),
    ("sparkoperator.k8s.io/v1beta2", "ScheduledSparkApplication", {"template": SPARK}, SPARK_PODS),
]
"""API version, kind and spec, then cards by the names of its pods, if it is called `w`."""
