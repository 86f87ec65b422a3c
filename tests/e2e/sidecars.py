"""A stand-in for the injector of a service mesh, such as Istio's: named so that it mutates pods after us."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .deployment import JSON, Deployment
from .webhooks import mutating

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

    def inject(found: JSON) -> list[JSON]:
        spec, meta = found["spec"], found["metadata"]
        proxy = {"name": "istio-proxy", "image": "registry.invalid/proxyv2", "resources": AMOUNTS}
        init = {"name": "istio-init", "image": "registry.invalid/proxyv2", "securityContext": CAPABLE}
        if any(each["name"] == "istio-init" for each in spec.get("initContainers", ())):
            return []
        injected.append(meta["name"])
        inits, containers = [init, *spec.get("initContainers", ())], [proxy, *spec["containers"]]
        if (meta.get("annotations") or {}).get("native"):
            inits, containers = [init, proxy | {"restartPolicy": "Always"}, *inits[1:]], spec["containers"]
        return [
            {"op": "add", "path": "/spec/initContainers", "value": inits},
            {"op": "add", "path": "/spec/containers", "value": containers},
        ]

    with mutating(program, f"istio-sidecar-injector-{namespace}", inject, namespace):
        injected.clear()
        yield injected
