"""The files of `manifests/examples`, with what the README promises of them."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from hami_webhook.cluster.loading import load_objects

from .files import CORES, GPU, JSON, MEM, Run, Simulate

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"


@pytest.fixture
def run(simulate: Simulate) -> Run:
    cluster, pods = (str(EXAMPLES / name) for name in ("cluster.yaml", "pods.yaml"))
    return simulate.main("simulate", "--cluster", cluster, "-o", "json", pods)


def uuids(outcome: JSON) -> list[str]:
    return [device["uuid"] for one in outcome["placement"]["containers"] for device in one["devices"]]


def test_the_examples_run_without_a_warning(run: Run) -> None:
    assert (run.status, run.err) == (0, "")
    assert run.pod("plain")["patch"] == []


def test_two_cards_of_2000_mib_cost_4000(run: Run) -> None:
    assert run.pod("two-cards")["debits"] == {GPU: 2, MEM: 4000}


def test_half_of_a_card_of_24_gib_costs_12288(run: Run) -> None:
    half = run.pod("half-a-card")
    assert half["placement"]["node"] == "node-24g"
    assert half["debits"] == {GPU: 1, MEM: 12288}


def test_four_cards_are_those_with_the_best_links(run: Run) -> None:
    linked = run.pod("four-linked")
    assert linked["debits"] == {GPU: 4, MEM: 20000, CORES: 80}
    objects = [item.object for item in load_objects((EXAMPLES / "cluster.yaml").read_text(), "cluster.yaml")]
    notes = next(o["metadata"]["annotations"] for o in objects if o["metadata"]["name"] == linked["placement"]["node"])
    table = {record["uuid"]: record["score"] for record in json.loads(notes["hami.io/node-nvidia-score"])}

    def links(chosen: tuple[str, ...]) -> int:
        return sum(int(table[x][y]) for x, y in combinations(chosen, 2))

    assert links(tuple(uuids(linked))) == max(map(links, combinations(table, 4)))


def test_more_than_is_left_is_refused_with_the_numbers(run: Run) -> None:
    assert run.pod("over-quota")["message"] == (
        "exceeding resource quota: exceeded quota: gpu-quota, requested: limits.nvidia.com/gpumem=4000, "
        "used: limits.nvidia.com/gpumem=36288, limited: limits.nvidia.com/gpumem=40000"
    )
    assert run.used == {GPU: 7, MEM: 36288}


def test_the_younger_of_two_low_pods_is_evicted(simulate: Simulate) -> None:
    found = simulate.main("simulate", "-o", "json", str(EXAMPLES / "preemption.yaml"))
    assert (found.status, found.err) == (0, "")
    assert found.pod("serve")["victims"] == ["team-a/train-1"]
    assert found.pod("train-1")["preempted_by"] == "team-b/serve"


def test_a_forged_allocation_is_refused_by_name(run: Run) -> None:
    forged = run.pod("forged")
    assert (forged["allowed"], forged["code"]) == (False, 403)
    assert forged["message"].startswith("annotation hami.io/vgpu-devices-allocated is written by the scheduler only")
