"""`kubectl hami doctor` finds device plugins whose service accounts may not write allocations."""

from __future__ import annotations

import pytest
from simulate.files import pod

from hami_webhook.config.settings import KNOWN_PLUGINS

from .conftest import Hami
from .installation import SYSTEM, Installation
from .test_doctor import found


def add_plugin(installation: Installation, space: str, account: str = "vgpu", node: str = "n1") -> None:
    """A DaemonSet that serves the kubelet, with its pod on the node."""
    volume = {"name": "sockets", "hostPath": {"path": "/var/lib/kubelet/device-plugins/"}}
    template = {"spec": {"serviceAccountName": account, "volumes": [volume], "containers": []}}
    meta = {"name": "plugin", "namespace": space}
    selector = {"matchLabels": {"app": space}}
    running = pod(f"plugin-{space}", namespace=space)
    running["metadata"]["labels"] = {"app": space}
    running["spec"]["nodeName"] = node
    installation.objects += [
        {"kind": "DaemonSet", "metadata": meta, "spec": {"selector": selector, "template": template}},
        running,
    ]


@pytest.mark.parametrize(
    "plugins",
    [
        pytest.param([("kube-system", "hami-ascend", "n1")], id="one that is known"),
        pytest.param([("sriov", "network", "n1"), (SYSTEM, "hami-device-plugin", "n1")], id="another beside it"),
        pytest.param([("sriov", "network", "n2")], id="on a node without cards"),
    ],
)
def test_other_daemon_sets_that_serve_the_kubelet_are_no_fault(hami: Hami, plugins: list[tuple[str, str, str]]) -> None:
    installation = Installation()
    for space, account, node in plugins:
        add_plugin(installation, space, account, node)
    assert found(hami(installation.api, "doctor", "-o", "json").result) == {}


def test_the_exact_value_of_the_accounts_is_said(hami: Hami) -> None:
    installation = Installation()
    add_plugin(installation, "acme")
    checks = hami(installation.api, "doctor", "-o", "json").result["checks"]
    ((check, (finding,)),) = [(each["check"], each["findings"]) for each in checks if each["findings"]]
    assert (check, finding["subject"]) == ("plugin-accounts", "DaemonSet acme/plugin")
    assert finding["fault"].startswith(
        "serves the kubelet on node n1, which has cards of ours, and its service account acme/vgpu may not write"
    )
    known = ",".join(each if "/" in each else f"{SYSTEM}/{each}" for each in KNOWN_PLUGINS)
    assert f"set HAMI_DEVICE_PLUGIN_SERVICE_ACCOUNTS={known},acme/vgpu;" in finding["remedy"]
