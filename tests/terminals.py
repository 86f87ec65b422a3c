"""What programs write to a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]


def on_terminal(
    command: Sequence[str], stream: Literal["stdout", "stderr"], variables: Mapping[str, str], status: int = 0
) -> str:
    """What a command writes to `stream` if that is a terminal; the other is a pipe. Empty variables are unset."""
    environment = {**os.environ, "TERM": "xterm-256color", **variables}
    ours, theirs = pty.openpty()
    out, err = (theirs, subprocess.DEVNULL) if stream == "stdout" else (subprocess.DEVNULL, theirs)
    given = {key: value for key, value in environment.items() if value}
    process = subprocess.Popen(command, env=given, cwd=ROOT, stdout=out, stderr=err)
    os.close(theirs)
    shown = b""
    while part := _next_part(ours):
        shown += part
    os.close(ours)
    assert process.wait() == status, shown
    return shown.decode()


def _next_part(terminal: int) -> bytes:
    """What was written next, empty at the end."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux: the other end is closed
        return b""
