"""docs/architecture.md adds a watched kind, RuntimeClasses: what it says is all that is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from document_steps import ROOT, copy_of_repository, run, steps

pytestmark = pytest.mark.integration

TEXT = (ROOT / "docs" / "architecture.md").read_text()


def test_a_kind_that_is_added_as_the_page_says_is_cached_and_told(tmp_path: Path) -> None:
    root = copy_of_repository(tmp_path / "copy")
    files = set()
    for step in steps(TEXT):
        step.write(root)
        files.add(step.path)
    assert files == {"hami_webhook/state/caches.py", "hami_webhook/cluster/api.py"}
    done = run(".venv/bin/python -m pytest -q -p no:cacheprovider tests/controller/made_up_kind.py", root)
    assert done.returncode == 0, done.stdout + done.stderr
