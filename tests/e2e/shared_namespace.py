"""A namespace that several users share, with an AcceleratorQuota for each of them: its objects, users and workloads.

The custom resource and its controller are stand-ins: a kind with a pod template, and an account that makes pods of what
is stored there, as operators do.
"""

from __future__ import annotations

import base64
import json
import ssl
import uuid
from collections import Counter
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

from helm_program import Helm

from .deployment import Deployment, Kubectl, eventually
from .objects import GPU, JSON, accelerator_quota, job, namespace, pod

STAMP, STAMP_GROUPS = "hami.io/submitted-by", "hami.io/submitted-by-groups"
REPLICAS = ("hami-webhook-0", "hami-webhook-1", "hami-webhook-2")
CONFIGURATION = "hami-webhook-admission"
LIMIT, ASKED = 4, 6
USERS = ("alice", "bob")
OPERATOR, HUB = "training-operator", "hub"
KIND = "trainings.example.com"
TRAINING: JSON = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": KIND},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": "Training", "plural": "trainings", "singular": "training"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def templates_webhook(folder: Path, deployment: Deployment) -> JSON:
    """The chart's webhook for templates, with the address of the balancer in the place of the Service."""
    values = {
        "submittedBy": {
            "enabled": True,
            "controllers": [OPERATOR],
            "portals": [HUB],
            "workloads": [{"apiGroups": ["example.com"], "resources": ["trainings"]}],
        }
    }
    helm = Helm(folder)
    objects = helm.template("-f", helm.values("who", values))
    (found,) = [each for each in objects if each["kind"] == "MutatingWebhookConfiguration"]
    (hook,) = [each for each in found["webhooks"] if each["name"] == "templates.webhook.hami.io"]
    bundle = base64.b64encode(deployment.ca.certificate).decode()
    return {
        **hook,
        "clientConfig": {"url": f"https://127.0.0.1:{deployment.balancer.port}/templates", "caBundle": bundle},
    }


class Shared:
    """A namespace with a quota of `LIMIT` cards for each user, and users with ClusterRole `edit` there."""

    def __init__(self, deployment: Deployment, folder: Path, total: int = 100, **spec: Any) -> None:
        self.kubectl, self.plane, self.folder = deployment.kubectl, deployment.plane, folder
        self.name = namespace(self.kubectl)
        selector = {"matchLabels": {"kubernetes.io/metadata.name": self.name}}
        per = {"user": True, "hard": {GPU: LIMIT}}
        self.kubectl.apply(accelerator_quota(self.name, selector, {GPU: total}, **({"per": per} | spec)))
        self._users: dict[str, Kubectl] = {}

    def user(self, name: str, *groups: str) -> Kubectl:
        if name not in self._users:
            path = self.folder / f"{name}.kubeconfig"
            made = self.plane.authority.kubeconfig(f"who-{name}", self.plane.server, name, *groups)
            path.write_bytes(made.read_bytes())
            self._users[name] = Kubectl(path)
        user = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}
        edit = role | {"name": "edit"}
        for each in (edit, role) if name in (OPERATOR, HUB) else (edit,):
            self.kubectl.apply(
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": "RoleBinding",
                    "metadata": {"name": f"{name}-{each['name']}", "namespace": self.name},
                    "roleRef": each,
                    "subjects": [user],
                }
            )
        return self._users[name]

    def let_train(self, *users: str) -> None:
        """What an operator's own ClusterRoles give its users and itself."""
        for user in (*users, OPERATOR):
            role = "--clusterrole=cluster-admin", f"--user={user}"
            self.kubectl("create", "rolebinding", f"train-{user}", *role, "-n", self.name)

    def status(self) -> JSON:
        found: JSON = self.kubectl.get("aq", self.name).get("status") or {}
        return found

    def used(self) -> dict[str, int]:
        """The cards of each subject, as the status names them."""
        return {each["name"]: int(each["used"][GPU]) for each in self.status().get("subjects") or ()}

    def pods(self) -> list[JSON]:
        items: list[JSON] = self.kubectl.get("pods", "-n", self.name)["items"]
        return [each for each in items if "deletionTimestamp" not in each["metadata"]]

    def stamps(self) -> dict[str, int]:
        """The pods of each subject, as their stamps say."""
        return dict(Counter((each["metadata"].get("annotations") or {}).get(STAMP, "") for each in self.pods()))

    def clear(self, *kinds: str) -> None:
        self.kubectl.delete_all(*kinds, "pods", namespace=self.name)
        eventually(self.used, {})

    def delete(self) -> None:
        self.kubectl("delete", "aq", self.name)
        self.kubectl("delete", "namespace", self.name, "--wait=false")


def pod_spec(space: str) -> JSON:
    return dict(pod(space, "", gpu=1, gpumem=100)["spec"])


def template(space: str, app: str, **annotations: str) -> JSON:
    return {"metadata": {"labels": {"app": app}, "annotations": annotations}, "spec": pod_spec(space)}


def replicated(space: str, kind: str, name: str, replicas: int = ASKED, annotations: JSON | None = None) -> JSON:
    group = "v1" if kind == "ReplicationController" else "apps/v1"
    selector: JSON = {"app": name} if kind == "ReplicationController" else {"matchLabels": {"app": name}}
    spec: JSON = {"replicas": replicas, "selector": selector, "template": template(space, name, **(annotations or {}))}
    if kind == "DaemonSet":
        del spec["replicas"]
    if kind == "StatefulSet":
        spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name, "namespace": space}, "spec": spec}


def training(space: str, name: str) -> JSON:
    spec = {"replicas": ASKED, "template": template(space, name)}
    meta = {"name": name, "namespace": space}
    return {"apiVersion": "example.com/v1", "kind": "Training", "metadata": meta, "spec": spec}


def cron_job(space: str, name: str) -> JSON:
    made = job(space, name, ASKED, gpu=1, gpumem=100)["spec"] | {"backoffLimit": 100}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": name, "namespace": space},
        "spec": {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": made}},
    }


def operate(operator: Kubectl, space: str, name: str) -> list[str]:
    """What an operator's account makes of a Training: pods of its template; the refusals."""
    made = operator.get("trainings.example.com", name, "-n", space)["spec"]
    refusals = []
    for number in range(made["replicas"]):
        meta = {**made["template"]["metadata"], "name": f"{name}-{number}", "namespace": space}
        obj = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": made["template"]["spec"]}
        done = operator.run("create", "-f", "-", stdin=json.dumps(obj))
        refusals += [done.stderr] if done.returncode else []
    return refusals


def knows_groups(deployment: Deployment, replica: str, space: str, *groups: str) -> bool:
    """Whether a replica writes these groups on a pod of a user who is in them."""
    request = {
        "uid": str(uuid.uuid4()),
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": space,
        "operation": "CREATE",
        "userInfo": {"username": "somebody", "groups": groups},
        "object": pod(space, "asked", gpu=1, gpumem=100),
        "dryRun": True,
    }
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    context = ssl.create_default_context(cadata=deployment.ca.certificate.decode())
    context.check_hostname = False
    connection = HTTPSConnection("127.0.0.1", deployment.backends[replica], context=context, timeout=30)
    connection.request("POST", "/mutate", body, {"Content-Type": "application/json"})
    patch = json.loads(connection.getresponse().read())["response"].get("patch", "")
    return all(group in json.dumps(json.loads(base64.b64decode(patch)), ensure_ascii=False) for group in groups)
