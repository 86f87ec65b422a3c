"""PodTopologySpread: nodes where one more pod would make the pods of a workload too uneven (DoNotSchedule)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from hami_webhook.kube import scheduling_wire as scheduling
from hami_webhook.node_filters.framework import Filter, NodeInfoLister, check_work
from hami_webhook.node_filters.node_affinity import RequiredNodeAffinity
from hami_webhook.node_filters.node_info import NodeInfo
from hami_webhook.node_filters.pod_info import PodInfo
from hami_webhook.node_filters.result import NodeRefusal
from hami_webhook.node_filters.selectors import Matches, expression, is_empty, label_selector, nothing, size
from hami_webhook.node_filters.taints import Tolerations

NAME = "PodTopologySpread"
_NO_LABEL = ("node(s) didn't match pod topology spread constraints (missing required label)",)
_UNEVEN = ("node(s) didn't match pod topology spread constraints",)

_HARD = "DoNotSchedule"

Eligible = Callable[[NodeInfo], bool]


class _Constraint(Struct, frozen=True):
    """A constraint with how many pods that it counts each of its domains has."""

    key: str
    max_skew: int
    min_domains: int
    counts: Matches
    """Which pods, by their labels."""
    eligible: Sequence[Eligible]
    """What a node must be for its pods and its domain to count."""
    itself: int
    """1 if the pod itself is one of those that are counted."""
    domains: Counter[str] = field(default_factory=Counter)

    def least(self) -> int:
        """How many the emptiest domain has; 0 where there are fewer domains than there must be."""
        return min(self.domains.values()) if len(self.domains) >= self.min_domains else 0


class PodTopologySpread(Filter):
    def __init__(
        self, pod: PodInfo, constraints: Sequence[_Constraint], counted: Iterable[tuple[NodeInfo, Iterable[PodInfo]]]
    ) -> None:
        """`counted` are nodes with pods that the constraints don't count yet."""
        self._pod = pod
        self._constraints = constraints
        for node, pods in counted:
            self._count(node, pods)
        self._least = [constraint.least() for constraint in constraints]

    @classmethod
    def of(
        cls, pod: PodInfo, cluster: NodeInfoLister, required: RequiredNodeAffinity, tolerations: Tolerations
    ) -> PodTopologySpread | None:
        """The rule for a pod, None if it has no such constraint."""
        written = [each for each in pod.spec.topology_spread_constraints or () if each.when_unsatisfiable == _HARD]
        if not written:
            return None
        nodes = cluster.nodes.values()
        required.check_work(cluster)
        work = sum(size(each.label_selector) for each in written) * sum(1 + len(node.pods) for node in nodes)
        check_work(NAME, work, "its topology spread constraints")
        policies = (required.matches, lambda node: tolerations.untolerated(node) is None)
        constraints = [_constraint(each, pod, *policies) for each in written]
        return cls(pod, constraints, ((node, node.pods.values()) for node in nodes))

    def with_pods(self, node: NodeInfo, pods: Iterable[PodInfo]) -> PodTopologySpread:
        copies = [replace(each, domains=Counter(each.domains)) for each in self._constraints]
        return PodTopologySpread(self._pod, copies, [(node, pods)])

    def _count(self, node: NodeInfo, pods: Iterable[PodInfo]) -> None:
        """Take the pods of a node into account; a node without all of the keys is in no domain."""
        if not all(constraint.key in node.labels for constraint in self._constraints):
            return
        namespace = self._pod.namespace
        counted = [pod.labels for pod in pods if pod.namespace == namespace and not pod.terminating]
        for constraint in self._constraints:
            if all(eligible(node) for eligible in constraint.eligible):
                constraint.domains[node.labels[constraint.key]] += sum(map(constraint.counts, counted))

    def refusal(self, node: NodeInfo) -> NodeRefusal | None:
        for constraint, least in zip(self._constraints, self._least, strict=True):
            domain = node.labels.get(constraint.key)
            if domain is None:
                return NodeRefusal(NAME, _NO_LABEL, f"it has no label {constraint.key}")
            number = constraint.domains[domain] + constraint.itself
            if number - least > constraint.max_skew:
                text = f"{constraint.key}={domain} would have {number} of the pods, where another has {least}"
                return NodeRefusal(NAME, _UNEVEN, f"{text} (maxSkew {constraint.max_skew})")
        return None


def _constraint(
    written: scheduling.TopologySpreadConstraint, pod: PodInfo, affine: Eligible, untainted: Eligible
) -> _Constraint:
    same = [expression(key, "In", (pod.labels[key],)) for key in written.match_label_keys or () if key in pod.labels]
    matches = label_selector(written.label_selector, same)
    counts = nothing if is_empty(written.label_selector) and not same else matches
    eligible = [affine] if written.node_affinity_policy != "Ignore" else []
    eligible += [untainted] if written.node_taints_policy == "Honor" else []
    return _Constraint(
        written.topology_key or "",
        written.max_skew,
        written.min_domains or 1,
        counts,
        eligible,
        int(matches(pod.labels)),
    )
