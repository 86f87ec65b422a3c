"""Claims under a quota: the program that charges them, devices to be claimed, and how to ask for these."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from dra.objects import CLASSES, HAMI, exactly, resource_slice, share

from hack.devcluster.plane import ControlPlane
from hami_webhook.config.load import builtin_text
from hami_webhook.kube.quantity import Quantity

from .deployment import BOTH, BOTH_ROLES, ROOT, SYSTEM, Deployment, Kubectl, bound_role, deployed, eventually
from .objects import JSON, namespace
from .scheduling import scheduler_account

COMPONENT = ROOT / "manifests" / "components" / "claims"
NODE = "claims-n1"
API = "resource.k8s.io/v1"
CONFIGURATION = "hami-webhook-admission"


@contextlib.contextmanager
def charging_claims(
    plane: ControlPlane,
    folder: Path,
    *flags: str,
    components: Sequence[Path] = (),
    roles: Sequence[str] = (),
    through: Callable[[Path], Path] = lambda login: login,
    first: tuple[str, str] = ("a", BOTH_ROLES),
) -> Iterator[Deployment]:
    """The program that charges claims, with devices to be claimed; and with the rights of more components.

    `first` is the first replica's name, and its roles.
    """
    kubectl = Kubectl(plane.kubeconfig)
    config = folder / "device-config.yaml"
    config.write_text(charging())
    rights = folder / "rights.yaml"
    files = [(component / "rbac.yaml").read_text() for component in (COMPONENT, *components)]
    rights.write_text("---\n".join([*files, *map(yaml.safe_dump, both_bindings(*roles))]))
    kubectl("apply", "-f", str(rights))
    flags = ("--device-config-file", str(config), *flags)
    with deployed(plane, folder, flags=flags, through=through) as deployment:
        add_webhooks(deployment)
        scheduler_account(kubectl)
        name, parts = first
        deployment.start(name, roles=parts)
        publish(kubectl)
        yield deployment
        for kind in ("resourceslices", "deviceclasses"):
            kubectl("delete", kind, "--all")
    kubectl("delete", "-f", str(rights))


def charging() -> str:
    """The built-in device configuration where claims are charged."""
    text = builtin_text()
    assert "dra:\n  enabled: false" in text
    return text.replace("dra:\n  enabled: false", "dra:\n  enabled: true")


def both_bindings(*more: str) -> list[JSON]:
    """The rights of the component, and more, for the account that has both Deployments'."""
    roles = ("hami-webhook-claims", "hami-webhook-controller-claims", *more)
    return [bound_role(f"e2e-{name}", name, BOTH, SYSTEM) for name in roles]


def add_webhooks(deployment: Deployment) -> None:
    """The component's webhooks, with the address of the balancer in the place of the Service."""
    patch = yaml.safe_load((COMPONENT / "webhooks.yaml").read_text())
    bundle = base64.b64encode(deployment.ca.certificate).decode()
    for each in patch:
        path = each["value"]["clientConfig"]["service"]["path"]
        address = f"https://127.0.0.1:{deployment.balancer.port}{path}"
        each["value"]["clientConfig"] = {"url": address, "caBundle": bundle}
    deployment.kubectl("patch", "validatingwebhookconfiguration", CONFIGURATION, "--type=json", "-p", json.dumps(patch))


def publish(kubectl: Kubectl) -> None:
    """A node with two cards, and the classes."""
    amounts = {"cpu": "64", "memory": "64Gi", "pods": "500"}
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}},
            "status": {"capacity": amounts, "allocatable": amounts},
        },
        {"apiVersion": API, "kind": "ResourceSlice", **resource_slice(NODE, share("a0"), share("a1"))},
        *(
            {
                "apiVersion": API,
                "kind": "DeviceClass",
                "metadata": {"name": name},
                "spec": {"selectors": [{"cel": {"expression": each}} for each in expressions]},
            }
            for name, expressions in CLASSES.items()
        ),
    )


@contextlib.contextmanager
def namespace_with_quota(kubectl: Kubectl) -> Iterator[str]:
    space = namespace(kubectl)
    limits = {"limits.nvidia.com/gpumem": "20000", "limits.nvidia.com/gpu": "9"}
    meta = {"name": "gpu-quota", "namespace": space}
    kubectl.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": limits}})
    eventually(lambda: kubectl.used(space).get("gpumem"), "0")
    yield space
    # no kubelet ends pods of nodes, which would keep their devices from the next test
    kubectl("delete", "--raw", f"/api/v1/namespaces/{space}/pods?gracePeriodSeconds=0")
    kubectl("delete", "namespace", space, "--wait=false")


def requests(*alternatives: JSON) -> JSON:
    if len(alternatives) == 1:
        return {"devices": {"requests": [{"name": "r", "exactly": alternatives[0]}]}}
    listed = [{"name": f"a{index}", **each} for index, each in enumerate(alternatives)]
    return {"devices": {"requests": [{"name": "r", "firstAvailable": listed}]}}


def template(space: str, name: str, spec: JSON) -> JSON:
    meta = {"name": name, "namespace": space}
    return {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": meta, "spec": {"spec": spec}}


def claim(space: str, name: str, spec: JSON, **meta: Any) -> JSON:
    return {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": space, **meta},
        "spec": spec,
    }


def pod(space: str, name: str, *, of: str = "", uses: str = "", resources: JSON | None = None) -> JSON:
    container: JSON = {"name": "main", "image": "none"}
    found: JSON = {"tolerations": [{"operator": "Exists"}], "containers": [container]}
    if resources:
        container["resources"] = resources
    else:
        reference = {"resourceClaimTemplateName": of} if of else {"resourceClaimName": uses}
        container["resources"] = {"claims": [{"name": "cards"}]}
        found["resourceClaims"] = [{"name": "cards", **reference}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": space}, "spec": found}


def bound(kubectl: Kubectl, space: str) -> list[str]:
    """The pods that are on a node."""
    items = kubectl.get("pods", "-n", space)["items"]
    return sorted(each["metadata"]["name"] for each in items if each["spec"].get("nodeName"))


def memory(kubectl: Kubectl, space: str) -> int:
    return Quantity.parse(kubectl.used(space).get("gpumem", "0")).ceil()


def settled(kubectl: Kubectl, space: str) -> bool:
    """Whether pods and claims show all that is charged; what waiting pods cost is kept for a while after them."""
    return all(entry["s"] == "floor" for entry in kubectl.ledger(space).values())


TEN = requests(exactly(HAMI, memory="10000Mi", cores="10"))
