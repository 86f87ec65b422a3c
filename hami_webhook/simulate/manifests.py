"""What to simulate in files: Pods, and the pods of workloads, on a cluster (docs/spec/cli.md#workloads)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.cluster.loading import Bundle, LoadedObject, LoadError, group_of, read_objects, sort_objects
from hami_webhook.kube.message_text import cut, first_of, shown
from hami_webhook.simulate.results import Pods
from hami_webhook.simulate.workload_kinds import BUILTIN, WorkloadKind, WorkloadTable
from hami_webhook.simulate.workloads import path_of_template, pods_of_workload

_PROFILE, _PROFILE_QUOTA = ("kubeflow.org", "Profile"), "kf-resource-quota"
_CLUSTER_WIDE = frozenset(
    (
        *("Node", "Namespace", "PriorityClass", "AcceleratorQuota", "Device", "ResourceSlice", "DeviceClass"),
        *("Profile", "ClusterWorkflowTemplate"),
    )
)
"""Kinds without a namespace."""


class SimulationFiles(Struct, frozen=True):
    """The cluster and the pods of a run, and a sentence for whatever else is in its files."""

    bundle: Bundle
    pods: Pods
    warnings: Sequence[str]


class ReadingRules(Struct, frozen=True):
    """How objects of files are read.

    `table` says of which kinds pods are made. `namespace` is asked where an object names none, and gives that of all.
    `only`: pods to simulate that name another namespace are refused, as kubectl refuses them beside `-n`.
    """

    table: WorkloadTable = BUILTIN
    namespace: Callable[[], str] = lambda: "default"
    only: str = ""

    def read(self, paths: Sequence[str], stdin: BinaryIO) -> list[list[LoadedObject]]:
        """The objects of each file, in the namespaces where kubectl would create them. Raises `LoadError`."""
        return [[self.placed(item) for item in read_objects(path, stdin)] for path in paths]

    def placed(self, item: LoadedObject) -> LoadedObject:
        """The object in its namespace."""
        meta = item.object["metadata"]
        if meta.get("namespace") or item.kind in _CLUSTER_WIDE or (namespace := self.namespace()) == "default":
            return item
        return replace(item, object={**item.object, "metadata": {**meta, "namespace": namespace}})

    def kind(self, item: LoadedObject) -> WorkloadKind | None:
        """What pods are made of an object; None for one that the table doesn't have."""
        return self.table.kind(item.object["apiVersion"], item.kind)


def read_simulation_files(
    cluster: Sequence[str], pods: Sequence[str], stdin: BinaryIO, rules: ReadingRules | None = None
) -> SimulationFiles:
    """The files of a run; without `cluster` it is what else `pods` hold, bound pods included. Raises `LoadError`."""
    rules = rules or ReadingRules()
    files = rules.read(pods, stdin)
    warnings: list[str] = []
    if cluster:
        bundle, warnings = read_cluster_files(cluster, stdin, rules)
        manifests, no_pods = pods_of(files, rules)
    else:
        everything = [item for objects in files for item in objects]
        bundle = _bundle([item for item in everything if not _is_for_simulation(item, rules)])
        left = [item for item in everything if _is_for_simulation(item, rules) or not _is_of_cluster(item)]
        manifests, no_pods = pods_of([left], rules)
    return SimulationFiles(bundle, manifests, [*warnings, *no_pods])


def read_cluster_files(
    paths: Sequence[str], stdin: BinaryIO, rules: ReadingRules | None = None
) -> tuple[Bundle, list[str]]:
    """The objects of a cluster, and a sentence for each kind that isn't used. Raises `LoadError`."""
    rules = rules or ReadingRules()
    items = [item for objects in rules.read(paths, stdin) for item in objects]
    workloads = Counter(item.kind for item in items if rules.kind(item) is not None)
    bundle = _bundle([item for item in items if rules.kind(item) is None])
    return bundle, [*_skipped(bundle.skipped), *_skipped(workloads, " in cluster files: their pods count")]


def pods_of(files: Sequence[Sequence[LoadedObject]], rules: ReadingRules | None = None) -> tuple[Pods, list[str]]:
    """The pods in the files' objects, in order, and a sentence for each object that none are made of.

    Raises `LoadError`.
    """
    rules = rules or ReadingRules()
    manifests = []
    without: dict[str, list[LoadedObject]] = {}
    sentences = []
    for item in (item for objects in files for item in objects):
        kind = rules.kind(item)
        if kind is not None and kind.not_served:
            sentences.append(f"{item.where}: {cut(item.kind)} {shown(item.name)} is not served: {kind.not_served}")
            continue
        made = pods_of_workload(item, kind) if kind is not None else [item.object] if _is_pod(item) else None
        if made is None:
            without.setdefault(item.kind, []).append(item)
        else:
            _check_namespace(item, rules.only)
            manifests += made
    sentences += [_without_pods(kind, items, rules) for kind, items in sorted(without.items())]
    return Pods(manifests), sentences


def _without_pods(kind: str, items: Sequence[LoadedObject], rules: ReadingRules) -> str:
    names = first_of([cut(item.name) for item in items], 5)
    unknown = (item.object for item in items if rules.kind(item) is None)
    path = next(filter(None, map(path_of_template, unknown)), "")
    hint = f"; {cut(path)} looks like one, and a file for --workloads can name it" if path else ""
    return f"skipped {len(items)} of kind {cut(kind)}: no pod template in {names}{hint}"


def _check_namespace(item: LoadedObject, only: str) -> None:
    own = item.object["metadata"].get("namespace")
    if only and own not in (None, "", only):
        raise LoadError(f"{item.where}: {item.kind} {shown(item.name)} is in namespace {own}, not in {only} as -n says")


def _bundle(items: Sequence[LoadedObject]) -> Bundle:
    """The objects by what they are for, the quotas of Kubeflow's Profiles among them."""
    of_profiles = [quota for item in items if (quota := _quota_of_profile(item)) is not None]
    bundle = sort_objects([item for item in items if _group_kind(item) != _PROFILE])
    known = {(item.object["metadata"].get("namespace"), item.name) for item in bundle.quotas}
    bundle.quotas += [item for item in of_profiles if (item.object["metadata"]["namespace"], item.name) not in known]
    return bundle


def _quota_of_profile(item: LoadedObject) -> LoadedObject | None:
    """The ResourceQuota that Kubeflow makes of a Profile in the namespace of its name."""
    spec = item.object.get("spec")
    written = spec.get("resourceQuotaSpec") if isinstance(spec, dict) else None
    if _group_kind(item) != _PROFILE or not isinstance(written, dict) or not written.get("hard"):
        return None
    meta = {"name": _PROFILE_QUOTA, "namespace": item.name}
    return replace(item, object={"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": written})


def _group_kind(item: LoadedObject) -> tuple[str, str]:
    group, slash, _ = item.object["apiVersion"].partition("/")
    return group if slash else "", item.kind


def _skipped(kinds: Mapping[str, int], why: str = "") -> list[str]:
    return [f"skipped {number} of kind {cut(kind)}{why}" for kind, number in sorted(kinds.items())]


def _is_of_cluster(item: LoadedObject) -> bool:
    return group_of(item) is not None or _group_kind(item) == _PROFILE


def _is_pod(item: LoadedObject) -> bool:
    return _group_kind(item) == ("", "Pod")


def _is_for_simulation(item: LoadedObject, rules: ReadingRules) -> bool:
    """Whether an object is one to simulate: a workload, or a pod that isn't bound yet."""
    spec = item.object.get("spec")
    bound = isinstance(spec, dict) and bool(spec.get("nodeName"))
    return rules.kind(item) is not None or (_is_pod(item) and not bound)
