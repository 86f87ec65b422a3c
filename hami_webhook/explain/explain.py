"""Why a pod is where it is, or isn't anywhere, from what is known of the cluster; nobody is asked anything.

The verdicts are those of the code that places pods; what is added are the numbers behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hami_webhook.devices import reasons
from hami_webhook.devices.codecs import BadAnnotation
from hami_webhook.devices.fit_request import Candidate
from hami_webhook.devices.model import BadRequest, Device, NodeView
from hami_webhook.devices.placement_annotations import NODE, TIME, placement_counts
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.explain import remedies
from hami_webhook.explain.fit_trace import Stuck, find_stuck
from hami_webhook.explain.messages import why
from hami_webhook.explain.other_schedulers import of_foreign
from hami_webhook.explain.remedies import Judged, Remedy
from hami_webhook.explain.report import (
    CardReport,
    Change,
    Explanation,
    NodeReport,
    PlacementReport,
    QuotaReport,
    Step,
    Taken,
)
from hami_webhook.kube import scopes
from hami_webhook.kube.objects import Pod, ResourceQuota, format_time
from hami_webhook.policy.evaluation import PolicyViolation
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import charged, placed_by_others, pod_budget
from hami_webhook.quota.pricing import charge_of, placed_charge, waiting_charge
from hami_webhook.scheduling.boundary import BoundedPod
from hami_webhook.scheduling.cluster_cache import ClusterCache
from hami_webhook.scheduling.fit import PodRequest, read_pod_request
from hami_webhook.scheduling.placer import SchedulingPolicies, evaluate
from hami_webhook.scheduling.scoring import ScoredNode

OTHER_NODE = "node didn't match the pod's nodeSelector"
_PHASE = "hami.io/bind-phase"


@dataclass(frozen=True)
class Known:
    """What a pod is judged by: the cluster at `now` (Unix seconds), its namespace's quotas, and the settings.

    `lapse` is how many seconds an unbound placement counts; `gates` are the pod's scheduling gates; `bounded` gives a
    pod of the namespace as policy demands it.
    """

    state: ClusterCache
    vendors: Vendors
    quotas: Sequence[ResourceQuota]
    now: float
    policies: SchedulingPolicies
    scheduler_name: str
    lapse: float
    gates: Sequence[str] = ()
    bounded: Callable[[Pod], BoundedPod] = BoundedPod


def explain(pod: Pod, known: Known) -> Explanation:
    """Why the pod is where it is, or isn't anywhere."""
    if pod.ended(known.now):
        verdict = f"is over ({pod.phase or 'being deleted'}): it holds no cards and costs no quota"
        return Explanation(pod.namespace, pod.name, verdict)
    if NODE in pod.annotations and placement_counts(pod, known.now, known.lapse):
        return _of_placed(pod, known)
    return _of_unplaced(pod, known)


def explain_denial(pod: Pod | None, known: Known, name: tuple[str, str], code: int, message: str) -> Explanation:
    """Why a pod isn't admitted; `pod` as it was judged, None if it can't be read, `name` its namespace and name."""
    verdict = f"is denied at admission ({code}): {message}"
    if pod is None:
        return Explanation(*name, verdict)
    try:
        charge = waiting_charge(pod, known.vendors, known.state)
    except BadRequest:
        return Explanation(*name, verdict)
    quotas = []
    over = []
    for books in _books(pod, known):
        of_books = list(_at_the_door(books, charge.amounts))
        quotas += of_books
        keys = books.overrun(charge)
        over += [quota for quota in of_books if quota.key in keys]
    steps = [step for step, _ in remedies.raises(over, charge.amounts)]
    return Explanation(*name, verdict, quotas=quotas, changes=[Change(steps)] if steps else [])


def _at_the_door(books: QuotaAccount, amounts: Mapping[str, int]) -> Iterator[QuotaReport]:
    """How each managed key stands for a pod that isn't charged yet."""
    for key, hard in sorted(books.hard.items()):
        used = books.used.get(key)
        most = hard - (used or 0)
        yield QuotaReport(books.name, key, hard, used, 0, used or 0, most, amounts.get(key, 0))


def _of_placed(pod: Pod, known: Known) -> Explanation:
    name = pod.node_name or pod.annotations[NODE]
    notes = []
    if pod.node_name and pod.node_name != pod.annotations[NODE]:
        notes.append(f"its cards were chosen on {pod.annotations[NODE]}, but it is bound to {pod.node_name}")
    view = known.state.view(name)
    if view is None:
        notes.append(f"node {name} isn't there (any more)")
    charge = charge_of(pod, known.vendors, known.state, known.now, known.lapse)
    notes += charge.problems
    taken = list(_taken(pod, known.vendors, view))
    notes += [f"{device.uuid} isn't registered on {name} (any more)" for device in taken if not device.registered]
    mine = {(device.vendor, device.uuid) for device in taken}
    cards = [_card(d, view) for d in _devices(view) if (d.vendor, d.uuid) in mine] if view else []
    text = pod.annotations.get(TIME, "")
    time = float(int(text[:18])) if text.isdecimal() else None
    bound = bool(pod.node_name)
    lapses = None if bound or time is None else time + known.lapse
    place = PlacementReport(
        name, bound, time, taken, cards, dict(sorted(charge.amounts.items())), lapses, pod.annotations.get(_PHASE, "")
    )
    since = f" since {format_time(time)}" if time is not None else ""
    verdict = f"is placed on {name}{since} and {'bound' if bound else 'not bound yet'}"
    if lapses is not None:
        notes.append(f"unless it is bound by {format_time(lapses)} its placement lapses, and it is placed anew")
    return Explanation(pod.namespace, pod.name, verdict, notes, place, quotas=list(_quotas(pod, known, charge.amounts)))


def _of_unplaced(pod: Pod, known: Known) -> Explanation:
    known.state.tick(known.now)
    known.state.release(pod.uid)
    named = (pod.namespace, pod.name)
    try:
        bounded = known.bounded(pod)
        ask = read_pod_request(bounded.pod, known.vendors, known.policies.card)
    except (BadRequest, PolicyViolation) as error:
        text = error.attributed if isinstance(error, PolicyViolation) else str(error)
        refused = [NodeReport(view.name, False, text) for view in known.state.views()]
        return Explanation(*named, f"fits nowhere: {text}", nodes=refused)
    except ValueError as error:
        return Explanation(*named, f"can't be judged: calcScore failed {error}")
    where = f"is bound to {pod.node_name}" if pod.node_name else "isn't placed"
    foreign = next((each for each in known.vendors.foreign if each.asks(pod)), None) if ask is None else None
    if foreign is not None:
        charge = charge_of(pod, known.vendors, known.state, known.now, known.lapse)
        quotas = list(_quotas(pod, known, charge.amounts))
        return of_foreign(foreign, pod, known.state, known.now, charge, quotas, OTHER_NODE)
    if ask is None:
        return Explanation(*named, f"{where} and asks for no card of an enabled vendor: HAMi has no say in it")
    notes = [f"{sentence}, whatever its own annotations say" for sentence in bounded.changes]
    if NODE in pod.annotations and not pod.node_name:
        notes.append(f"it was placed on {pod.annotations[NODE]}, but never bound, and that has lapsed")
    if pod.node_name:
        notes.append("no placement is written on it: another scheduler bound it, so nobody counts its cards as used")
        return Explanation(*named, where + " and has no cards", notes, quotas=list(_quotas(pod, known, {})))
    return _judged(pod, ask, known, notes)


def _judged(pod: Pod, ask: PodRequest, known: Known, notes: list[str]) -> Explanation:
    """How every node stands to the pod, and what would have to change."""
    books = list(_books(pod, known))
    pods = known.state.pods_in(pod.namespace)
    budget = pod_budget(pod, books, pods, known.vendors, known.state, known.now, known.lapse)
    selector = (pod.node_selector or {}).items()
    views = list(known.state.views())
    suitable = [view for view in views if selector <= view.node.labels.items()]
    found = evaluate(suitable, ask, known.vendors, budget, known.policies)
    limits = budget.limits if budget else {}
    fits = {scored.fit.node: scored for scored in found.fits}
    nodes = []
    for view in views:
        if view.name in fits:
            nodes.append(_fitting(view, fits[view.name], pod))
        elif view.name in found.failed:
            stuck = find_stuck(view, ask, known.vendors, budget)
            nodes.append(_unfit(view, found.failed[view.name], stuck, ask, known, limits))
        else:
            nodes.append(NodeReport(view.name, False, OTHER_NODE, _selector_lacks(pod, view), cards=_all_cards(view)))
    quotas = list(_quotas(pod, known, None))
    judged = Judged(pod, ask, suitable, known.vendors, budget, quotas, known.policies.card, known.bounded)
    waits = list(_waits(pod, known))
    helpful: list[Remedy] = []
    if found.fits:
        best = found.fits[0]
        cost: Mapping[str, int] | None = placed_charge(best.fit.holds(), pod.kinds, known.vendors).amounts
        others = f" (and {len(found.fits) - 1} more)" if len(found.fits) > 1 else ""
        verdict = f"isn't placed, but fits on {best.fit.node}{others}"
        notes.append("; ".join(step.text for step in waits) or "it waits for the scheduler, or was refused before")
        options = [Change(waits)] if waits else []
    else:
        helpful = remedies.on_nodes(judged)
        cost = helpful[0].cost if helpful else None
        verdict = f"fits on none of {len(views)} nodes" if views else "fits nowhere: no node is known"
        options = [remedy.change for remedy in helpful]
        options += remedies.in_the_pod(judged)
        options += _other_nodes(views, suitable, judged, known)
        if views and not options:
            notes.append("no room on a node, limit, annotation or smaller request was found that would let it in alone")
        options = [Change([*waits, *option.steps], option.node) for option in options] if waits else options
    quotas = list(_quotas(pod, known, cost))
    return Explanation(pod.namespace, pod.name, verdict, notes, None, nodes, quotas, options)


def _waits(pod: Pod, known: Known) -> Iterator[Step]:
    """What keeps the pod from being looked at at all."""
    if known.gates:
        yield Step("gates", f"its scheduling gates must be removed: {', '.join(known.gates)}", ",".join(known.gates))
    if known.scheduler_name and pod.scheduler_name != known.scheduler_name:
        text = f"its schedulerName must be {known.scheduler_name}, not {pod.scheduler_name or 'unset'}"
        yield Step("scheduler", text, "schedulerName")


def _other_nodes(
    views: Sequence[NodeView], suitable: Sequence[NodeView], judged: Judged, known: Known
) -> Iterator[Change]:
    """Nodes that would do if the pod's nodeSelector allowed them, and those that have yet to register."""
    ask, budget = judged.ask, judged.budget
    allowed = {view.name for view in suitable}
    others = [view for view in views if view.name not in allowed]
    for scored in evaluate(others, ask, known.vendors, budget, known.policies).fits:
        text = f"{_selector_lacks(ask.pod, scored.view)}; it would fit there"
        yield Change([Step("selector", text, scored.view.name)], scored.view.name)
    for view in suitable:
        if any(key not in view.inventories for key in ask.vendors):
            yield Change([Step("register", f"{view.name}: {_unregistered(view, ask, known)}", view.name)], view.name)


def _selector_lacks(pod: Pod, view: NodeView) -> str:
    labels = view.node.labels
    lacking = [f"{key}={text}" for key, text in (pod.node_selector or {}).items() if labels.get(key) != text]
    return f"{view.name} lacks the labels {', '.join(lacking)} of the pod's nodeSelector"


def _fitting(view: NodeView, scored: ScoredNode, pod: Pod) -> NodeReport:
    taken = [
        Taken(container.name, key, device.uuid, device.booking.memory, device.booking.cores)
        for container, row in zip(pod.containers, scored.fit.rows, strict=True)
        for key, allocation in row.items()
        for device in allocation.devices
    ]
    return NodeReport(view.name, True, score=round(scored.score, 6), devices=taken, cards=_all_cards(view))


def _unfit(
    view: NodeView, rejection: Rejection, stuck: Stuck | None, ask: PodRequest, known: Known, limits: Mapping[str, int]
) -> NodeReport:
    if stuck is None:
        told = _unregistered(view, ask, known)
        return NodeReport(view.name, False, str(rejection), told, cards=_all_cards(view))
    request, vendor = stuck.trial.request, stuck.vendor
    total = len(stuck.trial.inventory.devices)
    passed = sum(not visit.label for visit in stuck.visits)
    cards_of = "card" if request.count == 1 else "cards"
    told = f"container {stuck.container} asks for {request.count} {cards_of} of {vendor.key}, "
    told += f"{passed} of {total} pass" if stuck.visits else f"the node has {total}"
    cards = [card for device in _devices(view) for card in _judged_cards(device, view, stuck, known, limits)]
    return NodeReport(view.name, False, str(rejection), told, stuck.container, cards=cards)


def _judged_cards(
    device: Device, view: NodeView, stuck: Stuck, known: Known, limits: Mapping[str, int]
) -> Iterator[CardReport]:
    """The card as often as it was looked at for the container that is stuck: once, unless it gives several shares."""
    visits = [v for v in stuck.visits if (device.vendor, device.uuid) == (stuck.vendor.key, v.card.device.uuid)]
    counted = {visit.label for visit in stuck.visits}
    left = [label for label in stuck.rejection.counts if label not in counted]
    for visit in visits:
        if visit.label:
            told = why(visit.card, visit.label, stuck.vendor, known.vendors, limits)
            yield _card(device, view, visit.card, visit.label, told)
        else:
            label = left[0] if len(left) == 1 else ""
            yield _card(device, view, visit.card, label, _passed(label, stuck))
    if not visits:
        yield _card(device, view)


def _passed(label: str, stuck: Stuck) -> str:
    if label == reasons.RESOURCE_QUOTA_NOT_FIT:
        return "passes by itself, but together the cards cost more than the quota leaves"
    return f"passes by itself, but {stuck.trial.request.count} that go together are needed"


def _unregistered(view: NodeView, ask: PodRequest, known: Known) -> str:
    """Why the node has no cards of a vendor that the pod asks for."""
    told = []
    unreadable = {problem.name: problem.text for problem in known.state.problems() if problem.kind == "Node"}
    for key in ask.vendors:
        if key in view.inventories:
            continue
        vendor, node = known.vendors[key], view.node
        if vendor.register_annotation and vendor.register_annotation not in node.annotations:
            cause = f"it has no annotation {vendor.register_annotation}"
        elif view.name in unreadable:
            cause = unreadable[view.name]
        elif not vendor.health(node, known.now).healthy:
            text = node.annotations.get(vendor.handshake_annotation, "")
            cause = f"its device plugin left the handshake unanswered ({vendor.handshake_annotation}={text})"
        else:
            cause = f"its registration has no cards, or kubelet no longer offers {vendor.count_name}"
        told.append(f"registers no {key} cards: {cause}")
    return "; ".join(told)


def _devices(view: NodeView) -> Iterator[Device]:
    for inventory in view.inventories.values():
        yield from inventory.devices


def _all_cards(view: NodeView) -> list[CardReport]:
    return [_card(device, view) for device in _devices(view)]


def _card(
    device: Device, view: NodeView, tried: Candidate | None = None, label: str = "", told: str = ""
) -> CardReport:
    """A card as a container finds it (with what the pod's other containers take), or as it is."""
    usage = tried.usage if tried is not None else view.used(device.vendor, device.uuid)
    pods = sorted({holder.pod.key for holder in usage.holders})
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
        needs_memory=tried.booked.memory if tried is not None else None,
        needs_cores=tried.booked.cores if tried is not None else None,
        label=label,
        why=told,
        pods=pods,
    )


def _taken(pod: Pod, vendors: Vendors, view: NodeView | None) -> Iterator[Taken]:
    """The cards the pod's annotations say it has, container by container."""
    registered = {(device.vendor, device.uuid) for device in _devices(view)} if view else set()
    for key, vendor in vendors.items():
        try:
            rows = vendor.decode(pod) or []
        except BadAnnotation:
            continue
        # a list of another length has app containers only (HAMi 2.7), or can't be told apart
        names = [container.name for container in pod.containers][-len(rows) :] if rows else []
        for row, entries in enumerate(rows):
            name = names[row] if row < len(names) else f"#{row}"
            for entry in entries:
                there = view is None or (key, entry.uuid) in registered
                yield Taken(name, key, entry.uuid, entry.memory, entry.cores, there)


def _books(pod: Pod, known: Known) -> Iterator[QuotaAccount]:
    """The books of the quotas that the pod is in scope of."""
    for quota in sorted(known.quotas, key=lambda quota: quota.name):
        books = QuotaAccount.read(quota, known.vendors)
        if books.hard and scopes.matches(quota, pod):
            yield books


def _quotas(pod: Pod, known: Known, cost: Mapping[str, int] | None) -> Iterator[QuotaReport]:
    """How each managed key stands for a placement of this cost (None: no placement is known)."""
    pods = known.state.pods_in(pod.namespace)
    for books in _books(pod, known):
        more = (known.vendors, known.state, known.now, known.lapse)
        mine = charged(books, pod, *more)
        others = placed_by_others(books, pod, pods, *more)
        budget = pod_budget(pod, [books], pods, *more)
        for key, hard in sorted(books.hard.items()):
            most = budget.limits.get(key, hard) if budget else hard
            amount = None if cost is None else cost.get(key, 0)
            yield QuotaReport(books.name, key, hard, books.used.get(key), mine.get(key, 0), others[key], most, amount)
