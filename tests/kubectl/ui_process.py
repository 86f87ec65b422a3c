"""`kubectl hami ui` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .apiserver import ApiServer, serving
from .test_processes import PROGRAM


@contextmanager
def served_ui(api: ApiServer, folder: Path, *flags: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address that the program prints, for the user of an API server, and its process."""
    with ExitStack() as stack:
        kubeconfig = stack.enter_context(serving(api, folder))
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "ui", *flags],
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(process.communicate)
        stack.callback(process.kill)
        deadline = threading.Timer(240, process.kill)
        deadline.start()
        stack.callback(deadline.cancel)
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
