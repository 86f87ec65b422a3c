"""What a file of tests left on the control plane that it shares with others."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Set

import yaml

from hack.devcluster.plane import NODE

from .api_client import Key, NotFound, api_client
from .deployment import SYSTEM, Kubectl, both_roles, dev_overlay

_OF_THE_API_SERVER = {"APIService", "FlowSchema", "IPAddress", "PriorityLevelConfiguration", "ServiceCIDR"}
_IN_EACH_NAMESPACE = {("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")}
_UNNAMED = {"AcceleratorQuota", "ClusterRole", "ClusterRoleBinding", "Node", "PriorityClass"}
"""What a file applies for all its tests: it is deleted without a word."""
_SECONDS = 60.0


def sweep(kubectl: Kubectl, before: Set[Key], *, running: bool) -> list[str]:
    """Delete what wasn't there `before`; `running`: our program stays, and what it has installed and written.

    Namespaces stay, emptied, as their end takes seconds. Returns the objects that their file should have deleted, as
    they are in no namespace that it made; and those that can't be deleted.
    """
    client = api_client(kubectl.kubeconfig)

    def left() -> set[Key]:
        return {each for each in client.everything() - before if not _stays(each, kubectl, running=running)}

    for space in ("default", *(() if running else (SYSTEM,))):  # the former has those of what has no namespace
        kubectl.delete_all("events", namespace=space)
    found = left()
    # they could refuse the rest
    client.delete({each for each in found if each[0].endswith("WebhookConfiguration")})
    # of these there may be hundreds
    kubectl.delete_all("jobs", "deployments", "pods", "resourcequotas")
    with contextlib.suppress(LookupError, NotFound):  # their definition may be gone
        kubectl.delete_all("acceleratorquotas")
    client.delete_all("nodes", fields=f"metadata.name!={NODE}")
    deadline = time.monotonic() + _SECONDS
    while (still := left()) and time.monotonic() < deadline:
        client.delete(still)
    to_be_named = {each for each in found if each[0] not in _UNNAMED and _is_in(before, each[1])}
    return [*map(_shown, sorted(to_be_named)), *(f"{_shown(each)} for ever" for each in still)]


def _stays(found: Key, kubectl: Kubectl, *, running: bool) -> bool:
    kind, space, name = found
    if (
        kind in _OF_THE_API_SERVER
        or kind == "Namespace"
        or space.startswith("kube-")
        or (kind, name) in _IN_EACH_NAMESPACE
    ):
        return True
    if running and space == SYSTEM:
        return True
    return found in _installed(kubectl) and (running or not kind.endswith("WebhookConfiguration"))


@functools.cache
def _installed(kubectl: Kubectl) -> set[Key]:
    """What `Deployment.install` applies."""
    objects = [*yaml.safe_load_all(dev_overlay(kubectl)), *both_roles()]
    return {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in objects}


def _is_in(objects: Set[Key], namespace: str) -> bool:
    return not namespace or ("Namespace", "", namespace) in objects


def _shown(found: Key) -> str:
    return "/".join(filter(None, found))
