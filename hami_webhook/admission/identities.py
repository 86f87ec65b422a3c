"""Who may write the scheduler-owned metadata of a pod, by whatever request (docs/spec/security.md#1).

Our own scheduler and device plugins write our allocations, another project's identities those of their scheduler, and
a node either for the pods that are bound to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from msgspec import Struct

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.submitters import Submitters
from hami_webhook.devices.foreign_scheduler import ForeignScheduler
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.reserved_annotations import OWNED_LABELS
from hami_webhook.dra.claim_templates import OFF
from hami_webhook.kube.message_text import quoted
from hami_webhook.kube.objects import QUOTA_GATE, Pod
from hami_webhook.kube.stamps import STAMPS
from hami_webhook.kube.wire import ObjectMeta, ReviewedPod

_NODE_USER, _NODES = "system:node:", "system:nodes"
_SCHEDULERS = "by the scheduler and device plugins only"


def claims_profile(scheduler_name: str) -> str:
    """The profile of our kube-scheduler that allocates ResourceClaims, too: the other one can't (docs/dra.md)."""
    return f"{scheduler_name}-claims" if scheduler_name else ""


class AdmissionRules(Struct, frozen=True):
    """Settings of all reviews: the scheduler's name, and the users who may write scheduler-owned annotations.

    `foreign_users` may write the allocations of another project's scheduler, by its key; `trusted_groups` all.
    `controllers` are the users that may remove the scheduling gate of quota. `claims` names the namespaces in which
    limits become ResourceClaims. `submitters` are those that are trusted with stamps; None: pods aren't stamped.
    """

    scheduler_name: str = ""
    force_overwrite_default_scheduler: bool = True
    trusted_users: frozenset[str] = frozenset()
    trusted_groups: frozenset[str] = frozenset()
    foreign_users: Mapping[str, frozenset[str]] = {}
    controllers: frozenset[str] = frozenset()
    claims: str = OFF
    submitters: Submitters | None = None

    @property
    def scheduler_names(self) -> tuple[str, ...]:
        """The profiles of our kube-scheduler."""
        return (self.scheduler_name, claims_profile(self.scheduler_name))


class User(Struct, frozen=True):
    """Who sends the request, as the API server says."""

    name: str = ""
    groups: frozenset[str] = frozenset()


class _Rights(Struct, frozen=True):
    """What a user may write: everything, our own allocations, those of some other schedulers."""

    all: bool
    ours: bool
    foreign: tuple[ForeignScheduler, ...]

    @classmethod
    def of(cls, user: User, vendors: Vendors, rules: AdmissionRules) -> _Rights:
        """What the configured identities say of the user."""
        foreign = (each for each in vendors.foreign if user.name in rules.foreign_users.get(each.key, ()))
        return cls(not user.groups.isdisjoint(rules.trusted_groups), user.name in rules.trusted_users, tuple(foreign))

    @property
    def none(self) -> bool:
        return not (self.all or self.ours or self.foreign)

    def denied(self, annotations: Set[str], labels: Iterable[str], vendors: Vendors, *, with_cards: bool) -> list[str]:
        """The annotations, and then the labels, that the user may not write, as messages name them.

        `with_cards`: the pod names managed resources.
        """
        if self.all:
            return []
        keys = vendors.foreign_annotations & annotations
        if not self.ours:
            keys |= vendors.reserved.among(annotations, with_cards=with_cards)
        denied = sorted(key for key in keys if not any(scheduler.writes(key) for scheduler in self.foreign))
        return denied + ([] if self.ours else sorted(f"label {key}" for key in OWNED_LABELS.intersection(labels)))


def is_node(user: User, name: str) -> bool:
    """Whether the user is the node of this name."""
    return user.name == _NODE_USER + name and _NODES in user.groups


def refuse_changes(
    old: Pod, new: Pod, user: User, vendors: Vendors, rules: AdmissionRules, reservation: str = ""
) -> None:
    """Deny an update of a pod that changes scheduler-owned metadata which the user may not write.

    `reservation` is the annotation that is set with the pod's creation only; nobody may change it.
    """
    annotations, labels = changed_keys(old.annotations, new.annotations), changed_keys(old.labels, new.labels)
    for key in (reservation, *STAMPS):
        if key in annotations:
            raise _denied(key, "when the pod is created only", user, "add, change or remove it")
    if old.node_name and user.name == _NODE_USER + old.node_name:
        return
    rights = _Rights.of(user, vendors, rules)
    if _is_others_alone(old, vendors):
        labels = labels.difference(*(scheduler.owned_labels for scheduler in rights.foreign))
    with_cards = not vendors.resource_names.isdisjoint(old.named | new.named)
    denied = rights.denied(annotations, labels, vendors, with_cards=with_cards)
    if denied:
        raise _denied(denied[0], _SCHEDULERS, user, "add, change or remove it")


def refuse_relabelled(old: Pod, new: Pod, counted: Set[str]) -> None:
    """Deny an update of a label that quotas count pods by."""
    for key in sorted(changed_keys(old.labels, new.labels) & counted):
        raise Denied(
            403,
            f"label {key} can't be changed once the pod exists, as a quota counts pods by it; delete the pod and "
            "create it again",
        )


def refuse_other_request(old: Pod, new: Pod, user: User, vendors: Vendors, rules: AdmissionRules) -> None:
    """Deny an update of an annotation that requests another scheduler's cards, because the pod was charged by it."""
    asked = vendors.asked_by_annotation.get(old.scheduler_name)
    if asked is None or is_account_of(asked, user, vendors, rules):
        return
    before, now = asked.asked_in(old.annotations), asked.asked_in(new.annotations)
    for key in sorted(changed_keys(before, now)):
        earlier, later = (quoted(each[key]) if key in each else "none" for each in (before, now))
        raise Denied(
            403,
            f"annotation {key} can't be changed from {earlier} to {later} once the pod exists; delete the pod and "
            "create it again",
        )


def is_account_of(scheduler: ForeignScheduler, user: User, vendors: Vendors, rules: AdmissionRules) -> bool:
    """Whether a user acts for another project's scheduler."""
    rights = _Rights.of(user, vendors, rules)
    return rights.all or scheduler in rights.foreign


def refuse_release(old: Pod, new: Pod, user: User, rules: AdmissionRules) -> None:
    """Deny an update that takes the scheduling gate of quota away: the pod would run, and nobody charged it."""
    if old.queued and not new.queued and user.name not in rules.controllers:
        who = user.name or "this user"
        raise Denied(403, f"scheduling gate {QUOTA_GATE} is removed by the controller only; {who} may not remove it")


def refuse_binding(
    binding: ReviewedPod,
    user: User,
    vendors: Vendors,
    rules: AdmissionRules,
    reservation: str = "",
    counted: Set[str] = frozenset(),
) -> None:
    """Deny a Binding with scheduler-owned metadata that the user may not write: the API server merges it into the pod.

    The `reservation`, the stamp and the labels that quotas have `counted` by are allowed to every scheduler: Volcano
    copies all of the pod's annotations into its Bindings. A Binding doesn't have its pod's requests, so we assume that
    the pod requests cards.
    """
    meta = binding.metadata or ObjectMeta()
    annotations, labels = meta.annotations or {}, meta.labels or {}
    rights = _Rights.of(user, vendors, rules)
    denied = rights.denied(annotations.keys(), labels, vendors, with_cards=True)
    if rights.none:
        denied += [key for key in (reservation, *STAMPS) if key in annotations]
        denied += [f"label {key}" for key in sorted(counted & labels.keys())]
    if denied:
        raise _denied(denied[0], _SCHEDULERS, user, "set it with a Binding")


def _denied(key: str, writers: str, user: User, what: str) -> Denied:
    return Denied(403, f"{key} is written {writers}; {user.name or 'this user'} may not {what}")


def changed_keys(old: Mapping[str, str], new: Mapping[str, str]) -> set[str]:
    """The keys that were added, changed or removed."""
    return {key for key in {*old, *new} if old.get(key) != new.get(key)}


def _is_others_alone(pod: Pod, vendors: Vendors) -> bool:
    """Whether the pod is another scheduler's, and asks for no cards of ours."""
    return bool(vendors.foreign_among(pod, pod.named)) and not any(
        vendors.own_names.intersection((*container.limits, *container.requests)) for container in pod.containers
    )
