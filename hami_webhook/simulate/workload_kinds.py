"""Which kinds of objects pods are made of: one table, which a file can extend (docs/spec/cli.md#workloads).

A row says where the pod templates of a kind stand and which fields count the pods; `workloads` reads objects by it.
Fields are those of the kinds' own API definitions. Nothing is guessed: an object of another kind has no pods.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

STEP = r"[A-Za-z_][A-Za-z0-9_-]*"
FIELD = rf"{STEP}(\.{STEP})*"
"""What a field is written like: names with dots between."""
PATH = rf"{STEP}(\[\])?(\.({STEP}(\[\])?|\*))*"
"""A path to several places: `[]` stands for each item of a list, `*` for each value of a mapping."""
LONGEST_PATH = 200
HERE = "."
"""The field that is the object at hand itself."""


class Count(Struct, frozen=True):
    """A field that counts pods: `default` where it isn't there, `less` of them are pods of another source."""

    field: str
    default: int = 1
    less: int = 0


class PodSource(Struct, frozen=True):
    """Some of the pods that are made of an object. `at` leads to what describes them; other fields start there.

    `template` has the fields that may be a PodTemplateSpec, of which the first counts. `pod_spec`: `at` has fields of a
    PodSpec itself. `containers` are fields that are a container, or a list of them, whose amounts are in `resources`.
    `container` is the name of those without one, needed where containers may have none. `gpu` is a field with the
    `name` and the `quantity` of a resource.

    Of the `counts` the product is how many pods there are. `label` names them where several sources do. `required`: an
    object without it is refused. `defaults` is the object that says what the pods don't say themselves.
    """

    at: str = "spec"
    label: str = ""
    template: tuple[str, ...] = ()
    pod_spec: bool = False
    containers: tuple[str, ...] = ()
    container: str = ""
    resources: str = "resources"
    gpu: str = ""
    counts: tuple[Count, ...] = ()
    required: bool = False
    defaults: str = ""


class WorkloadKind(Struct, frozen=True):
    """A kind that pods are made of. `scheduler_name` is that of pods that name none. `not_served` is why they aren't
    looked at: a sentence's end.
    """

    sources: tuple[PodSource, ...] = ()
    scheduler_name: str = ""
    not_served: str = ""


Key = tuple[str, str]
"""API group and kind; any version of a group will do."""

_TEMPLATE, _REPLICAS = ("template",), (Count("replicas"),)


def _core(count: str = "", at: str = "spec") -> WorkloadKind:
    counts = (Count(count),) if count else ()
    return WorkloadKind((PodSource(at, template=_TEMPLATE, counts=counts, required=True),))


def _replicated(field: str) -> WorkloadKind:
    """A job of Kubeflow's training operator: `field` has a template and its replicas for each role."""
    return WorkloadKind((PodSource(f"spec.{field}.*", template=_TEMPLATE, counts=_REPLICAS),))


def _ray(at: str) -> tuple[PodSource, ...]:
    hosts = (Count("replicas", default=0), Count("numOfHosts"))
    return (
        PodSource(f"{at}.headGroupSpec", "head", _TEMPLATE),
        PodSource(f"{at}.workerGroupSpecs[]", template=_TEMPLATE, counts=hosts),
    )


def _argo(at: str) -> WorkloadKind:
    """Templates with containers; those that only name others make no pods. Loops aren't unrolled."""
    containers = ("container", "script", "containerSet.containers", "sidecars")
    source = PodSource(f"{at}.templates[]", pod_spec=True, containers=containers, container="main", defaults=at)
    return WorkloadKind((source,))


def _spark(at: str) -> WorkloadKind:
    return WorkloadKind(
        tuple(
            PodSource(
                *(f"{at}.{role}", role, _TEMPLATE),
                pod_spec=True,
                containers=(HERE, "sidecars"),
                container=f"spark-kubernetes-{role}",
                gpu="gpu",
                counts=(Count("instances"),),
            )
            for role in ("driver", "executor")
        )
    )


_PREDICTORS = (
    *("model", "huggingface", "lightgbm", "onnx", "paddle", "pmml", "pytorch"),
    *("sklearn", "tensorflow", "triton", "xgboost"),
)
_SERVED = (Count("minReplicas"),)
_KSERVE = "kserve-container"
_MACHINE = WorkloadKind(
    not_served="shared cards are mounted into the container, and a virtual machine in it doesn't see them"
)

KINDS: Mapping[Key, WorkloadKind] = {
    ("apps", "Deployment"): _core("replicas"),
    ("apps", "StatefulSet"): _core("replicas"),
    ("apps", "DaemonSet"): _core(),  # on how many nodes it would run isn't known here
    ("apps", "ReplicaSet"): _core("replicas"),
    ("batch", "Job"): _core("parallelism"),
    ("batch", "CronJob"): _core("parallelism", "spec.jobTemplate.spec"),
    ("ray.io", "RayCluster"): WorkloadKind(_ray("spec")),
    ("ray.io", "RayJob"): WorkloadKind(
        (*_ray("spec.rayClusterSpec"), PodSource(label="submitter", template=("submitterPodTemplate",)))
    ),
    ("ray.io", "RayService"): WorkloadKind(_ray("spec.rayClusterConfig")),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): WorkloadKind(
        (
            PodSource(
                label="leader",
                template=("leaderWorkerTemplate.leaderTemplate", "leaderWorkerTemplate.workerTemplate"),
                counts=_REPLICAS,
            ),
            PodSource(
                label="worker",
                template=("leaderWorkerTemplate.workerTemplate",),
                counts=(*_REPLICAS, Count("leaderWorkerTemplate.size", less=1)),
            ),
        )
    ),
    ("jobset.x-k8s.io", "JobSet"): WorkloadKind(
        (
            PodSource(
                "spec.replicatedJobs[]",
                template=("template.spec.template",),
                counts=(*_REPLICAS, Count("template.spec.parallelism")),
            ),
        )
    ),
    ("kubeflow.org", "PyTorchJob"): _replicated("pytorchReplicaSpecs"),
    ("kubeflow.org", "TFJob"): _replicated("tfReplicaSpecs"),
    ("kubeflow.org", "XGBoostJob"): _replicated("xgbReplicaSpecs"),
    ("kubeflow.org", "PaddleJob"): _replicated("paddleReplicaSpecs"),
    ("kubeflow.org", "JAXJob"): _replicated("jaxReplicaSpecs"),
    ("kubeflow.org", "MPIJob"): _replicated("mpiReplicaSpecs"),
    # what its runtime adds isn't known here
    ("trainer.kubeflow.org", "TrainJob"): WorkloadKind(
        (
            PodSource(
                *("spec.trainer", "node"),
                containers=(HERE,),
                container="node",
                resources="resourcesPerNode",
                counts=(Count("numNodes"),),
            ),
        )
    ),
    ("kubeflow.org", "Notebook"): WorkloadKind((PodSource(template=_TEMPLATE),)),
    ("batch.volcano.sh", "Job"): WorkloadKind(
        (PodSource("spec.tasks[]", template=_TEMPLATE, counts=_REPLICAS, defaults="spec"),), "volcano"
    ),
    ("serving.kserve.io", "InferenceService"): WorkloadKind(
        (
            *(
                PodSource(
                    *(f"spec.{part}", part),
                    pod_spec=True,
                    containers=_PREDICTORS if part == "predictor" else (),
                    container=_KSERVE,
                    counts=_SERVED,
                )
                for part in ("predictor", "transformer", "explainer")
            ),
            PodSource(
                *("spec.predictor.workerSpec", "worker"),
                pod_spec=True,
                container="worker-container",
                counts=(Count("pipelineParallelSize", less=1),),
            ),
        )
    ),
    ("serving.knative.dev", "Service"): WorkloadKind((PodSource(template=_TEMPLATE, container="user-container"),)),
    ("argoproj.io", "Workflow"): _argo("spec"),
    ("argoproj.io", "WorkflowTemplate"): _argo("spec"),
    ("argoproj.io", "ClusterWorkflowTemplate"): _argo("spec"),
    ("argoproj.io", "CronWorkflow"): _argo("spec.workflowSpec"),
    ("sparkoperator.k8s.io", "SparkApplication"): _spark("spec"),
    ("sparkoperator.k8s.io", "ScheduledSparkApplication"): _spark("spec.template"),
    ("kubevirt.io", "VirtualMachine"): _MACHINE,
    ("kubevirt.io", "VirtualMachineInstance"): _MACHINE,
    ("kubevirt.io", "VirtualMachineInstanceReplicaSet"): _MACHINE,
}
"""The kinds that are known without a file."""


class WorkloadTable:
    """The kinds that pods are made of, by API group and kind; those of a file come before the others."""

    def __init__(self, more: Mapping[Key, WorkloadKind] | None = None) -> None:
        self._kinds = {**KINDS, **(more or {})}

    def kind(self, api_version: str, kind: str) -> WorkloadKind | None:
        """The row for an object; None for one that no pods are made of."""
        group, slash, _ = api_version.partition("/")
        return self._kinds.get((group if slash else "", kind))

    def keys(self) -> Iterable[Key]:
        return self._kinds.keys()


BUILTIN = WorkloadTable()
"""The table without a file."""

steps_of = re.compile(rf"{STEP}|\[\]|\*").findall
"""The steps of a path."""
