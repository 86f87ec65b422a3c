"""The examples of all vendors in one cluster. Each alone is a test of `manifests/examples/tests`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from .files import JSON, Simulate, listed

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
OTHERS = ("cluster", "hygon-hcu", "pods", "preemption", "waiting")
"""What is no vendor's, and one whose quota limits another one's cards too."""
VENDOR_FILES = sorted(path.stem for path in EXAMPLES.glob("*.yaml") if path.stem not in OTHERS)


def expected_of(vendor: str) -> JSON:
    test = yaml.safe_load((EXAMPLES / "tests" / vendor / "hami-test.yaml").read_text())
    assert test["exact"]
    expected: JSON = test["expected"]
    return expected


def together() -> list[JSON]:
    """The objects of all examples, pods last."""
    documents: list[JSON] = []
    for vendor in VENDOR_FILES:
        for document in yaml.safe_load_all((EXAMPLES / f"{vendor}.yaml").read_text()):
            if document["kind"] in ("Pod", "ResourceQuota"):
                document["metadata"]["name"] = f"{vendor}.{document['metadata']['name']}"
            documents.append(document)
    return sorted(documents, key=lambda document: document["kind"] == "Pod")


def shuffled(value: Any, pick: random.Random) -> Any:
    """The same with the keys of every mapping in another order, also of JSON in a text."""
    if isinstance(value, dict):
        items = [(key, shuffled(item, pick)) for key, item in value.items()]
        pick.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [shuffled(item, pick) for item in value]
    if isinstance(value, str) and value.startswith(("[", "{")):
        return json.dumps(shuffled(json.loads(value), pick))
    return value


def test_in_one_cluster_vendors_leave_each_other_alone(simulate: Simulate) -> None:
    """Every pod of every example gets what it gets in its own example; only more nodes refuse it."""
    expected = {f"{name}.{pod['name']}": _outcome(pod) for name in VENDOR_FILES for pod in expected_of(name)["pods"]}
    run = simulate.main("simulate", "-o", "yaml", simulate.file("together.json", listed(*together())))
    assert (run.status, run.err) == (0, "")
    result = yaml.safe_load(run.out)
    assert {pod["name"]: _outcome(pod) for pod in result["pods"]} == expected
    for quota in result["quotas"]:
        held = Counter[str]()
        for pod in result["pods"]:
            held.update(pod["debits"] if pod["namespace"] == quota["namespace"] else {})
        assert all(held[key] <= amount <= quota["hard"][key] for key, amount in quota["used"].items()), quota["name"]


def _outcome(pod: JSON) -> tuple[object, ...]:
    """What a vendor decides of a pod; node scores, which count all the cards of a node, and refusals aside."""
    placement = pod["placement"]
    where = placement and (placement["node"], placement["containers"], placement["annotations"])
    return pod["allowed"], pod["code"], pod["warnings"], pod["patch"], pod["debits"], where


@pytest.mark.integration
def test_neither_the_order_of_keys_nor_that_of_sets_changes_an_outcome(tmp_path: Path) -> None:
    """Of processes with their own order in sets; the order of the pods is the order in which they come."""
    objects = together()
    pods = [each for each in objects if each["kind"] == "Pod"]
    pick = random.Random(7)
    cluster = [each for each in objects if each["kind"] != "Pod"]
    pick.shuffle(cluster)
    outputs = []
    for seed, items in enumerate((objects, shuffled([*cluster, *pods], pick))):
        path = tmp_path / f"{seed}.json"
        path.write_text(json.dumps(listed(*items)))
        command = [sys.executable, "-m", "hami_webhook", "simulate", "-o", "json", str(path)]
        env = {**os.environ, "PYTHONHASHSEED": str(seed)}
        done = subprocess.run(command, check=False, capture_output=True, env=env, timeout=300)
        assert (done.returncode, done.stderr) == (0, b"")
        found = json.loads(done.stdout)
        outputs.append(([_outcome(pod) for pod in found["pods"]], found["quotas"]))
    assert outputs[0] == outputs[1]
