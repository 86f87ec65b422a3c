"""The examples of all vendors in one cluster. Each alone is a test of `manifests/examples/tests`."""

from __future__ import annotations

from pathlib import Path

import yaml

from .files import JSON, Simulate

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
OTHERS = ("cluster", "hygon-hcu", "pods", "preemption", "waiting")
"""What is no vendor's, and one whose quota limits another one's cards too."""
VENDOR_FILES = sorted(path.stem for path in EXAMPLES.glob("*.yaml") if path.stem not in OTHERS)


def expected_of(vendor: str) -> JSON:
    test = yaml.safe_load((EXAMPLES / "tests" / vendor / "hami-test.yaml").read_text())
    assert test["exact"]
    expected: JSON = test["expected"]
    return expected


def test_in_one_cluster_vendors_leave_each_other_alone(simulate: Simulate, tmp_path: Path) -> None:
    """Every pod of every example gets what it gets in its own example; only more nodes refuse it."""
    documents: list[JSON] = []
    expected = {}
    for vendor in VENDOR_FILES:
        for document in yaml.safe_load_all((EXAMPLES / f"{vendor}.yaml").read_text()):
            if document["kind"] in ("Pod", "ResourceQuota"):
                document["metadata"]["name"] = f"{vendor}.{document['metadata']['name']}"
            documents.append(document)
        for pod in expected_of(vendor)["pods"]:
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
