"""What would have to change for a pod that no node takes; every proposal was tested with Fit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, partial

from msgspec import Struct, structs
from msgspec.structs import replace

from hami_webhook.devices.model import BadRequest, FixedMemory, NodeView, Request, ShareOfCard
from hami_webhook.devices.pod_fit import NodeFit, PodRequest, fit_pod, read_pod_request
from hami_webhook.devices.pod_preferences import GPU_POLICY
from hami_webhook.devices.registry import Vendors
from hami_webhook.explain.eviction_search import Eviction, cheapest, largest, smallest_eviction
from hami_webhook.explain.node_reports import names_on
from hami_webhook.explain.report import Change, QuotaReport, Step
from hami_webhook.kube.human_memory import exact_memory, human_mebibytes
from hami_webhook.kube.message_text import first_of
from hami_webhook.kube.objects import Pod
from hami_webhook.policy.evaluation import PolicyViolation
from hami_webhook.queueing.words import quota_named, resource_of
from hami_webhook.quota.budget import PodBudget
from hami_webhook.scheduling.boundary import BoundedPod

_MOST_NAMED = 3
"""Pods that a sentence names."""


class RemedySearch(Struct, frozen=True, dict=True):
    """What remedies are searched with: the pod, its request under policy, the nodes that no filter refuses, the
    quotas and the budget that they leave. `kind_of` is the same for nodes that are equal up to names.
    """

    pod: Pod
    pod_request: PodRequest
    views: Sequence[NodeView]
    vendors: Vendors
    budget: PodBudget | None
    quotas: Sequence[QuotaReport]
    card_policy: str
    bounded: Callable[[Pod], BoundedPod]
    kind_of: Callable[[NodeView], Hashable]

    @cached_property
    def of_each_kind(self) -> Sequence[NodeView]:
        """The first node of each kind: what doesn't fit there doesn't fit on the others."""
        return [*{self.kind_of(view): view for view in reversed(self.views)}.values()][::-1]

    def fitting(self, pod_request: PodRequest) -> str | None:
        """The first node that fits the request."""
        for view in self.of_each_kind:
            if isinstance(fit_pod(view, pod_request, self.vendors, self.budget), NodeFit):
                return view.name
        return None


class Remedy(Struct, frozen=True):
    """A change on one node, how large it is, and what the placement would then cost by quota key."""

    change: Change
    size: float
    cost: Mapping[str, int]


def node_remedies(search: RemedySearch) -> list[Remedy]:
    """For each node that could take the pod: what must be freed there and which limits raised; smallest first."""
    found = []
    of_kinds: dict[Hashable, tuple[NodeView, tuple[Eviction, Mapping[str, int]] | None]] = {}
    for view in search.views:
        if any(key not in view.inventories for key in search.pod_request.vendors):
            continue
        kind = search.kind_of(view)
        if kind not in of_kinds:
            of_kinds[kind] = view, _smallest(view, search)
        searched, smallest = of_kinds[kind]
        if smallest is None:
            continue
        eviction, cost = smallest
        if view is not searched:
            eviction = eviction.renamed(names_on(searched, view))
        lacking = list(raises(search.quotas, cost))
        steps = [*_steps_to_free(view, eviction, search), *(step for step, _ in lacking)]
        size = eviction.size + sum(part for _, part in lacking)
        if steps:
            found.append(Remedy(Change(steps, view.name), size, cost))
    return sorted(found, key=lambda remedy: (remedy.size, remedy.change.node))


def _smallest(view: NodeView, search: RemedySearch) -> tuple[Eviction, Mapping[str, int]] | None:
    """The least to be freed on a node for the pod, and what it would cost there by quota key."""
    eviction = smallest_eviction(view, search.pod_request, search.vendors)
    if eviction is None:
        return None
    limits = search.budget.limits if search.budget else {}
    return eviction, cheapest(view, search.pod_request, search.vendors, eviction, limits)


def _steps_to_free(view: NodeView, eviction: Eviction, search: RemedySearch) -> Iterator[Step]:
    for (key, uuid), (slots, memory, cores) in eviction.freed.items():
        pods = sorted({holder.pod.key for holder in view.used(key, uuid).holders})
        held = f" (held by {first_of(pods, _MOST_NAMED)})" if pods else ""
        amounts = {name: n for name, n in (("slots", slots), ("memory", memory), ("cores", cores)) if n}
        if (key, uuid) in eviction.emptied:
            text = f"empty {uuid} on {view.name}{held}"
        else:
            amounts_text = " and ".join(_amount(name, n) for name, n in amounts.items())
            text = f"free {amounts_text} on {uuid} of {view.name}{held}"
        yield Step("free", text, uuid, amounts, pods)


def _amount(name: str, number: int) -> str:
    """`1 slot`, `2 slots`, `2.9Gi`."""
    if name == "memory":
        return human_mebibytes(number)
    return f"{number} {name if number != 1 else name.removesuffix('s')}"


def raises(quotas: Sequence[QuotaReport], cost: Mapping[str, int]) -> Iterator[tuple[Step, float]]:
    """The limits that are too low for a placement of this cost, each with the share by which it must be raised."""
    for quota in quotas:
        amount = cost.get(quota.key, 0)
        if amount <= quota.most:
            continue
        others = quota.others
        if quota.used is not None and amount > quota.charged:
            others = max(others, quota.used - quota.charged)
        to = others + amount
        text = (
            f"raise {resource_of(quota.key)} of {quota_named(quota.quota)} from {quota.hard} to {to}, "
            f"or free {to - quota.hard} of it: this placement costs {amount}, others have {others}"
        )
        step = Step("quota", text, f"{quota.quota}/{quota.key}", {"from": quota.hard, "to": to})
        yield step, (to - quota.hard) / max(1, quota.hard)


def pod_changes(search: RemedySearch) -> list[Change]:
    """Changes to the pod itself: without one of its annotations that choose cards, or with smaller requests."""
    return [*_without_annotations(search), *_smaller_requests(search)]


def _without_annotations(search: RemedySearch) -> Iterator[Change]:
    pod = search.pod
    chosen = _device_choices(search)
    for keys in [*([key] for key in chosen), *([chosen] if len(chosen) > 1 else [])]:
        notes = {key: text for key, text in pod.annotations.items() if key not in keys}
        pod_request = _read_request(structs.replace(pod, annotations=notes), search)
        node = search.fitting(pod_request) if pod_request else None
        if node is None:
            continue
        yield Change(
            [Step("annotation", f"without {key}={pod.annotations[key]} the pod fits on {node}", key) for key in keys],
            node,
        )


def _device_choices(search: RemedySearch) -> list[str]:
    """The pod's annotations that choose cards of the vendors it requests."""
    keys = [GPU_POLICY]
    for name in search.pod_request.vendors:
        k = search.vendors[name].keys
        keys += [*k.use_uuid, *k.nouse_uuid, *k.use_type, *k.nouse_type, *k.choices]
    return [key for key in dict.fromkeys(keys) if key in search.pod.annotations]


def _read_request(pod: Pod, search: RemedySearch) -> PodRequest | None:
    try:
        return read_pod_request(search.bounded(pod).pod, search.vendors, search.card_policy)
    except (BadRequest, PolicyViolation, ValueError):
        return None


def _smaller_requests(search: RemedySearch) -> Iterator[Change]:
    for row, requests in enumerate(search.pod_request.rows):
        container = search.pod_request.pod.containers[row].name
        for key, request in requests.items():
            for name, unit, most, smaller in _sizes(request):

                def fits(view: NodeView, amount: int, row: int = row, key: str = key, less: _Less = smaller) -> bool:
                    pod_request = _with_request(search.pod_request, row, key, less(amount))
                    return isinstance(fit_pod(view, pod_request, search.vendors, search.budget), NodeFit)

                amount, node = _most_that_fits(search.of_each_kind, most, fits)
                if not 0 < amount < most:
                    continue
                asked = "1 card" if (amount, unit) == (1, "cards") else f"{amount} {unit}"
                if name == "memory":
                    asked, before = f"{exact_memory(amount)} {unit}", human_mebibytes(most)
                else:
                    before = str(most)
                text = f"ask for {asked} instead of {before} in container {container}: it fits on {node}"
                yield Change([Step("request", text, container, {name: amount})], node)


_Less = Callable[[int], Request]


def _most_that_fits(views: Sequence[NodeView], most: int, fits: Callable[[NodeView, int], bool]) -> tuple[int, str]:
    """The largest amount up to `most` that fits on a node, 0 for none, and that node."""
    best, node = 0, ""
    for view in views:
        if best < most and fits(view, best + 1):  # else the node can't do better than those before
            best, node = largest(most, partial(fits, view)), view.name
    return best, node


def _sizes(request: Request) -> Iterator[tuple[str, str, int, _Less]]:
    """What can be made smaller in a request: its name, its unit, its amount, and the request with less of it."""
    yield "count", "cards", request.count, lambda amount: replace(request, count=amount)
    if isinstance(request.memory, FixedMemory):
        mebibytes = request.memory.mebibytes
        yield "memory", "of a card", mebibytes, lambda amount: replace(request, memory=FixedMemory(amount))
    elif isinstance(request.memory, ShareOfCard):
        percent = request.memory.percent
        yield "percent", "% of a card", percent, lambda amount: replace(request, memory=ShareOfCard(amount))
    yield "cores", "cores of a card", request.cores, lambda amount: replace(request, cores=amount)


def _with_request(pod_request: PodRequest, row: int, key: str, request: Request) -> PodRequest:
    rows = [{**requests, key: request} if index == row else requests for index, requests in enumerate(pod_request.rows)]
    return replace(pod_request, rows=rows)
