"""Simulating pods under AcceleratorQuotas: charged above namespaces, listed with their kind."""

from __future__ import annotations

from builders import card, node

from .files import GPU, JSON, MEM, Simulate, pod, quota


def namespace(name: str, **labels: str) -> JSON:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def accelerator_quota(name: str, hard: JSON, selector: JSON | None = None) -> JSON:
    spec = {"namespaceSelector": selector or {}, "hard": hard}
    return {"apiVersion": "hami.io/v1alpha1", "kind": "AcceleratorQuota", "metadata": {"name": name}, "spec": spec}


def gpu(name: str, team: str, memory: int) -> JSON:
    return pod(name, gpu=1, mem=memory, namespace=team)


def test_pods_of_several_namespaces_share_a_quota(simulate: Simulate) -> None:
    cluster = [
        node("n1", card("a"), card("b")),
        namespace("team-a", group="research"),
        namespace("team-b", group="research"),
        namespace("team-c"),
        accelerator_quota("research", {MEM: 10_000}, {"matchLabels": {"group": "research"}}),
        accelerator_quota("all", {GPU: 4}),
        quota(mem=9000),
    ]
    pods = [
        gpu("a1", "team-a", 6000),
        gpu("b1", "team-b", 3000),
        gpu("b2", "team-b", 1001),
        gpu("c1", "team-c", 20_000),
    ]
    run = simulate(cluster, *pods, gpu("a2", "team-a", 500), gpu("c2", "team-c", 1))
    assert {each["name"]: each["allowed"] for each in run.pods} == {
        "a1": True,
        "b1": True,
        "b2": False,
        "c1": True,
        "a2": True,
        "c2": False,
    }
    assert (
        "exceeded quota: AcceleratorQuota research, requested: limits.nvidia.com/gpumem=1001"
        in run.pod("b2")["message"]
    )
    assert f"exceeded quota: AcceleratorQuota all, requested: {GPU}=1" in run.pod("c2")["message"]
    assert {each["name"]: each["used"] for each in run.result["quotas"]} == {
        "gpu-quota": {MEM: 6500},
        "AcceleratorQuota/all": {GPU: 4},
        "AcceleratorQuota/research": {MEM: 9500},
    }


def test_a_budget_refuses_at_one_time_and_not_at_another(simulate: Simulate) -> None:
    """With --now in the next month nothing of it is spent; the sums are those of the file."""
    research = accelerator_quota("research", {GPU: 4})
    research["spec"]["budget"] = {"amounts": {GPU: "500h"}, "period": "Month"}
    since, until, to = "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z", "2026-11-20T00:00:00Z"
    sums = {"since": since, "until": until, "summedTo": to, "spent": {GPU: "500h"}, "rate": {GPU: 0}}
    research["status"] = {"budget": sums}
    cluster = [node("n1", card("a"), card("b")), namespace("team-a"), research]
    run = simulate(cluster, gpu("p", "team-a", 1000), flags=("--now", "2026-11-28T12:00:00Z"))
    assert run.pod("p")["message"] == (
        f"budget of quota research: 500h of {GPU} in November are spent; next period begins 2026-12-01"
    )
    assert simulate(cluster, gpu("p", "team-a", 1000), flags=("--now", until)).pod("p")["allowed"]


def test_a_percent_is_of_the_healthy_cards_of_the_files(simulate: Simulate) -> None:
    """What a status has of it stays: the leader saw cards that a reader's files may lack."""
    cards = [card(f"GPU-{number}", health=number > 1) for number in range(6)]
    written = accelerator_quota("written", {GPU: "10%"})
    written["status"] = {"shares": {GPU: {"percent": "10%", "amount": "9"}}, "hard": {GPU: "9"}, "used": {GPU: "0"}}
    pods = [gpu(f"a{number}", "team-a", 1) for number in range(3)]
    run = simulate([node("n1", *cards), accelerator_quota("half", {GPU: "50%"}), written], *pods)
    assert [each["allowed"] for each in run.pods] == [True, True, False]
    assert (
        f"exceeded quota: AcceleratorQuota half, requested: {GPU}=1, used: {GPU}=2, limited: {GPU}=2"
        in (run.pod("a2")["message"])
    )
    hard = {each["name"]: each["hard"] for each in run.result["quotas"]}
    assert hard == {"AcceleratorQuota/half": {GPU: 2}, "AcceleratorQuota/written": {GPU: 9}}
