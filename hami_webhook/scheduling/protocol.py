"""What kube-scheduler and its extender send each other (`kube-scheduler/extender/v1`); keys are taken in any case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hami_webhook.devices.codecs import lower_keys
from hami_webhook.kube.names import is_subdomain

JSON = dict[str, Any]


class NodeList(msgspec.Struct, frozen=True):
    """Whole nodes, as JSON."""

    items: list[JSON] | None = None


class ExtenderArgs(msgspec.Struct, frozen=True):
    """What filter and prioritize get: a pod, and names of nodes that kube-scheduler knows we cache, or whole nodes."""

    pod: JSON
    names: list[str] | None = msgspec.field(default=None, name="nodenames")
    node_list: NodeList | None = msgspec.field(default=None, name="nodes")

    @property
    def nodes(self) -> Sequence[JSON] | None:
        return None if self.node_list is None else self.node_list.items or []


class Binding(msgspec.Struct, frozen=True):
    """What bind gets."""

    namespace: str = msgspec.field(name="podnamespace")
    name: str = msgspec.field(name="podname")
    uid: str = msgspec.field(name="poduid")
    node: str


class Filtered(msgspec.Struct, frozen=True):
    """The answer to filter: the nodes that are left, in the form of the request, and why others aren't."""

    names: Sequence[str] | None = None
    nodes: Sequence[JSON] | None = None
    failed: Mapping[str, str] = {}
    unresolvable: Mapping[str, str] = {}
    error: str = ""


def decode_args(body: Any) -> ExtenderArgs | str:
    """kube-scheduler's `ExtenderArgs`; or the error to answer."""
    if not isinstance(body, dict):
        return "extender args must be a JSON object"
    fields = lower_keys(body)
    if isinstance(nodes := fields.get("nodes"), dict):
        fields["nodes"] = lower_keys(nodes)
    try:
        return msgspec.convert(fields, ExtenderArgs)
    except msgspec.ValidationError as error:
        text = str(error)
    if "$.nodenames" in text:
        return "extender args: NodeNames must be a list of names"
    return "extender args: Nodes must be a list of nodes" if "$.nodes" in text else "extender args missing pod"


def decode_binding(body: Any) -> Binding | str:
    """kube-scheduler's `ExtenderBindingArgs`; or the error to answer."""
    try:
        binding = msgspec.convert(lower_keys(body) if isinstance(body, dict) else body, Binding)
    except msgspec.ValidationError:
        binding = None
    if binding is None or not all((binding.namespace, binding.name, binding.uid, binding.node)):
        return "extender binding args must name PodName, PodNamespace, PodUID and Node"
    for what, value in (("PodNamespace", binding.namespace), ("PodName", binding.name), ("Node", binding.node)):
        if not is_subdomain(value):
            return f"extender binding args: {what} {value[:100]!r} is no name that a Kubernetes object can have"
    return binding


def encode_filtered(filtered: Filtered) -> JSON:
    """kube-scheduler's `ExtenderFilterResult`."""
    nodes: JSON | None = None
    if filtered.nodes is not None:
        nodes = {"metadata": {}, "items": list(filtered.nodes)}
    return {
        "Nodes": nodes,
        "NodeNames": None if filtered.names is None else list(filtered.names),
        "FailedNodes": dict(filtered.failed) or None,
        "FailedAndUnresolvableNodes": dict(filtered.unresolvable) or None,
        "Error": filtered.error,
    }


class VictimMetadata(msgspec.Struct, frozen=True):
    """The metadata of a victim that is sent whole."""

    uid: str = ""


class Victim(msgspec.Struct, frozen=True):
    """A pod that kube-scheduler would evict: its UID, or the whole pod."""

    uid: str = ""
    metadata: VictimMetadata = VictimMetadata()


class NodeVictims(msgspec.Struct, frozen=True):
    """The victims on a node, and how many of them exceed a PodDisruptionBudget."""

    pods: list[Victim] | None = None
    violations: int = msgspec.field(default=0, name="numpdbviolations")


class PreemptionArgs(msgspec.Struct, frozen=True):
    """What preempt gets: a pod, and victims by node, as UIDs where kube-scheduler knows that we cache nodes."""

    pod: JSON
    uids: dict[str, NodeVictims] | None = msgspec.field(default=None, name="nodenametometavictims")
    whole: dict[str, NodeVictims] | None = msgspec.field(default=None, name="nodenametovictims")


class Proposal(msgspec.Struct, frozen=True):
    """kube-scheduler's victims on one node: their UIDs, and how many of them exceed a PodDisruptionBudget."""

    victims: tuple[str, ...]
    violations: int = 0


def decode_proposals(body: Any) -> tuple[JSON, dict[str, Proposal]] | str:
    """kube-scheduler's `ExtenderPreemptionArgs`: the pod, victims by node; or the error to answer."""
    fields = lower_keys(body) if isinstance(body, dict) else {}
    if not isinstance(fields.get("pod"), dict):
        return "extender preemption args missing pod"
    try:
        args = msgspec.convert(
            {key: each if key == "pod" else _lower(each) for key, each in fields.items()}, PreemptionArgs
        )
    except msgspec.ValidationError as error:
        return f"extender preemption args: {error}"
    proposed: dict[str, Proposal] = {}
    for node, victims in (args.uids or args.whole or {}).items():
        uids = tuple([each.uid or each.metadata.uid for each in victims.pods or ()])
        if not all(uids):
            return f"extender preemption args: a victim on node {node} has no UID"
        proposed[node] = Proposal(uids, victims.violations)
    return args.pod, proposed


def encode_proposals(proposed: Mapping[str, Proposal]) -> JSON:
    """kube-scheduler's `ExtenderPreemptionResult`."""
    return {
        "NodeNameToMetaVictims": {
            node: {"Pods": [{"UID": uid} for uid in each.victims], "NumPDBViolations": each.violations}
            for node, each in proposed.items()
        }
    }


def _lower(value: Any) -> Any:
    """JSON with the keys of all objects in lower case."""
    if isinstance(value, dict):
        return {key.lower(): _lower(each) for key, each in value.items()}
    return [_lower(each) for each in value] if isinstance(value, list) else value
