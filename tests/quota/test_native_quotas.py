"""What Kubernetes' ResourceQuota plugin refuses, in its words, and what isn't certain."""

from __future__ import annotations

from typing import Any

import pytest
from builders import container
from tables import in_one_test

from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.native_quotas import native_refusal

from .objects import quota, read_pod

JSON = dict[str, Any]


def of(hard: JSON, used: JSON | None = None, **how: Any) -> ResourceQuota:
    return ResourceQuota.from_object(quota("team", used=used or {}, **hard, **how))


def app(requests: JSON | None = None, name: str = "main", **limits: Any) -> JSON:
    return container(name, requests=requests, **limits)


SIDECAR = container("side", sidecar=True, requests={"cpu": "1"})
CASES: list[tuple[str, JSON, JSON, JSON, str | None]] = [
    # name, hard, used, the pod, the refusal
    ("none", {"pods": 0}, {}, {}, "exceeded quota: team, requested: pods=1, used: pods=0, limited: pods=0"),
    ("room", {"pods": 1}, {}, {}, None),
    (
        "full",
        {"count/pods": "2", "pods": "2"},
        {"count/pods": "2", "pods": "1"},
        {},
        "exceeded quota: team, requested: count/pods=1, used: count/pods=2, limited: count/pods=2",
    ),
    ("zero amounts", {"requests.cpu": 0}, {}, {"containers": [app({"cpu": "0"})]}, None),
    ("not asked for", {"requests.cpu": 0, "requests.amd.com/gpu": 0}, {}, {"containers": [app({"cpu": "0"})]}, None),
    (
        "sums",
        {"requests.cpu": "1", "limits.memory": "2Gi"},
        {"requests.cpu": "300m"},
        {"containers": [app({"cpu": "400m"}, "a", memory="1Gi"), app({"cpu": "350m"}, "b", memory="1Gi")]},
        "exceeded quota: team, requested: requests.cpu=750m, used: requests.cpu=300m, limited: requests.cpu=1",
    ),
    (
        "bare cpu is requests",
        {"cpu": "1"},
        {},
        {"containers": [app({"cpu": "1500m"})]},
        "exceeded quota: team, requested: cpu=1500m, used: cpu=0, limited: cpu=1",
    ),
    (
        "at its peak",
        {"requests.cpu": "2"},
        {},
        {"init": [app({"cpu": "2"}, "init"), SIDECAR], "containers": [app({"cpu": "500m"})]},
        None,
    ),
    (
        "with sidecars",
        {"requests.cpu": "2"},
        {},
        {"init": [SIDECAR, app({"cpu": "2"}, "init")], "containers": [app({"cpu": "500m"})]},
        "exceeded quota: team, requested: requests.cpu=3, used: requests.cpu=0, limited: requests.cpu=2",
    ),
    (
        "an extended resource",
        {"requests.nvidia.com/gpu": "1"},
        {},
        {"containers": [app({"nvidia.com/gpu": "2"}, gpu=2)]},
        "exceeded quota: team, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=0, "
        "limited: requests.nvidia.com/gpu=1",
    ),
    ("our own keys are ours", {"limits.nvidia.com/gpu": "1"}, {}, {"containers": [app(gpu=2)]}, None),
    (
        "huge pages",
        {"requests.hugepages-2Mi": "1Mi"},
        {},
        {"containers": [app({"hugepages-2Mi": "2Mi"})]},
        "exceeded quota: team, requested: requests.hugepages-2Mi=2Mi, used: requests.hugepages-2Mi=0, "
        "limited: requests.hugepages-2Mi=1Mi",
    ),
    (
        "must be specified",
        {"limits.cpu": "9", "limits.memory": "9Gi"},
        {},
        {"init": [app(name="init", cpu="1")], "containers": [app(name="b"), app(name="a", cpu="1")]},
        "failed quota: team: must specify limits.cpu for: b; limits.memory for: a,b,init",
    ),
    ("no quantity", {"requests.cpu": "1"}, {}, {"containers": [app({"cpu": "much"})]}, None),
    ("no number of pods", {"requests.storage": "0", "configmaps": "0"}, {}, {}, None),
]


@in_one_test(("name", "hard", "used", "spec", "refusal"), CASES)
def test_the_words_of_the_plugin(name: str, hard: JSON, used: JSON, spec: JSON, refusal: str | None) -> None:
    asked = read_pod("p", *spec.get("containers", [app()]), init=spec.get("init", ()))
    assert native_refusal(of(hard, used), asked, sized=True) == refusal


def test_where_amounts_may_change_only_pods_are_counted() -> None:
    asked = read_pod("p", app({"cpu": "5"}))
    assert native_refusal(of({"requests.cpu": 1, "limits.cpu": 1, "pods": 1}), asked, sized=False) is None
    assert native_refusal(of({"requests.cpu": 1, "pods": 0}), asked, sized=False) is not None


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"spec": {"scopes": ["BestEffort"]}}, True),
        ({"spec": {"scopes": ["NotBestEffort"]}}, False),
        ({"spec": {"scopes": ["Terminating"]}}, False),
    ],
)
def test_only_quotas_whose_scopes_a_pod_is_in(change: JSON, refused: bool) -> None:
    assert (native_refusal(of({"pods": 0}, **change), read_pod("p", app()), sized=True) is not None) is refused


def test_what_nobody_has_computed_yet_refuses_nothing() -> None:
    made = quota("team", pods=0)
    assert native_refusal(ResourceQuota.from_object(made), read_pod("p", app()), sized=True) is None
    made["status"] = {"hard": {"pods": "0"}}
    assert native_refusal(ResourceQuota.from_object(made), read_pod("p", app()), sized=True) is None
