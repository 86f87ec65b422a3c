"""What a scheduler of another project declares about the pods it places.

Source: docs/spec/volcano.md, docs/spec/koordinator.md and docs/spec/kai.md.

Such pods keep their scheduler: ours never places them, and the quota learns what they got from what that scheduler
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
    def origin(self) -> NodeLister:
        """Whose answers these are: another's, where they are passed on as they come."""
        ...

    @property
    def now(self) -> float:
        """The latest time passed in for any of them, in Unix seconds."""
        ...

    @property
    def version(self) -> int:
        """A number that is another one once a node or its Device object, not a pod, has changed."""
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

    @property
    def origin(self) -> NodeLister:
        return self

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

    `floors` are the keys for which the least any card could give was taken; they may differ when computed again.
    `problems` are sentences for a warning event. `until` is when the pod's cost is another one though nothing happens
    (Unix seconds). `debit` is what it costs of the scheduler's `vendor`, with `least` in place of `floors`, and `model`
    the type of those cards, empty for an unknown one.
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
    """A scheduler of another project, and the resources that mean a pod is its.

    `key`: its name, as its vendor appears in results; `title`: that for people. `scheduler_names`: those that pods name
    which it places; the first is the one injected where `injects_scheduler`. `quota_keys`: what a ResourceQuota may
    limit of its resources; `byte_keys` are those that count bytes, so that `40Gi` means what it says. `watched`: the
    pod annotations on which the answer of `placed` depends. `owned`, `owned_labels`: the annotations and labels of a
    pod that only it and its device plugins write. `reads_devices`: whether Koordinator's Device objects matter to it.
    `keys`: what of its annotations policy can set and bound, and what it writes; without any choice or list policy is
    nothing to it. `asks_by`: the keys of annotations by which a pod asks for cards, in what RE2 and `re` both know;
    such a pod is the scheduler's if it names that as its scheduler. `vendor`: whose cards it gives out, and whose quota
    keys count them; empty for none of ours. `reserves_in`: the namespace where it makes pods that hold cards for
    others. `predicts`: whether `predict` knows its rules.
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
        """Whether a pod as its user wrote it requests any card, not just none of them."""
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
        """The cards of a node that this scheduler gives out, with what is taken of them; no slots: not counted."""
        return ()

    def remarks(self, node: Node, node_lister: NodeLister) -> Iterable[tuple[EventReason, str]]:
        """What is wrong on a node, for warning events on it: reasons, each with a sentence."""
        return ()


class Coexistence:
    """The rule about several managers of the same GPUs, in a pod's resources or on a node; here there is none."""

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
        """Raises `BadRequest` where a pod that names these resources must not be stored, for their managers."""

    def remark(self, node: Node, device: Mapping[str, Any] | None = None) -> str:
        """What a `MixedGPUManagers` event says of the node, empty for nothing; `device` is Koordinator's object."""
        return ""
