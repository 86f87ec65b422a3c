"""Probes of a server, from a thread of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from http.client import HTTPConnection
from itertools import groupby

GIVEN_UP = 3
"""Failures in a row after which kubelet restarts a container, unless its probe says otherwise."""


def failed_in_a_row(seconds: Iterable[float], within: float) -> int:
    """The longest series of probes that took as long as that or longer."""
    series = (list(group) for late, group in groupby(seconds, key=lambda each: each >= within) if late)
    return max(map(len, series), default=0)


class Probes:
    """Probes of /healthz, one after another, as kubelet makes them; how long each took, without end if it failed."""

    def __init__(self, port: int, within: float) -> None:
        self._within = within
        self.seconds: list[float] = []
        self._port = port
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Probes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            connection = HTTPConnection("127.0.0.1", self._port, timeout=self._within)
            try:
                connection.request("GET", "/healthz")
                healthy = connection.getresponse().status == 200
            except OSError:
                healthy = False
            finally:
                connection.close()
            self.seconds.append(time.monotonic() - began if healthy else float("inf"))
            self._over.wait(0.01)
