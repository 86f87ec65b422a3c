"""What our manifests install, healthy, as an API server has it."""

from __future__ import annotations

import base64
import copy
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from builders import card, node
from dra.objects import CLASSES, HAMI, NVIDIA, resource_slice, share, whole
from simulate.files import GPU, MEM, quota

from hami_webhook import pki
from hami_webhook.cluster.api import JSON

from .apiserver import ApiServer

MANIFESTS = Path(__file__).parents[2] / "manifests"
FILES = (
    "base/acceleratorquotas.yaml",
    "base/webhooks.yaml",
    "replicas/deployment.yaml",
    "replicas/service.yaml",
    "controller/deployment.yaml",
    "scheduler/deployment.yaml",
)
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SYSTEM = "hami-system"
CA = pki.authority(now=NOW - timedelta(days=1000))


def stamp(seconds: float = 0.0) -> str:
    """A time as Leases have it, so many seconds from now."""
    return f"{NOW + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S.%fZ}"


def lease(name: str, namespace: str = SYSTEM, renewed: float = -2.0) -> JSON:
    spec = {"holderIdentity": "somebody", "leaseDurationSeconds": 15, "renewTime": stamp(renewed)}
    return {"kind": "Lease", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def secret(ca: pki.KeyPair = CA, service: str = "hami-webhook", age: timedelta = timedelta(0)) -> JSON:
    pair = pki.issue(ca, service, SYSTEM, now=NOW - age)
    files = {"ca.crt": ca.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    return {"kind": "Secret", "metadata": {"name": "hami-webhook-tls", "namespace": SYSTEM}, "data": data}


def config_map(name: str, file: str, text: str) -> JSON:
    return {"kind": "ConfigMap", "metadata": {"name": name, "namespace": SYSTEM}, "data": {file: text}}


@cache
def _rendered() -> list[JSON]:
    return [each for path in FILES for each in yaml.safe_load_all((MANIFESTS / path).read_text())]


class Installation:
    """The objects of a healthy installation, to be spoilt: `find` gives one, `api` serves them."""

    def __init__(self) -> None:
        bundle = base64.b64encode(CA.certificate).decode()
        self.objects = copy.deepcopy(_rendered())
        for each in self.objects:
            for hook in each.get("webhooks", ()):
                hook["clientConfig"] = {**hook["clientConfig"], "caBundle": bundle}
            if each["kind"] == "Deployment":
                for variable in each["spec"]["template"]["spec"]["containers"][0].get("env", ()):
                    if variable["name"] == "HAMI_API_SERVER_CIDRS":
                        variable["value"] = "10.0.0.1/32"
                each["status"] = {"readyReplicas": each["spec"]["replicas"]}
        config = (MANIFESTS / "device-config" / "device-config.yaml").read_text()
        scheduler = (MANIFESTS / "scheduler" / "kube-scheduler.yaml").read_text()
        labels = {"kubernetes.io/service-name": "hami-webhook"}
        self.objects += [
            config_map("hami-device-config", "device-config.yaml", config),
            config_map("hami-scheduler-config", "kube-scheduler.yaml", scheduler),
            {
                "kind": "EndpointSlice",
                "metadata": {"name": "hami-webhook-x", "namespace": SYSTEM, "labels": labels},
                "endpoints": [{"addresses": ["10.0.0.7"], "conditions": {"ready": True}}],
            },
            secret(),
            lease("hami-scheduler-controller"),
            lease("hami-scheduler"),
            lease("n1", "kube-node-lease", -9.0),
            {"kind": "Namespace", "metadata": {"name": "team-a", "uid": "a"}},
            node("n1", card("GPU-1")),
            quota(gpu="4", mem="60000", used={GPU: "0", MEM: "0"}),
        ]
        self.api = ApiServer(self.objects, now=NOW, pod=reviewed)

    def find(self, kind: str, name: str) -> JSON:
        return next(each for each in self.objects if (each["kind"], each["metadata"]["name"]) == (kind, name))

    def remove(self, kind: str, name: str) -> None:
        self.objects.remove(self.find(kind, name))


def reviewed(pod: JSON) -> tuple[int, JSON]:
    """A pod as our webhook lets it be stored."""
    return 201, {**pod, "spec": {**pod["spec"], "schedulerName": "hami-scheduler"}}


def with_claims() -> Installation:
    """An installation that charges claims, healthy, with one by hand that has a share of a card."""
    installation = Installation()
    data = installation.find("ConfigMap", "hami-device-config")["data"]
    data["device-config.yaml"] = data["device-config.yaml"].replace("dra:\n  enabled: false", "dra:\n  enabled: true")
    hooks = installation.find("ValidatingWebhookConfiguration", "hami-webhook-admission")["webhooks"]
    component = yaml.safe_load((MANIFESTS / "components" / "claims" / "webhooks.yaml").read_text())
    for hook in [change["value"] for change in component]:
        hook["clientConfig"]["caBundle"] = hooks[0]["clientConfig"]["caBundle"]
        hooks.append(hook)
    installation.api.groups |= {"resource.k8s.io/v1", "resource.k8s.io"}
    installation.objects += [
        {"kind": "ResourceSlice", **resource_slice("n2", share("GPU-2"))},
        {"kind": "ResourceSlice", **resource_slice("n3", whole("GPU-3"), driver=NVIDIA)},
        *(device_class(name, expressions) for name, expressions in CLASSES.items()),
        claim("shared", memory="1Gi"),
    ]
    installation.find("ResourceQuota", "gpu-quota")["status"]["used"] = {GPU: "1", MEM: "1024"}
    return installation


def device_class(name: str, expressions: Sequence[str]) -> JSON:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": selectors}}


def claim(name: str, memory: str, *, allocated: bool = True, **meta: Any) -> JSON:
    """A claim of team-a, for a share of GPU-2."""
    capacity = {"memory": memory, "cores": "10"}
    exact = {"deviceClassName": HAMI, "capacity": {"requests": capacity}}
    given = {"request": "r", "driver": HAMI, "pool": "n2", "device": "GPU-2", "consumedCapacity": capacity}
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team-a", "uid": f"uid-{name}", **meta},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exact}]}},
        "status": {"allocation": {"devices": {"results": [given]}}} if allocated else {},
    }
