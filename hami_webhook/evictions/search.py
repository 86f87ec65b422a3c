"""What all searches for victims share: all that may go are gone, and each that isn't needed for it is given back.

Fit says on the nodes, as they would be, whether it is enough that some are gone; no vendor's rule is known here.
Fit takes long, so what a node answered is remembered, and each search has a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from hami_webhook.devices.model import NodeView
from hami_webhook.devices.pod_fit import NodeFit, PodRequest, fit_pod
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.step_limit import FIT_STEPS, StepLimit
from hami_webhook.quota.budget import PodBudget
from hami_webhook.state.node_snapshot import NodeSnapshot, Shares, joined, shares_of, with_reserved
from hami_webhook.time_slices import Steps

_T = TypeVar("_T")

STEPS_OF_A_NODE = 4_000_000
"""Steps to find victims on one node, else there are none."""


def giving_back(
    gone: Sequence[_T], enough: Callable[[Sequence[_T]], Steps[bool]], *, many: bool = True
) -> Steps[Sequence[_T]]:
    """Return the necessary victims, as kube-scheduler does: each is given back in its turn if the others are enough.

    With `many`, several are given back at once if the others are enough, which has the same result: faster if most may
    stay.
    """
    pieces = [gone] if many else [[each] for each in reversed(gone)]
    while pieces:
        some = pieces.pop()
        back = {id(each) for each in some}
        rest = [each for each in gone if id(each) not in back]
        if (yield from enough(rest)):
            gone = rest
        elif len(some) > 1:
            middle = len(some) // 2
            pieces += [some[middle:], some[:middle]]
    return gone


def try_fit(
    view: NodeView, request: PodRequest, vendors: Vendors, budget: PodBudget | None
) -> tuple[NodeFit | None, int]:
    """The pod's placement on the node, None if it doesn't fit there; and the steps that it took to find."""
    limit = StepLimit()
    found = fit_pod(view, request, vendors, budget, limit=limit)
    return found if isinstance(found, NodeFit) else None, FIT_STEPS - limit.left


class SearchBudget(Struct):
    """What a search may still cost: times that Fit is tried, and sets of pods that are compared, and steps of Fit."""

    fits: int
    sets: int
    steps: int = STEPS_OF_A_NODE


class Exhausted(Exception):
    """The search has used up its effort."""


class SimulatedNode(Struct, eq=False):
    """A node without the removed pods, and with additional pods that hold the given shares of its cards.

    `answers` are what it answered to one more, by shape.
    """

    view: NodeView
    shares: Shares
    answers: dict[int, tuple[NodeFit, SimulatedNode] | None] = {}

    def with_fit(self, fit: NodeFit) -> SimulatedNode:
        """The node with one more pod."""
        taken = shares_of(fit)
        return SimulatedNode(with_reserved(self.view, taken), joined(self.shares, taken))


class Trials:
    """Fit on nodes without some of their pods, remembered.

    Methods that raise `Exhausted` do so when `effort` is used up.
    """

    def __init__(self, nodes: Mapping[str, NodeSnapshot], vendors: Vendors, effort: SearchBudget) -> None:
        self._nodes = nodes
        self._vendors = vendors
        self.effort = effort
        self._simulated: dict[str, dict[frozenset[str], SimulatedNode]] = {}

    def node(self, name: str, gone: frozenset[str]) -> SimulatedNode:
        """A node without those who are gone."""
        known = self._simulated.setdefault(name, {})
        if gone not in known:
            known[gone] = SimulatedNode(self._nodes[name].without(gone, self._vendors), {})
        return known[gone]

    def forget(self, name: str) -> None:
        """A node is another than it was."""
        self._simulated.pop(name, None)

    def answer(self, room: SimulatedNode, shape: int, request: PodRequest) -> tuple[NodeFit, SimulatedNode] | None:
        """Return what one more pod of a shape gets on the node, without quotas, and the node with it.

        None if it doesn't fit. Raises `Exhausted`.
        """
        if shape not in room.answers:
            fit = self.fit(room.view, request, None)
            room.answers[shape] = None if fit is None else (fit, room.with_fit(fit))
        return room.answers[shape]

    def fit(self, view: NodeView, request: PodRequest, budget: PodBudget | None) -> NodeFit | None:
        """Raises `Exhausted`."""
        found, steps = try_fit(view, request, self._vendors, budget)
        self.spend(1, steps)
        return found

    def spend(self, fits: int, steps: int) -> None:
        """Raises `Exhausted`."""
        self.effort.fits -= fits
        self.effort.steps -= steps
        if self.effort.fits < 0 or self.effort.steps < 0:
            raise Exhausted
