"""`kubectl hami ui` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from starlette.routing import Mount, Route

from hami_webhook.kubectl.ui.access import TokenHolders
from hami_webhook.kubectl.ui.pages import Pages

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
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        deadline.cancel()
        yield address, process


def ui_routes() -> list[Route]:
    """The table of routes of users with a token, with the page Doctor."""
    nothing = cast("Any", None)
    found = Pages(nothing, cast("Any", lambda: None), TokenHolders("token", 1)).app().routes
    assert all(isinstance(each, Route) or (isinstance(each, Mount) and each.path == "/static") for each in found)
    return [each for each in found if isinstance(each, Route)]


def address_of(route: Route, **names: str) -> str:
    """A route's path with these names."""
    assert set(route.param_convertors) <= {*names}, f"say here what {route.path} is given"
    path = route.path.replace(":path", "")
    for key, name in names.items():
        path = path.replace(f"{{{key}}}", quote(name, safe=""))
    return path
