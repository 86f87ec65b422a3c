"""Reading the objects that a pod is explained with, from an API server or from files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hami_webhook.cluster.api import ClusterError, Forbidden, Kind, NotFound
from hami_webhook.cluster.kept_fields import decode_kept
from hami_webhook.cluster.loading import Bundle, LoadedObject
from hami_webhook.explain.explain import ExplainContext, explain, explain_denial
from hami_webhook.explain.report import Explanation
from hami_webhook.kube.objects import MalformedObject, Pod
from hami_webhook.node_filters.filters import filter_nodes
from hami_webhook.node_filters.result import FilterResult
from hami_webhook.scheduling.boundary import BoundedPod
from hami_webhook.scheduling.placer import SchedulingPolicies
from hami_webhook.simulate.simulation import Simulation

KINDS = (
    (Kind.NODES, "nodes"),
    (Kind.PODS, "pods"),
    (Kind.RESOURCE_QUOTAS, "quotas"),
    (Kind.ACCELERATOR_QUOTAS, "accelerator_quotas"),
    (Kind.NAMESPACES, "namespaces"),
    (Kind.DEVICES, "devices"),
    (Kind.POD_DISRUPTION_BUDGETS, "disruption_budgets"),
    (Kind.PRIORITY_CLASSES, "priority_classes"),
)
_OPTIONAL = (Kind.ACCELERATOR_QUOTAS, Kind.DEVICES, Kind.POD_DISRUPTION_BUDGETS, Kind.PRIORITY_CLASSES)


class UnknownPod(Exception):
    """There is no such pod; the text says where there is one of that name."""


async def read_cluster(kubeconfig: str) -> Bundle:
    """The nodes, pods, quotas and namespaces of an API server, and, where they may be listed, Koordinator's Devices,
    PodDisruptionBudgets and PriorityClasses.

    Each is listed once. Raises `ClusterError`.
    """
    # imported here: who explains from files would take twice as long to start
    from hami_webhook.cluster.connect import connect
    from hami_webhook.cluster.kubernetes import KubernetesCluster

    bundle = Bundle()
    async with KubernetesCluster(await connect(kubeconfig), decode=decode_kept) as cluster:
        for kind, group in KINDS:
            try:
                listing = await cluster.list(kind)
            except (NotFound, Forbidden):
                if kind in _OPTIONAL:
                    continue
                raise
            getattr(bundle, group).extend(loaded(kind, listing.items))
    return bundle


def loaded(kind: Kind, items: Iterable[Mapping[str, Any]]) -> list[LoadedObject]:
    """Listed objects, with their kind, which lists leave out."""
    return [LoadedObject({"apiVersion": "v1", "kind": kind.singular, **item}, "the API server", 0) for item in items]


class Explainer:
    """Explains pods of a simulation's cluster, and pods that aren't there yet."""

    def __init__(self, simulation: Simulation, policies: SchedulingPolicies, scheduler_name: str, now: float) -> None:
        self.simulation = simulation
        self._policies = policies
        self._scheduler_name = scheduler_name
        self._now = now

    def of_known(self, namespace: str, name: str, most_nodes: int | None = None) -> Explanation:
        """Explain a pod of the cluster, by at most so many nodes. Raises `UnknownPod`."""
        cluster = self.simulation.cluster
        raw = cluster.peek(Kind.PODS, name, namespace)
        if raw is None:
            raise UnknownPod(_unknown(namespace, name, cluster.peek_all(Kind.PODS)))
        try:
            pod = Pod.from_object(raw)
        except MalformedObject as error:
            raise UnknownPod(f"pod {namespace}/{name} can't be read: {error}") from error
        return explain(pod, replace(self._context(namespace, raw), most_nodes=most_nodes))

    async def of_new(self, manifest: Mapping[str, Any]) -> Explanation:
        """Admit a pod that doesn't exist yet, and explain the result."""
        arrival = await self.simulation.admit(manifest)
        context = self._context(arrival.namespace, arrival.manifest)
        if arrival.pod is not None:
            return explain(arrival.pod, context)
        pod = None
        with contextlib.suppress(MalformedObject):
            pod = Pod.from_object(arrival.manifest)
        return explain_denial(pod, context, (arrival.namespace, arrival.name), arrival.code, arrival.message)

    def _context(self, namespace: str, raw: Mapping[str, Any]) -> ExplainContext:
        core = self.simulation.core
        spec = raw.get("spec")
        gates = spec.get("schedulingGates") if isinstance(spec, Mapping) else None
        return ExplainContext(
            core.state,
            core.vendors,
            self.simulation.quotas_of(namespace),
            self._now,
            self._policies,
            self._scheduler_name,
            core.placement_ttl,
            [str(gate.get("name")) for gate in gates if isinstance(gate, Mapping)] if isinstance(gates, list) else [],
            [*core.caches.disruption_budgets.values()],
            self._bounded(namespace),
            self._filter_nodes(raw),
        )

    def _filter_nodes(self, raw: Mapping[str, Any]) -> Callable[[], FilterResult]:
        return lambda: filter_nodes(Pod.from_object(raw), self.simulation.core.state.nodes())

    def _bounded(self, name: str) -> Callable[[Pod], BoundedPod]:
        """How policy bounds the pods of a namespace; raises `ClusterError` where the Namespace can't be read."""
        core = self.simulation.core
        namespace = core.caches.namespaces.get(name)

        def bounded(pod: Pod) -> BoundedPod:
            if namespace is None:
                raise ClusterError(f"namespace {name} can't be read, so it isn't known what it allows its pods")
            return core.boundary.bounded(pod, namespace)

        return bounded


def _unknown(namespace: str, name: str, pods: Sequence[Mapping[str, Any]]) -> str:
    elsewhere = sorted(pod["metadata"]["namespace"] for pod in pods if pod["metadata"]["name"] == name)
    hint = f"; one of that name is in {', '.join(elsewhere)}" if elsewhere else ", nor in any other"
    return f"no pod {name} in namespace {namespace}{hint}"
