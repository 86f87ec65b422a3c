"""Why a pod is where it is, or isn't anywhere, from objects that were read before.

The verdicts are those of the code that places pods, with the numbers behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.admission.identities import claims_profile
from hami_webhook.devices.codecs import BadAnnotation
from hami_webhook.devices.model import BadRequest, NodeView
from hami_webhook.devices.placement_annotations import BIND_PHASE, NODE, TIME, placement_counts
from hami_webhook.devices.pod_fit import PodRequest, read_pod_request, shape_of
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.dra.taken_resources import CANNOT_FIT
from hami_webhook.evictions.group_victims import GroupPreemptor, Member
from hami_webhook.evictions.quota_room import GroupBudgets
from hami_webhook.explain import remedies
from hami_webhook.explain.claims import claim_notes, has_claims, waits_for_claims
from hami_webhook.explain.node_groups import groups_of
from hami_webhook.explain.node_reports import NodeReports, all_cards, card_report, devices_of
from hami_webhook.explain.other_schedulers import fits_on_none, of_foreign
from hami_webhook.explain.preemption import group_preemption_note, preemption_note
from hami_webhook.explain.queued import QuotaWait, gate_step, group_notes, quota_wait
from hami_webhook.explain.remedies import Remedy, RemedySearch
from hami_webhook.explain.report import (
    Change,
    Explanation,
    NodeReport,
    PlacementReport,
    QuotaReport,
    Step,
    Taken,
)
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.objects import QUOTA_GATE, Pod, ResourceQuota, format_time
from hami_webhook.kube.pod_group import PodGroup
from hami_webhook.node_filters.gates import waiting_for
from hami_webhook.node_filters.result import FilteredNodes, NodeRefusal
from hami_webhook.policy.evaluation import PolicyViolation
from hami_webhook.quota.account import QuotaAccount, limiting
from hami_webhook.quota.budget import PodBudget, charged, pod_budget
from hami_webhook.quota.floors import floor_id
from hami_webhook.quota.pricing import ClusterCapacity, charge_of, placed_charge, price_pending
from hami_webhook.scheduling.boundary import BoundedPod
from hami_webhook.scheduling.node_classes import NodeClasses
from hami_webhook.scheduling.placer import SchedulingPolicies
from hami_webhook.scheduling.scoring import ScoredNode, ranked
from hami_webhook.state.cluster_cache import ClusterCache


class ExplainContext(Struct, frozen=True):
    """What a pod is explained with: the cluster at `now` (Unix seconds), its namespace's quotas, and the settings.

    `disruption` are the PodDisruptionBudgets of all namespaces.

    `filter_nodes` filters the nodes for the pod as kube-scheduler does before it calls the extender.

    `nearest` is on how many nodes with the same answer, the nearest to fit, changes are searched; None: on all.

    `assume_ttl` is for how many seconds an unbound placement counts; `gates` are the pod's scheduling gates;
    `waits_for` is what its condition says of its wait for quota; `bounded` applies policy to a pod of the namespace.

    `claims` are those that are charged, with their devices; None where none are. `capacity` is what charges depend on.

    `node_classes` knows equal nodes of earlier explanations, None: there was none.

    `cannot_fit`: kube-scheduler says that no node offers a resource of the pod; `taken` are resources by the
    DeviceClasses that take them.

    Without `sees_nodes` nothing is known of any node, without `sees_all_pods` of pods in other namespaces, without
    `sees_quotas` of some quotas of the pod.
    """

    state: ClusterCache
    capacity: ClusterCapacity
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
    sees_quotas: bool = True
    claims: ClaimCache | None = None
    waits_for: str = ""
    cannot_fit: bool = False
    taken: Mapping[str, str] = {}
    node_classes: NodeClasses | None = None


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
        charge = price_pending(pod, context.vendors, context.capacity)
    except BadRequest:
        return Explanation(*name, verdict)
    quotas = []
    over = []
    for account in _accounts(pod, context):
        on_cards = partial(price_pending, pod, context.vendors, context.capacity)
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
        costs, unit = amounts.get(key, 0), account.unit_bytes(key)
        yield QuotaReport(account.title, key, hard, used, 0, used or 0, most, costs, unit)


def _of_placed(pod: Pod, context: ExplainContext) -> Explanation:
    name = pod.node_name or pod.annotations[NODE]
    notes = []
    if pod.node_name and pod.node_name != pod.annotations[NODE]:
        notes.append(f"its cards were chosen on {pod.annotations[NODE]}, but it is bound to {pod.node_name}")
    view = context.state.view(name)
    if view is None and context.sees_nodes:
        notes.append(f"node {name} isn't there (any more)")
    charge = charge_of(pod, context.vendors, context.capacity, context.now, context.assume_ttl)
    notes += charge.problems
    taken = list(taken_cards(pod, context.vendors, view))
    notes += [f"{device.uuid} isn't registered on {name} (any more)" for device in taken if not device.registered]
    own = {(device.vendor, device.uuid) for device in taken}
    cards = [card_report(d, view) for d in devices_of(view) if (d.vendor, d.uuid) in own] if view else []
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
        notes.append(f"if it isn't bound by {format_time(expires)}, its placement expires, and it is placed again")
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
        return Explanation(*named, f"can't be evaluated: calcScore failed {error}")
    where = f"is bound to {pod.node_name}" if pod.node_name else "isn't placed"
    among = context.vendors.foreign_among(pod, pod.named)
    foreign = next((each for each in among if pod_request is None or not each.predicts), None)
    if foreign is not None and (context.sees_nodes or pod.node_name):
        charge = charge_of(pod, context.vendors, context.capacity, context.now, context.assume_ttl)
        quotas = list(_quotas(pod, context, charge.amounts))
        return of_foreign(foreign, pod, context.state, context.now, charge, quotas, context.filter_nodes())
    if pod_request is None and foreign is None and context.claims is not None and has_claims(pod, context.claims):
        return _of_claims(pod, context, context.claims, where)
    if pod_request is None and foreign is None:
        return Explanation(*named, f"{where} and asks for no card of an enabled vendor: HAMi has no say in it")
    wait = _quota_wait(pod, context) if QUOTA_GATE in context.gates else None
    notes = [*_gate_notes(context), *group_notes(pod, context.state)]
    notes += [f"{sentence}, whatever its own annotations say" for sentence in bounded.changes]
    if NODE in pod.annotations and not pod.node_name:
        notes.append(f"it was placed on {pod.annotations[NODE]}, but never bound, and the placement has expired")
    if pod.node_name:
        notes.append("no placement is written on it: another scheduler bound it, so nobody counts its cards as used")
        return Explanation(*named, where + " and has no cards", notes, quotas=list(_quotas(pod, context, {})))
    if pod_request is None or not context.sees_nodes:
        blocking = [] if foreign else list(_blocking_steps(pod, context, wait))
        changes = _with(blocking, [*wait.changes, *wait.smaller] if wait is not None else [])
        charge = charge_of(pod, context.vendors, context.capacity, context.now, context.assume_ttl)
        quotas = list(_quotas(pod, context, charge.amounts))
        unseen = "which nodes it fits on can't be seen"
        verdict = wait.sentence if wait else f"{where}; {unseen}"
        notes += [unseen] if wait else []
        return Explanation(*named, verdict, notes, None, (), quotas, changes)
    return _of_pending(pod, pod_request, context, notes, wait)


def _gate_notes(context: ExplainContext) -> Iterator[str]:
    others = [gate for gate in context.gates if gate != QUOTA_GATE]
    if others:
        yield waiting_for(others)
    if QUOTA_GATE in context.gates:
        yield "It costs no quota while it waits"


def _quota_wait(pod: Pod, context: ExplainContext) -> QuotaWait:
    return quota_wait(
        *(pod, list(_accounts(pod, context)), context.state, context.vendors, context.capacity),
        *(context.now, context.assume_ttl, context.waits_for),
        complete=context.sees_quotas,
    )


def _with(blocking: Sequence[Step], options: Sequence[Change]) -> list[Change]:
    """The options, each with what blocks the pod besides."""
    if not options:
        return [Change(blocking)] if blocking else []
    return [Change([*blocking, *option.steps], option.node) for option in options]


def _of_claims(pod: Pod, context: ExplainContext, claims: ClaimCache, where: str) -> Explanation:
    """What a pod's claims have, or why they have nothing, and what its quotas leave for their allocation."""
    charge = charge_of(pod, context.vendors, context.capacity, context.now, context.assume_ttl)
    waits = waits_for_claims(pod, claims)
    notes = [waiting_for(context.gates)] if context.gates else []
    notes += [*claim_notes(pod, claims), *charge.problems]
    quotas = list(_quotas(pod, context, charge.amounts))
    full = [quota for quota in quotas if waits and quota.used is not None and quota.costs and quota.used > quota.hard]
    above = "no allocation passes while it is above hard"
    notes += [f"quota {each.quota} has used {each.used} of {each.hard} {each.key}: {above}" for each in full]
    if waits and quotas and not full:
        notes.append("an allocation that costs more than the quotas let it cost is refused, as events of the pod say")
    verdict = f"{where} and waits for its claims" if waits else f"{where}; its claims have their devices"
    return Explanation(pod.namespace, pod.name, verdict, notes, quotas=quotas)


def _of_pending(
    pod: Pod, pod_request: PodRequest, context: ExplainContext, notes: list[str], wait: QuotaWait | None
) -> Explanation:
    """A verdict on each node for a pod that isn't placed, and what would have to change.

    Nodes are evaluated without the quotas that the pod waits for.
    """
    accounts = list(_accounts(pod, context))
    budget = _budget(pod, accounts, context)
    views = list(context.state.views())
    filtered = context.filter_nodes()
    refusals = filtered.refusals
    suitable = [view for view in views if view.name not in refusals]
    classes = context.node_classes or NodeClasses(context.vendors)
    reports = NodeReports(
        *(pod_request, None if wait else budget, context.state),
        *(context.vendors, context.now, context.policies.node),
        classes,
    )
    nodes: list[NodeReport] = []
    fitting: list[ScoredNode] = []
    fitting_refused: list[ScoredNode] = []
    for view in views:
        result, report = reports.of(view)
        refusal = refusals.get(view.name)
        if isinstance(result, ScoredNode):
            (fitting if refusal is None else fitting_refused).append(result)
            report = report if refusal is None else NodeReport(view.name, False, cards=all_cards(view))
        nodes.append(report if refusal is None else replace(report, refusal=refusal))
    fitting, fitting_refused = (
        ranked(each, pod_request, context.vendors, context.policies.node) for each in (fitting, fitting_refused)
    )
    quotas = list(_quotas(pod, context, None))
    group = PodGroup.of(pod)
    notes += _group_preemption(group, accounts, suitable, context) if group is not None else []
    searched = _nearest(suitable, nodes, context.nearest)
    search = RemedySearch(
        *(pod, pod_request, searched, context.vendors, budget, () if wait else quotas),
        *(context.policies.card, context.bounded, reports.kind_of),
    )
    blocking = list(_blocking_steps(pod, context, wait))
    found_remedies: list[Remedy] = []
    if fitting:
        best = fitting[0]
        cost: Mapping[str, int] | None = placed_charge(best.fit.claims(), pod.kinds, context.vendors).amounts
        others = f" (and {len(fitting) - 1} more)" if len(fitting) > 1 else ""
        seen = "" if context.sees_all_pods else ", as far as its cards aren't taken by pods that can't be seen"
        fits = f"fits on {best.fit.node}{others}{seen}"
        if wait is not None:
            verdict = wait.sentence
            notes.append(f"Once its quotas have room it {fits}")
            options = _with(blocking, [*wait.changes, *remedies.pod_changes(search)])
        else:
            verdict = f"isn't placed, but {fits}"
            blocked = "; ".join(step.text for step in blocking)
            notes.append(blocked or "it waits for the scheduler, or was refused before")
            options = _with(blocking, ())
    else:
        found_remedies = remedies.node_remedies(search)
        cost = found_remedies[0].cost if found_remedies else None
        verdict = fits_on_none([view.name for view in views])
        if wait is not None:
            notes.append(f"Even if its quotas had room it {verdict}")
            verdict = wait.sentence
        if group is None:
            evicted = preemption_note(
                *(pod_request, budget, accounts, context.disruption, suitable),
                *(context.state, context.vendors, context.now),
            )
            notes += [evicted] if evicted else []
        options = [
            Change([*quota.steps, *remedy.change.steps], remedy.change.node)
            for remedy in found_remedies
            for quota in (wait.changes if wait is not None and wait.changes else [Change(())])
        ]
        options += remedies.pod_changes(search)
        options += _other_nodes(suitable, [scored.node for scored in fitting_refused], refusals, reports)
        if views and not options:
            notes.append("no room on a node, limit, annotation or smaller request was found that would let it in alone")
        options = _with(blocking, options) if options else []
        if len(searched) < len(suitable):
            some = f"the {len(searched)} nearest of {len(suitable)} nodes"
            notes.append(f"changes were searched on {some}; explain --all searches all")
    quotas = list(_quotas(pod, context, cost))
    return Explanation(pod.namespace, pod.name, verdict, notes, None, nodes, quotas, options, filtered.not_judged)


def _group_preemption(
    group: PodGroup, accounts: Sequence[QuotaAccount], views: Sequence[NodeView], context: ExplainContext
) -> list[str]:
    """What preemption would do for a pod group, once enough of its pods are ready to be placed."""
    there = context.state.by_namespace.there(group.key)
    pods = [pod for pod in there if not pod.terminal]
    placed = [pod for pod in pods if pod.node_name]
    waiting = [pod for pod in pods if not pod.node_name and not pod.gated][: max(0, group.size - len(placed))]
    requests: list[tuple[Pod, PodRequest | None]] = []
    members = []
    for pod in waiting if len(placed) + len(waiting) + len(there) - len(pods) >= group.size else ():
        shape = shape_of(pod)
        known = next((each for each in requests if each[0] == shape), None)
        if known is None:
            try:
                known = shape, read_pod_request(context.bounded(pod).pod, context.vendors, context.policies.card)
            except (BadRequest, PolicyViolation, ValueError):
                return []
            requests.append(known)
        if known[1] is not None:
            members.append(Member(pod, known[1]))
    if not members:
        return []
    budgets = GroupBudgets(accounts, context.state, context.capacity, context.vendors, context.now)
    priority, near = min(pod.priority for pod in (*placed, *waiting)), [pod.node_name for pod in placed]
    preemptor = GroupPreemptor(members, near, priority, budgets, context.vendors, context.disruption, context.now)
    note = group_preemption_note(preemptor, views, context.state, context.now)
    return [note] if note else []


def _nearest(views: Sequence[NodeView], nodes: Sequence[NodeReport], most: int | None) -> Sequence[NodeView]:
    """Of the views at most so many with each answer, the nearest to fit first."""
    found = {view.name: view for view in views}
    return [found[node.name] for group in groups_of(nodes) for node in group.nodes[:most] if node.name in found]


def _blocking_steps(pod: Pod, context: ExplainContext, wait: QuotaWait | None) -> Iterator[Step]:
    """What keeps the pod from being scheduled at all, besides the room that it waits for."""
    gates = [gate for gate in context.gates if gate != QUOTA_GATE]
    if gates:
        yield Step("gates", f"its scheduling gates must be removed: {', '.join(gates)}", ",".join(gates))
    if wait is not None and not wait.changes:
        yield Step("gates", gate_step(pod, context.state), QUOTA_GATE)
    ours = (context.scheduler_name, claims_profile(context.scheduler_name))
    if context.scheduler_name and pod.scheduler_name not in ours:
        text = f"its schedulerName must be {context.scheduler_name}, not {pod.scheduler_name or 'unset'}"
        yield Step("scheduler", text, "schedulerName")
    if context.cannot_fit and not pod.node_name:
        found = sorted((name, resource) for name, resource in context.taken.items() if resource in pod.named)
        taken = " and ".join(f"DeviceClass {name} takes {resource}" for name, resource in found)
        text = f"its kube-scheduler says {CANNOT_FIT}, as {taken or 'a DeviceClass takes one of its resources'}: "
        remedy = "disable the filter DynamicResources in the profile of its scheduler, or remove extendedResourceName"
        yield Step("scheduler", f"{text}{remedy}", ",".join(name for name, _ in found) or "extendedResourceName")


def _other_nodes(
    suitable: Sequence[NodeView],
    fitting: Sequence[str],
    refusals: Mapping[str, NodeRefusal],
    reports: NodeReports,
) -> Iterator[Change]:
    """Refused nodes whose cards fit, and nodes that should have registered cards."""
    for name in fitting:
        refusal = refusals[name]
        text = f"{name}: {refusal.why or ', '.join(refusal.reasons)}; its cards would fit"
        yield Change([Step("filter", text, name)], name)
    for view in suitable:
        causes = list(reports.unregistered(view))
        if causes and all(cause.expected for cause in causes):
            text = "; ".join(cause.sentence for cause in causes)
            yield Change([Step("register", f"{view.name}: {text}", view.name)], view.name)


def taken_cards(pod: Pod, vendors: Vendors, view: NodeView | None) -> Iterator[Taken]:
    """The cards the pod's annotations say it has, container by container."""
    registered = {(device.vendor, device.uuid) for device in devices_of(view)} if view else set()
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
    """The accounts of the quotas that the pod is in scope of, and of its subject there."""
    found = [
        QuotaAccount.read(quota, context.vendors) for quota in sorted(context.quotas, key=lambda quota: quota.name)
    ]
    yield from (account for account in limiting(found, pod) if account.hard and account.covers(pod))


def _budget(pod: Pod, accounts: Sequence[QuotaAccount], context: ExplainContext) -> PodBudget | None:
    """What the quotas leave for the pod's placement."""
    return pod_budget(
        pod,
        accounts,
        lambda account: context.state.placed_besides(pod, account, context.now),
        context.vendors,
        context.capacity,
        context.now,
        context.assume_ttl,
    )


def _quotas(pod: Pod, context: ExplainContext, cost: Mapping[str, int] | None) -> Iterator[QuotaReport]:
    """Each managed key for a placement of this cost (None: no placement is known)."""
    for account in _accounts(pod, context):
        own = charged(account, pod, context.vendors, context.capacity, context.now, context.assume_ttl)
        others = context.state.placed_besides(pod, account, context.now)
        budget = _budget(pod, [account], context)
        for key, hard in sorted(account.hard.items()):
            amount = None if cost is None else cost.get(key, 0)
            most = budget.most(key) if budget else None
            most = max(hard, amount or 0) if most is None else most
            used, unit = account.used.get(key), account.unit_bytes(key)
            yield QuotaReport(account.label, key, hard, used, own.get(key, 0), others[key], most, amount, unit)
