"""`manifests/examples/<vendor>.yaml` — a node, a quota, pods — under `simulate`, against the snapshot of what it gave.

`UPDATE_SNAPSHOTS=1` writes the snapshots anew; read their diff before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from .files import JSON, Simulate

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
SNAPSHOTS = Path(__file__).parent / "snapshots"
OTHERS = ("cluster", "pods", "preemption", "waiting")
VENDOR_FILES = sorted(path.stem for path in EXAMPLES.glob("*.yaml") if path.stem not in OTHERS)


@pytest.mark.parametrize("vendor", VENDOR_FILES)
def test_the_example_gives_what_its_snapshot_says(simulate: Simulate, vendor: str) -> None:
    run = simulate.main("simulate", "-o", "yaml", str(EXAMPLES / f"{vendor}.yaml"))
    assert (run.status, run.err) == (0, "")
    snapshot = SNAPSHOTS / f"{vendor}.yaml"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        snapshot.write_text(run.out)
    assert run.out == snapshot.read_text()


def test_every_snapshot_has_its_example() -> None:
    assert sorted(path.stem for path in SNAPSHOTS.glob("*.yaml")) == VENDOR_FILES


def test_in_one_cluster_vendors_leave_each_other_alone(simulate: Simulate, tmp_path: Path) -> None:
    """Every pod of every example gets what it gets in its own example; only more nodes refuse it."""
    documents: list[JSON] = []
    expected = {}
    for vendor in VENDOR_FILES:
        for document in yaml.safe_load_all((EXAMPLES / f"{vendor}.yaml").read_text()):
            if document["kind"] in ("Pod", "ResourceQuota"):
                document["metadata"]["name"] = f"{vendor}.{document['metadata']['name']}"
            documents.append(document)
        for pod in yaml.safe_load((SNAPSHOTS / f"{vendor}.yaml").read_text())["pods"]:
            expected[f"{vendor}.{pod['name']}"] = _outcome(pod)
    together = tmp_path / "together.yaml"
    together.write_text(yaml.safe_dump_all(sorted(documents, key=lambda document: document["kind"] == "Pod")))
    run = simulate.main("simulate", "-o", "yaml", str(together))
    assert (run.status, run.err) == (0, "")
    assert {pod["name"]: _outcome(pod) for pod in yaml.safe_load(run.out)["pods"]} == expected


def _outcome(pod: JSON) -> tuple[object, ...]:
    """What a vendor decides of a pod; node scores, which count all the cards of a node, and refusals aside."""
    placement = pod["placement"]
    where = placement and (placement["node"], placement["containers"], placement["annotations"])
    return pod["allowed"], pod["code"], pod["warnings"], pod["patch"], pod["debits"], where
