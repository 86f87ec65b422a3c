"""Limits that are percents of the healthy cards, on the real API server."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator

import builders
import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import Kubectl, deployed, eventually
from .objects import GPU, JSON, MEM, add_node, pod
from .test_accelerator_quotas import KIND, define, labelled_namespace, of_team, status
from .test_bursts import create_all

SHORT_PAUSE = "import hami_webhook.quota.percents\nhami_webhook.quota.percents.PAUSE = 1.0\n"
"""Limits fall after a second in place of five minutes."""
NIGHT = {"from": "0 20 * * *", "for": "10h", "hard": {GPU: 8}}
LIMIT = (
    'each must be a whole amount such as 4, "20000" or 20k, or a percent of the healthy cards from 0% to 100%, such as '
    "40%"
)
AMOUNT = 'must be a whole amount such as 4, "20000" or 20k; spec.hard alone may have percents'
REFUSED: list[tuple[JSON, str]] = [
    *(({"hard": {GPU: text}}, LIMIT) for text in ("140%", "100.01%", "-3%", "4O%", "%", "40 %", "0.125%", "4%0", "٤%")),
    ({"hard": {GPU: "40%", MEM: "140%"}}, LIMIT),
    (
        {"hard": {GPU: "40%"}, "nominal": {GPU: 1}},
        "nominal can't be a part of a percent; write hard as an amount for these keys, or remove nominal",
    ),
    ({"hard": {GPU: 4}, "nominal": {GPU: "40%"}}, AMOUNT),
    ({"hard": {GPU: 4}, "per": {"user": True, "hard": {GPU: "40%"}}}, AMOUNT),
    (
        {
            "hard": {GPU: 4},
            "per": {"user": True, "hard": {GPU: 4}, "overrides": [{"subject": "a", "hard": {GPU: "4%"}}]},
        },
        AMOUNT,
    ),
    (
        {"hard": {GPU: 4}, "per": {"user": True, "hard": {GPU: 4}, "groups": [{"group": "a", "hard": {GPU: "4%"}}]}},
        AMOUNT,
    ),
    ({"hard": {GPU: 4}, "windows": [NIGHT | {"hard": {GPU: "40%"}}]}, AMOUNT),
    (
        {"hard": {GPU: 4}, "budget": {"amounts": {GPU: "40%"}, "period": "Month"}},
        "each must be an amount times hours, such as 500h or 90m, and not negative",
    ),
    (
        {"hard": {GPU: "40%"}, "windows": [NIGHT], "reclaim": "on"},
        "with windows and reclaim, pods would be evicted when cards fall sick; write hard as amounts, or set reclaim "
        "to off",
    ),
]
ACCEPTED: list[JSON] = [
    {"hard": {GPU: "40%", MEM: "12.5%", "limits.nvidia.com/gpucores": "100.00%"}},
    {"hard": {GPU: "0%", MEM: "40000"}, "nominal": {MEM: 1}, "reclaim": "on"},
    {"hard": {GPU: "40%"}, "windows": [NIGHT], "per": {"user": True, "hard": {GPU: 4}}},
    {"hard": {GPU: "40%"}, "budget": {"amounts": {GPU: "500h"}, "period": "Month"}},
    {"hard": {GPU: 8, MEM: "40000"}, "windows": [NIGHT], "reclaim": "on"},
]


@pytest.fixture(scope="module")
def kubectl(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """Two replicas run the program."""
    kubectl = Kubectl(plane.kubeconfig)
    define(kubectl)
    with deployed(plane, tmp_path_factory.mktemp("program"), "hami-webhook-0", "hami-webhook-1", first=SHORT_PAUSE):
        yield kubectl
    kubectl("delete", "crd", KIND)


@pytest.mark.parametrize(("spec", "reason"), REFUSED, ids=[json.dumps(spec) for spec, _ in REFUSED])
def test_what_is_no_percent_or_stands_where_none_may_be_is_refused_with_what_would_be_right(
    kubectl: Kubectl, spec: JSON, reason: str
) -> None:
    assert reason in kubectl.refused(of_team("wrong", "none", **spec))


@pytest.mark.parametrize("spec", ACCEPTED, ids=map(json.dumps, ACCEPTED))
def test_a_right_percent_is_taken(kubectl: Kubectl, spec: JSON) -> None:
    right = json.dumps(of_team("right", "none", **spec))
    made = json.loads(kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=right))
    assert made["spec"]["hard"] == spec["hard"]


def test_a_percent_follows_cards_that_fall_sick_and_come_back_and_nothing_is_overspent(
    plane: ControlPlane, kubectl: Kubectl
) -> None:
    model = f"t{uuid.uuid4().hex[:8]}"
    space = labelled_namespace(kubectl, model)

    def annotations(sick: int) -> JSON:
        cards = (builders.card(f"{model}-{n}", type=model, health=n >= sick) for n in range(10))
        return dict(builders.node("", *cards)["metadata"]["annotations"])

    def mine(name: str) -> JSON:
        asked = pod(space, name, gpu=1, gpumem=10)
        asked["metadata"]["annotations"] = {"nvidia.com/use-gputype": model}
        return asked

    def limit() -> str | None:
        found: str | None = status(kubectl, model).get("hard", {}).get(GPU)
        return found

    def fall_sick(sick: int) -> None:
        change = {"metadata": {"annotations": annotations(sick)}}
        kubectl("patch", "node", model, "--type=merge", "-p", json.dumps(change))

    def refused_or_created(count: int) -> tuple[int, int]:
        pods = [mine(f"p-{uuid.uuid4().hex[:8]}") for _ in range(count)]
        refusals = asyncio.run(create_all(plane.kubeconfig, pods, clients=6))
        assert [each for each in refusals if "exceeded quota" not in each] == []
        return len(refusals), len(kubectl.get("pods", "-n", space)["items"])

    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": model, "annotations": annotations(0)}}
    add_node(kubectl, node, gpu=100)
    kubectl.apply(of_team(model, model, hard={GPU: "40%"}, deviceTypes=[model]))
    eventually(limit, "4")
    assert refused_or_created(12) == (8, 4)
    heading, row = kubectl("get", "aq", model).splitlines()
    assert row[heading.index("GPU HARD") :].split()[0] == "4"
    fall_sick(5)
    eventually(limit, "2")
    assert f"used: {GPU}=4, limited: {GPU}=2" in kubectl.refused(mine("more"))
    eventually(lambda: kubectl("get", "aq", model, "-o", "jsonpath={.status.conditions[0].status}"), "True")
    fall_sick(0)
    eventually(limit, "4")
    assert refused_or_created(3) == (3, 4)

    def messages() -> set[str]:
        fields = f"--field-selector=involvedObject.name={model},reason=QuotaLimitChanged"
        return {each["message"] for each in kubectl.get("events", "-A", fields)["items"]}

    changes = {f"{GPU}: 40% of the healthy cards are {each}" for each in ("2 now, 4 before", "4 now, 2 before")}
    eventually(lambda: changes - messages(), set())
    kubectl("delete", "aq", model)
    kubectl("delete", "node", model)
    kubectl("delete", "namespace", space, "--wait=false")
