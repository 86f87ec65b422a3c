"""Tenants: users with rights in one namespace only."""

from __future__ import annotations

import json
from pathlib import Path

from hack.devcluster.identities import kubeconfig
from hack.devcluster.plane import ControlPlane

from .api_client import api_client
from .deployment import TOKEN_SECONDS, Kubectl, bound_role, service_account


def tenant(
    kubectl: Kubectl, plane: ControlPlane, folder: Path, namespace: str, role: str = "edit", name: str = "tenant"
) -> Kubectl:
    """kubectl as a service account of the namespace that has a ClusterRole there."""
    kubectl.apply(
        service_account(name, namespace), bound_role(f"{name}-{role}", role, name, namespace, space=namespace)
    )
    return token_of(kubectl, plane, folder, namespace, name)


def token_of(kubectl: Kubectl, plane: ControlPlane, folder: Path, namespace: str, name: str) -> Kubectl:
    """kubectl as a service account."""
    token = api_client(kubectl.kubeconfig).token(name, namespace, TOKEN_SECONDS)
    path = folder / f"{namespace}-{name}.kubeconfig"
    path.write_text(json.dumps(kubeconfig(plane.server, plane.authority.certificate.read_bytes(), {"token": token})))
    return Kubectl(path)
