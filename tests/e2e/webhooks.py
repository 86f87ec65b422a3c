"""Webhooks of somebody else, and reviews that don't come from the API server."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
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

    def answer(request: JSON) -> JSON:
        wait(request["name"])
        return {}

    with _asked(program, "Validating", f"slow-{namespace}", (namespace,), answer, timeoutSeconds=25):
        yield


@contextmanager
def mutating(
    program: Deployment, name: str, patch_of: Callable[[JSON], list[JSON]], *namespaces: str
) -> Iterator[None]:
    """Another mutating webhook for the pods of namespaces, asked in the order of its name; `patch_of` a pod."""

    def answer(request: JSON) -> JSON:
        patch = json.dumps(patch_of(request["object"])).encode()
        return {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}

    with _asked(program, "Mutating", name, namespaces, answer):
        yield


@contextmanager
def _asked(
    program: Deployment,
    kind: str,
    name: str,
    namespaces: Sequence[str],
    answer: Callable[[JSON], JSON],
    **more: object,
) -> Iterator[None]:
    """A webhook for new pods of namespaces, which the API server asks until the block ends."""
    called = threading.Event()

    def answered(request: JSON) -> JSON:
        called.set()
        return answer(request)

    within = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [*namespaces]}
    more |= {"namespaceSelector": {"matchExpressions": [within]}}
    with answering(program, name, answered) as url:
        program.kubectl.apply(configuration(kind, name, url, program.ca.certificate, **more))
        probe = json.dumps(pod(namespaces[0], "probe"))
        create = ("create", "--dry-run=server", "-f", "-")
        try:
            # from some moment on, and what it makes of the probe need not be allowed
            eventually(lambda: program.kubectl.run(*create, stdin=probe).args and called.is_set())
            yield
        finally:
            program.kubectl("delete", f"{kind.lower()}webhookconfiguration", name)


def configuration(kind: str, name: str, url: str, authority: bytes, /, **more: object) -> JSON:
    """A `Mutating` or a `Validating` configuration for new pods; `more` is the webhook's."""
    webhook = {
        "name": "another.example.com",
        "clientConfig": {"url": url, "caBundle": base64.b64encode(authority).decode()},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        **more,
    }
    about = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": f"{kind}WebhookConfiguration"}
    return {**about, "metadata": {"name": name}, "webhooks": [webhook]}


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
