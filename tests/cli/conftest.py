from __future__ import annotations

from pathlib import Path

import pytest
from simulate.files import Simulate


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Simulate:
    return Simulate(tmp_path, capsys)
