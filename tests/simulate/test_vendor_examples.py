"""`manifests/examples/<vendor>.yaml` — a node, a quota, pods — under `simulate`, against the snapshot of what it gave.

`UPDATE_SNAPSHOTS=1` writes the snapshots anew; read their diff before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .files import Simulate

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
SNAPSHOTS = Path(__file__).parent / "snapshots"
VENDOR_FILES = sorted(path.stem for path in EXAMPLES.glob("*.yaml") if path.stem not in ("cluster", "pods", "waiting"))


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
