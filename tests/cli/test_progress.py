"""Long work shows on a terminal how far it is, and nothing in a pipe or in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from terminals import on_terminal

pytestmark = pytest.mark.integration

EXAMPLE = str(Path(__file__).parents[2] / "manifests" / "examples" / "nvidia.yaml")
SIMULATE = [sys.executable, "-m", "hami_webhook", "simulate", EXAMPLE]


def test_a_terminal_shows_how_many_pods_are_simulated() -> None:
    shown = on_terminal(SIMULATE, "stderr", {"CI": ""})
    assert "simulating" in shown
    assert "3/3" in shown


def test_a_terminal_of_ci_shows_nothing() -> None:
    assert on_terminal(SIMULATE, "stderr", {"CI": "true", "FORCE_COLOR": "1"}) == ""


def test_a_pipe_gets_nothing() -> None:
    environment = {**os.environ, "CI": "", "FORCE_COLOR": "1"}
    done = subprocess.run(SIMULATE, capture_output=True, check=True, text=True, env=environment)
    assert done.stderr == ""
