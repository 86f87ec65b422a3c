"""Why a pod is where it is, or isn't anywhere, from objects that were read before.

The verdicts are those of the code that places pods, with the numbers behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hami_webhook.devices import reasons
from hami_webhook.devices.codecs import BadAnnotation
from hami_webhook.devices.fit_pipeline import FitTrace
from hami_webhook.devices.fit_request import Candidate
from hami_webhook.devices.model import BadRequest, Device, NodeView
from hami_webhook.devices.placement_annotations import BIND_PHASE, NODE, TIME, placement_counts
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.explain import remedies
from hami_webhook.explain.fit_trace import trace_fit
from hami_webhook.explain.messages import why
from hami_webhook.explain.node_groups import groups_of
from hami_webhook.explain.other_schedulers import fits_on_none, of_foreign
from hami_webhook.explain.preemption import preemption_note
from hami_webhook.explain.remedies import Remedy, RemedySearch
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
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.objects import Pod, ResourceQuota, format_time
from hami_webhook.node_filters.gates import waiting_for
from hami_webhook.node_filters.result import FilteredNodes, NodeRefusal
from hami_webhook.policy.evaluation import PolicyViolation
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import PodBudget, charged, pod_budget
from hami_webhook.quota.floors import floor_id
from hami_webhook.quota.pricing import charge_of, placed_charge, waiting_charge
from hami_webhook.scheduling.boundary import BoundedPod
from hami_webhook.scheduling.cluster_cache import ClusterCache
from hami_webhook.scheduling.fit import PodRequest, read_pod_request
from hami_webhook.scheduling.placer import SchedulingPolicies
from hami_webhook.scheduling.scoring import ScoredNode, evaluate


@dataclass(frozen=True)
class ExplainContext:
    """What a pod is explained with: the cluster at `now` (Unix seconds), its namespace's quotas, and the settings.

    `disruption` are the PodDisruptionBudgets of all namespaces.

    `filter_nodes` judges the nodes for the pod as kube-scheduler does before it asks the extender.

    `nearest` is on how many nodes with the same answer, the nearest to fit, changes are searched; None: on all.

    `assume_ttl` is for how many seconds an unbound placement counts; `gates` are the pod's scheduling gates; `bounded`
    applies policy to a pod of the namespace.

    Without `sees_nodes` nothing is known of any node, without `sees_all_pods` of pods in other namespaces.
    """

    state: ClusterCache
    vendors: Vendors
    quotas: Sequence[ResourceQuota]
    now: float
    policies: SchedulingPolicies
    scheduler_name: str
    assume_ttl: float
    gates: Sequence[str] = ()
    disruption: Sequence[PodDisruptionBudget] = ()
    bounded: Callable[[Pod], BoundedPod] = BoundedPod
    filter_nodes: Callable[[], FilteredNodes] = FilteredNodes
    nearest: int | None = None
    sees_nodes: bool = True
    sees_all_pods: bool = True


def explain(pod: Pod, context: ExplainContext) -> Explanation:
    """Why the pod is where it is, or isn't anywhere."""
    if pod.ended(context.now):
        verdict = f"is over ({pod.phase or 'being deleted'}): it holds no cards and costs no quota"
        return Explanation(pod.namespace, pod.name, verdict)
    if NODE in pod.annotations and placement_counts(pod, context.now, context.assume_ttl):
        return _of_placed(pod, context)
    return _of_unplaced(pod, context)


def explain_denial(
    pod: Pod | None, context: ExplainContext, name: tuple[str, str], code: int, message: str
) -> Explanation:
    """Why a pod isn't admitted; `pod` as it was reviewed, None if it can't be read, `name` its namespace and name."""
    verdict = f"is denied at admission ({code}): {message}"
    if pod is None:
        return Explanation(*name, verdict)
    try:
        charge = waiting_charge(pod, context.vendors, context.state)
    except BadRequest:
        return Explanation(*name, verdict)
    quotas = []
    over = []
    for account in _accounts(pod, context):
        on_cards = partial(waiting_charge, pod, context.vendors, context.state)
        part = account.while_waiting(charge, on_cards, partial(floor_id, pod, context.vendors))
        of_account = list(_quotas_at_admission(account, part.amounts))
        quotas += of_account
        keys = account.overrun(part) if account.enforced else ()
        over += [quota for quota in of_account if quota.key in keys]
    steps = [step for step, _ in remedies.raises(over, charge.amounts)]
    return Explanation(*name, verdict, quotas=quotas, changes=[Change(steps)] if steps else [])


def _quotas_at_admission(account: QuotaAccount, amounts: Mapping[str, int]) -> Iterator[QuotaReport]:
    """Each managed key of the account for a pod that isn't charged yet."""
    for key, hard in sorted(account.hard.items()):
        used = account.used.get(key)
        most = hard - (used or 0)
        yield QuotaReport(account.name, key, hard, used, 0, used or 0, most, amounts.get(key, 0))


def _of_placed(pod: Pod, context: ExplainContext) -> Explanation:
    name = pod.node_name or pod.annotations[NODE]
    notes = []
    if pod.node_name and pod.node_name != pod.annotations[NODE]:
        notes.append(f"its cards were chosen on {pod.annotations[NODE]}, but it is bound to {pod.node_name}")
    view = context.state.view(name)
    if view is None and context.sees_nodes:
        notes.append(f"node {name} isn't there (any more)")
    charge = charge_of(pod, context.vendors, context.state, context.now, context.assume_ttl)
    notes += charge.problems
    taken = list(taken_cards(pod, context.vendors, view))
    notes += [f"{device.uuid} isn't registered on {name} (any more)" for device in taken if not device.registered]
    own = {(device.vendor, device.uuid) for device in taken}
    cards = [_card(d, view) for d in _devices(view) if (d.vendor, d.uuid) in own] if view else []
    text = pod.annotations.get(TIME, "")
    time = float(int(text[:18])) if text.isdecimal() else None
    bound = bool(pod.node_name)
    expires = None if bound or time is None else time + context.assume_ttl
    place = PlacementReport(
        name,
        bound,
        time,
        taken,
        cards,
        dict(sorted(charge.amounts.items())),
        expires,
        pod.annotations.get(BIND_PHASE, ""),
    )
    since = f" since {format_time(time)}" if time is not None else ""
    verdict = f"is placed on {name}{since} and {'bound' if bound else 'not bound yet'}"
    if expires is not None:
        notes.append(f"unless it is bound by {format_time(expires)} its placement lapses, and it is placed anew")
    return Explanation(
        pod.namespace, pod.name, verdict, notes, place, quotas=list(_quotas(pod, context, charge.amounts))
    )


def _of_unplaced(pod: Pod, context: ExplainContext) -> Explanation:
    context.state.tick(context.now)
    context.state.release(pod.uid)
    named = (pod.namespace, pod.name)
    try:
        bounded = context.bounded(pod)
        pod_request = read_pod_request(bounded.pod, context.vendors, context.policies.card)
    except (BadRequest, PolicyViolation) as error:
        text = error.attributed if isinstance(error, PolicyViolation) else str(error)
        refused = [NodeReport(view.name, False, text) for view in context.state.views()]
        return Explanation(*named, f"fits nowhere: {text}", nodes=refused)
    except ValueError as error:
        return Explanation(*named, f"can't be judged: calcScore failed {error}")
    where = f"is bound to {pod.node_name}" if pod.node_name else "isn't placed"
    foreign = next(iter(context.vendors.foreign_among(pod.named)), None) if pod_request is None else None
    if foreign is not None and (context.sees_nodes or pod.node_name):
        charge = charge_of(pod, context.vendors, context.state, context.now, context.assume_ttl)
        quotas = list(_quotas(pod, context, charge.amounts))
        return of_foreign(foreign, pod, context.state, context.now, charge, quotas, context.filter_nodes())
    if pod_request is None and foreign is None:
        return Explanation(*named, f"{where} and asks for no card of an enabled vendor: HAMi has no say in it")
    notes = [waiting_for(context.gates)] if context.gates else []
    notes += [f"{sentence}, whatever its own annotations say" for sentence in bounded.changes]
    if NODE in pod.annotations and not pod.node_name:
        notes.append(f"it was placed on {pod.annotations[NODE]}, but never bound, and that has lapsed")
    if pod.node_name:
        notes.append("no placement is written on it: another scheduler bound it, so nobody counts its cards as used")
        return Explanation(*named, where + " and has no cards", notes, quotas=list(_quotas(pod, context, {})))
    if pod_request is None or not context.sees_nodes:
        changes = [Change(blocking)] if (blocking := list(_blocking_steps(pod, context))) and not foreign else []
        charge = charge_of(pod, context.vendors, context.state, context.now, context.assume_ttl)
        quotas = list(_quotas(pod, context, charge.amounts))
        return Explanation(*named, f"{where}; which nodes it fits on can't be seen", notes, None, (), quotas, changes)
    return _of_pending(pod, pod_request, context, notes)


def _of_pending(pod: Pod, pod_request: PodRequest, context: ExplainContext, notes: list[str]) -> Explanation:
    """A verdict on each node for a pod that isn't placed, and what would have to change."""
    accounts = list(_accounts(pod, context))
    budget = _budget(pod, accounts, context)
    views = list(context.state.views())
    filtered = context.filter_nodes()
    refusals = filtered.refusals
    suitable = [view for view in views if view.name not in refusals]
    refused = [view for view in views if view.name in refusals]
    found, of_refused = (
        evaluate(each, pod_request, context.vendors, budget, context.policies.node) for each in (suitable, refused)
    )
    limits = budget.limits if budget else {}
    fits = {scored.fit.node: scored for scored in found.fits}
    failed = {**found.failed, **of_refused.failed}
    nodes = []
    for view in views:
        if view.name in fits:
            nodes.append(_fitting(view, fits[view.name], pod))
        elif view.name in failed:
            trace = trace_fit(view, pod_request, context.vendors, budget)
            report = _unfit(view, failed[view.name], trace, pod_request, context, limits)
            nodes.append(replace(report, refusal=refusals.get(view.name)))
        else:
            nodes.append(NodeReport(view.name, False, cards=_all_cards(view), refusal=refusals[view.name]))
    quotas = list(_quotas(pod, context, None))
    searched = _nearest(suitable, nodes, context.nearest)
    search = RemedySearch(
        pod, pod_request, searched, context.vendors, budget, quotas, context.policies.card, context.bounded
    )
    blocking = list(_blocking_steps(pod, context))
    found_remedies: list[Remedy] = []
    if found.fits:
        best = found.fits[0]
        cost: Mapping[str, int] | None = placed_charge(best.fit.claims(), pod.kinds, context.vendors).amounts
        others = f" (and {len(found.fits) - 1} more)" if len(found.fits) > 1 else ""
        seen = "" if context.sees_all_pods else ", as far as its cards aren't taken by pods that can't be seen"
        verdict = f"isn't placed, but fits on {best.fit.node}{others}{seen}"
        notes.append("; ".join(step.text for step in blocking) or "it waits for the scheduler, or was refused before")
        options = [Change(blocking)] if blocking else []
    else:
        found_remedies = remedies.node_remedies(search)
        cost = found_remedies[0].cost if found_remedies else None
        verdict = fits_on_none([view.name for view in views])
        evicted = preemption_note(
            *(pod_request, budget, accounts, context.disruption, suitable),
            *(context.state, context.vendors, context.now),
        )
        notes += [evicted] if evicted else []
        options = [remedy.change for remedy in found_remedies]
        options += remedies.pod_changes(search)
        options += _other_nodes(suitable, [scored.view.name for scored in of_refused.fits], refusals, search, context)
        if views and not options:
            notes.append("no room on a node, limit, annotation or smaller request was found that would let it in alone")
        options = [Change([*blocking, *option.steps], option.node) for option in options] if blocking else options
        if len(searched) < len(suitable):
            notes.append(
                f"changes were searched on the {len(searched)} nearest of {len(suitable)} nodes; --all searches all"
            )
    quotas = list(_quotas(pod, context, cost))
    return Explanation(pod.namespace, pod.name, verdict, notes, None, nodes, quotas, options, filtered.not_judged)


def _nearest(views: Sequence[NodeView], nodes: Sequence[NodeReport], most: int | None) -> Sequence[NodeView]:
    """Of the views at most so many with each answer, the nearest to fit first."""
    found = {view.name: view for view in views}
    return [found[node.name] for group in groups_of(nodes) for node in group.nodes[:most] if node.name in found]


def _blocking_steps(pod: Pod, context: ExplainContext) -> Iterator[Step]:
    """What keeps the pod from being scheduled at all."""
    if context.gates:
        yield Step(
            "gates", f"its scheduling gates must be removed: {', '.join(context.gates)}", ",".join(context.gates)
        )
    if context.scheduler_name and pod.scheduler_name != context.scheduler_name:
        text = f"its schedulerName must be {context.scheduler_name}, not {pod.scheduler_name or 'unset'}"
        yield Step("scheduler", text, "schedulerName")


def _other_nodes(
    suitable: Sequence[NodeView],
    fitting: Sequence[str],
    refusals: Mapping[str, NodeRefusal],
    search: RemedySearch,
    context: ExplainContext,
) -> Iterator[Change]:
    """Refused nodes whose cards fit, and nodes that should have registered cards."""
    for name in fitting:
        refusal = refusals[name]
        text = f"{name}: {refusal.why or ', '.join(refusal.reasons)}; its cards would fit"
        yield Change([Step("filter", text, name)], name)
    for view in suitable:
        causes = list(_unregistered(view, search.pod_request, context))
        if causes and all(cause.expected for cause in causes):
            text = "; ".join(cause.sentence for cause in causes)
            yield Change([Step("register", f"{view.name}: {text}", view.name)], view.name)


def _fitting(view: NodeView, scored: ScoredNode, pod: Pod) -> NodeReport:
    taken = [
        Taken(container.name, key, device.uuid, device.share.memory, device.share.cores)
        for container, row in zip(pod.containers, scored.fit.rows, strict=True)
        for key, allocation in row.items()
        for device in allocation.devices
    ]
    return NodeReport(view.name, True, score=round(scored.score, 6), devices=taken, cards=_all_cards(view))


def _unfit(
    view: NodeView,
    rejection: Rejection,
    trace: FitTrace | None,
    pod_request: PodRequest,
    context: ExplainContext,
    limits: Mapping[str, int],
) -> NodeReport:
    if trace is None:
        internal = rejection.bare == reasons.NODE_INTERNAL_ERROR
        causes = list(_unregistered(view, pod_request, context))
        text = "; ".join(cause.sentence for cause in causes)
        text = "hami-webhook failed on this node; its log says why" if internal else text
        answer = "" if internal else "; ".join(cause.answer for cause in causes)
        return NodeReport(view.name, False, str(rejection), text, cards=_all_cards(view), answer=answer)
    request, vendor = trace.fit_request.request, trace.vendor
    total = len(trace.fit_request.inventory.devices)
    passed = sum(not verdict.label for verdict in trace.verdicts)
    cards_of = "card" if request.count == 1 else "cards"
    text = f"container {trace.container} asks for {request.count} {cards_of} of {vendor.key}, "
    text += f"{passed} of {total} pass" if trace.verdicts else f"the node has {total}"
    cards = [card for device in _devices(view) for card in _card_reports(device, view, trace, context, limits)]
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


def _card_reports(
    device: Device, view: NodeView, trace: FitTrace, context: ExplainContext, limits: Mapping[str, int]
) -> Iterator[CardReport]:
    """One report for each check of the card for the rejected container: one, unless it gives several shares."""
    verdicts = [v for v in trace.verdicts if (device.vendor, device.uuid) == (trace.vendor.key, v.card.device.uuid)]
    counted = {verdict.label for verdict in trace.verdicts}
    left = [label for label in trace.rejection.counts if label not in counted]
    for verdict in verdicts:
        if verdict.label:
            text = why(verdict.card, verdict.label, trace.vendor, context.vendors, limits)
            yield _card(device, view, verdict.card, verdict.label, text)
        else:
            label = left[0] if len(left) == 1 else ""
            yield _card(device, view, verdict.card, label, _passed(label, trace))
    if not verdicts:
        yield _card(device, view)


def _passed(label: str, trace: FitTrace) -> str:
    if label == reasons.RESOURCE_QUOTA_NOT_FIT:
        return "passes by itself, but together the cards cost more than the quota leaves"
    if label == reasons.NVLINK_NOT_FIT:
        unknown = trace.vendor.links_unknown(trace.fit_request.inventory)
        why_not = "the node doesn't tell how its cards are linked" if unknown else "there are no such cards that pass"
        return f"passes by itself, but {trace.fit_request.request.count} all linked by NVLink are needed, and {why_not}"
    return f"passes by itself, but {trace.fit_request.request.count} that go together are needed"


@dataclass(frozen=True)
class _NoCards:
    """Why a node has no cards of a vendor: a sentence, the same without this node's texts, and whether they were
    `expected`, as something of them was registered or kubelet offers some.
    """

    sentence: str
    answer: str
    expected: bool = True


def _unregistered(view: NodeView, pod_request: PodRequest, context: ExplainContext) -> Iterator[_NoCards]:
    """Why the node has no cards of vendors that the pod requests."""
    unreadable = {problem.name: problem.text for problem in context.state.problems() if problem.kind == "Node"}
    for key in pod_request.vendors:
        if key in view.inventories:
            continue
        vendor, node = context.vendors[key], view.node
        expected = True
        if vendor.registration.annotation and vendor.registration.annotation not in node.annotations:
            cause, kind = f"it has no annotation {vendor.registration.annotation}", ""
            expected = vendor.count_name in node.allocatable
        elif view.name in unreadable:
            cause, kind = unreadable[view.name], "what is registered can't be read"
        elif not vendor.health(node, context.now).healthy:
            text = node.annotations.get(vendor.registration.handshake, "")
            cause = f"its device plugin left the handshake unanswered ({vendor.registration.handshake}={text})"
            kind = "their device plugin left the handshake unanswered"
        else:
            cause = kind = f"its registration has no cards, or kubelet no longer offers {vendor.count_name}"
        answer = f"no {key} cards" + (f": {kind}" if kind else "")
        yield _NoCards(f"registers no {key} cards: {cause}", answer, expected)


def _devices(view: NodeView) -> Iterator[Device]:
    for inventory in view.inventories.values():
        yield from inventory.devices


def _all_cards(view: NodeView) -> list[CardReport]:
    return [_card(device, view) for device in _devices(view)]


def _card(
    device: Device, view: NodeView, tried: Candidate | None = None, label: str = "", text: str = ""
) -> CardReport:
    """A card as Fit saw it for a container, with what the pod's other containers take; or by the node's usage alone."""
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
        needs_memory=tried.expected_share.memory if tried is not None else None,
        needs_cores=tried.expected_share.cores if tried is not None else None,
        label=label,
        why=text,
        pods=pods,
    )


def taken_cards(pod: Pod, vendors: Vendors, view: NodeView | None) -> Iterator[Taken]:
    """The cards the pod's annotations say it has, container by container."""
    registered = {(device.vendor, device.uuid) for device in _devices(view)} if view else set()
    for key, vendor in vendors.items():
        try:
            rows = vendor.decode(pod) or []
        except BadAnnotation:
            continue
        # a list of another length has app containers only (HAMi 2.7), or can't be distinguished
        names = [container.name for container in pod.containers][-len(rows) :] if rows else []
        for row, entries in enumerate(rows):
            name = names[row] if row < len(names) else f"#{row}"
            for entry in entries:
                there = view is None or (key, entry.uuid) in registered
                yield Taken(name, key, entry.uuid, entry.memory, entry.cores, there)


def _accounts(pod: Pod, context: ExplainContext) -> Iterator[QuotaAccount]:
    """The accounts of the quotas that the pod is in scope of."""
    for quota in sorted(context.quotas, key=lambda quota: quota.name):
        account = QuotaAccount.read(quota, context.vendors)
        if account.hard and account.covers(pod):
            yield account


def _budget(pod: Pod, accounts: Sequence[QuotaAccount], context: ExplainContext) -> PodBudget | None:
    """What the quotas leave for the pod's placement."""
    return pod_budget(
        pod,
        accounts,
        lambda account: context.state.placed_besides(pod, account, context.now),
        context.vendors,
        context.state,
        context.now,
        context.assume_ttl,
    )


def _quotas(pod: Pod, context: ExplainContext, cost: Mapping[str, int] | None) -> Iterator[QuotaReport]:
    """Each managed key for a placement of this cost (None: no placement is known)."""
    for account in _accounts(pod, context):
        own = charged(account, pod, context.vendors, context.state, context.now, context.assume_ttl)
        others = context.state.placed_besides(pod, account, context.now)
        budget = _budget(pod, [account], context)
        for key, hard in sorted(account.hard.items()):
            amount = None if cost is None else cost.get(key, 0)
            most = budget.most(key) if budget else None
            most = max(hard, amount or 0) if most is None else most
            yield QuotaReport(
                account.label, key, hard, account.used.get(key), own.get(key, 0), others[key], most, amount
            )
