"""The fields that kube-scheduler's filters read of pods and nodes, beside those of `kube/wire.py`.

A process that watches leaves them out, so that its memory stays small; a command that filters nodes as kube-scheduler
does reads them (`node_filters`).
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from hami_webhook.kube import wire
from hami_webhook.kube.wire import Amounts, LabelSelectorObject, Wire


class Toleration(Wire, frozen=True):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class NodeSelectorTerm(wire.NodeSelectorTerm, frozen=True):
    match_fields: tuple[wire.NodeSelectorRequirement, ...] | None = None


class NodeSelector(Wire, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = None


class NodeAffinity(Wire, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class PodAffinityTerm(wire.PodAffinityTerm, frozen=True):
    label_selector: LabelSelectorObject | None = None
    topology_key: str | None = None
    match_label_keys: tuple[str, ...] | None = None
    mismatch_label_keys: tuple[str, ...] | None = None
    namespace_selector: LabelSelectorObject | None = None


class PodAffinity(wire.PodAffinity, frozen=True):
    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] | None = None


class Affinity(wire.Affinity, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Wire, frozen=True):
    max_skew: int = 1
    topology_key: str | None = None
    when_unsatisfiable: str | None = None
    label_selector: LabelSelectorObject | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] | None = None


class ContainerPort(Wire, frozen=True):
    container_port: int | None = None
    host_port: int | None = None
    host_ip: str | None = field(name="hostIP", default=None)
    protocol: str | None = None


class RestartRule(Wire, frozen=True):
    action: str | None = None


class Container(wire.ContainerObject, frozen=True):
    ports: tuple[ContainerPort, ...] | None = None
    restart_policy_rules: tuple[RestartRule, ...] | None = None


class VolumeSource(Wire, frozen=True):
    """Where a volume comes from; that there is one is all that is asked."""


class Volume(Wire, frozen=True):
    """The sources about which a filter decides."""

    persistent_volume_claim: VolumeSource | None = None
    ephemeral: VolumeSource | None = None
    csi: VolumeSource | None = None
    gce_persistent_disk: VolumeSource | None = None
    aws_elastic_block_store: VolumeSource | None = None
    azure_disk: VolumeSource | None = None
    iscsi: VolumeSource | None = None
    rbd: VolumeSource | None = None


class PodSpec(wire.PodSpec, frozen=True):
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] | None = None
    overhead: Amounts | None = None
    resources: wire.Resources | None = None
    volumes: tuple[Volume, ...] | None = None
    host_network: bool | None = None
    host_users: bool | None = None


class ContainerStatus(wire.ContainerStatus, frozen=True):
    resources: wire.Resources | None = None
    allocated_resources: Amounts | None = None


class Condition(wire.PodCondition, frozen=True):
    reason: str | None = None
    message: Any = None


class PodStatus(wire.PodStatus, frozen=True):
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    conditions: tuple[Condition, ...] | None = None
    resources: wire.Resources | None = None
    allocated_resources: Amounts | None = None


class OwnerReference(Wire, frozen=True):
    kind: str | None = None
    name: str | None = None
    uid: str | None = None
    controller: bool | None = None


class PodMeta(wire.ObjectMeta, frozen=True):
    """No filter reads `owner_references`: a command asks who replaces a pod that goes."""

    owner_references: tuple[OwnerReference, ...] | None = None


class Pod(wire.PodObject, frozen=True):
    metadata: PodMeta | None = None
    spec: PodSpec | None = None
    status: PodStatus | None = None


class Taint(Wire, frozen=True):
    key: str | None = None
    value: str | None = None
    effect: str | None = None


class NodeSpec(wire.NodeSpec, frozen=True):
    unschedulable: bool | None = None
    taints: tuple[Taint, ...] | None = None


class Node(wire.NodeObject, frozen=True):
    spec: NodeSpec | None = None


class PriorityClassObject(wire.Wire, frozen=True):
    """A PriorityClass (scheduling.k8s.io/v1)."""

    metadata: wire.ObjectMeta | None = None
    value: int = 0
    global_default: bool | None = None
    preemption_policy: str | None = None
