"""Somebody who can open connections to our ports, and nothing else.

The extender's own port is for kube-scheduler in the same pod alone. It gets only what changes nothing there: garbage,
and the names of pods that don't exist. Forged reviews would hold quota for a while, which docs/security.md says.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import ssl
from collections.abc import Sequence
from typing import Any

from .actions import Actor, Weighted

JSON = dict[str, Any]
PATHS = (
    "/mutate",
    "/validate",
    "/webhook",
    "/quotas",
    "/names",
    "/filter",
    "/bind",
    "/preempt",
    "/metrics",
    "/healthz",
    "/",
    "//x",
)
MOST_HELD = 100
"""Connections that one stranger keeps open."""


class Stranger(Actor):
    """A context: at its end its connections are closed.

    `webhook` is the port of the Service, over TLS; `plain` are the ports of metrics, and the extender's."""

    def __init__(self, dice: random.Random, webhook: int, plain: Sequence[int]) -> None:
        super().__init__(dice, pause=0.1)
        self._webhook = webhook
        self._plain = plain
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        self._held: list[socket.socket] = []

    def actions(self) -> Weighted:
        return [
            (15, self.send_garbage_for_tls),
            (20, self.post_garbage),
            (15, self.post_review),
            (10, self.hold_connection),
            (10, self.hold_half_a_body),
            (10, self.leave_answer_unread),
            (10, self.get_page),
            (10, self.post_to_extender),
        ]

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._held:
            each.close()

    def send_garbage_for_tls(self) -> int:
        with socket.create_connection(("127.0.0.1", self._webhook), timeout=5) as connection:
            connection.sendall(self.dice.choice([b"GET / HTTP/1.1\r\n\r\n", os.urandom(300), b"\x16\x03\x01\xff\xff"]))
        return 0

    def post_garbage(self) -> int:
        bodies = [b"", b"{", b"[" * 100_000, os.urandom(5000), b'{"request":{}}', b'"' + b"x" * 1_000_000 + b'"']
        return self._post(self.dice.choice(PATHS), self.dice.choice(bodies))

    def post_review(self) -> int:
        """Reviews that charge nothing: of no devices, dry runs, or for no namespace that there is."""
        limits = self.dice.choice([{"cpu": "1"}, {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "9" * 400}])
        made = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}
        request = {
            "uid": "by-a-stranger",
            "operation": self.dice.choice(["CREATE", "UPDATE", "DELETE", "x"]),
            "kind": {"version": "v1", "kind": self.dice.choice(["Pod", "Binding", "Node"])},
            "namespace": "none-such",
            "dryRun": True,
            "object": made,
            "oldObject": made,
        }
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        return self._post(self.dice.choice(PATHS[:4]), json.dumps(review).encode())

    def _post(self, path: str, body: bytes) -> int:
        connection = http.client.HTTPSConnection("127.0.0.1", self._webhook, timeout=10, context=self._context)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def _hold(self, request: bytes) -> int:
        """Open a connection, send this, and keep it; the oldest goes when there are too many."""
        try:
            plain = socket.create_connection(("127.0.0.1", self._webhook), timeout=5)
            held = self._context.wrap_socket(plain)
            held.sendall(request)
        except OSError:
            return 0
        self._held.append(held)
        if len(self._held) > MOST_HELD:
            self._held.pop(0).close()
        return 1

    def hold_connection(self) -> int:
        return self._hold(b"")

    def hold_half_a_body(self) -> int:
        return self._hold(b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: 15000000\r\n\r\n" + b"x" * 50_000)

    def leave_answer_unread(self) -> int:
        return self._hold(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20)

    def get_page(self) -> int:
        return self._plain_request(self.dice.choice(self._plain), "GET", self.dice.choice(PATHS), b"")

    def post_to_extender(self) -> int:
        gone = {"PodName": "x", "PodNamespace": "none-such", "PodUID": "u", "Node": "none-such"}
        bodies = [b"", b"{", b"[" * 100_000, b'{"Pod":{},"NodeNames":[]}', json.dumps(gone).encode()]
        path = self.dice.choice(["/filter", "/prioritize", "/bind", "/preempt", "/filter-simulation"])
        return self._plain_request(self._plain[-1], "POST", path, self.dice.choice(bodies))

    def _plain_request(self, port: int, method: str, path: str, body: bytes) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request(method, path, body)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()
