"""What is said of each node for a pod that isn't placed: one node of each class is tested, card by card, as Fit itself
decided it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices import reasons
from hami_webhook.devices.fit_pipeline import FitTrace
from hami_webhook.devices.fit_request import NUMA_GROUP, Budget, Candidate
from hami_webhook.devices.model import Device, NodeView, Usage
from hami_webhook.devices.pod_fit import NodeFit, PodRequest, fit_pod
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.explain.messages import why
from hami_webhook.explain.report import CardReport, EqualCards, NodeReport, Taken
from hami_webhook.quota.budget import PodBudget
from hami_webhook.scheduling.node_classes import NodeClasses
from hami_webhook.scheduling.scoring import ScoredNode, fit_and_score
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.pod_allocations import CardKey

_NAMING = frozenset((reasons.CARD_NOT_HEALTH, reasons.CARD_UUID_MISMATCH))
"""Labels whose sentences say of one card what isn't so of an equal one: its UUID, what its monitor found."""

_Answer = tuple[ScoredNode | Rejection, NodeReport]


class NoCards(Struct, frozen=True):
    """Why a node has no cards of a vendor: a sentence, the same without this node's texts, and whether they were
    `expected`, as something of them was registered or kubelet offers some.
    """

    sentence: str
    answer: str
    expected: bool = True


class NodeReports:
    """Reports on nodes for a pod that requests cards, on a budget; filters of kube-scheduler aside.

    `now` is in Unix seconds, `node_policy` the default one, `classes` finds the nodes that are equal.
    """

    def __init__(
        self,
        request: PodRequest,
        budget: PodBudget | None,
        state: ClusterCache,
        vendors: Vendors,
        now: float,
        node_policy: str,
        classes: NodeClasses,
    ) -> None:
        self._request = request
        self._budget = budget
        self._limits = budget.limits if budget else {}
        self._vendors = vendors
        self._now = now
        self._node_policy = node_policy
        self._classes = classes
        self._distinction = NodeClasses.distinction(request, budget)
        self._tested: dict[Hashable, tuple[NodeView, _Answer]] = {}
        self._unreadable = {each.name: each.text for each in state.problems() if each.kind == "Node"}

    def kind_of(self, view: NodeView) -> Hashable:
        """What is the same for nodes that are equal up to names, to this pod."""
        return self._classes.of(view), None if self._distinction is None else self._distinction(view)

    def of(self, view: NodeView) -> _Answer:
        """What a node answers, with the report."""
        key = self.kind_of(view)
        if key in self._tested:
            return self._renamed(*self._tested[key], view)
        answer = result, _ = self._test(view)
        if not (isinstance(result, Rejection) and result.bare == reasons.NODE_INTERNAL_ERROR):
            self._tested[key] = view, answer
        return answer

    def _test(self, view: NodeView) -> _Answer:
        found = fit_and_score(view, self._request, self._vendors, self._budget, self._node_policy)
        if not isinstance(found, Rejection):
            return found[0], self._fitting(view, found[0])
        return found, self._unfit(view, found, trace_fit(view, self._request, self._vendors, self._budget))

    def _cards_of(self, view: NodeView) -> Sequence[CardReport]:
        return self._test(view)[1].cards

    def _renamed(self, tested: NodeView, answer: _Answer, view: NodeView) -> _Answer:
        """The answer of a node, given that of one that is equal to it."""
        result, report = answer
        if isinstance(result, Rejection) and not report.container:
            return result, self._unfit(view, result, None)
        if isinstance(result, Rejection):
            like = report.cards
            naming = not _NAMING.isdisjoint(card.label for card in like)
            cards = EqualCards(like, partial(self._cards_of if naming else partial(_renamed_cards, like, tested), view))
            return result, _renamed_report(report, view.name, cards)
        scored = ScoredNode(_renamed_fit(result.fit, names_on(tested, view), view), view, result.score)
        return scored, self._fitting(view, scored)

    def _fitting(self, view: NodeView, scored: ScoredNode) -> NodeReport:
        taken = [
            Taken(container.name, key, device.uuid, device.share.memory, device.share.cores)
            for container, row in zip(self._request.pod.containers, scored.fit.rows, strict=True)
            for key, allocation in row.items()
            for device in allocation.devices
        ]
        return NodeReport(view.name, True, score=round(scored.score, 6), devices=taken, cards=all_cards(view))

    def _unfit(self, view: NodeView, rejection: Rejection, trace: FitTrace | None) -> NodeReport:
        if trace is None:
            internal = rejection.bare == reasons.NODE_INTERNAL_ERROR
            causes = list(self.unregistered(view))
            text = "; ".join(cause.sentence for cause in causes)
            text = "hami-webhook failed on this node; its log says why" if internal else text
            answer = "" if internal else "; ".join(cause.answer for cause in causes)
            return NodeReport(view.name, False, str(rejection), text, cards=all_cards(view), answer=answer)
        request, vendor = trace.fit_request.request, trace.vendor
        total = len(trace.fit_request.inventory.devices)
        passed = sum(not verdict.label for verdict in trace.verdicts)
        cards_of = "card" if request.count == 1 else "cards"
        text = f"container {trace.container} asks for {request.count} {cards_of} of {vendor.key}, "
        known = f"the node has {total}" if total else "the node registered none that can be used"
        text += f"{passed} of {total} pass" if trace.verdicts else known
        cards = [card for device in devices_of(view) for card in self._card_reports(device, view, trace)]
        return NodeReport(
            view.name,
            False,
            str(rejection),
            text,
            trace.container,
            cards=cards,
            answer=", ".join(sorted(rejection.labels())),
            count=request.count,
        )

    def _card_reports(self, device: Device, view: NodeView, trace: FitTrace) -> Iterator[CardReport]:
        """One report for each check of the card for the rejected container: one, unless it gives several shares."""
        verdicts = [v for v in trace.verdicts if (device.vendor, device.uuid) == (trace.vendor.key, v.card.device.uuid)]
        counted = {verdict.label for verdict in trace.verdicts}
        left = [label for label in trace.rejection.counts if label not in counted]
        for verdict in verdicts:
            if verdict.label:
                text = why(verdict.card, verdict.label, trace.vendor, self._vendors, self._limits)
                yield card_report(device, view, verdict.card, verdict.label, text)
            else:
                label = left[0] if len(left) == 1 else ""
                yield card_report(device, view, verdict.card, label, _passed(label, trace))
        if not verdicts:
            yield card_report(device, view)

    def unregistered(self, view: NodeView) -> Iterator[NoCards]:
        """Why the node has no cards of vendors that the pod requests."""
        for key in self._request.vendors:
            if key in view.inventories:
                continue
            vendor, node = self._vendors[key], view.node
            expected = True
            if vendor.registration.annotation and vendor.registration.annotation not in node.annotations:
                cause, kind = f"it has no annotation {vendor.registration.annotation}", ""
                expected = vendor.count_name in node.allocatable
            elif view.name in self._unreadable:
                cause, kind = self._unreadable[view.name], "the registration can't be read"
            elif not vendor.health(node, self._now).healthy:
                text = node.annotations.get(vendor.registration.handshake, "")
                cause = f"its device plugin left the handshake unanswered ({vendor.registration.handshake}={text})"
                kind = "their device plugin left the handshake unanswered"
            else:
                cause = kind = f"its registration has no cards, or kubelet no longer offers {vendor.count_name}"
            answer = f"no {key} cards" + (f": {kind}" if kind else "")
            yield NoCards(f"registers no {key} cards: {cause}", answer, expected)


def _passed(label: str, trace: FitTrace) -> str:
    if label == reasons.RESOURCE_QUOTA_NOT_FIT:
        return "passes by itself, but together the cards cost more than the quota leaves"
    if label == reasons.NVLINK_NOT_FIT:
        unknown = trace.fit_request.inventory.links_unknown
        why_not = "the node doesn't report how its cards are linked" if unknown else "there are no such cards that pass"
        return f"passes by itself, but {trace.fit_request.request.count} all linked by NVLink are needed, and {why_not}"
    return f"passes by itself, but {trace.fit_request.request.count} that go together are needed"


def devices_of(view: NodeView) -> Iterator[Device]:
    for inventory in view.inventories.values():
        yield from inventory.devices


def all_cards(view: NodeView) -> list[CardReport]:
    return [card_report(device, view) for device in devices_of(view)]


def card_report(
    device: Device, view: NodeView, tried: Candidate | None = None, label: str = "", text: str = ""
) -> CardReport:
    """A card as Fit saw it for a container, with what the pod's other containers take; or by the node's usage alone."""
    usage = tried.usage if tried is not None else view.used(device.vendor, device.uuid)
    return CardReport(
        vendor=device.vendor,
        uuid=device.uuid,
        type=device.type,
        used_slots=usage.slots,
        slots=device.slots,
        used_memory=usage.memory,
        memory=device.memory,
        used_cores=usage.cores,
        cores=device.cores,
        needs_memory=tried.expected_share.memory if tried is not None else None,
        needs_cores=tried.expected_share.cores if tried is not None else None,
        label=label,
        why=text,
        pods=_holders(usage),
    )


def names_on(one: NodeView, other: NodeView) -> dict[CardKey, CardKey]:
    """The cards of a node that is equal to `one` up to names, by those of `one`."""
    return dict(zip(_names(one), _names(other), strict=True))


def _names(view: NodeView) -> list[CardKey]:
    return [(device.vendor, device.uuid) for device in devices_of(view)]


def _renamed_fit(fit: NodeFit, names: Mapping[CardKey, CardKey], view: NodeView) -> NodeFit:
    rows = [
        {
            key: replace(each, devices=tuple(replace(d, uuid=names[key, d.uuid][1]) for d in each.devices))
            for key, each in row.items()
        }
        for row in fit.rows
    ]
    return NodeFit(view.name, rows)


def _renamed_report(report: NodeReport, name: str, cards: Sequence[CardReport]) -> NodeReport:
    return NodeReport(
        name,
        report.fits,
        report.reason,
        report.why,
        report.container,
        cards=cards,
        answer=report.answer,
        count=report.count,
    )


def _renamed_cards(cards: Sequence[CardReport], tested: NodeView, view: NodeView) -> Iterator[CardReport]:
    names = names_on(tested, view)
    for card in cards:
        name = names[card.vendor, card.uuid]
        yield replace(card, uuid=name[1], pods=_holders(view.used(*name)))


def _holders(usage: Usage) -> list[str]:
    return sorted({holder.pod.key for holder in usage.holders}) if usage.holders else []


def trace_fit(view: NodeView, pod_request: PodRequest, vendors: Vendors, budget: Budget | None) -> FitTrace | None:
    """The trace of the request that a pod fails on; None if it fits on the node, or has no cards of a vendor there."""
    traces: list[FitTrace] = []
    result = fit_pod(view, pod_request, vendors, budget, traces)
    return next((trace for trace in traces if trace.outcome is result), None)


def first_failure(vendor: Vendor, card: Candidate) -> str:
    """The label of the first check the card fails by itself, "" for none."""
    for check in vendor.checks:
        if check is not NUMA_GROUP and not check.passes(card):
            return check.label
    return vendor.unresolvable if card.share is None else ""
