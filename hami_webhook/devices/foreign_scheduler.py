"""What a scheduler of another project declares about the pods it places.

Source: docs/spec/volcano.md, docs/spec/koordinator.md and docs/spec/kai.md.

Such pods keep their scheduler; ours never places them. Quotas charge them by the allocation that their scheduler
writes. Nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Set
from enum import Enum
from typing import Any, Protocol

from msgspec import Struct

from hami_webhook.devices.debit import Debit
from hami_webhook.devices.keys import NO_KEYS, DeviceKeys, Dimension
from hami_webhook.devices.model import Device, Usage
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.kube.objects import Node, Pod


class NodeLister(Protocol):
    """The nodes of the cluster, with what is on them."""

    @property
    def now(self) -> float:
        """Return the latest time that callers passed in, in Unix seconds."""
        ...

    @property
    def version(self) -> int:
        """Return a number that changes whenever a node or its Device object changes, but not with pods."""
        ...

    def nodes(self) -> Iterable[Node]:
        """Every known node, by name."""
        ...

    def node(self, name: str) -> Node | None:
        """The node; None if it isn't known."""
        ...

    def foreign_pods_on(self, node: str) -> Iterable[Pod]:
        """The live pods on a node that concern another scheduler, by UID: bound there, or about to be."""
        ...

    def device(self, node: str) -> Mapping[str, Any] | None:
        """Koordinator's Device object of a node, as JSON; None if there is none."""
        ...


class NoNodes:
    """No node is known."""

    now = 0.0
    version = 0

    def nodes(self) -> Iterable[Node]:
        return ()

    def node(self, name: str) -> Node | None:
        return None

    def foreign_pods_on(self, node: str) -> Iterable[Pod]:
        return ()

    def device(self, node: str) -> Mapping[str, Any] | None:
        return None


class ForeignCharge(Struct, frozen=True):
    """What a pod costs: amounts by quota key, zeros left out, in the integers that the keys count.

    `floors`: the keys charged with the least that any card could give; their amounts may change at the next
    computation. `problems` are sentences for a warning event. `until`: Unix seconds when the cost changes by time alone
    (None: never). `debit`: its cost in cards of the scheduler's `vendor`; `least`: the floors among its dimensions;
    `model`: the cards' type, empty if unknown.
    """

    amounts: Mapping[str, int]
    floors: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()
    until: float | None = None
    debit: Debit = Debit()
    least: frozenset[Dimension] = frozenset()
    model: str = ""


class Part(Struct, frozen=True):
    """A card, or a part of one, that a container is predicted to get: MiB, percent of cores, the instance's name."""

    uuid: str
    memory: int
    cores: int
    profile: str = ""


class Prediction(Struct, frozen=True):
    """Where the other scheduler would place a pod.

    `parts` has the cards by the index of the container, init containers first; `annotations` are what would be written
    on the pod; `failed` says why each other node was left out, in the words of every vendor.
    """

    node: str
    score: float
    parts: Mapping[int, tuple[Part, ...]]
    annotations: Mapping[str, str]
    failed: Mapping[str, str] = {}


class NoNode(Struct, frozen=True):
    """No node would take the pod; why, by node."""

    failed: Mapping[str, str]


class ForeignScheduler:
    """A scheduler of another project, and the resources by which its pods are recognised.

    `key`: its name in results, in place of a vendor; `title`: its name in messages. `scheduler_names`: those that pods
    name which it places; the first is the one injected where `injects_scheduler`. `quota_keys`: what a ResourceQuota
    may limit of its resources; `byte_keys` are those that count bytes, so that `40Gi` means what it says. `watched`:
    the pod annotations on which the answer of `placed` depends. `owned`, `owned_labels`: the annotations and labels of
    a pod that only it and its device plugins write. `reads_devices`: whether Koordinator's Device objects matter to it.
    `keys`: the annotations that policy can set or bound, and those that it writes. Without choices and lists, policy
    doesn't apply to its pods. `asks_by`: the pattern (for RE2 and `re`) of annotation keys that request cards; it
    applies to pods that name this scheduler. `vendor`: whose cards it gives out, and whose quota keys count them; empty
    for none of ours. `reserves_in`: the namespace where it makes pods that hold cards for others. `predicts`: whether
    `predict` knows its rules.
    """

    key: str
    title: str
    scheduler_names: tuple[str, ...]
    injects_scheduler: bool = True
    resource_names: frozenset[str]
    quota_keys: tuple[str, ...]
    byte_keys: frozenset[str] = frozenset()
    watched: tuple[str, ...] = ()
    owned: tuple[str, ...] = ()
    owned_labels: frozenset[str] = frozenset()
    reads_devices: bool = False
    keys: DeviceKeys = NO_KEYS
    asks_by: re.Pattern[str] | None = None
    vendor: str = ""
    reserves_in: str = ""
    predicts: bool = True

    @property
    def governable(self) -> bool:
        """Whether policy can say anything of its pods."""
        keys = self.keys
        return any((keys.choices, keys.use_uuid, keys.nouse_uuid, keys.use_type, keys.nouse_type))

    def writes(self, key: str) -> bool:
        """Whether its identities may write the pod annotation `key`."""
        return key in self.owned

    def requested_by(self, pod: Pod | PodDraft) -> bool:
        """Return whether a pod, as the user wrote it, requests at least one card; a request of 0 doesn't count."""
        return self.named_by(pod)

    def named_by(self, pod: Pod | PodDraft) -> bool:
        """Whether a container names one of the resources, in limits or in requests."""
        return not self.resource_names.isdisjoint(pod.named)

    def asked_in(self, annotations: Mapping[str, str]) -> dict[str, str]:
        """The annotations by which a pod of this scheduler asks for cards, which only the scheduler changes later."""
        if self.asks_by is None:
            return {}
        return {key: value for key, value in annotations.items() if self.asks_by.fullmatch(key)}

    def scheduler_of(self, pod: Pod | PodDraft) -> str:
        """The scheduler that a requesting pod is for, as this project reads it."""
        return pod.scheduler_name

    def node_of(self, pod: Pod) -> str:
        """The node that a pod which concerns this scheduler is on, or about to be bound to; empty for none."""
        return pod.node_name

    def admit(self, pod: PodDraft, node_lister: NodeLister) -> None:
        """Normalise a new requesting pod, and warn of what is hardly meant. Idempotent. Raises `BadRequest`.

        The scheduler's name is set afterwards, for every such pod.
        """
        raise NotImplementedError

    def check(self, pod: Pod, node_lister: NodeLister) -> None:
        """Raises `BadRequest` for what a requesting pod must not be when it is stored."""
        raise NotImplementedError

    def concerns(self, pod: Pod) -> bool:
        """Whether the pod requests devices or carries an allocation of this scheduler, so that `placed` may apply."""
        raise NotImplementedError

    def waiting(self, pod: Pod, node_lister: NodeLister) -> ForeignCharge:
        """What a pod that isn't placed is charged. Raises `BadRequest` for an amount admission would have refused."""
        raise NotImplementedError

    def placed(self, pod: Pod, node_lister: NodeLister, now: float) -> ForeignCharge | None:
        """What a pod costs by the allocation it carries at `now` (Unix seconds); None if that doesn't count."""
        raise NotImplementedError

    def predict(self, pod: Pod, node_lister: NodeLister, now: float) -> Prediction | NoNode:
        """Where the scheduler would place a requesting pod, and with which cards."""
        raise NotImplementedError

    def cards(self, node: Node, node_lister: NodeLister) -> Iterable[tuple[Device, Usage]]:
        """Return the node's cards that this scheduler allocates, with their usage.

        A card without slots isn't counted by slots.
        """
        return ()

    def remarks(self, node: Node, node_lister: NodeLister) -> Iterable[tuple[EventReason, str]]:
        """What is wrong on a node, for warning events on it: reasons, each with a sentence."""
        return ()


class Coexistence:
    """The rule for several managers of the same GPUs, on pods and nodes. This base class has no rule."""

    __slots__ = ()

    def admit(self, draft: PodDraft, named: Set[str], node_lister: NodeLister, *, pinned_matters: bool) -> None:
        """Warn of a new pod that concerns several managers. Raises `BadRequest` for one that must not exist.

        `named` are the resources that it names. `pinned_matters`: the pod is another scheduler's, so the node that it
        is pinned to is looked at too.
        """

    def managing(self, names: Set[str]) -> Collection[Enum]:
        """The managers whose resources a pod's names are; none where there is but one."""
        return ()

    def check(self, named: Set[str]) -> None:
        """Raise `BadRequest` if the pod's resources belong to several managers and it must not be stored."""

    def remark(self, node: Node, device: Mapping[str, Any] | None = None) -> str:
        """What a `MixedGPUManagers` event says of the node, empty for nothing; `device` is Koordinator's object."""
        return ""
