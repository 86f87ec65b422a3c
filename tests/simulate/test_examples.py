"""The files of `manifests/examples`, against what the tests there expect of them, and what those can't say."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

from hami_webhook.cluster.loading import load_objects

from .files import JSON, Simulate

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
OF_EXPLAIN = {"cluster", "waiting"}


def test_what_comes_of_the_examples_is_what_their_tests_expect(simulate: Simulate) -> None:
    run = simulate.main("test", "-o", "json", str(EXAMPLES / "tests"))
    assert (run.status, run.err) == (0, ""), simulate.main("test", str(EXAMPLES / "tests")).out
    names = {test["name"] for test in run.result["tests"]}
    assert names == {"policy", *(path.stem for path in EXAMPLES.glob("*.yaml") if path.stem not in OF_EXPLAIN)}


def uuids(outcome: JSON) -> list[str]:
    return [device["uuid"] for one in outcome["placement"]["containers"] for device in one["devices"]]


def test_four_cards_are_those_with_the_best_links(simulate: Simulate) -> None:
    cluster, pods = (str(EXAMPLES / name) for name in ("cluster.yaml", "pods.yaml"))
    four_linked = simulate.main("simulate", "--cluster", cluster, "-o", "json", pods).pod("four-linked")
    objects = [item.object for item in load_objects((EXAMPLES / "cluster.yaml").read_text(), "cluster.yaml")]
    notes = next(
        o["metadata"]["annotations"] for o in objects if o["metadata"]["name"] == four_linked["placement"]["node"]
    )
    table = {record["uuid"]: record["score"] for record in json.loads(notes["hami.io/node-nvidia-score"])}

    def links(chosen: tuple[str, ...]) -> int:
        return sum(int(table[x][y]) for x, y in combinations(chosen, 2))

    assert links(tuple(uuids(four_linked))) == max(map(links, combinations(table, 4)))
