"""Which pods a quota's scopes cover: the table of docs/spec/quota.md#3.4."""

from __future__ import annotations

from typing import Any

import pytest
from tables import in_one_test

from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.kube.scopes import matches


def pod(resources: Any = None, **spec: Any) -> Pod:
    containers = [{"name": "main", "resources": resources or {}}]
    return Pod.from_object({"metadata": {"name": "p"}, "spec": {"containers": containers, **spec}})


def quota(*scopes: str, expressions: Any = ()) -> ResourceQuota:
    selector = {"matchExpressions": list(expressions)}
    spec = {"hard": {}, "scopes": list(scopes), "scopeSelector": selector}
    return ResourceQuota.from_object({"metadata": {"name": "q"}, "spec": spec})


def expression(operator: str, *values: str, scope: str = "PriorityClass") -> dict[str, Any]:
    return {"scopeName": scope, "operator": operator, "values": list(values)}


def affinity(kind: str, when: str, term: dict[str, Any]) -> dict[str, Any]:
    wrapped = {"weight": 1, "podAffinityTerm": term} if when.startswith("preferred") else term
    return {kind: {f"{when}DuringSchedulingIgnoredDuringExecution": [wrapped]}}


GPU_ONLY = {"limits": {"nvidia.com/gpu": "1"}}


@pytest.mark.parametrize(
    ("scope", "deadline", "holds"),
    [
        ("Terminating", None, False),
        ("Terminating", 0, True),
        ("Terminating", 60, True),
        ("Terminating", -1, False),
        ("NotTerminating", None, True),
        ("NotTerminating", 0, False),
        ("NotTerminating", 60, False),
        ("NotTerminating", -1, True),
    ],
)
def test_terminating(scope: str, deadline: int | None, holds: bool) -> None:
    assert matches(quota(scope), pod(activeDeadlineSeconds=deadline)) is holds


@in_one_test(
    ("resources", "best_effort"),
    [
        ({}, True),
        (GPU_ONLY, True),
        ({"requests": {"ephemeral-storage": "1Gi"}}, True),
        ({"requests": {"cpu": "0"}, "limits": {"memory": 0}}, True),
        ({"requests": {"cpu": "0m"}}, True),
        ({"requests": {"cpu": None}}, True),
        ({"requests": {"cpu": "1m"}}, False),
        ({"requests": {"cpu": "no quantity"}}, False),
        ({"limits": {"memory": "1Gi"}}, False),
        ({"limits": {"cpu": 1}}, False),
    ],
)
def test_best_effort(resources: Any, best_effort: bool) -> None:
    for given in (pod(resources), pod({}, initContainers=[{"name": "init", "resources": resources}])):
        assert matches(quota("BestEffort"), given) is best_effort
        assert matches(quota("NotBestEffort"), given) is not best_effort


@pytest.mark.parametrize(
    ("requirement", "with_low", "with_high", "without"),
    [
        (expression("Exists"), True, True, False),
        (expression("DoesNotExist"), False, False, True),
        (expression("In", "low", "lower"), True, False, False),
        (expression("NotIn", "low", "lower"), False, True, True),
        (expression("Gt", "low"), False, False, False),
    ],
)
def test_priority_class(requirement: Any, with_low: bool, with_high: bool, without: bool) -> None:
    limited = quota(expressions=[requirement])
    found = [matches(limited, pod(priorityClassName=name)) for name in ("low", "high", "")]
    assert found == [with_low, with_high, without]


def test_priority_class_as_a_plain_scope_means_exists() -> None:
    assert matches(quota("PriorityClass"), pod(priorityClassName="low"))
    assert not matches(quota("PriorityClass"), pod())


@in_one_test("kind", ["podAffinity", "podAntiAffinity"])
@in_one_test("when", ["required", "preferred"])
@in_one_test(
    ("term", "crosses"),
    [
        ({"topologyKey": "zone"}, False),
        ({"namespaces": [], "topologyKey": "zone"}, False),
        ({"namespaces": ["other"], "topologyKey": "zone"}, True),
        ({"namespaceSelector": {}, "topologyKey": "zone"}, True),
        ({"namespaceSelector": None, "topologyKey": "zone"}, False),
    ],
)
def test_cross_namespace_affinity(kind: str, when: str, term: dict[str, Any], crosses: bool) -> None:
    assert matches(quota("CrossNamespacePodAffinity"), pod(affinity=affinity(kind, when, term))) is crosses


def test_a_node_affinity_crosses_nothing() -> None:
    assert not matches(quota("CrossNamespacePodAffinity"), pod(affinity={"nodeAffinity": {}}))


@pytest.mark.parametrize("scope", ["VolumeAttributesClass", "Unheard"])
def test_other_scopes_match_no_pod(scope: str) -> None:
    assert not matches(quota(scope), pod())


def test_all_scopes_must_hold() -> None:
    both = quota("BestEffort", expressions=[expression("In", "low")])
    assert matches(both, pod(GPU_ONLY, priorityClassName="low"))
    assert not matches(both, pod(GPU_ONLY))
    assert not matches(both, pod({"limits": {"cpu": 1}}, priorityClassName="low"))
    assert not matches(quota("Terminating", "NotTerminating"), pod())


def test_a_presence_scope_knows_only_the_operator_exists() -> None:
    assert matches(quota(expressions=[expression("Exists", scope="NotTerminating")]), pod())
    assert not matches(quota(expressions=[expression("DoesNotExist", scope="NotTerminating")]), pod())


def test_no_scopes_match_every_pod() -> None:
    assert matches(quota(), pod())
