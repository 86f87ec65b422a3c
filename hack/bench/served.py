"""An API server that has the same lists for everybody, and watches on which a benchmark says what changes."""

from __future__ import annotations

import json
import ssl
import tempfile
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from urllib.parse import parse_qs, urlsplit

from hack.bench.objects import JSON, NAMESPACE
from hami_webhook import pki
from hami_webhook.cluster.kubernetes import PAGE

_VERSION = 1
"""The resourceVersion of the lists."""


@dataclass
class Served:
    """The server's kubeconfig and port, and who watches what."""

    kubeconfig: Path
    """In a folder with the server's authority, `ca.crt`."""
    port: int
    watches: dict[str, SimpleQueue[bytes]] = field(default_factory=dict)
    """By path the events of the last watch."""
    watching: threading.Condition = field(default_factory=threading.Condition)
    version: int = _VERSION

    def watched(self, path: str) -> None:
        """Wait until a path is watched."""
        with self.watching:
            self.watching.wait_for(lambda: path in self.watches)

    def change(self, path: str, obj: JSON) -> None:
        """Let the watch of a path show an object as it is now."""
        self.version += 1
        changed = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        self.watches[path].put(json.dumps({"type": "MODIFIED", "object": changed}).encode() + b"\n")


@contextmanager
def served(lists: Mapping[str, list[JSON]]) -> Iterator[Served]:
    """A server of these lists, by their paths."""
    pages = {(path, str(start)): body for path, items in lists.items() for start, body in _pages(items)}
    empty = dict(_pages([]))[0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            query = parse_qs(address.query)
            if "watch" in query:
                self._watch(address.path)
                return
            (start,) = query.get("continue", ["0"])
            body = pages.get((address.path, start), empty)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _watch(self, path: str) -> None:
            self.close_connection = True
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            events = SimpleQueue[bytes]()
            with found.watching:
                found.watches[path] = events
                found.watching.notify_all()
            while event := events.get():
                self.wfile.write(event)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """The program ends in the middle of a request."""

    server = Server(("127.0.0.1", 0), Handler)
    with tempfile.TemporaryDirectory(prefix="hami-webhook-bench-") as folder:
        found = Served(Path(folder) / "kubeconfig", server.server_port)
        # as API servers have it; where none is asked for by TLS, a client reads all authorities of the system
        pair = pki.generate("api", "bench", now=datetime.now(UTC), extra_names=["127.0.0.1"])
        pki.write(Path(folder), pair, force=False)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(Path(folder) / "tls.crt", Path(folder) / "tls.key")
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        authority = b64encode(pair.ca.certificate).decode()
        address = f"https://127.0.0.1:{server.server_port}"
        cluster = {"name": "bench", "cluster": {"server": address, "certificate-authority-data": authority}}
        context = {"name": "bench", "context": {"cluster": "bench", "user": "bench", "namespace": NAMESPACE}}
        users = [{"name": "bench", "user": {}}]
        config = {"clusters": [cluster], "users": users, "contexts": [context], "current-context": "bench"}
        found.kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))
        try:
            yield found
        finally:
            for events in [*found.watches.values()]:
                events.put(b"")
            server.shutdown()
            server.server_close()


def _pages(items: Sequence[JSON]) -> Iterator[tuple[int, bytes]]:
    """A list as an API server gives it: in pages, each with the place of its first object and the next one's."""
    version = {"resourceVersion": str(_VERSION)}
    items = [{**item, "metadata": {**version, **item["metadata"]}} for item in items]
    for start in range(0, len(items) or 1, PAGE):
        end = start + PAGE
        metadata = version | ({"continue": str(end)} if end < len(items) else {})
        yield start, json.dumps({"metadata": metadata, "items": items[start:end]}).encode()
