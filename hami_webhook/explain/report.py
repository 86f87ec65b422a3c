"""What an explanation consists of: plain values, memory in MiB, cores in the vendor's unit, times in Unix seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from hami_webhook.node_filters.result import NodeRefusal, NotJudged


class CardReport(Struct, frozen=True):
    """One card of a node: what is used of it, what the rejected container needs of it, and the result.

    `label` is the reason label of the first check that fails ("" if the card passes by itself), `why` a sentence with
    numbers. `needs_…` are None where Fit didn't check the card.
    """

    vendor: str
    uuid: str
    type: str
    used_slots: int
    slots: int
    used_memory: int
    memory: int
    used_cores: int
    cores: int
    needs_memory: int | None = None
    needs_cores: int | None = None
    label: str = ""
    why: str = ""
    pods: Sequence[str] = ()


class EqualCards(Sequence[CardReport]):
    """The cards of a node that is equal to another up to names: `like` are those of the other.

    They are made when somebody looks at them, which is done with a few of a thousand nodes.
    """

    __slots__ = ("_made", "_make", "like")

    def __init__(self, like: Sequence[CardReport], make: Callable[[], Iterable[CardReport]]) -> None:
        self.like = like
        self._make = make
        self._made: Sequence[CardReport] | None = None

    @overload
    def __getitem__(self, index: int) -> CardReport: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[CardReport]: ...

    def __getitem__(self, index: int | slice) -> CardReport | Sequence[CardReport]:
        if self._made is None:
            self._made = [*self._make()]
        return self._made[index]

    def __len__(self) -> int:
        return len(self.like)

    def __eq__(self, other: object) -> bool:
        return [*self] == [*other] if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list has none


class Taken(Struct, frozen=True):
    """A card that a container has, or would get."""

    container: str
    vendor: str
    uuid: str
    memory: int
    cores: int
    registered: bool = True


class NodeReport(Struct, frozen=True):
    """The verdict on one node: it fits if no filter of kube-scheduler refuses it (`refusal`) and its cards fit.

    `reason` is what the extender answers, or would if it were asked ("" if the cards fit), `container` the rejected
    one, which asks for `count` cards of a vendor. `answer` is `reason` without numbers of this node. `score` and
    `devices` are those of a node that fits.
    """

    name: str
    fits: bool
    reason: str = ""
    why: str = ""
    container: str = ""
    score: float | None = None
    devices: Sequence[Taken] = ()
    cards: Sequence[CardReport] = ()
    refusal: NodeRefusal | None = None
    answer: str = ""
    count: int = 0


class QuotaReport(Struct, frozen=True):
    """One managed key of one quota: `charged` is the pod's part of `used`, `others` what placed pods hold without it.

    `most` is what a placement of the pod may cost; `costs` what its placement costs, or the cheapest one would (None if
    no node is large enough). `used` is None until it is computed. `unit_bytes`: the bytes of memory of one unit, 0 for
    what isn't memory.
    """

    quota: str
    key: str
    hard: int
    used: int | None
    charged: int
    others: int
    most: int
    costs: int | None = None
    unit_bytes: int = 0


class Step(Struct, frozen=True):
    """One thing to be changed: `kind` is free, quota, register, annotation, filter, request, scheduler or gates.

    `pods` are those that hold what must be freed.
    """

    kind: str
    text: str
    subject: str = ""
    amounts: Mapping[str, int] = {}
    pods: Sequence[str] = ()


class Change(Struct, frozen=True):
    """Steps that are enough together for the pod to be placed on `node` ("": wherever it fits then)."""

    steps: Sequence[Step]
    node: str = ""

    def is_within(self, namespace: str) -> bool:
        """Whether who may change the pods of a namespace, and no quota or node, can make the change."""
        return all(
            step.kind in _OF_THE_POD
            or (step.kind == "free" and step.pods and all(pod.startswith(f"{namespace}/") for pod in step.pods))
            for step in self.steps
        )


_OF_THE_POD = ("annotation", "filter", "request", "scheduler", "gates")
"""Kinds of steps that change the pod that is explained."""


class PlacementReport(Struct, frozen=True):
    """A placement: where, which cards, what it costs, since when, and whether the pod is bound there.

    `lapses` is the time when it expires unless it is bound; `phase` is `hami.io/bind-phase`.
    """

    node: str
    bound: bool
    time: float | None
    devices: Sequence[Taken]
    cards: Sequence[CardReport]
    debits: Mapping[str, int]
    lapses: float | None = None
    phase: str = ""


class Explanation(Struct, frozen=True):
    """Why a pod is where it is, or isn't anywhere. `changes` are alternatives, the smallest first.

    `not_judged` are the rules of kube-scheduler that may refuse the pod and aren't in the verdicts on `nodes`.
    """

    namespace: str
    name: str
    verdict: str
    notes: Sequence[str] = ()
    place: PlacementReport | None = None
    nodes: Sequence[NodeReport] = ()
    quotas: Sequence[QuotaReport] = ()
    changes: Sequence[Change] = ()
    not_judged: Sequence[NotJudged] = ()

    @property
    def title(self) -> str:
        """The first line: the verdict on the pod; that of a pod that waits for quota is a sentence of its own."""
        return self.verdict if self.verdict[:1].isupper() else f"{self.namespace}/{self.name} {self.verdict}"

    def as_json(self) -> dict[str, Any]:
        """The explanation as plain JSON values."""
        nodes = [replace(node, cards=[*node.cards]) for node in self.nodes]
        found: dict[str, Any] = to_builtins(replace(self, nodes=nodes))
        return found
