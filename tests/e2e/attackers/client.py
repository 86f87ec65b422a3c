"""A connection to the API server with somebody's credentials, kept open, and what was answered."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from pathlib import Path
from typing import Any

from hack.devcluster.plane import ControlPlane

JSON = dict[str, Any]


class Client:
    """For one thread: a tenant with the token of its kubeconfig, or a node with a client certificate."""

    def __init__(self, plane: ControlPlane, login: Path | None = None, pair: tuple[Path, Path] | None = None) -> None:
        self._address = urllib.parse.urlsplit(plane.server).netloc
        self._context = ssl.create_default_context(cafile=str(plane.authority.certificate))
        self._headers = {}
        if login is not None:
            token = json.loads(login.read_text())["users"][0]["user"]["token"]
            self._headers["Authorization"] = f"Bearer {token}"
        if pair is not None:
            self._context.load_cert_chain(*pair)
        self._connection: http.client.HTTPSConnection | None = None
        self.failures: list[str] = []
        """Answers that say that a review raised what nobody expected."""
        self.overruns = 0
        """Requests refused by a quota."""

    def __call__(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, JSON]:
        """The status code and the object."""
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Content-Type": kind}
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(self._address, timeout=30, context=self._context)
        try:
            self._connection.request(method, path, data, headers)
            answer = self._connection.getresponse()
            code, found = answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            self._connection.close()
            self._connection = None
            return 0, {"metadata": {}, "items": []}
        message = str(found.get("message", ""))
        self.failures += [message] if "failed to review" in message else []
        self.overruns += "exceeded quota" in message
        return code, found
