"""Reading a live cluster with the rights of the user whose kubeconfig the flags name, and what a verb has to show."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from hami_webhook.cluster.api import Cluster, ClusterError, Forbidden, Kind, Unavailable
from hami_webhook.cluster.connect import CONNECTIONS_OF_A_READ, ContextNames, connect, names_of, unreachable
from hami_webhook.cluster.kept_fields import decode_for_scheduling
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.cluster.loading import Bundle
from hami_webhook.device_config import read_device_config
from hami_webhook.doctor.installation import Effective, installed_version, read_effective
from hami_webhook.explain.live import LONGEST_WAIT, LiveReading, Unseen, read_allowed, with_pod_words
from hami_webhook.explain.pod_words import quota_reason, waiting_reason
from hami_webhook.explain.read import Explainer
from hami_webhook.explain.report import Explanation
from hami_webhook.kube.objects import Pod
from hami_webhook.node_filters.snapshot import SchedulerSnapshot
from hami_webhook.simulate.simulation import Simulation
from hami_webhook.usage.figures import NOT_ASKED, Measured

if TYPE_CHECKING:
    from rich.console import Console

    from hami_webhook.doctor.checks import Diagnosis
    from hami_webhook.kubectl.overview import Overview
    from hami_webhook.kubectl.queue import QueuedPodUse
    from hami_webhook.kubectl.report import PodUse
    from hami_webhook.kubectl.workloads import RefusedReplicas, Workload


class LiveCluster(Struct, frozen=True, dict=True):
    """A cluster as it was read at `now`, and by kind what couldn't be seen of it.

    `pod_words` are what the status and the events of the pod that is explained say, where not all can be seen.
    `measured` is what is really used, as far as it was asked for and is known.
    """

    simulation: Simulation
    effective: Effective
    namespace: str
    now: float
    unseen: Mapping[Kind, Unseen]
    warnings: Sequence[str]
    pod_words: Sequence[str] = ()
    measured: Measured = NOT_ASKED
    refused: Sequence[RefusedReplicas] = ()
    """Replicas that quotas refuse, where that was asked for."""
    workload: Workload | None = None
    """The workload that is explained."""
    bundle: Bundle = field(default_factory=Bundle)
    """The objects that were read."""

    @property
    def all_unseen(self) -> Sequence[str]:
        """A sentence for everything that couldn't be seen."""
        return [*self.effective.unseen, *(each.sentence for each in self.unseen.values())]

    @property
    def overview(self) -> Overview:
        # imported here, as other modules below: what explains a pod needs none of them, and starts a twelfth sooner
        from hami_webhook.kubectl.overview import Overview

        return Overview(self.simulation.core.view, self.now, self.measured)

    def pods(self, namespace: str = "", name: str = "") -> list[PodUse]:
        """The live pods that request managed resources or hold cards; those that wait with why."""
        return [self._with_reason(pod) if pod.waits else pod for pod in self.overview.pods(namespace, name)]

    async def queued_pods(self, namespace: str = "") -> list[QueuedPodUse]:
        """The pods that wait for quota, by quota and place."""
        from hami_webhook.kubectl.queue import queued_pods

        def condition(pod: Pod) -> str:
            raw = self.simulation.cluster.peek(Kind.PODS, pod.name, pod.namespace)
            return quota_reason(raw) if raw is not None else ""

        complete = self.unseen.keys().isdisjoint({Kind.PODS, Kind.RESOURCE_QUOTAS, Kind.ACCELERATOR_QUOTAS})
        found = await queued_pods(self.simulation.core, condition, complete=complete)
        return [each for each in found if namespace in ("", each.namespace)]

    def _with_reason(self, pod: PodUse) -> PodUse:
        raw = self.simulation.cluster.peek(Kind.PODS, pod.name, pod.namespace)
        return replace(pod, reason=waiting_reason(raw)) if raw is not None else pod

    @cached_property
    def closed_nodes(self) -> Mapping[str, str]:
        """The nodes that take no pod which tolerates only the taints named after what it asks for, with why."""
        snapshot = SchedulerSnapshot()
        for node in self.simulation.cluster.peek_all(Kind.NODES):
            snapshot.put_node(node)
        # as the admission plugin ExtendedResourceToleration adds them
        names = sorted(self.simulation.core.vendors.resource_names)
        tolerations = [{"key": name, "operator": "Exists"} for name in names]
        refused = snapshot.filter_nodes({"spec": {"tolerations": tolerations}}).refusals
        return {name: refusal.why or ", ".join(refusal.reasons) for name, refusal in refused.items()}

    def explain(self, namespace: str, name: str, nearest: int | None = None) -> Explanation:
        """Explain a pod; changes are searched on so many nodes of each answer, None: on all. Raises `UnknownPod`."""
        policies, scheduler = self.effective.options.policies, self.effective.settings.scheduler_name
        explainer = Explainer(self.simulation, policies, scheduler, self.now, self.unseen.keys())
        found = explainer.of_known(namespace, name, nearest)
        return replace(found, notes=[*found.notes, *self.pod_words])


@asynccontextmanager
async def connected(
    arguments: argparse.Namespace, connections: int | None = None
) -> AsyncIterator[tuple[KubernetesCluster, str]]:
    """The cluster and the namespace that the flags name."""
    kubeconfig = _kubeconfig(arguments)
    namespace = arguments.namespace or names_of(kubeconfig, arguments.context).namespace
    client = await connect(kubeconfig, arguments.context, connections)
    async with KubernetesCluster(client, decode=decode_for_scheduling, silence=LONGEST_WAIT) as api:
        try:
            yield api, namespace
        except Unavailable as error:
            if text := unreachable(error):
                raise Unavailable(text) from error
            raise


def context_names(arguments: argparse.Namespace) -> ContextNames:
    """What the context that the flags name calls the cluster and the user. Raises `ClusterError`."""
    return names_of(_kubeconfig(arguments), arguments.context)


def _kubeconfig(arguments: argparse.Namespace) -> str:
    return arguments.kubeconfig or os.environ.get("KUBECONFIG", "")


@asynccontextmanager
async def probing(arguments: argparse.Namespace, longest: float) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """What asks the API server for the least; it raises `Unavailable` without an answer within `longest` seconds."""
    client = await connect(_kubeconfig(arguments), arguments.context)
    async with KubernetesCluster(client, timeout=longest) as api:

        async def probe() -> None:
            try:
                await api.version()
            except ClusterError as error:
                if error.__cause__ is not None:  # else the API server refused, which is an answer
                    raise

        yield probe


async def read(arguments: argparse.Namespace) -> LiveCluster:
    config = read_device_config(arguments.config) if arguments.config else None
    async with connected(arguments, CONNECTIONS_OF_A_READ) as (api, namespace):
        effective = await read_effective(api, arguments.system_namespace, config)
        reading = await read_allowed(api, namespace, claims=effective.charges_claims)
        now = time.time()
        if getattr(arguments, "shown", "") == "pod":
            reading = await with_pod_words(reading, api, namespace, arguments.name, now)
        seen = namespace if Kind.PODS in reading.unseen else ""
        measured = await _measured(arguments, api, seen, effective, now)
        refused, workload = await _refused(arguments, api, namespace, seen)
        filled = await _filled(reading, effective, namespace, now)
        return replace(filled, measured=measured, refused=refused, workload=workload)


async def _refused(
    arguments: argparse.Namespace, api: KubernetesCluster, namespace: str, seen: str
) -> tuple[Sequence[RefusedReplicas], Workload | None]:
    """What quotas refuse, for what shows it; `seen` is the one namespace that can be seen, empty for all."""
    shown = getattr(arguments, "shown", "pages")
    if shown not in ("quota", "pages", "deployment", "job", "statefulset"):
        return (), None
    # imported here: most verbs don't need it
    from hami_webhook.kubectl.workloads import WORKLOADS, read_refused, read_workload

    if shown in WORKLOADS:
        return (), await read_workload(api, shown, namespace, arguments.name)
    everywhere = shown == "pages" or arguments.all_namespaces
    return await read_refused(api, seen if everywhere else namespace), None


async def _measured(
    arguments: argparse.Namespace, api: KubernetesCluster, namespace: str, effective: Effective, now: float
) -> Measured:
    """What is really used, for the commands that show it: they have the flag. Of all namespaces if none is named."""
    # advise and simulate ask for a history
    if "prometheus" not in arguments or getattr(arguments, "shown", "") in ("advise", "simulate"):
        return NOT_ASKED
    from hami_webhook.usage.api import read_measured
    from hami_webhook.usage.from_prometheus import query_measured

    if arguments.prometheus:
        return await asyncio.to_thread(query_measured, arguments.prometheus, now, effective.exporters)
    return await read_measured(api, namespace)


async def read_with(cluster: Cluster, effective: Effective, namespace: str, now: float) -> LiveCluster:
    """The cluster at `now` (Unix seconds) as far as it may be read, for a program that goes by `effective`."""
    reading = await read_allowed(cluster, namespace, claims=effective.charges_claims)
    return await _filled(reading, effective, namespace, now)


async def _filled(reading: LiveReading, effective: Effective, namespace: str, now: float) -> LiveCluster:
    simulation = await effective.simulation(reading.bundle, now)
    warnings = [*effective.absent, *simulation.warnings()]
    return LiveCluster(
        simulation, effective, namespace, now, reading.unseen, warnings, reading.pod_words, bundle=reading.bundle
    )


async def follow(arguments: argparse.Namespace, before: LiveCluster) -> AsyncGenerator[LiveCluster, None]:
    """Yield the cluster, read again after each change and every few seconds; `before` is the last reading.

    Ends as soon as a watch isn't possible, or the installed program goes by something else. Raises `ClusterError`.
    """
    from hami_webhook.kubectl.watched import WatchedObjects

    effective = before.effective
    async with connected(arguments) as (api, namespace):
        known = await _goes_by(arguments, api)
        simulation = Simulation(effective.vendors, effective.options, effective.policies, time.time())
        measured, refused, looked = before.measured, before.refused, time.monotonic()
        watched = WatchedObjects(api, simulation, claims=effective.charges_claims)
        async with aclosing(watched.changes(_LOOK_EVERY)) as changes:
            async for _ in changes:
                simulation.now = now = time.time()
                simulation.core.state.tick(now)
                if time.monotonic() >= looked + _LOOK_EVERY:
                    if await _goes_by(arguments, api) != known:
                        return
                    measured = await _measured(arguments, api, "", effective, now)
                    refused, _ = await _refused(arguments, api, namespace, "")
                    looked = time.monotonic()
                warnings = [*effective.absent, *simulation.warnings()]
                yield LiveCluster(
                    simulation, effective, namespace, now, {}, warnings, measured=measured, refused=refused
                )


_LOOK_EVERY = 5.0
"""Seconds between two looks at what isn't watched: what the program goes by, and what is really used."""


async def _goes_by(arguments: argparse.Namespace, api: KubernetesCluster) -> object:
    config = read_device_config(arguments.config) if arguments.config else None
    return config, await installed_version(api, arguments.system_namespace)


async def diagnosed(arguments: argparse.Namespace) -> Diagnosis:
    # imported here: it takes a fifteenth of the time in which the other verbs start
    from hami_webhook.doctor.checks import diagnose
    from hami_webhook.doctor.facts import Facts

    async with connected(arguments, CONNECTIONS_OF_A_READ) as (api, namespace):
        return await diagnose(await Facts.read(api, arguments.system_namespace, namespace))


class CommandResult(Struct, frozen=True):
    """A result: its plain values for JSON and YAML, how it is printed as a table, and the exit status.

    `none`: what is said on standard error in place of an empty table.
    """

    values: object
    show: Callable[[Console], None]
    status: int = 0
    none: str = ""


def require(cluster: LiveCluster, kind: Kind, namespace: str = "") -> None:
    """Raises `Forbidden` where nothing of a kind may be seen that all of the answer is made of."""
    unseen = cluster.unseen.get(kind)
    if unseen is not None and not unseen.elsewhere:
        where = f" in namespace {namespace}" if namespace else ""
        raise Forbidden(f"{kind.qualified} can't be listed{where} with your rights")
