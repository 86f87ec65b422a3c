"""What tests read without kubectl is what kubectl prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import JSON, Kubectl
from .objects import namespace, quota
from .reading import reader
from .tenants import tenant


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
        assert without_list_metadata(reader(plane.kubeconfig).get(*arguments)) == without_list_metadata(expected), (
            arguments
        )
    assert user.get("quota", "-n", space) == kubectl.get("quota", "-n", space)
    for who, refused in ((user, ("secrets", "-n", "kube-system")), (kubectl, ("quota", "other", "-n", space))):
        with pytest.raises(AssertionError, match=r"forbidden|not found"):
            reader(who.kubeconfig).get(*refused)


@pytest.mark.parametrize("arguments", [("quota/x",), ("nodes,pods", "-A"), ("pods", "--watch")])
def test_the_rest_is_left_to_kubectl(plane: ControlPlane, arguments: tuple[str, ...]) -> None:
    with pytest.raises(LookupError):
        reader(plane.kubeconfig).get(*arguments)
