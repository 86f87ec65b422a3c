"""Single checks of `kubectl hami doctor`: DeviceClasses, idle pods, the accounts of device plugins, and rights."""

from __future__ import annotations

import pytest
from builders import accelerator_quota, bound_pod
from dra.objects import NVIDIA, resource_slice, whole
from simulate.files import JSON, pod

from hack.render_rights import TARGET, render
from hami_webhook.config.settings import KNOWN_PLUGINS

from .conftest import Hami
from .installation import SYSTEM, Installation, device_class, stamp, with_claims
from .test_doctor import SCHEDULER, found, rewrite

FILTERED = "its filter DynamicResources is on"


def installation_with_class(resource: str, *, filtered: bool, version: str = "v1.36.3", gate: str = "") -> Installation:
    """A driver's chart brought a class; kube-scheduler is configured by our manifests or, if `filtered`, by others."""
    made = Installation()
    made.api.version = version
    made.api.groups |= {"resource.k8s.io/v1", "resource.k8s.io"}
    found = device_class("gpu.example.com", ())
    found["spec"]["extendedResourceName"] = resource
    made.objects.append(found)
    if filtered:
        rewrite(made, SCHEDULER, "disabled: [{name: DynamicResources}]", "disabled: []")
    if gate:
        deployment = made.find("Deployment", "hami-scheduler")
        beside = {
            "name": "kube-scheduler",
            "command": ["kube-scheduler", f"--feature-gates=DRAExtendedResource={gate}"],
        }
        deployment["spec"]["template"]["spec"]["containers"].append(beside)
    return made


@pytest.mark.parametrize(
    ("filtered", "version", "gate", "waiting"),
    [
        (False, "v1.36.3", "", False),
        (True, "v1.36.3", "", True),
        (True, "v1.38.0", "", True),
        (True, "v1.36.3", "false", False),
        (True, "v1.35.4", "", False),
        (True, "v1.35.4", "true", True),
    ],
)
def test_the_class_is_named_and_whether_pods_wait_for_it(
    hami: Hami, filtered: bool, version: str, gate: str, waiting: bool
) -> None:
    installation = installation_with_class("nvidia.com/gpu", filtered=filtered, version=version, gate=gate)
    faults = found(hami(installation.api, "doctor", "-o", "json").result)["device-classes"]
    ((subject, fault, *_),) = faults
    assert subject == "DeviceClass gpu.example.com"
    assert fault.startswith("takes nvidia.com/gpu by extendedResourceName, which pods request by limits")
    assert (FILTERED in fault) == waiting


def test_a_class_that_takes_nothing_of_ours_is_no_fault(hami: Hami) -> None:
    installation = installation_with_class("example.com/nic", filtered=True)
    assert "device-classes" not in found(hami(installation.api, "doctor", "-o", "json").result)


def test_devices_that_no_row_is_for_are_named(hami: Hami) -> None:
    installation = with_claims()
    installation.objects.append(
        {"kind": "ResourceSlice", **resource_slice("n4", whole("x0", kind="vgpu"), driver=NVIDIA)}
    )
    ((subject, fault, *_),) = found(hami(installation.api, "doctor", "-o", "json").result)["claims"]
    assert subject == f"driver {NVIDIA}"
    assert (
        fault == "publishes devices of type vgpu, which no row of dra.devices prices: under a quota no claim gets one"
    )


# What `kubectl hami doctor` says of idle pods, of which without figures nothing is known


LIMITING = accelerator_quota("shared", spec={"idleAfter": "2h"}, gpu=4)


@pytest.fixture
def installation() -> Installation:
    """A quota limits idleness; two pods run on a node, and nobody serves figures."""
    made = Installation()
    made.objects.append(LIMITING)
    for name in ("other", "measured"):
        held = bound_pod(name, "n1", "GPU-1,NVIDIA,1000,10:;", namespace="team-a", uid=name)
        held["status"]["startTime"] = "2026-11-22T11:00:00Z"
        made.objects.append(held)
    return made


def idle(hami: Hami, installation: Installation) -> JSON:
    """The check, which is the only one with findings about it."""
    found: JSON = next(
        each for each in hami(installation.api, "doctor", "-o", "json").result["checks"] if each["check"] == "idle"
    )
    return found


def test_a_limit_without_figures_has_no_effect(hami: Hami, installation: Installation) -> None:
    (fault,) = idle(hami, installation)["findings"]
    text = "its idleAfter has no effect: the cluster doesn't serve usage.hami.io"
    assert (fault["subject"], fault["fault"]) == ("AcceleratorQuota shared", text)


def test_pods_without_figures_are_named_by_node(hami: Hami, installation: Installation) -> None:
    meta = {"name": "measured", "namespace": "team-a"}
    usage = {"kind": "PodUsage", "apiVersion": "usage.hami.io/v1alpha1", "metadata": meta, "timestamp": stamp()}
    installation.objects.append(usage)
    found = idle(hami, installation)
    (advice,) = found["advice"]
    assert (found["findings"], advice["subject"]) == ([], "node n1")
    text = "has no figures of 1 pod (team-a/other), so that no quota takes them for idle"
    assert advice["fault"] == text


def test_ordinary_day_without_a_limit_nothing_is_asked(hami: Hami) -> None:
    installation = Installation()
    found = idle(hami, installation)
    assert (found["findings"], found["advice"]) == ([], [])
    assert not any("usage.hami.io" in path for _, path in installation.api.asked)


# `kubectl hami doctor` finds device plugins whose service accounts may not write allocations


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


# The rights that `kubectl hami doctor` asks after


def test_the_rights_are_those_of_the_manifests() -> None:
    assert TARGET.read_text() == render(), "make render writes them"


def test_rights_are_asked_for_as_far_as_the_configuration_needs_them(hami: Hami) -> None:
    installation = Installation()
    installation.api.allowed = lambda spec: False

    def lacking() -> str:
        run = hami(installation.api, "doctor", "-o", "json")
        return "\n".join(fault for _, fault in found(run.result)["rights"])

    before = lacking()
    assert "patch acceleratorquotas/status.hami.io" in before
    assert "devices.scheduling.koordinator.sh" not in before
    assert "list poddisruptionbudgets.policy" in before
    assert "delete pods" in before
    installation.api.groups = {"scheduling.koordinator.sh"}
    scheduler = installation.find("Deployment", "hami-scheduler")["spec"]["template"]["spec"]
    (extender,) = [each for each in scheduler["containers"] if "serve" in each.get("args", ())]
    extender["args"].append("--preemption=off")
    after = lacking()
    assert "list devices.scheduling.koordinator.sh" in after
    assert [text for text in ("hami.io", "poddisruptionbudgets", "delete pods") if text in after] == []
    assert after.count("patch pods/status") == before.count("patch pods/status") - 1  # the controller has it, too
