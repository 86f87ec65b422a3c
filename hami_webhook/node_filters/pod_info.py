"""A pod as the filters see it: its requests and host ports, and the rest of its spec as it is written, its terms of
affinity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from msgspec import Struct

from hami_webhook.kube import scheduling_wire as scheduling
from hami_webhook.kube import wire
from hami_webhook.node_filters.pod_requests import pod_requests
from hami_webhook.node_filters.selectors import Labels, Matches, expression, label_selector

_META, _SPEC, _STATUS = wire.ObjectMeta(), scheduling.PodSpec(), scheduling.PodStatus()
_ENDED = ("Succeeded", "Failed")
ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - what a host port without an address is bound to


class HostPort(NamedTuple):
    """A port of its node that a container takes."""

    address: str
    protocol: str
    port: int


class PodInfo(Struct, frozen=True, eq=False, dict=True):
    """`requests` are whole amounts by resource (cpu in thousandths); `spec` is as it is written."""

    namespace: str
    name: str
    uid: str
    labels: dict[str, str]
    spec: scheduling.PodSpec
    node: str
    nominated_node: str
    priority: int
    ended: bool
    terminating: bool
    requests: dict[str, int]
    ports: tuple[HostPort, ...]

    @classmethod
    def read(cls, obj: Any) -> PodInfo:
        """A pod from its JSON. Raises `MalformedObject`."""
        pod = wire.convert(obj, scheduling.Pod, "pod")
        meta, spec, status = pod.metadata or _META, pod.spec or _SPEC, pod.status or _STATUS
        return cls(
            meta.namespace or "default",
            meta.name or meta.generate_name or "",
            meta.uid or "",
            meta.labels or {},
            spec,
            spec.node_name or "",
            status.nominated_node_name or "",
            spec.priority or 0,
            status.phase in _ENDED,
            meta.deletion_timestamp is not None,
            pod_requests(pod, placed=bool(spec.node_name)),
            tuple(dict.fromkeys(_host_ports(spec))),
        )

    @property
    def key(self) -> str:
        """`namespace/name`, how Kubernetes prints a pod."""
        return f"{self.namespace}/{self.name}"

    @cached_property
    def affinity(self) -> tuple[scheduling.PodAffinityTerm, ...]:
        """The terms of its required affinity to pods, as they are written."""
        rules = self.spec.affinity and self.spec.affinity.pod_affinity
        return (rules and rules.required_during_scheduling_ignored_during_execution) or ()

    @cached_property
    def anti_affinity(self) -> tuple[scheduling.PodAffinityTerm, ...]:
        """The terms of its required anti-affinity to pods, as they are written."""
        rules = self.spec.affinity and self.spec.affinity.pod_anti_affinity
        return (rules and rules.required_during_scheduling_ignored_during_execution) or ()

    @cached_property
    def affinity_terms(self) -> list[AffinityTerm]:
        """The same, to be matched. Raises `MalformedObject`."""
        return [AffinityTerm(each, self.namespace, self.labels) for each in self.affinity]

    @cached_property
    def anti_affinity_terms(self) -> list[AffinityTerm]:
        """The same, to be matched. Raises `MalformedObject`."""
        return [AffinityTerm(each, self.namespace, self.labels) for each in self.anti_affinity]


def _host_ports(spec: scheduling.PodSpec) -> Iterator[HostPort]:
    """The host ports of the containers that run all the time; with the host's network every port is one of the host."""
    sidecars = (each for each in spec.init_containers or () if each.restart_policy == "Always")
    for container in (*sidecars, *(spec.containers or ())):
        for port in container.ports or ():
            number = port.host_port or (port.container_port if spec.host_network else 0)
            if number and number > 0:
                yield HostPort(port.host_ip or ANY_ADDRESS, port.protocol or "TCP", number)


class AffinityTerm:
    """Which pods it is about, and `key`, the label of their nodes by which they are near each other."""

    __slots__ = ("_matches", "_namespaces", "_selector", "key")

    def __init__(self, written: scheduling.PodAffinityTerm, namespace: str, labels: Labels) -> None:
        """`namespace` and `labels` are those of the pod that has the term. Raises `MalformedObject`."""
        self.key = written.topology_key or ""
        self._namespaces = frozenset(written.namespaces or ())
        self._selector: Matches | None = None
        if written.namespace_selector is not None:
            self._selector = label_selector(written.namespace_selector)
        elif not self._namespaces:
            self._namespaces = frozenset((namespace,))
        self._matches = label_selector(written.label_selector, _of_keys(written, labels))

    def matches(self, namespace: str, labels: Labels, labels_of: Callable[[str], Labels]) -> bool:
        """Whether it is about a pod of this namespace and these labels; `labels_of` gives a namespace's."""
        if not self._matches(labels):
            return False
        if namespace in self._namespaces:
            return True
        return self._selector is not None and self._selector(labels_of(namespace))


def _of_keys(written: scheduling.PodAffinityTerm, labels: Labels) -> Iterator[Matches]:
    """What matchLabelKeys and mismatchLabelKeys stand for.

    The API server adds it to the selector of a pod that it stores, by the labels that the pod has then.
    """
    selector = written.label_selector
    added = {(each.key, each.operator) for each in (selector and selector.match_expressions) or ()}
    for operator, keys in (("In", written.match_label_keys), ("NotIn", written.mismatch_label_keys)):
        for key in keys or ():
            if key in labels and (key, operator) not in added:
                yield expression(key, operator, (labels[key],))
