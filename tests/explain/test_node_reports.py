"""What is said of a node is what it would be if no node was taken for equal to another: for every vendor."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from random import Random

from devices.fit_env import NOW
from devices.test_conformance import Case, every_vendor
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling.test_node_classes import EXAMPLES, Fleet

from hami_webhook.devices.model import NodeView
from hami_webhook.devices.pod_fit import PodRequest
from hami_webhook.explain.node_reports import NodeReports
from hami_webhook.explain.remedies import Remedy, RemedySearch, node_remedies
from hami_webhook.quota.budget import PodBudget
from hami_webhook.scheduling.boundary import BoundedPod
from hami_webhook.scheduling.node_classes import NodeClasses


def reports(fleet: Fleet, request: PodRequest, budget: PodBudget | None) -> NodeReports:
    return NodeReports(request, budget, fleet.state, fleet.vendors, NOW, "binpack", NodeClasses(fleet.vendors))


def remedies(
    fleet: Fleet, request: PodRequest, budget: PodBudget | None, kind_of: Callable[[NodeView], Hashable]
) -> list[Remedy]:
    views = [*fleet.views()]
    search = RemedySearch(request.pod, request, views, fleet.vendors, budget, [], "spread", BoundedPod, kind_of)
    return node_remedies(search)


@every_vendor
@settings(max_examples=EXAMPLES if EXAMPLES >= 200 else EXAMPLES // 3)
@given(random=st.randoms(use_true_random=True))
def test_a_report_is_what_it_would_be_if_every_node_was_tested(case: Case, random: Random) -> None:
    fleet = Fleet(random, case)
    for _ in range(3):
        if (asking := fleet.asking()) is not None:
            of_all = reports(fleet, *asking)
            for view in fleet.views():
                assert of_all.of(view) == reports(fleet, *asking).of(view)
        fleet.change()


@every_vendor
@settings(max_examples=EXAMPLES if EXAMPLES >= 200 else EXAMPLES // 8)
@given(random=st.randoms(use_true_random=True))
def test_what_lets_a_pod_in_is_what_it_would_be_if_every_node_was_searched(case: Case, random: Random) -> None:
    fleet = Fleet(random, case)
    if (asking := fleet.asking()) is not None:
        kind_of = reports(fleet, *asking).kind_of
        assert remedies(fleet, *asking, kind_of) == remedies(fleet, *asking, lambda view: view.name)
