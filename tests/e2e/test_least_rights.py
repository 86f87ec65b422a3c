"""What somebody can do who took over a pod of ours: everything is tried with that pod's own account."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import SYSTEM, Deployment, Kubectl
from .objects import GPU, JSON, accelerator_quota, gpu_node, namespace, pod, quota
from .roles import CONTROLLER, SCHEDULER, WEBHOOK, Roles


@pytest.fixture(scope="module")
def installed(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    """The rights as rendered; no process is needed."""
    kubectl, folder = Kubectl(plane.kubeconfig), tmp_path_factory.mktemp("rights")
    roles = Roles(plane, folder, kubectl, Deployment(plane, folder, kubectl))
    # nobody is there to answer reviews
    kubectl("delete", "validatingwebhookconfiguration", "hami-webhook-admission")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hami-webhook-tls", "namespace": SYSTEM}}
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "hami-scheduler-controller", "namespace": SYSTEM},
    }
    kubectl.apply(secret, lease, gpu_node("victim", 24576))
    try:
        yield roles
    finally:
        kubectl("delete", "node", "victim")
        kubectl("delete", "aq", "least-rights", "--ignore-not-found")
        kubectl("delete", "-n", SYSTEM, "secret/hami-webhook-tls", "lease/hami-scheduler-controller")
        roles.close()


def attempts(kubectl: Kubectl, space: str) -> dict[str, tuple[str, str, object]]:
    """What an intruder would try: method, path and body."""
    local, rbac = f"/api/v1/namespaces/{space}", "rbac.authorization.k8s.io"
    own = f"/api/v1/namespaces/{SYSTEM}"
    webhooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hami-webhook-admission"
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/hami-scheduler-controller"
    label: JSON = {"metadata": {"labels": {"owned": "yes"}}}
    configuration = kubectl.get("mutatingwebhookconfiguration", "hami-webhook-admission")
    hooks = configuration["webhooks"]
    everything = [{**hooks[0], "rules": [{**hooks[0]["rules"][0], "resources": ["*"]}], "matchConditions": []}]
    elsewhere = [{**hooks[0], "clientConfig": {"url": "https://192.0.2.1/"}}]
    role = {
        "metadata": {"name": "mine"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "Group", "apiGroup": rbac, "name": "system:authenticated"}],
    }
    about = {"kind": "Pod", "namespace": space, "name": "p"}
    event = {"metadata": {"name": "e", "namespace": space}, "involvedObject": about, "reason": "R", "message": "m"}
    raised = {"spec": {"hard": {"limits.nvidia.com/gpu": "100"}}}
    used = {"status": {"used": {"limits.nvidia.com/gpu": "0"}}}
    above = "/apis/hami.io/v1alpha1/acceleratorquotas/least-rights"
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "victim"}}
    return {
        "have every object sent to the webhook": ("PATCH", webhooks, {"webhooks": everything}),
        "have pods sent elsewhere": ("PATCH", webhooks, {"webhooks": elsewhere}),
        "read the serving key": ("GET", f"{own}/secrets/hami-webhook-tls", None),
        "write the serving key": ("PATCH", f"{own}/secrets/hami-webhook-tls", {"data": {"tls.key": "eA=="}}),
        "read the namespace's Secrets": ("GET", f"{own}/secrets", None),
        "read a tenant's Secrets": ("GET", f"{local}/secrets", None),
        "change a node": ("PATCH", "/api/v1/nodes/victim", label),
        "create a pod": ("POST", f"{local}/pods", pod(space, "mine", cpu=1)),
        "change a pod": ("PATCH", f"{local}/pods/p", label),
        "evict a pod": (
            "POST",
            f"{local}/pods/p/eviction",
            {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": space}},
        ),
        "delete a pod": ("DELETE", f"{local}/pods/p", None),
        "bind a pod": ("POST", f"{local}/pods/p/binding", binding),
        "read pods": ("GET", f"{local}/pods", None),
        "raise a quota": ("PATCH", f"{local}/resourcequotas/gpu-quota", raised),
        "say that nothing is used": ("PATCH", f"{local}/resourcequotas/gpu-quota/status", used),
        "raise a quota above namespaces": ("PATCH", above, raised),
        "say that nothing is used of it": ("PATCH", f"{above}/status", used),
        "take the lease": ("PUT", leases, kubectl.get("lease", "hami-scheduler-controller", "-n", SYSTEM)),
        "write events": ("POST", f"{local}/events", event),
        "have more rights": ("POST", f"/apis/{rbac}/v1/clusterrolebindings", role),
        "be somebody else": (
            "POST",
            f"{own}/serviceaccounts/hami-webhook-controller/token",
            {"spec": {"audiences": []}},
        ),
    }


ALL = {"read pods", "say that nothing is used", "say that nothing is used of it"}
POSSIBLE = {
    WEBHOOK: ALL,
    CONTROLLER: {
        *ALL,
        "have every object sent to the webhook",
        "have pods sent elsewhere",
        "read the serving key",
        "write the serving key",
        "change a node",
        "change a pod",
        "evict a pod",
        "take the lease",
        "write events",
    },
    SCHEDULER: {*ALL, "change a node", "change a pod", "delete a pod", "bind a pod", "write events"},
}
"""What the manifests do grant; docs/security.md says what follows from it."""


def answer(plane: ControlPlane, token: str, method: str, path: str, body: object) -> int:
    """The API server's status code; nothing is really changed."""
    context = ssl.create_default_context(cafile=str(plane.authority.certificate))
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    request = urllib.request.Request(
        f"{plane.server}{path}" + ("" if method == "GET" else "?dryRun=All"),
        None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": kind},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as found:
            return int(found.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize("account", [WEBHOOK, CONTROLLER, SCHEDULER])
def test_an_intruder_is_forbidden_all_but_what_the_pod_needs(
    installed: Roles, plane: ControlPlane, account: str
) -> None:
    kubectl = installed.kubectl
    space = namespace(kubectl)
    above = accelerator_quota("least-rights", {"matchLabels": {"nobody": "has"}}, hard={GPU: 1})
    kubectl.apply(quota(space, gpu=1), above, pod(space, "p", cpu=1))
    token = kubectl("create", "token", account, "-n", SYSTEM).strip()
    codes = {what: answer(plane, token, *how) for what, how in attempts(kubectl, space).items()}
    assert {what for what, code in codes.items() if code != 403} == POSSIBLE[account], codes
    assert {code for what, code in codes.items() if what in POSSIBLE[account]} <= {200, 201}, codes
