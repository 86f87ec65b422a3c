"""The rules that refuse a new pod: one table, which `/mutate`, `/validate` and `/webhook` share.

Each rule is a function with the page of docs/spec that it follows. A pod is checked as it is about to be stored, which
`/validate` gets and mutation makes; what mutation can't read or mean it refuses by itself. Policy comes last, as it
takes the pod's Namespace (`policy.check`). A rule must not change the pod, nor ask the cluster: it runs in every
review, on every path.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from hami_webhook.admission.denial import Denied, bad_request
from hami_webhook.admission.new_pod import NewPod
from hami_webhook.admission.pods import forged
from hami_webhook.devices.cluster_capacity import room_for
from hami_webhook.devices.foreign_pods import has_node, refuse_owned
from hami_webhook.devices.model import BadRequest
from hami_webhook.devices.pod_preferences import WEIGHTS, parse_weights
from hami_webhook.devices.reserved_annotations import OWNED_LABELS
from hami_webhook.kube.message_text import cut
from hami_webhook.kube.objects import ContainerKind
from hami_webhook.kube.pod_group import PodGroup, pod_group_fault


def has_app_containers(new: NewPod) -> None:
    if not new.pod.containers or new.pod.containers[-1].kind is not ContainerKind.APP:  # init containers come first
        raise Denied(403, "pod has no containers")


def brings_no_allocation(new: NewPod) -> None:
    """Refuse a pod that brings an allocation.

    Other schedulers' `admit` removes what they own, and `check` refuses it.
    """
    owned = forged(new.pod.annotations, new.vendors, with_cards=not new.vendors.resource_names.isdisjoint(new.named))
    if owned:
        owned.difference_update(*(scheduler.owned for scheduler in new.foreign))
    if owned:
        raise Denied(403, f"annotation {min(owned)} is written by the scheduler only; remove it from the pod")


def brings_no_scheduler_label(new: NewPod) -> None:
    if not OWNED_LABELS.isdisjoint(new.pod.labels):
        key = min(OWNED_LABELS & new.pod.labels.keys())
        raise Denied(403, f"label {key} is written by the scheduler only; remove it from the pod")


def static_brings_no_allocation(new: NewPod) -> None:
    """A mirror pod brings no allocation of any other scheduler either."""
    for scheduler in new.vendors.foreign:
        refuse_owned(new.pod.annotations, scheduler.owned)


def other_schedulers_take_it(new: NewPod) -> None:
    for scheduler in new.foreign:
        scheduler.check(new.pod, new.device_lister)


def mixes_no_schedulers(new: NewPod) -> None:
    new.vendors.mixing.check(new.named)


def amounts_can_be_meant(new: NewPod) -> None:
    """Refuse amounts that can't be meant, and set `new.requests`."""
    new.requests = new.known.checked_requests(new.pod, new.device_lister)


def has_no_privileged_container(new: NewPod) -> None:
    for container in new.pod.containers:
        if container.privileged:
            raise Denied(
                403,
                f"container {container.name} is privileged, so it would see every card of the node; remove "
                "securityContext.privileged, or move it to a pod without cards",
            )


def has_no_node(new: NewPod) -> None:
    if new.pod.node_name:
        raise Denied(403, has_node(new.pod.node_name))


def scoring_weights_can_be_read(new: NewPod) -> None:
    if WEIGHTS in new.pod.annotations:
        try:
            parse_weights(new.pod.annotations, new.pod.name)
        except ValueError as error:
            raise Denied(403, str(error)) from error


def pod_group_can_start(new: NewPod) -> None:
    """Refuse a group whose labels can't be read, or that doesn't fit on all nodes together.

    Where an autoscaler may add nodes the latter is a warning.
    """
    if not new.requests:
        return
    if label_fault := pod_group_fault(new.pod):
        raise Denied(403, label_fault)
    group = PodGroup.of(new.pod)
    if group is None:
        return
    room = room_for(group.size, new.requests, new.vendors, new.device_lister)
    if room >= group.size:
        return
    fault = f"pod group {cut(group.name)} has {group.size} pods, and {room} like this one fit on all nodes together"
    if not any(node.provided for node in new.device_lister.nodes()):
        raise Denied(403, f"{fault}; request less, or make the group smaller")
    new.warnings.append(f"{fault}; it starts when nodes are added")


class Rule(NamedTuple):
    """`check` raises `Denied`, or `BadRequest` where a vendor's or another scheduler's form is wrong.

    `concerns` returns whether the rule applies to a pod; None: it applies to every pod of its table.
    """

    check: Callable[[NewPod], None]
    page: str
    concerns: Callable[[NewPod], object] | None = None


_OF_OTHERS, _OF_OURS = attrgetter("foreign"), attrgetter("requests")


EVERY_POD = (
    Rule(has_app_containers, "core.md#5"),
    Rule(brings_no_allocation, "security.md#1", attrgetter("pod.annotations")),
    Rule(brings_no_scheduler_label, "security.md#1"),
)
"""For every new pod, whatever it asks for; mutation begins with them. A pod that `is_unmanaged` breaks none of them."""

STATIC_POD = (Rule(static_brings_no_allocation, "security.md#1"),)
"""For a pod that its node runs already and shows itself, besides: nothing else can be decided about it."""

NAMING_POD = (
    Rule(other_schedulers_take_it, "volcano.md#5", _OF_OTHERS),
    Rule(mixes_no_schedulers, "core.md#5", attrgetter("mixed")),
    Rule(amounts_can_be_meant, "security.md#2"),
    Rule(has_no_privileged_container, "core.md#5", _OF_OURS),
    Rule(has_no_node, "core.md#5", _OF_OURS),
    Rule(scoring_weights_can_be_read, "core.md#7", _OF_OURS),
    Rule(pod_group_can_start, "queues.md#5.1", attrgetter("pod.labels")),
)
"""For a pod of which a container names a managed resource, for any scheduler, besides."""


def check_rules(rules: tuple[Rule, ...], new: NewPod) -> None:
    """Raise `Denied` for the first rule that a pod breaks."""
    try:
        for check, _, concerns in rules:
            if concerns is None or concerns(new):
                check(new)
    except BadRequest as error:
        raise bad_request(error) from error
