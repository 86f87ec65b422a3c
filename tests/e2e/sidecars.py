"""A stand-in for the injector of a service mesh, such as Istio's: named so that it mutates pods after us."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .deployment import Deployment, eventually
from .objects import pod
from .webhooks import answering

JSON = dict[str, Any]
CAPABLE: JSON = {
    "capabilities": {"add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"]},
    "runAsUser": 0,
    "privileged": False,
}
AMOUNTS: JSON = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "128Mi"}}


@contextmanager
def injector(program: Deployment, namespace: str) -> Iterator[list[str]]:
    """Put a proxy and what sets up its network in front of the containers of a namespace's pods, as Istio's does.

    Pods with the annotation `native: "true"` get the proxy as a restartable init container. The list has the names of
    the pods that were given one, as often as they were.
    """
    injected: list[str] = []
    called = threading.Event()

    def answer(request: JSON) -> JSON:
        called.set()
        spec = request["object"]["spec"]
        proxy = {"name": "istio-proxy", "image": "registry.invalid/proxyv2", "resources": AMOUNTS}
        init = {"name": "istio-init", "image": "registry.invalid/proxyv2", "securityContext": CAPABLE}
        if any(each["name"] == "istio-init" for each in spec.get("initContainers", ())):
            return {}
        injected.append(request["name"])
        inits, containers = [init, *spec.get("initContainers", ())], [proxy, *spec["containers"]]
        if (request["object"]["metadata"].get("annotations") or {}).get("native"):
            inits, containers = [init, proxy | {"restartPolicy": "Always"}, *inits[1:]], spec["containers"]
        patch = [
            {"op": "add", "path": "/spec/initContainers", "value": inits},
            {"op": "add", "path": "/spec/containers", "value": containers},
        ]
        return {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}

    name = f"istio-sidecar-injector-{namespace}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    with answering(program, name, answer) as url:
        webhook = {
            "name": "namespace.sidecar-injector.istio.io",
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
                lambda: program.kubectl("create", "--dry-run=server", "-f", "-", stdin=probe) and called.is_set()
            )
            injected.clear()
            yield injected
        finally:
            program.kubectl("delete", "mutatingwebhookconfiguration", name)
