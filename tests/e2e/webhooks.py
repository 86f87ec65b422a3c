"""Webhooks of somebody else, and reviews that don't come from the API server."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hami_webhook import pki

from .deployment import SYSTEM, Deployment, eventually
from .objects import JSON, pod


@contextmanager
def holding_webhook(program: Deployment, namespace: str, prefix: str) -> Iterator[threading.Event]:
    """A `slow_webhook` that answers for pods whose names begin with `prefix` only when the event is set."""
    release = threading.Event()

    def hold(name: str) -> None:
        if name.startswith(prefix):
            release.wait(20)

    with slow_webhook(program, namespace, hold):
        try:
            yield release
        finally:
            release.set()


@contextmanager
def slow_webhook(program: Deployment, namespace: str, wait: Callable[[str], None]) -> Iterator[None]:
    """Another validating webhook of the namespace, which allows every pod, by its name, after `wait`.

    Until it answers, a pod is in flight: charged, and not there.
    """
    called = threading.Event()

    def answer(request: JSON) -> JSON:
        called.set()
        wait(request["name"])
        return {}

    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    with answering(program, f"slow-{namespace}", answer) as url:
        program.kubectl.apply(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingWebhookConfiguration",
                "metadata": {"name": f"slow-{namespace}"},
                "webhooks": [
                    {
                        "name": "slow.example.com",
                        "clientConfig": {
                            "url": url,
                            "caBundle": base64.b64encode(program.ca.certificate).decode(),
                        },
                        "rules": [rule],
                        "namespaceSelector": selector,
                        "admissionReviewVersions": ["v1"],
                        "sideEffects": "None",
                        "timeoutSeconds": 25,
                    }
                ],
            }
        )
        probe = json.dumps(pod(namespace, "probe"))
        try:
            # the API server asks it from some moment on
            eventually(
                lambda: program.kubectl("create", "--dry-run=server", "-f", "-", stdin=probe) and called.is_set()
            )
            yield
        finally:
            program.kubectl("delete", "validatingwebhookconfiguration", f"slow-{namespace}")


@contextmanager
def mutating(program: Deployment, name: str, namespace: str, patch_of: Callable[[JSON], list[JSON]]) -> Iterator[None]:
    """Another mutating webhook for the pods of a namespace, asked in the order of its name; `patch_of` a pod."""
    called = threading.Event()

    def answer(request: JSON) -> JSON:
        called.set()
        patch = json.dumps(patch_of(request["object"])).encode()
        return {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}

    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    with answering(program, name, answer) as url:
        webhook = {
            "name": "mutate.example.com",
            "clientConfig": {"url": url, "caBundle": base64.b64encode(program.ca.certificate).decode()},
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "reinvocationPolicy": "Never",
        }
        kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
        program.kubectl.apply({**kind, "metadata": {"name": name}, "webhooks": [webhook]})
        probe = json.dumps(pod(namespace, "probe"))
        try:
            # the API server asks it from some moment on
            eventually(
                lambda: (
                    program.kubectl.run("create", "--dry-run=server", "-f", "-", stdin=probe).args and called.is_set()
                )
            )
            yield
        finally:
            program.kubectl("delete", "mutatingwebhookconfiguration", name)


@contextmanager
def answering(program: Deployment, name: str, answer: Callable[[JSON], JSON]) -> Iterator[str]:
    """The URL of a webhook that allows every request, and adds to its response what `answer` makes of the request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
            response = {"uid": request["uid"], "allowed": True, **answer(request)}
            kind = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
            body = json.dumps({**kind, "response": response}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    folder = program.folder / name
    pki.write(folder, pki.Pair(program.ca, pki.issue(program.ca, name, SYSTEM, now=datetime.now(UTC))), force=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def post_review(program: Deployment, path: str, item: JSON, operation: str = "CREATE") -> JSON:
    """The response to a review of a pod that doesn't come from the API server."""
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "by-hand",
            "operation": operation,
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "namespace": item["metadata"]["namespace"],
            "name": item["metadata"]["name"],
            "object": item,
        },
    }
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = f"https://127.0.0.1:{program.balancer.port}{path}"
    request = urllib.request.Request(url, json.dumps(review).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:
        response: JSON = json.load(answer)["response"]
    return response
