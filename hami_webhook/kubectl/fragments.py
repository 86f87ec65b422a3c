"""Who of a cluster that was read may move for what a person wants, and the moves (docs/room.md#moves).

Fit and kube-scheduler's filters say where a pod can go. What can't be known stays: a pod whose volumes, claims or
scheduler may tie it to its node isn't moved. Nothing is written here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.api import Kind
from hami_webhook.core_options import Options
from hami_webhook.devices.model import BadRequest
from hami_webhook.devices.pod_fit import PodRequest, read_pod_request
from hami_webhook.devices.vendor import Vendor
from hami_webhook.evictions.moves import MovablePod, NoPlan, Plan, Wanted, plan_moves
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import PodGroup
from hami_webhook.kube.wire import MalformedObject
from hami_webhook.kubectl.capacity import COUNTS, Capacity
from hami_webhook.node_filters.not_judged import plugins_not_judged
from hami_webhook.node_filters.pod_info import PodInfo
from hami_webhook.policy.evaluation import PolicyViolation
from hami_webhook.quota.pricing import charge_of
from hami_webhook.simulate.simulation import Simulation
from hami_webhook.state.node_snapshot import NodeSnapshot
from hami_webhook.state.pod_allocations import PodAllocation
from hami_webhook.terminal import UsageError
from hami_webhook.time_slices import run_at_once

DO_NOT_DISTURB = {
    "hami.io/do-not-disturb": "true",
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
"""Annotations by which a pod asks not to be moved: ours, and those that users of autoscalers write already."""
REPLACING = ("ReplicaSet", "StatefulSet", "ReplicationController")
"""Owners that replace an evicted pod and count it as nothing: a Job may fail of it, a DaemonSet stays on the node."""
_MOST_VETOES = 16
"""Plans that kube-scheduler's filters may refuse before there is none."""
_MOST_MODELS, _MOST_MOVES, _PART = 4, 16, 0.05
"""Of the page Overview: models and moves that are looked at, and the part of the search that each may cost."""
_HIGHEST = 1_000_000_001
"""Above the priority of every class that users can make."""
_MOST_NAMED = 8
"""Models that a message names."""


class WantedCards(Struct, frozen=True):
    """So many cards of one node whose model contains a text; MiB of each, 0 for whole cards.

    `priority_class` is that of the pod that is to come, empty for the cluster's default.
    """

    count: int
    model: str
    memory: int = 0
    linked: bool = False
    priority_class: str = ""
    above_all: bool = False
    """Whether the pod that is to come is more important than all that users may make."""

    def __str__(self) -> str:
        each = f" with {self.memory} MiB of each" if self.memory else ""
        return f"{self.count} x {self.model}{', linked' if self.linked else ''}{each}"


class Owner(Struct, frozen=True):
    """The controller that replaces a pod."""

    kind: str
    name: str
    uid: str

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Owner | None:
        for each in raw["metadata"].get("ownerReferences") or ():
            if each.get("controller"):
                return cls(each.get("kind") or "", each.get("name") or "", each.get("uid") or "")
        return None


class Movability:
    """The pods of a cluster that may be moved for what is wanted. Raises `UsageError` for what can't be wanted.

    `namespace` is that of the pod that is to come, `options` are those that the program goes by, and the nodes `closed`
    take no new pods. `began`: moves are being done, so that a PodDisruptionBudget which allows none now is waited for.
    """

    def __init__(
        self,
        simulation: Simulation,
        options: Options,
        wanted: WantedCards,
        namespace: str,
        closed: Collection[str],
        *,
        began: bool = False,
    ) -> None:
        self.simulation = simulation
        self._options = options
        self._began = began
        self.wanted = wanted
        self._core = simulation.core
        self._closed = closed
        self.request = self._requested(namespace)

    @property
    def pod(self) -> Pod:
        """The pod that is to come."""
        return self.request.pod

    @property
    def count_keys(self) -> Collection[str]:
        """The quota keys that count cards of what is wanted."""
        return {f"limits.{self._core.vendors[key].count_name}" for key in self.request.vendors}

    @cached_property
    def nodes(self) -> Mapping[str, NodeSnapshot]:
        """All nodes, as that pod may use them."""
        nominations = self._core.nominations
        return {view.name: nominations.snapshot(view, self.pod) for view in self._core.state.views()}

    @property
    def movable(self) -> Sequence[MovablePod]:
        """The pods that may move, each with the nodes that kube-scheduler lets it on."""
        return self._found[0]

    @cached_property
    def _found(self) -> tuple[Sequence[MovablePod], Counter[str]]:
        requested = set(self.request.vendors)
        found: list[MovablePod] = []
        staying: Counter[str] = Counter()
        open_to: dict[str, Collection[str]] = {}
        for node in self.nodes.values():
            for allocation in node.allocations:
                if allocation.vendors & requested and allocation.pod.uid not in node.ending:
                    each = self._movable(node, allocation, open_to)
                    if isinstance(each, str):
                        staying[each] += 1
                    else:
                        found.append(each)
        return found, staying

    @property
    def staying(self) -> Sequence[tuple[str, int]]:
        """Why pods with such cards stay, and how many."""
        return sorted(self._found[1].items())

    def budgets_of(self, pod: Pod) -> list[PodDisruptionBudget]:
        """The PodDisruptionBudgets that may refuse its eviction."""
        if pod.phase != "Running":  # the eviction API asks no budget about others
            return []
        return [each for each in self._core.caches.disruption_budgets.values() if each.covers(pod)]

    def raw(self, pod: Pod) -> Mapping[str, Any]:
        """The pod's object."""
        found = self.simulation.cluster.peek(Kind.PODS, pod.name, pod.namespace)
        assert found is not None, pod.key
        return found

    def plan(
        self, most: int, *, only: str = "", among: Collection[str] | None = None, effort: float = 1.0
    ) -> Plan | NoPlan:
        """The plan with the fewest moves, at most `most`; on the node `only`, though it is closed, if it is given.

        `among` are the UIDs of the only pods that may move.
        """
        nodes = frozenset({only} if only else self.nodes.keys() - set(self._closed))
        wanted = Wanted(self.request, nodes)
        movable = [each for each in self.movable if among is None or each.pod.uid in among]
        for _ in range(_MOST_VETOES):
            steps = plan_moves(wanted, self.nodes, movable, self._core.vendors, most=most, effort=effort)
            found = run_at_once(steps)
            refused = self._refused(found) if isinstance(found, Plan) else None
            if refused is None:
                return found
            pod, name = refused
            movable = [
                replace(each, nodes=set(each.nodes) - {name}) if each.pod.uid == pod.uid else each for each in movable
            ]
        return NoPlan.NO_PLACE

    def _refused(self, plan: Plan) -> tuple[Pod, str] | None:
        """The first pod that kube-scheduler wouldn't let on its node once those before it have moved."""
        snapshot, moved = self.simulation.snapshot, []
        try:
            for move in plan.moves:
                pod, raw = move.pod.pod, self.raw(move.pod.pod)
                snapshot.drop_pod((pod.namespace, pod.name))
                moved.append(raw)
                if move.to in snapshot.filter_nodes(_unbound(raw)).refusals:
                    return pod, move.to
                snapshot.put_pod({**raw, "spec": {**raw["spec"], "nodeName": move.to}})
        finally:
            for raw in moved:
                snapshot.put_pod(raw)
        return None

    def _movable(
        self, node: NodeSnapshot, allocation: PodAllocation, open_to: dict[str, Collection[str]]
    ) -> MovablePod | str:
        """The pod, or why it stays."""
        pod, core = allocation.pod, self._core
        raw = self.raw(pod)
        request = self._why_it_stays(pod, raw)
        if isinstance(request, str):
            return request
        owner = Owner.of(raw)
        assert owner is not None
        if owner.uid not in open_to:
            refusals = self.simulation.snapshot.filter_nodes(_unbound(raw)).refusals
            open_to[owner.uid] = self.nodes.keys() - refusals.keys()
        memory = sum(share.holder.memory for share in allocation.shares.values() if share.holder is not None)
        charge = charge_of(pod, core.vendors, core.capacity, core.clock(), core.placement_ttl)
        return MovablePod(pod, node.name, set(open_to[owner.uid]) - {node.name}, request, memory, charge.amounts)

    def _why_it_stays(self, pod: Pod, raw: Mapping[str, Any]) -> PodRequest | str:
        """What it requests elsewhere; or why it stays, as it is said of several pods."""
        why = next((why for applies, why in self._reasons_to_stay(pod, raw) if applies), "")
        if why:
            return why
        core = self._core
        namespace = core.caches.namespaces.get(pod.namespace)
        if namespace is None:
            return "of a namespace that can't be read"
        try:
            if any(plugins_not_judged(PodInfo.read(raw))):
                return "with volumes, or features of a node, that may tie them to it"
            bounded = core.boundary.bounded(pod, namespace)
            request = read_pod_request(bounded.pod, core.vendors, self._options.policies.card)
        except (BadRequest, PolicyViolation, MalformedObject, ValueError):
            request = None
        return request or "that policy or their own requests wouldn't let on any node now"

    def _reasons_to_stay(self, pod: Pod, raw: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
        """Each reason, and whether it applies."""
        mine, owner, budgets = self.pod.priority, Owner.of(raw), self.budgets_of(pod)
        yield not pod.node_name, "not bound yet"
        yield pod.priority >= mine, f"of priority {mine} or higher, as what is wanted has {mine} (--priority-class)"
        replaced = owner is not None and owner.kind in REPLACING
        yield not replaced, f"without an owner that replaces them elsewhere ({', '.join(REPLACING)})"
        yield PodGroup.of(pod) is not None, "in a pod group, all of which would have to move"
        yield bool(pod.resource_claims or pod.extended_claim), "with ResourceClaims"
        yield pod.scheduler_name not in self._options.rules.scheduler_names, "placed by another scheduler"
        undisturbed = any(pod.annotations.get(key) == text for key, text in DO_NOT_DISTURB.items())
        yield undisturbed, "annotated not to be disturbed"
        yield len(budgets) > 1, "covered by several PodDisruptionBudgets, so that the API server evicts none"
        spent = any(each.allowed < 1 for each in budgets) and not self._began
        yield spent, "whose PodDisruptionBudget allows no disruption now"

    # what is wanted

    def _requested(self, namespace: str) -> PodRequest:
        """Raises `UsageError`."""
        wanted, core = self.wanted, self._core
        vendor = self._vendor()
        limits = {vendor.count_name: str(wanted.count)}
        annotations = dict.fromkeys(vendor.keys.use_type[:1], wanted.model)
        if wanted.memory:
            if not vendor.memory_name:
                raise UsageError(f"{vendor.count_name} gives whole cards: leave --gpumem out")
            limits[vendor.memory_name] = str(-(-wanted.memory // vendor.memory_factor))
        if wanted.linked:
            if not vendor.linked_annotations:
                raise UsageError(f"pods can't ask for linked cards of {vendor.key}: leave --linked out")
            annotations |= vendor.linked_annotations
        spec: dict[str, Any] = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
        if wanted.priority_class:
            spec["priorityClassName"] = wanted.priority_class
        meta = {"name": "wanted", "namespace": namespace, "annotations": annotations}
        manifest: Mapping[str, Any] = {"metadata": meta, "spec": spec}
        try:
            if wanted.above_all:
                manifest = {"metadata": meta, "spec": {**spec, "priority": _HIGHEST}}
            else:
                manifest = self.simulation.with_priority(manifest)
            pod = Pod.from_object(manifest)
            found = read_pod_request(pod, core.vendors, self._options.policies.card)
        except (BadRequest, ValueError) as error:
            raise UsageError(f"{wanted} can't be asked for: {error}") from error
        except Denied as error:
            raise UsageError(f"no PriorityClass {wanted.priority_class}") from error
        if found is None:
            raise UsageError(f"{wanted} asks for nothing")
        return found

    def _vendor(self) -> Vendor:
        """The one vendor with cards of such a model. Raises `UsageError`."""
        inventories = [pair for view in self._core.state.views() for pair in view.inventories.items()]
        models = sorted({(key, device.type) for key, inventory in inventories for device in inventory.devices})
        folded = self.wanted.model.casefold()
        found = sorted({key for key, model in models if folded in model.casefold()})
        if not found:
            names = ", ".join(model for _, model in models[:_MOST_NAMED]) or "no cards"
            raise UsageError(f"no card's model contains {self.wanted.model!r}; the nodes register {names}")
        if len(found) > 1:
            raise UsageError(f"{self.wanted.model!r} is in models of {', '.join(found)}: write more of one model")
        return self._core.vendors[found[0]]


class FreedByMoves(Struct, frozen=True):
    """The most whole cards of a model that a pod could get on one node after moves; `now` what it gets without any.

    `given_up`: more may be possible, but the search for more ended before that was known; `moves` is 0 if it found
    nothing.
    """

    model: str
    now: int
    cards: int
    node: str
    moves: int
    given_up: bool = False


def freed_by_moves(
    simulation: Simulation, options: Options, capacities: Sequence[Capacity], closed: Collection[str]
) -> list[FreedByMoves]:
    """What moves would free of the models that are most fragmented, for a pod more important than all others.

    At most `_MOST_MODELS`, each with a small part of the search that `plan` may cost.
    """
    found = []
    ranked = sorted((each for each in capacities if each.fragmentation), key=lambda each: -each.fragmentation)
    for each in ranked[:_MOST_MODELS]:
        now = max((size.cards for size in each.whole if size is not None), default=0)
        given_up = False
        for count in sorted((count for count in COUNTS if count > now), reverse=True):
            wanted = WantedCards(count, each.model, above_all=True)
            try:
                plan = Movability(simulation, options, wanted, "default", closed).plan(_MOST_MOVES, effort=_PART)
            except UsageError:
                break
            if isinstance(plan, Plan):
                found.append(FreedByMoves(each.model, now, count, plan.node, len(plan.moves), given_up))
                break
            given_up |= plan is NoPlan.TOO_LONG
        else:
            if given_up:
                found.append(FreedByMoves(each.model, now, 0, "", 0, given_up))
    return found


def _unbound(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod as its owner makes it again."""
    return {**raw, "spec": {key: value for key, value in raw["spec"].items() if key != "nodeName"}}
