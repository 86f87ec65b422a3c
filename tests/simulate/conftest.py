from __future__ import annotations

from pathlib import Path

import pytest

from .files import Simulate


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Simulate:
    return Simulate(tmp_path, capsys)
