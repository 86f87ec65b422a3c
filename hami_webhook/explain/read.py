"""Reading the objects that a pod is explained with, from an API server or from files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

from msgspec.structs import replace

from hami_webhook.cluster.api import ClusterError, Kind
from hami_webhook.cluster.loading import LoadedObject
from hami_webhook.command_error import CommandError
from hami_webhook.dra.taken_resources import CANNOT_FIT, taken_resources
from hami_webhook.explain.explain import ExplainContext, explain, explain_denial
from hami_webhook.explain.pod_words import quota_reason, scheduler_says
from hami_webhook.explain.report import Explanation
from hami_webhook.kube.objects import MalformedObject, Pod
from hami_webhook.node_filters.gates import gate_names
from hami_webhook.scheduling.boundary import BoundedPod
from hami_webhook.scheduling.placer import SchedulingPolicies
from hami_webhook.simulate.simulation import Simulation

KINDS = (
    Kind.NODES,
    Kind.PODS,
    Kind.RESOURCE_QUOTAS,
    Kind.ACCELERATOR_QUOTAS,
    Kind.NAMESPACES,
    Kind.DEVICES,
    Kind.POD_DISRUPTION_BUDGETS,
    Kind.PRIORITY_CLASSES,
    Kind.DEVICE_CLASSES,
)
CLAIM_KINDS = (Kind.RESOURCE_CLAIMS, Kind.RESOURCE_CLAIM_TEMPLATES, Kind.RESOURCE_SLICES)
"""Those that are read where claims are charged."""


class UnknownPod(CommandError):
    """There is no such pod; the text says where there is one of that name."""

    absent = True


def loaded(kind: Kind, items: Iterable[Mapping[str, Any]]) -> list[LoadedObject]:
    """Listed objects, with their kind, which lists leave out."""
    return [LoadedObject({"apiVersion": "v1", "kind": kind.singular, **item}, "the API server", 0) for item in items]


class Explainer:
    """Explains pods of a simulation's cluster, and pods that aren't there yet.

    Of the kinds in `unseen` all objects, or those outside of the pods' namespace, couldn't be read.
    """

    def __init__(
        self,
        simulation: Simulation,
        policies: SchedulingPolicies,
        scheduler_name: str,
        now: float,
        unseen: Set[Kind] = frozenset(),
    ) -> None:
        self.simulation = simulation
        self._policies = policies
        self._scheduler_name = scheduler_name
        self._now = now
        self._unseen = unseen

    def of_known(self, namespace: str, name: str, nearest: int | None = None) -> Explanation:
        """Explain a pod of the cluster; changes are searched on so many nodes of each answer, None: on all.

        Raises `UnknownPod`.
        """
        cluster = self.simulation.cluster
        raw = cluster.peek(Kind.PODS, name, namespace)
        if raw is None:
            everywhere = Kind.PODS not in self._unseen
            raise UnknownPod(_unknown(namespace, name, cluster.peek_all(Kind.PODS), everywhere=everywhere))
        try:
            pod = Pod.from_object(raw)
        except MalformedObject as error:
            raise UnknownPod(f"pod {namespace}/{name} can't be read: {error}") from error
        return explain(pod, replace(self._context(namespace, raw), nearest=nearest))

    async def of_new(self, manifest: Mapping[str, Any], nearest: int | None = None) -> Explanation:
        """Admit a pod that doesn't exist yet, and explain the result; `nearest` is as in `of_known`."""
        arrival = await self.simulation.admit(manifest)
        context = replace(self._context(arrival.namespace, arrival.manifest), nearest=nearest)
        if arrival.pod is not None:
            found = explain(arrival.pod, context)
        else:
            pod = None
            with contextlib.suppress(MalformedObject):
                pod = Pod.from_object(arrival.manifest)
            found = explain_denial(pod, context, (arrival.namespace, arrival.name), arrival.code, arrival.message)
        return replace(found, notes=[*(f"warning: {each}" for each in arrival.warnings), *found.notes])

    def _context(self, namespace: str, raw: Mapping[str, Any]) -> ExplainContext:
        core = self.simulation.core
        return ExplainContext(
            core.state,
            core.capacity,
            core.vendors,
            self.simulation.quotas_of(namespace),
            self._now,
            self._policies,
            self._scheduler_name,
            core.placement_ttl,
            gate_names(raw),
            [*core.caches.disruption_budgets.values()],
            self._bounded(namespace),
            lambda: self.simulation.snapshot.filter_nodes(raw),
            sees_nodes=Kind.NODES not in self._unseen,
            sees_all_pods=Kind.PODS not in self._unseen,
            sees_quotas=Kind.ACCELERATOR_QUOTAS not in self._unseen and not self._lacks_own_quotas,
            claims=core.caches.claims if core.vendors.drivers else None,
            waits_for=quota_reason(raw),
            cannot_fit=scheduler_says(raw, CANNOT_FIT),
            taken=taken_resources(core.caches.claims.classes, core.vendors.resource_names),
            node_classes=self.simulation.node_classes,
        )

    @property
    def _lacks_own_quotas(self) -> bool:
        """Whether a reader of one namespace doesn't see its quotas."""
        return Kind.RESOURCE_QUOTAS in self._unseen and not self.simulation.core.caches.all_quotas()

    def _bounded(self, name: str) -> Callable[[Pod], BoundedPod]:
        """How policy bounds the pods of a namespace; raises `ClusterError` where the Namespace can't be read."""
        core = self.simulation.core
        namespace = core.caches.namespaces.get(name)

        def bounded(pod: Pod) -> BoundedPod:
            if namespace is None and Kind.NAMESPACES in self._unseen:
                return BoundedPod(pod)
            if namespace is None:
                raise ClusterError(f"namespace {name} can't be read, so it isn't known what it allows its pods")
            return core.boundary.bounded(pod, namespace)

        return bounded


def _unknown(namespace: str, name: str, pods: Sequence[Mapping[str, Any]], *, everywhere: bool) -> str:
    """That there is no such pod; `everywhere`: nor in other namespaces, as far as `pods` has none."""
    elsewhere = sorted(pod["metadata"]["namespace"] for pod in pods if pod["metadata"]["name"] == name)
    hint = ", nor in any other" if everywhere else ""
    if elsewhere:
        hint = f"; one of that name is in {', '.join(elsewhere)}"
    return f"no pod {name} in namespace {namespace}{hint}"
