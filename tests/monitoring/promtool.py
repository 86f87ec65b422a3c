"""promtool, of Debian's package prometheus."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

with_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool evaluates rules; `apt-get install prometheus` has it"
)


def promtool(*arguments: str | Path) -> str:
    """What it prints; fails where it does."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
