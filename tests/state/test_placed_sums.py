"""What a namespace's other pods cost is what adding them up would give, whatever happened in between."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest
from builders import bound_pod, pod, quota
from hypothesis import given
from hypothesis import strategies as st
from scheduling.placer_env import GPU, MEM, NOW, VENDORS

from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import placed_by_others
from hami_webhook.quota.pricing import Charge, charge_of
from hami_webhook.state.cluster_cache import ClusterCache

from .test_cluster_cache_any_order import CacheEnv, apply, changes

SCOPES: tuple[dict[str, Any], ...] = (
    {},
    {"scopes": ["NotTerminating"]},
    {"scopes": ["Terminating"]},
    {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}},
)
QUOTAS = [
    QuotaAccount.read(ResourceQuota.from_object({**raw, "spec": {**raw["spec"], **scopes}}), VENDORS)
    for raw in (quota("q", gpu=10, mem=10**6, used={}), quota("cores", cores=100, used={}))
    for scopes in SCOPES
]
more = st.lists(
    st.tuples(
        st.just("more"),
        st.sampled_from("5678"),
        st.sampled_from(("high", "")),
        st.sampled_from((None, 60)),
        st.sampled_from(("Running", "Succeeded")),
        st.sampled_from((None, 10, 400)),
        st.sampled_from(("default", "other")),
    ),
    max_size=3,
)


def add(env: CacheEnv, change: tuple[Any, ...]) -> None:
    _, uid, priority, deadline, phase, leaves, namespace = change
    raw = bound_pod(f"p{uid}", "a", "G1,NVIDIA,700,3:;", namespace=namespace, priorityClassName=priority)
    raw["metadata"]["uid"] = uid
    raw["status"]["phase"] = phase
    if deadline:
        raw["spec"]["activeDeadlineSeconds"] = deadline
    if leaves:
        raw["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": leaves}
    env.pods[uid] = Pod.from_object(raw)
    env.state.set_pod(env.pods[uid], env.now)


def check(env: CacheEnv) -> None:
    state = env.state
    incoming = [Pod.from_object(pod("new", gpu=1, mem=1, namespace=space)) for space in ("default", "other")]
    for one in (*incoming, *state.pods()):
        for account in QUOTAS:
            others = state.pods_in(one.namespace)
            summed = placed_by_others(account, one, others, VENDORS, state.capacity, env.now, 300.0)
            assert state.placed_besides(one, account, env.now) == summed


@given(st.lists(st.one_of(changes, more), max_size=5))
def test_the_sums_are_what_adding_up_gives(steps: list[list[tuple[Any, ...]]]) -> None:
    env = CacheEnv(NOW, ClusterCache(VENDORS, zone=UTC), {}, {})
    version = 0
    for step in steps:
        for change in step:
            version += 1
            if change[0] == "more":
                add(env, change)
            else:
                apply(env, change, version)
        check(env)


def test_settled_pods_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []

    def counting(pod: Pod, *others: Any) -> Charge:
        looked_at.append(pod.uid)
        return charge_of(pod, *others)

    monkeypatch.setattr("hami_webhook.quota.placed_charges.charge_of", counting)
    state = ClusterCache(VENDORS)
    for number in range(50):
        raw = bound_pod(f"p{number}", "n", f"G{number},NVIDIA,100,1:;")
        raw["metadata"]["uid"] = str(number)
        state.set_pod(Pod.from_object(raw), NOW)
    incoming = Pod.from_object(pod("new", gpu=1, mem=1))
    for _ in range(3):
        assert state.placed_besides(incoming, QUOTAS[0], NOW) == {GPU: 50, MEM: 5000}
        assert len(looked_at) == 50
    state.remove_pod("7")
    assert state.placed_besides(incoming, QUOTAS[0], NOW) == {GPU: 49, MEM: 4900}
    assert len(looked_at) == 50
