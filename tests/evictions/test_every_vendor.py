"""On random small nodes of every vendor no smaller set of victims exists, by an exhaustive search.

Source: docs/preemption.md#victims. Nodes and pods are those of `manifests/examples`.
"""

from __future__ import annotations

from functools import cache
from itertools import chain, combinations
from pathlib import Path
from pkgutil import iter_modules

import pytest
import yaml
from devices.fit_env import CHART, JSON, NOW, FitEnv, Placed
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_webhook.devices import vendors as vendor_modules
from hami_webhook.devices.pod_fit import NodeFit, fit_pod, read_pod_request
from hami_webhook.evictions.victims import Key, Preemptor, Victims, choose_node
from hami_webhook.kube.disruption import PodDisruptionBudget, violating
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.kube.selectors import LabelSelector, Requirement
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.node_snapshot import NodeSnapshot

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
FAMILIES = [module.name for module in iter_modules(vendor_modules.__path__)]
MOST_PODS = 8
PREEMPTOR = 100


@cache
def manifests(family: str) -> tuple[list[Node], list[JSON]]:
    """The nodes of an example, and its pods as admission leaves them."""
    documents = [each for each in yaml.safe_load_all((EXAMPLES / f"{family}.yaml").read_text()) if each]
    nodes = [Node.from_object(each) for each in documents if each["kind"] == "Node"]
    admitted = []
    for each in documents:
        if each["kind"] == "Pod":
            meta = {"namespace": "default", "annotations": {}, **each["metadata"]}
            pod = FitEnv(nodes).admit({**each, "metadata": meta}).pod
            if pod is not None and read_pod_request(Pod.from_object(pod), CHART, "spread") is not None:
                admitted.append(pod)
    return nodes, admitted


def named(manifest: JSON, name: str, priority: int, started: int, app: str) -> JSON:
    meta = {**manifest["metadata"], "name": name, "uid": f"uid-{name}", "labels": {"app": app}}
    status = {"phase": "Running", "startTime": f"2026-01-01T00:00:{started:02}Z"}
    return {**manifest, "metadata": meta, "spec": {**manifest["spec"], "priority": priority}, "status": status}


def key(victims: list[Pod], budgets: list[PodDisruptionBudget]) -> Key:
    """kube-scheduler's `pickOneNodeForPreemption`, written anew."""
    if not victims:
        return (0, -(2**40), 0, 0, 0)
    highest = max(pod.priority for pod in victims)
    ordered = sorted(victims, key=lambda pod: (-pod.priority, pod.started))
    return (
        len(violating(ordered, budgets)),
        highest,
        sum(pod.priority + 2**31 for pod in victims),
        len(victims),
        -min(pod.started or 0 for pod in victims if pod.priority == highest),
    )


def exhaustive(state: ClusterCache, incoming: Pod, budgets: list[PodDisruptionBudget]) -> Key | None:
    """The smallest key of any set of pods on any node without which the pod fits."""
    request = read_pod_request(incoming, CHART, "spread")
    assert request is not None
    found = []
    for view in state.views():
        there = [pod for pod in state.pods() if pod.node_name == view.name]
        lower = [pod for pod in there if pod.priority < incoming.priority]
        for victims in chain.from_iterable(combinations(lower, size) for size in range(len(lower) + 1)):
            rest = ClusterCache(CHART)
            rest.set_node(view.node, NOW)
            for pod in there:
                if pod not in victims:
                    rest.set_pod(pod, NOW)
            left = rest.view(view.name)
            assert left is not None
            if isinstance(fit_pod(left, request, CHART, None), NodeFit):
                found.append(key(list(victims), budgets))
    return min(found, default=None)


def chosen(state: ClusterCache, incoming: Pod, budgets: list[PodDisruptionBudget]) -> Victims | None:
    request = read_pod_request(incoming, CHART, "spread")
    assert request is not None
    nodes = [NodeSnapshot(view, state.allocations(view.name), {}) for view in state.views()]
    return choose_node(Preemptor(request, None, CHART, budgets, NOW), nodes)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=max(4, settings().max_examples // 10))
@given(data=st.data())
def test_no_smaller_set_exists(family: str, data: st.DataObject) -> None:
    nodes, pods = manifests(family)
    env = FitEnv(nodes)
    for number in range(data.draw(st.integers(3, MOST_PODS))):
        priority = data.draw(st.sampled_from([0, 0, 5, 9, PREEMPTOR]))
        app = data.draw(st.sampled_from("ab"))
        env.place(named(data.draw(st.sampled_from(pods)), f"p{number}", priority, 10 + number, app), admit=False)
    budgets = [
        PodDisruptionBudget("default", "pdb", LabelSelector((Requirement("app", "In", ("a",)),)), allowed)
        for allowed in data.draw(st.lists(st.integers(0, 1), max_size=1))
    ]
    incoming = named(data.draw(st.sampled_from(pods)), "asking", PREEMPTOR, 0, "a")
    if isinstance(env.place(incoming, admit=False, keep=False), Placed):
        return
    preemptor = Pod.from_object(incoming)
    found, smallest = chosen(env.state, preemptor, budgets), exhaustive(env.state, preemptor, budgets)
    assert (found.key if found is not None else None) == smallest
    if found is not None:
        assert key(list(found.pods), budgets) == smallest
        assert all(pod.priority < PREEMPTOR and pod.node_name == found.node for pod in found.pods)
