"""Placeholders: pods of ours that make an autoscaler add nodes for shares of cards (docs/spec/placeholders.md).

An autoscaler adds a node for a pod that requests whole cards, and none for one that requests memory of a card. So for
each node that waiting pods need, a pod waits that requests its cards. It goes when the node joins.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from hami_webhook.admission.denial import Denied
from hami_webhook.assembly import Core
from hami_webhook.cluster.api import JSON, AlreadyExists, ClusterError, Conflict, Kind, NotFound
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.cluster.rate import in_background
from hami_webhook.controller.new_nodes import (
    NewNode,
    Packing,
    WaitingPod,
    group_of,
    node_object,
    requested_labels,
    shapes_of,
)
from hami_webhook.devices.model import BadRequest
from hami_webhook.devices.placement_annotations import NODE
from hami_webhook.devices.pod_fit import read_pod_request, vendors_requested_by
from hami_webhook.kube.conditions import is_unscheduled
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.kube.human_duration import human_duration
from hami_webhook.kube.names import HOSTNAME, INSTANCE_TYPE
from hami_webhook.kube.objects import MalformedObject, Pod, parse_time
from hami_webhook.kube.placeholder_label import PLACEHOLDERS, is_placeholder
from hami_webhook.logs import of_pod
from hami_webhook.loops import News, repeat
from hami_webhook.node_filters.pod_info import PodInfo
from hami_webhook.policy.evaluation import PolicyViolation
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.time_slices import TimeSlices

logger = logging.getLogger(__name__)

LOOP = "placeholders"
PRIORITY_CLASS = "hami-webhook-placeholder"
_PERIOD = 5.0
"""Seconds between two looks."""
_SETTLED = 5.0
"""Seconds for which kube-scheduler says that no node takes a pod, before it counts as waiting."""
_MOST_READ, _MOST_WAITING = 50, 1000
"""Pods that one look reads from the API server, and that count."""
_MOST_NOTES = 10
"""Pods that get an event for one node."""


class PlaceholderLimits(Struct, frozen=True):
    """`most` placeholders at a time, of a group at most `of_group` within `timeout` seconds. A node that hasn't joined
    by then doesn't come: the group rests for as long. `preempts`: pods of lower priority may be evicted.
    """

    most: int
    of_group: int
    timeout: float
    image: str
    namespace: str
    scheduler_name: str = ""
    card_policy: str = "spread"
    preempts: bool = False


class _Existing(NamedTuple):
    """A placeholder as the API server has it."""

    name: str
    uid: str
    group: str
    created: float
    node: str
    ended: bool


class Placeholders:
    """Creates and deletes placeholders while `run` runs; only the leader calls `run`."""

    def __init__(
        self,
        core: Core,
        limits: PlaceholderLimits,
        object_events: ObjectEvents,
    ) -> None:
        self._core = core
        self._cluster = core.cluster
        self._state = core.state
        self._limits = limits
        self._events = object_events
        self._begin()

    def _begin(self) -> None:
        self._may_exist = True
        self._read: dict[str, JSON] = {}
        """What the API server said of waiting pods, by UID."""
        self._tried: dict[str, float] = {}
        """When each pod was read last."""
        self._seen: dict[str, float] = {}
        """Since when nodes of groups are known, by name."""
        self._made: dict[str, list[float]] = defaultdict(list)
        """When placeholders of a group were created."""
        self._rests: dict[str, float] = {}
        """Until when a group gets no placeholders."""
        self._recorded: set[tuple[str, str]] = set()
        """The events that pods got, by UID and reason."""
        self._news = News(logger)

    async def run(self) -> None:
        """Work until cancelled. Placeholders of a former leader are found at once."""
        in_background.set(True)
        self._begin()
        await repeat(self.step, _PERIOD, asyncio.sleep)

    async def step(self) -> None:
        """Look once at the pods that wait, and at the placeholders."""
        try:
            grows = self._look_at_nodes()
            waiting = await self._waiting() if grows else []
            if not waiting and not self._may_exist:
                return
            existing = await self._list()
            packing = await self._packed(waiting) if waiting else None
            await self._apply(existing, () if packing is None else packing.used)
        except ClusterError as error:
            self._news.say(f"placeholders stay as they are: {error}")
        else:
            self._news.say("")

    def _look_at_nodes(self) -> bool:
        """Whether any node is in a group."""
        now, names = self._core.clock(), set()
        for node in self._state.nodes():
            if group_of(node):
                names.add(node.name)
                self._seen.setdefault(node.name, now)
        for name in self._seen.keys() - names:
            del self._seen[name]
        return bool(names)

    # the pods that wait

    async def _waiting(self) -> list[WaitingPod]:
        """Raises `ClusterError`."""
        pods = _in_turn(list(filter(self._may_wait, self._state.pods())))[:_MOST_WAITING]
        uids = {pod.uid for pod in pods}
        self._read = {uid: raw for uid, raw in self._read.items() if uid in uids}
        self._tried = {uid: at for uid, at in self._tried.items() if uid in uids}
        self._recorded = {event for event in self._recorded if event[0] in uids}
        unknown = [pod for pod in pods if pod.uid not in self._read]
        for pod in sorted(unknown, key=lambda pod: self._tried.get(pod.uid, 0.0))[:_MOST_READ]:
            self._tried[pod.uid] = self._core.clock()
            await self._refresh(pod)
        found, slices = [], TimeSlices()
        for pod in pods:
            await slices.interrupt()
            each = await self._as_waiting(pod) if pod.uid in self._read else None
            if each is not None:
                found.append(each)
        return found

    def _may_wait(self, pod: Pod) -> bool:
        """Whether the caches show nothing that another than an autoscaler has to do first."""
        if pod.node_name or pod.gates or pod.terminal or pod.deletion_time is not None or pod.nominated_node:
            return False
        if pod.scheduler_name != self._limits.scheduler_name or pod.resource_claims or pod.extended_claim:
            return False
        if NODE in pod.annotations and self._state.holds_devices(pod.uid):
            return False
        try:
            asks = bool(vendors_requested_by(pod, self._core.vendors))
        except BadRequest:
            return False
        return asks and pod.created is not None and pod.created <= self._core.clock() - _SETTLED

    async def _refresh(self, pod: Pod) -> None:
        """Read the pod, and keep it if kube-scheduler has said for a while that no node takes it."""
        try:
            raw = await self._cluster.get(Kind.PODS, pod.name, pod.namespace)
        except NotFound:
            return
        if raw["metadata"].get("uid") == pod.uid and _is_unschedulable(raw, self._core.clock() - _SETTLED):
            self._read[pod.uid] = raw

    async def _as_waiting(self, pod: Pod) -> WaitingPod | None:
        """The pod as it is packed; None for one that policy or its own request keeps off every node."""
        core = self._core
        quotas = core.caches.covering(pod.namespace)
        if quotas is None:
            raise ClusterError("the watches of quotas are silent")
        namespace = await core.boundary.namespace(pod.namespace)
        try:
            bounded = core.boundary.bounded(pod, namespace)
            request = read_pod_request(bounded.pod, core.vendors, self._limits.card_policy)
            raw = self._read[pod.uid]
            info = PodInfo.read(raw)
        except (BadRequest, Denied, PolicyViolation, MalformedObject, ValueError):
            return None
        if request is None:
            return None
        accounts = [QuotaAccount.read(each, core.vendors) for each in quotas]
        return WaitingPod(pod, info, raw, request, accounts)

    async def _packed(self, waiting: Sequence[WaitingPod]) -> Packing:
        core, now, slices = self._core, self._core.clock(), TimeSlices()
        shapes = shapes_of(self._state, core.vendors, now)
        coming = {}
        for name, since in self._seen.items():
            view = self._state.view(name)
            if view is None or view.inventories or now - since > self._limits.timeout:
                continue
            group, kind = group_of(view.node), view.node.labels.get(INSTANCE_TYPE, "")
            likes = [each for each in shapes if each.group == group and each.instance_type == kind]
            if likes:
                coming[name] = likes[0]
        preempts = self._limits.preempts
        packing = Packing(self._state, core.nominations, core.vendors, shapes, coming, now=now, preempts=preempts)
        for each in packing.order(waiting):
            place = await slices.run(packing.put(each))
            logger.debug("waiting pod", extra={**of_pod(each.pod), "reason": place.value})
        return packing

    # the placeholders

    async def _list(self) -> list[_Existing]:
        listing = await self._cluster.list(Kind.PODS, self._limits.namespace)
        found = [_existing(each) for each in listing.items if is_placeholder(each, self._limits.namespace)]
        self._may_exist = bool(found)
        if not self._made:
            for each in found:
                self._made[each.group].append(each.created)
        return found

    async def _apply(self, existing: Sequence[_Existing], nodes: Sequence[NewNode]) -> None:
        """Keep one placeholder for each of the nodes, create those that lack, and delete the others."""
        now, timeout = self._core.clock(), self._limits.timeout
        wanted: dict[str, list[NewNode]] = defaultdict(list)
        manifests: dict[str, JSON] = {}
        for node in nodes:
            obj = self._placeholder(node)
            kind = f"hami-placeholder-{hashlib.sha256(msgspec.json.encode(obj, order='sorted')).hexdigest()[:12]}"
            wanted[kind].append(node)
            manifests[kind] = obj
        alive: dict[str, list[_Existing]] = defaultdict(list)
        for each in sorted(existing, key=lambda each: (-each.created, each.name)):
            overdue = not each.node and now - each.created > timeout
            if overdue or (each.node and self._seen.get(each.node, now) <= each.created):
                self._rests[each.group] = now + timeout
                await self._tell(nodes, each.group, "NodeNotAdded", self._why_not(each))
            kind = each.name.rpartition("-")[0]
            # the oldest go first: their nodes are those that came
            if each.node or each.ended or overdue or len(alive[kind]) >= len(wanted.get(kind, ())):
                await self._delete(each)
            else:
                alive[kind].append(each)
        count = sum(map(len, alive.values()))
        for kind, of_kind in wanted.items():
            new = [node for node in of_kind if not node.exists]
            left = max(0, len(alive[kind]) - (len(of_kind) - len(new)))
            names = {each.name for each in existing}
            free = (f"{kind}-{number}" for number in range(len(names) + len(new)))
            for node, name in zip(new[left:], (name for name in free if name not in names), strict=False):
                if count >= self._limits.most or not self._may_ask(node.shape.group, now):
                    break
                count += await self._create(
                    node, {**manifests[kind], "metadata": {**manifests[kind]["metadata"], "name": name}}
                )

    def _may_ask(self, group: str, now: float) -> bool:
        """Whether a group may get one more placeholder now."""
        self._made[group] = [made for made in self._made[group] if now - made < self._limits.timeout]
        return now >= self._rests.get(group, 0.0) and len(self._made[group]) < self._limits.of_group

    async def _create(self, node: NewNode, obj: JSON) -> bool:
        """Create a placeholder; False if there is one of its name, as another leader creates it."""
        group, name = node.shape.group, obj["metadata"]["name"]
        self._may_exist = True
        try:
            await self._cluster.create(Kind.PODS, obj)
        except AlreadyExists:
            return False
        self._made[group].append(self._core.clock())
        text = f"an autoscaler is asked for a node of the group {group}, by the pod {self._limits.namespace}/{name}"
        await self._tell([node], group, "NodeRequested", text)
        return True

    def _why_not(self, each: _Existing) -> str:
        where = f"pod {self._limits.namespace}/{each.name}"
        after = human_duration(self._limits.timeout)
        rests = f"The next is asked for in {after}. See the events of the autoscaler"
        if each.node:
            found = f"{where} got a place on node {each.node}, whose cards can't be used"
            return f"no node was added to the group {each.group}, because {found}. {rests}"
        return f"no node joined the group {each.group} within {after} of {where}. {rests}"

    async def _tell(self, nodes: Sequence[NewNode], group: str, reason: EventReason, text: str) -> None:
        """Events on the pods that wait for nodes of a group."""
        for each in [each for node in nodes if node.shape.group == group for each in node.pods][:_MOST_NOTES]:
            pod = each.pod
            if (pod.uid, reason) not in self._recorded:
                self._recorded.add((pod.uid, reason))
                await self._events.warn("Pod", pod.namespace, pod.name, pod.uid, reason, text)

    async def _delete(self, each: _Existing) -> None:
        try:
            await self._cluster.delete_pod(self._limits.namespace, each.name, each.uid)
        except (NotFound, Conflict):
            return

    def _placeholder(self, node: NewNode) -> JSON:
        """The pod, without its name. It waits for a node of its own: neither one with pods of ours, nor one that
        another placeholder waits for.
        """
        shape = node.shape
        selector = {PLACEHOLDERS: shape.group, **dict(requested_labels(node))}
        if shape.instance_type:
            selector[INSTANCE_TYPE] = shape.instance_type
        taints = node_object(shape.view.node)["spec"]["taints"]
        apart = [
            {"topologyKey": HOSTNAME, "labelSelector": _with(PLACEHOLDERS)},
            {"topologyKey": HOSTNAME, "labelSelector": _with(NODE), "namespaceSelector": {}},
        ]
        limits = {name: str(count) for name, count in sorted(shape.cards.items())}
        security = {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "namespace": self._limits.namespace,
                "labels": {
                    PLACEHOLDERS: shape.group,
                    "app.kubernetes.io/part-of": "hami-webhook",
                    "hami.io/webhook": "ignore",  # HAMi's own webhook would give it HAMi's scheduler
                },
            },
            "spec": {
                "schedulerName": "default-scheduler",
                "priorityClassName": PRIORITY_CLASS,
                "nodeSelector": selector,
                "tolerations": [_tolerating(each) for each in taints],
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}},
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [
                    {
                        "name": "placeholder",
                        "image": self._limits.image,
                        "resources": {"limits": limits, "requests": limits},
                        "securityContext": security,
                    }
                ],
            },
        }


def _in_turn(pods: Sequence[Pod]) -> Sequence[Pod]:
    """The first of each namespace, then the second ones: so no namespace keeps out others, however many wait there.

    In a namespace those of the highest priority are first, then the oldest.
    """
    ranks: Counter[str] = Counter()
    ranked = []
    for pod in sorted(pods, key=lambda pod: (-pod.priority, pod.created or 0.0, pod.uid)):
        ranked.append((ranks[pod.namespace], pod))
        ranks[pod.namespace] += 1
    return [pod for _, pod in sorted(ranked, key=lambda pair: pair[0])]


def _with(label: str) -> JSON:
    return {"matchExpressions": [{"key": label, "operator": "Exists"}]}


def _tolerating(taint: Mapping[str, Any]) -> JSON:
    """What tolerates just this taint; every pod that would go on the node tolerates it, too."""
    found = {key: taint.get(key) for key in ("key", "value", "effect")}
    return {"operator": "Equal", **{key: value for key, value in found.items() if value is not None}}


def _is_unschedulable(raw: JSON, before: float) -> bool:
    """Whether kube-scheduler has said since then that no node takes the pod."""
    for each in (raw.get("status") or {}).get("conditions") or ():
        if is_unscheduled(each):
            try:
                return each.get("reason") == "Unschedulable" and parse_time(each.get("lastTransitionTime")) <= before
            except (ValueError, TypeError):
                return False
    return False


def _existing(obj: JSON) -> _Existing:
    pod = Pod.from_object(obj)
    return _Existing(
        pod.name, pod.uid, pod.labels.get(PLACEHOLDERS, ""), pod.created or 0.0, pod.node_name, pod.terminal
    )
