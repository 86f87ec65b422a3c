"""What helm makes of the chart hami-daemon, and of placeholders in ours."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from helm_program import DAEMON_CHART, JSON, Helm, built, daemon_set

pytestmark = [pytest.mark.integration, pytest.mark.skipif(built() is None, reason="helm renders the chart")]


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path)


def test_it_passes_helm_lint(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm("lint", DAEMON_CHART, "--strict")


def test_values_of_koordinators_chart_mean_the_same(helm: Helm) -> None:
    values = {
        "affinity": {"nodeAffinity": {}},
        "tolerations": [{"operator": "Exists"}],
        "hamiCore": {
            "libvgpuSoVersion": "v2.7.0",
            "image": {"repository": "registry.example:5000/hami", "tag": "v2.7.1"},
            "imagePullPolicy": "Always",
            "resources": {"limits": {"memory": "1Gi"}},
        },
    }
    pod = daemon_set(helm, "-f", str(helm.values("values", {"daemon": values})))["spec"]["template"]["spec"]
    (copies,) = pod["initContainers"]
    assert pod["tolerations"] == values["tolerations"]
    assert (copies["image"], copies["imagePullPolicy"]) == ("registry.example:5000/hami:v2.7.1", "Always")
    assert copies["resources"]["limits"] == {"memory": "1Gi"}
    assert copies["env"] == [{"name": "VERSION", "value": "v2.7.0"}]


def test_without_the_monitor_it_copies_the_library_and_has_no_rights(helm: Helm) -> None:
    off = ("--set", "daemon.vgpuMonitor.enabled=false")
    assert {each["kind"] for each in helm.template(*off, chart=DAEMON_CHART)} == {"DaemonSet", "ServiceAccount"}
    pod = daemon_set(helm, *off)["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert [each["name"] for each in pod["containers"]] == ["idle"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("daemon.vgpuMonitor.enabeld=true", "enabeld"),
        ("daemon.hamiCore.libvgpuSoVersion=../../etc", "libvgpuSoVersion"),
        ("daemon.hamiCore.image.tag=", "tag"),
    ],
)
def test_a_value_that_means_nothing_is_refused_with_its_path(helm: Helm, value: str, why: str) -> None:
    assert why in helm.refused("template", "x", DAEMON_CHART, "--set", value)


def test_the_library_is_replaced_by_a_new_file(helm: Helm, tmp_path: Path) -> None:
    """Programs that run have the old one mapped: to write into it would end them."""
    (copies,) = daemon_set(helm)["spec"]["template"]["spec"]["initContainers"]
    source, target = tmp_path / "image", tmp_path / "node"
    source.mkdir()
    target.mkdir()
    (source / "libvgpu.so.v2.6.0").write_text("new")
    (target / "libvgpu.so").write_text("old")
    script = copies["command"][-1].replace("/k8s-vgpu/lib/nvidia", str(source)).replace("/usr/local/vgpu", str(target))
    with (target / "libvgpu.so").open() as mapped:
        subprocess.run(["sh", "-ec", script], env={**os.environ, "VERSION": "v2.6.0"}, check=True)
        assert mapped.read() == "old"
    assert {file.name: file.read_text() for file in target.iterdir()} == {"libvgpu.so": "new"}


# Placeholders in the chart (docs/spec/placeholders.md)


def test_placeholders_and_their_rights_are_there_where_they_are_enabled_alone(tmp_path: Path) -> None:
    helm = Helm(tmp_path)

    def rendered(*more: str) -> tuple[list[str], list[JSON], list[str]]:
        objects = helm.template(*more)
        (controller,) = [
            each
            for each in objects
            if each["kind"] == "Deployment" and each["metadata"]["name"] == "hami-webhook-controller"
        ]
        (container,) = controller["spec"]["template"]["spec"]["containers"]
        flags = [each for each in container["args"] if each.startswith(("--placeholder", "--preemption"))]
        named = [each for each in objects if "placeholder" in each["metadata"]["name"]]
        rules = [rule for each in named for rule in each.get("rules", ())]
        return flags, rules, [each["kind"] for each in named]

    assert rendered() == ([], [], [])
    flags, rules, kinds = rendered("--set", "placeholders.enabled=true,placeholders.image.registry=mirror.local")
    assert flags == [
        "--placeholders=10",
        "--placeholders-per-group=4",
        "--placeholder-timeout=15m",
        "--placeholder-image=mirror.local/pause:3.10",
        "--preemption=on",
    ]
    assert rules == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete"]}]
    assert sorted(kinds) == ["PriorityClass", "Role", "RoleBinding"]
