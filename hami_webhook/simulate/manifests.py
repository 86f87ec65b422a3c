"""What to simulate in files: Pods, and the replicas of workloads, on a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from msgspec import Struct

from hami_webhook.cluster.loading import Bundle, LoadedObject, expand_workload, read_objects, sort_objects
from hami_webhook.simulate.results import Pods


class SimulationFiles(Struct, frozen=True):
    """The cluster and the pods of a run, and a sentence for whatever else is in its files."""

    bundle: Bundle
    pods: Pods
    warnings: Sequence[str]


def read_simulation_files(cluster: Sequence[str], pods: Sequence[str], stdin: BinaryIO) -> SimulationFiles:
    """The files of a run; without `cluster` it is what else `pods` hold, bound pods included. Raises `LoadError`."""
    files = [read_objects(path, stdin) for path in pods]
    if cluster:
        bundle, warnings = read_cluster_files(cluster, stdin)
    else:
        everything = [item for objects in files for item in objects]
        files = [[item for item in everything if _is_for_simulation(item)]]
        bundle = sort_objects([item for item in everything if not _is_for_simulation(item)])
        warnings = _skipped(bundle.skipped)
    manifests, no_pods = pods_of(files)
    return SimulationFiles(bundle, manifests, [*warnings, *no_pods])


def read_cluster_files(paths: Sequence[str], stdin: BinaryIO) -> tuple[Bundle, list[str]]:
    """The objects of a cluster, and a sentence for each kind that isn't used. Raises `LoadError`."""
    bundle = sort_objects([item for path in paths for item in read_objects(path, stdin)])
    workloads = Counter(item.kind for item in bundle.workloads)
    return bundle, [*_skipped(bundle.skipped), *_skipped(workloads, " in cluster files: their pods count")]


def pods_of(files: Sequence[Sequence[LoadedObject]]) -> tuple[Pods, list[str]]:
    """The pods in the files' objects, in order, and a sentence for each other kind. Raises `LoadError`."""
    manifests = []
    skipped: Counter[str] = Counter()
    for item in (item for objects in files for item in objects):
        bundle = sort_objects([item])
        if bundle.pods:
            manifests.append(item.object)
        elif bundle.workloads:
            manifests += expand_workload(item)
        else:
            skipped[item.kind] += 1
    return Pods(manifests), _skipped(skipped, ": no pods to simulate")


def _skipped(kinds: Mapping[str, int], why: str = "") -> list[str]:
    return [f"skipped {number} of kind {kind}{why}" for kind, number in sorted(kinds.items())]


def _is_for_simulation(item: LoadedObject) -> bool:
    """Whether an object is one to simulate: a workload, or a pod that isn't bound yet."""
    sorted_one = sort_objects([item])
    spec = item.object.get("spec")
    bound = isinstance(spec, dict) and bool(spec.get("nodeName"))
    return bool(sorted_one.workloads) or (bool(sorted_one.pods) and not bound)
