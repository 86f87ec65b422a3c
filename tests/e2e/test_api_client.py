"""What tests read and create without kubectl is as kubectl does it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane

from .api_client import LAST_APPLIED, api_client
from .deployment import JSON, Kubectl, eventually
from .objects import namespace, pod, quota
from .sweeping import sweep
from .tenants import tenant
from .webhooks import configuration


def without_list_metadata(found: JSON) -> JSON:
    """An object, or the items of a List: its own metadata is kubectl's."""
    return {"items": found["items"]} if found["kind"] == "List" else found


def test_it_is_what_kubectl_prints(plane: ControlPlane, tmp_path: Path) -> None:
    kubectl = Kubectl(plane.kubeconfig)
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=2))
    kubectl("label", "quota", "gpu-quota", "-n", space, "team=a")
    user = tenant(kubectl, plane, tmp_path, space)
    for arguments in (
        ("quota", "gpu-quota", "-n", space),
        ("resourcequotas", "-n", space, "-l", "team=a"),
        ("resourcequota", "-n", space, "-l", "team=b"),
        ("serviceaccounts", "-A", "--field-selector=metadata.name=tenant"),
        ("priorityclasses",),
        ("ns", space),
    ):
        expected = json.loads(kubectl("get", *arguments, "-o", "json"))
        assert without_list_metadata(api_client(plane.kubeconfig).get(*arguments)) == without_list_metadata(expected), (
            arguments
        )
    assert user.get("quota", "-n", space) == kubectl.get("quota", "-n", space)
    for who, refused in ((user, ("secrets", "-n", "kube-system")), (kubectl, ("quota", "other", "-n", space))):
        with pytest.raises(AssertionError, match=r"forbidden|not found"):
            api_client(who.kubeconfig).get(*refused)


@pytest.mark.parametrize("arguments", [("quota/x",), ("nodes,pods", "-A"), ("pods", "--watch")])
def test_the_rest_is_left_to_kubectl(plane: ControlPlane, arguments: tuple[str, ...]) -> None:
    with pytest.raises(LookupError):
        api_client(plane.kubeconfig).get(*arguments)


def test_what_is_applied_is_as_kubectl_applies_it(plane: ControlPlane) -> None:
    kubectl = Kubectl(plane.kubeconfig)
    space = namespace(kubectl)
    ours, theirs = quota(space, "ours", gpu=2), quota(space, "theirs", gpu=2)
    kubectl.apply(ours)
    kubectl("apply", "-f", "-", stdin=json.dumps(theirs))

    def stored(name: str) -> tuple[JSON, JSON]:
        found = kubectl.get("quota", name, "-n", space)
        return found["spec"], json.loads(found["metadata"]["annotations"][LAST_APPLIED])["spec"]

    assert stored("ours") == stored("theirs")
    client = api_client(plane.kubeconfig)
    assert not client.is_applied(quota(space, "other", gpu=2))
    assert not client.is_applied(quota(space, "ours", gpu=3))
    assert client.is_applied(ours)
    kubectl("patch", "quota", "ours", "-n", space, "--type=merge", "-p", '{"spec": {"hard": {"pods": "1"}}}')
    assert client.is_applied(ours), "what others add stays where kubectl applies it again"
    client.merge({"spec": {"hard": {"limits.nvidia.com/gpu": "3"}}}, "quota", "ours", space)
    assert not client.is_applied(ours)
    kubectl.apply(quota(space, "new", gpu=1), quota(space, "ours", mem=3))
    assert stored("ours")[0]["hard"] == {"limits.nvidia.com/gpumem": "3", "pods": "1"}, (
        "what isn't there any more is taken away"
    )
    assert "new" in {item["metadata"]["name"] for item in kubectl.get("quota", "-n", space)["items"]}
    everything = api_client(plane.kubeconfig).everything()
    assert {("Namespace", "", space), *(("ResourceQuota", space, name) for name in ("ours", "new"))} <= everything
    with pytest.raises(AssertionError, match="must be greater than or equal to 0"):
        kubectl.apply(quota(space, "negative", gpu=-1))


def test_what_is_deleted_is_gone_and_nothing_else(plane: ControlPlane) -> None:
    kubectl = Kubectl(plane.kubeconfig)
    spaces = [namespace(kubectl), namespace(kubectl)]
    kubectl.apply(*(quota(space, name, gpu=2) for space in spaces for name in ("a", "b")))

    def left() -> list[tuple[int, str]]:
        metas = [item["metadata"] for item in kubectl.get("quota", "-A")["items"]]
        return sorted((spaces.index(meta["namespace"]), meta["name"]) for meta in metas if meta["namespace"] in spaces)

    kubectl.delete_all("resourcequotas", namespace=spaces[0])
    assert left() == [(1, "a"), (1, "b")]
    api_client(plane.kubeconfig).delete_all("quota", spaces[1], "metadata.name!=a")
    assert left() == [(1, "a")]
    kubectl.delete_all("limitranges", "quota")
    assert left() == []
    with pytest.raises(LookupError):
        kubectl.delete_all("nothings")


def test_what_a_file_left_is_deleted_and_named(plane: ControlPlane) -> None:
    kubectl, client = Kubectl(plane.kubeconfig), api_client(plane.kubeconfig)
    before = client.everything()
    space = namespace(kubectl)
    meta = {"name": "left-behind"}
    template = {"metadata": {"labels": {"app": "left"}}, "spec": pod(space, "")["spec"]}
    selector = {"matchLabels": {"app": "left"}}
    replicas = {"serviceName": "left", "replicas": 1, "selector": selector, "template": template}
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["DELETE"], "resources": ["*"]}
    kubectl.apply(
        quota(space, gpu=1),
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta | {"namespace": space}, "spec": replicas},
        {"apiVersion": "v1", "kind": "Node", "metadata": meta},
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": meta, "spec": {}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta},
        configuration("Validating", meta["name"], "https://127.0.0.1:1/", b"", rules=[rule]),
    )
    eventually(lambda: len(kubectl.get("pods", "-n", space)["items"]), 1)
    named = ("ConfigMap/default", "DeviceClass", "ValidatingWebhookConfiguration")
    assert sweep(kubectl, before, running=False) == [f"{each}/left-behind" for each in named]
    assert {kind for kind, *_ in client.everything() - before} == {"Namespace", "ServiceAccount", "ConfigMap"}
    assert sweep(kubectl, before, running=False) == []
