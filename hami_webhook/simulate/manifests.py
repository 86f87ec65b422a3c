"""The pods to simulate in files: Pods, and the replicas of workloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hami_webhook.cluster.loading import LoadedObject, expand_workload, sort_objects
from hami_webhook.simulate.simulation import Pods


def pods_of(files: Sequence[Sequence[LoadedObject]]) -> tuple[Pods, Mapping[str, int]]:
    """The pods in the files' objects, in order, and how many objects of other kinds there are."""
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
    return Pods(manifests), dict(sorted(skipped.items()))
